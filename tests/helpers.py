"""What tests share: waiting on a condition, a second session in a thread of its own, what this test run has started."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psutil
import psycopg

if TYPE_CHECKING:
    from jobqueue import Queue

HOME = "JOBQUEUE_LAB_HOME"  # of this test run alone: its servers lie in it, its processes inherit it
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def wait_until(condition: Callable[[], Any], timeout: float = 10.0, what: str = "the condition") -> Any:
    """The first true value of `condition`, or AssertionError after `timeout` seconds."""
    end = time.monotonic() + timeout
    while True:
        if value := condition():
            return value
        assert time.monotonic() < end, f"{what} did not come true within {timeout:g} s"
        time.sleep(0.01)


class Session:
    """A session (`conn`, `queue`, `pid`) that can do one thing at a time in a thread, so that it may have to wait."""

    def __init__(self, dsn: str, **connect: Any) -> None:
        from jobqueue import Queue  # here: tests that need no queue run while it cannot be imported

        self.conn = psycopg.connect(dsn, autocommit=True, **connect)
        self.watch = psycopg.connect(dsn, autocommit=True)
        self.queue = Queue(self.conn)
        self.pid = self.conn.info.backend_pid
        self.thread: threading.Thread | None = None

    def run(self, act: Callable[[Queue], Any]) -> Session:
        """Begin `act(queue)`; ask `is_blocked()` next, fetch its end by `result()`."""
        assert self.thread is None or not self.thread.is_alive(), "this session is still busy"
        self.answer = self.error = None
        self.thread = threading.Thread(target=self._do, args=(act,), daemon=True)
        self.thread.start()
        return self

    def is_blocked(self, timeout: float = 10.0) -> bool:
        """True as soon as another session keeps this one waiting; False when its act has ended without."""
        blocked, thread = "select cardinality(pg_blocking_pids(%s)) > 0", self.thread

        def seen() -> str | None:
            if thread is None or not thread.is_alive():
                return "ended"
            return "blocked" if self.watch.execute(blocked, (self.pid,)).fetchone()[0] else None

        return wait_until(seen, timeout, "a lock wait or the end") == "blocked"

    def result(self, timeout: float = 20.0) -> Any:
        """What the act returned; raises what it raised."""
        assert self.thread is not None, "run something first"
        self.thread.join(timeout)
        assert not self.thread.is_alive(), f"the session is still waiting after {timeout:g} s"
        if self.error is not None:
            raise self.error
        return self.answer

    def _do(self, act: Callable[[Queue], Any]) -> None:
        try:
            self.answer = act(self.queue)
        except BaseException as error:  # kept for result(): a thread must not swallow it
            self.error = error

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(psycopg.Error):
            self.watch.execute("select pg_terminate_backend(%s)", (self.pid,))
        if self.thread is not None:
            self.thread.join(10)
        self.conn.close()
        self.watch.close()


def processes_of(home: str) -> list[psutil.Process]:
    """Everything alive that a test run with this home has started, at any depth, but not the run itself."""
    return [process for process in psutil.process_iter() if process.pid != os.getpid() and _belongs(process, home)]


def _belongs(process: psutil.Process, home: str) -> bool:
    with suppress(psutil.Error, OSError):
        if process.status() == psutil.STATUS_ZOMBIE or "multiprocessing.resource_tracker" in " ".join(
            process.cmdline()
        ):
            return False  # Python's own tracker ends with the process that it belongs to, this one
        if any(home in argument for argument in process.cmdline()):
            return True  # keepers and servers, which have an environment of their own
        return process.environ().get(HOME) == home
    return False
