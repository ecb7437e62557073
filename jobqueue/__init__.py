"""A table queue on PostgreSQL: a failure at any point delays work and never loses it."""

from . import metrics
from .backoff import Backoff
from .errors import InfrastructureError, JobQueueError, LeaseLost, PermanentError, Retry
from .model import Empty, Lease
from .outcome import Outcome
from .queue import Queue

__all__ = [
    "Backoff", "Empty", "InfrastructureError", "JobQueueError", "Lease", "LeaseLost", "Outcome", "PermanentError", "Queue",
    "Retry", "metrics",
]  # fmt: skip
