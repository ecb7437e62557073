"""This queue, as its user starts it: `python -m jobqueue worker`, all promises on."""

import os
import sys
from contextlib import contextmanager

import psycopg

from jobqueue import Queue

from .. import role
from . import PYTHON, Facts

OPTIONS = os.environ.get("BENCH_WORKER_OPTIONS", "").split()  # of `python -m jobqueue worker`, to tune it
FACTS = Facts(
    package="jobqueue",
    kind=PYTHON,
    settings=" ".join(["python -m jobqueue worker", *OPTIONS]) + ", a plain handler; enqueue(), enqueue_many()",
    back_after="30 s",
    redelivery="the lease ends, a reaper looks every second; then the backoff",
    tells="by the next round of the worker, at once where it is idle",
)


def setup(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        Queue(conn).install()


@contextmanager
def producer(dsn: str):
    with psycopg.connect(dsn, autocommit=True) as conn:
        queue, start = Queue(conn), os.getpid()
        yield role.Producer(
            send=lambda i: queue.enqueue("noop", {"n": i}),
            many=lambda n: queue.enqueue_many([{"type": "noop", "payload": {"n": i}} for i in range(n)]),
            many_keyed=lambda n: queue.enqueue_many(
                [{"type": "noop", "payload": {"n": i}, "key": f"{start}-{i}"} for i in range(n)]
            ),
        )


def command(dsn: str, what: str) -> list[str] | None:
    if what != "work":
        return None
    return [sys.executable, "-m", "jobqueue", "worker", "--handlers", f"{__name__}:HANDLERS", "--dsn", dsn, *OPTIONS]


def _handlers() -> dict:
    tracker = role.tracker()
    return {"noop": lambda lease, context: tracker.hit()}


if "BENCH_TRACK" in os.environ:
    HANDLERS = _handlers()

if __name__ == "__main__":
    role.main(sys.modules[__name__])
