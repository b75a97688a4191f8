"""Every obligation is proved by both solvers, and what is not proved is not called so."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

z3 = pytest.importorskip("z3", reason="z3-solver is not installed: pip install '.[proof]'")
cvc5 = pytest.importorskip("cvc5", reason="cvc5 is not installed: pip install '.[proof]'")

from conformance.exhaustive.prove import judged, run_proofs, tables  # noqa: E402  # they need the solvers
from spec import proof  # noqa: E402  # it needs the solvers
from spec.proof import Question, Verdict  # noqa: E402  # it needs the solvers
from spec.proof.logic import Level, Machine  # noqa: E402  # it needs the solvers
from spec.proof.pool_claims import POOL  # noqa: E402  # it needs the solvers
from spec.proof.solve import Answer, ask_cvc5, ask_z3, script, smt_lib  # noqa: E402  # the same

REGISTERED = {
    "pool": {
        "the_null_block_is_inert",
        "the_free_queue_is_a_chain",
        "a_block_is_free_exactly_when_nobody_holds_it",
        "ref_cnt_counts_the_holders",
        "free_and_held_and_null_make_the_pool",
        "the_index_and_the_blocks_agree",
        "only_sealed_blocks_are_shared",
        "every_block_is_in_one_of_five_states",
        "an_idle_pool_is_whole",
        "a_block_handed_out_is_clean",
        "the_oldest_release_is_evicted_first",
        "reset_only_when_idle",
    },
    "content": {
        "nothing_unwritten_is_found",
        "a_key_tells_the_content",
        "a_writer_owns_its_block",
        "a_request_reads_its_own_prefix",
        "unconfirmed_tokens_are_never_sealed",
        "only_sealed_blocks_are_shared",
        "hits_and_new_blocks_are_disjoint",
        "a_settled_block_never_changes",
        "positions_never_move",
        "equal_keys_mean_equal_prefixes",
    },
    "order": {
        "the_cache_is_prefix_closed",
        "the_tail_is_evicted_before_the_head",
        "the_free_queue_is_a_chain",
        "a_block_is_free_exactly_when_nobody_holds_it",
        "the_null_block_is_inert",
        "only_sealed_blocks_are_shared",
    },
}
"""The properties of the registry that each level proves, besides its lemmas."""

NUM_OBLIGATIONS = {"pool": 77, "content": 129, "order": 78}


def by_name(level: Level) -> str:
    """Return the name under which a test shows a level."""
    return level.name


@pytest.mark.slow
@pytest.mark.parametrize("level", proof.LEVELS, ids=by_name)
def test_both_solvers_prove_every_obligation(level: Level) -> None:
    """z3 and cvc5 answer unsat to each of the expected number of questions."""
    verdicts = [proof.judge(question) for question in proof.questions([level])]
    assert len(verdicts) == NUM_OBLIGATIONS[level.name]
    assert [v for v in verdicts if v.status != "both"] == []


@pytest.mark.parametrize("level", proof.LEVELS, ids=by_name)
def test_claims_bear_the_registrys_names(level: Level) -> None:
    """Each level claims these properties of the registry, and its lemmas have other names."""
    names = {claim.name for claim in Machine(level).invariants}
    lemmas = set(proof.lemmas(level))
    assert names - lemmas == REGISTERED[level.name]


@pytest.mark.parametrize("level", proof.LEVELS, ids=by_name)
def test_every_claim_about_states_meets_every_action(level: Level) -> None:
    """No pair of action and claim is left out, the first state included."""
    machine = Machine(level)
    pairs = {(o.action, o.invariant) for o in machine.obligations()}
    expected = {
        (a, c) for a in ("initial", *machine.actions) for c in machine.holds(machine.before)
    }
    assert expected <= pairs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("level", "index"),
    [(level, n) for level in proof.LEVELS for n in range(len(level.faults))],
    ids=lambda x: x.name if isinstance(x, Level) else str(x),
)
def test_a_faulty_action_is_not_proved(level: Level, index: int) -> None:
    """The obligation that a seeded fault breaks is proved by neither solver."""
    fault = level.faults[index]
    machine = Machine(level)
    (broken,) = [o for o in machine.obligations([fault.action]) if o.invariant == fault.breaks]
    kept = {k: f for k, f in broken.hypotheses.items() if k != fault.without_axiom}
    text = script(broken._replace(hypotheses=kept), ())
    verdict = Verdict("x", "x", "x", ask_z3(text, 0.5), ask_cvc5(text, 0.5))
    assert verdict.status in ("unknown", "refuted")


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (("unsat", "unsat"), "both"),
        (("unsat", "unknown"), "z3 only"),
        (("unknown", "unsat"), "cvc5 only"),
        (("unknown", "unknown"), "unknown"),
        (("sat", "unknown"), "refuted"),
        (("sat", "unsat"), "disagreement"),
        (("unsat", "sat"), "disagreement"),
    ],
)
def test_only_two_answers_make_a_proof(said: tuple[str, str], status: str) -> None:
    """A doubt or a disagreement is reported as such."""
    first, second = said
    assert Verdict("", "", "", Answer(first, 0.0), Answer(second, 0.0)).status == status


def test_the_solvers_say_what_is_true_of_small_scripts() -> None:
    """Each tells a contradiction from what can hold, and gives up when time is over."""
    x, y, w = z3.Ints("x y w")
    false, true = smt_lib([x > 0, x < 0]), smt_lib([x > 0])
    assert [ask(false).verdict for ask in (ask_z3, ask_cvc5)] == ["unsat", "unsat"]
    assert [ask(true).verdict for ask in (ask_z3, ask_cvc5)] == ["sat", "sat"]
    hard = smt_lib([x * x * x + y * y * y + w * w * w == 114])
    assert [ask(hard, 0.05).verdict for ask in (ask_z3, ask_cvc5)] == ["unknown", "unknown"]


def test_a_script_that_cannot_be_read_is_an_error() -> None:
    """A solver that cannot read a script gives no verdict."""
    with pytest.raises((ValueError, RuntimeError)):
        ask_cvc5("(assert (= unheard_of 1))\n(check-sat)\n")
    with pytest.raises(z3.Z3Exception):
        ask_z3("(assert (= unheard_of 1))\n(check-sat)\n")


@pytest.mark.slow
def test_the_export_is_read_by_both_solvers(tmp_path: Path) -> None:
    """One file an obligation, with its action, invariant and assumptions in the head."""
    files = proof.export(tmp_path / "smt")
    assert len(files) == len(set(files)) == sum(NUM_OBLIGATIONS.values())
    for path, question in zip(files, proof.questions(), strict=True):
        text = path.read_text(encoding="utf-8")
        assert text == question.text
        head = [line for line in text.splitlines() if line.startswith("; ")]
        assert f"; action: {question.action}" in head
        assert f"; invariant: {question.invariant}" in head
        (level,) = [level for level in proof.LEVELS if level.name == question.level]
        assert {f"; assumption: {text}" for text in level.assumptions} <= set(head)
        assert len(z3.parse_smt2_string(text)) > 1
        commands = re.findall(r"^\((?:set|declare|assert|check)", text, re.MULTILINE)
        assert num_commands(text) == len(commands)


def num_commands(text: str) -> int:
    """Return how many commands cvc5 reads. It is asked nothing: only declarations are made."""
    solver = cvc5.Solver(cvc5.TermManager())
    parser: Any = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, text, "x")
    symbols, number = parser.getSymbolManager(), 0
    while not (command := parser.nextCommand()).isNull():
        number += 1
        if command.getCommandName() in ("set-logic", "declare-sort", "declare-fun"):
            command.invoke(solver, symbols)
    return number


@pytest.mark.slow
def test_results_are_plain_data_in_a_fixed_order() -> None:
    """What `run_proofs` returns survives JSON, and shows as tables."""
    data = run_proofs(processes=1, steps=[], levels=[POOL])
    assert json.loads(json.dumps(data)) == data
    names = [(row["action"], row["invariant"]) for row in data["obligations"]]
    assert names == [(q.action, q.invariant) for q in proof.questions([POOL])]
    assert set(data["versions"]) == {"z3", "cvc5"}
    assert data["assumptions"] == {"pool": list(POOL.assumptions)}
    assert data["counts"] == {"both": NUM_OBLIGATIONS["pool"]}
    assert [table.title for table in tables(data)][1:] == ["Seeded faults", "Bridge"]
    assert not data["ok"]
    assert [row["ok"] for row in data["bridge"]] == [False]


@pytest.mark.slow
def test_processes_change_no_verdict() -> None:
    """Two processes answer as one does, in the same order."""
    questions = list(proof.questions([POOL]))[:6]
    ticks: list[None] = []
    found = judged(questions, 2, lambda: ticks.append(None))
    assert [(v.action, v.invariant, v.status) for v in found] == [
        (q.action, q.invariant, "both") for q in questions
    ]
    assert len(ticks) == len(questions)


def test_a_question_is_named_after_what_it_asks() -> None:
    """The name of the file tells level, action and invariant."""
    assert Question("pool", "take", "x_is_y", "").name == "pool-take-x_is_y"
