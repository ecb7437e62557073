"""What a run looks like over time: queue age, counts, worker lanes and the faults, alone or on one axis."""

import re
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.collections import PolyCollection
from matplotlib.patches import Rectangle

from jobqueue.lab import labels, style
from jobqueue.lab.charts import fault
from jobqueue.lab.charts import frame as frames

COUNTS = ("ready", "running", "waiting_retry", "dead", "done")
ATTEMPTS = ("job_id", "epoch", "started", "ended", "outcome")
_LANES = 24
_BARS = 20_000  # a PolyCollection of 20,000 draws in 0.3 s and makes an SVG of 4 MB
MARKS = {"failed": "x", "failed_permanently": "X", "released": "<", "lost": "^", "cancelled": "|", "unknown": "$?$"}
_HATCH = {"running": "////"}


@style.applied()
def queue_age(ages, faults=None, **about):
    """How long the oldest due job has waited, in seconds of queue time. `ages`: time_seconds, oldest_age_seconds, and
    where a run knows it peak_age_seconds, the greatest since the sample before: that is drawn then."""
    ages, notes = _samples(ages, "queue_age")
    panel = (2.9, partial(_age, ages=ages))
    return stack(_age_finding(ages, faults), [panel], [ages["time_seconds"]], faults, about, notes)


@style.applied()
def counts(ages, faults=None, **about):
    """Jobs by state over time. `ages`: time_seconds, ready, running, waiting_retry, dead, done."""
    ages, notes = _spaced(ages, "counts", *COUNTS)
    panel = (2.9, partial(_counts, ages=ages))
    return stack(_counts_finding(ages), [panel], [ages["time_seconds"]], faults, about, notes)


@style.applied()
def worker_lanes(attempts, faults=None, **about):
    """Each attempt as a bar in its worker's lane, its end marked where it was not done. `attempts`: see ATTEMPTS, and
    `worker` or `owner`; `started` and `ended` in seconds, either may be missing."""
    attempts = _attempts(attempts)
    names, notes = _workers(attempts)
    times = [attempts["started"], attempts["ended"]]
    panel = (_lanes_height(names), partial(_lanes, attempts=attempts, names=names, faults=faults))
    return stack(_attempts_finding(attempts), [panel], times, faults, about, notes)


@style.applied()
def fault_lane(faults, **about):
    """The faults alone: each a numbered spell. `faults`: time_seconds, kind, target."""
    faults = frames.columns(faults, "fault_lane", "time_seconds", "kind")
    kinds = faults["kind"].astype(str).value_counts(sort=False)
    said = ", ".join(f"{n:,} {style.name(kind)}" for kind, n in sorted(kinds.items())) or "none"
    return stack(
        f"{style.count(len(faults), 'fault event')}: {said}", [], [faults["time_seconds"]], faults, about, [], lane=True
    )


@style.applied()
def overview(ages, attempts, faults=None, **about):
    """Queue age, counts, worker lanes and faults on one time axis: the whole run on a page."""
    ages, notes = _samples(ages, "overview", *COUNTS)
    attempts = _attempts(attempts)
    names, more = _workers(attempts)
    panels = [
        (1.7, partial(_age, ages=ages)),
        (1.5, partial(_counts, ages=ages)),
        (_lanes_height(names), partial(_lanes, attempts=attempts, names=names, faults=faults)),
    ]
    times = [ages["time_seconds"], attempts["started"], attempts["ended"]]
    finding = "; ".join([_age_finding(ages, faults), _counts_finding(ages)] if len(ages) else ["No samples were taken"])
    return stack(finding, panels, times, faults, about, notes + more)


def stack(finding, panels, times, faults, about, notes, lane=False):
    """Panels over one time axis in seconds, the fault lane below them where there are faults."""
    faults = frames.columns(faults, "fault_lane", "time_seconds", "kind")
    low, high = frames.span(*times, faults["time_seconds"] * 1.05 if lane or not _any(times) else ())
    found = [s for s in fault.spells(faults, high) if (s.start if s.end is None else s.end) >= low]
    rows, height = fault.lane_rows(found, low, high)
    lane = lane or bool(found)
    figure, axes = style.sheet(finding, [h for h, _ in panels] + ([max(height, 0.4)] if lane else []), about)
    axes[-1].set_xlim(low, high)
    for ax, (_, paint) in zip(axes, panels, strict=False):
        notes = notes + (paint(ax, high) or [])
        if getattr(paint, "func", None) is not _lanes:
            fault.shade(ax, found, high)
    if lane:
        notes = notes + fault.draw_lane(axes[-1], found, rows, low, high)
        if not found:
            style.empty(axes[-1], "no faults")
    style.seconds(axes[-1].xaxis, low, high, "time since start")
    style.note(figure, notes)
    return figure


def _samples(ages, chart, *counts):
    """In order of time; without peak_age_seconds what was seen at the samples stands for it."""
    ages = frames.columns(ages, chart, "time_seconds", "oldest_age_seconds", *counts)
    known = "peak_age_seconds" in ages
    ages = ages if known else ages.assign(peak_age_seconds=ages["oldest_age_seconds"])
    ages, notes = _spaced(ages, chart, "oldest_age_seconds", "peak_age_seconds", *counts)
    return ages, notes + ["queue age: the greatest between two samples"] * (known and len(ages) > 0)


def _spaced(ages, chart, *names):
    """Samples, and a note of how far apart they are: what was between them was not seen."""
    apart = pd.to_numeric(frames.columns(ages, chart, "time_seconds")["time_seconds"], errors="coerce").diff().median()
    ages, notes = frames.samples(ages, chart, *names)
    return ages, [f"samples every {style.duration(apart)}"] * bool(apart > 0) + notes


def _any(times):
    return any(len(pd.Series(series).dropna()) for series in times)


def _age(ax, high, ages):
    top = style.ceiling_seconds(1.08 * _max(ages["peak_age_seconds"]), 5)
    ax.set_ylim(0, top)
    style.seconds(ax.yaxis, 0, top, "queue age", most=5)
    if ages.empty:
        style.empty(ax, "no samples")
        return []
    last = ages["oldest_age_seconds"].iloc[-1]
    end = ages.tail(1).assign(peak_age_seconds=last)
    drawn = pd.concat([frames.broken(ages), end[ages["peak_age_seconds"].tail(1) > last]])
    ax.plot(
        drawn["time_seconds"],
        drawn["peak_age_seconds"],
        color=style.BLUE,
        lw=1.7,
        label="queue age",
        solid_joinstyle="round",
    )
    style.end_labels(ax, [(last, f"queue age {style.duration(last)}", style.BLUE)])
    return []


def _counts(ax, high, ages):
    shown = [name for name in COUNTS if name != "done"]
    ax.set_ylim(0, style.ceiling(1.05 * _max(ages[shown].max() if len(ages) else []), 5))
    ax.set_ylabel("jobs", size=style.TEXT)
    ax.yaxis.set_major_locator(style.whole(5))
    ax.yaxis.set_major_formatter(style.thousands)
    if ages.empty:
        style.empty(ax, "no samples")
        return []
    drawn = frames.broken(ages)
    for name in shown:
        mark = style.STATES[name]
        ax.plot(drawn["time_seconds"], drawn[name], color=mark.colour, ls=mark.dash, lw=1.5, label=mark.word)
    ends = [
        (
            ages[name].iloc[-1],
            f"{style.STATES[name].text} {style.count(ages[name].iloc[-1])}",
            style.STATES[name].colour,
        )
        for name in shown
    ]
    done = ages["done"].iloc[-1]
    style.end_labels(ax, ends, top=f"not drawn: done {style.count(done)}")
    return []


def _lanes(ax, high, attempts, names, faults):
    ax.set(ylim=(max(len(names), 1) - 0.5, -0.5))
    ax.set_yticks(range(len(names)), [labels.cut(style.name(name), style.SMALL, 56) for name in names])
    ax.grid(False, axis="y")
    if not names:
        style.empty(ax, "no attempts")
        return []
    drawn = attempts[attempts["worker"].isin(names)]
    notes = [f"the first {_BARS:,} of {len(drawn):,} attempts are drawn"] if len(drawn) > _BARS else []
    drawn = drawn.head(_BARS)
    shade_lanes(ax, fault.spells(faults, high), names, high)
    for outcome, part in drawn.groupby("outcome", sort=False):
        _bars(ax, part, names, str(outcome), high)
    _lane_legend(ax, attempts)
    return notes


def _bars(ax, part, names, outcome, high):
    mark = style.OUTCOMES.get(outcome, style.OUTCOMES["unknown"])
    plain = outcome in ("done", "running")
    colour = style.GREEN if plain else mark.colour
    whole = part[part["started"].notna()]
    left, right = whole["started"].to_numpy(), whole["ended"].fillna(high).to_numpy()
    row = whole["worker"].map(names.index).to_numpy(float) + whole["shift"].to_numpy()
    half = whole["half"].to_numpy()
    corners = np.stack([[left, row - half], [left, row + half], [right, row + half], [right, row - half]]).transpose(
        2, 0, 1
    )
    ax.add_collection(
        PolyCollection(
            corners, facecolor=style.tint(colour), edgecolor=colour, lw=0.6, label=outcome, hatch=_HATCH.get(outcome)
        ),
        autolim=False,
    )
    if not plain:
        at = part["worker"].map(names.index) + part["shift"]
        ax.plot(
            part["ended"],
            at,
            ls="none",
            marker=MARKS.get(outcome, "$?$"),
            ms=5,
            color=colour,
            mec=colour,
            clip_on=False,
            zorder=4,
        )


def shade_lanes(ax, found, names, high):
    """A worker's spells stand in its own lane only, over its bars: a paused worker's attempt goes on in the table."""
    for s in found:
        if s.target in names and s.start <= high:
            row, width = names.index(s.target), (s.start if s.end is None else min(s.end, high)) - s.start
            ax.barh(row, width, left=s.start, height=0.96, facecolor=s.mark.colour, alpha=0.2, lw=0, zorder=3)
            ax.plot([s.start] * 2, [row - 0.48, row + 0.48], color=s.mark.colour, ls=s.mark.dash, lw=1.4, zorder=3)


def _lane_legend(ax, attempts):
    """How the attempts ended, beside the lanes: the mark of the picture, word and number."""
    step = 0.165 / (ax.get_position().height * ax.figure.get_figheight())
    for i, (outcome, n) in enumerate(attempts["outcome"].value_counts().items()):
        mark, y = style.OUTCOMES.get(outcome, style.OUTCOMES["unknown"]), 1 - step * (i + 0.5)
        if outcome in ("done", "running"):
            ax.add_patch(
                Rectangle(
                    (1.026, y - step * 0.28),
                    0.02,
                    step * 0.56,
                    transform=ax.transAxes,
                    clip_on=False,
                    lw=0.8,
                    facecolor=style.tint(style.GREEN),
                    edgecolor=style.GREEN,
                    hatch=_HATCH.get(outcome),
                )
            )
        else:
            ax.plot(
                [1.036],
                [y],
                transform=ax.transAxes,
                clip_on=False,
                ls="none",
                ms=6,
                color=mark.colour,
                marker=MARKS.get(outcome, "$?$"),
            )
        ax.text(1.06, y, f"{mark.word} {style.count(n)}", transform=ax.transAxes, va="center", size=style.FOOT + 0.5)


def _lanes_height(names):
    return max(0.24 * len(names), 0.95) + 0.05


def _attempts(frame):
    """Attempts with `worker`, and with the place of each in its lane where a worker runs several at once."""
    frame = frames.columns(frame, "worker_lanes", *ATTEMPTS).copy()
    if "worker" not in frame:
        frame["worker"] = frames.columns(frame, "worker_lanes", "owner")["owner"] if len(frame) else []
    frame["worker"] = frame["worker"].astype(str)
    frame["outcome"] = frame["outcome"].astype(str)
    frame[["started", "ended"]] = frame[["started", "ended"]].astype(float)
    frame = frame.sort_values(["started", "ended"], kind="stable", ignore_index=True)
    frame["shift"], frame["half"] = 0.0, 0.36
    for _, part in frame[frame["started"].notna()].groupby("worker", sort=False):
        row = labels.rows(zip(part["started"], part["ended"].fillna(np.inf), strict=True), 8)
        row = np.array([7 if r is None else r for r in row])
        tracks = row.max() + 1
        frame.loc[part.index, "shift"] = ((row + 0.5) / tracks - 0.5) * 0.8
        frame.loc[part.index, "half"] = 0.36 / tracks
    return frame


def _workers(attempts):
    names = sorted(attempts["worker"].unique(), key=_natural)
    if len(names) <= _LANES:
        return names, []
    most = attempts["worker"].value_counts().sort_index(kind="stable").nlargest(_LANES).index
    return sorted(most, key=_natural), [f"{_LANES} of {len(names):,} workers are drawn, those with the most attempts"]


def _natural(text):
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", text) if part]


def _max(values):
    values = pd.Series(values, dtype=float).dropna()
    return float(values.max()) if len(values) else 0.0


def _age_finding(ages, faults):
    """The peak of queue age, the fault that lasted then, and when age was last over what is usual: it may have been
    down in between."""
    if ages.empty:
        return "No samples of queue age"
    age, time = ages["peak_age_seconds"].to_numpy(), ages["time_seconds"].to_numpy()
    if age.max() <= 0:
        return "No due job waited"
    at = int(age.argmax())
    seen = ages["oldest_age_seconds"].iloc[at] == age[at]  # else it was at some time since the sample before
    since = time[at if seen else max(at - 1, 0)]
    said = f"Queue age peaked at {style.duration(age[at])}{_during(faults, since, time[at])}"
    before = _before_any(ages, faults)
    usual, words = max((age[at] / 10, "a tenth of it"), (before, "what it was before the faults"))
    if ages["oldest_age_seconds"].iloc[-1] > usual:
        return f"{said} and was still over {words} at the end"
    last = np.flatnonzero(age > usual)
    if not len(last) or last[-1] == at:
        return said
    return f"{said} and was last over {words} {style.duration(time[last[-1]] - time[at])} later"


def _before_any(ages, faults):
    """The highest age before the first fault; 0 without faults."""
    found = fault.spells(faults, 0.0)
    return _max(ages["peak_age_seconds"][ages["time_seconds"] < found[0].start]) if found else 0.0


def _during(faults, since, until):
    """The fault that lasted at a peak then, or how many did. One that was over is left out: nothing ties the two."""
    lasting = [s for s in fault.spells(faults, until) if s.start <= since and s.end is not None and s.end >= until]
    if len(lasting) != 1:
        return f" while {style.count(len(lasting), 'fault')} lasted" if lasting else ""
    (s,) = lasting
    what = f"{s.mark.word or style.name(s.kind)} {style.name(s.target, 14)}".strip()
    return f" while fault {s.number} ({what}) lasted"


def _counts_finding(ages):
    if ages.empty:
        return "No samples of the counts"
    last = ages.iloc[-1]
    left = last["ready"] + last["running"] + last["waiting_retry"]
    return (
        f"{style.count(last['done'], 'job')} done, {style.count(last['dead'])} dead, {style.count(left)} still open; "
        f"at most {style.count(ages['ready'].max())} ready and {style.count(ages['waiting_retry'].max())} waiting for "
        "a retry at a sample"
    )


def _attempts_finding(attempts):
    if attempts.empty:
        return "No attempts"
    n, jobs = len(attempts), attempts["job_id"].nunique()
    ends = [
        f"{style.count(k)} {style.OUTCOMES.get(o, style.OUTCOMES['unknown']).word}"
        for o, k in attempts["outcome"].value_counts().items()
    ]
    workers = style.count(attempts["worker"].nunique(), "worker")
    return f"{workers} began {style.count(n, 'attempt')} at {style.count(jobs, 'job')}: {', '.join(ends)}"
