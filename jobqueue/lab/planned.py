"""The scenario about schedules: two schedulers, others between look and decision, a clock that also steps back."""

from dataclasses import dataclass, replace

from ..errors import JobQueueError
from ..schedules import Due
from ..sql import SQL
from .actors import iso
from .explorer import START, Broken, World


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
        if fired != sorted(map(iso, known.fired)):
            raise Broken(
                "every slot that was decided has its job, and no other",
                f"{fired}, not {sorted(map(iso, known.fired))}",
            )
        wanted = {"next_run_at": iso(known.next), "last_slot": iso(known.last), "paused": known.paused}
        for row in rows["schedule"]:
            if row["removed_at"] is None and (seen := {name: row[name] for name in wanted}) != wanted:
                raise Broken("a schedule goes on where it was, never back", f"{seen}, not {wanted}")


def _multiples(step: int, first: float, last: float) -> list[float]:
    return [slot for slot in range(int(first), int(last) + 1) if slot % step == 0]
