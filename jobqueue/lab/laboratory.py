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
from ..sql import SQL
from . import database
from .clock import VirtualClock
from .sessions import shown

PROJECT = "APS"  # the fictitious service whose design is reviewed


@dataclass(frozen=True)
class Sent:
    """One statement: who sent it, its name in queries.sql (or its text), and the rows that it changed or returned."""

    session: str
    statement: str
    rows: int | None


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

    def __init__(self, dsn: str, folder: Path, stack: contextlib.ExitStack, virtual: bool):
        self.dsn, self.folder, self._stack = dsn, folder, stack
        self.sent: list[Sent] = []
        self.observations: list[Observation] = []
        self._virtual = virtual

    def session(self, name: str) -> Queue:
        """A queue on a connection of its own, in whose name its statements are recorded."""
        conn = self._stack.enter_context(psycopg.connect(self.dsn, autocommit=True))
        conn.cursor_factory = _recording(name, self.sent)
        return Queue(conn)

    def clock(self, *queues: Queue) -> "Clocks":
        return Clocks([VirtualClock(queue.conn) for queue in queues])

    def see(self, what: str, seen: Any, expected: Any) -> None:
        self.observations.append(Observation(what, _text(seen), _text(expected)))

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


def run(output: str | Path | None, prefix=None, *, project: str = PROJECT, progress: bool = True) -> dict:
    """All groups on a server of its own; writes `output` (which must not exist: nothing is overwritten). The JSON's
    value.

    Raises InvalidInput where the output exists or can't be written.
    """
    from . import groups  # noqa: F401 - registers them

    path = None if output is None else _reserved(Path(output))
    try:
        found = _run(prefix, project, progress)
    except BaseException:
        if path is not None:
            path.unlink(missing_ok=True)  # reserved by us, and still empty
        raise
    if path is not None:
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return found


def _run(prefix, project: str, progress: bool) -> dict:
    with database.Server(prefix) as server:
        bar = tqdm(GROUPS, desc="laboratory", unit="group", disable=not progress)
        results = [_play(server.dsn, *each) for each in bar]
        version, source = server.version, server.source
    return {
        "project": project,
        "postgresql": version,
        "server": source,
        "groups": [_as_dict(result) for result in results],
        "held": all(result.verdict != "broken" for result in results),
    }


def _as_dict(result: Group) -> dict:
    told = asdict(result)
    told["observations"] = [asdict(each) | {"held": each.held} for each in result.observations]
    return told


def _play(dsn: str, name: str, question: str, virtual: bool, function: Callable[[Bench], None]) -> Group:
    folder = Path(tempfile.mkdtemp(prefix="jobqueue-lab-"))
    try:
        with database.scratch(dsn) as own, contextlib.ExitStack() as stack:
            with psycopg.connect(own, autocommit=True) as conn:
                Queue(conn).install(virtual=virtual)
            bench = Bench(own, folder, stack, virtual)
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
            return Group(name, question, bench.sent, bench.observations, "held" if held else "broken")
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


def _recording(session: str, sent: list[Sent]) -> type[psycopg.Cursor]:
    names = {statement: name for name, statement in vars(SQL).items()}

    class Recording(psycopg.Cursor):
        def execute(self, query, params=None, **options):
            try:
                super().execute(query, params, **options)
            finally:
                words = names.get(query) or (query if isinstance(query, str) else repr(query))
                rows = self.rowcount if self.rowcount >= 0 else None
                sent.append(Sent(session, words, rows))
            return self

    return Recording


def _text(value: Any) -> str:
    return value if isinstance(value, str) else shown(value)


def summary(found: dict) -> Iterator[str]:
    """A line a group, for the terminal."""
    for each in found["groups"]:
        broken = [o for o in each["observations"] if not o["held"]]
        yield f"{each['verdict']:8} {each['name']}" + (f" ({each['reason']})" if each["reason"] else "")
        for one in broken:
            yield f"         {one['what']}: saw {one['seen']}, expected {one['expected']}"
