"""The notebooks' runs, small: each measures what it says, near its closed form, and again the same by its seed."""

import random

import numpy as np
import pytest

from jobqueue import Backoff, Queue
from jobqueue.errors import InvalidInput
from jobqueue.lab import charts, studies, theory, workload


@pytest.fixture
def play(virtual_conn, clock):
    queue = Queue(virtual_conn, rng=random.Random(1))

    def played(**given):
        job_id, steps, starts = studies.takeover(queue, clock, **given)
        return queue.get(job_id), steps, starts

    return played


def test_a_takeover_succeeds_when_the_lease_has_ended_and_the_first_owner_is_told(play):
    job, steps, _ = play(lease_seconds=3, heartbeats=0, late_seconds=1)
    assert steps.to_numpy().tolist() == [
        [0, "worker-1", "claim", "epoch 1"],
        [1, "worker-2", "adopt", "no: the lease is in force"],
        [2, "worker-2", "adopt", "no: the lease is in force"],
        [3, "worker-2", "adopt", "epoch 2"],
        [7, "worker-2", "complete", "APPLIED"],
        [8, "worker-1", "complete", "LOST"],
    ]
    assert (job.status, job.attempts, job.lease_losses) == ("done", 2, 1)


def test_each_heartbeat_puts_the_takeover_off_by_a_third_of_the_lease(play):
    _, steps, starts = play(lease_seconds=30, heartbeats=2, late_seconds=0)
    assert steps.loc[steps["answer"] == "epoch 2", "seconds"].tolist() == [50]
    assert [lease["epoch"] for lease in starts] == [1, 2]


def test_a_row_tells_its_seconds_since_it_was_created(virtual_queue, clock):
    virtual_queue.enqueue("job")
    (lease,) = virtual_queue.claim("a", lease_seconds=10)
    clock.advance(4)
    assert studies.as_row(virtual_queue.get(lease.id), clock.now) == {
        "seconds": 4, "status": "running", "locked_by": "a", "epoch": 1, "attempts": 1, "lease_losses": 0,
        "locked_until": "10",
    }  # fmt: skip


def test_delays_are_those_of_the_policy_and_again_the_same():
    policies = {"full": Backoff(base_seconds=4)}
    drawn = studies.delays(policies, attempts=3, draws=4000, seed=1)
    means = drawn.groupby("attempt")["delay_seconds"].mean()
    assert means.tolist() == pytest.approx([theory.mean_delay(policies["full"], k) for k in (1, 2, 3)], rel=0.05)
    assert drawn.equals(studies.delays(policies, attempts=3, draws=4000, seed=1))


def test_a_herd_waits_from_the_instant_at_which_the_reaper_took_its_leases(server):
    waits = studies.herd(["none", "full"], jobs=1500, base_seconds=60, seed=1, dsn=server.dsn)
    by_policy = waits.groupby("policy")["delay_seconds"]
    assert (by_policy.size().to_dict(), set(by_policy.get_group("none"))) == ({"none": 1500, "full": 1500}, {60.0})
    assert charts.herd(by_policy.get_group("full"))[2] == pytest.approx(0.5, rel=0.25)


def test_without_jitter_all_that_are_left_call_in_every_round(server):
    policies = {"none": Backoff("constant", base_seconds=2, jitter="none")}
    runs = studies.contention(policies, [1, 6], seeds=[1, 2], dsn=server.dsn)
    assert runs["calls"].tolist() == [theory.contention_calls(1), theory.contention_calls(6)]


def test_recovery_counts_the_calls_after_the_service_is_back(server):
    run = studies.dependency(Backoff("constant", base_seconds=5, jitter="none"), rate=0.1, capacity=None,
                             max_attempts=99, down_at=60, down_seconds=60, until_seconds=300, seed=1, dsn=server.dsn)
    told = studies.recovery(run, 120)
    began, outcome = run.attempts["started"], run.attempts["outcome"]
    assert set(outcome[(began >= 60) & (began < 120)]) == {"failed"} and set(outcome[began >= 120]) == {"done"}
    assert (told["calls"], told["calls after it was back"]) == (len(run.attempts), int((began >= 120).sum()))
    assert (told["refused then"], told["dead"]) == (0, 0) and 0 <= told["minutes until no retry waited"] <= 0.2


def test_retries_that_still_wait_at_the_end_have_no_time_of_recovery(server):
    run = studies.dependency(Backoff("constant", base_seconds=5, jitter="none"), rate=0.2, capacity=None,
                             max_attempts=99, down_at=10, down_seconds=500, until_seconds=100, seed=1, dsn=server.dsn)
    assert studies.recovery(run, 50)["minutes until no retry waited"] == np.inf


def test_a_point_of_load_lies_near_erlang(server):
    points = studies.load_points([0.5], service=workload.exponential(1), workers=2, jobs=1200, seed=1, dsn=server.dsn)
    point = points.iloc[0]
    assert abs(point["wait_mean"] - point["wait_theory"]) <= point["wait_error"]
    assert point["p50"] <= point["p95"] <= point["p99"] <= point["max"]


@pytest.mark.parametrize("utilisation", [0, 1, 1.2])
def test_no_load_is_simulated_that_has_no_steady_state(utilisation):
    with pytest.raises(InvalidInput, match="utilisation must lie between 0 and 1"):
        studies.at_load(utilisation, service=workload.exponential(1), workers=1, jobs=10, seed=1)


def test_an_office_week_begins_on_a_thursday_and_is_quiet_at_its_weekend():
    week = studies.office_week(0.02, weekend=0.25, service=workload.constant(1)).draw(1)
    days = np.bincount((week.at_seconds // 86_400).astype(int))
    assert len(days) == 7
    assert days[[2, 3]].mean() / days[[0, 1, 4, 5, 6]].mean() == pytest.approx(0.25, rel=0.1)


def test_a_killed_workers_job_is_ready_again_within_the_bounds_of_its_lease(server):
    back = studies.killed([6.0], workers=25, reap_seconds=1, seed=1, dsn=server.dsn)["recovery_seconds"]
    earliest, _, latest = theory.recovery_bounds(6, 2, 1)
    assert len(back) == 25 and earliest <= back.min() and back.max() <= latest


def test_freezes_lose_their_leases_about_as_often_as_the_closed_form_says(server):
    found = studies.frozen([6.0], workers=80, mean_freeze_seconds=6, reap_seconds=0.1, seed=1, dsn=server.dsn).iloc[0]
    expected = theory.false_expiry(6, 2, 6)
    error = 2.6 * np.sqrt(expected * (1 - expected) / 80)
    assert abs(found["expired"] / found["freezes"] - expected) <= error
    assert found["refused"] == found["expired"]
