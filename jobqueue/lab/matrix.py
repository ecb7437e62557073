"""The failure matrix: for every state that support may meet, what shows it, what may be done, by whom, and when to
stop.

    found = matrix.run()                        # drives a real queue into each state; found.frame(), found.markdown()
    found.save("data/exports")                  # Markdown, CSV, HTML, the state diagram

Every observation is the answer of a query that can be pasted, taken while the system was in that state.
"""

import contextlib
import html
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import psycopg

from .. import publication
from ..queue import Queue
from ..schedules import Schedules
from ..sql import statements, text
from . import charts, database, export
from .laboratory import PROJECT

SQL = statements(text("lab/matrix.sql"))
COST_JOBS = 2_000
COMPLETE = (
    "The business calls a job complete when it is done AND published AND the file behind it is verified: "
    "status = 'done', published_digest is not null, and publication.verify answers `available`."
)
COLUMNS = ("state", "observed", "query", "action", "responsible", "roll_back")


@dataclass(frozen=True)
class Entry:
    """One state. observed: what `query` answered while the system was in it."""

    state: str
    observed: str
    query: str
    action: str
    responsible: str
    roll_back: str


@dataclass(frozen=True)
class Matrix:
    """All entries, and what keeping the evidence costs."""

    project: str
    version: str
    entries: list[Entry]
    bytes_per_job: dict[str, int]

    def frame(self) -> pd.DataFrame:
        return pd.DataFrame([[getattr(entry, name) for name in COLUMNS] for entry in self.entries], columns=COLUMNS)

    def retention(
        self, jobs_per_day: int = 20_000, candidate_bytes: int = 100_000, orphan_share: float = 0.01
    ) -> pd.DataFrame:
        """Bytes a day that jobs, archive, keys and orphans keep, for so many jobs with one candidate each."""
        kept = {f"{name} rows": size * jobs_per_day for name, size in self.bytes_per_job.items()}
        kept["published files"] = candidate_bytes * jobs_per_day
        kept["orphans until their grace has passed"] = round(candidate_bytes * jobs_per_day * orphan_share)
        return pd.DataFrame(list(kept.items()), columns=["what", "bytes_per_day"])

    def markdown(self) -> str:
        head = f"# Failure matrix of {self.project}\n\nPostgreSQL {self.version}. {COMPLETE}\n"
        body = "\n".join(_section(entry) for entry in self.entries)
        cost = "\n".join(f"| {what} | {size:,} |" for what, size in self.retention().itertuples(index=False))
        costs = f"## What keeping the evidence costs\n\n20,000 jobs a day\n\n| what | bytes a day |\n|---|---|\n{cost}"
        return f"{head}\n{body}\n{costs}\n"

    def html(self) -> str:
        rows = "".join(_row("td", [getattr(entry, name) for name in COLUMNS]) for entry in self.entries)
        title = html.escape(f"Failure matrix of {self.project}")
        style = "body{font:14px sans-serif}table{border-collapse:collapse}td,th{border:1px solid #999;padding:4px}"
        return (
            f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{style}</style>"
            f"<h1>{title}</h1><p>{html.escape(COMPLETE)}</p>"
            f"<table>{_row('th', list(COLUMNS))}{rows}</table></html>\n"
        )

    def save(self, folder: str | Path) -> list[Path]:
        """failure-matrix.md, .csv, .html, retention.csv and the state diagram in `folder`; returns their paths."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        files = {
            "failure-matrix.md": self.markdown(),
            "failure-matrix.html": self.html(),
            "failure-matrix.csv": self.frame().to_csv(index=False),
            "retention.csv": self.retention().to_csv(index=False),
        }
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")
        diagram = export.save(charts.states(), "states", self.frame()[["state", "query"]], directory=folder)
        return [*(folder / name for name in files), *map(Path, diagram)]


@dataclass
class Drive:
    """What brings the system into a state: queues of a worker and of support, and a folder for candidates."""

    dsn: str
    queue: Queue
    other: Queue
    folder: Path
    stack: contextlib.ExitStack

    def running(self, lease_seconds: float = 60, **job):
        self.queue.enqueue("mail", **job)
        return self.queue.claim("worker-1", lease_seconds=lease_seconds).leases[0]

    def expired(self):
        lease = self.running(0.001)
        while self.other.reconcile(lease).name == "HELD" and self.look(SQL.lease, id=lease.id)[0]["in_force"]:
            time.sleep(0.001)
        return lease

    def look(self, statement: str, **asked) -> list[dict]:
        cursor = self.other.conn.execute(statement, asked)
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


STATES: list[tuple[str, str, str, str, Callable[[Drive], tuple[str, dict]]]] = []


def state(name: str, action: str, responsible: str, roll_back: str):
    """Registers a function that drives the system into the state; it returns the query that shows it, and arguments."""

    def register(function):
        STATES.append((name, action, responsible, roll_back, function))
        return function

    return register


@state("enqueue not committed",
       "none: nobody can see the job; end or roll back the producer's transaction", "producer's team",
       "the transaction is older than its own timeout")  # fmt: skip
def _not_committed(drive: Drive):
    conn = drive.stack.enter_context(psycopg.connect(drive.dsn))
    return SQL.row, {"id": Queue(conn).enqueue("mail").id}


@state("job ready", "none; if it waits too long: start workers for its type", "on call", "queue age passes its target")
def _ready(drive: Drive):
    return SQL.due, {"id": drive.queue.enqueue("mail").id}


@state(
    "waiting for a retry",
    "none until run_at; read last_error",
    "owner of the handler",
    "the same error on every attempt",
)
def _retry(drive: Drive):
    lease = drive.running()
    drive.queue.fail(lease, "the mail server said no", delay_seconds=3600)
    return SQL.row, {"id": lease.id}


@state("type paused", "resume_type when the cause is gone", "whoever paused it", "the backlog's age passes its target")
def _paused(drive: Drive):
    drive.other.pause_type("sms")
    return SQL.paused, {"type": "sms"}


@state("lease still valid", "none: adoption is refused; wait for locked_until", "on call", "never take it away by hand")
def _valid(drive: Drive):
    lease = drive.running()
    assert drive.other.adopt(lease.id, "worker-2") is None
    return SQL.lease, {"id": lease.id}


@state("lease ended, nobody took over", "none: the next reaper takes it away, or adopt it", "reaper",
       "it stays so for longer than a reaper's period: is one running, is the row locked?")  # fmt: skip
def _ended(drive: Drive):
    return SQL.lease, {"id": drive.expired().id}


@state("ended and locked by an open transaction",
       "end the transaction that holds the row (pg_stat_activity)", "database team",
       "idle_in_transaction_session_timeout does not end it")  # fmt: skip
def _held(drive: Drive):
    lease = drive.expired()
    conn = drive.stack.enter_context(psycopg.connect(drive.dsn))
    conn.execute(SQL.lock, {"id": lease.id})
    return SQL.holders, {}


@state("adoption", "none: the old owner is fenced; its late writes are refused", "on call",
       "the destination doesn't check the epoch: compare effects of both epochs")  # fmt: skip
def _adopted(drive: Drive):
    lease = drive.expired()
    drive.other.adopt(lease.id, "worker-2", lease_seconds=60)
    return SQL.lease, {"id": lease.id}


@state("orphan candidate", "none: it is swept after its grace; never publish it by hand", "janitor",
       "orphans grow from day to day")  # fmt: skip
def _orphan(drive: Drive):
    lease = drive.running()
    publication.write(drive.folder, lease, b"never published")
    drive.queue.fail(lease, "the mail server said no", delay_seconds=3600)
    orphans = publication.orphans(drive.other.conn, drive.folder)
    return SQL.ends, {"id": lease.id, "found": f"{len(orphans)} orphan on disk"}


@state("publication confirmed", "deliver the result", "on call", "verify does not answer `available`")
def _published(drive: Drive):
    return SQL.published, {"id": _published_job(drive), "found": "file verified"}


@state("artefact unavailable", "do not deliver; restore the file from its backup, or run the job again under a new key",
       "storage team", "the restored bytes do not have the digest")  # fmt: skip
def _unavailable(drive: Drive):
    id = _published_job(drive)
    path = publication.verify(drive.other.conn, drive.folder, id).path
    path.unlink()
    found = publication.verify(drive.other.conn, drive.folder, id)
    return SQL.published, {"id": id, "found": f"{found.state}: {found.reason.replace(str(drive.folder), 'DIR')}"}


@state(
    "done",
    "none",
    "nobody",
    "the effect is not at its destination: then the handler acted outside the job's transaction",
)
def _done(drive: Drive):
    lease = drive.running()
    drive.queue.complete(lease)
    return SQL.row, {"id": lease.id}


@state("failed: the handler said never", "mend the input or the handler, then redrive", "owner of the handler",
       "it fails again after the redrive")  # fmt: skip
def _failed(drive: Drive):
    lease = drive.running()
    drive.queue.fail(lease, "the address does not exist", permanent=True)
    return SQL.row, {"id": lease.id}


@state("dead: attempts exhausted by failures", "mend the cause, then redrive", "owner of the handler", "it dies again")
def _dead(drive: Drive):
    lease = drive.running(max_attempts=1)
    drive.queue.fail(lease, "the mail server said no")
    return SQL.ends, {"id": lease.id}


@state("dead: attempts exhausted by lost leases",
       "look for what kills its workers before any redrive", "owner of the handler",
       "another worker dies with it")  # fmt: skip
def _poison(drive: Drive):
    drive.queue.enqueue("mail", max_attempts=1)
    (lease,) = drive.queue.claim("worker-1", lease_seconds=0.001)
    while not drive.other.reap():
        time.sleep(0.001)
    return SQL.ends, {"id": lease.id}


@state("cancelled while running",
       "tell what may already have happened (cancel's sentence); redrive on request", "support",
       "its effect must be undone at the destination")  # fmt: skip
def _cancelled(drive: Drive):
    lease = drive.running()
    drive.other.cancel(lease.id)
    return SQL.ends, {"id": lease.id}


@state("archived", "none: read job_archive; its key stays used", "nobody", "the key must be free earlier than key_ttl")
def _archived(drive: Drive):
    lease = drive.running()
    drive.queue.complete(lease)
    while not drive.queue.archive(older_than_seconds=0):
        time.sleep(0.001)
    return SQL.archived, {"id": lease.id}


@state(
    "key known",
    "none: the second request got the first job's id",
    "producer's team",
    "matches was false: two requests, one key",
)
def _key(drive: Drive):
    for _ in range(2):
        drive.queue.enqueue("mail", key="welcome/ada")
    return SQL.key, {"key": "welcome/ada"}


@state("slots missed",
       "decide whether the report of those days is needed: misfire=all runs them", "owner of the schedule",
       "the next slot is missed, too: is a scheduler running?")  # fmt: skip
def _missed(drive: Drive):
    schedules = Schedules(drive.queue.conn)
    schedules.put("report", "mail", "* * * * *", misfire="skip")
    drive.queue.conn.execute(SQL.ten_minutes_late)
    schedules.tick()
    return SQL.missed, {"schedule": "report"}


@state("schedule broken by hand", "put the schedule again", "owner of the schedule", "never edit rows of schedule")
def _broken(drive: Drive):
    schedules = Schedules(drive.queue.conn)
    schedules.put("nightly", "mail", "0 3 * * *")
    drive.queue.conn.execute(SQL.break_by_hand)
    schedules.tick()
    return SQL.problem, {"schedule": "nightly"}


def run(prefix=None, *, project: str = PROJECT) -> Matrix:
    """Drives a queue of its own into every state, one database each, and measures what a job's rows weigh."""
    with database.Server(prefix) as server, tempfile.TemporaryDirectory(prefix="jobqueue-matrix-") as folder:
        entries = [_entry(server.dsn, Path(folder) / str(place), *each) for place, each in enumerate(STATES)]
        return Matrix(project, server.version, entries, _weighed(server.dsn))


def _entry(dsn: str, folder: Path, name: str, action: str, responsible: str, roll_back: str, drive_into) -> Entry:
    with database.scratch(dsn) as own, contextlib.ExitStack() as stack:
        queues = [Queue(stack.enter_context(psycopg.connect(own, autocommit=True))) for _ in range(2)]
        queues[0].install()
        folder.mkdir()
        drive = Drive(own, *queues, folder, stack)
        statement, asked = drive_into(drive)
        found = asked.pop("found", None)
        rows = drive.look(statement, **asked)
        shown = "; ".join(", ".join(f"{k} {_value(v)}" for k, v in row.items()) for row in rows) or "no row"
        return Entry(
            name, f"{shown}; {found}" if found else shown, _pasted(statement, asked), action, responsible, roll_back
        )


def _published_job(drive: Drive) -> int:
    lease = drive.running()
    candidate = publication.write(drive.folder, lease, b"the result")
    drive.queue.publish(lease, "report.txt", candidate.digest)
    drive.queue.complete(lease)
    assert publication.verify(drive.other.conn, drive.folder, lease.id).state == "available"
    return lease.id


def _weighed(dsn: str) -> dict[str, int]:
    """Bytes a job keeps in each table with its indexes: keyed jobs with a small payload, done, then archived."""
    with database.scratch(dsn) as own, psycopg.connect(own, autocommit=True) as conn:
        queue = Queue(conn)
        queue.install()
        queue.enqueue_many(
            [{"type": "mail", "payload": {"to": f"user-{n}"}, "key": f"k/{n}"} for n in range(COST_JOBS)]
        )
        for _ in range(COST_JOBS // 1000):
            queue.complete_many(list(queue.claim("worker-1", limit=1000)))
        conn.execute(SQL.tidy)
        job, _, keys = conn.execute(SQL.sizes).fetchone()
        while queue.archive(older_than_seconds=0):
            pass
        conn.execute(SQL.tidy)
        archive = conn.execute(SQL.sizes).fetchone()[1]
    return {name: round(size / COST_JOBS) for name, size in (("job", job), ("archive", archive), ("key", keys))}


def _value(value) -> str:
    if hasattr(value, "isoformat"):
        return "<an instant>"  # so that two runs read alike
    words = {None: "–", True: "yes", False: "no"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def _pasted(statement: str, asked: dict) -> str:
    for name, value in asked.items():
        statement = statement.replace(f"%({name})s", str(value) if isinstance(value, int) else "'" + str(value) + "'")
    return statement


def _section(entry: Entry) -> str:
    return (
        f"## {entry.state}\n\n- observed: {entry.observed}\n- action allowed: {entry.action}\n"
        f"- responsible: {entry.responsible}\n"
        f"- criterion to roll back: {entry.roll_back}\n\n```sql\n{entry.query}\n```\n"
    )


def _row(cell: str, values: list[str]) -> str:
    cells = "".join(f"<{cell}>{html.escape(str(value))}</{cell}>" for value in values)
    return f"<tr>{cells}</tr>"
