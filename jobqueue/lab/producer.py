"""A producer of load: a process that enqueues jobs at the instants at which they are to arrive, whoever keeps up.

    python -m jobqueue.lab.producer '{"seconds": 5, "rate": 200, "result": "…/1.json", "go": "…/go", …}'

It connects, makes the file `result`.ready, and begins at the instant that the file `go` then names, so that no step
begins before its producers are there.
The loop is open: the next arrival does not wait for the last answer, unless all connections are busy; each job carries
the instant it was meant for. Started by `ramp`; the database comes by JOBQUEUE_DSN, the result goes to a file.
"""

import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import InfrastructureError
from ..loop import connect
from ..queue import Queue
from ..sql import statements, text

SQL = statements(text("lab/load.sql"))
NAME = "jobqueue load producer"
GATHER_SECONDS = 0.05  # the longest that a job waits for others of its batch
RETRY_SECONDS = 0.1
LOOK_SECONDS = 0.01
READY = ".ready"
PINGS = 5
SILENT_SECONDS = 1e-6  # a job that is not due at once wakes nobody


@dataclass(frozen=True)
class Order:
    """What one producer does in one step; `result` and `go` are files."""

    seconds: float
    rate: float
    result: str
    go: str = ""
    connections: int = 4
    batch: int = 1
    arrivals: str = "poisson"
    wakes: bool = True
    service_seconds: float = 0.0
    seed: str = ""


class Produced:
    """What became of it, filled by the threads under one lock; instants are of this machine's clock once it began."""

    def __init__(self, order: Order):
        self.offsets, self.taken = list(arrivals(order)), 0
        self.begin = self.end = 0.0
        self.unsent: list[float] = []
        self.took_seconds: list[float] = []
        self.refused = 0
        self.lock = threading.Lock()
        self.tried = threading.Barrier(order.connections + 1)  # each connection has been tried once
        self.begun = threading.Event()

    def start(self, order: Order) -> None:
        """Once every connection has been tried, at the instant that is given."""
        self.tried.wait()
        Path(order.result + READY).touch()
        self.begin = _instant(Path(order.go))
        self.end = self.begin + order.seconds
        self.begun.set()


def arrivals(order: Order) -> Iterator[float]:
    """Seconds from the beginning; a constant stream begins at a random place in its period."""
    rng, at = random.Random(order.seed), 0.0
    if order.arrivals == "constant":
        at = rng.random() / order.rate - 1 / order.rate
    while True:
        at += 1 / order.rate if order.arrivals == "constant" else rng.expovariate(order.rate)
        if at >= order.seconds:
            return
        yield at


def produce(order: Order, dsn: str) -> dict:
    """Runs the order; seconds of each enqueue, arrivals that were not sent in time, connections that were refused."""
    produced = Produced(order)
    threads = [threading.Thread(target=_feed, args=(order, dsn, produced)) for _ in range(order.connections)]
    for thread in threads:
        thread.start()
    produced.start(order)
    for thread in threads:
        thread.join()
    produced.unsent += [produced.begin + at for at in produced.offsets[produced.taken :]]
    return {
        "sent": len(produced.offsets) - len(produced.unsent),
        "unsent": sorted(produced.unsent),
        "took_seconds": produced.took_seconds,
        "refused": produced.refused,
    }


class _Line:
    """One connection, made again where it was refused or lost."""

    def __init__(self, dsn: str, produced: Produced):
        self._dsn, self._produced = dsn, produced
        self.queue: Queue | None = None
        self.ahead_seconds = 0.0

    def connect(self) -> bool:
        try:
            self.queue = self.queue or Queue(connect(self._dsn, NAME))
            self.ahead_seconds = clock_ahead(self.queue)
        except InfrastructureError:
            self.refused()
        return self.queue is not None

    def refused(self) -> None:
        self.queue = None
        with self._produced.lock:
            self._produced.refused += 1


def _feed(order: Order, dsn: str, produced: Produced) -> None:
    """The next jobs, each when it is due, until the end of the step."""
    line = _Line(dsn, produced)
    line.connect()
    produced.tried.wait()
    produced.begun.wait()
    while time.time() < produced.end:
        if line.queue is None and not line.connect():
            time.sleep(RETRY_SECONDS)
        elif batch := _next(order, produced):
            _send(order, line, batch, produced)
        else:
            break
    if line.queue is not None:
        line.queue.conn.close()


def _next(order: Order, produced: Produced) -> list[float]:
    """The arrivals of the next transaction: one, or those of the next 50 ms up to a batch."""
    with produced.lock:
        batch = produced.offsets[produced.taken : produced.taken + order.batch]
        batch = [at for at in batch if at <= batch[0] + GATHER_SECONDS]
        produced.taken += len(batch)
    return [produced.begin + at for at in batch]


def _send(order: Order, line: _Line, batch: list[float], produced: Produced) -> None:
    """At the end of the step what is late stays unsent."""
    time.sleep(max(0.0, batch[-1] - time.time()))
    began, sent = time.time(), False
    try:
        if began < produced.end:
            _enqueue(order, line.queue, line.ahead_seconds, batch)
            sent = True
    except InfrastructureError:
        line.refused()
    with produced.lock:
        if sent:
            produced.took_seconds.append(time.time() - began)
        else:
            produced.unsent += batch


def _instant(go: Path) -> float:
    while not go.exists():
        time.sleep(LOOK_SECONDS)
    return float(go.read_text())


def _enqueue(order: Order, queue: Queue, ahead: float, batch: list[float]) -> None:
    jobs = [{"type": "job", "payload": {"seconds": order.service_seconds, "due": at + ahead}} for at in batch]
    if not order.wakes:
        jobs = [job | {"delay_seconds": SILENT_SECONDS} for job in jobs]
    if len(jobs) == 1:
        queue.enqueue(**jobs[0])
    else:
        queue.enqueue_many(jobs)


def clock_ahead(queue: Queue) -> float:
    """By how much the database's clock is ahead of this one, by the quickest of a few answers."""
    answers = []
    for _ in range(PINGS):
        before = time.time()
        (there,) = queue.conn.execute(SQL.clock).fetchone()
        after = time.time()
        answers.append((after - before, there - (before + after) / 2))
    return min(answers)[1]


def put(path: Path, content: str) -> None:
    """Whoever sees the file sees all of it."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(content)
    beside.rename(path)


def argument(order: Order) -> str:
    """The order as this module's command line takes it."""
    return json.dumps(asdict(order))


def main(argument: str) -> None:
    order = Order(**json.loads(argument))
    found = produce(order, os.environ["JOBQUEUE_DSN"])
    put(Path(order.result), json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
