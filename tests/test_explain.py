"""explain, as somebody on call reads it: the whole text where the clock stands still, the facts where it runs."""

from datetime import UTC, datetime, timedelta

import pytest

from helpers import Session
from jobqueue import Backoff, Schedules

pytestmark = pytest.mark.shared

SEVEN = Backoff(shape="constant", base_seconds=7, jitter="none")
MORNING = datetime(2026, 11, 30, 3, 0, tzinfo=UTC)


@pytest.fixture
def at_three(virtual_queue, clock):
    """A queue whose clock says 03:00."""
    clock.set(MORNING)
    return virtual_queue


def story(queue, job_id):
    return queue.explain(job_id).splitlines()


# ---- what it waits for -----------------------------------------------------------------------------------------------


def test_a_due_job_that_nobody_handles(at_three, clock):
    job = at_three.enqueue("mail", key="order 17").id
    clock.advance(200)
    assert story(at_three, job) == [
        f"Job {job} of type 'mail' was enqueued at 2026-11-30 03:00:00.000 UTC under the key 'order 17'.",
        "It is ready and has been due for 3 min 20 s, since 2026-11-30 03:00:00.000 UTC; 0 of 5 attempts are used.",
        "There is no sign of a worker that handles 'mail': none runs such a job, no idle one waits for it. Is "
        "one up, with a "
        "handler for this type?",
        f"To stop it: python -m jobqueue cancel {job}",
    ]


def test_a_job_behind_others_of_its_type(at_three, clock):
    at_three.enqueue_many([{"type": "mail"}, {"type": "mail"}, {"type": "report"}])
    clock.advance(1)
    job = at_three.enqueue("mail").id
    at_three.claim("A", types=["mail"])
    assert story(at_three, job)[2:4] == [
        "1 job of its type is due before it.",
        "1 job of its type is running, so there are workers that handle it.",
    ]


def test_a_job_for_which_an_idle_worker_waits(at_three, virtual_conn):
    job = at_three.enqueue("mail").id
    virtual_conn.execute(
        "insert into jobqueue.listener (owner, types) values ('A', '{mail,report}'), ('B', '{report}')"
    )
    assert story(at_three, job)[2] == "An idle worker waits for its type: the next poll should claim it."


def test_a_job_for_later(at_three):
    job = at_three.enqueue("mail", delay_seconds=90_000).id
    assert story(at_three, job)[1:] == [
        "It is ready and due in 1 d 1 h, at 2026-12-01 04:00:00.000 UTC; 0 of 5 attempts are used.",
        f"To stop it: python -m jobqueue cancel {job}",
    ]


def test_a_job_of_a_paused_type(at_three, clock):
    job = at_three.enqueue("mail").id
    at_three.pause_type("mail")
    clock.advance(60)
    assert story(at_three, job)[1:] == [
        "It is ready and has been due for 1 min, since 2026-11-30 03:00:00.000 UTC; 0 of 5 attempts are used.",
        "Its type 'mail' is paused since 2026-11-30 03:00:00.000 UTC: nothing claims it until it is resumed.",
        f"To let it run: python -m jobqueue resume mail. To stop it: python -m jobqueue cancel {job}",
    ]


def test_a_job_that_waits_for_its_backoff(at_three, clock):
    job = at_three.enqueue("mail").id
    lease = at_three.claim("host-1")[0]
    clock.advance(2)
    at_three.fail(lease, "Traceback …\nValueError: the server said no", backoff=SEVEN)
    clock.advance(4)
    assert story(at_three, job)[1:] == [
        "It is ready and due in 3.0 s, at 2026-11-30 03:00:09.000 UTC (the backoff after its last failure); 1 "
        "of 5 attempts are used.",
        "What happened to it:",
        "  2026-11-30 03:00:02.000000 UTC  epoch 1, 'host-1': an attempt failed: ValueError: the server said no",
        "The last error: ValueError: the server said no",
        f"To stop it: python -m jobqueue cancel {job}",
    ]


def test_a_job_that_its_handler_gave_back(at_three, clock):
    job = at_three.enqueue("mail").id
    for _ in range(2):
        at_three.release(at_three.claim("host-1")[0], "no network", delay_seconds=20)
        clock.advance(20)
    found = story(at_three, job)
    assert (
        "Its handler has given it back 2 times in a row; after 20 in a row a further one fails it." in found,
        found[-2],
    ) == (
        True,
        "  2026-11-30 03:00:20.000000 UTC  epoch 2, 'host-1': it was given back, its attempt not counted: no network",
    )


# ---- who holds it ----------------------------------------------------------------------------------------------------


def test_a_running_job(at_three, clock):
    job = at_three.enqueue("mail").id
    at_three.claim("host-1", lease_seconds=300)
    clock.advance(60)
    assert story(at_three, job)[1:] == [
        "It is running: 'host-1' has held epoch 1 for 1 min, since 2026-11-30 03:00:00.000 UTC, and its lease "
        "ends in 4 min unless "
        "it is renewed; 1 of 5 attempts are used.",
        f"To stop it: python -m jobqueue cancel {job}",
    ]


def test_a_job_whose_lease_has_ended(at_three, clock):
    job = at_three.enqueue("mail").id
    at_three.claim("host-1", lease_seconds=30)
    clock.advance(40)
    assert story(at_three, job)[1:] == [
        "It is running: 'host-1' has held epoch 1 for 40.0 s, since 2026-11-30 03:00:00.000 UTC, but its lease "
        "ended 10.0 s ago; 1 of 5 "
        "attempts are used. The next reaper takes it away, unless its owner renews or ends it first.",
        f"If it stays so, no reaper is up: python -m jobqueue reaper. To stop the job: python -m jobqueue cancel {job}",
    ]


def test_an_ended_lease_whose_row_a_forgotten_transaction_holds(dsn, conn, queue):
    job = queue.enqueue("mail").id
    queue.claim("host-1")
    conn.execute("update jobqueue.job set locked_until = jobqueue.now()")
    with Session(dsn, application_name="forgotten psql") as holder, holder.conn.transaction():
        holder.conn.execute("select from jobqueue.job for update")
        found = story(queue, job)
    assert found[2].startswith(
        f"Its row is locked by the transaction of pid {holder.pid} (forgotten psql, idle in transaction, since "
    )
    assert (found[2].endswith("): until that ends every reaper skips it."), found[-1]) == (
        True,
        f"To end the transaction that holds it: select pg_terminate_backend({holder.pid})",
    )


def test_a_ready_row_that_somebody_changes_right_now(dsn, queue):
    job = queue.enqueue("mail").id
    with Session(dsn) as holder, holder.conn.transaction(force_rollback=True):
        holder.queue.cancel(job)
        found = queue.explain(job)
    assert f"pid {holder.pid} " in found and "until that ends nothing else can change it." in found


def test_ones_own_transaction_is_not_told_as_a_holder(conn, queue):
    job = queue.enqueue("mail").id
    with conn.transaction(force_rollback=True):
        queue.cancel(job)
        assert "locked by" not in queue.explain(job)


# ---- what it came to -------------------------------------------------------------------------------------------------


def test_a_done_job_with_its_past(at_three, clock):
    job = at_three.enqueue("mail").id
    at_three.claim("host-1", lease_seconds=10)
    clock.advance(10)
    at_three.reap(backoff=SEVEN)
    clock.advance(7)
    lease = at_three.claim("host-2")[0]
    clock.advance(90)
    at_three.complete(lease)
    clock.advance(86_400 * 2)
    at_three.archive(older_than_seconds=0)
    assert story(at_three, job)[1:] == [
        "It is done since 2026-11-30 03:01:47.000 UTC, 2 d ago; 2 of 5 attempts are used.",
        "It was completed by 'host-2' in epoch 2, 1 min 30 s after that claim.",
        "Its row is in the archive.",
        "Of its attempts, 1 ended with a lost lease.",
        "What happened to it:",
        "  2026-11-30 03:00:10.000000 UTC  epoch 1, 'host-1': its lease was lost, no end was reported in time",
    ]


def test_a_dead_letter_says_why_and_what_to_do(at_three, clock):
    job = at_three.enqueue("mail", max_attempts=1).id
    at_three.fail(at_three.claim("A")[0], "ValueError: boom")
    clock.advance(5)
    assert story(at_three, job)[1:] == [
        "It is dead since 2026-11-30 03:00:00.000 UTC, 5.0 s ago; 1 of 1 attempts are used.",
        "What happened to it:",
        "  2026-11-30 03:00:00.000000 UTC  epoch 1, 'A': an attempt failed: ValueError: boom",
        "The last error: ValueError: boom",
        f"It is a dead letter because its attempts are used up; mend the cause, then: python -m jobqueue redrive {job}",
    ]


def test_a_job_that_is_never_to_be_retried_says_so(at_three):
    job = at_three.enqueue("mail").id
    at_three.fail(at_three.claim("A")[0], "no such address", permanent=True)
    assert story(at_three, job)[-1].startswith(
        "It is a dead letter because its handler said never to retry it; mend the cause"
    )


def test_an_archived_dead_letter_can_only_be_enqueued_again(at_three):
    job = at_three.enqueue("mail", max_attempts=1).id
    at_three.fail(at_three.claim("A")[0], "boom")
    at_three.archive(older_than_seconds=0, statuses=["dead"])
    assert story(at_three, job)[-1].endswith("enqueue it again, under another key, since an archived row never runs")


def test_a_cancelled_job_names_who_ran_it(at_three):
    job = at_three.enqueue("mail").id
    at_three.claim("A")
    at_three.cancel(job)
    assert story(at_three, job)[-2:] == [
        "  2026-11-30 03:00:00.000000 UTC  epoch 1, 'A': it was cancelled by hand",
        f"To run it after all: python -m jobqueue redrive {job} --cancelled",
    ]


def test_a_trimmed_history_says_how_much_is_missing(at_three, virtual_conn):
    job = at_three.enqueue("mail").id
    virtual_conn.execute("update jobqueue.job set history_trimmed = 12")
    assert "  (12 older entries were trimmed)" in story(at_three, job)


def test_an_unknown_job_says_what_may_have_been(at_three):
    assert story(at_three, 999) == [
        "Job 999 is unknown: never enqueued, rolled back, or its archive row has been pruned."
    ]


# ---- publication and schedule ----------------------------------------------------------------------------------------


def test_a_publication_is_told_with_the_command_that_verifies_it(at_three):
    job = at_three.enqueue("report").id
    at_three.publish(at_three.claim("A")[0], "report.csv", "ab" * 32)
    assert story(at_three, job)[2:4] == [
        f"Published as 'report.csv' by 'A' in epoch 1, sha256 {'ab' * 32}.",
        f"Is that file there, and unaltered? python -m jobqueue explain {job} --artifacts DIR",
    ]


def test_an_earlier_epochs_publication_is_never_told_as_the_result(at_three, clock):
    job = at_three.enqueue("report").id
    at_three.publish(at_three.claim("A", lease_seconds=10)[0], "old.csv", "ab" * 32)
    clock.advance(10)
    at_three.adopt(job, "B")
    found = at_three.explain(job)
    assert ("ab" * 32 in found, "Published as" in found, story(at_three, job)[2]) == (
        False,
        False,
        "An earlier execution, 'A' in epoch 1, had published 'old.csv'; since then another epoch has begun, and "
        "that is not its result.",
    )


@pytest.mark.parametrize(
    "act, told",
    [
        (lambda schedules: None, ", whose next slot is 2026-11-30 05:00:00 UTC."),
        (lambda schedules: schedules.pause("nightly"), ", which is paused."),
        (lambda schedules: schedules.remove("nightly"), ", which has been removed."),
        (
            lambda schedules: schedules.conn.execute("update jobqueue.schedule set problem = 'no such zone'"),
            ", which fires no more: no such zone.",
        ),
        (lambda schedules: schedules.conn.execute("delete from jobqueue.schedule"), ", of which nothing is left here."),
    ],
)
def test_a_job_of_a_schedule_names_its_slot_and_how_that_goes_on(at_three, virtual_conn, clock, act, told):
    schedules = Schedules(virtual_conn)
    schedules.put("nightly", "report", "0 * * * *")
    clock.set(MORNING + timedelta(hours=1))
    [made] = schedules.tick().jobs
    act(schedules)
    assert story(at_three, made.id)[0] == (
        f"Job {made.id} of type 'report' was enqueued at 2026-11-30 04:00:00.000 UTC under the key "
        f"'schedule/2026-11-30T04:00:00Z/nightly' "
        f"for the slot 2026-11-30 04:00:00.000 UTC of the schedule 'nightly'{told}"
    )


# ---- never a reason to fail ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type", ["mail", "a'b", "a%sb", "{x}", "é" * 90, "a\nb"])
def test_odd_names_do_not_break_the_story(at_three, type):
    job = at_three.enqueue(type, {"%s": "{x}"}, key=type, max_attempts=1).id
    at_three.fail(at_three.claim(type)[0], "\n \n%s {x}\n\n")
    assert "%s {x}" in at_three.explain(job)


def test_a_story_is_told_in_every_zone_of_the_session_alike(dsn, conn, queue):
    job = queue.enqueue("mail", delay_seconds=9_000).id
    conn.execute("set timezone = 'Australia/Lord_Howe'")
    line = story(queue, job)[0]
    conn.execute("set timezone = 'UTC'")
    assert line == story(queue, job)[0]


def test_a_long_queue_is_not_counted_to_its_end(conn, queue):
    conn.execute("insert into jobqueue.job (type) select 'mail' from generate_series(1, 1500)")
    job = queue.enqueue("mail").id
    assert story(queue, job)[2] == "1000 jobs or more of its type are due before it."
