"""What is left after a campaign: each promise with the members that broke it, from the rows and from what was recorded.

    aftermath.judge(left, report) -> Report        # report.held, report.text(), report.dumps()

Three witnesses: queries on the final rows (campaign.sql), the checkers on everything that every process asked and was
told (`history`, `checks`), and a service over HTTP that knows nothing of the queue (`destination`). Not among the calls
on record are completions in a handler's own transaction: their effects, which are there or not with them, tell of them.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg

from ..sql import statements, text
from . import checks, destination, faults, history
from .history import UNKNOWN, History

SQL = statements(text("lab/campaign.sql"))
STARTING_SECONDS = 12.0  # a scheduler that was just started, on a machine with much to do
DECIDED_SECONDS = 5.0  # a slot so short before the schedules were paused may have been decided or not


@dataclass(frozen=True)
class Left:
    """What a campaign has left behind: its database, the recorded histories, the load, the service, what was done."""

    dsn: str
    folder: Path
    feed: Any
    service: destination.Service
    events: list
    began_at: datetime
    paused_at: datetime
    schedules: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """What was injected, what became of it, and each promise with the members that broke it (none, if it held)."""

    seed: int
    minutes: float
    version: str
    plan: list = field(repr=False)
    injected: dict[str, int] = field(default_factory=dict)
    drain_seconds: float = 0.0
    jobs: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    lease_losses: int = 0
    highest_epoch: int = 0
    incidents: dict[str, int] = field(default_factory=dict)
    calls: int = 0
    unknown: dict[str, int] = field(default_factory=dict)
    landed: int = 0
    clocks: dict[str, int] = field(default_factory=dict)
    slots: list = field(default_factory=list)
    doors: dict[str, dict[str, int]] = field(default_factory=dict)
    broken: dict[str, list] = field(default_factory=dict)

    @property
    def held(self) -> bool:
        return not any(self.broken.values())

    def text(self) -> str:
        """For the terminal."""
        return "\n".join(_lines(self))

    def dumps(self) -> str:
        return json.dumps(asdict(self) | {"plan": json.loads(faults.dumps(self.plan)), "held": self.held}, indent=1)


def judge(left: Left, report: Report) -> Report:
    """The report with everything that was found."""
    told = history.merge(*(history.read(path) for path in sorted(left.folder.glob("*.jsonl"))))
    with psycopg.connect(left.dsn, autocommit=True) as conn:
        found = _counted(conn)
        told = history.merge(told, history.from_database(conn, settled=True), *_expected(left))
        broken = _by_rows(conn, left) | _by_doors(left.service) | _by_checkers(told, left)
    unknown = [call for call in told.calls if call.answer == UNKNOWN]
    doors = {
        door: {"taken": len(taken), "refused": left.service.refused[door], "repeated": len(left.service.repeated(door)),
               "stale": len(left.service.stale(door))}
        for door, taken in left.service.taken.items()
    }  # fmt: skip
    counts = {"calls": len(told.calls), "unknown": dict(Counter(call.verb for call in unknown).most_common())}
    ends = {(row.id, row.finished_epoch, row.finished_by) for row in told.rows}
    # Endings without an answer that did happen: the row names the epoch as the one that did it.
    landed = sum(call.verb == "complete" and (call.job_id, call.epoch, call.owner) in ends for call in unknown)
    return replace(report, **found, **counts, landed=landed, doors=doors, broken=broken)


def _counted(conn: psycopg.Connection) -> dict[str, Any]:
    lease_losses, highest_epoch = conn.execute(SQL.leases).fetchone() or (0, 0)
    statuses = dict(conn.execute(SQL.counts).fetchall())
    cursor = conn.execute(SQL.clocks)
    clocks = dict(zip([column.name for column in cursor.description or ()], cursor.fetchone() or (), strict=True))
    return {
        "statuses": statuses, "jobs": sum(statuses.values()), "lease_losses": lease_losses, "clocks": clocks,
        "highest_epoch": highest_epoch, "incidents": dict(conn.execute(SQL.incidents).fetchall()),
        "slots": _members(conn, SQL.slots),
    }  # fmt: skip


def _by_rows(conn: psycopg.Connection, left: Left) -> dict[str, list]:
    ids = left.feed.ids
    return {
        "no acknowledged job is lost": _members(conn, SQL.lost, ids=ids),
        "no effect is applied twice": _members(conn, SQL.duplicated),
        "no completed job lacks its effect": _members(conn, SQL.missing),
        "no stale write is accepted": _members(conn, SQL.stale),
        "no job is attempted over its budget": _members(conn, SQL.over_budget),
        "every enqueue was answered in the end": list(range(len(ids), left.feed.total)),
        "every unknown is resolved: nothing is ready or running": _members(conn, SQL.open),
        "no stored instant is a worker's": _members(conn, SQL.odd_instants, began_at=left.began_at),
        "missed slots are counted as they are named": _members(conn, SQL.miscounted),
    }


def _by_doors(service: destination.Service) -> dict[str, list]:
    return {
        "over HTTP, the fence takes in nothing stale": service.stale(destination.FENCED),
        "over HTTP, fence and key take in no effect twice": service.repeated(destination.KEYED),
    }


def _by_checkers(told: History, left: Left) -> dict[str, list]:
    found = {f"checker: {name}": [] for name in checks.CHECKS}
    for violation in checks.check(told):
        found[f"checker: {violation.check}"].append(f"{violation.member}: {violation.detail}")
    away = list(_away(left.events))
    needless = [
        f"{one.schedule_id} at {one.slot:%H:%M:%S}" for one in told.missed
        if one.reason == "misfire" and not any(begin <= one.slot + timedelta(seconds=10) and one.slot <= end
                                               for begin, end in away)
    ]  # fmt: skip
    return found | {"no slot is missed while a scheduler is up": needless}


def _away(events) -> Iterator[tuple[datetime, datetime]]:
    """From when until when no scheduler was there, each start with the time it may take."""
    gone: dict[str, datetime] = {}
    for event in events:
        if not event.target.startswith("scheduler"):
            continue
        if event.kind in ("kill", "exit", "pause"):
            gone.setdefault(event.target, event.at)
        elif event.kind in ("start", "restart", "resume") and event.target in gone:
            if len(gone) == 2:
                yield max(gone.values()), event.at + timedelta(seconds=STARTING_SECONDS)
            del gone[event.target]


def _expected(left: Left) -> list[History]:
    until = left.paused_at - timedelta(seconds=DECIDED_SECONDS)
    since = left.began_at + timedelta(seconds=1)  # the schedules were put within it
    return [history.slots_expected(id, "* * * * *", after=since, until=until) for id in left.schedules]


def _members(conn: psycopg.Connection, statement: str, **asked) -> list:
    rows = conn.execute(statement, asked or None).fetchall()
    return [row[0] if len(row) == 1 else list(row) for row in rows]


def _lines(report: Report) -> Iterator[str]:
    yield f"campaign: seed {report.seed}, {report.minutes:g} minutes, PostgreSQL {report.version}"
    yield "injected   " + _list({kind: report.injected[kind] for kind in sorted(report.injected)})
    yield f"jobs       {report.jobs} enqueued; {_list(report.statuses)}"
    yield f"leases     {report.lease_losses} lost, highest epoch {report.highest_epoch}"
    yield f"incidents  {_list(report.incidents)}"
    unknown = sum(report.unknown.values())
    yield f"calls      {report.calls} on record (completions beside an effect are not)"
    yield f"           {unknown} without an answer: {_list(report.unknown)}"
    if "complete" in report.unknown:
        yield f"           {report.landed} of the {report.unknown['complete']} completions had landed all the same"
    clocks = report.clocks
    yield (
        f"clocks     {clocks['by_a_wrong_clock']} of {clocks['effects']} effects by a worker whose clock was wrong, "
        f"from {clocks['furthest_behind_seconds']} to +{clocks['furthest_ahead_seconds']} s"
    )
    for id, misfire, overlap, jobs, _, misfires, overlaps in report.slots:
        yield (
            f"slots      {id} (misfire {misfire}, overlap {overlap}): {jobs} jobs, "
            f"{misfires} missed as misfires, {overlaps} for an overlap"
        )
    for door, counts in report.doors.items():
        yield f"HTTP       {door}: {_list(counts)}"
    yield f"drained    {report.drain_seconds:.1f} s after the last second"
    for promise, members in report.broken.items():
        yield f"  {'BROKEN' if members else 'held  '} {promise}" + (f": {members[:10]}" if members else "")


def _list(counts: dict[str, int]) -> str:
    return ", ".join(f"{n} {what}" for what, n in counts.items()) or "none"
