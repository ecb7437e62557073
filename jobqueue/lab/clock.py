"""Virtual time: `jobqueue.now()` of one connection follows this clock instead of the database's."""
from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from jobqueue import limits
from jobqueue.errors import JobQueueError
from jobqueue.sql import statements, text

SQL = statements(text("lab/database.sql"))
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


def elapsed(instants: Any) -> Any:
    """Seconds after the beginning, of a Series of instants."""
    return (instants - BEGINNING).dt.total_seconds()


class VirtualClock:
    """Time for one autocommit connection to a database that was installed with virtual=True.

    It stands still until told. `set` may go anywhere, also back; `advance` only forward.
    """

    def __init__(self, conn: psycopg.Connection[Any], now: datetime = BEGINNING) -> None:
        if not conn.autocommit:
            raise JobQueueError("a virtual clock needs an autocommit connection: a rollback would set it back")
        self._conn = conn
        self._require_idle()
        self._require_virtual()
        self.set(now)

    @property
    def now(self) -> datetime:
        return self._now

    def set(self, instant: datetime) -> None:
        """Make it this instant (aware; microseconds are kept)."""
        utc = limits.instant(instant, "instant")
        self._require_idle()
        self._conn.execute(SQL.set_clock, (utc.isoformat(),))
        self._now = utc

    def advance(self, seconds: float) -> datetime:
        """Move forward by a finite number of seconds ≥ 0; returns the new instant."""
        forward = timedelta(seconds=limits.seconds(seconds, "seconds", 0, limits.DELAY_SECONDS))
        self.set(self._now + forward)
        return self._now

    def _require_idle(self) -> None:
        if self._conn.info.transaction_status != TransactionStatus.IDLE:
            raise JobQueueError("time does not move inside a transaction: commit first")

    def _require_virtual(self) -> None:
        try:
            row = self._conn.execute(SQL.is_virtual).fetchone()
        except psycopg.errors.UndefinedTable:
            raise JobQueueError("no queue here yet: Queue(conn).install(virtual=True) first") from None
        if not (row and row[0]):
            raise JobQueueError("this queue follows the database's clock: only install(virtual=True) bends time")
