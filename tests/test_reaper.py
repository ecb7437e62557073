"""Ended leases: taken away once however many reapers run, whoever knows of the worker, and not just after an outage."""

import threading
import time

import psycopg
import pytest
from working import ends, running, statuses

from helpers import wait_until
from jobqueue import Backoff, Handler, InfrastructureError, JobQueueError, Queue, Reaper, Worker
from jobqueue.lab import database

SOON = Backoff("constant", base_seconds=0, jitter="none")


def abandoned(queue, count, type="job", **options):
    """Jobs whose worker has died and whose leases have ended."""
    queue.enqueue_many([{"type": type, **options}] * count)
    leases = list(queue.claim("dead worker", limit=count, lease_seconds=0.001, types=[type]))
    wait_until(lambda: queue.conn.execute("select max(locked_until) < now() from jobqueue.job").fetchone()[0])
    return [lease.id for lease in leases]


PASSES_SINCE = """select count(*) from pg_stat_activity where datname = current_database()
    and application_name = 'jobqueue reaper' and query_start > %s"""


def test_three_reapers_take_fifty_leases_away_once_each(dsn, queue, conn):
    ids = abandoned(queue, 50)
    reapers = [Reaper(dsn, poll_seconds=0.01, limit=7, backoff=SOON) for _ in range(3)]
    with running(reapers[0]), running(reapers[1]), running(reapers[2]):
        wait_until(lambda: statuses(conn) == {"ready": 50})
        [seen] = conn.execute("select clock_timestamp()").fetchone()
        wait_until(lambda: conn.execute(PASSES_SINCE, (seen,)).fetchone() == (3,), what="one more pass of each")
    jobs = [queue.get(id) for id in ids]
    assert {(job.epoch, job.attempts, job.lease_losses, *ends(job)) for job in jobs} == {(1, 1, 1, "lost")}
    assert conn.execute("select sum(n)::int from jobqueue.incident where name = 'lease_lost'").fetchone()[0] == 50
    assert {lease.epoch for lease in queue.claim("next", limit=50)} == {2}


def test_recovery_needs_no_row_of_the_dead_worker(dsn, queue, conn):
    ids = abandoned(queue, 3)
    conn.execute("delete from jobqueue.listener")
    assert Reaper(dsn).run_once() == 3
    assert {queue.get(id).status for id in ids} == {"ready"}


def test_each_type_has_its_own_backoff_and_others_the_default(dsn, queue):
    slow, quick, other = abandoned(queue, 1, "slow"), abandoned(queue, 1, "quick"), abandoned(queue, 1, "other")
    backoff = {"slow": Backoff("constant", base_seconds=3_000, jitter="none"), "quick": SOON}
    assert Reaper(dsn, backoff=backoff).run_once() == 3
    [due_in] = zip(
        *queue.conn.execute(
            "select extract(epoch from run_at - now())::float8 from jobqueue.job order by id"
        ).fetchall(),
        strict=True,
    )
    assert (2_990 < due_in[0] <= 3_000, due_in[1] <= 0, due_in[2] <= 1, len(slow + quick + other)) == (
        True,
        True,
        True,
        3,
    )


def test_a_last_lost_lease_makes_a_dead_letter_and_an_alarm_that_may_raise(dsn, queue):
    alarms = []

    def on_dead(job):
        alarms.append((job.id, job.status, job.lease_losses))
        raise RuntimeError("the pager is broken")

    ids = abandoned(queue, 2, max_attempts=1)
    assert Reaper(dsn, on_dead=on_dead).run_once() == 2
    assert sorted(alarms) == [(id, "dead", 1) for id in ids]
    assert queue.get(ids[0]).last_error == "its last lease was lost: no worker reported an end"


def test_a_row_that_is_held_is_left_for_the_next_pass_and_keeps_no_other_waiting(dsn, queue):
    held, *others = abandoned(queue, 3)
    reaper = Reaper(dsn)
    with psycopg.connect(dsn) as foreign:
        foreign.execute("select from jobqueue.job where id = %s for update", (held,))
        assert (reaper.run_once(), queue.get(held).status) == (2, "running")
    assert (reaper.run_once(), queue.get(held).status, queue.get(others[0]).status) == (1, "ready", "ready")


def test_a_reaper_stops_at_once_and_leaves_no_session(dsn, conn):
    def sessions():
        return conn.execute(
            "select count(*) from pg_stat_activity where application_name = 'jobqueue reaper'"
        ).fetchone()[0]

    reaper = Reaper(dsn, poll_seconds=60)
    with running(reaper) as run:
        wait_until(lambda: sessions() == 1)
        before = time.monotonic()
        reaper.stop()
        run.result(5)
    assert time.monotonic() - before < 1
    wait_until(lambda: sessions() == 0)


def test_a_reaper_without_the_schema_ends_with_one_clear_error(server):
    with (
        database.scratch(server.dsn) as empty,
        pytest.raises(JobQueueError, match="^the schema jobqueue is missing or incomplete here: run install"),
    ):
        Reaper(empty).run()


def test_a_reaper_that_cannot_reach_the_database_says_so_in_one_line():
    with pytest.raises(InfrastructureError, match="^can't connect to 127.0.0.1:1/x: ") as refused:
        Reaper("postgresql://u:hush@127.0.0.1:1/x").run_once()
    assert ("\n" in str(refused.value), "hush" in str(refused.value)) == (False, False)


def test_after_its_own_outage_a_reaper_gives_workers_time_to_renew(dsn, queue, conn):
    reaper = Reaper(dsn, poll_seconds=0.02, outage_grace_seconds=1.5)
    with running(reaper):
        wait_until(
            lambda: conn.execute(
                "select count(*) from pg_stat_activity where application_name = 'jobqueue reaper'"
            ).fetchone()[0]
        )
        conn.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'jobqueue reaper'"
        )
        cut = time.monotonic()
        [job_id] = abandoned(queue, 1)
        wait_until(lambda: queue.get(job_id).status == "ready", 10)
    assert time.monotonic() - cut > 1.3


def test_an_outage_shorter_than_the_grace_costs_no_lease_though_it_was_longer_than_the_lease():
    """The database is away for three leases; when it is back, the worker's heartbeat comes before the reaper."""
    with database.Server() as server:
        with psycopg.connect(server.dsn, autocommit=True) as conn:
            Queue(conn).install()
            job_id = Queue(conn).enqueue("job").id
        done, renewed = [], threading.Event()

        def handler(lease, context):
            assert renewed.wait(20)
            done.append(lease.epoch)

        worker = Worker(server.dsn, {"job": Handler(handler, lease_seconds=0.6)}, poll_seconds=0.05)
        with running(Reaper(server.dsn, poll_seconds=0.05, outage_grace_seconds=5)), running(worker) as run:
            with psycopg.connect(server.dsn, autocommit=True) as conn:
                wait_until(lambda: statuses(conn) == {"running": 1})
            server.stop("fast")
            assert run.lasts(1.8)
            server.start()
            with psycopg.connect(server.dsn, autocommit=True) as conn:
                wait_until(lambda: conn.execute("select locked_until > now() from jobqueue.job").fetchone() == (True,))
                renewed.set()
                wait_until(lambda: statuses(conn) == {"done": 1}, 20)
                job = Queue(conn).get(job_id)
    assert (done, job.attempts, job.lease_losses) == ([1], 1, 0)
