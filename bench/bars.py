"""The bars that this queue has to clear, as data, and the verdict on each: medians of the ratios of every round."""

import statistics
from dataclasses import dataclass

from .amounts import Reading
from .contenders import NAMES, NODE, PYTHON, load

OURS, FLOOR = "ours", "pgfloor"
BEST_PYTHON, BEST_PEER = "the best Python peer", "the best peer"  # of each round
HELD, MISSED, UNKNOWN, NOT_ASKED = "held", "MISSED", "not measured", "not asked for"
IN_PART = "held in part"  # but not all of the group were there: the best of it may be missing
ISSUE, DESIGN = "issue 6", "DESIGN §2"

# What a reading is: its words, its unit, and whether more of it is better.
READINGS = {
    "drain1": ("drain, 1 worker", "jobs/s", True),
    "drain2": ("drain, 2 workers", "jobs/s", True),
    "enqueue": ("enqueue, 1 producer", "jobs/s", True),
    "enqueue8": ("enqueue, 8 producers", "jobs/s", True),
    "bulk": ("bulk", "jobs/s", True),
    "bulk_keyed": ("bulk, keyed", "jobs/s", True),
    "pickup_p50": ("pick-up on an idle queue, p50", "ms", False),
    "pickup_p99": ("pick-up on an idle queue, p99", "ms", False),
    "empty": ("drain of an empty table", "jobs/s", True),
    "finished": ("drain among finished rows", "jobs/s", True),
    "future": ("drain among future rows", "jobs/s", True),
    "due": ("drain among another type's due rows", "jobs/s", True),
    "held": ("held snapshot, last tenth ÷ first", "×", True),
    "mixed_lag_p99": ("mixed load, completion lag of quick jobs, p99", "ms", False),
    "mixed_violations": ("mixed load, promises found broken", "", False),
    "idle_queries": ("idle worker", "queries/s", False),
}


@dataclass(frozen=True)
class Bar:
    """Our `reading`, as a ratio to another's or to `of`, our own other reading, or alone: at least, or at most, so."""

    reading: str
    limit: float
    against: str | None = None  # a contender, or a group of them
    of: str | None = None  # another reading than this one
    source: str = ISSUE

    @property
    def at_least(self) -> bool:
        """Ratios are ours over theirs, or theirs over ours where less is better: more is better in each."""
        return self.against is not None or READINGS[self.reading][2]

    @property
    def text(self) -> str:
        """What is held against what."""
        words = READINGS[self.reading][0]
        if self.against == OURS:
            return f"{words} ÷ {READINGS[self.of][0]}"
        return f"{words} against {self.against}" if self.against else words

    @property
    def unit(self) -> str:
        return "×" if self.against else READINGS[self.reading][1]


BARS = (
    Bar("drain1", 3.0, BEST_PYTHON),
    Bar("drain1", 1.15, "graphile"),
    Bar("drain1", 0.7, FLOOR),
    Bar("drain2", 2.1, BEST_PYTHON),
    Bar("drain2", 1.05, "graphile"),
    Bar("drain2", 0.6, FLOOR),
    Bar("enqueue", 2.0, BEST_PYTHON),
    Bar("enqueue", 0.6, FLOOR),
    Bar("enqueue8", 0.8, FLOOR),
    Bar("bulk_keyed", 1.2, "pgqueuer", of="bulk"),
    Bar("bulk", 3.0, "pgqueuer"),
    Bar("pickup_p50", 3.0),
    Bar("pickup_p99", 1.0, BEST_PEER),
    Bar("finished", 0.9, OURS, of="empty"),
    Bar("future", 0.9, OURS, of="empty"),
    Bar("due", 0.9, OURS, of="empty"),
    Bar("held", 0.85),
    Bar("mixed_lag_p99", 20.0),
    Bar("mixed_violations", 0.0),
    Bar("idle_queries", 2.0),
)


@dataclass(frozen=True)
class Verdict:
    """How a bar was cleared: the median over the rounds and its spread, or why it was not measured."""

    bar: Bar
    result: str
    median: float | None = None
    low: float | None = None
    high: float | None = None
    rounds: int = 0
    note: str = ""  # which of the group it was, and who of it was not there; or why it was not measured


def judge(readings: list[Reading], missing: dict[str, str], bars: tuple[Bar, ...] = BARS) -> list[Verdict]:
    """A verdict on each bar; `missing`: contender → why it could not be measured."""
    return [_verdict(bar, readings, missing) for bar in bars]


def ratios(readings: list[Reading], name: str, mine: str, against: str, of: str | None = None) -> dict[int, float]:
    """Per round: more than 1 is better than `against`."""
    own, theirs = values(readings, name, mine), _reference(readings, of or name, against)
    better = READINGS[name][2]
    rounds = sorted(own.keys() & theirs.keys())
    return {each: _ratio(own[each], theirs[each]) if better else _ratio(theirs[each], own[each]) for each in rounds}


def values(readings: list[Reading], name: str, contender: str) -> dict[int, float]:
    """Per round."""
    return {each.round: each.value for each in readings if (each.name, each.contender) == (name, contender)}


def members(group: str) -> list[str]:
    """The contenders of a group, or the one that is named."""
    if group not in (BEST_PYTHON, BEST_PEER):
        return [group]
    kinds = {name: load(name).facts.kind for name in NAMES if name != OURS}
    return [name for name, kind in kinds.items() if kind == PYTHON or (group == BEST_PEER and kind == NODE)]


def _verdict(bar: Bar, readings: list[Reading], missing: dict[str, str]) -> Verdict:
    found = ratios(readings, bar.reading, OURS, bar.against, bar.of) if bar.against else None
    figures = list((values(readings, bar.reading, OURS) if found is None else found).values())
    if not figures:
        note = _absent([OURS, *members(bar.against or OURS)], missing)
        return Verdict(bar, UNKNOWN if note else NOT_ASKED, note=note)
    median = statistics.median(figures)
    held = median >= bar.limit if bar.at_least else median <= bar.limit
    note = _group(bar, readings) if bar.against in (BEST_PYTHON, BEST_PEER) else ""
    result = (IN_PART if "without" in note else HELD) if held else MISSED
    return Verdict(bar, result, median, min(figures), max(figures), len(figures), note)


def _absent(names: list[str], missing: dict[str, str]) -> str:
    return "; ".join(f"{name}: {missing[name]}" for name in dict.fromkeys(names) if name in missing)


def _group(bar: Bar, readings: list[Reading]) -> str:
    """Who was the best, and who was not there to be it."""
    medians = {
        name: statistics.median(found.values())
        for name in members(bar.against)
        if (found := values(readings, bar.of or bar.reading, name))
    }
    best = (max if READINGS[bar.reading][2] else min)(medians, key=medians.get)
    others = [name for name in members(bar.against) if name not in medians]
    return f"{best}; without {', '.join(others)}" if others else best


def _reference(readings: list[Reading], name: str, against: str) -> dict[int, float]:
    """Per round, the best of the group."""
    each = [values(readings, name, member) for member in members(against)]
    rounds = {number for one in each for number in one}
    best = max if READINGS[name][2] else min
    return {number: best(one[number] for one in each if number in one) for number in rounds}


def _ratio(one: float, other: float) -> float:
    return one / other if other else float("inf")
