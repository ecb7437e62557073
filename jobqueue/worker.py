"""Claims jobs, runs their handlers in threads, keeps their leases, and tells the database how each ended.

    rounds   the thread that called `run`: complete what finished and claim what is free, one round trip each
    slots    `concurrency` threads that run handlers
    pulse    a thread and a connection of its own for heartbeats (one statement for all leases) and for NOTIFY
    endings  a thread and a connection for what is not a completion: a row that someone holds delays no completion
    watch    a thread without a connection: lost authority by the monotonic clock, and handlers that run too long

They share a `Shift`: the leases of one run, each in one place at a time (waiting, in a slot, finished or in endings).
"""

import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from . import limits
from .context import Handler, Handlers
from .endings import Endings
from .errors import InvalidInput, JobQueueError
from .loop import CONNECT_SECONDS, LOCK_SECONDS, Bell, Incidents, OnDead, Session, log
from .publication import Folder
from .pulse import Pulse
from .rounds import Rounds
from .shift import End, Shift
from .slot import Slot
from .watch import Watch

STUCK = 75  # the exit code that asks the supervisor for a new process (EX_TEMPFAIL)
CLOSING_SECONDS = 5  # after the grace: how long the last completions and releases wait for a database that is away
ROW_SECONDS = 0.2  # a row that somebody holds: the next failure or release has its turn


class Worker:
    """Runs `handlers` ({type: callable or Handler}) for the jobs in `dsn`'s database; claims no other types.

    owner: the name in locked_by, unique to each start by default. prefetch: at most so many jobs are claimed ahead of a
    free slot (adapted to how long handlers take). grace_seconds: how long running handlers may go on after `stop`; what
    has not finished then is released, its attempt given back. artifacts: the folder for candidates. on_dead(job): for
    each dead letter, before the next failure is told: it should be quick. prepare_threshold=None: behind a transaction
    pooler (nothing prepared, no LISTEN). fresh_owner: owner is unique to this start, so that rows under it which this
    worker does not hold (a claim's reply was lost) are its own to release.
    """

    def __init__(
        self,
        dsn: str,
        handlers: Handlers,
        *,
        owner: str | None = None,
        concurrency: int = 4,
        prefetch: int = 1000,
        poll_seconds: float = 1,
        grace_seconds: float = 10,
        artifacts: Folder | None = None,
        on_dead: OnDead | None = None,
        prepare_threshold: int | None = 5,
        fresh_owner: bool | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.owner = limits.owner(_unique_owner() if owner is None else owner)
        self.handlers = _checked_handlers(handlers)
        self.concurrency = limits.integer(concurrency, "concurrency", 1, 500)
        self.prefetch = limits.integer(prefetch, "prefetch", 0, limits.BATCH)
        self.poll_seconds = limits.seconds(poll_seconds, "poll_seconds", 0.001, 86_400)
        self.grace_seconds = limits.seconds(grace_seconds, "grace_seconds", 0, 86_400)
        self.artifacts, self.on_dead, self.dsn, self.prepare_threshold = artifacts, on_dead, dsn, prepare_threshold
        self.fresh_owner = owner is None if fresh_owner is None else fresh_owner
        self.rng = rng or random.Random()
        self.stuck = False
        self._pid = os.getpid()
        self._stopping = threading.Event()  # never waited for: see Bell
        self._bell = Bell()
        self._running = threading.Lock()

    def run(self) -> None:
        """Until `stop`, or until all slots are stuck (then `stuck` is True and the process should end with code 75).

        Outages are waited for. Raises JobQueueError where asking again can't help: no schema, no right.
        """
        with self._run() as run:
            while not self.is_stopping:
                self._bell.wait(run.rounds.step())

    def run_once(self) -> int:
        """Claims for the free slots, runs what came to its end, and returns how many jobs that were.

        Raises InfrastructureError where it could not claim.
        """
        with self._run() as run:
            claimed = 0 if self.is_stopping else run.rounds.once()
            run.rounds.settle(float("inf"), lambda: not run.shift.held or self.is_stopping)
            return claimed

    def stop(self) -> None:
        """From any thread or signal handler, for good: no new claim, the grace for handlers, a release of the rest."""
        self._stopping.set()
        self._bell.ring()

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping.is_set()

    @contextmanager
    def _run(self) -> Iterator["_Run"]:
        if os.getpid() != self._pid:
            raise JobQueueError(
                "this worker was made before a fork: make one in each process, its owner must be unique"
            )
        if not self._running.acquire(blocking=False):
            raise JobQueueError("this worker is running already, in another thread")
        try:
            run = _Run(self)
            try:  # an interrupt may come between any two lines
                run.begin()
                yield run
            except BaseException:
                run.end(failing=True)
                raise
            run.end()
        finally:
            self._running.release()


class _Run:
    """The threads and connections of a worker, for as long as the block lasts; it leaves none behind."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.shift = Shift(worker._bell, Incidents())
        self.rounds = Rounds(worker, self.shift, self._session(lock_seconds=LOCK_SECONDS))
        self._shortest = min(handler.lease_seconds for handler in worker.handlers.values())
        listens = worker.prepare_threshold is not None
        self._pulse = Pulse(self.shift, self._session(lock_seconds=LOCK_SECONDS), self._shortest, listens=listens)
        self._endings = Endings(self.shift, self._session(lock_seconds=ROW_SECONDS), worker.on_dead)
        self._watch = Watch(self.shift, self._shortest, given_up=self._replace_slot, also=self._hurry)
        self._services: list[threading.Thread] = []
        self._slots: list[Slot] = []
        self._end_by = float("inf")

    def begin(self) -> None:
        for _ in range(self._worker.concurrency):
            self._add_slot()
        services = {"endings": self._endings.run, "pulse": self._pulse.run, "watch": self._watch.run}
        for name, run in services.items():
            self._spawn(self._services, name, run)

    def end(self, *, failing: bool = False) -> None:
        """Raises what ended one of the threads, or what the drain met; not if the run is failing already."""
        try:
            self._drain()
        except JobQueueError:
            if not failing:
                raise
        finally:
            self._close()
        if not failing and self.shift.failure is not None:
            raise self.shift.failure

    def _session(self, **options: Any) -> Session:
        worker = self._worker
        return Session(worker.dsn, worker.owner, prepare_threshold=worker.prepare_threshold, **options)

    def _spawn(self, threads: list[threading.Thread], name: str, run: Callable[..., None], *arguments: object) -> None:
        # Daemons: a handler that never returns must not keep the process alive.
        thread = threading.Thread(target=self._guarded, args=(run, *arguments), name=f"jobqueue-{name}", daemon=True)
        threads.append(thread)
        thread.start()

    def _guarded(self, run: Callable[..., None], *arguments: object) -> None:
        """Nobody would see a thread die: its error ends the run, and leaves from there."""
        try:
            run(*arguments)
        except BaseException as error:
            log.error("worker %s: ends because of: %s", self._worker.owner, error)
            self.shift.failure = self.shift.failure or error
            self._worker.stop()

    # ------------------------------------------------------------ slots that are stuck

    def _add_slot(self) -> None:
        slot = Slot(self._session, self._worker.artifacts, self._worker.rng)
        self._slots.append(slot)
        self._spawn(slot.threads, "slot", slot.work, self.shift)

    def _replace_slot(self) -> None:
        if self.shift.abandoned < self._worker.concurrency:
            self._add_slot()
            return
        log.error("worker %s: all slots are stuck in handlers that overran; ending with %s", self._worker.owner, STUCK)
        self._worker.stuck = True
        self._worker.stop()

    # ------------------------------------------------------------ the end

    def _drain(self) -> None:
        """Lets handlers finish, then releases what is left; what finished is completed until the database says so."""
        self.rounds.digest()
        self.shift.give_back("the worker is stopping")
        self.rounds.settle(time.monotonic() + self._worker.grace_seconds, lambda: not self.shift.unfinished())
        given_back = End("release", "the worker has stopped; the handler had not finished", counted=False)
        for held in self.shift.unfinished():
            held.lose()
            self.shift.end(held, given_back, abandon=True)
        self.rounds.settle(time.monotonic() + CLOSING_SECONDS, lambda: self.rounds.is_settled)
        if left := len(self.shift.all()):
            log.warning("worker %s: no answer; %s leases are left to end by themselves", self._worker.owner, left)

    def _hurry(self) -> None:
        """A database that doesn't answer must not keep a worker that was stopped: who waits for it gets an error."""
        if self._worker.is_stopping and self._end_by == float("inf"):
            self._end_by = time.monotonic() + self._worker.grace_seconds + CLOSING_SECONDS
        if time.monotonic() > self._end_by:
            self.rounds.session.hang_up()
            self._endings.session.hang_up()

    def _close(self) -> None:
        self.shift.closed.set()
        self._pulse.session.hang_up()
        self.shift.endings.put(None)
        self.rounds.sign_off()
        _join(self._services)
        slots = [slot for slot in self._slots if not slot.abandoned]
        for _ in slots:
            self.shift.waiting.put(None)
        _join([thread for slot in slots for thread in slot.threads])


def _join(threads: list[threading.Thread]) -> None:
    until = time.monotonic() + CONNECT_SECONDS  # the longest that one of them may still wait for the database
    for thread in threads:
        if thread.ident is not None:  # an interrupt may have come before it was started
            thread.join(max(0.0, until - time.monotonic()))


def _unique_owner() -> str:
    host = limits.clip(socket.gethostname(), 100)
    return f"{host}:{os.getpid()}:{secrets.token_hex(4)}"


def _checked_handlers(handlers: Handlers) -> dict[str, Handler]:
    if not isinstance(handlers, dict) or not handlers:
        raise InvalidInput("handlers must map at least one type to a callable or a Handler")
    return {
        limits.job_type(type): given if isinstance(given, Handler) else Handler(given)
        for type, given in handlers.items()
    }
