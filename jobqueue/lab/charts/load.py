"""What a server bears: age against offered rate, where sessions wait, what a job costs, the horizon, other queues."""

import numpy as np
import pandas as pd

from jobqueue.lab import style
from jobqueue.lab.charts import frame as frames
from jobqueue.lab.peers import floors

_LEAST = 1e-4  # a tenth of a millisecond: an age of zero has no place on a logarithmic axis
_GROUPS = {
    "processor": (style.GREEN, ""),
    "commit": (style.BLUE, "///"),
    "lock": (style.VERMILLION, "xxx"),
    "disk": (style.PURPLE, "..."),
    "other": (style.GREY, "|||"),
}
_QUANTILES = ("p50", "p95", "p99")
_MARKERS = {"p50": "o", "p95": "^", "p99": "s"}


@style.applied()
def load_curve(steps, *, target_age_seconds, sustainable_rate=None, knee_rate=None, limit=None, **about):
    """Quantiles of queue age against the offered rate, with the target, what is sustained, and the knee.

    `steps`: offered (a second), age_p50_seconds, age_p95_seconds, age_p99_seconds.
    """
    columns = [f"age_{q}_seconds" for q in _QUANTILES]
    steps = frames.columns(steps, "load_curve", "offered", *columns).sort_values("offered", kind="stable")
    finding = _curve_finding(steps, sustainable_rate, target_age_seconds, limit)
    figure, (ax,) = style.sheet(finding, [3.3], {"target_age_seconds": target_age_seconds, **about})
    if steps.empty:
        style.empty(ax, "no steps")
        return figure
    ends = []
    for name in _QUANTILES:
        values = steps[f"age_{name}_seconds"].clip(lower=_LEAST)
        colour, dash = style.QUANTILES[name]
        ax.plot(steps["offered"], values, color=colour, ls=dash, marker=_MARKERS[name], ms=5, lw=1.3, label=name)
        ends.append((float(values.iloc[-1]), f"{name} {style.duration(values.iloc[-1])}", colour))
    ax.axhline(target_age_seconds, color=style.BLACK, lw=1, ls=(0, (1, 1)), label="target")
    _marks(ax, sustainable_rate, knee_rate)
    _rates(ax, steps["offered"])
    style.log(ax.yaxis, "queue age", style.duration)
    style.end_labels(ax, [*ends, (target_age_seconds, f"target {style.duration(target_age_seconds)}", style.BLACK)])
    style.note(figure, [], "age of the oldest due job, counted from the instant it was meant to arrive (open loop)")
    return figure


def _marks(ax, sustainable_rate, knee_rate):
    """The knee, and the sustainable rate where it is another."""
    for rate, word, dash in ((sustainable_rate, "sustained", "-"), (knee_rate, "knee", (0, (5, 2)))):
        if rate and not (word == "knee" and rate == sustainable_rate):
            ax.axvline(rate, color=style.GREY, lw=1, ls=dash, label=word)
            ax.text(rate, 1.01, word, transform=ax.get_xaxis_transform(), ha=_side(word, sustainable_rate, knee_rate),
                    va="bottom", size=style.SMALL, color=style.GREY)  # fmt: skip
        elif rate:
            ax.texts[-1].set_text("sustained, and the knee")


def _side(word, sustainable_rate, knee_rate):
    if not sustainable_rate or not knee_rate or sustainable_rate == knee_rate:
        return "center"
    return "right" if (word == "knee") == (knee_rate < sustainable_rate) else "left"


def _rates(ax, rates):
    low, high = float(rates.min()), float(rates.max())
    ax.set_xlim(low / 1.15, high * 1.15)
    style.log(ax.xaxis, "offered rate (jobs a second)", lambda value: f"{value:,.0f}")
    ax.xaxis.set_minor_locator(style.nowhere)


def _curve_finding(steps, sustainable_rate, target, limit):
    if steps.empty:
        return "No steps"
    if not sustainable_rate:
        return f"None of these rates keeps the p95 of queue age within {style.duration(target)}"
    said = f"{style.count(sustainable_rate)} jobs a second keep the p95 of queue age within {style.duration(target)}"
    return f"{said}; then {limit} come first" if limit else said


@style.applied()
def load_waits(waits, **about):
    """Mean number of sessions at work by what they wait for, at each offered rate; workers and producers apart.

    `waits`: offered, who, group (processor, commit, lock, disk, other), sessions.
    """
    waits = frames.columns(waits, "load_waits", "offered", "who", "group", "sessions")
    rates = sorted(waits["offered"].unique())
    figure, axes = style.sheet(_waits_finding(waits), [1.8, 1.8], about)
    for ax, who in zip(axes, ("producer", "worker"), strict=True):
        part = waits[waits["who"] == who].pivot_table(
            index="offered", columns="group", values="sessions", aggfunc="sum"
        )
        part = part.reindex(rates).fillna(0.0)
        _stack(ax, part, f"sessions of\n{who}s at work")
    if rates:
        axes[-1].set_xticks(range(len(rates)), [f"{rate:,.0f}" for rate in rates])
        axes[-1].set_xlabel("offered rate (jobs a second)", size=style.TEXT)
    style.note(
        figure, [], "sampled from pg_stat_activity twenty times a second; processor: the session waits for nothing"
    )
    return figure


def _stack(ax, part, label):
    if part.empty or not part.to_numpy().any():
        return style.empty(ax, "no session was at work")
    base, ends = np.zeros(len(part)), []
    for group, (colour, hatch) in _GROUPS.items():
        values = part[group].to_numpy() if group in part else np.zeros(len(part))
        if values.max() >= 0.005:
            ax.bar(range(len(part)), values, bottom=base, width=0.7, facecolor=style.tint(colour), edgecolor=colour,
                   hatch=hatch, lw=0.8, label=group)  # fmt: skip
            if values[-1] >= 0.005:
                ends.append((float(base[-1] + values[-1] / 2), f"{group} {values[-1]:.2f}", colour))
            base = base + values
    ax.set_ylim(0, style.ceiling(base.max() * 1.05, 0.1))
    ax.set_ylabel(label, size=style.TEXT)
    ax.set_xlim(-0.5, len(part) - 0.5)
    style.end_labels(ax, ends)
    return None


def _waits_finding(waits):
    if waits.empty:
        return "No session was seen at work"
    last = waits[waits["offered"] == waits["offered"].max()]
    shares = last.groupby("group")["sessions"].sum() / last["sessions"].sum()
    words = {"processor": "on a processor", "commit": "waiting for a commit", "lock": "waiting for a lock",
             "disk": "waiting for the disk", "other": "waiting for something else"}  # fmt: skip
    top = str(shares.idxmax())
    return f"At the highest rate sessions that are at work spend {shares[top]:.0%} of their time {words[top]}"


@style.applied()
def load_costs(steps, **about):
    """Processor time and WAL of a job against the offered rate.

    `steps`: offered, worker_cpu_ms_per_job, server_cpu_ms_per_job (NaN: it is elsewhere), wal_bytes_per_job.
    """
    names = {"worker_cpu_ms_per_job": "workers", "server_cpu_ms_per_job": "server"}
    steps = frames.columns(steps, "load_costs", "offered", *names, "wal_bytes_per_job").sort_values("offered")
    figure, (cpu, wal) = style.sheet(_cost_finding(steps), [1.9, 1.5], about)
    if steps.empty:
        style.empty(cpu, "no steps")
        style.empty(wal, "no steps")
        return figure
    ends = []
    for (name, word), (colour, dash, marker) in zip(names.items(), style.SERIES, strict=False):
        values = 1000 * steps[name].astype(float)
        if values.notna().any():
            cpu.plot(steps["offered"], values, color=colour, ls=dash, marker=marker, ms=5, lw=1.3, label=word)
            ends.append((float(values.iloc[-1]), f"{word} {values.iloc[-1]:,.0f} µs", colour))
    style.log(cpu.yaxis, "processor time a job", lambda value: f"{value:,.0f} µs")
    style.end_labels(cpu, ends)
    bytes_ = steps["wal_bytes_per_job"]
    wal.plot(steps["offered"], bytes_, color=style.BLACK, marker="v", ms=5, lw=1.3, label="WAL")
    wal.set_ylim(0, style.ceiling(1.05 * float(bytes_.max())))
    wal.set_ylabel("WAL a job (bytes)", size=style.TEXT)
    wal.yaxis.set_major_formatter(style.thousands)
    style.end_labels(wal, [(float(bytes_.iloc[-1]), f"WAL {bytes_.iloc[-1]:,.0f} B", style.BLACK)])
    _rates(wal, steps["offered"])
    style.note(figure, [], "at low rates polling, heartbeats and this test's own looks are shared by few jobs")
    return figure


def _cost_finding(steps):
    if steps.empty:
        return "No steps"
    last = steps.iloc[-1]
    parts = [f"{1000 * last['worker_cpu_ms_per_job']:,.0f} µs of a worker"]
    if pd.notna(last["server_cpu_ms_per_job"]):
        parts.append(f"{1000 * last['server_cpu_ms_per_job']:,.0f} µs of the server")
    return f"At the highest rate a job costs {', '.join(parts)} and {last['wal_bytes_per_job']:,.0f} bytes of WAL"


@style.applied()
def load_dimension(found, name, **about):
    """What one setting changes at the same offered rate: pick-up latency, and jobs done a second.

    `found`: the column `name` (the values, in order), offered, completed, pickup_p50_seconds and so on: `load.vary`.
    """
    columns = [f"pickup_{q}_seconds" for q in _QUANTILES]
    found = frames.columns(found, "load_dimension", name, "offered", "completed", *columns)
    figure, (pick, done) = style.sheet(_dimension_finding(found, name), [1.9, 1.4], about)
    if found.empty:
        style.empty(pick, "no steps")
        style.empty(done, "no steps")
        return figure
    at, ends = range(len(found)), []
    for quantile in _QUANTILES:
        values, (colour, _) = found[f"pickup_{quantile}_seconds"].clip(lower=_LEAST), style.QUANTILES[quantile]
        pick.plot(at, values, ls="none", marker=_MARKERS[quantile], ms=6, color=colour, label=quantile)
        ends.append((float(values.iloc[-1]), f"{quantile} {style.duration(values.iloc[-1])}", colour))
    style.log(pick.yaxis, "pick-up", style.duration)
    style.end_labels(pick, ends)
    done.bar(at, found["completed"], width=0.5, facecolor=style.tint(style.GREEN), edgecolor=style.GREEN, label="done")
    offered = float(found["offered"].max())
    done.axhline(offered, color=style.BLACK, lw=1, ls=(0, (1, 1)), label="offered")
    done.set_ylim(0, style.ceiling(1.1 * max(offered, float(found["completed"].max()))))
    done.set_ylabel("done a second", size=style.TEXT)
    done.yaxis.set_major_formatter(style.thousands)
    style.end_labels(done, [(offered, f"offered {offered:,.0f}/s", style.BLACK)])
    done.set_xlim(-0.5, len(found) - 0.5)
    done.set_xticks(at, [str(value) for value in found[name]])
    done.set_xlabel(name.replace("_", " "), size=style.TEXT)
    style.note(
        figure, [], "pick-up: from the intended arrival to the claim; what was not claimed counts with its wait so far"
    )
    return figure


def _dimension_finding(found, name):
    if found.empty:
        return "No steps"
    words = name.replace("_", " ")
    took, values = found["pickup_p50_seconds"], found[name]
    best, worst = took.idxmin(), took.idxmax()
    return (
        f"Median pick-up at {style.count(found['offered'].max())} jobs a second: {style.duration(took[best])} with "
        f"{words} {values[best]}, {style.duration(took[worst])} with {values[worst]}"
    )


@style.applied()
def horizon(found, **about):
    """What a claim takes over the jobs churned, and the dead rows meanwhile, a line a variant.

    `found`: variant, jobs, claim_seconds, dead_tuples (`lab.horizon.study`).
    """
    found = frames.columns(found, "horizon", "variant", "jobs", "claim_seconds", "dead_tuples")
    figure, (claims, dead) = style.sheet(_horizon_finding(found), [2.3, 1.4], about, right=2.6)
    if found.empty:
        style.empty(claims, "no rounds")
        style.empty(dead, "no rounds")
        return figure
    ends, rest = [], []
    for (name, rows), (colour, dash, _) in zip(found.groupby("variant", sort=False), style.SERIES, strict=False):
        smooth = rows["claim_seconds"].rolling(_window(rows), center=True, min_periods=1).median()
        claims.plot(rows["jobs"], smooth, color=colour, ls=dash, lw=1.4, label=name)
        dead.plot(rows["jobs"], rows["dead_tuples"], color=colour, ls=dash, lw=1.4, label=name)
        ends.append((float(smooth.iloc[-1]), name, colour))
        rest.append((float(rows["dead_tuples"].iloc[-1]), style.count(rows["dead_tuples"].iloc[-1]), colour))
    top = style.ceiling_seconds(1.05 * max(float(artist.get_ydata().max()) for artist in claims.lines), 6, 1e-3)
    style.seconds(claims.yaxis, 0, top, "claim of 100 jobs", most=6)
    claims.set_ylim(0, top)
    dead.set_ylim(0, style.ceiling(1.05 * float(found["dead_tuples"].max())))
    for axis in (dead.yaxis, dead.xaxis):
        axis.set_major_formatter(style.thousands)
    dead.set_xlim(0, float(found["jobs"].max()))
    dead.set_ylabel("dead rows", size=style.TEXT)
    dead.set_xlabel("jobs churned", size=style.TEXT)
    style.end_labels(claims, ends)
    style.end_labels(dead, rest)
    style.note(figure, [], "running medians; the variants took turns round by round, each in a database of its own")
    return figure


def _window(rows):
    return max(3, len(rows) // 20)


def _horizon_finding(found):
    if found.empty:
        return "No rounds"
    ends = {name: rows["claim_seconds"].tail(max(2, len(rows) // 10)).median()
            for name, rows in found.groupby("variant", sort=False)}  # fmt: skip
    base = next(iter(ends))
    jobs = style.count(found["jobs"].max(), "job")
    if len(ends) == 1:
        return f"After {jobs} a claim takes {style.duration(ends[base])}"
    said = ", ".join(f"× {took / ends[base]:.2f} ({name})" for name, took in ends.items() if name != base)
    return f"After {jobs}, a claim's time against that with {base}: {said}"


@style.applied()
def peers(found, *, unit="jobs a second", **about):
    """How fast queues of this kind drain on one machine, with one worker process and with two, the fastest on top.

    `found`: name, drain_1, drain_2 (jobs a second, NaN where not measured), ours (true or false).
    """
    found = frames.columns(found, "peers", "name", "drain_1", "drain_2", "ours")
    found = found.sort_values("drain_1", kind="stable", ignore_index=True)
    figure, (ax,) = style.sheet(_peers_finding(found), [0.35 * max(4, len(found))], about, left=2.0, right=1.2)
    if found.empty:
        style.empty(ax, "no peers")
        return figure
    for column, word, (colour, _, marker) in zip(("drain_1", "drain_2"), ("1 worker", "2 workers"), style.SERIES,
                                                 strict=False):  # fmt: skip
        ax.plot(found[column], found.index, ls="none", marker=marker, ms=7, color=colour, label=word,
                mfc=colour if column == "drain_1" else "none")  # fmt: skip
    ax.set_yticks(found.index, [str(name) for name in found["name"]])
    for text, ours in zip(ax.get_yticklabels(), found["ours"], strict=True):
        text.set_weight("bold" if ours else "normal")
    ax.set_ylim(-0.6, len(found) - 0.4)
    style.log(ax.xaxis, f"drained ({unit})", lambda value: f"{value:,.0f}")
    legend = "filled circle: one worker process; open square: two"
    if floors(found).any():
        legend += "; pgfloor is no queue: pgbench sends the least that PostgreSQL needs for the same rows"
    style.note(figure, [], legend)
    return figure


def _peers_finding(found):
    mine, others = found[found["ours"].astype(bool)], found[~found["ours"].astype(bool)]
    others = others[~floors(others)]
    if mine.empty or others.empty:
        return "How fast queues on PostgreSQL drain"
    best, own = others.loc[others["drain_1"].idxmax()], mine.iloc[-1]
    return (f"One worker of {own['name']} drains {own['drain_1']:,.0f} jobs a second, "
            f"{own['drain_1'] / best['drain_1']:.2f} times {best['name']}, the fastest other queue")  # fmt: skip
