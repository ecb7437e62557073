"""Whether a full table costs a claim anything, and what a held snapshot costs: ratios of this queue to itself."""

from contextlib import contextmanager

import psycopg

from . import drain
from .amounts import Amounts, Found
from .contenders import Contender
from .stage import SQL, BenchError, Stage

KINDS = ("finished", "future", "due")  # what the table is full of


def growth(stage: Stage, contender: Contender, amounts: Amounts) -> Found:
    """The same drain in an empty table and among a million rows of each kind, which stay there from round to round."""
    with stage.fresh(contender) as dsn:
        yield _drained(stage, contender, dsn, "empty", amounts)
    for kind in KINDS:
        dsn = stage.kept(contender, kind, lambda dsn, kind=kind: _fill(stage, dsn, kind, amounts.rows))
        yield _drained(stage, contender, dsn, kind, amounts)


def held(stage: Stage, contender: Contender, amounts: Amounts) -> Found:
    """The last tenth of a drain over its first, while an old snapshot keeps every row version that dies."""
    with stage.fresh(contender) as dsn, _snapshot(dsn):
        stage.call(contender, dsn, "fill", amounts.churned)
        stage.sql(dsn, "analyze", "checkpoint")
        found = drain.run(stage, contender, dsn, amounts.churned, 1, 3 * amounts.cap_seconds)
    if found.last_over_first is None:
        raise BenchError(f"{found.jobs:,} jobs are too few to compare the first tenth with the last")
    yield "held", found.last_over_first, {"rate": round(found.rate), **found.facts()}


def _fill(stage: Stage, dsn: str, kind: str, rows: int) -> None:
    stage.sql(dsn, f"{kind}_rows", n=rows)
    stage.sql(dsn, "settle", "checkpoint")


def _drained(stage: Stage, contender: Contender, dsn: str, name: str, amounts: Amounts) -> tuple[str, float, dict]:
    stage.sql(dsn, "clear_rows")
    since = stage.last_job(dsn)
    stage.call(contender, dsn, "fill", amounts.growth_jobs)
    stage.sql(dsn, "settle", "checkpoint")
    found = drain.run(stage, contender, dsn, amounts.growth_jobs, 1, amounts.cap_seconds, since)
    return name, found.rate, found.facts()


@contextmanager
def _snapshot(dsn: str):
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(SQL.hold_snapshot)
        conn.execute(SQL.look)
        yield
