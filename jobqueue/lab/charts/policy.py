"""What a retry policy does: its delays, the herd it lets through, the calls it costs; closed forms drawn beside."""

import math

import numpy as np

from jobqueue.errors import InvalidInput
from jobqueue.lab import style, theory
from jobqueue.lab.charts import frame as frames

BINS = 10  # with 20,000 jobs the fullest of ten bins is at most 3 % above their mean; more bins bias the peak upward
_MOST = 5


@style.applied()
def delay_by_attempt(delays, policies, **about):
    """Delay before the next attempt: drawn ones as dots and a band p5–p95, the closed form as a line.

    `delays`: policy, attempt, delay_seconds, a row a draw. `policies`: name → Backoff.
    """
    delays = frames.columns(delays, "delay_by_attempt", "policy", "attempt", "delay_seconds")
    names, notes = _policies(delays, policies)
    stats = {name: _delays(delays[delays["policy"] == name]) for name in names}
    finding = _delay_finding(stats, policies)
    figure, axes = style.sheet(finding, [2.7], about, columns=max(len(names), 1), right=0.3)
    values = delays["delay_seconds"][delays["delay_seconds"] > 0]
    bottom, top = (values.quantile(0.001) / 1.5, values.max() * 1.5) if len(values) else (0.1, 10)
    for i, (ax, name) in enumerate(zip(axes, names, strict=False)):
        _delay_panel(ax, name, stats[name], policies[name], (bottom, top))
        style.log(ax.yaxis, "delay" if i == 0 else "", style.duration)
        ax.tick_params(labelleft=i == 0)
    if not names:
        style.empty(axes[0], "no delays")
    style.note(figure, notes, "dots and bars: mean and p5–p95 of the drawn delays; line and band: closed form")
    return figure


def _policies(frame, known):
    names = list(dict.fromkeys(frame["policy"]))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidInput(f"charts.delay_by_attempt: the frame has a policy that `policies` lacks: {unknown[0]!r}")
    return names[:_MOST], [f"{_MOST} of {len(names)} policies are drawn"] if len(names) > _MOST else []


def _delays(part):
    groups = part.groupby("attempt")["delay_seconds"]
    return groups.agg(mean="mean", low=lambda v: v.quantile(0.05), high=lambda v: v.quantile(0.95))


def _delay_panel(ax, name, stats, policy, limits):
    at = stats.index.to_numpy()
    low, high = ([theory.delay_quantile(q, policy, int(k)) for k in at] for q in (0.05, 0.95))
    floor = limits[0]
    ax.fill_between(at, np.maximum(low, floor), np.maximum(high, floor), color=style.BLUE, alpha=style.TINT, lw=0)
    ax.plot(at, [theory.mean_delay(policy, int(k)) for k in at], color=style.BLUE, lw=1.5, label="closed form")
    ends = [np.maximum(stats["low"], floor), stats["high"]]
    ax.vlines(at, *ends, color=style.BLACK, lw=0.9)
    ax.plot(at, stats["mean"], ls="none", marker="o", ms=4, color=style.BLACK, label="drawn")
    ax.set_ylim(*limits)
    ax.set_xlim(at.min() - 0.5, at.max() + 0.5)
    ax.xaxis.set_major_locator(style.whole(6))
    ax.set_xlabel("attempt that failed", size=style.TEXT)
    ax.set_title(style.name(name, 18), size=style.TEXT, loc="left")


def _delay_finding(stats, policies):
    if not stats:
        return "No delays were drawn"
    off = [
        (abs(mean / theory.mean_delay(policies[name], int(k)) - 1), name, k)
        for name, s in stats.items()
        for k, mean in s["mean"].items()
        if theory.mean_delay(policies[name], int(k)) > 0
    ]
    if not off:
        return "Every delay is 0 s"
    worst, name, k = max(off)
    where = f"farthest: {style.name(name, 18)}, attempt {k}"
    return f"The mean delays lie within {worst * 100:.2g} % of their closed forms ({where})"


@style.applied()
def retry_herd(retries, **about):
    """When N jobs that failed at one instant come back: rate over time, and peak rate × mean delay ÷ N beside theory's.

    `retries`: policy (a jitter of Backoff), delay_seconds, a row a job; the first retry of each.
    """
    retries = frames.columns(retries, "retry_herd", "policy", "delay_seconds")
    names = list(dict.fromkeys(retries["policy"]))[:_MOST]
    herds = {name: herd(retries.loc[retries["policy"] == name, "delay_seconds"]) for name in names}
    figure, axes = style.sheet(_herd_finding(herds), [0.95] * max(len(names), 1), about)
    high = float(retries["delay_seconds"].max()) if names else 1.0
    top = style.ceiling(1.05 * max((rates.max() for _, rates, index in herds.values() if index < math.inf), default=1))
    for ax, name in zip(axes, names, strict=False):
        _herd_panel(ax, name, herds[name], top)
    if not names:
        style.empty(axes[0], "no retries")
    axes[-1].set_xlim(0, high * 1.04)
    style.seconds(axes[-1].xaxis, 0, high, "time since the failure")
    legend = f"rates in {BINS} bins over each policy's own range of delays"
    if names:
        few = retries["policy"].value_counts().min()
        legend += f"; theory: of very many jobs, with {few:,} a bin strays by some {math.sqrt(BINS / few):.0%}"
    style.note(figure, [], legend)
    return figure


def herd(delays):
    """(edges, rates, index) of delays in seconds, in BINS bins over their range; infinite without a range."""
    delays = np.asarray(delays, dtype=float)
    counts, edges = np.histogram(delays, bins=BINS)
    if delays.max() - delays.min() <= 1e-9 * max(delays.max(), 1e-300):
        return np.array([delays.min()] * 2), np.array([float(len(delays))]), math.inf
    rates = counts / np.diff(edges)
    return edges, rates, float(rates.max() * delays.mean() / len(delays))


def _herd_panel(ax, name, found, top):
    edges, rates, index = found
    expected = theory.herd_index(name) if name in ("none", "full", "equal", "decorrelated") else None
    known = "" if expected is None else f"\ntheory {_index(expected)}"
    if math.isinf(index):
        ax.vlines(edges[0], 0, 1, color=style.BLUE, lw=3)
        ax.set(ylim=(0, 1.3), yticks=[])
        ax.text(0.5, 0.5, f"all {style.count(rates[0])} at once", transform=ax.transAxes, va="center", size=style.SMALL)
    else:
        ax.stairs(rates, edges, fill=True, facecolor=style.tint(style.BLUE), edgecolor=style.BLUE, lw=1.2)
        ax.set_ylim(0, top)  # the same in all: panels can be compared
        ax.yaxis.set_major_locator(style.whole(3))
        ax.yaxis.set_major_formatter(style.thousands)
    ax.set_ylabel("retries/s", size=style.SMALL)
    said = f"{style.name(name, 18)}\nindex {_index(index)}{known}"
    ax.text(1.03, 0.5, said, transform=ax.transAxes, va="center", size=style.SMALL, linespacing=1.3)


def _index(value):
    return "∞" if math.isinf(value) else f"{value:.2f}"


def _herd_finding(herds):
    if not herds:
        return "No retries"
    finite = {name: found[2] for name, found in herds.items() if not math.isinf(found[2])}
    said = ", ".join(
        f"{style.name(name, 18)} {_index(value)}" for name, value in sorted(finite.items(), key=lambda p: p[1])
    )
    rest = [style.name(name, 18) for name in herds if name not in finite]
    alone = f"; {', '.join(rest)} sends all at one instant" if rest else ""
    return f"Peak retry rate × mean delay ÷ N: {said}{alone}" if said else f"{', '.join(rest)} sends all at one instant"


@style.applied()
def contention(runs, **about):
    """Calls and time until all of n competitors have won, by policy. `runs`: policy, competitors, calls, seconds."""
    runs = frames.columns(runs, "contention", "policy", "competitors", "calls", "seconds")
    means = runs.groupby(["policy", "competitors"], sort=False)[["calls", "seconds"]].mean().reset_index()
    names = list(dict.fromkeys(means["policy"]))[:_MOST]
    figure, axes = style.sheet(_contention_finding(means), [2.0, 2.0], about)
    for ax, column, label in ((axes[0], "calls", "calls"), (axes[1], "seconds", "time to finish")):
        if not names:
            style.empty(ax, "no runs")
            continue
        ends = _contention_lines(ax, means, names, column)
        style.log(ax.yaxis, label, style.duration if column == "seconds" else style.count)
        style.end_labels(ax, ends)
    if names:
        axes[1].set_xlabel("competitors", size=style.TEXT)
    style.note(figure, [], "each point is the mean of its runs; grey: all that are left call in every round, one wins")
    return figure


def _contention_lines(ax, means, names, column):
    ends = []
    for name, (colour, dash, marker) in zip(names, style.SERIES, strict=False):
        part = means[means["policy"] == name].sort_values("competitors")
        ax.plot(part["competitors"], part[column], color=colour, ls=dash, marker=marker, ms=4, lw=1.4, label=name)
        ends.append((part[column].iloc[-1], style.name(name, 18), colour))
    if column == "calls":
        n = np.unique(means["competitors"].to_numpy(float))
        ax.plot(n, theory.contention_calls(n), color=style.GREY, lw=0.9, label="n(n+1)/2")
        ends.append((theory.contention_calls(n[-1]), "n(n+1)/2", style.GREY))
    return ends


def _contention_finding(means):
    if means.empty:
        return "No runs"
    most = means[means["competitors"] == means["competitors"].max()]
    few, quick = most.loc[most["calls"].idxmin()], most.loc[most["seconds"].idxmin()]
    n, first, second = (style.count(most["competitors"].iloc[0]), *(style.name(x["policy"], 18) for x in (few, quick)))
    return (
        f"With {n} competitors {first} needs the fewest calls ({style.count(few['calls'])}), "
        f"{second} the least time ({style.duration(quick['seconds'])})"
    )
