"""A connection for searches: statements gather and travel together; all is one transaction, which never commits.

    line.send(SQL.back)                     # travels with the next statement that is read
    told = line.send(SQL.world)             # its rows are there after the next flush
    line.flush()                            # one round trip

A queue on it is the real one and sends its own statements. A block of `transaction()` is a savepoint where an actor may
be killed, else nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from ..sql import statements, text
from .wire import Told, Wire, checked

SQL = statements(text("lab/explorer.sql"))


class Killed(Exception):
    """An actor is gone before it could send its next statement; what it had not committed is undone."""


class Line(Wire):
    """One session whose statements can gather. What is done on it is undone when it closes.

    To the queue it looks like an autocommit connection: idle, but for its own transaction blocks.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._waiting: list[Statement] = []
        self._left: int | None = None  # statements and commits until an actor is killed
        self._blocks = 0  # of the queue's own that are open

    @classmethod
    def open(cls, dsn: str) -> "Line":
        line = cls.connect(dsn, autocommit=True, options="-c timezone=UTC -c synchronous_commit=off")
        line.send(SQL.begin)
        return line

    @property
    def info(self) -> psycopg.ConnectionInfo:
        return _Info(self.pgconn, TransactionStatus.INTRANS if self._blocks else TransactionStatus.IDLE)

    def send(self, query: str, params: dict | None = None, row_factory=tuple_row) -> "Statement":
        """Sends it with the next flush; its rows are read then."""
        statement = Statement(self, row_factory)
        statement.sent = self.prepared(query, params or {})
        self._waiting.append(statement)
        return statement

    def flush(self) -> None:
        """One round trip for all that has gathered; raises the first error."""
        sent, self._waiting = self._waiting, []
        if sent:
            self.pgconn.enter_pipeline_mode()
            for statement in sent:
                self.pgconn.send_query_prepared(*statement.sent)
            for statement, result in zip(sent, self.answers(len(sent)), strict=True):
                statement.read(checked(result), self.adapt)

    end = flush

    @contextmanager
    def killed_after(self, steps: int) -> Iterator[None]:
        """What happens inside is cut off after so many statements and commits; an open transaction block is undone."""
        self._left = steps
        try:
            yield
        except Killed:
            pass
        finally:
            self._left = None

    def step(self) -> None:
        """One statement or commit of an actor that may be killed between any two."""
        if self._left == 0:
            raise Killed("the process was killed before this")
        if self._left is not None:
            self._left -= 1

    def cursor(self, *args, row_factory=tuple_row, **kwargs):
        return Statement(self, row_factory)

    def execute(self, query, params=None, **kwargs):
        return Statement(self, tuple_row).execute(query, params)

    @contextmanager
    def transaction(self, *args, **kwargs) -> Iterator[None]:
        """Its statements are in the search's transaction anyway; where an actor may be killed, a savepoint is its
        BEGIN."""
        self._blocks += 1
        try:
            if self._left is None:
                yield
            else:
                yield from self._mortal_block()
        finally:
            self._blocks -= 1

    def _mortal_block(self) -> Iterator[None]:
        self.send(SQL.block)
        try:
            yield
            self.step()  # its COMMIT
        except BaseException:
            self.send(SQL.undo_block)
            raise

    def pipeline(self):
        return nullcontext()

    def ask(self, query: str, params: dict | None, row_factory) -> "Statement":
        self.step()
        statement = self.send(query, params, row_factory)
        self.flush()
        return statement


class Statement(Told):
    """With any row factory."""

    _encoding = "utf-8"

    def __init__(self, line: Line, row_factory):
        super().__init__()
        self.line, self.row_factory, self.pgresult = line, row_factory, None
        self.sent: tuple = ()

    def execute(self, query: str, params: dict | None = None) -> "Statement":
        told = self.line.ask(query, params or {}, self.row_factory)
        self.rows, self.pgresult = told.rows, told.pgresult
        return self

    def read(self, result, adapt: Transformer) -> None:
        self.pgresult = result
        if result.ntuples:
            adapt.set_pgresult(result)
            make_row = tuple if self.row_factory is tuple_row else self.row_factory(self)
            self.rows = adapt.load_rows(0, result.ntuples, make_row)

    @property
    def rowcount(self) -> int:
        return int(self.pgresult.command_tuples or 0)


class _Info(psycopg.ConnectionInfo):
    """What a connection says of itself."""

    def __init__(self, pgconn, status: TransactionStatus):
        super().__init__(pgconn)
        self._status = status

    @property
    def transaction_status(self) -> TransactionStatus:
        return self._status
