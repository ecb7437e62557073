"""A short run on the real queue, on virtual time, with recorders: what the checkers say of what its clients saw.

Two workers that go by one name (a restarted process, say), a reaper that is too eager, a producer who sends a key
twice. On the shipped queue no checker finds anything; mutants of the queue set them off.
"""

import psycopg

from ..model import Lease
from ..queue import Queue
from . import checks
from .clock import VirtualClock
from .history import History, Recorder, from_database, merge
from .sessions import SQL

LEASE = 10


def run(dsn: str) -> list[checks.Violation]:
    """What the checkers find after the drill in the virtual database `dsn`, which is emptied first and afterwards."""
    return checks.check(record(dsn))


def record(dsn: str) -> History:
    """The drill's history: what its four clients saw, and the rows at the end."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(SQL.empty)
        drill = _Drill(conn)
        try:
            for part in (drill.takeover, drill.eager_adoption, drill.eager_reaper, drill.given_back, drill.key_again):
                part()
            return merge(*(client.history for client in drill.clients), from_database(conn))
        finally:
            conn.execute(SQL.empty)


class _Drill:
    def __init__(self, conn: psycopg.Connection):
        self.clock = VirtualClock(conn)
        names = ("producer", "worker", "restarted worker", "operator")
        self.clients = [Recorder(Queue(conn), name, clock=lambda: self.clock.now) for name in names]
        self.producer, self.worker, self.restarted, self.operator = self.clients

    def takeover(self) -> None:
        """The lease ends, the restarted worker adopts under the same name, and the old process goes on speaking."""
        for verb in ("heartbeat", "publish", "complete"):
            old = self._claimed()
            self.clock.advance(LEASE + 1)
            self.restarted.adopt(old.id, "A", lease_seconds=LEASE)
            self.clock.advance(1)
            self._speak(old, verb)
            self._forgotten(old)

    def eager_adoption(self) -> None:
        """An adoption while the lease is in force, which must bring nothing."""
        lease = self._claimed()
        self.clock.advance(1)
        self.restarted.adopt(lease.id, "A", lease_seconds=LEASE)
        self._forgotten(lease)

    def eager_reaper(self) -> None:
        """A reaper passes while the lease is in force, and somebody is waiting for the job."""
        lease = self._claimed()
        self.clock.advance(1)
        self.operator.reap()
        self.clock.advance(5)
        self.restarted.claim("B", lease_seconds=LEASE)
        self._forgotten(lease)

    def given_back(self) -> None:
        """A released job is claimed again."""
        lease = self._claimed()
        self.worker.release(lease, "stop")
        self.clock.advance(1)
        self.restarted.claim("B", lease_seconds=LEASE)
        self._forgotten(lease)

    def key_again(self) -> None:
        """A key is sent again after its job is done and archived."""
        self.producer.enqueue("t", key="k")
        self.worker.complete_many(list(self.worker.claim("A", lease_seconds=LEASE)))
        self.operator.archive(older_than_seconds=0)
        self.producer.enqueue("t", key="k")

    def _claimed(self) -> Lease:
        self.producer.enqueue("t")
        return self.worker.claim("A", lease_seconds=LEASE)[0]

    def _forgotten(self, lease: Lease) -> None:
        """So that the next part has the queue to itself; later, since a cancellation ends a lease rightly."""
        self.clock.advance(1)
        self.operator.cancel(lease.id)

    def _speak(self, lease: Lease, verb: str) -> None:
        speech = {"heartbeat": {"lease_seconds": LEASE}, "publish": {"name": "report", "digest": "aa"}, "complete": {}}
        getattr(self.worker, verb)(lease, **speech[verb])
