"""What actors of the explorer do to jobs, and how each answer and each row is judged; scenarios pick from it.

A lease lasts 10 s, a backoff 5 s, a tick of the clock 10 s: a lease that is not renewed ends with the next tick.
"""

from dataclasses import dataclass, replace
from datetime import timedelta

from ..backoff import Backoff
from ..model import Empty, Lease
from ..outcome import Outcome
from ..queue import TERMINAL
from ..sql import SQL
from . import oracle
from .explorer import START, Broken, World

LEASE, DELAY, TICK = 10, 5, 10
BACKOFF = Backoff(shape="constant", base_seconds=DELAY, jitter="none")
VERBS = ("heartbeat", "complete", "strict complete", "fail", "fail permanently", "release")
DIGESTS = ("aa", "bb")

STALE = "a lease that has ended changes nothing"
REFUSED = "the holder of a lease is not refused"
TOLD = "an answer says what became of the lease"
ROWS = "the row is what the answers said"
EPOCH = "an epoch is handed out once, and only counts up"
EARLY = "no lease is taken away while it is in force"
LATE = "a lease that has ended grants nothing that needs one in force"


@dataclass(frozen=True)
class Jobs:
    """What the actors of a scenario about jobs know: the oracle's view, and every lease that ever was."""

    jobs: tuple[oracle.Job, ...]
    leases: tuple[Lease, ...] = ()

    def job(self, id: int) -> oracle.Job | None:
        return next((job for job in self.jobs if job.id == id), None)

    def with_job(self, job: oracle.Job) -> "Jobs":
        return replace(self, jobs=tuple(job if job.id == other.id else other for other in self.jobs))

    def with_lease(self, lease: Lease) -> "Jobs":
        return replace(self, leases=(*self.leases, lease))


class JobScenario:
    """Verbs on jobs, each compared with the oracle: the answer, and afterwards every row."""

    makes_jobs = False

    def judge(self, known: Jobs, rows: dict[str, list[dict]]) -> None:
        seen = {row["id"]: (row, False) for row in rows["job"]} | {row["id"]: (row, True) for row in rows["archive"]}
        if len(seen) != len(rows["job"]) + len(rows["archive"]) or set(seen) != {job.id for job in known.jobs}:
            raise Broken(
                "no job is lost and none is doubled", f"rows {sorted(seen)}, jobs {[job.id for job in known.jobs]}"
            )
        for job in known.jobs:
            _compare(job, *seen[job.id])

    # ------------------------------------------------------------ a lease speaks

    def speak(self, world: World, known: Jobs, verb: str, lease: Lease, digest: str | None = None) -> Jobs:
        job, me = known.job(lease.id), (lease.owner, lease.epoch)
        wanted = oracle.answer(job, verb, me, world.now, digest)
        told = _sent(world, verb, lease, digest)
        return self.heard(world, known, verb, lease, wanted, told, digest)

    def heard(self, world, known: Jobs, verb, lease, wanted: Outcome, told: Outcome, digest=None) -> Jobs:
        world.answer = told.name
        if told is not wanted:
            raise Broken(
                _promise(wanted, told), f"{verb} by {lease.owner}, epoch {lease.epoch}: {told.name}, not {wanted.name}"
            )
        if told is not Outcome.APPLIED:
            return known
        after = oracle.applied(known.job(lease.id), verb, world.now, lease=LEASE, delay=DELAY, digest=digest)
        return known.with_job(after)

    # ------------------------------------------------------------ what others do to a job

    def claim(self, world: World, known: Jobs, owner: str, limit: int = 1) -> Jobs:
        due = sorted((job for job in known.jobs if oracle.is_due(job, world.now) and not job.archived), key=by_run_at)
        claim = world.queue.claim(owner, limit=limit, lease_seconds=LEASE, types=["t"])
        waiting = any(job.status == "ready" for job in known.jobs)
        if not claim and claim.empty is not (Empty.NOT_DUE if waiting else Empty.NONE):
            raise Broken("an empty claim says why", f"{claim.empty}, and {'a' if waiting else 'no'} job is ready")
        return self.granted(world, known, owner, due[:limit], list(claim))

    def granted(self, world, known: Jobs, owner: str, jobs: list[oracle.Job], leases: list[Lease]) -> Jobs:
        world.answer = _leases(leases)
        for job in jobs:
            known = known.with_job(oracle.claimed(job, owner, world.now, LEASE))
        return self._with_leases(known, leases, {job.id for job in jobs})

    def adopt(self, world: World, known: Jobs, job_id: int, owner: str) -> Jobs:
        job = known.job(job_id)
        may = job is not None and not job.archived and oracle.may_be_adopted(job, world.now)
        lease = world.queue.adopt(job_id, owner, lease_seconds=LEASE)
        world.answer = _leases([lease] if lease else [])
        if may:
            known = known.with_job(oracle.adopted(job, owner, world.now, LEASE))
        elif lease and job.status == "running" and job.until > world.now:
            raise Broken(EARLY, f"adopted at {world.now:g} s, the lease lasts until {job.until:g} s")
        return self._with_leases(known, [lease] if lease else [], {job_id} if may else set())

    def _with_leases(self, known: Jobs, leases: list[Lease], wanted: set[int]) -> Jobs:
        for lease in leases:
            if any(lease.id == old.id and lease.epoch <= old.epoch for old in known.leases):
                raise Broken(EPOCH, f"job {lease.id}: epoch {lease.epoch} is handed out again")
            known = known.with_lease(lease)
        if {lease.id for lease in leases} != wanted:
            raise Broken(ROWS, f"leases on {sorted(lease.id for lease in leases)}, due were {sorted(wanted)}")
        return known

    def reap(self, world: World, known: Jobs, limit: int = 100) -> Jobs:
        expired = sorted(
            (job for job in known.jobs if job.status == "running" and job.until <= world.now), key=_by_until
        )
        reaped = world.queue.reap(limit=limit, backoff=BACKOFF)
        world.answer = ", ".join(f"job {one.id} → {one.status}" for one in reaped) or "nothing to reap"
        wanted = {job.id for job in expired[:limit]}
        if early := {one.id for one in reaped} - {job.id for job in expired}:
            raise Broken(EARLY, f"job {early} is reaped before its lease has ended")
        if {one.id for one in reaped} != wanted:
            raise Broken(ROWS, f"reaped {sorted(one.id for one in reaped)}, expired were {sorted(wanted)}")
        for job in expired[:limit]:
            known = known.with_job(oracle.reaped(job, world.now, DELAY))
        return known

    def cancel(self, world: World, known: Jobs, job_id: int) -> Jobs:
        job = known.job(job_id)
        told = world.queue.cancel(job_id)
        world.answer = f"{told.before} → {told.after}"
        after = job and oracle.cancelled(job, world.now)
        wanted = (job.status, after.status) if job else (None, None)
        if (told.before, told.after) != wanted:
            raise Broken(
                "a cancellation tells the truth", f"{told.before} → {told.after}, not {wanted[0]} → {wanted[1]}"
            )
        return known.with_job(after) if job else known

    def redrive(self, world: World, known: Jobs, job_id: int, cancelled: bool = False) -> Jobs:
        job = known.job(job_id)
        may = job and not job.archived and job.status in ("dead", "failed") + ("cancelled",) * cancelled
        told = world.queue.redrive([job_id], cancelled=cancelled)
        world.answer = "ready again" if told else "nothing to redrive"
        if bool(told) != bool(may):
            raise Broken("a terminal state is left by a redrive only, and done never", f"redriven {told}")
        return known.with_job(oracle.redriven(job, world.now)) if may else known

    def archive(self, world: World, known: Jobs, statuses=TERMINAL, age: float = 0) -> Jobs:
        old = [
            job
            for job in known.jobs
            if not job.archived and job.status in statuses and job.finished_at <= world.now - age
        ]
        moved = world.queue.archive(older_than_seconds=age, statuses=statuses)
        world.answer = f"{moved} moved"
        for job in old:
            known = known.with_job(replace(job, archived=True))
        return known

    def prune(self, world: World, known: Jobs) -> Jobs:
        """The archive forgets: from now on its jobs are unknown."""
        world.answer = f"{world.line.execute(SQL.prune_archive, {'age': 0, 'limit': 100}).rowcount} forgotten"
        return replace(known, jobs=tuple(job for job in known.jobs if not job.archived))

    def tick(self, world: World, known: Jobs, seconds: float = TICK) -> Jobs:
        world.set(world.now + seconds)
        world.answer = ""
        return known


def lease_of(known: Jobs, owner: str, epoch: str) -> Lease:
    return next(one for one in known.leases if one.owner == owner and f"epoch {one.epoch}" == epoch)


def iso(seconds: float | None) -> str | None:
    """As PostgreSQL writes whole seconds in JSON."""
    return None if seconds is None else (START + timedelta(seconds=seconds)).isoformat()


def by_run_at(job: oracle.Job):
    return job.run_at, job.id


def _sent(world: World, verb: str, lease: Lease, digest: str | None) -> Outcome:
    queue = world.queue
    return {
        "heartbeat": lambda: queue.heartbeat(lease, lease_seconds=LEASE),
        "complete": lambda: queue.complete(lease),
        "strict complete": lambda: queue.complete(lease, strict=True),
        "fail": lambda: queue.fail(lease, "boom", backoff=BACKOFF),
        "fail permanently": lambda: queue.fail(lease, "never", permanent=True),
        "release": lambda: queue.release(lease, "stop"),
        "publish": lambda: queue.publish(lease, "report", digest),
    }[verb]()


def _promise(wanted: Outcome, told: Outcome) -> str:
    if told is Outcome.APPLIED:
        return LATE if wanted is Outcome.LEASE_EXPIRED else STALE
    return REFUSED if wanted is Outcome.APPLIED else TOLD


def _compare(job: oracle.Job, row: dict, archived: bool) -> None:
    wanted = oracle.expected(job) | {"archived": job.archived}
    seen = {name: row[name] for name in wanted if name in row} | {"archived": archived}
    seen["history"] = [(entry["event"], entry["owner"], entry["epoch"]) for entry in row["history"]]
    for name in ("locked_until", "finished_at", "run_at"):
        wanted[name] = iso(wanted[name])
    wrong = [f"{name} is {seen[name]}, not {wanted[name]}" for name in wanted if seen[name] != wanted[name]]
    if wrong:
        raise Broken(_broken_row(job, row), f"job {job.id}: " + "; ".join(wrong))


def _broken_row(job: oracle.Job, row: dict) -> str:
    if row["epoch"] != job.epoch:
        return EPOCH
    return "attempts are counted once each" if row["attempts"] != job.attempts else ROWS


def _leases(leases: list[Lease]) -> str:
    return ", ".join(f"job {one.id}, epoch {one.epoch}" for one in leases) or "nothing"


def _by_until(job: oracle.Job):
    return job.until, job.id
