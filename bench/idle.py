"""What an idle worker costs: its statements a second, counted by the server, and the pick-up latency that they buy."""

import time

import psycopg

from .amounts import Amounts, Found, quantile
from .contenders import Contender
from .stage import SQL, BenchError, Stage

CALM_SECONDS = 5  # until it has connected, looked and begun to wait
PROBES = 50


def idle(stage: Stage, contender: Contender, amounts: Amounts) -> Found:
    """On a server of its own that counts statements, which costs speed."""
    with (
        Stage({"shared_preload_libraries": "pg_stat_statements"}) as counting,
        counting.fresh(contender) as dsn,
        counting.workers(contender, dsn, 1, at_once=True) as hands,
        psycopg.connect(counting.server.dsn, autocommit=True) as conn,
    ):
        time.sleep(min(CALM_SECONDS, amounts.idle_seconds))
        calls, seconds = _counted(conn, dsn, amounts.idle_seconds)
        if not counting.alive(hands):
            raise BenchError(f"the idle worker has ended. {counting.words(hands)}")
        picked = counting.call(contender, dsn, "probe", PROBES, tracker=hands[0].tracker)["picked"]
    latency = {"pickup_p50_ms": round(quantile(picked, 0.5), 2), "pickup_p99_ms": round(quantile(picked, 0.99), 2)}
    yield "idle_queries", calls / seconds, {"seconds": round(seconds, 1), **latency}


def _counted(conn: psycopg.Connection, dsn: str, seconds: float) -> tuple[int, float]:
    name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    conn.execute(SQL.count_statements)
    before, began = conn.execute(SQL.statements_counted, {"name": name}).fetchone()[0], time.monotonic()
    time.sleep(seconds)
    after = conn.execute(SQL.statements_counted, {"name": name}).fetchone()[0]
    return after - before, time.monotonic() - began
