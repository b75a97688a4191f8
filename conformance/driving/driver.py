"""What a driver uses, what it counts, and the plainest driver: one request after the other.

A driver speaks the verbs of a `Subject`, so it drives a manager alone or in lockstep. It counts
what happens in a `Tally`, which is right at every moment, so that a run that is stopped half way
still has its figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from conformance.subject import Refusal, RequestSpec, Served
from conformance.workloads.workload import Workload
from spec.statemachine import Outcome

TOO_LARGE = "request_is_too_large"


@dataclass(slots=True)
class Tally:
    """What happened so far. Tokens and blocks are those of the replay."""

    requests: int = 0
    """Requests that came to their end, served or refused."""
    served: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    """The first few requests that can never fit, with the manager's own words."""
    num_refused: int = 0
    input_tokens: int = 0
    """Prompt tokens of the requests that ended, as the trace counts them."""
    hit_tokens: int = 0
    """Prompt tokens of the requests that ended, found at their first admission and not computed."""
    blocks: int = 0
    """Blocks that admissions looked at: found ones and new ones."""
    output_tokens: int = 0
    preemptions: int = 0
    no_room: int = 0
    """Calls that were answered with None."""
    starved: int = 0
    """Requests given up because nothing ran and they still got no room."""
    steps: int = 0
    calls: int = 0
    least_free: int | None = None

    def refuse(self, rid: str, text: str) -> None:
        """Count a request that can never fit; the first five are kept by name."""
        self.num_refused += 1
        if len(self.refused) < 5:
            self.refused[rid] = text

    def saw_free(self, num_free: int) -> None:
        """Note how many blocks are free now."""
        if self.least_free is None or num_free < self.least_free:
            self.least_free = num_free


def serve_sequentially(served: Served, workload: Workload, tally: Tally) -> Iterator[int]:
    """Compute each prompt whole, and end it before the next one arrives; nothing is decoded.

    Yields the number of requests that ended, after each one.
    """
    size = served.config.block_size
    for item in workload:
        rid, prompt = item.request_id, item.prompt_token_ids
        tally.calls += 1
        served.add_request(rid, RequestSpec(prompt))
        tally.calls += 1
        hits = served.get_computed_blocks(rid)
        found = len(hits) * size
        tally.calls += 1
        try:
            new = served.allocate_slots(rid, len(prompt) - found, hits, 0)
        except Refusal as refusal:
            if refusal.rule != TOO_LARGE:
                raise
            tally.refuse(rid, refusal.text)
        else:
            if new is None:
                tally.no_room += 1
                tally.starved += 1
            else:
                tally.served += 1
                tally.hit_tokens += found
                tally.blocks += len(hits) + len(new)
                tally.saw_free(served.num_free())
                tally.calls += 1
                served.run_step({rid: Outcome()})
                tally.steps += 1
        tally.calls += 1
        served.finish(rid)
        tally.requests += 1
        tally.input_tokens += item.num_input_tokens
        yield tally.requests
