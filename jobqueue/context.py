"""How a type of jobs is run, and what its handler is given beside the lease."""

import inspect
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from . import limits, publication
from .backoff import Backoff
from .errors import InfrastructureError, InvalidInput, JobQueueError, LeaseLost
from .loop import Pause
from .outcome import Outcome
from .publication import Source
from .queue import Queue
from .sql import SQL
from .transactions import translated

if TYPE_CHECKING:
    from .shift import Held
    from .slot import Slot


@dataclass(frozen=True)
class Handler:
    """How a type is run: fn(lease, context), plain or `async def`. backoff=None is Backoff().

    timeout_seconds fails an attempt that runs longer; a thread can't be ended from outside, so the slot is replaced.
    """

    fn: Callable[..., Any]
    lease_seconds: float = 30
    timeout_seconds: float | None = None
    backoff: Backoff | None = None

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise InvalidInput(f"a handler must be callable, not {self.fn!r}")
        if inspect.isgeneratorfunction(self.fn) or inspect.isasyncgenfunction(self.fn):
            raise InvalidInput(f"a handler must not be a generator, which nobody would run to its end: {self.fn!r}")
        if self.backoff is not None and not isinstance(self.backoff, Backoff):
            raise InvalidInput(f"backoff must be a Backoff, not {self.backoff!r}")
        limits.lease_seconds(self.lease_seconds)
        if self.timeout_seconds is not None:
            limits.seconds(self.timeout_seconds, "timeout_seconds", 0.001, 10 * 366 * 86_400)


Handlers = Mapping[str, Handler | Callable[..., Any]]  # by type

# SQLSTATEs of a database that is away, full or read-only; other trouble may be of the handler's own making.
_AWAY = ("08", "53", "57P0", "25006", "25P03")


class Context:
    """For one execution of a handler. `lost` is set once this worker's authority over the job has ended.

    `connection` is in a transaction from its first use on; it commits with the job's completion or not at all, and the
    handler can't end it (`connection.transaction()` is a savepoint). Publishing and heartbeats use a connection of
    their own, and ask again after an outage. All raise LeaseLost once authority is gone; `connection` and `effect`
    raise InfrastructureError, since after an outage the transaction is lost.
    """

    def __init__(self, held: "Held", slot: "Slot") -> None:
        self._held, self._slot = held, slot

    @property
    def lost(self) -> threading.Event:
        return self._held.lost

    @property
    def cancelled(self) -> bool:
        """Whether authority was lost because the job was cancelled."""
        return self._held.cancelled

    @property
    def connection(self) -> psycopg.Connection[Any]:
        self._still_mine()
        with self._noticing_outages():
            return self._slot.transaction(self._held.handler.timeout_seconds)

    def heartbeat(self) -> Outcome:
        """Renews the lease now (the worker does so by itself, too)."""

        def renew(queue: Queue) -> Outcome:
            sent = time.monotonic()
            outcome = queue.heartbeat(self._held.lease, lease_seconds=self._held.handler.lease_seconds)
            self._held.sent = sent if outcome is Outcome.APPLIED else self._held.sent
            return outcome

        return self._beside(renew)

    def publish(self, path_or_bytes: Source, name: str, *, allow_empty: bool = False) -> Outcome:
        """Writes the candidate and makes it the job's result, while the lease is in force; once an execution."""
        if self._slot.artifacts is None:
            raise JobQueueError("this worker has no folder for candidates: give it artifacts=DIR")
        self._still_mine()
        limits.text(name, "name", limits.NAME_BYTES)
        candidate = publication.write(self._slot.artifacts, self._held.lease, path_or_bytes, allow_empty=allow_empty)
        publication.recheck(candidate)
        return self._beside(lambda queue: queue.publish(self._held.lease, name, candidate.digest))

    def effect(self, key: str) -> bool:
        """Records an effect in the job's transaction; False if it was recorded before: do not act again."""
        asked = {"key": limits.text(key, "key", limits.KEY_BYTES), "id": self._held.lease.id}
        asked |= {"owner": self._held.lease.owner, "epoch": self._held.lease.epoch}
        with self._noticing_outages(), translated(self.connection) as conn:
            if conn.execute(SQL.effect, asked).fetchone():
                return True
            if conn.execute(SQL.effect_known, asked).fetchone():
                return False
            return bool(self._authority(Outcome.LOST))

    def _beside(self, verb: Callable[[Queue], Outcome]) -> Outcome:
        """Outside of the transaction. After an outage it is sent again, which is exact, while authority stands."""
        pause = Pause()
        while True:
            if self._held.abandoned:
                self._still_mine()
            try:
                return self._authority(verb(self._slot.aside.queue))
            except InfrastructureError:
                self._slot.aside.drop()
                if self._held.lost.wait(pause.seconds()):
                    self._still_mine()

    def _still_mine(self) -> None:
        if self._held.is_lost:
            raise LeaseLost(
                f"job {self._held.lease.id}, epoch {self._held.lease.epoch}: this worker's authority has ended"
            )

    def _authority(self, outcome: Outcome) -> Outcome:
        if outcome in (Outcome.LOST, Outcome.CANCELLED, Outcome.LEASE_EXPIRED, Outcome.UNKNOWN_JOB):
            self._held.lose(gone=outcome is not Outcome.LEASE_EXPIRED, cancelled=outcome is Outcome.CANCELLED)
            raise LeaseLost(f"job {self._held.lease.id}, epoch {self._held.lease.epoch}: {outcome.value}")
        return outcome

    @contextmanager
    def _noticing_outages(self) -> Iterator[None]:
        try:
            yield
        except InfrastructureError as error:
            state = getattr(error.__cause__, "sqlstate", None)
            self._held.outage = self._held.outage or state is None or state.startswith(_AWAY)
            raise
