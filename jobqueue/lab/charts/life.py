"""The life of one job as a picture: its states over time, and a row for each lease it was given."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import pandas as pd

from jobqueue.errors import InvalidInput
from jobqueue.lab import labels, style
from jobqueue.lab.charts import frame as frames

_MOST = 20
_AFTER = {
    "failed": "waiting_retry",
    "lost": "waiting_retry",
    "released": "ready",
    "redriven": "ready",
    "failed_permanently": "failed",
    "cancelled": "cancelled",
}
_UNSEEN = style.Mark("?", "ready, then running", style.BLACK)


@dataclass(frozen=True)
class Phase:
    """A job in one state from `start` to `end`, seconds since it was created; a running one has epoch and owner.

    State "unseen": the row tells when an earlier lease ended, never when it began.
    """

    state: str
    start: float
    end: float
    epoch: int | None = None
    owner: str | None = None
    event: str | None = None

    @property
    def mark(self):
        return style.STATES.get(self.state, _UNSEEN)


@style.applied()
def life(job, attempts=None, *, until=None, **about):
    """One job's states and leases over time. `job`: a Job, or a row as a mapping. `attempts`: epoch, started.

    Without `attempts` the row alone is read: it tells the end of each lease, and the beginning of the last one only.
    `until` (an instant, or seconds since created) is where a job that is not finished ends in the picture.
    """
    phases = story(job, attempts, until=until)
    shown = phases[-_MOST:]
    leases = [phase for phase in shown if phase.epoch is not None]
    notes = [f"the last {len(shown)} of {len(phases)} phases are drawn"] if len(phases) > len(shown) else []
    if _field(job, "history_trimmed"):
        notes.append(f"{style.count(_field(job, 'history_trimmed'))} older ends of leases are trimmed from the row")
    low, high = (shown[0].start if len(phases) > len(shown) else 0.0), max(phases[-1].end, 1e-3)
    rows, most = _label_rows(shown, low, high)
    heights = [0.5 + 0.19 * most, max(0.26 * len(leases), 0.4)]
    figure, (band, lanes) = style.sheet(_finding(job, phases), heights, about, left=1.75)
    band.set_xlim(low, high)
    _draw_band(band, shown, rows, most)
    _draw_leases(lanes, leases, high)
    style.seconds(lanes.xaxis, low, high, "time since the job was created")
    style.note(figure, notes)
    return figure


def story(job, attempts=None, *, until=None):
    """The phases of a job's life, in order, from its row and, where there are any, its attempts."""
    clock = _Clock(job)
    starts = _starts(job, attempts, clock)
    phases, at, state = [], 0.0, "ready"
    for entry in _field(job, "history") or ():
        end = clock(entry["at"])
        if entry.get("owner"):
            phases += _lease(state, at, end, entry["epoch"], entry["owner"], entry["event"], starts)
        else:
            phases.append(Phase(_terminal(state, entry), at, end))
        at, state = end, _AFTER.get(entry["event"], "ready")
    phases += _last(job, state, at, clock, starts, until)
    return [p for p in phases if p.end > p.start or p.state in ("done", "dead", "failed", "cancelled")]


def _terminal(state, entry):
    """A job that was redriven was a dead letter until then, and its last lease ended as if it would be retried."""
    return "dead" if entry["event"] == "redriven" and state == "waiting_retry" else state


def _lease(state, at, end, epoch, owner, event, starts):
    began = starts.get(int(epoch))
    if began is None:
        return [Phase("unseen", at, end, int(epoch), owner, event)]
    return [Phase(state, at, began), Phase("running", began, end, int(epoch), owner, event)]


def _last(job, state, at, clock, starts, until):
    status, epoch = _field(job, "status"), int(_field(job, "epoch") or 0)
    end = clock(until) if until is not None else max([at, *starts.values(), *_known(job, clock)]) * 1.04
    if status == "running":
        return _lease(state, at, max(end, at), epoch, _field(job, "locked_by"), "running", starts)
    if status == "done":
        finished = clock(_field(job, "finished_at"))
        lease = _lease(
            state, at, finished, int(_field(job, "finished_epoch") or epoch), _field(job, "finished_by"), "done", starts
        )
        return [*lease, Phase("done", finished, max(finished, end))]
    return [Phase(state if status == "ready" else status, at, max(end, at))]


def _known(job, clock):
    names = ("finished_at", "started_at", "locked_until") if _field(job, "status") != "ready" else ("run_at",)
    return [clock(_field(job, name)) for name in names if _field(job, name) is not None]


def _starts(job, attempts, clock):
    found = {}
    for row in frames.columns(attempts, "life", "epoch", "started").to_dict("records") if attempts is not None else ():
        if pd.notna(row["started"]):
            found[int(row["epoch"])] = clock(row["started"])
    if _field(job, "started_at") is not None:
        found.setdefault(int(_field(job, "epoch")), clock(_field(job, "started_at")))
    return found


class _Clock:
    """Seconds since the job was created, from instants, ISO texts or numbers."""

    def __init__(self, job):
        self.origin = _instant(_field(job, "created_at"))

    def __call__(self, value):
        value = _instant(value)
        if isinstance(value, float):
            return value - (self.origin if isinstance(self.origin, float) else 0.0)
        if isinstance(self.origin, float):
            raise InvalidInput("charts.life: created_at is a number, but another time of the job is an instant")
        return (value - self.origin).total_seconds()


def _instant(value):
    if isinstance(value, str):
        return datetime.fromisoformat(value)
    return value if isinstance(value, datetime) else float(value)


def _field(job, name):
    value = job.get(name) if isinstance(job, Mapping) else getattr(job, name, None)
    return None if isinstance(value, float) and pd.isna(value) or value is pd.NaT else value


def _label_rows(phases, low, high):
    inches = (style.WIDTH - 1.75 - style.RIGHT) / (high - low)
    spans = [
        ((p.start - low) * inches, (p.start - low) * inches + labels.width(_text(p), style.SMALL) / 72 + 0.12)
        for p in phases
    ]
    chosen = labels.stairs(spans)
    return chosen, max(chosen) + 1


def _text(phase):
    return phase.mark.text


def _draw_band(ax, phases, rows, most):
    ax.set(ylim=(-0.4, 1.25 + 0.5 * most), yticks=[0.25])
    ax.set_yticklabels(["state"])
    ax.grid(False)
    for phase, row in zip(phases, rows, strict=True):
        colour, y = phase.mark.colour, 1.1 + 0.5 * (most - 1 - row)
        ax.barh(
            0.25,
            phase.end - phase.start,
            left=phase.start,
            height=0.9,
            facecolor=style.tint(colour),
            edgecolor=colour,
            hatch="///" if phase.state == "unseen" else None,
            lw=0.9,
        )
        ax.plot([phase.start] * 2, [0.7, y + 0.2], color=colour, lw=0.9, clip_on=False)
        ax.annotate(
            _text(phase),
            (phase.start, y),
            (3, 0),
            textcoords="offset points",
            va="center",
            size=style.SMALL,
            color=style.BLACK,
            annotation_clip=False,
        )


def _draw_leases(ax, leases, high):
    ax.set_ylim(max(len(leases), 1) - 0.5, -0.5)
    ax.grid(False, axis="y")
    if not leases:
        style.empty(ax, "no lease yet: nobody has claimed this job")
        return
    ax.set_yticks(
        range(len(leases)), [labels.cut(f"epoch {p.epoch} · {style.name(p.owner)}", style.SMALL, 112) for p in leases]
    )
    for row, phase in enumerate(leases):
        mark = style.OUTCOMES.get(phase.event, style.OUTCOMES["unknown"])
        colour = style.GREEN if phase.event in ("done", "running") else mark.colour
        ax.barh(
            row,
            phase.end - phase.start,
            left=phase.start,
            height=0.62,
            facecolor=style.tint(colour),
            edgecolor=colour,
            hatch="///" if phase.state == "unseen" else None,
            lw=0.9,
        )
        ax.text(
            1.02, row, mark.text, transform=ax.get_yaxis_transform(), va="center", size=style.SMALL, color=style.BLACK
        )


def _finding(job, phases):
    status, attempts = _field(job, "status"), _field(job, "attempts") or 0
    who = f"Job {_field(job, 'id')} ({style.name(_field(job, 'type'), 30)})"
    ends = pd.Series([p.event for p in phases if p.event not in (None, "done", "running")], dtype=object).value_counts(
        sort=False
    )
    words = {
        "failed": "failed attempt",
        "lost": "lost lease",
        "released": "release",
        "failed_permanently": "permanent failure",
        "cancelled": "cancelled lease",
    }
    before = ", ".join(style.count(n, words.get(event, "unknown end")) for event, n in ends.items())
    before = f": {before} before" if before and status == "done" else f": {before}" if before else ""
    if status == "done":
        took = next(p.start for p in phases if p.state == "done")
        return f"{who} was done at attempt {attempts}, {style.duration(took)} after it was created{before}"
    verb = {
        "running": f"is running, attempt {attempts}",
        "ready": f"is ready after {style.count(attempts, 'attempt')}",
        "dead": f"is dead after {style.count(attempts, 'attempt')}",
        "failed": "failed for good",
    }.get(status, "is cancelled")
    return f"{who} {verb}{before}"
