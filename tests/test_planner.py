"""The planner: fewest workers that keep a target, and each figure beside its formula."""

import re
from pathlib import Path

import numpy as np
import pytest

from jobqueue import Backoff
from jobqueue.errors import InvalidInput
from jobqueue.lab import fifo, planner, sim, workload
from jobqueue.lab.workload import Workload

TARGETS = {
    "p99_age_seconds": 3,
    "recovery_seconds": 20,
    "pickup_seconds": 0.5,
    "outage_seconds": 120,
    "freeze_seconds": 1,
}
OFFICE_DAY = Path(__file__).parents[1] / "data" / "workloads" / "office-day.csv"
RECIPE = workload.poisson(rate=2.0, service=workload.exponential(1.5), n=300)


@pytest.fixture(scope="module")
def plan(server):
    return planner.suggest(RECIPE, targets=TARGETS, dsn=server.dsn, progress=False)


def test_every_recommendation_keeps_its_target_in_the_simulation(plan):
    assert plan.frame().query("not met")["parameter"].tolist() == [] and plan.met
    assert plan.frame()["parameter"].tolist() == [
        "workers", "lease_seconds", "heartbeat_seconds", "poll_seconds", "backoff", "max_attempts"]  # fmt: skip


def test_one_worker_less_breaks_the_target_of_the_age(plan, server):
    fewer = plan["workers"].value - 1
    run = sim.run(RECIPE, workers=fewer, dsn=server.dsn, progress=False)
    assert fewer >= 3 and run.age_quantile(0.99) > TARGETS["p99_age_seconds"]


def test_the_lease_is_the_longest_that_recovers_in_time(plan):
    lease = plan["lease_seconds"]
    assert (lease.value, lease.by_formula, plan["heartbeat_seconds"].value) == (19, 20, pytest.approx(19 / 3))
    assert 18 < lease.simulated <= 20


def test_polling_costs_half_its_period_on_average(plan):
    assert plan["poll_seconds"].value == 1 and plan["poll_seconds"].simulated == pytest.approx(0.5, rel=0.1)


def test_retries_outlast_the_outage(plan):
    backoff = plan["backoff"].value
    assert isinstance(backoff, Backoff) and backoff.jitter == "full" and backoff.ceiling_seconds == 60
    assert plan["max_attempts"].simulated == 0


def test_a_suggestion_is_sentences_and_the_arguments_of_a_run(plan, server):
    lines = str(plan).splitlines()
    assert len(lines) == 6 and all(
        re.search(r"met, simulated [\d,.e+-]+, by formula [\d,.e+-]+ \(.+\)\.$", line) for line in lines
    )
    run = sim.run(RECIPE, dsn=server.dsn, progress=False, **plan.parameters())
    assert run.jobs["status"].eq("done").all()


def test_a_load_that_is_its_own_busiest_stretch_gets_what_the_simulation_of_it_needs(server):
    day, targets = workload.read(OFFICE_DAY), {"p99_age_seconds": 20, "recovery_seconds": 20, "outage_seconds": 240}
    found = planner.suggest(day, targets=targets, seed=10, dsn=server.dsn, progress=False)
    assert (fifo.fewest(day, 20), found["workers"].value, found.workers_of_the_stretch) == (10, 10, 10)


def test_a_burst_is_planned_for_by_the_line_that_it_leaves_behind_the_last_arrival(server):
    """Alone, 200 jobs of 5 s begin within 60 s with 16 workers (twelve rounds after the first); after a calm hour, a
    hundredth of the time is 37 s, and 10 do."""
    alone, late = (workload.Workload(at, ["job"] * len(at), [5.0] * len(at), ["done"] * len(at))
                   for at in ([0.0] * 200, [36.0 * k for k in range(100)] + [3600.0] * 200))  # fmt: skip
    found = planner.suggest(late, targets={"p99_age_seconds": 60}, dsn=server.dsn, progress=False)["workers"]
    assert (fifo.fewest(alone, 60), fifo.fewest(late, 60), found.value) == (16, 10, 10) and 55 < found.simulated <= 60
    at_once = sim.run(alone, workers=16, dsn=server.dsn, progress=False)
    assert at_once.age_quantile(0.99) == pytest.approx(0.99 * 60) and at_once.age.most == 60


def test_jobs_that_outlast_the_busiest_stretch_are_planned_for_by_the_whole_load(server):
    long = workload.poisson(rate=1.0, service=workload.constant(400), n=1500)
    found = planner.suggest(long, targets=TARGETS, jobs=100, dsn=server.dsn, progress=False)
    kept = {n: fifo.age_quantile(long.draw(0), n) <= TARGETS["p99_age_seconds"]
            for n in (found["workers"].value - 1, found["workers"].value)}  # fmt: skip
    assert list(kept.values()) == [False, True] and found.workers_of_the_stretch <= 100
    assert found.parameters()["workers"] > 380 and "the whole load needs more" in found["workers"].because


def test_the_busiest_stretch_is_planned_for():
    quiet, busy = np.arange(200) * 10.0, 2000 + np.arange(100) * 1.0
    work = Workload(np.concatenate([quiet, busy]), ["job"] * 300, np.ones(300), ["done"] * 300)
    stretch = planner.busiest(work, 100)
    assert (len(stretch), stretch.span_seconds) == (100, 99.0)


def test_a_lease_that_stalls_would_break_is_called_not_met(server):
    tight = TARGETS | {"recovery_seconds": 3, "freeze_seconds": 5}
    plan = planner.suggest(RECIPE, targets=tight, jobs=100, dsn=server.dsn, progress=False)
    heartbeat = plan["heartbeat_seconds"]
    assert not heartbeat.met and "NOT MET" in str(heartbeat)
    assert heartbeat.simulated == pytest.approx(heartbeat.by_formula, abs=0.15)


@pytest.mark.parametrize(
    ("work", "targets", "words"),
    [
        (RECIPE, {"p99": 1}, "there is no target 'p99': p99_age_seconds, recovery_seconds"),
        (RECIPE, {"pickup_seconds": 0}, "pickup_seconds must lie in 0.01–86,400 seconds, not 0"),
        (RECIPE.head(20), {}, "a workload of 20 jobs is too small to plan by: 100 at least"),
    ],
)
def test_bad_input_is_refused_before_anything_is_started(work, targets, words):
    with pytest.raises(InvalidInput, match=words):
        planner.suggest(work, targets=targets, dsn="host=nowhere")
