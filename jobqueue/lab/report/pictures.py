"""Charts that only a review needs: what arrives, what more workers buy, what polling costs, how long retries last."""

import numpy as np

from .. import charts, labels, style
from ..charts import frame as frames
from .blocks import amount

__all__ = ["age_by_workers", "arrivals", "charts", "needed_rate", "outlasted", "pickup"]


@style.applied()
def arrivals(buckets, *, workers, jobs, peak_per_second, most, **about):
    """What arrives and how many workers it would keep busy: `buckets` has time_seconds, arrivals_per_second, busy."""
    buckets = frames.columns(buckets, "arrivals", "time_seconds", "arrivals_per_second", "busy")
    finding = (
        f"{style.count(jobs, 'job')}, {amount(peak_per_second)} a second in the busiest minute; "
        f"{amount(buckets['busy'].mean())} at work on average and {style.count(most)} at most if none waited, for "
        f"{style.count(workers, 'worker')}"
    )
    figure, axes = style.sheet(finding, [1.7, 1.9], about)
    width = float(buckets["time_seconds"].diff().iloc[-1])
    edges = np.append(buckets["time_seconds"], buckets["time_seconds"].iloc[-1] + width)
    axes[0].stairs(buckets["arrivals_per_second"], edges, fill=True, facecolor=style.tint(style.BLUE),
                   edgecolor=style.BLUE, lw=1)  # fmt: skip
    axes[0].set_ylim(0, style.ceiling(buckets["arrivals_per_second"].max() * 1.05, 1e-3))
    axes[0].set_ylabel("arrivals per second", size=style.TEXT)
    axes[1].stairs(buckets["busy"], edges, baseline=None, color=style.GREEN, lw=1.5)  # jobs run on after the last
    axes[1].axhline(workers, color=style.BLACK, ls=(0, (5, 2)), lw=1.2)
    axes[1].set_ylim(0, style.ceiling(max(buckets["busy"].max(), workers) * 1.05, 1e-3))
    axes[1].yaxis.set_major_formatter(style.thousands)
    axes[1].set_ylabel("jobs at work", size=style.TEXT)
    last = float(buckets["busy"].iloc[-1])
    style.end_labels(axes[1], [(last, "if none waited", style.GREEN), (workers, f"{workers:,} workers", style.BLACK)])
    axes[1].set_xlim(0, edges[-1])
    style.seconds(axes[1].xaxis, 0, edges[-1], "time since start")
    style.note(figure, [], f"means over steps of {style.duration(width)}")
    return figure


@style.applied()
def age_by_workers(computed, simulated, *, chosen, limit_seconds, **about):
    """p99 of queue age by number of workers: computed (a line), simulated (dots), the target and the choice.

    `computed`: workers, p99_age. `simulated`: workers, p99_age, max_age.
    """
    computed = frames.columns(computed, "age_by_workers", "workers", "p99_age")
    simulated = frames.columns(simulated, "age_by_workers", "workers", "p99_age", "max_age")
    own = simulated.loc[simulated["workers"] == chosen].iloc[0]
    kept = "keep" if own["p99_age"] <= limit_seconds else "do NOT keep"
    finding = (
        f"{style.count(chosen, 'worker')} {kept} the p99 of queue age within {style.duration(limit_seconds)}: "
        f"{style.duration(own['p99_age'])} simulated"
    )
    figure, (ax,) = style.sheet(finding, [3.1], about)
    colour, dash = style.QUANTILES["p99"]
    ax.plot(computed["workers"], computed["p99_age"], color=colour, ls=dash, lw=1.5, label="computed")
    ax.plot(simulated["workers"], simulated["p99_age"], ls="none", marker="s", ms=6, color=colour, label="p99")
    ax.plot(simulated["workers"], simulated["max_age"], ls="none", marker="v", ms=6, color=style.BLACK, label="max")
    ax.axhline(limit_seconds, color=style.BLUE, lw=1.2, ls=(0, (2, 1)))
    ax.axvline(chosen, color=style.GREY, lw=1, ls=":")
    top = max(computed["p99_age"].max(), simulated["max_age"].max(), limit_seconds)
    top = min(top, 12 * max(limit_seconds, own["max_age"], 1e-3))
    ax.set_ylim(0, style.ceiling_seconds(top * 1.05, 6, 1e-3))
    ax.set_xlim(min(computed["workers"].min(), chosen) - 0.5, max(computed["workers"].max(), chosen) + 0.5)
    style.seconds(ax.yaxis, 0, ax.get_ylim()[1], "queue age", most=6)
    ax.xaxis.set_major_locator(style.whole(10))
    ax.xaxis.set_major_formatter(style.thousands)
    ax.set_xlabel("workers (slots)", size=style.TEXT)
    ends = [(limit_seconds, f"target {style.duration(limit_seconds)}", style.BLUE),
            (computed["p99_age"].iloc[-1], "p99 computed", colour)]  # fmt: skip
    style.end_labels(ax, ends)
    hidden = int((simulated["max_age"] > ax.get_ylim()[1]).sum() + (computed["p99_age"] > ax.get_ylim()[1]).sum())
    beyond = [f"{style.count(hidden, 'value')} above the axis"] if hidden else []
    style.note(figure, beyond, "squares: p99 simulated; triangles: oldest ever; dotted: the choice")
    return figure


@style.applied()
def pickup(polls, *, chosen, limit_seconds, **about):
    """From due to begun by an idle worker without NOTIFY, and what its looking costs.

    `polls`: poll_seconds, mean_seconds, p95_seconds, looks_per_second.
    """
    polls = frames.columns(polls, "pickup", "poll_seconds", "mean_seconds", "p95_seconds", "looks_per_second")
    own = polls.loc[(polls["poll_seconds"] - chosen).abs().idxmin()]
    finding = (
        f"Polling every {style.duration(chosen)} picks up after {style.duration(own['mean_seconds'])} on average and "
        f"asks {amount(own['looks_per_second'])} times a second for each idle worker"
    )
    figure, axes = style.sheet(finding, [2.2, 1.4], about)
    x = polls["poll_seconds"]
    axes[0].set(xlim=(x.min() / 1.2, x.max() * 1.2))
    axes[0].plot(x, x / 2, color=style.BLUE, lw=1.3, label="poll ÷ 2")
    axes[0].plot(x, polls["mean_seconds"], ls="none", marker="o", color=style.BLUE, ms=5, label="mean")
    axes[0].plot(x, polls["p95_seconds"], ls="none", marker="^", color=style.GREEN, ms=6, label="p95")
    axes[0].axhline(limit_seconds, color=style.VERMILLION, lw=1.1, ls=(0, (2, 1)))
    style.log(axes[0].yaxis, "from due to begun", style.duration)
    style.end_labels(axes[0], [(x.max() / 2, "mean = poll ÷ 2", style.BLUE),
                               (polls["p95_seconds"].iloc[-1], "p95", style.GREEN),
                               (limit_seconds, f"mean ≤ {style.duration(limit_seconds)}",
                                style.VERMILLION)])  # fmt: skip
    axes[1].plot(x, polls["looks_per_second"], color=style.BLACK, lw=1.2)
    style.log(axes[1].yaxis, "looks per second", lambda value: f"{value:g}")
    for ax in axes:
        ax.axvline(chosen, color=style.GREY, lw=1, ls=":")
    style.log(axes[1].xaxis, "poll interval", style.duration)
    style.note(figure, [], "marks: simulated, one idle worker; lines: by formula; dotted: the choice")
    return figure


@style.applied()
def outlasted(needed, *, chosen, outage_seconds, **about):
    """How many of the jobs that fail throughout an outage would be dead, by attempts allowed. `needed`: attempts, jobs.

    One run, in which nobody runs out, tells it for every number: a job that needed k attempts dies with fewer.
    """
    needed = frames.columns(needed, "outlasted", "attempts", "jobs")
    total = int(needed["jobs"].sum())
    allowed = np.arange(1, int(max(needed["attempts"].max(), chosen)) + 1)
    dead = np.array([int(needed.loc[needed["attempts"] > k, "jobs"].sum()) for k in allowed])
    finding = (
        f"With {chosen} attempts {style.count(dead[chosen - 1])} of {style.count(total, 'job')} are dead after an "
        f"outage of {style.duration(outage_seconds)}; the median job needs {_median(needed)}"
    )
    figure, (ax,) = style.sheet(finding, [2.6], about)
    ax.step(allowed, dead / total, where="mid", color=style.VERMILLION, lw=1.6, label="dead")
    ax.axvline(chosen, color=style.GREY, lw=1, ls=":")
    ax.set(ylim=(0, 1.02), xlim=(0.5, allowed[-1] + 0.5))
    ax.yaxis.set_major_formatter(style.percent)
    ax.xaxis.set_major_locator(style.whole(14))
    ax.set_ylabel("jobs that end as dead letters", size=style.TEXT)
    ax.set_xlabel("attempts allowed (max_attempts)", size=style.TEXT)
    style.end_labels(ax, [(dead[-1] / total, "✖ dead", style.VERMILLION)])
    style.note(figure, [], f"{style.count(total, 'job')}, all failing from one instant on; dotted: the choice")
    return figure


def _median(needed):
    half = needed["jobs"].sum() / 2
    return int(needed.loc[needed["jobs"].cumsum() >= half, "attempts"].iloc[0])


@style.applied()
def needed_rate(rates, **about):
    """What the load asks for beside what the queue bears, in jobs a second. `rates`: what, per_second, kind.

    kind: needed or borne.
    """
    rates = frames.columns(rates, "needed_rate", "what", "per_second", "kind")
    needed = rates.loc[rates["kind"] == "needed", "per_second"].max()
    borne = rates.loc[rates["kind"] == "borne", "per_second"].max()
    share = f"{needed / borne:.2%} of {amount(borne)}" if borne else "and nothing is borne"
    finding = f"The busiest minute asks for {amount(needed)} jobs a second, {share}"
    figure, (ax,) = style.sheet(finding, [0.36 * len(rates) + 0.3], about, left=3.0)
    low = 10 ** np.floor(np.log10(rates["per_second"][rates["per_second"] > 0].min() / 2))
    for place, row in enumerate(rates.itertuples()):
        colour, marker = (style.BLUE, "o") if row.kind == "needed" else (style.BLACK, "s")
        at = max(row.per_second, low)
        ax.plot(at, place, ls="none", marker=marker, ms=7, color=colour, clip_on=False, label=row.kind)
        ax.annotate(amount(row.per_second), (at, place), (8, 0), textcoords="offset points",
                    va="center", size=style.SMALL)  # fmt: skip
    ax.set_yticks(range(len(rates)), [labels.cut(text, style.SMALL, 195) for text in rates["what"]])
    ax.set(ylim=(len(rates) - 0.5, -0.5), xlim=(low, rates["per_second"].max() * 4))
    style.log(ax.xaxis, "jobs per second", lambda value: f"{value:,g}")
    style.note(figure, [], "circles: needed; square: what decides; logarithmic axis, it has no zero")
    return figure
