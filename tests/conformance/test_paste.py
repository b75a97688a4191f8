"""A pasted test fails while the fault is there, passes without it, and reads like the others."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.adapters.reference import Reference
from conformance.divergence import Call
from conformance.driving.walk import Walk
from conformance.exhaustive.production import quiet
from conformance.faults.mutants import MUTANTS, planted
from conformance.lockstep import Check, Divergence, Lockstep
from conformance.program import FOUND, Factory, Operation, Program, failure, recording
from conformance.shrinking.paste import as_test
from conformance.shrinking.shrink import Shrinker
from conformance.subject import RequestSpec
from conformance.view import Difference
from spec.state import Config, Key
from spec.statemachine import Outcome

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    with quiet():
        yield


def ran(text: str) -> Divergence | None:
    """Run a pasted test here and return what it raised."""
    names: dict[str, Any] = {}
    exec(compile(text, "pasted", "exec"), names)  # noqa: S102  # the text is our own
    (test,) = (made for name, made in names.items() if name.startswith("test_"))
    try:
        test()
    except Divergence as divergence:
        return divergence
    return None


def linted(tmp_path: Path, *texts: str) -> None:
    """Hold texts against the linter and the formatter, as tests of this repository."""
    pytest.importorskip("ruff", reason="the linter is not installed")
    folder = tmp_path / "tests"
    folder.mkdir()
    for at, text in enumerate(texts):
        (folder / f"test_{at}.py").write_text(text)
    for package in ("conformance", "spec"):  # The linter knows what is ours by what is there.
        (tmp_path / package).symlink_to(ROOT / package)
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for command in (("check", "--no-cache"), ("format", "--diff", "--no-cache")):
        done = subprocess.run(  # noqa: S603  # the linter of this environment
            [sys.executable, "-m", "ruff", *command, str(folder)],
            cwd=tmp_path,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def met(make: Factory, config: Config, check: Check = "full") -> Program:
    """Return what walks call until the manager fails."""
    for seed in range(9):
        subject, operations = recording(make(config))
        pair = Lockstep(subject, check)
        try:
            Walk(pair, seed).run(2_000)
        except Divergence:
            return Program(pair.config, tuple(operations))
    raise AssertionError("no walk meets the fault")


FAULTS = ("hit-stays-queued", "stale-hit-taken", "window-one-early", "salt-not-in-key")


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_pasted_test_fails_with_the_fault_and_passes_without(name: str, tmp_path: Path) -> None:
    """Shrunk or not, for the same line; and the linter has nothing to say."""
    config = Config(12, 2, sliding_window=4 if "window" in name else None)
    texts = []
    with planted(MUTANTS[name]):
        shrinker = Shrinker(met(Reference, config), Reference)
        before = shrinker.program, shrinker.divergence
        shrinker.run()
        for program, found in (before, (shrinker.program, shrinker.divergence)):
            named = failure(program, Reference)
            assert named is not None
            texts.append(as_test(program, named, "reference"))
            assert str(ran(texts[-1])) == str(named)
            assert named.property == found.property or program is before[0]
    for text in texts:
        assert ran(text) is None
    linted(tmp_path, *texts)


SMALL = (
    Operation("add_request", {"rid": "r1", "request": RequestSpec((0, 0, 1))}),
    Operation("get_computed_blocks", {"rid": "r1"}),
    Operation("allocate_slots", {"rid": "r1", "num_tokens": 3, "hits": FOUND, "num_lookahead": 0}),
    Operation("run_step", {"outcomes": {"r1": Outcome(0, (5,))}}),
    Operation("touch", {"ids": (2,)}),
    Operation("finish", {"rid": "r1"}),
)


def ending(program: Program, action: str = "finish", violated: str = "refinement") -> Divergence:
    """Return a difference at the last call."""
    call = Call(len(program.operations), action, {})
    return Divergence(violated, call, Difference("something", 2, 'a "b\\', "c"), "r1,caller")


def test_a_pasted_test_reads_like_one_by_hand(tmp_path: Path) -> None:
    """Imports, the configuration, one call a line; what is refused says by which rule."""
    program = Program(Config(4, 2, sliding_window=7), SMALL)
    violated = "only_sealed_blocks_are_shared"
    text = as_test(program, ending(program, violated=violated), "reference-builtin")
    assert (
        text
        == '''"""A failure of only_sealed_blocks_are_shared, call by call."""

import pytest

from conformance.lockstep import Lockstep
from conformance.subject import Refusal, RequestSpec
from conformance.subjects import find_subject
from spec.state import Config
from spec.statemachine import Outcome


def test_only_sealed_blocks_are_shared() -> None:
    """The property only_sealed_blocks_are_shared holds.

    A block with more than one reference has a key.

    kvspec violation: property=only_sealed_blocks_are_shared call=6 finish block=2 expected=a'b/
    actual=c holders=r1,caller found_by=lockstep
    """
    config = Config(num_gpu_blocks=4, block_size=2, sliding_window=7)
    pair = Lockstep(find_subject("reference-builtin")(config))
    pair.add_request("r1", RequestSpec([0, 0, 1]))
    hits = pair.get_computed_blocks("r1")
    pair.allocate_slots("r1", 3, hits, 0)
    pair.run_step({"r1": Outcome(0, (5,))})
    with pytest.raises(Refusal, match="touched_block_is_not_sealed"):
        pair.touch((2,))
    pair.finish("r1")
'''
    )
    linted(tmp_path, text)
    assert ran(text) is None


def test_a_pasted_test_ends_with_the_call_that_differs() -> None:
    """What was called after it is left out, and what is left out is not counted."""
    program = Program(Config(4, 2), (Operation("finish", {"rid": "nobody"}), *SMALL))
    divergence = Divergence("refinement", Call(3, "x", {}), Difference("x", None, 1, 2), "-")
    text = as_test(program, divergence, "reference")
    assert text.endswith('    pair.allocate_slots("r1", 3, hits, 0)\n')
    assert ran(text) is None


def test_only_what_is_used_is_imported_and_named(tmp_path: Path) -> None:
    """Each look-up whose answer is used has a name of its own while another one is open."""
    looks = [Operation("get_computed_blocks", {"rid": rid}) for rid in ("a", "b", "c")]
    arrivals = [
        Operation("add_request", {"rid": rid, "request": RequestSpec((n,))})
        for n, rid in enumerate("abc")
    ]
    given = {"num_tokens": 1, "hits": FOUND, "num_lookahead": 0}
    takes = [Operation("allocate_slots", {"rid": rid, **given}) for rid in ("b", "a")]
    program = Program(Config(4, 1), (*arrivals, *looks, *takes))
    text = as_test(program, ending(program), "reference", "incremental")
    shown = re.findall(r"    (hits.* =|pair\.all.*|pair\.get.*)", text)
    assert shown == [
        "hits_1 =",
        "hits_2 =",
        'pair.get_computed_blocks("c")',
        'pair.allocate_slots("b", 1, hits_2, 0)',
        'pair.allocate_slots("a", 1, hits_1, 0)',
    ]
    assert 'Lockstep(find_subject("reference")(config), "incremental")' in text
    assert "import pytest" not in text
    assert "Refusal" not in text
    assert "Outcome" not in text
    linted(tmp_path, text)
    assert ran(text) is None


def test_calls_of_the_pool_and_what_does_not_fit_a_line(tmp_path: Path) -> None:
    """Keys, adapters, media and long prompts are laid out as the formatter does it."""
    key = Key(Key(None, (1, 2)), (3, 4), (("lora", "an adapter", 1), ("salt", 'a "quoted" one')))
    media = tuple((f"picture {n}", 10 * n, 5) for n in range(4))
    long = RequestSpec(tuple(range(60)), ("x", 1), media, "it's", prompt_logprobs=True)
    seal = {"num_cached": 0, "num_full": 2}
    ids = tuple(range(1, 50))
    calls = (
        Operation("get_new_blocks", {"n": 2}),
        Operation("cache_full_blocks", {"table": (1, 2), "keys": ("mine", key), **seal}),
        Operation("cache_full_blocks", {"table": ids, "keys": (key,) * 3, **seal}),
        Operation("touch", {"ids": ids}),
        Operation("unpublish", {"ids": ()}),
        Operation("free_blocks", {"ids": (1, 2)}),
        Operation("reset_prefix_cache", {}),
        Operation("add_request", {"rid": "a request of a long name", "request": long}),
        Operation("propose", {"rid": "a request of a long name", "drafts": ids[:30]}),
        Operation("preempt", {"rid": "nobody"}),
        Operation(
            "allocate_slots",
            {"rid": "a request of a long name", "num_tokens": 9, "hits": (), "num_lookahead": 1},
        ),
        Operation("run_step", {"outcomes": {"a request of a long name": Outcome(0, ())}}),
    )
    program = Program(Config(70, 2, max_model_len=500, enable_caching=True), calls)
    text = as_test(program, ending(program, "sweep"), "reference")
    assert text.endswith("    pair.sweep()\n")
    assert "nobody" not in text, "what means nothing is left out"
    linted(tmp_path, text)
    assert ran(text) is None


@pytest.mark.parametrize("num_calls", [46, 47, 48, 120])
def test_a_test_of_many_calls_says_why_it_is_long(tmp_path: Path, num_calls: int) -> None:
    """The linter's limit is switched off exactly where it is exceeded."""
    program = Program(Config(4, 1), (Operation("reset_prefix_cache", {}),) * num_calls)
    linted(tmp_path, as_test(program, ending(program), "reference"))


@pytest.mark.slow
def test_a_pasted_test_runs_by_itself(tmp_path: Path, python: Callable[..., Any]) -> None:
    """For a manager of somebody else's, found on the path: it fails, and passes when mended."""
    faulty = tmp_path / "theirs.py"
    source = """
from conformance.adapters.reference import Reference


class Manager(Reference):
    def finish(self, rid):
        {}
"""
    faulty.write_text(source.format("self.requests.pop(rid)"))
    program = Program(Config(4, 2), (*SMALL[:3], SMALL[5]))
    test = tmp_path / "test_pasted.py"

    def tried() -> tuple[int, str]:
        done = python("-m", "pytest", "-q", str(test), PYTHONPATH=f"{ROOT}:{tmp_path}")
        return done.returncode, done.stdout

    name = "theirs:Manager"
    namespace: dict[str, Any] = {}
    exec(faulty.read_text(), namespace)  # noqa: S102  # the text is our own
    found = failure(program, namespace["Manager"])
    assert found is not None
    test.write_text(as_test(program, found, name))
    status, printed = tried()
    assert (status, str(found) in printed) == (1, True)
    faulty.write_text(source.format("super().finish(rid)"))
    assert tried()[0] == 0
