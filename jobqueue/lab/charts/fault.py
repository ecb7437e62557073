"""Faults as spells: a kill lasts until the start, a pause until the resume, a cut is a moment; each has its number."""

from dataclasses import dataclass, replace

import pandas as pd

from jobqueue.lab import labels, style
from jobqueue.lab.charts import frame as frames

_ENDS = {
    "kill": ("start", "restart"),
    "stop": ("start", "restart"),
    "pause": ("resume", "kill", "stop"),
    "crash": ("restart", "start"),
    "slow": ("resume", "kill", "stop"),
}
ROWS = 8
_ROW_INCHES = 0.19
_OTHER = style.Mark("◆", "", style.BLACK)


@dataclass(frozen=True)
class Spell:
    """A fault from `start` to `end` in seconds; None where it is a moment. `ended`: something ended it."""

    number: int
    kind: str
    target: str
    start: float
    end: float | None
    ended: bool

    @property
    def mark(self):
        return style.FAULTS.get(self.kind, _OTHER)

    @property
    def label(self):
        word = self.mark.word or style.name(self.kind)
        return f"{self.number} {self.mark.symbol} {word} {style.name(self.target, 14)}".strip()


def spells(faults, end):
    """Faults (time_seconds, kind, target, perhaps until_seconds) as Spells; the event that ends one gets no number."""
    faults = frames.columns(faults, "fault_lane", "time_seconds", "kind")
    out: list[Spell] = []
    open_: dict[str, list[int]] = {}
    for row in faults.sort_values("time_seconds", kind="stable").to_dict("records"):
        kind, target, at = str(row["kind"]), _target(row), float(row["time_seconds"])
        if kind == "exit" and open_.get(target):
            continue  # the end of a stop, which lasts until the next start
        lasting = [i for i in open_.get(target, ()) if not out[i].ended or at <= (out[i].end or 0.0) + 1e-6]
        ended = [i for i in lasting if kind in _ENDS.get(out[i].kind, ())]
        for i in ended:
            out[i] = replace(out[i], end=at, ended=True)
        open_[target] = [i for i in lasting if i not in ended]
        if ended and kind not in _ENDS:
            continue
        until = row.get("until_seconds")
        last = float(until) if pd.notna(until) else end if kind in _ENDS else None
        out.append(Spell(len(out) + 1, kind, target, at, last, pd.notna(until)))
        open_[target].append(len(out) - 1)
    return out


def _target(row):
    target = row.get("target")
    return "" if target is None or pd.isna(target) else str(target)


def lane_rows(found, low, high, most=ROWS):
    """A row of the lane for each spell, measured with its label; None where the lane is full. And the lane's height."""
    inches = (style.WIDTH - style.LEFT - style.RIGHT) / (high - low)
    place = [_extent(s, low, high, inches) for s in found]
    chosen = labels.rows(place, most)
    used = 1 + max((row for row in chosen if row is not None), default=0)
    return chosen, used * _ROW_INCHES + 0.06


def _extent(spell, low, high, inches):
    start = (max(spell.start, low) - low) * inches
    stop = (min(spell.start if spell.end is None else spell.end, high) - low) * inches
    return start - 0.07, max(stop, start) + 0.13 + labels.width(spell.label, style.FOOT + 0.5) / 72


def draw_lane(ax, found, chosen, low, high):
    """The lane: a bar or a mark for each spell and its numbered label beside it. Returns the notes."""
    drawn = [(s, row) for s, row in zip(found, chosen, strict=True) if row is not None and s.start <= high]
    ax.set(ylim=(max((row for _, row in drawn), default=0) + 0.65, -0.65), yticks=[])
    ax.grid(False)
    ax.set_ylabel("faults", rotation=0, ha="right", va="center", size=style.TEXT)
    for spell, row in drawn:
        _draw(ax, spell, row, high)
    left = len(found) - len(drawn)
    return [f"{style.count(left, 'fault')} more than the fault lane can label"] if left else []


def _draw(ax, spell, row, high):
    stop = spell.start if spell.end is None else min(spell.end, high)
    if spell.end is None:
        ax.plot([spell.start], [row], marker="D", ms=4.5, color=spell.mark.colour, ls="none", clip_on=False)
    else:
        ax.barh(
            row,
            stop - spell.start,
            left=spell.start,
            height=0.62,
            facecolor=style.tint(spell.mark.colour),
            edgecolor=spell.mark.colour,
            hatch="" if spell.ended else "///",
            lw=0.8,
        )
    ax.annotate(
        spell.label,
        (stop, row),
        (6, 0),
        textcoords="offset points",
        va="center",
        size=style.FOOT + 0.5,
        annotation_clip=False,
    )


def shade(ax, found, high):
    """Each spell as ground with an edge, each moment as a line; the words stand in the lane."""
    for s in found:
        if s.start > high:
            continue
        ax.axvline(s.start, color=s.mark.colour, ls=s.mark.dash, lw=0.9, zorder=1)
        if s.end is not None:
            ax.axvspan(s.start, min(s.end, high), facecolor=s.mark.colour, alpha=style.TINT, lw=0, zorder=0)
        if s.ended and s.end <= high:
            ax.axvline(s.end, color=s.mark.colour, ls=s.mark.dash, lw=0.5, zorder=1)
