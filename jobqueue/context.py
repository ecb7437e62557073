"""What a handler is given beside its lease, and the slot (a thread's own connections) in which it runs."""

import asyncio
import inspect
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable

import psycopg

from . import limits, publication
from .backoff import Backoff
from .errors import InfrastructureError, InvalidInput, JobQueueError, LeaseLost, PermanentError, Retry
from .loop import Session
from .model import Lease
from .outcome import Outcome
from .queue import translated
from .sql import SQL


@dataclass(frozen=True)
class Handler:
    """How a type is run: fn(lease, context), plain or `async def`. backoff=None is Backoff().

    timeout_seconds fails an attempt that runs longer; a thread can't be ended from outside, so the slot is replaced.
    """

    fn: Callable[..., Any]
    lease_seconds: float = 30
    timeout_seconds: float | None = None
    backoff: Backoff | None = None

    def __post_init__(self):
        if not callable(self.fn):
            raise InvalidInput(f"a handler must be callable, not {self.fn!r}")
        limits.lease_seconds(self.lease_seconds)
        if self.timeout_seconds is not None:
            limits.seconds(self.timeout_seconds, "timeout_seconds", 0.001, 10 * 366 * 86_400)


@dataclass(frozen=True)
class End:
    """How a handler left: the verb that reports it, and what goes with it. `settled`: already told to the database."""

    verb: str  # complete, fail, release
    error: str | BaseException = ""
    delay_seconds: float | None = None
    permanent: bool = False
    counted: bool = True
    settled: Outcome | None = None


class Held:
    """One lease in this process, from its claim until the database has confirmed its end."""

    __slots__ = ("lease", "handler", "sent", "started", "is_lost", "gone", "cancelled", "outage", "abandoned", "ended", "_event")

    def __init__(self, lease: Lease, handler: Handler, sent: float):
        self.lease, self.handler = lease, handler
        self.sent = sent  # monotonic, when the last granted claim or renewal was SENT: the lease can't end earlier than counted
        self.started: float | None = None
        self.is_lost = False  # the handler should stop
        self.gone = False  # the database has said so: no renewal makes sense any more
        self.cancelled = False
        self.outage = False  # the queue's own connection failed under the handler: its end is no attempt
        self.abandoned = False  # its slot was given up: whatever the handler does later is ignored
        self.ended = False  # the handler's end is decided; renewals go on until the database has confirmed it
        self._event: threading.Event | None = None

    @property
    def lost(self) -> threading.Event:
        """Made at first use: an Event costs more than all the rest of a quick job."""
        if self._event is None:
            self._event = threading.Event()
        if self.is_lost:
            self._event.set()
        return self._event

    def lose(self, *, gone: bool = False, cancelled: bool = False) -> None:
        self.is_lost, self.gone, self.cancelled = True, self.gone or gone, self.cancelled or cancelled
        if self._event is not None:
            self._event.set()


class Context:
    """For one execution of a handler. `lost` is set once this worker's authority over the job has ended.

    `connection` begins a transaction at first use; it commits with the job's completion or not at all. Publishing and
    heartbeats use a connection of their own. All raise LeaseLost once authority is gone, and InfrastructureError.
    """

    def __init__(self, held: Held, slot: "Slot", artifacts=None):
        self._held, self._slot, self._artifacts = held, slot, artifacts

    @property
    def lost(self) -> threading.Event:
        return self._held.lost

    @property
    def cancelled(self) -> bool:
        """Whether authority was lost because the job was cancelled."""
        return self._held.cancelled

    @property
    def connection(self) -> psycopg.Connection:
        with self._noticing_outages():
            return self._slot.transaction(self._held.handler.timeout_seconds)

    def heartbeat(self) -> Outcome:
        """Renews the lease now (the worker does so by itself, too)."""
        sent, seconds = time.monotonic(), self._held.handler.lease_seconds
        with self._noticing_outages():
            outcome = self._authority(self._slot.aside.queue.heartbeat(self._held.lease, lease_seconds=seconds))
        self._held.sent = sent
        return outcome

    def publish(self, path_or_bytes, name: str, *, allow_empty: bool = False) -> Outcome:
        """Writes the candidate and makes it the job's result, while the lease is in force; once an execution."""
        if self._artifacts is None:
            raise JobQueueError("this worker has no folder for candidates: give it artifacts=DIR")
        self._still_mine()
        limits.text(name, "name", limits.NAME_BYTES)
        candidate = publication.write(self._artifacts, self._held.lease, path_or_bytes, allow_empty=allow_empty)
        publication.recheck(candidate)
        with self._noticing_outages():
            return self._authority(self._slot.aside.queue.publish(self._held.lease, name, candidate.digest))

    def effect(self, key: str) -> bool:
        """Records an effect in the job's transaction; False if it was recorded before: do not act again."""
        asked = {"key": limits.text(key, "key", limits.KEY_BYTES), "id": self._held.lease.id}
        asked |= {"owner": self._held.lease.owner, "epoch": self._held.lease.epoch}
        self._still_mine()
        with self._noticing_outages(), translated(self.connection) as conn:
            if conn.execute(SQL.effect, asked).fetchone():
                return True
            if conn.execute(SQL.effect_known, asked).fetchone():
                return False
            return bool(self._authority(Outcome.LOST))

    def _still_mine(self) -> None:
        if self._held.is_lost:
            raise LeaseLost(f"job {self._held.lease.id}, epoch {self._held.lease.epoch}: this worker's authority has ended")

    def _authority(self, outcome: Outcome) -> Outcome:
        if outcome in (Outcome.LOST, Outcome.CANCELLED, Outcome.LEASE_EXPIRED, Outcome.UNKNOWN_JOB):
            self._held.lose(gone=outcome is not Outcome.LEASE_EXPIRED, cancelled=outcome is Outcome.CANCELLED)
            raise LeaseLost(f"job {self._held.lease.id}, epoch {self._held.lease.epoch}: {outcome.value}")
        return outcome

    @contextmanager
    def _noticing_outages(self):
        try:
            yield
        except InfrastructureError:
            self._held.outage = True
            self._slot.drop_aside()
            raise


class Slot:
    """A thread's room for one handler at a time, with its connections, which outlive single jobs."""

    MOST_RELEASES = 20  # in a row, asked for by handlers; the next one is a failed attempt

    def __init__(self, connect: Callable[..., Session], artifacts=None):
        self._connect, self._artifacts = connect, artifacts
        self.aside = connect()
        self._session: Session | None = None
        self._runner: asyncio.Runner | None = None

    def run(self, held: Held, backoff_seconds: Callable[[Held], float]) -> End:
        """Runs the handler; everything that leaves it, SystemExit included, becomes an End."""
        try:
            self._call(held, Context(held, self, self._artifacts))
            return self._finish(held)
        except BaseException as error:
            end = self._end_of(held, error, backoff_seconds)
            self._roll_back()
            return end

    def close(self) -> None:
        for session in (self.aside, self._session):
            if session is not None:
                session.drop()
        if self._runner is not None:
            self._runner.close()

    def drop_aside(self) -> None:
        self.aside.drop()

    def transaction(self, idle_seconds: float | None) -> psycopg.Connection:
        """The handler's connection, with its transaction begun."""
        if self._session is not None and self._session.idle_seconds != idle_seconds:
            self._roll_back()
        if self._session is None:
            self._session = self._connect(idle_seconds=idle_seconds)
            self._session.conn.autocommit = False
        return self._session.conn

    def _call(self, held: Held, context: Context) -> None:
        fn = held.handler.fn
        if not inspect.iscoroutinefunction(fn):
            fn(held.lease, context)
            return
        self._runner = self._runner or asyncio.Runner()
        self._runner.run(fn(held.lease, context))

    def _finish(self, held: Held) -> End:
        """Completion on the handler's own transaction where it has used one: all of it counts, or nothing."""
        if self._session is None:
            return End("complete")
        if held.abandoned:
            self._roll_back()
            return End("complete")
        try:
            outcome = self._session.queue.complete(held.lease)
            if outcome is not Outcome.APPLIED:
                self._roll_back()
                return End("complete", settled=outcome)
            with translated(self._session.conn):
                self._session.conn.commit()
            return End("complete", settled=outcome)
        except InfrastructureError as error:
            # The COMMIT may have landed. A release is exact either way: it waits for the row and finds the job done, or gives
            # it back; completing again would mark a job done whose effects were rolled back.
            self._roll_back()
            return End("release", f"the commit of its effects is unconfirmed: {error}", counted=False)

    def _roll_back(self) -> None:
        if self._session is not None:
            self._session.drop()
            self._session = None

    def _end_of(self, held: Held, error: BaseException, backoff_seconds) -> End:
        if isinstance(error, Retry):
            return End("fail", str(error), delay_seconds=error.after_seconds)
        if isinstance(error, PermanentError):
            return End("fail", error, permanent=True)
        if isinstance(error, LeaseLost):
            return End("release", str(error), counted=False)
        if held.outage or self._connection_broke(error):
            return End("release", f"the queue's own connection failed: {error}", backoff_seconds(held), counted=False)
        if isinstance(error, InfrastructureError) and held.lease.releases < self.MOST_RELEASES:
            return End("release", str(error), delay_seconds=backoff_seconds(held))
        return End("fail", error)

    def _connection_broke(self, error: BaseException) -> bool:
        """An error of the handler's own databases is a failed attempt; one of context.connection's server is not."""
        return isinstance(error, psycopg.Error) and self._session is not None and not self._session.is_open
