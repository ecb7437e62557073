"""Tells one row's whole story in plain sentences (Queue.explain)."""

from datetime import datetime, timezone

from .model import Job


def tell(job: Job, now: datetime, *, paused: bool) -> str:
    """Sentences: what it is, what it waits for or who holds it, what went wrong when, and what can be done."""
    lines = [_birth(job), _state(job, now, paused), *_past(job), _advice(job)]
    return "\n".join(line for line in lines if line)


def _at(instant: datetime | None) -> str:
    return "?" if instant is None else instant.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


def _birth(job: Job) -> str:
    key = f" under the key {job.idempotency_key!r}" if job.idempotency_key else ""
    slot = f" for the slot {_at(job.slot)} of the schedule {job.schedule_id!r}" if job.schedule_id else ""
    return f"Job {job.id} of type {job.type!r} was enqueued at {_at(job.created_at)}{key}{slot}."


def _state(job: Job, now: datetime, paused: bool) -> str:
    used = f"{job.attempts} of {job.max_attempts} attempts are used"
    if job.status == "ready":
        pause = f" Its type {job.type!r} is paused, so nothing is claimed until it is resumed." if paused else ""
        if job.run_at > now:
            return f"It is ready and waits until {_at(job.run_at)} ({(job.run_at - now).total_seconds():.1f} s); {used}.{pause}"
        waited = (now - job.run_at).total_seconds()
        return f"It is ready, due for {waited:.1f} s, and waits for a worker that handles its type; {used}.{pause}"
    if job.status == "running":
        return _running(job, now, used)
    place = "the archive" if job.archived else "the live table"
    return f"It is {job.status} since {_at(job.finished_at)}; {used}; its row is in {place}."


def _running(job: Job, now: datetime, used: str) -> str:
    left = (job.locked_until - now).total_seconds()
    held = f"It is running: {job.locked_by!r} has held epoch {job.epoch} since {_at(job.started_at)}"
    if left > 0:
        return f"{held}, with a lease for another {left:.1f} s (until {_at(job.locked_until)}); {used}."
    return f"{held}, but its lease ended {-left:.1f} s ago: the next reaper takes it away, unless its owner renews or ends it first; {used}."


def _past(job: Job) -> list[str]:
    lines = [f"Of its leases, {job.lease_losses} were lost by workers that did not report an end."] if job.lease_losses else []
    if job.status == "done":
        lines.append(f"{job.finished_by!r} completed it in epoch {job.finished_epoch}.")
    if job.published_name:
        by = f"{job.published_by!r} in epoch {job.published_epoch}"
        lines.append(f"Published: {job.published_name!r} with digest {job.published_digest} by {by}.")
    if job.history_trimmed:
        lines.append(f"{job.history_trimmed} older entries of its history were trimmed.")
    lines += [_entry(entry) for entry in job.history]
    return lines + ([f"Last error: {job.last_error.splitlines()[-1][:300]}"] if job.last_error else [])


def _entry(entry: dict) -> str:
    who = f" by {entry['owner']!r} in epoch {entry['epoch']}" if entry.get("owner") else ""
    error = entry.get("error")
    why = f": {error.strip().splitlines()[-1][:200]}" if error and error.strip() else ""
    return f"  {entry['at']}  {entry['event'].replace('_', ' ')}{who}{why}"


def _advice(job: Job) -> str:
    if job.status in ("dead", "failed") and not job.archived:
        why = "its attempts are exhausted" if job.status == "dead" else "its handler said never to retry it"
        return f"It is a dead letter because {why}. Mend the cause, then: python -m jobqueue redrive {job.id}"
    if job.status == "cancelled" and not job.archived:
        return f"It can be brought back with: python -m jobqueue redrive {job.id} --cancelled"
    return f"It can be stopped with: python -m jobqueue cancel {job.id}" if job.status in ("ready", "running") else ""
