"""The database goes away under load, in every way it can: workers recover, nothing is lost, nobody is charged."""

import os
import signal
import threading
import time
from contextlib import ExitStack, suppress

import psutil
import psycopg
import pytest
from proxy import Proxy
from working import ends, process, running, statuses, threads, working

from helpers import wait_until
from jobqueue import Backoff, Handler, InfrastructureError, LeaseLost, Queue, Reaper, Worker
from jobqueue.lab import database

SOON = Backoff("constant", base_seconds=0, jitter="none")
WAYS = {
    "fast": lambda server: server.stop("fast"),
    "immediate": lambda server: server.stop("immediate"),
    "kill -9": lambda server: server.kill(),
}


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    wait_until(lambda: threads() == [], 10, "the end of every thread of a worker")


@pytest.fixture(scope="module")
def own_server():
    """A server of this file's own, which its tests stop and start."""
    with database.Server() as server:
        yield server


@pytest.fixture
def home(own_server):
    """DSN of a fresh database on it, installed."""
    with database.scratch(own_server.dsn) as fresh:
        with psycopg.connect(fresh, autocommit=True) as conn:
            Queue(conn).install()
            conn.execute("create table execution (job_id bigint, epoch bigint, call uuid primary key)")
            conn.execute("create table applied (job_id bigint, epoch bigint)")
        yield fresh
        own_server.start()  # whatever the test left


def ask(dsn, statement, *values):
    with psycopg.connect(dsn, autocommit=True) as conn:
        return conn.execute(statement, values).fetchall()


def tally(dsn):
    with psycopg.connect(dsn, autocommit=True) as conn:
        return statuses(conn)


def settled(dsn, timeout=60):
    wait_until(lambda: not {"ready", "running"} & set(tally(dsn)), timeout, "the end of all jobs")
    return tally(dsn)


def enqueue(dsn, type, count=1, payload=None, **options):
    with psycopg.connect(dsn, autocommit=True) as conn:
        return [one.id for one in Queue(conn).enqueue_many([{"type": type, "payload": payload, **options}] * count)]


def job(dsn, job_id):
    with psycopg.connect(dsn, autocommit=True) as conn:
        return Queue(conn).get(job_id)


@pytest.mark.parametrize("way", ["fast", "kill -9", pytest.param("immediate", marks=pytest.mark.long)])
def test_workers_recover_from_an_outage_under_load_and_nothing_is_lost_doubled_or_charged(own_server, home, way):
    """Two processes and a reaper; half of the jobs have an effect in their own transaction."""
    enqueue(home, "quick", 1_500)
    effects = enqueue(home, "counted", 150, {"seconds": 0.01})
    with (
        process(home, "--poll-seconds", "0.05") as one,
        process(home, "--poll-seconds", "0.05") as two,
        running(Reaper(home)) as reaping,
    ):
        for share in (0.1, 0.4):
            wait_until(lambda: tally(home).get("done", 0) > 1_650 * share, 60)  # noqa: B023
            WAYS[way](own_server)
            assert reaping.lasts(0.4)  # an outage has a length, and ends nobody
            own_server.start()
        assert settled(home) == {"done": 1_650}
        for worker in (one, two):
            worker.terminate()
            said = worker.communicate(timeout=30)[0]
            assert worker.returncode == 0, said
    assert ask(home, "select distinct attempts, lease_losses, releases from jobqueue.job") == [(1, 0, 0)]
    assert [id for (id,) in ask(home, "select job_id from applied order by 1")] == effects
    executions = ask(home, "select job_id, count(*) from execution group by 1 having count(*) > 1")
    released = ask(
        home, "select count(*) from jobqueue.job where type = 'counted' and history @> '[{\"event\": \"released\"}]'"
    )[0][0]
    assert len(executions) <= released  # executed again is only what was given back: its effects had been rolled back


def test_what_was_acknowledged_before_a_crash_is_done_after_it(own_server, home):
    ids, told, ambiguous = enqueue(home, "job", 2_000), set(), set()
    go = threading.Event()

    def complete():
        with psycopg.connect(home, autocommit=True) as conn:
            queue = Queue(conn)
            while not go.is_set():
                leases = list(queue.claim(f"w{threading.get_ident()}", limit=5, lease_seconds=60))
                ambiguous.update(lease.id for lease in leases)
                for lease, outcome in zip(leases, queue.complete_many(leases), strict=True):
                    if outcome.name == "APPLIED":
                        told.add(lease.id)
                if not leases:
                    return

    def until_the_crash():
        with suppress(InfrastructureError, psycopg.OperationalError):
            complete()

    workers = [threading.Thread(target=until_the_crash) for _ in range(4)]
    [worker.start() for worker in workers]
    wait_until(lambda: len(told) > 300, 30)
    own_server.kill()
    go.set()
    [worker.join(10) for worker in workers]
    own_server.start()
    done = {id for (id,) in ask(home, "select id from jobqueue.job where status = 'done'")}
    assert told <= done <= ambiguous <= set(ids)
    assert ask(home, "show fsync") == [("on",)]


@pytest.mark.parametrize("way", ["fast", pytest.param("kill -9", marks=pytest.mark.long)])
def test_an_outage_of_half_a_lease_disturbs_no_handler(own_server, home, way):
    began = time.monotonic()
    WAYS[way](own_server), own_server.start()
    shortest = time.monotonic() - began  # this machine can make no shorter outage
    lease_seconds, seen = max(2.0, shortest * 3), []

    def handler(lease, context):
        seen.append(context.lost.wait(lease_seconds * 1.5))

    [job_id] = enqueue(home, "job")
    with (
        running(Reaper(home, poll_seconds=0.05)) as reaping,
        working(home, {"job": Handler(handler, lease_seconds=lease_seconds)}, grace_seconds=60),
    ):
        wait_until(lambda: tally(home) == {"running": 1})
        WAYS[way](own_server)
        assert reaping.lasts(max(0, lease_seconds / 2 - shortest))
        own_server.start()
        settled(home)
    done = job(home, job_id)
    assert (seen, done.status, done.attempts, done.lease_losses, done.epoch) == ([False], "done", 1, 0, 1)


@pytest.mark.parametrize("lease_seconds", [0.8, pytest.param(2, marks=pytest.mark.long)])
def test_an_outage_of_three_leases_ends_the_workers_authority_by_its_own_clock(
    own_server, home, lease_seconds, tmp_path
):
    """The handler is told one lease after the last renewal was sent, and publishes nothing; its job begins anew."""
    told, refused, began = [], [], []

    def handler(lease, context):
        if began:
            return
        began.append(time.monotonic())
        context.lost.wait(lease_seconds * 5)
        told.append(time.monotonic())
        try:
            context.publish(b"too late", "late.txt")
        except LeaseLost as error:
            refused.append(str(error))
            raise

    [job_id] = enqueue(home, "job")
    worker = Worker(home, {"job": Handler(handler, lease_seconds=lease_seconds)}, poll_seconds=0.05, artifacts=tmp_path)
    with running(worker) as run:
        wait_until(lambda: tally(home) == {"running": 1})
        wait_until(lambda: began and time.monotonic() - began[0] > lease_seconds)  # claimed is not yet begun
        own_server.kill()
        away = time.monotonic()
        assert run.lasts(lease_seconds * 3)
        own_server.start()
        settled(home)
        enqueue(home, "job")
        settled(home)
    took = told[0] - away
    done = job(home, job_id)
    assert lease_seconds * 0.5 < took < lease_seconds + 0.4, took
    assert (done.status, done.attempts, done.lease_losses, done.published_name, ends(done)) == (
        "done",
        1,
        0,
        None,
        ["released"],
    )
    assert refused == [f"job {job_id}, epoch 1: this worker's authority has ended"]


def frozen(pid):
    """Stops every process of the server: it neither answers nor hangs up, as on a machine whose disk stalls."""
    postmaster = psutil.Process(pid)
    family = [postmaster, *postmaster.children(recursive=True)]
    for one in family:
        one.suspend()
    return family


def thaw(family):
    for one in family:
        with suppress(psutil.NoSuchProcess):
            one.resume()


def test_a_renewal_that_hangs_does_not_keep_the_worker_from_noticing(own_server, home):
    told = []

    def handler(lease, context):
        context.lost.wait(10)
        told.append(time.monotonic())

    enqueue(home, "job")
    with working(home, {"job": Handler(handler, lease_seconds=1)}):
        wait_until(lambda: tally(home) == {"running": 1})
        family = frozen(own_server.pid)
        try:
            froze = time.monotonic()
            wait_until(lambda: told, 5)
        finally:
            thaw(family)
        assert told[0] - froze < 1.5
        settled(home)


def test_a_worker_can_be_stopped_while_the_database_hangs(own_server, home, monkeypatch):
    monkeypatch.setattr("jobqueue.worker.CLOSING_SECONDS", 0.5)
    monkeypatch.setattr("jobqueue.loop.CONNECT_SECONDS", 2)
    enqueue(home, "job")
    handlers = {"job": lambda lease, context: context.lost.wait(30)}
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(home))
        worker = Worker(proxy.dsn, handlers, grace_seconds=0.2, poll_seconds=0.05)
        run = stack.enter_context(running(worker))
        wait_until(lambda: tally(home) == {"running": 1})
        family = frozen(own_server.pid)
        try:
            wait_until(lambda: proxy.waiting, 5, "a question that hangs")
            before = time.monotonic()
            worker.stop()
            run.result(15)
            took = time.monotonic() - before
        finally:
            thaw(family)
    assert took < 8, took


def test_a_worker_can_be_stopped_while_the_database_is_away_and_a_new_one_goes_on(own_server, home):
    ids = enqueue(home, "job", 3)
    worker = Worker(
        home, {"job": Handler(lambda lease, context: context.lost.wait(30), lease_seconds=1)}, grace_seconds=0.2
    )
    with running(worker) as run:
        wait_until(lambda: tally(home) == {"running": 3})
        own_server.stop("immediate")
        before = time.monotonic()
        worker.stop()
        run.result(20)
        took = time.monotonic() - before
    own_server.start()
    with running(Reaper(home, poll_seconds=0.05, backoff=SOON)), working(home, {"job": lambda *_: None}):
        assert settled(home) == {"done": 3}
    assert took < 9
    assert {(job(home, id).attempts, job(home, id).lease_losses) for id in ids} == {
        (2, 1)
    }  # nobody could be told: lost leases


def test_a_worker_that_starts_before_its_database_waits_for_it(own_server, home, caplog):
    [job_id] = enqueue(home, "job")
    own_server.stop("fast")
    with working(home, {"job": lambda *_: None}):
        wait_until(lambda: "can't connect to" in caplog.text)
        own_server.start()
        wait_until(lambda: job(home, job_id).status == "done", 20)


def test_a_database_that_has_become_read_only_is_waited_for_and_charges_nobody(own_server, home, caplog):
    """As after a fail-over to a standby: 25006, which psycopg counts among internal errors."""
    ids = enqueue(home, "job", 4) + enqueue(home, "effect", 4)
    go = threading.Event()

    def effect(lease, context):
        go.wait(20)
        context.effect(f"once/{lease.id}")

    with working(
        home, {"job": lambda *_: go.wait(20), "effect": Handler(effect, backoff=SOON)}, concurrency=8
    ) as worker:
        wait_until(lambda: tally(home) == {"running": 8})
        set_for_all(own_server, "default_transaction_read_only = on")
        go.set()
        later = ids + ask_writing(home)
        wait_until(lambda: caplog.text.count("25006") >= 3, what="the third refusal")
        assert tally(home).get("done", 0) == 0
        set_for_all(own_server, "default_transaction_read_only = off")
        assert settled(home) == {"done": 9}
    jobs = [job(home, id) for id in later]
    assert {(one.attempts, one.lease_losses, one.releases) for one in jobs} == {(1, 0, 0)}
    assert (worker.stuck, ask(home, "select count(*) from jobqueue.effect")) == (False, [(4,)])


def ask_writing(dsn):
    """A job added by a producer that insists on writing."""
    with psycopg.connect(dsn, autocommit=True, options="-c default_transaction_read_only=off") as conn:
        return [Queue(conn).enqueue("job").id]


def set_for_all(server, setting):
    with psycopg.connect(server.dsn, autocommit=True, options="-c default_transaction_read_only=off") as conn:
        conn.execute(f"alter system set {setting}")
        conn.execute("select pg_reload_conf()")
    name, _, value = setting.partition(" = ")
    wait_until(lambda: ask(server.dsn, f"show {name}") == [(value,)])


def test_messages_about_an_outage_are_one_line_each(own_server, home, caplog):
    enqueue(home, "job")
    with working(home, {"job": lambda lease, context: context.lost.wait(3)}):
        wait_until(lambda: tally(home) == {"running": 1})
        own_server.stop("immediate")
        wait_until(lambda: any("can't connect" in record.getMessage() for record in caplog.records))
        own_server.start()
        settled(home)
    assert [record.getMessage() for record in caplog.records if "\n" in record.getMessage()] == []


def test_a_worker_process_that_is_paused_past_its_lease_is_told_lost_and_goes_on(own_server, home):
    [job_id] = enqueue(home, "counted", 1, {"seconds": 0.5})
    with running(Reaper(home, poll_seconds=0.05, backoff=SOON)), process(home, "--poll-seconds", "0.05") as worker:
        wait_until(lambda: tally(home) == {"running": 1}, 20)
        os.kill(worker.pid, signal.SIGSTOP)
        wait_until(lambda: job(home, job_id).lease_losses == 1, 10)
        with working(home, {"counted": lambda *_: None}):
            wait_until(lambda: job(home, job_id).status == "done", 10)
        os.kill(worker.pid, signal.SIGCONT)
        [other] = enqueue(home, "quick")
        wait_until(lambda: job(home, other).status == "done", 10)
        worker.terminate()
        said = worker.communicate(timeout=20)[0]
    assert ("answered LOST" in said or "authority has ended" in said, ask(home, "select count(*) from applied")) == (
        True,
        [(0,)],
    )
