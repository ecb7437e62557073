"""Searches every interleaving of bounded actors, on the shipped SQL, under the virtual clock, breadth first.

    state = the rows of every table, whole + the time + what the actors know
      │ put back into empty tables, savepoint
      ├── action ──▶ answer, rows ──▶ both judged ──▶ a new state? then it waits for its turn   (roll back)
      └── action ──▶ …                an action is one call of one actor: a whole transaction, as the queue's verbs are

Breadth first: each state is entered once, by a shortest way, so the first violation found has a shortest trace.
One connection can't show lock waits: for these see `jobqueue.lab.sessions`.
"""

import json
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from multiprocessing import get_context, parent_process
from typing import Any, Protocol

import pandas as pd
import psycopg
from tqdm.auto import tqdm

from ..errors import JobQueueError
from ..queue import Queue
from ..schedules import Schedules
from . import database
from .line import SQL, Line

CHECKS = "no statement of the queue is refused by its own table"
START = datetime(2030, 1, 1, tzinfo=UTC)
SAID = "The search plays every order of calls in databases of its own there, one after the other, and drops them."
DEEP_SECONDS = 3600  # for one family; the slowest takes a minute
_VACUUM_AFTER = 100  # states
_INSTANTS_OF_THE_PAST = re.compile(r'"at" ?: ?"[^"]*",? ?')  # of a history: nothing ever compares them


@dataclass(frozen=True)
class Step:
    """One action of a trace, when (seconds after the beginning), and what it answered."""

    at_seconds: float
    actor: str
    action: str
    answer: str


@dataclass(frozen=True)
class Found:
    """A promise that does not hold: which, how it shows, and a shortest way there."""

    promise: str
    detail: str
    trace: tuple[Step, ...]

    def frame(self) -> pd.DataFrame:
        """The trace as a table, one row a step."""
        return pd.DataFrame([vars(step) for step in self.trace], index=range(1, len(self.trace) + 1))


@dataclass(frozen=True)
class Explored:
    """What a search covered: every order of at most `depth` actions, if complete (else the time limit ended it)."""

    scenario: str
    depth: int
    states: int
    transitions: int
    seconds: float
    complete: bool
    violation: Found | None


class Broken(Exception):
    """A promise does not hold in this state."""

    def __init__(self, promise: str, detail: str):
        super().__init__(f"{promise}: {detail}")
        self.promise, self.detail = promise, detail


class Scenario(Protocol):
    """Bounded actors: what they may do, and what must be true of each answer and of the rows after it."""

    name: str
    makes_jobs: bool  # its actions enqueue, too (False: only `begin` does, and only jobs are touched)

    def begin(self, world: "World") -> Any:
        """Makes the first rows; returns what the actors know (hashable)."""

    def actions(self, known: Any) -> Sequence[tuple]:
        """Every action that some actor may try now, (actor, verb, …), those that must be refused included."""

    def act(self, world: "World", known: Any, action: tuple) -> Any:
        """Does it, says in world.answer what came back; returns what the actors know then; raises Broken at a false
        answer."""

    def judge(self, known: Any, rows: dict[str, list[dict]]) -> None:
        """Raises Broken where the rows contradict what the actors were told."""


class World:
    """One virtual database inside one transaction that never commits."""

    def __init__(self, line: Line, *, makes_jobs: bool = True):
        self.line, self._makes_jobs = line, makes_jobs
        self._reading = SQL.world if makes_jobs else SQL.jobs
        self.queue, self.schedules = Queue(line), Schedules(line)
        self.now = 0.0  # seconds after START
        self.answer = "…"  # of the last action, for the trace
        self._put = 0
        line.send(SQL.base)

    @property
    def instant(self) -> datetime:
        return START + timedelta(seconds=self.now)

    def set(self, seconds: float) -> None:
        """Moves the clock, from this statement on; the end of a branch takes it back."""
        self.now = seconds
        self.line.send(SQL.set_clock, {"now": self.instant.isoformat()})

    def put(self, state: "State") -> None:
        """The world as it was in this state."""
        self._put += 1
        if self._put % _VACUUM_AFTER == 0:
            self._vacuum()
        self.line.send(SQL.to_base)
        self.set(state.now)
        self.line.send(SQL.restore, {"world": state.rows})
        self.line.send(SQL.branch)
        self._restore_ids()

    def back(self, state: "State") -> None:
        """Undoes the last action."""
        self.now = state.now
        self.line.send(SQL.back)
        self._restore_ids()

    def read(self) -> str:
        told = self.line.send(self._reading)
        self.line.flush()
        return told.rows[0][0]

    def _vacuum(self) -> None:
        """What was undone lies dead in the tables; cleared out now and then, the server has a fifth less to do."""
        for statement in (SQL.rollback, SQL.vacuum, SQL.begin, SQL.base):
            self.line.send(statement)
            self.line.flush()

    def _restore_ids(self) -> None:
        if self._makes_jobs:
            self.line.send(SQL.restore_ids)


@dataclass(frozen=True, eq=False)
class State:
    """A world to go on from, and how it was reached."""

    rows: str  # JSON
    now: float
    known: Any
    depth: int
    step: Step | None = None
    before: "State | None" = None

    @cached_property
    def identity(self):
        return hash(_INSTANTS_OF_THE_PAST.sub("", self.rows)), self.now, self.known

    def trace(self) -> tuple[Step, ...]:
        return () if self.step is None else (*self.before.trace(), self.step)


def explore(
    dsn: str, scenario: Scenario, *, depth: int, limit_seconds: float = 600, progress: bool = False
) -> Explored:
    """Searches `scenario` to `depth` actions in the virtual, empty database `dsn`; leaves no row behind.

    A violation ends the search: it is in the result, with a shortest trace that shows it.
    """
    begun = time.monotonic()
    bar = tqdm(unit=" transitions", desc=scenario.name, disable=not progress, leave=False)
    with Line.open(dsn) as line, bar:
        search = _Search(World(line, makes_jobs=scenario.makes_jobs), scenario, begun + limit_seconds, bar)
        violation = search.run(depth)
    took = time.monotonic() - begun
    return Explored(scenario.name, depth, len(search.seen), search.transitions, took, search.complete, violation)


def explore_all(
    scenarios: Sequence[tuple[Scenario, int]], *, dsn: str, processes: int = 2, limit_seconds: float = 600
) -> list[Explored]:
    """Searches each (scenario, depth) in a virtual database of its own on this server; answers in input order."""
    todo = [(dsn, scenario, depth, limit_seconds) for scenario, depth in scenarios]
    if processes == 1:
        return [_in_own_database(*one) for one in todo]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_end_with_parent) as pool:
        return list(pool.map(_in_own_database, *zip(*todo, strict=True)))


@dataclass(frozen=True)
class Deep:
    """A search of every family, to be kept as evidence."""

    postgres: str
    results: tuple[Explored, ...]

    @property
    def held(self) -> bool:
        return all(one.complete and one.violation is None for one in self.results)

    def text(self) -> str:
        """The table of what was covered, and a shortest trace of each violation."""
        traces = [f"\n{one.scenario}: {one.violation.promise}: {one.violation.detail}\n{one.violation.frame()}"
                  for one in self.results if one.violation]  # fmt: skip
        return "\n".join([frame(self.results).round(1).to_string(index=False), *traces])

    def dumps(self) -> str:
        """JSON, for the pack; without the seconds, two searches of one schema say the same."""
        families = frame(self.results).drop(columns="seconds").to_dict("records")
        return json.dumps({"kind": "search", "postgresql": self.postgres, "held": self.held, "families": families})


def deep(
    prefix=None, *, shallower: int = 0, progress: bool = False, confirm: bool | None = None
) -> Deep:
    """Searches `scenarios.FAMILIES` one after the other, so many actions less deep, on a server of its own or
    (`database.ground`) on JOBQUEUE_DSN's."""
    from .scenarios import FAMILIES  # they build on this module

    with database.ground(SAID, prefix, confirm=confirm) as place:
        bar = tqdm(FAMILIES, desc="every order of calls", unit="family", disable=not progress)
        results = [_in_own_database(place.dsn, scenario, max(1, depth - shallower), DEEP_SECONDS)
                   for scenario, depth in bar]  # fmt: skip
        return Deep(place.version, tuple(results))


def frame(results: Sequence[Explored]) -> pd.DataFrame:
    """What searches covered, one row each."""
    rows = [
        {name: getattr(one, name) for name in ("scenario", "depth", "states", "transitions", "seconds", "complete")}
        | {"violation": one.violation.promise if one.violation else "none"}
        for one in results
    ]
    return pd.DataFrame(rows)


def _end_with_parent() -> None:
    """A killed notebook must not leave its searches behind: they would go on for minutes."""

    def watch() -> None:
        parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _in_own_database(dsn: str, scenario: Scenario, depth: int, limit_seconds: float) -> Explored:
    with virtual_database(dsn) as own:
        return explore(own, scenario, depth=depth, limit_seconds=limit_seconds)


@contextmanager
def virtual_database(dsn: str) -> Iterator[str]:
    """DSN of a new database on virtual time on the server of `dsn`; dropped at the end."""
    with database.scratch(dsn) as own:
        with psycopg.connect(own, autocommit=True) as conn:
            Queue(conn).install(virtual=True)
        yield own


@dataclass
class _Search:
    world: World
    scenario: Scenario
    deadline: float
    bar: tqdm
    seen: set = field(default_factory=set)
    transitions: int = 0
    complete: bool = True

    def run(self, depth: int) -> Found | None:
        self.world.set(0)
        self.world.line.send(SQL.restore_ids)
        known = self.scenario.begin(self.world)
        first = State(self.world.read(), self.world.now, known, 0)
        self.seen.add(first.identity)
        level = [first]
        for _ in range(depth):
            following: list[State] = []
            for state in level:
                found = self._expand(state, following)
                if found or not self.complete:
                    return found
            level = following
        return None

    def _expand(self, state: State, following: list[State]) -> Found | None:
        self.world.put(state)
        for action in self.scenario.actions(state.known):
            if time.monotonic() > self.deadline:
                self.complete = False
                return None
            try:
                after = self._try(state, action)
            except Broken as broken:
                return self._found(broken, state, action)
            except (JobQueueError, psycopg.Error) as error:
                if self.world.line.closed:
                    raise  # the server has gone: that says nothing about the queue
                self.world.answer = "refused by the database"
                return self._found(Broken(CHECKS, str(error).splitlines()[0]), state, action)
            if after is not state:
                self.world.back(state)
                if after.identity not in self.seen:
                    self.seen.add(after.identity)
                    following.append(after)
        return None

    def _try(self, state: State, action: tuple) -> State:
        self.transitions += 1
        self.bar.update()
        self.world.answer = "…"
        known = self.scenario.act(self.world, state.known, action)
        rows = self.world.read()
        if known is state.known and rows == state.rows and self.world.now == state.now:
            return state  # refused, and nothing has changed: judged already
        after = State(rows, self.world.now, known, state.depth + 1, self._step(state, action), state)
        if after.identity not in self.seen:  # the same rows and the same knowledge have been judged before
            self.scenario.judge(known, json.loads(rows))
        return after

    def _step(self, state: State, action: tuple) -> Step:
        actor, *rest = action
        return Step(state.now, actor, " ".join(map(str, rest)), self.world.answer)

    def _found(self, broken: Broken, state: State, action: tuple) -> Found:
        return Found(broken.promise, broken.detail, (*state.trace(), self._step(state, action)))
