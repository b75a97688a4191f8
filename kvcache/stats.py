"""Hit rates of the prefix cache, in blocks.

A request that was preempted meets its own blocks again when it resumes, so resumed look-ups are
counted apart: they would show hits on prompts that have nothing in common. Chapter 5.4.2.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(slots=True)
class PrefixCacheStats:
    """Admissions since the last report; `queries` and `hits` count blocks, null not counted.

    The `preempted_` fields count requests that resume after preemption. `reset` says that the cache
    was emptied since the last report.
    """

    requests: int = 0
    queries: int = 0
    hits: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0
    reset: bool = False

    def count_admission(self, num_queries: int, num_hits: int, *, resumed: bool) -> None:
        """One request was admitted that asked for `num_queries` blocks and hit `num_hits`."""
        if resumed:
            self.preempted_requests += 1
            self.preempted_queries += num_queries
            self.preempted_hits += num_hits
        else:
            self.requests += 1
            self.queries += num_queries
            self.hits += num_hits


class PrefixCachingMetrics:
    """The hit rate over the most recent requests.

    Reports are kept whole: the oldest is dropped while the others hold `max_recent_requests`
    requests or more without it. Raises ValueError for `max_recent_requests` below 1.
    """

    def __init__(self, max_recent_requests: int = 1000) -> None:
        if max_recent_requests < 1:
            raise ValueError(f"max_recent_requests={max_recent_requests}; give 1 or more")
        self._max_recent_requests = max_recent_requests
        self._recent: deque[tuple[int, int, int]] = deque()
        self._requests = self._queries = self._hits = 0

    def observe(self, stats: PrefixCacheStats) -> None:
        """The report joins the recent ones; after a reset of the cache the older ones go."""
        if stats.reset:
            self._recent.clear()
            self._requests = self._queries = self._hits = 0
        if not stats.requests:
            return
        self._recent.append((stats.requests, stats.queries, stats.hits))
        self._requests += stats.requests
        self._queries += stats.queries
        self._hits += stats.hits
        while self._requests - self._recent[0][0] >= self._max_recent_requests:
            requests, queries, hits = self._recent.popleft()
            self._requests -= requests
            self._queries -= queries
            self._hits -= hits

    @property
    def hit_rate(self) -> float:
        """Hits over queries of first-time look-ups, 0 when nothing was asked."""
        return self._hits / self._queries if self._queries else 0.0
