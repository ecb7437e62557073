"""The cockpit's moving picture: the last minute of a run, redrawn some times a second for a few hundredths of a core.

A whole redraw takes 110–130 ms, mostly ticks and texts. So everything that stands still is drawn once, kept as pixels,
and drawn again only when a limit steps (time by 10 s, heights by 1-2-5), a fault comes, or a lane is added; the lines,
their labels and the youngest bars are drawn over it in 15–30 ms. No pyplot: it may be drawn in any thread.
"""

import io
import math
import threading

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from PIL import Image

from jobqueue.lab import labels, style
from jobqueue.lab.charts import fault, live
from jobqueue.lab.observe import FAULTS

WINDOW_SECONDS, STEP_SECONDS = 60, 10
HEIGHT, DPI = 5.4, 96  # inches; the picture has 864 × 518 pixels, always
GAP_SECONDS = 3.0
BARS = 1500  # of the lanes; older ones are left out, and a line says so
_LINES = ("oldest_age_seconds", "ready", "running", "waiting_retry", "dead")
_PANELS = {"age": (3.9, 1.25), "jobs": (2.55, 1.15), "lanes": (1.3, 1.05), "faults": (0.45, 0.7)}  # bottom, height


class Screen:
    """Draws samples, attempts and faults of an observer as PNG; `static_draws` counts the expensive redraws."""

    def __init__(self):
        self._guard = threading.Lock()
        self.static_draws = 0
        self._key = self._ground = None
        self._texts = {}
        with style.applied():
            self._figure = Figure(figsize=(style.WIDTH, HEIGHT), dpi=DPI, facecolor="white")
            self._canvas = FigureCanvasAgg(self._figure)
            self._axes = {name: self._panel(name) for name in _PANELS}
            self._lines = {name: self._line(name) for name in _LINES}
            self._ends = {name: self._end(name) for name in _LINES}
            self._bars = _Bars(self._axes["lanes"], animated=True)

    @property
    def size(self) -> tuple[int, int]:
        return round(style.WIDTH * DPI), round(HEIGHT * DPI)

    def render(self, samples, attempts, events, now: float) -> bytes:
        """A PNG of the WINDOW_SECONDS before `now`. `attempts` are dicts, `events` as an observer's."""
        with self._guard:
            names = _lanes(samples, attempts)
            view = self._view(samples, now, names, len(events))
            if view != self._key:
                self._draw_ground(view, attempts, pd.DataFrame(events, columns=list(FAULTS)), names, now)
            self._canvas.restore_region(self._ground)
            self._draw_bars(attempts, names, now)
            self._draw_lines(samples)
            return self._png()

    def _panel(self, name):
        bottom, height = _PANELS[name]
        width = style.WIDTH - style.LEFT - style.RIGHT
        place = (style.LEFT / style.WIDTH, bottom / HEIGHT, width / style.WIDTH, height / HEIGHT)
        return self._figure.add_axes(place)

    def _line(self, name):
        ax = self._axes["age" if name == "oldest_age_seconds" else "jobs"]
        colour, dash = _look(name)
        return ax.plot([], [], color=colour, ls=dash, lw=1.6, animated=True)[0]

    def _end(self, name):
        x = (style.WIDTH - style.RIGHT + 0.08) / style.WIDTH
        return self._figure.text(x, 0.5, "", size=8.5, weight="bold", color=_look(name)[0], va="center", animated=True)

    def _view(self, samples, now, names, faults):
        high = max(WINDOW_SECONDS, math.ceil((now + 1) / STEP_SECONDS) * STEP_SECONDS)
        age = style.ceiling_seconds(max((s.oldest_age_seconds for s in samples), default=0) * 1.05, 4)
        jobs = style.ceiling(max((max(s.ready, s.running, s.waiting_retry, s.dead) for s in samples), default=0), 5)
        return (high, age, jobs, tuple(names), faults)

    def _draw_ground(self, view, attempts, faults, names, now):
        high, age, jobs, _, _ = view
        with style.applied():
            for name, ax in self._axes.items():
                self._clear(ax)
                ax.set_xlim(high - WINDOW_SECONDS, high)
                style.seconds(ax.xaxis, 0, WINDOW_SECONDS, "time since start", most=7)
                if name != "faults":
                    ax.tick_params(labelbottom=False)
                    ax.set_xlabel("")
            self._heights(age, jobs, names)
            self._draw_faults(faults, names, high)
            self._draw_old(attempts, names, now)
            self._canvas.draw()
        self._ground = self._canvas.copy_from_bbox(self._figure.bbox)
        self._texts = {}
        self._key, self._bars_until = view, max((a["ended"] for a in attempts if a["ended"] is not None), default=0.0)
        self.static_draws += 1

    def _clear(self, ax):
        """Everything but the animated artists goes."""
        for artist in [*ax.lines, *ax.collections, *ax.patches, *ax.texts]:
            if not artist.get_animated():
                artist.remove()
        style.plain(ax)

    def _heights(self, age, jobs, names):
        self._axes["age"].set_ylim(0, age)
        style.seconds(self._axes["age"].yaxis, 0, age, "queue age", most=4)
        self._axes["jobs"].set_ylim(0, jobs)
        self._axes["jobs"].yaxis.set_major_locator(style.whole(4))
        self._axes["jobs"].yaxis.set_major_formatter(style.thousands)
        self._axes["jobs"].set_ylabel("jobs", size=style.TEXT)
        lanes = self._axes["lanes"]
        lanes.set_ylim(max(len(names), 1) - 0.5, -0.5)
        lanes.set_yticks(range(len(names)), [labels.cut(style.name(name), style.FOOT, 54) for name in names])
        lanes.tick_params(axis="y", labelsize=min(style.SMALL, 66 / max(len(names), 1)))
        lanes.grid(False, axis="y")

    def _draw_faults(self, faults, names, high):
        """One that lasts reaches to the edge, hatched: it then need not be drawn anew as it grows."""
        low = high - WINDOW_SECONDS
        found = [s for s in fault.spells(faults, high) if (s.start if s.end is None else s.end) >= low]
        rows, _ = fault.lane_rows(found, low, high, most=3)
        fault.draw_lane(self._axes["faults"], found, rows, low, high)
        self._axes["faults"].set_ylim(2.65, -0.65)
        live.shade_lanes(self._axes["lanes"], found, names, high)
        for name in ("age", "jobs"):
            fault.shade(self._axes[name], found, high)

    def _draw_old(self, attempts, names, now):
        ended = [a for a in attempts if a["ended"] is not None]
        _Bars(self._axes["lanes"]).show(ended[-BARS:], names, now)
        if len(ended) > BARS:
            said = f"the last {BARS:,} attempts are drawn"
            self._axes["lanes"].text(1.03, 0.06, said, transform=self._axes["lanes"].transAxes, size=style.FOOT)

    def _draw_lines(self, samples):
        times = np.array([s.time_seconds for s in samples])
        gaps = (
            np.flatnonzero(np.diff(times) > GAP_SECONDS) + 1 if len(times) else []
        )  # nobody looked: the line is broken
        for name, line in self._lines.items():
            values = np.array([getattr(s, name) for s in samples], dtype=float)
            line.set_data(np.insert(times, gaps, np.nan), np.insert(values, gaps, np.nan))
            line.axes.draw_artist(line)
        if samples:
            self._draw_ends(samples[-1])

    def _draw_ends(self, last):
        """Where each line stands now, in words beside it."""
        for panel, names in (("age", _LINES[:1]), ("jobs", _LINES[1:])):
            bottom, height = (inches / HEIGHT for inches in _PANELS[panel])
            top = self._axes[panel].get_ylim()[1]
            wanted = [bottom + height * min(getattr(last, name) / top, 1) for name in names]
            gap = 0.15 / HEIGHT
            for name, y in zip(names, labels.spread(wanted, gap, bottom, bottom + height), strict=True):
                self._draw_end(name, round(y * HEIGHT * DPI), _said(name, last))

    def _draw_end(self, name, y, said):
        """Text is the dearest of all: one that has not changed is put back as pixels."""
        seen, pixels = self._texts.get(name, (None, None))
        if seen == (y, said):
            self._canvas.restore_region(pixels)
            return
        self._ends[name].set(y=y / HEIGHT / DPI, text=said)
        self._figure.draw_artist(self._ends[name])
        box = self._ends[name].get_window_extent(self._canvas.get_renderer())
        self._texts[name] = (y, said), self._canvas.copy_from_bbox(box.padded(1))

    def _draw_bars(self, attempts, names, now):
        """What has ended since the last frame joins the ground: each bar is drawn once, running ones anew."""
        ended = [a for a in attempts if a["ended"] is not None and a["ended"] > self._bars_until]
        if ended:
            self._bars.show(ended[-BARS:], names, now).draw()
            self._ground = self._canvas.copy_from_bbox(self._figure.bbox)
            self._bars_until = max(a["ended"] for a in ended)
        self._bars.show([a for a in attempts if a["ended"] is None], names, now).draw()

    def _png(self):
        out = io.BytesIO()
        Image.fromarray(np.asarray(self._canvas.buffer_rgba())).convert("RGB").save(out, "PNG", compress_level=1)
        return out.getvalue()


class _Bars:
    """Attempts in their lanes: bars in the colour of how they ended, and a mark where they were not done."""

    def __init__(self, ax, animated=False):
        self._bars = PolyCollection([], lw=0.6, animated=animated)
        ax.add_collection(self._bars, autolim=False)
        self._marks = {outcome: self._mark(ax, outcome, animated) for outcome in live.MARKS}

    def _mark(self, ax, outcome, animated):
        look = {"marker": live.MARKS[outcome], "color": style.OUTCOMES[outcome].colour, "ms": 5, "ls": "none"}
        return ax.plot([], [], animated=animated, zorder=4, **look)[0]

    def show(self, attempts, names, now):
        rows = {name: i for i, name in enumerate(names)}
        attempts = [a for a in attempts if a["worker"] in rows]
        colours = [_bar_colour(a["outcome"]) for a in attempts]
        self._bars.set_verts([_corners(a, rows[a["worker"]], now) for a in attempts])
        self._bars.set(facecolor=[style.tint(c) for c in colours], edgecolor=colours)
        for outcome, line in self._marks.items():
            ended = [(a["ended"], rows[a["worker"]]) for a in attempts if a["outcome"] == outcome]
            line.set_data(*zip(*ended, strict=True) if ended else ([], []))
        return self

    def draw(self):
        for artist in (self._bars, *self._marks.values()):
            artist.axes.draw_artist(artist)


def _bar_colour(outcome):
    return (
        style.GREEN if outcome in ("done", "running") else style.OUTCOMES.get(outcome, style.OUTCOMES["unknown"]).colour
    )


def _corners(attempt, row, now):
    left = attempt["ended"] if attempt["started"] is None else attempt["started"]
    right = now if attempt["ended"] is None else attempt["ended"]
    # Jobs that one worker runs at the same time stand on three tracks, by their id.
    middle = row + (attempt["job_id"] % 3 - 1) * 0.26
    return [(left, middle - 0.12), (left, middle + 0.12), (right, middle + 0.12), (right, middle - 0.12)]


def _lanes(samples, attempts):
    """The fleet's workers in their order; without a fleet, or beyond it, the owners that ran something."""
    fleet = [w.name for w in samples[-1].workers if w.name.startswith("worker-")] if samples else []
    others = {a["worker"] for a in attempts} - set(fleet)
    return [*fleet, *sorted(others)][:16]


def _look(name):
    if name == "oldest_age_seconds":
        return style.BLUE, "-"
    return style.STATES[name].colour, style.STATES[name].dash


def _said(name, sample):
    if name == "oldest_age_seconds":
        return f"queue age {style.duration(round(sample.oldest_age_seconds, 1))}"
    return f"{style.STATES[name].text} {style.count(getattr(sample, name))}"
