"""A day of the real queue in seconds: simulated workers drive the shipped SQL under a virtual clock, by seed.

    run = sim.run(workload.poisson(rate=2.0, service=workload.exponential(3.0), n=5000), workers=8, lease_seconds=30,
                  backoff=Backoff(), faults=[faults.kill(worker=3, at=600)], seed=7)
    run.jobs, run.attempts, run.ages, run.events        # frames; the same seed gives the same to the last digit

Virtual time says nothing about lock waits or I/O: throughput needs the real mode.
"""

import json
import time
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np
import pandas as pd
import psycopg
from tqdm.auto import tqdm

from .. import Backoff, Queue, limits
from ..errors import InvalidInput, JobQueueError
from ..loop import FOR_FULL_TABLES
from ..queue import TERMINAL
from . import database, faults, handlers
from .clock import BEGINNING, elapsed
from .faults import Fault
from .simulation import SIM, Simulation, Source
from .simworkers import SECOND
from .spans import Age
from .sweep import sweep
from .timeline import Timeline

__all__ = ["Plan", "Run", "run", "sweep"]

# Of this session in a throw-away database alone, planned as the workers' own sessions are.
SETTINGS = {"synchronous_commit": "off", "timezone": "UTC", **FOR_FULL_TABLES}
READ_ROWS = 50_000
PROGRESS_SECONDS = 0.1
SAMPLE = ["time_seconds", "ready", "due", "running", "waiting_retry", "dead", "done", "oldest_age_seconds"]
EVENTS = ["time_seconds", "kind", "target", "until_seconds"]
REFUSED = ["time_seconds", "worker", "verb", "job_id", "epoch", "outcome"]
EFFECTS = ["destination", "job_id", "epoch", "owner"]
_DEFAULT_BACKOFF = Backoff()


def run(workload, *, workers: int = 4, lease_seconds: float = 30,
        backoff: Backoff | Mapping[str, Backoff] = _DEFAULT_BACKOFF, faults=(), seed: int = 0, dsn: str | None = None,
        progress: bool = True, **more) -> "Run":
    """Simulates a workload (or a recipe, drawn by the seed) until all its jobs have ended; `more`: fields of `Plan`.

    In a database of its own on the server of `dsn` (by default JOBQUEUE_DSN's, or the lab's), dropped at the end.
    Interrupt it at any time: nothing is left behind. Raises InvalidInput before anything is started.
    """
    main = {"workers": workers, "lease_seconds": lease_seconds, "backoff": backoff, "faults": faults}
    plan = _plan(main | more)
    work = workload.draw(limits.integer(seed, "seed", 0, 2**63 - 1))
    jobs = Source(work, plan, plan.types(work.types))
    begun = time.perf_counter()
    with _database(dsn) as own:
        line = _prepared(own, plan)
        with line, _progress(len(work), progress) as told:
            simulation = Simulation(line, plan, jobs, seed, told)
            simulation.play()
            return _read(simulation, seed, begun)


@dataclass(frozen=True)
class Plan:
    """What is simulated, beside the workload. A job that fails does so by its payload, `failing`, or a fault.

    heartbeat_seconds: a third of the lease by default. poll_seconds: idle workers look so often, each at its own
    instants; without it they are woken when something is due. failing: the share of attempts that fail, one for all or
    {type: share}. outcomes=False: jobs succeed that the workload says fail. schedules: arguments of `Schedules.put`,
    fired until the end of the workload (or until_seconds, where the run stops). effects: handlers leave rows in two
    destinations (`run.effects`).
    samples: of the measures, over the time of the arrivals; sample_seconds: one so often instead.
    """

    workers: int = 4
    lease_seconds: float = 30
    backoff: Backoff | Mapping[str, Backoff] = _DEFAULT_BACKOFF
    faults: tuple[Fault, ...] = ()
    concurrency: int = 1
    max_attempts: int = 5
    heartbeat_seconds: float | None = None
    poll_seconds: float | None = None
    reap_seconds: float = 1
    outage_grace_seconds: float = 30
    failing: float | Mapping[str, float] = 0
    outcomes: bool = True
    schedules: tuple[Mapping, ...] = ()
    effects: bool = False
    until_seconds: float | None = None
    samples: int = 400
    sample_seconds: float | None = None
    archive_after_seconds: float | None = 86_400

    def __post_init__(self):
        limits.integer(self.workers, "workers", 1, 100_000)
        limits.integer(self.concurrency, "concurrency", 1, 1000)
        limits.integer(self.samples, "samples", 1, 1_000_000)
        limits.max_attempts(self.max_attempts)
        limits.lease_seconds(self.lease_seconds)
        for name in ("heartbeat_seconds", "poll_seconds", "reap_seconds", "sample_seconds", "until_seconds"):
            if getattr(self, name) is not None:
                limits.seconds(getattr(self, name), name, 0.001, 1e9)
        for name in ("outage_grace_seconds", "archive_after_seconds"):
            if getattr(self, name) is not None:
                limits.seconds(getattr(self, name), name, 0, 1e9)
        _check_backoff(self.backoff)
        for share in self.failing.values() if isinstance(self.failing, Mapping) else [self.failing]:
            if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
                raise InvalidInput(f"failing is a share from 0 to 1, one for all or one a type: {share!r}")
        object.__setattr__(self, "faults", faults.check(self.faults, self.workers))
        object.__setattr__(self, "schedules", tuple(self.schedules))

    @property
    def periods(self) -> tuple[float, float, float, float]:
        """Seconds: lease, heartbeat, reaper's, poll (0: woken by NOTIFY)."""
        beat = self.heartbeat_seconds or self.lease_seconds / 3
        return self.lease_seconds, beat, self.reap_seconds, self.poll_seconds or 0

    def types(self, known: list[str]) -> list[str]:
        """All that workers have handlers for."""
        faulty = {fault.target for fault in self.faults if fault.kind in ("burst", "poison")}
        return sorted({*known, *faulty, *(schedule["job_type"] for schedule in self.schedules)})

    def backoff_of(self, type: str) -> Backoff:
        return self.backoff if isinstance(self.backoff, Backoff) else self.backoff.get(type, Backoff())

    def failing_of(self, type: str) -> float:
        return self.failing.get(type, 0) if isinstance(self.failing, Mapping) else self.failing


@dataclass(frozen=True)
class Run:
    """What a simulation brought. Frames; times in seconds after the beginning, but for the instants of `jobs`.

    jobs: id, type, status, created_at, run_at, started_at, finished_at, attempts, lease_losses, and of the last attempt
        wait_seconds (started_at − run_at) and service_seconds
    attempts: job_id, attempt, epoch, worker, owner, type, due, started, ended (NaN: still running), outcome
    ages: samples: time_seconds, ready, due, running, waiting_retry, dead, done, oldest_age_seconds; and
        peak_age_seconds, the greatest age since the sample before
    events: time_seconds, kind, target, until_seconds: the faults, and what ended them
    refused: time_seconds, worker, verb, job_id, epoch, outcome: what workers said that the database did not take
    effects: destination, job_id, epoch, owner (with effects=True)
    """

    jobs: pd.DataFrame
    attempts: pd.DataFrame
    ages: pd.DataFrame
    events: pd.DataFrame
    refused: pd.DataFrame
    effects: pd.DataFrame
    about: dict  # seed and parameters, for captions
    real_seconds: float = field(compare=False)

    @property
    def jobs_per_second(self) -> float:
        """Simulated jobs a second of real time, the making of the database and the reading of it included."""
        return len(self.jobs) / self.real_seconds

    @cached_property
    def span_seconds(self) -> float:
        """Simulated time."""
        return float(self.ages["time_seconds"].iloc[-1])

    def mean_in_system(self) -> tuple[float, float]:
        """Jobs ready or running on average, two ways that Little's law makes equal.

        As sampled, and as arrival rate × mean sojourn. For a run that ended with all its jobs; the samples' error falls
        with their number.
        """
        time_seconds = self.ages["time_seconds"].to_numpy()
        present = self.ages[["ready", "running", "waiting_retry"]].sum(axis=1).to_numpy(dtype=float)
        sampled = np.trapezoid(present, time_seconds) / self.span_seconds
        sojourn = (self.jobs["finished_at"] - self.jobs["created_at"]).dt.total_seconds()
        return float(sampled), float(sojourn.sum()) / self.span_seconds

    @cached_property
    def age(self) -> Age:
        """Queue age over the whole run, exactly: from all its attempts and what was still waiting."""
        return self._age_until(self.span_seconds)

    def age_quantile(self, q: float) -> float:
        """Seconds that the oldest due job did not exceed for a share q of the time until the last job had begun: the
        line that a burst leaves behind the last arrival counts, what runs on after it does not."""
        return self._age_to_the_last_begun.quantile(q)

    @cached_property
    def _age_to_the_last_begun(self) -> Age:
        first = self.attempts.drop_duplicates("job_id")["started"]
        return self._age_until(float(first.max()) if 0 < len(first) == len(self.jobs) else self.span_seconds)

    def _age_until(self, seconds: float) -> Age:
        waiting = elapsed(self.jobs.loc[self.jobs["status"] == "ready", "run_at"])
        due = np.concatenate([self.attempts["due"], waiting])
        return Age(due, np.concatenate([self.attempts["started"], np.full(len(waiting), np.inf)]), 0, seconds)


def _plan(given: dict) -> Plan:
    known = [one.name for one in fields(Plan)]
    unknown = [name for name in given if name not in known]
    if unknown:
        have = ", ".join([*known, "seed", "dsn", "progress"])
        raise InvalidInput(f"sim.run has no parameter {unknown[0]!r}; it has {have}")
    return Plan(**given)


def _check_backoff(backoff) -> None:
    for one in backoff.values() if isinstance(backoff, Mapping) else [backoff]:
        if not isinstance(one, Backoff):
            raise InvalidInput(f"backoff must be a Backoff, or one a type, not {one!r}")


@contextmanager
def _database(dsn: str | None):
    if dsn is not None:
        with database.scratch(dsn) as own:
            yield own
    else:
        with database.start(fresh=False) as server, database.scratch(server) as own:
            yield own


def _prepared(dsn: str, plan: Plan) -> Timeline:
    with psycopg.connect(dsn, autocommit=True) as conn:
        Queue(conn).install(virtual=True)
        if plan.effects:
            handlers.prepare(conn)
    return Timeline.open(dsn, SETTINGS)


@contextmanager
def _progress(total: int, shown: bool):
    """A bar of jobs that have ended, drawn ten times a second at most."""
    with tqdm(total=total, unit="job", disable=not shown, leave=False, mininterval=PROGRESS_SECONDS) as bar:
        yield lambda finished: bar.update(finished - bar.n)


def _read(simulation: Simulation, seed: int, begun: float) -> Run:
    plan, line = simulation.plan, simulation.line
    effects = line.execute(handlers.SQL.effects).fetchall() if plan.effects else []
    jobs = _jobs(line)
    _check_count(jobs, simulation)
    about = {"seed": seed, "jobs": len(jobs), **_about(plan)}
    run = Run(
        jobs=jobs,
        attempts=simulation.attempts.frame(),
        ages=pd.DataFrame(simulation.ages, columns=SAMPLE),
        events=pd.DataFrame(simulation.injector.events, columns=EVENTS),
        refused=pd.DataFrame(simulation.refused, columns=REFUSED),
        effects=pd.DataFrame([(place, *row) for *row, place, _ in effects], columns=EFFECTS),
        about=about,
        real_seconds=time.perf_counter() - begun,
    )
    run.ages["peak_age_seconds"] = run.age.peaks(run.ages["time_seconds"])
    return run


def _check_count(jobs: pd.DataFrame, simulation: Simulation) -> None:
    """Samples count what workers were told; the rows have the last word."""
    ended = int(jobs["status"].isin(TERMINAL).sum())
    if (ended, len(jobs)) != (simulation.finished, simulation.finished + simulation.open):
        heard = simulation.finished
        raise JobQueueError(f"{ended} of {len(jobs)} rows have ended, but workers heard of {heard}: not credible")


def _about(plan: Plan) -> dict:
    """The parameters that differ from their defaults, and the main ones."""
    main = ("workers", "lease_seconds", "backoff")
    changed = {one.name: getattr(plan, one.name) for one in fields(Plan)
               if one.name in main or getattr(plan, one.name) != one.default}
    if "faults" in changed:
        changed["faults"] = json.loads(faults.dumps(plan.faults))
    return changed


def _jobs(line: Timeline) -> pd.DataFrame:
    """The rows as they are, live and archived, in order of id."""
    rows, after = [], 0
    while part := line.execute(SIM.jobs, {"beginning": BEGINNING, "after": after, "most": READ_ROWS}).fetchall():
        rows += part
        after = part[-1][0]
    names = ("id", "type", "status", "created", "run", "started", "finished", "attempts", "lease_losses")
    columns = dict(zip(names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True))
    times = {name: np.array(columns[name], dtype=float) for name in ("created", "run", "started", "finished")}
    status = np.array(columns["status"], dtype=object)
    began = np.isin(status, ["running", "done", "failed", "dead"])
    ended = np.isin(status, ["done", "failed", "dead"])
    return pd.DataFrame({
        "id": np.array(columns["id"], dtype="int64"), "type": np.array(columns["type"], dtype=object), "status": status,
        **{f"{name}_at": _instants(values) for name, values in times.items()},
        "attempts": np.array(columns["attempts"], dtype="int64"),
        "lease_losses": np.array(columns["lease_losses"], dtype="int64"),
        "wait_seconds": np.where(began, times["started"] - times["run"], np.nan) / SECOND,
        "service_seconds": np.where(ended, times["finished"] - times["started"], np.nan) / SECOND,
    })


def _instants(microseconds: np.ndarray) -> pd.DatetimeIndex:
    beginning = pd.Timestamp(BEGINNING).as_unit("us")
    return pd.DatetimeIndex(beginning + pd.to_timedelta(microseconds, unit="us"))
