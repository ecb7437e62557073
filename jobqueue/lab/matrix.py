"""The failure matrix: for every state that support may meet, what shows it, what may be done, by whom, and when to
stop.

    found = matrix.run()                        # drives a real queue into each state; found.frame(), found.markdown()
    found.save("data/exports")                  # Markdown, CSV, HTML, the state diagram

Every observation is the answer of the query as it stands in the matrix, to be pasted, asked while the system was in
that state. The states themselves are in `matrix_states`.
"""

import contextlib
import html
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd
import psycopg
from tqdm.auto import tqdm

from .. import publication
from ..queue import Queue
from ..sql import statements, text
from . import charts, database, export
from .laboratory import PROJECT

SQL = statements(text("lab/matrix.sql"))
COST_JOBS = 2_000
COMPLETE = (
    "The business calls a job complete when it is done AND published AND the file behind it is verified: "
    "status = 'done', published_digest is not null, and publication.verify answers “available”."
)
ASSUMED = "20,000 jobs a day, each with a key, a small payload and one result of 100 kB; one in 100 is an orphan."
KEPT = {
    "job rows": "until archived: archive_after_seconds, a day",
    "archive rows": "archive_ttl_seconds, for ever by default",
    "key rows": "key_ttl_seconds, 30 days",
    "published files": "as long as the business needs them: nobody sweeps them",
    "orphans until their grace has passed": "orphan_grace_seconds, an hour",
}
STYLE = (
    "body{font:14px sans-serif;margin:24px}table{border-collapse:collapse}td,th{border:1px solid #999;padding:4px 6px;"
    "vertical-align:top;text-align:left}pre{margin:0;white-space:pre-wrap;font-size:12px}svg{max-width:100%;"
    "height:auto}"
)
READING = (
    "Each state: what was observed while a real queue was in it, the action allowed, who is responsible, and the sign "
    "that something has to be taken back (criterion to roll back). The queries are meant for psql, outside of a "
    "transaction; put your job's id, type, key or schedule in the place of this one's. Commands in `backquotes` are "
    "arguments of python -m jobqueue."
)
SAID = "The failure matrix drives a queue into each of its states, in a database each, for a minute."
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
        """For a repository or a wiki."""
        head = f"# Failure matrix of {self.project}\n\nPostgreSQL {self.version}. {COMPLETE}\n\n{READING}\n"
        body = "\n".join(_section(entry) for entry in self.entries)
        cost = "\n".join(f"| {what} | {size:,} | {kept} |" for what, size, kept in self._costs())
        table = f"| what | bytes a day | kept for |\n|---|---:|---|\n{cost}"
        return f"{head}\n{body}\n## What keeping the evidence costs\n\n{ASSUMED}\n\n{table}\n"

    def html(self, diagram: str = "") -> str:
        """One page without scripts; `diagram` is an SVG that stands in it."""
        rows = "".join(_row("td", [*(getattr(entry, name) for name in COLUMNS)], "query") for entry in self.entries)
        costs = "".join(_row("td", [what, f"{size:,}", kept]) for what, size, kept in self._costs())
        title = html.escape(f"Failure matrix of {self.project}")
        said = "".join(f"<p>{html.escape(text)}</p>" for text in (f"PostgreSQL {self.version}. {COMPLETE}", READING))
        heads = [name.replace("roll_back", "criterion to roll back") for name in COLUMNS]
        return (
            f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>"
            f"<h1>{title}</h1>{said}{diagram}<table>{_row('th', heads)}{rows}</table>"
            f"<h2>What keeping the evidence costs</h2><p>{html.escape(ASSUMED)}</p>"
            f"<table>{_row('th', ['what', 'bytes a day', 'kept for'])}{costs}</table></html>\n"
        )

    def _costs(self) -> list[tuple[str, int, str]]:
        return [(what, size, KEPT[what]) for what, size in self.retention().itertuples(index=False)]

    def save(self, folder: str | Path) -> list[Path]:
        """failure-matrix.md, .csv, .html, retention.csv and the state diagram in `folder`; returns their paths."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        diagram = export.save(charts.states(), "states", self.frame()[["state", "query"]], directory=folder)
        drawn = (folder / "states.svg").read_text(encoding="utf-8")
        files = {
            "failure-matrix.md": self.markdown(),
            "failure-matrix.html": self.html(drawn[drawn.index("<svg") :]),
            "failure-matrix.csv": self.frame().to_csv(index=False),
            "retention.csv": self.retention().to_csv(index=False),
        }
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")
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

    def published(self) -> int:
        """The id of a job whose result is published, complete and there."""
        lease = self.running()
        candidate = publication.write(self.folder, lease, b"the result")
        self.queue.publish(lease, "report.txt", candidate.digest)
        self.queue.complete(lease)
        assert publication.verify(self.other.conn, self.folder, lease.id).state == "available"
        return lease.id

    def look(self, statement: str, **asked) -> list[dict]:
        cursor = self.other.conn.execute(statement, asked or None)
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


STATES: list[tuple[str, str, str, str, Callable[[Drive], tuple[str, dict]]]] = []


def state(name: str, action: str, responsible: str, roll_back: str):
    """Registers a function that drives the system into the state; it returns the query that shows it, and arguments."""

    def register(function):
        STATES.append((name, action, responsible, roll_back, function))
        return function

    return register


def run(prefix=None, *, project: str = PROJECT, progress: bool = False, confirm: bool | None = None) -> Matrix:
    """Drives a queue into every state, in a database each, on a server of its own or (`database.ground`) on
    JOBQUEUE_DSN's; and measures what a job's rows weigh."""
    from . import matrix_states  # noqa: F401 - registers them

    with (
        database.ground(SAID, prefix, confirm=confirm) as place,
        database.installed(place.dsn) as template,
        tempfile.TemporaryDirectory(prefix="jobqueue-matrix-") as folder,
    ):
        bar = tqdm(STATES, desc="failure matrix", unit="state", disable=not progress)
        own = partial(database.scratch, place.dsn, template=template)
        entries = [_entry(own, Path(folder) / str(number), *each) for number, each in enumerate(bar)]
        return Matrix(project, place.version, entries, _weighed(own))


def _entry(scratch, folder: Path, name: str, action: str, responsible: str, roll_back: str, drive_into) -> Entry:
    with scratch() as own, contextlib.ExitStack() as stack:
        queues = [Queue(stack.enter_context(psycopg.connect(own, autocommit=True))) for _ in range(2)]
        folder.mkdir()
        drive = Drive(own, *queues, folder, stack)
        statement, asked = drive_into(drive)
        found = asked.pop("found", None)
        query = _pasted(statement, asked)
        rows = drive.look(query)  # as it will be pasted, with no argument left
        shown = "; ".join(", ".join(f"{k} {_value(k, v)}" for k, v in row.items()) for row in rows) or "no row"
        return Entry(name, f"{shown}; {found}" if found else shown, query, action, responsible, roll_back)


def _weighed(scratch) -> dict[str, int]:
    """Bytes a job keeps in each table with its indexes: keyed jobs with a small payload, done, then archived."""
    with scratch() as own, psycopg.connect(own, autocommit=True) as conn:
        queue = Queue(conn)
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


def _value(name: str, value) -> str:
    """Instants and process ids differ from run to run: they are named, so that two matrices compare."""
    if hasattr(value, "isoformat") or hasattr(value, "total_seconds"):
        return "<an instant>" if hasattr(value, "isoformat") else "<a while>"
    if name == "pid":
        return "<a pid>"
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
        f"- criterion to roll back: {entry.roll_back}\n\n```sql\n{entry.query};\n```\n"
    )


def _row(cell: str, values: list[str], *listing: str) -> str:
    """`listing` names columns that are shown as they are typed."""
    plain = [html.escape(str(value)) for value in values]
    if listing:
        plain[COLUMNS.index(listing[0])] = f"<pre>{plain[COLUMNS.index(listing[0])]};</pre>"
    return f"<tr>{''.join(f'<{cell}>{value}</{cell}>' for value in plain)}</tr>"
