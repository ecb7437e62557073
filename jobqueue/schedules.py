"""Recurring schedules: one job per slot, whatever the number of schedulers, their clocks or their crashes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import psycopg
from psycopg.rows import TupleRow, class_row, tuple_row

from . import limits
from .cron import Cron, preview
from .errors import InfrastructureError, InvalidInput, JobQueueError
from .model import Enqueued
from .sql import SQL
from .transactions import together, translated

MISFIRES = ("skip", "last", "all")
OVERLAPS = ("allow", "skip")
DAY_SECONDS = 86_400
MOST_CATCH_UP = 10_000
MISSED_KEPT = 1_000  # missed slots that stay named for a schedule, the newest; missed_slots counts them all
_SENDS = 3
_INSTANT = timedelta(microseconds=1)
_Made = TypeVar("_Made", bound="Schedule | Due | Seen")


@dataclass(frozen=True)
class Schedule:
    """One row of `schedule`; next_run_at is None while it is paused or has a problem."""

    id: str
    job_type: str
    cron: str
    timezone: str
    payload: Any
    spread_seconds: float
    misfire: str
    misfire_grace_seconds: float
    max_catch_up: int
    overlap: str
    max_attempts: int
    paused: bool
    next_run_at: datetime | None
    last_slot: datetime | None
    last_job_id: int | None
    missed_slots: int
    problem: str | None
    revision: int
    removed_at: datetime | None


@dataclass(frozen=True)
class Ticked:
    """What one tick did: the jobs it made, how many slots it passed over, and the schedules it could not read."""

    jobs: list[Enqueued] = field(default_factory=list)
    missed: int = 0
    problems: list[str] = field(default_factory=list)


class Schedules:
    """Schedules over one psycopg connection; transactions and errors are as with Queue.

    All times are the database's. A slot is an instant in UTC; job, last_slot and next_run_at are decided together.
    """

    preview = staticmethod(preview)

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self.conn = conn

    def put(
        self, id: str, job_type: str, cron: str, *, timezone: str = "UTC", payload: Any = None,
        spread_seconds: float = 0, misfire: str = "last", misfire_grace_seconds: float = 60, max_catch_up: int = 100,
        overlap: str = "allow", max_attempts: int = 5,
    ) -> None:  # fmt: skip
        """Creates or changes a schedule (dialect: see jobqueue.cron). Never fires a slot of the past.

        spread_seconds: a stable offset of this schedule in 0..spread moves run_at, not the slot. misfire: what becomes
        of slots found more than misfire_grace_seconds late (all: at most max_catch_up, the newest). overlap="skip":
        no job while the previous one is ready or running; of several slots at once the newest runs.
        """
        limits.text(id, "id", limits.SCHEDULE_BYTES)
        slots = Cron(cron, timezone, id)
        given = {
            "job_type": limits.job_type(job_type), "cron": cron, "timezone": timezone,
            "payload": limits.payload(payload), "misfire": _one_of(misfire, "misfire", MISFIRES),
            "spread_seconds": limits.seconds(spread_seconds, "spread_seconds", 0, DAY_SECONDS),
            "misfire_grace_seconds": limits.seconds(misfire_grace_seconds, "misfire_grace_seconds", 0, DAY_SECONDS),
            "max_catch_up": limits.integer(max_catch_up, "max_catch_up", 1, MOST_CATCH_UP),
            "overlap": _one_of(overlap, "overlap", OVERLAPS), "max_attempts": limits.max_attempts(max_attempts),
        }  # fmt: skip
        self._fenced(SQL.put_schedule, id, lambda seen: given | {"next_run_at": slots.after(seen.floor)})

    def remove(self, id: str) -> None:
        """Ends a schedule; its jobs stay. A schedule put under the same id later never repeats a slot."""
        self._changed(SQL.remove_schedule, id)

    def pause(self, id: str) -> None:
        """No slots until resumed; those of the pause are neither run nor missed."""
        self._changed(SQL.pause_schedule, id)

    def resume(self, id: str) -> None:
        """Goes on with the first slot after now; also for a schedule with a problem, once its row is mended."""
        self._fenced(SQL.resume_schedule, id, lambda seen: _resumed(seen, id))

    def tick(self, *, limit: int = 100) -> Ticked:
        """Decides the due slots of at most `limit` schedules, each in a transaction of its own.

        Raises JobQueueError if the primary key of job_key is missing or invalid: nothing would keep slots single.
        """
        with translated(self.conn):
            if not self._rows(SQL.schedule_guard)[0][0]:
                raise JobQueueError("the primary key of jobqueue.job_key is missing or invalid: slots could fire twice")
            due = self._made(Due, SQL.schedules_due, limit=limits.batch(limit))
        ticks = [self._decide(one) for one in due]
        return Ticked(
            [job for tick in ticks for job in tick.jobs],
            sum(tick.missed for tick in ticks),
            [problem for tick in ticks for problem in tick.problems],
        )

    def list(self) -> Sequence[Schedule]:
        """All schedules but the removed ones, by id."""
        with translated(self.conn):
            return self._made(Schedule, SQL.schedules)

    def _decide(self, due: Due) -> Ticked:
        """One schedule, in one transaction; a row that can't be read is set aside, so that it is reported once."""
        try:
            plan = _plan(due)
            with translated(self.conn), together(self.conn):
                rows = self._rows(SQL.fire, **plan)
        except InvalidInput as error:
            problem = str(error)
            with translated(self.conn):
                self.conn.execute(SQL.schedule_problem, {"id": due.id, "revision": due.revision, "problem": problem})
            return Ticked(problems=[f"schedule {due.id!r}: {problem}"])
        return Ticked([Enqueued(id, True) for id in rows[0][0]], rows[0][1]) if rows else Ticked()

    def _fenced(self, statement: str, id: str, computed: Callable[[Seen], dict[str, Any] | None]) -> None:
        """Reads a row, computes what depends on it without a lock, writes if its revision still stands; else again."""
        with translated(self.conn):
            for _ in range(_SENDS):
                seen = self._made(Seen, SQL.schedule_seen, id=id)[0]
                given = computed(seen)
                if given is None or self._rows(statement, **given, id=id, revision=seen.revision):
                    return
        raise InfrastructureError(f"schedule {id!r} is being changed by others all the time: try again")

    def _changed(self, statement: str, id: str) -> None:
        with translated(self.conn):
            if not self._rows(statement, id=limits.text(id, "id", limits.SCHEDULE_BYTES)):
                raise JobQueueError(f"there is no schedule {id!r}")

    def _rows(self, statement: str, **given: Any) -> Sequence[TupleRow]:
        with self.conn.cursor(row_factory=tuple_row) as cursor:
            return cursor.execute(statement, given).fetchall()

    def _made(self, kind: type[_Made], statement: str, **given: Any) -> Sequence[_Made]:
        with self.conn.cursor(row_factory=class_row(kind)) as cursor:
            return [_in_utc(row) for row in cursor.execute(statement, given).fetchall()]


@dataclass(frozen=True)
class Due:
    """A schedule whose next_run_at has come, as seen without a lock; `revision` fences what is made of it."""

    id: str
    cron: str
    timezone: str
    spread_seconds: float
    misfire: str
    max_catch_up: int
    overlap: str
    revision: int
    now: datetime
    decided_until: datetime  # just before next_run_at, or last_slot
    on_time_from: datetime  # a slot before this is a misfire
    floor: datetime  # next_run_at becomes the first slot after it


@dataclass(frozen=True)
class Seen:
    """What put and resume need to know of a row before they compute; without a row all but `floor` are None."""

    revision: int | None
    cron: str
    timezone: str
    removed: bool
    idle: bool
    floor: datetime


def _plan(due: Due) -> dict[str, Any]:
    """Which slots run, which are missed and what is next; pure."""
    cron = Cron(due.cron, due.timezone, due.id)
    late_until = max(due.decided_until, due.on_time_from - _INSTANT)
    late, misfires = cron.backlog(due.decided_until, late_until, due.max_catch_up + MISSED_KEPT)
    on_time = list(cron.slots(late_until, due.now))
    caught_up = _caught_up(due, misfires, on_time)
    run = caught_up + on_time
    # Catching up must not displace the slot that is on time: where runs don't overlap, the newest is the one.
    overlapped, run = (run[:-1], run[-1:]) if due.overlap == "skip" else ([], run)
    passed = [(slot, "misfire") for slot in misfires if slot not in set(caught_up)]
    passed = (passed + [(slot, "overlap") for slot in overlapped])[-MISSED_KEPT:]
    offset = timedelta(seconds=due.spread_seconds * _fraction(due.id))
    return {
        "id": due.id, "revision": due.revision, "kept": MISSED_KEPT, "slots": run,
        "run_ats": [slot + offset for slot in run], "keys": [_key(due.id, slot) for slot in run],
        "missed": late - len(caught_up) + len(overlapped), "missed_slots": [slot for slot, _ in passed],
        "reasons": [reason for _, reason in passed], "last_slot": max(misfires[-1:] + on_time, default=None),
        "next_run_at": cron.after(due.floor),
    }  # fmt: skip


def _caught_up(due: Due, misfires: list[datetime], on_time: list[datetime]) -> list[datetime]:
    """The misfires that run all the same."""
    if due.misfire == "all":
        return misfires[-due.max_catch_up :]
    if due.misfire == "last" and not on_time:
        return misfires[-1:]
    return []


def _key(id: str, slot: datetime) -> str:
    """The slot comes first and has a fixed width, so that no id can run into it."""
    return f"{limits.RESERVED_PREFIX}{slot:%Y-%m-%dT%H:%M:%SZ}/{id}"


def _fraction(id: str) -> float:
    """0 ≤ x < 1, the same for an id in every process."""
    return int.from_bytes(hashlib.sha256(id.encode()).digest()[:6], "big") / 2**48


def _resumed(seen: Seen, id: str) -> dict[str, Any] | None:
    """What resume writes; None where the schedule is going on already: then a due slot must not be passed over."""
    if seen.revision is None or seen.removed:
        raise JobQueueError(f"there is no schedule {id!r}")
    return {"next_run_at": Cron(seen.cron, seen.timezone, id).after(seen.floor)} if seen.idle else None


def _one_of(value: str, what: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise InvalidInput(f"{what} must be one of {', '.join(allowed)}, not {value!r}")
    return value


def _in_utc(row: _Made) -> _Made:
    """Python compares and subtracts two datetimes of one zone by their wall clocks, so slots never leave UTC."""
    for each in fields(row):
        value = getattr(row, each.name)
        if isinstance(value, datetime):
            object.__setattr__(row, each.name, value.astimezone(UTC))
    return row
