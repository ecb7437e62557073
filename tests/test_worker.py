"""The worker as production treats it: every way a handler can leave, locks, prefetch, signals, stops from anywhere."""

import os
import random
import signal
import socket
import statistics
import subprocess
import threading
import time
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from jobs import NEVER
from proxy import Proxy
from working import ended, ends, job_when, process, running, sessions, settled, statuses, threads, working

from helpers import wait_until
from jobqueue import (
    Backoff,
    Handler,
    InfrastructureError,
    JobQueueError,
    LeaseLost,
    PermanentError,
    Queue,
    Reaper,
    Retry,
    Worker,
)
from jobqueue.lab import database

pytestmark = pytest.mark.shared

SOON = Backoff("constant", base_seconds=0, jitter="none")


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    with suppress(AssertionError):
        wait_until(lambda: threads() == [], 5)
    assert threads() == []


def add(queue, type, count, payload=None, **options):
    return [one.id for one in queue.enqueue_many([{"type": type, "payload": payload, **options} for _ in range(count)])]


# ---- order -----------------------------------------------------------------------------------------------------------


def test_one_worker_starts_jobs_in_the_order_of_their_ids(dsn, queue, conn):
    ids, seen = add(queue, "job", 2_000), []
    with working(dsn, {"job": lambda lease, context: seen.append(lease.id)}, concurrency=1):
        settled(conn)
    assert seen == ids


def test_each_of_four_workers_starts_jobs_in_the_order_of_their_ids(dsn, queue, conn):
    ids, seen = add(queue, "job", 2_000), {}
    handlers = {"job": lambda lease, context: seen.setdefault(lease.owner, []).append(lease.id)}
    with ExitStack() as workers:
        for owner in "abcd":
            workers.enter_context(working(dsn, handlers, concurrency=1, owner=owner))
        settled(conn)
    assert all(started == sorted(started) for started in seen.values())
    assert sorted(sum(seen.values(), [])) == ids


def test_jobs_that_always_fail_keep_no_good_one_waiting(dsn, queue, conn):
    bad, good = add(queue, "bad", 100, max_attempts=1_000), add(queue, "good", 1_000)
    handlers = {
        "bad": Handler(lambda lease, context: 1 / 0, backoff=Backoff("constant", base_seconds=0.05)),
        "good": lambda *_: None,
    }
    with working(dsn, handlers):
        wait_until(lambda: statuses(conn).get("done") == len(good), 60)
        wait_until(
            lambda: conn.execute("select min(attempts) from jobqueue.job where type = 'bad'").fetchone()[0] >= 2, 60
        )
    assert {queue.get(id).status for id in bad} == {"ready"}


# ---- how a handler may leave -----------------------------------------------------------------------------------------


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class Odd(BaseException):
    pass


def deep(lease, context):
    def down(n):
        return down(n + 1) + 1

    down(0)


def unpicklable(lease, context):
    raise ValueError(threading.Lock(), lambda: None)


def raising(error):
    def handler(lease, context):
        raise error

    return handler


LEAVING = {
    "an error": (raising(ValueError("no luck")), "ValueError: no luck"),
    "a lone surrogate": (raising(RuntimeError("bad\ud800")), r"RuntimeError: bad\ud800"),
    "a NUL": (raising(RuntimeError("a\0b")), r"RuntimeError: a\0b"),
    "an error that can't be shown": (raising(Unspeakable()), "<exception str() failed>"),
    "no end": (deep, "RecursionError: maximum recursion depth exceeded"),
    "an error that can't be pickled": (unpicklable, "ValueError: (<unlocked _thread.lock object"),
    "sys.exit(0)": (raising(SystemExit(0)), "SystemExit: 0"),
    "sys.exit(3)": (raising(SystemExit(3)), "SystemExit: 3"),
    "KeyboardInterrupt": (raising(KeyboardInterrupt()), "KeyboardInterrupt"),
    "GeneratorExit": (raising(GeneratorExit()), "GeneratorExit"),
    "a BaseException of its own": (raising(Odd("odd")), "test_worker.Odd: odd"),
    "MemoryError": (raising(MemoryError()), "MemoryError"),
    "an exception group": (raising(ExceptionGroup("two", [ValueError("one"), KeyError("other")])), "KeyError: 'other'"),
    "LeaseLost without a reason": (raising(LeaseLost("says who?")), "LeaseLost: says who?"),
    "OperationalError of its own database": (
        raising(psycopg.OperationalError("another database")),
        "OperationalError: another database",
    ),
    "a retry that asks for a negative delay": (raising(Retry("later", after_seconds=-1)), "later"),
    "a retry that asks for no number": (raising(Retry("later", after_seconds="soon")), "later"),
    "a retry that asks for NaN": (raising(Retry("later", after_seconds=float("nan"))), "later"),
}


@pytest.mark.parametrize("handler, text", LEAVING.values(), ids=LEAVING)
def test_whatever_leaves_a_handler_is_a_failed_attempt_and_the_worker_goes_on(dsn, queue, handler, text):
    bad, good = queue.enqueue("bad", max_attempts=2).id, queue.enqueue("good", delay_seconds=0.2).id
    with working(dsn, {"bad": Handler(handler, backoff=SOON), "good": lambda *_: None}):
        job = job_when(queue, bad, "dead")
        job_when(queue, good, "done")
    assert (job.attempts, ends(job), text in job.last_error) == (2, ["failed", "failed"], True), job.last_error


ASYNC = {
    "an error": (ValueError("no luck"), "ValueError: no luck"),
    "sys.exit(3)": (SystemExit(3), "SystemExit: 3"),
    "KeyboardInterrupt": (KeyboardInterrupt(), "KeyboardInterrupt"),
}


@pytest.mark.parametrize("error, text", ASYNC.values(), ids=ASYNC)
def test_whatever_leaves_an_async_handler_is_a_failed_attempt_and_the_next_one_runs(dsn, queue, error, text):
    async def handler(lease, context):
        if lease.payload:
            raise error

    ids = [queue.enqueue("job", payload, max_attempts=1).id for payload in (True, False, True, False)]
    with working(dsn, {"job": handler}, concurrency=1):
        wait_until(lambda: all(queue.get(id).finished_at for id in ids))
    jobs = [queue.get(id) for id in ids]
    assert [job.status for job in jobs] == ["dead", "done", "dead", "done"]
    assert text in jobs[0].last_error


def test_a_huge_error_keeps_its_head_and_its_tail_within_16_kib(dsn, queue):
    def handler(lease, context):
        raise ValueError("head " + "é" * 1_000_000 + " tail")

    job_id = queue.enqueue("job", max_attempts=1).id
    with working(dsn, {"job": handler}):
        job = job_when(queue, job_id, "dead")
    size, tail = len(job.last_error.encode()), job.last_error[-5:]
    assert (15_000 < size <= 16_384, "Traceback" in job.last_error, "ValueError: head é" in job.last_error, tail) == (
        True,
        True,
        True,
        " tail",
    )


def fails_here(lease, context):
    raise KeyError("at home")


async def fails_there(lease, context):
    fails_here(lease, context)


@pytest.mark.parametrize("handler", [fails_here, fails_there])
def test_a_stored_traceback_begins_with_the_handlers_own_frame(dsn, queue, handler):
    job_id = queue.enqueue("job", max_attempts=1).id
    with working(dsn, {"job": handler}):
        lines = job_when(queue, job_id, "dead").last_error.splitlines()
    assert (lines[0], f"in {handler.__name__}" in lines[1], lines[-1]) == (
        "Traceback (most recent call last):",
        True,
        "KeyError: 'at home'",
    )


def test_permanent_error_ends_a_job_at_once_and_raises_the_alarm(dsn, queue):
    alarms, job_id = [], queue.enqueue("job").id
    with working(dsn, {"job": raising(PermanentError("never"))}, on_dead=alarms.append):
        job = job_when(queue, job_id, "failed")
        wait_until(lambda: alarms)
    assert (job.attempts, ends(job), [(dead.id, dead.status) for dead in alarms]) == (
        1,
        ["failed_permanently"],
        [(job_id, "failed")],
    )


def test_retry_fails_the_attempt_and_comes_back_when_it_asked_to(dsn, queue):
    job_id = queue.enqueue("job").id
    with working(dsn, {"job": raising(Retry("the other side asks for patience", after_seconds=3_600))}):
        job = wait_until(lambda: (row := queue.get(job_id)).history and row)
    assert (job.status, job.attempts, ends(job), job.last_error) == (
        "ready",
        1,
        ["failed"],
        "the other side asks for patience",
    )
    assert 3_590 < (job.run_at - job.created_at).total_seconds() < 3_620


def test_infrastructure_trouble_is_released_twenty_times_and_the_next_in_a_row_is_a_failure(dsn, queue):
    calls = []

    def handler(lease, context):
        calls.append(lease.epoch)
        raise InfrastructureError("the disk is away")

    job_id = queue.enqueue("job", max_attempts=1).id
    with working(dsn, {"job": Handler(handler, backoff=SOON)}, poll_seconds=0.01):
        job = job_when(queue, job_id, "dead", 30)
    assert (len(calls), job.attempts, job.lease_losses, ends(job)) == (21, 1, 0, ["released"] * 20 + ["failed"])


def test_an_alarm_that_raises_stops_nothing(dsn, queue):
    def on_dead(job):
        raise SystemExit("the pager is broken")

    ids = add(queue, "bad", 3, max_attempts=1) + add(queue, "good", 1)
    with working(dsn, {"bad": raising(ValueError()), "good": lambda *_: None}, on_dead=on_dead, concurrency=1):
        wait_until(lambda: all(queue.get(id).finished_at for id in ids))


def test_plain_functions_async_functions_and_what_returns_a_coroutine_all_run(dsn, queue, conn):
    seen = []

    async def noted(lease, context):
        seen.append(lease.type)

    class Callable:
        async def __call__(self, lease, context):
            await noted(lease, context)

    handlers = {
        "async": noted,
        "lambda": lambda lease, context: noted(lease, context),
        "object": Callable(),
        "plain": lambda *_: seen.append("plain"),
    }
    for type in handlers:
        queue.enqueue(type)
    with working(dsn, handlers, concurrency=1):
        settled(conn)
    assert (sorted(seen), statuses(conn)) == (sorted(handlers), {"done": 4})


def test_a_generator_is_refused_as_a_handler():
    def handler(lease, context):
        yield

    with pytest.raises(
        JobQueueError, match="^a handler must not be a generator, which nobody would run to its end: <function"
    ):
        Handler(handler)


def test_a_handler_sees_exact_numbers(dsn, queue, conn):
    numbers = [2**53 + 1, 2**64, 10**400, 0.1, 5e-324, 1.0, 10**22, -1]
    seen = []
    queue.enqueue("job", {"numbers": numbers})
    with working(dsn, {"job": lambda lease, context: seen.extend(lease.payload["numbers"])}):
        settled(conn)
    assert (seen, [type(one) for one in seen[:3]]) == (numbers, [int, int, int])


UNREADABLE = {
    "12,000 levels": ("repeat('[', 12000) || repeat(']', 12000)", "RecursionError: "),  # Python 3.13 bears 9,999
    "a number of 5,000 digits": ("repeat('9', 5000)", "ValueError: Exceeds the limit (4300 digits)"),
}


@pytest.mark.parametrize("payload, reason", UNREADABLE.values(), ids=UNREADABLE)
def test_a_payload_that_python_cannot_read_fails_its_job_and_stops_no_worker(dsn, queue, conn, payload, reason):
    """Only SQL by hand, or a producer in another language, puts it there."""
    bad, good = add(queue, "job", 2, run_at=datetime.now(UTC) + timedelta(hours=1))
    conn.execute(f"update jobqueue.job set payload = ({payload})::jsonb where id = %s", (bad,))
    conn.execute("update jobqueue.job set run_at = now()")
    alarms = []
    with working(dsn, {"job": lambda *_: None}, on_dead=lambda job: alarms.append(job.id)):
        assert settled(conn) == {"done": 1, "failed": 1}
        wait_until(lambda: alarms == [bad])
    told = conn.execute("select last_error, attempts from jobqueue.job where id = %s", (bad,)).fetchone()
    assert (f"the payload can't be read: {reason}" in told[0], told[1], queue.get(good).status) == (True, 1, "done")


# ---- leases ----------------------------------------------------------------------------------------------------------


def least_remaining(conn, leases, seconds):
    """The smallest share of its lease that each type was seen to have left, over so many seconds."""
    least, until = dict.fromkeys(leases, 1.0), time.monotonic() + seconds

    def looked():
        rows = conn.execute(
            "select type, extract(epoch from locked_until - clock_timestamp())::float8"
            " from jobqueue.job where status = 'running'"
        )
        for type, left in rows.fetchall():
            least[type] = min(least[type], left / leases[type])
        return time.monotonic() >= until

    wait_until(looked, seconds + 10, "the end of the looks")
    return least


@pytest.mark.parametrize("leases, seconds", [
    pytest.param({"short": 0.9, "middle": 10, "long": 100}, 4, marks=pytest.mark.short),
    pytest.param({"short": 0.9, "middle": 9, "long": 90}, 10, marks=pytest.mark.long),
])  # fmt: skip
def test_no_lease_falls_below_a_third_whatever_else_the_worker_holds(dsn, queue, conn, leases, seconds):
    ids = [queue.enqueue(type).id for type in leases]
    handlers = {
        type: Handler(lambda lease, context: context.lost.wait(seconds), lease_seconds=lease)
        for type, lease in leases.items()
    }
    with working(dsn, handlers, grace_seconds=30):
        wait_until(lambda: statuses(conn) == {"running": 3})
        least = least_remaining(conn, leases, seconds * 0.8)
        settled(conn)
    assert ([queue.get(id).epoch for id in ids], {type for type, share in least.items() if share < 1 / 3}) == (
        [1, 1, 1],
        set(),
    ), least


def test_a_handler_that_holds_the_interpreter_loses_its_lease_and_is_told_so(dsn, queue, conn):
    job_id = queue.enqueue("greedy", {"letters": 24}, max_attempts=2).id
    reaper = Reaper(dsn, poll_seconds=0.05, backoff=Backoff("constant", base_seconds=3_600, jitter="none"))
    with process(dsn) as worker, running(reaper):
        lost = wait_until(lambda: (row := queue.get(job_id)).lease_losses and row, 20)
        wait_until(
            lambda: conn.execute(
                "select count(*) from jobqueue.incident where name in ('stale_write_refused', 'heartbeat_refused')"
            ).fetchone()[0],
            30,
        )
        worker.terminate()
        said = worker.communicate(timeout=20)[0]
    assert (lost.status, ends(lost), queue.get(job_id).status) == ("ready", ["lost"], "ready")
    assert "complete was answered LOST" in said


def test_a_cancelled_job_stops_its_handler_at_the_next_heartbeat(dsn, queue):
    seen = []

    def handler(lease, context):
        seen.append(context.lost.wait(10))
        seen.append(context.cancelled)

    job_id = queue.enqueue("job").id
    with working(dsn, {"job": Handler(handler, lease_seconds=0.6)}):
        job_when(queue, job_id, "running")
        queue.cancel(job_id)
        wait_until(lambda: len(seen) == 2, 5)
    assert (seen, queue.get(job_id).status, queue.get(job_id).attempts) == ([True, True], "cancelled", 1)


# ---- timeouts --------------------------------------------------------------------------------------------------------


def test_a_handler_that_overruns_has_failed_and_its_slot_is_used_again(dsn, queue, conn):
    free = threading.Event()
    stuck = queue.enqueue("stuck", max_attempts=1).id
    add(queue, "quick", 20)
    handlers = {"stuck": Handler(lambda *_: free.wait(), timeout_seconds=0.2), "quick": lambda *_: None}
    with working(dsn, handlers, concurrency=2) as worker:
        assert settled(conn) == {"dead": 1, "done": 20}
        job = queue.get(stuck)
        assert (job.attempts, job.lease_losses, job.last_error) == (1, 0, "timeout: still running after 0.2 s")
        assert threads().count("jobqueue-slot") == 3
        free.set()
        wait_until(lambda: threads().count("jobqueue-slot") == 2)
        add(queue, "quick", 20)
        wait_until(lambda: statuses(conn)["done"] == 40)
    assert (worker.stuck, queue.get(stuck).status) == (False, "dead")


def test_a_worker_whose_slots_are_all_stuck_releases_the_rest_and_ends(dsn, queue, conn):
    free = threading.Event()
    stuck = add(queue, "stuck", 2, max_attempts=1)
    other = queue.enqueue("other", delay_seconds=0.1).id
    handlers = {
        "stuck": Handler(lambda *_: free.wait(), timeout_seconds=0.5),
        "other": lambda lease, context: context.lost.wait(20),
    }
    worker = Worker(dsn, handlers, concurrency=2, grace_seconds=0, poll_seconds=0.05)
    with running(worker) as run:
        wait_until(lambda: worker.stuck, 10)
        run.result(10)
    free.set()
    job = queue.get(other)
    assert [queue.get(id).status for id in stuck] == ["dead", "dead"]
    assert (job.status, job.attempts) == ("ready", 0)


def test_a_stuck_process_exits_with_75(dsn, queue):
    ids = add(queue, "stuck", 2, max_attempts=1)
    with process(dsn, "--concurrency", "2", "--grace-seconds", "0") as worker:
        assert ended(worker) == 75
    assert [queue.get(id).status for id in ids] == ["dead", "dead"]


# ---- what is held ahead ----------------------------------------------------------------------------------------------


def warmed(queue, conn, type="quick", count=100):
    """After quick jobs a worker takes its handlers for quick, and claims ahead."""
    add(queue, type, count)
    wait_until(lambda: statuses(conn) == {"done": count}, 20)


def test_jobs_claimed_ahead_go_back_when_the_slots_are_busy_and_are_not_taken_again(dsn, queue, conn):
    free = threading.Event()
    handlers = {"quick": lambda *_: None, "slow": lambda *_: free.wait(20)}
    with working(dsn, handlers, concurrency=2) as worker:
        warmed(queue, conn)
        queue.enqueue_many([{"type": "slow"}] * 2 + [{"type": "quick"}] * 30)
        wait_until(lambda: statuses(conn) == {"done": 100, "running": 2, "ready": 30}, 10)
        entries = conn.execute("select sum(jsonb_array_length(history))::int from jobqueue.job").fetchone()[0]
        with working(dsn, {"quick": lambda *_: None}, owner="other"):
            wait_until(lambda: statuses(conn) == {"done": 130, "running": 2}, 10)
        assert (
            conn.execute("select sum(jsonb_array_length(history))::int from jobqueue.job").fetchone()[0]
            == entries
            <= 30
        )
        assert conn.execute("select max(attempts), max(lease_losses) from jobqueue.job").fetchone() == (1, 0)
        free.set()
        wait_until(lambda: statuses(conn) == {"done": 132}, 10)
    assert worker.stuck is False


def test_a_last_attempt_and_a_job_that_has_lost_a_lease_are_not_claimed_ahead(dsn, queue, conn):
    free = threading.Event()
    handlers = {"quick": lambda *_: None, "slow": lambda *_: free.wait(20)}
    claimed = "select id from jobqueue.job where type = 'quick' and epoch > 0 and id > %s order by id"
    with working(dsn, handlers, concurrency=1):
        warmed(queue, conn)
        with conn.transaction():
            slow = queue.enqueue("slow").id
            add(queue, "quick", 5, max_attempts=1)
            burnt, safe = add(queue, "quick", 5), add(queue, "quick", 5)
            conn.execute("update jobqueue.job set lease_losses = 1, attempts = 1 where id = any (%s)", (burnt,))
        wait_until(lambda: conn.execute(claimed, (slow,)).fetchall() == [(id,) for id in safe], 10)
        free.set()
        assert settled(conn) == {"done": 116}


def test_one_poison_job_in_a_batch_kills_no_job_that_had_not_started(dsn, queue, conn):
    add(queue, "quick", 100)
    batch = [queue.enqueue("poison" if place == 3 else "quick").id for place in range(10)]
    reaper = Reaper(dsn, poll_seconds=0.05, backoff=SOON)
    with running(reaper):
        while not statuses(conn).keys() <= {"done", "dead"}:
            with process(dsn, "--concurrency", "1", "--poll-seconds", "0.05") as worker:
                wait_until(lambda: worker.poll() is not None or statuses(conn).keys() <= {"done", "dead"}, 60)  # noqa
    jobs = [queue.get(id) for id in batch]
    poisonous = jobs.pop(3)
    assert (poisonous.status, poisonous.attempts, poisonous.lease_losses) == ("dead", 5, 5)
    assert {(job.status, job.attempts - job.lease_losses) for job in jobs} == {("done", 1)}
    assert max(job.lease_losses for job in jobs) <= 1


def test_a_job_that_comes_due_behind_the_others_does_not_wait_for_their_end(dsn, queue, conn):
    """Claims begin where the last one ended: a late commit or an early run_at is found by the next from the start."""
    ran, late = [], threading.Event()

    def handler(lease, context):
        ran.append(lease.id)
        late.wait(0.001)

    queue.enqueue_many([{"type": "job"}] * 8_000)
    with working(dsn, {"job": handler}, concurrency=2):
        wait_until(lambda: len(ran) > 500)
        [behind] = conn.execute(
            "insert into jobqueue.job (type, run_at) values ('job', jobqueue.now() - interval '1 hour') returning id"
        ).fetchone()
        wait_until(lambda: behind in ran)
        assert len(ran) < 8_000


def test_slow_and_failing_jobs_delay_no_completion_of_others(dsn, queue, conn, monkeypatch):
    """A result waits for the exchange that is under way when its handler returns, and for nothing else."""
    returned, exchanges, rng = {}, [], random.Random(7)
    kinds = rng.choices(["slow", "bad", "good"], [10, 5, 85], k=1_000)
    queue.enqueue_many([{"type": "job", "payload": kind} for kind in kinds])
    exchange = Queue.exchange

    def timed(*arguments, **options):
        before = time.monotonic()
        try:
            return exchange(*arguments, **options)
        finally:
            exchanges.append(time.monotonic() - before)

    def handler(lease, context):
        if lease.payload == "slow":
            context.lost.wait(0.2)
        if lease.payload == "bad":
            raise ValueError("bad luck")
        returned[lease.id] = time.time()

    monkeypatch.setattr(Queue, "exchange", timed)
    with working(
        dsn, {"job": Handler(handler, backoff=Backoff("constant", base_seconds=3_600, jitter="none"))}, concurrency=8
    ):
        wait_until(lambda: statuses(conn) == {"done": 1_000 - kinds.count("bad"), "ready": kinds.count("bad")}, 60)
    rows = conn.execute(
        "select id, extract(epoch from finished_at)::float8 from jobqueue.job where status = 'done'"
    ).fetchall()
    lags = sorted(finished - returned[id] for id, finished in rows)
    p50, p99 = lags[len(lags) // 2], lags[int(len(lags) * 0.99)]
    print(f"lag: p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms; longest exchange {max(exchanges) * 1e3:.1f} ms")
    assert p99 < max(exchanges) + 0.02


# ---- rows that others hold -------------------------------------------------------------------------------------------


def test_a_row_held_by_a_foreign_transaction_delays_nothing_but_its_own_end(dsn, queue, conn):
    ends_now = threading.Event()
    waiting = Handler(lambda *_: ends_now.wait(20), lease_seconds=0.9)
    handlers = {"held": waiting, "long": waiting, "quick": lambda *_: None}
    held, long = queue.enqueue("held").id, queue.enqueue("long").id
    with working(dsn, handlers, concurrency=4):
        wait_until(lambda: statuses(conn) == {"running": 2})
        with psycopg.connect(dsn) as other:
            other.execute("select from jobqueue.job where id = %s for update", (held,))
            least = least_remaining(conn, {"held": 0.9, "long": 0.9}, 1.5)
            assert least["long"] > 0.3
            ends_now.set()
            job_when(queue, long, "done", 2)
            others = add(queue, "quick", 200)
            wait_until(lambda: all(queue.get(id).status == "done" for id in others[-5:]), 5)
            assert queue.get(held).status == "running"
        job_when(queue, held, "done", 5)
    assert (queue.get(held).attempts, queue.get(held).lease_losses) == (1, 0)


def test_a_failure_whose_row_is_held_delays_no_other_failure(dsn, queue, conn):
    fail = threading.Event()

    def handler(lease, context):
        fail.wait(20)
        raise ValueError("no")

    held, other = add(queue, "job", 2, max_attempts=1)
    with working(dsn, {"job": handler}), psycopg.connect(dsn) as foreign:
        wait_until(lambda: statuses(conn) == {"running": 2})
        foreign.execute("select from jobqueue.job where id = %s for update", (held,))
        fail.set()
        job_when(queue, other, "dead", 3)
        assert queue.get(held).status == "running"
        foreign.rollback()
        job_when(queue, held, "dead", 3)
    assert queue.get(held).attempts == 1


WAITING_FOR_THE_TABLE = """select count(*) from pg_locks where not granted and locktype = 'relation'
    and database = (select oid from pg_database where datname = current_database())"""


def test_a_table_locked_by_a_migration_delays_and_stop_is_still_heard(dsn, queue, conn):
    job_id = queue.enqueue("quick", delay_seconds=0.3).id
    worker = Worker(dsn, {"quick": lambda *_: None}, poll_seconds=0.05)
    with psycopg.connect(dsn) as foreign, running(worker) as run:
        wait_until(lambda: "jobqueue-pulse" in threads())
        foreign.execute("lock table jobqueue.job in access exclusive mode")
        wait_until(lambda: conn.execute(WAITING_FOR_THE_TABLE).fetchone()[0])
        worker.stop()
        run.result(10)
    assert queue.get(job_id).attempts == 0


# ---- waking up -------------------------------------------------------------------------------------------------------


def listeners(conn):
    return conn.execute("select count(*) from jobqueue.listener").fetchone()[0]


def test_a_notify_wakes_an_idle_worker_long_before_its_next_poll(dsn, queue, conn):
    began, waits = {}, []
    with working(dsn, {"job": lambda lease, context: began.setdefault(lease.id, time.monotonic())}, poll_seconds=10):
        for _ in range(20):
            wait_until(lambda: listeners(conn) == 1, 5)
            before = time.monotonic()
            id = queue.enqueue("job").id
            wait_until(lambda: id in began, 5)  # noqa: B023
            waits.append(began[id] - before)
    print(f"wake-up: p50 {statistics.median(waits) * 1e3:.1f} ms, worst {max(waits) * 1e3:.1f} ms")
    assert statistics.median(waits) < 0.25  # of ten seconds; a few milliseconds where nothing else runs
    assert max(waits) < 2
    assert listeners(conn) == 0


def test_a_worker_listens_again_after_its_connections_were_cut(dsn, queue, conn):
    with working(dsn, {"job": lambda *_: None}, poll_seconds=30, owner="cut me"):
        wait_until(lambda: listeners(conn) == 1, 5)
        conn.execute("delete from jobqueue.listener")
        conn.execute("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'cut me'")
        wait_until(lambda: listeners(conn) == 1, 5)
        job_when(queue, queue.enqueue("job").id, "done", 5)


def answered(proxy, seconds):
    """How many questions of a worker behind this proxy the server answers in so many seconds."""
    before, until = proxy.answers, time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until, seconds + 10, "the end of the count")
    return proxy.answers - before


@pytest.mark.parametrize("seconds", [
    pytest.param(3, marks=pytest.mark.short),
    pytest.param(10, marks=pytest.mark.long),
])  # fmt: skip
def test_an_idle_worker_asks_at_most_twice_a_second(dsn, queue, conn, seconds):
    queue.enqueue("job", delay_seconds=3_600)
    with Proxy(dsn) as proxy, working(proxy.dsn, {"job": lambda *_: None}, poll_seconds=1):
        wait_until(lambda: listeners(conn) == 1, 5)
        asked = answered(proxy, seconds)
    print(f"idle: {asked / seconds:.2f} questions a second")
    assert 1 <= asked <= 2 * (seconds + 1)  # a claim and a look a second, and those at the edges of the time


def test_a_worker_whose_slots_are_busy_does_not_ask_at_all(dsn, queue, conn):
    free = threading.Event()
    add(queue, "job", 3)
    with Proxy(dsn) as proxy, working(
        proxy.dsn, {"job": lambda *_: free.wait(20)}, concurrency=2, poll_seconds=0.01
    ):
        wait_until(lambda: statuses(conn) == {"running": 2, "ready": 1})
        asked = answered(proxy, 2)
        free.set()
        settled(conn)
    assert asked <= 2


# ---- start and stop --------------------------------------------------------------------------------------------------


def test_run_once_runs_one_claim_to_its_end_and_leaves_neither_thread_nor_session(dsn, queue, conn):
    seen = []
    add(queue, "job", 10)
    worker = Worker(dsn, {"job": lambda lease, context: seen.append(lease.id)}, concurrency=4)
    counts = []
    for _ in range(4):
        counts.append(worker.run_once())
        assert threads() == []
        wait_until(lambda: sessions(conn) == 0)
    assert (counts, len(set(seen)), statuses(conn)) == ([4, 4, 2, 0], 10, {"done": 10})


@pytest.mark.parametrize("wait", [0, 0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.08])
@pytest.mark.parametrize("grace", [0, 5])
@pytest.mark.parametrize("way", ["run", "run_once"])
def test_stop_at_any_moment_leaves_no_job_running_and_nothing_behind(dsn, queue, conn, wait, grace, way):
    executed = []
    add(queue, "job", 300, max_attempts=2)
    worker = Worker(
        dsn, {"job": lambda lease, context: (NEVER.wait(0.002), executed.append(lease.id))}, grace_seconds=grace
    )
    with running(worker, way) as run:
        run.lasts(wait)
        worker.stop()
        run.result(10)
    assert threads() == []
    wait_until(lambda: sessions(conn) == 0)
    found = statuses(conn)
    assert ("running" in found, found.get("done", 0) <= len(executed)) == (False, True)
    assert conn.execute("select max(attempts) from jobqueue.job where status = 'ready'").fetchone()[0] in (0, None)
    assert conn.execute("select max(lease_losses) from jobqueue.job").fetchone()[0] == 0


def test_a_worker_stopped_before_it_runs_claims_nothing(dsn, queue, conn):
    queue.enqueue("job")
    worker = Worker(dsn, {"job": lambda *_: None})
    worker.stop()
    worker.run()
    assert (worker.run_once(), statuses(conn)) == (0, {"ready": 1})


def test_a_worker_runs_in_one_thread_at_a_time(dsn, queue):
    with working(dsn, {"job": lambda *_: None}) as worker:
        wait_until(lambda: "jobqueue-pulse" in threads())
        with pytest.raises(JobQueueError, match="^this worker is running already, in another thread$"):
            worker.run()


def test_a_job_that_outlives_the_grace_is_released_and_its_handler_told(dsn, queue):
    told = []
    job_id = queue.enqueue("job").id
    with working(dsn, {"job": lambda lease, context: told.append(context.lost.wait(20))}, grace_seconds=0.2) as worker:
        job_when(queue, job_id, "running")
        worker.stop()
        job = job_when(queue, job_id, "ready", 5)
        wait_until(lambda: told == [True])
    assert (job.attempts, job.lease_losses, job.releases, ends(job)) == (0, 0, 0, ["released"])


def test_a_schema_that_is_missing_ends_the_worker_with_one_clear_error(server):
    with (
        database.scratch(server.dsn) as empty,
        pytest.raises(JobQueueError, match="^the schema jobqueue is missing or incomplete here: run install"),
    ):
        Worker(empty, {"job": lambda *_: None}).run()


def uninstalled(queue):
    """A drop may be the victim of a deadlock with what the worker does at that instant: then it is tried again."""
    try:
        queue.uninstall()
    except InfrastructureError:
        return False
    return True


def test_a_schema_that_is_dropped_ends_the_worker_with_one_clear_error(dsn, queue):
    worker = Worker(dsn, {"job": lambda lease, context: context.lost.wait(20)}, poll_seconds=0.05, grace_seconds=0)
    with running(worker) as run:
        job_when(queue, queue.enqueue("job").id, "running")
        wait_until(lambda: uninstalled(queue), 20, "the end of the schema")
        with pytest.raises(JobQueueError, match="^the schema jobqueue is missing or incomplete here: run install"):
            run.result(20)
    queue.install()


def test_an_unreadable_dsn_ends_the_worker_with_one_clear_error():
    with pytest.raises(JobQueueError, match="^the DSN can't be read: "):
        Worker("not a dsn", {"job": lambda *_: None}).run()


def test_run_once_says_when_the_database_cannot_be_reached():
    with pytest.raises(InfrastructureError, match="^can't connect to 127.0.0.1:1/x: "):
        Worker("postgresql://u:hush@127.0.0.1:1/x", {"job": lambda *_: None}).run_once()


def test_an_error_in_a_thread_of_the_worker_ends_the_run_with_that_error(dsn, queue, monkeypatch):
    from jobqueue.pulse import Pulse

    monkeypatch.setattr(Pulse, "_beat", lambda self, queue: 1 / 0)
    worker = Worker(dsn, {"job": lambda *_: None})
    with running(worker) as run, pytest.raises(ZeroDivisionError, match="^division by zero$"):
        run.result(20)


def test_a_worker_made_before_a_fork_refuses_to_run_after_it(dsn):
    worker = Worker(dsn, {"job": lambda *_: None})
    assert (
        in_a_fork(worker.run_once)
        == "JobQueueError: this worker was made before a fork: make one in each process, its owner must be unique"
    )


def test_a_handler_that_forks_does_not_harm_the_workers_connections(dsn, queue, conn):
    def handler(lease, context):
        context.effect(f"e{lease.id}")
        said.append(in_a_fork(lambda: context.heartbeat()))

    said = []
    add(queue, "job", 3)
    with working(dsn, {"job": handler}, concurrency=1):
        assert settled(conn) == {"done": 3}
    assert conn.execute("select max(attempts) from jobqueue.job").fetchone()[0] == 1
    assert set(said) <= {
        "None",
        "JobQueueError: this connection was opened before a fork: open one in each process (use spawn, not fork)",
    }


def in_a_fork(call):
    """What the call returned or raised in a forked child, which ends as children of multiprocessing do."""
    mine, its = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            said = str(call() and None)
        except BaseException as error:  # the child must not return into the test
            said = f"{type(error).__name__}: {error}"
        its.sendall(said.encode())
        os._exit(0)
    its.close()
    os.waitpid(pid, 0)
    with mine:
        return mine.recv(10_000).decode()


# ---- signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_a_handler_finish_within_the_grace(dsn, queue, number, tmp_path):
    begun = tmp_path / "begun"
    job_id, later = (queue.enqueue("sleep", {"seconds": 1, "begun": str(begun)}).id for _ in range(2))
    with process(dsn, "--grace-seconds", "10", "--concurrency", "1") as worker:
        wait_until(begun.exists, 15, "the handler's beginning")
        worker.send_signal(number)
        assert ended(worker) == 0
    assert [(queue.get(id).status, queue.get(id).attempts) for id in (job_id, later)] == [("done", 1), ("ready", 0)]


@pytest.mark.parametrize("grace, most", [("0", 1.5), ("0.5", 2.5)])
def test_sigterm_releases_what_has_not_finished_and_no_attempt_is_used(dsn, queue, grace, most):
    ids = [queue.enqueue("sleep", {"seconds": 30}).id, queue.enqueue("obedient", {"seconds": 30}).id]
    with process(dsn, "--grace-seconds", grace) as worker:
        [job_when(queue, id, "running") for id in ids]
        before = time.monotonic()
        worker.terminate()
        assert ended(worker) == 0
        took = time.monotonic() - before
    jobs = [queue.get(id) for id in ids]
    assert {(job.status, job.attempts, job.releases, job.lease_losses, *ends(job)) for job in jobs} == {
        ("ready", 0, 0, 0, "released")
    }
    assert took < most


def test_a_second_sigterm_ends_the_process_at_once_and_the_lease_is_left_to_the_reaper(dsn, queue, tmp_path):
    begun = tmp_path / "begun"
    job_id = queue.enqueue("sleep", {"seconds": 30, "begun": str(begun)}).id
    with process(dsn, "--grace-seconds", "60") as worker:
        wait_until(begun.exists, 15, "the handler's beginning")  # before it, SIGTERM gives the job back at once
        worker.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(0.5)
        worker.terminate()
        assert ended(worker) == -signal.SIGTERM
    assert (queue.get(job_id).status, queue.get(job_id).attempts) == ("running", 1)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("times", [
    pytest.param(2, marks=pytest.mark.short),
    pytest.param(25, marks=pytest.mark.long),
])  # fmt: skip
def test_sigterm_under_load_always_ends_in_peace(dsn, queue, conn, times):
    """A signal may arrive inside any line of the main thread: an Event's lock would be held there now and then."""
    for run in range(times):
        add(queue, "quick", 1_000)
        with process(dsn, "--poll-seconds", "0.01") as worker:
            wait_until(lambda: statuses(conn).get("done", 0) > run * 1_000, 20)  # noqa: B023
            worker.terminate()
            assert ended(worker) == 0
        assert "running" not in statuses(conn)
        conn.execute(
            "update jobqueue.job set status = 'done', finished_at = now(), finished_epoch = 1, finished_by = 'x'"
            " where status = 'ready'"
        )


def test_an_interrupt_that_is_sent_to_everybody_releases_the_jobs_of_the_workers(dsn, queue):
    """A notebook's interrupt reaches what was started plainly; such a worker stops as by SIGTERM, charging nobody."""
    job_id = queue.enqueue("obedient", {"seconds": 30}).id
    with process(dsn, "--grace-seconds", "0") as worker:
        job_when(queue, job_id, "running")
        os.killpg(worker.pid, signal.SIGINT)
        assert ended(worker) == 0
    assert (queue.get(job_id).status, queue.get(job_id).attempts) == ("ready", 0)
