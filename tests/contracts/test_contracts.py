"""The contracts hold, those that are false are refuted, and no verdict is taken for another."""

import importlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.contracts import (
    ROOT,
    Contract,
    ContractError,
    Result,
    Runner,
    Verdict,
    classify,
    installed,
    read_contracts,
    result_data,
)

CONTRACTS = {f"{c.module}.{c.name}": c for c in read_contracts()}

needs_crosshair = pytest.mark.skipif(
    not installed(), reason="CrossHair is not installed: pip install '.[contracts]'"
)

Written = Callable[[str], Path]


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    """Return the results of all contracts, by name."""
    found = Runner().run(list(CONTRACTS.values()), jobs=os.cpu_count() or 1)
    return {f"{r.contract.module}.{r.contract.name}": r for r in found}


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Return a way to write a folder with one contract, `one`, that should be confirmed."""

    def write(body: str) -> Path:
        (tmp_path / "my_contracts.py").write_text(f"def one(a: int, b: int) -> None:\n{body}")
        (tmp_path / "contracts.toml").write_text(
            '[my_contracts.one]\non = "block.KVCacheBlock"\nexpected = "confirmed"\n'
        )
        return tmp_path

    return write


@needs_crosshair
@pytest.mark.slow
@pytest.mark.parametrize("name", CONTRACTS)
def test_a_contract_is_as_expected(results: dict[str, Result], name: str) -> None:
    """A fact is confirmed for all arguments, and what is false has a counterexample."""
    assert results[name].as_expected, results[name]


@needs_crosshair
@pytest.mark.slow
def test_the_record_has_a_line_for_every_contract(results: dict[str, Result]) -> None:
    """What is recorded names each contract once, with its words, and says that all is well."""
    data = result_data(list(results.values()))
    assert data["ok"]
    assert set(data["contracts"]) == set(CONTRACTS)
    assert all(row["says"] and row["on"] for row in data["contracts"].values())
    assert not result_data([])["ok"]


def test_the_table_is_about_production_and_names_what_is_false() -> None:
    """Every place exists in kvcache, and just the contracts that say so are to be refuted."""
    for contract in CONTRACTS.values():
        module, *path = contract.on.split(".")
        found: object = importlib.import_module(f"kvcache.{module}")
        for part in path:
            found = getattr(found, part)
        assert callable(found)
        assert contract.says
        assert (contract.expected is Verdict.REFUTED) == contract.name.startswith("wrong_")


SAID = "/a/my_contracts.py:3: "


@pytest.mark.parametrize(
    ("status", "output", "verdict"),
    [
        (0, SAID + "info: Confirmed over all paths.", Verdict.CONFIRMED),
        (0, SAID + "info: Not confirmed.", Verdict.NOT_REFUTED),
        (1, SAID + "error: AssertionError:  when calling one(0, 1)", Verdict.REFUTED),
        (1, SAID + "error: AssertionError: x\ny:1: z when calling one(0, 1)", Verdict.REFUTED),
        (0, "", Verdict.FAILED),
        (1, "", Verdict.FAILED),
        (2, SAID + "info: Confirmed over all paths.", Verdict.FAILED),
        (1, SAID + "info: Confirmed over all paths.", Verdict.FAILED),
        (0, SAID + "error: AssertionError:  when calling one(0, 1)", Verdict.FAILED),
        (1, SAID + "error: AssertionError:  when calling another(0)", Verdict.FAILED),
        (1, SAID + "error: Could not import your code:", Verdict.FAILED),
        (0, SAID + "info: Unable to meet precondition", Verdict.FAILED),
        (0, f"{SAID}info: Confirmed over all paths.\n{SAID}info: Not confirmed.", Verdict.FAILED),
        (0, SAID + "warning: Confirmed over all paths.", Verdict.FAILED),
    ],
)
def test_the_verdicts_are_told_apart(status: int, output: str, verdict: Verdict) -> None:
    """Only the very words with the status that goes with them are a verdict."""
    found, details = classify("one", status, output + "\n", "a trace\nthe last line")
    assert found is verdict
    assert details


def test_a_refutation_by_a_mistake_in_the_contract_is_not_the_expected_one() -> None:
    """A contract that should be refuted is not as expected when it cannot even run."""
    contract = Contract("m", "wrong", "x", "x", Verdict.REFUTED, "", 1)
    by_assertion = Result(contract, Verdict.REFUTED, "AssertionError:  when calling wrong(0)", 1)
    assert by_assertion.as_expected
    assert not by_assertion._replace(details="NameError: x when calling wrong(0)").as_expected
    assert not by_assertion._replace(verdict=Verdict.NOT_REFUTED).as_expected


@needs_crosshair
@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "verdict", "said"),
    [
        ("    assert a > 0\n    assert a * 2 > 1\n", Verdict.CONFIRMED, "Confirmed"),
        ("    assert a > b\n    assert b > a\n    print()\n", Verdict.FAILED, "no argument"),
        (
            "    assert a > b\n    for n in range(a):\n        assert n < a\n",
            Verdict.NOT_REFUTED,
            "Not",
        ),
        ("    print(a, b)\n", Verdict.FAILED, "exit status 0"),
        ("    assert a > 0\n    print(c)\n", Verdict.REFUTED, "NameError"),
        ("    import nowhere\n", Verdict.FAILED, "exit status 0"),
    ],
)
def test_a_real_run_has_one_of_the_verdicts(
    written: Written, body: str, verdict: Verdict, said: str
) -> None:
    """Facts, contradictions, hard questions and mistakes each end in their own way."""
    folder = written(body)
    (contract,) = read_contracts(folder)
    (result,) = Runner(folder, seconds=2).run([contract])
    assert result.verdict is verdict, result
    assert said in result.details
    assert result.as_expected == (verdict is Verdict.CONFIRMED)


def test_a_run_that_does_not_end_is_ended(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that says nothing in time is no verdict."""
    folder = written("    assert a > 0\n")
    (folder / "crosshair.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr("conformance.contracts.SLACK", 0.0)
    result = Runner(folder, seconds=0.02).check(read_contracts(folder)[0])
    assert result.verdict is Verdict.FAILED
    assert result.details.startswith("it did not end in")


BROKEN = {
    "window_contracts.no_skipped_block_is_read": (
        "from kvcache.attention import SlidingWindow as W\n"
        "W.num_skipped_blocks = lambda s, n, size: max(0, n - s.window + 2) // size\n"
    ),
    "window_contracts.the_first_block_kept_is_read": (
        "from kvcache.attention import SlidingWindow as W\n"
        "W.num_skipped_blocks = lambda s, n, size: max(0, n - s.window) // size\n"
    ),
    "queue_contracts.remove_closes_the_gap": (
        "from kvcache.free_queue import FreeKVCacheBlockQueue as Q\n"
        "def remove(q, block):\n"
        "    block.prev_free_block.next_free_block = block.next_free_block\n"
        "    block.prev_free_block = block.next_free_block = None\n"
        "    q.num_free_blocks -= 1\n"
        "Q.remove = remove\n"
    ),
    "pool_contracts.release_counts_a_block_named_twice": (
        "import kvcache.block_pool as m\n"
        "real = m.BlockPool.free_blocks\n"
        "m.BlockPool.free_blocks = lambda p, blocks: real(p, dict.fromkeys(blocks))\n"
    ),
    "manager_contracts.a_hit_leaves_a_token": (
        "from kvcache.manager import KVCacheManager as M\n"
        "real = M.get_computed_blocks\n"
        "def look_up(m, r):\n"
        "    r.num_tokens += 1\n"
        "    return real(m, r)\n"
        "M.get_computed_blocks = look_up\n"
    ),
    "key_contracts.a_number_is_no_text": (
        "import kvcache.hashing as m\n"
        "real = m._encode_field\n"
        "m._encode_field = lambda field: real(str(field))\n"
    ),
}
"""Production code made wrong in memory, and the contract that must see it."""


@needs_crosshair
@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_a_contract_on_broken_production_is_refuted(name: str, tmp_path: Path) -> None:
    """The contract follows the production code itself: where that is wrong, it has no proof."""
    # The interpreter imports this module by itself before anything else.
    (tmp_path / "sitecustomize.py").write_text(BROKEN[name], encoding="utf-8")
    environment = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    result = Runner(environment=environment).check(CONTRACTS[name])
    assert result.verdict is Verdict.REFUTED, result


def test_a_table_that_does_not_match_is_refused(written: Written) -> None:
    """A contract without an entry, an entry without a contract, and a wrong word are errors."""
    folder = written("    assert a > 0\n")
    table, file = folder / "contracts.toml", folder / "my_contracts.py"
    good, code = table.read_text(), file.read_text()
    file.write_text(code + code.replace("one", "two"))
    with pytest.raises(ContractError, match=r"my_contracts\.two: .* give both"):
        read_contracts(folder)
    file.write_text("")
    with pytest.raises(ContractError, match=r"my_contracts\.one: .* give both"):
        read_contracts(folder)
    table.write_text(good.replace("confirmed", "hoped for"))
    with pytest.raises(ContractError, match="cannot be read"):
        read_contracts(folder)
    table.unlink()
    with pytest.raises(ContractError, match="cannot be read"):
        read_contracts(folder)
