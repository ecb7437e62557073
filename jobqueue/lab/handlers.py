"""Handlers for real workers in the lab: they run as long as the payload says, fail, kill their process, leave effects.

The payload may have
    seconds   how long it runs
    outcome   "failed": it never succeeds (PermanentError)
    failing   the share of attempts that raise, from 0 to 1
    stubborn  true: goes on after its authority is lost, as a handler that never looks does
    post      {"url": …, "every": 5}: the effect of each fifth job is sent to a destination over HTTP, to all its doors
    record    true: a row in `jobqueue_lab.effect` for each of two destinations, one outside the job's transaction,
              which takes in whatever it is sent, and one inside it
"""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import psycopg

from .. import Handler, Lease, LeaseLost, PermanentError
from ..sql import statements, text
from .conditions import current

OUTSIDE, TRANSACTION = "outside", "transaction"
SQL = statements(text("lab/effects.sql"))
_TYPES, _LEASE = "JOBQUEUE_LAB_TYPES", "JOBQUEUE_LAB_LEASE_SECONDS"


def environment(*, types: Sequence[str] = (), lease_seconds: float = 30) -> dict[str, str]:
    """For `Fleet(environment=…)`: further types to simulate, a workload's own for instance, and the lease of all."""
    return {_TYPES: json.dumps(list(types)), _LEASE: str(lease_seconds)}


def simulate(lease: Lease, context) -> None:
    """Run for payload["seconds"], times the factor of a plan's fault, then end as the payload says."""
    payload = lease.payload or {}
    if current("down", lease.type):
        raise RuntimeError("what this type depends on is away")
    _pass_time(payload | {"seconds": payload.get("seconds", 0) * (current("slow", lease.type) or 1)}, context)
    if payload.get("outcome") == "failed":
        raise PermanentError("the payload says that it fails")
    # Reproducible by job and attempt, so that a replay fails where it failed before.
    if random.Random(f"{lease.id}/{lease.attempt}").random() < payload.get("failing", 0):
        raise RuntimeError(f"attempt {lease.attempt} fails by chance")
    if (wanted := payload.get("post")) and lease.id % wanted["every"] == 0:
        _post(lease, wanted["url"])
    if payload.get("record"):
        record(lease, context, outside=payload["record"] is True)


def slow(lease: Lease, context) -> None:
    """A dependency that has become ten times slower, 10 s where the payload says nothing."""
    payload = lease.payload or {}
    _pass_time({**payload, "seconds": 10 * payload.get("seconds", 1)}, context)


def poison(lease: Lease, context) -> None:
    """Takes its whole process with it, as a segmentation fault or the out-of-memory killer does."""
    os.kill(os.getpid(), signal.SIGKILL)


def stuck(lease: Lease, context) -> None:
    """Never returns and listens to nobody: what `timeout_seconds` is for."""
    threading.Event().wait()


def record(lease: Lease, context, *, outside: bool = True) -> None:
    """One row outside, which a repeated execution repeats; one inside, there once if the queue keeps its promise."""
    row = {"job_id": lease.id, "epoch": lease.epoch, "owner": lease.owner, "clock": datetime.now(UTC)}
    if outside:
        with psycopg.connect(os.environ["JOBQUEUE_DSN"], autocommit=True) as conn:
            conn.execute(SQL.record_effect_and_clock, {**row, "destination": OUTSIDE})
    if context.effect(f"lab/{lease.id}"):
        context.connection.execute(SQL.record_effect_and_clock, {**row, "destination": TRANSACTION})


def prepare(conn: psycopg.Connection) -> None:
    """Make the table that `record` writes to."""
    conn.execute(SQL.prepare_effects)


def _post(lease: Lease, url: str) -> None:
    from . import destination  # by those who need it: a web server's modules make the start of a process longer

    for door in destination.DOORS:
        destination.post(url, door, lease)


def _pass_time(payload: dict, context) -> None:
    if payload.get("stubborn"):
        time.sleep(payload.get("seconds", 0))
    elif context.lost.wait(payload.get("seconds", 0)):
        raise LeaseLost("told so while it was running")


def _handlers() -> dict[str, Handler]:
    lease_seconds = float(os.environ.get(_LEASE, 30))
    simulated = dict.fromkeys(["job", *json.loads(os.environ.get(_TYPES, "[]"))], simulate)
    known = {"slow": slow, "poison": poison, **simulated}
    handlers = {type: Handler(fn, lease_seconds=lease_seconds) for type, fn in known.items()}
    return {"stuck": Handler(stuck, lease_seconds=lease_seconds, timeout_seconds=2), **handlers}


HANDLERS = _handlers()
