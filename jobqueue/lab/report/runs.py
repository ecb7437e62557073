"""Runs as they lie on disk: one folder a run, `run.json` (parameters, seed, versions, figures) and a CSV a frame.

    data/runs/SET/day/run.json, ages.csv, jobs.csv, …
    data/runs/evidence/*.json               what `lab`, `lab campaign`, `lab explore` and `lab load` have written

A run is written beside and renamed: a folder is whole, or it is not there.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from ...errors import InvalidInput
from .. import export, style

FORMAT = 2  # 1: queue age by samples
EVIDENCE = "evidence"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TEXT = "text"


@dataclass(frozen=True)
class Stored:
    """One run. parameters: all that it was given; figures: what was computed once; frames: by name."""

    name: str
    seed: int | None
    parameters: dict
    figures: dict = field(default_factory=dict)
    frames: dict[str, pd.DataFrame] = field(default_factory=dict, compare=False)
    postgres: str | None = None
    revision: str = field(default_factory=style.revision)
    versions: dict = field(default_factory=dict)

    def __getitem__(self, frame: str) -> pd.DataFrame:
        return self.frames[frame]

    @property
    def about(self) -> dict:
        """What the footer of its figures says: the code that made the run, not the code that draws it."""
        return {"seed": self.seed, "postgres": self.postgres, "revision": self.revision}


def home() -> Path:
    """JOBQUEUE_RUNS, else the project's data/runs, else data/runs of the current folder."""
    if given := os.environ.get("JOBQUEUE_RUNS"):
        return Path(given)
    root = Path(__file__).resolve().parents[3]
    return (root if (root / "pyproject.toml").exists() else Path.cwd()) / "data" / "runs"


def folder(name: str, directory: Path | None = None) -> Path:
    """Of a set of runs; InvalidInput for a name that would lead elsewhere."""
    if not _NAME.fullmatch(name) or name == EVIDENCE:
        raise InvalidInput(f"a set of runs is named by letters, digits, '.', '_' and '-', not {name!r}")
    return (directory or home()) / name


def save(run: Stored, place: Path) -> Path:
    """Write `place`/NAME; a run of that name that was there is replaced."""
    place.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=place, prefix=f".{run.name}."))
    try:
        os.chmod(beside, 0o755)
        for name, frame in run.frames.items():
            (beside / f"{name}.csv").write_bytes(export.csv(frame))
        (beside / "run.json").write_text(_dumps(run), encoding="utf-8")
        target = place / run.name
        shutil.rmtree(target, ignore_errors=True)
        os.replace(beside, target)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return target


def load(place: Path) -> Stored:
    """The run in a folder; InvalidInput says which file cannot be read, and why."""
    path = place / "run.json"
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        if told.get("format") != FORMAT:
            raise InvalidInput(f"{_short(path)}: format {told.get('format')!r}, this version reads {FORMAT}")
        frames = {name: _frame(place / f"{name}.csv", kinds) for name, kinds in told.pop("frames").items()}
        del told["format"]
        return Stored(frames=frames, **told)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{_short(path)} is no stored run: {error or type(error).__name__}") from error


def load_set(place: Path) -> dict[str, Stored]:
    """All runs of a set, by name."""
    found = [load(path.parent) for path in sorted(place.glob("*/run.json")) if path.parent.name[0] != "."]
    return {run.name: run for run in found}


def sets(directory: Path | None = None) -> list[str]:
    """Names of the sets that are stored."""
    return sorted({path.parents[1].name for path in (directory or home()).glob("*/*/run.json")})


def _dumps(run: Stored) -> str:
    facts = export.provenance(postgres=run.postgres, seed=run.seed, revision=run.revision, **run.parameters)
    told = {
        "format": FORMAT,
        "name": run.name,
        "seed": run.seed,
        "parameters": facts["parameters"],
        "figures": run.figures,
        "postgres": run.postgres,
        "revision": run.revision,
        "versions": facts["versions"],
        "frames": {name: _kinds(frame) for name, frame in run.frames.items()},
    }
    return json.dumps(told, indent=1, ensure_ascii=False, default=_plain) + "\n"


def _plain(value: Any):
    """Figures are numbers of any library."""
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)


def _kinds(frame: pd.DataFrame) -> dict[str, str]:
    """Each column as it must be read: a type of jobs that is called 3 stays text."""
    return {str(name): _kind(frame[name]) for name in frame.columns}


def _kind(column: pd.Series) -> str:
    if pd.api.types.is_datetime64_any_dtype(column):
        return "instant"
    if pd.api.types.is_bool_dtype(column) or pd.api.types.is_integer_dtype(column):
        return str(column.dtype)
    return "float64" if pd.api.types.is_float_dtype(column) else _TEXT


def _frame(path: Path, kinds: Mapping[str, str]) -> pd.DataFrame:
    """As text first: no reader of CSV may round a float, or take the type "NA" for nothing."""
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    if list(frame.columns) != list(kinds):
        raise InvalidInput(f"{_short(path)}: its columns are not those of run.json")
    return pd.DataFrame({name: _column(frame[name], kind) for name, kind in kinds.items()})


def _column(text: pd.Series, kind: str) -> pd.Series:
    if kind == "instant":
        return pd.to_datetime(text.replace("", None), format="ISO8601", utc=True)
    if kind == "bool":
        return text == "True"
    if kind == "float64":
        return text.replace("", "nan").map(float).astype("float64")
    return text if kind == _TEXT else text.map(int).astype(kind)


def _short(path: Path) -> str:
    """Names enough to find it, and no folder of this machine."""
    return "/".join(path.parts[-3:])
