"""Measures against rows whose figures are known, alerts to their last receiver, and the cost of a look."""

import logging
import sys
import time
from contextlib import contextmanager

import psycopg
import pytest

from helpers import Session, wait_until
from jobqueue import Backoff, Handler, JobQueueError, PermanentError, Reaper, Schedules, Worker, metrics
from jobqueue.lab import database

pytestmark = pytest.mark.shared

AT_ONCE = Backoff(shape="constant", base_seconds=0, jitter="none")


def view(conn, name, *columns):
    return conn.execute(f"select {', '.join(columns)} from jobqueue.{name} order by {', '.join(columns)}").fetchall()


def done(conn, *, type="mail", ago, wait, service, attempts=1, count=1):
    """Jobs that were done so many seconds ago, after so long a wait and service."""
    conn.execute(
        """insert into jobqueue.job (type, status, attempts, epoch, run_at, started_at, finished_at,
                  finished_epoch, finished_by)
           select %(type)s, 'done', %(attempts)s, 1, at - (%(wait)s + %(service)s) * interval '1 s', at -
             %(service)s * interval '1 s', at, 1, 'A'
           from (select jobqueue.now() - %(ago)s * interval '1 s' as at) x, generate_series(1, %(count)s)""",
        {"type": type, "ago": ago, "wait": wait, "service": service, "attempts": attempts, "count": count},
    )


def kill(queue, *, type="mail", error="ValueError: boom", lost=False):
    """A dead letter."""
    queue.enqueue(type, max_attempts=1)
    lease = queue.claim("A", types=[type])[0]
    if lost:
        queue.conn.execute("update jobqueue.job set locked_until = jobqueue.now() where id = %s", (lease.id,))
        queue.reap()
    else:
        queue.fail(lease, error)
    return lease.id


# ---- the age of the queue, on a clock that stands still --------------------------------------------------------------


def test_the_oldest_age_is_of_due_jobs_by_type_from_run_at(virtual_conn, virtual_queue, clock):
    virtual_queue.enqueue_many([{"type": "mail", "delay_seconds": 5}, {"type": "later", "delay_seconds": 900}])
    clock.advance(100)
    virtual_queue.enqueue("mail")
    found = metrics.snapshot(virtual_conn)
    assert (
        found.at,
        dict(found.oldest_ready_age_seconds),
        view(virtual_conn, "oldest_ready_age", "type", "age_seconds"),
    ) == (clock.now, {"mail": 95.0, "later": 0.0}, [("later", 0.0), ("mail", 95.0)])


def test_a_type_that_was_never_seen_has_age_zero_and_counts_zero(conn):
    found = metrics.snapshot(conn)
    assert (found.oldest_ready_age_seconds["none"], found.running["none"], found.dead["none"], found.wait) == (
        0.0,
        0,
        0,
        metrics.Quantiles(),
    )


def test_a_retry_ages_from_the_end_of_its_backoff(virtual_conn, virtual_queue, clock):
    virtual_queue.enqueue("mail")
    virtual_queue.fail(virtual_queue.claim("A")[0], "no", delay_seconds=60)
    clock.advance(70)
    found = metrics.snapshot(virtual_conn)
    assert (found.oldest_ready_age_seconds["mail"], found.retrying) == (10.0, 1)


# ---- counts ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def busy(conn, queue):
    """Two due and one future mail, one running report, one running mail whose lease ended, a dead and a failed one."""
    kill(queue)
    queue.enqueue_many([{"type": "report"}, {"type": "mail"}])
    refused, retried = queue.claim("A", limit=2)
    queue.fail(refused, PermanentError("never"), permanent=True)
    queue.fail(retried, "first", delay_seconds=0)
    queue.enqueue_many([{"type": "report"}, {"type": "mail"}, {"type": "mail", "delay_seconds": 900}])
    queue.claim("A", types=["report"])
    queue.enqueue("slow")
    queue.claim("A", types=["slow"])
    conn.execute("update jobqueue.job set locked_until = jobqueue.now() where type = 'slow'")
    done(conn, ago=10, wait=1, service=2, attempts=3)
    done(conn, ago=300, wait=1, service=2)


def test_a_snapshot_counts_every_state(conn, busy):
    found = metrics.snapshot(conn)
    assert (
        found.depth,
        found.ready,
        found.retrying,
        dict(found.running),
        dict(found.dead),
        found.expired,
        found.done_per_minute,
    ) == (metrics.Depth(2, 1), 3, 1, {"report": 1, "slow": 1}, {"mail": 1, "report": 1}, 1, 1)


def test_a_snapshot_counts_attempts_of_what_has_begun(conn, busy):
    assert metrics.snapshot(conn).attempts == {1: 5, 3: 1}


def test_the_views_say_the_same_by_type(conn, busy):
    assert {
        "depth": view(conn, "depth", "type", "due", "future"),
        "running": view(conn, "running_by_type", "type", "running", "expired"),
        "attempts": view(conn, "attempts_distribution", "type", "attempts", "jobs"),
        "dead": view(conn, "dead_letters", "type", "status", "reason", "jobs"),
    } == {
        "depth": [("mail", 2, 1)],
        "running": [("report", 1, 0), ("slow", 1, 1)],
        "attempts": [("mail", 1, 3), ("mail", 3, 1), ("report", 1, 2), ("slow", 1, 1)],
        "dead": [
            ("mail", "dead", "ValueError: boom", 1),
            ("report", "failed", "jobqueue.errors.PermanentError: never", 1),
        ],
    }


def test_dead_letters_of_one_reason_are_one_line(conn, queue):
    letters = [kill(queue, error="Traceback …\nValueError: boom") for _ in range(3)] + [kill(queue, lost=True)]
    assert view(conn, "dead_letters", "reason", "jobs", "newest_id") == [
        ("ValueError: boom", 3, letters[2]),
        ("its last lease was lost", 1, letters[3]),
    ]


def test_throughput_is_by_minute_of_the_last_hour(conn):
    done(conn, ago=0, wait=0, service=0, count=3)
    done(conn, ago=130, wait=0, service=0, count=2)
    done(conn, ago=3_700, wait=0, service=0, count=9)
    assert sorted(view(conn, "throughput", "done")) == [(2,), (3,)]


def test_quantiles_of_wait_and_service_are_those_of_their_jobs(conn):
    for wait in range(1, 102):
        done(conn, ago=1, wait=wait, service=wait / 10)
    done(conn, ago=90, wait=5_000, service=5_000)
    found = metrics.snapshot(conn)
    assert (found.wait, found.service) == (metrics.Quantiles(51, 91, 100, 101), metrics.Quantiles(5.1, 9.1, 10.0, 10.1))
    [hour] = view(conn, "wait_quantiles", "type", "jobs", "p50_seconds", "max_seconds")
    assert hour == ("mail", 102, 51.5, 5_000)


def test_in_a_busy_minute_every_nth_job_stands_for_its_neighbours(conn):
    done(conn, ago=1, wait=1, service=2, count=45_000)
    found = metrics.snapshot(conn)
    assert (found.done_per_minute, found.wait.p50, found.service.p99) == (45_000, 1, 2)
    assert (list(found.attempts), 44_990 < found.attempts[1] < 45_010) == ([1], True)


def test_a_wait_is_never_negative(conn):
    """run_at moved by hand after the claim must not make a dashboard show nonsense."""
    done(conn, ago=1, wait=-5, service=1)
    assert metrics.snapshot(conn).wait == metrics.Quantiles(0, 0, 0, 0)


def test_lost_leases_are_counted_by_the_hour(conn, queue):
    for _ in range(3):
        kill(queue, lost=True)
    conn.execute(
        "insert into jobqueue.incident (at, name, type, n) values (jobqueue.now() - interval '90 minutes', "
        "'lease_lost', 'mail', 7)"
    )
    found = metrics.snapshot(conn)
    hours = sum(n for (n,) in view(conn, "lease_expirations_per_hour", "expirations"))
    assert (found.lease_expirations_per_hour, found.incidents["lease_lost"], hours) == (3, 3, 10)


def test_incidents_are_told_for_the_last_hour_and_day(conn):
    for ago, n in (("1 minute", 2), ("2 hours", 3), ("2 days", 4)):
        conn.execute(
            "insert into jobqueue.incident (at, name, n) values (jobqueue.now() - %s::interval, "
            "'claim_empty_none', %s)",
            (ago, n),
        )
    assert view(conn, "incidents", "name", "last_hour", "last_day") == [("claim_empty_none", 2, 5)]


def test_missed_slots_are_summed_and_told_by_schedule(conn):
    conn.execute("""insert into jobqueue.schedule (id, job_type, cron, missed_slots) values ('a', 't', '* * * * *',
              2), ('b', 't', '* * * * *', 5);
                    insert into jobqueue.missed_slot values ('a', '2026-11-30 03:00Z', 'late'), ('a', '2026-11-30
                      02:00Z', 'late')""")
    assert (
        metrics.snapshot(conn).missed_slots,
        view(conn, "missed_slots", "schedule_id", "missed_slots", "newest_slot::text"),
    ) == (7, [("a", 2, "2026-11-30 03:00:00+00"), ("b", 5, None)])


# ---- what other sessions hold ----------------------------------------------------------------------------------------


def test_an_ended_lease_whose_row_somebody_holds_is_told_with_the_holder(dsn, conn, queue):
    queue.enqueue_many([{"type": "mail"}] * 2)
    held, free = queue.claim("A", limit=2)
    conn.execute("update jobqueue.job set locked_until = jobqueue.now()")
    with Session(dsn, application_name="forgotten psql") as holder, holder.conn.transaction():
        holder.conn.execute("select from jobqueue.job where id = %s for update", (held.id,))
        during = view(conn, "expired_but_locked", "id", "pid", "application_name", "state")
        counted = metrics.snapshot(conn).expired_but_locked
        reaped = [one.id for one in queue.reap()]
    assert (during, counted, reaped, view(conn, "expired_but_locked", "id")) == (
        [(held.id, holder.pid, "forgotten psql", "idle in transaction")],
        1,
        [free.id],
        [],
    )


def test_a_lease_in_force_is_not_counted_as_expired_but_locked(dsn, conn, queue):
    queue.enqueue("mail")
    lease = queue.claim("A")[0]
    with Session(dsn) as holder, holder.conn.transaction():
        holder.queue.heartbeat(lease)
        assert metrics.snapshot(conn).expired_but_locked == 0


def test_a_transaction_does_not_report_itself(conn, queue):
    queue.enqueue("mail")
    queue.claim("A")
    with conn.transaction():
        conn.execute("update jobqueue.job set locked_until = jobqueue.now()")
        assert metrics.snapshot(conn).expired_but_locked == 0


def test_lock_waits_are_seen_with_who_blocks(dsn, conn, queue):
    queue.enqueue("mail")
    lease = queue.claim("A")[0]
    with Session(dsn) as holder, Session(dsn) as waiting:
        with holder.conn.transaction():
            holder.queue.heartbeat(lease)
            waiting.run(lambda queue: queue.complete(lease))
            assert waiting.is_blocked()
            found = (view(conn, "lock_waits", "pid", "blocked_by"), metrics.snapshot(conn).lock_waits)
        waiting.result()
    assert found == ([(waiting.pid, [holder.pid])], 1)


def test_an_old_snapshot_shows_as_the_horizon(dsn, conn, queue):
    with Session(dsn) as old, old.conn.transaction():
        old.conn.execute("set transaction isolation level repeatable read")
        old.conn.execute("select 1")
        for _ in range(5):
            queue.enqueue("mail")
        found = metrics.snapshot(conn)
    assert (found.oldest_snapshot_age >= 5, found.oldest_transaction_seconds > 0) == (True, True)


# ---- report, OpenMetrics, thresholds ---------------------------------------------------------------------------------


def test_a_report_holds_every_view_and_every_view_is_in_it(conn, busy):
    found = metrics.report(conn)
    views = [name for (name,) in conn.execute("select viewname from pg_views where schemaname = 'jobqueue'")]
    assert (sorted(found), found["depth"]) == (sorted(views), [{"type": "mail", "due": 2, "future": 1}])


def test_openmetrics_is_read_back_by_its_own_parser(conn, busy):
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.openmetrics(conn))
        for sample in family.samples
    }
    wanted = {
        ("jobqueue_due_jobs", ("type", "mail")): 2,
        ("jobqueue_running_jobs", ("type", "slow")): 1,
        ("jobqueue_dead_letters", ("status", "failed"), ("type", "report")): 1,
        ("jobqueue_done_per_minute",): 1,
        ("jobqueue_wait_seconds", ("quantile", "0.5")): 1,
        ("jobqueue_attempts_jobs", ("attempts", "3"), ("type", "mail")): 1,
        ("jobqueue_expired_leases", ("type", "slow")): 1,
        ("jobqueue_expired_but_locked",): 0,
    }
    assert {name: samples.get(name) for name in wanted} == wanted


def test_openmetrics_survives_any_type_name(conn, queue):
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    queue.enqueue('a"b\\c\nd é')
    labels = [
        sample.labels
        for family in text_string_to_metric_families(metrics.openmetrics(conn))
        for sample in family.samples
        if sample.name == "jobqueue_due_jobs"
    ]
    assert labels == [{"type": 'a"b\\c\nd é'}]


def test_without_prometheus_client_the_error_says_what_to_install(conn, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(JobQueueError, match=r'needs prometheus_client: pip install "jobqueue\[openmetrics\]"'):
        metrics.openmetrics(conn)


def test_breaches_name_each_threshold_that_is_passed(conn, queue):
    kill(queue, type="report")
    kill(queue, type="mail")
    queue.enqueue("mail")
    conn.execute("update jobqueue.job set run_at = jobqueue.now() - interval '400 s' where status = 'ready'")
    conn.execute("insert into jobqueue.schedule (id, job_type, cron, missed_slots) values ('s', 't', '* * * * *', 3)")
    found = metrics.snapshot(conn)
    assert metrics.breaches(found) == [
        "2 dead letters, 0 allowed: mail 1, report 1",
        "the oldest due job of type 'mail' has waited 400 s, 300 s allowed",
        "3 slots of schedules were missed, 0 allowed",
    ]
    assert metrics.breaches(found, max_dead=2, max_age_seconds=500, max_missed=3) == []


def test_a_schedule_that_is_broken_is_a_breach_of_its_own(conn, queue):
    schedules = Schedules(conn)
    for name in ("good", "bad"):
        schedules.put(name, "mail", "* * * * *")
    conn.execute("update jobqueue.schedule set cron = '61 * * * *', next_run_at = jobqueue.now() where id = 'bad'")
    schedules.tick()
    found = metrics.snapshot(conn)
    assert (found.broken_schedules, metrics.breaches(found)) == (
        1,
        ["1 schedules are broken and fire no more: python -m jobqueue schedule list"],
    )
    assert [id for id, problem in view(conn, "missed_slots", "schedule_id", "problem") if problem] == ["bad"]


def test_an_empty_queue_breaches_nothing(conn):
    assert metrics.breaches(metrics.snapshot(conn), max_dead=0, max_age_seconds=0, max_missed=0) == []


# ---- alerts, end to end ----------------------------------------------------------------------------------------------


@contextmanager
def listening(dsn):
    """Payloads of jobqueue_alert as they come."""
    with psycopg.connect(dsn, autocommit=True) as own:
        own.execute("listen jobqueue_alert")
        yield lambda: [notice.payload for notice in own.notifies(timeout=5, stop_after=1)]


@pytest.mark.parametrize("error, status", [(ValueError("boom"), "dead"), (PermanentError("never"), "failed")])
def test_a_worker_raises_the_alarm_in_three_ways(dsn, queue, caplog, error, status):
    def fail(lease, context):
        raise error

    added, told = queue.enqueue("mail", max_attempts=1), []
    with listening(dsn) as notices, caplog.at_level(logging.ERROR, "jobqueue"):
        Worker(dsn, {"mail": fail}, on_dead=told.append).run_once()
        payloads = notices()
    line = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert (
        payloads,
        [(job.id, job.status) for job in told],
        len(line),
        f"job {added.id} of type mail is {status} after 1 attempts: " in line[0],
    ) == (
        [f'{{"id" : {added.id}, "type" : "mail", "status" : "{status}", "attempts" : 1}}'],
        [(added.id, status)],
        1,
        True,
    )


def test_a_reaper_raises_the_alarm_in_three_ways(dsn, conn, queue, caplog):
    added, told = queue.enqueue("mail", max_attempts=1), []
    queue.claim("A")
    conn.execute("update jobqueue.job set locked_until = jobqueue.now()")
    with listening(dsn) as notices, caplog.at_level(logging.ERROR, "jobqueue"):
        Reaper(dsn, on_dead=told.append).run_once()
        payloads = notices()
    assert (payloads, [job.status for job in told], [record.getMessage() for record in caplog.records]) == (
        [f'{{"id" : {added.id}, "type" : "mail", "status" : "dead", "attempts" : 1}}'],
        ["dead"],
        [f"job {added.id} of type mail is dead after 1 attempts: its last lease was lost: no worker reported an end"],
    )


def test_an_attempt_that_will_be_retried_raises_no_alarm(dsn, queue, caplog):
    told = []
    queue.enqueue("mail", max_attempts=2)
    with caplog.at_level(logging.ERROR, "jobqueue"):
        Worker(dsn, {"mail": Handler(lambda lease, context: 1 / 0, backoff=AT_ONCE)}, on_dead=told.append).run_once()
    assert (told, [record for record in caplog.records if record.levelno >= logging.ERROR]) == ([], [])


def test_an_alarm_that_raises_stops_neither_loop(dsn, conn, queue, caplog):
    def broken(job):
        raise RuntimeError("pager is down")

    for _ in range(2):
        queue.enqueue("mail", max_attempts=1)
    Worker(dsn, {"mail": lambda lease, context: 1 / 0}, concurrency=1, on_dead=broken).run_once()
    Worker(dsn, {"mail": lambda lease, context: 1 / 0}, concurrency=1, on_dead=broken).run_once()
    assert (dict(metrics.snapshot(conn).dead), caplog.text.count("on_dead raised for job")) == ({"mail": 2}, 2)


# ---- cost ------------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_snapshot_stays_quick_beside_a_million_done_rows_and_reads_no_archive(server, template):
    """Four looks a second: a median well under 100 ms on a busy machine, and bounded reads however much is done."""
    with database.scratch(server.dsn, template=template) as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            """insert into jobqueue.job (type, status, attempts, epoch, run_at, started_at, finished_at,
                      finished_epoch, finished_by)
            select 'type ' || i %% 5, 'done', 1, 1, t, t + interval '1 s', t + interval '3 s', 1, 'A'
            from (select i, jobqueue.now() - interval '1 day' * (1 - i / 1e6) - interval '4 s' as t from
              generate_series(1, %s) i) x""",
            (10**6,),
        )
        conn.execute(
            "insert into jobqueue.job (type, run_at) select 'type ' || i % 5, jobqueue.now() + i * interval '1 "
            "s' from generate_series(-5000, 5000) i"
        )
        conn.execute(
            "insert into jobqueue.job_archive select * from jobqueue.job where status = 'done' and id <= 300000"
        )
        conn.execute("vacuum analyze jobqueue.job")
        conn.execute("vacuum analyze jobqueue.job_archive")
        took = sorted(timed(lambda: metrics.snapshot(conn)) for _ in range(21))
        looked, reported = (read_by(conn, act) for act in (metrics.snapshot, metrics.report))
        print(
            f"\nsnapshot: median {took[10] * 1e3:.1f} ms, longest {took[-1] * 1e3:.1f} ms; rows read: {looked}; "
            f"report: {reported}"
        )
    assert (took[10] < 0.1, looked["job"] < 50_000, looked["job_archive"], looked["job seq"]) == (True, True, 0, 0)
    assert (reported["job"] < 600_000, reported["job_archive"], reported["job seq"]) == (True, 0, 0)


def timed(act):
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def read_by(conn, act):
    """Rows of the big tables that the act has read."""
    conn.execute("select pg_stat_force_next_flush()")  # what was read before must not arrive after the reset
    conn.execute("select pg_stat_reset()")
    act(conn)
    return wait_until(lambda: reads(conn), 10, "the statistics")


def reads(conn):
    conn.execute("select pg_stat_force_next_flush()")
    found = dict(
        conn.execute(
            "select relname, coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) from pg_stat_user_tables"
            " where relname in ('job', 'job_archive')"
        ).fetchall()
    )
    found["job seq"] = conn.execute("select seq_scan from pg_stat_user_tables where relname = 'job'").fetchone()[0]
    return found if found["job"] else None
