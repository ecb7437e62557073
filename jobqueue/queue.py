"""The verbs of the table queue: one method, one statement, and an Outcome where a lease is asked about."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import TupleRow, dict_row, namedtuple_row, tuple_row

from . import bulk, limits
from .backoff import Backoff
from .bulk import DEFAULT_MAX_ATTEMPTS, array, texts
from .errors import InfrastructureError, InvalidInput, JobQueueError
from .installation import install, uninstall
from .model import Cancellation, Claim, Empty, Enqueued, Job, Lease, Place, Reaped, job_from
from .outcome import AGAIN, STALE, Candidate, Outcome, Sight, decide
from .sql import SQL
from .transactions import READABLE, together, translated

TERMINAL = ("done", "failed", "dead", "cancelled")
_DEFAULT_BACKOFF = Backoff()
_SENDS = 3  # a statement is sent again twice where the row is still the lease's; then something unseen holds it


class Queue:
    """A table queue over one psycopg connection; not for use by several threads at once.

    On an autocommit connection, outside a block, each method is its own transaction; otherwise it runs in the caller's
    and counts when the caller commits. `claim` and `adopt` always commit by themselves and refuse inside a transaction.
    A connection on which you claim for long is best opened with options="-c enable_seqscan=off", as the workers' are: a
    statement prepared while the table is small would keep a sequential scan until autovacuum's next look at it.
    All methods raise InvalidInput (bad arguments, before any SQL), InfrastructureError (ask again later) or
    JobQueueError.
    """

    def __init__(self, conn: psycopg.Connection[Any], *, rng: random.Random | None = None) -> None:
        self.conn = conn
        self.rng = rng or random.Random()
        self._cursor: psycopg.Cursor[TupleRow] | None = None  # kept: a new one would look up every dumper again

    def install(self, *, virtual: bool = False, roles: bool = False) -> None:
        """Creates or upgrades the schema; idempotent, safe when many start at once. virtual=True is for the lab."""
        with translated(self.conn):
            install(self.conn, virtual=virtual, roles=roles)

    def uninstall(self) -> None:
        """Drops the schema `jobqueue` with everything in it."""
        with translated(self.conn):
            uninstall(self.conn)

    # ------------------------------------------------------------ enqueue

    def enqueue(
        self,
        type: str,
        payload: Any = None,
        *,
        key: str | None = None,
        run_at: datetime | None = None,
        delay_seconds: float | None = None,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    ) -> Enqueued:
        """Adds a job; the same key again is a no-op that returns the first job's id (and whether both match)."""
        job = bulk.checked_job(type, payload, key, run_at, delay_seconds, max_attempts)
        with translated(self.conn):
            for _ in range(_SENDS):
                created = self._row(SQL.enqueue if key is None else SQL.enqueue_keyed, job)
                if created:
                    self._wake([job] if created[1] else [])
                    return Enqueued(created[0], True)
                known = self._row(SQL.key_look, job)
                if known:
                    return Enqueued(known[0], False, known[1])
        raise InfrastructureError(f"the key {key!r} comes and goes: another transaction is pruning it, try again")

    def enqueue_many(self, jobs: Iterable[dict[str, Any]]) -> list[Enqueued]:
        """Adds jobs (dicts with the arguments of `enqueue`) in one transaction; answers in input order."""
        checked = bulk.checked(jobs)
        if len(checked) >= bulk.COPY_FROM and not self._is_pipelined:
            with translated(self.conn):
                ids = bulk.copied(self.conn, checked)
            if ids is not None:
                self._wake(checked)
                return [Enqueued(id, True) for id in ids]
        results: dict[int, Enqueued] = {}
        with translated(self.conn):
            for _ in range(_SENDS):
                if left := [place for place in range(len(checked)) if place not in results]:
                    self._enqueue_batch(checked, left, results)
        if len(results) < len(checked):
            raise InfrastructureError("some keys come and go: another transaction is pruning them, try again")
        return [results[place] for place in range(len(checked))]

    def _wake(self, jobs: list[dict[str, Any]]) -> None:
        """Tells workers that wait for such jobs; a hint, so its failure is none of the jobs', which are committed."""
        due = [job["type"] for job in jobs if job["run_at"] is None and not job["delay"]]
        if due:
            committed = self.conn.info.transaction_status == TransactionStatus.IDLE
            with translated(self.conn), suppress(psycopg.Error) if committed else nullcontext():
                self._rows(SQL.wake, {"types": list(set(due)), "count": len(due)})

    @property
    def _is_pipelined(self) -> bool:
        """COPY can't be part of a caller's pipeline."""
        return self.conn.pgconn.pipeline_status != PipelineStatus.OFF

    def _enqueue_batch(self, checked: list[dict[str, Any]], places: list[int], results: dict[int, Enqueued]) -> None:
        columns = bulk.columns([checked[place] for place in places])
        created = self._rows(SQL.enqueue_many, columns)
        results |= {places[ord_ - 1]: Enqueued(id_, True) for ord_, id_, _ in created}
        self._wake([checked[places[ord_ - 1]] for ord_, _, heard in created if heard])
        if any(place not in results for place in places):
            for ord_, id_, matches in self._rows(SQL.key_look_many, columns):
                results.setdefault(places[ord_ - 1], Enqueued(id_, False, matches))

    # ------------------------------------------------------------ claim

    def claim(
        self, owner: str, *, limit: int = 1, lease_seconds: float = 30, types: Sequence[str] | None = None
    ) -> Claim:
        """Up to `limit` due jobs under a lease, oldest first (types=None: of any type); committed when this returns."""
        owner, limit, types = limits.owner(owner), limits.batch(limit), limits.types(types)
        lease_seconds = limits.lease_seconds(lease_seconds)
        with translated(self.conn), self._own_transaction("claim"):
            if types is None:
                types = [row[0] for row in self._rows(SQL.ready_types, {})]
            rows = self._rows(SQL.claim, claim_arguments(owner, dict.fromkeys(types, lease_seconds), limit))
            return _claim(rows) if rows else self._why_empty(types)

    def exchange(
        self,
        finished: Sequence[Lease],
        owner: str,
        *,
        leases: dict[str, float],
        slots: int,
        ahead: int = 0,
        after: Place | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> "Exchanged":
        """What a worker's round needs, in one transaction and one round trip: complete what finished, claim what is
        free.

        leases: lease seconds by type to claim. slots jobs are for free slots; `ahead` more are for later: these are
        never a last attempt, nor a job that has lost a lease, because a crash of this process takes all that it holds
        with it. after: the `last` of an earlier claim, where this one begins (None: at the oldest due job); what became
        due before it later on is not seen. Outcomes are those of complete_many; the claim is empty without a reason
        (ask `why_empty`). meanwhile: called once all is sent, while the server works.
        """
        limit = limits.integer(slots + ahead, "slots and ahead together", 0, limits.BATCH)
        asked = claim_arguments(owner, leases, slots, ahead, after)
        with translated(self.conn), self._own_transaction("claim"):
            if not finished and meanwhile is None:
                return Exchanged([], _claim(self._rows(SQL.claim, asked)))
            ends, begins = (self.conn.cursor(row_factory=tuple_row) for _ in range(2))
            with self.conn.pipeline():
                if finished:
                    ends.execute(SQL.complete_many, _held(finished))
                if limit:
                    begins.execute(SQL.claim, asked)
                if meanwhile is not None:
                    meanwhile()
            # Read only here, after the block's Sync: before the commit is confirmed nothing has happened.
            rows = ends.fetchall() if finished and ends.rowcount < len(finished) else finished
            outcomes = self._answers("complete", finished, rows)
            return Exchanged(outcomes, begins if limit else _claim([]))

    def why_empty(self, types: Sequence[str]) -> Claim:
        """An empty claim with its reason, for these types, without claiming."""
        with translated(self.conn):
            return self._why_empty(list(types))

    def _why_empty(self, types: list[str]) -> Claim:
        [(locked, next_run_at, asked_at)] = self._rows(SQL.why_empty, {"types": types})
        reason = Empty.LOCKED if locked else Empty.NOT_DUE if next_run_at else Empty.NONE
        return Claim((), reason, next_run_at, asked_at)

    def adopt(self, job_id: int, owner: str, *, lease_seconds: float = 30) -> Lease | None:
        """Takes over one job whose lease has ended and which has an attempt left; None where that does not hold."""
        asked = {"id": limits.job_id(job_id), "owner": limits.owner(owner)}
        asked["lease"] = limits.lease_seconds(lease_seconds)
        with translated(self.conn), self._own_transaction("adopt"):
            row = self._row(SQL.adopt, asked)
        return _lease(row) if row else None

    @contextmanager
    def _own_transaction(self, verb: str) -> Iterator[None]:
        """Claims commit by themselves: after a caller's rollback the same epoch would be handed out twice."""
        if self.conn.closed:
            raise InfrastructureError(f"{verb} needs an open connection: this one is closed, or was lost")
        info = self.conn.info
        if info.transaction_status != TransactionStatus.IDLE:
            raise JobQueueError(f"{verb} refuses to join an open transaction: its epoch must be committed first")
        # pgbouncer tells them as they were asked for: utf8, iso.
        encoding, dates = (info.parameter_status(name) or "" for name in ("client_encoding", "DateStyle"))
        if encoding.upper() not in ("UTF8", "UTF-8", "UNICODE") or not dates.upper().startswith("ISO"):
            raise JobQueueError(f"{verb} refuses a connection on which its answer can't be read: {READABLE}")
        if self.conn.autocommit:
            yield
        else:
            with self.conn.transaction():
                yield

    # ------------------------------------------------------------ what a lease can do

    def heartbeat(self, lease: Lease, *, lease_seconds: float = 30) -> Outcome:
        """Renews to now + lease_seconds, never to less than it has; accepted after expiry while nobody took over."""
        return self._transition("heartbeat", lease, SQL.heartbeat, lease=limits.lease_seconds(lease_seconds))

    def heartbeat_many(
        self, leases: Sequence[Lease], *, lease_seconds: float | list[float] | tuple[float, ...] = 30
    ) -> list[Outcome]:
        """One statement for all (lease_seconds: one for all, or one each); never waits: HELD is locked, send again."""
        each = list(lease_seconds) if isinstance(lease_seconds, (list, tuple)) else [lease_seconds] * len(leases)
        if len(each) != len(leases):
            raise InvalidInput(f"lease_seconds has {len(each)} entries for {len(leases)} leases")
        return self._many("heartbeat", leases, SQL.heartbeat_many, seconds=[limits.lease_seconds(one) for one in each])

    def complete(self, lease: Lease, *, strict: bool = False) -> Outcome:
        """The job is done. strict=True: only while the lease is in force, decided after any lock wait."""
        if not strict:
            return self._transition("complete", lease, SQL.complete)
        return self._transition("strict complete", lease, SQL.complete_strict)

    def complete_many(self, leases: Sequence[Lease]) -> list[Outcome]:
        """One statement for all; never waits: HELD means that the row is locked by another transaction, send again."""
        return self._many("complete", leases, SQL.complete_many)

    def fail(
        self,
        lease: Lease,
        error: str | BaseException,
        *,
        delay_seconds: float | None = None,
        permanent: bool = False,
        backoff: Backoff = _DEFAULT_BACKOFF,
    ) -> Outcome:
        """This attempt failed: ready again after the backoff, `dead` without attempts left, `failed` if permanent."""
        return self.fail_and_tell(lease, error, delay_seconds=delay_seconds, permanent=permanent, backoff=backoff)[0]

    def fail_and_tell(
        self,
        lease: Lease,
        error: str | BaseException,
        *,
        delay_seconds: float | None = None,
        permanent: bool = False,
        backoff: Backoff = _DEFAULT_BACKOFF,
    ) -> tuple[Outcome, str | None]:
        """As `fail`; also the status that this call gave the job (None where it changed nothing)."""
        delay = backoff.delay(lease.attempt, self.rng) if delay_seconds is None else limits.delay_seconds(delay_seconds)
        verb = "fail permanently" if permanent else "fail"
        told: list[TupleRow] = []
        text = limits.error_text(error)
        given: dict[str, Any] = {"error": text, "brief": limits.brief(text)}
        given |= {"delay": delay, "permanent": bool(permanent)}
        outcome = self._transition(verb, lease, SQL.fail, told, **given)
        return outcome, told[0][0] if told else None

    def release(self, lease: Lease, reason: str, *, delay_seconds: float = 0, counted: bool = True) -> Outcome:
        """Gives job and attempt back: infrastructure trouble, or a shutdown; for work that did not finish."""
        given: dict[str, Any] = {"reason": limits.brief(limits.error_text(reason)), "counted": bool(counted)}
        given["delay"] = limits.delay_seconds(delay_seconds)
        return self._transition("release", lease, SQL.release, **given)

    def publish(self, lease: Lease, name: str, digest: str) -> Outcome:
        """Makes a candidate the job's result: while the lease is in force (after any lock wait), once an epoch."""
        candidate = _checked_candidate(name, digest)
        return self._transition("publish", lease, SQL.publish, candidate=candidate, name=name, digest=digest)

    def reconcile(self, lease: Lease, *, name: str | None = None, digest: str | None = None) -> Outcome:
        """What became of this lease, without changing anything (as complete; with a candidate, as publish).

        HELD: still running and mine, nothing recorded. Advice only: a lost COMMIT may land later; a resend is exact.
        """
        candidate = None if name is None and digest is None else _checked_candidate(name, digest)
        verb = "publish" if candidate else "complete"
        with translated(self.conn):
            found = self._decided(verb, lease, self._sights([lease.id]).get(lease.id), candidate)
        return Outcome.HELD if found is AGAIN else found

    def _transition(
        self,
        verb: str,
        job_lease: Lease,
        statement: str,
        told: list[TupleRow] | None = None,
        *,
        candidate: Candidate | None = None,
        **given: Any,
    ) -> Outcome:
        asked = given | {"id": job_lease.id, "owner": job_lease.owner, "epoch": job_lease.epoch}
        with translated(self.conn):
            for _ in range(_SENDS):
                rows = self._sent(verb, statement, asked)
                if rows:
                    if told is not None:
                        told.extend(rows)
                    return Outcome.APPLIED
                found = self._decided(verb, job_lease, self._sights([job_lease.id]).get(job_lease.id), candidate)
                if found is not AGAIN:
                    return found
        raise InfrastructureError(f"job {job_lease.id} is this lease's, but it could not {verb} it: try again")

    def _sent(self, verb: str, statement: str, asked: dict[str, Any]) -> list[TupleRow]:
        """One statement; a verb that needs a lease in force locks first, so that its clock is from after any wait."""
        if verb not in ("publish", "strict complete"):
            return self._rows(statement, asked)
        with together(self.conn):
            self._rows(SQL.lease_lock, asked)
            return self._rows(statement, asked)

    def _many(self, verb: str, leases: Sequence[Lease], statement: str, **columns: Any) -> list[Outcome]:
        if not leases:
            return []
        with translated(self.conn):
            return self._answers(verb, leases, self._rows(statement, _held(leases) | columns))

    def _answers(self, verb: str, leases: Sequence[Lease], rows: Sequence[Any]) -> list[Outcome]:
        if len(rows) == len(leases):  # a row is told once: each lease has hit its own
            return [Outcome.APPLIED] * len(leases)
        hit = set(rows)
        sights = self._sights([lease.id for lease in leases if _identity(lease) not in hit])
        return [self._answer(verb, lease, hit, sights) for lease in leases]

    def _answer(self, verb: str, lease: Lease, hit: set[TupleRow], sights: dict[int, Sight]) -> Outcome:
        if _identity(lease) in hit:
            return Outcome.APPLIED
        found = self._decided(verb, lease, sights.get(lease.id), None)
        return Outcome.HELD if found is AGAIN else found

    def _sights(self, ids: list[int]) -> dict[int, Sight]:
        with self.conn.cursor(row_factory=dict_row) as cursor:
            rows = cursor.execute(SQL.look, {"ids": ids}).fetchall()
        return {row.pop("id"): Sight(**row) for row in rows}

    def _decided(self, verb: str, lease: Lease, sight: Sight | None, candidate: Candidate | None) -> Outcome | None:
        found = decide(verb, lease.owner, lease.epoch, sight, candidate)
        if found == STALE or (sight is None and self._rows(SQL.isolation, {})[0][0]):
            raise InfrastructureError(
                f"this transaction's snapshot is older than the lease on job {lease.id}: ask in one of its own"
            )
        return found

    # ------------------------------------------------------------ reap

    def reap(self, *, limit: int = 100, backoff: Backoff = _DEFAULT_BACKOFF) -> list[Reaped]:
        """Takes ended leases away, at most `limit`; rows that other transactions hold are left for the next pass."""
        return self.reap_by_type(limit=limit, backoff_of=lambda type: backoff)

    def reap_by_type(self, *, limit: int, backoff_of: Callable[[str], Backoff]) -> list[Reaped]:
        """As `reap`, with a backoff for each type."""
        limit = limits.batch(limit)
        with translated(self.conn), together(self.conn):
            expired = self._rows(SQL.expired, {"limit": limit, "ids": None})
            if not expired:
                return []
            delays = [backoff_of(row[1]).delay(row[4], self.rng) for row in expired]
            given = {"ids": [row[0] for row in expired], "delays": delays}
            status = {row[0]: row[1] for row in self._rows(SQL.reap, given)}
        return [Reaped(id, type, owner, epoch, status[id]) for id, type, owner, epoch, *_ in expired if id in status]

    # ------------------------------------------------------------ decisions by hand

    def cancel(self, job_id: int) -> Cancellation:
        """Cancels a ready or running job; says what is blocked from now on and what may already have happened."""
        asked = {"id": limits.job_id(job_id)}
        with translated(self.conn):
            row = self._row(SQL.cancel, asked)
            job = None if row else self.get(job_id)
        if row is None:
            return _not_cancelled(job_id, job.status if job else None)
        status, owner, epoch, started_at, applied = row
        return _cancelled(job_id, status, owner, epoch, started_at) if applied else _not_cancelled(job_id, status)

    def cancel_type(self, type: str) -> int:
        """Cancels every ready and running job of a type, in batches; returns how many."""
        asked = {"type": limits.job_type(type), "limit": limits.BATCH}
        with translated(self.conn):
            return sum(iter(lambda: len(self._rows(SQL.cancel_type, asked)), 0))

    def redrive(
        self, job_ids: Sequence[int] | None = None, *, type: str | None = None, cancelled: bool = False
    ) -> list[int]:
        """Dead letters (on request cancelled jobs, too) back to ready with all attempts; returns the ids changed."""
        if job_ids is None and type is None:
            raise InvalidInput("redrive needs job_ids or type: it never redrives everything by accident")
        asked = {
            "ids": None if job_ids is None else [limits.job_id(one) for one in job_ids],
            "type": None if type is None else limits.job_type(type),
            "statuses": ["dead", "failed"] + ["cancelled"] * bool(cancelled),
        }
        with translated(self.conn):
            return sorted(row[0] for row in self._rows(SQL.redrive, asked))

    def pause_type(self, type: str) -> None:
        """Jobs of this type are not claimed any more until resumed; running ones go on."""
        with translated(self.conn):
            self.conn.execute(SQL.pause_type, {"type": limits.job_type(type)})

    def resume_type(self, type: str) -> None:
        """Jobs of this type are claimed again."""
        with translated(self.conn):
            self.conn.execute(SQL.resume_type, {"type": limits.job_type(type)})

    def archive(self, *, older_than_seconds: float, statuses: Sequence[str] = ("done",), limit: int = 1000) -> int:
        """Moves at most `limit` rows that finished so long ago to job_archive; keys stay used. Returns how many."""
        unknown = set(statuses) - set(TERMINAL)
        if isinstance(statuses, str) or unknown:
            raise InvalidInput(f"statuses must be some of {', '.join(TERMINAL)}, not {statuses!r}")
        asked = {"age": limits.delay_seconds(older_than_seconds, "older_than_seconds"), "statuses": list(statuses)}
        with translated(self.conn):
            return len(self._rows(SQL.archive, asked | {"limit": limits.batch(limit)}))

    # ------------------------------------------------------------ reading

    def get(self, job_id: int) -> Job | None:
        """The row, live or archived."""
        return next(iter(self._jobs(SQL.job, {"id": limits.job_id(job_id)})), None)

    def dead_letters(self, *, type: str | None = None, limit: int = 100) -> list[Job]:
        """Live rows that are dead or failed, the newest first."""
        asked = {"type": None if type is None else limits.job_type(type), "limit": limits.batch(limit)}
        return self._jobs(SQL.dead_letters, asked)

    def explain(self, job_id: int) -> str:
        """The whole story of one row in plain sentences."""
        from .story import tell

        job = self.get(job_id)
        if job is None:
            return f"Job {job_id} is unknown: never enqueued, rolled back, or its archive row has been pruned."
        with translated(self.conn), self.conn.cursor(row_factory=namedtuple_row) as cursor:
            asked = vars(job) | {"payload": None, "history": None}
            around: Any = cursor.execute(SQL.surroundings, asked).fetchone()
            return tell(job, around)

    def _jobs(self, statement: str, asked: dict[str, Any]) -> list[Job]:
        with translated(self.conn), self.conn.cursor(row_factory=dict_row) as cursor:
            return [job_from(row) for row in cursor.execute(statement, asked).fetchall()]

    def _rows(self, statement: str, asked: dict[str, Any]) -> list[TupleRow]:
        if self._cursor is None:
            self._cursor = self.conn.cursor(row_factory=tuple_row)
        return self._cursor.execute(statement, asked).fetchall()

    def _row(self, statement: str, asked: dict[str, Any]) -> TupleRow | None:
        return next(iter(self._rows(statement, asked)), None)


def claim_arguments(
    owner: str, leases: dict[str, float], slots: int, ahead: int = 0, after: Place | None = None
) -> dict[str, Any]:
    """What the statement `claim` takes; as `exchange`, unchecked."""
    after_at, after_id = after or ("-infinity", 0)
    asked = {"owner": owner, "types": list(leases), "leases": list(leases.values())}
    return asked | {"limit": slots + ahead, "slots": slots, "after_at": after_at, "after_id": after_id}


class Exchanged:
    """What an exchange brought, as (outcomes, claim). The claim is read from the answer when it is first asked for: a
    worker sends its next exchange before, and the server does not wait for that."""

    def __init__(self, outcomes: list[Outcome], claim: Claim | psycopg.Cursor[TupleRow]) -> None:
        self.outcomes = outcomes
        self._claim = claim

    @property
    def claim(self) -> Claim:
        if not isinstance(self._claim, Claim):
            self._claim = _claim(self._claim.fetchall())
        return self._claim

    @property
    def count(self) -> int:
        """How many jobs were claimed."""
        return len(self._claim) if isinstance(self._claim, Claim) else self._claim.rowcount

    @property
    def last(self) -> Place | None:
        """As the claim's."""
        if isinstance(self._claim, Claim):
            return self._claim.last
        self._claim.scroll(self._claim.rowcount - 1, mode="absolute")
        row = self._claim.fetchone()
        self._claim.scroll(0, mode="absolute")
        return _place(row) if row else None

    def __iter__(self) -> Iterator[Any]:
        return iter((self.outcomes, self.claim))


def _claim(rows: list[TupleRow]) -> Claim:
    return Claim(tuple(_lease(row) for row in rows), last=_place(rows[-1]) if rows else None)


def _place(row: TupleRow) -> Place:
    return row[9], row[0]


def _identity(lease: Lease) -> TupleRow:
    return lease.id, lease.owner, lease.epoch


def _held(leases: Sequence[Lease]) -> dict[str, str]:
    columns = {"ids": array([str(lease.id) for lease in leases]), "owners": texts([lease.owner for lease in leases])}
    return columns | {"epochs": array([str(lease.epoch) for lease in leases])}


def _lease(row: TupleRow) -> Lease:
    slot = row[8] and row[8].astimezone(UTC)  # two instants of a fold are equal in any other zone
    values: TupleRow = (*row[:8], slot, row[9])
    return Lease(*values)


def _checked_candidate(name: str | None, digest: str | None) -> Candidate:
    return limits.text(name, "name", limits.NAME_BYTES), limits.text(digest, "digest", limits.NAME_BYTES)


def _cancelled(job_id: int, status: str, owner: str | None, epoch: int, started_at: datetime) -> Cancellation:
    blocked = f"Job {job_id} is cancelled: from now on it is not claimed, completed, failed, released or published."
    if status == "ready":
        return Cancellation(status, "cancelled", f"{blocked} It was not running at that moment.")
    since = started_at.strftime("%Y-%m-%d %H:%M:%S %Z")
    may = f"It was running: {owner} has held epoch {epoch} since {since}, and effects outside this database may already"
    told = "have happened; its handler hears of it at its next heartbeat."
    return Cancellation(status, "cancelled", f"{blocked} {may} {told}")


def _not_cancelled(job_id: int, status: str | None) -> Cancellation:
    if status is None:
        return Cancellation(None, None, f"Job {job_id} is unknown: nothing was changed.")
    return Cancellation(status, status, f"Job {job_id} was already {status}: nothing was changed.")
