"""`kvspec conform` finds several faults in one run, goes on past each, and knows the declared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.conforming.conform import Report, inapplicable, report_of
from conformance.conforming.search import Search
from conformance.subject import Capabilities
from conformance.subjects import find_subject

Kvspec = Callable[..., Any]
NAME = "two_faults:TwoFaults"
CRASH = "a_refused_call_changes_nothing"
FOUND = {
    ("an_idle_pool_is_whole", "usage"),
    ("reset_only_when_idle", "True"),
    (CRASH, 'assert len(ids) != 2, "two"'),
    (CRASH, 'assert len(ids) != 3, "three"'),
    ("refinement", "not block_count_is_negative"),
}
DECLARED = """
[[violation]]
property = "an_idle_pool_is_whole"
observation = "usage"
says = "The gauge is wrong."
page = "a page"

[[violation]]
property = "reset_only_when_idle"
says = "A reset always succeeds."

[[violation]]
property = "a_refused_call_changes_nothing"
actions = ["touch"]
says = "Two at once are too much."

[[violation]]
property = "refinement"
actions = ["touch"]
says = "Two at once are too much, and nothing has changed."

[[violation]]
property = "refinement"
answers = ["not block_count_is_negative"]
says = "Fewer than none are none."
"""


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the faulty subject be found by name."""
    monkeypatch.syspath_prepend(Path(__file__).parent)


@pytest.fixture
def declared(tmp_path: Path) -> Path:
    """Return a file that declares all that is wrong with the subject."""
    path = tmp_path / "declared.toml"
    path.write_text(DECLARED)
    return path


def searched(name: str, seconds: float, seed: int = 1) -> Search:
    """Return a search that is over."""
    search = Search(name, find_subject(name), seed)
    search.run(seconds)
    return search


def seen(search: Search) -> set[tuple[str, str]]:
    """Return what was found, in the words of `FOUND`."""
    found = set()
    for f in search.tally.found:
        found |= {
            (name, what)
            for name, what in FOUND
            if name == f.fault.property and (what in f.fault.answer or what == f.mask)
        }
        if f.fault.property == "reset_only_when_idle":
            found.add(("reset_only_when_idle", "True"))
    return found


@pytest.fixture(scope="module")
def search() -> Iterator[Search]:
    """Return a search of the subject with several faults, in which all of them were found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parent)
        search = searched(NAME, 0)
        for _ in range(20):
            if seen(search) == FOUND:
                break
            search.run(0)
        yield search


@pytest.mark.slow
def test_all_faults_of_a_subject_are_found(search: Search) -> None:
    """Two crashes under one property are two; nothing is reported twice; programs are short."""
    assert seen(search) == FOUND
    faults = [(f.fault, f.mask, f.rule) for f in search.tally.found]
    assert len(faults) == len(set(faults))
    assert all(len(f.program.operations) <= 6 for f in search.tally.found)
    assert search.known.masked == {"usage"}
    assert search.tally.met_again.total() > 0, "the search did not go on past what it knew"


@pytest.mark.slow
def test_each_program_fails_as_it_was_found(search: Search, tmp_path: Path) -> None:
    """The test that the report has fails with the violation's line."""
    report = report_of(search, find_subject(NAME), ())
    for number, v in enumerate((*report.violations, *report.misuse)):
        names: dict[str, Any] = {}
        path = tmp_path / f"pasted_{number}.py"
        exec(compile(v.test, str(path), "exec"), names)  # noqa: S102  # the report's own text
        with pytest.raises(Exception, match="kvspec violation") as raised:
            names[f"test_{v.property}"]()
        assert str(raised.value) == v.line
        assert v.line in v.table


@pytest.mark.slow
def test_the_report_says_what_holds_and_what_does_not(search: Search) -> None:
    """No property is in two lists; misuse of a subject that claims all rules is a violation."""
    report = report_of(search, find_subject(NAME), ())
    assert report.verdict == "violation"
    held, broken = {h.property for h in report.held}, {v.property for v in report.violations}
    assert broken >= {CRASH, "reset_only_when_idle", "an_idle_pool_is_whole"}
    assert "the_free_queue_is_a_chain" in held
    assert not held & broken
    assert all(h.evaluated > 0 for h in report.held)
    assert {"the_cache_changes_no_answer"} <= {left.name for left in report.not_applicable}
    assert report.misuse == []
    assert report.rules_enforced["touched_block_is_not_sealed"] > 0
    text = report.model_dump_json()
    assert Report.model_validate_json(text).model_dump_json() == text


@pytest.mark.slow
def test_the_same_seed_searches_the_same_way() -> None:
    """Two searches of one turn find the same, in the same order."""
    one, two = (searched(NAME, 0, seed=4).tally for _ in range(2))
    assert [(f.fault, f.program, str(f.divergence)) for f in one.found] == [
        (f.fault, f.program, str(f.divergence)) for f in two.found
    ]
    assert one.steps == two.steps
    assert one.found


@pytest.mark.slow
def test_the_reference_is_clean(kvspec: Kvspec, tmp_path: Path) -> None:
    """Status 0; the report has figures, and no property is violated."""
    out = tmp_path / "out.json"
    done = kvspec("conform", "reference", "--seconds", 1, "--json", out)
    assert done.exit_code == 0, done.output
    assert "verdict: clean" in done.output
    report = json.loads(out.read_text())
    assert (report["verdict"], report["violations"], report["misuse"]) == ("clean", [], [])
    assert report["calls"] > 100


@pytest.mark.slow
def test_a_violation_is_printed_and_written(kvspec: Kvspec, tmp_path: Path) -> None:
    """Status 1; line, table and test are printed, four files a finding are written."""
    folder = tmp_path / "new" / "found"
    done = kvspec("conform", NAME, "--seconds", 1, "--out", folder)
    assert done.exit_code == 1, done.output
    assert "kvspec violation: property=an_idle_pool_is_whole" in done.output
    assert 'Known(masked=frozenset({"usage"}))' in done.output
    assert "violated" in done.output
    assert "violations\n" in done.output
    tests = sorted(folder.glob("test_*.py"))
    assert len(list(folder.iterdir())) == 4 * len(tests) > 0


@pytest.mark.slow
def test_declared_violations_are_no_reason_to_fail(kvspec: Kvspec, declared: Path) -> None:
    """Status 0 with each of them declared; `--every` wants to see them all."""
    done = kvspec("conform", NAME, "--seconds", 1, "--expect", declared)
    assert done.exit_code == 0, done.output
    assert "that are declared" in done.output
    assert "The gauge is wrong." in done.output
    more = '\n[[violation]]\nproperty = "admission_is_exact"\nsays = "Never."\n'
    declared.write_text(DECLARED + more)
    done = kvspec("conform", NAME, "--seconds", 1, "--expect", declared, "--every")
    assert done.exit_code == 1, done.output
    assert "declared and not found: Never." in done.output


def test_ctrl_c_keeps_what_was_found(
    kvspec: Kvspec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Status 130 and a report of what there is."""

    def stopped(self: Search, _: float) -> None:
        self._machine("pool", 0)
        raise KeyboardInterrupt

    monkeypatch.setattr(Search, "run", stopped)
    out = tmp_path / "out.json"
    done = kvspec("conform", "reference", "--json", out)
    assert done.exit_code == 130, done.output
    assert "verdict: interrupted" in done.output
    assert json.loads(out.read_text())["calls"] > 0


BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "name": (("nobody",), "'nobody' is no subject; give one of reference, reference-builtin, vllm"),
    "module": (("no_such_module:X",), "there is no module 'no_such_module'"),
    "class": (("two_faults:Three",), "the module has no 'Three'"),
    "seconds": (("reference", "--seconds", "0"), "0: a search takes some seconds"),
    "seed": (("reference", "--seed", "-1"), "-1: a seed is a whole number"),
    "expect": (("reference", "--expect", "/no/such.toml"), "/no/such.toml: cannot be read"),
    "json": (("reference", "--json", "/no/such/out.json"), "'/no/such/out.json': the folder"),
    "out": (("reference", "--out", "/dev/null"), "'/dev/null' is a file; name a folder"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused(kvspec: Kvspec, what: str) -> None:
    """Status 2, with the value and what to do, before anything is searched."""
    args, says = BAD[what]
    done = kvspec("conform", *args)
    assert done.exit_code == 2, done.output
    assert says in " ".join(done.output.split())


def test_what_a_subject_cannot_do_is_not_applicable() -> None:
    """Each capability that is missing leaves something out, and says why."""
    able = {left.name for left in inapplicable(Capabilities())}
    assert able == {"the_cache_changes_no_answer", "salts_do_not_see_each_other"}
    bare = Capabilities(
        window=False,
        lookahead=False,
        pool_calls=False,
        unpublish=False,
        salts=False,
        generations=False,
        free_rule="unhashed_first",
    )
    left = {left.name for left in inapplicable(bare)} - able
    assert left == {
        "the_oldest_release_is_evicted_first",
        "skipped_positions_show_null",
        "unconfirmed_tokens_are_never_sealed",
        "calls on the pool",
        "unpublish",
        "salts",
        "generations of adapters",
    }


def test_a_subject_without_pool_calls_is_searched() -> None:
    """The machine of the pool is left out."""

    class Closed(find_subject("reference")):  # type: ignore[misc]  # a class, which mypy cannot see
        capabilities = Capabilities(pool_calls=False)

    search = Search("closed", Closed, 1)
    stages: list[Any] = list(search._stages(0))
    assert [stage.args for stage in stages] == [("manager", 0), (0,)]
