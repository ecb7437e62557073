"""What holds over time, exactly, from instants alone: how many spans are under way, and queue age.

    age = Age(due, begun, 0, 86_400)     # instants of the jobs (or attempts) in seconds; begun: NaN for those that wait
    age.quantile(0.99), age.share_above(60), age.most

Queue age is how long the oldest job has been due that has not begun. Between two beginnings it grows by a second a
second, so its quantiles over time need no samples: a hundredth of a day is a quarter of an hour, of which a look every
three minutes sees five instants.
"""

import numpy as np

from ..errors import InvalidInput


def under_way(started, ended, times) -> np.ndarray:
    """How many of the spans hold each instant; ended: NaN for those that do not end."""
    begun, over = np.sort(started), np.sort(np.where(np.isnan(ended), np.inf, ended))
    return np.searchsorted(begun, times, side="right") - np.searchsorted(over, times, side="right")


def fullest(started, ended) -> float:
    """The first instant of the most."""
    begun = np.sort(started)
    return float(begun[int(np.argmax(under_way(started, ended, begun)))])


def densest(times, width: float) -> tuple[int, float]:
    """(how many, since when) in the fullest stretch of that length, wherever it begins: no edge parts what comes
    together. At least one instant is needed."""
    times = np.sort(np.asarray(times, dtype=float))
    counts = np.searchsorted(times, times + width, side="left") - np.arange(len(times))
    most = int(np.argmax(counts))
    return int(counts[most]), float(times[most])


class Age:
    """From `begin` to `end`. In each spell one job is the oldest: it begins, by `due` and by those before it, and ends
    when that job does begin. A job counts from when it is due, also where its row is written later (a late slot)."""

    def __init__(self, due, begun, begin: float, end: float):
        due, begun = np.asarray(due, dtype=float), np.asarray(begun, dtype=float)
        if len(due) != len(begun):
            raise InvalidInput(f"due and begun need one length: {len(due)} and {len(begun)}")
        order = np.argsort(due, kind="stable")
        due, begun = due[order], np.where(np.isnan(begun), np.inf, begun)[order]
        older = np.concatenate([[-np.inf], np.maximum.accumulate(begun)[:-1]])[: len(due)]  # all of them have begun
        since, until = np.maximum(np.maximum(due, older), begin), np.minimum(begun, end)
        some = since < until
        self.begin, self.end = float(begin), float(end)
        self._since, self._until, self._due = since[some], until[some], due[some]
        self._low, self._high = self._since - self._due, self._until - self._due

    @property
    def most(self) -> float:
        """The greatest age, in seconds; 0 where no job ever waited."""
        return float(self._high.max(initial=0.0))

    def share_above(self, seconds: float) -> float:
        """The share of the time for which it was greater."""
        above = np.clip(self._high - np.maximum(self._low, seconds), 0, None).sum()
        return float(above / (self.end - self.begin)) if self.end > self.begin else 0.0

    def quantile(self, q: float) -> float:
        """Seconds that it did not exceed for a share q of the time."""
        left = (1 - q) * (self.end - self.begin)
        ages = np.concatenate([self._high, self._low, [0.0]])
        steps = np.concatenate([np.ones(len(self._high)), -np.ones(len(self._low)), [0.0]])
        order = np.argsort(-ages, kind="stable")
        ages, spells = ages[order], np.cumsum(steps[order])  # so many spells pass through the ages below this one
        above = np.concatenate([[0.0], np.cumsum(spells[:-1] * -np.diff(ages))])
        place = int(np.argmax(above > left))
        if not above[place] > left:
            return 0.0
        return float(ages[place] + (above[place] - left) / spells[place - 1])

    def at(self, instants) -> np.ndarray:
        """Its value at each of these instants (from `begin` to `end`); where a job begins, that of the next one."""
        return self._seen(np.asarray(instants, dtype=float), "right")

    def peaks(self, instants) -> np.ndarray:
        """The greatest value in each step that ends at one of these instants, from the one before (or `begin`)."""
        instants = np.asarray(instants, dtype=float)
        edges = np.concatenate([[self.begin], instants])
        peaks = np.maximum(self._seen(instants, "left"), self.at(np.clip(edges[:-1], self.begin, None)))
        step = np.searchsorted(instants, self._until, side="left")
        inside = step < len(instants)
        np.maximum.at(peaks, step[inside], self._high[inside])
        return peaks

    def _seen(self, instants, side) -> np.ndarray:
        """Its value from each instant on (side: right), or just before it (left)."""
        begun, over = (np.searchsorted(edges, instants, side=side) for edges in (self._since, self._until))
        return np.where(begun > over, instants - np.append(self._due, 0.0)[begun - 1], 0.0)
