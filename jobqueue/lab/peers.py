"""How fast queues of this kind drain: this checkout's own benchmark where it has run, else medians of the authors'.

    found = peers.drains()          # a row a queue: name, drain_1, drain_2 (jobs a second), ours
    found.attrs["source"]           # whose figures these are

Absolute figures of another machine say nothing about yours; the ratios between the rows of one run do.
"""

import os
from pathlib import Path

import pandas as pd

from ..errors import InvalidInput

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("data/runs/bench-*/bench.csv", "docs/bench.csv")  # what ran on this machine; what is published with the code
LABELS = {"ours": "this queue", "graphile": "graphile-worker", "pgboss": "pg-boss", "pgfloor": "pgfloor (pgbench)"}
OURS = "ours"
# Medians over interleaved rounds on the authors' machine: 2 cores shared by worker and server, PostgreSQL 18.6 as
# initdb leaves it, no-op handlers, each queue at its own best settings. Ours: the prototype that the worker follows.
PUBLISHED_SOURCE = "measured on the authors' machine, 2026-11-30"
PUBLISHED = (
    ("pgfloor (pgbench)", 28_000, 33_000, False),
    ("our prototype", 18_000, 20_000, True),
    ("graphile-worker 0.18 (Node)", 14_600, 16_000, False),
    ("pg-boss 12.38 (Node)", 6_900, 6_900, False),
    ("pgqueuer 1.6", 6_100, 7_200, False),
    ("chancy 0.26", 2_900, 4_200, False),
    ("oban-py 0.7", 2_200, 2_500, False),
    ("dbos 3.4", 500, 500, False),
    ("procrastinate 3.10", 170, 200, False),
)
_COLUMNS = ["name", "drain_1", "drain_2", "ours"]


def floors(found: pd.DataFrame) -> pd.Series:
    """Which rows are pgbench's floor, and no queue."""
    return found["name"].str.startswith("pgfloor")


def drains(file: str | os.PathLike[str] | None = None) -> pd.DataFrame:
    """Medians of a bench.csv (by default this checkout's newest one), or as published where there is none."""
    path = Path(file) if file is not None else _newest()
    if path is None:
        found = pd.DataFrame(PUBLISHED, columns=_COLUMNS)
        found.attrs["source"] = PUBLISHED_SOURCE
        return found
    readings = _readings(path)
    if readings is None:
        raise InvalidInput(f"{path.name} holds no drains of ./run bench: columns reading, contender, value")
    found = _medians(readings)
    found.attrs["source"] = f"./run bench, {'published' if path.parent.name == 'docs' else path.parent.name}"
    return found


def _newest() -> Path | None:
    """The last with both drains of this queue and with peers: a partial run has no place in the picture."""
    for place in PLACES:
        for path in sorted(ROOT.glob(place), reverse=True):
            readings = _readings(path)
            if readings is not None and _is_whole(readings):
                return path
    return None


def _readings(path: Path) -> pd.DataFrame | None:
    try:
        found = pd.read_csv(path)[["reading", "contender", "value"]]
    except (OSError, ValueError, KeyError):
        return None
    return found[found["reading"].isin(["drain1", "drain2"])]


def _is_whole(readings: pd.DataFrame) -> bool:
    ours = set(readings.loc[readings["contender"] == OURS, "reading"])
    return ours == {"drain1", "drain2"} and readings["contender"].nunique() >= 4


def _medians(readings: pd.DataFrame) -> pd.DataFrame:
    table = readings.pivot_table(index="contender", columns="reading", values="value", aggfunc="median")
    table = table.reindex(columns=["drain1", "drain2"])
    rows = [
        (LABELS.get(name, name), *row, name == OURS) for name, row in zip(table.index, table.to_numpy(), strict=True)
    ]
    return pd.DataFrame(rows, columns=_COLUMNS).sort_values("drain_1", ascending=False, ignore_index=True)
