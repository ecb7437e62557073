"""How statements are sent: errors of psycopg become the queue's own, and several statements count together."""

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from .errors import JobQueueError, translate

READABLE = "open it with client_encoding='utf8', and leave DateStyle at ISO"


class translated:
    """A block whose errors of psycopg leave as the queue's own, with the cause kept. (A generator would cost each verb
    8 µs.)"""

    __slots__ = ("conn", "handled")

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self.conn = conn

    def __enter__(self) -> psycopg.Connection[Any]:
        self.handled = sys.exception()
        return self.conn

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, psycopg.Error):
            if interrupt := _interrupt(error, self.handled):
                raise interrupt
            raise translate(error, self.conn) from error
        if isinstance(error, (UnicodeError, NotImplementedError)):
            raise JobQueueError(f"this connection can't carry what the queue stores: {READABLE} ({error})") from error


def _interrupt(error: BaseException, handled: BaseException | None) -> BaseException | None:
    """What psycopg's own error hides: a KeyboardInterrupt amid the end of a pipeline is followed by "busy"."""
    link = error.__context__
    while link is not None and link is not handled:
        if not isinstance(link, Exception):
            return link
        link = link.__context__
    return None


def together(conn: psycopg.Connection[Any]) -> AbstractContextManager[object]:
    """A block whose statements count together: the caller's transaction where there is one, else one of its own.

    psycopg's `transaction()` alone would commit on an idle connection without autocommit, before its caller does.
    """
    idle = conn.info.transaction_status == TransactionStatus.IDLE
    return conn.transaction() if conn.autocommit and idle else nullcontext()


def value(conn: psycopg.Connection[Any], statement: str) -> Any:
    """Of a statement whose answer is always one row, the first column."""
    return conn.execute(statement).fetchall()[0][0]
