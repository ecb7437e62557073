"""Handlers for workers that the tests start as processes: how long, how they end, what they leave is in the payload."""

import os
import re
import signal
import sys
import threading
import uuid
from contextlib import suppress
from pathlib import Path

import psycopg

from jobqueue import Handler, LeaseLost

NEVER = threading.Event()


def sleep(lease, context):
    if "begun" in lease.payload:  # a claimed job may still wait for its slot
        Path(lease.payload["begun"]).touch()
    NEVER.wait(lease.payload["seconds"])


def obedient(lease, context):
    """Ends as soon as it is told that its authority is gone."""
    context.lost.wait(lease.payload["seconds"])


def stuck(lease, context):
    NEVER.wait()


def poison(lease, context):
    os.kill(os.getpid(), signal.SIGKILL)


def counted(lease, context):
    """A row for each execution, outside of the job's transaction, and one inside."""
    call = uuid.uuid4()
    while not _is_noted(lease, call):  # a connection of its own: an outage of that would be the handler's failure
        if context.lost.wait(0.05):
            raise LeaseLost
    context.lost.wait((lease.payload or {}).get("seconds", 0))
    if context.effect(f"counted/{lease.id}"):
        context.connection.execute("insert into applied values (%s, %s)", (lease.id, lease.epoch))


def _is_noted(lease, call):
    """Once a call: a note whose reply was lost is sent again."""
    with suppress(psycopg.OperationalError), psycopg.connect(os.environ["JOBS_DSN"], autocommit=True) as conn:
        conn.execute("insert into execution values (%s, %s, %s) on conflict do nothing", (lease.id, lease.epoch, call))
        return True


def greedy(lease, context):
    """Holds the interpreter's lock: no other thread of this process runs meanwhile."""
    re.match(r"(a+)+$", "a" * lease.payload["letters"] + "b")


def leave(lease, context):
    sys.exit(lease.payload["code"])


HANDLERS = {
    "quick": Handler(lambda lease, context: None, lease_seconds=1),
    "sleep": Handler(sleep, lease_seconds=2),
    "obedient": Handler(obedient, lease_seconds=2),
    "stuck": Handler(stuck, lease_seconds=2, timeout_seconds=0.5),
    "poison": Handler(poison, lease_seconds=1),
    "counted": Handler(counted, lease_seconds=2),
    "greedy": Handler(greedy, lease_seconds=0.3),
    "leave": leave,
}
