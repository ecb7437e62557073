"""What a conditional transition did, decided from the row alone: the table of DESIGN §3 as one pure function."""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final, Literal


class Outcome(Enum):
    """Zero rows updated is neither failure nor success; this says which."""

    APPLIED = "applied"  # this call did it
    ALREADY_APPLIED = "already applied"  # an earlier call of the same lease did it: safe to go on
    LEASE_EXPIRED = "lease expired"  # still mine, but too late for a verb that needs a lease in force
    LOST = "lost"  # the lease was taken away, or a later epoch holds the job
    CANCELLED = "cancelled"  # somebody decided against the job
    CONFLICT = "conflict"  # this lease has already ended otherwise: a bug of the caller, or a race with itself
    UNKNOWN_JOB = "unknown job"  # neither live nor archived
    HELD = "held"  # nothing happened yet and the lease is still mine: send it again


@dataclass(frozen=True)
class Sight:
    """One row as the look saw it (live or archived)."""

    status: str
    epoch: int
    locked_by: str | None
    locked_until: datetime | None
    now: datetime
    finished_by: str | None
    finished_epoch: int | None
    published_by: str | None
    published_epoch: int | None
    published_name: str | None
    published_digest: str | None
    history: list[dict[str, Any]]
    snapshot_isolation: bool


# The end that each verb writes; meeting it again means that an earlier send of the same call was applied.
_OWN_END = {"complete": "done", "fail": "failed", "fail permanently": "failed_permanently", "release": "released"}
_NEEDS_LEASE_IN_FORCE = ("publish", "strict complete")
# The row is still this lease's: the statement lost a race with something that has gone; send it again.
AGAIN: Final = None
STALE: Final = "stale"  # the look saw a row older than the lease: not an Outcome
Decision = Outcome | Literal["stale"] | None
Candidate = tuple[str, str]  # name, digest


def decide(verb: str, owner: str, epoch: int, row: Sight | None, candidate: Candidate | None = None) -> Decision:
    """An Outcome, AGAIN or STALE for `verb` by the lease (owner, epoch) whose UPDATE matched no row.

    verb: complete, strict complete, fail, fail permanently, release, heartbeat, publish.
    candidate: for publish. The first rule that holds decides; a history trimmed to nothing gives LOST.
    """
    me = (owner, epoch)
    if row is None:
        return Outcome.UNKNOWN_JOB
    if verb == "publish" and (row.published_by, row.published_epoch) == me:
        same = (row.published_name, row.published_digest) == candidate
        return Outcome.ALREADY_APPLIED if same else Outcome.CONFLICT
    end = _end_of(me, row)
    if end is not None:
        return _by_end(verb, epoch, row, end)
    if row.status == "running" and (row.locked_by, row.epoch) == me:
        expired = row.locked_until is not None and row.locked_until <= row.now
        return Outcome.LEASE_EXPIRED if expired and verb in _NEEDS_LEASE_IN_FORCE else AGAIN
    if row.epoch < epoch and row.snapshot_isolation:
        return STALE
    return Outcome.LOST


def _end_of(me: tuple[str, int], row: Sight) -> str | None:
    if row.status == "done" and (row.finished_by, row.finished_epoch) == me:
        return "done"
    mine = (entry["event"] for entry in reversed(row.history) if (entry.get("owner"), entry.get("epoch")) == me)
    return next(mine, None)


def _by_end(verb: str, epoch: int, row: Sight, end: str) -> Outcome:
    if end == "cancelled":
        return Outcome.CANCELLED
    if end == "lost":
        return Outcome.CANCELLED if row.status == "cancelled" and row.epoch == epoch else Outcome.LOST
    return Outcome.ALREADY_APPLIED if _OWN_END.get(verb.removeprefix("strict ")) == end else Outcome.CONFLICT
