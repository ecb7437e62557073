"""Handlers of the mixed load: quick, slow, failing, and one that kills its worker at its first attempt."""

import os
import signal
import time

from jobqueue import Handler
from jobqueue.lab import history

LEASE_SECONDS = 2.0
FOLDER = "BENCH_MIXED"  # where each worker's history and its handlers' returns are written
SLOW_SECONDS = 0.2


def quick(lease, context) -> None:
    os.write(RETURNS, f"{lease.id} {lease.epoch} {time.time():.6f}\n".encode())


def slow(lease, context) -> None:
    time.sleep(SLOW_SECONDS)


def failing(lease, context) -> None:
    raise RuntimeError("it always fails")


def killing(lease, context) -> None:
    if lease.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)


HANDLERS = {kind.__name__: Handler(kind, lease_seconds=LEASE_SECONDS) for kind in (quick, slow, failing, killing)}

if FOLDER in os.environ:
    history.record_process(os.environ[FOLDER])
    _path = os.path.join(os.environ[FOLDER], f"returns-{os.getpid()}")
    RETURNS = os.open(_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
