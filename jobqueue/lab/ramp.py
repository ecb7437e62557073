"""Steps of real load on one database: producers at an offered rate, a fleet of workers, and all that was measured.

    with Rig(dsn, setting) as rig:
        step = rig.step(500.0, seconds=5)        # step.row, step.waits, step.ages
        rig.drain(30)

Instants in rows are of the database's clock; each measure is of the last three quarters of its step.
"""

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from .. import limits
from ..errors import InvalidInput
from ..loop import connect
from ..queue import Queue
from ..rounds import AHEAD_SECONDS
from ..sql import statements, text
from . import producer, waits
from .fleet import Fleet
from .processes import FleetError, Processes
from .spans import Age

SQL = statements(text("lab/load.sql"))
LOOK_SECONDS, PROBE_SECONDS = 0.05, 0.2
BEGIN_SECONDS = 0.1  # from the word to the producers, who are ready, to their first job
WARM_SHARE = 0.25  # of a step, not measured: what is left of the step before, and the first claims
READY_SECONDS = 60  # from the start of a producer, on a machine that is busy
RESULT_SECONDS = 20  # after a step: the last enqueue may wait for a server that is behind
INSTANTS = 200  # of a step, at which the frame of ages shows queue age
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
WHOLE = {  # fields of a setting that are whole numbers, from and to
    "workers": (1, 100),
    "concurrency": (1, 500),
    "prefetch": (0, limits.BATCH),
    "producers": (1, 50),
    "connections": (1, 50),
    "enqueue_batch": (1, limits.BATCH),
}


@dataclass(frozen=True)
class Setting:
    """Who produces and who works. wake: "notify", or "poll" (jobs wake nobody; workers look every poll_seconds).

    prefetch: a worker's batch, at most so many claimed ahead. enqueue_batch: jobs a transaction of a producer.
    service_seconds: how long each handler waits. producers × connections sessions enqueue.
    """

    workers: int = 2
    concurrency: int = 4
    prefetch: int = 200
    wake: str = "notify"
    poll_seconds: float = 1.0
    service_seconds: float = 0.0
    producers: int = 2
    connections: int = 4
    enqueue_batch: int = 1
    arrivals: str = "poisson"

    def __post_init__(self):
        for name, (least, most) in WHOLE.items():
            limits.integer(getattr(self, name), name, least, most)
        limits.seconds(self.poll_seconds, "poll_seconds", 0.001, 60)
        limits.seconds(self.service_seconds, "service_seconds", 0, 60)
        for name, known in (("wake", ("notify", "poll")), ("arrivals", ("poisson", "constant"))):
            if getattr(self, name) not in known:
                raise InvalidInput(f"{name} must be one of {', '.join(known)}, not {getattr(self, name)!r}")


@dataclass(frozen=True)
class Step:
    """One step as measured: `row` of the table of steps, mean waiting sessions, and the oldest age over time."""

    row: dict
    waits: pd.DataFrame
    ages: pd.DataFrame


class Rig:
    """Fleet, producers and looks on a database with the schema; everything has ended after exit."""

    def __init__(self, dsn: str, setting: Setting):
        self.dsn, self.setting, self._stack = dsn, setting, ExitStack()

    def __enter__(self) -> "Rig":
        try:
            self._enter()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_) -> None:
        self._stack.close()

    def step(self, rate: float, seconds: float, seed: str = "") -> Step:
        """One step at `rate` jobs a second; its measures are of the last three quarters."""
        setting, self._steps = self.setting, self._steps + 1
        newest = self.conn.execute(SQL.newest).fetchone()[0]
        begin, results = self._start_producers(rate, seconds, seed)
        window = Window(begin + WARM_SHARE * seconds, begin + seconds)
        before = self._counted(window.begin)
        after = self._counted(window.end)
        produced = [self._result(path, window.end + RESULT_SECONDS) for path in results]
        jobs = pd.DataFrame(self.conn.execute(SQL.jobs_after, {"id": newest}).fetchall(),
                            columns=["due", "created", "started", "finished"], dtype=float)  # fmt: skip
        ahead = producer.clock_ahead(Queue(self.conn))
        jobs = with_unsent(jobs, [at + ahead for each in produced for at in each["unsent"]])
        seen = waits.frame(self._looks.between(window.begin, window.end))
        claims = [took for _, took in self._probe.between(window.begin, window.end)]
        there = window.moved(ahead)
        age = Age(jobs["due"], jobs["started"], there.begin, there.end)
        row = {"offered": rate} | of_jobs(jobs, age, there) | quantiles("claim", claims)
        row |= {"slots_busy": slots_busy(jobs, there, setting)} | of_producers(produced) | of_sessions(seen, setting)
        row |= of_counters(before, after, self._processors, row["completed"], setting)
        return Step(row, seen, oldest_ages(age))

    def drain(self, most_seconds: float) -> bool:
        """Until nothing is ready or running; False if that took too long."""
        until = time.monotonic() + most_seconds
        while self.conn.execute(SQL.unfinished).fetchone()[0]:
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True

    def _enter(self) -> None:
        setting, enter = self.setting, self._stack.enter_context
        self.conn = enter(connect(self.dsn, waits.NAME))
        worker = ("--prefetch", str(setting.prefetch), "--poll-seconds", str(setting.poll_seconds))
        fleet = enter(Fleet(self.dsn, size=setting.workers, concurrency=setting.concurrency, grace_seconds=2.0,
                            arguments={"worker": worker}))  # fmt: skip
        self._results = Path(enter(tempfile.TemporaryDirectory(prefix="jobqueue-load-")))
        self._producers = Processes()
        self._stack.callback(self._producers.close)
        self._looks = enter(waits.Periodic(self.dsn, LOOK_SECONDS, waits.sessions))
        self._probe = enter(waits.Periodic(self.dsn, PROBE_SECONDS, waits.ClaimLook()))
        self._processors = waits.Processors(self.conn, [worker.pid for worker in fleet.workers])
        self._steps = 0

    def _start_producers(self, rate: float, seconds: float, seed: str) -> tuple[float, list[Path]]:
        """(when they begin, where their results will be), once all of them are ready."""
        go, results = self._results / f"{self._steps}.go", []
        for number in range(self.setting.producers):
            path = self._results / f"{self._steps}-{number}.json"
            self._start_producer(path, go, rate / self.setting.producers, seconds, f"{seed}/{rate}/{number}")
            results.append(path)
        self._processors.producers = [each.pid for each in self._producers.status().values() if each.alive]
        for path in results:
            self._await(path, path.with_name(path.name + producer.READY), time.time() + READY_SECONDS)
        begin = time.time() + BEGIN_SECONDS
        producer.put(go, repr(begin))
        return begin, results

    def _start_producer(self, path: Path, go: Path, rate: float, seconds: float, seed: str) -> None:
        setting = self.setting
        order = producer.Order(
            seconds=seconds,
            rate=rate,
            result=str(path),
            go=str(go),
            connections=setting.connections,
            batch=setting.enqueue_batch,
            arrivals=setting.arrivals,
            wakes=setting.wake == "notify",
            service_seconds=setting.service_seconds,
            seed=seed,
        )
        env = {
            "JOBQUEUE_DSN": make_conninfo(self.dsn, application_name=producer.NAME),
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        }
        argv = [sys.executable, "-m", "jobqueue.lab.producer", producer.argument(order)]
        self._producers.start(f"producer-{path.stem}", argv, env=env)

    def _result(self, path: Path, until: float) -> dict:
        self._await(path, path, until)
        return json.loads(path.read_text())

    def _await(self, result: Path, file: Path, until: float) -> None:
        name = f"producer-{result.stem}"
        while not file.exists():
            alive = self._producers.status()[name].alive
            if time.time() > until or not (alive or file.exists()):
                words = (self._producers.log(name).strip().splitlines() or ["it wrote nothing"])[-1]
                raise FleetError(f"{name} is not ready, or has not come to its end: {words}")
            time.sleep(0.02)

    def _counted(self, at: float) -> tuple[float, dict, dict]:
        """(instant, the server's counters, processor seconds), at that instant."""
        time.sleep(max(0.0, at - time.time()))
        with self.conn.cursor(row_factory=dict_row) as cursor:
            counters = cursor.execute(SQL.counters).fetchone()
        return time.time(), counters, self._processors.read()


@dataclass(frozen=True)
class Window:
    """The part of a step that is measured, in seconds of some clock."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    def moved(self, seconds: float) -> "Window":
        return Window(self.begin + seconds, self.end + seconds)

    def holds(self, instants: pd.Series) -> pd.Series:
        return (instants >= self.begin) & (instants < self.end)


def with_unsent(jobs: pd.DataFrame, unsent: Sequence[float]) -> pd.DataFrame:
    """Jobs that should have arrived and have not: to their users they wait like the others."""
    late = pd.DataFrame({"due": list(unsent)}, columns=list(jobs.columns), dtype=float)
    return pd.concat([jobs, late], ignore_index=True) if len(late) else jobs


def oldest_ages(age: Age) -> pd.DataFrame:
    """time_seconds (from its beginning), oldest_age_seconds: queue age at instants apart by the same."""
    instants = np.linspace(age.begin, age.end, INSTANTS, endpoint=False)
    return pd.DataFrame({"time_seconds": instants - age.begin, "oldest_age_seconds": age.at(instants)})


def of_jobs(jobs: pd.DataFrame, age: Age, window: Window) -> dict:
    """Rates, and quantiles of queue age (over time), pick-up (to the claim) and lag (to the enqueue, a part of it).

    What has not happened yet counts with the time so far.
    """
    arrived = jobs[window.holds(jobs["due"])]
    waited = {
        name: arrived[column].fillna(window.end).clip(lower=arrived["due"]) - arrived["due"]
        for name, column in (("pickup", "started"), ("lag", "created"))
    }
    columns = {"arrived": "due", "sent": "created", "completed": "finished"}
    rates = {name: int(window.holds(jobs[column]).sum()) / window.seconds for name, column in columns.items()}
    ages = {f"age_{label}_seconds": age.quantile(q) for label, q in QUANTILES.items()}
    return rates | ages | {key: value for name, each in waited.items() for key, value in quantiles(name, each).items()}


def slots_busy(jobs: pd.DataFrame, window: Window, setting: Setting) -> float:
    """The share of the slots that a job keeps, from its claim to its completion, over the window.

    Jobs shorter than what is claimed ahead spend most of that in a worker's line: of these only what handlers take.
    """
    slots = setting.workers * setting.concurrency
    if setting.service_seconds < AHEAD_SECONDS:
        return float(window.holds(jobs["finished"]).sum() * setting.service_seconds / window.seconds / slots)
    begun = jobs[jobs["started"] < window.end]
    held = begun["finished"].fillna(window.end).clip(upper=window.end) - begun["started"].clip(lower=window.begin)
    return min(1.0, float(held.clip(lower=0).sum()) / window.seconds / slots)


def of_producers(produced: Sequence[dict]) -> dict:
    took = [seconds for each in produced for seconds in each["took_seconds"]]
    counts = {name: sum(each[name] for each in produced) for name in ("refused",)}
    return quantiles("enqueue", took) | counts | {"unsent": sum(len(each["unsent"]) for each in produced)}


def of_sessions(seen: pd.DataFrame, setting: Setting) -> dict:
    """Shares of the sessions that write (a worker has one for its rounds) found waiting for commits and for locks."""
    writers = {"worker": setting.workers, "producer": setting.producers * setting.connections}
    return {f"{who}_{belongs}_waits": _share(seen, who, belongs, count)
            for who, count in writers.items() for belongs in (waits.COMMIT, waits.LOCK)}  # fmt: skip


def of_counters(before: tuple, after: tuple, processors: waits.Processors, completed: float, setting: Setting) -> dict:
    """What the server and the processors did between the two looks, by job where that makes sense."""
    seconds = after[0] - before[0]
    jobs = max(1.0, completed * seconds)
    used = processors.between(before[2], after[2], seconds)
    was, now = before[1], after[1]
    return {
        "commits_per_second": (now["commits"] - was["commits"]) / seconds,
        "wal_bytes_per_job": (now["wal_bytes"] - was["wal_bytes"]) / jobs,
        "worker_cpu_ms_per_job": 1000 * used["worker"] / jobs,
        "server_cpu_ms_per_job": 1000 * used["server"] / jobs,
        "worker_processor": used["worker"] / seconds / setting.workers,
        "processors_busy": used["busy"],
        "processors_used": used["own"],
        **{name: now[name] for name in ("dead_tuples", "horizon_seconds", "sessions", "max_sessions")},
    }


def quantiles(name: str, values: Sequence[float]) -> dict[str, float]:
    """name_p50_seconds and so on; NaN where nothing was measured."""
    values = np.asarray(values, dtype=float)
    return {f"{name}_{label}_seconds": float(np.quantile(values, q)) if len(values) else float("nan")
            for label, q in QUANTILES.items()}  # fmt: skip


def _share(seen: pd.DataFrame, who: str, belongs: str, sessions: int) -> float:
    here = seen[(seen["who"] == who) & (seen["group"] == belongs)]
    return min(1.0, float(here["sessions"].sum()) / sessions)
