"""What goes wrong over time: attempts to the end, dead letters by cause, running by type, lost leases per hour."""

import numpy as np
import pandas as pd

from jobqueue.lab import spans, style, theory
from jobqueue.lab.charts import frame as frames
from jobqueue.lab.charts.live import stack

_MOST = 5
_LAST = 40


@style.applied()
def attempts_to_death(jobs, *, failure=None, max_attempts=None, **about):
    """How many attempts finished jobs took, done and dead letters apart. `jobs`: status, attempts.

    With `failure` (the chance of each attempt to fail, independent) and `max_attempts` theory is drawn too.
    """
    jobs = frames.columns(jobs, "attempts_to_death", "status", "attempts")
    ended = jobs[jobs["status"].isin(["done", "dead", "failed"])]
    about = {"failure_probability": failure, "max_attempts": max_attempts, **about}
    figure, (ax,) = style.sheet(_death_finding(ended, failure, max_attempts), [2.9], about)
    if ended.empty:
        style.empty(ax, "no finished jobs")
    else:
        _death_bars(ax, ended, failure, max_attempts)
    late, cancelled = int((ended["attempts"] > _LAST).sum()), int((jobs["status"] == "cancelled").sum())
    left = {"still open": len(jobs) - len(ended) - cancelled, "cancelled": cancelled,
            f"with more than {_LAST} attempts": late}  # fmt: skip
    said = ", ".join(f"{style.count(n, 'job')} {words}" for words, n in left.items() if n)
    style.note(figure, [f"not drawn: {said}"] if said else [])
    return figure


def _death_bars(ax, ended, failure, max_attempts):
    last = int(min(ended["attempts"].max(), _LAST))
    base, ends = np.zeros(last), []
    for state in ("done", "failed", "dead"):
        mark, part = style.STATES[state], ended[ended["status"] == state]
        n = np.array([(part["attempts"] == k).sum() for k in range(1, last + 1)])
        ax.bar(
            np.arange(1, last + 1)[n > 0],
            n[n > 0],
            bottom=base[n > 0],
            width=0.72,
            facecolor=style.tint(mark.colour),
            edgecolor=mark.colour,
            hatch="///" if state == "failed" else None,
            lw=0.9,
            label=mark.word,
        )
        base = base + n
        if len(part):
            ends.append((base[-1], f"{mark.text} {style.count(len(part))}", mark.colour))
    if failure is not None and max_attempts:
        at = range(1, min(max_attempts, last) + 1)
        expected = [share * len(ended) for share in theory.attempts_pmf(failure, max_attempts)][: len(at)]
        ax.plot(at, expected, ls="none", marker="D", ms=5, mfc="none", color=style.BLUE, label="closed form")
        ends.append((expected[-1], "◇ closed form", style.BLUE))
        base = np.maximum(base, 0) if len(at) < last else np.maximum(base, expected)
    ax.set_ylim(0, style.ceiling(base.max() * 1.05))
    ax.set_xlim(0.4, last + 0.6)
    ax.xaxis.set_major_locator(style.whole(14))
    ax.yaxis.set_major_formatter(style.thousands)
    ax.set_xlabel("attempts until the job was finished", size=style.TEXT)
    ax.set_ylabel("jobs", size=style.TEXT)
    style.end_labels(ax, ends)


def _death_finding(ended, failure, max_attempts):
    if ended.empty:
        return "No job has finished"
    dead = int(ended["status"].isin(["dead", "failed"]).sum())
    share = f"{style.count(dead)} of {style.count(len(ended), 'finished job')} ({dead / len(ended):.2%})"
    said = f"{share} ended as dead letters"
    if failure is None or not max_attempts:
        return said
    return f"{said}; independent failures would give {theory.dead_share(failure, max_attempts):.2%}"


@style.applied()
def dead_letters(dead, faults=None, *, until_seconds=None, **about):
    """Dead letters so far, by cause. `dead`: time_seconds, cause, a row a dead letter.

    `until_seconds` is the end of a run that began at 0: its whole time is drawn then.
    """
    dead = frames.columns(dead, "dead_letters", "time_seconds", "cause").sort_values("time_seconds", kind="stable")
    named, notes = _named(dead, "cause")
    causes = dead["cause"].astype(str).value_counts()
    worst = f", {style.count(causes.iloc[0])} of them by {style.name(causes.index[0], 40)}" if len(causes) else ""
    finding = f"{style.count(len(dead), 'dead letter')}{worst}" if len(dead) else "No dead letters"
    times = pd.Series([] if until_seconds is None else [0.0, float(until_seconds)], dtype=float)
    panel = (2.7, lambda ax, high: _causes(ax, high, named))
    return stack(finding, [panel], [dead["time_seconds"], times], faults, about, notes)


def _causes(ax, high, dead):
    if dead.empty:
        return style.empty(ax, "no dead letters")
    ends = []
    for cause, (colour, dash, _) in zip(dead["cause"].value_counts().index, style.SERIES, strict=False):
        times = dead.loc[dead["cause"] == cause, "time_seconds"].to_numpy(float)
        steps = np.arange(len(times) + 1)
        ax.step(
            [ax.get_xlim()[0], *times, high],
            [*steps, steps[-1]],
            where="post",
            color=colour,
            ls=dash,
            lw=1.5,
            label=cause,
        )
        ends.append((len(times), f"{style.count(len(times))} {style.name(cause)}", colour))
    _counted(ax, max(y for y, _, _ in ends), "dead letters so far")
    return style.end_labels(ax, ends)


@style.applied()
def running_by_type(samples, faults=None, **about):
    """Running jobs by type over time. `samples`: time_seconds, type, running."""
    samples = frames.columns(samples, "running_by_type", "time_seconds", "type", "running")
    named, notes = _named(samples, "type", weight="running")
    table = named.pivot_table(index="time_seconds", columns="type", values="running", aggfunc="sum", fill_value=0)
    finding = "No samples"
    if len(table):
        kind, at = table.max().idxmax(), table.sum(axis=1)
        most, own = style.count(at.max()), style.count(table[kind].max())
        finding = f"At most {most} running at once; {style.name(kind)} peaked at {own}"
    thin, more = frames.thinned(table.reset_index(), list(table.columns))
    panel = (2.7, lambda ax, high: _types(ax, thin, list(table.columns)))
    return stack(finding, [panel], [samples["time_seconds"]], faults, about, notes + more)


def _types(ax, table, kinds):
    if table.empty:
        return style.empty(ax, "no samples")
    order, ends = table[kinds].sum().sort_values(ascending=False, kind="stable").index, []
    for kind, (colour, dash, _) in zip(order, style.SERIES, strict=False):
        ax.step(table["time_seconds"], table[kind], where="post", color=colour, ls=dash, lw=1.5, label=kind)
        ends.append((table[kind].iloc[-1], f"{style.name(kind, 18)} {style.count(table[kind].iloc[-1])}", colour))
    _counted(ax, float(table[kinds].max().max()), "running jobs")
    return style.end_labels(ax, ends)


@style.applied()
def lease_expirations(lost, faults=None, *, until_seconds=None, **about):
    """Leases lost in each step of time. `lost`: time_seconds, a row a lost lease; `until_seconds`: the run's end."""
    lost = frames.columns(lost, "lease_expirations", "time_seconds")
    times = lost["time_seconds"].astype(float)
    end = max([*times, float(until_seconds or 0), 1e-9])
    width = style.step_seconds(end, 48)
    edges = np.arange(0, end + width, width)
    counts, _ = np.histogram(times, bins=edges)
    finding = _lost_finding(times, end, width)
    panel = (2.5, lambda ax, high: _expirations(ax, counts, edges, width))
    return stack(finding, [panel], [times, pd.Series([0.0, end])], faults, about, [])


def _lost_finding(times, end, width):
    if not len(times):
        return "No lease was lost"
    said, within = f"{style.count(len(times), 'lease')} lost in {style.duration(end)}", times.max() - times.min()
    if within < width:  # one event: a rate would be nobody's
        together = f"all within {style.duration(within)}" if within else "all at one instant"
        return f"{said}, {together}" if len(times) > 1 else said
    most = style.count(spans.densest(times, width)[0])
    return f"{said}, {len(times) / end * 3600:,.3g} an hour; at most {most} within {style.duration(width)}"


def _expirations(ax, counts, edges, width):
    if not counts.sum():
        return style.empty(ax, "no lost leases")
    ax.stairs(
        counts,
        edges,
        fill=True,
        facecolor=style.tint(style.VERMILLION),
        edgecolor=style.VERMILLION,
        lw=1,
    )
    return _counted(ax, counts.max(), f"lost leases\n(in steps of {style.duration(width)})")


def _counted(ax, top, label):
    ax.set_ylim(0, style.ceiling(top * 1.05, 4))
    ax.yaxis.set_major_locator(style.whole(5))
    ax.yaxis.set_major_formatter(style.thousands)
    ax.set_ylabel(label, size=style.TEXT)


def _named(frame, column, weight=None):
    """The frame with at most _MOST values of `column`; the rest are added up as "other", and said to be."""
    frame = frame.assign(**{column: frame[column].astype(str)})
    sizes = frame.groupby(column)[weight].sum() if weight else frame[column].value_counts()
    sizes = sizes.sort_values(ascending=False, kind="stable")
    if len(sizes) <= _MOST:
        return frame, []
    kept = set(sizes.index[: _MOST - 1])
    rest = len(sizes) - len(kept)
    return frame.assign(**{column: frame[column].where(frame[column].isin(kept), "other")}), [
        f"{rest} more are added up as other"
    ]
