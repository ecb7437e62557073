"""Two sessions, step by step on a real server: what waits for whom, what is seen, what a statement does after its wait.

    script ──▶ play(dsn, script) ──▶ Played: a line a step (returned, raised, or blocked by whom), the rows at the end

One connection can't show this: lock waits, EvalPlanQual's second look at a row, keys and jobs that are not committed yet.
A step that has to wait is seen in pg_blocking_pids; nothing here is guessed from a pause.
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
from ..schedules import Schedules, Ticked
from ..sql import SQL as QUEUE
from ..sql import statements, text

SQL = statements(text("lab/sessions.sql"))
PATIENCE_SECONDS = 20.0
_CONTROL = {"begin": SQL.begin, "begin repeatable read": SQL.begin_repeatable_read, "commit": SQL.commit, "rollback": SQL.rollback}
Act = Callable[[Queue, dict], Any]


@dataclass(frozen=True)
class Step:
    """One session does one thing: `act(queue, notes)`; begin, commit and rollback need none."""

    session: str
    action: str
    act: Act | None = None


@dataclass(frozen=True)
class Told:
    """What a step showed. state: returned, raised, blocked (answer: by whom). rows: how many came back, where some could."""

    session: str
    action: str
    state: str
    answer: str
    rows: int | None = None

    def __str__(self) -> str:
        return f"{self.session} {self.action} → {self.state} {self.answer}".rstrip()


@dataclass(frozen=True)
class Script:
    """Steps in the order in which they begin, what they start from, and what they must show on the shipped statements."""

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
        pairs = zip((*self.lines, f"rows: {self.after}"), (*self.script.expect, f"rows: {self.script.after}"), strict=False)
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


# ---------------------------------------------------------------- what the scripts start from


def _ready(queue: Queue, notes: dict) -> None:
    notes["job"] = queue.enqueue("mail").id


def _running(queue: Queue, notes: dict, jobs: int = 1, lease_seconds: float = 60) -> None:
    queue.enqueue_many([{"type": "mail"}] * jobs)
    notes["leases"] = list(queue.claim("A", limit=jobs, lease_seconds=lease_seconds))
    notes["lease"] = notes["leases"][0]


def _three_running(queue: Queue, notes: dict) -> None:
    _running(queue, notes, 3)


def _briefly_running(queue: Queue, notes: dict) -> None:
    _running(queue, notes, lease_seconds=0.4)


def _expired(queue: Queue, notes: dict) -> None:
    _running(queue, notes)
    notes["watch"].execute(SQL.end_leases)


def _failed(queue: Queue, notes: dict) -> None:
    _running(queue, notes)
    queue.fail(notes["lease"], "never", permanent=True)


def _done(queue: Queue, notes: dict) -> None:
    notes["job"] = queue.enqueue("mail", key="k").id
    queue.complete_many(list(queue.claim("A")))


def _scheduled(queue: Queue, notes: dict) -> None:
    Schedules(queue.conn).put("s", "mail", "* * * * *")
    notes["watch"].execute(SQL.make_due)


def _nothing(queue: Queue, notes: dict) -> None:
    pass


# ---------------------------------------------------------------- what the sessions do


def _claim_statement(queue: Queue, notes: dict) -> list:
    """The claim's own statement in an open transaction: `Queue.claim` refuses to join one."""
    asked = {"owner": "A", "types": ["mail"], "leases": [60], "limit": 1, "slots": 1}
    return [f"job {row[0]}, epoch {row[4]}" for row in queue.conn.execute(QUEUE.claim, asked).fetchall()]


def _lock(queue: Queue, notes: dict) -> None:
    queue.conn.execute(SQL.lock_row, {"id": notes["lease"].id})


def _wait_for_the_end(queue: Queue, notes: dict) -> None:
    """Until the lease is over by the database's clock."""
    while not notes["watch"].execute(SQL.is_over, {"id": notes["lease"].id}).fetchone()[0]:
        time.sleep(0.01)


def _steps(*told: tuple) -> tuple[Step, ...]:
    return tuple(Step(*one) for one in told)


_COMPLETE = ("B", "complete", lambda queue, notes: queue.complete(notes["lease"]))
_REAP = ("A", "reap", lambda queue, notes: queue.reap())
_PUBLISH = ("B", "publish", lambda queue, notes: queue.publish(notes["lease"], "report", "aa"))
_CANCEL = ("B", "cancel", lambda queue, notes: queue.cancel(1))
_BEGIN, _COMMIT, _ROLLBACK = ("A", "begin"), ("A", "commit"), ("A", "rollback")


def _claim_by_b(queue: Queue, notes: dict) -> Claim:
    return queue.claim("B", types=["mail"])


SCRIPTS = {script.name: script for script in (
    Script("claim beside an open claim", "a claim passes over a locked row and says so: it neither waits nor says `none`",
           _ready, _steps(_BEGIN, ("A", "claim", _claim_statement), ("B", "claim", _claim_by_b), _COMMIT, ("B", "claim again", _claim_by_b)),
           ("A begin → returned", "A claim → returned [job 1, epoch 1]", "B claim → returned nothing: LOCKED", "A commit → returned",
            "B claim again → returned nothing: NONE"), "job 1 running epoch 1 A"),
    Script("a claim that rolls back", "select and mark are one transaction: a rollback gives the job back",
           _ready, _steps(_BEGIN, ("A", "claim", _claim_statement), _ROLLBACK, ("B", "claim", _claim_by_b)),
           ("A begin → returned", "A claim → returned [job 1, epoch 1]", "A rollback → returned", "B claim → returned job 1, epoch 1"),
           "job 1 running epoch 1 B"),
    Script("an enqueue that is not committed", "a job exists for others when its producer commits, and not before",
           _nothing, _steps(_BEGIN, ("A", "enqueue", lambda queue, notes: queue.enqueue("mail")), ("B", "claim", _claim_by_b), _COMMIT,
                            ("B", "claim again", _claim_by_b)),
           ("A begin → returned", "A enqueue → returned job 1, new", "B claim → returned nothing: NONE", "A commit → returned",
            "B claim again → returned job 1, epoch 1"), "job 1 running epoch 1 B"),
    Script("a key that is not committed", "the second enqueue of a key waits for the first to commit, and then knows its job",
           _nothing, _steps(_BEGIN, ("A", "enqueue k", lambda queue, notes: queue.enqueue("mail", key="k")),
                            ("B", "enqueue k", lambda queue, notes: queue.enqueue("mail", key="k")), _COMMIT),
           ("A begin → returned", "A enqueue k → returned job 1, new", "B enqueue k → blocked by A", "A commit → returned",
            "B enqueue k → returned job 1, known"), "job 1 ready epoch 0"),
    Script("a key that is rolled back", "if the first enqueue rolls back, the second makes the job",
           _nothing, _steps(_BEGIN, ("A", "enqueue k", lambda queue, notes: queue.enqueue("mail", key="k")),
                            ("B", "enqueue k", lambda queue, notes: queue.enqueue("mail", key="k")), _ROLLBACK),
           ("A begin → returned", "A enqueue k → returned job 1, new", "B enqueue k → blocked by A", "A rollback → returned",
            "B enqueue k → returned job 2, new"), "job 2 ready epoch 0"),
    Script("a key while its job is archived", "a key stays known while the archiver moves its job",
           _done, _steps(_BEGIN, ("A", "archive", lambda queue, notes: queue.archive(older_than_seconds=0)),
                         ("B", "enqueue k", lambda queue, notes: queue.enqueue("mail", key="k")), _COMMIT),
           ("A begin → returned", "A archive → returned 1", "B enqueue k → returned job 1, known", "A commit → returned"), None),
    Script("complete behind a reaper", "the fence is evaluated again after the wait (EvalPlanQual), and the look is a second statement",
           _expired, _steps(_BEGIN, _REAP, _COMPLETE, _COMMIT),
           ("A begin → returned", "A reap → returned [job 1 is ready]", "B complete → blocked by A", "A commit → returned",
            "B complete → returned LOST"), "job 1 ready epoch 1"),
    Script("complete behind a reaper that rolls back", "the lease was never lost: the completion counts",
           _expired, _steps(_BEGIN, _REAP, _COMPLETE, _ROLLBACK),
           ("A begin → returned", "A reap → returned [job 1 is ready]", "B complete → blocked by A", "A rollback → returned",
            "B complete → returned APPLIED"), "job 1 done epoch 1"),
    Script("reap beside an open heartbeat", "a reaper never waits, and never takes away what is being renewed",
           _expired, _steps(_BEGIN, ("A", "heartbeat", lambda queue, notes: queue.heartbeat(notes["lease"])),
                            ("B", "reap", lambda queue, notes: queue.reap()), _COMMIT, ("B", "reap again", lambda queue, notes: queue.reap())),
           ("A begin → returned", "A heartbeat → returned APPLIED", "B reap → returned []", "A commit → returned",
            "B reap again → returned []"), "job 1 running epoch 1 A"),
    Script("adopt behind a heartbeat", "the renewed end is seen after the wait: no lease in force is taken over",
           _expired, _steps(_BEGIN, ("A", "heartbeat", lambda queue, notes: queue.heartbeat(notes["lease"])),
                            ("B", "adopt", lambda queue, notes: queue.adopt(1, "B") or "nothing"), _COMMIT),
           ("A begin → returned", "A heartbeat → returned APPLIED", "B adopt → blocked by A", "A commit → returned",
            "B adopt → returned nothing"), "job 1 running epoch 1 A"),
    Script("publish behind a lock, past the end", "a publication that waited too long is refused: its clock is from after the wait",
           _briefly_running, _steps(_BEGIN, ("A", "lock the row", _lock), _PUBLISH, ("C", "wait for the lease's end", _wait_for_the_end), _COMMIT),
           ("A begin → returned", "A lock the row → returned", "B publish → blocked by A", "C wait for the lease's end → returned",
            "A commit → returned", "B publish → returned LEASE_EXPIRED"), "job 1 running epoch 1 A"),
    Script("publish behind a reaper", "a publication decided on what it read before the wait would be a stale write",
           _expired, _steps(_BEGIN, _REAP, _PUBLISH, _COMMIT),
           ("A begin → returned", "A reap → returned [job 1 is ready]", "B publish → blocked by A", "A commit → returned",
            "B publish → returned LOST"), "job 1 ready epoch 1"),
    Script("publish behind a cancellation", "what was true when it was read is not true when it is written: the fence is in the write",
           _running, _steps(_BEGIN, ("A", "cancel", lambda queue, notes: queue.cancel(1)), _PUBLISH, _COMMIT),
           ("A begin → returned", "A cancel → returned running, now cancelled", "B publish → blocked by A", "A commit → returned",
            "B publish → returned CANCELLED"), "job 1 cancelled epoch 1"),
    Script("claim in a caller's transaction", "a claim never joins a transaction: rolled back, its epoch would be handed out twice",
           _ready, _steps(_BEGIN, ("A", "claim", lambda queue, notes: queue.claim("A", types=["mail"])), _ROLLBACK, ("B", "claim", _claim_by_b)),
           ("A begin → returned", "A claim → raised JobQueueError", "A rollback → returned", "B claim → returned job 1, epoch 1"),
           "job 1 running epoch 1 B"),
    Script("heartbeats beside one held row", "one row in an open transaction does not let the other leases of a worker lapse",
           _three_running, _steps(_BEGIN, ("A", "lock the row", _lock),
                                  ("B", "heartbeat all", lambda queue, notes: queue.heartbeat_many(notes["leases"])), _COMMIT),
           ("A begin → returned", "A lock the row → returned", "B heartbeat all → returned [HELD, APPLIED, APPLIED]", "A commit → returned"),
           "job 1 running epoch 1 A, job 2 running epoch 1 A, job 3 running epoch 1 A"),
    Script("cancel behind a claim", "a cancellation tells the status that it really met, not the one that it read before the wait",
           _ready, _steps(_BEGIN, ("A", "claim", _claim_statement), _CANCEL, _COMMIT),
           ("A begin → returned", "A claim → returned [job 1, epoch 1]", "B cancel → blocked by A", "A commit → returned",
            "B cancel → returned running, now cancelled"), "job 1 cancelled epoch 1"),
    Script("archive beside a redrive", "an archiver passes over a job that is coming back to life",
           _failed, _steps(_BEGIN, ("A", "redrive", lambda queue, notes: queue.redrive([1])),
                           ("B", "archive", lambda queue, notes: queue.archive(older_than_seconds=0, statuses=("failed",))), _COMMIT),
           ("A begin → returned", "A redrive → returned [1]", "B archive → returned 0", "A commit → returned"), "job 1 ready epoch 1"),
    Script("one slot, two schedulers", "a second scheduler does not wait for the first, and does not fire its slot again",
           _scheduled, _steps(_BEGIN, ("A", "tick", lambda queue, notes: Schedules(queue.conn).tick()),
                              ("B", "tick", lambda queue, notes: Schedules(queue.conn).tick()), _COMMIT,
                              ("B", "tick again", lambda queue, notes: Schedules(queue.conn).tick())),
           ("A begin → returned", "A tick → returned 1 jobs", "B tick → returned 0 jobs", "A commit → returned", "B tick again → returned 0 jobs"),
           "job 1 ready epoch 0"),
    Script("complete in an old snapshot", "in a REPEATABLE READ transaction older than the claim nothing can be said: it raises",
           _ready, _steps(("A", "begin repeatable read"), ("A", "look", lambda queue, notes: queue.conn.execute(SQL.look_around) and None),
                          ("B", "claim", lambda queue, notes: notes.setdefault("lease", _claim_by_b(queue, notes)[0])),
                          ("A", "complete", lambda queue, notes: queue.complete(notes["lease"])), _ROLLBACK),
           ("A begin repeatable read → returned", "A look → returned", "B claim → returned job 1, epoch 1",
            "A complete → raised InfrastructureError", "A rollback → returned"), "job 1 running epoch 1 B"),
)}  # fmt: skip


def table(played: list[Played]) -> pd.DataFrame:
    """One row a script: how many steps, which waited, whether it went as it must."""
    rows = [
        (one.script.name, one.script.lesson, len(one.told), sum(told.state == "blocked" for told in one.told), one.differs_at is None)
        for one in played
    ]
    return pd.DataFrame(rows, columns=["script", "lesson", "lines", "waits", "as it must"])


def shortened(script: Script, steps: int) -> Script:
    """Its first steps, with nothing expected: for looking around in a notebook."""
    return replace(script, steps=script.steps[:steps], expect=(), after=None)
