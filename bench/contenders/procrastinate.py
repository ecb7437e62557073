"""procrastinate: its asynchronous worker on psycopg."""

import sys
from contextlib import contextmanager

from .. import role
from . import PYTHON, Facts

CONCURRENCY = 10
FACTS = Facts(
    package="procrastinate",
    kind=PYTHON,
    settings=f"run_worker_async(concurrency={CONCURRENCY}), LISTEN/NOTIFY; defer(), batch_defer() in one call",
    back_after="never by itself",
    redelivery="a periodic job of the user's has to look for stalled ones",
    tells="one by one",
    most=4_000,
)


def _app(connector: str, dsn: str):
    import procrastinate

    return procrastinate.App(connector=getattr(procrastinate, connector)(conninfo=dsn))


def setup(dsn: str) -> None:
    app = _app("SyncPsycopgConnector", dsn)
    with app.open():
        app.schema_manager.apply_schema()


@contextmanager
def producer(dsn: str):
    app = _app("SyncPsycopgConnector", dsn)
    noop = app.task(name="noop")(lambda n: None)
    with app.open():
        yield role.Producer(
            send=lambda i: noop.defer(n=i), many=lambda n: noop.batch_defer(*({"n": i} for i in range(n)))
        )


async def work(dsn: str) -> None:
    tracker, app = role.tracker(), _app("PsycopgConnector", dsn)

    @app.task(name="noop")
    async def noop(n: int) -> None:
        tracker.hit()

    async with app.open_async():
        await app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False)


if __name__ == "__main__":
    role.main(sys.modules[__name__])
