"""chancy: the asyncio executor, polling eagerly."""

import logging
import sys
from contextlib import asynccontextmanager

from .. import role
from . import PYTHON, Facts

CONCURRENCY = 2_000
FACTS = Facts(
    package="chancy",
    kind=PYTHON,
    settings=f"Executor.Async, concurrency={CONCURRENCY}, eager_polling, notifications; push(), push_many(5,000)",
    back_after="over 60 s",
    redelivery="its recovery plugin looks every 60 s for workers without a heartbeat",
    tells="about once a second, in batches",
    most=10_000,
)
TRACKER = None


async def noop(*, n: int) -> None:
    TRACKER.hit()


def _chancy(dsn: str):
    from chancy import Chancy

    quiet = logging.getLogger("chancy")
    quiet.setLevel(logging.ERROR)
    return Chancy(dsn, log=quiet)


def _queue():
    from chancy import Chancy, Queue

    executor = Chancy.Executor.Async
    return Queue("bench", concurrency=CONCURRENCY, executor=executor, polling_interval=1, eager_polling=True)


def _job(i: int):
    from chancy import Job

    return Job(func="bench.contenders.chancy.noop", kwargs={"n": i}, queue="bench", max_attempts=1)


async def setup(dsn: str) -> None:
    async with _chancy(dsn) as own:
        await own.migrate()
        await own.declare(_queue(), upsert=True)


@asynccontextmanager
async def producer(dsn: str):
    async with _chancy(dsn) as own:
        with _chancy(dsn) as plain:

            async def many(n: int) -> None:
                async for _ in own.push_many((_job(i) for i in range(n)), batch_size=5_000):
                    pass

            yield role.Producer(send=lambda i: _nothing(plain.sync_push(_job(i))), many=many)


def _nothing(_) -> None:
    """A reference is no result that anybody should wait for."""


async def work(dsn: str) -> None:
    from chancy import Worker

    from . import chancy as imported  # the module that the worker will import: this one is __main__

    imported.TRACKER = role.tracker()
    async with _chancy(dsn) as own, Worker(own) as worker:
        await worker.wait_for_shutdown()


if __name__ == "__main__":
    role.main(sys.modules[__name__])
