"""A worker's watch: a thread without a connection, for what must be noticed when the database does not answer."""

import time
from collections.abc import Callable

from .loop import log
from .shift import End, Held, Shift


class Watch:
    """Ends a worker's authority by the monotonic clock, and gives up handlers that overran.

    given_up() is told of each: its slot needs a substitute. also() is called with every look.
    """

    def __init__(
        self, shift: Shift, shortest_lease_seconds: float, *, given_up: Callable[[], None], also: Callable[[], None]
    ) -> None:
        self._shift, self._given_up, self._also = shift, given_up, also
        self._period = min(0.1, max(0.005, shortest_lease_seconds / 10))

    def run(self) -> None:
        """Until the shift is closed."""
        while not self._shift.closed.wait(self._period):
            now = time.monotonic()
            for held in self._shift.all():
                self._look_at(held, now)
            self._also()

    def _look_at(self, held: Held, now: float) -> None:
        # From the last renewal SENT: the database can't count a lease as ended before this process does.
        if now - held.sent > held.handler.lease_seconds and not held.is_lost:
            held.lose()
        timeout = held.handler.timeout_seconds
        if timeout is not None and held.started is not None and now - held.started > timeout:
            self._give_up(held, timeout)

    def _give_up(self, held: Held, timeout: float) -> None:
        """The attempt has failed, and another thread takes the slot's place: none can be ended from outside."""
        if self._shift.end(held, End("fail", f"timeout: still running after {timeout:g} s"), abandon=True):
            held.lose()
            log.error("job %s of type %s overran its timeout of %g s", held.lease.id, held.lease.type, timeout)
            self._given_up()
