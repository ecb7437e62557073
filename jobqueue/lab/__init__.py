"""The laboratory around the queue: a database to break, time to move, workers to kill, pictures of it all.

    from jobqueue.lab import database, VirtualClock, sim, workload, Fleet, faults, charts, export, cockpit, …

Modules are read when they are asked for: a worker of a fleet needs none of the pictures.
"""

import importlib
from typing import Any

_PLACES = {"VirtualClock": "clock", "Fleet": "fleet"}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
