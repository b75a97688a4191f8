"""Runs jobs of a long run on several processes of this machine.

Jobs are handed out one by one in their order, and whoever is idle gets the next. A job's result
does not depend on who ran it. A worker that dies or does not answer is ended and its job given to
a fresh one, once; after that the job is reported as lost, so that a subject that hangs or takes its
process with it cannot stop the run.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Final, NamedTuple, Self

from conformance.fuzzing.fuzz import Job, JobResult, SubjectCannotBeMadeError, run_job
from conformance.subjects import UnknownSubjectError

MAX_TRIES: Final = 2
PATIENCE: Final = 60.0
"""Seconds after which a job that gives no answer is given up; a usual one takes less than one."""


class Lost(NamedTuple):
    """A job that has no result, and why."""

    job: Job
    why: str


Answer = JobResult | Lost


class _Worker:
    """One process and the job that it does."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs,), daemon=True)
        with _deaf_to_ctrl_c():
            self.process.start()
        theirs.close()
        self.number = -1
        self.job: Job | None = None
        self.tries = 0
        self.since = 0.0

    def give(self, number: int, job: Job, tries: int) -> None:
        """Hand a job to the process; that it is gone shows when the answer is asked for."""
        self.number, self.job, self.tries, self.since = number, job, tries, time.monotonic()
        try:
            self.pipe.send(job)
        except OSError:
            self.since = -PATIENCE

    def end(self) -> None:
        """End the process, whatever it does."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


class Crew:
    """A number of worker processes. Use it as a context: none of them outlives it."""

    def __init__(self, processes: int, patience: float = PATIENCE) -> None:
        self.patience = patience
        self.restarts = 0
        self._workers: list[_Worker] = []
        self._processes = processes

    def __enter__(self) -> Self:
        self._workers = [_Worker() for _ in range(self._processes)]
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end()

    @property
    def pids(self) -> list[int | None]:
        """The process ids of the workers."""
        return [worker.process.pid for worker in self._workers]

    def results(self, jobs: Iterator[Job]) -> Iterator[tuple[int, Answer] | None]:
        """Yield number and answer of each job as it is done; None where nothing happened.

        `jobs` is asked for the next one when a worker is idle, so whoever wants to stop ends it;
        what was handed out by then is still done. None comes a few times a second, so that
        somebody who watches can.
        """
        numbered = enumerate(jobs)
        for worker in self._workers:
            self._next(worker, numbered)
        while busy := [worker for worker in self._workers if worker.job is not None]:
            ready = wait([worker.pipe for worker in busy], timeout=0.2)
            for at, worker in enumerate(self._workers):
                if worker.job is None:
                    continue
                late = time.monotonic() - worker.since > self.patience
                if worker.pipe in ready or late:
                    answer = self._answer(at, late=late and worker.pipe not in ready)
                    if answer is None:
                        continue
                    number, self._workers[at].job = worker.number, None
                    yield number, answer
                    self._next(self._workers[at], numbered)
            yield None

    def _next(self, worker: _Worker, numbered: Iterator[tuple[int, Job]]) -> None:
        following = next(numbered, None)
        if following is not None:
            worker.give(*following, tries=1)

    def _answer(self, at: int, *, late: bool) -> Answer | None:
        """Return what a worker has to say; None when it was replaced and its job given again."""
        worker = self._workers[at]
        job = worker.job
        assert job is not None, "a worker without a job was asked for its answer"
        why = f"gave no answer for {self.patience:g} seconds"
        if not late:
            try:
                answer: Answer | Exception = worker.pipe.recv()
            except (EOFError, OSError):
                worker.process.join(1)
                why = f"ended its process (exit status {worker.process.exitcode})"
            else:
                if isinstance(answer, Exception):
                    raise answer
                return answer
        worker.end()
        self.restarts += 1
        fresh = self._workers[at] = _Worker()
        if worker.tries < MAX_TRIES:
            fresh.give(worker.number, job, worker.tries + 1)
            return None
        return Lost(job, f"{why}, {MAX_TRIES} times")


class Alone:
    """This process as a crew of one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """There is nobody to send away."""

    def results(self, jobs: Iterator[Job]) -> Iterator[tuple[int, Answer] | None]:
        """Yield number and answer of each job."""
        for number, job in enumerate(jobs):
            yield number, run_job(job)


def _serve(pipe: Connection) -> None:
    """Do jobs for a master at the other end of the pipe, until it closes."""
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        try:
            answer: Answer | Exception = run_job(job)
        except (SubjectCannotBeMadeError, UnknownSubjectError) as error:
            answer = type(error)(str(error))
        try:
            pipe.send(answer)
        except OSError:
            return


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach: the master ends them when it has summed up.

    The signal is kept back meanwhile and not lost, and a process is born as deaf as its parent is.
    """
    # The first process that is started starts this one too, and that would let the signal through.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
