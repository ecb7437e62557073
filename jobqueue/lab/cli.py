"""`python -m jobqueue lab …`: the laboratory run and a campaign of faults; each exits 1 where a promise broke."""

import argparse
import os
import signal
import sys
from pathlib import Path

from ..errors import InvalidInput

YES = "JOBQUEUE_DSN's server may be used, in databases of this command's own: no question is asked"


def parser() -> argparse.ArgumentParser:
    """`lab [--postgres-prefix DIR] --output NEW.json`, `lab campaign …`, `lab review …`."""
    own = argparse.ArgumentParser(prog="python -m jobqueue lab", description=__doc__)
    own.add_argument("--postgres-prefix", metavar="DIR", help="folder with bin/initdb (default: the embedded server)")
    own.add_argument("--output", metavar="NEW.json", help="where the laboratory run is written; must not exist")
    own.add_argument("--project", default="APS", help="name of the service whose design is reviewed")
    own.add_argument("--quiet", action="store_true", help="no progress bar")
    own.add_argument("--yes", action="store_true", help=YES)
    own.set_defaults(act=_laboratory, verbose=False)
    commands = own.add_subparsers(dest="command", metavar="COMMAND")
    campaign = commands.add_parser("campaign", help="real kills, freezes and database crashes, by seed")
    campaign.add_argument("--minutes", type=float, default=10)
    campaign.add_argument("--seed", type=int, default=7)
    campaign.add_argument("--output", metavar="NEW.json", help="the report, with its plan; must not exist")
    campaign.add_argument("--postgres-prefix", metavar="DIR")
    campaign.add_argument("--quiet", action="store_true")
    campaign.add_argument("--yes", action="store_true", help=YES)
    campaign.set_defaults(act=_campaign)
    matrix = commands.add_parser("matrix", help="the failure matrix, from a queue driven into every state")
    matrix.add_argument("--out", required=True, metavar="DIR", help="for Markdown, CSV, HTML and the state diagram")
    matrix.add_argument("--project", default="APS", help="name of the service whose design is reviewed")
    matrix.add_argument("--postgres-prefix", metavar="DIR")
    matrix.add_argument("--quiet", action="store_true")
    matrix.add_argument("--yes", action="store_true", help=YES)
    matrix.set_defaults(act=_matrix)
    explore = commands.add_parser("explore", help="the deep search: every order of calls, on the shipped SQL")
    explore.add_argument("--shallower", type=int, default=0, metavar="N", help="so many actions less than the whole")
    explore.add_argument("--output", metavar="NEW.json", help="what was covered; must not exist")
    explore.add_argument("--postgres-prefix", metavar="DIR")
    explore.add_argument("--quiet", action="store_true")
    explore.add_argument("--yes", action="store_true", help=YES)
    explore.set_defaults(act=_explore)
    _add_load(commands)
    _add_review(commands)
    return own


def _add_load(commands) -> None:
    load = commands.add_parser("load", help="a ramp of real load, and whether a broker is needed")
    for name, kind, default, text in LOAD:
        load.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default, help=text)
    load.add_argument("--rates", type=float, nargs="+", metavar="RATE", help="jobs a second, rising")
    load.add_argument("--output", metavar="DIR", help="folder for the stored run; must not exist")
    load.add_argument("--postgres-prefix", metavar="DIR")
    load.add_argument("--yes", action="store_true", help="JOBQUEUE_DSN's server may be used: no question is asked")
    load.add_argument("--quiet", action="store_true")
    load.set_defaults(act=_load)


def _add_review(commands) -> None:
    review = commands.add_parser("review", help="the design review pack: one HTML file, a PDF and a zip")
    review.add_argument("--out", metavar="DIR", required=True, help="folder of the pack; must be new or empty")
    review.add_argument("--trace", metavar="FILE", help="your history, .csv or .swf (default: a made-up office hour)")
    review.add_argument("--title")
    review.add_argument("--seed", type=int, default=7)
    review.add_argument(
        "--target", metavar="NAME=SECONDS", action="append", default=[], help="of the planner; may recur"
    )
    review.add_argument("--runs", metavar="SET", help="a stored set of runs, taken as it is")
    review.add_argument("--chromium", action="store_true", help="and a PDF printed by Chromium")
    review.add_argument("--postgres-prefix", metavar="DIR")
    review.add_argument("--quiet", action="store_true")
    review.set_defaults(act=_review)


LOAD = (
    ("target_age_seconds", float, 0.5, "the p95 of queue age that is to be kept"),
    ("required_rate", float, None, "jobs a second that you need: exit 1 where they are not sustained"),
    ("step_seconds", float, 5.0, None),
    ("limit_seconds", float, 180.0, "for all steps together"),
    ("seed", int, 1, None),
    ("workers", int, 2, None),
    ("concurrency", int, 4, "slots of a worker"),
    ("prefetch", int, 200, "a worker's batch: at most so many claimed ahead"),
    ("wake", str, "notify", "notify or poll"),
    ("poll_seconds", float, 1.0, None),
    ("service_seconds", float, 0.0, "how long each handler waits"),
    ("producers", int, 2, "processes that enqueue"),
    ("connections", int, 4, "of each of them"),
    ("enqueue_batch", int, 1, "jobs a transaction of a producer"),
    ("arrivals", str, "poisson", "poisson or constant"),
)


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):  # as after Ctrl-C: no database and no process stays
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores one
            signal.signal(number, lambda number, frame: sys.exit(128 + number))
    return options.act(options)


def _laboratory(options) -> int:
    from . import laboratory

    if not options.output:
        raise InvalidInput("lab needs --output NEW.json (or a command: campaign)")
    found = laboratory.run(options.output, options.postgres_prefix, project=options.project,
                           progress=not options.quiet, confirm=options.yes or None)  # fmt: skip
    print("\n".join(laboratory.summary(found)))
    print(f"PostgreSQL {found['postgresql']}: {'every promise held' if found['held'] else 'A PROMISE IS BROKEN'}")
    return 0 if found["held"] else 1


def _campaign(options) -> int:
    from . import campaign

    if not 0.1 <= options.minutes <= 24 * 60:
        raise InvalidInput(f"--minutes must lie in 0.1–1440, not {options.minutes:g}")
    path = _new(options.output)
    report = campaign.run(options.minutes, options.seed, prefix=options.postgres_prefix,
                          progress=not options.quiet, confirm=options.yes or None)  # fmt: skip
    print(report.text())
    if path:
        path.write_text(report.dumps() + "\n", encoding="utf-8")
    return 0 if report.held else 1


def _matrix(options) -> int:
    from . import matrix

    folder = Path(options.out)
    if folder.exists() and not folder.is_dir() or not os.access(_nearest(folder), os.W_OK):
        raise InvalidInput(f"{folder} is no folder, or can't be made or written to")
    found = matrix.run(options.postgres_prefix, project=options.project, progress=not options.quiet,
                       confirm=options.yes or None)  # fmt: skip
    for path in found.save(folder):
        print(path)
    return 0


def _explore(options) -> int:
    from . import explorer

    if not 0 <= options.shallower <= 8:
        raise InvalidInput(f"--shallower must lie in 0–8, not {options.shallower}")
    path = _new(options.output)
    found = explorer.deep(options.postgres_prefix, shallower=options.shallower, progress=not options.quiet,
                          confirm=options.yes or None)  # fmt: skip
    print(found.text())
    if path:
        path.write_text(found.dumps() + "\n", encoding="utf-8")
    return 0 if found.held else 1


def _new(output: str | None) -> Path | None:
    """Where to write; refused before any work where it would overwrite something, or can't be written."""
    path = Path(output) if output else None
    if path and (path.exists() or not os.access(path.parent, os.W_OK)):
        raise InvalidInput(f"{path} exists, or its folder can't be written to: give a new name")
    return path


def _nearest(folder: Path) -> Path:
    """The folder itself or the first one above it that is there."""
    return next(each for each in (folder, *folder.absolute().parents) if each.exists())


def _load(options) -> int:
    from . import load

    path = _new(options.output)
    given = {name: getattr(options, name) for name, *_ in LOAD}
    confirm = True if options.yes else None
    found = load.run(rates=options.rates, prefix=options.postgres_prefix, confirm=confirm,
                     progress=not options.quiet, **given)  # fmt: skip
    print(found.text())
    if path:
        found.save(path)
    return 0 if found.sustained else 1


def _review(options) -> int:
    from . import report

    pack = report.make(
        options.out, trace=options.trace, title=options.title, seed=options.seed,
        targets=dict(map(_target, options.target)), stored=options.runs, prefix=options.postgres_prefix,
        chromium=options.chromium, progress=not options.quiet,
    )  # fmt: skip
    print(pack)
    print("\n".join(f"{path.name}  {path.stat().st_size:,} bytes" for path in pack.files))
    return 0 if pack.held else 1


def _target(text: str) -> tuple[str, float]:
    name, _, seconds = text.partition("=")
    try:
        return name, float(seconds)
    except ValueError:
        raise InvalidInput(f"--target is NAME=SECONDS, not {text!r}") from None
