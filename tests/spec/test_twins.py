"""Our explorer and two independent models of the same worlds agree, in counts and in moves."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from spec.twins import run
from spec.twins.configurations import FULL, QUICK, PoolWorld, RequestWorld, World
from spec.twins.moves import difference, explored_moves, printed_moves

POOL = PoolWorld(3, "unhashed_first")
REQUESTS = RequestWorld(2, 1, 2, 2)
DRAFTS = RequestWorld(1, 3, 1, 3, num_drafts=1)
WINDOW = RequestWorld(2, 2, 2, 5, window=3, num_symbols=1)


@pytest.fixture
def _tools() -> None:
    """Skip when a model checker is not installed."""
    if (missing := run.missing_tools()) is not None:
        pytest.skip(f"the twins cannot run: {missing}")


def changed(world: World, old: str, new: str) -> str:
    """Return the text of a world's model with one place in it replaced."""
    text = run.model_of(world)
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in the model"
    return text.replace(old, new)


@pytest.mark.slow
@pytest.mark.usefixtures("_tools")
@pytest.mark.parametrize("world", QUICK, ids=lambda world: world.name)
def test_a_twin_counts_what_our_explorer_counts(world: World) -> None:
    """States, transitions and, where the tool tells it, depth are equal without symmetry."""
    twin, ours = run.compare(world, depth=False)
    assert twin.same_as(ours), f"twin: {twin}; ours: {ours}"


@pytest.mark.slow
@pytest.mark.usefixtures("_tools")
@pytest.mark.parametrize("world", [POOL, REQUESTS, DRAFTS, WINDOW], ids=lambda world: world.name)
def test_a_twin_makes_the_moves_that_our_explorer_makes(world: World) -> None:
    """Every move starts and ends in the same state, as often."""
    assert difference(run.twin_moves(world), explored_moves(world)) is None


@pytest.mark.slow
@pytest.mark.usefixtures("_tools")
def test_rumur_sees_the_last_state_at_our_depth() -> None:
    """A search that is bounded at our depth sees every state, one that ends before does not."""
    twin, ours = run.compare(REQUESTS, depth=True)
    assert ours.depth == twin.depth


@pytest.mark.slow
@pytest.mark.usefixtures("_tools")
@pytest.mark.parametrize(
    ("world", "old", "new"),
    [
        (POOL, "label[b] != NONE) -> queue_tail(b)", "label[b] != NONE) -> queue_head(b)"),
        (POOL, ":: d_step { ref_cnt[b] > 0 ->", ":: d_step { ref_cnt[b] == 1 ->"),
        (REQUESTS, "keys := (length(w) - 1) / block_size", "keys := length(w) / block_size"),
        (DRAFTS, "true;\n      requests[r].drafts := empty;", "true;"),
    ],
    ids=[
        "released at the head",
        "shared blocks stay",
        "the whole prompt is hit",
        "preempted with drafts",
    ],
)
def test_a_changed_model_counts_something_else(world: World, old: str, new: str) -> None:
    """A rule that one model reads in another way shows in the counts."""
    twin = run.twin_counts(world, changed(world, old, new))
    assert not twin.same_as(run.explorer_counts(world))


@pytest.mark.slow
@pytest.mark.usefixtures("_tools")
def test_a_change_that_keeps_the_counts_shows_in_the_moves() -> None:
    """A pool that releases at the head has as many states and transitions, but not the same."""
    world = PoolWorld(2)
    model = changed(world, "-> queue_tail(b)", "-> queue_head(b)")
    assert run.twin_counts(world, model).same_as(run.explorer_counts(world))
    found = difference(run.twin_moves(world, model), explored_moves(world))
    assert found is not None
    assert "the twin alone has" in found
    assert "our explorer alone has" in found


@pytest.mark.slow
@pytest.mark.usefixtures("_tools")
@pytest.mark.parametrize(
    ("world", "old", "new"),
    [
        (PoolWorld(2), ":: num_free == N ->", ":: num_free > 0 ->"),
        (REQUESTS, "if caching = 1 then release(q.", "if caching = 0 then release(q."),
        (DRAFTS, "lesser(q.stop, before + accepted)", "q.stop"),
    ],
    ids=["reset while blocks are held", "released front to back", "rejected drafts are written"],
)
def test_a_model_checks_its_invariants(world: World, old: str, new: str) -> None:
    """A fault that breaks an invariant ends the search, and the report names the tool."""
    with pytest.raises(run.ModelBroken, match=r"spin reports|\./twin ends"):
        run.twin_counts(world, changed(world, old, new))


def test_every_configuration_has_a_name_of_its_own() -> None:
    """The command line names a configuration by it."""
    assert len(FULL) == len({world.name for world in FULL})


def test_a_move_is_read_from_the_output_of_a_model() -> None:
    """A line that begins with the word `move` holds two states of equal length."""
    found = printed_moves("x 1\nmove 0 1 1 0 \n\n      move 0 1 1 0\n")
    assert Counter({("0 1", "1 0"): 2}) == found


def test_a_missing_tool_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is 2, which is neither success nor a difference."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run.main(["--quick"]) == 2
    said = capsys.readouterr().err
    assert "not installed: spin, rumur, gcc" in said
    assert run.INSTALL in said


def test_a_difference_is_told_by_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One differing configuration makes the exit status 1, and its row says so."""
    counts = {"pool-n1": run.Counts(8, 24, 3, 0.0), "pool-n2": run.Counts(93, 438, 6, 0.0)}
    monkeypatch.setattr(run, "missing_tools", lambda: None)
    monkeypatch.setattr(run, "twin_counts", lambda world: counts[world.name])
    assert run.main(["pool-n1"]) == 0
    assert run.main(["pool-n1", "pool-n2"]) == 1
    said = capsys.readouterr().out
    assert "DIFFERENT" in said
    assert "1 of 2 configurations are equal" in said


def test_the_runner_is_run_by_its_path(tmp_path: Path) -> None:
    """It finds our explorer from any folder, with the standard library alone."""
    command = [sys.executable, "-S", run.__file__, "--list", "--quick"]
    done = subprocess.run(  # noqa: S603  # our own file
        command, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert [world.name for world in QUICK] == done.stdout.split()
