"""How much a queue carries and how fast it recovers: age against utilisation, and what the length of a lease buys."""

import numpy as np

from jobqueue.lab import style, theory
from jobqueue.lab.charts import frame as frames

_MARKERS = {"p50": "o", "p95": "^", "p99": "s", "max": "v"}
_QUANTILE = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@style.applied()
def age_against_load(points, *, servers, mean_service_seconds, **about):
    """Quantiles of queue age against utilisation, with M/M/c's drawn as lines.

    `points`: utilisation (below 1) and any of p50, p95, p99, max: the age of the oldest due job over time, in seconds.
    """
    points = frames.columns(points, "age_against_load", "utilisation").sort_values("utilisation", kind="stable")
    shown = [name for name in style.QUANTILES if name in points]
    about = {"servers": servers, "mean_service_seconds": mean_service_seconds, **about}
    figure, (ax,) = style.sheet(_age_finding(points, shown, servers, mean_service_seconds), [3.3], about)
    if points.empty or not shown:
        style.empty(ax, "no runs")
    else:
        top = style.ceiling_seconds(1.05 * float(points[shown].max().max()), 6, 1e-3)
        style.seconds(ax.yaxis, 0, top, "queue age", most=6)
        ax.set(ylim=(0, top), xlim=(0, 1))
        ax.set_xlabel("utilisation ρ = arrival rate × mean service ÷ workers", size=style.TEXT)
        style.end_labels(ax, [_quantile(ax, points, name, servers, mean_service_seconds) for name in shown])
    style.note(figure, [], "dots: measured; lines: M/M/c, P(age > t) = ρ·C·exp(−(cμ−λ)t), C by Erlang")
    return figure


def _quantile(ax, points, name, servers, service):
    colour, dash = style.QUANTILES[name]
    ax.plot(points["utilisation"], points[name], ls="none", marker=_MARKERS[name], ms=5, color=colour, label=name)
    if name in _QUANTILE:
        rho = np.linspace(0.01, 0.995, 198)
        rates = rho * servers / service
        curve = [theory.queue_age_quantile(_QUANTILE[name], rate, service, servers) for rate in rates]
        ax.plot(rho, curve, color=colour, ls=dash, lw=1.3, label=f"M/M/c {name}")
    last = float(points[name].iloc[-1])
    return last, f"{name} {style.duration(last)} at {points['utilisation'].iloc[-1]:.0%}", colour


def _age_finding(points, shown, servers, service):
    if points.empty or not shown:
        return "No runs"
    name = next((n for n in ("p99", "p95", "p50") if n in shown), shown[-1])
    last = points.iloc[-1]
    said = f"At {last['utilisation']:.0%} utilisation the {name} of queue age is {style.duration(last[name])}"
    if name not in _QUANTILE or not last["utilisation"] < 1:
        return said
    rate = last["utilisation"] * servers / service
    expected = theory.queue_age_quantile(_QUANTILE[name], rate, service, servers)
    return f"{said}; M/M/{servers} says {style.duration(expected)}"


@style.applied()
def lease_length(
    recoveries, expiries, *, heartbeats=3, reap_seconds=1.0, mean_freeze_seconds=None, chosen=None, **about
):
    """What a longer lease costs and buys: time from a kill to ready again, and leases lost by workers that still lived.

    `recoveries`: lease_seconds, recovery_seconds, a row a kill. `expiries`: lease_seconds, freezes, expired.
    `heartbeats` is how many fall into a lease; `mean_freeze_seconds`, where freezes are exponential, draws theory;
    `chosen`, in seconds, is the lease to be marked.
    """
    recoveries = frames.columns(recoveries, "lease_length", "lease_seconds", "recovery_seconds")
    expiries = frames.columns(expiries, "lease_length", "lease_seconds", "freezes", "expired")
    about = {
        "heartbeats_per_lease": heartbeats,
        "reap_seconds": reap_seconds,
        "mean_freeze_seconds": mean_freeze_seconds,
    } | about
    figure, axes = style.sheet(_lease_finding(recoveries, expiries, chosen), [2.2, 1.8], about)
    leases = np.unique([*recoveries["lease_seconds"], *expiries["lease_seconds"]])
    if len(leases):
        reach = [*leases, chosen or leases[0]]
        axes[0].set_xlim(min(reach) / 1.25, max(reach) * 1.25)
        _recovery(axes[0], recoveries, heartbeats, reap_seconds)
        _expiry(axes[1], expiries, heartbeats, mean_freeze_seconds)
        style.log(axes[1].xaxis, "lease", style.duration)
        axes[1].xaxis.set_minor_locator(style.nowhere)
        for ax in (ax for ax in axes if chosen and ax.has_data()):
            ax.axvline(chosen, color=style.GREY, lw=1, ls=":", label="chosen")
    else:
        style.empty(axes[0], "no kills")
        style.empty(axes[1], "no freezes")
    legend = "band and lines: what lease, heartbeat and reaper period allow; marks: measured, named at the longest"
    style.note(figure, [], f"{legend}; dotted: the choice" if chosen else legend)
    return figure


def _recovery(ax, recoveries, heartbeats, reap_seconds):
    if recoveries.empty:
        return style.empty(ax, "no kills")
    groups = recoveries.groupby("lease_seconds")["recovery_seconds"]
    lease = np.geomspace(ax.get_xlim()[0], ax.get_xlim()[1], 100)
    low, mean, high = np.transpose([theory.recovery_bounds(x, x / heartbeats, reap_seconds) for x in lease])
    ax.fill_between(lease, low, high, color=style.BLUE, alpha=style.TINT, lw=0)
    ax.plot(lease, mean, color=style.BLUE, lw=1.2, label="closed form of the mean")
    stats = {"p50": groups.median(), "p95": groups.quantile(0.95), "max": groups.max()}
    for name, values in stats.items():
        over = {"ms": 9, "mfc": "none"} if name == "max" else {"ms": 5}  # hollow: p95 often lies just below it
        colour = style.QUANTILES[name][0]
        ax.plot(values.index, values, ls="none", marker=_MARKERS[name], color=colour, label=name, **over)
    style.log(ax.yaxis, "kill to ready again", style.duration)
    ends = [(v.iloc[-1], f"{n} {style.duration(v.iloc[-1])}", style.QUANTILES[n][0]) for n, v in stats.items()]
    style.end_labels(ax, [(mean[-1], "mean, closed form", style.BLUE), *ends])
    return None


def _expiry(ax, expiries, heartbeats, mean_freeze_seconds):
    expiries = expiries[expiries["freezes"] > 0].sort_values("lease_seconds")
    if expiries.empty:
        return style.empty(ax, "no freezes")
    share = expiries["expired"] / expiries["freezes"]
    ax.plot(
        expiries["lease_seconds"], share, ls="none", marker="o", ms=5, color=style.VERMILLION, label="false expiries"
    )
    ends, curve = [(float(share.iloc[-1]), "measured", style.VERMILLION)], [0.0]
    if mean_freeze_seconds:
        lease = np.geomspace(ax.get_xlim()[0], ax.get_xlim()[1], 100)
        curve = [theory.false_expiry(x, x / heartbeats, mean_freeze_seconds) for x in lease]
        ax.plot(lease, curve, color=style.BLACK, lw=1.2, label="closed form")
        ends.append((curve[-1], "closed form", style.BLACK))
    top = style.ceiling(1.05 * max(share.max(), *curve), 0.1)
    ax.set_ylim(0, min(1, top))
    ax.yaxis.set_major_formatter(style.percent)
    ax.set_ylabel("freezes that lose\nthe lease", size=style.TEXT)
    style.end_labels(ax, ends)
    return None


def _lease_finding(recoveries, expiries, chosen):
    if recoveries.empty and expiries.empty:
        return "No kills and no freezes"
    leases = sorted({*recoveries["lease_seconds"], *expiries["lease_seconds"]})
    named = [chosen] if chosen in leases else dict.fromkeys([leases[0], leases[-1]])
    said = [_one_lease(lease, recoveries, expiries) for lease in named]
    return "; ".join([said[0], *(text[0].lower() + text[1:] for text in said[1:])])


def _one_lease(lease, recoveries, expiries):
    back = recoveries.loc[recoveries["lease_seconds"] == lease, "recovery_seconds"]
    some = expiries[expiries["lease_seconds"] == lease]
    kills = style.count(len(back), "kill")
    parts = [f"p95 recovery {style.duration(back.quantile(0.95))} of {kills}"] if len(back) else []
    if some["freezes"].sum() > 0:
        parts.append(f"{style.count(some['expired'].sum())} of {style.count(some['freezes'].sum(), 'freeze')} lose it")
    return f"A lease of {style.duration(lease)}: {', '.join(parts)}"
