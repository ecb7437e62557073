"""Two sessions in every order on a real server, with real lock waits seen in pg_blocking_pids; nothing here sleeps."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest

from helpers import Session, wait_until
from jobqueue import Backoff, Empty, InfrastructureError, JobQueueError, Outcome, Queue
from jobqueue.sql import SQL

pytestmark = pytest.mark.shared

DIGEST, OTHER = "ab" * 32, "cd" * 32
AT_ONCE = Backoff(shape="constant", base_seconds=0, jitter="none")


# ---- helpers -------------------------------------------------------------------------------------------------------


@pytest.fixture
def a(dsn):
    with Session(dsn) as session:
        yield session


@pytest.fixture
def b(dsn):
    with Session(dsn) as session:
        yield session


def claim(queue, count=1, owner="A", lease_seconds=30):
    """Enqueue and claim `count` jobs."""
    queue.enqueue_many([{"type": "mail", "max_attempts": 3}] * count)
    leases = list(queue.claim(owner, limit=count, lease_seconds=lease_seconds))
    return leases if count > 1 else leases[0]


def end_lease(conn, *leases):
    """As if the time of these leases had passed."""
    conn.execute(
        "update jobqueue.job set locked_until = jobqueue.now() - interval '1 second' where id = any (%s)",
        ([lease.id for lease in leases],),
    )


def expired_claim(queue, conn, count=1):
    leases = claim(queue, count)
    end_lease(conn, *(leases if count > 1 else [leases]))
    return leases


def status(conn, job_id):
    found = conn.execute(
        """select status, epoch, attempts, lease_losses from jobqueue.job where id = %s""", (job_id,)
    ).fetchone()
    return found and found[0]


@contextmanager
def holding(session, act):
    """`act` done in an open transaction of `session`; yields its result, commits at the end."""
    with session.conn.transaction():
        yield act(session.queue)


@contextmanager
def doomed(session, act):
    """`act` done in an open transaction of `session` that rolls back at the end."""
    with session.conn.transaction(force_rollback=True):
        yield act(session.queue)


def answer_after(holder, session, act):
    """What `act` answers in `session` when the holder, which it has to wait for, has ended; True if it did wait."""
    with holder:
        session.run(act)
        waited = session.is_blocked()
    return waited, session.result()


GATE = """
create or replace function public.wait_at_the_gate() returns trigger language plpgsql as
$$ begin perform pg_advisory_xact_lock(42); return null; end $$;
create constraint trigger gate after update on jobqueue.job deferrable initially deferred
    for each row when (new.epoch > old.epoch) execute function public.wait_at_the_gate();
"""


@contextmanager
def gate(conn, dsn):
    """While open, every claim and adoption stands just before its COMMIT: its row locked, not yet seen by others."""
    conn.execute(GATE)
    with psycopg.connect(dsn, autocommit=True) as keeper:
        keeper.execute("select pg_advisory_lock(42)")
        yield
    conn.execute("drop trigger gate on jobqueue.job")


# ---- the reaper against complete, heartbeat, cancel, archive -------------------------------------------------------

VERBS = {
    "complete": lambda lease: lambda queue: queue.complete(lease),
    "fail": lambda lease: lambda queue: queue.fail(lease, "boom", delay_seconds=0),
    "release": lambda lease: lambda queue: queue.release(lease, "stop"),
    "heartbeat": lambda lease: lambda queue: queue.heartbeat(lease),
    "cancel": lambda lease: lambda queue: queue.cancel(lease.id),
}
AFTER = {"complete": "done", "fail": "ready", "release": "ready", "heartbeat": "running", "cancel": "cancelled"}


@pytest.mark.parametrize("verb", VERBS)
def test_reap_passes_over_a_row_that_an_open_transaction_is_ending_or_renewing(conn, queue, a, b, verb):
    lease = expired_claim(queue, conn)
    with holding(a, VERBS[verb](lease)):
        during = b.queue.reap()
    assert (during, b.queue.reap(), status(conn, lease.id)) == ([], [], AFTER[verb])


@pytest.mark.parametrize("verb", VERBS)
def test_reap_takes_the_lease_once_the_transaction_that_held_the_row_rolled_back(conn, queue, a, b, verb):
    lease = expired_claim(queue, conn)
    with doomed(a, VERBS[verb](lease)):
        during = b.queue.reap()
    assert (during, [reaped.id for reaped in b.queue.reap()]) == ([], [lease.id])


@pytest.mark.parametrize("verb", ["complete", "fail", "release", "heartbeat"])
def test_a_verb_that_waited_for_the_reaper_is_lost(conn, queue, a, b, verb):
    lease = expired_claim(queue, conn)
    waited, outcome = answer_after(holding(a, lambda queue: queue.reap()), b, VERBS[verb](lease))
    assert (waited, outcome, status(conn, lease.id)) == (True, Outcome.LOST, "ready")


@pytest.mark.parametrize("verb", ["complete", "fail", "release", "heartbeat"])
def test_a_verb_that_waited_for_a_reaper_that_rolled_back_is_applied(conn, queue, a, b, verb):
    lease = expired_claim(queue, conn)
    waited, outcome = answer_after(doomed(a, lambda queue: queue.reap()), b, VERBS[verb](lease))
    assert (waited, outcome, status(conn, lease.id)) == (True, Outcome.APPLIED, AFTER[verb])


@pytest.mark.parametrize(
    "reaper_ends, before", [(holding, "ready"), (doomed, "running")], ids=["commits", "rolls back"]
)
def test_a_cancellation_that_waited_for_the_reaper_tells_the_status_it_really_met(
    conn, queue, a, b, reaper_ends, before
):
    lease = expired_claim(queue, conn)
    waited, answer = answer_after(reaper_ends(a, lambda queue: queue.reap()), b, VERBS["cancel"](lease))
    assert (waited, answer.before, answer.after, status(conn, lease.id)) == (True, before, "cancelled", "cancelled")


def test_the_archiver_does_not_see_a_job_that_the_reaper_is_making_dead(conn, queue, a, b):
    queue.enqueue("mail", max_attempts=1)
    end_lease(conn, *queue.claim("A"))
    with holding(a, lambda queue: queue.reap()) as [reaped]:
        during = b.queue.archive(older_than_seconds=0, statuses=("dead",))
    assert (reaped.status, during, b.queue.archive(older_than_seconds=0, statuses=("dead",))) == ("dead", 0, 1)


def test_the_reaper_has_nothing_to_do_with_a_job_that_is_being_archived(conn, queue, a, b):
    lease = claim(queue)
    queue.complete(lease)
    with holding(a, lambda queue: queue.archive(older_than_seconds=0)) as moved:
        assert (moved, b.queue.reap()) == (1, [])


def test_three_reapers_at_once_take_every_lease_once(dsn, conn, queue):
    leases = expired_claim(queue, conn, 50)

    def reaper(_):
        with psycopg.connect(dsn, autocommit=True) as own:
            return [reaped.id for _ in range(10) for reaped in Queue(own).reap(limit=10)]

    with ThreadPoolExecutor(3) as pool:
        reaped = sorted(sum(pool.map(reaper, range(3)), []))
    counted = conn.execute(
        "select sum(lease_losses), max(epoch), sum(attempts), (select sum(n) from jobqueue.incident) from jobqueue.job"
    )
    assert (reaped, counted.fetchone()) == ([lease.id for lease in leases], (50, 1, 50, 50))


# ---- adoption ------------------------------------------------------------------------------------------------------


def test_a_completion_that_waited_for_an_adoption_is_lost(dsn, conn, queue, a, b):
    lease = expired_claim(queue, conn)
    with gate(conn, dsn):
        a.run(lambda queue: queue.adopt(lease.id, "B"))
        assert a.is_blocked()
        b.run(lambda queue: queue.complete(lease))
        assert b.is_blocked()
    assert (a.result().epoch, b.result()) == (2, Outcome.LOST)


def test_two_adoptions_at_once_give_one_lease(dsn, conn, queue, a, b):
    lease = expired_claim(queue, conn)
    with gate(conn, dsn):
        a.run(lambda queue: queue.adopt(lease.id, "B"))
        assert a.is_blocked()
        b.run(lambda queue: queue.adopt(lease.id, "C"))
        assert b.is_blocked()
    assert (a.result().owner, b.result()) == ("B", None)


@pytest.mark.parametrize("verb", ["complete", "heartbeat", "release", "fail"])
def test_an_adoption_that_waited_for_the_old_owner_is_refused(conn, queue, a, b, verb):
    lease = expired_claim(queue, conn)
    waited, adopted = answer_after(holding(a, VERBS[verb](lease)), b, lambda queue: queue.adopt(lease.id, "B"))
    assert (waited, adopted) == (True, None)


def test_an_adoption_that_waited_for_the_reaper_is_refused(conn, queue, a, b):
    lease = expired_claim(queue, conn)
    waited, adopted = answer_after(holding(a, lambda queue: queue.reap()), b, lambda queue: queue.adopt(lease.id, "B"))
    assert (waited, adopted) == (True, None)


# ---- claim, cancel, complete ---------------------------------------------------------------------------------------


def test_a_claim_passes_over_a_job_that_is_being_cancelled_and_says_locked(queue, a, b):
    job = queue.enqueue("mail").id
    with holding(a, lambda queue: queue.cancel(job)):
        during = b.queue.claim("B").empty
    assert (during, b.queue.claim("B").empty) == (Empty.LOCKED, Empty.NONE)


def test_a_claim_takes_the_job_after_its_cancellation_rolled_back(queue, a, b):
    job = queue.enqueue("mail").id
    with doomed(a, lambda queue: queue.cancel(job)):
        pass
    assert [lease.id for lease in b.queue.claim("B")] == [job]


def test_a_cancellation_that_waited_for_a_claim_says_running_and_cuts_the_new_owner(dsn, conn, queue, a, b):
    job = queue.enqueue("mail").id
    with gate(conn, dsn):
        a.run(lambda queue: queue.claim("A"))
        assert a.is_blocked()
        b.run(lambda queue: queue.cancel(job))
        assert b.is_blocked()
    [lease], answer = a.result(), b.result()
    assert (answer.before, queue.complete(lease), queue.heartbeat(lease)) == (
        "running",
        Outcome.CANCELLED,
        Outcome.CANCELLED,
    )


def test_a_second_claim_passes_over_a_job_whose_claim_is_not_committed_yet(dsn, conn, queue, a, b):
    queue.enqueue("mail")
    with gate(conn, dsn):
        a.run(lambda queue: queue.claim("A"))
        assert a.is_blocked()
        other = b.queue.claim("B")
    assert (len(a.result()), len(other), other.empty) == (1, 0, Empty.LOCKED)


@pytest.mark.parametrize(
    "canceller_ends, expected", [(holding, Outcome.CANCELLED), (doomed, Outcome.APPLIED)], ids=["commits", "rolls back"]
)
def test_a_completion_that_waited_for_a_cancellation(queue, a, b, canceller_ends, expected):
    lease = claim(queue)
    assert answer_after(canceller_ends(a, VERBS["cancel"](lease)), b, VERBS["complete"](lease)) == (True, expected)


@pytest.mark.parametrize(
    "worker_ends, before, after",
    [(holding, "done", "done"), (doomed, "running", "cancelled")],
    ids=["commits", "rolls back"],
)
def test_a_cancellation_that_waited_for_a_completion(queue, a, b, worker_ends, before, after):
    lease = claim(queue)
    waited, answer = answer_after(worker_ends(a, VERBS["complete"](lease)), b, VERBS["cancel"](lease))
    assert (waited, answer.before, answer.after) == (True, before, after)


def test_a_cancellation_that_waited_for_a_redrive_cancels_the_job_that_it_met(conn, queue, a, b):
    lease = claim(queue)
    queue.fail(lease, "never", permanent=True)
    waited, answer = answer_after(holding(a, lambda queue: queue.redrive([lease.id])), b, VERBS["cancel"](lease))
    assert (waited, answer.before, answer.after, status(conn, lease.id)) == (True, "ready", "cancelled", "cancelled")


def test_a_cancellation_that_waited_for_a_failure_cancels_the_job_that_is_ready_again(conn, queue, a, b):
    lease = claim(queue)
    waited, answer = answer_after(holding(a, VERBS["fail"](lease)), b, VERBS["cancel"](lease))
    assert (waited, answer.before, answer.after, status(conn, lease.id)) == (True, "ready", "cancelled", "cancelled")


def test_a_redrive_that_waited_for_another_redrive_finds_nothing_left_to_do(conn, queue, a, b):
    lease = claim(queue)
    queue.fail(lease, "never", permanent=True)
    waited, redriven = answer_after(
        holding(a, lambda queue: queue.redrive([lease.id])), b, lambda queue: queue.redrive([lease.id])
    )
    assert (waited, redriven, status(conn, lease.id)) == (True, [], "ready")


def test_a_resent_completion_waits_for_its_own_first_sending_and_reconcile_says_held_meanwhile(queue, a, b):
    lease = claim(queue)
    with holding(a, VERBS["complete"](lease)):
        meanwhile = queue.reconcile(lease)
        b.run(VERBS["complete"](lease))
        waited = b.is_blocked()
    assert (meanwhile, waited, b.result()) == (Outcome.HELD, True, Outcome.ALREADY_APPLIED)


def test_cancel_type_and_a_completion_of_one_of_its_jobs_do_not_lose_each_other(conn, queue, a, b):
    done, other = claim(queue, 2)
    with holding(a, VERBS["complete"](done)):
        b.run(lambda queue: queue.cancel_type("mail"))
    b.result()
    queue.cancel_type("mail")
    assert (status(conn, done.id), status(conn, other.id)) == ("done", "cancelled")


# ---- publish and strict complete behind a holder -------------------------------------------------------------------

STRICT = {
    "publish": lambda lease: lambda queue: queue.publish(lease, "report.csv", DIGEST),
    "strict complete": lambda lease: lambda queue: queue.complete(lease, strict=True),
}


def hold_past_the_end(conn, session, lease, waiting, act, *, commit, before=None):
    """`waiting` runs `act` behind a lock of `session` that outlasts the lease; the holder then commits or not."""
    with session.conn.transaction(force_rollback=not commit):
        session.conn.execute("select from jobqueue.job where id = %s for update", (lease.id,))
        if before:
            before(session.queue)
        waiting.run(act)
        waited = waiting.is_blocked()
        wait_until(lambda: conn.execute("select %s < jobqueue.now()", (lease.locked_until,)).fetchone()[0])
    return waited, waiting.result()


@pytest.mark.parametrize("verb", STRICT)
@pytest.mark.parametrize("commit", [True, False], ids=["commits", "rolls back"])
def test_a_strict_verb_that_waited_past_the_end_of_its_lease_is_refused(conn, queue, a, b, verb, commit):
    lease = claim(queue, lease_seconds=0.3)
    assert hold_past_the_end(conn, a, lease, b, STRICT[verb](lease), commit=commit) == (True, Outcome.LEASE_EXPIRED)


@pytest.mark.parametrize("verb", STRICT)
@pytest.mark.parametrize(
    "commit, expected", [(True, Outcome.APPLIED), (False, Outcome.LEASE_EXPIRED)], ids=["commits", "rolls back"]
)
def test_a_strict_verb_that_waited_behind_a_renewal(conn, queue, a, b, verb, commit, expected):
    lease = claim(queue, lease_seconds=0.3)
    renew = VERBS["heartbeat"](lease)
    assert hold_past_the_end(conn, a, lease, b, STRICT[verb](lease), commit=commit, before=renew) == (True, expected)


@pytest.mark.parametrize("verb", STRICT)
@pytest.mark.parametrize("ends", [holding, doomed], ids=["commits", "rolls back"])
def test_a_strict_verb_that_waited_within_its_lease_is_applied(queue, a, b, verb, ends):
    lease = claim(queue)
    holder = ends(a, lambda queue: a.conn.execute("select from jobqueue.job for update"))
    assert answer_after(holder, b, STRICT[verb](lease)) == (True, Outcome.APPLIED)


def test_a_publication_that_waited_for_the_reaper_is_lost(conn, queue, a, b):
    lease = expired_claim(queue, conn)
    assert answer_after(holding(a, lambda queue: queue.reap()), b, STRICT["publish"](lease)) == (True, Outcome.LOST)


def test_a_publication_that_waited_for_a_completion_elsewhere_is_a_conflict(queue, a, b):
    lease = claim(queue)
    assert answer_after(holding(a, VERBS["complete"](lease)), b, STRICT["publish"](lease)) == (True, Outcome.CONFLICT)


def test_two_publications_of_one_epoch_at_once_leave_the_first(conn, queue, a, b):
    lease = claim(queue)
    first = holding(a, lambda queue: queue.publish(lease, "report.csv", OTHER))
    answer = answer_after(first, b, STRICT["publish"](lease))
    assert (answer, conn.execute("select published_digest from jobqueue.job").fetchone()) == (
        (True, Outcome.CONFLICT),
        (OTHER,),
    )


def test_a_renewal_that_waited_never_shortens_the_lease(conn, queue, a, b):
    lease = claim(queue, lease_seconds=60)
    with holding(a, lambda queue: a.conn.execute("select from jobqueue.job for update")):
        b.run(lambda queue: queue.heartbeat(lease, lease_seconds=1))
        assert b.is_blocked()
    assert (b.result(), conn.execute("select locked_until from jobqueue.job").fetchone()) == (
        Outcome.APPLIED,
        (lease.locked_until,),
    )


# ---- one row held by an open transaction starves nobody ------------------------------------------------------------


@contextmanager
def never_waiting(session):
    """A wait for a lock is an error: the statement in question must not wait at all."""
    session.conn.execute("set lock_timeout = '50ms'")
    yield session.queue
    session.conn.execute("reset lock_timeout")


def held_row(session, lease):
    return holding(
        session, lambda queue: session.conn.execute("select from jobqueue.job where id = %s for update", (lease.id,))
    )


MANY = {
    "heartbeat_many": lambda queue, leases: queue.heartbeat_many(leases, lease_seconds=60),
    "complete_many": lambda queue, leases: queue.complete_many(leases),
}


@pytest.mark.parametrize("verb", MANY)
def test_one_held_row_starves_no_other_lease_of_the_batch(queue, a, b, verb):
    leases = claim(queue, 3)
    with held_row(a, leases[1]), never_waiting(b) as own:
        during = MANY[verb](own, leases)
    assert (during, MANY[verb](queue, leases[1:2])) == (
        [Outcome.APPLIED, Outcome.HELD, Outcome.APPLIED],
        [Outcome.APPLIED],
    )


@pytest.mark.parametrize("verb", MANY)
def test_a_skipped_row_that_is_no_longer_mine_gets_the_tables_answer_without_waiting(conn, queue, a, b, verb):
    leases = claim(queue, 3)
    end_lease(conn, leases[1])
    queue.adopt(leases[1].id, "B")
    with held_row(a, leases[1]), never_waiting(b) as own:
        assert MANY[verb](own, leases) == [Outcome.APPLIED, Outcome.LOST, Outcome.APPLIED]


@pytest.mark.parametrize("verb", MANY)
def test_an_expired_skipped_row_is_still_held(conn, queue, a, b, verb):
    leases = expired_claim(queue, conn, 2)
    with held_row(a, leases[0]), never_waiting(b) as own:
        assert MANY[verb](own, leases) == [Outcome.HELD, Outcome.APPLIED]


def test_one_held_row_does_not_starve_the_reaper(conn, queue, a, b):
    leases = expired_claim(queue, conn, 3)
    with held_row(a, leases[1]), never_waiting(b) as own:
        during = sorted(reaped.id for reaped in own.reap())
    assert (during, [reaped.id for reaped in queue.reap()]) == ([leases[0].id, leases[2].id], [leases[1].id])


def test_held_rows_at_the_head_do_not_use_up_the_reapers_limit(conn, queue, a, b):
    leases = expired_claim(queue, conn, 4)
    with held_row(a, leases[0]), never_waiting(b) as own:
        assert [reaped.id for reaped in own.reap(limit=3)] == [lease.id for lease in leases[1:]]


def test_a_held_row_at_the_head_does_not_use_up_the_claims_limit(queue, a, b):
    first, *others = [queue.enqueue("mail").id for _ in range(4)]
    with holding(a, lambda queue: queue.cancel(first)), never_waiting(b) as own:
        assert [lease.id for lease in own.claim("B", limit=3)] == others


def test_an_archive_batch_passes_over_a_held_row(queue, a, b):
    leases = claim(queue, 3)
    queue.complete_many(leases)
    with held_row(a, leases[0]), never_waiting(b) as own:
        during = own.archive(older_than_seconds=0)
    assert (during, queue.archive(older_than_seconds=0)) == (2, 1)


@pytest.mark.parametrize("verb", MANY)
def test_two_batches_in_opposite_order_neither_wait_nor_deadlock(queue, a, b, verb):
    leases = claim(queue, 4)
    with holding(a, lambda queue: MANY[verb](queue, leases)) as first, never_waiting(b) as own:
        second = MANY[verb](own, leases[::-1])
    assert (first, second) == ([Outcome.APPLIED] * 4, [Outcome.HELD] * 4)


@pytest.mark.parametrize("wait_free", [SQL.listen, SQL.unlisten], ids=["listen", "unlisten"])
def test_a_producers_open_transaction_keeps_no_worker_from_listening_or_leaving(conn, a, b, wait_free):
    listener = {"owner": "W", "types": ["mail"]}
    conn.execute(SQL.listen, listener)
    with holding(a, lambda queue: queue.enqueue("mail")), never_waiting(b):
        assert b.conn.execute(wait_free, listener).rowcount in (0, 1)


# ---- enqueue and the archive ---------------------------------------------------------------------------------------


def done_job(queue, key):
    first = queue.enqueue("mail", key=key)
    queue.complete_many(list(queue.claim("A")))
    return first.id


@pytest.mark.parametrize("archiver_ends, moved", [(holding, 0), (doomed, 1)], ids=["commits", "rolls back"])
def test_a_key_is_known_while_its_row_is_being_archived(queue, a, b, archiver_ends, moved):
    job = done_job(queue, "k")
    with archiver_ends(a, lambda queue: queue.archive(older_than_seconds=0)), never_waiting(b) as own:
        during = own.enqueue("mail", key="k")
    after = b.queue.enqueue("mail", key="k")
    assert ([(answer.id, answer.created) for answer in (during, after)], queue.archive(older_than_seconds=0)) == (
        [(job, False)] * 2,
        moved,
    )


def test_the_archiver_is_not_held_up_by_an_open_enqueue_of_the_same_key(queue, a, b):
    job = done_job(queue, "k")
    with holding(a, lambda queue: queue.enqueue("mail", key="k")) as again, never_waiting(b) as own:
        moved = own.archive(older_than_seconds=0)
    assert ((again.id, again.created), moved, queue.enqueue("mail", key="k").id) == ((job, False), 1, job)


def test_a_redrive_that_waited_for_the_archiver_finds_nothing(conn, queue, a, b):
    queue.fail(claim(queue), "never", permanent=True)
    archive = holding(a, lambda queue: queue.archive(older_than_seconds=0, statuses=("failed",)))
    [job] = [letter.id for letter in queue.dead_letters()]
    waited, redriven = answer_after(archive, b, lambda queue: queue.redrive([job]))
    assert (redriven, status(conn, job)) == ([], None)


def test_the_archiver_passes_over_a_job_that_is_being_redriven(conn, queue, a, b):
    lease = claim(queue)
    queue.fail(lease, "never", permanent=True)
    with holding(a, lambda queue: queue.redrive([lease.id])), never_waiting(b) as own:
        moved = own.archive(older_than_seconds=0, statuses=("failed",))
    assert (moved, status(conn, lease.id)) == (0, "ready")


def test_two_archivers_at_once_lose_and_double_nothing(dsn, conn, queue):
    leases = claim(queue, 200)
    queue.complete_many(leases)

    def archiver(_):
        with psycopg.connect(dsn, autocommit=True) as own:
            return sum(iter(lambda: Queue(own).archive(older_than_seconds=0, limit=7), 0))

    with ThreadPoolExecutor(2) as pool:
        moved = sum(pool.map(archiver, range(2)))
    assert (moved, conn.execute("select count(*), count(distinct id) from jobqueue.job_archive").fetchone()) == (
        200,
        (200, 200),
    )


# ---- what the database refuses is infrastructure, never an outcome -------------------------------------------------


def test_a_completion_in_a_repeatable_read_transaction_behind_a_renewal_raises(queue, a):
    lease = claim(queue)
    with pytest.raises(InfrastructureError), a.conn.transaction():
        a.conn.execute("set transaction isolation level repeatable read")
        a.conn.execute("select from jobqueue.job")
        queue.heartbeat(lease, lease_seconds=60)
        a.queue.complete(lease)


def test_a_cut_connection_raises_and_the_resend_on_another_is_applied(conn, queue, a):
    lease = claim(queue)
    conn.execute("select pg_terminate_backend(%s, 5000)", (a.conn.info.backend_pid,))
    with pytest.raises(InfrastructureError):
        a.queue.complete(lease)
    assert queue.complete(lease) is Outcome.APPLIED


def test_a_connection_cut_while_waiting_raises(conn, queue, a, b):
    lease = claim(queue)
    with held_row(a, lease):
        b.run(lambda queue: queue.complete(lease))
        assert b.is_blocked()
        conn.execute("select pg_terminate_backend(%s)", (b.pid,))
        with pytest.raises(InfrastructureError):
            b.result()


def test_a_deadlock_raises_for_one_and_the_other_is_applied(queue, a, b):
    first, second = claim(queue, 2)

    def both(session, one, other, barrier):
        with session.conn.transaction():
            session.queue.complete(one)
            barrier.wait(10)
            return session.queue.complete(other)

    barrier = threading.Barrier(2)
    a.run(lambda queue: both(a, first, second, barrier))
    b.run(lambda queue: both(b, second, first, barrier))
    answers = [result_or_error(session) for session in (a, b)]
    assert sorted(map(str, answers)) == sorted(map(str, [InfrastructureError, Outcome.APPLIED]))


def result_or_error(session):
    try:
        return session.result()
    except JobQueueError as error:
        return type(error)


@pytest.mark.parametrize(
    "act",
    [lambda queue: queue.enqueue("mail"), lambda queue: queue.claim("A"), lambda queue: queue.reap()],
    ids=["enqueue", "claim", "reap"],
)
def test_a_read_only_database_raises(queue, a, act):
    queue.enqueue("mail")
    a.conn.execute("set default_transaction_read_only = on")
    with pytest.raises(InfrastructureError):
        act(a.queue)


def test_a_statement_timeout_while_waiting_raises_and_the_resend_is_applied(queue, a, b):
    lease = claim(queue)
    b.conn.execute("set statement_timeout = '100ms'")
    with held_row(a, lease), pytest.raises(JobQueueError):
        b.queue.complete(lease)
    assert b.queue.complete(lease) is Outcome.APPLIED


def test_a_cancelled_statement_raises_and_the_resend_on_the_same_connection_is_applied(queue, a, b):
    lease = claim(queue)
    with held_row(a, lease):
        b.run(lambda queue: queue.complete(lease))
        assert b.is_blocked()
        b.conn.cancel()
        with pytest.raises(JobQueueError):
            b.result()
    assert b.queue.complete(lease) is Outcome.APPLIED


def test_a_snapshot_held_for_long_elsewhere_makes_no_claim_wrong(dsn, queue, a):
    queue.enqueue_many([{"type": "mail"}] * 300)
    with a.conn.transaction():
        a.conn.execute("set transaction isolation level repeatable read")
        a.conn.execute("select from jobqueue.meta")
        claims = [list(queue.claim("A", limit=20)) for _ in range(15)]
        outcomes = {outcome for leases in claims for outcome in queue.complete_many(leases)}
    assert (len({lease.id for leases in claims for lease in leases}), outcomes) == (300, {Outcome.APPLIED})


def test_an_aborted_transaction_of_the_caller_is_no_outcome(queue, a):
    lease = claim(queue)
    with pytest.raises(JobQueueError), a.conn.transaction():
        with pytest.raises(psycopg.errors.DivisionByZero):
            a.conn.execute("select 1/0")
        a.queue.complete(lease)
    assert queue.complete(lease) is Outcome.APPLIED


def test_a_stranger_with_the_right_epoch_is_lost_while_the_owner_works(queue):
    lease = claim(queue)
    assert (queue.complete(replace(lease, owner="B")), queue.complete(lease)) == (Outcome.LOST, Outcome.APPLIED)
