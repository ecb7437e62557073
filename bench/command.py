"""The command `./run bench`: measures, prints, saves, and ends with 1 where a bar is missed."""

import argparse
import logging
import sys
import time
from pathlib import Path

from jobqueue.errors import InvalidInput, JobQueueError

from . import bars, nodes, plan, report
from .amounts import QUICK, Amounts
from .contenders import NAMES
from .stage import ROOT

HELD, MISSED, TROUBLE, INTERRUPTED = 0, 1, 2, 130
ROUNDS = 5


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        if options.install_node_peers:
            return nodes.install()
        return _bench(options)
    except JobQueueError as error:
        print(f"bench: {error}", file=sys.stderr)
        return TROUBLE
    except KeyboardInterrupt:
        return INTERRUPTED


def parser() -> argparse.ArgumentParser:
    own = argparse.ArgumentParser(prog="./run bench", description="Measures this queue beside its peers and the floor.")
    own.add_argument("--only", default=",".join(NAMES), metavar="NAMES", help=f"of {', '.join(NAMES)}")
    own.add_argument("--tests", default=",".join(plan.TESTS), metavar="NAMES", help=f"of {', '.join(plan.TESTS)}")
    own.add_argument("--rounds", type=int, help=f"interleaved (default {ROUNDS}, with --quick 1)")
    own.add_argument(
        "--quick", action="store_true", help="small amounts: shows that it works; a missed bar is no error"
    )
    own.add_argument("--out", type=Path, metavar="DIR", help="for its four files (default: data/runs/bench-…)")
    own.add_argument("--write", action="store_true", help="also docs/bench.png and docs/bench.csv, for the README")
    own.add_argument(
        "--again", type=Path, metavar="FILE", help="measures nothing: judges and shows what a bench.json holds"
    )
    own.add_argument("--strict", action="store_true", help="a bar that could not be measured counts as missed")
    own.add_argument("--no-peers", action="store_true", help="ours and the floor only; installs no other queue")
    own.add_argument("--install-node-peers", action="store_true", help="installs graphile-worker and pg-boss, and ends")
    return own


def _bench(options) -> int:
    if options.again:
        return _show(options, report.read(options.again))
    names = _chosen(options.only, NAMES, "--only")
    if options.no_peers:
        names = [name for name in names if name in plan.ALONE]
    tests = _chosen(options.tests, tuple(plan.TESTS), "--tests")
    rounds = (1 if options.quick else ROUNDS) if options.rounds is None else options.rounds
    if rounds < 1:
        raise InvalidInput("--rounds must be at least 1")
    return _show(options, plan.measure(names, tests, rounds, QUICK if options.quick else Amounts()))


def _show(options, run: plan.Run) -> int:
    verdicts = bars.judge(run.readings, run.missing)
    print(report.text(run, verdicts))
    folder = options.out or ROOT / "data" / "runs" / time.strftime("bench-%Y%m%d-%H%M%S")
    _save(folder, run, verdicts, options.write)
    if run.interrupted:
        return INTERRUPTED
    if bars.OURS in run.missing:
        return TROUBLE
    return HELD if options.quick else exit_code(verdicts, options.strict)


def exit_code(verdicts: list[bars.Verdict], strict: bool = False) -> int:
    """1 where a bar is missed; strict: or could not be measured."""
    bad = (bars.MISSED, bars.UNKNOWN, bars.IN_PART) if strict else (bars.MISSED,)
    return MISSED if any(each.result in bad for each in verdicts) else HELD


def _chosen(given: str, known: tuple[str, ...], option: str) -> list[str]:
    """In our order: the floor first, then ours, then the peers."""
    wanted = [name.strip() for name in given.split(",") if name.strip()]
    unknown = sorted(set(wanted) - set(known))
    if unknown or not wanted:
        raise InvalidInput(f"{option}: {', '.join(unknown) or 'nothing'} is not among {', '.join(known)}")
    return [name for name in known if name in wanted]


def _save(folder: Path, run: plan.Run, verdicts: list[bars.Verdict], also_docs: bool) -> None:
    paths = report.write(folder, run, verdicts)
    if also_docs:
        for path in paths:
            if path.suffix in (".png", ".csv"):
                (ROOT / "docs" / path.name).write_bytes(path.read_bytes())
    print(f"\nsaved {', '.join(path.name for path in paths)} in {folder}{' and docs/' if also_docs else ''}")
