"""Measures of a queue, read in one statement from the database's clock."""

from collections import defaultdict
from dataclasses import dataclass

import psycopg
from psycopg.rows import dict_row

from .queue import translated
from .sql import SQL


@dataclass(frozen=True)
class Depth:
    """Ready jobs: due now, and due in the future."""

    due: int
    future: int


@dataclass(frozen=True)
class Snapshot:
    """The queue at one instant; ages in seconds, counts by type where they are dicts (0 for others)."""

    at: object
    depth: Depth
    ready: int
    retrying: int
    running: dict[str, int]
    dead: dict[str, int]
    oldest_ready_age_seconds: dict[str, float]
    done_per_minute: int
    missed_slots: int


def snapshot(conn: psycopg.Connection) -> Snapshot:
    """One consistent look; raises InfrastructureError or JobQueueError as the queue does."""
    with translated(conn), conn.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(SQL.snapshot).fetchone()
    depth = Depth(row.pop("due"), row.pop("future"))
    counts = {name: defaultdict(int, row.pop(name)) for name in ("running", "dead")}
    ages = defaultdict(float, row.pop("oldest_ready_age_seconds"))
    return Snapshot(depth=depth, oldest_ready_age_seconds=ages, **counts, **row)
