"""The actors that the explorer lets loose: one job and its stale owners, batches, keys, destinations, schedules.

Each scenario is a frozen value. What its actors know is hashable; the judge is `jobqueue.lab.oracle`, which has no SQL.
"""

from dataclasses import dataclass, replace

from ..model import Lease
from ..outcome import Outcome
from ..sql import SQL
from . import oracle
from .actors import DIGESTS, LEASE, VERBS, Jobs, JobScenario, by_run_at, lease_of
from .explorer import Broken, World
from .line import SQL as WORLD
from .planned import FORGET, Slots

__all__ = ["FAMILIES", "FORGET", "THREE_OWNERS", "Batches", "Destination", "Keys", "OneJob", "Slots"]
DAY = 86_400


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
            return self.speak(world, known, verb, lease_of(known, actor, rest[0]), *rest[1:])
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
        due = sorted((job for job in known.jobs if oracle.is_due(job, world.now)), key=by_run_at)[:2]
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
            lease = lease_of(known, actor, rest[0])
            return self.inside(world, known, lease) if self.kind == "transaction" else self.outside(world, known, lease)
        if rest:
            return self.speak(world, known, verb, lease_of(known, actor, rest[0]))
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


def _is_safe_ahead(job: oracle.Job) -> bool:
    return job.attempts + 1 < job.max_attempts and job.lease_losses == 0


def _news(one) -> str:
    return "new" if one.created else "known" if one.matches else "known, and differs"


THREE_OWNERS = OneJob("one job, three owners", owners=("A", "B", "C"), verbs=("complete", "heartbeat"), digests=("aa",))
# (scenario, depth), the longest search first: together more than 100,000 transitions.
FAMILIES = (
    (OneJob(), 6),
    (Batches(), 6),
    (Destination(), 8),
    (Destination("transaction"), 7),
    (THREE_OWNERS, 5),
    (Keys(), 5),
    (Slots(), 5),
)
