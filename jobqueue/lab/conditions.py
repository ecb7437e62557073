"""How a fleet's process begins: under the conditions that a plan of faults imposes, then as `python -m jobqueue` does.

    python -P conditions.py worker --handlers …     # the arguments of `python -m jobqueue`, in a fleet's environment

Conditions stand in a file that the fleet writes and the process reads whenever it matters, so that they come and go
while it runs: `skew` (its clock is wrong by so many seconds), `slow` (the lab's handlers take so many times as long),
`down` (what a type depends on is away: attempts fail at once).

A skew reaches all Python code of the process, whenever and however it was imported: `time.time()`, `time_ns`, `gmtime`,
`localtime`, `ctime`, `strftime`, `clock_gettime(CLOCK_REALTIME)`, `datetime.now()`, `utcnow()`, `today()`, and what is
built on them, the log's times for instance. It does not reach C code that asks the kernel itself (libpq's timeouts, the
times of files), nor the monotonic clock, which a step of the wall clock does not move either.
"""

import contextlib
import ctypes
import datetime
import gc
import json
import os
import runpy
import threading
import time
from pathlib import Path

FILE, PROCESS, HISTORY = "JOBQUEUE_LAB_CONDITIONS", "JOBQUEUE_LAB_PROCESS", "JOBQUEUE_LAB_HISTORY"


class Conditions:
    """The fleet's side: what holds for whom, and until when by the monotonic clock, which all processes here share."""

    def __init__(self, path: Path):
        self.path, self._guard = path, threading.Lock()
        self._known: dict[str, list] = {}

    def put(self, kind: str, target: str, value: float, seconds: float | None) -> None:
        """A new one takes the place of an older one of its kind; without seconds it holds until then."""
        until = None if seconds is None else time.monotonic() + seconds
        with self._guard:
            self._known[f"{kind} {target}"] = [value, until]
            new = self.path.with_suffix(".new")
            new.write_text(json.dumps(self._known), encoding="utf-8")
            os.replace(new, self.path)  # a reader finds the old one or the new one, never half of one


def current(kind: str, *targets: str) -> float | None:
    """The process's side: the condition that holds for this process now, or for one of the targets; None: none."""
    known = _read()
    for target in (os.environ.get(PROCESS, ""), *targets):
        value, until = known.get(f"{kind} {target}", (None, None))
        if value is not None and (until is None or time.monotonic() < until):
            return value
    return None


def bend_the_clock() -> None:
    """From now on this process's wall clock is the machine's plus its skew. For good: nothing is put back."""
    seconds, nanoseconds, clock = time.time, time.time_ns, time.clock_gettime

    def off() -> float:
        return current("skew") or 0.0

    def skewed_clock(which):
        return clock(which) + (off() if which == time.CLOCK_REALTIME else 0.0)

    time.time = lambda: seconds() + off()
    time.time_ns = lambda: nanoseconds() + round(off() * 1e9)
    time.clock_gettime = skewed_clock
    for name in ("gmtime", "localtime", "ctime"):
        setattr(time, name, _asking(getattr(time, name)))
    strftime = time.strftime
    time.strftime = lambda form, *when: strftime(form, *(when or (time.localtime(),)))
    _replace(datetime.datetime, "now", classmethod(lambda cls, tz=None: cls.fromtimestamp(time.time(), tz)))
    naive = classmethod(lambda cls: cls.fromtimestamp(time.time(), datetime.UTC).replace(tzinfo=None))
    _replace(datetime.datetime, "utcnow", naive)


def _read() -> dict[str, list]:
    with contextlib.suppress(OSError, KeyError):
        return json.loads(Path(os.environ[FILE]).read_text(encoding="utf-8"))
    return {}


def _asking(real):
    return lambda seconds=None: real(time.time() if seconds is None else seconds)


def _replace(kind: type, name: str, method) -> None:
    """A method of a type that is written in C: in its dictionary, since who imported the type before has no other."""
    gc.get_referents(kind.__dict__)[0][name] = method
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def main() -> None:
    bend_the_clock()  # before anything of the queue is imported
    if HISTORY in os.environ:
        from jobqueue.lab import history

        history.record_process(os.environ[HISTORY])
    runpy.run_module("jobqueue", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
