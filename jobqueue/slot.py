"""A slot of a worker: runs one handler at a time and says how it left; its connections outlive single jobs."""

import asyncio
import inspect
import os
import random
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from . import limits
from .backoff import Backoff
from .context import Context
from .errors import InfrastructureError, LeaseLost, PermanentError, Retry, translate
from .loop import LOCK_SECONDS, Session, Unreadable
from .outcome import Outcome
from .publication import Folder
from .queue import Queue
from .shift import COMPLETE, End, Held, Shift
from .transactions import translated

MOST_RELEASES = 20  # in a row, asked for by handlers; the next one is a failed attempt
_OURS = tuple(os.path.dirname(str(module.__file__)) + os.sep for module in (limits, asyncio))


class Slot:
    """A thread's room for one handler at a time. `connect(idle_seconds=…)` makes its sessions."""

    def __init__(
        self, connect: Callable[..., Session], artifacts: Folder | None = None, rng: random.Random | None = None
    ) -> None:
        self.aside = connect(lock_seconds=LOCK_SECONDS)  # for what must not be part of the handler's transaction
        self.artifacts = artifacts
        self.threads: list[threading.Thread] = []  # the one that works here
        self.abandoned = False  # its handler did not return in time: whatever it does later is ignored
        self._connect, self._rng = connect, rng or random.Random()
        self._session: Session | None = None
        self._conn: psycopg.Connection[Any] | None = None  # while it is in the handler's transaction
        self._block: Any = None  # psycopg's, of that transaction
        self._runner: asyncio.Runner | None = None

    def work(self, shift: Shift) -> None:
        """Runs what waits until it is told to end, or was given up: another slot has taken its place then."""
        try:
            while (held := shift.waiting.get()) is not None:
                held.slot = self
                held.started = shift.last_start = time.monotonic()
                end = self.run(held)
                shift.measured(time.monotonic() - held.started)
                if not shift.end(held, end):
                    shift.returned()
                    return
        finally:
            self.close()

    def run(self, held: Held) -> End:
        """Runs the handler; everything that leaves it, SystemExit included, becomes an End."""
        try:
            if type(held.lease.payload) is Unreadable:
                raise PermanentError(f"the payload can't be read: {held.lease.payload.reason}")
            result = held.handler.fn(held.lease, Context(held, self))
            if result is not None:
                self._run_to_its_end(result)
            return COMPLETE if self._block is None else self._commit(held)
        except BaseException as error:
            end = self._end_of(held, error)
            self._roll_back()
            return end

    def transaction(self, idle_seconds: float | None) -> psycopg.Connection[Any]:
        """The handler's connection, in its transaction: begun at first use, ended by the slot alone."""
        if self._conn is None:
            self._conn, self._block = self._begin(idle_seconds)
        if self._conn.closed:
            raise InfrastructureError("the connection with this job's transaction is lost, and all that was done there")
        return self._session.conn if self._session else self._conn  # which refuses in a forked child

    def cancel(self) -> None:
        """From another thread, for a handler that was given up: its transaction must not keep locks."""
        if self._session is not None and self._block is not None:
            self._session.cancel()
        self.aside.hang_up()

    def close(self) -> None:
        for session in (self.aside, self._session):
            if session is not None:
                session.drop()
        self._end_runner()

    # ------------------------------------------------------------ the handler's transaction

    def _begin(self, idle_seconds: float | None) -> tuple[psycopg.Connection[Any], Any]:
        """A block of psycopg's: the handler's own commit or rollback is refused, its `transaction()` is a savepoint."""
        if self._session is not None and self._session.settings["idle_seconds"] != idle_seconds:
            self._session.drop()
            self._session = None
        self._session = self._session or self._connect(idle_seconds=idle_seconds, own=False)
        conn = self._session.conn
        block = conn.transaction()
        with translated(conn):
            block.__enter__()
        return conn, block

    def _commit(self, held: Held) -> End:
        """Completion in the handler's own transaction: all of it counts, or nothing."""
        if held.abandoned:
            self._roll_back()
            return COMPLETE
        conn = self.transaction(None)
        outcome = Queue(conn).complete(held.lease)
        if outcome is not Outcome.APPLIED:
            self._roll_back()
            return End("complete", settled=outcome)
        with translated(conn):
            self._block.__exit__(None, None, None)
        self._conn = self._block = None
        return End("complete", settled=outcome)

    def _roll_back(self) -> None:
        conn, block, self._conn, self._block = self._conn, self._block, None, None
        if conn is None:
            return
        if not conn.closed:
            with suppress(psycopg.Error):
                block.__exit__(psycopg.Rollback, psycopg.Rollback(), None)
        if self._session and (conn.closed or conn.info.transaction_status != TransactionStatus.IDLE):
            self._session.drop()

    # ------------------------------------------------------------ how a handler left

    def _end_of(self, held: Held, error: BaseException) -> End:
        if isinstance(error, Retry):
            return End("fail", _said(error), delay_seconds=error.after_seconds)
        if isinstance(error, PermanentError):
            return End("fail", _told(error), permanent=True)
        if isinstance(error, LeaseLost) and held.is_lost:
            return End("release", _said(error), counted=False)
        if held.outage or self._is_cut():
            # Where its COMMIT was under way it may have landed. A release is exact either way: it waits for the row,
            # and finds the job done or gives it back; a completion might mark a job done whose effects are gone.
            reason = f"the queue's own connection failed: {_said(error)}"
            return End("release", reason, self._backoff(held), counted=False)
        if self._is_trouble(error) and held.lease.releases < MOST_RELEASES:
            return End("release", _said(error), delay_seconds=self._backoff(held))
        return End("fail", _told(error))

    def _is_cut(self) -> bool:
        return self._conn is not None and self._conn.broken  # not: closed by the handler

    def _is_trouble(self, error: BaseException) -> bool:
        """What the handler calls infrastructure, or a deadlock and its like in its transaction; no other database's."""
        if isinstance(error, InfrastructureError):
            return True
        ours = self._conn is not None and self._conn.info.transaction_status == TransactionStatus.INERROR
        if not ours or not isinstance(error, psycopg.Error):
            return False
        return isinstance(translate(error, self._conn), InfrastructureError)

    def _backoff(self, held: Held) -> float:
        return (held.handler.backoff or Backoff()).delay(held.lease.releases + 1, self._rng)

    # ------------------------------------------------------------ async def

    def _run_to_its_end(self, result: object) -> None:
        """What a handler returned, if that is still to run."""
        if inspect.iscoroutine(result):
            self._await(result)
        elif inspect.isgenerator(result) or inspect.isasyncgen(result) or inspect.isawaitable(result):
            raise TypeError(f"the handler returned a {type(result).__name__}, which nobody would run to its end")

    def _await(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._runner = self._runner or asyncio.Runner()
        try:
            self._runner.run(coroutine)
        except BaseException:
            self._end_runner()
            raise

    def _end_runner(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            with suppress(Exception):
                runner.close()


def _told(error: BaseException) -> str:
    """The traceback from the handler's first frame on, as text that can be stored, whatever the exception is."""
    with suppress(BaseException):
        frame = error.__traceback__
        while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_OURS):
            frame = frame.tb_next
        return limits.error_text(error.with_traceback(frame))
    return f"{type(error).__name__} (its text can't be shown)"


def _said(error: BaseException) -> str:
    with suppress(BaseException):
        return limits.error_text(str(error) or type(error).__name__)
    return f"{type(error).__name__} (its text can't be shown)"
