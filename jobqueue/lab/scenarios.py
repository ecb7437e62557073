"""The actors that the explorer lets loose: one job and its stale owners, batches, keys, schedules, destinations.

Each scenario is a frozen value. What its actors know is hashable; the judge is `jobqueue.lab.oracle`, which has no SQL.
Times: a lease lasts 10 s, a backoff 5 s, a tick of the clock 10 s; so a lease that is not renewed ends with the next
tick.
"""

from dataclasses import dataclass, replace
from datetime import timedelta

from ..backoff import Backoff
from ..errors import JobQueueError
from ..model import Lease
from ..outcome import Outcome
from ..queue import TERMINAL
from ..schedules import Due
from ..sql import SQL
from . import oracle
from .explorer import START, Broken, World
from .line import SQL as WORLD

LEASE, DELAY, TICK, DAY = 10, 5, 10, 86_400
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
        due = sorted((job for job in known.jobs if oracle.is_due(job, world.now) and not job.archived), key=_by_run_at)
        claim = world.queue.claim(owner, limit=limit, lease_seconds=LEASE, types=["t"])
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


@dataclass(frozen=True)
class OneJob(JobScenario):
    """One job; owners whose old leases go on speaking, a reaper, adopters, somebody with a keyboard, an archiver."""

    name: str = "one job, two owners"
    owners: tuple[str, ...] = ("A", "B")
    max_attempts: int = 2
    leases: int = 3  # the last so many leases speak
    verbs: tuple[str, ...] = VERBS
    digests: tuple[str, ...] = DIGESTS
    support: bool = True  # somebody with a keyboard, and an archiver

    def begin(self, world: World) -> Jobs:
        job = world.queue.enqueue("t", 0, max_attempts=self.max_attempts)
        return Jobs((oracle.Job(job.id, self.max_attempts),))

    def actions(self, known: Jobs) -> list[tuple]:
        others = [("reaper", "reap"), ("clock", "tick")]
        if self.support:
            others += [("support", verb) for verb in ("cancel", "redrive", "redrive cancelled")]
            others += [("archiver", verb) for verb in ("archive", "prune")]
        takers = [(owner, verb) for owner in self.owners for verb in ("claim", "adopt")]
        spoken = [
            (lease.owner, verb, f"epoch {lease.epoch}") for lease in known.leases[-self.leases :] for verb in self.verbs
        ]
        published = [
            (lease.owner, "publish", f"epoch {lease.epoch}", digest)
            for lease in known.leases[-self.leases :]
            for digest in self.digests
        ]
        return takers + spoken + published + others

    def act(self, world: World, known: Jobs, action: tuple) -> Jobs:
        actor, verb, *rest = action
        if rest:
            return self.speak(world, known, verb, _lease(known, actor, rest[0]), *rest[1:])
        return {
            "claim": lambda: self.claim(world, known, actor),
            "adopt": lambda: self.adopt(world, known, 1, actor),
            "reap": lambda: self.reap(world, known),
            "cancel": lambda: self.cancel(world, known, 1),
            "redrive": lambda: self.redrive(world, known, 1),
            "redrive cancelled": lambda: self.redrive(world, known, 1, cancelled=True),
            "archive": lambda: self.archive(world, known),
            "prune": lambda: self.prune(world, known),
            "tick": lambda: self.tick(world, known),
        }[verb]()


@dataclass(frozen=True)
class Batches(JobScenario):
    """Two jobs; owners who complete, renew and claim in batches, one ahead; a reaper that takes one lease a pass."""

    name: str = "two jobs in batches"
    owners: tuple[str, ...] = ("A", "B")
    max_attempts: tuple[int, ...] = (3, 1)  # the second job's only attempt must never be claimed ahead

    def begin(self, world: World) -> Jobs:
        made = world.queue.enqueue_many(
            [{"type": "t", "payload": 0, "max_attempts": most} for most in self.max_attempts]
        )
        return Jobs(tuple(oracle.Job(job.id, most) for job, most in zip(made, self.max_attempts, strict=True)))

    def actions(self, known: Jobs) -> list[tuple]:
        batches = [(owner, verb) for owner in self.owners for verb in ("exchange", "claim both")]
        holders = sorted({lease.owner for lease in known.leases})
        spoken = [(owner, verb) for owner in holders for verb in ("heartbeat all", "complete all", "fail the last")]
        others = [("reaper", "reap one"), ("support", "cancel", 2), ("support", "redrive", 2), ("clock", "tick")]
        return batches + spoken + others

    def act(self, world: World, known: Jobs, action: tuple) -> Jobs:
        actor, verb, *rest = action
        held = [lease for lease in known.leases if lease.owner == actor][-3:]
        return {
            "exchange": lambda: self.exchange(world, known, actor, held),
            "claim both": lambda: self.claim(world, known, actor, limit=2),
            "heartbeat all": lambda: self.many(world, known, "heartbeat", held),
            "complete all": lambda: self.many(world, known, "complete", held),
            "fail the last": lambda: self.speak(world, known, "fail", held[-1]),
            "reap one": lambda: self.reap(world, known, limit=1),
            "cancel": lambda: self.cancel(world, known, *rest),
            "redrive": lambda: self.redrive(world, known, *rest),
            "tick": lambda: self.tick(world, known),
        }[verb]()

    def many(self, world: World, known: Jobs, verb: str, leases: list[Lease]) -> Jobs:
        if verb == "complete":
            told = world.queue.complete_many(leases)
        else:
            told = world.queue.heartbeat_many(leases, lease_seconds=LEASE)
        return self.all_heard(world, known, verb, leases, told)

    def all_heard(self, world: World, known: Jobs, verb: str, leases: list[Lease], told: list[Outcome]) -> Jobs:
        """Those in force are applied; the others are told what they meet afterwards."""
        mine = [known.job(lease.id).me == (lease.owner, lease.epoch) for lease in leases]
        for chosen in (True, False):
            for lease, outcome, in_force in zip(leases, told, mine, strict=True):
                if in_force is chosen:
                    job = known.job(lease.id)
                    wanted = (
                        Outcome.APPLIED if chosen else oracle.answer(job, verb, (lease.owner, lease.epoch), world.now)
                    )
                    known = self.heard(world, known, verb, lease, wanted, outcome)
        world.answer = ", ".join(f"job {lease.id}: {outcome.name}" for lease, outcome in zip(leases, told, strict=True))
        return known

    def exchange(self, world: World, known: Jobs, owner: str, held: list[Lease]) -> Jobs:
        """Completes all it holds and claims one job, and one ahead, where a crash can't cost it its last attempt."""
        told, claim = world.queue.exchange(held, owner, leases={"t": LEASE}, slots=1, ahead=1)
        known = self.all_heard(world, known, "complete", held, told)
        due = sorted((job for job in known.jobs if oracle.is_due(job, world.now)), key=_by_run_at)[:2]
        wanted = [job for place, job in enumerate(due) if place == 0 or _is_safe_ahead(job)]
        if risked := {lease.id for lease in claim} & {job.id for job in due} - {job.id for job in wanted}:
            raise Broken("a last attempt, or a job that has lost a lease, is never claimed ahead", f"job {risked} was")
        ended = world.answer
        known = self.granted(world, known, owner, wanted, list(claim))
        world.answer = f"{ended}; {world.answer}".lstrip("; ")
        return known


@dataclass(frozen=True)
class KeyedJobs(Jobs):
    """And the keys: (key, id of its job, payload, since when)."""

    keys: tuple[tuple[str, int, int, float], ...] = ()

    def key(self, key: str):
        return next((known for known in self.keys if known[0] == key), None)


@dataclass(frozen=True)
class Keys(JobScenario):
    """Producers who send a key again, with another payload, in a batch; a worker, an archiver, a janitor, days that
    pass."""

    name: str = "keys and the archive"
    makes_jobs = True
    key_days: float = 30
    most_jobs: int = 3

    def begin(self, world: World) -> KeyedJobs:
        return KeyedJobs(())

    def actions(self, known: KeyedJobs) -> list[tuple]:
        producers = [
            ("producer", "enqueue", "k", 1),
            ("other producer", "enqueue", "k", 2),
            ("producer", "enqueue k, l, k"),
        ]
        ended = [
            (lease.owner, verb, lease.epoch, lease.id)
            for lease in known.leases[-2:]
            for verb in ("complete", "fail permanently")
        ]
        others = [("A", "claim"), ("archiver", "archive"), ("archiver", "archive, killed after the first statement")]
        janitor = [("janitor", "purge keys"), ("clock", "10 days"), ("clock", "31 days")]
        cancelled = [("support", "cancel", job.id) for job in known.jobs[-1:]]
        return (producers if len(known.jobs) < self.most_jobs else producers[:2]) + ended + others + cancelled + janitor

    def act(self, world: World, known: KeyedJobs, action: tuple) -> KeyedJobs:
        actor, verb, *rest = action
        if verb in VERBS:
            lease = next(one for one in known.leases if [one.epoch, one.id] == rest)
            return self.speak(world, known, verb, lease)
        return {
            "enqueue": lambda: self.enqueue(world, known, [rest]),
            "enqueue k, l, k": lambda: self.enqueue(world, known, [("k", 1), ("l", 1), ("k", 2)]),
            "claim": lambda: self.claim(world, known, actor),
            "archive": lambda: self.archive(world, known),
            "archive, killed after the first statement": lambda: self.archive_killed(world, known),
            "cancel": lambda: self.cancel(world, known, *rest),
            "purge keys": lambda: self.purge(world, known),
            "10 days": lambda: self.tick(world, known, 10 * DAY),
            "31 days": lambda: self.tick(world, known, 31 * DAY),
        }[verb]()

    def enqueue(self, world: World, known: KeyedJobs, wanted: list[tuple[str, int]]) -> KeyedJobs:
        jobs = [{"type": "t", "payload": payload, "key": key, "max_attempts": 1} for key, payload in wanted]
        told = world.queue.enqueue_many(jobs) if len(jobs) > 1 else [world.queue.enqueue(**jobs[0])]
        world.answer = ", ".join(f"job {one.id}, {_news(one)}" for one in told)
        for (key, payload), one in zip(wanted, told, strict=True):
            first = known.key(key)
            if first and (one.id, one.created, one.matches) != (first[1], False, first[2] == payload):
                raise Broken("one key is one job while it is known", f"{key} is job {first[1]}, the answer was {one}")
            if not first and not (one.created and one.matches and known.job(one.id) is None):
                raise Broken("a new key makes a job", f"the answer was {one}")
            if not first:
                job = oracle.Job(one.id, 1, run_at=world.now, key=key)
                known = replace(known, jobs=(*known.jobs, job), keys=(*known.keys, (key, one.id, payload, world.now)))
        return known

    def archive_killed(self, world: World, known: KeyedJobs) -> KeyedJobs:
        """One statement is all or nothing, and here it was sent."""
        after = known
        with world.line.killed_after(1):
            after = self.archive(world, known)
        return after if after is not known else self._moved(world, known)

    def _moved(self, world: World, known: KeyedJobs) -> KeyedJobs:
        world.answer = "killed"
        old = {job.id for job in known.jobs if job.finished_at is not None}
        return replace(known, jobs=tuple(replace(job, archived=job.archived or job.id in old) for job in known.jobs))

    def purge(self, world: World, known: KeyedJobs) -> KeyedJobs:
        age = self.key_days * DAY
        world.answer = f"{world.line.execute(SQL.purge_keys, {'age': age, 'limit': 100}).rowcount} keys forgotten"
        return replace(known, keys=tuple(key for key in known.keys if not self._is_old(known, key, world.now - age)))

    def _is_old(self, known: KeyedJobs, key: tuple, before: float) -> bool:
        job = known.job(key[1])
        return key[3] <= before and job.archived and job.finished_at <= before

    def judge(self, known: KeyedJobs, rows: dict[str, list[dict]]) -> None:
        super().judge(known, rows)
        seen = {row["key"]: row["job_id"] for row in rows["key"]}
        wanted = {key: job_id for key, job_id, _, _ in known.keys}
        if seen != wanted:
            raise Broken("a key is known as long as its job lives, and key_ttl after", f"keys {seen}, not {wanted}")


@dataclass(frozen=True)
class DestinationKnown(Jobs):
    """And what the destination has taken in: (owner, epoch), in order."""

    taken: tuple[tuple[str, int], ...] = ()
    sent: frozenset[int] = frozenset()  # by the leases of these epochs: each execution has its effect once


@dataclass(frozen=True)
class Destination(JobScenario):
    """One job with an effect; kind: unfenced, fenced (by epoch), fenced and keyed, transaction (the job's own)."""

    kind: str = "fenced and keyed"
    owners: tuple[str, ...] = ("A", "B")
    max_attempts: int = 3
    makes_jobs = True

    @property
    def name(self) -> str:
        return f"effects, {self.kind}"

    def begin(self, world: World) -> DestinationKnown:
        job = world.queue.enqueue("t", 0, max_attempts=self.max_attempts)
        return DestinationKnown((oracle.Job(job.id, self.max_attempts),))

    def actions(self, known: DestinationKnown) -> list[tuple]:
        verbs = ("complete", "heartbeat")
        takers = [(owner, verb) for owner in self.owners for verb in ("claim", "adopt")]
        speakers = known.leases[-3:]
        spoken = [(lease.owner, verb, f"epoch {lease.epoch}") for lease in speakers for verb in verbs]
        sent = [(lease.owner, "effect", f"epoch {lease.epoch}") for lease in speakers if lease.epoch not in known.sent]
        return takers + sent + spoken + [("reaper", "reap"), ("clock", "tick")]

    def act(self, world: World, known: DestinationKnown, action: tuple) -> DestinationKnown:
        actor, verb, *rest = action
        if verb == "effect":
            lease = _lease(known, actor, rest[0])
            return self.inside(world, known, lease) if self.kind == "transaction" else self.outside(world, known, lease)
        if rest:
            return self.speak(world, known, verb, _lease(known, actor, rest[0]))
        return {
            "claim": lambda: self.claim(world, known, actor),
            "adopt": lambda: self.adopt(world, known, 1, actor),
            "reap": lambda: self.reap(world, known),
            "tick": lambda: self.tick(world, known),
        }[verb]()

    def outside(self, world: World, known: DestinationKnown, lease: Lease) -> DestinationKnown:
        """Another service, as a value: it sees the epoch and the key that it is sent, and nothing of the database."""
        known = replace(known, sent=known.sent | {lease.epoch})
        newest = max((epoch for _, epoch in known.taken), default=0)
        refused = self.kind != "unfenced" and lease.epoch < newest
        repeated = self.kind == "fenced and keyed" and known.taken
        world.answer = "refused: an older epoch" if refused else "known already" if repeated else "taken in"
        if refused or repeated:
            return known
        if lease.epoch < newest:
            raise Broken(
                "a destination takes no older epoch's write after a newer one's", f"epoch {lease.epoch} after {newest}"
            )
        if known.taken:
            raise Broken("an effect is applied once", f"epochs {[epoch for _, epoch in known.taken]} and {lease.epoch}")
        return replace(known, taken=(*known.taken, (lease.owner, lease.epoch)))

    def inside(self, world: World, known: DestinationKnown, lease: Lease) -> DestinationKnown:
        """The effect and the completion in one transaction, which is rolled back unless the completion is applied."""
        given = {"key": "effect", "id": lease.id, "owner": lease.owner, "epoch": lease.epoch}
        world.line.send(WORLD.block)
        recorded = world.line.execute(SQL.effect, given).fetchall()
        after = self.speak(world, known, "complete", lease)
        if world.answer != Outcome.APPLIED.name:
            world.line.send(WORLD.undo_block)
            return known
        world.answer = f"{'recorded' if recorded else 'not recorded'}, then {world.answer}"
        return replace(after, taken=(*known.taken, (lease.owner, lease.epoch)))

    def judge(self, known: DestinationKnown, rows: dict[str, list[dict]]) -> None:
        super().judge(known, rows)
        seen = [row["epoch"] for row in rows["effect"]]
        if self.kind == "transaction" and seen != [epoch for _, epoch in known.taken]:
            raise Broken("an effect is applied once", f"effects of epochs {seen}, completed with theirs: {known.taken}")


@dataclass(frozen=True)
class Planned:
    """What the contract says of one schedule. Times in seconds; its slots are the multiples of `step`."""

    step: int = 60
    next: float | None = None
    last: float | None = None
    revision: int = 0
    paused: bool = False
    removed: bool = False
    fired: tuple[float, ...] = ()
    looks: tuple = ()  # (scheduler, Due, revision) that have looked and not decided yet

    def after(self, now: float) -> float:
        """The first slot after now and after the last one that was decided."""
        floor = max(now, now if self.last is None else self.last)
        return (floor // self.step + 1) * self.step


FORGET = "run all, archive, forget keys"
OTHERS = (
    ("editor", "pause"),
    ("editor", "resume"),
    ("editor", "remove"),
    ("worker", FORGET),
    ("clock", "30 s"),
    ("clock", "60 s"),
    ("clock", "steps back 60 s"),
)


@dataclass(frozen=True)
class Slots:
    """Two schedulers, whose look and decision others come between; edits, pauses, removals; a clock that also steps
    back."""

    name: str = "schedules"
    makes_jobs = True
    schedulers: tuple[str, ...] = ("S1", "S2")
    steps: tuple[int, ...] = (60, 120)
    others: tuple[tuple[str, str], ...] = OTHERS

    def begin(self, world: World) -> Planned:
        self._put(world, self.steps[0])
        return Planned(self.steps[0], next=self.steps[0])

    def actions(self, known: Planned) -> list[tuple]:
        looking = [(one, "look") for one in self.schedulers]
        how = ("decide", "decide, killed before COMMIT", "decide, killed after COMMIT")
        deciding = [(one[0], verb) for one in known.looks for verb in how]
        edits = [("editor", f"put every {step} s") for step in self.steps]
        return looking + deciding + edits + list(self.others)

    def act(self, world: World, known: Planned, action: tuple) -> Planned:
        actor, verb = action
        if verb.startswith("decide"):
            return self.decide(world, known, actor, verb)
        if verb.startswith("put"):
            return self.put(world, known, int(verb.split()[2]))
        if actor == "clock":
            world.set(world.now + {"30 s": 30, "60 s": 60, "steps back 60 s": -60}[verb])
            world.answer = ""
            return known
        return {"look": self.look, "pause": self.pause, "resume": self.resume, "remove": self.remove}.get(
            verb, self.forget
        )(world, known, actor)

    def look(self, world: World, known: Planned, scheduler: str) -> Planned:
        due = world.schedules._made(Due, SQL.schedules_due, limit=10)
        world.answer = f"{len(due)} due"
        wanted = known.next is not None and known.next <= world.now
        if bool(due) != wanted:
            raise Broken("a slot that is due is found, and no other", f"{due}, next is {known.next}")
        others = tuple(one for one in known.looks if one[0] != scheduler)
        return replace(known, looks=(*others, *((scheduler, one, known.revision) for one in due)))

    def decide(self, world: World, known: Planned, scheduler: str, verb: str) -> Planned:
        """The slots up to the look, if nothing has changed the schedule since; killed before the COMMIT: nothing at
        all."""
        [(due, seen_revision)] = [one[1:] for one in known.looks if one[0] == scheduler]
        steps = {"decide": 99, "decide, killed before COMMIT": 1, "decide, killed after COMMIT": 2}[verb]
        world.answer = "killed"
        with world.line.killed_after(steps):
            world.answer = f"{len(world.schedules._decide(due).jobs)} jobs"
        known = replace(known, looks=tuple(one for one in known.looks if one[0] != scheduler))
        if seen_revision != known.revision or steps == 1:
            return known
        seen_at = (due.now - START).total_seconds()
        slots = [
            slot for slot in _multiples(known.step, known.next, seen_at) if known.last is None or slot > known.last
        ]
        decided = replace(known, last=max([*slots, known.last or 0]), revision=known.revision + 1)
        floor = max(seen_at, seen_at if known.last is None else known.last)
        return replace(decided, next=(floor // known.step + 1) * known.step, fired=(*known.fired, *slots))

    def put(self, world: World, known: Planned, step: int) -> Planned:
        self._put(world, step)
        world.answer = "put"
        paused = known.paused and not known.removed
        changed = replace(known, step=step, paused=paused, removed=False, revision=known.revision + 1)
        kept = known.next if known.step == step else None
        return replace(changed, next=None if paused else changed.after(world.now) if kept is None else kept)

    def _put(self, world: World, step: int) -> None:
        world.schedules.put("s", "t", f"*/{step // 60} * * * *", payload=0, misfire="all", max_attempts=1)

    def pause(self, world: World, known: Planned, _: str) -> Planned:
        after = replace(known, paused=True, next=None, revision=known.revision + 1)
        return self._told(world, known, world.schedules.pause, after)

    def remove(self, world: World, known: Planned, _: str) -> Planned:
        after = replace(known, removed=True, paused=False, next=None, revision=known.revision + 1)
        return self._told(world, known, world.schedules.remove, after)

    def resume(self, world: World, known: Planned, _: str) -> Planned:
        goes_on = not known.paused and known.next is not None
        after = replace(known, paused=False, next=known.after(world.now), revision=known.revision + 1)
        return self._told(world, known, world.schedules.resume, known if goes_on else after)

    def _told(self, world: World, known: Planned, verb, after: Planned) -> Planned:
        try:
            verb("s")
            world.answer = f"{verb.__name__}d"
        except JobQueueError as error:
            world.answer = str(error)
        if known.removed != (world.answer == "there is no schedule 's'"):
            raise Broken("a removed schedule is gone, another is there", world.answer)
        return known if known.removed else after

    def forget(self, world: World, known: Planned, _: str) -> Planned:
        """A worker runs what is due, a janitor archives it and forgets each key it may: only last_slot remembers."""
        done = world.queue.complete_many(list(world.queue.claim("W", limit=100, types=["t"])))
        moved = world.queue.archive(older_than_seconds=0)
        forgotten = world.line.execute(SQL.purge_keys, {"age": 0, "limit": 100}).rowcount
        world.answer = f"{len(done)} run, {moved} archived, {forgotten} keys forgotten"
        return known

    def judge(self, known: Planned, rows: dict[str, list[dict]]) -> None:
        fired = sorted(row["slot"] for row in rows["job"] + rows["archive"])
        if len(set(fired)) < len(fired):
            raise Broken("a slot fires once", f"jobs for the slots {fired}")
        if fired != sorted(map(_iso, known.fired)):
            raise Broken(
                "every slot that was decided has its job, and no other",
                f"{fired}, not {sorted(map(_iso, known.fired))}",
            )
        wanted = {"next_run_at": _iso(known.next), "last_slot": _iso(known.last), "paused": known.paused}
        for row in rows["schedule"]:
            if row["removed_at"] is None and (seen := {name: row[name] for name in wanted}) != wanted:
                raise Broken("a schedule goes on where it was, never back", f"{seen}, not {wanted}")


def _lease(known: Jobs, owner: str, epoch: str) -> Lease:
    return next(one for one in known.leases if one.owner == owner and f"epoch {one.epoch}" == epoch)


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
        wanted[name] = _iso(wanted[name])
    wrong = [f"{name} is {seen[name]}, not {wanted[name]}" for name in wanted if seen[name] != wanted[name]]
    if wrong:
        raise Broken(_broken_row(job, row), f"job {job.id}: " + "; ".join(wrong))


def _iso(seconds: float | None) -> str | None:
    """As PostgreSQL writes whole seconds in JSON."""
    return None if seconds is None else (START + timedelta(seconds=seconds)).isoformat()


def _multiples(step: int, first: float, last: float) -> list[float]:
    return [slot for slot in range(int(first), int(last) + 1) if slot % step == 0]


def _broken_row(job: oracle.Job, row: dict) -> str:
    if row["epoch"] != job.epoch:
        return EPOCH
    return "attempts are counted once each" if row["attempts"] != job.attempts else ROWS


def _is_safe_ahead(job: oracle.Job) -> bool:
    return job.attempts + 1 < job.max_attempts and job.lease_losses == 0


def _news(one) -> str:
    return "new" if one.created else "known" if one.matches else "known, and differs"


def _leases(leases: list[Lease]) -> str:
    return ", ".join(f"job {one.id}, epoch {one.epoch}" for one in leases) or "nothing"


def _by_run_at(job: oracle.Job):
    return job.run_at, job.id


def _by_until(job: oracle.Job):
    return job.until, job.id


THREE_OWNERS = OneJob("one job, three owners", owners=("A", "B", "C"), verbs=("complete", "heartbeat"), digests=("aa",))
# (scenario, depth), the longest search first: together more than 100,000 transitions.
FAMILIES = (
    (OneJob(), 6),
    (Batches(), 6),
    (Destination(), 8),
    (THREE_OWNERS, 6),
    (Slots(), 5),
    (Destination("transaction"), 7),
    (Keys(), 5),
)
