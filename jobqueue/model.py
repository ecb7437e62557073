"""The facts: frozen values made from rows in one place."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple

from .outcome import Sight

Place = tuple[datetime, int]  # (run_at, id) of a job in the order of claims


class Empty(Enum):
    """Why a claim brought nothing, for the types asked for."""

    NONE = "no eligible job"
    NOT_DUE = "the next job is not due yet"
    LOCKED = "due jobs exist, but other transactions hold them right now"


@dataclass(frozen=True)
class Lease:
    """Authority over one job until `locked_until` by the database's clock; (owner, epoch) is its identity."""

    id: int
    type: str
    payload: Any
    owner: str
    epoch: int
    attempt: int  # 1 is the first
    releases: int
    locked_until: datetime
    slot: datetime | None = None  # of the schedule that made the job, in UTC
    run_at: datetime | None = None  # due since


@dataclass(frozen=True)
class Claim:
    """The leases of one claim, ordered by (run_at, id); an empty one says why."""

    leases: tuple[Lease, ...]
    empty: Empty | None = None
    next_run_at: datetime | None = None
    asked_at: datetime | None = None  # the database's time of an empty answer
    last: Place | None = None  # of the last lease: where the next claim may begin

    def __iter__(self) -> Iterator[Lease]:
        return iter(self.leases)

    def __len__(self) -> int:
        return len(self.leases)

    def __getitem__(self, place: int) -> Lease:
        return self.leases[place]


class Enqueued(NamedTuple):
    """What an enqueue did; matches=False: the key is known with another type or payload, which is the caller's bug."""

    id: int
    created: bool
    matches: bool = True


@dataclass(frozen=True)
class Reaped:
    """One lease that was taken away, and the status the job has now."""

    id: int
    type: str
    owner: str
    epoch: int
    status: str


@dataclass(frozen=True)
class Cancellation:
    """A decision against a job: its status before and after (None: unknown), and a sentence that support can paste."""

    before: str | None
    after: str | None
    message: str


@dataclass(frozen=True)
class Job:
    """One row, live or archived; columns as in DESIGN §2."""

    id: int
    type: str
    payload: Any
    idempotency_key: str | None
    status: str
    run_at: datetime
    attempts: int
    max_attempts: int
    lease_losses: int
    releases: int
    epoch: int
    locked_by: str | None
    locked_until: datetime | None
    started_at: datetime | None
    last_error: str | None
    created_at: datetime
    finished_at: datetime | None
    finished_epoch: int | None
    finished_by: str | None
    published_name: str | None
    published_digest: str | None
    published_epoch: int | None
    published_by: str | None
    schedule_id: str | None
    slot: datetime | None
    history: list[dict[str, Any]]
    history_trimmed: int
    archived: bool


_JOB_COLUMNS = tuple(field.name for field in fields(Job))


def job_from(row: dict[str, Any]) -> Job:
    return Job(**{name: row[name] for name in _JOB_COLUMNS})


def is_result(row: Job | Sight) -> bool:
    """Whether what a row names as published is the job's result: by who finished it, else by the last epoch that began.

    What an earlier epoch published stays in the row until another publication replaces it, but nobody shows it as the
    result.
    """
    if row.published_epoch is None:
        return False
    if row.finished_epoch is not None:
        return (row.published_epoch, row.published_by) == (row.finished_epoch, row.finished_by)
    return row.published_epoch == row.epoch and row.locked_by in (None, row.published_by)
