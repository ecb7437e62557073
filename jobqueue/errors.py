"""The errors: few, and each is a decision that the caller makes."""

from typing import Any


class JobQueueError(Exception):
    """Something is wrong with how the queue is used or installed; retrying the same call will not help."""


class InvalidInput(JobQueueError, ValueError):
    """An argument is refused before any SQL is sent; the message says which, where and why. Nothing was changed."""


class InfrastructureError(JobQueueError):
    """The database could not be asked, or could not answer: retry later. From a handler: release me, don't fail me."""


class LeaseLost(JobQueueError):
    """This handler's authority over the job has ended: stop, and publish nothing."""


class PermanentError(Exception):
    """Raised by a handler: never retry this job; it becomes `failed`."""


class Retry(Exception):
    """Raised by a handler: this attempt failed, try again after a delay of its own choosing."""

    def __init__(self, reason: str = "the handler asked for a retry", *, after_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.after_seconds = after_seconds


# SQLSTATEs that say nothing about the statement: the same call may succeed later (PostgreSQL, appendix A).
# 25006 and 25P03 are InternalError in psycopg, so its exception classes can't decide this.
_TRANSIENT = ("08", "53", "57P0", "40001", "40P01", "25006", "25P03", "55P03", "57014")
_NOT_INSTALLED = ("3F000", "42P01", "42883")


def translate(error: Exception, connection: Any = None) -> JobQueueError:
    """What a psycopg error from one of the queue's own statements means for the caller (chain it with `from`)."""
    state = getattr(error, "sqlstate", None)
    text = " ".join(str(error).split()) or type(error).__name__
    if state is None and (connection is None or connection.broken or connection.closed or _is_operational(error)):
        return InfrastructureError(f"the database connection is lost: {text}")
    if state and state.startswith(_TRANSIENT):
        return InfrastructureError(f"the database can't do this now ({state}): {text}")
    if state in _NOT_INSTALLED:
        return JobQueueError(f"the schema jobqueue is missing or incomplete here: run install first ({text})")
    if state and state.startswith(("22", "23514")):
        return InvalidInput(f"the database refuses this value ({state}): {text}")
    return JobQueueError(f"the database refuses this statement ({state}): {text}")


def _is_operational(error: Exception) -> bool:
    """By name, since this module knows no driver: e.g. a pipeline that a shutdown of the server left "busy"."""
    return any(kind.__name__ == "OperationalError" for kind in type(error).__mro__)
