"""Closed forms to hold against measurement: waiting lines, backoff with jitter, leases. Rates are per second."""

import math
import random
from dataclasses import replace
from functools import lru_cache

import numpy as np

from jobqueue.backoff import CHAIN_LINKS
from jobqueue.errors import InvalidInput

_POINTS = 1000  # of the distribution of a decorrelated chain; its quantiles are then right to about 0.3 %


def erlang_b(servers, load):
    """Share of arrivals lost by `servers` servers without a waiting line at `load` erlangs (Erlang 1917)."""
    blocked = 1.0
    for k in range(1, servers + 1):
        blocked = load * blocked / (k + load * blocked)  # the recursion never overflows, unlike load**k / k!
    return blocked


def erlang_c(servers, load):
    """P(an arrival must wait) in M/M/c at `load` = arrival rate × mean service < servers (Erlang 1917)."""
    _check_load(servers, load)
    blocked = erlang_b(servers, load)
    return blocked / (1 - load / servers * (1 - blocked))


def mean_wait(arrival_rate, mean_service, servers=1, cv2=1.0):
    """Mean wait in seconds. Exact for M/M/c (cv2 = 1) and, by Pollaczek and Khinchine (1930), for M/G/1.

    `cv2` is the variance of the service time over its mean squared. For several servers and cv2 ≠ 1 it is the
    approximation of Lee and Longton (1959): within a few percent at utilisations that matter.
    """
    load = arrival_rate * mean_service
    return erlang_c(servers, load) * mean_service / (servers - load) * (1 + cv2) / 2


def mean_in_system(arrival_rate, mean_service, servers=1, cv2=1.0):
    """Mean number of jobs waiting or running, by Little (1961): arrival rate × mean sojourn."""
    return arrival_rate * (mean_wait(arrival_rate, mean_service, servers, cv2) + mean_service)


def wait_tail(seconds, arrival_rate, mean_service, servers=1):
    """P(W > t) = C·exp(−(cμ−λ)t) in M/M/c, first come first served (Cooper 1981). Takes arrays."""
    drain = servers / mean_service - arrival_rate
    return erlang_c(servers, arrival_rate * mean_service) * np.exp(-drain * np.asarray(seconds, dtype=float))


def wait_quantile(q, arrival_rate, mean_service, servers=1):
    """The wait that a share `q` of the jobs stays below in M/M/c; 0 where so many don't wait at all."""
    waits = erlang_c(servers, arrival_rate * mean_service)
    return _exponential_quantile(q, waits, servers / mean_service - arrival_rate)


def queue_age_tail(seconds, arrival_rate, mean_service, servers=1):
    """P(the oldest due job is older than t at a random instant) = ρ·C·exp(−(cμ−λ)t) in M/M/c.

    The job at the head is older than t exactly when the last one to arrive more than t ago still waits. It arrived
    t + A ago, A exponential with rate λ and independent of its wait W, and
    E[P(W > t + A)] = C·exp(−(cμ−λ)t)·λ/(λ + cμ − λ).
    At t = 0 this is ρ·C, the known probability that somebody waits.
    """
    utilisation = arrival_rate * mean_service / servers
    return utilisation * wait_tail(seconds, arrival_rate, mean_service, servers)


def queue_age_quantile(q, arrival_rate, mean_service, servers=1):
    """The age that the oldest due job stays below for a share `q` of the time in M/M/c."""
    someone = float(queue_age_tail(0, arrival_rate, mean_service, servers))
    return _exponential_quantile(q, someone, servers / mean_service - arrival_rate)


def mean_delay(backoff, attempt):
    """Mean of Backoff.delay before attempt + 1, floor and ceiling included."""
    if backoff.jitter == "decorrelated":
        return float(np.mean(_chain(backoff, attempt)))
    low, high = _uniform(backoff, attempt)
    floor = min(max(backoff.floor_seconds, low), high)
    inside = 0.0 if high == low else ((high**2 - floor**2) / 2 + floor * (floor - low)) / (high - low)
    return max(inside, floor, backoff.floor_seconds)


def delay_quantile(q, backoff, attempt):
    """The delay that a share `q` of the jobs gets at most."""
    if backoff.jitter == "decorrelated":
        return float(np.quantile(_chain(backoff, attempt), q))
    low, high = _uniform(backoff, attempt)
    return max(low + q * (high - low), min(backoff.floor_seconds, backoff.ceiling_seconds))


def herd_index(jitter):
    """Peak retry rate × mean delay ÷ N after N jobs failed at once, whatever N and the delay d.

    The peak is N over the width of the jitter:

    full: N/d · d/2 ÷ N = 0.5 · equal: N/(d/2) · 3d/4 ÷ N = 1.5 · none: without bound, all come at one instant ·
    decorrelated, first retry, U(b, 3b): N/2b · 2b ÷ N = 1.
    """
    return {"full": 0.5, "equal": 1.5, "none": math.inf, "decorrelated": 1.0}[jitter]


def contention_calls(competitors):
    """Calls until all of `competitors` have won, when all that are left try in every round and one wins: n(n+1)/2."""
    return competitors * (competitors + 1) / 2


def recovery_bounds(lease_seconds, heartbeat_seconds, reap_seconds):
    """(earliest, mean, latest) seconds from a kill to the job's being ready again, its backoff not counted.

    The kill falls anywhere between two heartbeats, so the lease has lease − U(0, heartbeat) left; the reaper looks
    every `reap_seconds` and finds it U(0, reap) after its end.
    """
    earliest, latest = lease_seconds - heartbeat_seconds, lease_seconds + reap_seconds
    return max(0.0, earliest), max(0.0, (earliest + latest) / 2), latest


def false_expiry(lease_seconds, heartbeat_seconds, mean_freeze_seconds):
    """P(a worker that freezes for an exponential time loses a lease it would have renewed).

    The lease has r = lease − U(0, heartbeat) left when the freeze begins, P(freeze > r) = exp(−r/m); the mean over r.
    """
    m, h = mean_freeze_seconds, heartbeat_seconds
    return math.exp(-lease_seconds / m) * m / h * math.expm1(h / m) if h > 0 else math.exp(-lease_seconds / m)


def attempts_pmf(failure, max_attempts):
    """P(a job ends at attempt k), k = 1 … max_attempts, where each fails with probability `failure`, independently."""
    share = [(1 - failure) * failure ** (k - 1) for k in range(1, max_attempts)]
    return [*share, failure ** (max_attempts - 1)]


def dead_share(failure, max_attempts):
    """P(a job dies): every one of its attempts failed."""
    return failure**max_attempts


def batch_mean_error(values, batches=20):
    """(mean, half of its 95 % interval) of values that depend on their neighbours, by batch means (Law 2015, ch. 9)."""
    values = np.asarray(values, dtype=float)
    if len(values) < 2 * batches:
        raise InvalidInput(f"batch_mean_error: {len(values)} values are too few for {batches} batches of at least 2")
    means = [part.mean() for part in np.array_split(values, batches)]
    return float(values.mean()), 2.093 * float(np.std(means, ddof=1)) / math.sqrt(batches)  # Student's t, 19 degrees


def _check_load(servers, load):
    if servers < 1 or not 0 <= load < servers:
        raise InvalidInput(
            f"M/M/{servers} at {load:g} erlangs has no steady state: the load must be at least 0 and below {servers}"
        )


def _exponential_quantile(q, positive, rate):
    return max(0.0, math.log(positive / (1 - q)) / rate) if positive > 0 else 0.0


def _uniform(backoff, attempt):
    """(low, high) of the uniform delay before the floor; the shipped Backoff itself says where its jitter begins."""
    delay = replace(backoff, jitter="none", floor_seconds=0).delay(attempt, random.Random(0))
    return {"full": (0.0, delay), "equal": (delay / 2, delay), "none": (delay, delay)}[backoff.jitter]


@lru_cache(maxsize=256)
def _chain(backoff, attempt):
    """Equally likely values of the decorrelated delay dₖ = min(ceiling, U(base, 3·dₖ₋₁)), d₀ = base."""
    base, top = backoff.base_seconds, backoff.ceiling_seconds
    values, middle = np.array([float(base)]), (np.arange(_POINTS) + 0.5) / _POINTS
    for _ in range(min(attempt, CHAIN_LINKS)):
        width = np.maximum(3 * values - base, 1e-12)
        grid = np.linspace(min(base, top), min(base + width.max(), top), 2 * _POINTS)
        below = np.clip((grid[:, None] - base) / width, 0, 1).mean(axis=1)
        values = np.interp(middle, below, grid)
    return np.maximum(values, backoff.floor_seconds)
