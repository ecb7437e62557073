"""How every figure looks: one palette, one map from state to symbol, word and colour, one sheet of paper."""

import io
import math
import re
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    MultipleLocator,
    NullFormatter,
    NullLocator,
)

from jobqueue.lab import labels

# Okabe and Ito's colours that keep 3:1 on white; their orange, sky blue and yellow do not.
BLACK, BLUE, VERMILLION, GREEN, PURPLE = "#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7"
GREY = "#595959"
TINT = 0.13  # opacity of a shaded ground; it always has an edge too


@dataclass(frozen=True)
class Mark:
    """A state, an outcome or a fault as a reader meets it: symbol, word and colour, never one of them alone."""

    symbol: str
    word: str
    colour: str
    dash: object = "-"

    @property
    def text(self):
        return f"{self.symbol} {self.word}"


STATES = {
    "ready": Mark("○", "ready", BLUE),
    "waiting_retry": Mark("↻", "waiting for retry", PURPLE, (0, (5, 2))),
    "running": Mark("▶", "running", GREEN, (0, (5, 1, 1, 1))),
    "done": Mark("✓", "done", BLACK, (0, (1, 1))),
    "failed": Mark("⊗", "failed for good", VERMILLION, (0, (3, 1, 1, 1, 1, 1))),
    "dead": Mark("✖", "dead", VERMILLION, (0, (2, 1))),
    "cancelled": Mark("⊘", "cancelled", BLACK, (0, (1, 3))),
}
OUTCOMES = {
    "done": Mark("✓", "done", BLACK),
    "failed": Mark("↻", "failed", PURPLE),
    "failed_permanently": Mark("⊗", "failed for good", VERMILLION),
    "released": Mark("↺", "released", BLUE),
    "lost": Mark("△", "lease lost", VERMILLION),
    "cancelled": Mark("⊘", "cancelled", BLACK),
    "unknown": Mark("?", "unknown", BLACK),
    "running": Mark("▶", "still running", GREEN),
}
FAULTS = {
    "kill": Mark("✖", "kill", VERMILLION),
    "pause": Mark("‖", "pause", PURPLE, (0, (5, 2))),
    "resume": Mark("▷", "resume", GREEN, (0, (5, 1, 1, 1))),
    "start": Mark("●", "start", GREEN, (0, (1, 1))),
    "stop": Mark("■", "stop", BLACK, (0, (2, 1))),
    "exit": Mark("○", "exit", BLACK, (0, (1, 3))),
    "cut": Mark("✂", "cut", BLUE, (0, (2, 1))),
    "crash": Mark("⚡", "crash", VERMILLION, (0, (1, 1))),
    "restart": Mark("⟳", "restart", GREEN, (0, (2, 1))),
    "outage": Mark("⊠", "outage", VERMILLION, (0, (5, 2))),
    "down": Mark("▽", "down", PURPLE, (0, (5, 1, 1, 1))),
    "slow": Mark("◷", "slow", PURPLE, (0, (1, 1))),
    "skew": Mark("◔", "skew", BLUE, (0, (1, 3))),
    "poison": Mark("☠", "poison", BLACK, (0, (1, 1))),
    "burst": Mark("⇈", "burst", BLUE, (0, (5, 2))),
}
# Quantiles look the same in every chart.
QUANTILES = {
    "p50": (BLUE, "-"),
    "p95": (GREEN, (0, (5, 1, 1, 1))),
    "p99": (VERMILLION, (0, (5, 2))),
    "max": (BLACK, (0, (1, 1))),
}

# Series that are no states, in this order: colour, dash and marker tell them apart, never the colour alone.
SERIES = (
    (BLUE, "-", "o"),
    (VERMILLION, (0, (5, 2)), "s"),
    (GREEN, (0, (5, 1, 1, 1)), "^"),
    (PURPLE, (0, (2, 1)), "D"),
    (BLACK, (0, (1, 1)), "v"),
)

TITLE, TEXT, SMALL, FOOT = 12, 9, 8.5, 7
WIDTH, LEFT, RIGHT, BOTTOM, GAP, COLUMN_GAP = 9.0, 0.95, 1.75, 0.78, 0.22, 0.3  # inches
_RC: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": TEXT,
    "text.parse_math": False,
    "axes.unicode_minus": True,
    "text.usetex": False,
    "path.simplify": True,
    "svg.hashsalt": "jobqueue",
    "svg.fonttype": "path",
    "pdf.fonttype": 3,
    "pdf.compression": 6,
    "axes.formatter.use_locale": False,
    "axes.formatter.useoffset": False,
}
_FOOTER = ("seed", "time_scale", "postgres", "revision", "date")
_STEPS = (
    *(1, 2, 5, 10, 20, 30),
    *(60 * minutes for minutes in (1, 2, 5, 10, 20, 30)),
    *(3600 * hours for hours in (1, 2, 3, 6, 12)),
    *(86400 * days for days in (1, 2, 7, 14, 30)),
)
_SMALL_STEPS = tuple(m * 10.0**e for e in range(-6, 0) for m in (1, 2, 5))
_FEW_STEPS = (*(10.0**e for e in range(-6, 2)), 60, 600, 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400)
_SOME_STEPS = (*_FEW_STEPS, *(5 * 10.0**e for e in range(-6, 1)), 30, 300, 1800)
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_lock = threading.RLock()
thousands = FuncFormatter(lambda value, _: f"{value:,g}" if value < 1e6 else f"{value:,.0f}")

percent = FuncFormatter(lambda value, _: f"{value:.0%}")
nowhere = NullLocator()


class Sheet(Figure):
    """A Figure that shows itself as a picture in a notebook, since no chart goes through pyplot."""

    finding = ""

    def png(self):
        with applied():
            out = io.BytesIO()
            self.savefig(out, format="png", metadata={"Software": None})
            return out.getvalue()

    def _repr_png_(self):
        return self.png()


@contextmanager
def applied():
    """Our settings, whatever the user's matplotlibrc says. They are global to the process, hence the lock."""
    with _lock, matplotlib.rc_context(_RC):
        yield


def sheet(finding, heights, about, *, right=RIGHT, left=LEFT, columns=1, shared=True):
    """A Sheet with `columns` axes a height (inches), under a title (the finding) and a subtitle (the parameters)."""
    title = labels.balanced(finding, TITLE, (WIDTH - 0.3) * 72, "bold")
    subtitle = labels.wrap(_parameters(about), TEXT, (WIDTH - 0.3) * 72) if _parameters(about) else []
    top = 0.3 + 0.23 * len(title) + 0.17 * len(subtitle) + (0.15 if columns > 1 else 0)  # each column has a title
    height = top + BOTTOM + sum(heights) + GAP * (len(heights) - 1)
    figure = Sheet(figsize=(WIDTH, height), dpi=100, facecolor="white")
    figure.finding = finding
    y = height - 0.12
    figure.text(0.15 / WIDTH, y / height, "\n".join(title), size=TITLE, weight="bold", va="top", linespacing=1.15)
    y -= 0.23 * len(title) + 0.04
    figure.text(0.15 / WIDTH, y / height, "\n".join(subtitle), size=TEXT, color=GREY, va="top")
    figure.text(0.15 / WIDTH, 0.09 / height, _footer(about), size=FOOT, color=GREY, va="bottom")
    room = (WIDTH - left - right - COLUMN_GAP * (columns - 1)) / columns
    boxes = [(left + k * (room + COLUMN_GAP), room) for k in range(columns)]
    return figure, _axes(figure, heights, height - top, boxes, shared)


def _axes(figure, heights, y, boxes, shared):
    axes: list[Axes] = []
    height = figure.get_figheight()
    for panel in heights:
        y -= panel
        for x, width in boxes:
            place = (x / WIDTH, y / height, width / WIDTH, panel / height)
            axes.append(figure.add_axes(place, sharex=axes[0] if shared and axes else None))
            plain(axes[-1])
        y -= GAP
    for ax in axes[: -len(boxes)] if shared else ():
        ax.tick_params(labelbottom=False)
    return axes


def plain(ax):
    """No box, a light grid, small numbers."""
    ax.grid(color="#e4e4e4", lw=0.7)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=SMALL)


def note(figure, notes, legend=""):
    """One line above the footer: what the picture leaves out (truncation is never silent), else how to read it."""
    text = "Note: " + "; ".join(notes) if notes else legend
    text = labels.cut(text, FOOT + 0.5, (WIDTH - 0.3) * 72)
    figure.text(
        0.15 / WIDTH,
        0.22 / figure.get_figheight(),
        text,
        size=FOOT + 0.5,
        va="bottom",
        color=VERMILLION if notes else GREY,
    )


def empty(ax, what):
    """Say in the plot that there is nothing to plot."""
    ax.text(0.5, 0.5, what, transform=ax.transAxes, ha="center", va="center", size=TEXT + 1, color=GREY)
    ax.set(xticks=[], yticks=[])
    ax.grid(False)


def end_labels(ax, wanted, size=SMALL, top=None):
    """Label lines at their right ends: `wanted` is [(y, text, colour)], moved apart where they would collide.

    `top` is a text that belongs to no line; it stands above them, small and grey.
    """
    box = ax.get_position()
    inches = box.height * ax.figure.get_figheight()
    unit = ax.transData + ax.transAxes.inverted()
    at = [min(max(float(unit.transform((ax.get_xlim()[1], y))[1]), 0), 1) for y, _, _ in wanted]
    gap = size * 1.25 / 72 / inches
    high = 1 - gap / 2 - (gap if top else 0)
    places = labels.spread(at, gap, min(gap / 2, 0.5), max(high, 0.5))
    if top:
        _end_label(ax, 1 - gap / 2, 1 - gap / 2, top, GREY, FOOT, "normal")
    for y, place, (_, text, colour) in zip(at, places, wanted, strict=True):
        _end_label(ax, y, place, text, colour, size)


def _end_label(ax, y, place, text, colour, size, weight="bold"):
    box, figure = ax.get_position(), ax.figure
    room = figure.get_figwidth() * (1 - box.x1) * 72 - 20
    line = {"arrowstyle": "-", "color": colour, "lw": 0.6, "shrinkA": 0, "shrinkB": 0, "relpos": (0, 0.5)}
    ax.annotate(
        labels.cut(text, size, room, weight),
        (1, y),
        (14, (place - y) * box.height * figure.get_figheight() * 72),
        xycoords="axes fraction",
        textcoords="offset points",
        va="center",
        size=size,
        color=colour,
        weight=weight,
        annotation_clip=False,
        arrowprops=line if y != place else None,
    )


def seconds(axis, low, high, label, most=9):
    """Ticks of an axis whose data are seconds, shown in s, min, h or d; `label` gets the unit."""
    step = step_seconds(high - low, most)
    size, name = next((u for u in _UNITS if step >= u[0]), (1, "s"))
    axis.set_major_locator(MultipleLocator(step))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / size:g}"))
    axis.set_label_text(f"{label} ({name})", size=TEXT)


def log(axis, label, show):
    """A logarithmic axis, labelled at the decades by `show`; matplotlib's own labels need mathtext, which is off.

    Durations are labelled where people count them: nobody says 16.7 min.
    """
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = axis.get_view_interval()
    narrow = high < 150 * low
    if show is duration:
        steps = (*_SMALL_STEPS, *_STEPS)
        axis.set_major_locator(FixedLocator(steps if narrow else _SOME_STEPS if high < 3000 * low else _FEW_STEPS))
        axis.set_minor_locator(FixedLocator(steps))
    else:
        axis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if narrow else (1,), numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: show(value)))
    axis.set_minor_formatter(NullFormatter())
    axis.set_label_text(label, size=TEXT)


def whole(most):
    """Ticks at whole numbers only: there is no half job."""
    return MaxNLocator(most, integer=True)


def step_seconds(span, most=9):
    """The smallest step between ticks, one that people count in, with which `span` needs at most `most` of them."""
    steps = (*_SMALL_STEPS, *_STEPS)
    most *= 1 + 1e-9  # three steps of a tenth are three steps
    return next((step for step in steps if span / step <= most), _STEPS[-1] * math.ceil(span / _STEPS[-1] / most))


def ceiling(value, least=1.0):
    """The next 1, 2 or 5 times a power of ten: limits that step seldom, and that two runs share."""
    value, power = max(value, least), 1e-6
    while True:
        for m in (1, 2, 5):
            if value <= m * power:
                return m * power
        power *= 10


def ceiling_seconds(value, most=9, least=1.0):
    """The first tick of `seconds` at or above: an axis of durations ends at one that people count in."""
    value = max(value, least)
    step = step_seconds(value, most)
    return step * math.ceil(value / step - 1e-9)


def duration(value):
    """Seconds as people say them: 400 ms, 5.6 s, 12.3 min, 3.4 h, 5.2 d."""
    if value < 0.9995:
        return f"{value * 1000:.3g} ms" if value > 0 else "0 s"
    for size, name, limit in ((1, "s", 120), (60, "min", 7200), (3600, "h", 172800)):
        if value < limit:
            return f"{value / size:.3g} {name}"
    return f"{value / 86400:,.1f} d"


def count(number, noun=""):
    """18,482 jobs; 1 job."""
    text = f"{number:,.0f}"
    return f"{text} {noun}{'' if number == 1 else 's'}" if noun else text


def name(text, most=24):
    """A user's text as one short line: control characters replaced, the middle cut."""
    text = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", "�", str(text))
    return text if len(text) <= most else f"{text[: most - most // 2 - 1]}…{text[-(most // 2) :]}"


def tint(colour):
    """The colour, light enough for a ground; it always gets an edge in the colour itself."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return tuple(1 - (1 - part / 255) * 0.25 for part in parts)


@cache
def revision():
    """The git revision of this checkout, "-dirty" where the package differs from it; "not known" elsewhere.

    Outputs that an executed notebook gets are no change of what made them.
    """
    root = Path(__file__).resolve().parents[2]
    if (root / ".git").exists():  # never the revision of someone else's project around an installed wheel
        try:
            changed = _git(root, "status", "--porcelain", "--", "jobqueue")
            return _git(root, "rev-parse", "--short=10", "HEAD") + ("-dirty" if changed else "")
        except (OSError, subprocess.SubprocessError):
            pass
    return "not known"


def _git(root, *arguments):
    asked = ["git", "-C", str(root), *arguments]
    return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10).stdout.strip()


def _parameters(about):
    return " · ".join(
        _parameter(key, value) for key, value in about.items() if key not in _FOOTER and value is not None
    )


def _parameter(key, value):
    words = key.removesuffix("_seconds").replace("_", " ")
    if key.endswith("_seconds") and isinstance(value, int | float):
        return f"{words} {duration(value)}"
    return f"{words} {name(f'{value:,}' if isinstance(value, int) and not isinstance(value, bool) else value, 60)}"


def _footer(about):
    values = {"revision": revision()} | {key: about[key] for key in _FOOTER if about.get(key) is not None}
    words = {
        "seed": "seed {}",
        "time_scale": "time scale {}",
        "postgres": "PostgreSQL {}",
        "revision": "git {}",
        "date": "data of {}",
    }
    return "   ·   ".join(words[key].format(name(values[key], 40)) for key in _FOOTER if key in values)
