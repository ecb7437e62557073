"""The rules of known designs, injected into this queue, through the same episodes and checkers: what each lets through.

    found = profiles.compare()          # design × episode → anomalies, with the calls that led there
    profiles.table(found)               # the matrix as a frame; found[…].trace is the shortest way there

A profile changes the rule and nothing else, so the matrix compares rules, not products. Two anomalies are judged here,
beside `lab.checks`: two executions at once (a second worker starts while the first is alive and has been told nothing),
and a job that counts as over although nobody did its work.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby

import pandas as pd
import psycopg

from ..model import Claim
from ..outcome import Outcome
from ..queue import Queue
from ..sql import SQL as QUEUE
from ..sql import statements, text
from . import checks, database, explorer
from .clock import VirtualClock
from .history import Recorder, from_database, merge

SQL = statements(text("lab/profiles.sql"))
LEASE = 30.0
HOUR = 3600.0
SLOW_RECOVERY = 120.0  # seconds: a dead worker's job that waits longer is an anomaly
_FENCE = " and locked_by = %(owner)s and epoch = %(epoch)s"
_ENDED = "locked_until <= jobqueue.now()"


@dataclass(frozen=True)
class Profile:
    """One design by its rules: what is replaced in which statement, how long its lease is, what its workers do."""

    name: str
    rule: str
    edits: tuple[tuple[str, str, str], ...] = ()  # statement, old, new
    lease_seconds: float = LEASE
    beats: bool = True
    deletes_on_claim: bool = False
    bound_to_session: bool = False


@dataclass(frozen=True)
class Cell:
    """What an episode showed under a profile: anomalies (none: the promise held) and the calls that led there."""

    profile: str
    episode: str
    anomalies: tuple[str, ...]
    trace: tuple[str, ...]


def _unfenced(*verbs: str) -> tuple[tuple[str, str, str], ...]:
    return tuple((verb, _FENCE, "") for verb in verbs)


_BY_AGE = "started_at <= jobqueue.now() - interval '1 hour'"
PROFILES = (
    Profile("this queue", "a lease with heartbeats; owner and epoch in every WHERE"),
    Profile(
        "rescue by age", "no heartbeat; what has run for an hour is taken away",
        (("expired", _ENDED, _BY_AGE), ("reap", f"j.{_ENDED}", f"j.{_BY_AGE}")), lease_seconds=HOUR, beats=False,
    ),
    Profile("heartbeat by id", "whoever knows the job's number renews its lease", _unfenced("heartbeat")),
    Profile("delete on claim", "the row is gone when the work begins", deletes_on_claim=True, beats=False),
    Profile(
        "visibility timeout", "a lease, but no fence: a late answer counts",
        _unfenced("complete", "heartbeat", "publish"),
    ),
    Profile(
        "session lock", "the job is held by a database session; lost with it",
        (("expired", _ENDED, "true"), ("reap", f"j.{_ENDED}", "true"), *_unfenced("complete")),
        lease_seconds=0.001, beats=False, bound_to_session=True,
    ),
)  # fmt: skip


class Stage:
    """One job, two workers and an operator, in virtual time, under a profile."""

    def __init__(self, conn: psycopg.Connection, profile: Profile):
        self.conn, self.profile = conn, profile
        self.clock = VirtualClock(conn)
        names = ("producer", "A", "B", "operator")
        self.clients = [Recorder(Queue(conn), name, clock=lambda: self.clock.now) for name in names]
        self.producer, self.a, self.b, self.operator = self.clients
        self.alive = False  # A executes the job and has been told nothing that would stop it
        self.effects = 0
        self.anomalies: set[str] = set()
        self.producer.enqueue("mail")

    def a_claims(self):
        self.alive = True
        return self._claimed(self.a, "A")[0]

    def b_claims(self) -> Claim:
        claim = self._claimed(self.b, "B")
        if claim and self.alive:
            self.anomalies.add("two executions at once")
        return claim

    def a_dies(self) -> None:
        self.alive = False

    def reap(self) -> None:
        self.operator.reap()
        self.clock.advance(10)  # the backoff of a lost lease, and more

    def beat(self, client: Recorder, lease) -> None:
        if self.profile.beats and client.heartbeat(lease, lease_seconds=self.profile.lease_seconds) is Outcome.LOST:
            self.alive = self.alive and client is not self.a

    def works_and_completes(self, client: Recorder, lease) -> None:
        self.effects += 1
        client.complete(lease)

    def until_b_gets_it(self) -> Claim:
        """Reaper passes every minute, B asks; at most a day."""
        begun = self.clock.now
        while not (claim := self.b_claims()) and (self.clock.now - begun).total_seconds() < 86_400:
            self.clock.advance(60)
            self.reap()
            if self.profile.deletes_on_claim:
                break
        if claim and (self.clock.now - begun).total_seconds() > SLOW_RECOVERY:
            self.anomalies.add("recovery takes an hour")
        return claim

    def judged(self) -> Iterator[str]:
        history = merge(*(client.history for client in self.clients), from_database(self.conn))
        yield from sorted({violation.check for violation in checks.check(history)} | self.anomalies)

    def trace(self) -> tuple[str, ...]:
        calls = sorted((call for client in self.clients for call in client.calls), key=lambda call: call.invoked_at)
        lines = groupby(f"{call.client}: {call.verb} → {call.outcome or call.answer}" for call in calls)
        counted = ((line, len(list(same))) for line, same in lines)
        return tuple(line if n == 1 else f"{line}, {n} times" for line, n in counted)

    def _claimed(self, client: Recorder, owner: str) -> Claim:
        claim = client.claim(owner, lease_seconds=self.profile.lease_seconds)
        if claim and self.profile.deletes_on_claim:
            self.conn.execute(SQL.delete_job, {"ids": [lease.id for lease in claim]})
        return claim


def crash(stage: Stage) -> None:
    """A dies in mid-job; B is to do it."""
    stage.a_claims()
    stage.a_dies()
    claim = stage.until_b_gets_it()
    for lease in claim:
        stage.works_and_completes(stage.b, lease)


def freeze(stage: Stage) -> None:
    """A is frozen past its lease and speaks again while B works."""
    old = stage.a_claims()
    stage.a_dies()
    claim = stage.until_b_gets_it()
    stage.beat(stage.a, old)
    stage.effects += 1
    stage.a.complete(old)
    for lease in claim:
        stage.works_and_completes(stage.b, lease)


def long_job(stage: Stage) -> None:
    """A is alive and well, and its job takes two hours."""
    lease = stage.a_claims()
    for _ in range(int(2 * HOUR / 20)):
        stage.clock.advance(20)
        if stage.profile.beats:
            stage.beat(stage.a, lease)
    if not stage.profile.bound_to_session:  # a session that is there keeps its jobs
        stage.reap()
    stage.b_claims()
    stage.works_and_completes(stage.a, lease)


def cut_off(stage: Stage) -> None:
    """A's connection is cut for a moment, shorter than its lease; A goes on."""
    lease = stage.a_claims()
    stage.clock.advance(5)
    stage.reap()
    for other in stage.b_claims():
        stage.works_and_completes(stage.b, other)
    stage.works_and_completes(stage.a, lease)


EPISODES: dict[str, Callable[[Stage], None]] = {
    "a worker dies in mid-job": crash,
    "frozen past its lease, then speaks": freeze,
    "a healthy job of two hours": long_job,
    "cut off for a moment": cut_off,
}


def compare(dsn: str | None = None) -> list[Cell]:
    """Every profile through every episode, in a virtual database (on the server of `dsn`, or one of its own)."""
    with ExitStack() as stack:
        server = dsn or stack.enter_context(database.start())
        own = stack.enter_context(explorer.virtual_database(server))
        conn = stack.enter_context(psycopg.connect(own, autocommit=True))
        return [_cell(conn, profile, name) for profile in PROFILES for name in EPISODES]


def table(cells: list[Cell]) -> pd.DataFrame:
    """One row a design, one column an episode; `held` where nothing was let through."""
    frame = pd.DataFrame(
        [(c.profile, c.episode, ", ".join(c.anomalies) or "held") for c in cells], columns=["design", "episode", "seen"]
    )
    names = [profile.name for profile in PROFILES]
    return frame.pivot(index="design", columns="episode", values="seen").loc[names, list(EPISODES)]


def _cell(conn: psycopg.Connection, profile: Profile, episode: str) -> Cell:
    conn.execute(SQL.empty)
    with _ruled_by(profile):
        stage = Stage(conn, profile)
        EPISODES[episode](stage)
        if profile.deletes_on_claim and not stage.effects:
            stage.anomalies.add("over, and nobody did it")
        return Cell(profile.name, episode, tuple(stage.judged()), stage.trace())


@contextmanager
def _ruled_by(profile: Profile):
    """In this block the statements of this process follow the profile's rules."""
    before = {statement: getattr(QUEUE, statement) for statement, _, _ in profile.edits}
    try:
        for statement, old, new in profile.edits:
            if old not in before[statement]:
                raise KeyError(f"{statement} has no {old!r}: this profile has to be written anew")
            setattr(QUEUE, statement, before[statement].replace(old, new))
        yield
    finally:
        for statement, sent in before.items():
            setattr(QUEUE, statement, sent)
