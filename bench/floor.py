"""The floor, measured in the same rounds: pgbench and COPY on the least schema that could be a queue."""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
from psycopg import conninfo

from jobqueue.lab import database
from jobqueue.sql import statements

from .amounts import BULK
from .stage import BenchError, Stage

SQL = statements((Path(__file__).with_name("floor.sql")).read_text(encoding="utf-8"))
BATCH = 200  # in floor.sql
FILL = 120_000  # more than is drained in a measurement; checked


def drain(stage: Stage, clients: int, seconds: int, fill: int = FILL) -> float:
    """Jobs a second: one transaction claims 200, the next completes them."""
    with _table(stage, fill) as dsn:
        return BATCH * _pgbench(stage, dsn, "drain", clients, seconds, fill)


def enqueue(stage: Stage, clients: int, seconds: int) -> float:
    """Single inserts a second, each its own transaction."""
    with _table(stage, 0) as dsn:
        return _pgbench(stage, dsn, "insert", clients, seconds)


def bulk(stage: Stage, n: int = BULK) -> float:
    """Rows a second through one COPY."""
    with _table(stage, 0) as dsn, psycopg.connect(dsn) as conn:
        begun = time.perf_counter()
        with conn.cursor().copy(SQL.copy) as copy:
            for i in range(n):
                copy.write_row((f'{{"n":{i}}}',))
        conn.commit()
        return n / (time.perf_counter() - begun)


@contextmanager
def _table(stage: Stage, fill: int) -> Iterator[str]:
    with database.scratch(stage.server.dsn) as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(SQL.schema)
            if fill:
                conn.execute(SQL.fill, {"n": fill})
        stage.sql(dsn, "settle", "checkpoint")
        yield dsn


def _pgbench(stage: Stage, dsn: str, script: str, clients: int, seconds: int, fill: int = 0) -> float:
    """Passes a second."""
    parts = conninfo.conninfo_to_dict(dsn)
    place = ["-h", parts["host"], "-p", parts["port"], "-U", parts["user"]]
    how = ["-n", "-M", "prepared", "-c", str(clients), "-j", str(min(clients, 2)), "-T", str(seconds)]
    done = subprocess.run(
        [_program(stage), *how, *place, "-f", "/dev/stdin", parts["dbname"]],
        input=getattr(SQL, script) + ";\n",
        capture_output=True,
        text=True,
    )
    found = re.search(r"tps = ([\d.]+)", done.stdout)
    if not found or "ERROR" in done.stderr:
        raise BenchError(f"pgfloor {script}: {done.stderr.strip()[-400:]}")
    if fill and not _left_over(dsn):
        raise BenchError(f"pgfloor {script}: the table of {fill:,} rows ran empty within {seconds} s")
    return float(found[1])


def _left_over(dsn: str) -> int:
    with psycopg.connect(dsn, autocommit=True) as conn:
        return conn.execute(SQL.left_over).fetchone()[0]


def _program(stage: Stage) -> str:
    """pgbench of the PostgreSQL in use."""
    found = Path(psutil.Process(stage.server.pid).exe()).with_name("pgbench")
    if not os.access(found, os.X_OK):
        raise BenchError(f"pgfloor: there is no pgbench beside the server in use ({found.parent})")
    return str(found)
