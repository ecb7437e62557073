"""Not a queue: the floor's own row, inserted through psycopg, the driver that this queue uses. What is left to gain."""

import sys
from contextlib import contextmanager

import psycopg

from .. import floor, role
from . import DRIVER, Facts

FACTS = Facts(
    package="psycopg",
    kind=DRIVER,
    settings="a cursor's execute of the floor's insert, prepared, on an autocommit connection",
    back_after="never",
    redelivery="no queue",
    tells="in its own transaction",
)


def setup(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(floor.SQL.schema)


@contextmanager
def producer(dsn: str):
    with psycopg.connect(dsn, autocommit=True) as conn:
        cursor = conn.cursor()
        yield role.Producer(send=lambda i: cursor.execute(floor.SQL.insert_payload, (f'{{"n":{i}}}',)))


if __name__ == "__main__":
    role.main(sys.modules[__name__])
