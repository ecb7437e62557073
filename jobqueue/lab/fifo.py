"""First come, first served on c servers, computed job by job: what a queue without faults and retries must show.

The recursion of Kiefer and Wolfowitz (1955): each job begins when it has arrived and the first server is free. It
knows neither SQL nor leases, so it stands beside the simulation as a formula does, and takes milliseconds.
"""

import heapq
import math

import numpy as np

from . import spans
from .workload import Workload

MOST = 100_000


def starts(work: Workload, servers: int) -> np.ndarray:
    """When each job begins, in seconds; never decreasing."""
    free = [0.0] * servers
    begun = np.empty(len(work))
    for place, (at, service) in enumerate(zip(work.at_seconds.tolist(), work.service_seconds.tolist(), strict=True)):
        begun[place] = start = max(at, free[0])
        heapq.heapreplace(free, start + service)
    return begun


def age_quantile(work: Workload, servers: int, q: float = 0.99, since: float = 0.0) -> float:
    """Seconds that the oldest due job does not exceed for a share q of the time until the last one has begun; since:
    of the time from then on."""
    begun = starts(work, servers)
    return spans.Age(work.at_seconds, begun, since, begun[-1] if len(begun) else since).quantile(q)


def fewest(work: Workload, limit_seconds: float, q: float = 0.99, since: float = 0.0) -> int:
    """The fewest servers that keep the quantile of age (from `since` on) at or below the limit."""
    bad, good = 0, max(1, math.ceil(min(work.offered_load, MOST)))
    while good < MOST and age_quantile(work, good, q, since) > limit_seconds:
        bad, good = good, good * 2
    while good - bad > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if age_quantile(work, middle, q, since) <= limit_seconds else (good, middle)
    return good


def fewest_in_a_row(work: Workload, limit_seconds: float, q: float = 0.99) -> int:
    """The fewest where such loads follow each other without an end: what runs on from those before is there, too."""
    before = math.ceil(float(work.service_seconds.max(initial=0.0)) / max(work.span_seconds, 1.0))
    row = sum((work.delayed(k * work.span_seconds) for k in range(1, before + 1)), start=work)
    return fewest(row, limit_seconds, q, since=before * work.span_seconds)


def fullest(work: Workload, servers: int) -> float:
    """The first instant at which as many servers are busy as ever."""
    begun = starts(work, servers)
    return spans.fullest(begun, begun + work.service_seconds)
