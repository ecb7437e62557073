"""Where it is measured: one embedded server, a fresh database a measurement, processes that none outlives."""

import itertools
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL

import psutil
import psycopg
from psycopg import conninfo

from jobqueue.errors import JobQueueError
from jobqueue.lab import database
from jobqueue.lab.processes import Processes
from jobqueue.sql import statements

from . import track
from .contenders import Contender

ROOT = Path(__file__).resolve().parents[1]
SQL = statements((Path(__file__).with_name("bench.sql")).read_text(encoding="utf-8"))
CALL_SECONDS = 300  # a fill or a probe that takes longer has failed


class BenchError(JobQueueError):
    """A contender could not be measured; the message says which, at what, and its last words."""


@dataclass(frozen=True)
class Hand:
    """A worker's process, and the file in which it counts."""

    name: str
    pid: int
    tracker: Path


class Stage:
    """Open in a with block. settings: PostgreSQL's own, where they differ from initdb's."""

    def __init__(self, settings: dict | None = None):
        self._options = settings

    def __enter__(self) -> "Stage":
        with ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jobqueue-bench-")))
            self.server = stack.enter_context(database.Server(settings=self._options))
            self._processes = Processes(self.folder / "logs")
            stack.callback(self._processes.close)
            self._databases: dict[tuple[str, str], str] = {}
            self._numbers = itertools.count(1)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *failure) -> None:
        self._open.__exit__(*failure)

    @contextmanager
    def fresh(self, contender: Contender) -> Iterator[str]:
        """The DSN of a database with the contender's schema and nothing else."""
        with database.scratch(self.server.dsn, template=self._template(contender)) as dsn:
            yield dsn

    def kept(self, contender: Contender, name: str, fill: Callable[[str], None]) -> str:
        """The DSN of a database that is made and filled once, and stays until the end."""
        if (contender.name, name) not in self._databases:
            dsn = self._open.enter_context(self.fresh(contender))
            fill(dsn)
            self._databases[contender.name, name] = dsn
        return self._databases[contender.name, name]

    def sql(self, dsn: str, *names: str, **numbers: int) -> None:
        """Statements of bench.sql, one after the other."""
        with psycopg.connect(dsn, autocommit=True) as conn:
            for name in names:
                conn.execute(getattr(SQL, name), numbers or None)

    def settings(self) -> dict[str, str]:
        """Those of the server that decide what a figure means."""
        with psycopg.connect(self.server.dsn, autocommit=True) as conn:
            return dict(conn.execute(SQL.settings).fetchall())

    def pending(self, contender: Contender, dsn: str, since: int) -> int:
        """Jobs that it has not finished; of ours, those whose id is greater than `since`."""
        with psycopg.connect(dsn, autocommit=True) as conn:
            return conn.execute(getattr(SQL, f"{contender.name}_pending"), {"since": since}).fetchone()[0]

    def last_job(self, dsn: str) -> int:
        """The greatest id of ours."""
        with psycopg.connect(dsn, autocommit=True) as conn:
            return conn.execute(SQL.last_job).fetchone()[0]

    def call(self, contender: Contender, dsn: str, role: str, *given, tracker: Path | None = None) -> dict:
        """Runs one of its roles to the end; what its last line said."""
        done = subprocess.run(
            contender.command(dsn, role, *given),
            env=self._environment(tracker),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=CALL_SECONDS,
        )
        if done.returncode:
            raise BenchError(f"{contender.name} {role}: {_last(done.stderr)}")
        said = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return json.loads(said[-1]) if said else {}

    @contextmanager
    def producers(self, contender: Contender, dsn: str, count: int, seconds: float) -> Iterator[list]:
        """`count` processes that are ready to produce for so long; each begins when a line is written to it."""
        argv = contender.command(dsn, "produce", seconds)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with ExitStack() as stack:
            started = []
            for _ in range(count):
                process = subprocess.Popen(argv, env=self._environment(None), cwd=ROOT, **pipes)
                stack.callback(process.wait)
                stack.callback(process.kill)
                started.append(process)
            for process in started:
                if process.stdout.readline().strip() != "ready":
                    raise BenchError(f"{contender.name} produce: {_last(process.stderr.read())}")
            yield started

    @contextmanager
    def workers(self, contender: Contender, dsn: str, count: int, *, at_once: bool = False) -> Iterator[list[Hand]]:
        """Its worker processes, killed at the end. at_once: a Node worker shows each handler's begin immediately."""
        names = [f"{contender.name}-{next(self._numbers)}" for _ in range(count)]
        try:
            for name in names:
                path = track.prepare(self.folder / f"{name}.track")
                env = self._additions(path) | ({"BENCH_AT_ONCE": "1"} if at_once else {})
                self._processes.start(name, contender.command(dsn, "work"), env=env)
            status = self._processes.status()
            yield [Hand(name, status[name].pid, self.folder / f"{name}.track") for name in names]
        finally:
            self._processes.signal_living(names, SIGKILL)

    def alive(self, hands: list[Hand]) -> bool:
        status = self._processes.status()
        return all(status[hand.name].alive for hand in hands)

    def words(self, hands: list[Hand]) -> str:
        """The last that each said."""
        return "; ".join(f"{hand.name}: {_last(self._processes.log(hand.name))}" for hand in hands)

    def server_cpu_seconds(self) -> float:
        """Of the whole server, processes that have ended included."""
        postmaster = psutil.Process(self.server.pid)
        own = postmaster.cpu_times()
        used = own.user + own.system + own.children_user + own.children_system
        return used + sum(_cpu_seconds(child) for child in postmaster.children())

    def worker_cpu_seconds(self, hands: list[Hand]) -> float:
        return sum(_cpu_seconds(psutil.Process(hand.pid)) for hand in hands)

    def _template(self, contender: Contender) -> str:
        """Made once, and cloned after."""
        if (contender.name, "") not in self._databases:
            dsn = self._open.enter_context(database.scratch(self.server.dsn))
            self.call(contender, dsn, "setup")
            self._databases[contender.name, ""] = dsn
        return conninfo.conninfo_to_dict(self._databases[contender.name, ""])["dbname"]

    def _environment(self, tracker: Path | None) -> dict[str, str]:
        return {**os.environ, **self._additions(tracker)}

    def _additions(self, tracker: Path | None) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        return {"PYTHONPATH": path, **({"BENCH_TRACK": str(tracker)} if tracker else {})}


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
        return times.user + times.system
    except psutil.Error:  # it has just ended
        return 0.0


def _last(words: str) -> str:
    return " / ".join(words.strip().splitlines()[-3:])[-600:] or "it said nothing"
