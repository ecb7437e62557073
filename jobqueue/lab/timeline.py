"""A connection in virtual time: the clock, and statements whose answers can wait, travel with the next one read.

    line.at(1_500_000)                  # from here on it is 1.5 s after the beginning; sent with the next statement
    line.presume([(7,)], missed)        # the next statement is taken to answer so, and waits for company
    line.presume([(8, "mail")], id=8)   # and here it must: one row that begins with 8
    queue.complete(lease)
    line.flush()                        # missed() is called where the answer had no row; another one is an error

A queue on it is the real one: `Queue(line)` sends its own statements, and the server works at what waits while the
simulation goes on; one round trip ends it all. What else psycopg offers works as ever, after a flush. Statements that
wait are one transaction: nobody else is here.
"""

from datetime import timedelta

import psycopg
from psycopg import pq
from psycopg.rows import tuple_row

from ..errors import JobQueueError
from .clock import BEGINNING, SQL
from .wire import Told, Wire, checked

_SET_CLOCK = SQL.set_clock.replace("%s", "%(instant)s")
_MOST_WAITING = 200  # statements; nobody reads meanwhile what the server answers


class Timeline(Wire):
    """An autocommit connection to a database of virtual time; its clock is set in microseconds after `BEGINNING`."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._idle = _Idle(self.pgconn)
        self._presumed = None
        self._waiting: list = []  # what looks at the answer of each statement sent; empty: no pipeline is open
        self._clock = None  # to be sent before the next statement

    @classmethod
    def open(cls, dsn: str, settings: dict[str, str]) -> "Timeline":
        """settings: of this session alone, such as synchronous_commit=off."""
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        return cls.connect(dsn, autocommit=True, options=options)

    @property
    def info(self) -> psycopg.ConnectionInfo:
        """Idle while statements wait: to their callers they have been answered."""
        return self._idle if self._waiting else super().info

    def at(self, microseconds: int) -> None:
        self._clock = microseconds

    def presume(self, rows: list[tuple], missed=None, id: int | None = None) -> None:
        """The next statement is answered with these rows; missed() is called if the database has none for it. With
        `id` reading its answer raises JobQueueError, unless that is one row that begins with it."""
        self._presumed = (rows, _only(id) if id is not None else missed and _unless_there(missed))

    def flush(self) -> None:
        """Sends what waits, the clock too, and reads the answers."""
        self._send_clock()
        self._exchange()

    def end(self) -> None:
        self._exchange()

    def cursor(self, *args, row_factory=None, **kwargs):
        if args or kwargs or row_factory not in (None, tuple_row):
            self.flush()
            return super().cursor(*args, row_factory=row_factory, **kwargs)
        return Statement(self)

    def execute(self, query, params=None, **kwargs):
        return Statement(self).execute(query, params)

    def transaction(self, *args, **kwargs):
        self.flush()
        return super().transaction(*args, **kwargs)

    def alone(self, query: str) -> None:
        """A statement that must not share a transaction."""
        self.flush()
        super().cursor().execute(query)

    def pipeline(self):
        raise NotImplementedError("what gathers here goes in one pipeline already")

    def answer(self, query: str, params) -> list[tuple]:
        """Rows of this statement: its own, with all that waited sent before it, or those presumed."""
        self._send_clock()
        if self._presumed is None:
            self._send(query, params, None)
            return self._exchange()
        (rows, check), self._presumed = self._presumed, None
        self._send(query, params, check)
        if len(self._waiting) < _MOST_WAITING:
            self.pgconn.flush()
        else:
            self._exchange()
        return rows

    def _send_clock(self) -> None:
        if self._clock is not None:
            instant, self._clock = BEGINNING + timedelta(microseconds=self._clock), None
            self._send(_SET_CLOCK, {"instant": instant.isoformat()}, None)

    def _send(self, query: str, params, check) -> None:
        name, given = self.prepared(query, params)
        if not self._waiting:
            self.pgconn.enter_pipeline_mode()
        self.pgconn.send_query_prepared(name, given)
        self._waiting.append(check)

    def _exchange(self) -> list[tuple]:
        """Ends what was sent; the rows of the last statement."""
        if not self._waiting:
            return []
        waiting, self._waiting = self._waiting, []
        results = [checked(result) for result in self.answers(len(waiting))]
        self.adapt.set_pgresult(results[-1])
        rows = self.adapt.load_rows(0, results[-1].ntuples, tuple)
        for check, result in zip(waiting, results, strict=True):
            if check is not None:
                check(result)
        return rows


def _unless_there(missed):
    return lambda result: None if result.ntuples else missed()


def _only(id: int):
    def check(result) -> None:
        found = [int(result.get_value(row, 0)) for row in range(result.ntuples)]
        if found != [id]:
            raise JobQueueError(f"job {id} was presumed, and the database answers {found}: not credible")

    return check


class _Idle(psycopg.ConnectionInfo):
    transaction_status = pq.TransactionStatus.IDLE


class Statement(Told):
    """Its rows are those of the answer, or those presumed."""

    def __init__(self, line: Timeline):
        super().__init__()
        self._line = line

    def execute(self, query: str, params=None) -> "Statement":
        self.rows = self._line.answer(query, params or {})
        return self

    def copy(self, query: str):
        """psycopg's own, after a flush: COPY can't travel with other statements."""
        self._line.flush()
        return psycopg.Connection.cursor(self._line).copy(query)
