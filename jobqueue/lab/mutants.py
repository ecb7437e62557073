"""Known wrong ways, one change each, injected into this process: something in this laboratory has to catch every one.

    hunted = mutants.hunt_all()         # each mutant, what caught it, after how many states, lines or seeds
    mutants.table(hunted)               # as a frame

The core has no unsafe switch: a mutant replaces a piece of one statement of `queries.sql`, which must be there word
for word, or one function, for the length of a `with` block. A checker that never failed proves nothing.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pandas as pd
import psycopg
from psycopg.rows import dict_row

from ..backoff import Backoff
from ..errors import InfrastructureError, JobQueueError
from ..model import Enqueued
from ..outcome import AGAIN, Outcome, Sight, decide
from ..queue import Queue, claim_arguments
from ..schedules import Schedules, Ticked, _plan
from ..sql import SQL as QUEUE
from ..sql import statements, text
from . import database, drills, explorer, scenarios, scripts, sessions
from .checks import Violation

SQL = statements(text("lab/mutants.sql"))
SEEDS = 1_000


@dataclass(frozen=True)
class Edit:
    """In this statement of the queue, this text (once, word for word) becomes another."""

    statement: str
    old: str
    new: str


@dataclass(frozen=True)
class Swap:
    """This method becomes another function."""

    owner: type
    name: str
    function: Any


@dataclass(frozen=True)
class Places:
    """Where a hunt takes place: an empty database on virtual time, and one on the database's."""

    virtual: str
    real: str


@dataclass(frozen=True)
class Catch:
    """What a hunt found: which promise is broken, after how many `tries` (states, lines, …), in how many steps."""

    promise: str
    tries: int
    unit: str
    steps: int
    evidence: Any = field(repr=False, default=None)  # explorer.Found, sessions.Played, a plan, a number


@dataclass(frozen=True)
class Mutant:
    """One change, in the words of the reviewer who let it pass; `hunter` finds what is wrong with it.

    seen_by_checks: the checkers that a short run with recorders sets off, too.
    """

    name: str
    change: str
    hunter: Callable[[Places], Catch | None]
    edits: tuple[Edit, ...] = ()
    swaps: tuple[Swap, ...] = ()
    seen_by_checks: tuple[str, ...] = ()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """In this block the queue of this process is the mutant."""
        with ExitStack() as stack:
            for edit in self.edits:
                stack.enter_context(_replaced(QUEUE, edit.statement, _edited(edit)))
            for swap in self.swaps:
                stack.enter_context(_replaced(swap.owner, swap.name, swap.function))
            yield


@dataclass(frozen=True)
class Hunted:
    """A mutant and what became of it; catch None: it got through."""

    mutant: Mutant
    catch: Catch | None
    checks: tuple[Violation, ...]
    seconds: float


def hunt(mutant: Mutant, places: Places) -> Hunted:
    """Lets the mutant's hunter and the drill with its recorders and checkers loose on it."""
    begun = time.monotonic()
    with mutant.applied():
        catch = mutant.hunter(places)
        found = tuple(drills.run(places.virtual)) if mutant.seen_by_checks else ()
    return Hunted(mutant, catch, found, time.monotonic() - begun)


def hunt_all(dsn: str | None = None, *, names: Sequence[str] | None = None) -> list[Hunted]:
    """Every mutant (or those named) in two databases of their own, on the server of `dsn` or one of their own."""
    chosen = [MUTANTS[name] for name in names or MUTANTS]
    with nullcontext(dsn) if dsn else database.start() as server, places_on(server) as places:
        return [hunt(mutant, places) for mutant in chosen]


@contextmanager
def places_on(dsn: str) -> Iterator[Places]:
    """Two databases on this server, dropped at the end."""
    with explorer.virtual_database(dsn) as virtual, database.scratch(dsn) as real:
        with psycopg.connect(real, autocommit=True) as conn:
            Queue(conn).install()
        yield Places(virtual, real)


def table(hunted: Sequence[Hunted]) -> pd.DataFrame:
    """One row a mutant: the change, what caught it and after how much, and which checkers saw it, too."""
    rows = [
        {
            "mutant": one.mutant.name,
            "change": one.mutant.change,
            "caught by": kind(one.mutant) if one.catch else "nothing",
            "promise": one.catch.promise if one.catch else "",
            "steps": one.catch.steps if one.catch else None,
            "after": _counted(one.catch) if one.catch else "",
            "checkers": ", ".join(sorted({violation.check for violation in one.checks})),
            "seconds": round(one.seconds, 2),
        }
        for one in hunted
    ]
    return pd.DataFrame(rows).astype({"steps": "Int64"})


def _counted(catch: Catch) -> str:
    return f"{catch.tries:,} {catch.unit.removesuffix('s') if catch.tries == 1 else catch.unit}"


def kind(mutant: Mutant) -> str:
    """explorer, two sessions, plan or property."""
    return {_explore: "explorer", _play: "two sessions", _plan_of_claim: "plan", _delays: "property"}[
        mutant.hunter.func
    ]


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _edited(edit: Edit) -> str:
    before = getattr(QUEUE, edit.statement)
    if before.count(edit.old) != 1:
        raise JobQueueError(
            f"{edit.statement} has {edit.old!r} {before.count(edit.old)} times: this mutant has to be written anew"
        )
    return before.replace(edit.old, edit.new)


# ---------------------------------------------------------------- hunters


def _explore(scenario: explorer.Scenario, depth: int, places: Places) -> Catch | None:
    result = explorer.explore(places.virtual, scenario, depth=depth)
    found = result.violation
    return found and Catch(found.promise, result.states, "states", len(found.trace), found)


def _play(name: str, places: Places) -> Catch | None:
    played = sessions.play(places.real, scripts.SCRIPTS[name])
    if played.differs_at is None:
        return None
    return Catch(scripts.SCRIPTS[name].lesson, played.differs_at, "lines", played.differs_at, played)


def _plan_of_claim(places: Places) -> Catch | None:
    """The clock has to be a bound of the index, or a claim walks the whole future."""
    asked = claim_arguments("A", {"mail": 60}, 10)
    with psycopg.connect(places.real, autocommit=True) as conn, ExitStack() as stack:
        if VOLATILE.is_applied:
            conn.execute(SQL.volatile_clock)
            stack.callback(conn.execute, SQL.stable_clock)
        conn.execute(SQL.by_index)
        [plan] = conn.execute(" ".join([SQL.explain, QUEUE.claim]), asked).fetchone()
    bounds = [node["Index Cond"] for node in _nodes(plan[0]["Plan"]) if "<=" in node.get("Index Cond", "")]
    return None if bounds else Catch("a claim finds due jobs by an index bound", 1, "plans", 1, plan)


def _nodes(node: dict) -> Iterator[dict]:
    yield node
    for inner in node.get("Plans", ()):
        yield from _nodes(inner)


def _delays(places: Places) -> Catch | None:
    """A delay lies between 0 and the ceiling, whatever the seed."""
    backoff = Backoff(base_seconds=1, ceiling_seconds=60)
    for seed in range(SEEDS):
        delay = backoff.delay(seed % 8 + 1, random.Random(seed))
        if not 0 <= delay <= 60:
            return Catch("a delay lies between its floor and its ceiling", seed + 1, "seeds", 1, delay)
    return None


# ---------------------------------------------------------------- functions that replace the queue's own


def _without_lock(self: Queue, verb: str, statement: str, asked: dict) -> list:
    return self._rows(statement, asked)


def _check_then_write(self: Queue, verb: str, statement: str, asked: dict) -> list:
    sight = self._sights([asked["id"]]).get(asked["id"])
    mine = sight and (sight.status, sight.locked_by, sight.epoch) == ("running", asked["owner"], asked["epoch"])
    return self._rows(statement, asked) if verb != "publish" or (mine and sight.now < sight.locked_until) else []


def _look_in_the_update(self: Queue, verb, lease, statement, told=None, *, candidate=None, **given) -> Outcome:
    with self.conn.cursor(row_factory=dict_row) as cursor:
        asked = {"id": lease.id, "owner": lease.owner, "epoch": lease.epoch}
        row = cursor.execute(SQL.complete_and_look, asked).fetchone()
    if row.pop("hits"):
        return Outcome.APPLIED
    found = decide(verb, lease.owner, lease.epoch, Sight(**row))
    if found is AGAIN:
        raise InfrastructureError("the row is mine, and yet nothing was updated")
    return found


def _archive_in_two(self: Queue, *, older_than_seconds: float, statuses=("done",), limit: int = 1000) -> int:
    rows = self._rows(SQL.take_out, {"age": older_than_seconds, "statuses": list(statuses)})
    for (row,) in rows:
        self.conn.execute(SQL.put_in, {"row": row})
    return len(rows)


def _decide_in_two(self: Schedules, due) -> Ticked:
    plan = _plan(due)
    with self.conn.transaction():
        recorded = self._rows(SQL.record_slots, **plan)
    if not recorded:
        return Ticked()
    with self.conn.transaction():
        return Ticked([Enqueued(row[0], True) for row in self._rows(SQL.make_slot_jobs, **plan)])


def _no_transaction_of_its_own(self: Queue, verb: str):
    return nullcontext()


def _normal_jitter(self: Backoff, attempt: int, rng: random.Random) -> float:
    mean = min(self.ceiling_seconds, self._shaped(attempt))
    return rng.gauss(mean, mean / 3)


class _Volatile:
    """Set while the volatile clock is the mutant: it is a change to the schema, made in the hunter's own database."""

    is_applied = False


VOLATILE = _Volatile

# ---------------------------------------------------------------- the mutants

_EPOCH = " and epoch = %(epoch)s"
_LEASE = " and locked_by = %(owner)s and epoch = %(epoch)s"
_FEW = scenarios.OneJob("a lease and its heartbeat", verbs=("heartbeat", "complete"), digests=(), support=False)
_ENDS = scenarios.OneJob("a lease and its ends", verbs=("complete", "fail", "release"), digests=(), support=False)
_PUBLISH = scenarios.OneJob("a lease and its result", verbs=("complete",), support=False)
_SUPPORT = scenarios.OneJob("a lease and support", verbs=("complete", "fail permanently"), digests=())
_REMOVED = scenarios.Slots(
    "a schedule removed and put again",
    schedulers=("S1",),
    steps=(60,),
    others=(("editor", "remove"), ("worker", scenarios.FORGET), ("clock", "60 s"), ("clock", "steps back 60 s")),
)


def _searched(scenario, depth):
    return partial(_explore, scenario, depth)


def _played(name):
    return partial(_play, name)


_ALL = (
    Mutant(
        "heartbeat by id",
        "a heartbeat names the job only: whoever knows its number renews it",
        _searched(_FEW, 4),
        (Edit("heartbeat", _LEASE, ""),),
        seen_by_checks=("stale write accepted",),
    ),
    Mutant(
        "heartbeat without epoch",
        "a heartbeat is fenced by the owner's name alone",
        _searched(_FEW, 4),
        (Edit("heartbeat", _EPOCH, ""),),
        seen_by_checks=("stale write accepted",),
    ),
    Mutant(
        "complete without epoch",
        "a completion is fenced by the owner's name alone",
        _searched(_FEW, 4),
        (Edit("complete", _EPOCH, ""),),
        seen_by_checks=("stale write accepted",),
    ),
    Mutant(
        "publish without epoch",
        "a publication is fenced by the owner's name alone",
        _searched(_PUBLISH, 4),
        (Edit("publish", f"{_EPOCH}\n", "\n"),),
        seen_by_checks=("stale write accepted",),
    ),
    Mutant(
        "owner instead of epoch",
        "fail and release trust the owner's name, since it is `unique anyway`",
        _searched(_ENDS, 4),
        (Edit("fail", _EPOCH, ""), Edit("release", _EPOCH, "")),
    ),
    Mutant(
        "epoch given back on release",
        "a release undoes the claim altogether, the epoch, too",
        _searched(_ENDS, 4),
        (Edit("release", "attempts = attempts - 1,", "attempts = attempts - 1, epoch = epoch - 1,"),),
        seen_by_checks=("epoch not increasing",),
    ),
    Mutant(
        "epoch reset by redrive",
        "a redriven job begins anew, at epoch 0",
        _searched(_SUPPORT, 4),
        (Edit("redrive", "status = 'ready', attempts = 0", "status = 'ready', epoch = 0, attempts = 0"),),
    ),
    Mutant(
        "claim without SKIP LOCKED",
        "a claim waits for the row that another is claiming",
        _played("claim beside an open claim"),
        (Edit("claim", "for no key update skip locked", "for no key update"),),
    ),
    Mutant(
        "claim in a caller's transaction",
        "a claim joins the transaction that is open",
        _played("claim in a caller's transaction"),
        swaps=(Swap(Queue, "_own_transaction", _no_transaction_of_its_own),),
    ),
    Mutant(
        "adoption of a lease in force",
        "whoever is asked to adopt does so",
        _searched(_FEW, 4),
        (Edit("adopt", " and locked_until <= jobqueue.now()", ""),),
        seen_by_checks=("two valid authorities",),
    ),
    Mutant(
        "reaper by its own clock",
        "the reaper compares with its machine's clock, which is 15 s ahead",
        _searched(_FEW, 4),
        (
            Edit("expired", "locked_until <= jobqueue.now()", "locked_until <= jobqueue.now() + interval '15 seconds'"),
            Edit(
                "reap", "j.locked_until <= jobqueue.now()", "j.locked_until <= jobqueue.now() + interval '15 seconds'"
            ),
        ),
        seen_by_checks=("two valid authorities",),
    ),
    Mutant(
        "reaper by a stale look",
        "the reaper looks without a lock and does not look again",
        _played("reap beside an open heartbeat"),
        (
            Edit("expired", " for no key update skip locked", ""),
            Edit("reap", " and j.locked_until <= jobqueue.now()", ""),
        ),
    ),
    Mutant(
        "lost leases cost nothing",
        "a lost lease gives its attempt back, as a release does",
        _searched(_FEW, 4),
        (Edit("reap", "lease_losses = lease_losses + 1, releases = 0", "attempts = attempts - 1, releases = 0"),),
    ),
    Mutant(
        "publish after the end",
        "a publication does not ask whether the lease is still in force",
        _searched(_PUBLISH, 4),
        (Edit("publish", "\n  and jobqueue.now() < locked_until", ""),),
    ),
    Mutant(
        "publish twice",
        "an epoch may publish again, over what it has published",
        _searched(_PUBLISH, 4),
        (Edit("publish", "\n  and (published_epoch, published_by) is distinct from (epoch, locked_by)", ""),),
    ),
    Mutant(
        "publish in one statement",
        "one statement is enough, its WHERE has a clock",
        _played("publish behind a lock, past the end"),
        swaps=(Swap(Queue, "_sent", _without_lock),),
    ),
    Mutant(
        "publish: check, then write",
        "the row is read, found to be mine, then written by its id",
        _played("publish behind a cancellation"),
        (Edit("publish", " and status = 'running'" + _LEASE + "\n  and jobqueue.now() < locked_until", ""),),
        (Swap(Queue, "_sent", _check_then_write),),
    ),
    Mutant(
        "look in the UPDATE's statement",
        "update and look go in one statement, to save a round trip",
        _played("complete behind a reaper"),
        swaps=(Swap(Queue, "_transition", _look_in_the_update),),
    ),
    Mutant(
        "heartbeats that wait",
        "heartbeat_many without SKIP LOCKED",
        _played("heartbeats beside one held row"),
        (Edit("heartbeat_many", "for no key update of j skip locked", "for no key update of j"),),
    ),
    Mutant(
        "last attempts claimed ahead",
        "prefetch takes what is due, a job's last attempt, too",
        _searched(scenarios.Batches(), 3),
        (Edit("claim", " and (place <= %(slots)s or safe)", ""),),
    ),
    Mutant(
        "cancellation of what is done",
        "a cancellation has its way with done jobs, too",
        _searched(_SUPPORT, 4),
        (Edit("cancel", "seen.status in ('ready', 'running')", "seen.status in ('ready', 'running', 'done')"),),
    ),
    Mutant(
        "key only in the live row",
        "a key goes to the archive with its job",
        _searched(scenarios.Keys(), 3),
        (
            Edit(
                "archive",
                "returning *)",
                "returning *),\n"
                "forgotten as (delete from jobqueue.job_key where job_id = any (array(select id from old)))",
            ),
        ),
        seen_by_checks=("one key two jobs",),
    ),
    Mutant(
        "keys pruned by age alone",
        "a key older than its time goes, whatever its job does",
        _searched(scenarios.Keys(), 3),
        (Edit("purge_keys", "\n    and not exists (select from jobqueue.job j where j.id = k.job_id)", ""),),
    ),
    Mutant(
        "archive before commit",
        "the archiver takes out and puts in, in two transactions",
        _searched(scenarios.Keys(), 3),
        swaps=(Swap(Queue, "archive", _archive_in_two),),
    ),
    Mutant(
        "slot outside the job's transaction",
        "the slot is recorded, then its job is made",
        _searched(scenarios.Slots(), 3),
        swaps=(Swap(Schedules, "_decide", _decide_in_two),),
    ),
    Mutant(
        "decision without a revision",
        "what a scheduler saw is what it fires, whatever was changed since",
        _searched(scenarios.Slots(), 4),
        (Edit("fire", " and s.revision = %(revision)s", ""),),
    ),
    Mutant(
        "removal without a tombstone",
        "a removed schedule is deleted, with the memory of its slots",
        _searched(_REMOVED, 5),
        (Edit("remove_schedule", QUEUE.remove_schedule, SQL.remove_for_good),),
    ),
    Mutant(
        "VOLATILE clock",
        "jobqueue.now() is clock_timestamp(), which is more exact",
        partial(_plan_of_claim),
        swaps=(Swap(_Volatile, "is_applied", True),),
    ),
    Mutant(
        "jitter below zero",
        "jitter is drawn from a normal distribution",
        partial(_delays),
        swaps=(Swap(Backoff, "delay", _normal_jitter),),
    ),
)
MUTANTS = {mutant.name: mutant for mutant in _ALL}
