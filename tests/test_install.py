"""Install: idempotent, safe when many start at once, and faithful to the clock it was begun with."""

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from jobqueue import JobQueueError, Queue
from jobqueue.sql import SCHEMA_VERSION


def test_sixteen_installs_at_once_all_succeed(dsn, conn, queue):
    queue.uninstall()
    barrier = threading.Barrier(16, timeout=30)

    def install(_):
        with psycopg.connect(dsn, autocommit=True) as own:
            barrier.wait()
            Queue(own).install()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(install, range(16)))
    assert (
        queue.enqueue("mail").created,
        conn.execute("select count(*), min(schema_version), bool_or(virtual) from jobqueue.meta").fetchone(),
    ) == (True, (1, SCHEMA_VERSION, False))


def test_installing_again_keeps_every_job(queue):
    job = queue.enqueue("mail").id
    queue.install()
    assert [lease.id for lease in queue.claim("A")] == [job]


def test_install_refuses_to_change_the_clock_of_a_schema(queue, virtual_queue):
    with pytest.raises(JobQueueError, match="virtual"):
        queue.install(virtual=True)
    with pytest.raises(JobQueueError, match="virtual"):
        virtual_queue.install()


def test_install_refuses_an_unknown_schema_version(conn, queue):
    conn.execute("update jobqueue.meta set schema_version = 999")
    with pytest.raises(JobQueueError, match="999"):
        queue.install()


def test_a_normal_install_ignores_the_clock_setting_of_a_session(conn, queue):
    conn.execute("set jobqueue.now = '2040-01-01T00:00:00Z'")
    queue.enqueue("mail")
    assert conn.execute(
        "select abs(extract(epoch from run_at - clock_timestamp())) < 60 from jobqueue.job"
    ).fetchone() == (True,)


def test_an_unset_virtual_clock_is_an_error(virtual_dsn):
    with psycopg.connect(virtual_dsn, autocommit=True) as conn, pytest.raises(JobQueueError):
        Queue(conn).enqueue("mail")


def test_a_missing_schema_says_install(queue):
    queue.uninstall()
    with pytest.raises(JobQueueError, match="install"):
        queue.enqueue("mail")
