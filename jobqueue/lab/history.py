"""Histories: what clients invoked and saw (ok, failed, unknown) and what the rows say, as frozen values.

    queue = Recorder(Queue(conn), client="worker-1", file="worker-1.jsonl")   # a queue like any other, on record
    …                                                                         # its process may be killed at any time
    told = merge(*map(read, glob("*.jsonl")), from_database(conn))            # begun, but not answered: unknown
    checks.check(told)

A call is written before it is sent and again when it has been answered, each as one line, so what a killed process knew
is there. Times are the database's, asked for before and after each call; a worker's own clock is not used.
"""

import itertools
import json
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from .. import loop
from ..cron import Cron
from ..errors import InfrastructureError, InvalidInput, JobQueueError
from ..model import Lease
from ..queue import Queue
from ..sql import SQL as QUEUE
from ..sql import statements, text

SQL = statements(text("lab/history.sql"))
OK, FAILED, UNKNOWN = "ok", "failed", "unknown"


@dataclass(frozen=True)
class Call:
    """One verb on one job, as a client saw it; a batch is a call for each of its jobs.

    answer: ok, failed (refused, nothing happened), unknown (no reply: it may have happened). outcome: what it
    was told, in the queue's words. Between invoked_at and answered_at, by the database's clock, it took effect if it
    did. lease_seconds: what was asked for by claim, adopt and heartbeat. until: the end of the lease that was granted.
    """

    client: str
    n: int  # of this client's calls
    verb: str
    answer: str = UNKNOWN
    outcome: str | None = None
    job_id: int | None = None
    owner: str | None = None
    epoch: int | None = None
    until: datetime | None = None
    lease_seconds: float | None = None
    key: str | None = None
    created: bool | None = None
    invoked_at: datetime | None = None
    answered_at: datetime | None = None

    @property
    def granted_at(self) -> datetime | None:
        """When the database granted this lease: exact, since it ends lease_seconds later."""
        return self.until and self.until - timedelta(seconds=self.lease_seconds)


@dataclass(frozen=True)
class End:
    """One entry of a row's history: how a lease ended, or what was decided by hand."""

    at: datetime
    event: str
    owner: str | None
    epoch: int


@dataclass(frozen=True)
class Row:
    """One job as its row tells it, live or archived."""

    id: int
    type: str = "job"
    key: str | None = None
    status: str = "ready"
    attempts: int = 0
    max_attempts: int = 5
    lease_losses: int = 0
    releases: int = 0
    epoch: int = 0
    owner: str | None = None
    locked_until: datetime | None = None
    run_at: datetime | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    finished_by: str | None = None
    finished_epoch: int | None = None
    published_by: str | None = None
    published_epoch: int | None = None
    published_name: str | None = None
    published_digest: str | None = None
    schedule_id: str | None = None
    slot: datetime | None = None
    history: tuple[End, ...] = ()
    history_trimmed: int = 0
    archived: bool = False


@dataclass(frozen=True)
class Effect:
    """What a destination took in, in the order it did; once: it promises to take each key in once."""

    destination: str
    key: str
    job_id: int
    epoch: int
    owner: str | None = None
    at: datetime | None = None
    once: bool = True


@dataclass(frozen=True)
class Incident:
    at: datetime
    name: str
    type: str | None
    n: int


@dataclass(frozen=True)
class Slot:
    """A slot of a schedule. reason: why it was passed over (misfire, overlap); None: it has to have its job."""

    schedule_id: str
    slot: datetime
    reason: str | None = None


@dataclass(frozen=True)
class Policy:
    """What a schedule does with slots that are found late, and while its previous job has not ended."""

    schedule_id: str
    misfire: str = "last"
    misfire_grace_seconds: float = 60
    max_catch_up: int = 100
    overlap: str = "allow"


@dataclass(frozen=True)
class History:
    """Everything that is known of a run. settled: it was left to end, so that no job may be on its way any more."""

    calls: tuple[Call, ...] = ()
    rows: tuple[Row, ...] = ()
    effects: tuple[Effect, ...] = ()
    incidents: tuple[Incident, ...] = ()
    missed: tuple[Slot, ...] = ()
    expected: tuple[Slot, ...] = ()
    policies: tuple[Policy, ...] = ()
    settled: bool = False

    def of_job(self, job_id: int) -> tuple[Call, ...]:
        """Its calls; those with a known time in order of time, then of client and number."""
        return tuple(sorted((call for call in self.calls if call.job_id == job_id), key=_in_order))


_PARTS = {
    "calls": Call, "rows": Row, "effects": Effect, "incidents": Incident, "missed": Slot, "expected": Slot,
    "policies": Policy,
}  # fmt: skip
_FAR = datetime.max.replace(tzinfo=UTC)


def _in_order(call: Call):
    return call.granted_at or call.invoked_at or _FAR, call.client, call.n


# ---------------------------------------------------------------- reading the database


def from_database(conn: psycopg.Connection, *, settled: bool = False) -> History:
    """The rows, live and archived, effects (the lab's own destinations, too), incidents, schedules and missed slots of
    one instant."""
    with conn.transaction(), conn.cursor(row_factory=dict_row) as cursor:
        conn.execute(SQL.one_instant)

        def read(statement):
            return cursor.execute(statement).fetchall()

        effects = read(SQL.effects)
        if list(read(SQL.has_lab_effects)[0].values())[0]:
            effects += read(SQL.lab_effects)
        return History(
            rows=tuple(Row(**row | {"history": tuple(map(_end, row["history"]))}) for row in read(SQL.rows)),
            effects=tuple(Effect(**row) for row in effects),
            incidents=tuple(Incident(**row) for row in read(SQL.incidents)),
            missed=tuple(Slot(**row) for row in read(SQL.missed_slots)),
            policies=tuple(Policy(**row) for row in read(SQL.policies)),
            settled=settled,
        )


def slots_expected(schedule_id: str, cron: str, *, after: datetime, until: datetime, timezone: str = "UTC") -> History:
    """The slots that must have fired, or be named as missed: after < slot ≤ until. Merge it with what was read."""
    slots = Cron(cron, timezone, schedule_id).slots(after, until)
    return History(expected=tuple(Slot(schedule_id, slot) for slot in slots))


def merge(*histories: History) -> History:
    """One history of several processes and the database; of a row that was read twice the later reading (argument)
    stays."""
    rows = {row.id: row for history in histories for row in history.rows}
    joined = {name: _joined(histories, name) for name in _PARTS if name not in ("calls", "rows")}
    calls = sorted(_joined(histories, "calls"), key=lambda call: (call.client, call.n))
    settled = any(history.settled for history in histories)
    return History(calls=tuple(calls), rows=tuple(rows[id] for id in sorted(rows)), settled=settled, **joined)


def _joined(histories: Iterable[History], name: str) -> tuple:
    """Each fact as often as the history has it that has it most: read twice is one, twice in one reading is two."""
    counted: Counter = Counter()
    for history in histories:
        counted |= Counter(getattr(history, name))
    return tuple(counted.elements())


def _end(entry: dict[str, Any]) -> End:
    return End(datetime.fromisoformat(entry["at"]), entry["event"], entry["owner"], entry["epoch"])


# ---------------------------------------------------------------- JSON lines


def dumps(history: History) -> str:
    """JSON lines, one a fact; `loads` gives the same history back."""
    lines = [json.dumps({"settled": history.settled})] if history.settled else []
    for part in _PARTS:
        lines += [json.dumps({part: _bare(fact)}, default=_text) for fact in getattr(history, part)]
    return "".join(line + "\n" for line in lines)


def loads(source: str) -> History:
    """A history from JSON lines. Of a call begun and answered the answer stays; a torn last line is left out."""
    found: dict[str, dict] = {part: {} for part in _PARTS}
    settled = False
    for number, entry in _entries(source):
        [(part, values)] = entry.items()
        if part == "settled":
            settled = bool(values)
        elif part in _PARTS:
            fact = _fact(_PARTS[part], values, number)
            found[part][(fact.client, fact.n) if part == "calls" else number] = fact
        else:
            raise InvalidInput(f"line {number}: a history has {', '.join(_PARTS)}, not {part!r}")
    return History(**{part: tuple(facts.values()) for part, facts in found.items()}, settled=settled)


def read(path: str | Path) -> History:
    """What a Recorder wrote, also one whose process was killed in the middle of a line."""
    return loads(Path(path).read_text(encoding="utf-8"))


def _entries(source: str) -> Iterator[tuple[int, dict]]:
    lines = source.split("\n")
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line) if line else None
        except ValueError:
            if number == len(lines):
                return  # torn: the process was killed while it wrote
            raise InvalidInput(f"line {number} is not JSON: {line[:80]!r}") from None
        if entry is not None:
            if not isinstance(entry, dict) or len(entry) != 1:
                raise InvalidInput(f"line {number} is not one fact: {line[:80]!r}")
            yield number, entry


def _bare(fact) -> dict[str, Any]:
    """Without what is as by default: a day of a worker is 10 MB and not 40."""
    plain = {field.name: field.default for field in fields(fact)}
    return {name: value for name, value in asdict(fact).items() if value != plain[name]}


def _fact(kind, values: dict[str, Any], number: int):
    try:
        given = {name: _value(kind, name, value) for name, value in values.items()}
        return kind(**given)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise InvalidInput(f"line {number} is no {kind.__name__}: {error}") from error


def _value(kind, name: str, value):
    if name == "history":
        return tuple(_end(entry) for entry in value)
    is_instant = name.endswith(("_at", "until")) or name in ("at", "slot")
    return datetime.fromisoformat(value) if is_instant and value is not None else value


def _text(value) -> str:
    return value.isoformat()


# ---------------------------------------------------------------- recording


def record_process(folder: str | Path) -> None:
    """Every queue that a loop of this process opens from now on is on record, a file of its own each in `folder`.

    For real workers: call it where their handlers are defined. Costs two short statements a call, for the time.
    """
    numbers = itertools.count(1)

    def opened(conn: psycopg.Connection) -> Recorder:
        name = f"{socket.gethostname()}-{os.getpid()}-{next(numbers)}"
        return Recorder(Queue(conn), name, file=Path(folder, f"{name}.jsonl"), keep=False)

    loop.Queue = opened  # type: ignore[assignment, misc]


_LEASED = ("heartbeat", "complete", "fail", "release", "publish")
_BATCHES = {"heartbeat_many": "heartbeat", "complete_many": "complete"}


class Recorder:
    """A queue whose calls are kept in `calls`, and in `file` where one is given, for one client (a name of its own
    each).

    clock: the database's time (default: asked for before and after each call, two short statements more).
    What is not recorded (get, explain, measures) goes to the queue as it is.
    """

    def __init__(
        self,
        queue: Queue,
        client: str,
        *,
        file: str | Path | None = None,
        clock: Callable[[], datetime] | None = None,
        keep: bool = True,
    ):
        self._queue, self._client, self._keeps = queue, client, keep
        self._clock = clock or (lambda: _database_now(queue.conn))
        self._file = open(file, "a", encoding="utf-8", buffering=1) if file else None  # noqa: SIM115 - stays open
        self._lock, self._next = threading.Lock(), itertools.count(1)
        self._calls: dict[int, Call] = {}

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(self._calls.values())

    @property
    def history(self) -> History:
        """What this client saw."""
        return History(calls=self.calls)

    def __getattr__(self, name: str):
        return getattr(self._queue, name)

    def enqueue(self, type: str, payload: Any = None, *, key: str | None = None, **rest):
        [begun] = self._begun([Call(self._client, 0, "enqueue", key=key)])
        told = self._sent([begun], lambda: self._queue.enqueue(type, payload, key=key, **rest))
        self._keep(self._answered(begun, job_id=told.id, created=told.created))
        return told

    def enqueue_many(self, jobs):
        jobs = list(jobs)
        begun = self._begun([Call(self._client, 0, "enqueue", key=job.get("key")) for job in jobs])
        told = self._sent(begun, lambda: self._queue.enqueue_many(jobs))
        for call, one in zip(begun, told, strict=True):
            self._keep(self._answered(call, job_id=one.id, created=one.created))
        return told

    def claim(self, owner: str, *, lease_seconds: float = 30, **rest):
        [begun] = self._begun([Call(self._client, 0, "claim", owner=owner, lease_seconds=lease_seconds)])
        claim = self._sent([begun], lambda: self._queue.claim(owner, lease_seconds=lease_seconds, **rest))
        self._granted(begun, list(claim))
        return claim

    def adopt(self, job_id: int, owner: str, *, lease_seconds: float = 30):
        [begun] = self._begun([Call(self._client, 0, "adopt", job_id=job_id, owner=owner, lease_seconds=lease_seconds)])
        lease = self._sent([begun], lambda: self._queue.adopt(job_id, owner, lease_seconds=lease_seconds))
        self._granted(begun, [lease] if lease else [])
        return lease

    def exchange(self, finished, owner: str, *, leases: dict[str, float], **rest):
        """Its types are taken to have one lease length: the longest, where they differ, is on record."""
        seconds = max(leases.values(), default=0)
        wanted = [_of_lease(self._client, "complete", lease) for lease in finished]
        *ends, begins = self._begun([*wanted, Call(self._client, 0, "claim", owner=owner, lease_seconds=seconds)])
        exchanged = self._sent([*ends, begins], lambda: self._queue.exchange(finished, owner, leases=leases, **rest))
        told, claim = exchanged
        for call, outcome in zip(ends, told, strict=True):
            self._keep(self._answered(call, outcome=outcome.name))
        self._granted(begins, list(claim), {lease.id: leases[lease.type] for lease in claim})
        return exchanged

    def heartbeat(self, lease: Lease, *, lease_seconds: float = 30):
        return self._spoken(
            "heartbeat", lease, lambda: self._queue.heartbeat(lease, lease_seconds=lease_seconds), lease_seconds
        )

    def complete(self, lease: Lease, *, strict: bool = False):
        return self._spoken("complete", lease, lambda: self._queue.complete(lease, strict=strict))

    def fail(self, lease: Lease, error, **rest):
        return self._spoken("fail", lease, lambda: self._queue.fail(lease, error, **rest))

    def fail_and_tell(self, lease: Lease, error, **rest):
        told: list = []

        def send():
            told.extend(self._queue.fail_and_tell(lease, error, **rest))
            return told[0]

        self._spoken("fail", lease, send)
        return tuple(told)

    def release(self, lease: Lease, reason: str, **rest):
        return self._spoken("release", lease, lambda: self._queue.release(lease, reason, **rest))

    def publish(self, lease: Lease, name: str, digest: str):
        return self._spoken("publish", lease, lambda: self._queue.publish(lease, name, digest))

    def heartbeat_many(self, leases, *, lease_seconds=30):
        each = list(lease_seconds) if isinstance(lease_seconds, (list, tuple)) else [lease_seconds] * len(leases)
        return self._batch(
            "heartbeat", leases, lambda: self._queue.heartbeat_many(leases, lease_seconds=lease_seconds), each
        )

    def complete_many(self, leases):
        return self._batch("complete", leases, lambda: self._queue.complete_many(leases), [None] * len(leases))

    def cancel(self, job_id: int):
        [begun] = self._begun([Call(self._client, 0, "cancel", job_id=job_id)])
        told = self._sent([begun], lambda: self._queue.cancel(job_id))
        self._keep(self._answered(begun, outcome=told.after, created=told.before != told.after))
        return told

    def redrive(self, job_ids=None, **rest):
        [begun] = self._begun([Call(self._client, 0, "redrive")])
        told = self._sent([begun], lambda: self._queue.redrive(job_ids, **rest))
        self._each(begun, [{"job_id": id} for id in told])
        return told

    def reap(self, **rest):
        return self._reaped(lambda: self._queue.reap(**rest))

    def reap_by_type(self, **rest):
        return self._reaped(lambda: self._queue.reap_by_type(**rest))

    def _reaped(self, send):
        [begun] = self._begun([Call(self._client, 0, "reap")])
        told = self._sent([begun], send)
        ends = [{"job_id": one.id, "owner": one.owner, "epoch": one.epoch, "outcome": one.status} for one in told]
        self._each(begun, ends)
        return told

    # ------------------------------------------------------------ keeping

    def _spoken(self, verb: str, lease: Lease, send, lease_seconds=None):
        return self._batch(verb, [lease], lambda: [send()], [lease_seconds])[0]

    def _batch(self, verb: str, leases, send, lease_seconds):
        wanted = [
            replace(_of_lease(self._client, verb, lease), lease_seconds=seconds)
            for lease, seconds in zip(leases, lease_seconds, strict=True)
        ]
        begun = self._begun(wanted)
        told = self._sent(begun, send)
        for call, outcome in zip(begun, told, strict=True):
            self._keep(self._answered(call, outcome=outcome.name))
        return told

    def _granted(self, begun: Call, leases: list[Lease], seconds: dict[int, float] | None = None) -> None:
        self._each(begun, [
            {"job_id": one.id, "owner": one.owner, "epoch": one.epoch, "until": one.locked_until,
             "lease_seconds": (seconds or {}).get(one.id, begun.lease_seconds)} for one in leases
        ])  # fmt: skip

    def _each(self, begun: Call, facts: list[dict]) -> None:
        """The call that was begun tells the first; each other gets a number of its own."""
        self._keep(self._answered(begun, **(facts[0] if facts else {"outcome": "nothing"})))
        for fact in facts[1:]:
            self._keep(replace(self._answered(begun, **fact), n=next(self._next)))

    def _begun(self, calls: list[Call]) -> list[Call]:
        now = self._now()
        with self._lock:
            begun = [replace(call, n=next(self._next), invoked_at=now) for call in calls]
        for call in begun:
            self._keep(call)
        return begun

    def _sent(self, begun: list[Call], send):
        try:
            return send()
        except (InfrastructureError, psycopg.Error) as error:
            self._close(begun, UNKNOWN, error)
            raise
        except JobQueueError as error:
            self._close(begun, FAILED, error)
            raise

    def _close(self, begun: list[Call], answer: str, error: Exception) -> None:
        for call in begun:
            self._keep(replace(call, answer=answer, outcome=f"{type(error).__name__}: {error}"[:200]))

    def _answered(self, call: Call, **told) -> Call:
        """Inside a caller's transaction it counts when that commits, which is not for this recorder to know."""
        idle = self._queue.conn.info.transaction_status == TransactionStatus.IDLE
        return replace(call, answer=OK if idle else UNKNOWN, answered_at=self._now(), **told)

    def _now(self) -> datetime | None:
        """None where the database can't be asked: the call itself will say so."""
        try:
            return self._clock()
        except psycopg.Error:
            return None

    def _keep(self, call: Call) -> None:
        with self._lock:
            if self._keeps:
                self._calls[call.n] = call
            if self._file:
                self._file.write(json.dumps({"calls": _bare_call(call)}, default=_text) + "\n")


def _database_now(conn: psycopg.Connection) -> datetime:
    if conn.autocommit:
        return conn.execute(QUEUE.database_now).fetchone()[0]
    with conn.transaction():  # or a claim, which follows, would find one open and refuse
        return conn.execute(QUEUE.database_now).fetchone()[0]


def _bare_call(call: Call) -> dict[str, Any]:
    return {
        name: value
        for name, value in asdict(call).items()
        if value is not None and (name, value) != ("answer", UNKNOWN)
    }


def _of_lease(client: str, verb: str, lease: Lease) -> Call:
    return Call(client, 0, verb, job_id=lease.id, owner=lease.owner, epoch=lease.epoch)
