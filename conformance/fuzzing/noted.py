"""Makes a failure of a machine speak: its exception carries the table, the test and the log."""

from __future__ import annotations

from pathlib import Path

from conformance.fuzzing.findings import Failing, Failures
from conformance.lockstep import Divergence
from conformance.machines.machine import Failure
from conformance.pictures.explain import explained
from conformance.pictures.explain_text import as_text
from conformance.program import Factory


def noted(failure: Failure, make: Factory, subject_name: str, folder: Path) -> Divergence:
    """Return the divergence, to be raised, with notes; write the log of its calls into a folder.

    The text stays the one stable line. The notes are what broke, the step table, the test to paste,
    and where the log is. `kvspec fuzz` tries the programs of that folder first. Raises `OSError`
    when the log cannot be written.
    """
    failing = Failing(failure.program, failure.divergence, subject_name)
    log = Failures(folder).keep(failing)
    divergence = failure.divergence
    divergence.add_note(divergence.details)
    divergence.add_note(as_text(explained(failure.program, make)))
    divergence.add_note(failing.as_test())
    divergence.add_note(f"the log of these calls: {log}")
    return divergence
