"""What a contender's own process does: make its schema, fill its queue, produce, probe an idle queue, or work.

    python -m bench.contenders.pgqueuer DSN setup | fill N | fill_keyed N | produce SECONDS | probe N | work

Its last line is JSON. A contender may be plain or async; one loop serves both, so that neither pays for the other.
"""

import asyncio
import inspect
import json
import os
import random
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from psycopg import conninfo

from . import track

WARM_UP = 10  # sends before the clock starts: connections, prepared statements
POLL_SECONDS = 0.0005  # of the tracker's file, while a probe waits
LOST_SECONDS = 15  # a probe that no handler saw: the contender has failed


@dataclass(frozen=True)
class Producer:
    """How a contender enqueues: `send(i)` one job, committed when it returns; `many(n)` all of them in its best way."""

    send: Callable[[int], Any]
    many: Callable[[int], Any] | None = None
    many_keyed: Callable[[int], Any] | None = None


def main(contender) -> None:
    """For a contender's module: `setup(dsn)`, `producer(dsn)` (a context manager), `work(dsn)`, each plain or async."""
    dsn, command, *given = sys.argv[1:]
    if command == "work":
        _to_the_end(contender.work(dsn))
    elif command == "setup":
        _to_the_end(contender.setup(dsn))
    else:
        asyncio.run(_produce(contender, dsn, command, float(given[0])))


def tracker() -> track.Tracker:
    """Of this worker process."""
    return track.Tracker(os.environ["BENCH_TRACK"])


def _to_the_end(result) -> None:
    if inspect.iscoroutine(result):
        asyncio.run(result)


async def _produce(contender, dsn: str, command: str, amount: float) -> None:
    async with AsyncExitStack() as stack:
        opened = contender.producer(dsn)
        is_async = hasattr(opened, "__aenter__")
        producer = await stack.enter_async_context(opened) if is_async else stack.enter_context(opened)
        if command.startswith("fill"):
            await _fill(producer, command, int(amount))
        elif command == "produce":
            await _send(producer, amount)
        else:
            await _probe(producer, int(amount))


async def _fill(producer, command: str, n: int) -> None:
    act = producer.many_keyed if command == "fill_keyed" else producer.many
    begun = time.perf_counter()
    await _done(act(n))
    _say(n=n, seconds=time.perf_counter() - begun)


async def _send(producer, seconds: float) -> None:
    """One after the other; begins when the others are ready too (a line on standard input)."""
    for i in range(WARM_UP):
        await _done(producer.send(i))
    print("ready", flush=True)
    sys.stdin.readline()
    begun, n = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        result = producer.send(n)
        if result is not None and inspect.isawaitable(result):
            await result
        n += 1
    _say(n=n, seconds=time.perf_counter() - begun)


async def _probe(producer, n: int) -> None:
    """Milliseconds from the commit of an enqueue, and from its beginning, until the handler began, on an idle queue."""
    rng, path = random.Random(7), os.environ["BENCH_TRACK"]
    known = track.read(path).calls
    picked, whole = [], []
    for i in range(WARM_UP + n):
        begun = time.time()
        await _done(producer.send(i))
        sent = time.time()
        began = _begin_of_the_next(path, known + i, sent)
        if i >= WARM_UP:
            picked.append(1000 * max(0.0, began - sent))
            whole.append(1000 * (began - begun))
        await asyncio.sleep(rng.uniform(0.005, 0.04))
    _say(picked=picked, whole=whole)


def _begin_of_the_next(path: str, known: int, sent: float) -> float:
    while (count := track.read(path)).calls <= known:
        if time.time() - sent > LOST_SECONDS:
            sys.exit(f"no handler began within {LOST_SECONDS} s")
        time.sleep(POLL_SECONDS)
    return count.last_at


async def _done(result) -> None:
    if inspect.isawaitable(result):
        await result


def _say(**facts) -> None:
    print(json.dumps(facts), flush=True)


def url(dsn: str) -> str:
    """The same DSN as an address, for drivers that read nothing else."""
    parts = conninfo.conninfo_to_dict(dsn)
    place = urlencode({"host": parts["host"], "port": parts["port"]})
    return f"postgresql://{parts['user']}@/{parts['dbname']}?{place}"
