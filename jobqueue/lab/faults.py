"""Faults as data: when, what, whom; the same values are applied to simulated workers and to real processes.

    plan = [faults.kill(worker=3, at=600), faults.freeze(worker=1, at=900, seconds=120), faults.outage(1800, 60)]
    faults.loads(faults.dumps(plan)) == plan        # JSON: a plan can be kept beside its results

`at` and `seconds` are seconds after the beginning. A worker is named by its place; loops are named: reaper, scheduler.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import pandas as pd

from .. import limits
from ..errors import InvalidInput

MOST_SECONDS = 1e9
KINDS = ("kill", "start", "pause", "resume", "stop", "cut", "slow", "skew", "down", "poison", "burst", "outage",
         "crash")
LOOPS = ("reaper", "scheduler")  # and further ones of their kind: scheduler-2
_NEEDS = {"slow": ("seconds", "factor"), "skew": ("by_seconds",), "down": ("seconds",), "outage": ("seconds",),
          "crash": ("seconds",), "poison": ("n",), "burst": ("n", "service_seconds")}
_PROCESSES = ("kill", "start", "pause", "resume", "stop", "cut", "skew")
# The seconds of the others are no spells: a stop's are its grace, a poison's those until its worker is back.
_SPELLS = ("kill", "pause", "slow", "skew", "down", "outage", "crash")


@dataclass(frozen=True)
class Fault:
    """One fault; its target is a worker ("worker-3"), a loop, a type of jobs, or the database.

    seconds: how long it lasts, until something ends it where None. factor: how many times slower. n: how many jobs.
    service_seconds: of each. capacity: calls a second that a dependency which is back bears. by_seconds: how wrong a
    clock is.
    """

    at: float
    kind: str
    target: str
    seconds: float | None = None
    factor: float | None = None
    n: int | None = None
    service_seconds: float | None = None
    capacity: float | None = None
    by_seconds: float | None = None

    def __post_init__(self):
        if self.kind not in KINDS:
            raise InvalidInput(f"a fault is one of {', '.join(KINDS)}, not {self.kind!r}")
        limits.text(self.target, "target", limits.TYPE_BYTES)
        for name in ("at", "seconds", "service_seconds", "capacity"):
            if getattr(self, name) is not None or name == "at":
                limits.seconds(getattr(self, name), name, 0, MOST_SECONDS)
        for name in _NEEDS.get(self.kind, ()):
            if getattr(self, name) is None:
                raise InvalidInput(f"a fault of kind {self.kind} needs {name}")
        if self.by_seconds is not None:
            limits.seconds(self.by_seconds, "by_seconds", -MOST_SECONDS, MOST_SECONDS)
        if self.factor is not None:
            limits.seconds(self.factor, "factor", 0.001, 1e6)
        if self.n is not None:
            limits.integer(self.n, "n", 1, 1_000_000)

    @property
    def worker(self) -> int | None:
        """The place of the worker it is meant for."""
        place = self.target.removeprefix("worker-")
        return int(place) if place != self.target and place.isdecimal() else None

    @property
    def until_seconds(self) -> float | None:
        """When it ends by itself."""
        return self.at + self.seconds if self.kind in _SPELLS and self.seconds is not None else None

    def as_dict(self) -> dict:
        return {name: value for name, value in asdict(self).items() if value is not None}


def kill(worker: int | str, at: float, seconds: float | None = None) -> Fault:
    """SIGKILL of a worker or a loop; started again after `seconds`, or not before a `start`."""
    return Fault(at, "kill", _process(worker), seconds)


def start(worker: int | str, at: float) -> Fault:
    """A worker (or loop) that has ended is started again, under a new owner."""
    return Fault(at, "start", _process(worker))


def freeze(worker: int | str, at: float, seconds: float | None = None) -> Fault:
    """SIGSTOP, and SIGCONT after `seconds`: past its lease, its jobs go to others while it still holds them."""
    return Fault(at, "pause", _process(worker), seconds)


def resume(worker: int | str, at: float) -> Fault:
    return Fault(at, "resume", _process(worker))


def stop(worker: int | str, at: float, grace_seconds: float = 10) -> Fault:
    """SIGTERM: no new claim; what has not finished within the grace is released."""
    return Fault(at, "stop", _process(worker), grace_seconds)


def cut(worker: int | str, at: float) -> Fault:
    """Its database session is terminated while a reply is on its way: committed, but it does not hear so."""
    return Fault(at, "cut", _process(worker))


def slow(target: int | str, at: float, seconds: float, factor: float = 10) -> Fault:
    """Attempts begun meanwhile take `factor` times as long: those of a worker (its place), or of a type (its name)."""
    named = _process(target) if isinstance(target, int) else limits.job_type(target)
    return Fault(at, "slow", named, seconds, factor=factor)


def skew(worker: int | str, at: float, by_seconds: float, seconds: float | None = None) -> Fault:
    """The wall clock of a worker or a loop is wrong by so many seconds. Simulated workers have no clock of their own,
    and real ones must not use theirs: so nothing that is stored may show it."""
    return Fault(at, "skew", _process(worker), seconds, by_seconds=by_seconds)


def down(type: str, at: float, seconds: float, capacity: float | None = None) -> Fault:
    """What this type depends on is away: its attempts fail at once. Back again, it bears `capacity` calls a second at
    most, failed ones included, and refuses the rest: then recovery depends on the load of the retries."""
    return Fault(at, "down", limits.job_type(type), seconds, capacity=capacity)


def poison(at: float, n: int = 1, type: str = "poison", restart_seconds: float | None = 5) -> Fault:
    """n jobs that take their worker's process with them at every attempt; a supervisor starts it again after that."""
    return Fault(at, "poison", limits.job_type(type), restart_seconds, n=n)


def burst(at: float, n: int, service_seconds: float = 1.0, type: str = "job") -> Fault:
    """n jobs more, at one instant."""
    return Fault(at, "burst", limits.job_type(type), n=n, service_seconds=service_seconds)


def outage(at: float, seconds: float) -> Fault:
    """Nobody reaches the database."""
    return Fault(at, "outage", "database", seconds)


def crash_database(at: float, seconds: float = 5) -> Fault:
    """The database goes down with replies on their way (every worker's next one is lost), and is back after a while."""
    return Fault(at, "crash", "database", seconds)


def dumps(plan: Iterable[Fault]) -> str:
    return json.dumps([fault.as_dict() for fault in plan])


def loads(text: str) -> list[Fault]:
    """Raises InvalidInput for what is no plan, with the place of the fault that is wrong."""
    try:
        entries = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"a plan of faults is JSON: {error}") from error
    if not isinstance(entries, list):
        raise InvalidInput("a plan of faults is a JSON list")
    return [_loaded(place, entry) for place, entry in enumerate(entries)]


def listed(plan: Iterable[Fault]) -> str:
    """As a person writes it, a fault a line: seconds, kind, target, then what else is said; `parse` reads it."""
    return "".join(_line(fault) + "\n" for fault in sorted(plan, key=_instant))


def parse(text: str) -> list[Fault]:
    """A plan from lines like `3 kill worker-1 seconds=6`; empty ones and those that begin with # are left out.

    Raises InvalidInput with the number of the line that is no fault.
    """
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1)]
    return [_parsed(number, words) for number, words in lines if words and not words[0].startswith("#")]


def frame(plan: Iterable[Fault]) -> pd.DataFrame:
    """As charts ask for it: time_seconds, kind, target, until_seconds (NaN: a moment, or until something ends it)."""
    rows = [(f.at, f.kind, f.target, f.until_seconds) for f in plan]
    return pd.DataFrame(rows, columns=["time_seconds", "kind", "target", "until_seconds"])


def check(plan: Iterable[Fault], workers: int) -> tuple[Fault, ...]:
    """The plan in order of time; InvalidInput where it aims at a worker that does not exist."""
    plan = tuple(sorted(plan, key=_instant))
    for fault in plan:
        if fault.worker is not None and fault.worker >= workers:
            there = f"there are worker-0 to worker-{workers - 1}"
            raise InvalidInput(f"{fault.kind} at {fault.at:g} s aims at {fault.target}, but {there}")
        if fault.kind in _PROCESSES and fault.worker is None and not is_loop(fault.target):
            neither = f"no worker, nor {' or '.join(LOOPS)}"
            raise InvalidInput(f"{fault.kind} at {fault.at:g} s aims at {fault.target!r}: {neither}")
    return plan


def _instant(fault) -> float:
    if not isinstance(fault, Fault):
        raise InvalidInput(f"faults are made by jobqueue.lab.faults (kill, freeze, …), not {fault!r:.100}")
    return fault.at


def _process(target: int | str) -> str:
    if isinstance(target, str):
        if not is_loop(target):
            raise InvalidInput(f"a worker is named by its place (0, 1, …), a loop is {' or '.join(LOOPS)}: {target!r}")
        return target
    return f"worker-{limits.integer(target, 'worker', 0, 1_000_000)}"


def _line(fault: Fault) -> str:
    known = fault.as_dict()
    head = f"{known.pop('at'):g} {known.pop('kind')} {known.pop('target')}"
    return " ".join([head, *(f"{name}={value:g}" for name, value in known.items())])


def _parsed(number: int, words: list[str]) -> Fault:
    """Its target are all words before the first that says name=value: "database immediate" has two."""
    first = next((place for place, word in enumerate(words) if "=" in word), len(words))
    try:
        if first < 3:
            raise InvalidInput("a fault is: seconds, kind, target, then name=value as the kind needs it")
        given = dict(word.split("=", 1) for word in words[first:])
        values = {name: int(value) if name == "n" else float(value) for name, value in given.items()}
        return Fault(float(words[0]), words[1], " ".join(words[2:first]), **values)
    except (TypeError, ValueError) as error:
        said = str(error).replace("Fault.__init__() got an unexpected keyword argument", "a fault has no")
        raise InvalidInput(f"line {number}: {said}") from None


def is_loop(target: str) -> bool:
    """reaper, scheduler, or a further one: reaper-2."""
    name, _, number = target.partition("-")
    return name in LOOPS and (number.isdecimal() or target == name)


def _loaded(place: int, entry) -> Fault:
    try:
        return Fault(**entry)
    except (TypeError, InvalidInput) as error:
        raise InvalidInput(f"fault {place}: {error}") from error
