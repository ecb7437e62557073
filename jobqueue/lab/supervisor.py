"""The parent of a fleet: starts, signals and watches processes for the client at its stdin, and lets none outlive it.

    stdin   {"op": "start", "name": …, "argv": […], "env": {…}, "log": PATH, "restart_code": 75}
            {"op": "signal", "name": …, "signal": "SIGKILL"}
            {"op": "status"}, and {"op": "end"} to kill all and leave; one JSON object a line
    stdout  a line for each: {"error": null | TEXT, "processes": {NAME: {pid, state, code, start}},
            "events": [[time, kind, name], …]} with what happened since the last answer

A process of its own, and a script (`python supervisor.py PARENT_PID SCRATCH_DIR`; standard library only):
- an interrupt of the client's process group must not reach the workers: all here are in sessions of their own;
- a guard on stdin inside a worker would not end a stopped one: this process sends SIGKILL when the client is gone;
- where this process itself is killed, Linux does the same by PR_SET_PDEATHSIG, which fires when the *thread* that
  started the child ends: here the main thread. Elsewhere, workers outlive a SIGKILL of their supervisor (only that).
A child's pid cannot be reused before its parent has waited for it, and only `poll` waits: poll first, then signal.
"""

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field

CHECK_SECONDS = 1.0  # how soon a client is missed whose pipe a forked child of it still holds open
REAP_SECONDS = 5.0   # a killed process goes at once, unless it is in the middle of a disk access
PR_SET_PDEATHSIG = 1
# The event that a new state is.
KINDS = {"paused": "pause", "running": "resume", "stopping": "stop", "killed": "kill", "exited": "exit"}


@dataclass
class Child:
    name: str
    request: dict
    start: int
    popen: subprocess.Popen
    stopping: bool = False
    seen: str = "running"  # the last state that became an event

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None

    @property
    def state(self) -> str:
        if self.alive:
            return "paused" if is_stopped(self.popen.pid) else "stopping" if self.stopping else "running"
        return "killed" if self.popen.returncode < 0 else "exited"

    def facts(self) -> dict:
        return {"pid": self.popen.pid, "state": self.state, "code": self.popen.returncode, "start": self.start}


@dataclass
class Supervisor:
    children: dict[str, Child] = field(default_factory=dict)
    events: list[tuple[float, str, str]] = field(default_factory=list)
    ended: bool = False

    def answer(self, line: bytes) -> bytes:
        error = None
        try:
            self.do(**json.loads(line))
        except (ValueError, LookupError, TypeError, OSError, subprocess.SubprocessError) as problem:
            error = f"{problem}" or repr(problem)
        self.watch()
        events, self.events = self.events, []
        processes = {name: child.facts() for name, child in self.children.items()}
        return json.dumps({"error": error, "processes": processes, "events": events}).encode() + b"\n"

    def do(self, op: str, name: str = "", **request) -> None:
        if op == "start":
            self.start(name, request)
        elif op == "signal":
            if name not in self.children:
                raise ValueError(f"there is no process {name}")
            self.signal(self.children[name], signal.Signals[request["signal"]])
        elif op == "end":
            self.ended = True
        elif op != "status":
            raise ValueError(f"unknown op {op!r}")

    def start(self, name: str, request: dict) -> None:
        child = self.children.get(name)
        if child and child.alive:
            raise ValueError(f"{name} is alive (pid {child.popen.pid})")
        self.children[name] = spawn(name, request, child.start + 1 if child else 1)
        self.note("start", name)

    def signal(self, child: Child, number: signal.Signals) -> None:
        """SIGTERM to the process, which may end in peace; all else to its group: a crash takes its helpers with it."""
        if not child.alive:
            raise ValueError(f"{child.name} has ended ({child.state})")
        child.stopping |= number == signal.SIGTERM
        (os.kill if number == signal.SIGTERM else os.killpg)(child.popen.pid, number)
        if number == signal.SIGKILL:
            child.popen.wait(REAP_SECONDS)
        if number in (signal.SIGSTOP, signal.SIGCONT):
            settle(child, stopped=number == signal.SIGSTOP)

    def watch(self) -> None:
        """Turn what the operating system shows into events; a child that asked for it is started again."""
        for child in list(self.children.values()):
            state = child.state
            if state != child.seen:
                self.note(KINDS[state], child.name)
                child.seen = state
            if state == "exited" and child.popen.returncode == child.request.get("restart_code"):
                with suppress(OSError):  # too many processes just now: it is tried again at the next look
                    self.children[child.name] = spawn(child.name, child.request, child.start + 1)
                    self.note("restart", child.name)

    def note(self, kind: str, name: str) -> None:
        self.events.append((time.time(), kind, name))

    def kill_all(self) -> None:
        living = [child for child in self.children.values() if child.alive]
        for child in living:
            os.killpg(child.popen.pid, signal.SIGKILL)
        for child in living:
            with suppress(subprocess.TimeoutExpired):
                child.popen.wait(REAP_SECONDS)


def spawn(name: str, request: dict, start: int) -> Child:
    """`{start}` in an argument or a variable becomes 1, 2, …: an owner must be unique per start."""
    argv = [argument.replace("{start}", str(start)) for argument in request["argv"]]
    env = {key: value.replace("{start}", str(start)) for key, value in request.get("env", {}).items()}
    with open(request.get("log", os.devnull), "ab") as log:
        popen = subprocess.Popen(argv, env=os.environ | env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                 start_new_session=True, preexec_fn=die_with_parent())
    return Child(name, request, start, popen)


def die_with_parent():
    """What the child does between fork and exec; safe here because this process has no second thread."""
    if not sys.platform.startswith("linux"):
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def ask():
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the request
            os._exit(1)
    return ask


def is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except FileNotFoundError:  # not Linux
        return subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True).stdout[:1] == b"T"


def settle(child: Child, stopped: bool) -> None:
    """A signal is sent before it takes effect: answer when the process shows it (or has ended)."""
    deadline = time.monotonic() + 1
    while child.alive and is_stopped(child.popen.pid) != stopped and time.monotonic() < deadline:
        time.sleep(0.001)


def serve(supervisor: Supervisor, parent: int) -> None:
    """Until stdin ends or the client is no longer our parent; a child's signal wakes the loop through a pipe."""
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which children would inherit
    pending = b""
    while os.getppid() == parent and not supervisor.ended:
        ready, _, _ = select.select([0, woken], [], [], CHECK_SECONDS)
        if woken in ready:
            os.read(woken, 4096)
        supervisor.watch()
        if 0 not in ready:
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            return
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            sys.stdout.buffer.write(supervisor.answer(line))  # not os.write: a child's signal cuts that short
            sys.stdout.buffer.flush()


def main(parent: str, scratch: str) -> None:
    supervisor = Supervisor()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        serve(supervisor, int(parent))
    except BrokenPipeError:  # the client went while we answered
        pass
    finally:
        supervisor.kill_all()
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
