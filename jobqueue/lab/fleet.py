"""Real worker processes that can be killed, paused, cut off and started again, by their place in the fleet.

    with Fleet(dsn, handlers="module:NAME", size=4) as fleet:
        fleet.kill(0)               # SIGKILL
        fleet.pause(1)              # SIGSTOP: past its lease, its jobs go to the others; resumed, it is told LOST
        fleet.skew(2, 3600)         # its wall clock is an hour ahead
        fleet.workers               # what the operating system shows now

Their parent is a supervisor process (`supervisor`), so an interrupt of this process reaches none of them, and when this
process ends, however it ends, none is left. Every method may be called from any thread. Each process begins by way of
`conditions`, which lets its clock be wrong, and then is `python -m jobqueue ROLE`. POSIX only: there is no SIGSTOP on
Windows.
"""

import os
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM, Signals
from uuid import uuid4

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from .. import limits
from ..errors import InfrastructureError, InvalidInput
from ..loop import connect, redacted
from ..sql import statements, text
from . import conditions
from .conditions import Conditions
from .processes import ENDED, Event, FleetError, Process, Processes

SYMBOLS = {"starting": "◌", "running": "●", "paused": "‖", "stopping": "■", "killed": "✖", "exited": "○"}
STUCK = 75  # a worker whose slots are stuck exits with it, for its supervisor to start a new one (DESIGN §10)
START_SECONDS = 30
SQL = statements(text("lab/fleet.sql"))


@dataclass(frozen=True)
class Worker:
    """One process as the operating system showed it; `starting` until it has had a database session."""
    name: str
    pid: int
    state: str
    code: int | None  # its exit code once it has ended, negative for a signal
    owner: str        # unique per start

    @property
    def symbol(self) -> str:
        return SYMBOLS[self.state]

    @property
    def alive(self) -> bool:
        return self.state not in ENDED


class Fleet:
    """`size` workers and the `loops`, running from enter to exit; exit stops them in peace and kills what is left.

    A target is a worker's index or a loop's name; "scheduler-2" is another `python -m jobqueue scheduler`.
    `arguments` go to `python -m jobqueue ROLE`, by role. `environment` is added to the children's; `logs` keeps their
    logs in a directory that outlives the fleet.
    """

    def __init__(self, dsn: str, handlers: str = "jobqueue.lab.handlers:HANDLERS", size: int = 4, *,
                 concurrency: int = 4, grace_seconds: float = 5.0, loops: tuple[str, ...] = ("reaper",),
                 arguments: dict[str, tuple[str, ...]] | None = None,
                 environment: dict[str, str] | None = None, logs: str | Path | None = None):
        self.dsn, self.handlers = dsn, _checked_handlers(handlers)
        self.size = limits.integer(size, "size", 1, 1000)
        self.concurrency = limits.integer(concurrency, "concurrency", 1, 1000)
        self.grace_seconds = limits.seconds(grace_seconds, "grace_seconds", 0, 86_400)
        self._environment, self._logs, self._arguments = dict(environment or {}), logs, dict(arguments or {})
        self._worker_names = [f"worker-{i}" for i in range(self.size)]
        self._names = [*loops, *self._worker_names]
        self._tag = f"fleet-{uuid4().hex[:8]}"
        self._connected: set[str] = set()  # owners that have had a session: no longer starting
        self._processes: Processes | None = None

    def __enter__(self) -> "Fleet":
        if self._processes:
            raise FleetError("a fleet is entered once: make a new one")
        check_database(self.dsn)
        self._processes = Processes(self._logs)
        self._conditions = Conditions(self._processes.logs / "conditions.json")
        try:
            for name in self._names:
                self._spawn(name)
            self._await_sessions()
        except BaseException:
            self._processes.close()
            raise
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """What is running is released within the grace; facts, events and logs stay readable."""
        try:
            self._running.end(self._names, self.grace_seconds + 1)
        finally:
            self._running.close()

    # --- Faults ---

    def kill(self, target: int | str) -> None:
        self._signal(target, SIGKILL)

    def pause(self, target: int | str) -> None:
        self._signal(target, SIGSTOP)

    def resume(self, target: int | str) -> None:
        self._signal(target, SIGCONT)

    def stop(self, target: int | str) -> None:
        """SIGTERM; a paused one takes it in when it is resumed."""
        self._signal(target, SIGTERM)

    def start(self, target: int | str) -> None:
        """Start one that has ended; its owner is a new one."""
        self._spawn(self._name(target))

    def restart(self, target: int | str) -> None:
        """Stop it if it lives, in peace if its grace suffices, and start it again."""
        self._running.end([self._name(target)], self.grace_seconds + 1)
        self.start(target)

    def cut(self, target: int | str) -> int:
        """Terminate its database sessions; how many there were."""
        owner = self._owner(self._running.status()[self._name(target)])
        with connect(self.dsn, "jobqueue fleet") as conn:
            ended = conn.execute(SQL.cut, {"owner": owner}).fetchall()
        self._running.note("cut", self._name(target))
        return sum(each for each, in ended)

    def slow(self, target: int | str, seconds: float | None = None, factor: float = 10) -> None:
        """Attempts begun from now on take so many times as long: a worker's (its index), or a type's (its name); by the
        handlers of the lab only, which look for it."""
        limits.seconds(factor, "factor", 0.001, 1e6)
        named = self._name(target) if isinstance(target, int) else limits.job_type(target)
        self._impose("slow", named, factor, seconds)

    def skew(self, target: int | str, by_seconds: float, seconds: float | None = None) -> None:
        """Its wall clock is wrong by so much, from now on (`conditions` says what that reaches); 0 mends it."""
        limits.seconds(by_seconds, "by_seconds", -1e9, 1e9)
        self._impose("skew", self._name(target), by_seconds, seconds)

    def down(self, type: str, seconds: float | None = None) -> None:
        """What the type depends on is away: its attempts fail at once; by the handlers of the lab only."""
        self._impose("down", limits.job_type(type), 1, seconds)

    def kill_random(self, rng: random.Random) -> int | None:
        """Kill one that lives, a paused one included; which, or None where all have ended."""
        living = [i for i, worker in enumerate(self.workers) if worker.alive]
        chosen = rng.choice(living) if living else None
        if chosen is not None:
            self.kill(chosen)
        return chosen

    def pause_all(self) -> None:
        self._running.signal_living(self._worker_names, SIGSTOP)

    def resume_all(self) -> None:
        self._running.signal_living(self._worker_names, SIGCONT)

    def stop_all(self) -> None:
        self._running.signal_living(self._worker_names, SIGTERM)

    # --- Facts ---

    @property
    def workers(self) -> list[Worker]:
        """In order of their index."""
        return self._facts(self._worker_names)

    @property
    def loops(self) -> list[Worker]:
        return self._facts([name for name in self._names if name not in self._worker_names])

    @property
    def events(self) -> list[Event]:
        """Everything that happened so far, in order of time."""
        return self._running.events

    def log(self, target: int | str) -> str:
        """The end of what it wrote, over all its starts."""
        password = conninfo_to_dict(self.dsn).get("password")
        return redacted(self._running.log(self._name(target)), str(password) if password else None)

    # --- Processes ---

    def _impose(self, kind: str, target: str, value: float, seconds: float | None) -> None:
        if seconds is not None:
            limits.seconds(seconds, "seconds", 0, 1e9)
        running = self._running
        self._conditions.put(kind, target, value, seconds)
        running.note(kind, target, seconds)

    @property
    def _running(self) -> Processes:
        if self._processes is None:
            raise FleetError("the fleet has not started: use it in a with statement")
        return self._processes

    def _name(self, target: int | str) -> str:
        name = f"worker-{target}" if isinstance(target, int) and not isinstance(target, bool) else target
        if name not in self._names:
            raise InvalidInput(f"no {target!r} in this fleet: it has 0 to {self.size - 1}, {', '.join(self._names)}")
        return name

    def _spawn(self, name: str) -> None:
        owner = f"{self._tag}/{name}.{{start}}"
        role = name.partition("-")[0]
        argv = [sys.executable, "-P", conditions.__file__, role, *self._arguments.get(role, ())]
        if name in self._worker_names:
            argv += ["--handlers", self.handlers, "--owner", owner, "--fresh-owner",
                     "--concurrency", str(self.concurrency), "--grace-seconds", str(self.grace_seconds)]
        # The DSN goes by environment: arguments show in every process list, and it may hold a password.
        env = {**self._environment, conditions.FILE: str(self._conditions.path), conditions.PROCESS: name,
               "JOBQUEUE_DSN": make_conninfo(self.dsn, application_name=owner),
               "PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))}
        self._running.start(name, argv, env=env, restart_code=STUCK)

    def _signal(self, target: int | str, number: Signals) -> None:
        self._running.signal(self._name(target), number)

    def _owner(self, process: Process) -> str:
        return f"{self._tag}/{process.name}.{process.start}"

    def _facts(self, names: list[str]) -> list[Worker]:
        status = self._running.status()
        self._note_sessions(status.values())
        return [self._worker(status[name]) for name in names]

    def _worker(self, process: Process) -> Worker:
        owner = self._owner(process)
        state = "starting" if process.state == "running" and owner not in self._connected else process.state
        return Worker(process.name, process.pid, state, process.code, owner)

    def _note_sessions(self, processes) -> None:
        """Ask the database only while someone is starting; one that is down leaves them so."""
        owners = {self._owner(process) for process in processes if process.alive} - self._connected
        if owners:
            try:
                with connect(self.dsn, "jobqueue fleet") as conn:
                    self._connected |= {owner for owner, _ in conn.execute(SQL.sessions, {"owners": list(owners)})}
            except InfrastructureError:
                pass

    def _await_sessions(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while late := [worker for worker in self._facts(self._names) if worker.state != "running"]:
            first = late[0]
            words = (self.log(first.name).strip().splitlines() or ["it wrote nothing"])[-1]
            if not first.alive:
                raise FleetError(f"{first.name} ended at once (exit {first.code}): {words}")
            if time.monotonic() > deadline:
                raise FleetError(f"{first.name} has no database session after {START_SECONDS} s: {words}")
            time.sleep(0.05)


_ROOT = Path(__file__).resolve().parents[2]  # the folder that holds the package, wherever the caller's directory is


def _checked_handlers(handlers: str) -> str:
    module, _, name = handlers.partition(":") if isinstance(handlers, str) else ("", "", "")
    if not all(part.isidentifier() for part in (name, *module.split("."))):
        raise InvalidInput(f"handlers must be 'module:NAME', not {handlers!r}")
    return handlers


def check_database(dsn: str) -> None:
    """Loops wait for a database that is down; what begins says so at once, without the password."""
    with connect(dsn, "jobqueue fleet") as conn:
        if (True,) not in conn.execute(SQL.is_installed):
            raise FleetError("no schema jobqueue in this database: run `python -m jobqueue install` first")
