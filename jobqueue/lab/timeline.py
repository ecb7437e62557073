"""A connection in virtual time: the clock, and statements whose answers can wait, travel with the next one read.

    line.at(1_500_000)                  # from here on it is 1.5 s after the beginning; sent with the next statement
    line.presume([(7,)], missed)        # the next statement is taken to answer so, and waits for company
    queue.complete(lease)
    line.flush()                        # missed() is called where the answer had no row after all

A queue on it is the real one: `Queue(line)` sends its own statements. They go as prepared ones over libpq's pipeline (a
client's work per statement falls to a third of that of psycopg's cursors): the server works at what waits while the
simulation goes on, and one round trip ends it all. What else psycopg offers works as ever, after a flush. Statements
that wait are one transaction: nobody else is here.
"""

import re
from datetime import timedelta

import psycopg
from psycopg import errors, pq
from psycopg.adapt import PyFormat, Transformer
from psycopg.rows import tuple_row

from .clock import BEGINNING, SQL

_SET_CLOCK = SQL.set_clock.replace("%s", "%(instant)s")
_PARAMETER = re.compile(r"%\((\w+)\)s")
_ANSWERS = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
_MOST_WAITING = 200  # statements; nobody reads meanwhile what the server answers


class Timeline(psycopg.Connection):
    """An autocommit connection to a database of virtual time; its clock is set in microseconds after `BEGINNING`."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._plans, self._presumed = {}, None
        self._waiting: list = []  # what to do where a statement that was sent has no row; empty: no pipeline is open
        self._clock = None  # to be sent before the next statement
        self._adapt, self._lists = Transformer(self), {}

    @classmethod
    def open(cls, dsn: str, settings: dict[str, str]) -> "Timeline":
        """settings: of this session alone, such as synchronous_commit=off."""
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        return cls.connect(dsn, autocommit=True, options=options)

    @property
    def info(self) -> psycopg.ConnectionInfo:
        """Idle while statements wait: to their callers they have been answered."""
        return _Idle(self.pgconn) if self._waiting else super().info

    def at(self, microseconds: int) -> None:
        self._clock = microseconds

    def presume(self, rows: list[tuple], missed=None) -> None:
        """The next statement is answered with these rows; missed() is called if the database has none for it."""
        self._presumed = (rows, missed)

    def flush(self) -> None:
        """Sends what waits, the clock too, and reads the answers."""
        self._send_clock()
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
        (rows, missed), self._presumed = self._presumed, None
        self._send(query, params, missed)
        if len(self._waiting) < _MOST_WAITING:
            self.pgconn.flush()
        else:
            self._exchange()
        return rows

    def __exit__(self, *_) -> None:
        """Nothing of it need stay."""
        self.close()

    def _send_clock(self) -> None:
        if self._clock is not None:
            instant, self._clock = BEGINNING + timedelta(microseconds=self._clock), None
            self._send(_SET_CLOCK, {"instant": instant.isoformat()}, None)

    def _send(self, query: str, params, missed) -> None:
        name, places = self._plans.get(query) or self._parsed(query)
        if not self._waiting:
            self.pgconn.enter_pipeline_mode()
        self.pgconn.send_query_prepared(name, [self._dumped(params[place]) for place in places])
        self._waiting.append(missed)

    def _dumped(self, value) -> bytes | None:
        """As text. psycopg's dumpers take ten times as long for what is most of it."""
        kind = type(value)
        if value is None:
            return None
        if kind is str:
            return value.encode()
        if kind is int or kind is float:
            return repr(value).encode()
        if kind is list and len(value) < 20 and all(type(one) is str or type(one) is float for one in value):
            key = tuple(value)
            if key not in self._lists:
                self._lists[key] = self._adapt.dump_sequence([value], [PyFormat.TEXT])[0]
            return self._lists[key]
        return self._adapt.dump_sequence([value], [PyFormat.TEXT])[0]  # type: ignore[return-value]

    def _parsed(self, query: str):
        """Parsed once; the server infers each parameter's type from its place."""
        self._exchange()
        places = list(dict.fromkeys(_PARAMETER.findall(query)))
        name = f"timeline_{len(self._plans)}".encode()
        text = _PARAMETER.sub(lambda found: f"${places.index(found[1]) + 1}", query).replace("%%", "%")
        _checked(self.pgconn.prepare(name, text.encode()))
        self._plans[query] = name, places
        return self._plans[query]

    def _exchange(self) -> list[tuple]:
        """Ends what was sent; the rows of the last statement."""
        if not self._waiting:
            return []
        results, waiting, self._waiting = self._results(), self._waiting, []
        for result in results:
            _checked(result)
        self._adapt.set_pgresult(results[-1])
        rows = self._adapt.load_rows(0, results[-1].ntuples, tuple)
        for missed, result in zip(waiting, results, strict=True):
            if missed is not None and not result.ntuples:
                missed()
        return rows

    def _results(self) -> list:
        wire, results = self.pgconn, []
        wire.pipeline_sync()
        for _ in self._waiting:
            results.append(wire.get_result())
            wire.get_result()  # the end of this statement's
        wire.get_result()  # the sync: all is committed, or nothing
        if wire.status == pq.ConnStatus.OK:
            wire.exit_pipeline_mode()
        return results


class _Idle(psycopg.ConnectionInfo):
    transaction_status = pq.TransactionStatus.IDLE


class Statement:
    """As much of a cursor as the queue's verbs ask for."""

    def __init__(self, line: Timeline):
        self._line = line
        self._rows: list[tuple] = []

    def execute(self, query: str, params=None) -> "Statement":
        self._rows = self._line.answer(query, params or {})
        return self

    def copy(self, query: str):
        """psycopg's own, after a flush: COPY can't travel with other statements."""
        self._line.flush()
        return psycopg.Connection.cursor(self._line).copy(query)

    @property
    def rowcount(self) -> int:
        return len(self._rows)

    def fetchall(self) -> list[tuple]:
        return self._rows

    def fetchone(self) -> tuple | None:
        return self._rows[0] if self._rows else None

    def __iter__(self):
        return iter(self._rows)

    def __enter__(self) -> "Statement":
        return self

    def __exit__(self, *_) -> None:
        pass


def _checked(result) -> None:
    if result is None:
        raise psycopg.OperationalError("the connection to the database was lost")
    if result.status not in _ANSWERS:
        raise errors.error_from_result(result)
