"""`python -m jobqueue lab …`: the laboratory run and a campaign of faults; each exits 1 where a promise broke."""

import argparse
import os
from pathlib import Path

from ..errors import InvalidInput


def parser() -> argparse.ArgumentParser:
    """`lab [--postgres-prefix DIR] --output NEW.json`, `lab campaign …`, `lab review …`."""
    own = argparse.ArgumentParser(prog="python -m jobqueue lab", description=__doc__)
    own.add_argument("--postgres-prefix", metavar="DIR", help="folder with bin/initdb (default: the embedded server)")
    own.add_argument("--output", metavar="NEW.json", help="where the laboratory run is written; must not exist")
    own.add_argument("--project", default="APS", help="name of the service whose design is reviewed")
    own.add_argument("--quiet", action="store_true", help="no progress bar")
    own.set_defaults(act=_laboratory, verbose=False)
    commands = own.add_subparsers(dest="command", metavar="COMMAND")
    campaign = commands.add_parser("campaign", help="real kills, freezes and database crashes, by seed")
    campaign.add_argument("--minutes", type=float, default=10)
    campaign.add_argument("--seed", type=int, default=7)
    campaign.add_argument("--output", metavar="NEW.json", help="the report, with its plan; must not exist")
    campaign.add_argument("--postgres-prefix", metavar="DIR")
    campaign.add_argument("--quiet", action="store_true")
    campaign.set_defaults(act=_campaign)
    return own


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    return options.act(options)


def _laboratory(options) -> int:
    from . import laboratory

    if not options.output:
        raise InvalidInput("lab needs --output NEW.json (or a command: campaign)")
    found = laboratory.run(options.output, options.postgres_prefix, project=options.project, progress=not options.quiet)
    print("\n".join(laboratory.summary(found)))
    print(f"PostgreSQL {found['postgresql']}: {'every promise held' if found['held'] else 'A PROMISE IS BROKEN'}")
    return 0 if found["held"] else 1


def _campaign(options) -> int:
    from . import campaign

    if not 0.1 <= options.minutes <= 24 * 60:
        raise InvalidInput(f"--minutes must lie in 0.1–1440, not {options.minutes:g}")
    path = Path(options.output) if options.output else None
    if path and (path.exists() or not os.access(path.parent, os.W_OK)):
        raise InvalidInput(f"{path} exists, or its folder can't be written to: give a new name")
    report = campaign.run(options.minutes, options.seed, prefix=options.postgres_prefix, progress=not options.quiet)
    print(report.text())
    if path:
        path.write_text(report.dumps() + "\n", encoding="utf-8")
    return 0 if report.held else 1
