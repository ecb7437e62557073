"""Replies that never arrive: each verb cut off before and after it was carried out, poolers, interrupted claims."""

import _thread
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import psycopg
import pytest
from proxy import Proxy
from psycopg import conninfo
from working import ends, running, sessions, settled, statuses, threads, working

from helpers import wait_until
from jobqueue import Backoff, Handler, InfrastructureError, Queue, Reaper, Worker

pytestmark = pytest.mark.shared

SOON = Backoff("constant", base_seconds=0, jitter="none")
TIMES = 20
NO_LISTEN = {"prepare_threshold": None, "poll_seconds": 0.02, "concurrency": 2}  # every statement travels with its text


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    wait_until(lambda: threads() == [], 10, "the end of every thread of a worker")


@pytest.fixture
def executed(conn):
    """Each execution of a handler, noted outside of all that is cut."""
    conn.execute("create table execution (job_id bigint, epoch bigint)")
    conn.execute("create table applied (job_id bigint)")
    asked = "select coalesce(array_agg(epoch order by epoch), '{}') from execution where job_id = %s"
    yield lambda job_id: conn.execute(asked, (job_id,)).fetchone()[0]
    conn.execute("drop table execution, applied")


def noting(dsn, act=None):
    def handler(lease, context):
        with psycopg.connect(dsn, autocommit=True) as aside:
            aside.execute("insert into execution values (%s, %s)", (lease.id, lease.epoch))
        return act(lease, context) if act else None

    return Handler(handler, backoff=SOON)


def through(dsn, queue, conn, handler, marker, point, check, times=TIMES, **options):
    """So many jobs, one after the other; in each the session that sends the marker is cut."""
    with Proxy(dsn) as proxy, working(proxy.dsn, {"job": handler}, **NO_LISTEN, **options):
        wait_until(lambda: sessions(conn) > 1)
        for _ in range(times):
            proxy.cut_when(marker, point)
            job_id = queue.enqueue("job", max_attempts=1).id
            job = wait_until(lambda: (row := queue.get(job_id)).finished_at and row, 20)  # noqa: B023
            check(job)
    assert proxy.cuts == times


def is_idle(conn, owner):
    """Whether the worker's last word was a look at why there is nothing: its next claim is for a job that comes now."""
    asked = "select state = 'idle' and query like '%%as asked_at%%' from pg_stat_activity where application_name = %s"
    return [True] in [list(row) for row in conn.execute(asked, (owner,)).fetchall()]


@pytest.mark.parametrize("point", ["request", "reply"])
def test_a_completion_whose_reply_is_cut_is_one_execution(dsn, queue, conn, executed, point):
    def check(
        job,
    ):  # the completion of the job before, sent again, claims too: what that claimed is given back and run once
        assert (job.status, job.attempts, job.lease_losses, executed(job.id)) == ("done", 1, 0, [job.epoch])
        assert set(ends(job)) <= {"released"}

    through(dsn, queue, conn, noting(dsn), "finished_epoch = epoch", point, check)


@pytest.mark.parametrize("point", ["request", "reply"])
def test_a_claim_whose_reply_is_cut_is_released_by_the_worker_itself(dsn, queue, conn, executed, point):
    lost = point == "reply"

    def check(job):
        history, epoch = (["released"], 2) if lost else ([], 1)
        assert (job.status, job.attempts, job.lease_losses) == ("done", 1, 0)
        assert (job.epoch, ends(job), executed(job.id)) == (epoch, history, [epoch])

    with Proxy(dsn) as proxy, working(proxy.dsn, {"job": noting(dsn)}, **NO_LISTEN) as worker:
        for _ in range(TIMES):
            wait_until(lambda: is_idle(conn, worker.owner))
            proxy.cut_when("with picked", point)
            job_id = queue.enqueue("job").id
            check(wait_until(lambda: (row := queue.get(job_id)).finished_at and row, 20))  # noqa: B023
    assert proxy.cuts == TIMES


def test_a_lost_claim_under_an_owner_that_is_not_unique_is_left_to_its_lease(dsn, queue, conn, executed):
    handlers = {"job": Handler(noting(dsn).fn, lease_seconds=0.5)}
    reaper = Reaper(dsn, poll_seconds=0.05, backoff=SOON)
    with Proxy(dsn) as proxy, running(reaper), working(proxy.dsn, handlers, owner="shared name", **NO_LISTEN):
        wait_until(lambda: is_idle(conn, "shared name"))
        proxy.cut_when("with picked", "reply")
        job_id = queue.enqueue("job").id
        job = wait_until(lambda: (row := queue.get(job_id)).finished_at and row, 20)
    assert (job.status, ends(job), job.attempts, executed(job_id)) == ("done", ["lost"], 2, [2])


@pytest.mark.parametrize("point", ["request", "reply"])
def test_a_commit_of_effects_whose_reply_is_cut_applies_them_once(dsn, queue, conn, executed, point):
    def act(lease, context):
        if context.effect(f"once/{lease.id}"):
            context.connection.execute("insert into applied values (%s)", (lease.id,))

    def check(job):
        epochs = [1] if point == "reply" else [1, 2]  # cut before: all was rolled back, and had to be done again
        assert (job.status, job.attempts, job.lease_losses, job.releases, executed(job.id)) == ("done", 1, 0, 0, epochs)
        assert conn.execute("select count(*) from applied where job_id = %s", (job.id,)).fetchone()[0] == 1

    through(dsn, queue, conn, noting(dsn, act), "COMMIT", point, check)


@pytest.mark.parametrize("point", ["request", "reply"])
def test_a_publication_whose_reply_is_cut_is_one_execution_and_one_publication(
    dsn, queue, conn, executed, point, tmp_path
):
    outcomes = []

    def act(lease, context):
        outcomes.append(context.publish(f"result of {lease.id}".encode(), "result.txt").name)

    def check(job):
        assert (job.status, job.attempts, executed(job.id)) == ("done", 1, [1])
        assert (
            job.published_name,
            job.published_epoch,
            len(list(Path(tmp_path).rglob(f"*{job.published_digest[:16]}*"))),
        ) == ("result.txt", 1, 1)

    through(dsn, queue, conn, noting(dsn, act), "COMMIT", point, check, artifacts=tmp_path)
    assert outcomes == ["ALREADY_APPLIED" if point == "reply" else "APPLIED"] * TIMES


@pytest.mark.parametrize("point", ["request", "reply"])
def test_a_failure_whose_reply_is_cut_is_one_failure(dsn, queue, conn, executed, point):
    def check(job):
        assert (job.status, job.attempts, ends(job), executed(job.id)) == ("dead", 1, ["failed"], [1])

    through(dsn, queue, conn, noting(dsn, lambda lease, context: 1 / 0), "failed_permanently", point, check)


@pytest.mark.parametrize("point", ["request", "reply"])
def test_a_heartbeat_whose_reply_is_cut_costs_no_lease(dsn, queue, conn, executed, point):
    lost = []

    def check(job):
        assert (job.status, job.attempts, job.epoch, executed(job.id)) == ("done", 1, 1, [1])

    def act(lease, context):
        lost.append(context.lost.wait(0.5))

    handler = Handler(noting(dsn, act).fn, lease_seconds=0.9)
    through(dsn, queue, conn, handler, "greatest(j.locked_until", point, check, times=5)
    assert lost == [False] * 5


@pytest.mark.timeout(400)
def test_an_interrupt_at_any_moment_leaves_no_job_without_a_handler_and_no_session(dsn, queue, conn, monkeypatch):
    """As a notebook's stop button does it: KeyboardInterrupt in the thread that runs the worker, amid anything.

    Amid a weakref's callback Python itself drops it, and says so: then the button is pressed again.
    """

    def dropped(told):
        if told.exc_type is KeyboardInterrupt:
            _thread.interrupt_main()

    monkeypatch.setattr(sys, "unraisablehook", dropped)
    for attempt in range(30):
        queue.enqueue_many([{"type": "job"}] * 20)
        handlers = {"job": lambda lease, context: context.lost.wait(0.001)}
        worker = Worker(dsn, handlers, poll_seconds=0.01, grace_seconds=1)
        timer = threading.Timer(0.01 + attempt * 0.003, _thread.interrupt_main)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            worker.run()
        timer.join()
        assert (threads(), statuses(conn).get("running", 0)) == ([], 0)
    wait_until(lambda: sessions(conn) == 0)
    assert conn.execute("select max(lease_losses) from jobqueue.job").fetchone()[0] == 0
    with working(dsn, {"job": lambda *_: None}):
        assert settled(conn) == {"done": 600}


@pytest.fixture
def pooler(dsn):
    """DSN through pgbouncer in transaction mode, with two server connections for all."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed")
    given = conninfo.conninfo_to_dict(dsn)
    folder = Path(tempfile.mkdtemp(prefix="jq-pool-", dir="/tmp"))
    folder.chmod(0o777)  # as root it runs as nobody
    (folder / "users.txt").write_text(f'"{given["user"]}" ""\n')
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n* = host={given['host']} port={given['port']}\n[pgbouncer]\nlisten_addr =\nlisten_port = 6543\n"
        f"unix_socket_dir = {folder}\nauth_type = trust\nauth_file = {folder}/users.txt\npool_mode = transaction\n"
        f"default_pool_size = 2\nlogfile = {folder}/log\n"
    )
    command = [program, *(["-u", "nobody"] if os.geteuid() == 0 else []), str(folder / "pgbouncer.ini")]
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    through = conninfo.make_conninfo(dsn, host=str(folder), port=6543, user=given["user"])
    try:
        wait_until(lambda: started.poll() is not None or (folder / ".s.PGSQL.6543").exists(), 10)
        assert started.poll() is None, started.stderr.read()
        yield conninfo.make_conninfo(through, dbname=given["dbname"])
    finally:
        started.kill()
        started.communicate()
        shutil.rmtree(folder)


def test_a_worker_behind_a_transaction_pooler_does_all_that_workers_do(pooler, dsn, queue, conn, executed, tmp_path):
    def act(lease, context):
        if context.effect(f"once/{lease.id}"):
            context.connection.execute("insert into applied values (%s)", (lease.id,))

    handlers = {"quick": lambda *_: None, "effect": Handler(act), "bad": Handler(lambda *_: 1 / 0, backoff=SOON),
                "long": Handler(lambda lease, context: context.lost.wait(1.5), lease_seconds=0.6),
                "publish": lambda lease, context: context.publish(b"x", "x.txt")}  # fmt: skip
    queue.enqueue_many(
        [{"type": type, "max_attempts": 2} for type in ["quick"] * 300 + ["effect", "bad", "long", "publish"] * 5]
    )
    reaper = Reaper(pooler, poll_seconds=0.05, prepare_threshold=None)
    options = {"prepare_threshold": None, "concurrency": 4, "artifacts": tmp_path / "out"}
    with running(reaper), working(pooler, handlers, **options):
        assert settled(conn) == {"done": 315, "dead": 5}
    assert conn.execute("select count(*) from applied").fetchone()[0] == 5
    assert conn.execute("select max(lease_losses) from jobqueue.job").fetchone()[0] == 0


@pytest.mark.parametrize("encoding", ["utf8", "UTF8", "utf-8"])
def test_a_callers_connection_through_a_pooler_claims_however_it_spells_its_encoding(pooler, queue, encoding):
    queue.enqueue("mail", "Jos\u00e9")
    given = {"client_encoding": encoding, "prepare_threshold": None, "autocommit": True}
    with psycopg.connect(pooler, **given) as own:
        assert [lease.payload for lease in Queue(own).claim("A", types=["mail"])] == ["Jos\u00e9"]


def test_without_the_option_a_pooler_is_what_it_is_documented_to_be_an_error(pooler, queue):
    """The worker's settings are startup parameters: pgbouncer refuses them, at once and in words."""
    with pytest.raises(InfrastructureError, match="unsupported startup parameter"):
        Worker(pooler, {"job": lambda *_: None}).run_once()
