"""A worker's endings: a thread and a connection for what is no completion, so that a row that is held delays none."""

from typing import Any

from .backoff import Backoff
from .errors import InfrastructureError, InvalidInput, JobQueueError
from .loop import OnDead, Pause, Session, alert, log
from .outcome import Outcome
from .queue import Queue
from .shift import End, Held, Shift


class Endings:
    """Tells the database of failures and releases, one after the other, until it has answered."""

    def __init__(self, shift: Shift, session: Session, on_dead: OnDead | None = None) -> None:
        self.session = session
        self._shift, self._on_dead = shift, on_dead

    def run(self) -> None:
        """Until it meets None in `shift.endings`, through any outage."""
        pause = Pause()
        while (item := self._shift.endings.get()) is not None:
            try:
                self._tell(self.session.queue, *item)
                pause.reset()
            except InfrastructureError as error:
                log.warning("%s: job %s: %s", self.session.name, item[0].lease.id, error)
                self._shift.endings.put(item)
                if self.session.is_open:  # only this row is in trouble (a lock): the others have their turn first
                    continue
                if self._shift.closed.wait(pause.seconds()):
                    break
            except JobQueueError as error:
                id, verb = item[0].lease.id, item[1].verb
                log.error("job %s: its %s can't be told, its lease will end by itself: %s", id, verb, error)
                self._shift.drop([item[0]])
                self._shift.bell.ring()
        self.session.drop()

    def _tell(self, queue: Queue, held: Held, end: End) -> None:
        if held.abandoned and held.slot is not None:
            held.slot.cancel()  # its open transaction may keep the row
        status: str | None = None
        if end.verb == "release":
            outcome = queue.release(held.lease, end.error, delay_seconds=end.delay_seconds or 0, counted=end.counted)
            if outcome is Outcome.CONFLICT:  # a commit that could not be confirmed had landed: the job is done
                outcome = queue.reconcile(held.lease)
        else:
            outcome, status = self._fail(queue, held, end)
        self._shift.forget(held, end.verb, outcome)
        self._shift.bell.ring()
        if status in ("dead", "failed"):
            alert(queue, held.lease.id, self._on_dead)

    def _fail(self, queue: Queue, held: Held, end: End) -> tuple[Outcome, str | None]:
        backoff = held.handler.backoff or Backoff()
        try:
            options: dict[str, Any] = {"permanent": end.permanent, "backoff": backoff}
            return queue.fail_and_tell(held.lease, end.error, delay_seconds=end.delay_seconds, **options)
        except InvalidInput as refused:
            # Retry(after_seconds=-1), a text the database can't hold: no reason to lose the failure.
            text = f"{end.error}\n(the report of this failure was refused: {refused})"
            plain = text.encode("ascii", "backslashreplace").decode()
            return queue.fail_and_tell(held.lease, plain, permanent=end.permanent, backoff=backoff)
