"""How much is measured, and what a measurement returns."""

from collections.abc import Iterator
from dataclasses import dataclass, field

BULK = 20_000


@dataclass(frozen=True)
class Amounts:
    """The defaults; QUICK shows that everything works, its figures are no evidence."""

    jobs: int = 30_000
    seconds: int = 2  # of producing, and of the floor
    cap_seconds: float = 10  # of a drain
    bulk: int = BULK
    probes: int = 150
    rows: int = 1_000_000
    growth_jobs: int = 20_000
    churned: int = 100_000
    idle_seconds: float = 15
    mixed_jobs: int = 1_500


QUICK = Amounts(
    jobs=2_000,
    seconds=1,
    cap_seconds=5,
    bulk=2_000,
    probes=10,
    rows=20_000,
    growth_jobs=2_000,
    churned=10_000,
    idle_seconds=3,
    mixed_jobs=120,
)

Found = Iterator[tuple[str, float, dict]]  # a reading's name (READINGS in bars.py), its value, facts beside it


@dataclass(frozen=True)
class Reading:
    """One figure of one round."""

    round: int
    name: str
    contender: str
    value: float
    facts: dict = field(default_factory=dict)


def quantile(values: list[float], share: float) -> float:
    """The value that `share` of them do not pass."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
