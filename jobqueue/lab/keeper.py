"""Runs one PostgreSQL server for as long as a client holds a socket to it, and leaves nothing behind.

    client ──socket──┐
    client ──socket──┤ keeper ──parent of── postgres
                     │   └─pipe── guard
Each client's open socket is its reference: the operating system closes it even on SIGKILL, so a killed kernel leaks
nothing. The guard reads a pipe that only the keeper holds: when the keeper is gone, however, it stops what the keeper
left and frees the lock. Run by `database.py` as a file of its own: standard library only, psutil where it must look for
processes of a server that died.
"""
from __future__ import annotations

import contextlib
import fcntl
import json
import locale
import os
import pwd
import selectors
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GRACE_SECONDS = 2.0  # a lasting server waits this long for its next client: a restarted kernel finds it warm
FAST_SECONDS, IMMEDIATE_SECONDS = 4.0, 2.0  # patience with each way to stop: all of it within the ten seconds promised
BUSY_SECONDS, QUIET_SECONDS = 0.02, 0.5  # period of a look at the server while somebody waits for it, and otherwise
SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
DOWN, STARTING, UP, STOPPING = "down", "starting", "up", "stopping"
READY = "ready"  # in line 8 of postmaster.pid, as pg_ctl reads it; "starting" lasts through crash recovery
PORT = 5432  # only part of the socket's name: each server has a folder of its own


@dataclass(frozen=True)
class Plan:
    """What a keeper is to run: folder of the server, folder of its sockets, binaries, user, settings, kept or not."""

    root: str
    sockets: str
    binaries: str
    dsn: str
    user: str | None = None
    settings: tuple[str, ...] = ()
    lasting: bool = False

    @property
    def data(self) -> Path:
        return Path(self.root, "pg")

    @property
    def door(self) -> Path:
        return Path(self.sockets, "keeper")

    @property
    def grace_seconds(self) -> float:
        return GRACE_SECONDS if self.lasting else 0.0


class Keeper:
    """The server, its clients, and who waits for it to be up or down. One thread; PostgreSQL is its only child."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.postgres: subprocess.Popen[bytes] | None = None
        self.state = DOWN
        self.clients: set[socket.socket] = set()
        self.leaving: list[socket.socket] = []
        self.waiting_up: list[socket.socket] = []
        self.waiting_down: list[socket.socket] = []
        self.until = time.monotonic() + GRACE_SECONDS
        self.selector = selectors.DefaultSelector()
        self.operations = {"start": self.start, "stop": self.stop, "kill": self.kill}

    def serve(self) -> None:
        with self._listen() as listener:
            while self.clients or time.monotonic() < self.until:
                for key, _ in self.selector.select(self._period_seconds()):
                    self._accept(listener) if key.fileobj is listener else self._receive(key.fileobj)
                self._look()
            self.plan.door.unlink(missing_ok=True)  # before the server goes: who comes now starts a new keeper
        if self.postgres is not None:
            end(self.postgres, "fast" if self.plan.lasting else "immediate")
        clear_up(self.plan)

    def start(self, client: socket.socket, _: dict[str, Any]) -> None:
        self.waiting_up.append(client)
        self._look()
        if self.state == DOWN:
            self._launch()

    def stop(self, client: socket.socket, request: dict[str, Any]) -> None:
        self.waiting_down.append(client)
        if self.postgres is not None:
            self.state = STOPPING
            self.postgres.send_signal(SIGNALS[request["mode"]])

    def kill(self, client: socket.socket, _: dict[str, Any]) -> None:
        """SIGKILL of the postmaster. Its backends notice by themselves; a busy one would not, and would hold on to
        the shared memory that the next start needs."""
        self.waiting_down.append(client)
        if self.postgres is not None:
            self.state = STOPPING
            self.postgres.kill()
            self.postgres.wait()
            clear(self.plan.root, patience_seconds=IMMEDIATE_SECONDS)

    def _launch(self) -> None:
        try:
            make_cluster(self.plan)
            stop_orphans(self.plan)
            self.postgres, self.state = launch(self.plan), STARTING
        except (OSError, subprocess.SubprocessError) as error:
            self._answer(self.waiting_up, error=explain(error))

    def _look(self) -> None:
        if self.postgres is not None and self.postgres.poll() is not None:
            self._ended()
        elif self.state == STARTING and status(self.plan.data, self.postgres) == READY:
            self.state = UP
        if self.state == UP and self.postgres is not None:
            self._answer(self.waiting_up, dsn=self.plan.dsn, pid=self.postgres.pid, keeper=os.getpid())
        if self.state == DOWN:
            self._answer(self.waiting_down, stopped=True)

    def _ended(self) -> None:
        started_in_vain = self.state == STARTING
        self.postgres, self.state = None, DOWN
        self._answer(self.waiting_down, stopped=True)
        if started_in_vain:
            self._answer(self.waiting_up, error=f"the server ended while it started: {tail(self.plan)}")
        elif self.waiting_up:
            self._launch()

    def _answer(self, waiting: list[socket.socket], **answer: Any) -> None:
        for client in waiting:
            with contextlib.suppress(OSError):  # it went away meanwhile: the selector will say so
                client.sendall(json.dumps(answer).encode() + b"\n")
        waiting.clear()

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        self.plan.door.unlink(missing_ok=True)
        listener.bind(str(self.plan.door))
        listener.listen(64)
        self.selector.register(listener, selectors.EVENT_READ)
        return listener

    def _accept(self, listener: socket.socket) -> None:
        client, _ = listener.accept()
        self.clients.add(client)
        self.selector.register(client, selectors.EVENT_READ)

    def _receive(self, client: Any) -> None:
        try:
            line = client.recv(4096)  # a request is one short line, sent at once
        except OSError:
            line = b""
        if line:
            request = json.loads(line)
            self.operations[request["op"]](client, request)
        else:
            self._forget(client)

    def _forget(self, client: socket.socket) -> None:
        self.selector.unregister(client)
        self.clients.discard(client)
        if not self.plan.lasting:
            self.leaving.append(client)  # left open: its owner reads on until this process is gone
        self.waiting_up = [one for one in self.waiting_up if one is not client]
        self.waiting_down = [one for one in self.waiting_down if one is not client]
        self.until = time.monotonic() + self.plan.grace_seconds

    def _period_seconds(self) -> float:
        busy = self.waiting_up or self.waiting_down or not self.clients
        return BUSY_SECONDS if busy else QUIET_SECONDS


def make_cluster(plan: Plan) -> None:
    """initdb beside the final name, then rename: one that was interrupted is never taken for a cluster."""
    if plan.data.exists():
        return
    new = plan.data.with_name("pg.new")
    if new.exists():
        clear(plan.root, patience_seconds=0)
        shutil.rmtree(new)
    new.mkdir(mode=0o700)  # this alone is the unprivileged user's: root opens no file where another could put a link
    if plan.user:
        shutil.chown(new, plan.user)
    command = [str(Path(plan.binaries, "initdb")), "-D", str(new), "-U", "postgres", "-A", "trust", "-E", "UTF8",
               "--no-sync", f"--locale={collation()}"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                   cwd=plan.root, env=environment(), **identity(plan.user))
    new.rename(plan.data)


def collation() -> str:
    """C.UTF-8 where the system has it (older macOS has not), else C: both order by code point."""
    try:
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
        return "C.UTF-8"
    except locale.Error:
        return "C"


def launch(plan: Plan) -> subprocess.Popen[bytes]:
    settings = [part for setting in plan.settings for part in ("-c", setting)]
    command = [str(Path(plan.binaries, "postgres")), "-D", str(plan.data), "-k", plan.sockets, "-h", "",
               "-p", str(PORT), *settings]
    with Path(plan.root, "server.log").open("ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=plan.root,
                                env=environment(), start_new_session=True, **identity(plan.user))


def identity(user: str | None) -> dict[str, Any]:
    """Arguments of subprocess that make a child this user, supplementary groups dropped; None: who we are."""
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []} if user else {}


def environment() -> dict[str, str]:
    """Nothing of the caller's: a bad LC_ALL stops initdb, a bad TZ silently bends the cluster, PG* redirects it."""
    kept = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    return {name: os.environ[name] for name in kept if name in os.environ} | {"LC_ALL": "C", "TZ": "UTC"}


def status(data: Path, postgres: subprocess.Popen[bytes] | None) -> str:
    """State of this very postmaster as it reports it, or nothing."""
    try:
        lines = Path(data, "postmaster.pid").read_text().split("\n")
    except FileNotFoundError:
        return ""
    ours = postgres is not None and lines[0].strip() == str(postgres.pid)
    return lines[7].strip() if ours and len(lines) > 7 else ""


def end(postgres: subprocess.Popen[bytes], mode: str) -> None:
    """Stop our child: as asked, then immediately, then by SIGKILL; a throw-away server needs no checkpoint."""
    for wanted, seconds in ((mode, FAST_SECONDS), ("immediate", IMMEDIATE_SECONDS)):
        postgres.send_signal(SIGNALS[wanted])
        with contextlib.suppress(subprocess.TimeoutExpired):
            postgres.wait(seconds)
            return
    postgres.kill()
    postgres.wait()


def stop_orphans(plan: Plan) -> None:
    """Stop a server that has no keeper, and clear what a dead one left. Its pid file must not outlive it: PostgreSQL
    would refuse to start where the number has been given to another process."""
    lock = Path(plan.data, "postmaster.pid")
    with contextlib.suppress(FileNotFoundError):
        first = lock.read_text().split("\n")[0].strip()
        for process in leftovers(plan.root):
            if str(process.pid) == first:
                process.send_signal(SIGNALS["fast" if plan.lasting else "immediate"])
        clear(plan.root, patience_seconds=FAST_SECONDS if plan.lasting else IMMEDIATE_SECONDS)
        lock.unlink(missing_ok=True)


def clear(root: str, patience_seconds: float) -> None:
    """Wait until no process of the cluster is left; then SIGKILL."""
    import psutil  # here, where a server died: it costs 30 ms

    _, alive = psutil.wait_procs(leftovers(root), timeout=patience_seconds)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=IMMEDIATE_SECONDS)


def leftovers(root: str) -> list[Any]:
    """Processes of the cluster, told by the folder that they work in: no process id has to be trusted."""
    import psutil

    here = Path(os.path.realpath(root))
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.name() in ("postgres", "initdb") and Path(process.cwd()).is_relative_to(here):
                found.append(process)
    return found


def clear_up(plan: Plan) -> None:
    """Nothing runs and no socket is left; the cluster goes too unless it is to last."""
    stop_orphans(plan)
    shutil.rmtree(plan.sockets, ignore_errors=True)
    if not plan.lasting:
        if Path(plan.root, "pg.new").exists():
            clear(plan.root, patience_seconds=0)
        shutil.rmtree(plan.root, ignore_errors=True)


def guard(plan: Plan, pipe: int) -> None:
    """Wait for the keeper's end, clear up after it. The lock that it inherited is held until then: no new keeper
    meets the old server."""
    os.setsid()
    os.read(pipe, 1)
    clear_up(plan)


def tail(plan: Plan) -> str:
    lines = Path(plan.root, "server.log").read_text(errors="replace").strip().splitlines()
    return " | ".join(lines[-5:])


def explain(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"{Path(error.cmd[0]).name}: {error.stderr.decode(errors='replace').strip()}"
    return str(error)


def make_sockets(plan: Plan) -> None:
    """A folder with a known name in a place open to all: it must be ours, and closed to others."""
    owner = pwd.getpwnam(plan.user).pw_uid if plan.user else os.geteuid()
    with contextlib.suppress(FileExistsError):
        os.mkdir(plan.sockets, 0o700)
        os.chown(plan.sockets, owner, -1)
    found = os.lstat(plan.sockets)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != owner or found.st_mode & 0o077:
        sys.exit(f"{plan.sockets} is somebody else's: it cannot hold the server's sockets")


def main(text: str) -> None:
    fields = json.loads(text)
    plan = Plan(**{**fields, "settings": tuple(fields["settings"])})
    with Path(plan.root, "lock").open("w") as lock:
        if not locked(lock, plan):
            return  # another keeper serves this folder
        make_sockets(plan)
        read, write = os.pipe()
        if os.fork() == 0:
            os.close(write)
            guard(plan, read)
            os._exit(0)
        os.close(read)
        Keeper(plan).serve()


def locked(lock: Any, plan: Plan) -> bool:
    """True with the lock; False when another keeper answers. In between, a guard clears up: wait for it."""
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if plan.door.exists():
            return False
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1])
