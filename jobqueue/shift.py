"""One run of a worker, from `run` to its return: the leases that it holds, and what its threads hand to each other."""

import queue as queues
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .loop import Bell, Incidents, log
from .model import Lease
from .outcome import Outcome

if TYPE_CHECKING:
    from .context import Handler
    from .slot import Slot

_CONFIRMED = (Outcome.APPLIED, Outcome.ALREADY_APPLIED)
_ONE_EVENT = threading.Lock()  # for all leases: it is wanted seldom


@dataclass(frozen=True)
class End:
    """How a handler left: the verb that reports it, and what goes with it. `settled`: already told to the database."""

    verb: str  # complete, fail, release
    error: str = ""
    delay_seconds: Any = None  # as the handler gave it
    permanent: bool = False
    counted: bool = True
    settled: Outcome | None = None


COMPLETE = End("complete")


class Held:
    """One lease in this process, from its claim until the database has confirmed its end."""

    __slots__ = (
        "lease", "handler", "sent", "started", "slot",
        "is_lost", "gone", "cancelled", "outage", "abandoned", "ended", "_event",
    )  # fmt: skip

    def __init__(self, lease: Lease, handler: "Handler", sent: float) -> None:
        self.lease, self.handler = lease, handler
        self.sent = sent  # monotonic, when the last claim or renewal was SENT: the lease can't end before it
        self.started: float | None = None
        self.slot: Slot | None = None
        self.is_lost = False  # the handler should stop
        self.gone = False  # the database has said so: no renewal makes sense any more
        self.cancelled = False
        self.outage = False  # the queue's own connection failed under the handler: its end is no attempt
        self.abandoned = False  # its slot was given up: whatever the handler does later is ignored
        self.ended = False  # the handler's end is decided; renewals go on until the database has confirmed it
        self._event: threading.Event | None = None

    @property
    def lost(self) -> threading.Event:
        """Made at first use: an Event costs more than all the rest of a quick job."""
        if self._event is None:
            with _ONE_EVENT:
                self._event = self._event or threading.Event()
        if self.is_lost:
            self._event.set()
        return self._event

    def lose(self, *, gone: bool = False, cancelled: bool = False) -> None:
        self.is_lost, self.gone, self.cancelled = True, self.gone or gone, self.cancelled or cancelled
        if self._event is not None:
            self._event.set()


class Shift:
    """Leases go waiting → a slot → finished (the rounds complete them) or endings; `held` has them until confirmed.

    Each run has one of its own, so that a handler that never returned has no part in the next.
    """

    def __init__(self, bell: Bell, incidents: Incidents) -> None:
        self.bell, self.incidents = bell, incidents
        self.waiting: queues.SimpleQueue[Held | None] = queues.SimpleQueue()  # None ends a slot
        self.finished: deque[Held] = deque()
        self.endings: queues.SimpleQueue[tuple[Held, End] | None] = queues.SimpleQueue()  # None ends the thread
        self.closed = threading.Event()
        self.held: dict[tuple[int, int], Held] = {}
        self.occupied = 0  # claimed and not ended: in a slot or waiting for one
        self.abandoned = 0  # handlers that were given up and have not returned
        self.last_start = 0.0
        self.service_seconds = 1.0  # until measured, handlers are taken for slow: nothing is claimed ahead
        self.subscribed = False  # a NOTIFY would be heard
        self.nudges = 0  # NOTIFYs heard
        self.failure: BaseException | None = None  # of a thread that nobody else would see die
        self._lock = threading.Lock()

    def take(self, claimed: list[Held]) -> None:
        if not claimed:
            return
        with self._lock:
            self.occupied += len(claimed)
            self.held |= {(held.lease.id, held.lease.epoch): held for held in claimed}
        for held in claimed:
            self.waiting.put(held)

    def give_back(self, reason: str) -> None:
        """What waits for a slot returns to the queue, for workers that are free."""
        while True:
            try:
                held = self.waiting.get_nowait()
            except queues.Empty:
                return
            assert held is not None  # slots are ended only when nothing is given back any more
            self.end(held, End("release", reason, counted=False))

    def end(self, held: Held, end: End, *, abandon: bool = False) -> bool:
        """Decides how a lease ends, the first who asks; False where that had been decided."""
        with self._lock:
            if held.ended:
                return False
            held.ended, held.abandoned = True, abandon
            self.occupied -= 1
            if abandon:
                self.abandoned += 1
                if held.slot is not None:
                    held.slot.abandoned = True
        if end is COMPLETE:
            self.finished.append(held)
        elif end.settled is not None:
            self.forget(held, end.verb, end.settled)
        else:
            self.endings.put((held, end))
        self.bell.ring()
        return True

    def forget(self, held: Held, verb: str, outcome: Outcome) -> None:
        """The database has answered: nothing is held any more."""
        self.drop([held])
        if outcome not in _CONFIRMED:
            held.lose(gone=True)
            self.incidents.add("stale_write_refused", held.lease.type)
            log.warning("job %s, epoch %s: %s was answered %s", held.lease.id, held.lease.epoch, verb, outcome.name)

    def drop(self, ended: list[Held]) -> None:
        with self._lock:
            for held in ended:
                self.held.pop((held.lease.id, held.lease.epoch), None)

    def all(self) -> list[Held]:
        with self._lock:
            return list(self.held.values())

    def unfinished(self) -> list[Held]:
        return [held for held in self.all() if not held.ended]

    def returned(self) -> None:
        """A handler that had been given up has come to its end after all."""
        with self._lock:
            self.abandoned -= 1

    def measured(self, seconds: float) -> None:
        self.service_seconds += (seconds - self.service_seconds) / 10
