"""The machine for a scheduler: requests whose prompts begin alike, served well or badly."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis.stateful import initialize, precondition, rule

from conformance.machines.pair_machine import Machine
from conformance.machines.request_kinds import (
    anyone,
    broken,
    flies,
    holds,
    outcomes_of,
    rests,
    stands,
    waits,
)
from conformance.machines.strategies import (
    AMOUNTS,
    ANY_IDS,
    ENDINGS,
    EXTRAS,
    KINDS,
    LOOKAHEADS,
    PICKS,
    PLAIN,
    RIVALS,
    SAMPLES,
    SHAPES,
    SIZES,
    TOKENS,
    Extra,
    Ids,
    Kind,
    Shape,
)
from conformance.subject import RequestSpec
from spec.state import Request

NAMES = ("r1", "r2", "r3", "r4", "r5")
"""What requests are called. A name is used again when the request that had it has ended."""


class ManagerMachine(Machine):
    """A scheduler. Each request is served by look-up, allocation, and the step that runs."""

    @initialize(size=SIZES, kind=KINDS)
    def begin(self, size: Ids, kind: Kind) -> None:
        """Make a manager."""
        self.start(size, kind)
        self.prompts: list[Ids] = []
        self.old_hits: list[tuple[str, Ids]] = []

    def those(self, want: Callable[[Request], bool]) -> list[str]:
        """Return the requests of one kind."""
        return [rid for rid, r in self.pair.state.requests.items() if want(r)]

    def arrives(self, prompt: Ids, extra: Extra) -> str:
        """Add a request; when there are enough, the oldest one leaves."""
        can = self.pair.capabilities
        if not can.salts:
            extra = extra._replace(salt=None)
        if extra.lora and not can.generations:
            extra = extra._replace(lora=(extra.lora[0], 0))
        live = self.pair.state.requests
        if len(live) == len(NAMES):
            oldest = next(iter(live))
            if live[oldest].in_flight:
                # While its step has not run, others may depend on it, and it may not leave.
                self.runs(0, 0)
            self.ask("finish", oldest)
        rid = next(name for name in NAMES if name not in self.pair.state.requests)
        self.prompts.append(prompt)
        self.ask("add_request", rid, RequestSpec(prompt, *extra))
        return rid

    def admits(self, rid: str, amount: int, lookahead: int) -> bool:
        """Look a request up and allocate; return False when there is no room."""
        hits = self.ask("get_computed_blocks", rid)
        self.old_hits.append((rid, hits))
        return self.allocates(rid, amount, hits, lookahead)

    def allocates(self, rid: str, amount: int, hits: Ids, lookahead: int) -> bool:
        """Allocate so many of the tokens that are left, all for 0."""
        r = self.pair.state.requests[rid]
        known = len(r.tokens) + len(r.drafts)
        left = known - r.num_computed - len(hits) * self.pair.config.block_size
        lookahead *= self.pair.capabilities.lookahead
        tokens = min(amount, left) if amount else left
        return self.ask("allocate_slots", rid, tokens, hits, lookahead) is not None

    def runs(self, accepted: int, token: int) -> None:
        """Run what is scheduled."""
        outcomes = outcomes_of(self.pair.state.requests, accepted, token)
        if outcomes:
            self.ask("run_step", outcomes)

    def serves(self, prompt: Ids, extra: Extra, token: int) -> str:
        """Add a request, admit it, and run its step."""
        rid = self.arrives(prompt, extra)
        self.admits(rid, 0, 0)
        self.runs(0, token)
        return rid

    def alike(self, pick: int) -> Ids:
        """Return one of the last few prompts, or the beginning of one."""
        size = self.pair.config.block_size
        last = self.prompts[-4:] or [(0,) * (2 * size + 1)]
        end = (None, size + 1, None, 2 * size + 1)[pick // 4 % 4]
        return last[pick % len(last)][:end]

    def one(self, want: Callable[[Request], bool], pick: int) -> str:
        """Return one of the requests of a kind."""
        return (names := self.those(want))[pick % len(names)]

    # Requests arrive.

    @rule(shape=SHAPES)
    def arrive(self, shape: Shape) -> None:
        """A request arrives and waits."""
        self.arrives(shape.prompt(self.pair.config.block_size), PLAIN)

    @rule(pick=PICKS, extra=EXTRAS)
    def arrive_alike(self, pick: int, extra: Extra) -> None:
        """A request arrives with an earlier prompt and other extras, and waits."""
        self.arrives(self.alike(pick), extra)

    @rule(shape=SHAPES, token=SAMPLES)
    def serve(self, shape: Shape, token: int) -> None:
        """A request arrives, is admitted, and its step runs."""
        self.serves(shape.prompt(self.pair.config.block_size), PLAIN, token)

    @rule(pick=PICKS, extra=EXTRAS)
    def serve_alike(self, pick: int, extra: Extra) -> None:
        """A request with an earlier prompt and other extras is served."""
        self.serves(self.alike(pick), extra, 0)

    @rule(n=TOKENS, extras=RIVALS)
    def serve_rivals(self, n: int, extras: tuple[Extra, ...]) -> None:
        """Requests that differ in their extras alone are served, one after the other."""
        for extra in extras:
            prompt = (n,) * ((1 + n) * self.pair.config.block_size + 1)
            self.ask("finish", self.serves(prompt, extra, 0))

    @rule(shape=SHAPES)
    def serve_to_the_end(self, shape: Shape) -> None:
        """A request is served and leaves."""
        self.ask("finish", self.serves(shape.prompt(self.pair.config.block_size), PLAIN, 0))

    @precondition(lambda self: self.pair.config.sliding_window)
    @rule(n=PICKS)
    def come_back(self, n: int) -> None:
        """A long prompt is served twice, another once, and then the beginning of the first."""
        size = self.pair.config.block_size
        long, other = (0,) * (3 * size + 1), (1,) * (1 + n % (3 * size))
        for prompt in (long, long, other, long[:-size]):
            self.ask("finish", self.serves(prompt, PLAIN, 0))

    @rule(shape=SHAPES, pick=PICKS)
    def arrive_together(self, shape: Shape, pick: int) -> None:
        """Two requests are admitted to one step, on the same blocks; the first may be preempted."""
        prompt = shape.prompt(self.pair.config.block_size)
        first = self.arrives(prompt, PLAIN)
        self.admits(first, 0, 0)
        self.admits(self.arrives((*prompt, pick % 2), PLAIN), 0, 0)
        if pick % 3 == 0:
            self.ask("preempt", first)

    # They are scheduled.

    @precondition(lambda self: self.those(waits))
    @rule(pick=PICKS, amount=AMOUNTS, lookahead=LOOKAHEADS)
    def admit(self, pick: int, amount: int, lookahead: int) -> None:
        """A waiting request is admitted, whole or in part."""
        self.admits(self.one(waits, pick), amount, lookahead)

    @precondition(lambda self: self.those(waits))
    @rule(pick=PICKS)
    def look_up(self, pick: int) -> None:
        """A waiting request is looked up, and what was found is kept."""
        rid = self.one(waits, pick)
        self.old_hits.append((rid, self.ask("get_computed_blocks", rid)))

    @precondition(lambda self: self.those(anyone) and self.old_hits)
    @rule(pick=PICKS, which=PICKS)
    def allocate_on_old_hits(self, pick: int, which: int) -> None:
        """Allocate on what an earlier look-up found, for this request or for another one."""
        rid, old = self.one(anyone, pick), self.old_hits[-6:]
        own = [hits for name, hits in old if name == rid]
        hits = own if own and which % 3 else [hits for _, hits in old]
        self.allocates(rid, which % 2, hits[which % len(hits)], 0)

    @precondition(lambda self: self.those(stands))
    @rule(pick=PICKS, amount=AMOUNTS, lookahead=LOOKAHEADS)
    def advance(self, pick: int, amount: int, lookahead: int) -> None:
        """A running request gets the slots of its next step."""
        self.allocates(self.one(stands, pick), amount, (), lookahead)

    @precondition(lambda self: self.those(stands))
    @rule(amount=AMOUNTS, accepted=AMOUNTS, token=SAMPLES)
    def advance_all(self, amount: int, accepted: int, token: int) -> None:
        """Every running request gets its slots, and the step runs."""
        for rid in self.those(stands):
            self.allocates(rid, amount, (), 0)
        self.runs(accepted, token)

    @precondition(lambda self: self.those(stands) and self.pair.capabilities.lookahead)
    @rule(pick=PICKS, n=LOOKAHEADS, accepted=LOOKAHEADS, token=SAMPLES)
    def speculate(self, pick: int, n: int, accepted: int, token: int) -> None:
        """A running request is given drafts, and the step runs, which accepts some of them."""
        rid = self.one(stands, pick)
        self.ask("propose", rid, (token % 2,) * (n + 1))
        self.allocates(rid, 0, (), 0)
        self.runs(accepted, token)

    @precondition(lambda self: self.those(rests) and self.pair.capabilities.lookahead)
    @rule(pick=PICKS, n=LOOKAHEADS, token=TOKENS)
    def propose(self, pick: int, n: int, token: int) -> None:
        """A request is given drafts, or none any more."""
        self.ask("propose", self.one(rests, pick), (token,) * n)

    @precondition(lambda self: self.those(flies))
    @rule(pick=PICKS, amount=AMOUNTS)
    def advance_too_early(self, pick: int, amount: int) -> None:
        """A request whose step has not run is to get slots again."""
        self.allocates(self.one(flies, pick), amount, (), 0)

    @precondition(lambda self: self.those(waits))
    @rule(pick=PICKS, n=PICKS)
    def admit_on_broken_hits(self, pick: int, n: int) -> None:
        """A request is admitted with hits of which some are null, in another order, or too many."""
        rid = self.one(waits, pick)
        hits = broken(self.ask("get_computed_blocks", rid), n)
        self.allocates(rid, n % 2, hits, 0)

    @precondition(lambda self: self.those(flies))
    @rule(accepted=AMOUNTS, token=SAMPLES)
    def run_step(self, accepted: int, token: int) -> None:
        """What is scheduled runs."""
        self.runs(accepted, token)

    # They end.

    @precondition(lambda self: self.those(anyone))
    @rule(pick=PICKS)
    def finish(self, pick: int) -> None:
        """A request ends, whether its step has run or not."""
        self.ask("finish", self.one(anyone, pick))

    @precondition(lambda self: self.those(holds))
    @rule(pick=PICKS)
    def preempt(self, pick: int) -> None:
        """A request is preempted, whether its step has run or not."""
        self.ask("preempt", self.one(holds, pick))

    @precondition(lambda self: self.those(holds))
    @rule(pick=PICKS, amount=AMOUNTS)
    def preempt_and_resume(self, pick: int, amount: int) -> None:
        """A request is preempted and admitted again at once."""
        rid = self.one(holds, pick)
        self.ask("preempt", rid)
        if rid in self.those(waits):
            self.admits(rid, amount, 0)

    @precondition(lambda self: self.those(flies))
    @rule(pick=PICKS, verb=ENDINGS)
    def abandon(self, pick: int, verb: str) -> None:
        """A request ends before its step has run."""
        self.ask(verb, self.one(flies, pick))

    @precondition(lambda self: self.those(holds))
    @rule(pick=PICKS, again=TOKENS)
    def free(self, pick: int, again: int) -> None:
        """A request gives its blocks back and is not forgotten; a second time does nothing."""
        rid = self.one(holds, pick)
        self.ask("free", rid)
        if again:
            self.ask("free", rid)

    @precondition(lambda self: self.pair.state.pool.by_key)
    @rule(clear=TOKENS)
    def reset(self, clear: int) -> None:
        """Reset the cache, while blocks are held, or when every request has ended."""
        for rid in reversed(self.those(anyone) if clear else []):
            self.ask("finish", rid)
        self.ask("reset_prefix_cache")

    # They are badly served.

    @precondition(lambda self: self.those(anyone))
    @rule(pick=PICKS, n=PICKS, ids=ANY_IDS)
    def allocate_wrongly(self, pick: int, n: int, ids: Ids) -> None:
        """Allocate too little, too much, too early, or on hits that nobody found."""
        num_tokens, lookahead = (1, 1, 1, 0, -1, 5)[n % 6], (0, 0, 0, 3, -1)[n // 6 % 5]
        lookahead *= self.pair.capabilities.lookahead
        hits = ids if n < 30 else ()
        self.ask("allocate_slots", self.one(anyone, pick), num_tokens, hits, lookahead)
