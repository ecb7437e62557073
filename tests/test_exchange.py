"""A worker's round (Queue.exchange): completions and claims in one transaction; ahead only what DESIGN §4 allows."""

import psycopg
import pytest

from jobqueue import Backoff, InfrastructureError, JobQueueError, Outcome, Queue

pytestmark = pytest.mark.shared

AT_ONCE = Backoff(shape="constant", base_seconds=0, jitter="none")


def fill(queue, *jobs):
    """Enqueues one job for each max_attempts given; the ids in order."""
    return [queue.enqueue("mail", max_attempts=attempts).id for attempts in jobs]


def claimed(queue, slots, ahead=0, finished=()):
    """Ids that a round claims."""
    exchanged = queue.exchange(list(finished), "A", leases={"mail": 30}, slots=slots, ahead=ahead)
    return [lease.id for lease in exchanged.claim]


def lose_lease(queue, conn):
    """One job claimed and lost, ready again."""
    job = queue.enqueue("mail", max_attempts=9).id
    queue.claim("dead worker")
    conn.execute("update jobqueue.job set locked_until = jobqueue.now() where id = %s", (job,))
    queue.reap(backoff=AT_ONCE)
    return job


def test_a_round_completes_what_finished_and_claims_for_the_free_slots(queue):
    ids = fill(queue, 5, 5, 5, 5)
    leases = list(queue.claim("A", limit=2))
    outcomes, claim = queue.exchange(leases, "A", leases={"mail": 30}, slots=1)
    assert (outcomes, [lease.id for lease in claim], queue.get(ids[0]).status) == (
        [Outcome.APPLIED] * 2,
        ids[2:3],
        "done",
    )


def test_both_halves_of_a_round_are_one_transaction(conn, queue):
    fill(queue, 5, 5)
    queue.exchange(list(queue.claim("A")), "A", leases={"mail": 30}, slots=1)
    assert conn.execute("select count(distinct xmin::text), count(*) from jobqueue.job").fetchone() == (1, 2)


def test_jobs_on_their_last_attempt_are_claimed_for_free_slots_and_never_ahead(queue):
    ids = fill(queue, *[1] * 10)
    assert (claimed(queue, slots=2, ahead=8), claimed(queue, slots=0, ahead=8)) == (ids[:2], [])


def test_jobs_with_attempts_to_spare_are_claimed_ahead(queue):
    ids = fill(queue, *[2] * 10)
    assert claimed(queue, slots=2, ahead=5) == ids[:7]


def test_a_job_that_has_lost_a_lease_is_claimed_for_a_free_slot_and_never_ahead(conn, queue):
    poison = lose_lease(queue, conn)
    others = fill(queue, 5, 5)
    ahead = claimed(queue, slots=0, ahead=3)
    assert (ahead, claimed(queue, slots=1, ahead=2)) == (others, [poison])


def test_the_oldest_job_gets_the_free_slot_though_it_is_poison(conn, queue):
    poison = lose_lease(queue, conn)
    conn.execute("update jobqueue.job set run_at = run_at - interval '1 hour'")
    others = fill(queue, 5, 5)
    assert claimed(queue, slots=1, ahead=5) == [poison, *others]


def test_one_poison_job_that_kills_its_worker_every_time_kills_no_job_that_had_not_started(conn, queue):
    """Batches of ten with one poison job: the worker dies of it until it is dead, the nine keep their attempts."""
    poison, *others = fill(queue, *[3] * 10)
    for _ in range(3):
        held = claimed(queue, slots=1, ahead=9)
        conn.execute("update jobqueue.job set locked_until = jobqueue.now() where id = any (%s)", (held,))
        queue.reap(backoff=AT_ONCE)
        conn.execute("update jobqueue.job set run_at = jobqueue.now() - interval '1 hour' where id = %s", (poison,))
    dead = conn.execute("select id from jobqueue.job where status = 'dead'").fetchall()
    alive = conn.execute("select count(*), max(attempts) <= 2 from jobqueue.job where status = 'ready'").fetchone()
    assert (dead, alive) == ([(poison,)], (9, True))


def test_a_round_without_free_slots_still_completes(queue):
    [job] = fill(queue, 5)
    outcomes, claim = queue.exchange(list(queue.claim("A")), "A", leases={"mail": 30}, slots=0)
    assert (outcomes, len(claim), queue.get(job).status) == ([Outcome.APPLIED], 0, "done")


def test_a_round_answers_for_each_lease_like_complete_many(queue):
    fill(queue, 5, 5, 5)
    cancelled, failed, mine = queue.claim("A", limit=3)
    queue.cancel(cancelled.id)
    queue.fail(failed, "boom", delay_seconds=60)
    outcomes, _ = queue.exchange([failed, mine, cancelled], "A", leases={"mail": 30}, slots=1)
    assert outcomes == [Outcome.CONFLICT, Outcome.APPLIED, Outcome.CANCELLED]


def test_a_row_that_another_transaction_holds_is_held_and_stops_nobody(dsn, conn, queue):
    fill(queue, 5, 5, 5)
    leases = list(queue.claim("A", limit=2))
    with psycopg.connect(dsn) as holder:
        holder.execute("select from jobqueue.job where id = %s for update", (leases[0].id,))
        conn.execute("set lock_timeout = '50ms'")
        outcomes, claim = queue.exchange(leases, "A", leases={"mail": 30}, slots=1)
    assert (outcomes, len(claim)) == ([Outcome.HELD, Outcome.APPLIED], 1)


def test_each_type_gets_the_lease_of_its_own_handler(conn, queue):
    for type in ("quick", "slow"):
        queue.enqueue(type)
    queue.exchange([], "A", leases={"slow": 300, "quick": 3}, slots=2)
    lengths = conn.execute(
        "select type, extract(epoch from locked_until - started_at)::int from jobqueue.job order by 1"
    )
    assert lengths.fetchall() == [("quick", 3), ("slow", 300)]


def test_a_round_refuses_to_join_a_callers_transaction(conn, queue):
    fill(queue, 5, 5)
    leases = list(queue.claim("A"))
    with conn.transaction(), pytest.raises(JobQueueError, match="transaction"):
        queue.exchange(leases, "A", leases={"mail": 30}, slots=1)
    assert queue.complete(leases[0]) is Outcome.APPLIED


def test_a_round_that_the_database_refuses_has_done_neither_half(dsn, conn, queue):
    fill(queue, 5, 5)
    leases = list(queue.claim("A"))
    with psycopg.connect(dsn, autocommit=True) as read_only:
        read_only.execute("set default_transaction_read_only = on")
        with pytest.raises(InfrastructureError):
            Queue(read_only).exchange(leases, "A", leases={"mail": 30}, slots=1)
    statuses = conn.execute("select status from jobqueue.job order by id").fetchall()
    assert (statuses, queue.reconcile(leases[0])) == ([("running",), ("ready",)], Outcome.HELD)


# ---- the watermark: a claim that begins where the last one ended -----------------------------------------------------


def test_a_claim_names_its_last_job_and_the_next_one_begins_after_it(queue):
    ids = fill(queue, 5, 5, 5, 5)
    _, first = queue.exchange([], "A", leases={"mail": 30}, slots=2)
    assert first.last == (queue.get(ids[1]).run_at, ids[1])
    _, next_ = queue.exchange([], "A", leases={"mail": 30}, slots=9, after=first.last)
    assert ([lease.id for lease in next_], next_.last[1]) == (ids[2:], ids[3])


def test_what_came_due_before_the_mark_is_left_for_a_claim_from_the_start(queue, conn):
    ids = fill(queue, 5, 5)
    _, first = queue.exchange([], "A", leases={"mail": 30}, slots=1)
    conn.execute("update jobqueue.job set run_at = run_at - interval '1 hour' where id = %s", (ids[1],))
    _, later = queue.exchange([], "A", leases={"mail": 30}, slots=1, after=first.last)
    assert (len(later), later.last, claimed(queue, 1)) == (0, None, [ids[1]])


def test_with_several_types_the_mark_is_one_for_all(queue):
    ids = [queue.enqueue(type).id for type in ("mail", "post", "mail", "post")]
    leases, after, order = {"mail": 30, "post": 30}, None, []
    for _ in ids:
        _, claim = queue.exchange([], "A", leases=leases, slots=1, after=after)
        order += [lease.id for lease in claim]
        after = claim.last
    assert order == ids


def test_what_an_exchange_brought_can_be_read_after_the_next_was_sent(queue):
    ids = fill(queue, 5, 5, 5, 5)
    first = queue.exchange([], "A", leases={"mail": 30}, slots=2, meanwhile=lambda: None)
    assert (first.count, first.last[1]) == (2, ids[1])
    seen = []
    options = {"leases": {"mail": 30}, "slots": 2, "after": first.last}
    second = queue.exchange([], "A", **options, meanwhile=lambda: seen.extend(first.claim))
    assert ([lease.id for lease in seen], [lease.id for lease in second.claim]) == (ids[:2], ids[2:])
    assert queue.complete_many(seen) == [Outcome.APPLIED] * 2


# ---- an interrupt ----------------------------------------------------------------------------------------------------


class Interrupted(psycopg.Connection):
    """Ctrl-C arrives where psycopg begins to wait for the n-th time from now."""

    waits_left = None

    def wait(self, generator, *args, **kwargs):
        if self.waits_left == 0:
            self.waits_left = None
            raise KeyboardInterrupt
        if self.waits_left is not None:
            self.waits_left -= 1
        return super().wait(generator, *args, **kwargs)


def test_an_interrupt_amid_an_exchange_stays_an_interrupt(dsn, queue):
    """Also at the pipeline's end, where psycopg leaves it with an error of its own: "busy"."""
    told = []
    for waits in range(20):
        queue.enqueue_many([{"type": "mail"}] * 2)
        conn = Interrupted.connect(dsn, autocommit=True)
        held = list(Queue(conn).claim("A", types=["mail"]))
        conn.waits_left = waits
        try:
            Queue(conn).exchange(held, "A", leases={"mail": 30}, slots=1)
            break
        except BaseException as error:
            told.append(type(error))
        finally:
            conn.close()
    assert told == [KeyboardInterrupt] * waits and waits >= 3


def test_an_error_while_an_interrupt_is_handled_stays_an_error(dsn, queue):
    """Who cleans up after Ctrl-C hears of a lost connection as of any other."""
    conn = psycopg.connect(dsn, autocommit=True)
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        conn.close()
        with pytest.raises(InfrastructureError, match="connection"):
            Queue(conn).enqueue("mail")
