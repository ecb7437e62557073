"""How statements are sent: errors of psycopg become the queue's own, and several statements count together."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from .errors import translate


@contextmanager
def translated(conn: psycopg.Connection[Any]) -> Iterator[psycopg.Connection[Any]]:
    """Errors of psycopg leave as the queue's own, with the cause kept."""
    try:
        yield conn
    except psycopg.Error as error:
        raise translate(error, conn) from error


def together(conn: psycopg.Connection[Any]) -> AbstractContextManager[object]:
    """A block whose statements count together: the caller's transaction where there is one, else one of its own.

    psycopg's `transaction()` alone would commit on an idle connection without autocommit, before its caller does.
    """
    idle = conn.info.transaction_status == TransactionStatus.IDLE
    return conn.transaction() if conn.autocommit and idle else nullcontext()


def value(conn: psycopg.Connection[Any], statement: str) -> Any:
    """Of a statement whose answer is always one row, the first column."""
    return conn.execute(statement).fetchall()[0][0]
