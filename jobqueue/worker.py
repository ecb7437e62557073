"""Claims jobs, runs their handlers in threads, keeps their leases, and tells the database how each ended.

    run      rounds: complete what finished and claim what is free, one transaction and one round trip each
    slots    `concurrency` threads that run handlers
    pulse    a thread and a connection of its own for heartbeats (one statement for all leases) and for NOTIFY
    endings  a thread and a connection for what is not a completion: a row that someone holds delays no completion
    watch    a thread without a connection: lost authority by the monotonic clock, and handlers that run too long
"""

import logging
import os
import queue as queues
import random
import secrets
import socket
import threading
import time
from collections import deque

from . import limits
from .backoff import Backoff
from .context import End, Handler, Held, Slot
from .errors import InfrastructureError, InvalidInput, JobQueueError
from .loop import Incidents, Pause, Session, alert
from .model import Claim, Empty
from .outcome import Outcome
from .queue import Queue, translated
from .sql import SQL

log = logging.getLogger("jobqueue")

STUCK = 75  # the exit code that asks the supervisor for a new process (EX_TEMPFAIL)
AHEAD_SECONDS = 0.05  # prefetch no more than the slots are expected to start within this time
GIVE_BACK_SECONDS = 1.0  # a prefetched job that has waited so long is released for other workers
LISTEN_AGAIN_SECONDS = 30
CLOSING_SECONDS = 5  # how long the last releases may take where the database doesn't answer
_CONFIRMED = (Outcome.APPLIED, Outcome.ALREADY_APPLIED)


class Worker:
    """Runs `handlers` ({type: callable or Handler}) for the jobs in `dsn`'s database; claims only types that it handles.

    owner: the name in locked_by, unique to each start by default. prefetch: at most so many jobs are claimed ahead of a free
    slot (adapted to how long handlers take). grace_seconds: how long running handlers may go on after `stop`; what has not
    finished then is released, its attempt given back. artifacts: the folder for candidates. on_dead(job): for dead letters.
    prepare_threshold=None: behind a transaction pooler (nothing prepared, no LISTEN). fresh_owner: owner is unique to this
    start, so that rows under it which this worker does not hold (a claim's reply was lost) are its own to release.
    """

    def __init__(
        self,
        dsn: str,
        handlers: dict,
        *,
        owner: str | None = None,
        concurrency: int = 4,
        prefetch: int = 200,
        poll_seconds: float = 1,
        grace_seconds: float = 10,
        artifacts=None,
        on_dead=None,
        prepare_threshold: int | None = 5,
        fresh_owner: bool | None = None,
        rng: random.Random | None = None,
    ):
        self.owner = limits.owner(owner or _unique_owner())
        self.handlers = _checked_handlers(handlers)
        self.concurrency = limits.integer(concurrency, "concurrency", 1, 500)
        self.prefetch = limits.integer(prefetch, "prefetch", 0, 500)
        self.poll_seconds = limits.seconds(poll_seconds, "poll_seconds", 0.001, 86_400)
        self.grace_seconds = limits.seconds(grace_seconds, "grace_seconds", 0, 86_400)
        self.artifacts, self.on_dead, self.dsn = artifacts, on_dead, dsn
        self.stuck = False
        self._fresh_owner = owner is None if fresh_owner is None else fresh_owner
        self._prepare_threshold = prepare_threshold
        self._rng = rng or random.Random()
        self._leases = {type: handler.lease_seconds for type, handler in self.handlers.items()}
        self._shortest = min(self._leases.values())
        self._stopping = threading.Event()
        self._closed = threading.Event()
        self._wake = threading.Event()
        self._reset()

    def run(self) -> None:
        """Until `stop`, or until all slots are stuck (then `stuck` is True and the process should end with code 75)."""
        with self._started():
            while not self._stopping.is_set():
                self._wake.clear()
                if not self._round():
                    self._wake.wait(self._idle_seconds())
            self._drain()

    def run_once(self) -> int:
        """Claims for the free slots, runs what came to its end, and returns how many jobs that were."""
        with self._started():
            try:
                claimed = self._exchange([], ahead=0)
            except InfrastructureError as error:
                self._lost(error)
                return 0
            while self._held and not self._stopping.is_set():
                self._wake.clear()
                if not self._settle():
                    self._wake.wait(0.05)
            self._drain()
            return claimed

    def stop(self) -> None:
        """From any thread or signal handler: claim no more, let handlers finish for grace_seconds, release the rest."""
        self._stopping.set()
        self._wake.set()

    # ------------------------------------------------------------ rounds (the thread that called run)

    def _round(self) -> int:
        """One exchange with the database, where there is something to tell or room to fill; returns how much was done."""
        finished = self._finished_now()
        may_claim = time.monotonic() >= self._claim_after
        if not finished and not may_claim:
            self._give_back()
            return 0
        try:
            if not finished and self._idle and not self._something_due():
                return 0
            claimed = self._exchange(finished, ahead=self._ahead() if may_claim else None)
            self._incidents.flush(self._session.conn)
            self._pause.reset()
            return len(finished) + claimed
        except InfrastructureError as error:
            self._finished.extendleft(reversed(finished))
            self._lost(error)
            return 0

    def _settle(self) -> int:
        finished = self._finished_now()
        try:
            if finished:
                self._exchange(finished, ahead=None)
        except InfrastructureError as error:
            self._finished.extendleft(reversed(finished))
            self._lost(error)
            self._closed.wait(0.05)
        return len(finished)

    def _exchange(self, finished: list[Held], ahead: int | None) -> int:
        """ahead=None: complete only. Returns how many were claimed."""
        queue = self._session.queue
        if self._recovering:
            self._recover(queue)
        slots, room = self._room(ahead)
        nudges, sent = self._nudges, time.monotonic()
        leases = [held.lease for held in finished]
        outcomes, claim = queue.exchange(leases, self.owner, leases=self._leases, slots=slots, ahead=room)
        for held, outcome in zip(finished, outcomes):
            self._completed(held, outcome)
        for lease in claim:
            self._hold(Held(lease, self.handlers[lease.type], sent))
        if ahead is not None and slots + room:
            self._idle = False
            if claim:
                self._locked_in_a_row = 0
            else:
                self._nothing(queue, nudges)
        return len(claim)

    def _room(self, ahead: int | None) -> tuple[int, int]:
        if ahead is None or self._stopping.is_set():
            return 0, 0
        waiting = self._waiting.qsize()
        slots = max(0, self.concurrency - self._busy - waiting)
        return slots, max(0, ahead - max(0, waiting - (self.concurrency - self._busy)))

    def _ahead(self) -> int:
        """So many jobs as the slots are expected to start within a moment; none while handlers take long."""
        per_job = max(self._service_seconds, 1e-6)
        return min(self.prefetch, int(AHEAD_SECONDS * self.concurrency / per_job))

    def _finished_now(self) -> list[Held]:
        most = min(len(self._finished), limits.BATCH)
        return [self._finished.popleft() for _ in range(most)]

    def _completed(self, held: Held, outcome: Outcome) -> None:
        if outcome is Outcome.HELD:  # somebody's transaction holds the row: say it again, soon, without holding up the others
            threading.Timer(0.05, self._finish_later, [held]).start()
            return
        self._forget(held, "complete", outcome)

    def _finish_later(self, held: Held) -> None:
        self._finished.append(held)
        self._wake.set()

    def _hold(self, held: Held) -> None:
        with self._lock:
            self._held[held.lease.id, held.lease.epoch] = held
        self._waiting.put(held)

    def _forget(self, held: Held, verb: str, outcome: Outcome) -> None:
        with self._lock:
            self._held.pop((held.lease.id, held.lease.epoch), None)
        if outcome not in _CONFIRMED:
            held.lose(gone=True)
            self._incidents.add("stale_write_refused", held.lease.type)
            log.warning("job %s, epoch %s: %s was answered %s", held.lease.id, held.lease.epoch, verb, outcome.name)

    def _something_due(self) -> bool:
        """An idle worker's poll: one look, which claims nothing."""
        return self._nothing(self._session.queue, self._nudges)

    def _nothing(self, queue: Queue, nudges: int) -> bool:
        """Decides when to ask again, by the reason of the empty claim; True where there may be something now."""
        claim = queue.why_empty(list(self._leases))
        self._idle = claim.empty is not Empty.LOCKED
        if not self._idle:
            self._locked_in_a_row += 1
            wait = min(self.poll_seconds, 0.005 * 2 ** min(self._locked_in_a_row, 10)) * self._rng.uniform(0.5, 1)
        else:
            self._incidents.add(f"claim_empty_{claim.empty.name.lower()}")
            wait = self._idle_wait(queue, claim)
        self._claim_after = 0.0 if nudges != self._nudges else time.monotonic() + wait
        return not self._idle

    def _idle_wait(self, queue: Queue, claim: Claim) -> float:
        if self._listen(queue):
            return 0  # what was enqueued before this listener's row was there has told nobody: look once more
        if claim.next_run_at is None:
            return self.poll_seconds
        return min(self.poll_seconds, max(0.0, (claim.next_run_at - claim.asked_at).total_seconds()))

    def _listen(self, queue: Queue) -> bool:
        """Writes this worker in as a listener; True if it was not one already, as far as it knows."""
        if self._prepare_threshold is None or time.monotonic() < self._listening_until:
            return False
        with translated(queue.conn):
            queue.conn.execute(SQL.listen, {"owner": self.owner, "types": list(self._leases)})
        self._listening_until = time.monotonic() + LISTEN_AGAIN_SECONDS
        return True

    def _nudged(self) -> None:
        """A NOTIFY for this worker: the enqueuer has taken its listener row away."""
        self._nudges += 1
        self._listening_until = self._claim_after = 0.0
        self._idle = False
        self._wake.set()

    def _idle_seconds(self) -> float:
        wait = max(0.0, self._claim_after - time.monotonic())
        return min(wait, GIVE_BACK_SECONDS) if self._held else wait

    def _give_back(self) -> None:
        """Prefetched jobs that wait behind slow ones go back, for workers that are free."""
        waiting = self._waiting.qsize()
        if not waiting or self._busy < self.concurrency or time.monotonic() - self._last_start < GIVE_BACK_SECONDS:
            return
        for held in self._unstarted():
            self._endings.put((held, End("release", "claimed ahead, but the slots are busy", counted=False)))

    def _unstarted(self) -> list[Held]:
        taken = []
        while True:
            try:
                held = self._waiting.get_nowait()
            except queues.Empty:
                return taken
            held.ended = True
            taken.append(held)

    def _lost(self, error: InfrastructureError) -> None:
        wait = self._pause.seconds()
        log.warning("worker %s: %s; trying again in %.1f s", self.owner, error, wait)
        self._session.drop()
        self._recovering = True
        self._listening_until = 0.0
        self._closed.wait(wait)

    def _recover(self, queue: Queue) -> None:
        """After a lost connection: a claim may have been committed whose reply never came."""
        if self._fresh_owner:
            with self._lock:
                held = [held.lease.id for held in self._held.values()]
            with translated(queue.conn):
                count = queue.conn.execute(SQL.release_unheld, {"owner": self.owner, "held": held}).rowcount
            if count:
                log.warning("worker %s: released %s jobs of a claim whose reply was lost", self.owner, count)
        self._recovering = False

    # ------------------------------------------------------------ slots

    def _slot_loop(self) -> None:
        slot = Slot(self._open, self.artifacts)
        try:
            while (held := self._waiting.get()) is not None:
                if not self._run_in(slot, held):
                    return
        finally:
            slot.close()

    def _run_in(self, slot: Slot, held: Held) -> bool:
        """False where the slot was given up meanwhile: another thread has taken its place."""
        with self._lock:
            self._busy += 1
        held.started = self._last_start = time.monotonic()
        end = slot.run(held, self._release_delay)
        took = time.monotonic() - held.started
        with self._lock:
            if held.abandoned:
                self._abandoned -= 1
                return False
            held.ended = True
            self._busy -= 1
        self._service_seconds += (took - self._service_seconds) / 10
        self._ended(held, end)
        return True

    def _ended(self, held: Held, end: End) -> None:
        if end.verb != "complete":
            self._endings.put((held, end))
            return
        if end.settled is not None:
            self._forget(held, "complete", end.settled)
        else:
            self._finished.append(held)
        if not self._wake.is_set():
            self._wake.set()

    def _release_delay(self, held: Held) -> float:
        return (held.handler.backoff or Backoff()).delay(held.lease.releases + 1, self._rng)

    # ------------------------------------------------------------ endings: failures and releases

    def _endings_loop(self) -> None:
        session, pause = self._open(), Pause()
        while (item := self._endings.get()) is not None:
            held, end = item
            try:
                self._tell(session.queue, held, end)
                pause.reset()
            except InfrastructureError as error:
                log.warning("worker %s: job %s: %s", self.owner, held.lease.id, error)
                session.drop()
                self._endings.put(item)
                self._closed.wait(pause.seconds())
                if self._closed.is_set():
                    break
        session.drop()

    def _tell(self, queue: Queue, held: Held, end: End) -> None:
        status = None
        if end.verb == "release":
            outcome = queue.release(held.lease, str(end.error), delay_seconds=end.delay_seconds or 0, counted=end.counted)
        else:
            outcome, status = self._fail(queue, held, end)
        if end.verb == "release" and outcome is Outcome.CONFLICT:  # its unconfirmed commit had landed: the job is done
            outcome = queue.reconcile(held.lease)
        self._forget(held, end.verb, outcome)
        self._wake.set()
        if status in ("dead", "failed"):
            alert(queue, held.lease.id, self.on_dead)

    def _fail(self, queue: Queue, held: Held, end: End):
        backoff = held.handler.backoff or Backoff()
        options = {"delay_seconds": end.delay_seconds, "permanent": end.permanent, "backoff": backoff}
        try:
            return queue.fail_and_tell(held.lease, end.error, **options)
        except InfrastructureError:
            raise
        except JobQueueError as error:  # a text that can't be stored, a delay out of bounds: never a reason to lose the failure
            text = f"{type(end.error).__name__}: the report of this failure was refused ({error})"
            return queue.fail_and_tell(held.lease, text.encode("ascii", "replace").decode(), backoff=backoff)

    # ------------------------------------------------------------ pulse: heartbeats and NOTIFY

    def _pulse_loop(self) -> None:
        session, pause, listening = self._open(), Pause(), None
        period = min(self._shortest / 4, 0.5)
        while not self._closed.is_set():
            try:
                conn = session.conn
                if self._prepare_threshold is not None and listening is not conn:
                    with translated(conn):
                        conn.execute(SQL.subscribe)
                    listening = conn
                self._beat(session.queue)
                self._await_notice(conn, period)
                pause.reset()
            except JobQueueError as error:
                log.warning("worker %s: heartbeat: %s", self.owner, error)
                session.drop()
                self._closed.wait(pause.seconds())
        self._sign_off(session)

    def _beat(self, queue: Queue) -> None:
        now = time.monotonic()
        with self._lock:
            due = [held for held in self._held.values() if now - held.sent >= held.handler.lease_seconds / 3]
        due = [held for held in due if not held.gone][: limits.BATCH]
        seconds = [held.handler.lease_seconds for held in due]
        outcomes = queue.heartbeat_many([held.lease for held in due], lease_seconds=seconds)
        for held, outcome in zip(due, outcomes):
            self._renewed(held, outcome, now)

    def _renewed(self, held: Held, outcome: Outcome, sent: float) -> None:
        if outcome is Outcome.APPLIED:
            held.sent = sent
        elif outcome is not Outcome.HELD and not held.ended:
            held.lose(gone=True, cancelled=outcome is Outcome.CANCELLED)
            self._incidents.add("heartbeat_refused", held.lease.type)

    def _await_notice(self, conn, period: float) -> None:
        if self._prepare_threshold is None:
            self._closed.wait(period)
            return
        with translated(conn):
            for notice in conn.notifies(timeout=period, stop_after=1):
                if notice.payload == self.owner:
                    self._nudged()

    def _sign_off(self, session: Session) -> None:
        try:
            with translated(session.conn):
                session.conn.execute(SQL.unlisten, {"owner": self.owner})
            self._incidents.flush(session.conn, now=True)
        except JobQueueError as error:
            log.debug("worker %s: %s", self.owner, error)
        session.drop()

    # ------------------------------------------------------------ watch: what needs no database

    def _watch_loop(self) -> None:
        while not self._closed.wait(min(0.1, self._shortest / 10)):
            now = time.monotonic()
            with self._lock:
                held_now = list(self._held.values())
            for held in held_now:
                if now - held.sent > held.handler.lease_seconds and not held.is_lost:
                    held.lose()
                timeout = held.handler.timeout_seconds
                if timeout is not None and held.started is not None and now - held.started > timeout and not held.ended:
                    self._give_up(held)

    def _give_up(self, held: Held) -> None:
        """The handler overran its time: its attempt has failed, and another thread takes the slot's place."""
        with self._lock:
            if held.ended:
                return
            held.ended = held.abandoned = True
            self._busy -= 1
            self._abandoned += 1
            self.stuck = self._abandoned >= self.concurrency
        held.lose()
        log.error("job %s of type %s overran its timeout of %s s", held.lease.id, held.lease.type, held.handler.timeout_seconds)
        self._endings.put((held, End("fail", f"timeout: still running after {held.handler.timeout_seconds:g} s")))
        if self.stuck:
            log.error("worker %s: all slots are stuck in handlers that overran; ending with code %s", self.owner, STUCK)
            self.stop()
        else:
            self._spawn(self._slot_loop, "slot")

    # ------------------------------------------------------------ start and end

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[tuple[int, int], Held] = {}
        self._waiting: queues.SimpleQueue = queues.SimpleQueue()
        self._finished: deque[Held] = deque()
        self._endings: queues.SimpleQueue = queues.SimpleQueue()
        self._busy = self._abandoned = self._locked_in_a_row = self._nudges = 0
        self._service_seconds = 1.0  # until measured, handlers are taken for slow: nothing is claimed ahead
        self._last_start = self._claim_after = self._listening_until = 0.0
        self._recovering = self._idle = False
        self._incidents, self._pause = Incidents(), Pause()
        self._session = self._open()

    def _open(self, **options) -> Session:
        return Session(self.dsn, self.owner, prepare_threshold=self._prepare_threshold, **options)

    def _spawn(self, target, name: str) -> threading.Thread:
        # Daemons: a handler that never returns must not keep the process alive.
        thread = threading.Thread(target=target, name=f"jobqueue-{name}", daemon=True)
        thread.start()
        return thread

    def _started(self):
        return _Running(self)

    def _begin(self) -> None:
        self._closed.clear()
        for _ in range(self.concurrency):
            self._spawn(self._slot_loop, "slot")
        self._services = [self._spawn(loop, name) for loop, name in (
            (self._endings_loop, "endings"), (self._pulse_loop, "pulse"), (self._watch_loop, "watch"))]  # fmt: skip

    def _drain(self) -> None:
        """Lets handlers finish, then releases what is left; what finished is completed until the database says so."""
        for held in self._unstarted():
            self._endings.put((held, End("release", "the worker is stopping", counted=False)))
        self._settle_until(time.monotonic() + self.grace_seconds, self._unfinished)
        for held in self._unfinished():
            held.lose()
            held.ended = held.abandoned = True
            self._endings.put((held, End("release", "the worker has stopped; the handler had not finished", counted=False)))
        self._settle_until(time.monotonic() + CLOSING_SECONDS, lambda: self._held)

    def _settle_until(self, deadline: float, open_work) -> None:
        while (open_work() or self._finished) and time.monotonic() < deadline:
            self._wake.clear()
            if not self._settle():
                self._wake.wait(0.05)

    def _unfinished(self) -> list[Held]:
        with self._lock:
            return [held for held in self._held.values() if not held.ended]

    def _end(self) -> None:
        self._closed.set()
        self._endings.put(None)
        for _ in range(self.concurrency):
            self._waiting.put(None)
        for thread in self._services:
            thread.join(CLOSING_SECONDS)
        self._session.drop()


class _Running:
    """The worker's threads, for as long as the block lasts."""

    def __init__(self, worker: Worker):
        self._worker = worker

    def __enter__(self):
        self._worker._begin()

    def __exit__(self, *_):
        self._worker._end()


def _unique_owner() -> str:
    host = limits.clip(socket.gethostname(), 100)
    return f"{host}:{os.getpid()}:{secrets.token_hex(4)}"


def _checked_handlers(handlers: dict) -> dict[str, Handler]:
    if not isinstance(handlers, dict) or not handlers:
        raise InvalidInput("handlers must map at least one type to a callable or a Handler")
    made = {limits.job_type(type): given if isinstance(given, Handler) else Handler(given) for type, given in handlers.items()}
    return made
