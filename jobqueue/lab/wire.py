"""What the laboratory's two quick connections share: prepared statements over libpq's pipeline, read as by a cursor.

A client's work per statement falls to a third of that of psycopg's cursors. `line` gathers the statements of a search,
`timeline` those of a simulated day.
"""

import re

import psycopg
from psycopg import errors, pq
from psycopg.adapt import PyFormat, Transformer

_PARAMETER = re.compile(r"%\((\w+)\)s")
_AS_TEXT = {  # psycopg's dumpers take ten times as long for what is most of it
    type(None): lambda value: None,
    str: str.encode,
    int: lambda value: b"%d" % value,
    float: lambda value: repr(value).encode(),
}
_ANSWERS = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


class Wire(psycopg.Connection):
    """An autocommit connection whose statements are parsed once and sent in pipelines."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.adapt = Transformer(self)
        self._plans: dict[str, tuple[bytes, list[str]]] = {}
        self._lists: dict[tuple, bytes] = {}

    def __exit__(self, *_) -> None:
        """Nothing of it need stay: psycopg's own would commit."""
        self.close()

    def end(self) -> None:
        """Reads the answers of all that was sent: no pipeline is open afterwards."""
        raise NotImplementedError

    def prepared(self, query: str, params: dict) -> tuple[bytes, list[bytes | None]]:
        """Its name and its parameters as text, as libpq takes them."""
        name, places = self._plans.get(query) or self._parsed(query)
        return name, [_AS_TEXT.get(type(params[place]), self._dumped)(params[place]) for place in places]

    def answers(self, count: int) -> list:
        """Ends the pipeline; the results of the `count` statements that were sent in it."""
        wire, results = self.pgconn, []
        try:
            wire.pipeline_sync()
            for _ in range(count):
                results.append(wire.get_result())
                wire.get_result()  # the end of this statement's
            wire.get_result()  # the sync: all is committed, or nothing
            if wire.status == pq.ConnStatus.OK:
                wire.exit_pipeline_mode()
            return results
        except BaseException:  # an interrupt, too: what was asked is still to be answered, so nothing more can be asked
            wire.finish()
            raise

    def _parsed(self, query: str) -> tuple[bytes, list[str]]:
        """The server infers each parameter's type from its place."""
        self.end()  # what waits goes first: it may begin the transaction that this one needs
        places = list(dict.fromkeys(_PARAMETER.findall(query)))
        name = f"wire_{len(self._plans)}".encode()
        text = _PARAMETER.sub(lambda found: f"${places.index(found[1]) + 1}", query).replace("%%", "%")
        checked(self.pgconn.prepare(name, text.encode()))
        self._plans[query] = name, places
        return self._plans[query]

    def _dumped(self, value) -> bytes | None:
        """As text, where it is nothing simple."""
        if type(value) is list and len(value) < 20 and all(type(one) is str or type(one) is float for one in value):
            key = tuple(value)
            if key not in self._lists:
                self._lists[key] = self.adapt.dump_sequence([value], [PyFormat.TEXT])[0]
            return self._lists[key]
        return self.adapt.dump_sequence([value], [PyFormat.TEXT])[0]  # type: ignore[return-value]


class Told:
    """As much of a cursor as the queue's verbs ask for, once its rows are there."""

    def __init__(self) -> None:
        self.rows: list = []

    @property
    def rowcount(self) -> int:
        return len(self.rows)

    def fetchall(self) -> list:
        return self.rows

    def fetchone(self):
        return self.rows[0] if self.rows else None

    def __iter__(self):
        return iter(self.rows)

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        pass


def checked(result):
    """An answer, or the error that it tells."""
    if result is None:
        raise psycopg.OperationalError("the connection to the database was lost")
    if result.status not in _ANSWERS:
        raise errors.error_from_result(result)
    return result
