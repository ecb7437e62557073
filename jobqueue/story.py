"""Tells one row's whole story in plain sentences (Queue.explain), for somebody who is on call at night."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from .model import Job, is_result

_EVENTS = {
    "failed": "an attempt failed",
    "failed_permanently": "its handler said never to retry it",
    "released": "it was given back, its attempt not counted",
    "lost": "its lease was lost, no end was reported in time",
    "cancelled": "it was cancelled by hand",
    "redriven": "it was redriven by hand, with all its attempts",
    "fenced": "its epoch was raised after a fail-over or a restore",
}
_MOST_RELEASES = 20  # a worker fails the job at the next one
MANY = 1_000  # rows are counted no further


class Surroundings(Protocol):
    """The row of the statement `surroundings`."""

    now: datetime
    paused_at: datetime | None
    ahead: int
    running: int
    listeners: int
    holders: Sequence[dict[str, Any]] | None
    schedule: dict[str, Any] | None


def tell(job: Job, around: Surroundings) -> str:
    """Sentences: what it is, what it waits for or who holds it, what went wrong when, and what can be done.

    around: from the same moment.
    """
    lines = [
        _birth(job, around),
        *_STATES.get(job.status, _finished)(job, around),
        *_holders(job, around),
        *_result(job),
    ]
    lines += [*_past(job), _advice(job, around)]
    return "\n".join(line for line in lines if line)


# ---------------------------------------------------------------- what it is and what it waits for


def _birth(job: Job, around: Surroundings) -> str:
    key = f" under the key {job.idempotency_key!r}" if job.idempotency_key else ""
    born = f"Job {job.id} of type {job.type!r} was enqueued at {_at(job.created_at)}{key}"
    if not job.schedule_id:
        return f"{born}."
    return f"{born} for the slot {_at(job.slot)} of the schedule {job.schedule_id!r}{_schedule(around.schedule)}."


def _schedule(schedule: dict[str, Any] | None) -> str:
    if schedule is None:
        return ", of which nothing is left here"
    if schedule["removed_at"]:
        return ", which has been removed"
    if schedule["problem"]:
        return f", which fires no more: {schedule['problem']}"
    if schedule["paused"]:
        return ", which is paused"
    return f", whose next slot is {schedule['next_run_at']}"


def _ready(job: Job, around: Surroundings) -> list[str]:
    wait = (job.run_at - around.now).total_seconds()
    if wait > 0:
        lines = [f"It is ready and due in {_span(wait)}, at {_at(job.run_at)}{_delay(job)}; {_used(job)}."]
    else:
        lines = [f"It is ready and has been due for {_span(-wait)}, since {_at(job.run_at)}; {_used(job)}."]
    if around.paused_at:
        return [
            *lines,
            f"Its type {job.type!r} is paused since {_at(around.paused_at)}: nothing claims it until it is resumed.",
        ]
    return lines if wait > 0 else [*lines, *_queueing(job, around)]


def _delay(job: Job) -> str:
    because = {
        "failed": "the backoff after its last failure",
        "lost": "the backoff after its lost lease",
        "released": "the delay of its release",
    }
    event = job.history[-1]["event"] if job.history else None
    return f" ({because[event]})" if event in because else ""


def _queueing(job: Job, around: Surroundings) -> list[str]:
    lines = []
    if around.ahead:
        lines.append(f"{_count(around.ahead)} due before it.")
    if around.running:
        lines.append(f"{_count(around.running)} running, so there are workers that handle it.")
    elif around.listeners:
        who = "An idle worker waits" if around.listeners == 1 else f"{around.listeners} idle workers wait"
        lines.append(f"{who} for its type: the next poll should claim it.")
    else:
        sign = f"There is no sign of a worker that handles {job.type!r}: none runs such a job, no idle one waits for it"
        lines.append(f"{sign}. Is one up, with a handler for this type?")
    return lines


def _running(job: Job, around: Surroundings) -> list[str]:
    assert job.locked_until is not None and job.started_at is not None
    left = (job.locked_until - around.now).total_seconds()
    held = _span((around.now - job.started_at).total_seconds())
    held = f"It is running: {job.locked_by!r} has held epoch {job.epoch} for {held}, since {_at(job.started_at)}"
    if left > 0:
        return [f"{held}, and its lease ends in {_span(left)} unless it is renewed; {_used(job)}."]
    ended = f"{held}, but its lease ended {_span(-left)} ago; {_used(job)}."
    return [f"{ended} The next reaper takes it away, unless its owner renews or ends it first."]


def _finished(job: Job, around: Surroundings) -> list[str]:
    assert job.finished_at is not None
    ago = _span((around.now - job.finished_at).total_seconds())
    lines = [f"It is {job.status} since {_at(job.finished_at)}, {ago} ago; {_used(job)}."]
    if job.status == "done" and job.started_at:
        took = _span((job.finished_at - job.started_at).total_seconds())
        lines.append(f"It was completed by {job.finished_by!r} in epoch {job.finished_epoch}, {took} after that claim.")
    return [*lines, "Its row is in the archive."] if job.archived else lines


_STATES: dict[str, Callable[[Job, Surroundings], list[str]]] = {"ready": _ready, "running": _running}


def _holders(job: Job, around: Surroundings) -> list[str]:
    skip = "every reaper skips it" if job.status == "running" else "nothing else can change it"
    locked = "Its row is locked by the transaction of"
    return [f"{locked} {_session(one)}: until that ends {skip}." for one in around.holders or ()]


def _session(one: dict[str, Any]) -> str:
    what = f"{one['application_name'] or 'unnamed'}, {one['state'] or 'state unknown'}"
    return f"pid {one['pid']} ({what}, since {one['xact_start'] or 'unknown'})"


# ---------------------------------------------------------------- what has happened


def _result(job: Job) -> list[str]:
    if job.published_name is None:
        return []
    by = f"{job.published_by!r} in epoch {job.published_epoch}"
    if not is_result(job):
        earlier = f"An earlier execution, {by}, had published {job.published_name!r}"
        return [f"{earlier}; since then another epoch has begun, and that is not its result."]
    lines = [f"Published as {job.published_name!r} by {by}, sha256 {job.published_digest}."]
    return [*lines, f"Is that file there, and unaltered? python -m jobqueue explain {job.id} --artifacts DIR"]


def _past(job: Job) -> list[str]:
    lines = [f"Of its attempts, {job.lease_losses} ended with a lost lease."] if job.lease_losses else []
    if job.releases and job.finished_at is None:
        times = "once" if job.releases == 1 else f"{job.releases} times in a row"
        lines.append(f"Its handler has given it back {times}; after {_MOST_RELEASES} in a row a further one fails it.")
    if job.history or job.history_trimmed:
        lines.append("What happened to it:")
    if job.history_trimmed:
        lines.append(f"  ({job.history_trimmed} older entries were trimmed)")
    lines += [_entry(entry) for entry in job.history]
    error = job.last_error and job.last_error.strip()
    return [*lines, f"The last error: {error.splitlines()[-1][:300]}"] if error else lines


def _entry(entry: dict[str, Any]) -> str:
    who = f"epoch {entry['epoch']}, {entry['owner']!r}: " if entry.get("owner") else ""
    lines = (entry.get("error") or "").strip().splitlines()
    at = entry["at"].replace("T", " ").replace("Z", " UTC")
    return f"  {at}  {who}{_EVENTS.get(entry['event'], entry['event'])}" + (f": {lines[-1][:200]}" if lines else "")


# ---------------------------------------------------------------- what can be done


def _advice(job: Job, around: Surroundings) -> str:
    if job.status in ("dead", "failed"):
        why = "its attempts are used up" if job.status == "dead" else "its handler said never to retry it"
        todo = f"mend the cause, then: python -m jobqueue redrive {job.id}"
        return f"It is a dead letter because {why}; {_enqueue_again if job.archived else todo}"
    if job.status == "cancelled":
        todo = _enqueue_again if job.archived else f"python -m jobqueue redrive {job.id} --cancelled"
        return f"To run it after all: {todo}"
    if job.status == "done":
        return ""
    if job.status == "ready" and around.paused_at:
        return f"To let it run: python -m jobqueue resume {job.type}. To stop it: python -m jobqueue cancel {job.id}"
    if around.holders:
        return f"To end the transaction that holds it: select pg_terminate_backend({around.holders[0]['pid']})"
    if job.status == "running" and job.locked_until and job.locked_until <= around.now:
        reaper = "If it stays so, no reaper is up: python -m jobqueue reaper"
        return f"{reaper}. To stop the job: python -m jobqueue cancel {job.id}"
    return f"To stop it: python -m jobqueue cancel {job.id}"


_enqueue_again = "enqueue it again, under another key, since an archived row never runs"


# ---------------------------------------------------------------- words for times and counts


def _at(instant: datetime | None) -> str:
    return "?" if instant is None else instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


def _span(seconds: float) -> str:
    """Two units at most: 0.4 s, 3 min 20 s, 2 d 4 h."""
    if seconds < 60:
        return f"{max(seconds, 0):.1f} s"
    for size, unit, part_size, part in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            whole, rest = divmod(int(seconds), size)
            return f"{whole} {unit}" + (f" {rest // part_size} {part}" if rest // part_size else "")
    raise AssertionError(seconds)


def _used(job: Job) -> str:
    return f"{job.attempts} of {job.max_attempts} attempts are used"


def _count(n: int) -> str:
    if n == 1:
        return "1 job of its type is"
    return f"{MANY} jobs or more of its type are" if n >= MANY else f"{n} jobs of its type are"
