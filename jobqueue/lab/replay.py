"""Feeds a workload to the real queue in real time, or faster: each job is enqueued when its time has come.

    feed = Feed(dsn, workload.read("trace.swf"), time_scale=600).start()
    feed.enqueued, feed.total, feed.unfinished()      # while it runs; feed.stop() ends it, feed.wait() waits for it
    Feed(dsn, …).run()                                # the same in this thread, with a progress bar

Every job has a key, so that a feed begun again after an interruption, or sent twice, enqueues nothing twice.
"""

import hashlib
import json
import threading
import time
from typing import Self

import psycopg
from tqdm.auto import tqdm

from .. import InfrastructureError, Queue, limits
from ..errors import InvalidInput
from .fleet import SQL, FleetError, check_database
from .workload import Arrival, Workload

BATCH_SECONDS = 0.1  # arrivals are gathered for so long, which is the error of their instants
RETRY_SECONDS = 0.5  # a database that is away is asked again, with the same keys


class Feed:
    """`options` go into each payload (`handlers`); `name` is the feed's part of the keys, or a digest of what it feeds.

    `outcomes=False` lets every job succeed, whatever the history says.
    """

    def __init__(self, dsn: str, workload: Workload, *, time_scale: float = 1.0, name: str | None = None,
                 outcomes: bool = True, max_attempts: int = 5, options: dict | None = None):
        self.dsn, self.workload = dsn, workload.scaled(time_scale)
        self.max_attempts = limits.max_attempts(max_attempts)
        self._jobs = [_job(arrival, options or {}, outcomes, self.max_attempts) for arrival in self.workload]
        self.name = limits.text(_digest(self.workload, self._jobs) if name is None else name, "name", 400)
        self.ids: list[int] = []
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    @property
    def total(self) -> int:
        return len(self.workload)

    @property
    def enqueued(self) -> int:
        return len(self.ids)

    def start(self) -> Self:
        """In a thread of its own; what goes wrong there is raised by `wait`."""
        check_database(self.dsn)
        self._stopped.clear()
        self._thread = threading.Thread(target=self._keep_error, name=f"feed {self.name}", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stopped.set()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """True when all is enqueued (or the feed was stopped); False if the time has run out."""
        if self._thread is None:
            raise FleetError("the feed has not started")
        self._thread.join(timeout_seconds)
        if self._error:
            raise self._error
        return not self._thread.is_alive()

    def run(self, *, progress: bool = True) -> None:
        """Until all is enqueued; interruptible, and to be begun again as it is."""
        check_database(self.dsn)
        self._stopped.clear()
        self._feed(progress)

    def unfinished(self) -> int:
        """How many of the jobs fed so far are ready or running."""
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            return sum(count for count, in conn.execute(SQL.unfinished, {"ids": self.ids}))

    def _feed(self, progress: bool) -> None:
        with tqdm(total=self.total, initial=self.enqueued, unit="job", disable=not progress) as bar:
            for count in self._batches():
                bar.update(count)

    def _keep_error(self) -> None:
        try:
            self._feed(progress=False)
        except Exception as error:  # raised again in the thread that waits
            self._error = error

    def _batches(self):
        """Enqueue what is due, batch after batch; how many each time."""
        due = self.workload.at_seconds
        begun = time.monotonic() - (float(due[self.enqueued]) if self.enqueued < self.total else 0)
        while self.enqueued < self.total and not self._stopped.is_set():
            arrived = int(due.searchsorted(time.monotonic() - begun, side="right"))
            until = min(arrived, self.enqueued + limits.BATCH)
            if until > self.enqueued:
                yield self._enqueue(self.enqueued, until)
            else:
                self._stopped.wait(max(BATCH_SECONDS, float(due[self.enqueued]) - (time.monotonic() - begun)))

    def _enqueue(self, begin: int, until: int) -> int:
        batch = [{**job, "key": f"feed/{self.name}/{begin + i}"} for i, job in enumerate(self._jobs[begin:until])]
        while not self._stopped.is_set():
            try:
                with psycopg.connect(self.dsn, autocommit=True, connect_timeout=5) as conn:
                    enqueued = Queue(conn).enqueue_many(batch)
            except (InfrastructureError, psycopg.OperationalError):
                self._stopped.wait(RETRY_SECONDS)
                continue
            if not all(job.matches for job in enqueued):
                raise InvalidInput(f"a feed {self.name!r} has fed something else here: give this one its own name")
            self.ids += [job.id for job in enqueued]
            return len(batch)
        return 0


def _job(arrival: Arrival, options: dict, outcomes: bool, max_attempts: int) -> dict:
    payload = {**options, "seconds": arrival.service_seconds, **({"outcome": arrival.outcome} if outcomes else {})}
    return {"type": arrival.type, "payload": payload, "max_attempts": max_attempts}


def _digest(workload: Workload, jobs: list[dict]) -> str:
    """Of all that is fed: another time scale is another load, with keys of its own."""
    digest = hashlib.sha256(workload.at_seconds.tobytes())
    digest.update(json.dumps(jobs, sort_keys=True).encode())
    return digest.hexdigest()[:16]
