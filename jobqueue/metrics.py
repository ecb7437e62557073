"""Measures of a queue: a quick look for a dashboard, views for a report, lines for Prometheus, thresholds to check."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from .errors import JobQueueError
from .sql import SQL
from .transactions import translated

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily

VIEWS = (
    "oldest_ready_age", "depth", "running_by_type", "attempts_distribution", "lease_expirations_per_hour",
    "dead_letters", "missed_slots", "throughput", "wait_quantiles", "service_quantiles", "incidents",
    "expired_but_locked", "lock_waits", "horizon",
)  # fmt: skip


@dataclass(frozen=True)
class Depth:
    """Ready jobs: due now, and due in the future."""

    due: int
    future: int


@dataclass(frozen=True)
class Quantiles:
    """Seconds, of the jobs that were done within the last minute; 0 where there were none."""

    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    max: float = 0.0


@dataclass(frozen=True)
class Snapshot:
    """The queue at one instant; ages in seconds, counts by type where they are dicts (0 for others).

    attempts: jobs by attempts used, of those that wait for a retry, run, are dead letters or were done within the last
    minute. wait: from run_at to the last claim; service: from there to the end (both, and attempts, of every nth job
    where more than 20,000 were done within the minute). incidents: of the last hour, by name.
    oldest_snapshot_age: in transactions; like dead_tuples it says how far vacuum is behind.
    """

    at: datetime
    depth: Depth
    ready: int
    retrying: int
    running: dict[str, int]
    dead: dict[str, int]
    oldest_ready_age_seconds: dict[str, float]
    done_per_minute: int
    missed_slots: int
    broken_schedules: int
    attempts: dict[int, int]
    wait: Quantiles
    service: Quantiles
    incidents: dict[str, int]
    lease_expirations_per_hour: int
    expired: int
    expired_but_locked: int
    lock_waits: int
    oldest_transaction_seconds: float
    oldest_snapshot_age: int
    dead_tuples: int
    live_tuples: int
    vacuumed_at: datetime | None


def snapshot(conn: psycopg.Connection[Any]) -> Snapshot:
    """One consistent look, good for four a second; raises InfrastructureError or JobQueueError as the queue does."""
    with translated(conn), conn.cursor(row_factory=dict_row) as cursor:
        [row] = cursor.execute(SQL.snapshot).fetchall()
    row["depth"] = Depth(row.pop("due"), row.pop("future"))
    row |= {name: Quantiles(*row[name] or ()) for name in ("wait", "service")}
    row |= {name: defaultdict(int, row[name]) for name in ("running", "dead", "incidents")}
    row["oldest_ready_age_seconds"] = defaultdict(float, row["oldest_ready_age_seconds"])
    row["attempts"] = {
        int(attempts): n for attempts, n in sorted(row["attempts"].items(), key=lambda item: int(item[0]))
    }
    return Snapshot(lease_expirations_per_hour=row["incidents"].get("lease_lost", 0), **row)


def report(conn: psycopg.Connection[Any]) -> dict[str, list[dict[str, Any]]]:
    """All views (see VIEWS and views.sql), name → rows, in one transaction; reads the last hour's done jobs."""
    with translated(conn), conn.transaction(), conn.cursor(row_factory=dict_row) as cursor:
        return {name: cursor.execute(sql.SQL(SQL.view).format(view=sql.Identifier(name))).fetchall() for name in VIEWS}


def breaches(found: Snapshot, *, max_dead: int = 0, max_age_seconds: float = 300, max_missed: int = 0) -> list[str]:
    """A sentence for each threshold that is passed (dead letters, age of the oldest, missed slots), other trouble."""
    dead = sum(found.dead.values())
    said = [f"{dead} dead letters, {max_dead} allowed: {_by_type(found.dead)}"] if dead > max_dead else []
    for type, age in sorted(found.oldest_ready_age_seconds.items()):
        if not age <= max_age_seconds:  # nor is nan a threshold that nothing passes
            said.append(f"the oldest due job of type {type!r} has waited {age:.0f} s, {max_age_seconds:g} s allowed")
    if found.missed_slots > max_missed:
        said.append(f"{found.missed_slots} slots of schedules were missed, {max_missed} allowed")
    if found.broken_schedules:
        said.append(f"{found.broken_schedules} schedules are broken and fire no more: python -m jobqueue schedule list")
    return said


def _by_type(counts: dict[str, int]) -> str:
    return ", ".join(f"{type} {n}" for type, n in sorted(counts.items()))


# ---------------------------------------------------------------- OpenMetrics


def openmetrics(conn: psycopg.Connection[Any]) -> str:
    """The measures as OpenMetrics text; needs prometheus_client (pip install "jobqueue[openmetrics]")."""
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.openmetrics.exposition import generate_latest
    except ImportError:
        raise JobQueueError('--openmetrics needs prometheus_client: pip install "jobqueue[openmetrics]"') from None
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(list(_families(snapshot(conn), report(conn)))))
    exposition: bytes = generate_latest(registry)
    return exposition.decode()


@dataclass(eq=False)  # hashable by identity, as a registry wants it
class _Collected:
    families: "list[GaugeMetricFamily]"

    def collect(self) -> "list[GaugeMetricFamily]":
        return self.families


def _families(found: Snapshot, views: dict[str, list[dict[str, Any]]]) -> "Iterator[GaugeMetricFamily]":
    for name, text, view, labels, value in _LABELLED:
        yield _gauge(name, text, labels, [([str(row[label]) for label in labels], row[value]) for row in views[view]])
    for name, text in _PLAIN.items():
        yield _gauge(name, text, (), [((), getattr(found, name))])
    for name in ("wait", "service"):
        rows = [((quantile,), getattr(getattr(found, name), field)) for quantile, field in _QUANTILES.items()]
        yield _gauge(f"{name}_seconds", f"{name} of the jobs done within the last minute", ("quantile",), rows)


def _gauge(
    name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], float | None]]
) -> "GaugeMetricFamily":
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(f"jobqueue_{name}", text, labels=labels)
    totals: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for values, value in rows:
        totals[tuple(values)] += float(value or 0)
    for values, total in totals.items():
        family.add_metric(values, total)
    return family


_LABELLED = (  # name, help, view, labels (rows that share them are added up), column
    ("due_jobs", "ready jobs that are due", "depth", ("type",), "due"),
    ("future_jobs", "ready jobs that are due later", "depth", ("type",), "future"),
    ("oldest_ready_age_seconds", "since when the oldest due job waits", "oldest_ready_age", ("type",), "age_seconds"),
    ("running_jobs", "jobs under a lease", "running_by_type", ("type",), "running"),
    ("expired_leases", "leases that ended and were not taken away yet", "running_by_type", ("type",), "expired"),
    ("dead_letters", "jobs that are dead or failed", "dead_letters", ("type", "status"), "jobs"),
    ("attempts_jobs", "jobs by attempts used", "attempts_distribution", ("type", "attempts"), "jobs"),
    (
        "missed_slots",
        "slots that did not run, since the schedule began",
        "missed_slots",
        ("schedule_id",),
        "missed_slots",
    ),
    ("incidents_last_hour", "lost leases, refused writes, empty claims", "incidents", ("name", "type"), "last_hour"),
)
_PLAIN = {
    "done_per_minute": "jobs done within the last minute",
    "expired_but_locked": "ended leases whose row another transaction holds: no reaper can take them",
    "lock_waits": "sessions that wait for a lock",
    "broken_schedules": "schedules that fire no more because their row can't be read",
    "oldest_transaction_seconds": "age of the oldest transaction",
    "oldest_snapshot_age": "transactions since the oldest snapshot that vacuum must respect",
    "dead_tuples": "dead rows of the job table",
}
_QUANTILES = {"0.5": "p50", "0.9": "p90", "0.99": "p99", "1": "max"}
