"""What the tests of workers share: a worker in a thread, workers as processes, what is left of either."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from helpers import wait_until
from jobqueue import Queue, Worker

TESTS = Path(__file__).resolve().parent


@contextmanager
def working(dsn: str, handlers: dict[str, Any], **options: Any) -> Iterator[Worker]:
    """A worker that runs in a thread; at the end it must stop by itself, without an error."""
    worker = Worker(dsn, handlers, **{"poll_seconds": 0.05, "grace_seconds": 5, **options})
    with running(worker) as run:
        yield worker
        worker.stop()
        run.result()


@contextmanager
def running(loop: Any, way: str = "run") -> Iterator[Run]:
    """A worker or reaper in a thread, stopped at the end whatever happens."""
    run = Run(getattr(loop, way))
    try:
        yield run
    finally:
        loop.stop()
        run.thread.join(20)


class Run:
    """A call in a thread of its own, whose end can be waited for and whose error is not swallowed."""

    def __init__(self, call: Any) -> None:
        self.error: BaseException | None = None
        self._call = call
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def result(self, timeout: float = 30.0) -> None:
        self.thread.join(timeout)
        assert not self.thread.is_alive(), f"it has not ended within {timeout:g} s"
        if self.error is not None:
            raise self.error

    def lasts(self, seconds: float) -> bool:
        """Waits for its end so long, and tells that it did not come."""
        self.thread.join(seconds)
        return self.thread.is_alive()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:  # kept for result(): a thread must not swallow it
            self.error = error


def threads() -> list[str]:
    """Names of the threads of workers that are alive."""
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("jobqueue-"))


def statuses(conn: psycopg.Connection) -> dict[str, int]:
    rows = conn.execute("select status, count(*) from jobqueue.job group by 1").fetchall()
    return dict(rows)


def settled(conn: psycopg.Connection, timeout: float = 30.0) -> dict[str, int]:
    """Statuses once nothing is ready or running any more."""
    wait_until(lambda: not {"ready", "running"} & set(statuses(conn)), timeout, "the end of all jobs")
    return statuses(conn)


def ends(job: Any) -> list[str]:
    return [entry["event"] for entry in job.history]


def job_when(queue: Queue, job_id: int, status: str, timeout: float = 15.0) -> Any:
    return wait_until(
        lambda: (job := queue.get(job_id)).status == status and job, timeout, f"job {job_id} being {status}"
    )


@contextmanager
def process(
    dsn: str, *arguments: str, handlers: str = "jobs:HANDLERS", **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """`python -m jobqueue worker` as somebody's supervisor would start it; killed at the end if it is still there."""
    command = [sys.executable, "-m", "jobqueue", "worker", "--dsn", dsn, "--handlers", handlers, *arguments]
    paths = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    started = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": paths, "JOBS_DSN": dsn, **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield started
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
        started.communicate()


def ended(started: subprocess.Popen[str], timeout: float = 20.0) -> int:
    return started.wait(timeout)


def sessions(conn: psycopg.Connection) -> int:
    """How many sessions there are in its database beside its own."""
    return conn.execute(
        """select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
           and backend_type = 'client backend'"""
    ).fetchone()[0]
