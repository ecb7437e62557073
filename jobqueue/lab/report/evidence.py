"""What was shown on real processes and real clusters, read from the files that the lab's commands have written.

Nothing is run here. Where a file is missing, its row says so, with the command that makes it.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ...errors import InvalidInput
from .. import style
from . import runs
from .runs import Stored

NOT_RUN = "not run here"
FOLDER = "data/runs/evidence"
COMMANDS = {
    "laboratory run": f"python -m jobqueue lab --output {FOLDER}/laboratory.json",
    "campaign": f"python -m jobqueue lab campaign --minutes 10 --output {FOLDER}/campaign.json",
    "load run": f"python -m jobqueue lab load --output {FOLDER}/load",
}
ASKED = {
    "laboratory run": "does each promise hold, shown statement by statement on a cluster of its own?",
    "campaign": "is anything lost or doubled under real kills, freezes and database crashes?",
    "load run": "which rate does the real server sustain at the target age?",
}


@dataclass(frozen=True)
class Piece:
    """One kind of evidence. verdict: held, BROKEN, or not run here; source: the file and its sha256, or the command."""

    kind: str
    asked: str
    verdict: str
    shown: str
    source: str

    @property
    def was_run(self) -> bool:
        return self.verdict != NOT_RUN


def gather(explored: Stored, directory: Path | None = None) -> list[Piece]:
    """The search that belongs to the runs, and what lies in the evidence folder; InvalidInput for a file that lies
    there and is none of these."""
    found: dict[str, list[Piece]] = {kind: [] for kind in COMMANDS}
    for path in sorted((directory or runs.home() / runs.EVIDENCE).glob("**/*.json")):
        content = path.read_bytes()
        kind, told = _recognised(path, content)
        found[kind].append(_piece(kind, path, content, told))
    return [_search(explored), *(piece for kind in COMMANDS for piece in found[kind] or [_missing(kind)])]


def table(pieces: list[Piece]) -> pd.DataFrame:
    return pd.DataFrame([(p.kind, p.asked, p.verdict, p.shown, p.source) for p in pieces],
                        columns=["evidence", "question", "verdict", "what was shown", "from"])  # fmt: skip


def load_runs(directory: Path | None = None) -> list[Path]:
    """Folders of stored load runs."""
    return [path.parent for path in sorted((directory or runs.home() / runs.EVIDENCE).glob("*/run.json"))]


def _recognised(path: Path, content: bytes) -> tuple[str, dict]:
    try:
        told = json.loads(content)
    except ValueError as error:
        raise InvalidInput(f"evidence {path.name} is no JSON: {error}") from None
    keys = set(told) if isinstance(told, dict) else set()
    if {"groups", "held"} <= keys:
        return "laboratory run", told
    if {"plan", "broken", "injected"} <= keys:
        return "campaign", told
    if {"verdict", "kind"} <= keys and told["kind"] == "load":
        return "load run", told
    raise InvalidInput(f"evidence {path.name} is no laboratory run, campaign or load run: move it elsewhere")


def _piece(kind: str, path: Path, content: bytes, told: dict) -> Piece:
    describe: Callable[[dict], tuple[str, str]] = {
        "laboratory run": _laboratory, "campaign": _campaign, "load run": _load,
    }[kind]  # fmt: skip
    name = path.name if path.name != "run.json" else f"{path.parent.name}/{path.name}"
    return Piece(kind, ASKED[kind], *describe(told), f"{name}, sha256 {hashlib.sha256(content).hexdigest()[:12]}")


def _missing(kind: str) -> Piece:
    return Piece(kind, ASKED[kind], NOT_RUN, "nothing", COMMANDS[kind])


def _search(explored: Stored) -> Piece:
    covered = explored["coverage"]
    broken = covered[covered["violation"] != "none"]
    shown = (
        f"{style.count(covered['transitions'].sum(), 'call')} in every order over {len(covered)} families of actors, "
        f"{style.count(covered['states'].sum(), 'state')}; "
        + (f"broken: {', '.join(broken['violation'])}" if len(broken) else "no violation")
    )
    return Piece("exhaustive search", "does any order of calls break a promise, up to this depth?",
                 _held(broken.empty), shown, "made with these runs (run explorer)")  # fmt: skip


def _laboratory(told: dict) -> tuple[str, str]:
    by = pd.Series([group["verdict"] for group in told["groups"]]).value_counts()
    broken = [group["name"] for group in told["groups"] if group["verdict"] == "broken"]
    skipped = f", {by['skipped']} skipped (this machine can't show them)" if by.get("skipped") else ""
    observed = sum(len(group["observations"]) for group in told["groups"])
    shown = (
        f"PostgreSQL {told['postgresql']}: {by.get('held', 0)} of {len(told['groups'])} groups held{skipped}; "
        f"{style.count(observed, 'observation')}" + (f"; broken: {', '.join(broken)}" if broken else "")
    )
    return _held(not broken), shown


def _campaign(told: dict) -> tuple[str, str]:
    injected = ", ".join(f"{n:,} {kind}" for kind, n in sorted(told["injected"].items()))
    broken = [promise for promise, members in told["broken"].items() if members]
    shown = (
        f"seed {told['seed']}, {told['minutes']:g} minutes, PostgreSQL {told['version']}: {injected}; "
        f"{style.count(told['jobs'], 'job')}, {style.count(told['lease_losses'], 'lease')} lost; "
        + (f"BROKEN: {', '.join(broken)}" if broken else f"{len(told['broken'])} promises held")
    )
    return _held(not broken), shown


def _load(told: dict) -> tuple[str, str]:
    rate = told["verdict"].get("sustainable_rate")
    facts = told["parameters"]["facts"]
    target = style.duration(told["parameters"]["target_age_seconds"])
    kept = f"{rate:,.0f} jobs a second" if rate else "none of the offered rates"
    where = f"PostgreSQL {facts.get('version')}, {facts.get('server')}, {facts.get('processors')} processors"
    return "measured", f"{kept} sustained with p95 of queue age within {target}; {where}"


def _held(held: bool) -> str:
    return "held" if held else "BROKEN"
