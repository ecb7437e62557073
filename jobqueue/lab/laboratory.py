"""The laboratory run: each promise shown on a cluster of its own, with the statements sent, the rows counted, and a
verdict.

    python -m jobqueue lab [--postgres-prefix DIR] --output NEW.json

A group answers one question. What it does is recorded by the cursors themselves: who sent which statement of
queries.sql, and how many rows it changed or returned. What it must show is a list of observations, each with what was
expected.
"""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from tqdm.auto import tqdm

from ..errors import InvalidInput, JobQueueError
from ..queue import Queue
from ..sql import SQL, statements, text
from . import database
from .clock import VirtualClock
from .sessions import shown

PROJECT = "APS"  # the fictitious service whose design is reviewed


SAID = "The laboratory run plays each of its groups in a database of its own, with a few processes, for a minute."
READING = (
    "Each group answers its question. statements: what each session sent, in order, with the rows that it changed or "
    "returned; the text is psql's, for a database in which `python -m jobqueue install` was run. observations: what "
    "was looked at, what was seen, what the promise demands. verdict: held, broken, or skipped. Groups on logical "
    "time set the clock of their sessions by the statement set_clock, which a normal installation ignores."
)


@dataclass(frozen=True)
class Sent:
    """One statement: who sent it, its name in the .sql file, the rows that it changed or returned (None: neither), and
    its text as it can be pasted into psql, arguments filled in."""

    session: str
    statement: str
    rows: int | None
    sql: str


@dataclass(frozen=True)
class Observation:
    """What was looked at, what was seen, and what the promise demands."""

    what: str
    seen: str
    expected: str

    @property
    def held(self) -> bool:
        return self.seen == self.expected


@dataclass(frozen=True)
class Group:
    """One question with everything that answers it. verdict: held, broken, or skipped (with the reason)."""

    name: str
    question: str
    statements: list[Sent] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)
    verdict: str = "held"
    reason: str = ""


class Skip(Exception):
    """This machine can't show it; the message says why."""


class Bench:
    """What a group works with: sessions that record, a folder, one database of its own."""

    def __init__(self, dsn: str, folder: Path, stack: contextlib.ExitStack):
        self.dsn, self.folder, self._stack = dsn, folder, stack
        self.sent: list[Sent] = []
        self.observations: list[Observation] = []
        self.missing: list[str] = []

    def session(self, name: str) -> Queue:
        """A queue on a connection of its own, in whose name its statements are recorded."""
        conn = self._stack.enter_context(psycopg.connect(self.dsn, autocommit=True))
        conn.cursor_factory = _recording(name, self.sent)
        return Queue(conn)

    def clock(self, *queues: Queue) -> "Clocks":
        return Clocks([VirtualClock(queue.conn) for queue in queues])

    def see(self, what: str, seen: Any, expected: Any) -> None:
        self.observations.append(Observation(what, _text(seen), _text(expected)))

    def leave_out(self, what: str) -> None:
        """Something that this machine can't show; the reason stands in the group."""
        self.missing.append(what)

    def value(self, statement: str, **asked) -> Any:
        """One value, read on a connection that is not recorded."""
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            row = conn.execute(statement, asked).fetchone()
        return row[0] if row and len(row) == 1 else row


class Clocks:
    """One logical time for all sessions, in seconds after its beginning."""

    def __init__(self, clocks: list[VirtualClock]):
        self._clocks = clocks
        self._beginning = clocks[0].now

    def set(self, seconds: float) -> None:
        for clock in self._clocks:
            clock.set(self._beginning)
            clock.advance(seconds)


GROUPS: list[tuple[str, str, bool, Callable[[Bench], None]]] = []


def group(name: str, question: str, *, virtual: bool = False):
    """Registers a function as the group `name`."""

    def register(function: Callable[[Bench], None]):
        GROUPS.append((name, question, virtual, function))
        return function

    return register


def run(output: str | Path | None, prefix=None, *, project: str = PROJECT, progress: bool = True,
        confirm: bool | None = None) -> dict:  # fmt: skip
    """All groups on a server of its own, or (`database.ground`) on JOBQUEUE_DSN's; writes `output`, which must not
    exist: nothing is overwritten. The JSON's value.

    Raises InvalidInput where the output exists or can't be written, DatabaseError where there is no server to work on.
    """
    from . import groups  # noqa: F401 - registers them

    path = None if output is None else _reserved(Path(output))
    try:
        with database.ground(SAID, prefix, confirm=confirm) as place:
            found = _run(place, project, progress)
    except BaseException:
        if path is not None:
            path.unlink(missing_ok=True)  # reserved by us, and still empty
        raise
    if path is not None:
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return found


def _run(place: database.Ground, project: str, progress: bool) -> dict:
    with database.installed(place.dsn) as plain, database.installed(place.dsn, virtual=True) as virtual:
        bar = tqdm(GROUPS, desc="laboratory", unit="group", disable=not progress)
        results = [
            _play(place.dsn, name, question, virtual if on_logical_time else plain, function)
            for name, question, on_logical_time, function in bar
        ]
    return {
        "project": project,
        "about": READING,
        "postgresql": place.version,
        "server": place.source,
        "groups": [_as_dict(result) for result in results],
        "held": all(result.verdict != "broken" for result in results),
    }


def _as_dict(result: Group) -> dict:
    told = asdict(result)
    told["observations"] = [asdict(each) | {"held": each.held} for each in result.observations]
    return told


def _play(dsn: str, name: str, question: str, template: str, function: Callable[[Bench], None]) -> Group:
    folder = Path(tempfile.mkdtemp(prefix="jobqueue-lab-"))
    try:
        with database.scratch(dsn, template=template) as own, contextlib.ExitStack() as stack:
            bench = Bench(own, folder, stack)
            try:
                function(bench)
            except Skip as reason:
                return Group(name, question, bench.sent, bench.observations, "skipped", str(reason))
            except (
                JobQueueError,
                psycopg.Error,
                AttributeError,
                ValueError,
            ) as error:  # it went where no promise allows
                return Group(
                    name, question, bench.sent, bench.observations, "broken", f"{type(error).__name__}: {error}"
                )
            held = bool(bench.observations) and all(each.held for each in bench.observations)
            reason = "; ".join(bench.missing)
            return Group(name, question, bench.sent, bench.observations, "held" if held else "broken", reason)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _reserved(path: Path) -> Path:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        raise InvalidInput(f"{path} exists: nothing is overwritten, give a new name") from None
    except OSError as error:
        raise InvalidInput(f"{path} can't be written: {error.strerror}") from None
    return path


_OTHERS = tuple(statements(text(f"lab/{name}.sql")) for name in ("groups", "database"))


def _recording(session: str, sent: list[Sent]) -> type[psycopg.Cursor]:
    class Recording(psycopg.Cursor):
        def execute(self, query, params=None, **options):
            try:
                super().execute(query, params, **options)
            finally:
                rows = self.rowcount if self.rowcount >= 0 else None
                sent.append(Sent(session, _name(query), rows, _pasted(self.connection, query, params)))
            return self

    return Recording


def _name(query) -> str:
    """Its name in one of the .sql files; else its first words."""
    for known in (SQL, *_OTHERS):
        for name, statement in vars(known).items():
            if statement == query:
                return name
    return " ".join(str(query).split()[:6])


def _pasted(conn: psycopg.Connection, query, params) -> str:
    if conn.closed:
        return ""
    return psycopg.ClientCursor(conn).mogrify(query, params)


def _text(value: Any) -> str:
    """As support reads it: yes and no, none, and the members of a tuple in a row."""
    if type(value) is tuple:
        return ", ".join(map(_text, value))
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return value if isinstance(value, str) else shown(value)


def summary(found: dict) -> Iterator[str]:
    """A line a group, for the terminal."""
    for each in found["groups"]:
        broken = [o for o in each["observations"] if not o["held"]]
        yield f"{each['verdict']:8} {each['name']}" + (f" ({each['reason']})" if each["reason"] else "")
        for one in broken:
            yield f"         {one['what']}: saw {one['seen']}, expected {one['expected']}"
