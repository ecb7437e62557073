"""Watches a live queue and its fleet: samples, attempts and faults as frames, gathered by a thread that only reads.

    with Observer(dsn, fleet) as seen:
        …                       # kill, pause, wait
        charts.overview(seen.ages, seen.attempts, seen.faults)

A database that is away leaves a gap in the samples; the thread connects again by itself.
"""

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import psycopg
from psycopg.rows import dict_row

from jobqueue import limits
from jobqueue.errors import InfrastructureError, JobQueueError
from jobqueue.lab import fleet as fleets
from jobqueue.loop import connect
from jobqueue.sql import statements, text

log = logging.getLogger(__name__)

SQL = statements(text("lab/observe.sql"))
SAMPLES = 40_000  # 2.8 hours at 4 a second; the oldest are dropped after that
ATTEMPTS = 200_000
ROWS = 5_000  # of one look
OVERLAP_SECONDS = 3.0  # a row may be committed so much later than the instant that stands in it
GONE_SECONDS = 10.0
STATEMENT_SECONDS = 5  # as in observe.sql
NEVER = float("nan")
COUNTS = ("ready", "due", "running", "waiting_retry", "dead", "done")
_AGES = ("time_seconds", *COUNTS, "oldest_age_seconds")
_ATTEMPTS = ("job_id", "type", "attempt", "epoch", "owner", "worker", "started", "ended", "outcome")
FAULTS = ("time_seconds", "kind", "target", "until_seconds")


@dataclass(frozen=True)
class Sample:
    """The queue and the fleet at one instant; `leases` are the rows that are out, as dicts."""

    time_seconds: float
    ready: int
    due: int
    running: int
    waiting_retry: int
    dead: int
    done: int
    oldest_age_seconds: float
    workers: tuple = ()
    leases: tuple = ()
    heard: dict = field(default_factory=dict)  # owner → seconds since one of its sessions did anything


class Observer:
    """Samples `hz` times a second, and rests at least three times as long as a look took."""

    def __init__(self, dsn: str, fleet: "fleets.Fleet | None" = None, *, hz: float = 4.0):
        self.dsn, self.fleet, self.hz = dsn, fleet, limits.seconds(hz, "hz", 0.01, 100)
        self.error: str | None = None
        self._guard = threading.RLock()
        self._stopped = threading.Event()
        self._samples: list[Sample] = []
        self._attempts: dict[tuple[int, int], dict] = {}
        self._ended: list[tuple[int, int]] = []
        self._running: set[tuple[int, int]] = set()
        self._gone: dict[tuple[int, int], float] = {}  # no longer out since, end not yet found
        self._notes: list[tuple[float, str, str, float]] = []
        self._fleet_events: list[tuple[float, str, str, float]] = []
        self.workers: tuple = ()  # of the fleet, its loops included, as they were last looked at
        with connect(dsn, "jobqueue observer") as conn:
            ((version,),) = conn.execute(SQL.server_version)
            ((self.origin,),) = conn.execute(SQL.clock)
        self.postgres: str = version.split()[0]
        self._offset = time.time() - self.origin  # this machine's clock against the database's: for events only
        self._since = self.origin - OVERLAP_SECONDS
        self.look_at_fleet()
        self._thread = threading.Thread(target=self._watch, name="observer", daemon=True)

    def start(self) -> "Observer":
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(STATEMENT_SECONDS + 2)

    def __enter__(self) -> "Observer":
        return self.start()

    def __exit__(self, *_) -> None:
        self.stop()

    def note(self, kind: str, target: str) -> None:
        """Something that no process shows: a burst, a crash of the database."""
        with self._guard:
            self._notes.append((self.now, kind, target, NEVER))

    @property
    def now(self) -> float:
        """Seconds since the observer began, by the database's clock."""
        return time.time() - self._offset - self.origin

    @property
    def latest(self) -> Sample | None:
        with self._guard:
            return self._samples[-1] if self._samples else None

    def recent(self, seconds: float) -> list[Sample]:
        """The samples of the last `seconds`, in order."""
        with self._guard:
            first = len(self._samples)
            begin = self.now - seconds
            while first and self._samples[first - 1].time_seconds >= begin:
                first -= 1
            return self._samples[first:]

    def recent_attempts(self, seconds: float) -> list[dict]:
        """Attempts that run or ended in the last `seconds`; those that ended come in the order in which it was seen."""
        begin = self.now - seconds
        with self._guard:
            first = len(self._ended)
            while first and self._attempts[self._ended[first - 1]]["ended"] >= begin - OVERLAP_SECONDS:
                first -= 1
            return [dict(self._attempts[key]) for key in [*self._ended[first:], *self._running]]

    def wait_for(self, condition, timeout_seconds: float = 60.0) -> Sample:
        """The first sample for which `condition(sample)` holds; JobQueueError where none comes in time."""
        end = time.monotonic() + timeout_seconds
        while True:
            latest = self.latest
            if latest is not None and condition(latest):
                return latest
            if self._stopped.is_set() or time.monotonic() > end:
                raise JobQueueError(
                    f"what was waited for did not come within {timeout_seconds:g} s; last seen: {latest}"
                )
            time.sleep(0.05)

    @property
    def ages(self) -> pd.DataFrame:
        with self._guard:
            return pd.DataFrame([[getattr(s, name) for name in _AGES] for s in self._samples], columns=list(_AGES))

    @property
    def attempts(self) -> pd.DataFrame:
        with self._guard:
            rows = [[attempt[name] for name in _ATTEMPTS] for attempt in self._attempts.values()]
        frame = pd.DataFrame(rows, columns=list(_ATTEMPTS)).astype(
            {"started": float, "ended": float, "attempt": "Int64"}
        )
        begun = frame["started"].fillna(frame["ended"])  # what began and ended between two looks has no start
        return frame.loc[begun.sort_values(kind="stable").index].reset_index(drop=True)

    @property
    def faults(self) -> pd.DataFrame:
        """What happened to the fleet and the database since the observer began, in order of time."""
        return pd.DataFrame(self.events(), columns=list(FAULTS))

    def events(self) -> list[tuple[float, str, str, float]]:
        """(time_seconds, kind, target, until_seconds: NaN where something else ends it, or it was a moment)."""
        with self._guard:
            return sorted(self._fleet_events + self._notes, key=lambda event: event[:3])

    def look_at_fleet(self) -> None:
        """Before the next sample does, so that what was just done shows at once."""
        if self.fleet is None:
            return
        workers = (*self.fleet.workers, *self.fleet.loops)
        beginning = self._offset + self.origin
        seen = [(e.at.timestamp() - beginning, e.kind, e.target, e.until.timestamp() - beginning if e.until else NEVER)
                for e in self.fleet.events]
        with self._guard:
            self.workers, self._fleet_events = workers, [event for event in seen if event[0] >= 0]

    def _watch(self) -> None:
        conn = None
        while not self._stopped.is_set():
            begun = time.monotonic()
            try:
                self.look_at_fleet()
                if conn is None or conn.closed:
                    conn = self._connected()
                self._look(conn)
                self.error = None
            except (psycopg.Error, InfrastructureError, fleets.FleetError) as error:
                self.error = str(error).strip().splitlines()[0]
                if conn is not None:
                    conn.close()
            took = time.monotonic() - begun
            self._stopped.wait(max(1 / self.hz - took, 3 * took))
        if conn is not None:
            conn.close()

    def _connected(self) -> psycopg.Connection[Any]:
        conn: psycopg.Connection[Any] = connect(
            self.dsn, "jobqueue observer"
        )  # autocommit: a picture must never be the long transaction
        conn.row_factory = dict_row
        conn.execute(SQL.be_brief)
        return conn

    def _look(self, conn) -> None:
        workers = self.workers
        row = conn.execute(SQL.sample).fetchone()
        leases = conn.execute(SQL.leases, {"most": ROWS}).fetchall()
        ends = conn.execute(SQL.ends, {"since": self._since, "most": ROWS}).fetchall()
        owners = [worker.owner for worker in workers]
        heard = {r["owner"]: r["seconds"] for r in conn.execute(SQL.heard, {"owners": owners})} if owners else {}
        at = row.pop("at")
        row["oldest_age_seconds"] = row["oldest_age_seconds"] or 0.0
        with self._guard:
            self._gather(leases, ends)
            self._since = max(self._since, (ends[-1]["ended"] if len(ends) == ROWS else at) - OVERLAP_SECONDS)
            self._samples.append(Sample(at - self.origin, **row, workers=workers, leases=tuple(leases), heard=heard))
            if len(self._samples) > SAMPLES:
                del self._samples[: SAMPLES // 10]

    def _gather(self, leases, ends) -> None:
        for row in leases:
            key = (row["id"], row["epoch"])
            if key not in self._attempts:
                self._attempts[key] = self._attempt(row, None, "running")
                self._running.add(key)
        for row in ends:
            key = (row["id"], row["epoch"])
            if key in self._attempts and key not in self._running:
                continue  # the looks overlap
            attempt, known = self._attempt(row, row["ended"], row["outcome"]), self._attempts.get(key)
            if known and attempt["started"] is None:
                attempt |= {"started": known["started"], "attempt": known["attempt"]}
            self._attempts[key] = attempt
            self._ended.append(key)
            self._running.discard(key)
        self._give_up({(row["id"], row["epoch"]) for row in leases})
        if len(self._ended) > ATTEMPTS:
            surplus = len(self._ended) - ATTEMPTS * 9 // 10
            for key in self._ended[:surplus]:
                del self._attempts[key]
            del self._ended[:surplus]

    def _give_up(self, out) -> None:
        """A lease that is no longer out, and whose end is not found (a row deleted by hand): its outcome is unknown."""
        self._gone = {key: self._gone.get(key, self.now) for key in self._running - out}
        for key, since in self._gone.items():
            if self.now - since > GONE_SECONDS:
                self._attempts[key] |= {"ended": since, "outcome": "unknown"}
                self._ended.append(key)
                self._running.discard(key)

    def _attempt(self, row, ended, outcome) -> dict:
        started = row["started"]
        return {
            "job_id": row["id"],
            "type": row["type"],
            "attempt": row["attempt"],
            "epoch": row["epoch"],
            "owner": row["owner"],
            "worker": worker_name(row["owner"]),
            "started": None if started is None else started - self.origin,
            "ended": None if ended is None else ended - self.origin,
            "outcome": outcome,
        }


def recoveries(attempts: pd.DataFrame, faults: pd.DataFrame) -> pd.DataFrame:
    """What kills and pauses cost: for each lease lost, seconds until the job was ready and until it ran again."""
    lost, rows = attempts[attempts["outcome"] == "lost"], []
    for fault in faults[faults["kind"].isin(["kill", "pause"])].to_dict("records"):
        at = fault["time_seconds"]
        held = lost[(lost["worker"] == fault["target"]) & (lost["ended"] >= at) & ~(lost["started"] > at)]
        for lease in held.to_dict("records"):
            later = attempts[(attempts["job_id"] == lease["job_id"]) & (attempts["epoch"] > lease["epoch"])][
                "started"
            ].min()
            rows.append((fault["kind"], fault["target"], lease["job_id"], lease["ended"] - at, later - at))
    return pd.DataFrame(rows, columns=["fault", "worker", "job_id", "ready_again_seconds", "running_again_seconds"])


def worker_name(owner: str) -> str:
    """A fleet's owner is fleet-TAG/NAME.START, unique per start; a lane is the name. Other owners stay as they are."""
    tag, _, rest = owner.rpartition("/")
    name, _, start = rest.rpartition(".")
    return name if tag.startswith("fleet-") and start.isdigit() else owner
