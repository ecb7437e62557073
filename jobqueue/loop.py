"""What every loop shares: a connection that comes back after an outage, a bounded step, a stop from any thread."""

import json
import logging
import os
import queue as queues
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import conninfo
from psycopg.types.json import set_json_loads

from . import limits
from .errors import InfrastructureError, JobQueueError
from .model import Job
from .queue import Queue
from .sql import SQL
from .transactions import translated

log = logging.getLogger("jobqueue")
OnDead = Callable[[Job], object]  # the caller's own alarm for a dead letter

CONNECT_SECONDS = 10
DEAD_PEER_SECONDS = 30  # a peer that doesn't answer for so long is gone
IDLE_IN_TRANSACTION_SECONDS = 60  # a zombie transaction on an expired row hides it from every reaper
LOCK_SECONDS = 1.0  # a table that is being altered, a row that somebody holds: ask again, and hear `stop` in between
INCIDENT_SECONDS = 10
# A prepared statement keeps the plan that it got while the table was small, a sequential scan, until autovacuum's next
# look: a worker that began on an empty queue drained 40,000 jobs in 36 s instead of 5. Before version 18 a scan that
# can't be avoided is then so dear that it would be compiled. Planned once: the statements hold their plans with any
# parameters, and planning each batch anew (arrays make it look better) costs a twentieth of its time.
FOR_FULL_TABLES = {"enable_seqscan": "off", "jit": "off", "plan_cache_mode": "force_generic_plan"}
RETRY_SECONDS = (0.1, 2.0)  # between attempts to reconnect, doubled from the first to the second, with jitter


class Session:
    """One autocommit connection, opened at first use and again after `drop`; belongs to one thread at a time.

    prepare_threshold=None is for transaction poolers such as pgbouncer: nothing is prepared, no session state is set.
    idle_seconds: how long a transaction may idle (None: for ever). lock_seconds: how long a statement waits for a lock.
    own: only the queue's statements run here, so that they may have the planner's settings that they need.
    """

    def __init__(
        self,
        dsn: str,
        name: str,
        *,
        prepare_threshold: int | None = 5,
        idle_seconds: float | None = IDLE_IN_TRANSACTION_SECONDS,
        lock_seconds: float | None = None,
        own: bool = True,
    ) -> None:
        self.dsn, self.name, self.prepare_threshold = dsn, name, prepare_threshold
        self.settings = {"idle_seconds": idle_seconds, "lock_seconds": lock_seconds, "own": own}
        self._queue: Queue | None = None
        self._pid = 0

    @property
    def queue(self) -> Queue:
        """Raises InfrastructureError while the database can't be reached."""
        if self._queue is not None and self._pid != os.getpid():
            raise JobQueueError(
                "this connection was opened before a fork: open one in each process (use spawn, not fork)"
            )
        if self._queue is None or self._queue.conn.closed:
            queue = Queue(connect(self.dsn, self.name, self.prepare_threshold, **self.settings))
            self._queue, self._pid = queue, os.getpid()
        return self._queue

    @property
    def conn(self) -> psycopg.Connection[Any]:
        return self.queue.conn

    @property
    def is_open(self) -> bool:
        return self._queue is not None and not self._queue.conn.closed

    def drop(self) -> None:
        queue, self._queue = self._queue, None
        if queue is not None and self._pid == os.getpid():  # closing an inherited one would end its owner's session
            queue.conn.close()

    def hang_up(self) -> None:
        """From any thread: who waits on this connection gets an error at once, and what it had open is rolled back."""
        queue = self._queue
        if queue is None:
            return
        with suppress(psycopg.Error, OSError):
            line = socket.socket(fileno=queue.conn.fileno())
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.detach()  # the connection itself stays its thread's to close

    def cancel(self) -> None:
        """From any thread: hangs up, and ends the statement that runs, which a server does not do by itself."""
        queue = self._queue
        if queue is not None:
            with suppress(psycopg.Error, OSError):
                queue.conn.cancel_safe(timeout=2)
            self.hang_up()


def connect(
    dsn: str,
    name: str,
    prepare_threshold: int | None = 5,
    **session: Any,
) -> psycopg.Connection[Any]:
    """An autocommit connection in UTC; errors show the address but never the password, nor have a cause that does.

    session: idle_seconds, lock_seconds and own, as of Session.
    """
    given = _parsed(dsn)
    settings: dict[str, Any] = {"connect_timeout": CONNECT_SECONDS, "application_name": limits.clip(name, 63)}
    settings |= {"tcp_user_timeout": DEAD_PEER_SECONDS * 1000, "keepalives_idle": 10, "keepalives_interval": 5}
    settings |= {field: value for field, value in given.items() if field in settings}
    settings["client_encoding"] = "UTF8"  # whatever the database's own default is, or PGCLIENTENCODING
    if prepare_threshold is not None:
        theirs = given.get("options") or os.environ.get("PGOPTIONS", "")
        settings["options"] = f"{theirs} {_options(**session)}".strip()
    try:
        conn = psycopg.connect(dsn, autocommit=True, prepare_threshold=prepare_threshold, **settings)
        set_json_loads(_loads, conn)
        return conn
    except psycopg.OperationalError as error:
        reason = " ".join(str(error).split())
    if "startup parameter" in reason:
        reason += " (behind a transaction pooler: --pooled, or prepare_threshold=None)"
    where = f"{given.get('host', 'the local socket')}:{given.get('port', 5432)}/{given.get('dbname', '')}"
    raise InfrastructureError(f"can't connect to {where}: {redacted(reason, given.get('password'))}")


def _parsed(dsn: str) -> dict[str, Any]:
    try:
        return conninfo.conninfo_to_dict(dsn)
    except psycopg.Error as error:
        reason = str(error).strip().splitlines()[0].split(":")[0]
    raise JobQueueError(f"the DSN can't be read: {reason}")


@dataclass(frozen=True)
class Unreadable:
    """In place of JSON that Python can't read (a number of 5,000 digits, 2,000 levels): one row must stop no loop."""

    reason: str


_decode = json.JSONDecoder().decode  # json.loads first guesses the encoding, which takes as long again


def _loads(text: Any) -> Any:
    try:
        return _decode(str(text, "utf-8"))
    except (ValueError, RecursionError) as error:
        return Unreadable(f"{type(error).__name__}: {error}")


def redacted(text: str, password: str | None) -> str:
    return text.replace(password, "***") if password else text


def _options(idle_seconds: float | None = None, lock_seconds: float | None = None, own: bool = False) -> str:
    given = {
        "timezone": "UTC",
        "datestyle": "ISO",
        "default_transaction_isolation": r"read\ committed",  # whatever the database's own default is
        "idle_in_transaction_session_timeout": _milliseconds(idle_seconds),
        "idle_session_timeout": 0,  # a reaper that polls more seldom would take each look for the end of an outage
        "lock_timeout": _milliseconds(lock_seconds),
        # The server, too, must notice a peer that is gone: its open transaction would keep a row locked.
        "tcp_user_timeout": DEAD_PEER_SECONDS * 1000,
        "tcp_keepalives_idle": 10,
        "tcp_keepalives_interval": 5,
    }
    return " ".join(f"-c {name}={value}" for name, value in (given | (FOR_FULL_TABLES if own else {})).items())


def _milliseconds(seconds: float | None) -> int:
    return 0 if seconds is None else max(1, int(seconds * 1000))


class Incidents:
    """Counts of what rows can't show, written at most every 10 s; several threads may add."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str | None]] = Counter()
        self._lock = threading.Lock()
        self._written = time.monotonic()

    def add(self, name: str, type: str | None = None, n: int = 1) -> None:
        with self._lock:
            self._counts[name, type] += n

    def flush(self, conn: psycopg.Connection[Any], *, now: bool = False) -> None:
        """Writes what has gathered; on an error it is kept for the next time."""
        if not self._counts or not (now or time.monotonic() - self._written > INCIDENT_SECONDS):
            return
        with self._lock:
            counts, self._counts = self._counts, Counter()
        self._written = time.monotonic()
        names, types = zip(*counts, strict=True)
        try:
            with translated(conn):
                conn.execute(
                    SQL.incidents, {"names": list(names), "types": list(types), "counts": list(counts.values())}
                )
        except JobQueueError:
            with self._lock:
                self._counts += counts
            raise


class Pause:
    """The growing, jittered wait between attempts to reach the database."""

    def __init__(self) -> None:
        self._next = RETRY_SECONDS[0]

    @property
    def is_fresh(self) -> bool:
        """Whether the next failure is the first in a row."""
        return self._next == RETRY_SECONDS[0]

    def seconds(self) -> float:
        self._next, now = min(RETRY_SECONDS[1], self._next * 2), self._next
        return now * random.uniform(0.5, 1)

    def reset(self) -> None:
        self._next = RETRY_SECONDS[0]


class Bell:
    """Wakes the one thread that waits for it, from any thread and from signal handlers, where an Event may deadlock."""

    def __init__(self) -> None:
        self._rings: queues.SimpleQueue[None] = queues.SimpleQueue()  # its put is reentrant
        self._rung = False

    def ring(self) -> None:
        if not self._rung:
            self._rung = True
            self._rings.put(None)

    def wait(self, seconds: float) -> None:
        """Until it has rung since the last wait, or for so long; what there is to do is looked for afterwards."""
        with suppress(queues.Empty):
            self._rings.get(timeout=max(0.0, seconds))
        self._rung = False


class Loop:
    """`run` is a loop around `run_once`, which does one bounded step and returns how much; `stop` from any thread."""

    role = "loop"

    def __init__(self, dsn: str, *, poll_seconds: float = 1, prepare_threshold: int | None = 5) -> None:
        self.poll_seconds = limits.seconds(poll_seconds, "poll_seconds", 0.001, 86_400)
        self.session = Session(dsn, f"jobqueue {self.role}", prepare_threshold=prepare_threshold)
        self.incidents = Incidents()
        self._stopping = threading.Event()  # never waited for: see Bell
        self._bell = Bell()

    def run_once(self) -> int:
        raise NotImplementedError

    def after_outage(self) -> None:
        """Called once after this loop's own connection was lost, before it asks again."""

    def run(self) -> None:
        """Until `stop`, through outages. Raises JobQueueError where asking again can't help: no schema, no right."""
        pause = Pause()
        try:
            while not self._stopping.is_set():
                self._bell.wait(self._step(pause))
            if self.session.is_open:
                with suppress(InfrastructureError):
                    self.incidents.flush(self.session.conn, now=True)
        finally:
            self.session.drop()

    def stop(self) -> None:
        self._stopping.set()
        self._bell.ring()

    def _step(self, pause: Pause) -> float:
        """Returns how long to wait before the next one."""
        try:
            did = self.run_once()
            self.incidents.flush(self.session.conn)
            pause.reset()
            return 0 if did else self.poll_seconds
        except InfrastructureError as error:
            wait = pause.seconds()
            log.warning("%s: %s; trying again in %.1f s", self.role, error, wait)
            self.session.drop()
            self.after_outage()
            return wait


def alert(queue: Queue, job_id: int, on_dead: OnDead | None) -> None:
    """A job has become a dead letter: an ERROR line and the caller's own alarm, which must not stop the loop."""
    try:
        job = queue.get(job_id)
    except JobQueueError as error:
        log.error("job %s became a dead letter; its row can't be read now: %s", job_id, error)
        return
    if job is None:
        return
    last = (job.last_error or "").strip().splitlines() or [""]
    log.error("job %s of type %s is %s after %s attempts: %s", job.id, job.type, job.status, job.attempts, last[-1])
    if on_dead is not None:
        try:
            on_dead(job)
        except (Exception, SystemExit):
            log.exception("on_dead raised for job %s", job.id)
