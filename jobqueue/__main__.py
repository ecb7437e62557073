"""The door: `python -m jobqueue …`; signals, exit codes and one clear line for an error live here and nowhere else."""

import argparse
import contextlib
import importlib
import json
import logging
import os
import signal
import sys
import zoneinfo
from collections.abc import Callable, Iterator
from datetime import datetime
from types import FrameType
from typing import Any

import psycopg

from . import limits, metrics, publication
from .context import Handlers
from .errors import InvalidInput, JobQueueError
from .installation import fence
from .janitor import Janitor
from .loop import Loop, connect
from .queue import Queue
from .reaper import Reaper
from .scheduler import Scheduler
from .schedules import MISFIRES, OVERLAPS, Schedule, Schedules
from .sql import SQL
from .transactions import translated, value
from .worker import STUCK, Worker


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["lab"]:
        return _guarded("lab", "-v" in given, lambda: _lab([each for each in given[1:] if each != "-v"]))
    options = _parser().parse_args(given)
    _log(options)
    return _guarded(options.command, options.verbose, lambda: options.run(options))


def _guarded(command: str, verbose: bool, act: Callable[[], int | None]) -> int:
    try:
        code = act() or 0
        print(end="", flush=True)
        return code
    except (JobQueueError, OSError) as error:
        if verbose:
            raise
        if isinstance(error, OSError):  # e.g. nobody reads this output: the interpreter must not try once more
            sys.stdout = None
        print(f"jobqueue {command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _lab(arguments: list[str]) -> int:
    try:
        from .lab import cli  # the laboratory's own commands, read only when they are asked for
    except ImportError as error:
        raise JobQueueError(f"the laboratory is not installed (pip install 'jobqueue[lab]'): {error}") from None
    return cli.main(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jobqueue",
        description="A table queue on PostgreSQL.",
        epilog="`python -m jobqueue lab --help` lists the laboratory's commands.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (run, text, add) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        command.add_argument("--dsn", help="else JOBQUEUE_DSN, else the laboratory's own server")
        command.add_argument("--pooled", dest="prepare_threshold", action="store_const", const=None, default=5,
                             help="behind a transaction pooler such as pgbouncer")  # fmt: skip
        command.add_argument("-v", "--verbose", action="store_true", help="debug lines, and tracebacks of errors")
        command.add_argument("--log-json", action="store_true", help="log lines as JSON")
        add(command)
    return parser


# ---------------------------------------------------------------- commands


def _install(options: argparse.Namespace) -> None:
    with _queue(options) as queue:
        queue.install(roles=options.roles)
    print("installed")


def _worker(options: argparse.Namespace) -> int:
    with _dsn(options) as dsn:
        given = _given(options, "owner", "concurrency", "grace_seconds", "poll_seconds", "prefetch", "artifacts")
        given |= _given(options, "prepare_threshold") | {"fresh_owner": options.fresh_owner or None}
        worker = Worker(dsn, _handlers(options.handlers), **given)
        _run(worker)
        return STUCK if worker.stuck else 0


def _reaper(options: argparse.Namespace) -> None:
    with _dsn(options) as dsn:
        _run(Reaper(dsn, **_given(options, "poll_seconds", "limit", "outage_grace_seconds", "prepare_threshold")))


def _janitor(options: argparse.Namespace) -> None:
    given = _given(options, "archive_after_seconds", "key_ttl_seconds", "archive_ttl_seconds", "artifacts")
    given |= _given(options, "orphan_grace_seconds", "poll_seconds", "limit", "prepare_threshold")
    with _dsn(options) as dsn:
        _run(Janitor(dsn, statuses=options.statuses.split(","), **given))


def _scheduler(options: argparse.Namespace) -> None:
    with _dsn(options) as dsn:
        _run(Scheduler(dsn, **_given(options, "poll_seconds", "limit", "prepare_threshold")))


def _schedule(options: argparse.Namespace) -> None:
    if options.action == "preview" and options.after:
        _preview(options, _moment(options.after))
        return
    with _connection(options) as conn, translated(conn):
        if options.action == "preview":
            _preview(options, value(conn, SQL.database_now))
        elif options.action == "put":
            given = _given(options, *SCHEDULE_SETTINGS)
            Schedules(conn).put(options.id, options.type, options.cron, payload=_json(options.payload), **given)
        elif options.action == "list":
            print("\n".join(map(_schedule_line, Schedules(conn).list())) or "no schedules")
        else:
            getattr(Schedules(conn), options.action)(options.id)


def _preview(options: argparse.Namespace, after: datetime) -> None:
    zone = options.timezone
    for slot in Schedules.preview(options.cron, timezone=zone, after=after, limit=options.limit, id=options.id):
        print(f"{slot:%Y-%m-%d %H:%M:%S}Z\t{slot.astimezone(zoneinfo.ZoneInfo(zone)):%a %Y-%m-%d %H:%M:%S %z} {zone}")


def _schedule_line(one: Schedule) -> str:
    state = "paused" if one.paused else one.problem or f"next {one.next_run_at:%Y-%m-%d %H:%M:%S}Z"
    return f"{one.id}\t{one.job_type}\t{one.cron}\t{one.timezone}\t{state}\tmissed {one.missed_slots}"


def _enqueue(options: argparse.Namespace) -> None:
    payload = _json(options.payload)
    with _queue(options) as queue:
        added = queue.enqueue(options.type, payload, **_given(options, "key", "delay_seconds", "max_attempts"))
    print(json.dumps(added._asdict()))


def _stats(options: argparse.Namespace) -> int:
    with _connection(options) as conn:
        if options.openmetrics:
            print(metrics.openmetrics(conn), end="")
            return 0
        found = metrics.snapshot(conn)
    if options.check:
        breaches = metrics.breaches(found, **_given(options, "max_dead", "max_age_seconds", "max_missed"))
        print("\n".join(breaches) or "all within their thresholds")
        return 1 if breaches else 0
    print("\n".join(_told(found)))
    return 0


def _told(found: metrics.Snapshot) -> list[str]:
    lines = [f"ready {found.ready} (due {found.depth.due}, future {found.depth.future}, retrying {found.retrying}), "
             f"running {sum(found.running.values())} ({found.expired} expired), dead {sum(found.dead.values())}, "
             f"done in the last minute {found.done_per_minute}"]  # fmt: skip
    for name in ("wait", "service"):
        q = getattr(found, name)
        lines.append(f"their {name}: half within {q.p50:.3f} s, 90 % within {q.p90:.3f} s, 99 % within {q.p99:.3f} s")
    lines += [f"  oldest due {type}: {age:.1f} s" for type, age in sorted(found.oldest_ready_age_seconds.items())]
    lines += [f"  dead letters {type}: {n}" for type, n in sorted(found.dead.items())]
    lines += [f"  {name} in the last hour: {n}" for name, n in sorted(found.incidents.items())]
    if found.expired_but_locked:
        lines.append(f"  expired but locked: {found.expired_but_locked} (by whom: view jobqueue.expired_but_locked)")
    return lines


def _explain(options: argparse.Namespace) -> None:
    with _queue(options) as queue:
        print(queue.explain(options.id))
        if options.artifacts:
            found = publication.verify(queue.conn, options.artifacts, options.id)
            where = f" It is {found.path}" if found.path else ""
            print(f"Result in {options.artifacts}: {found.state}; {found.reason}.{where}")


def _dead(options: argparse.Namespace) -> None:
    with _queue(options) as queue:
        for job in queue.dead_letters(type=options.type, limit=options.limit):
            reason = limits.brief(job.last_error or "")
            print(f"{job.id}\t{job.type}\t{job.status}\t{job.finished_at:%Y-%m-%d %H:%M:%S}\t{reason}")


def _redrive(options: argparse.Namespace) -> None:
    with _queue(options) as queue:
        ids = queue.redrive(options.ids or None, type=options.type, cancelled=options.cancelled)
    print(f"redriven: {len(ids)}{' (' + ', '.join(map(str, ids[:20])) + ')' if ids else ''}")


def _cancel(options: argparse.Namespace) -> None:
    if (options.id is None) == (options.type is None):
        raise InvalidInput("give the id of one job, or --type for all of a type")
    with _queue(options) as queue:
        if options.type is None:
            print(queue.cancel(options.id).message)
        else:
            print(f"cancelled: {queue.cancel_type(options.type)}")


def _switch(options: argparse.Namespace) -> None:
    told = {"pause": "are not claimed until resumed; running ones go on", "resume": "are claimed again"}
    with _queue(options) as queue:
        getattr(queue, f"{options.command}_type")(options.type)
    print(f"{options.command}d: jobs of type {options.type!r} {told[options.command]}")


def _fence(options: argparse.Namespace) -> None:
    with _connection(options) as conn, translated(conn):
        done = fence(conn, options.raise_by)
    raised = f"raised {done.jobs} live epochs by {options.raise_by}, took {done.leases} leases away"
    print(f"{raised}; new jobs begin after id {done.next_id}")


# ---------------------------------------------------------------- their arguments


def _install_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--roles", action="store_true", help="jobqueue_producer, jobqueue_worker, jobqueue_observer")


def _worker_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--handlers", required=True, metavar="module:NAME", help="a dict: type to callable or Handler")
    command.add_argument("--owner", help="the name in locked_by (default: unique to each start)")
    command.add_argument("--fresh-owner", action="store_true", help="--owner is unique to this start")
    command.add_argument("--concurrency", type=int, default=4)
    command.add_argument("--prefetch", type=int, default=1000)
    command.add_argument("--poll-seconds", type=float, default=1)
    command.add_argument("--grace-seconds", type=float, default=10)
    command.add_argument("--artifacts", metavar="DIR", help="folder for published files")


def _reaper_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--poll-seconds", type=float, default=1)
    command.add_argument("--limit", type=int, default=100)
    command.add_argument("--outage-grace-seconds", type=float, default=30)


def _scheduler_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--poll-seconds", type=float, default=1)
    command.add_argument("--limit", type=int, default=100, help="schedules a tick")


def _schedule_arguments(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    put = actions.add_parser("put", help="create or change one")
    for name in ("id", "type", "cron"):
        put.add_argument(name)
    put.add_argument("payload", nargs="?", default="null", help="JSON")
    for name, (default, allowed) in SCHEDULE_SETTINGS.items():
        put.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, choices=allowed)
    preview = actions.add_parser("preview", help="the next slots, in UTC and in the zone")
    preview.add_argument("cron")
    preview.add_argument("--timezone", default="UTC")
    preview.add_argument("--after", metavar="INSTANT", help="ISO 8601 with an offset (default: the database's now)")
    preview.add_argument("--limit", type=int, default=10)
    preview.add_argument("--id", default="", help="the schedule's id, where the expression contains H")
    actions.add_parser("list", help="all of them")
    for name, text in (("pause", "no slots until resumed"), ("resume", "go on"), ("remove", "end one")):
        actions.add_parser(name, help=text).add_argument("id")
    for action in actions.choices.values():
        action.add_argument("--dsn", default=argparse.SUPPRESS, help=argparse.SUPPRESS)  # accepted here, too


def _janitor_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--archive-after-seconds", type=float, default=86_400, help="statuses below (default: a day)")
    command.add_argument("--statuses", default="done", help="of done,cancelled,failed,dead (default: done)")
    command.add_argument("--key-ttl-seconds", type=float, default=2_592_000, help="after its job (default: 30 days)")
    command.add_argument("--archive-ttl-seconds", type=float, help="forget archived rows (default: never)")
    command.add_argument("--artifacts", metavar="DIR", help="folder of published files, to be swept")
    command.add_argument("--orphan-grace-seconds", type=float, default=3_600)
    command.add_argument("--poll-seconds", type=float, default=60)
    command.add_argument("--limit", type=int, default=1_000, help="rows a batch")


def _enqueue_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("type")
    command.add_argument("payload", nargs="?", default="null", help="JSON")
    command.add_argument("--key")
    command.add_argument("--delay-seconds", type=float)
    command.add_argument("--max-attempts", type=int, default=5)


def _stats_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--openmetrics", action="store_true", help="as OpenMetrics text, for Prometheus")
    command.add_argument("--check", action="store_true", help="exit 1 and say which threshold is passed")
    command.add_argument("--max-dead", type=int, default=0, help="dead letters (default: 0)")
    command.add_argument("--max-age-seconds", type=float, default=300, help="of the oldest due job (default: 300)")
    command.add_argument("--max-missed", type=int, default=0, help="slots, since their schedules began (default: 0)")


def _explain_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("id", type=int)
    command.add_argument("--artifacts", metavar="DIR", help="also compare the published file's bytes with its digest")


def _cancel_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("id", type=int, nargs="?")
    command.add_argument("--type", help="every ready and running job of this type")


def _type_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("type")


def _fence_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--raise", type=int, required=True, dest="raise_by", metavar="N",
                         help="more than the claims of one job that the fail-over may have lost")  # fmt: skip


def _dead_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--type")
    command.add_argument("--limit", type=int, default=100)


def _redrive_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("ids", type=int, nargs="*", metavar="ID")
    command.add_argument("--type")
    command.add_argument("--cancelled", action="store_true", help="cancelled jobs, too")


# Of `schedule put`: the default, and what is allowed where that is a short list.
SCHEDULE_SETTINGS: dict[str, tuple[str | float, tuple[str, ...] | None]] = {
    "timezone": ("UTC", None),
    "spread_seconds": (0.0, None),
    "misfire": ("last", MISFIRES),
    "misfire_grace_seconds": (60.0, None),
    "max_catch_up": (100, None),
    "overlap": ("allow", OVERLAPS),
    "max_attempts": (5, None),
}
Command = tuple[Callable[[argparse.Namespace], int | None], str, Callable[[argparse.ArgumentParser], None]]
COMMANDS: dict[str, Command] = {
    "install": (_install, "Create or upgrade the schema.", _install_arguments),
    "worker": (_worker, "Run jobs until SIGTERM.", _worker_arguments),
    "reaper": (_reaper, "Take ended leases away until SIGTERM.", _reaper_arguments),
    "scheduler": (_scheduler, "Turn due slots of schedules into jobs until SIGTERM.", _scheduler_arguments),
    "schedule": (_schedule, "Recurring schedules: put, list, preview, pause, resume, remove.", _schedule_arguments),
    "janitor": (_janitor, "Archive, forget old keys and sweep orphans until SIGTERM.", _janitor_arguments),
    "enqueue": (_enqueue, "Add one job.", _enqueue_arguments),
    "stats": (_stats, "The queue at this instant.", _stats_arguments),
    "explain": (_explain, "One job's whole story.", _explain_arguments),
    "dead": (_dead, "Dead letters with their reasons.", _dead_arguments),
    "redrive": (_redrive, "Dead letters back to ready.", _redrive_arguments),
    "cancel": (_cancel, "Cancel one job, or all of a type.", _cancel_arguments),
    "pause": (_switch, "Claim no more jobs of a type.", _type_arguments),
    "resume": (_switch, "Claim jobs of a type again.", _type_arguments),
    "fence": (_fence, "After a fail-over, before workers start: raise every live epoch.", _fence_arguments),
}


# ---------------------------------------------------------------- shared by commands


def _given(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    return {name: getattr(options, name) for name in names}


@contextlib.contextmanager
def _dsn(options: argparse.Namespace) -> Iterator[str]:
    if options.dsn == "":
        raise InvalidInput("--dsn is empty: where it comes from a variable, that is not set")
    dsn = options.dsn or os.environ.get("JOBQUEUE_DSN")
    if dsn:
        yield dsn
        return
    try:
        from .lab import database  # the only place where the core reaches for the laboratory, and only without a DSN
    except ImportError:
        said = "no database: give --dsn or set JOBQUEUE_DSN (or install jobqueue[lab] for an own server)"
        raise JobQueueError(said) from None
    with database.start(fresh=False) as own:
        yield own


@contextlib.contextmanager
def _connection(options: argparse.Namespace) -> Iterator[psycopg.Connection[Any]]:
    with _dsn(options) as dsn, connect(dsn, f"jobqueue {options.command}", options.prepare_threshold) as conn:
        yield conn


@contextlib.contextmanager
def _queue(options: argparse.Namespace) -> Iterator[Queue]:
    with _connection(options) as conn:
        yield Queue(conn)


def _run(loop: Loop | Worker) -> None:
    """SIGTERM and SIGINT only set a flag; a second one ends the process as usual."""

    def stop(number: int, frame: FrameType | None) -> None:
        loop.stop()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    loop.run()


def _handlers(name: str) -> Handlers:
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise InvalidInput(f"--handlers must look like module:NAME, not {name!r}")
    sys.path.insert(0, os.getcwd())
    try:
        found: Handlers = getattr(importlib.import_module(module), attribute)
        return found
    except Exception as error:  # whatever their module does when it is imported
        raise InvalidInput(f"--handlers {name}: {type(error).__name__}: {error}") from error


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"--after must be ISO 8601 with an offset, as 2026-03-29T00:00Z, not {text!r}") from None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the payload is not JSON: {error}") from None


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"at": self.formatTime(record), "level": record.levelname, "logger": record.name}
        line["message"] = record.getMessage()
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _log(options: argparse.Namespace) -> None:
    handler = logging.StreamHandler()
    plain = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(_JsonLines() if options.log_json else plain)
    logging.basicConfig(level=logging.DEBUG if options.verbose else logging.INFO, handlers=[handler], force=True)


if __name__ == "__main__":
    with contextlib.suppress(AttributeError):  # None where it is closed
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    code = main()
    # A slot stuck in a handler that never returns must not keep the process: its supervisor waits for this code.
    os._exit(code) if code == STUCK else sys.exit(code)
