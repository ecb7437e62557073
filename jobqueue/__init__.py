"""A table queue on PostgreSQL: a failure at any point delays work and never loses it."""

from . import metrics
from .backoff import Backoff
from .context import Handler
from .errors import InfrastructureError, JobQueueError, LeaseLost, PermanentError, Retry
from .janitor import Janitor
from .model import Empty, Lease
from .outcome import Outcome
from .queue import Queue
from .reaper import Reaper
from .scheduler import Scheduler
from .schedules import Schedules
from .worker import Worker

__all__ = [
    "Backoff",
    "Empty",
    "Handler",
    "InfrastructureError",
    "JobQueueError",
    "Janitor",
    "Lease",
    "LeaseLost",
    "Outcome",
    "PermanentError",
    "Queue",
    "Reaper",
    "Retry",
    "Scheduler",
    "Schedules",
    "Worker",
    "metrics",
]
