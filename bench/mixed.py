"""A mixed load on four workers, 10 % slow, 5 % failing, 1 % killing them: how late is a quick job's completion?"""

import random
import tempfile
import time
from pathlib import Path

import psycopg

from jobqueue import Queue
from jobqueue.lab import checks
from jobqueue.lab.fleet import Fleet
from jobqueue.lab.history import History, Recorder, from_database, merge, read

from .amounts import Amounts, Found, quantile
from .contenders import Contender
from .mixed_handlers import FOLDER, SLOW_SECONDS
from .stage import SQL, BenchError, Stage

WORKERS, RATE = 4, 60.0  # processes; jobs a second, which leaves them time to start again
SHARES = {"slow": 0.10, "failing": 0.05, "killing": 0.01}  # all others are quick
FAILING_ATTEMPTS = 2  # then it is a dead letter
REVIVE_SECONDS = 0.1
DRAIN_SECONDS = 90
SEED = 7


def mixed(stage: Stage, contender: Contender, amounts: Amounts) -> Found:
    """From a handler's return to the commit of its completion; on a server of its own that notes commits' instants."""
    with (
        Stage({"track_commit_timestamp": "on"}) as noting,
        noting.fresh(contender) as dsn,
        tempfile.TemporaryDirectory(prefix="jobqueue-mixed-") as folder,
    ):
        environment = {FOLDER: folder}
        with Fleet(dsn, handlers="bench.mixed_handlers:HANDLERS", size=WORKERS, environment=environment) as fleet:
            told, enqueued = _feed(dsn, fleet, amounts.mixed_jobs)
            starts = WORKERS + _drain(dsn, fleet)
        lags, violations = _lags(dsn, Path(folder)), _violations(dsn, Path(folder), told)
    facts = {"jobs": amounts.mixed_jobs, "quick": len(lags), "worker_starts": starts, "slow_seconds": SLOW_SECONDS}
    # What one durable commit takes on this disk, at this moment: no completion can be told faster.
    facts |= {"enqueue_p50_ms": round(quantile(enqueued, 0.5), 2), "enqueue_p99_ms": round(quantile(enqueued, 0.99), 2)}
    facts |= {"lag_p50_ms": round(quantile(lags, 0.5), 2), "lag_max_ms": round(max(lags), 2)}
    yield "mixed_lag_p99", quantile(lags, 0.99), facts
    yield "mixed_violations", len(violations), {"violations": [f"{one.check}: {one.member}" for one in violations[:10]]}


def _feed(dsn: str, fleet: Fleet, jobs: int) -> tuple[History, list[float]]:
    """Arrivals one by one at the rate: their history, and the milliseconds of each enqueue, its commit included."""
    rng, took, begun = random.Random(SEED), [], time.monotonic()
    kinds = rng.choices([*SHARES, "quick"], [*SHARES.values(), 1 - sum(SHARES.values())], k=jobs)
    with psycopg.connect(dsn, autocommit=True) as conn:
        producer = Recorder(Queue(conn), "producer")
        for i, kind in enumerate(kinds):
            sent = time.monotonic()
            producer.enqueue(kind, {"n": i}, max_attempts=FAILING_ATTEMPTS if kind == "failing" else 20)
            took.append(1000 * (time.monotonic() - sent))
            if i % int(RATE * REVIVE_SECONDS) == 0:
                _revive(fleet)
            time.sleep(max(0.0, begun + (i + 1) / RATE - time.monotonic()))
        return producer.history, took


def _revive(fleet: Fleet) -> None:
    for place, worker in enumerate(fleet.workers):
        if not worker.alive:
            fleet.start(place)


def _drain(dsn: str, fleet: Fleet) -> int:
    """Until everything has ended; how often a worker was started again."""
    until = time.monotonic() + DRAIN_SECONDS
    with psycopg.connect(dsn, autocommit=True) as conn:
        while left := conn.execute(SQL.unfinished).fetchone()[0]:
            if time.monotonic() > until:
                raise BenchError(f"mixed load: {left} jobs are unfinished after {DRAIN_SECONDS} s")
            _revive(fleet)
            time.sleep(REVIVE_SECONDS)
    return sum(1 for event in fleet.events if event.kind == "start") - len(fleet.workers) - len(fleet.loops)


def _lags(dsn: str, folder: Path) -> list[float]:
    """Milliseconds, of every quick job whose completion counted."""
    lines = [line.split() for path in folder.glob("returns-*") for line in path.read_text().splitlines()]
    returned = {(int(id), int(epoch)): float(at) for id, epoch, at in lines}
    with psycopg.connect(dsn, autocommit=True) as conn:
        done = {(id, epoch): at.timestamp() for id, epoch, at in conn.execute(SQL.committed)}
    return [1000 * (done[each] - returned[each]) for each in done.keys() & returned.keys()]


def _violations(dsn: str, folder: Path, told) -> list[checks.Violation]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        rows = from_database(conn, settled=True)
    return checks.check(merge(told, *map(read, folder.glob("*.jsonl")), rows))
