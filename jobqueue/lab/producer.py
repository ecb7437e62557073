"""A producer of load: a process that enqueues jobs at the instants at which they are to arrive, whoever keeps up.

    python -m jobqueue.lab.producer '{"begin": 1764500000.0, "seconds": 5, "rate": 200, …}'

The loop is open: the next arrival does not wait for the last answer, unless all connections are busy; each job carries
the instant it was meant for. Started by `ramp`; the database comes by JOBQUEUE_DSN, the result goes to a file.
"""

import json
import os
import random
import resource
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
PINGS = 5
SILENT_SECONDS = 1e-6  # a job that is not due at once wakes nobody


@dataclass(frozen=True)
class Order:
    """What one producer does in one step; instants are of this machine's clock."""

    begin: float
    seconds: float
    rate: float
    result: str
    connections: int = 4
    batch: int = 1
    arrivals: str = "poisson"
    wakes: bool = True
    service_seconds: float = 0.0
    seed: str = ""


class Produced:
    """What became of it, filled by the threads under one lock."""

    def __init__(self, instants: list[float]):
        self.instants, self.taken = instants, 0
        self.unsent: list[float] = []
        self.took_seconds: list[float] = []
        self.refused = 0
        self.lock = threading.Lock()


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
    produced = Produced([order.begin + at for at in arrivals(order)])
    threads = [threading.Thread(target=_feed, args=(order, dsn, produced)) for _ in range(order.connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    produced.unsent += produced.instants[produced.taken :]
    used = resource.getrusage(resource.RUSAGE_SELF)
    found = {"sent": len(produced.instants) - len(produced.unsent), "unsent": sorted(produced.unsent)}
    found |= {"took_seconds": produced.took_seconds, "refused": produced.refused}
    return found | {"cpu_seconds": used.ru_utime + used.ru_stime}


def _feed(order: Order, dsn: str, produced: Produced) -> None:
    """One connection: the next jobs, each when it is due, until the end of the step."""
    end, queue, ahead = order.begin + order.seconds, None, 0.0
    while time.time() < end:
        try:
            if queue is None:
                queue = Queue(connect(dsn, NAME))
                ahead = clock_ahead(queue)
            while batch := _next(order, produced):
                if not _send(order, queue, ahead, batch, produced, end):
                    break
            return queue.conn.close()
        except InfrastructureError:
            queue = None
            with produced.lock:
                produced.refused += 1
            time.sleep(RETRY_SECONDS)
    return None


def _next(order: Order, produced: Produced) -> list[float]:
    """The arrivals of the next transaction: one, or those of the next 50 ms up to a batch."""
    with produced.lock:
        first = produced.taken
        batch = produced.instants[first : first + order.batch]
        batch = [at for at in batch if at <= batch[0] + GATHER_SECONDS]
        produced.taken += len(batch)
        return batch


def _send(order: Order, queue: Queue, ahead: float, batch: list[float], produced: Produced, end: float) -> bool:
    time.sleep(max(0.0, batch[-1] - time.time()))
    began = time.time()
    sent = False
    try:
        if sent := began < end:
            _enqueue(order, queue, ahead, batch)
    except InfrastructureError:
        sent = False
        raise
    finally:
        with produced.lock:
            if sent:
                produced.took_seconds.append(time.time() - began)
            else:
                produced.unsent += batch
    return sent


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


def argument(order: Order) -> str:
    return json.dumps(asdict(order))


def main(argument: str) -> None:
    order = Order(**json.loads(argument))
    found = produce(order, os.environ["JOBQUEUE_DSN"])
    beside = Path(order.result + ".part")
    beside.write_text(json.dumps(found))
    beside.rename(order.result)


if __name__ == "__main__":
    main(sys.argv[1])
