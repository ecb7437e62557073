"""What a handler is given: its own transaction, effects that count once, authority that ends, heartbeats beside it."""

import os
import threading
import time
from contextlib import suppress

import psycopg
import pytest
from working import ends, job_when, running, settled, statuses, threads, working

from helpers import wait_until
from jobqueue import (
    Backoff,
    Handler,
    InfrastructureError,
    JobQueueError,
    LeaseLost,
    Outcome,
    Reaper,
    Worker,
)

pytestmark = pytest.mark.shared

SOON = Backoff("constant", base_seconds=0, jitter="none")


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    wait_until(lambda: threads() == [], 5, "the end of every thread of a worker")


@pytest.fixture
def account(conn):
    """A destination that shares the jobs' database."""
    conn.execute("create table account (job_id bigint, epoch bigint, what text)")
    yield lambda: conn.execute("select job_id, epoch, what from account order by 1, 2, 3").fetchall()
    conn.execute("drop table account")


def write(lease, conn, what):
    conn.execute("insert into account values (%s, %s, %s)", (lease.id, lease.epoch, what))


def first_time_only(failure=None):
    """A handler with an effect, which ends as told at its first attempt, and then again as it should."""

    def handler(lease, context):
        if context.effect(f"pay/{lease.id}"):
            write(lease, context.connection, "paid")
        if lease.epoch == 1 and failure is not None:
            failure(lease, context)

    return Handler(handler, backoff=SOON)


def run(dsn, queue, conn, handler, **options):
    job_id = queue.enqueue("job").id
    with working(dsn, {"job": handler}, **options):
        settled(conn)
    return queue.get(job_id)


def test_an_effect_and_the_completion_are_one_transaction(dsn, queue, conn, account):
    job = run(dsn, queue, conn, first_time_only())
    assert (job.status, account()) == ("done", [(job.id, 1, "paid")])
    assert conn.execute("select key, job_id, epoch from jobqueue.effect").fetchall() == [(f"pay/{job.id}", job.id, 1)]


def fail(lease, context):
    raise ValueError("after the effect")


def lose_connection(lease, context):
    conn = context.connection
    with psycopg.connect(conn.info.dsn, autocommit=True) as other:
        other.execute("select pg_terminate_backend(%s)", (conn.info.backend_pid,))


def lose_connection_and_go_on(lease, context):
    lose_connection(lease, context)
    write(lease, context.connection, "beside the transaction")


def swallow_the_loss(lease, context):
    lose_connection(lease, context)
    for _ in range(2):
        with suppress(InfrastructureError):
            context.effect(f"again/{lease.id}")


def break_the_transaction(lease, context):
    with suppress(psycopg.errors.DivisionByZero):
        context.connection.execute("select 1 / 0")


def commit(lease, context):
    context.connection.commit()


def use_it_up(lease, context):
    with context.connection:
        pass


ONCE = {
    "it fails after its effect": (fail, ["failed"], 2),
    "its connection is lost at the end": (lose_connection, ["released"], 1),
    "its connection is lost and it goes on": (lose_connection_and_go_on, ["released"], 1),
    "its connection is lost and it looks away": (swallow_the_loss, ["released"], 1),
    "it leaves its transaction aborted": (break_the_transaction, ["failed"], 2),
    "it tries to commit by itself": (commit, ["failed"], 2),
    "it tries to end its connection": (use_it_up, ["failed"], 2),
}


@pytest.mark.parametrize("failure, history, attempts", ONCE.values(), ids=ONCE)
def test_an_effect_is_applied_once_however_the_first_attempt_ends(
    dsn, queue, conn, account, failure, history, attempts
):
    job = run(dsn, queue, conn, first_time_only(failure))
    assert (job.status, ends(job), job.attempts, job.releases) == ("done", history, attempts, 0)
    assert account() == [(job.id, 2, "paid")]


def test_an_effect_that_was_recorded_before_says_so(dsn, queue, conn, account):
    said = []
    ids = [queue.enqueue("job").id for _ in range(3)]
    with working(dsn, {"job": lambda lease, context: said.append(context.effect("the same key"))}, concurrency=1):
        settled(conn)
    assert (said, [queue.get(id).status for id in ids]) == ([True, False, False], ["done"] * 3)


def test_a_savepoint_undoes_a_part_and_the_rest_counts(dsn, queue, conn, account):
    def handler(lease, context):
        with context.connection.transaction():
            write(lease, context.connection, "kept")
        with context.connection.transaction(force_rollback=True):
            write(lease, context.connection, "undone")

    job = run(dsn, queue, conn, handler)
    assert (job.status, account()) == ("done", [(job.id, 1, "kept")])


def test_each_job_begins_with_a_transaction_of_its_own(dsn, queue, conn, account):
    pids = []

    def handler(lease, context):
        pids.append(context.connection.info.backend_pid)
        write(lease, context.connection, "once")

    ids = [queue.enqueue("job").id for _ in range(5)]
    with working(dsn, {"job": handler}, concurrency=1):
        settled(conn)
    assert (len(set(pids)), account()) == (1, [(id, 1, "once") for id in ids])


def test_a_constraint_that_is_checked_at_commit_fails_the_attempt_and_nothing_counts(dsn, queue, conn, account):
    conn.execute("create table if not exists unique_later (n int unique deferrable initially deferred)")

    def handler(lease, context):
        context.connection.execute("insert into unique_later values (1), (1)")

    job_id = queue.enqueue("job", max_attempts=1).id
    with working(dsn, {"job": handler}):
        job = job_when(queue, job_id, "dead")
    assert (
        job.attempts,
        "23505" in job.last_error,
        conn.execute("select count(*) from unique_later").fetchone()[0],
    ) == (1, True, 0)


def test_a_deadlock_in_the_jobs_transaction_is_no_attempt(dsn, queue, conn, account):
    conn.execute("drop table if exists pair; create table pair (n int primary key, v int default 0)")
    conn.execute("insert into pair values (1), (2)")
    both = threading.Barrier(2)

    def handler(lease, context):
        first, second = lease.payload
        context.connection.execute("update pair set v = v + 1 where n = %s", (first,))
        if lease.epoch == 1:
            both.wait(10)
        context.connection.execute("update pair set v = v + 1 where n = %s", (second,))

    ids = [queue.enqueue("job", payload).id for payload in ([1, 2], [2, 1])]
    with working(dsn, {"job": Handler(handler, backoff=SOON)}, concurrency=2):
        settled(conn)
    jobs = [queue.get(id) for id in ids]
    assert (sorted(job.epoch for job in jobs), [job.attempts for job in jobs]) == ([1, 2], [1, 1])
    assert conn.execute("select v from pair").fetchall() == [(2,), (2,)]


def test_heartbeats_go_on_beside_an_open_transaction_with_an_effect(dsn, queue, conn, account):
    seen = []

    def handler(lease, context):
        context.effect("first of all")
        seen.append(context.heartbeat())
        seen.append(context.lost.wait(1.5))

    job_id = queue.enqueue("job").id
    reaper = Reaper(dsn, poll_seconds=0.05)
    with running(reaper), working(dsn, {"job": Handler(handler, lease_seconds=0.6)}):
        settled(conn)
    job = queue.get(job_id)
    assert (seen, job.status, job.epoch, job.lease_losses) == ([Outcome.APPLIED, False], "done", 1, 0)


def test_publishing_goes_beside_an_open_transaction_with_an_effect(dsn, queue, conn, account, tmp_path):
    seen = []

    def handler(lease, context):
        context.effect("before it publishes")
        seen.append(context.publish(b"result", "result.txt"))

    job = run(dsn, queue, conn, handler, artifacts=tmp_path)
    assert (seen, job.status, job.published_name, job.published_epoch) == ([Outcome.APPLIED], "done", "result.txt", 1)


def test_a_cancellation_beside_an_open_transaction_undoes_its_effects(dsn, queue, conn, account):
    go, seen = threading.Event(), []

    def handler(lease, context):
        context.effect("in vain")
        write(lease, context.connection, "in vain")
        seen.append(lease.id)
        go.wait(10)

    job_id = queue.enqueue("job").id
    with working(dsn, {"job": handler}):
        wait_until(lambda: seen)
        assert queue.cancel(job_id).after == "cancelled"
        go.set()
        wait_until(
            lambda: (
                conn.execute("select count(*) from pg_stat_activity where state like 'idle in tr%'").fetchone()[0] == 0
            )
        )
    assert (
        queue.get(job_id).status,
        account(),
        conn.execute("select count(*) from jobqueue.effect").fetchone()[0],
    ) == ("cancelled", [], 0)


def test_two_executions_at_once_apply_an_effect_once(dsn, queue, conn, account):
    """The first worker's lease is taken away while it works; its completion comes late, and with it nothing counts."""
    slow = threading.Event()

    def handler(lease, context):
        if lease.epoch == 1:
            slow.wait(20)
        if context.effect(f"pay/{lease.id}"):
            write(lease, context.connection, "paid")

    job_id = queue.enqueue("job").id
    with working(dsn, {"job": handler}, concurrency=2):
        job_when(queue, job_id, "running")
        conn.execute("update jobqueue.job set locked_until = now() - interval '1 second'")
        assert [one.id for one in queue.reap(backoff=SOON)] == [job_id]
        job_when(queue, job_id, "done")
        slow.set()
        wait_until(
            lambda: conn.execute("select count(*) from jobqueue.job where status = 'running'").fetchone() == (0,)
        )
    assert (account(), queue.get(job_id).finished_epoch) == ([(job_id, 2, "paid")], 2)


def test_once_authority_is_gone_everything_says_so(dsn, queue, conn, account, tmp_path):
    seen = []

    def handler(lease, context):
        if lease.epoch > 1:
            return
        context.lost.wait(10)
        for act in (
            context.heartbeat,
            lambda: context.effect("late"),
            lambda: context.publish(b"late", "late.txt"),
            lambda: context.connection,
        ):
            try:
                seen.append(act())
            except LeaseLost:
                seen.append("lost")

    job_id = queue.enqueue("job").id
    with working(dsn, {"job": Handler(handler, lease_seconds=0.6)}, artifacts=tmp_path, concurrency=1):
        job_when(queue, job_id, "running")
        conn.execute("update jobqueue.job set locked_until = now() - interval '1 second'")
        queue.reap(backoff=SOON)
        settled(conn)
    assert (seen, account(), queue.get(job_id).published_name) == (["lost"] * 4, [], None)


def test_a_handler_that_overran_in_a_transaction_keeps_no_lock_and_its_effects_do_not_count(dsn, queue, conn, account):
    free = threading.Event()

    def handler(lease, context):
        context.effect(f"pay/{lease.id}")
        write(lease, context.connection, "paid")
        if lease.epoch == 1:
            conn_of_handler.append(context.connection)
            free.wait(30)

    conn_of_handler = []
    job_id = queue.enqueue("job").id
    with working(dsn, {"job": Handler(handler, timeout_seconds=0.5, backoff=SOON)}):
        job = job_when(queue, job_id, "done", 10)
        free.set()
    assert (ends(job), job.attempts, account()) == (["failed"], 2, [(job_id, 2, "paid")])
    assert conn_of_handler[0].closed


def test_a_handler_that_overran_inside_a_statement_is_ended_on_the_server_too(dsn, queue, conn, account):
    def handler(lease, context):
        if lease.epoch == 1:
            context.connection.execute("select pg_sleep(30)")

    job_id = queue.enqueue("job").id
    with working(dsn, {"job": Handler(handler, timeout_seconds=0.5, backoff=SOON)}):
        job_when(queue, job_id, "done", 10)
        wait_until(
            lambda: (
                conn.execute(
                    "select count(*) from pg_stat_activity where query like '%sleep(30)%' and pid <> pg_backend_pid()"
                ).fetchone()[0]
                == 0
            ),
            5,
        )


def test_a_stop_releases_a_handler_that_holds_its_row_in_its_transaction(dsn, queue, conn, account):
    free = threading.Event()

    def handler(lease, context):
        context.effect("never counts")
        context.connection.execute("select from jobqueue.job where id = %s for update", (lease.id,))
        free.wait(30)

    job_id = queue.enqueue("job").id
    worker = Worker(dsn, {"job": handler}, grace_seconds=0)
    with running(worker) as run:
        job_when(queue, job_id, "running")
        wait_until(
            lambda: conn.execute(
                "select count(*) from pg_stat_activity where state = 'idle in transaction'"
            ).fetchone()[0]
        )
        before = time.monotonic()
        worker.stop()
        run.result(10)
        took = time.monotonic() - before
    free.set()
    job = queue.get(job_id)
    assert (
        job.status,
        job.attempts,
        ends(job),
        conn.execute("select count(*) from jobqueue.effect").fetchone()[0],
    ) == ("ready", 0, ["released"], 0)
    assert took < 4


@pytest.mark.parametrize("timeout, shown", [(7.0, "7s"), (None, "0")])
def test_a_transaction_may_idle_as_long_as_its_handler_may_run(dsn, queue, conn, timeout, shown):
    seen = []

    def handler(lease, context):
        seen.append(context.connection.execute("show idle_in_transaction_session_timeout").fetchone()[0])

    run(dsn, queue, conn, Handler(handler, timeout_seconds=timeout))
    assert seen == [shown]


def test_publishing_without_a_folder_is_an_error_that_says_so(dsn, queue):
    job_id = queue.enqueue("job", max_attempts=1).id
    with working(dsn, {"job": lambda lease, context: context.publish(b"", "x")}):
        job = job_when(queue, job_id, "dead")
    assert (
        job.last_error.splitlines()[-1]
        == "jobqueue.errors.JobQueueError: this worker has no folder for candidates: give it artifacts=DIR"
    )


def test_a_bad_key_of_an_effect_is_refused_before_any_sql(dsn, queue):
    job_id = queue.enqueue("job", max_attempts=1).id
    with working(dsn, {"job": lambda lease, context: context.effect("x" * 513)}):
        job = job_when(queue, job_id, "dead")
    assert "key must have 1–512 bytes in UTF-8, this one has 513" in job.last_error


@pytest.mark.parametrize("given, problem", [
    ({"fn": 7}, "a handler must be callable, not 7"),
    ({"fn": print, "lease_seconds": 0}, "lease_seconds must lie in 0.001–86,400 seconds, not 0"),
    ({"fn": print, "timeout_seconds": -1}, "timeout_seconds must lie in 0.001–316,224,000 seconds, not -1"),
    ({"fn": print, "backoff": 3}, "backoff must be a Backoff, not 3"),
])  # fmt: skip
def test_a_bad_handler_is_refused(given, problem):
    with pytest.raises(JobQueueError) as refused:
        Handler(**given)
    assert (str(refused.value), isinstance(refused.value, ValueError)) == (problem, True)


def test_waiting_for_lost_from_several_threads_of_a_handler_wakes_them_all(dsn, queue, conn):
    woken = []

    def handler(lease, context):
        helpers = [threading.Thread(target=lambda: woken.append(context.lost.wait(10))) for _ in range(8)]
        [helper.start() for helper in helpers]
        [helper.join() for helper in helpers]

    job_id = queue.enqueue("job").id
    with working(dsn, {"job": Handler(handler, lease_seconds=0.6)}):
        job_when(queue, job_id, "running")
        queue.cancel(job_id)
        wait_until(lambda: len(woken) == 8, 5)
    assert (woken, statuses(conn)) == ([True] * 8, {"cancelled": 1})


async def not_awaited():
    yield 1


RETURNED = {
    "a generator": lambda lease, context: (number for number in [1]),
    "an asynchronous generator": lambda lease, context: not_awaited(),
}


@pytest.mark.parametrize("handler", RETURNED.values(), ids=RETURNED)
def test_what_nobody_would_run_to_its_end_is_a_failure_and_never_a_silent_success(dsn, queue, conn, handler):
    job_id = queue.enqueue("job", max_attempts=1).id
    with working(dsn, {"job": handler}):
        job = job_when(queue, job_id, "dead")
    assert "which nobody would run to its end" in job.last_error


def test_a_handler_that_closes_its_connection_is_released_and_counted(dsn, queue, conn):
    closing = Handler(lambda lease, context: context.connection.close(), backoff=SOON)
    job_id = queue.enqueue("job", max_attempts=1).id
    with working(dsn, {"job": closing}):
        job = job_when(queue, job_id, "dead")  # at the 21st in a row: what it does to itself is no outage
    assert ends(job) == ["released"] * 20 + ["failed"]


def test_a_forked_child_may_not_use_the_handlers_connection(dsn, queue, conn):
    def handler(lease, context):
        context.connection.execute("select 1")
        child = os.fork()
        if child == 0:
            try:
                context.connection.execute("select 2")
            except JobQueueError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        context.connection.execute("select 3")

    assert run(dsn, queue, conn, handler).status == "done"
