"""The red team: every fault against the shield, with all of its layers and with one of them off.

A *trial* is one fault in one run on the exact decoder, which tells for certain what went wrong: the
tokens of each request are known, and so is every live byte of the pool. A fault that finds no place
in a run is tried on the next one of the same seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from gpu.exact_model import PRIMES, ExactDType, ExactModel
from gpu.fault_memory import MEMORY
from gpu.fault_tables import TABLES
from gpu.fault_writes import WRITES
from gpu.matrix import Setting, shared_prefix_work
from gpu.planting import Fault, Plant
from gpu.pool import Backing, KVPool
from gpu.reference import LiveSlots, Reference, guesses, references
from gpu.runner import Guard, Hooks, Runner
from gpu.scheduling import Tally, Work
from gpu.shield import LAYERS, Shield
from gpu.violations import Defence
from kvcache.errors import KVCacheError

FAULTS: Final[Mapping[str, Fault]] = {
    fault.name: fault for fault in sorted((*WRITES, *MEMORY, *TABLES), key=lambda f: f.name)
}

NUM_SEEDS: Final = 16
MAX_RUNS: Final = 40
"""So many runs are looked through for a place for one fault with one seed."""

_WINDOW: Final = 11
STRIDE: Final = 1009
"""Between the runs of one seed."""


@dataclass(frozen=True)
class Run:
    """What a run needs, and what must come out of it."""

    setting: Setting
    model: ExactModel
    work: Sequence[Work]
    known: Mapping[str, Reference]


@dataclass(frozen=True)
class Trial:
    """One fault in one run.

    `fired` counts violations by layer, `first` is the first one as a line; `refusal` is the rule
    by which the manager itself ended the run. `num_runs` were tried until the fault found a place;
    it has none where `step` is None.
    """

    fault: str
    seed: int
    step: int | None
    num_runs: int
    fired: Mapping[Defence, int]
    first: str
    tokens_wrong: bool
    kv_wrong: bool
    refusal: str | None
    checked: int
    due: int
    tally: Tally

    @property
    def is_detected(self) -> bool:
        """Some layer fired, or the manager refused to go on."""
        return bool(self.fired) or self.refusal is not None

    @property
    def is_clean(self) -> bool:
        """Nobody fired, nothing is wrong, and all that was due was checked."""
        return not (self.fired or self.is_wrong) and self.checked == self.due > 0

    @property
    def is_wrong(self) -> bool:
        """A token or a live byte is not what it should be, or the run could not end."""
        return self.tokens_wrong or self.kv_wrong or self.refusal is not None


def make_run(seed: int, device: str, fault: Fault | None = None) -> Run:
    """A run that has what a fault needs; else window, room and drafts follow the seed."""
    dtype: ExactDType = tuple(PRIMES)[seed % 3]
    is_windowed = seed % 4 == 1
    is_tight, has_drafts = seed % 5 == 2, seed % 7 in {3, 5}
    if fault is not None:
        is_windowed = is_windowed if fault.is_windowed is None else fault.is_windowed
        is_tight, has_drafts = is_tight or fault.is_tight, has_drafts or fault.has_drafts
    setting = Setting(
        dtype=dtype,
        window=_WINDOW if is_windowed else None,
        enable_caching=True,
        chunk=(None, 7)[seed // 2 % 2],
        max_num_seqs=4,
        block_size=4,
        tight=is_tight,
        num_drafts=3 if has_drafts else 0,
    )
    model, work, known = _known(dtype, setting.window, seed, device)
    return Run(setting, model, work, known)


@lru_cache(maxsize=256)
def _known(
    dtype: ExactDType, window: int | None, seed: int, device: str
) -> tuple[ExactModel, Sequence[Work], Mapping[str, Reference]]:
    model = ExactModel(dtype, window=window, device=device)
    work = shared_prefix_work(6, seed)
    return model, work, references(model, work)


def run_once(  # noqa: PLR0913  # what may differ between trials, by name
    run: Run,
    *,
    layers: Collection[Defence] = LAYERS,
    fault: Fault | None = None,
    seed: int = 0,
    num_runs: int = 1,
    backing: Backing = "torch",
    guard_of: Callable[[Shield], Guard] = lambda shield: shield,
) -> Trial:
    """Serve a run under a shield, with a fault or without.

    `guard_of` may put something between the runner and its shield.
    """
    config = run.model.kv_cache_config(run.setting.num_blocks(run.work), run.setting.block_size)
    pool = KVPool(config, run.model.device, backing)
    shield = Shield(pool, "log", layers=layers)
    live = LiveSlots(run.known)
    runner = Runner(
        run.model,
        pool,
        run.setting.limits(run.work),
        guard=guard_of(shield),
        drafter=guesses(run.known),
        hooks=Hooks(after_step=live),
    )
    shield.watch(runner.manager)
    plant = Plant(seed)
    if fault is not None:
        fault.install(runner, plant)
    refusal, tokens = None, {}
    try:
        tokens = runner.serve(run.work)
    except KVCacheError as error:
        refusal = error.rule
    shield.finish()
    fired = Counter(violation.defence for violation in shield.violations)
    return Trial(
        fault="-" if fault is None else fault.name,
        seed=seed,
        step=plant.step,
        num_runs=num_runs,
        fired=dict(fired),
        first=str(next(iter(shield.violations), "-")),
        tokens_wrong=any(
            tokens.get(name, one.tokens) != one.tokens for name, one in run.known.items()
        ),
        kv_wrong=bool(live.num_different),
        refusal=refusal,
        checked=shield.checked,
        due=shield.due,
        tally=runner.tally,
    )


def run_fault(
    fault: Fault, seed: int, *, layers: Collection[Defence] = LAYERS, device: str = "cpu"
) -> Trial:
    """Serve runs of one seed until the fault finds its place in one."""
    for number in range(MAX_RUNS):
        run = make_run(seed + number * STRIDE, device, fault)
        trial = run_once(run, layers=layers, fault=fault, seed=seed, num_runs=number + 1)
        if trial.step is not None:
            break
    return trial


@dataclass(frozen=True)
class FaultRow:
    """What all trials of one fault gave: how many of `num_trials` each figure is true of.

    `num_seen_as_expected` is by one of the layers that must see it. `num_wrong_and_undetected`
    is what must be 0.
    """

    fault: str
    says: str
    expected: tuple[Defence, ...]
    num_trials: int
    num_planted: int
    fired: Mapping[Defence, int]
    num_seen_as_expected: int
    num_tokens_wrong: int
    num_kv_wrong: int
    num_refused: int
    num_wrong_and_undetected: int
    example: str

    @property
    def is_good(self) -> bool:
        """It found its place every time, and was seen each time by whom it should."""
        seen = self.num_planted == self.num_seen_as_expected == self.num_trials
        return seen and not self.num_wrong_and_undetected


def fault_row(fault: Fault, trials: Sequence[Trial]) -> FaultRow:
    """The trials of one fault in one row."""
    return FaultRow(
        fault=fault.name,
        says=fault.says,
        expected=fault.seen_by,
        num_trials=len(trials),
        num_planted=sum(trial.step is not None for trial in trials),
        fired={d: n for d in LAYERS if (n := sum(d in trial.fired for trial in trials))},
        num_seen_as_expected=sum(bool(set(fault.seen_by) & set(t.fired)) for t in trials),
        num_tokens_wrong=sum(trial.tokens_wrong for trial in trials),
        num_kv_wrong=sum(trial.kv_wrong for trial in trials),
        num_refused=sum(trial.refusal is not None for trial in trials),
        num_wrong_and_undetected=sum(t.is_wrong and not t.is_detected for t in trials),
        example=trials[0].first if trials else "-",
    )


def fault_table(
    seeds: Iterable[int] = range(NUM_SEEDS), *, device: str = "cpu", faults: Iterable[str] = FAULTS
) -> Iterator[FaultRow]:
    """A row for each fault, with all layers on."""
    some = list(seeds)
    for name in faults:
        fault = FAULTS[name]
        yield fault_row(fault, [run_fault(fault, seed, device=device) for seed in some])


@dataclass(frozen=True)
class AblationRow:
    """What escapes without one layer: by fault, the trials in which nobody else saw it.

    `escaped_and_wrong` are those of them in which tokens or live bytes were wrong.
    """

    without: Defence
    num_trials: int
    escaped: Mapping[str, int]
    escaped_and_wrong: Mapping[str, int]


def ablation(
    without: Defence,
    seeds: Iterable[int],
    *,
    device: str = "cpu",
    faults: Iterable[str] = FAULTS,
) -> AblationRow:
    """The faults against a shield that lacks a layer."""
    layers = [layer for layer in LAYERS if layer != without]
    some = list(seeds)
    escaped: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for name in faults:
        for seed in some:
            trial = run_fault(FAULTS[name], seed, layers=layers, device=device)
            if trial.step is not None and not trial.is_detected:
                escaped[name] += 1
                wrong[name] += trial.is_wrong
    return AblationRow(without, len(some), dict(escaped), dict(+wrong))


def make_workload_run(work: Sequence[Work], block_size: int, device: str) -> Run:
    """A run of given requests: chunks, drafts, and a pool in which six of them have room."""
    setting = Setting(
        dtype="bfloat16",
        window=None,
        enable_caching=True,
        chunk=32,
        max_num_seqs=4,
        block_size=block_size,
        tight=False,
        num_drafts=2,
    )
    model = ExactModel("bfloat16", device=device)
    return Run(setting, model, work, references(model, work))


def clean_trials(seeds: Iterable[int], *, device: str = "cpu") -> Iterator[Trial]:
    """Runs without a fault, of every kind that faults are put into."""
    for seed in seeds:
        yield run_once(make_run(seed, device), seed=seed)
