"""The figures of a review, in the order in which they are read, each drawn from stored frames."""

from collections.abc import Callable, Mapping

import pandas as pd

from .. import charts, style
from . import decisions, pictures
from .blocks import Figure
from .making import parameters
from .runs import Stored

_MAKERS: list[tuple[str, Callable]] = []
Drawn = tuple[style.Sheet, str, dict[str, pd.DataFrame], dict]


def figure(slug: str):
    """Registers a function that draws the figure `slug`: (sheet, how to read it, frames, parameters)."""

    def register(function):
        _MAKERS.append((slug, function))
        return function

    return register


Progress = Callable[[str], object]


def draw(found: Mapping[str, Stored], bears: decisions.Bearing, progress: Progress = str) -> list[Figure]:
    """All that have something to show, numbered."""
    out: list[Figure] = []
    for slug, make in _MAKERS:
        progress(slug)
        if drawn := make(found, bears):
            out.append(Figure(len(out) + 1, slug, *drawn))
    return out


def slugs() -> list[str]:
    return [slug for slug, _ in _MAKERS]


# ---- the load and the day ------------------------------------------------------------------------------------------


@figure("arrivals")
def _arrivals(found, _) -> Drawn:
    run, load = found["load"], found["load"].figures
    about = {"workload": run.parameters["workload"], **run.about}
    sheet = pictures.arrivals(run["buckets"], workers=_chosen(found)["workers"], jobs=load["jobs"],
                              peak_per_second=load["peak_per_second"], most=load["peak_busy"], **about)  # fmt: skip
    caption = (
        "What arrives, in jobs per second, and how many of these jobs would be at work at a time if none ever had to "
        "wait; dashed: the workers that are recommended. Both are means of a step: the most at work at an instant, "
        "which the title says, lies above the line."
    )
    return sheet, caption, {"arrivals": run["buckets"]}, about


@figure("age-by-workers")
def _age_by_workers(found, _) -> Drawn:
    run = found["workers"]
    limit = found["plan"].parameters["p99_age_seconds"]
    about = {"workload": found["load"].parameters["workload"], **run.about}
    sheet = pictures.age_by_workers(run["computed"], run["simulated"], chosen=run.figures["workers"],
                                    limit_seconds=limit, **about)  # fmt: skip
    caption = (
        "Queue age by number of workers, over the whole load. The line is computed, first come first "
        "served, without database, retries and faults; the marks are the shipped SQL in virtual time."
    )
    return sheet, caption, {"computed": run["computed"], "simulated": run["simulated"]}, about


@figure("queue-age")
def _queue_age(found, _) -> Drawn:
    run, about = found["day"], _day_about(found)
    caption = "How long the oldest due job had waited, over the whole load, with the recommended parameters."
    return charts.queue_age(run["ages"], **about), caption, {"ages": run["ages"]}, about


@figure("counts")
def _counts(found, _) -> Drawn:
    run, about = found["day"], _day_about(found)
    caption = (
        "Jobs by state over the same run. Dead counts all dead letters: those that exhausted their attempts and those "
        "whose handler said never."
    )
    return charts.counts(run["ages"], **about), caption, {"ages": run["ages"]}, about


@figure("running-by-type")
def _running(found, _) -> Drawn | None:
    """Of one type it would be the running jobs of the figure before, again."""
    run, about = found["day"], _day_about(found)
    if run["running"]["type"].nunique() < 2:
        return None
    caption = "Running jobs by type over the same run: which type holds the workers when age rises."
    return charts.running_by_type(run["running"], **about), caption, {"running": run["running"]}, about


# ---- faults --------------------------------------------------------------------------------------------------------


@figure("faults")
def _faults(found, _) -> Drawn:
    run, about = found["faults"], _fault_about(found)
    caption = (
        "The load with the recommended parameters and faults, where it is long its busiest stretch: queue age, jobs by "
        "state, the attempts of the workers with most of them, and the faults in the order of the text. Dead counts "
        "all dead letters."
    )
    frames = {"ages": run["ages"], "attempts": run["attempts"], "faults": run["faults"]}
    return charts.overview(run["ages"], run["attempts"], run["faults"], **about), caption, frames, about


@figure("lost-leases")
def _lost(found, _) -> Drawn:
    run, about = found["faults"], _fault_about(found)
    sheet = charts.lease_expirations(run["lost"], run["faults"], until_seconds=run.figures["span_seconds"], **about)
    caption = "Leases lost in the same run: each is a job whose worker was killed or frozen, or cut off."
    return sheet, caption, {"lost": run["lost"], "faults": run["faults"]}, about


@figure("attempts")
def _attempts(found, _) -> Drawn:
    run, about = found["faults"], _fault_about(found)
    caption = "How many attempts the jobs of the run with faults took until they ended, and how they ended."
    return charts.attempts_to_death(run["jobs"], **about), caption, {"jobs": run["jobs"][["status", "attempts"]]}, about


@figure("dead-letters")
def _dead(found, _) -> Drawn | None:
    if found["faults"]["dead"].empty:
        return None
    run, about = found["faults"], _fault_about(found)
    sheet = charts.dead_letters(run["dead"], run["faults"], until_seconds=run.figures["span_seconds"], **about)
    caption = "Dead letters of the run with faults, by type and cause: permanent means that its handler said never."
    return sheet, caption, {"dead": run["dead"]}, about


@figure("lease-length")
def _lease(found, _) -> Drawn:
    run, told, chosen = found["lease"], found["lease"].parameters, _chosen(found)["lease_seconds"]
    about = {"lease_chosen": style.duration(chosen), **run.about}
    sheet = charts.lease_length(run["recoveries"], run["expiries"], reap_seconds=told["reap_seconds"],
                                mean_freeze_seconds=told["mean_freeze_seconds"], chosen=chosen, **about)  # fmt: skip
    caption = (
        f"What a longer lease costs, the time until a killed worker's job is ready again, and what it buys, fewer "
        f"leases lost to mere stalls. Chosen: {style.duration(chosen)}."
    )
    return sheet, caption, {"recoveries": run["recoveries"], "expiries": run["expiries"]}, about


# ---- polling and retries -------------------------------------------------------------------------------------------


@figure("pickup")
def _pickup(found, _) -> Drawn:
    run = found["poll"]
    limit = decisions.recommended(found).loc["poll_seconds", "limit"]
    sheet = pictures.pickup(run["pickup"], chosen=run.figures["poll"], limit_seconds=limit, **run.about)
    caption = "What polling alone gives, NOTIFY left out: from due to begun, and how often an idle worker asks for it."
    return sheet, caption, {"pickup": run["pickup"]}, run.about


@figure("retry-delays")
def _delays(found, _) -> Drawn:
    run, backoff = found["retries"], _chosen(found)["backoff"]
    about = {"base_seconds": backoff.base_seconds, "ceiling_seconds": backoff.ceiling_seconds, **run.about}
    sheet = charts.delay_by_attempt(run["delays"], {"recommended": backoff}, **about)
    sheet.axes[0].set_title("", loc="left")  # there is one policy only
    caption = "The recommended backoff: the delay before the next attempt, drawn and in closed form."
    return sheet, caption, {"delays": run["delays"]}, about


@figure("retry-herd")
def _herd(found, _) -> Drawn:
    run, backoff = found["retries"], _chosen(found)["backoff"]
    jobs = run.parameters["herd_jobs"]
    about = {"jobs": jobs, "base_seconds": backoff.base_seconds, **run.about}
    asked = decisions.backoff(found)
    caption = (
        f"When {style.count(jobs, 'job')} that failed at one instant come back, by jitter, for a constant base of "
        f"{style.duration(backoff.base_seconds)}. The index is peak rate × mean delay ÷ jobs: the lower, the flatter "
        f"for the same mean delay. "
        f"Theory is of very many jobs: a bin of so few strays from it. The decision scales the index of the chosen "
        f"jitter to a job for each of {style.count(_chosen(found)['workers'], 'worker')}: {asked.measured} in the "
        f"fullest bin, {asked.formula} by formula; target: {asked.target}."
    )
    return charts.retry_herd(run["herd"], **about), caption, {"herd": run["herd"]}, about


@figure("outlasted")
def _outlasted(found, _) -> Drawn:
    run = found["retries"]
    sheet = pictures.outlasted(run["needed"], chosen=run.figures["max_attempts"],
                               outage_seconds=run.parameters["outage_seconds"], **run.about)  # fmt: skip
    caption = "The share of jobs that an outage turns into dead letters, by the attempts that they are allowed."
    return sheet, caption, {"needed": run["needed"]}, run.about


# ---- the broker, the states, the search ----------------------------------------------------------------------------


@figure("needed-rate")
def _needed(found, bears) -> Drawn:
    rates = decisions.rates(found, bears)
    about = {"workload": found["load"].parameters["workload"], **found["load"].about}
    caption = f"What the load asks of the queue and what decides on a broker ({bears.source}), in jobs per second."
    return pictures.needed_rate(rates, **about), caption, {"rates": rates}, about


@figure("load-curve")
def _load_curve(_, bears) -> Drawn | None:
    """The stored load run that decides, where there is one."""
    if bears.run is None:
        return None
    run = bears.run
    about = {"seed": run.seed, "workers": run.setting.workers, "postgres": run.facts["version"],
             "revision": run.facts["revision"], "date": run.facts["measured"]}  # fmt: skip
    caption = f"The load run that decides: queue age by offered rate in jobs per second, {bears.source}."
    found = {"sustainable_rate": run.verdict.sustainable_rate, "knee_rate": run.verdict.knee_rate,
             "limit": run.verdict.limit}  # fmt: skip
    sheet = charts.load_curve(run.steps, target_age_seconds=run.target_age_seconds, **found, **about)
    return sheet, caption, {"steps": run.steps}, about


@figure("states")
def _states(found, _) -> Drawn:
    run = found["matrix"]
    caption = (
        "The states of a job, the verbs between them, and where the evidence for each state is. Left out: adopt, which "
        "takes a running job over, and the redrive of cancelled jobs."
    )
    return charts.states(**run.about), caption, {"states": run["entries"][["state", "query"]]}, run.about


@figure("coverage")
def _coverage(found, _) -> Drawn:
    run = found["explorer"]
    caption = (
        "What the exhaustive search covered: every order of the actors' calls up to this depth, on the shipped SQL."
    )
    return (
        charts.coverage(run["coverage"].assign(seconds=0.0), **run.about),
        caption,
        {"coverage": run["coverage"]},
        run.about,
    )


# ---- what they share -----------------------------------------------------------------------------------------------


def _chosen(found) -> dict:
    return parameters(found["plan"])


def _day_about(found) -> dict:
    told = found["day"].parameters
    about = {"workload": found["load"].parameters["workload"], "workers": told["workers"]}
    return about | {"lease_seconds": told["lease_seconds"], **found["day"].about}


def _fault_about(found) -> dict:
    run = found["faults"]
    told, own = run.parameters, run.figures
    part = f", busiest {own['stretch_jobs']:,} jobs" if own["stretch_jobs"] < found["load"].figures["jobs"] else ""
    about = {"workload": f"{found['load'].parameters['workload']}{part}"}
    slots = {"slots_each": own["slots"]} if own["slots"] > 1 else {}
    return about | {"workers": told["workers"], **slots, "lease_seconds": told["lease_seconds"], **run.about}
