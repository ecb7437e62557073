"""The runs of notebooks 06, 07, 08 and 10: what they count is what the queue did."""

import pytest

from jobqueue import Backoff
from jobqueue.errors import InvalidInput
from jobqueue.lab import faults, sim, studies_faults, workload


def simulated(server, work, **given):
    return sim.run(work, dsn=server.dsn, progress=False, seed=3, **given)


def test_three_hours_down_cost_no_slot_35_or_36_by_policy(server):
    ledger = studies_faults.outage("*/5 * * * *", down_hours=3, found_seconds=120, dsn=server.dsn)
    table = studies_faults.policies(ledger)
    assert table.loc[["all", "last", "skip"], "missed"].tolist() == [0, 35, 36]
    assert table.loc[["all", "last", "skip"], "fired late"].tolist() == [36, 1, 0]
    assert set(table["slots"]) == {60}


@pytest.mark.parametrize(("day", "fixed", "every"), [("2026-03-29", "03:00+02", 8), ("2026-10-25", "02:30+02", 10)])
def test_a_fixed_time_fires_once_across_a_change_of_the_clocks(server, day, fixed, every):
    crons = {"fixed": "30 2 * * *", "every": "*/30 * * * *"}
    ledger = studies_faults.across_change(crons, day, "Europe/Berlin", hours=5, dsn=server.dsn)
    told = studies_faults.wall_clock(ledger, "Europe/Berlin")
    assert told.loc["fixed"].tolist() == [1, fixed]
    assert told.loc["every", "slots"] == every + (2 if day == "2026-03-29" else 0)
    assert (" 02:" in told.loc["every", "at"]) == (day == "2026-10-25")


def test_four_schedulers_at_one_instant_make_one_job_a_slot(server):
    found = studies_faults.rivals(4, schedules=3, hours=2, dsn=server.dsn)
    assert (found["slots"], found["jobs"], found["slots fired twice"]) == (24, 24, 0)


def test_a_spread_takes_the_spike_away(server):
    load = {"schedules": 20, "job_seconds": 10, "workers": 2, "hours": 1, "seed": 1, "dsn": server.dsn}
    together, spread = (studies_faults.spikes(seconds, **load) for seconds in (0, 1800))
    assert together.jobs["wait_seconds"].max() == 90  # ten rounds of two, the last waits for nine
    assert len(spread.jobs) == 20 and spread.jobs["wait_seconds"].max() < 30


def test_each_rule_alone_lets_a_case_through(server):
    table = studies_faults.verdicts(server.dsn)
    wrong = {place: [name for name in table.index if table.loc[name, place] != "once"] for place in table}
    cases = list(studies_faults.CASES)
    assert wrong == {
        "takes everything": cases,
        "fence": cases[1:],
        "key": cases[2:],
        "fence and key": cases[2:],
        "barrier and key": cases[4:],
    }
    assert table.loc[cases[2], "fence and key"] == "once, stale"


def test_a_case_is_told_step_by_step_and_an_unknown_one_is_refused(server):
    destination = studies_faults.destinations()["barrier and key"]
    steps = studies_faults.case("late: before the new owner's", destination, server.dsn)
    assert steps["answer"].tolist() == [
        "epoch 1, the destination is told",
        "",
        "epoch 2, the destination is told",
        "refused: an older epoch",
        "taken in",
        "APPLIED",
        "LOST",
    ]
    with pytest.raises(InvalidInput, match="there is no case 'no such'"):
        studies_faults.case("no such", destination, server.dsn)


def test_a_frozen_worker_repeats_an_effect_where_only_a_fence_stands_and_not_where_there_is_a_key(server):
    work = workload.poisson(rate=2, service=workload.constant(2), n=60)
    run = simulated(server, work, workers=3, lease_seconds=10, effects=True, faults=[faults.freeze(0, 10, 20)])
    assert set(run.refused["outcome"]) == {"LOST"}
    table = studies_faults.day_of_effects(run)
    assert table["sent"].unique().tolist() == [61]
    assert run.effects["destination"].eq("outside").sum() == 61
    # It thaws after its lease was taken and before the next claim: no newer epoch is there for a fence to know.
    assert table["jobs with more than one"].tolist() == [1, 1, 0, 0, 0]
    assert table["taken from a stale owner"].tolist() == [0, 0, 0, 0, 0]
    assert table.loc["barrier and key", ["taken in", "taken from a stale owner"]].tolist() == [60, 0]


def test_a_late_effect_whose_refusal_is_lost_is_sent_twice_and_counted_twice(server):
    work = workload.poisson(rate=2, service=workload.constant(2), n=60)
    plan = [faults.freeze(0, 10, 20), faults.cut(0, at=30.02)]  # after its heartbeat, before its completion
    run = simulated(server, work, workers=3, lease_seconds=10, effects=True, faults=plan)
    late = run.refused[run.refused["verb"] == "complete"]
    assert late.groupby(["job_id", "epoch"]).size().max() == 2
    assert studies_faults.day_of_effects(run)["sent"].unique() == run.effects["destination"].eq("outside").sum()


def test_dead_letters_have_causes_and_neighbours_survive(server):
    work = workload.poisson(rate=2, service=workload.constant(1), n=200, type="mail", failed=0.05)
    plan = [faults.poison(at=10, n=2, restart_seconds=2)]
    run = simulated(server, work, workers=2, concurrency=4, lease_seconds=5, faults=plan, max_attempts=3)
    causes = studies_faults.dead_letters(run)["cause"].value_counts()
    assert causes["poison: crash"] == 2
    assert causes["mail: permanent"] == run.jobs["status"].eq("failed").sum() > 0
    found = studies_faults.neighbours(run)
    assert found["poison dead"] == 2 and found["healthy jobs"] == 200 and found["that lost a lease"] > 0
    # Slots share the fate of their process: such a neighbour has lost every attempt, and is counted apart.
    jobs = run.jobs[run.jobs["type"] == "mail"]
    assert found["healthy, died with it"] == (jobs["lease_losses"] == 3).sum()
    assert found["most lost by one"] == jobs["lease_losses"].max()


def test_jobs_claimed_ahead_die_with_a_poison_job_only_without_the_rule(server):
    given = {"healthy": 19, "max_attempts": 3, "dsn": server.dsn}
    off, on = (studies_faults.prefetch(9, rule=rule, **given) for rule in (False, True))
    assert (off["done"], off["dead, never ran"]) == (10, 9)
    assert (on["done"], on["dead, never ran"], on["processes killed"]) == (19, 0, 3)


def test_twenty_releases_are_believed_and_the_call_after_them_is_an_attempt(server):
    found = studies_faults.releases(server.dsn)
    assert found == {"calls of the handler": 21, "releases": 20, "attempts": 1, "status": "dead"}


def test_redrive_gives_every_attempt_anew_and_never_an_epoch(server):
    steps = studies_faults.redrive(5, max_attempts=3, dsn=server.dsn, seed=1)
    assert steps[["ready", "dead", "done", "attempts", "epoch"]].to_numpy().tolist() == [
        [0, 5, 0, 3, 3], [5, 0, 0, 0, 3], [0, 0, 5, 1, 4],
    ]  # fmt: skip


def test_waits_and_workers_are_read_off_runs(server):
    work = workload.poisson(rate=1, service=workload.exponential(1.5), n=150)
    run = simulated(server, work, workers=3, backoff=Backoff())
    table = studies_faults.waits(run)
    assert table.loc["all", "jobs"] == 150 and table.loc["all", "max"] == run.jobs["wait_seconds"].max()
    two = studies_faults.by_workers(work, [2, 4], dsn=server.dsn, seed=3)
    assert two.loc[2, "p99_by_formula"] > two.loc[4, "p99_by_formula"] > 0
    assert two.loc[2, "p99_age"] > two.loc[4, "p99_age"] and two.loc[2, "busy"] > two.loc[4, "busy"]
