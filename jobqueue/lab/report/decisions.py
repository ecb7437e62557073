"""The decisions of a review, each computed from the runs: what to choose, by which figure, and what shows it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from ...pulse import RENEW_AT
from .. import charts, load, planner, style, theory
from .. import verdict as verdicts
from . import evidence
from .blocks import amount
from .making import parameters
from .runs import Stored

RULE_PER_SECOND = 500.0  # where no load run is stored: beyond, measure before you decide

d, n = style.duration, style.count


@dataclass(frozen=True)
class Decision:
    """One decision. met: whether its target holds (None: no run tells); figure: the slug of its chart."""

    subject: str
    choice: str
    target: str
    measured: str
    formula: str
    met: bool | None
    figure: str
    sentence: str


@dataclass(frozen=True)
class Bearing:
    """What decides on a broker: the rate that is borne, by what that is known, and the load run's own verdict."""

    per_second: float
    source: str
    run: load.Result | None = None

    @property
    def judged(self) -> verdicts.Verdict | None:
        return self.run.verdict if self.run else None

    @property
    def broker(self) -> bool | None:
        """None: open."""
        return self.judged.broker if self.judged else None


def decide(found: Mapping[str, Stored], bearing: Bearing) -> list[Decision]:
    plan = recommended(found)
    return [
        _workers(found, plan.loc["workers"]),
        _lease(found, plan.loc["lease_seconds"]),
        _heartbeat(found, plan.loc["heartbeat_seconds"]),
        _poll(found, plan.loc["poll_seconds"]),
        backoff(found),
        _attempts(found, plan.loc["max_attempts"]),
        _broker(found, bearing),
    ]


def recommended(found: Mapping[str, Stored]) -> pd.DataFrame:
    """The planner's recommendations, a row a parameter."""
    return found["plan"]["recommendations"].set_index("parameter")


def table(decisions: list[Decision]) -> pd.DataFrame:
    rows = [(x.subject, x.choice, x.target, x.measured, x.formula, verdict(x), x.figure) for x in decisions]
    return pd.DataFrame(rows, columns=["decision", "choice", "target", "measured", "computed", "met", "figure"])


def verdict(decision: Decision) -> str:
    return {True: "yes", False: "NO", None: "–"}[decision.met]


def summary(decisions: list[Decision]) -> str:
    """The first sentence of the pack."""
    held = [x for x in decisions if x.met is not None]
    missed = [x.subject for x in held if not x.met]
    choices = ", ".join(f"{x.subject} {x.choice}" for x in decisions[:-1])
    kept = (
        f"All {len(held)} targets are met" if not missed
        else f"{len(held) - len(missed)} of {len(held)} targets are met; NOT MET: {', '.join(missed)}"
    )  # fmt: skip
    ruled = "" if decisions[-1].met is not None else "; on the broker a rule decides, no run"
    return f"Recommended: {choices}; {decisions[-1].choice}. {kept}{ruled}."


def needed(found: Mapping[str, Stored]) -> float:
    """Jobs a second in the busiest minute."""
    return found["load"].figures["peak_per_second"]


def at_work(found: Mapping[str, Stored]) -> float:
    """Jobs at work on average while jobs arrive, if none ever waited."""
    return float(found["load"]["buckets"]["busy"].mean())


def bearing(rate: float, directory: Path | None = None) -> Bearing:
    """The stored load run that sustains most, judged for the rate that is needed; without one the stated rule."""
    measured = [replace(load.read(folder), required_rate=rate) for folder in evidence.load_runs(directory)]
    if not measured:
        return Bearing(RULE_PER_SECOND, "a rule stated here, not measured on your server")
    best = max(measured, key=lambda one: one.verdict.sustainable_rate or 0)
    source = f"load run on {best.facts['server']}, p95 of queue age within {d(best.target_age_seconds)}"
    return Bearing(best.verdict.sustainable_rate or 0.0, source, best)


# ---- one by one ----------------------------------------------------------------------------------------------------


def _workers(found, row) -> Decision:
    day, plan, curve = found["day"].figures, found["plan"].figures, found["workers"].figures
    chosen, limit, p99 = curve["workers"], row["limit"], day["p99_age"]
    met = bool(p99 <= limit)
    asked = (
        f"The planner's busiest stretch ({n(plan['stretch_jobs'], 'job')} in {d(plan['stretch_seconds'])}, begun with "
        f"nothing at work) needs "
        f"{plan['planned_workers']:,}, the whole load by computation {plan['fifo_workers']:,}; the larger is chosen. "
    )
    less = (
        f"One worker less would give {d(curve['p99_one_less'])} over the whole load, by computation"
        + (" (still within the target: it is the stretch that asks for the last one)"
           if curve["p99_one_less"] <= limit else "")
    )  # fmt: skip
    again = plan["workers_in_a_row"]
    row = (
        f" The load begins with nothing at work, and some of its jobs run long: where such loads follow each other, "
        f"{again:,} are needed, by computation." if again else ""
    )  # fmt: skip
    polled = ""
    if not met and curve["p99_computed"] <= limit:
        every = parameters(found["plan"])["poll_seconds"]
        polled = f" Woken at once they keep it; here idle ones look every {d(every)}: take one more, or look sooner."
    sentence = (
        f"Run {n(chosen, 'worker')} (slots). Over the whole load the p99 of queue age is {d(p99)} simulated, "
        f"{d(curve['p99_computed'])} computed, target {d(limit)}: {'met' if met else 'NOT met'}.{polled} "
        f"{asked}{less}. "
        f"They are {day['busy']:.0%} busy while jobs arrive, and the oldest job ever was "
        f"{d(day['max_age'])} old: p99 leaves out one "
        f"hundredth of the time.{row}"
    )
    choice = f"{chosen:,}" + (f" ({again:,} where such loads follow each other)" if again else "")
    return Decision("workers", choice, f"p99 of queue age ≤ {d(limit)}", d(p99), d(curve["p99_computed"]), met,
                    "age-by-workers", sentence)  # fmt: skip


def _lease(found, row) -> Decision:
    chosen = parameters(found["plan"])["lease_seconds"]
    slowest, planned = _slowest(found["lease"], chosen), row["simulated"]
    kills = found["faults"]["recoveries"].query("fault == 'kill'")["ready_again_seconds"]
    seen = (
        f"In the run with faults kills cost {n(len(kills), 'lease')}, the slowest ready again after {d(kills.max())}"
        if len(kills)
        else "In the run with faults no kill met a job"
    )
    sentence = (
        f"Lease {d(chosen)}, {row['because']} The slowest of the killed workers' jobs was ready again after "
        f"{d(slowest)}{_planner(d(planned), d(slowest))}; the bound is {row['formula'].split(' = ')[-1]}, "
        f"{d(row['by_formula'])}. {seen}."
    )
    return Decision("lease", d(chosen), f"recovery ≤ {d(row['limit'])}", d(slowest), d(row["by_formula"]),
                    bool(max(slowest, planned) <= row["limit"]), "lease-length", sentence)  # fmt: skip


def _slowest(lease: Stored, chosen: float) -> float:
    return float(lease["recoveries"].query("lease_seconds == @chosen")["recovery_seconds"].max())


def _planner(planned: str, shown: str) -> str:
    """What the planner's own run gave, where that is another figure than the chart's."""
    return f" ({planned} in the planner's own run)" if planned != shown else ""


def renewed_every(found: Mapping[str, Stored]) -> float:
    """Seconds after which the shipped worker renews a lease at the earliest."""
    return parameters(found["plan"])["lease_seconds"] * RENEW_AT


def _heartbeat(found, row) -> Decision:
    beat = parameters(found["plan"])["heartbeat_seconds"]
    freeze = found["lease"].parameters["mean_freeze_seconds"]
    busy = at_work(found)
    own = found["lease"]["expiries"].set_index("lease_seconds").loc[parameters(found["plan"])["lease_seconds"]]
    lost = f"{own['expired']:.0f} of {own['freezes']:.0f}"
    planned = f"{round(row['simulated'] * planner.FREEZES)} of {planner.FREEZES}"
    sentence = (
        f"Renew at least every {d(beat)}, a third of the lease, as it is simulated here; the shipped worker renews by "
        f"itself, from a fifth on. For stalls of {d(freeze)} on "
        f"average {lost} simulated ones lost the lease{_planner(planned, lost)}, a share of "
        f"{row['by_formula']:.2g} by formula. With {amount(busy)} jobs at work on average the shipped worker renews "
        f"{amount(busy / renewed_every(found))} rows a second at most (a shorter job renews nothing)."
    )
    met = bool(row["met"] and own["expired"] <= row["limit"] * own["freezes"])
    return Decision("heartbeat", d(beat), f"stalls that lose a lease ≤ {row['limit']:.0%}", lost,
                    f"{row['by_formula']:.2g}", met, "lease-length", sentence)  # fmt: skip


def _poll(found, row) -> Decision:
    poll, workers = parameters(found["plan"])["poll_seconds"], found["workers"].figures["workers"]
    planned, wanted = row["simulated"], found["plan"].parameters["pickup_seconds"]
    mean = float(found["poll"]["pickup"].query("poll_seconds == @poll")["mean_seconds"].iloc[0])
    idle = workers * (1 - found["day"].figures["busy"])
    sentence = (
        f"Poll every {d(poll)}. NOTIFY wakes an idle worker at once; where it does not reach the only idle one, a job "
        f"is begun {d(mean)} after it is due on average{_planner(d(planned), d(mean))}, {d(row['by_formula'])} by "
        f"formula. At one slot a process the {amount(idle)} workers that are idle on average ask {amount(idle / poll)} "
        f"times a second, all {workers:,} would {amount(workers / poll)} times; with more slots a process, as many "
        f"times fewer."
    )
    return Decision("poll", d(poll), f"mean pick-up ≤ {d(row['limit'])} ({d(wanted)} and a tenth)", d(mean),
                    d(row["by_formula"]), bool(max(mean, planned) <= row["limit"]), "pickup", sentence)  # fmt: skip


def backoff(found: Mapping[str, Stored]) -> Decision:
    """By itself, too: its chart quotes it."""
    row, policy = recommended(found).loc["backoff"], parameters(found["plan"])["backoff"]
    workers = found["workers"].figures["workers"]
    drawn = found["retries"]["herd"].query("policy == @policy.jitter")["delay_seconds"]
    edges, _, index = charts.herd(drawn)
    mean, tenth = theory.mean_delay(policy, 1), float(edges[1] - edges[0])
    peak, expected = workers * index / mean, workers * theory.herd_index(policy.jitter) / mean
    met = bool(peak <= row["limit"])
    choice = (
        f"{policy.shape}, {policy.jitter} jitter, base {d(policy.base_seconds)}, "
        f"ceiling {d(policy.ceiling_seconds)}"
    )
    outage = found["plan"].parameters["outage_seconds"]
    bound = policy.base_seconds >= outage / 4
    why = "" if met else (
        f" NOT met: {'a base over a quarter of the outage would notice its end too late, and ' if bound else ''}"
        f"{n(workers, 'worker')} are many for so slow an arrival of jobs."
    )  # fmt: skip
    sentence = (
        f"Back off {choice}. If the jobs of all {n(workers, 'worker')} fail at one instant, their first retries come "
        f"at {amount(peak)} a second in the fullest {d(tenth)}: {workers:,} × the figure's index of {index:.2f} ÷ the "
        f"mean delay of {d(mean)}; {amount(expected)} with the formula's {theory.herd_index(policy.jitter):g}. In the "
        f"busiest stretch {amount(row['limit'])} jobs a second arrive.{why}"
    )
    return Decision("backoff", choice, f"herd's retries/s ≤ {amount(row['limit'])}", f"{amount(peak)}/s",
                    f"{amount(expected)}/s", met, "retry-herd", sentence)  # fmt: skip


def _attempts(found, row) -> Decision:
    chosen, run = parameters(found["plan"])["max_attempts"], found["retries"]
    needed_, outage = run["needed"], run.parameters["outage_seconds"]
    total = int(needed_["jobs"].sum())
    dead = int(needed_.loc[needed_["attempts"] > chosen, "jobs"].sum())
    most = int(needed_["attempts"].max())
    sentence = (
        f"Allow {chosen} attempts. Of {n(total, 'job')} that fail throughout an outage of {d(outage)}, {n(dead)} would "
        f"end dead with {chosen}; the worst needed {most}. To the last attempt it is "
        f"{d(found['plan'].figures['mean_delay_sum_seconds'])} of delays on average, the attempts' own time on top: "
        f"only then a job that can never succeed is known as dead."
    )
    return Decision("attempts", f"{chosen}", f"dead after {d(outage)} of outage: 0", f"{dead} of {total:,}",
                    f"{row['by_formula'] / planner.OUTAGE_JOBS * total:.2g} of {total:,}", dead == 0, "outlasted",
                    sentence)  # fmt: skip


def _broker(found, bears: Bearing) -> Decision:
    rate = needed(found)
    share = f" ({rate / bears.per_second:.2%})" if bears.per_second else ""
    below = bool(rate <= bears.per_second)
    broker = bears.broker if bears.judged else (False if below else None)
    choice = {True: "a broker is indicated", False: "no broker", None: "broker or not is open"}[broker]
    asked = f"The busiest minute brings {amount(rate)} jobs a second"
    if bears.judged:
        room = rate <= verdicts.HEADROOM * bears.per_second
        why = f"{asked}; {amount(bears.per_second)} are sustained{share}, measured ({bears.source}): "
        why += f"within the {verdicts.HEADROOM:.0%} that a plan may use" if room else bears.judged.broker_reason
    else:
        why = f"{asked}, {'at most' if below else 'more than'} the {amount(bears.per_second)} of {bears.source}{share}"
        why += f". Measure what yours bears: {evidence.COMMANDS['load run']}"
    target = f"busiest minute ≤ {amount(bears.per_second)} jobs/s"
    return Decision("broker", choice, target, f"{amount(rate)} jobs/s", "–", below if bears.judged else None,
                    "needed-rate", f"{choice[0].upper()}{choice[1:]}. {why}.")  # fmt: skip


def rates(found: Mapping[str, Stored], bears: Bearing) -> pd.DataFrame:
    """What the chart of the broker shows."""
    load_ = found["load"].figures
    mean = load_["jobs"] / max(load_["span_seconds"], 1e-6)
    rows = [
        ("on average", mean, "needed"),
        ("in the busiest minute", needed(found), "needed"),
        ("sustained, measured" if bears.judged else "stated rule, not measured", bears.per_second, "borne"),
    ]
    return pd.DataFrame(rows, columns=["what", "per_second", "kind"])
