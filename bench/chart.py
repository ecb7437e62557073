"""The picture: what each contender reaches, and what the database itself would."""

import statistics

from jobqueue.lab import style

from . import bars
from .amounts import Reading
from .contenders import NAMES, load

PANELS = ("drain1", "drain2", "enqueue", "pickup_p99")
ROW_INCHES = 0.24


@style.applied()
def draw(readings: list[Reading], about: dict):
    """A Sheet with a panel a reading that was measured: bars of medians, whiskers from the least to the most."""
    panels = [name for name in PANELS if any(each.name == name for each in readings)]
    names = [name for name in NAMES if any(each.contender == name and each.name in panels for each in readings)]
    height = ROW_INCHES * max(2, len(names)) + 0.1
    figure, axes = style.sheet(_finding(readings), [height] * max(1, len(panels)), about, left=1.5, shared=False)
    if not panels:
        style.empty(axes[0], "nothing was measured")
    for ax, name in zip(axes, panels, strict=False):
        _panel(ax, readings, name, names)
    return figure


def _panel(ax, readings, name, names):
    for place, contender in enumerate(names):
        found = list(bars.values(readings, name, contender).values())
        if found:
            ax.barh(place, statistics.median(found), color=style.BLUE)
    ax.set_yticks(range(len(names)), [load(name).label for name in names])


def _finding(readings):
    return "Bench"
