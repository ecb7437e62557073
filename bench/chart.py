"""The picture: what each contender reaches, and what the database itself would."""

import statistics
from dataclasses import dataclass

from jobqueue.lab import labels, style

from . import bars
from .amounts import Reading
from .bars import BEST_PYTHON, FLOOR, OURS, READINGS
from .contenders import DRIVER, NAMES, NODE, PYTHON, SQL, load

PANELS = ("drain1", "drain2", "enqueue", "bulk", "pickup_p99")
ROW_INCHES, UNDER_INCHES, LEFT, RIGHT = 0.21, 0.36, 1.35, 2.15
KINDS = {
    PYTHON: ("s", style.VERMILLION),
    NODE: ("^", style.GREEN),
    SQL: ("D", style.BLACK),
    DRIVER: ("d", style.BLACK),
}
OWN = ("o", style.BLUE)
LEGEND = (
    "● ours   ■ Python   ▲ Node   ◆ PostgreSQL's floor; "
    "marks: medians of the rounds, lines: least to most; logarithmic axes; durable commits"
)


@dataclass(frozen=True)
class _Row:
    """A contender in a panel: where it stands, and its value in each round."""

    place: int
    contender: str
    values: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def look(self):
        return OWN if self.contender == OURS else KINDS[load(self.contender).facts.kind]


@style.applied()
def draw(readings: list[Reading], about: dict):
    """A Sheet: a panel for each of PANELS that was measured, a row a contender: median and span."""
    panels = [name for name in PANELS if any(each.name == name for each in readings)]
    heights = [ROW_INCHES * len(_rows(readings, name)) + UNDER_INCHES + 0.1 for name in panels] or [1.0]
    figure, axes = style.sheet(_finding(readings), heights, about, left=LEFT, right=RIGHT, shared=False)
    if not panels:
        style.empty(axes[0], "none of what is drawn was measured")
    for ax, name in zip(axes, panels, strict=False):
        _panel(ax, readings, name)
    style.note(figure, [], LEGEND)
    return figure


def _panel(ax, readings, name):
    words, unit, better = READINGS[name]
    rows = _rows(readings, name)
    _make_room(ax)
    for row in rows:
        marker, colour = row.look
        ax.plot([min(row.values), max(row.values)], [row.place] * 2, color=colour, lw=1.6, solid_capstyle="butt")
        ax.plot(row.median, row.place, marker=marker, color=colour, ms=6)
        if row.contender == FLOOR:
            ax.axvline(row.median, color=colour, lw=0.8, ls=(0, (2, 2)), zorder=0)
        _say(ax, row, _text(readings, name, row))
    ax.set(ylim=(len(rows) - 0.5, -0.5))
    ax.set_yticks(range(len(rows)), [load(row.contender).label for row in rows])
    _paint(ax, rows)
    _widen(ax, rows)
    style.log(ax.xaxis, f"{words} ({unit}{'' if better else ', less is better'})", _short)
    ax.grid(axis="y", visible=False)


def _rows(readings, name) -> list[_Row]:
    """The best first."""
    found = {one: list(bars.values(readings, name, one).values()) for one in NAMES}
    found = {one: values for one, values in found.items() if values}
    order = sorted(found, key=lambda one: statistics.median(found[one]), reverse=READINGS[name][2])
    return [_Row(place, one, found[one]) for place, one in enumerate(order)]


def _text(readings, name, row) -> str:
    unit = "/s" if READINGS[name][2] else " ms"
    said = f"{_short(row.median)}{unit}"
    times = list(bars.ratios(readings, name, OURS, row.contender).values())
    if row.contender == OURS or not times:
        return said
    return f"{said} · ours {_times(statistics.median(times))} × {'as fast' if READINGS[name][2] else 'as quick'}"


def _say(ax, row, text):
    ax.annotate(
        labels.cut(text, style.SMALL, (RIGHT - 0.2) * 72),
        (1, row.place),
        (8, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        va="center",
        size=style.SMALL,
        color=row.look[1],
        weight="bold" if row.contender == OURS else "normal",
        annotation_clip=False,
    )


def _paint(ax, rows):
    for tick, row in zip(ax.get_yticklabels(), rows, strict=True):
        tick.set(color=row.look[1], weight="bold" if row.contender == OURS else "normal")


def _widen(ax, rows):
    values = [value for row in rows for value in row.values if value > 0]
    if values:
        ax.set_xlim(min(values) / 1.4, max(values) * 1.4)


def _make_room(ax):
    """For the axis's own label under each panel."""
    box, height = ax.get_position(), ax.figure.get_figheight()
    ax.set_position([box.x0, box.y0 + UNDER_INCHES / height, box.width, box.height - UNDER_INCHES / height])


def _finding(readings) -> str:
    said = []
    for against, words in (
        (BEST_PYTHON, "the best Python peer"),
        ("graphile", "graphile-worker"),
        (FLOOR, "the floor"),
    ):
        if times := list(bars.ratios(readings, "drain1", OURS, against).values()):
            said.append(f"{statistics.median(times):.2f} × {words}")
    return f"A worker drains {', '.join(said)}" if said else "What each queue reaches on this machine"


def _times(ratio) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.0f}"


def _short(value) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
