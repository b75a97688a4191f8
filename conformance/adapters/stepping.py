"""What every engine does with a request when a step has run, whoever manages its blocks."""

from __future__ import annotations

from typing import Any

from spec.statemachine import Outcome


def advance(request: Any, end: int, outcome: Outcome) -> None:  # noqa: ANN401  # ours, or a release's
    """Raise a request's computed tokens to the end of its step, then append what was sampled.

    Of its drafts those that were accepted are confirmed, and the others are gone.
    """
    accepted, sampled = outcome
    drafts = request.spec_token_ids
    request.num_computed_tokens = min(end, request.num_tokens + accepted)
    if drafts or sampled:
        request.append_output_token_ids([*drafts[:accepted], *sampled])
        request.spec_token_ids = []
