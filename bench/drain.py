"""A drain: workers empty a queue that was filled before they started; their start-up is not part of it."""

import time
from dataclasses import dataclass, field

from .contenders import Contender
from .stage import BenchError, Hand, Stage
from .track import Count, read

LOOK_SECONDS = 0.005
STALLED_SECONDS = 20  # nothing began for so long: it has failed
CONFIRM_SECONDS = 15  # for the last completions to reach the database


@dataclass(frozen=True)
class Drain:
    """Jobs a second from the first handler to the last confirmed completion; over `cap_seconds` where it takes longer.

    With several workers the clock starts when the last of them has begun its first job. lag_seconds: from the last
    handler until the database knew of every completion; None where the cap came first.
    """

    rate: float
    jobs: int
    lag_seconds: float | None
    server_cpu: float  # microseconds a job
    worker_cpu: float
    last_over_first: float | None  # rate of the last tenth of the jobs over that of the first

    def facts(self) -> dict:
        lag = None if self.lag_seconds is None else round(1000 * self.lag_seconds)
        return {
            "jobs": self.jobs,
            "lag_ms": lag,
            "server_us_per_job": round(self.server_cpu, 1),
            "worker_us_per_job": round(self.worker_cpu, 1),
        }


@dataclass
class _Watch:
    """What was seen: (instant, jobs begun in all, workers that have begun), and the processors' time at two of them."""

    seen: list[tuple[float, int, int]] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    cpu: list[tuple[int, float, float]] = field(default_factory=list)

    @property
    def begun(self) -> float:
        return min((count.first_at for count in self.counts if count.first_at), default=0.0)

    @property
    def ended(self) -> float:
        return max(count.last_at for count in self.counts)

    @property
    def jobs(self) -> int:
        return sum(count.calls for count in self.counts)


def run(
    stage: Stage, contender: Contender, dsn: str, jobs: int, workers: int, cap_seconds: float, since: int = 0
) -> Drain:
    """Drains the `jobs` that wait in the database; `since`: the last that was there before them."""
    with stage.workers(contender, dsn, workers) as hands:
        watch = _watched(stage, hands, jobs, cap_seconds)
        if not watch.jobs:
            raise BenchError(f"{contender.name}: no job began. {stage.words(hands)}")
        _note_cpu(stage, hands, watch)
        confirmed = _confirmed(stage, contender, dsn, since) if watch.jobs >= jobs else None
    return _result(watch, confirmed, workers)


def _watched(stage: Stage, hands: list[Hand], jobs: int, cap_seconds: float) -> _Watch:
    watch, moved = _Watch(), time.time()
    while True:
        now, before = time.time(), watch.jobs
        watch.counts = [read(hand.tracker) for hand in hands]
        watch.seen.append((now, watch.jobs, sum(1 for count in watch.counts if count.first_at)))
        if watch.jobs != before:
            moved = now
            if not before:
                _note_cpu(stage, hands, watch)
        if watch.jobs >= jobs or (watch.begun and now - watch.begun > cap_seconds):
            return watch
        if now - moved > STALLED_SECONDS or (now - moved > 1 and not stage.alive(hands)):
            raise BenchError(f"stopped after {watch.jobs:,} of {jobs:,} jobs. {stage.words(hands)}")
        time.sleep(LOOK_SECONDS)


def _note_cpu(stage: Stage, hands: list[Hand], watch: _Watch) -> None:
    watch.cpu.append((watch.jobs, stage.server_cpu_seconds(), stage.worker_cpu_seconds(hands)))


def _confirmed(stage: Stage, contender: Contender, dsn: str, since: int) -> float:
    """When the database knew of every completion."""
    until = time.time() + CONFIRM_SECONDS
    while (asked := time.time()) < until:
        if not stage.pending(contender, dsn, since):
            return asked
        time.sleep(LOOK_SECONDS)
    raise BenchError(f"{contender.name}: completions are missing {CONFIRM_SECONDS} s after the last handler")


def _result(watch: _Watch, confirmed: float | None, workers: int) -> Drain:
    end = max(watch.ended, confirmed or 0.0)
    began, before = _start(watch, workers)
    (jobs0, server0, worker0), (jobs1, server1, worker1) = watch.cpu[0], watch.cpu[-1]
    done = max(1, jobs1 - jobs0)
    return Drain(
        rate=(watch.jobs - before) / max(1e-6, end - began),
        jobs=watch.jobs,
        lag_seconds=None if confirmed is None else max(0.0, confirmed - watch.ended),
        server_cpu=1e6 * (server1 - server0) / done,
        worker_cpu=1e6 * (worker1 - worker0) / done,
        last_over_first=_last_over_first(watch),
    )


def _start(watch: _Watch, workers: int) -> tuple[float, int]:
    """From when it counts, and the jobs begun before that."""
    if workers == 1:
        return watch.begun, 0
    instant, jobs, _ = next((seen for seen in watch.seen if seen[2] == workers), watch.seen[0])
    # Where one worker was nearly through before the other came, all of it is counted: less than both can do.
    return (instant, jobs) if jobs < 0.7 * watch.jobs else (watch.begun, 0)


def _last_over_first(watch: _Watch) -> float | None:
    """By the instants at which a tenth, and nine tenths, had begun."""

    def reached(jobs: float) -> float:
        return next(instant for instant, begun, _ in watch.seen if begun >= jobs)

    first = reached(0.1 * watch.jobs) - watch.begun
    last = watch.ended - reached(0.9 * watch.jobs)
    return first / last if first > 0 and last > 0 else None
