"""Takes ended leases away from workers that no longer renew them; any number of reapers may run."""

import time

from . import limits
from .backoff import Backoff
from .errors import InvalidInput
from .loop import Loop, OnDead, alert

_DEFAULT = Backoff()


class Reaper(Loop):
    """Reaps up to `limit` leases a step; after losing its own connection it first gives workers time to renew.

    backoff: one for all types, or {type: Backoff} (others get the default). on_dead(job): for each dead letter, before
    the next step: it should be quick.
    """

    role = "reaper"

    def __init__(
        self,
        dsn: str,
        *,
        poll_seconds: float = 1,
        limit: int = 100,
        backoff: Backoff | dict[str, Backoff] = _DEFAULT,
        outage_grace_seconds: float = 30,
        on_dead: OnDead | None = None,
        prepare_threshold: int | None = 5,
    ) -> None:
        super().__init__(dsn, poll_seconds=poll_seconds, prepare_threshold=prepare_threshold)
        self.limit = limits.batch(limit)
        self.outage_grace_seconds = limits.seconds(outage_grace_seconds, "outage_grace_seconds", 0, 86_400)
        self.on_dead = on_dead
        self._backoff = _checked(backoff)
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
        """While the database was away no heartbeat could arrive: an end in that time says nothing of the worker."""
        self._grace_until = time.monotonic() + self.outage_grace_seconds

    def _backoff_of(self, type: str) -> Backoff:
        return self._backoff.get(type, _DEFAULT) if isinstance(self._backoff, dict) else self._backoff


def _checked(backoff: Backoff | dict[str, Backoff]) -> Backoff | dict[str, Backoff]:
    each = list(backoff.values()) if isinstance(backoff, dict) else [backoff]
    if not all(isinstance(one, Backoff) for one in each):
        raise InvalidInput(f"backoff must be a Backoff, or a dict of type to Backoff, not {backoff!r}")
    return backoff
