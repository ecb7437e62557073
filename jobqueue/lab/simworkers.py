"""What a simulated worker knows, how its handlers end, and the record of every attempt; times in microseconds."""

import random
from array import array
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta

import numpy as np
import pandas as pd

from ..model import Lease
from .clock import BEGINNING

SECOND = 1_000_000
MICROSECOND = timedelta(microseconds=1)
OUTCOMES = ("running", "done", "failed", "failed_permanently", "released", "lost", "cancelled")
DONE, PERMANENT, ERROR, CRASH = "done", "failed_permanently", "failed", "crash"
REFUSED_SECONDS = 0.1  # how soon a dependency that is away refuses a call
POISON = "poison"  # what a payload says that takes its process with it


@dataclass(slots=True, eq=False)
class Held:
    """A lease in a worker's hands: when it was last renewed, when its handler ends and how.

    serial: the event that is valid; those with an older one are void.
    """

    worker: "SimWorker"
    lease: Lease
    renewed: int
    ends: int
    ending: str
    serial: int = 0
    gone: bool = False  # the database has said so: it is not renewed any more


@dataclass(slots=True, eq=False)
class SimWorker:
    """One process: running, paused, stopping or dead. Its owner is unique to each start, as a real worker's is."""

    place: int
    slots: int
    state: str = "running"
    start: int = 1
    held: dict[int, Held] = field(default_factory=dict)  # by job
    back: int = 0  # it reaches the database again at this instant
    cut: bool = False  # the reply to its next statement is lost
    paused_at: int = 0
    paused_from: str = "running"
    slow_until: int = 0
    factor: float = 1.0

    @property
    def name(self) -> str:
        return f"worker-{self.place}"

    @property
    def owner(self) -> str:
        return f"worker-{self.place}.{self.start}"

    @property
    def free(self) -> int:
        return self.slots - len(self.held) if self.state == "running" else 0

    def drop_all(self) -> list[Held]:
        """The process has ended: what it held is in nobody's hands."""
        dropped = list(self.held.values())
        self.held.clear()
        for held in dropped:
            held.serial += 1
        return dropped


class Handlers:
    """How long an attempt takes and how it ends: by what `handlers.simulate` reads in the payload, and by faults."""

    def __init__(self):
        self._slow: dict[str, tuple[int, float]] = {}
        self._down: dict[str, tuple[int, float | None, deque]] = {}

    def slow(self, type: str, until: int, factor: float) -> None:
        self._slow[type] = (until, factor)

    def down(self, type: str, until: int, capacity: float | None) -> None:
        self._down[type] = (until, capacity, deque())

    def attempt(self, worker: SimWorker, lease: Lease, now: int) -> tuple[int, str]:
        """(microseconds, ending) of an attempt that begins now."""
        payload = lease.payload or {}
        if payload.get(POISON):
            return 0, CRASH
        if lease.type in self._down and self._refused(lease.type, now):
            return int(REFUSED_SECONDS * SECOND), ERROR
        took = payload.get("seconds", 0) * SECOND * self._factor(worker, lease.type, now)
        return round(took), self._ending(lease, payload)

    def _ending(self, lease: Lease, payload: dict) -> str:
        if payload.get("outcome") == "failed":
            return PERMANENT
        failing = payload.get("failing", 0)
        # The same draw as that of the real handler: what fails there fails here.
        return ERROR if failing and random.Random(f"{lease.id}/{lease.attempt}").random() < failing else DONE

    def _factor(self, worker: SimWorker, type: str, now: int) -> float:
        own = worker.factor if now < worker.slow_until else 1.0
        until, factor = self._slow.get(type, (0, 1.0))
        return own * factor if now < until else own

    def _refused(self, type: str, now: int) -> bool:
        until, capacity, calls = self._down[type]
        if capacity is None:
            return now < until
        while calls and calls[0] <= now - SECOND:
            calls.popleft()
        calls.append(now)
        return now < until or len(calls) > capacity


class Attempts:
    """Every attempt begun, in columns: a million of them take 50 MB. At most one of a job is open."""

    def __init__(self):
        self._job, self._epoch, self._due, self._begun, self._ended = (array("q") for _ in range(5))
        self._attempt, self._worker, self._start, self._type = (array("l") for _ in range(4))
        self._outcome = array("b")
        self._types: dict[str, int] = {}
        self._open: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._job)

    def begin(self, worker: SimWorker, lease: Lease, now: int) -> None:
        self._open[lease.id] = len(self._job)
        self._job.append(lease.id)
        self._epoch.append(lease.epoch)
        self._attempt.append(lease.attempt)
        self._worker.append(worker.place)
        self._start.append(worker.start)
        self._type.append(self._types.setdefault(lease.type, len(self._types)))
        self._due.append((lease.run_at - BEGINNING) // MICROSECOND)
        self._begun.append(now)
        self._ended.append(-1)
        self._outcome.append(0)

    def end(self, job_id: int, epoch: int | None, outcome: str, now: int) -> bool:
        """False where that attempt had ended before (epoch None: whichever is open)."""
        place = self._open.get(job_id)
        if place is None or epoch not in (None, self._epoch[place]):
            return False
        del self._open[job_id]
        self._ended[place], self._outcome[place] = now, OUTCOMES.index(outcome)
        return True

    def frame(self) -> pd.DataFrame:
        """job_id, attempt, epoch, worker, owner, type, due, started, ended (seconds; NaN while it runs), outcome."""
        worker, start, ended = (np.array(column) for column in (self._worker, self._start, self._ended))
        names = np.array([f"worker-{place}" for place in range(int(worker.max(initial=-1)) + 1)], dtype=object)
        owners = [f"worker-{place}.{n}" for place, n in zip(worker.tolist(), start.tolist(), strict=True)]
        types = np.array(list(self._types), dtype=object)
        return pd.DataFrame({
            "job_id": np.array(self._job), "attempt": np.array(self._attempt), "epoch": np.array(self._epoch),
            "worker": names[worker], "owner": np.array(owners, dtype=object), "type": types[np.array(self._type)],
            "due": np.array(self._due) / SECOND, "started": np.array(self._begun) / SECOND,
            "ended": np.where(ended < 0, np.nan, ended / SECOND),
            "outcome": np.array(OUTCOMES, dtype=object)[np.array(self._outcome)],
        })
