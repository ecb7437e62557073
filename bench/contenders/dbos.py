"""dbos: a registered queue of durable workflows."""

import os
import sys
import threading
from contextlib import contextmanager

from .. import role
from . import PYTHON, Facts

CONCURRENCY, POLL_SECONDS = 100, 0.05
FACTS = Facts(
    package="dbos",
    kind=PYTHON,
    settings=f"worker_concurrency={CONCURRENCY}, polling_interval_sec={POLL_SECONDS}; DBOSClient.enqueue(), "
    "enqueue_in_transaction() in a loop",
    back_after="a restart",
    redelivery="when an executor of the same id starts again",
    tells="one by one",
    most=3_000,
)
OPTIONS = {"queue_name": "bench", "workflow_name": "noop", "app_version": "1"}


def _launch(dsn: str, noop, **config) -> None:
    from dbos import DBOS

    own = {"name": "bench", "system_database_url": role.url(dsn), "run_admin_server": False, "application_version": "1"}
    DBOS(config={**own, **config})
    DBOS.workflow(name="noop")(noop)
    DBOS.launch()
    DBOS.register_queue("bench", worker_concurrency=CONCURRENCY, polling_interval_sec=POLL_SECONDS)


def setup(dsn: str) -> None:
    from dbos import DBOS

    _launch(dsn, lambda n: None)
    DBOS.destroy()


@contextmanager
def producer(dsn: str):
    import sqlalchemy
    from dbos import DBOSClient

    url = role.url(dsn)
    client = DBOSClient(system_database_url=url)
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))

    def many(n: int) -> None:
        with engine.begin() as conn:
            for i in range(n):
                client.enqueue_in_transaction(conn, dict(OPTIONS), i)

    yield role.Producer(send=lambda i: _nothing(client.enqueue(dict(OPTIONS), i)), many=many)


def _nothing(_) -> None:
    """A handle is no result that anybody should wait for."""


def work(dsn: str) -> None:
    tracker = role.tracker()
    _launch(dsn, lambda n: tracker.hit(), executor_id=str(os.getpid()))
    threading.Event().wait()


if __name__ == "__main__":
    role.main(sys.modules[__name__])
