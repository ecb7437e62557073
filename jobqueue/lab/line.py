"""A connection for searches: statements gather and travel together; all is one transaction, which never commits.

    line.send(SQL.back)                     # travels with the next statement that is read
    told = line.send(SQL.world)             # its rows are there after the next flush
    line.flush()                            # one round trip

A queue on it is the real one and sends its own statements, as prepared ones over libpq's pipeline (a third of the
client's work of psycopg's cursors). A block of `transaction()` is a savepoint where an actor may be killed, else
nothing.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import psycopg
from psycopg import errors, pq
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from ..sql import statements, text

SQL = statements(text("lab/explorer.sql"))
_PARAMETER = re.compile(r"%\((\w+)\)s")
_ANSWERS = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


class Killed(Exception):
    """An actor is gone before it could send its next statement; what it had not committed is undone."""


class Line(psycopg.Connection):
    """One session whose statements can gather. What is done on it is undone when it closes.

    To the queue it looks like an autocommit connection: idle, but for its own transaction blocks.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._plans: dict[str, tuple[bytes, list[str], list[PyFormat]]] = {}
        self._waiting: list[Statement] = []
        self._adapt = Transformer(self)
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

    def __exit__(self, *_) -> None:
        """Nothing of it stays: psycopg's own would commit."""
        self.close()

    def send(self, query: str, params: dict | None = None, row_factory=tuple_row) -> "Statement":
        """Sends it with the next flush; its rows are read then."""
        statement = Statement(self, row_factory)
        name, places, formats = self._plans.get(query) or self._parsed(query)
        given = self._adapt.dump_sequence([params[place] for place in places], formats) if places else []
        statement.sent = name, given
        self._waiting.append(statement)
        return statement

    def flush(self) -> None:
        """One round trip for all that has gathered; raises the first error."""
        sent, self._waiting = self._waiting, []
        if sent:
            results = self._piped(sent)
            for statement, result in zip(sent, results, strict=True):
                statement.read(_checked(result), self._adapt)

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

    def _parsed(self, query: str):
        """Parsed once; the server infers each parameter's type from its place."""
        places = list(dict.fromkeys(_PARAMETER.findall(query)))
        name = f"line_{len(self._plans)}".encode()
        bare = _PARAMETER.sub(lambda found: f"${places.index(found[1]) + 1}", query).replace("%%", "%")
        self.flush()  # what waits goes first: it may begin the transaction that this one needs
        _checked(self.pgconn.prepare(name, bare.encode()))
        self._plans[query] = name, places, [PyFormat.TEXT] * len(places)
        return self._plans[query]

    def _piped(self, sent: list["Statement"]) -> list:
        wire = self.pgconn
        wire.enter_pipeline_mode()
        try:
            for statement in sent:
                wire.send_query_prepared(*statement.sent)
            wire.pipeline_sync()
            results = []
            for _ in sent:
                results.append(wire.get_result())
                wire.get_result()  # the end of this statement's
            wire.get_result()  # the sync
            return results
        finally:
            if wire.status == pq.ConnStatus.OK:
                wire.exit_pipeline_mode()


class Statement:
    """As much of a cursor as the queue's verbs ask for."""

    _encoding = "utf-8"

    def __init__(self, line: Line, row_factory):
        self.line, self.row_factory, self.pgresult = line, row_factory, None
        self.rows: list = []
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

    def fetchall(self) -> list:
        return self.rows

    def fetchone(self):
        return self.rows[0] if self.rows else None

    def __iter__(self):
        return iter(self.rows)

    def __enter__(self) -> "Statement":
        return self

    def __exit__(self, *_) -> None:
        pass


class _Info(psycopg.ConnectionInfo):
    """What a connection says of itself."""

    def __init__(self, pgconn, status: TransactionStatus):
        super().__init__(pgconn)
        self._status = status

    @property
    def transaction_status(self) -> TransactionStatus:
        return self._status


def _checked(result):
    if result is None:
        raise psycopg.OperationalError("the connection to the database was lost")
    if result.status not in _ANSWERS:
        raise errors.error_from_result(result)
    return result
