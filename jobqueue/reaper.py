"""Takes ended leases away from workers that no longer renew them; any number of reapers may run."""

import time

from . import limits
from .backoff import Backoff
from .loop import Loop, alert


class Reaper(Loop):
    """Reaps up to `limit` leases a step; after losing its own connection it first gives workers time to renew.

    backoff: one for all types, or {type: Backoff} (others get the default). on_dead(job) is called for each dead letter.
    """

    role = "reaper"

    def __init__(
        self, dsn, *, poll_seconds=1, limit=100, backoff=Backoff(), outage_grace_seconds=30, on_dead=None, prepare_threshold=5
    ):
        super().__init__(dsn, poll_seconds=poll_seconds, prepare_threshold=prepare_threshold)
        self.limit = limits.batch(limit)
        self.outage_grace_seconds = limits.seconds(outage_grace_seconds, "outage_grace_seconds", 0, 86_400)
        self.on_dead = on_dead
        self._backoff_of = (lambda type: backoff.get(type, Backoff())) if isinstance(backoff, dict) else (lambda type: backoff)
        self._grace_until = 0.0

    def run_once(self) -> int:
        """One batch; returns how many leases were taken away."""
        queue = self.session.queue
        if time.monotonic() < self._grace_until:
            return 0
        reaped = queue.reap_by_type(limit=self.limit, backoff_of=self._backoff_of)
        for one in reaped:
            if one.status == "dead":
                alert(queue, one.id, self.on_dead)
        return len(reaped)

    def after_outage(self) -> None:
        """While the database was away no heartbeat could arrive: a lease that ended meanwhile says nothing of its worker."""
        self._grace_until = time.monotonic() + self.outage_grace_seconds
