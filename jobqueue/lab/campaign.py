"""A campaign of real faults against real workers, seeded and replayable, and the checkers' verdict on what is left.

    report = campaign.run(minutes=10, seed=7)      # its own server, six workers, two reapers, two schedulers
    print(report.text()); report.held

The plan is data (`faults.dumps(report.plan)`), drawn from the seed: kills, freezes past the lease, sessions cut off,
slow workers, wall clocks that are wrong, database crashes and stops, schedulers away for minutes, poison jobs, bursts.
Every process records what it asked and was told (`history`). Which instant meets which statement is not repeatable; the
plan and the load are.
"""

import random
import threading
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
from tqdm.auto import tqdm

from ..errors import InfrastructureError, JobQueueError
from ..queue import Queue
from ..schedules import Schedules
from . import aftermath, conditions, database, destination, faults, handlers, inject, workload
from .aftermath import SQL, Report
from .fleet import Fleet
from .processes import FleetError
from .replay import Feed

WORKERS = 6
LOOPS = ("reaper", "reaper-2", "scheduler", "scheduler-2", "janitor")
LEASE_SECONDS = 2.0
RATE = 38.0  # jobs a second
SERVICE_SECONDS = 0.05
GAP_SECONDS = 9.0  # mean calm of a worker between two faults
FREEZE_SHARE = 0.3
DATABASE_SECONDS = 32.0  # between two faults of the database
SLOW_SECONDS, SKEW_SECONDS = 25.0, 20.0  # between two workers that become slow, two clocks that are set wrong
SKEWS = (-86_400.0, -3_600.0, -60.0, 60.0, 3_600.0, 86_400.0)
POST_EVERY = 2  # of the jobs, one in so many has an effect over HTTP
REAPER_GRACE_SECONDS = 3.0
DRAIN_SECONDS = 180.0
REVIVE_SECONDS = 1.5
# One a minute each; the grace makes misfires of what two schedulers that are away leave, the spread makes a job wait
# longer than a minute for its turn, so that the next slot meets it.
SCHEDULES = {
    "campaign/all": {"misfire": "all"},
    "campaign/last": {"misfire": "last", "misfire_grace_seconds": 10},
    "campaign/skip": {"misfire": "skip", "misfire_grace_seconds": 10},
    "campaign/overlap": {"misfire": "all", "overlap": "skip", "spread_seconds": 100},  # its offset: 70 s
}
SAID = "The campaign fills a database with jobs, over some 60 sessions, and kills and freezes the workers on them"
ACTS = ("kill", "pause", "resume", "start", "cut", "slow", "skew", "poison", "burst", "crash_database", "stop_database")


class Steady(inject.Hands):
    """Goes on where a fault meets nobody (a poison job was quicker, the database is away); counts what was done."""

    def __init__(self, fleet: Fleet, server):
        super().__init__(fleet, server)
        self.done: Counter[str] = Counter()
        for name in ACTS:
            setattr(self, name, partial(self._try, name, getattr(self, name)))

    def _try(self, name: str, act, *given) -> None:
        try:
            act(*given)
            self.done[_told(name, *given)] += 1
        except (FleetError, InfrastructureError, psycopg.OperationalError):
            self.done["missed"] += 1

    def revive(self) -> None:
        """Workers that a poison job has killed; those of the plan come back by themselves, a moment after."""
        for place, worker in enumerate(self.fleet.workers):
            if not worker.alive:
                self._try("start", self.fleet.start, place)


def _told(name: str, *given) -> str:
    """Workers and loops apart: a killed reaper is no killed worker."""
    if name == "stop_database":
        return f"stop database {given[0] if given else 'fast'}"
    of_a_loop = " of a loop" if given and isinstance(given[0], str) and faults.is_loop(given[0]) else ""
    return name.replace("_", " ") + of_a_loop


def plan(minutes: float, seed: int, workers: int = WORKERS) -> list[faults.Fault]:
    """The faults of a campaign, by seed: each worker has its own course of kills and freezes, the database another."""
    rng = random.Random(seed)
    until = minutes * 60
    courses = [_course(random.Random(rng.random()), worker, until) for worker in range(workers)]
    found = [fault for course in courses for fault in course] + _database_course(rng, until)
    found += [faults.poison(at=at) for at in _instants(rng, until, 60)]
    found += [faults.burst(at=at, n=100, service_seconds=SERVICE_SECONDS) for at in _instants(rng, until, 45)]
    found += _slow_course(rng, until, workers) + _skew_course(rng, until, workers) + _loop_course(rng, until)
    return sorted(found, key=lambda fault: fault.at)


def run(minutes: float = 10, seed: int = 7, *, prefix=None, progress: bool = True,
        confirm: bool | None = None) -> Report:  # fmt: skip
    """The whole campaign on a server of its own, or (`database.ground`) in a database of its own on JOBQUEUE_DSN's,
    which it neither stops nor crashes. Nothing is left running. Raises JobQueueError if it can't be run."""
    with ExitStack() as stack:
        said = f"{SAID} for {minutes:g} minutes."
        place = stack.enter_context(database.workplace(said, prefix, confirm=confirm))
        dsn = place.dsn
        service = stack.enter_context(destination.serve())
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="jobqueue-campaign-")))
        schedules = _schedules(minutes)
        began_at = _prepare(dsn, schedules)
        faulted = [fault for fault in plan(minutes, seed) if place.server or fault.kind not in ("crash", "outage")]
        feed = _feed(dsn, minutes, seed, service.url)
        with _fleet(dsn, folder) as fleet:
            feed.start()
            injected = _inject(faulted, Steady(fleet, place.server), minutes, progress)
            drained, paused_at = _drain(place.server, fleet, feed)
            events = fleet.events
        left = aftermath.Left(dsn, folder, feed, service, events, began_at, paused_at, tuple(schedules))
        return aftermath.judge(left, Report(seed, minutes, place.version, faulted, injected, drain_seconds=drained))


def _feed(dsn: str, minutes: float, seed: int, url: str) -> Feed:
    jobs = max(100, int(RATE * minutes * 60))
    load = workload.poisson(rate=RATE, service=workload.exponential(SERVICE_SECONDS), n=jobs)
    options = {"record": "transaction", "post": {"url": url, "every": POST_EVERY}}
    return Feed(dsn, load.draw(seed), name=f"campaign-{seed}", options=options, max_attempts=100)


def _schedules(minutes: float) -> dict[str, dict]:
    """Whose policies can show in so short a time; the spread of `overlap` would only delay the end of a short one."""
    return {id: policy for id, policy in SCHEDULES.items() if minutes >= 2 or "overlap" not in id}


def _prepare(dsn: str, schedules: dict[str, dict]):
    """When it began, by the database's clock."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        Queue(conn).install()
        handlers.prepare(conn)
        (began_at,) = conn.execute(SQL.now).fetchone()
        for id, policy in schedules.items():
            Schedules(conn).put(id, "job", "* * * * *", payload={"seconds": 0.01}, max_attempts=100, **policy)
        return began_at


def _fleet(dsn: str, folder: Path) -> Fleet:
    reaper = ("--outage-grace-seconds", str(REAPER_GRACE_SECONDS), "--poll-seconds", "0.5")
    return Fleet(
        dsn,
        size=WORKERS,
        loops=LOOPS,
        arguments={"reaper": reaper},
        environment=handlers.environment(lease_seconds=LEASE_SECONDS) | {conditions.HISTORY: str(folder)},
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


def _drain(server, fleet: Fleet, feed: Feed):
    """Everybody well again; returns how long it took until nothing was ready or running, and when schedules ended."""
    if server:
        server.start()
    begun = time.monotonic()
    for place, process in [*enumerate(fleet.workers), *((loop.name, loop) for loop in fleet.loops)]:
        if process.state == "paused":
            fleet.resume(place)
        elif not process.alive:
            fleet.start(place)
    if not feed.wait(DRAIN_SECONDS):
        raise JobQueueError(f"the load was not fed within {DRAIN_SECONDS:g} s after the last fault")
    with psycopg.connect(fleet.dsn, autocommit=True) as conn:
        _wait_for(conn, SQL.undecided, begun)
        (paused_at,) = conn.execute(SQL.now).fetchone()
        for schedule in Schedules(conn).list():
            Schedules(conn).pause(schedule.id)
        _wait_for(conn, SQL.unfinished, begun)
    return time.monotonic() - begun, paused_at


def _wait_for(conn: psycopg.Connection, statement: str, begun: float) -> None:
    """Until it counts nothing, or the time to drain is over: the verdict names what is left then."""
    while conn.execute(statement).fetchone()[0] and time.monotonic() - begun < DRAIN_SECONDS:
        time.sleep(0.2)


# ---------------------------------------------------------------- the plan


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
    return [kinds[n % len(kinds)](at) for n, at in enumerate(_instants(rng, until - 3, DATABASE_SECONDS))]


def _slow_course(rng: random.Random, until: float, workers: int) -> list[faults.Fault]:
    """Now a worker, then the whole type for a moment."""
    found = []
    for place, at in enumerate(_instants(rng, until, SLOW_SECONDS)):
        target, factor = ("job", 3) if place % 4 == 3 else (rng.randrange(workers), round(rng.uniform(5, 20), 1))
        found.append(faults.slow(target, at=at, seconds=round(rng.uniform(4, 12), 3), factor=factor))
    return found


def _skew_course(rng: random.Random, until: float, workers: int) -> list[faults.Fault]:
    """Clocks that step back and forth while their processes run, of workers and of schedulers."""
    targets = [*range(workers), "scheduler", "scheduler-2"]
    return [
        faults.skew(rng.choice(targets), at=at, by_seconds=rng.choice(SKEWS), seconds=round(rng.uniform(10, 40), 3))
        for at in _instants(rng, until, SKEW_SECONDS)
    ]


def _loop_course(rng: random.Random, until: float) -> list[faults.Fault]:
    """Both schedulers are away at once, long enough for slots to be missed; one reaper comes and goes."""
    found = [faults.kill("reaper", at=at, seconds=3) for at in _instants(rng, until - 5, 40)]
    found += [faults.freeze("reaper-2", at=at, seconds=4) for at in _instants(rng, until - 5, 50)]
    seconds, spells = (130.0, 2) if until >= 360 else (75.0, 1)
    room = until - seconds - 10
    for at in _instants(rng, room, room / spells) if room > 0 else []:
        found += [faults.kill("scheduler", at=at, seconds=seconds), faults.kill("scheduler-2", at=at, seconds=seconds)]
    away = [fault for fault in found if fault.target == "scheduler"]
    for at in _instants(rng, until - 5, 45):
        if not any(fault.at - 6 < at < fault.at + seconds + 1 for fault in away):
            found.append(faults.freeze("scheduler", at=at, seconds=4))
    return found


def _instants(rng: random.Random, until: float, every: float) -> list[float]:
    """About every so many seconds, jittered by a fifth; the first after half of that."""
    count = int((until + every / 2) // every)
    return [round((place + 0.5) * every * rng.uniform(0.9, 1.1), 3) for place in range(count)]
