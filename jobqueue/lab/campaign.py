"""A campaign of real faults against real workers, seeded and replayable, and the checkers' verdict on what is left.

    report = campaign.run(minutes=10, seed=7)      # its own server, six workers, two reapers, two schedulers
    print(report.text()); report.held

The plan is data (`faults.dumps(report.plan)`), drawn from the seed: kills, freezes past the lease, sessions cut off,
database crashes and stops, poison jobs, bursts. Which instant meets which statement is not repeatable; the plan and the
load are.
"""

import json
import random
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import partial

import psycopg
from tqdm.auto import tqdm

from ..errors import InfrastructureError, JobQueueError
from ..queue import Queue
from ..schedules import Schedules
from ..sql import statements, text
from . import database, faults, handlers, inject, workload
from .fleet import Fleet
from .processes import FleetError
from .replay import Feed

SQL = statements(text("lab/campaign.sql"))

WORKERS = 6
LEASE_SECONDS = 2.0
RATE = 38.0  # jobs a second
SERVICE_SECONDS = 0.05
GAP_SECONDS = 9.0  # mean calm of a worker between two faults
FREEZE_SHARE = 0.3
DATABASE_SECONDS = 32.0  # between two faults of the database
REAPER_GRACE_SECONDS = 3.0
DRAIN_SECONDS = 180.0
REVIVE_SECONDS = 1.5
SCHEDULES = ("campaign/a", "campaign/b")


@dataclass(frozen=True)
class Report:
    """What was injected, what became of it, and each promise with the members that broke it (none, if it held)."""

    seed: int
    minutes: float
    version: str
    plan: list = field(repr=False)
    injected: dict[str, int] = field(default_factory=dict)
    jobs: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    lease_losses: int = 0
    highest_epoch: int = 0
    incidents: dict[str, int] = field(default_factory=dict)
    slots: list = field(default_factory=list)
    drain_seconds: float = 0.0
    broken: dict[str, list] = field(default_factory=dict)

    @property
    def held(self) -> bool:
        return not any(self.broken.values())

    def text(self) -> str:
        """For the terminal."""
        lines = [f"campaign: seed {self.seed}, {self.minutes:g} minutes, PostgreSQL {self.version}"]
        lines.append("injected   " + ", ".join(f"{n} {kind}" for kind, n in sorted(self.injected.items())))
        lines.append(f"jobs       {self.jobs} enqueued; " + ", ".join(f"{n} {s}" for s, n in self.statuses.items()))
        lines.append(f"leases     {self.lease_losses} lost, highest epoch {self.highest_epoch}")
        lines.append("incidents  " + ", ".join(f"{n} {name}" for name, n in self.incidents.items()))
        lines += [
            f"slots      {id}: {jobs} jobs for {slots} slots in {minutes} minutes"
            for id, jobs, slots, minutes in self.slots
        ]
        lines.append(f"drained    {self.drain_seconds:.1f} s after the last fault")
        for promise, members in self.broken.items():
            lines.append(f"  {'BROKEN' if members else 'held  '} {promise}" + (f": {members[:10]}" if members else ""))
        return "\n".join(lines)

    def dumps(self) -> str:
        return json.dumps(asdict(self) | {"plan": json.loads(faults.dumps(self.plan)), "held": self.held}, indent=1)


class Steady(inject.Hands):
    """Goes on where a fault meets nobody (a poison job was quicker, the database is away); counts what was done."""

    def __init__(self, fleet: Fleet, server):
        super().__init__(fleet, server)
        self.done: Counter[str] = Counter()
        for name in ("kill", "pause", "resume", "start", "cut", "poison", "burst", "crash_database", "stop_database"):
            setattr(self, name, partial(self._try, name, getattr(self, name)))

    def _try(self, name: str, act, *given) -> None:
        try:
            act(*given)
            self.done[
                " ".join([name.replace("_", " "), *given[:1]]) if name == "stop_database" else name.replace("_", " ")
            ] += 1
        except (FleetError, InfrastructureError, psycopg.OperationalError):
            self.done["missed"] += 1

    def revive(self) -> None:
        """Workers that a poison job has killed; those of the plan come back by themselves, a moment after."""
        for place, worker in enumerate(self.fleet.workers):
            if not worker.alive:
                self._try("start", self.fleet.start, place)


def plan(minutes: float, seed: int, workers: int = WORKERS) -> list[faults.Fault]:
    """The faults of a campaign, by seed: each worker has its own course of kills and freezes, the database another."""
    rng = random.Random(seed)
    until = minutes * 60
    courses = [_course(random.Random(rng.random()), worker, until) for worker in range(workers)]
    found = [fault for course in courses for fault in course] + _database_course(rng, until)
    found += [faults.poison(at=at) for at in _instants(rng, until, 60)]
    found += [faults.burst(at=at, n=100, service_seconds=SERVICE_SECONDS) for at in _instants(rng, until, 45)]
    return sorted(found, key=lambda fault: fault.at)


def run(minutes: float = 10, seed: int = 7, *, prefix=None, progress: bool = True) -> Report:
    """The whole campaign on a server of its own; nothing is left running. Raises JobQueueError if it can't be run."""
    faulted = plan(minutes, seed)
    load = workload.poisson(
        rate=RATE, service=workload.exponential(SERVICE_SECONDS), n=max(100, int(RATE * minutes * 60))
    )
    with database.Server(prefix) as server:
        _prepare(server.dsn)
        feed = Feed(
            server.dsn, load.draw(seed), name=f"campaign-{seed}", options={"record": "transaction"}, max_attempts=100
        )
        with _fleet(server.dsn) as fleet:
            feed.start()
            injected = _inject(faulted, Steady(fleet, server), minutes, progress)
            drained = _drain(server, fleet, feed)
        return _verdict(server, feed, Report(seed, minutes, server.version, faulted, injected, drain_seconds=drained))


def _prepare(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        Queue(conn).install()
        handlers.prepare(conn)
        for id in SCHEDULES:
            Schedules(conn).put(id, "job", "* * * * *", misfire="all", payload={"seconds": 0.01})


def _fleet(dsn: str) -> Fleet:
    loops = ("reaper", "reaper-2", "scheduler", "scheduler-2", "janitor")
    reaper = ("--outage-grace-seconds", str(REAPER_GRACE_SECONDS), "--poll-seconds", "0.5")
    return Fleet(
        dsn,
        size=WORKERS,
        loops=loops,
        arguments={"reaper": reaper},
        environment=handlers.environment(lease_seconds=LEASE_SECONDS),
    )


def _inject(faulted, hands: Steady, minutes: float, progress: bool) -> dict[str, int]:
    errors: list[BaseException] = []
    stopped = threading.Event()

    def act() -> None:
        try:
            inject.play(faulted, hands, stopped)
        except BaseException as error:  # raised again by the thread that waits
            errors.append(error)

    thread = threading.Thread(target=act, name="campaign")
    thread.start()
    try:
        _wait(thread, hands, minutes * 60, progress)
    finally:
        stopped.set()
        thread.join()
    if errors:
        raise errors[0]
    return dict(hands.done)


def _wait(thread: threading.Thread, hands: Steady, seconds: float, progress: bool) -> None:
    begun = time.monotonic()
    with tqdm(total=round(seconds), unit="s", desc="campaign", disable=not progress) as bar:
        while thread.is_alive() or time.monotonic() - begun < seconds:
            time.sleep(REVIVE_SECONDS)
            hands.revive()
            bar.update(min(bar.total, int(time.monotonic() - begun)) - bar.n)


def _drain(server, fleet: Fleet, feed: Feed) -> float:
    """Everybody well again; returns how long it took until nothing was ready or running."""
    server.start()
    begun = time.monotonic()
    for place, worker in enumerate(fleet.workers):
        if worker.state == "paused":
            fleet.resume(place)
        elif not worker.alive:
            fleet.start(place)
    if not feed.wait(DRAIN_SECONDS):
        raise JobQueueError(f"the load was not fed within {DRAIN_SECONDS:g} s after the last fault")
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        for id in SCHEDULES:
            Schedules(conn).pause(id)
        while conn.execute(SQL.unfinished).fetchone()[0] and time.monotonic() - begun < DRAIN_SECONDS:
            time.sleep(0.2)
    return time.monotonic() - begun


def _verdict(server, feed: Feed, report: Report) -> Report:
    with psycopg.connect(server.dsn, autocommit=True) as conn:

        def members(statement: str, **asked) -> list:
            rows = conn.execute(statement, asked).fetchall()
            return [row[0] if len(row) == 1 else list(row) for row in rows]

        slots = members(SQL.slots)
        lease_losses, highest_epoch = conn.execute(SQL.leases).fetchone()
        broken = {
            "no acknowledged job is lost": members(SQL.lost, ids=feed.ids),
            "no effect is applied twice": members(SQL.duplicated),
            "no completed job lacks its effect": members(SQL.missing),
            "no stale write is accepted": members(SQL.stale),
            "no job is attempted over its budget": members(SQL.over_budget),
            "every slot fires exactly once": [row for row in slots if not row[1] == row[2] == row[3]],
        }
        found = {
            "statuses": dict(conn.execute(SQL.counts).fetchall()),
            "incidents": dict(conn.execute(SQL.incidents).fetchall()),
        }
    jobs = sum(found["statuses"].values())
    known = asdict(report) | found | {"plan": report.plan, "jobs": jobs, "slots": slots, "broken": broken}
    return Report(**known | {"lease_losses": lease_losses, "highest_epoch": highest_epoch})


def _course(rng: random.Random, worker: int, until: float) -> list[faults.Fault]:
    """Kills (back after a moment) and freezes beyond the lease; now and then its sessions are cut."""
    course, at = [], rng.uniform(1, GAP_SECONDS)
    while True:
        seconds = rng.uniform(1.5, 2.5) * LEASE_SECONDS if rng.random() < FREEZE_SHARE else rng.uniform(0.2, 1.0)
        if at + seconds > until:
            return course
        freezes = seconds > LEASE_SECONDS
        course.append((faults.freeze if freezes else faults.kill)(worker, at=round(at, 3), seconds=round(seconds, 3)))
        at += seconds + 2 + rng.expovariate(1 / GAP_SECONDS)
        if rng.random() < 0.2 and at - 1 < until:
            course.append(faults.cut(worker, at=round(at - 1, 3)))


def _database_course(rng: random.Random, until: float) -> list[faults.Fault]:
    kinds = [
        lambda at: faults.crash_database(at=at, seconds=1),
        lambda at: faults.Fault(at, "outage", "database fast", 1.5),
        lambda at: faults.Fault(at, "outage", "database immediate", 1.0),
    ]
    instants = [at for at in _instants(rng, until - 3, DATABASE_SECONDS)]
    return [kinds[place % len(kinds)](at) for place, at in enumerate(instants)]


def _instants(rng: random.Random, until: float, every: float) -> list[float]:
    """About every so many seconds, jittered by a fifth; the first after half of that."""
    count = int((until + every / 2) // every)
    return [round((place + 0.5) * every * rng.uniform(0.9, 1.1), 3) for place in range(count)]
