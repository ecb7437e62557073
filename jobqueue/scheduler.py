"""Ticks the schedules; any number of schedulers may run, on any number of machines."""

from . import limits
from .loop import Loop, log
from .schedules import Schedules


class Scheduler(Loop):
    """Decides the due slots of up to `limit` schedules a step; after an outage the misfire policies say the rest."""

    role = "scheduler"

    def __init__(
        self, dsn: str, *, poll_seconds: float = 1, limit: int = 100, prepare_threshold: int | None = 5
    ) -> None:
        super().__init__(dsn, poll_seconds=poll_seconds, prepare_threshold=prepare_threshold)
        self.limit = limits.batch(limit)

    def run_once(self) -> int:
        """One tick; returns how many slots and problems it dealt with."""
        ticked = Schedules(self.session.conn).tick(limit=self.limit)
        for problem in ticked.problems:
            log.error("%s; it is set aside until it is put again or resumed", problem)
        if ticked.missed:
            log.warning("%s slots were missed (misfires and overlaps, see missed_slot)", ticked.missed)
        return len(ticked.jobs) + ticked.missed + len(ticked.problems)
