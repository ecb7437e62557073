"""pgqueuer: asyncpg and uvloop, its fastest driver."""

import sys
from contextlib import asynccontextmanager

from .. import role
from . import PYTHON, Facts

BATCH = 200
FACTS = Facts(
    package="pgqueuer",
    kind=PYTHON,
    settings=f"asyncpg, uvloop, run(batch_size={BATCH}), LISTEN/NOTIFY; enqueue() of one, and of lists in one call",
    back_after="30 s",
    redelivery="heartbeat_timeout",
    tells="buffered, flushed in batches",
)
PAYLOAD = b'{"n":1}'


@asynccontextmanager
async def _queries(dsn: str):
    import asyncpg
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.queries import Queries

    conn = await asyncpg.connect(role.url(dsn))
    yield Queries(AsyncpgDriver(conn))
    await conn.close()


async def setup(dsn: str) -> None:
    async with _queries(dsn) as queries:
        await queries.install()


@asynccontextmanager
async def producer(dsn: str):
    async with _queries(dsn) as queries:
        yield role.Producer(
            send=lambda i: queries.enqueue("noop", PAYLOAD, 0),
            many=lambda n: queries.enqueue(["noop"] * n, [PAYLOAD] * n, [0] * n),
        )


def work(dsn: str) -> None:
    import uvloop

    uvloop.run(_work(dsn))


async def _work(dsn: str) -> None:
    import asyncpg
    from pgqueuer import PgQueuer
    from pgqueuer.db import AsyncpgDriver

    tracker = role.tracker()
    own = PgQueuer(AsyncpgDriver(await asyncpg.connect(role.url(dsn))))

    @own.entrypoint("noop")
    async def noop(job) -> None:
        tracker.hit()

    await own.run(batch_size=BATCH)


if __name__ == "__main__":
    role.main(sys.modules[__name__])
