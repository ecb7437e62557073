"""The supervisor's client: named processes to start, signal and look at, from any thread; none of them outlives us."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGTERM, Signals

from ..errors import JobQueueError

ENDED = ("killed", "exited")
LOG_BYTES = 16_384


class FleetError(JobQueueError):
    """The fleet cannot do this: the message says which process, and what it last said."""


@dataclass(frozen=True)
class Process:
    """A process as the operating system showed it: running, paused, stopping (asked to end), killed, exited."""
    name: str
    pid: int
    state: str
    code: int | None  # its exit code once it has ended, negative for a signal
    start: int        # 1, 2, … : how often it was started

    @property
    def alive(self) -> bool:
        return self.state not in ENDED


@dataclass(frozen=True)
class Event:
    """What happened to a process, when it showed: start, kill, pause, resume, stop, exit, restart, cut, slow, skew."""
    at: datetime
    kind: str
    target: str
    until: datetime | None = None  # where it ends by itself


class Processes:
    """Open from construction to `close`; their logs go to `logs`, or to a directory that goes with them."""

    def __init__(self, logs: str | Path | None = None):
        self._directory = Path(logs or tempfile.mkdtemp(prefix="jobqueue-fleet-"))
        self._directory.mkdir(parents=True, exist_ok=True)
        self._events: list[Event] = []
        self._last: dict[str, Process] = {}
        self._tails: dict[str, str] = {}
        self._closed = False
        # One thread owns the pipes, so that an interrupt of the calling thread never cuts a request or an answer.
        self._courier = ThreadPoolExecutor(1, thread_name_prefix="fleet")
        self._client_pid = os.getpid()
        self._scratch = "" if logs else str(self._directory)
        script = str(Path(__file__).with_name("supervisor.py"))
        argv = [sys.executable, "-P", script, str(self._client_pid), self._scratch]
        # -P: the modules of this folder must not shadow the standard library's.
        with open(self._directory / "supervisor.log", "ab") as log:
            self._supervisor = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                                                start_new_session=True)
        assert self._supervisor.stdin and self._supervisor.stdout
        self._requests, self._replies = self._supervisor.stdin, self._supervisor.stdout

    @property
    def logs(self) -> Path:
        return self._directory

    @property
    def supervisor_pid(self) -> int:
        return self._supervisor.pid

    def start(self, name: str, argv: list[str], *, env: dict[str, str] | None = None,
              restart_code: int | None = None) -> None:
        """`{start}` in argv and env becomes the number of the start; one that exits with restart_code starts again."""
        log = str(self._directory / f"{name}.log")
        self._call("start", name=name, argv=argv, env=env or {}, log=log, restart_code=restart_code)

    def signal(self, name: str, number: Signals) -> None:
        """Returns when its effect shows: SIGKILL has ended it, SIGSTOP has stopped it."""
        self._call("signal", name=name, signal=number.name)

    def status(self) -> dict[str, Process]:
        """As they are now; once closed, as they ended."""
        return self._last if self._closed else self._call("status")

    @property
    def events(self) -> list[Event]:
        self.status()
        return sorted(self._events, key=lambda event: event.at)

    def note(self, kind: str, target: str, seconds: float | None = None) -> None:
        now = datetime.now(UTC)
        self._events.append(Event(now, kind, target, None if seconds is None else now + timedelta(seconds=seconds)))

    def log(self, name: str) -> str:
        """The end of what it wrote, over all its starts."""
        if name in self._tails:
            return self._tails[name]
        path = self._directory / f"{name}.log"
        if not path.exists():
            return ""
        with open(path, "rb") as log:
            log.seek(max(0, path.stat().st_size - LOG_BYTES))
            return log.read().decode(errors="replace")

    def end(self, names: list[str], grace_seconds: float) -> None:
        """Resume and stop those of `names` that live, and kill what is left after the grace."""
        deadline = time.monotonic() + grace_seconds
        status = self.status()
        # A second SIGTERM means "at once" to a worker: what is stopping already gets none.
        self.signal_living([name for name in names if name in status and status[name].state != "stopping"], SIGTERM)
        self.signal_living(names, SIGCONT)
        while self._living(names) and time.monotonic() < deadline:
            time.sleep(0.02)
        self.signal_living(names, SIGKILL)

    def signal_living(self, names: list[str], number: Signals) -> None:
        """To those that live; one that ends meanwhile is no error."""
        for name in self._living(names):
            try:
                self.signal(name, number)
            except FleetError:
                if self._living([name]):
                    raise

    def close(self) -> None:
        """Kill what lives; the facts and the logs' ends stay readable."""
        if self._closed:
            return
        try:
            if self._supervisor.poll() is None:
                self.signal_living(list(self.status()), SIGKILL)
                self._tails = {name: self.log(name) for name in self.status()}
                self._call("end")
        finally:
            self._closed = True
            with suppress(BrokenPipeError):
                self._requests.close()
            self._supervisor.wait(10)
            self._replies.close()
            self._courier.shutdown()
            if self._scratch:
                shutil.rmtree(self._scratch, ignore_errors=True)

    def _living(self, names: list[str]) -> list[str]:
        status = self.status()
        return [name for name in names if name in status and status[name].alive]

    def _call(self, op: str, **request) -> dict[str, Process]:
        if self._closed:
            raise FleetError("the fleet is closed")
        if os.getpid() != self._client_pid:
            raise FleetError(f"this fleet belongs to process {self._client_pid}: a forked child can't use it")
        return self._courier.submit(self._exchange, {"op": op, **request}).result()

    def _exchange(self, request: dict) -> dict[str, Process]:
        try:
            self._requests.write(json.dumps(request).encode() + b"\n")
            self._requests.flush()
            reply = json.loads(self._replies.readline())
        except (OSError, ValueError) as error:
            self._last = {name: replace(process, state="killed") for name, process in self._last.items()}
            raise FleetError("the supervisor has ended, and its processes with it") from error
        self._last = {name: Process(name, **facts) for name, facts in reply["processes"].items()}
        self._events += [Event(datetime.fromtimestamp(at, UTC), *rest) for at, *rest in reply["events"]]
        if reply["error"]:
            raise FleetError(reply["error"])
        return self._last
