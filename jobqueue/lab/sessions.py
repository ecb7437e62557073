"""Two sessions, step by step on a real server: what waits for whom, what is seen, what a statement does after its wait.

    script ──▶ play(dsn, script) ──▶ Played: a line a step (returned, raised, or blocked by whom), the rows at the end

One connection can't show this: lock waits, EvalPlanQual's second look at a row, keys and jobs that are not committed
yet. A step that has to wait is seen in pg_blocking_pids; nothing here is guessed from a pause.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import psycopg

from ..model import Cancellation, Claim, Enqueued, Lease, Reaped
from ..outcome import Outcome
from ..queue import Queue
from ..schedules import Ticked
from ..sql import statements, text

SQL = statements(text("lab/sessions.sql"))
PATIENCE_SECONDS = 20.0
_CONTROL = {
    "begin": SQL.begin,
    "begin repeatable read": SQL.begin_repeatable_read,
    "commit": SQL.commit,
    "rollback": SQL.rollback,
}
Act = Callable[[Queue, dict], Any]


@dataclass(frozen=True)
class Step:
    """One session does one thing: `act(queue, notes)`; begin, commit and rollback need none."""

    session: str
    action: str
    act: Act | None = None


@dataclass(frozen=True)
class Told:
    """What a step showed. state: returned, raised, blocked (answer: by whom). rows: how many came back, where some
    could."""

    session: str
    action: str
    state: str
    answer: str
    rows: int | None = None

    def __str__(self) -> str:
        return f"{self.session} {self.action} → {self.state} {self.answer}".rstrip()


@dataclass(frozen=True)
class Script:
    """Steps in the order in which they begin, what they start from, and what the shipped statements must show."""

    name: str
    lesson: str
    before: Act
    steps: tuple[Step, ...]
    expect: tuple[str, ...]
    after: str | None = None  # the rows at the end


@dataclass(frozen=True)
class Played:
    """A script as it went: its lines, the rows at the end, and the first line that is not as expected (from 1)."""

    script: Script
    told: tuple[Told, ...]
    after: str | None

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(map(str, self.told))

    @property
    def differs_at(self) -> int | None:
        pairs = zip(
            (*self.lines, f"rows: {self.after}"), (*self.script.expect, f"rows: {self.script.after}"), strict=False
        )
        first = next((number for number, (seen, wanted) in enumerate(pairs, 1) if seen != wanted), None)
        short = len(self.lines) != len(self.script.expect)
        return first or (min(len(self.lines), len(self.script.expect)) + 1 if short else None)

    def frame(self) -> pd.DataFrame:
        """One row a line."""
        columns = ["session", "action", "state", "answer", "rows"]
        rows = [[getattr(told, name) for name in columns] for told in self.told]
        return pd.DataFrame(rows, columns=columns, index=range(1, len(rows) + 1)).astype({"rows": "Int64"})


def play(dsn: str, script: Script) -> Played:
    """Plays it in the real-time database `dsn`, which is emptied first; a session that hangs is ended."""
    with psycopg.connect(dsn, autocommit=True) as watch:
        watch.execute(SQL.empty)
        notes: dict[str, Any] = {"watch": watch}
        script.before(Queue(watch), notes)
        told: list[Told] = []
        with _cast(dsn, watch, script) as sessions:
            for step in script.steps:
                session = sessions[step.session]
                if session.waits:
                    break  # a session that was not expected to wait: its further steps can't begin
                told.append(session.do(step, notes))
                told += [late for other in sessions.values() if (late := other.late()) is not None]
            rest = [session.end() for session in sessions.values()]
        told += [late for late in rest if late is not None]
        return Played(script, tuple(told), watch.execute(SQL.rows).fetchone()[0])


@contextmanager
def _cast(dsn: str, watch: psycopg.Connection, script: Script) -> Iterator[dict[str, "_Session"]]:
    names = dict.fromkeys(step.session for step in script.steps)
    sessions: dict[str, _Session] = {}
    try:
        for name in names:
            sessions[name] = _Session(name, dsn, watch, sessions)
        yield sessions
    finally:
        for session in sessions.values():
            session.close()


class _Session:
    def __init__(self, name: str, dsn: str, watch: psycopg.Connection, others: dict[str, "_Session"]):
        self.name, self.watch, self.others = name, watch, others
        self.conn = psycopg.connect(dsn, autocommit=True)
        self.queue, self.pid = Queue(self.conn), self.conn.info.backend_pid
        self.thread: threading.Thread | None = None
        self.step: Step | None = None  # that has not come back yet
        self.answer: Any = None
        self.error: Exception | None = None

    @property
    def waits(self) -> bool:
        return self.step is not None

    def do(self, step: Step, notes: dict) -> Told:
        """Begins it and says how it stands: come back, or blocked."""
        self.step, self.answer, self.error = step, None, None
        self.thread = threading.Thread(target=self._run, args=(step, notes), daemon=True)
        self.thread.start()
        return self._come_back() or Told(self.name, step.action, "blocked", f"by {self._blocked_by()}")

    def late(self) -> Told | None:
        """What a step that was waiting has come back with, if it has by now."""
        return self._come_back() if self.waits else None

    def end(self) -> Told | None:
        """At the end of the script nobody may be waiting any more; who does is ended."""
        if not self.waits:
            return None
        with suppress(psycopg.Error):
            self.watch.execute(SQL.cancel_session, {"pid": self.pid})
        self.thread.join(PATIENCE_SECONDS)
        return Told(self.name, self.step.action, "never came back", "")

    def close(self) -> None:
        with suppress(psycopg.Error):
            self.watch.execute(SQL.cancel_session, {"pid": self.pid})
        if self.thread is not None:
            self.thread.join(PATIENCE_SECONDS)
        self.conn.close()

    def _run(self, step: Step, notes: dict) -> None:
        try:
            control = _CONTROL.get(step.action)
            self.answer = self.conn.execute(control) and None if control else step.act(self.queue, notes)
        except Exception as error:  # it is what the step shows
            self.error = error

    def _come_back(self) -> Told | None:
        """None as soon as it is seen to wait for a lock."""
        until = time.monotonic() + PATIENCE_SECONDS
        while self.thread.is_alive() and time.monotonic() < until:
            self.thread.join(0.002)
            if self.thread.is_alive() and self._blocked_by():
                return None
        action, self.step = self.step.action, None
        if self.error is not None:
            return Told(self.name, action, "raised", type(self.error).__name__)
        return Told(self.name, action, "returned", shown(self.answer), _count(self.answer))

    def _blocked_by(self) -> str:
        pids = self.watch.execute(SQL.blockers, {"pid": self.pid}).fetchone()[0]
        names = {session.pid: session.name for session in self.others.values()}
        return ", ".join(names.get(pid, "someone else") for pid in pids)


def shown(answer: Any) -> str:
    """An answer of the queue in a few words."""
    if isinstance(answer, Outcome):
        return answer.name
    if isinstance(answer, Lease):
        return f"job {answer.id}, epoch {answer.epoch}"
    if isinstance(answer, Claim):
        return ", ".join(map(shown, answer)) or f"nothing: {answer.empty.name}"
    if isinstance(answer, Reaped):
        return f"job {answer.id} is {answer.status}"
    if isinstance(answer, Enqueued):
        return f"job {answer.id}, {'new' if answer.created else 'known'}"
    if isinstance(answer, Cancellation):
        return f"{answer.before}, now {answer.after}"
    if isinstance(answer, Ticked):
        return f"{len(answer.jobs)} jobs"
    if isinstance(answer, list):
        return "[" + ", ".join(map(shown, answer)) + "]"
    return "" if answer is None else str(answer)


def _count(answer: Any) -> int | None:
    if isinstance(answer, Ticked):
        return len(answer.jobs)
    return len(answer) if isinstance(answer, (list, tuple, Claim)) and not isinstance(answer, Enqueued) else None


def table(played: list[Played]) -> pd.DataFrame:
    """One row a script: how many steps, which waited, whether it went as it must."""
    rows = [
        (
            one.script.name,
            one.script.lesson,
            len(one.told),
            sum(told.state == "blocked" for told in one.told),
            one.differs_at is None,
        )
        for one in played
    ]
    return pd.DataFrame(rows, columns=["script", "lesson", "lines", "waits", "as it must"])


def shortened(script: Script, steps: int) -> Script:
    """Its first steps, with nothing expected: for looking around in a notebook."""
    return replace(script, steps=script.steps[:steps], expect=(), after=None)
