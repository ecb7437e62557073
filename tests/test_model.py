"""Every verb in random order against a small reference model of DESIGN §3, on virtual time (hypothesis, stateful)."""

from dataclasses import dataclass, field, replace
from datetime import timedelta

import psycopg
import pytest
from emptied import EMPTY
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from jobqueue import Backoff, Empty, Outcome, Queue
from jobqueue.lab import database
from jobqueue.lab.clock import VirtualClock

DOUBLING = Backoff(shape="exponential", base_seconds=1, factor=2, jitter="none")
LEASE = 10
TYPES, OWNERS, KEYS = ("a", "b"), ("A", "B"), (None, None, "k", "l")
FINISHED = ("done", "failed", "dead", "cancelled")
DIGESTS = ("ab" * 32, "cd" * 32)
OWN_END = {
    "complete": "done",
    "strict": "done",
    "fail": "failed",
    "refuse": "failed_permanently",
    "release": "released",
}
STATE = """select id, status, epoch, attempts, lease_losses, releases, locked_by, locked_until,
    case when status in ('ready', 'running') then run_at end, false from jobqueue.job
    union all select id, status, epoch, attempts, lease_losses, releases, null, null, null, true
    from jobqueue.job_archive"""


def seconds(number):
    return timedelta(seconds=number)


# ---- the reference model: what DESIGN §3 says, without SQL ---------------------------------------------------------


@dataclass
class Row:
    id: int
    type: str
    max_attempts: int
    run_at: object
    status: str = "ready"
    epoch: int = 0
    attempts: int = 0
    lease_losses: int = 0
    releases: int = 0
    owner: str | None = None
    until: object = None
    finished_at: object = None
    archived: bool = False
    ends: dict = field(default_factory=dict)  # (owner, epoch) → how that lease ended
    published: tuple | None = None  # ((owner, epoch), digest)

    def seen(self):
        """As STATE reads it."""
        run_at = self.run_at if self.status in ("ready", "running") else None
        return (
            self.id,
            self.status,
            self.epoch,
            self.attempts,
            self.lease_losses,
            self.releases,
            self.owner,
            self.until,
            run_at,
            self.archived,
        )

    def is_mine(self, me):
        return self.status == "running" and (self.owner, self.epoch) == me

    def lease_to(self, owner, now):
        self.status, self.owner, self.until = "running", owner, now + seconds(LEASE)
        self.epoch, self.attempts = self.epoch + 1, self.attempts + 1

    def end(self, event, status, now, run_at=None):
        """The lease, if there is one, is over; the job is `status` from now on."""
        if self.owner:
            self.ends[self.owner, self.epoch] = event
        self.status, self.owner, self.until = status, None, None
        self.run_at, self.finished_at = run_at or self.run_at, now if status in FINISHED else None

    def lose(self, now):
        self.lease_losses, self.releases = self.lease_losses + 1, 0
        spent = self.attempts >= self.max_attempts
        self.end("lost", "dead" if spent else "ready", now, None if spent else now + seconds(2 ** (self.attempts - 1)))


def answer(row, verb, me, now, digest=None):
    """The Outcome that `verb` by the lease `me` must have: the table of DESIGN §3, first line that holds."""
    publishing = digest is not None
    if publishing and row.published and row.published[0] == me:
        return Outcome.ALREADY_APPLIED if row.published[1] == digest else Outcome.CONFLICT
    if row.is_mine(me):
        late = now >= row.until and (publishing or verb == "strict")
        return Outcome.LEASE_EXPIRED if late else Outcome.HELD if verb == "reconcile" else Outcome.APPLIED
    end = row.ends.get(me)
    if end == "cancelled" or (end == "lost" and row.status == "cancelled" and row.epoch == me[1]):
        return Outcome.CANCELLED
    if end in (None, "lost"):
        return Outcome.LOST
    own = "done" if verb == "reconcile" and not publishing else OWN_END.get(verb)
    return Outcome.ALREADY_APPLIED if end == own else Outcome.CONFLICT


# ---- the machine ---------------------------------------------------------------------------------------------------

NUMBER = st.integers(0, 10**6)
JOB = st.fixed_dictionaries(
    {
        "type": st.sampled_from(TYPES),
        "payload": st.integers(0, 1),
        "key": st.sampled_from(KEYS),
        "max_attempts": st.integers(1, 3),
        "delay_seconds": st.sampled_from([0, 0, 5]),
    }
)


class Machine(RuleBasedStateMachine):
    """Drives the real Queue and the model side by side."""

    conn = clock = None  # set by the test

    @initialize()
    def begin(self):
        self.conn.execute(self.conn.execute(EMPTY).fetchone()[0])
        self.queue = Queue(self.conn)
        self.rows, self.leases, self.keys, self.paused = {}, [], {}, set()

    @property
    def now(self):
        return self.clock.now

    def pick(self, number):
        return self.leases[number % len(self.leases)]

    # -- entering --

    def expect_enqueued(self, job, enqueued):
        known = self.keys.get(job["key"])
        content = (job["type"], job["payload"])
        if known:
            assert (enqueued.id, enqueued.created, enqueued.matches) == (known[0], False, known[1] == content)
            return
        assert (enqueued.id not in self.rows, enqueued.created, enqueued.matches) == (True, True, True)
        run_at = self.now + seconds(job["delay_seconds"])
        self.rows[enqueued.id] = Row(enqueued.id, job["type"], job["max_attempts"], run_at)
        if job["key"]:
            self.keys[job["key"]] = (enqueued.id, content)

    @rule(job=JOB)
    def enqueue(self, job):
        self.expect_enqueued(job, self.queue.enqueue(**job))

    @rule(jobs=st.lists(JOB, min_size=1, max_size=4))
    def enqueue_many(self, jobs):
        batch = [{**job, "run_at": self.now + seconds(job["delay_seconds"])} for job in jobs]
        for one in batch:
            del one["delay_seconds"]
        for job, enqueued in zip(jobs, self.queue.enqueue_many(batch), strict=True):
            self.expect_enqueued(job, enqueued)

    # -- taking --

    @rule(
        owner=st.sampled_from(OWNERS), limit=st.integers(1, 3), types=st.sampled_from([None, ["a"], ["b"], ["a", "b"]])
    )
    def claim(self, owner, limit, types):
        eligible = [
            row
            for row in self.rows.values()
            if row.status == "ready" and row.type not in self.paused and row.type in (types or TYPES)
        ]
        due = sorted((row for row in eligible if row.run_at <= self.now), key=lambda row: (row.run_at, row.id))[:limit]
        for row in due:
            row.lease_to(owner, self.now)
        claim = self.queue.claim(owner, limit=limit, lease_seconds=LEASE, types=types)
        taken = [
            (lease.id, lease.owner, lease.epoch, lease.attempt, lease.releases, lease.locked_until) for lease in claim
        ]
        assert taken == [(row.id, owner, row.epoch, row.attempts, row.releases, row.until) for row in due]
        soonest = min((row.run_at for row in eligible), default=None)
        expected = (None, None) if due else (Empty.NOT_DUE, soonest) if soonest else (Empty.NONE, None)
        assert (claim.empty, claim.next_run_at if not due else None) == expected
        self.leases += list(claim)

    @precondition(lambda self: self.rows)
    @rule(number=NUMBER, owner=st.sampled_from(OWNERS))
    def adopt(self, number, owner):
        row = list(self.rows.values())[number % len(self.rows)]
        lease = self.queue.adopt(row.id, owner, lease_seconds=LEASE)
        if row.status == "running" and row.until <= self.now and row.attempts < row.max_attempts:
            row.ends[row.owner, row.epoch] = "lost"
            row.lease_losses, row.releases = row.lease_losses + 1, 0
            row.lease_to(owner, self.now)
            assert (lease.owner, lease.epoch, lease.attempt, lease.locked_until) == (
                owner,
                row.epoch,
                row.attempts,
                row.until,
            )
            self.leases.append(lease)
        else:
            assert lease is None

    # -- speaking: every lease that ever was may speak, at any time --

    @precondition(lambda self: self.leases)
    @rule(number=NUMBER, length=st.sampled_from([1, LEASE]))
    def heartbeat(self, number, length):
        lease = self.pick(number)
        self.beat(lease, self.queue.heartbeat(lease, lease_seconds=length), length)

    def beat(self, lease, outcome, length):
        row, me = self.rows[lease.id], (lease.owner, lease.epoch)
        assert outcome is answer(row, "heartbeat", me, self.now)
        if outcome is Outcome.APPLIED:
            row.until = max(row.until, self.now + seconds(length))

    @precondition(lambda self: self.leases)
    @rule(number=NUMBER, verb=st.sampled_from(["heartbeat", "complete", "release", "publish"]))
    def somebody_who_never_held_it(self, number, verb):
        stranger = replace(self.pick(number), owner="C")
        acts = {"heartbeat": self.queue.heartbeat, "complete": self.queue.complete,
                "release": lambda lease: self.queue.release(lease, "stop"),
                "publish": lambda lease: self.queue.publish(lease, "out", DIGESTS[0])}  # fmt: skip
        assert acts[verb](stranger) is Outcome.LOST

    @precondition(lambda self: self.leases)
    @rule(numbers=st.lists(NUMBER, min_size=1, max_size=4), length=st.sampled_from([1, LEASE]))
    def heartbeat_many(self, numbers, length):
        leases = list({id(self.pick(number)): self.pick(number) for number in numbers}.values())
        for lease, outcome in zip(leases, self.queue.heartbeat_many(leases, lease_seconds=length), strict=True):
            self.beat(lease, outcome, length)

    def done(self, lease, outcome, verb="complete"):
        row, me = self.rows[lease.id], (lease.owner, lease.epoch)
        assert outcome is answer(row, verb, me, self.now)
        if outcome is Outcome.APPLIED:
            row.end("done", "done", self.now)

    @precondition(lambda self: self.leases)
    @rule(number=NUMBER, strict=st.booleans())
    def complete(self, number, strict):
        lease = self.pick(number)
        self.done(lease, self.queue.complete(lease, strict=strict), "strict" if strict else "complete")

    @precondition(lambda self: self.leases)
    @rule(numbers=st.lists(NUMBER, min_size=1, max_size=4))
    def complete_many(self, numbers):
        leases = list({id(self.pick(number)): self.pick(number) for number in numbers}.values())
        for lease, outcome in zip(leases, self.queue.complete_many(leases), strict=True):
            self.done(lease, outcome)

    @precondition(lambda self: self.leases)
    @rule(number=NUMBER, permanent=st.booleans(), delay=st.sampled_from([None, 0, 3]))
    def fail(self, number, permanent, delay):
        lease = self.pick(number)
        row, me, verb = self.rows[lease.id], (lease.owner, lease.epoch), "refuse" if permanent else "fail"
        outcome = self.queue.fail(lease, "boom", permanent=permanent, delay_seconds=delay, backoff=DOUBLING)
        assert outcome is answer(row, verb, me, self.now)
        if outcome is Outcome.APPLIED:
            wait = 2 ** (row.attempts - 1) if delay is None else delay
            status = "failed" if permanent else "dead" if row.attempts >= row.max_attempts else "ready"
            row.releases = 0
            row.end(OWN_END[verb], status, self.now, self.now + seconds(wait) if status == "ready" else None)

    @precondition(lambda self: self.leases)
    @rule(number=NUMBER, counted=st.booleans(), delay=st.sampled_from([0, 3]))
    def release(self, number, counted, delay):
        lease = self.pick(number)
        row, me = self.rows[lease.id], (lease.owner, lease.epoch)
        outcome = self.queue.release(lease, "stop", delay_seconds=delay, counted=counted)
        assert outcome is answer(row, "release", me, self.now)
        if outcome is Outcome.APPLIED:
            row.attempts, row.releases = row.attempts - 1, row.releases + counted
            row.end("released", "ready", self.now, self.now + seconds(delay))

    @precondition(lambda self: self.leases)
    @rule(number=NUMBER, digest=st.sampled_from(DIGESTS))
    def publish(self, number, digest):
        lease = self.pick(number)
        row, me = self.rows[lease.id], (lease.owner, lease.epoch)
        expected = answer(row, "publish", me, self.now, digest)
        assert self.queue.reconcile(lease, name="out", digest=digest) is (
            Outcome.HELD if expected is Outcome.APPLIED else expected
        )
        assert self.queue.publish(lease, "out", digest) is expected
        if expected is Outcome.APPLIED:
            row.published = (me, digest)

    @precondition(lambda self: self.leases)
    @rule(number=NUMBER)
    def reconcile(self, number):
        lease = self.pick(number)
        assert self.queue.reconcile(lease) is answer(
            self.rows[lease.id], "reconcile", (lease.owner, lease.epoch), self.now
        )

    @precondition(lambda self: self.leases)
    @rule(
        number=NUMBER,
        verb=st.sampled_from(
            ["complete", "fail", "release", "publish", "heartbeat", "cancel", "reap", "archive", "enqueue"]
        ),
    )
    def rolled_back(self, number, verb):
        """In a caller's transaction that rolls back nothing has happened: the model does not move."""
        lease = self.pick(number)
        acts = {
            "complete": lambda: self.queue.complete(lease),
            "fail": lambda: self.queue.fail(lease, "boom"),
            "release": lambda: self.queue.release(lease, "stop"),
            "publish": lambda: self.queue.publish(lease, "out", DIGESTS[0]),
            "heartbeat": lambda: self.queue.heartbeat(lease),
            "cancel": lambda: self.queue.cancel(lease.id),
            "reap": self.queue.reap,
            "archive": lambda: self.queue.archive(older_than_seconds=0),
            "enqueue": lambda: self.queue.enqueue("a", key="k"),
        }
        with self.conn.transaction(force_rollback=True):
            acts[verb]()

    # -- what others do to a job --

    @rule(limit=st.sampled_from([1, 100]))
    def reap(self, limit):
        expired = {row.id for row in self.rows.values() if row.status == "running" and row.until <= self.now}
        before = {row_id: (self.rows[row_id].owner, self.rows[row_id].epoch) for row_id in expired}
        reaped = self.queue.reap(limit=limit, backoff=DOUBLING)
        for one in reaped:
            self.rows[one.id].lose(self.now)
        assert len(reaped) == min(limit, len(expired)) and {one.id for one in reaped} <= expired
        assert [(one.owner, one.epoch, one.status) for one in reaped] == [
            (*before[one.id], self.rows[one.id].status) for one in reaped
        ]

    @precondition(lambda self: self.rows)
    @rule(number=NUMBER)
    def cancel(self, number):
        row = list(self.rows.values())[number % len(self.rows)]
        before = row.status
        if before in ("ready", "running"):
            row.end("cancelled", "cancelled", self.now)
        cancellation = self.queue.cancel(row.id)
        assert (cancellation.before, cancellation.after) == (before, row.status)

    @precondition(lambda self: self.rows)
    @rule(number=NUMBER, cancelled=st.booleans())
    def redrive(self, number, cancelled):
        row = list(self.rows.values())[number % len(self.rows)]
        redriven = self.queue.redrive([row.id], cancelled=cancelled)
        if not row.archived and row.status in (("dead", "failed", "cancelled") if cancelled else ("dead", "failed")):
            assert redriven == [row.id]
            row.status, row.run_at, row.finished_at = "ready", self.now, None
            row.attempts = row.lease_losses = row.releases = 0
        else:
            assert redriven == []

    @rule(age=st.sampled_from([0.5, 5.5]), statuses=st.sampled_from([("done",), ("dead", "failed"), FINISHED]))
    def archive(self, age, statuses):
        old = [
            row
            for row in self.rows.values()
            if not row.archived and row.status in statuses and row.finished_at < self.now - seconds(age)
        ]
        for row in old:
            row.archived = True
        assert self.queue.archive(older_than_seconds=age, statuses=statuses) == len(old)

    @rule(type=st.sampled_from(TYPES))
    def pause_or_resume(self, type):
        (self.queue.resume_type if type in self.paused else self.queue.pause_type)(type)
        self.paused ^= {type}

    @rule(step=st.sampled_from([1, 4, 10, 60]))
    def advance(self, step):
        self.clock.advance(step)

    # -- at every step --

    @invariant()
    def the_table_is_what_the_model_says(self):
        assert sorted(self.conn.execute(STATE).fetchall()) == sorted(row.seen() for row in self.rows.values())

    @invariant()
    def attempts_are_bounded_and_every_epoch_was_one_lease(self):
        assert all(0 <= row.lease_losses <= row.attempts <= row.max_attempts for row in self.rows.values())
        assert (
            sum(row.epoch for row in self.rows.values())
            == len(self.leases)
            == len({(lease.id, lease.epoch) for lease in self.leases})
        )


@pytest.fixture(scope="module")
def machine(server, virtual_template):
    with database.scratch(server.dsn, template=virtual_template) as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        yield type("Connected", (Machine,), {"conn": conn, "clock": VirtualClock(conn)})


COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None, "print_blob": True}


@pytest.mark.short
def test_every_verb_in_any_order_does_what_the_contract_says(machine):
    run_state_machine_as_test(
        machine, settings=settings(max_examples=50, stateful_step_count=40, derandomize=True, **COMMON)
    )


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_every_verb_in_many_more_orders_does_what_the_contract_says(machine):
    run_state_machine_as_test(machine, settings=settings(max_examples=300, stateful_step_count=50, **COMMON))
