"""What the contract says of a job (DESIGN §3) as values, without SQL: the judge that shares nothing with the judged.

Times are whole seconds after the beginning of a search.
"""

from dataclasses import dataclass, replace

from ..outcome import Outcome

FINISHED = ("done", "failed", "dead", "cancelled")
_OWN_END = {"complete": "done", "strict complete": "done", "fail": "failed", "fail permanently": "failed_permanently",
            "release": "released"}  # fmt: skip
_STATUS = {"complete": "done", "strict complete": "done", "fail permanently": "failed", "release": "ready"}
_IN_FORCE_ONLY = ("publish", "strict complete")


@dataclass(frozen=True)
class Job:
    """One job as the contract sees it; `history` has (event, owner, epoch)."""

    id: int
    max_attempts: int
    run_at: float = 0
    status: str = "ready"
    epoch: int = 0
    attempts: int = 0
    lease_losses: int = 0
    releases: int = 0
    owner: str | None = None
    until: float | None = None
    finished_at: float | None = None
    finished: tuple[str, int] | None = None
    published: tuple[tuple[str, int], str] | None = None
    history: tuple[tuple[str, str | None, int], ...] = ()
    key: str | None = None
    archived: bool = False

    @property
    def me(self):
        """Who holds it: (owner, epoch)."""
        return (self.owner, self.epoch) if self.status == "running" else None


def is_due(job: Job, now: float) -> bool:
    return job.status == "ready" and job.run_at <= now


def may_be_adopted(job: Job, now: float) -> bool:
    return job.status == "running" and job.until <= now and job.attempts < job.max_attempts


def claimed(job: Job, owner: str, now: float, lease: float) -> Job:
    return replace(
        job, status="running", owner=owner, until=now + lease, epoch=job.epoch + 1, attempts=job.attempts + 1
    )


def adopted(job: Job, owner: str, now: float, lease: float) -> Job:
    noted = replace(_noted(job, "lost"), lease_losses=job.lease_losses + 1, releases=0)
    return claimed(noted, owner, now, lease)


def reaped(job: Job, now: float, delay: float) -> Job:
    """As a lost lease: the attempt stays used."""
    noted = replace(_noted(job, "lost"), lease_losses=job.lease_losses + 1, releases=0)
    return _retried(noted, now, delay)


def cancelled(job: Job, now: float) -> Job:
    return job if job.status not in ("ready", "running") else _ended(_noted(job, "cancelled"), "cancelled", now)


def redriven(job: Job, now: float) -> Job:
    noted = replace(job, history=(*job.history, ("redriven", None, job.epoch)))
    return replace(noted, status="ready", attempts=0, lease_losses=0, releases=0, run_at=now, finished_at=None)


def answer(job: Job | None, verb: str, me: tuple[str, int], now: float, digest: str | None = None) -> Outcome:
    """What `verb` by the lease `me` must be told: the table of DESIGN §3, the first line that holds."""
    if job is None:
        return Outcome.UNKNOWN_JOB
    if verb == "publish" and job.published and job.published[0] == me:
        return Outcome.ALREADY_APPLIED if job.published[1] == digest else Outcome.CONFLICT
    if job.me == me:
        return Outcome.LEASE_EXPIRED if verb in _IN_FORCE_ONLY and now >= job.until else Outcome.APPLIED
    end = _end(job, me)
    if end == "cancelled" or (end == "lost" and job.status == "cancelled" and job.epoch == me[1]):
        return Outcome.CANCELLED
    if end in (None, "lost"):
        return Outcome.LOST
    return Outcome.ALREADY_APPLIED if end == _OWN_END.get(verb) else Outcome.CONFLICT


def applied(job: Job, verb: str, now: float, *, lease: float, delay: float, digest: str | None = None) -> Job:
    """The job after its holder's `verb` was applied."""
    if verb == "heartbeat":
        return replace(job, until=max(job.until, now + lease))
    if verb == "publish":
        return replace(job, published=(job.me, digest))
    if verb in ("complete", "strict complete"):
        return replace(_ended(job, "done", now), finished=job.me)
    noted = _noted(job, _OWN_END[verb])
    if verb == "release":
        return replace(_ended(noted, "ready", now), attempts=job.attempts - 1, releases=job.releases + 1, run_at=now)
    noted = replace(noted, releases=0)
    return _retried(noted, now, delay) if verb == "fail" else _ended(noted, "failed", now)


def expected(job: Job) -> dict:
    """The columns of its row that the contract fixes."""
    published, digest = job.published or ((None, None), None)
    finished = job.finished or (None, None)
    row = {name: getattr(job, name) for name in ("id", "status", "epoch", "attempts", "lease_losses", "releases")}
    row |= {"locked_by": job.owner, "locked_until": job.until, "finished_at": job.finished_at}
    row |= {"finished_by": finished[0], "finished_epoch": finished[1], "idempotency_key": job.key}
    row |= {"published_by": published[0], "published_epoch": published[1], "published_digest": digest}
    return row | {"run_at": job.run_at, "history": list(job.history)}


def _end(job: Job, me: tuple[str, int]) -> str | None:
    if job.status == "done" and job.finished == me:
        return "done"
    return next((event for event, owner, epoch in reversed(job.history) if (owner, epoch) == me), None)


def _noted(job: Job, event: str) -> Job:
    return replace(job, history=(*job.history, (event, job.owner, job.epoch)))


def _retried(job: Job, now: float, delay: float) -> Job:
    if job.attempts >= job.max_attempts:
        return _ended(job, "dead", now)
    return replace(_ended(job, "ready", now), run_at=now + delay)


def _ended(job: Job, status: str, now: float) -> Job:
    return replace(job, status=status, owner=None, until=None, finished_at=now if status in FINISHED else None)
