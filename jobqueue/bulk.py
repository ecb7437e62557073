"""Many jobs at once: what an enqueue is given, checked; by COPY where there are many; as arrays in one statement."""

from collections.abc import Iterable
from contextlib import nullcontext
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any

import psycopg
from psycopg.errors import UniqueViolation
from psycopg.rows import TupleRow, tuple_row

from . import limits
from .errors import InvalidInput
from .sql import SQL
from .transactions import together

DEFAULT_MAX_ATTEMPTS = 5
COPY_FROM = 100  # jobs: COPY takes four round trips, and half of the time for each job

_ENTRY = {"type", "payload", "key", "run_at", "delay_seconds", "max_attempts"}
_DUE, _KEYED = itemgetter("type", "payload", "max_attempts"), itemgetter("type", "payload", "max_attempts", "key")

Job = dict[str, Any]


def checked_job(
    type: str,
    payload: Any = None,
    key: str | None = None,
    run_at: datetime | None = None,
    delay_seconds: float | None = None,
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
) -> Job:
    """The parameters of the statements; raises InvalidInput."""
    if run_at is not None and delay_seconds is not None:
        raise InvalidInput("give run_at or delay_seconds, not both")
    return {
        "type": limits.job_type(type),
        "payload": limits.payload(payload),
        "key": limits.key(key),
        "run_at": None if run_at is None else limits.instant(run_at, "run_at"),
        "delay": 0.0 if delay_seconds is None else limits.delay_seconds(delay_seconds),
        "max_attempts": limits.max_attempts(max_attempts),
    }


def checked(jobs: Iterable[Job]) -> list[Job]:
    """As checked_job, for all; an error names the place."""
    done: list[Job] = []
    for entry in jobs:
        try:
            if not isinstance(entry, dict) or "type" not in entry or not entry.keys() <= _ENTRY:
                known = ", ".join(sorted(_ENTRY))
                raise InvalidInput(f"needs a dict with `type` and at most {known}, not {entry!r:.200}")
            done.append(checked_job(**entry))
        except InvalidInput as error:
            raise InvalidInput(f"jobs[{len(done)}]: {error}") from None
    return done


def copied(conn: psycopg.Connection[Any], jobs: list[Job]) -> list[int] | None:
    """Ids in input order, all in one transaction; None, and nothing done, where a key is known or comes twice."""
    keys = [job["key"] for job in jobs if job["key"] is not None]
    if len(set(keys)) < len(keys):
        return None
    try:
        with together(conn), conn.cursor(row_factory=tuple_row) as cursor:
            ids: list[int]
            [(ids, now)] = cursor.execute(SQL.reserve_ids, {"count": len(jobs)}).fetchall()
            with conn.transaction() if keys else nullcontext():  # a savepoint: a transaction has begun above
                if keys:
                    cursor.execute(SQL.new_keys, _keyed(ids, jobs))
                statement, rows = _rows(jobs, now, bool(keys))
                with cursor.copy(statement) as copy:
                    for id, row in zip(ids, rows, strict=True):
                        copy.write_row((id, *row))
        return ids
    except UniqueViolation as error:
        if error.diag.table_name != "job_key":
            raise
        return None


def _keyed(ids: list[int], jobs: list[Job]) -> dict[str, str]:
    keyed = [(str(id), job) for id, job in zip(ids, jobs, strict=True) if job["key"] is not None]
    return _names([job for _, job in keyed]) | {"ids": array([id for id, _ in keyed])}


def _rows(jobs: list[Job], now: datetime, keyed: bool) -> tuple[str, Iterable[TupleRow]]:
    """The COPY, and its rows without their ids."""
    if not any(job["run_at"] is not None or job["delay"] for job in jobs):
        return (SQL.copy_keyed, map(_KEYED, jobs)) if keyed else (SQL.copy_due, map(_DUE, jobs))
    times = (job["run_at"] or now + timedelta(seconds=job["delay"]) for job in jobs)
    return SQL.copy_later, ((*_KEYED(job), time) for job, time in zip(jobs, times, strict=True))


def columns(jobs: list[Job]) -> dict[str, str]:
    """Arrays as text: psycopg dumps a list one by one, and by its largest number, which prepares the statement anew."""
    return _names(jobs) | {
        "run_ats": array(["NULL" if job["run_at"] is None else f'"{job["run_at"].isoformat()}"' for job in jobs]),
        "delays": array([str(job["delay"]) for job in jobs]),
        "max_attempts": array([str(job["max_attempts"]) for job in jobs]),
    }


def _names(jobs: list[Job]) -> dict[str, str]:
    """What a key stands for: all that the registry takes, and a look for a known one."""
    return {
        "types": texts([job["type"] for job in jobs]),
        "payloads": array([_quoted(job["payload"]) for job in jobs]),
        "keys": array(["NULL" if job["key"] is None else _quoted(job["key"]) for job in jobs]),
    }


def texts(values: list[str]) -> str:
    """An array of texts of which many are the same."""
    quoted = {value: _quoted(value) for value in set(values)}
    return array([quoted[value] for value in values])


def array(values: list[str]) -> str:
    """Of elements as PostgreSQL reads them in an array."""
    return "{" + ",".join(values) + "}"


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
