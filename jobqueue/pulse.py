"""A worker's pulse: a thread and a connection for heartbeats (one statement for all leases) and for NOTIFY."""

import logging
import time

from . import limits
from .errors import InfrastructureError
from .loop import Pause, Session, log
from .outcome import Outcome
from .queue import Queue
from .shift import Held, Shift
from .sql import SQL
from .transactions import translated

# A lease survives an outage of half its time: 0.2 + 0.1 of it may have passed before, and 0.1 until a reconnection.
RENEW_AT = 0.2  # of the lease
LOOK_AT = 0.1  # of the shortest lease, between two looks at what is due and between two attempts to connect
MOST_SECONDS = 0.5  # between two looks


class Pulse:
    """Renews each lease from a fifth of its time on, through any outage."""

    def __init__(self, shift: Shift, session: Session, shortest_lease_seconds: float, *, listens: bool) -> None:
        self.session = session
        self._shift, self._listens = shift, listens
        self._soon = shortest_lease_seconds * LOOK_AT
        self._period = min(self._soon, MOST_SECONDS)
        self._listening: object = None  # the connection on which it does

    def run(self) -> None:
        """Until the shift is closed."""
        pause = Pause()
        while not self._shift.closed.is_set():
            try:
                self._listen()
                self._beat(self.session.queue)
                self._await_notice()
                pause.reset()
            except InfrastructureError as error:
                self._shift.subscribed = False
                self.session.drop()
                # One warning an outage: short leases make many attempts, and the rounds report theirs.
                is_news = pause.is_fresh and not self._shift.closed.is_set()
                log.log(logging.WARNING if is_news else logging.DEBUG, "%s: heartbeat: %s", self.session.name, error)
                self._shift.closed.wait(min(pause.seconds(), self._soon))
        self.session.drop()

    def _beat(self, queue: Queue) -> None:
        now = time.monotonic()
        held_now = [held for held in self._shift.all() if not held.gone]
        due = [held for held in held_now if now - held.sent >= held.handler.lease_seconds * RENEW_AT]
        for batch in (due[first : first + limits.BATCH] for first in range(0, len(due), limits.BATCH)):
            sent, seconds = time.monotonic(), [held.handler.lease_seconds for held in batch]
            outcomes = queue.heartbeat_many([held.lease for held in batch], lease_seconds=seconds)
            for held, outcome in zip(batch, outcomes, strict=True):
                self._answered(held, outcome, sent)

    def _answered(self, held: Held, outcome: Outcome, sent: float) -> None:
        if outcome is Outcome.APPLIED:
            held.sent = sent
        elif outcome is not Outcome.HELD and not held.ended:
            held.lose(gone=True, cancelled=outcome is Outcome.CANCELLED)
            self._shift.incidents.add("heartbeat_refused", held.lease.type)

    def _listen(self) -> None:
        """On a new connection, too: what was told in between has reached nobody, so the rounds look once more."""
        conn = self.session.conn
        if self._listens and self._listening is not conn:
            with translated(conn):
                conn.execute(SQL.subscribe)
            self._listening, self._shift.subscribed = conn, True
            self._nudge()

    def _await_notice(self) -> None:
        conn = self.session.conn
        if not self._listens:
            self._shift.closed.wait(self._period)
            return
        with translated(conn):
            heard = list(conn.notifies(timeout=self._period, stop_after=1))
        if any(notice.payload == self.session.name for notice in heard):
            self._nudge()

    def _nudge(self) -> None:
        self._shift.nudges += 1
        self._shift.bell.ring()
