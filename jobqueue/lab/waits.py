"""What sessions wait for while a load runs, how long a claim takes meanwhile, and what processors do: looks by a clock.

with Periodic(dsn, 0.05, sessions) as looks: …
looks.between(begin, end)                       # [(instant, answer), …]
"""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import pandas as pd
import psutil
import psycopg

from ..errors import JobQueueError
from ..loop import connect
from ..queue import claim_arguments
from ..sql import SQL as QUEUE
from ..sql import statements, text

SQL = statements(text("lab/load.sql"))
NAME = "jobqueue load looks"
PROCESSOR, COMMIT, LOCK, DISK, OTHER = "processor", "commit", "lock", "disk", "other"
GROUPS = (PROCESSOR, COMMIT, LOCK, DISK, OTHER)
# A commit's own waits: its fsync and write, the queue for them, a synchronous standby. Names by version 13 to 18.
COMMITS = {"io:walsync", "io:walwrite", "io:walsyncmethodassign", "lwlock:walwrite", "lwlock:walwritelock",
           "ipc:syncrep"}  # fmt: skip
LOCKS = ("lock", "lwlock", "bufferpin", "buffer")
IDLE = ("client", "activity")  # within a pipeline: the server waits for the client


class Periodic:
    """A thread that asks the same thing every so many seconds on a connection of its own, from enter to exit."""

    def __init__(self, dsn: str, period_seconds: float, look: Callable[[psycopg.Connection], Any]):
        self.period_seconds, self._dsn, self._look = period_seconds, dsn, look
        self._seen: list[tuple[float, Any]] = []
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load looks", daemon=True)

    def __enter__(self) -> "Periodic":
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._ended.set()
        self._thread.join(10)

    def between(self, begin: float, end: float) -> list[tuple[float, Any]]:
        """Looks that began within these instants of time.time(). Raises what ended the thread."""
        if self._error is not None:
            raise self._error
        return [each for each in self._seen if begin <= each[0] < end]

    def _run(self) -> None:
        try:
            with connect(self._dsn, NAME) as conn:
                while not self._ended.wait(self.period_seconds):
                    began = time.time()
                    self._seen.append((began, self._look(conn)))
        except (psycopg.Error, JobQueueError) as error:  # raised again by the thread that reads
            self._error = error


def sessions(conn: psycopg.Connection) -> list[tuple[str, str, str, int]]:
    """(who, wait type, wait, how many) of the sessions that are at work."""
    return conn.execute(SQL.activity).fetchall()


class ClaimLook:
    """What the shipped claim of one job takes here and now, without its commit: rolled back, it takes nobody's job.

    As a worker's, it begins where the last one ended.
    """

    def __init__(self):
        self._after: tuple[datetime, int] | None = None

    def __call__(self, conn: psycopg.Connection) -> float:
        asked = claim_arguments("a look", {"job": 30.0}, 1, after=self._after)
        with conn.transaction(force_rollback=True):
            began = time.perf_counter()
            rows = conn.execute(QUEUE.claim, asked).fetchall()
            took = time.perf_counter() - began
        if rows:
            self._after = (rows[0][9], rows[0][0])
        return took


def group(wait_type: str, wait: str) -> str | None:
    """Where a wait belongs; None for a session that waits for its client."""
    kind, name = wait_type.lower(), f"{wait_type}:{wait}".lower()
    if kind in IDLE:
        return None
    if not kind:
        return PROCESSOR
    if name in COMMITS:
        return COMMIT
    if kind in LOCKS:
        return LOCK
    return DISK if kind == "io" else OTHER


def frame(looks: Sequence[tuple[float, list]]) -> pd.DataFrame:
    """who, wait, group, sessions: the mean number of sessions at work that were found there."""
    found: dict[tuple[str, str, str], int] = {}
    for _, rows in looks:
        for who, kind, wait, count in rows:
            if belongs := group(kind, wait):
                place = (who, f"{kind}:{wait}" if kind else PROCESSOR, belongs)
                found[place] = found.get(place, 0) + count
    rows = [(*place, count / len(looks)) for place, count in sorted(found.items())]
    return pd.DataFrame(rows, columns=["who", "wait", "group", "sessions"])


class Processors:
    """Processor time of workers, producers, the server where it runs on this machine, and the machine."""

    def __init__(self, conn: psycopg.Connection, worker_pids: Sequence[int]):
        self._workers, self.producers = list(worker_pids), list[int]()
        self._postmaster = postmaster(conn)

    def read(self) -> dict[str, dict[int, float]]:
        """Seconds by process so far."""
        machine = psutil.cpu_times()
        idle = machine.idle + getattr(machine, "iowait", 0.0)
        known = {"worker": _times(self._workers), "producer": _times(self.producers)}
        return known | {"server": self._server(), "idle": {0: idle}}

    def between(self, before: dict, after: dict, seconds: float) -> dict[str, float]:
        """Seconds of workers and server (NaN where it is elsewhere); the shares of the machine in use, and by us."""
        spent = {who: sum(now - before[who].get(pid, 0.0) for pid, now in after[who].items()) for who in after}
        whole = seconds * (psutil.cpu_count() or 1)
        busy, own = 1 - spent["idle"] / whole, (spent["worker"] + spent["producer"] + spent["server"]) / whole
        server = spent["server"] if self._postmaster else float("nan")
        return {"worker": spent["worker"], "server": server, "busy": min(1.0, max(0.0, busy)), "own": own}

    def _server(self) -> dict[int, float]:
        if self._postmaster is None:
            return {}
        try:
            pids = [self._postmaster.pid, *(child.pid for child in self._postmaster.children())]
        except psutil.Error:
            return {}
        return _times(pids)


def postmaster(conn: psycopg.Connection) -> psutil.Process | None:
    """The server's parent process, where this machine runs it and shows it to us."""
    try:
        backend = psutil.Process(conn.info.backend_pid)
        parent = backend.parent()
        return parent if "postgres" in backend.name() and parent and "postgres" in parent.name() else None
    except psutil.Error:
        return None


def _times(pids: Sequence[int]) -> dict[int, float]:
    found = {}
    for pid in pids:
        try:
            used = psutil.Process(pid).cpu_times()
        except psutil.Error:
            continue  # it has ended
        found[pid] = used.user + used.system
    return found
