"""The runs that a review rests on, each made once from a workload, targets and a seed, and stored.

load       what arrives: by type, by bucket, the busiest minute
plan       the planner's recommendations
day        the whole load with them; workers: other numbers of workers
faults     the busiest stretch with a kill, a freeze, an outage, a dependency that is away
lease, poll, retries                    what each choice costs and buys
matrix, explorer                        the failure matrix; a short exhaustive search
"""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from ... import Backoff, limits
from .. import (
    database,
    explorer,
    faults,
    fifo,
    matrix,
    observe,
    planner,
    scenarios,
    sim,
    spans,
    studies,
    studies_faults,
    workload,
)
from ..planner import Targets
from ..workload import Workload
from . import runs
from .runs import Stored

BUCKETS = 96
PLANNED_JOBS = 600  # of the busiest stretch that the planner simulates over and over
FAULTED_JOBS = 1500
PROCESSES = 40  # at most, in the run with faults: the slots of a large fleet are told as processes of several slots
HEARTBEATS = 60_000  # more, in a run where no worker fails, cost time and show nothing
SMALL_JOBS = 4000  # up to so many, other numbers of workers are simulated, too; beyond, they are computed only
DAY_SECONDS = 86_400.0
KILLED, FROZEN = 15, planner.FREEZES
HERD_JOBS = 5000  # the peak of fewer is chance
OUTLAST_JOBS = 300
DRAWS = 400  # of each delay
PROBES = 60  # arrivals at an idle worker
CUT = 0.1  # of the span: a job longer than that makes the beginning of a history count
HOST = 3  # workers that are killed at one instant
SAYING = {f"lab/report/{name}.py" for name in (
    "blocks", "decisions", "document", "evidence", "figures", "markup", "pack", "pages", "pictures")}  # fmt: skip
SEARCHED = ((scenarios.OneJob(), 3), (scenarios.Batches(), 3), (scenarios.Keys(), 3), (scenarios.Slots(), 3),
            (scenarios.Destination(), 4))  # fmt: skip


@dataclass(frozen=True)
class Inputs:
    """What decides every figure of the virtual runs."""

    work: Workload
    name: str
    seed: int
    targets: Targets

    @cached_property
    def digest(self) -> str:
        """Of all that the runs depend on, so that another load or target never meets stored runs of this one."""
        sizes = [runs.FORMAT, PLANNED_JOBS, FAULTED_JOBS, PROCESSES, HEARTBEATS, SMALL_JOBS, KILLED, FROZEN, HERD_JOBS,
                 OUTLAST_JOBS, PROBES]  # fmt: skip
        seen = hashlib.sha256(json.dumps([self.seed, asdict(self.targets), sizes, _depths()]).encode())
        seen.update(self.work.at_seconds.tobytes() + self.work.service_seconds.tobytes())
        seen.update("\0".join([*map(str, self.work.type), *map(str, self.work.outcome)]).encode())
        return seen.hexdigest()

    @property
    def set_name(self) -> str:
        """Another load, target or seed is another set, and so is what other code makes of them."""
        return f"{self.name[:60]}-{hashlib.sha256((self.digest + code()).encode()).hexdigest()[:10]}"


@cache
def code() -> str:
    """Digest of all that a run comes from: the package without what only draws it or says it."""
    root = Path(__file__).resolve().parents[2]
    sources = sorted(path.relative_to(root).as_posix() for kind in ("py", "sql") for path in root.rglob(f"*.{kind}"))
    kept = [path for path in sources if not path.startswith("lab/charts/") and path not in SAYING]
    return hashlib.sha256(b"".join((root / path).read_bytes() for path in kept)).hexdigest()


def office_hour() -> workload.Recipe:
    """The default load: mails and invoices at random, and forty reports at the full hour, half an hour in."""
    mails = workload.poisson(0.25, service=workload.lognormal(3.0, cv=1.5), hours=1, type="mail", failed=0.01)
    invoices = workload.poisson(0.06, service=workload.lognormal(20.0, cv=1.0), hours=1, type="invoice", failed=0.01)
    reports = workload.hourly(40, service=workload.exponential(40.0), hours=1, type="report").delayed(1800)
    return mails + invoices + reports


def made(inputs: Inputs, *, directory: Path | None = None, prefix=None, progress: bool = True) -> str:
    """Makes what of the set is not stored yet; returns its name. Interrupted, it keeps the runs that are whole."""
    place = runs.folder(inputs.set_name, directory)
    have = {path.parent.name for path in place.glob("*/run.json")}
    todo = [step for step in STEPS if step.name not in have]
    if not todo:
        return inputs.set_name
    known = {name: run for name, run in runs.load_set(place).items() if name in have}
    with database.Server(prefix) as server, tqdm(todo, unit="run", desc="review", disable=not progress) as bar:
        for step in bar:
            bar.set_postfix_str(step.name)
            bench = Bench(inputs, server.dsn, server.version, known, progress, prefix)
            known[step.name] = replace(step.make(bench), name=step.name, postgres=server.version)
            runs.save(known[step.name], place)
    return inputs.set_name


@dataclass
class Bench:
    """What a step works with; `known` are the runs that were made before it."""

    inputs: Inputs
    dsn: str
    version: str
    known: dict[str, Stored]
    progress: bool
    prefix: object = None

    def simulate(self, work: Workload, **given) -> sim.Run:
        common = {"seed": self.inputs.seed, "dsn": self.dsn, "progress": self.progress}
        return sim.run(work, **common | given)

    def stored(self, parameters: dict, figures: dict, frames: dict[str, pd.DataFrame], *, seeded=True) -> Stored:
        told = {name: value for name, value in parameters.items() if name != "seed"}
        return Stored("", self.inputs.seed if seeded else None, told, figures, frames)

    @property
    def plan(self) -> dict:
        """Arguments of sim.run, as the plan has them."""
        return parameters(self.known["plan"])


@dataclass(frozen=True)
class Step:
    name: str
    make: Callable[[Bench], Stored] = field(repr=False)


def parameters(plan: Stored) -> dict:
    """The plan's values as `sim.run` takes them."""
    told = dict(plan.figures["values"])
    return told | {"backoff": Backoff(**told["backoff"])}


# ---- the load ------------------------------------------------------------------------------------------------------


def _load(bench: Bench) -> Stored:
    work = bench.inputs.work
    width = max(work.span_seconds, 1.0) / BUCKETS
    place = np.minimum((work.at_seconds / width).astype(int), BUCKETS - 1)
    busy, ends = busy_by_bucket(work, width), work.at_seconds + work.service_seconds
    buckets = pd.DataFrame({
        "time_seconds": np.arange(BUCKETS) * width,
        "arrivals_per_second": np.bincount(place, minlength=BUCKETS) / width,
        "busy": busy,
    })  # fmt: skip
    rate, at = peak(work)
    figures = {
        "jobs": len(work), "left_out": work.left_out, "span_seconds": work.span_seconds, "bucket_seconds": width,
        "erlangs": work.offered_load, "mean_seconds": float(work.service_seconds.mean()),
        "peak_per_second": rate, "peak_at_seconds": at, "failed": int((work.outcome == workload.FAILED).sum()),
        "peak_busy": int(spans.under_way(work.at_seconds, ends, work.at_seconds).max()),
    }  # fmt: skip
    types = work.describe().rename_axis("type").reset_index()
    return bench.stored({"workload": bench.inputs.name, "digest": bench.inputs.digest}, figures,
                        {"types": types, "buckets": buckets})  # fmt: skip


def peak(work: Workload, window_seconds: float = 60.0) -> tuple[float, float]:
    """(arrivals a second, when) in the busiest window; the whole where the load is shorter."""
    window = min(window_seconds, max(work.span_seconds, 1.0))
    most, at = spans.densest(work.at_seconds, window)
    return most / window, at


def busy_by_bucket(work: Workload, width: float) -> np.ndarray:
    """Jobs that would run on average in each bucket if none ever waited."""
    edges = np.arange(BUCKETS + 1) * width
    ends = work.at_seconds + work.service_seconds
    return np.array([
        np.clip(np.minimum(ends, edges[k + 1]) - np.maximum(work.at_seconds, edges[k]), 0, None).sum() / width
        for k in range(BUCKETS)
    ])  # fmt: skip


# ---- the plan and the day ------------------------------------------------------------------------------------------


def _plan(bench: Bench) -> Stored:
    """The planner's, and for the whole load more workers where its busiest stretch alone needs fewer."""
    work, targets, seed = bench.inputs.work, bench.inputs.targets, bench.inputs.seed
    found = planner.suggest(work, targets=targets, seed=seed, jobs=PLANNED_JOBS, dsn=bench.dsn,
                            progress=bench.progress)  # fmt: skip
    stretch = planner.busiest(work, PLANNED_JOBS)
    values = {**found.parameters()}
    least = fifo.fewest(work, targets.p99_age_seconds)
    values["workers"] = max(values["workers"], least)
    outlasts = float(work.service_seconds.max()) > CUT * work.span_seconds > 0  # its beginning is too light
    more = values["workers"] / found["workers"].value
    values["backoff"] = asdict(_slower(values["backoff"], more, targets.outage_seconds))
    table = found.frame()
    table["value"] = table["value"].map(_worded)
    figures = {
        "values": values, "planned_workers": found.workers_of_the_stretch, "fifo_workers": least,
        "workers_in_a_row": fifo.fewest_in_a_row(work, targets.p99_age_seconds) if outlasts else None,
        "stretch_jobs": len(stretch), "stretch_seconds": stretch.span_seconds, "stretch_erlangs": stretch.offered_load,
        "stretch_mean_seconds": float(stretch.service_seconds.mean()),
        "mean_delay_sum_seconds": planner._mean_until(Backoff(**values["backoff"]), values["max_attempts"]),
    }  # fmt: skip
    told = {"jobs": PLANNED_JOBS, "kills": planner.KILLS, "freezes": planner.FREEZES, "probes": planner.PROBE_JOBS,
            "outage_jobs": planner.OUTAGE_JOBS, **asdict(targets)}  # fmt: skip
    return bench.stored(told, figures, {"recommendations": table})


def _slower(backoff: Backoff, more: float, outage_seconds: float) -> Backoff:
    """For so many times as many workers: a herd as slow as before, within the planner's bounds."""
    base = min(max(backoff.base_seconds, float(f"{backoff.base_seconds * more:.2g}")), outage_seconds / 4)
    return replace(backoff, base_seconds=max(base, backoff.base_seconds))


def _worded(value) -> str:
    return json.dumps(asdict(value)) if isinstance(value, Backoff) else f"{value:.6g}"


def _day(bench: Bench) -> Stored:
    """The whole load; where renewals would be most of the work, with the longest lease: no worker fails here."""
    work, given = bench.inputs.work, bench.plan
    renewals = np.floor(work.service_seconds / given["heartbeat_seconds"]).sum()
    if renewals > HEARTBEATS:
        given |= {"lease_seconds": DAY_SECONDS, "heartbeat_seconds": DAY_SECONDS / planner.MISSED_BEATS}
    run = bench.simulate(work, **given)
    figures = {**_ended(run), **_ages(run), "renewals": float(renewals), "span_seconds": run.span_seconds,
               "busy": _busy(run, work.span_seconds)}  # fmt: skip
    frames = {"ages": run.ages, "waits": studies_faults.waits(run).rename_axis("type").reset_index(),
              "running": running_by_type(run), "jobs": run.jobs, "attempts": run.attempts}  # fmt: skip
    return bench.stored(run.about, figures, frames)


def _ended(run: sim.Run) -> dict:
    states = run.jobs["status"].value_counts()
    return {name: int(states.get(name, 0)) for name in ("done", "failed", "dead", "ready", "running")} | {
        "jobs": len(run.jobs), "attempts": len(run.attempts), "lease_losses": int(run.jobs["lease_losses"].sum()),
        "refused": len(run.refused)}  # fmt: skip


def _ages(run: sim.Run) -> dict:
    waits = run.jobs["wait_seconds"].dropna()
    return {"p50_age": run.age_quantile(0.5), "p99_age": run.age_quantile(0.99),
            "max_age": run.age.most,
            "p50_wait": float(waits.quantile(0.5)), "p99_wait": float(waits.quantile(0.99)),
            "max_wait": float(waits.max())}  # fmt: skip


def _busy(run: sim.Run, span_seconds: float) -> float:
    """The share of the time of the arrivals that a worker was busy: what runs on after the last one says nothing."""
    ended = run.attempts["ended"].fillna(np.inf).clip(upper=span_seconds)
    worked = (ended - run.attempts["started"]).clip(lower=0).sum()
    return float(worked / (run.about["workers"] * max(span_seconds, 1e-6)))


def running_by_type(run: sim.Run, samples: int = 200) -> pd.DataFrame:
    """time_seconds, type, running: how many attempts of each type were under way; the instants of the most, too."""
    by_type = {str(kind): (part["started"], part["ended"]) for kind, part in run.attempts.groupby("type")}
    fullest = [spans.fullest(*span) for span in [*by_type.values(), (run.attempts["started"], run.attempts["ended"])]]
    times = np.union1d(np.linspace(0, run.span_seconds, samples), fullest)
    return pd.concat([pd.DataFrame({"time_seconds": times, "type": kind, "running": spans.under_way(*span, times)})
                      for kind, span in by_type.items()], ignore_index=True)  # fmt: skip


def _workers(bench: Bench) -> Stored:
    """p99 of queue age by workers: first come, first served, computed; and simulated at some."""
    work, chosen = bench.inputs.work, bench.plan["workers"]
    limit = bench.inputs.targets.p99_age_seconds
    low, high = (fifo.fewest(work, limit * share) for share in (10, 0.05))  # where the curve has something to say
    high = max(high, chosen) + 1
    numbers = sorted({round(number) for number in np.linspace(max(1, low - 1), high, 25)} | {chosen})
    computed = pd.DataFrame({"workers": numbers, "p99_age": [fifo.age_quantile(work, n) for n in numbers]})
    day = bench.known["day"]
    rows = [{"workers": chosen, **{name: day.figures[name] for name in ("p50_age", "p99_age", "max_age")}}]
    if len(work) <= SMALL_JOBS:
        others = sorted({numbers[0], round((numbers[0] + chosen) / 2), high} - {chosen})
        rows += [{"workers": n, **_simulated_ages(bench, work, n)} for n in others]
    simulated = pd.DataFrame(rows).sort_values("workers", ignore_index=True)
    figures = {"workers": chosen, "p99_computed": fifo.age_quantile(work, chosen),
               "p99_one_less": fifo.age_quantile(work, chosen - 1) if chosen > 1 else math.inf}  # fmt: skip
    return bench.stored({"q": 0.99}, figures, {"computed": computed, "simulated": simulated})


def _simulated_ages(bench: Bench, work: Workload, workers: int) -> dict:
    run = bench.simulate(work, **bench.plan | {"workers": workers})
    told = _ages(run)
    return {name: told[name] for name in ("p50_age", "p99_age", "max_age")}


# ---- faults --------------------------------------------------------------------------------------------------------


def _faults(bench: Bench) -> Stored:
    """The busiest stretch, with the plan's parameters, and four faults one after the other."""
    work = planner.busiest(bench.inputs.work, min(FAULTED_JOBS, len(bench.inputs.work)))
    given, span = bench.plan, work.span_seconds
    slots = -(-given["workers"] // PROCESSES)
    processes = max(2, -(-given["workers"] // slots))
    plan = fault_plan(work, processes, slots, given, bench.inputs.targets)
    given |= {"workers": processes, "concurrency": slots, "faults": plan}
    if work.service_seconds.max() > span:  # else it ends with its jobs
        until = max(max(f.until_seconds or f.at for f in plan), span)
        given["until_seconds"] = round(until + 3 * given["backoff"].ceiling_seconds + 60)
    run = bench.simulate(work, **given)
    lost = run.attempts[run.attempts["outcome"] == "lost"]
    figures = {**_ended(run), **_ages(run), "processes": processes, "slots": slots, "span_seconds": run.span_seconds,
               "stretch_seconds": span, "stretch_jobs": len(work)}  # fmt: skip
    frames = {
        "ages": run.ages, "jobs": run.jobs, "attempts": run.attempts, "refused": run.refused,
        "faults": faults.frame(plan), "recoveries": observe.recoveries(run.attempts, faults.frame(plan)),
        "lost": lost[["ended"]].rename(columns={"ended": "time_seconds"}).sort_values("time_seconds"),
        "dead": studies_faults.dead_letters(run),
    }  # fmt: skip
    told = {name: value for name, value in run.about.items() if name != "faults"}
    return bench.stored(told | {"faults": faults.dumps(plan)}, figures, frames)


def fault_plan(work: Workload, processes: int, slots: int, plan: dict, targets: Targets) -> list[faults.Fault]:
    """At the fullest instant a host of up to three workers is killed and one freezes over its lease; then a minute
    without database, and what the commonest type depends on is away for as long as the target says."""
    span, lease = work.span_seconds, plan["lease_seconds"]
    full = fifo.fullest(work, processes * slots) + 2 * plan["poll_seconds"]  # idle workers have looked by then
    commonest = pd.Series(work.type).value_counts(sort=False).sort_values(ascending=False, kind="stable").index[0]
    outage = targets.outage_seconds
    full = round(full if full < 0.55 * span else 0.4 * span, 3)  # long jobs pile up to the end: all have some by then
    lost = max(1, min(HOST, processes - 1))
    away = max(0.8 * span, full + 4 * lease)
    return [
        *(faults.kill(worker, at=full, seconds=120) for worker in range(lost)),
        faults.freeze(processes - 1, at=full + 1, seconds=2.5 * lease),
        faults.outage(at=round(away, 3), seconds=60),
        faults.down(str(commonest), at=round(max(0.1 * span, full - 1.5 * outage), 3), seconds=outage),
    ]


# ---- what each choice costs and buys -------------------------------------------------------------------------------


def _lease(bench: Bench) -> Stored:
    lease, freeze = bench.plan["lease_seconds"], bench.inputs.targets.freeze_seconds
    leases = sorted({lease, *(round(max(0.3, lease * share), 3) for share in (0.125, 0.25, 0.5, 2))})
    given = {"workers": KILLED, "reap_seconds": 1.0, "seed": bench.inputs.seed, "dsn": bench.dsn}
    killed = studies.killed(leases, **given)
    frozen = studies.frozen(leases, **given | {"workers": FROZEN}, mean_freeze_seconds=freeze)
    told = {"kills": KILLED, "freezes": FROZEN, "reap_seconds": 1.0, "mean_freeze_seconds": freeze}
    return bench.stored(told, {"lease": lease},
                        {"recoveries": killed, "expiries": frozen})  # fmt: skip


def _poll(bench: Bench) -> Stored:
    """One idle worker without NOTIFY: from due to begun, at several poll intervals."""
    poll = bench.plan["poll_seconds"]
    rows = [_picked_up(bench, share * poll) for share in (0.125, 0.25, 0.5, 1, 2, 4)]
    return bench.stored({"jobs": PROBES}, {"poll": poll}, {"pickup": pd.DataFrame(rows)})


def _picked_up(bench: Bench, poll: float) -> dict:
    rng = np.random.default_rng([bench.inputs.seed, round(1000 * poll)])  # each interval has its own arrivals
    at = np.arange(PROBES) * 7.3 * poll + rng.random(PROBES) * poll
    work = Workload(at, ["job"] * PROBES, np.zeros(PROBES), ["done"] * PROBES)
    waits = bench.simulate(work, workers=1, poll_seconds=poll, samples=1, progress=False).jobs["wait_seconds"]
    return {"poll_seconds": poll, "mean_seconds": float(waits.mean()), "p95_seconds": float(waits.quantile(0.95)),
            "looks_per_second": 1 / poll}  # fmt: skip


def _retries(bench: Bench) -> Stored:
    """The plan's backoff: its delays, the herd by jitter, and how many attempts an outage takes."""
    given, seed, outage = bench.plan, bench.inputs.seed, bench.inputs.targets.outage_seconds
    backoff, most = given["backoff"], given["max_attempts"]
    delays = studies.delays({"recommended": backoff}, attempts=min(most, 12), draws=DRAWS, seed=seed)
    jitters = ("none", "equal", "decorrelated", "full")
    herd = studies.herd(jitters, jobs=HERD_JOBS, base_seconds=backoff.base_seconds, seed=seed, dsn=bench.dsn)
    n = OUTLAST_JOBS
    together = Workload(np.zeros(n), ["job"] * n, np.zeros(n), ["done"] * n)
    away = faults.down("job", at=0, seconds=outage)
    run = bench.simulate(together, workers=1, concurrency=n, backoff=backoff, max_attempts=limits.MAX_ATTEMPTS,
                         faults=[away], samples=1, progress=False)  # fmt: skip
    needed = run.jobs["attempts"].value_counts().sort_index().rename_axis("attempts").reset_index(name="jobs")
    told = {"jobs": n, "herd_jobs": HERD_JOBS, "delays": DRAWS, "outage_seconds": outage}
    return bench.stored(told, {"max_attempts": most},
                        {"delays": delays, "herd": herd, "needed": needed})  # fmt: skip


# ---- evidence that is made here ------------------------------------------------------------------------------------


def _matrix(bench: Bench) -> Stored:
    found = matrix.run(bench.prefix)
    return bench.stored({"project": found.project}, {"bytes_per_job": found.bytes_per_job}, {"entries": found.frame()},
                        seeded=False)  # fmt: skip


def _explorer(bench: Bench) -> Stored:
    found = explorer.frame(explorer.explore_all(SEARCHED, dsn=bench.dsn, processes=1))
    return bench.stored({"depths": _depths()}, {},
                        {"coverage": found.drop(columns="seconds")}, seeded=False)  # fmt: skip


def _depths() -> str:
    return ", ".join(f"{one.name}: {depth}" for one, depth in SEARCHED)


STEPS = tuple(
    Step(name, make)
    for name, make in (
        ("load", _load), ("plan", _plan), ("day", _day), ("workers", _workers), ("faults", _faults),
        ("lease", _lease), ("poll", _poll), ("retries", _retries), ("matrix", _matrix), ("explorer", _explorer),
    )
)  # fmt: skip
