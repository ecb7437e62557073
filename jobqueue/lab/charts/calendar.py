"""Schedules and weeks: the slots that were missed, every slot across a clock change, load by hour and weekday."""

from datetime import timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
from matplotlib.colors import BoundaryNorm, LinearSegmentedColormap
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter

from jobqueue.errors import InvalidInput
from jobqueue.lab import labels, style
from jobqueue.lab.charts import frame as frames

_ROWS = 24
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_TITLE = {"fired": style.Mark("●", "fired", style.BLUE), "missed": style.Mark("✖", "missed", style.VERMILLION)}
_MARKERS = {"fired": "o", "missed": "X"}
_BLUES = LinearSegmentedColormap.from_list("paper to blue", ["#ffffff", style.BLUE, "#00263b"])


@style.applied()
def missed_slots(missed, **about):
    """Slots that did not run, by schedule and reason. `missed`: schedule_id, slot (aware instants), reason."""
    missed = frames.columns(missed, "missed_slots", "schedule_id", "slot", "reason")
    names, notes = _schedules(missed)
    figure, (ax,) = style.sheet(_missed_finding(missed), [max(0.26 * len(names), 0.9)], about, left=1.75)
    if missed.empty:
        style.empty(ax, "no missed slots")
        style.note(figure, notes)
        return figure
    missed = missed.assign(slot=_utc(missed["slot"], "missed_slots"))
    reasons = missed["reason"].astype(str).value_counts().index
    for reason, (colour, _, marker) in zip(reasons, style.SERIES, strict=False):
        part = missed[(missed["reason"].astype(str) == reason) & missed["schedule_id"].isin(names)]
        ax.plot(
            _hours(part["slot"]),
            part["schedule_id"].map(names.index),
            ls="none",
            marker=marker,
            ms=5,
            color=colour,
            mfc="none",
            label=reason,
        )
    _rows(ax, names)
    _utc_axis(ax, missed["slot"])
    _reasons(ax, missed["reason"].astype(str).value_counts())
    more = len(reasons) - len(style.SERIES)
    style.note(figure, notes + ([f"{more} rarer reasons are not drawn"] if more > 0 else []))
    return figure


@style.applied()
def slot_ledger(slots, timezone, **about):
    """Every slot of some schedules, in UTC below and as the wall clock shows it above, across a change of the clocks.

    `slots`: schedule_id, slot (aware instants), and status (fired or missed; fired where the column is missing).
    """
    slots = frames.columns(slots, "slot_ledger", "schedule_id", "slot")
    status = slots["status"].astype(str) if "status" in slots else pd.Series("fired", index=slots.index)
    zone = ZoneInfo(timezone)
    names, notes = _schedules(slots)
    about = {"timezone": timezone, **about}
    slots = slots.assign(status=status, slot=_utc(slots["slot"], "slot_ledger"))
    change = _change(slots["slot"], zone)
    finding = _ledger_finding(slots, change, timezone)
    figure, axes = style.sheet(finding, [0.32, max(0.3 * len(names), 0.8)], about, left=1.75, shared=False)
    if slots.empty:
        for ax in axes:
            style.empty(ax, "")
        style.empty(axes[1], "no slots")
        style.note(figure, notes)
        return figure
    for state, part in slots[slots["schedule_id"].isin(names)].groupby("status", sort=False):
        mark = _TITLE.get(state, _TITLE["missed"])
        axes[1].plot(
            _hours(part["slot"]),
            part["schedule_id"].map(names.index),
            ls="none",
            marker=_MARKERS.get(state, "X"),
            ms=5.5,
            color=mark.colour,
            label=state,
        )
    _rows(axes[1], names)
    _utc_axis(axes[1], slots["slot"])
    _wall(axes[0], axes[1], zone, change)
    style.note(figure, notes, "● fired   ✖ missed; vertical line: the clocks change")
    return figure


@style.applied()
def week(samples, value, *, label=None, timezone="UTC", of="mean", **about):
    """A value by weekday and hour. `samples`: at (aware instants) and the column `value`; of: mean or max, of a cell.

    The scale has fixed steps of 1, 2 and 5, so that two weeks compare; an hour without a sample stays empty.
    """
    samples = frames.columns(samples, "week", "at", value)
    grid = np.full((7, 24), np.nan)
    if len(samples):
        at = _utc(samples["at"], "week").dt.tz_convert(ZoneInfo(timezone))
        cells = samples[value].astype(float).groupby([at.dt.day_of_week, at.dt.hour])
        for (day, hour), found in cells.agg(of).items():
            grid[day, hour] = found
    label = label or value.replace("_", " ")
    figure, (ax,) = style.sheet(_week_finding(grid, label), [2.5], {"timezone": timezone, **about}, right=1.5)
    ax.set_yticks(range(7), _DAYS)
    ax.set_xticks(range(0, 24, 3), [f"{hour:02}:00" for hour in range(0, 24, 3)])
    ax.set_xlabel("hour of the day", size=style.TEXT)
    ax.grid(False)
    if np.isnan(grid).all():
        style.empty(ax, "no samples")
    else:
        _cells(figure, ax, grid, label)
    gaps = int(np.isnan(grid).sum())
    hatched = [f"{style.count(gaps, 'hour')} without a sample: hatched"] if 0 < gaps < 168 else []
    style.note(figure, [], "; ".join([f"each hour: its {of}", *hatched]))
    return figure


def _cells(figure, ax, grid, label):
    top = style.ceiling(np.nanmax(grid), 1e-3)
    steps = np.array([0, *(top * s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1))])
    ax.set_facecolor("white")
    ax.patch.set(hatch="////", edgecolor="#b0b0b0")
    image = ax.imshow(np.ma.masked_invalid(grid), aspect="auto", cmap=_BLUES, norm=BoundaryNorm(steps, 256))
    box, height = ax.get_position(), figure.get_figheight()
    bar = figure.colorbar(image, cax=figure.add_axes((box.x1 + 0.02, box.y0, 0.018, box.height)))
    bar.ax.yaxis.set_major_locator(FixedLocator(list(steps)))
    bar.ax.yaxis.set_major_formatter(FixedFormatter([f"{s:g}" for s in steps]))
    bar.ax.tick_params(labelsize=style.SMALL)
    bar.ax.minorticks_off()
    figure.text(
        box.x1 + 0.02, box.y1 + 0.08 / height, labels.cut(label, style.SMALL, 100), size=style.SMALL, va="bottom"
    )


def _week_finding(grid, label):
    if np.isnan(grid).all():
        return "No samples"
    low = np.nanmin(grid)
    quiet, shared = np.unravel_index(np.nanargmin(grid), grid.shape), int((grid == low).sum())
    when = f"on {_hour(quiet)}" if shared == 1 else f"in {shared} hours"
    return f"Highest {label}: {np.nanmax(grid):,.3g} on {_hour(np.unravel_index(np.nanargmax(grid), grid.shape))}; " \
           f"lowest: {low:,.3g} {when}"


def _hour(cell):
    return f"{_DAYS[cell[0]]} at {cell[1]:02}:00"


def _schedules(frame):
    names = list(dict.fromkeys(frame["schedule_id"]))
    return names[:_ROWS], [f"{_ROWS} of {len(names)} schedules are drawn"] if len(names) > _ROWS else []


def _utc(values, chart):
    """Instants in UTC; a naive one is refused, since it names two instants in the fold and none in the gap."""
    values = [pd.Timestamp(value) for value in values]
    if any(value.tzinfo is None for value in values):
        raise InvalidInput(f"charts.{chart}: an instant has no time zone")
    return pd.Series(pd.DatetimeIndex([value.tz_convert("UTC") for value in values]))


def _hours(instants):
    return instants.map(lambda value: value.timestamp() / 3600)


def _rows(ax, names):
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_yticks(range(len(names)), [labels.cut(style.name(name, 40), style.SMALL, 112) for name in names])


def _utc_axis(ax, instants):
    hours = _hours(instants)
    span = max(hours.max() - hours.min(), 1)
    ax.set_xlim(hours.min() - 0.04 * span, hours.max() + 0.04 * span)
    step = style.step_seconds(span * 3600 * 1.08, 10) / 3600
    ax.xaxis.set_major_locator(FixedLocator(np.arange(np.ceil(ax.get_xlim()[0] / step) * step, ax.get_xlim()[1], step)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda hour, _: _clock(hour, "%m-%d" if step >= 24 else "%H:%M")))
    first = pd.Timestamp(instants.min())
    ax.set_xlabel(f"UTC, from {first:%Y-%m-%d %H:%M}", size=style.TEXT)


def _clock(hour, form, zone=None):
    return pd.Timestamp(round(hour * 3600), unit="s", tz="UTC").tz_convert(zone or "UTC").strftime(form)


def _wall(top, below, zone, change):
    """The wall clock at the same instants as the UTC axis below, and the change between them."""
    low, high = below.get_xlim()
    top.set(xlim=(low, high), ylim=(0, 1), yticks=[0.5])
    top.set_yticklabels(["wall clock"])
    top.tick_params(axis="both", length=0, labelbottom=False)
    top.grid(False)
    top.spines[:].set_visible(False)
    for hour in below.get_xticks():
        top.text(hour, 0.5, _clock(hour, "%H:%M", zone), ha="center", va="center", size=style.SMALL)
    if change is not None:
        below.axvline(change[0].timestamp() / 3600, color=style.BLACK, lw=1, ls="--", zorder=0)


def _change(slots, zone):
    """(instant, seconds gained) of the first change of the clocks among the slots, to the minute; None without one."""
    if slots.empty:
        return None
    at, end = slots.min().floor("h") - timedelta(hours=1), slots.max().ceil("h") + timedelta(hours=1)
    while at < end:
        after = at + timedelta(minutes=15)
        moved = after.astimezone(zone).utcoffset() - at.astimezone(zone).utcoffset()
        if moved:
            return after, moved.total_seconds()
        at = after
    return None


def _ledger_finding(slots, change, timezone):
    missed = int((slots["status"] == "missed").sum())
    said = f"{style.count(len(slots) - missed, 'slot')} fired, {style.count(missed)} missed"
    if change is None:
        return f"{said}; no clock change in {timezone} in this time"
    way = "forward" if change[1] > 0 else "back"
    moved = f"{style.duration(abs(change[1]))} {way}"
    return f"{said} across the change of {timezone}, {moved} at {change[0]:%Y-%m-%d %H:%M} UTC"


def _missed_finding(missed):
    if missed.empty:
        return "No slot was missed"
    reasons = missed["reason"].astype(str).value_counts()
    said = ", ".join(f"{style.count(n)} {style.name(reason)}" for reason, n in reasons.head(4).items())
    of = style.count(missed["schedule_id"].nunique(), "schedule")
    return f"{style.count(len(missed), 'slot')} of {of} missed: {said}"


def _reasons(ax, counts):
    step = 0.18 / (ax.get_position().height * ax.figure.get_figheight())
    for i, ((reason, n), (colour, _, marker)) in enumerate(zip(counts.items(), style.SERIES, strict=False)):
        y = 1 - step * (i + 0.5)
        ax.plot(
            [1.03], [y], transform=ax.transAxes, clip_on=False, marker=marker, mfc="none", color=colour, ls="none", ms=5
        )
        ax.text(
            1.055,
            y,
            f"{style.name(reason, 16)} {style.count(n)}",
            transform=ax.transAxes,
            va="center",
            size=style.SMALL,
        )
