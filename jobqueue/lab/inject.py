"""Applies plans of faults to real processes: the same values that the simulation takes, in real time.

    hands = Hands(fleet, server)
    play(plan, hands)                        # returns after the last step; `stopped` ends it early

Whoever has the methods of `Hands` can be given to `play`; the cockpit has them, too, as its buttons.
"""

import threading
import time
from functools import partial

import psycopg

from ..errors import InvalidInput, JobQueueError
from ..queue import Queue
from . import faults
from .database import MODES


class Hands:
    """What can be done to a fleet, its jobs and (where a `server` of our own is given) its database."""

    def __init__(self, fleet, server=None):
        self.fleet, self.server, self.dsn = fleet, server, fleet.dsn
        for name in ("kill", "pause", "resume", "stop", "start", "cut", "slow", "skew", "down"):
            setattr(self, name, getattr(fleet, name))

    def crash_database(self) -> None:
        """kill -9 of the postmaster."""
        self._own_server().kill()

    def stop_database(self, mode: str = "fast") -> None:
        self._own_server().stop(mode)

    def start_database(self) -> None:
        self._own_server().start()

    def poison(self, n: int = 1, max_attempts: int = 3) -> None:
        """Jobs that kill whoever runs them; dead after `max_attempts`."""
        self._enqueue([{"type": "poison", "max_attempts": max_attempts}] * n)

    def burst(self, n: int, seconds: float, type: str = "job") -> None:
        """`n` jobs at one instant."""
        self._enqueue([{"type": type, "payload": {"seconds": seconds}}] * n)

    def _enqueue(self, jobs: list[dict]) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            Queue(conn).enqueue_many(jobs)

    def _own_server(self):
        if self.server is None:
            raise InvalidInput("a plan that stops or crashes the database needs a server of its own: give server=")
        return self.server


def steps(fault: faults.Fault, hands) -> list[tuple]:
    """(seconds, action) of a fault, and of its end where it has one that somebody must bring about."""
    target = fault.target if fault.worker is None else fault.worker
    _refuse_what_only_a_simulation_can(fault)
    acts = {
        "kill": (partial(hands.kill, target), partial(hands.start, target)),
        "pause": (partial(hands.pause, target), partial(hands.resume, target)),
        "crash": (hands.crash_database, hands.start_database),
        "outage": (partial(hands.stop_database, *_mode(fault)), hands.start_database),
        "slow": (partial(hands.slow, target, fault.seconds, fault.factor), None),
        "skew": (partial(hands.skew, target, fault.by_seconds, fault.seconds), None),
        "down": (partial(hands.down, target, fault.seconds), None),
        "poison": (partial(hands.poison, fault.n or 1), None),
        "burst": (partial(hands.burst, fault.n, fault.service_seconds, fault.target), None),
        **{kind: (partial(getattr(hands, kind), target), None) for kind in ("start", "resume", "stop", "cut")},
    }
    begin, end = acts[fault.kind]
    ends = [(fault.until_seconds, end)] if end and fault.until_seconds is not None else []
    return [(fault.at, begin), *ends]


def _refuse_what_only_a_simulation_can(fault: faults.Fault) -> None:
    """What the simulation can do, or takes as a name only, and real processes can't."""
    if fault.kind == "down" and fault.capacity is not None:
        raise InvalidInput("what is down bears nothing, and all once it is back: capacity is for the simulation alone")
    if fault.kind == "outage" and (fault.target.split()[0] != "database" or not set(_mode(fault)) <= set(MODES)):
        raise InvalidInput(f"an outage is of the database, or database {', database '.join(MODES)}: {fault.target!r}")
    if fault.kind == "poison" and fault.target != "poison":
        raise InvalidInput(f"jobs that kill their worker are of the type 'poison' here, not {fault.target!r}")


def _mode(fault: faults.Fault) -> list[str]:
    """How the server is stopped: "database" is fast, "database immediate" leaves recovery to the next start."""
    return fault.target.split()[1:]


def check(plan, hands) -> tuple[faults.Fault, ...]:
    """The plan in order of time; InvalidInput where this fleet and this server can't be told to do that."""
    checked = faults.check(plan, hands.fleet.size)
    names = {process.name for process in (*hands.fleet.workers, *hands.fleet.loops)}
    for fault in checked:
        steps(fault, hands)
        what = f"{fault.kind} at {fault.at:g} s"
        if fault.kind in ("crash", "outage") and hands.server is None:
            raise InvalidInput(f"{what} needs a server of our own, and there is none here")
        if (fault.worker is not None or faults.is_loop(fault.target)) and fault.target not in names:
            raise InvalidInput(f"{what} aims at {fault.target}, but this fleet has {', '.join(sorted(names))}")
    return checked


def play(plan, hands, stopped: threading.Event | None = None, refused=None) -> None:
    """Every step of the plan at its time, in seconds from now. An error of a step ends it, unless `refused` takes it:
    then it goes on (a worker that is dead already can't be killed)."""
    stopped = stopped or threading.Event()
    todo = [step for fault in plan for step in steps(fault, hands)]
    begun = time.monotonic()
    for at, act in sorted(todo, key=lambda step: step[0]):
        if stopped.wait(max(0.0, at - (time.monotonic() - begun))):
            return
        try:
            act()
        except (JobQueueError, psycopg.Error) as error:
            if refused is None:
                raise
            refused(error)
