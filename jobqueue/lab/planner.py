"""From a workload and targets to the parameters of a queue, each with a simulated figure and the formula it stands by.

    plan = planner.suggest(workload.read("trace.csv"), targets={"p99_age_seconds": 30, "recovery_seconds": 60})
    print(plan)                                         # sentences
    plan.frame()                                        # the same as data
    sim.run(workload, **plan.parameters())              # and as the arguments of the next run

What is simulated is the busiest stretch of the workload, so the figures are those of its worst hour, not of its mean.
Where that is a part of it, it begins with nothing at work: for jobs that outlast it the whole workload, computed first
come, first served, asks for more workers, and gets them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from .. import Backoff, limits
from ..errors import InvalidInput
from ..pulse import RENEW_AT
from . import faults, fifo, sim, theory
from .workload import Workload

MOST_WORKERS = 100_000
MISSED_BEATS = 3  # heartbeats in a lease, at least
KILLS = 20
FREEZES = 300  # none lost of so many shows a share of at most 1 % (95 % sure: 3 ÷ n)
FALSE_EXPIRIES = 0.01
OUTAGE_JOBS = 200
PROBE_JOBS = 200
OF_THE_TIME = 0.99
BEYOND = 3.7  # deviations: one in ten thousand


@dataclass(frozen=True)
class Targets:
    """What is to be kept, in seconds.

    p99_age_seconds: the oldest due job is younger than that for 99 % of the time. recovery_seconds: from the crash of a
    worker until its jobs may run again. pickup_seconds: mean delay of an idle worker without NOTIFY. outage_seconds:
    what jobs depend on may be away so long, and none becomes a dead letter. freeze_seconds: mean stall of a worker.
    """

    p99_age_seconds: float = 60
    recovery_seconds: float = 60
    pickup_seconds: float = 1
    outage_seconds: float = 600
    freeze_seconds: float = 2

    def __post_init__(self):
        for one in fields(self):
            limits.seconds(getattr(self, one.name), one.name, 0.01, 86_400)


@dataclass(frozen=True)
class Recommendation:
    """One parameter: its value, what it is for, what the simulation measured with it, and the formula beside it."""

    parameter: str
    value: Any
    target: str
    limit: float
    simulated: float
    by_formula: float
    formula: str
    because: str

    @property
    def met(self) -> bool:
        return self.simulated <= self.limit

    def __str__(self) -> str:
        kept = "met" if self.met else "NOT MET"
        return (
            f"{self.parameter} = {_shown(self.value)}: {self.because} {self.target} at most {self.limit:,.3g}: {kept}, "
            f"simulated {self.simulated:,.3g}, by formula {self.by_formula:,.3g} ({self.formula})."
        )


@dataclass(frozen=True)
class Suggestion:
    """The recommendations, in the order in which they depend on each other.

    workers_of_the_stretch: what the busiest stretch by itself needs, begun with nothing at work.
    """

    recommendations: tuple[Recommendation, ...]
    workers_of_the_stretch: int

    def __getitem__(self, parameter: str) -> Recommendation:
        return next(one for one in self.recommendations if one.parameter == parameter)

    def __str__(self) -> str:
        return "\n".join(map(str, self.recommendations))

    @property
    def met(self) -> bool:
        return all(one.met for one in self.recommendations)

    def frame(self) -> pd.DataFrame:
        names = [one.name for one in fields(Recommendation)]
        rows = [{name: getattr(one, name) for name in names} | {"met": one.met} for one in self.recommendations]
        return pd.DataFrame(rows)

    def parameters(self) -> dict:
        """As arguments of `sim.run` (and, but for `workers`, of `Worker` and `Handler`)."""
        return {one.parameter: one.value for one in self.recommendations}


def suggest(
    workload,
    *,
    targets: Targets | Mapping | None = None,
    seed: int = 0,
    jobs: int = 2000,
    dsn: str | None = None,
    progress: bool = True,
) -> Suggestion:
    """Workers, lease, heartbeat, poll interval, backoff and attempts for this workload; takes up to some twenty runs.

    targets: a `Targets`, or those of its fields that differ. jobs: how many of the busiest stretch are simulated in a
    run; more make the tail surer. Raises InvalidInput for targets that contradict each other or a workload too small.
    """
    wanted = targets if isinstance(targets, Targets) else _targets(targets or {})
    work = workload.draw(limits.integer(seed, "seed", 0, 2**63 - 1))
    stretch = busiest(work, limits.integer(jobs, "jobs", 100, 10**6))
    with tqdm(unit="run", disable=not progress, leave=False) as bar:
        trials = _Trials(stretch, wanted, seed, dsn, bar)
        least = fifo.fewest(work, wanted.p99_age_seconds) if len(work) > len(stretch) else 1
        workers, of_the_stretch = _workers(trials, least)
        lease, heartbeat = _lease(trials, workers.value)
        chosen = (workers, lease, heartbeat, _poll(trials), *_retries(trials, workers.value))
        return Suggestion(chosen, of_the_stretch)


def busiest(work: Workload, n: int) -> Workload:
    """The n consecutive arrivals that bring most work for their time, from a beginning of their own."""
    if len(work) < 100:
        raise InvalidInput(f"a workload of {len(work)} jobs is too small to plan by: 100 at least")
    if len(work) <= n:
        return work.delayed(-float(work.at_seconds[0])) if work.at_seconds[0] else work
    total = np.concatenate([[0.0], np.cumsum(work.service_seconds)])
    spans = work.at_seconds[n - 1 :] - work.at_seconds[: len(work) - n + 1]
    begin = int(np.argmax((total[n:] - total[:-n]) / np.maximum(spans, 1e-6)))
    at = work.at_seconds[begin : begin + n]
    chosen = slice(begin, begin + n)
    return Workload(at - at[0], work.type[chosen], work.service_seconds[chosen], work.outcome[chosen])


@dataclass
class _Trials:
    """The runs that a suggestion rests on."""

    stretch: Workload
    targets: Targets
    seed: int
    dsn: str | None
    bar: tqdm

    def run(self, work: Workload, **given) -> sim.Run:
        found = sim.run(work, **{"seed": self.seed, "dsn": self.dsn, "progress": False, "samples": 1} | given)
        self.bar.update()
        return found

    @property
    def rate(self) -> float:
        return len(self.stretch) / max(self.stretch.span_seconds, 1.0)  # of one instant: as if within a second

    @property
    def service(self) -> float:
        return float(self.stretch.service_seconds.mean())

    @property
    def scv(self) -> float:
        return float(self.stretch.service_seconds.var() / self.service**2) if self.service else 0.0


# ---- workers: enough for the tail of the queue's age ---------------------------------------------------------------


def age_by_formula(trials: _Trials, workers: int) -> float:
    """M/M/c's p99 of queue age, stretched as Lee and Longton do the mean wait: by (1 + cv²)/2."""
    if trials.rate * trials.service >= workers:
        return math.inf
    return theory.queue_age_quantile(OF_THE_TIME, trials.rate, trials.service, workers) * (1 + trials.scv) / 2


def _workers(trials: _Trials, least: int) -> tuple[Recommendation, int]:
    """The fewest whose simulated p99 age keeps the target: from the computed answer outwards, then between; where
    `least` is more, that. And what the stretch by itself needs."""
    limit = trials.targets.p99_age_seconds
    known: dict[int, float] = {}

    def keeps(workers: int) -> bool:
        if workers not in known:
            known[workers] = _simulated_age(trials, workers)
        return known[workers] <= limit

    load = trials.rate * trials.service
    of_the_stretch = enough = _fewest(keeps, min(fifo.fewest(trials.stretch, limit), MOST_WORKERS))
    because = f"the busiest stretch offers {load:,.3g} erlangs, so they are {load / enough:.0%} busy."
    if load > enough:
        because = f"the busiest stretch offers {load:,.3g} erlangs, more than they are: a line is left behind it."
    if enough < least and keeps(least):
        because = f"the busiest stretch, begun with nothing at work, needs {enough:,}; the whole load needs more."
        enough = least
    found = Recommendation(
        "workers",
        enough,
        "p99_age_seconds",
        limit,
        known[enough],
        age_by_formula(trials, enough),
        "p99 of M/M/c's queue age, P(age > t) = ρ·C·exp(−(cμ−λ)t), times (1 + cv²)/2",
        because,
    )
    return found, of_the_stretch


def _fewest(keeps, guess: int) -> int:
    """By steps that double away from the guess, then by halves; the answer has been tried."""
    step, good, bad = 1, guess, 0
    if keeps(guess):
        while good - bad > 1 and keeps(max(bad + 1, good - step)):
            good, step = max(bad + 1, good - step), step * 2
        bad = max(bad, good - step)
    else:
        bad, good = guess, guess + step
        while not keeps(good):
            bad, step = good, step * 2
            good += step
            if good > MOST_WORKERS:
                raise InvalidInput(f"not even {bad:,} workers keep p99_age_seconds")
    while good - bad > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if keeps(middle) else (good, middle)
    return good


def _simulated_age(trials: _Trials, workers: int) -> float:
    # Without faults heartbeats would tell nothing: a lease longer than the jobs.
    lease = min(86_400.0, max(30.0, 3 * float(trials.stretch.service_seconds.max())))
    run = trials.run(trials.stretch, workers=workers, lease_seconds=lease, outcomes=False)
    return run.age_quantile(OF_THE_TIME)


# ---- lease and heartbeat: short enough to recover, long enough not to be lost by a stall ---------------------------


def _lease(trials: _Trials, workers: int) -> tuple[Recommendation, Recommendation]:
    """The longest that still recovers in time: each second less costs false expiries and heartbeats."""
    wanted, reap = trials.targets, 1.0
    lease = wanted.recovery_seconds - reap
    if lease < 0.1:
        raise InvalidInput(
            f"recovery_seconds ({wanted.recovery_seconds:g}) must exceed the reaper's period of {reap:g} s"
        )
    beat = lease / MISSED_BEATS
    latest = theory.recovery_bounds(lease, beat, reap)[2]
    expiry = theory.false_expiry(lease, beat, wanted.freeze_seconds)
    renewals = min(workers, trials.rate * trials.service) / (lease * RENEW_AT)
    return (
        Recommendation(
            "lease_seconds",
            lease,
            "recovery_seconds",
            wanted.recovery_seconds,
            _longest_recovery(trials, lease, beat),
            latest,
            "latest recovery = lease + reaper's period",
            "the longest that recovers in time.",
        ),
        Recommendation(
            "heartbeat_seconds",
            beat,
            "share of stalls that lose a lease",
            FALSE_EXPIRIES,
            _lost_by_stalls(trials, lease, beat),
            expiry,
            "exp(−lease/m)·(m/h)·(exp(h/m) − 1) for exponential stalls of mean m, heartbeats every h",
            f"a third of the lease, the longest that is allowed; the shipped worker renews by itself, from a fifth on: "
            f"{renewals:,.3g} renewals a second at most.",
        ),
    )


def _longest_recovery(trials: _Trials, lease: float, beat: float) -> float:
    """Workers that are killed at every phase between two heartbeats, each with a job: from the kill to ready again."""
    kills = [faults.kill(place, at=lease + place * beat / KILLS) for place in range(KILLS)]
    run = trials.run(
        _jobs(np.zeros(KILLS), 10 * lease),
        workers=KILLS,
        lease_seconds=lease,
        heartbeat_seconds=beat,
        faults=kills,
        until_seconds=2 * lease + beat + 5,
    )
    lost = run.attempts[run.attempts["outcome"] == "lost"].set_index("worker")["ended"]
    return float((lost - pd.Series({fault.target: fault.at for fault in kills})).max())


def _lost_by_stalls(trials: _Trials, lease: float, beat: float) -> float:
    """The share of frozen workers, at random phases and for exponential times, whose job was given away."""
    rng = np.random.default_rng(trials.seed)
    stalls = [
        faults.freeze(
            place, at=lease + float(rng.random()) * beat, seconds=float(rng.exponential(trials.targets.freeze_seconds))
        )
        for place in range(FREEZES)
    ]
    run = trials.run(
        _jobs(np.zeros(FREEZES), 10 * lease),
        workers=FREEZES,
        lease_seconds=lease,
        heartbeat_seconds=beat,
        faults=stalls,
        until_seconds=2 * lease + beat + 5,
    )
    return float(run.attempts["outcome"].eq("lost").sum()) / FREEZES


def _jobs(at: np.ndarray, seconds: float) -> Workload:
    n = len(at)
    return Workload(at, np.full(n, "job", dtype=object), np.full(n, seconds), np.full(n, "done", dtype=object))


# ---- poll interval: what NOTIFY doesn't bring ----------------------------------------------------------------------


def _poll(trials: _Trials) -> Recommendation:
    """An arrival falls anywhere between two looks of one idle worker; more idle workers only make it better."""
    poll = 2 * trials.targets.pickup_seconds
    n, apart = PROBE_JOBS, 7.3 * poll
    at = np.arange(n) * apart + np.random.default_rng(trials.seed).random(n) * poll
    work = _jobs(at, 0.0)
    waited = float(trials.run(work, workers=1, poll_seconds=poll).jobs["wait_seconds"].mean())
    limit = trials.targets.pickup_seconds * 1.1
    return Recommendation(
        "poll_seconds",
        poll,
        "pickup_seconds (and a tenth)",
        limit,
        waited,
        poll / 2,
        "mean delay = poll ÷ 2",
        f"NOTIFY wakes at once, polling is what remains without it; an idle worker asks {1 / poll:.3g} times a second.",
    )


# ---- backoff and attempts: no herd after a failure, and longer than an outage --------------------------------------


def _retries(trials: _Trials, workers: int) -> tuple[Recommendation, Recommendation]:
    """The herd of what failed at once comes back no faster than jobs arrive; nearly nobody runs out of attempts."""
    outage = trials.targets.outage_seconds
    base = min(float(f"{1.25 * workers / trials.rate:.2g}"), outage / 4)  # a quarter more: chance makes peaks
    backoff = Backoff(base_seconds=base, ceiling_seconds=max(base, outage / 2), jitter="full")
    attempts = next(n for n in range(2, limits.MAX_ATTEMPTS) if _deviations(backoff, n, outage) > BEYOND)
    dead, peak = _after_an_outage(trials, backoff, attempts)
    expected = workers * theory.herd_index("full") / theory.mean_delay(backoff, 1)
    return (
        Recommendation(
            "backoff",
            backoff,
            "retries a second after all workers failed at once",
            trials.rate,
            peak * workers,
            expected,
            "peak rate = n × index ÷ mean delay, the index of full jitter is 0.5",
            "full jitter spreads the herd best; the base lets it come no faster than jobs arrive; the ceiling is half "
            "of the outage, so that its end is noticed half of it late at worst.",
        ),
        Recommendation(
            "max_attempts",
            attempts,
            "dead letters after the outage",
            0.0,
            dead,
            OUTAGE_JOBS * math.erfc(_deviations(backoff, attempts, outage) / math.sqrt(2)) / 2,
            f"n·Φ(−z), z = (Σ mean delays − outage) ÷ deviation, {BEYOND} at least; "
            f"{_mean_until(backoff, attempts):,.0f} s to the last attempt, on average",
            f"an outage of {outage:g} s is outlasted by all but one in ten thousand.",
        ),
    )


def _mean_until(backoff: Backoff, attempts: int) -> float:
    return sum(theory.mean_delay(backoff, k) for k in range(1, attempts))


def _deviations(backoff: Backoff, attempts: int, seconds: float) -> float:
    """How many deviations the mean instant of the last attempt lies beyond so many seconds; the sum of independent
    delays is about normal."""
    spread = math.sqrt(sum(theory.mean_delay(backoff, k) ** 2 / 3 for k in range(1, attempts)))  # U(0, d): (d/2)²/3
    return (_mean_until(backoff, attempts) - seconds) / spread


def _after_an_outage(trials: _Trials, backoff: Backoff, attempts: int) -> tuple[float, float]:
    """(dead letters, the greatest rate of first retries as a share of the jobs), all failing at one instant."""
    work = _jobs(np.zeros(OUTAGE_JOBS), 0.0)
    run = trials.run(
        work,
        workers=1,
        concurrency=OUTAGE_JOBS,
        backoff=backoff,
        max_attempts=attempts,
        faults=[faults.down("job", at=0, seconds=trials.targets.outage_seconds)],
    )
    first = run.attempts.loc[run.attempts["attempt"] == 2, "started"].to_numpy()
    counts, edges = np.histogram(first, bins=OUTAGE_JOBS // 50)
    return float(run.jobs["status"].eq("dead").sum()), float(counts.max() / (edges[1] - edges[0]) / len(first))


def _targets(given: Mapping) -> Targets:
    known = [one.name for one in fields(Targets)]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise InvalidInput(f"there is no target {unknown[0]!r}: {', '.join(known)}")
    return Targets(**given)


def _shown(value) -> str:
    if isinstance(value, Backoff):
        base, ceiling = value.base_seconds, value.ceiling_seconds
        return f"{value.shape}, {value.jitter} jitter, base {base:g} s, ceiling {ceiling:g} s"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"
