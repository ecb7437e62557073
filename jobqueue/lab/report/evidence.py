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
SEARCH = "exhaustive search"
FOLDER = "data/runs/evidence"
DEEPER = f"python -m jobqueue lab explore --output {FOLDER}/search.json"
COMMANDS = {
    "laboratory run": f"python -m jobqueue lab --output {FOLDER}/laboratory.json",
    "campaign": f"python -m jobqueue lab campaign --minutes 10 --output {FOLDER}/campaign.json",
    "load run": f"python -m jobqueue lab load --output {FOLDER}/load",
}
ASKED = {
    SEARCH: "does any order of calls break a promise, up to this depth?",
    "laboratory run": "does each promise hold, shown statement by statement on a cluster of its own?",
    "campaign": "is anything lost or doubled under real kills, freezes and database crashes?",
    "load run": "which rate does the real server sustain at the target age?",
}


@dataclass(frozen=True)
class Piece:
    """One kind of evidence. verdict: held, BROKEN, cut short, measured, or not run here.

    source: the file and its sha256, or the command.
    """

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
    found: dict[str, list[Piece]] = {kind: [] for kind in (SEARCH, *COMMANDS)}
    for path in sorted((directory or runs.home() / runs.EVIDENCE).glob("**/*.json")):
        content = path.read_bytes()
        kind, told = _recognised(path, content)
        found[kind].append(_piece(kind, path, content, told))
    here = _search(explored, DEEPER if not found[SEARCH] else "")
    return [here, *found[SEARCH], *(piece for kind in COMMANDS for piece in found[kind] or [_missing(kind)])]


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
    if {"families", "kind"} <= keys and told["kind"] == "search":
        return SEARCH, told
    raise InvalidInput(f"evidence {path.name} is no laboratory run, campaign, search or load run: move it elsewhere")


def _piece(kind: str, path: Path, content: bytes, told: dict) -> Piece:
    describe: Callable[[dict], tuple[str, str]] = {
        "laboratory run": _laboratory, "campaign": _campaign, "load run": _load, SEARCH: _deep,
    }[kind]  # fmt: skip
    name = path.name if path.name != "run.json" else f"{path.parent.name}/{path.name}"
    return Piece(kind, ASKED[kind], *describe(told), f"{name}, sha256 {hashlib.sha256(content).hexdigest()[:12]}")


def _missing(kind: str) -> Piece:
    return Piece(kind, ASKED[kind], NOT_RUN, "nothing", COMMANDS[kind])


def _search(explored: Stored, deeper: str) -> Piece:
    verdict, shown = _covered(explored["coverage"])
    source = "made with these runs (run explorer)" + (f"; deeper: {deeper}" if deeper else "")
    return Piece(SEARCH, ASKED[SEARCH], verdict, shown, source)


def _deep(told: dict) -> tuple[str, str]:
    verdict, shown = _covered(pd.DataFrame(told["families"]))
    return verdict, f"PostgreSQL {told['postgresql']}: {shown}"


def _covered(families: pd.DataFrame) -> tuple[str, str]:
    """(verdict, what the searches covered); one that did not come to its end proves nothing, and breaks nothing."""
    broken = families.loc[families["violation"] != "none", "violation"]
    cut = families.loc[~families["complete"] & (families["violation"] == "none"), "scenario"]
    depths = " or ".join(map(str, sorted(families["depth"].unique())))
    ends = [f"broken: {', '.join(broken)}"] * (len(broken) > 0) + [f"not ended: {', '.join(cut)}"] * (len(cut) > 0)
    return "BROKEN" if len(broken) else "cut short" if len(cut) else "held", (
        f"{style.count(families['transitions'].sum(), 'call')} in every order of up to {depths} actions over "
        f"{len(families)} families of actors, {style.count(families['states'].sum(), 'state')}; "
        + ("; ".join(ends) or "no violation")
    )


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
    met = {kind: n for kind, n in sorted(told["injected"].items()) if kind != "missed"}
    injected = ", ".join(f"{n:,} {kind}" for kind, n in met.items())
    injected += f" ({missed:,} more met nobody)" if (missed := told["injected"].get("missed")) else ""
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
