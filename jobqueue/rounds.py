"""A worker's rounds: complete what finished and claim what is free, in one transaction and one round trip each."""

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import limits
from .errors import InfrastructureError, JobQueueError
from .loop import Pause, Session, log
from .model import Claim, Empty, Place
from .outcome import Outcome
from .queue import Exchanged, Queue
from .shift import Held, Shift
from .sql import SQL
from .transactions import translated

if TYPE_CHECKING:
    from .worker import Worker

AHEAD_SECONDS = 0.05  # prefetch no more than the slots are expected to begin within this time
GIVE_BACK_SECONDS = 1.0  # a prefetched job that has waited so long is released for other workers
LISTEN_AGAIN_SECONDS = 30
FROM_THE_START_SECONDS = 0.5  # claims begin where the last one ended; what came due before that waits so long at most
SCAN_SHARE = 20  # … or so many times what the last claim from the start took: a long dead prefix is not walked all day
LARGE = 50  # jobs: a claim of so many is taken in while the server does the next exchange
AGAIN_SECONDS = 0.1  # between completions of a row that somebody's transaction holds
IDLE_SECONDS = 60.0  # without anything due, a look at itself every minute
RECOVERIES = 3  # a second apart: at the first look the commit of a lost claim may still be under way


class Rounds:
    """For the thread that called `run`: `step` does one bounded step and returns how long nothing else is due."""

    def __init__(self, worker: "Worker", shift: Shift, session: Session) -> None:
        self.session = session
        self._worker, self._shift = worker, shift
        self._leases = {type: float(handler.lease_seconds) for type, handler in worker.handlers.items()}
        self._locked_rows: deque[tuple[float, Held]] = deque()  # completions, and when to try them again
        self._recoveries = 0  # looks left for a claim whose reply was lost
        self._pause = Pause()
        self._idle = False
        # What finished, how it was answered, a claim, and when all of it was sent; not taken in yet.
        self._brought: tuple[list[Held], Exchanged, float] | None = None
        self._after: Place | None = None  # where the last claim ended
        self._from_the_start_at = 0.0  # when a claim must begin at the oldest due job again
        self._retry_at = self._recover_at = self._claim_at = self._claimed_at = self._listening_until = 0.0
        self._locked_in_a_row = self._nudges = 0

    @property
    def is_settled(self) -> bool:
        """Whether the database knows of all that this shift has done."""
        return not self._shift.held and not self._brought and self._recoveries < RECOVERIES

    def once(self) -> int:
        """One claim for the free slots; returns how many there were. Raises InfrastructureError."""
        count = self._exchange([], self._worker.concurrency, 0)
        self.digest()
        return count

    def digest(self) -> None:
        """Takes in what the last exchange brought; after a large one while the server does the next, which claims the
        other half of what this worker may hold."""
        brought, self._brought = self._brought, None
        if brought is not None:
            finished, exchanged, sent = brought
            self._shift.take([Held(lease, self._worker.handlers[lease.type], sent) for lease in exchanged.claim])
            self._answered(finished, exchanged.outcomes)

    def settle(self, until: float, done: Callable[[], bool]) -> None:
        """Completes what finishes, claiming nothing, until done() or the deadline."""
        while not done() and (left := until - time.monotonic()) > 0:
            wait = self.step(claiming=False)
            self._shift.bell.wait(0 if done() else min(left, wait))

    def step(self, *, claiming: bool = True) -> float:
        now = time.monotonic()
        if now < self._retry_at:
            return self._retry_at - now
        self._hear_nudges()
        try:
            self._recover(now)
            self._do(now, *(self._room(now) if claiming else (0, 0)))
            self._give_back(now)
            if self.session.is_open:
                self._shift.incidents.flush(self.session.conn)
            self._pause.reset()
        except BaseException as error:
            self.digest()
            self._cut_off()
            if not isinstance(error, InfrastructureError):
                raise
            self._retry_at = now + self._pause.seconds()
            log.warning("worker %s: %s; trying again in %.1f s", self._worker.owner, error, self._retry_at - now)
        return self._wait(claiming)

    def sign_off(self) -> None:
        """The last words, where the database still listens."""
        try:
            if self.session.is_open:
                if self._listening_until:
                    with translated(self.session.conn):
                        self.session.conn.execute(SQL.unlisten, {"owner": self._worker.owner})
                self._shift.incidents.flush(self.session.conn, now=True)
        except JobQueueError as error:
            log.debug("worker %s: %s", self._worker.owner, error)
        finally:
            self.session.drop()

    # ------------------------------------------------------------ one exchange

    def _do(self, now: float, slots: int, ahead: int) -> None:
        finished = self._finished_now(now)
        if finished or (slots + ahead and not (self._idle and self._still_idle())):
            self._exchange(finished, slots, ahead)
        else:
            self.digest()

    def _exchange(self, finished: list[Held], slots: int, ahead: int) -> int:
        sent = 0.0
        try:
            queue, sent = self.session.queue, time.monotonic()
            leases, after = [held.lease for held in finished], self._after if sent < self._from_the_start_at else None
            options: dict[str, Any] = {"leases": self._leases, "slots": slots, "ahead": ahead, "after": after}
            if self._brought:
                options["meanwhile"] = self.digest
            exchanged = queue.exchange(leases, self._worker.owner, **options)
            self._brought = finished, exchanged, sent
        except BaseException as error:  # a KeyboardInterrupt, too, may come after the commit
            self.digest()
            self._shift.finished.extendleft(reversed(finished))
            refused = isinstance(error, JobQueueError) and self.session.is_open  # in so many words, by the server
            self._cut_off(claiming=bool(sent and slots + ahead and not refused))
            raise
        count = exchanged.count
        if count < LARGE:
            self.digest()
        if slots + ahead:
            self._mark(None if count < slots + ahead else exchanged.last, after, sent)
            if count or after is None:
                self._claimed(queue, count)
        return count

    def _mark(self, last: Place | None, after: Place | None, sent: float) -> None:
        """Where the next claim begins: after this one, or after a short one at the oldest due job, which tells all."""
        self._after = last
        if after is None:
            now = time.monotonic()
            self._from_the_start_at = now + max(FROM_THE_START_SECONDS, SCAN_SHARE * (now - sent))

    def _finished_now(self, now: float) -> list[Held]:
        finished, again = self._shift.finished, self._locked_rows
        while again and again[0][0] <= now:
            finished.append(again.popleft()[1])
        return [finished.popleft() for _ in range(min(len(finished), limits.BATCH))]

    def _answered(self, finished: list[Held], outcomes: list[Outcome]) -> None:
        told = list(zip(finished, outcomes, strict=True))
        self._shift.drop([held for held, outcome in told if outcome is Outcome.APPLIED])
        for held, outcome in told:
            if outcome is Outcome.HELD:  # somebody's transaction holds the row: say it again, holding up no other
                self._locked_rows.append((time.monotonic() + AGAIN_SECONDS, held))
            elif outcome is not Outcome.APPLIED:
                self._shift.forget(held, "complete", outcome)

    # ------------------------------------------------------------ how much to claim

    def _room(self, now: float) -> tuple[int, int]:
        """Jobs for free slots, and jobs ahead of them; none while failures and releases pile up."""
        shift, worker = self._shift, self._worker
        if now < self._claim_at or shift.endings.qsize() > worker.concurrency + worker.prefetch:
            return 0, 0
        waiting = shift.occupied + self._undigested - worker.concurrency
        slots, most = max(0, -waiting), (worker.concurrency + worker.prefetch) // 2  # the half: see digest
        return slots, max(0, min(self._ahead(now) - max(0, waiting), most - slots))

    @property
    def _undigested(self) -> int:
        return self._brought[1].count if self._brought else 0

    def _ahead(self, now: float) -> int:
        """As many as the slots are expected to begin within a moment; none while handlers take long."""
        shift, slots = self._shift, self._worker.concurrency
        if shift.occupied >= slots and now - shift.last_start > AHEAD_SECONDS:  # the average can't know it yet
            return 0
        return min(self._worker.prefetch, int(AHEAD_SECONDS * slots / max(shift.service_seconds, 1e-6)))

    def _give_back(self, now: float) -> None:
        """Prefetched jobs that wait behind slow ones."""
        if now - max(self._shift.last_start, self._claimed_at) >= GIVE_BACK_SECONDS:
            self._shift.give_back("claimed ahead, but the slots are busy")

    # ------------------------------------------------------------ when to ask again

    def _wait(self, claiming: bool) -> float:
        """How long nothing is due; a handler that ends, a NOTIFY and `stop` ring before."""
        now = time.monotonic()
        if now < self._retry_at:
            return self._retry_at - now
        due = [now + IDLE_SECONDS]
        if self._locked_rows:
            due.append(self._locked_rows[0][0])
        if self._recoveries:
            due.append(self._recover_at)
        if claiming and any(self._room(max(now, self._claim_at))):
            due.append(self._claim_at)
        if self._shift.waiting.qsize():
            due.append(max(self._shift.last_start, self._claimed_at) + GIVE_BACK_SECONDS)
        return 0.0 if self._shift.finished or self._brought else max(0.0, min(due) - now)

    def _claimed(self, queue: Queue, count: int) -> None:
        if count:
            self._idle, self._locked_in_a_row, self._claimed_at = False, 0, time.monotonic()
        else:
            self._nothing(queue)

    def _still_idle(self) -> bool:
        """An idle worker's poll: one look, which claims nothing."""
        self._nothing(self.session.queue)
        return self._idle

    def _nothing(self, queue: Queue) -> None:
        """Decides when to ask again, by the reason why there was nothing."""
        claim = queue.why_empty(list(self._leases))
        self._idle = claim.empty is not Empty.LOCKED
        if self._idle:
            self._locked_in_a_row = 0
            self._shift.incidents.add(f"claim_empty_{(claim.empty or Empty.NONE).name.lower()}")
            wait = self._idle_seconds(queue, claim)
        else:
            self._locked_in_a_row += 1
            wait = min(self._worker.poll_seconds, 0.005 * 2 ** min(self._locked_in_a_row, 10))
            wait *= self._worker.rng.uniform(0.5, 1)
        self._claim_at = time.monotonic() + wait

    def _idle_seconds(self, queue: Queue, claim: Claim) -> float:
        if self._listen(queue):
            return 0  # what was enqueued before this listener's row was there has told nobody: look once more
        if claim.next_run_at is None or claim.asked_at is None:
            return self._worker.poll_seconds
        return min(self._worker.poll_seconds, max(0.0, (claim.next_run_at - claim.asked_at).total_seconds()))

    def _listen(self, queue: Queue) -> bool:
        """Writes this worker in as a listener; True if it was not one already, as far as it knows."""
        if not self._shift.subscribed or time.monotonic() < self._listening_until:
            return False
        with translated(queue.conn):
            queue.conn.execute(SQL.listen, {"owner": self._worker.owner, "types": list(self._leases)})
        self._listening_until = time.monotonic() + LISTEN_AGAIN_SECONDS
        return True

    def _hear_nudges(self) -> None:
        """After a NOTIFY for this worker: the enqueuer has taken its listener row away."""
        if self._nudges != self._shift.nudges:
            self._nudges = self._shift.nudges
            self._idle, self._claim_at, self._listening_until = False, 0.0, 0.0

    # ------------------------------------------------------------ after an outage

    def _cut_off(self, *, claiming: bool = False) -> None:
        self.session.drop()
        self._listening_until = self._recover_at = 0.0
        if claiming and self._worker.fresh_owner:
            self._recoveries = RECOVERIES

    def _recover(self, now: float) -> None:
        """Running rows under this owner that it does not hold are from a claim whose reply was lost."""
        if not self._recoveries or now < self._recover_at:
            return
        self.digest()  # or they would be taken for unheld
        queue, held = self.session.queue, [held.lease for held in self._shift.all()]
        asked: dict[str, Any] = {"owner": self._worker.owner, "ids": [lease.id for lease in held]}
        asked["epochs"] = [lease.epoch for lease in held]
        with translated(queue.conn):
            count = queue.conn.execute(SQL.release_unheld, asked).rowcount
        self._recoveries, self._recover_at = self._recoveries - 1, now + 1
        if count:
            log.warning("worker %s: released %s jobs of a claim whose reply was lost", self._worker.owner, count)
