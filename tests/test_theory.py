"""The closed forms against published values, against special cases that are exact, and against drawn samples."""

import math
import random

import numpy as np
import pytest

from jobqueue import Backoff
from jobqueue.errors import InvalidInput
from jobqueue.lab import theory


@pytest.mark.parametrize(
    "servers, load, blocked", [(1, 1, 0.5), (2, 1, 0.2), (5, 3, 0.1101), (10, 5, 0.0184), (100, 80, 0.0040)]
)
def test_erlang_b_agrees_with_published_tables(servers, load, blocked):
    assert theory.erlang_b(servers, load) == pytest.approx(blocked, abs=5e-5)


@pytest.mark.parametrize("servers, load", [(1, 0.8), (2, 1.8), (4, 3.2), (8, 7.2)])
def test_erlang_c_agrees_with_its_textbook_formula(servers, load):
    top = load**servers / math.factorial(servers) * servers / (servers - load)
    exact = top / (sum(load**k / math.factorial(k) for k in range(servers)) + top)
    assert theory.erlang_c(servers, load) == pytest.approx(exact, rel=1e-12)


def test_two_servers_at_half_load_make_one_in_three_wait():
    assert theory.erlang_c(2, 1) == pytest.approx(1 / 3)


def test_erlang_c_survives_thousands_of_servers():
    assert 0 < theory.erlang_c(5000, 4900) < 0.2


@pytest.mark.parametrize("servers, load", [(1, 1), (4, 4.5), (0, 0), (2, -1)])
def test_a_queue_without_a_steady_state_is_refused(servers, load):
    with pytest.raises(InvalidInput, match="has no steady state"):
        theory.erlang_c(servers, load)


def test_one_exponential_server_waits_rho_over_mu_minus_lambda():
    assert theory.mean_wait(0.8, 1.0) == pytest.approx(4.0)


def test_a_constant_service_time_halves_the_wait():
    assert theory.mean_wait(0.8, 1.0, cv2=0) == pytest.approx(2.0)


def test_the_number_in_an_m_m_1_system_is_rho_over_one_minus_rho():
    assert theory.mean_in_system(0.9, 1.0) == pytest.approx(9.0)


def test_the_tail_integrates_to_the_mean_wait():
    t = np.linspace(0, 400, 400_001)
    assert np.trapezoid(theory.wait_tail(t, 3.2, 1.0, 4), t) == pytest.approx(theory.mean_wait(3.2, 1.0, 4), rel=1e-5)


def test_a_quantile_of_the_wait_is_where_the_tail_says():
    at = theory.wait_quantile(0.95, 3.2, 1.0, 4)
    assert theory.wait_tail(at, 3.2, 1.0, 4) == pytest.approx(0.05)


def test_a_quantile_below_those_who_do_not_wait_is_zero():
    assert theory.wait_quantile(0.3, 3.2, 1.0, 4) == 0


def test_somebody_waits_as_often_as_more_jobs_than_servers_are_there():
    """P(N > c) in M/M/1 is ρ²."""
    assert theory.queue_age_tail(0, 0.7, 1.0) == pytest.approx(0.49)


def test_the_age_of_the_oldest_job_agrees_with_a_simulated_line():
    """Lindley's recursion for M/M/1, observed at 60,000 even instants: the age of the first job that still waits."""
    rng = np.random.default_rng(5)
    arrivals = np.cumsum(rng.exponential(1 / 0.8, 200_000))
    service, waits = rng.exponential(1.0, 200_000), np.zeros(200_000)
    for i in range(1, len(waits)):
        waits[i] = max(0.0, waits[i - 1] + service[i - 1] - (arrivals[i] - arrivals[i - 1]))
    starts = arrivals + waits  # first come, first served: they never decrease
    seen = np.linspace(arrivals[1000], arrivals[-1000], 60_000)
    head = np.searchsorted(starts, seen, side="right")
    age = np.maximum(seen - arrivals[head], 0)
    measured = [np.mean(age > t) for t in (0, 2, 5, 10)]
    assert measured == pytest.approx(list(theory.queue_age_tail([0, 2, 5, 10], 0.8, 1.0)), abs=0.03)


POLICIES = [
    Backoff(jitter=jitter, base_seconds=2, ceiling_seconds=40, floor_seconds=floor)
    for jitter in ("none", "full", "equal", "decorrelated")
    for floor in (0, 1.5, 5)
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{p.jitter} floor {p.floor_seconds}")
@pytest.mark.parametrize("attempt", [1, 3, 8])
def test_mean_and_quantiles_agree_with_the_shipped_policy(policy, attempt):
    rng = random.Random(7)
    drawn = [policy.delay(attempt, rng) for _ in range(20_000)]
    measured = [np.mean(drawn), *np.quantile(drawn, [0.05, 0.5, 0.95])]
    closed = [
        theory.mean_delay(policy, attempt),
        *(theory.delay_quantile(q, policy, attempt) for q in (0.05, 0.5, 0.95)),
    ]
    assert measured == pytest.approx(closed, rel=0.03, abs=0.05)


@pytest.mark.parametrize("attempt", [1, 2, 5])
def test_the_mean_of_a_decorrelated_chain_is_its_closed_form(attempt):
    policy = Backoff(jitter="decorrelated", base_seconds=1, ceiling_seconds=86400)
    assert theory.mean_delay(policy, attempt) == pytest.approx(2 * 1.5**attempt - 1, rel=0.005)


@pytest.mark.parametrize("jitter", ["full", "equal", "decorrelated"])
def test_the_index_of_a_herd_is_peak_times_mean_over_jobs(jitter):
    policy, rng = Backoff(jitter=jitter, base_seconds=8, shape="constant"), random.Random(3)
    drawn = [policy.delay(1, rng) for _ in range(40_000)]
    peak = max(np.histogram(drawn, bins=10, range=(min(drawn), max(drawn)))[0]) / ((max(drawn) - min(drawn)) / 10)
    assert peak * np.mean(drawn) / len(drawn) == pytest.approx(theory.herd_index(jitter), rel=0.05)


def test_recovery_lies_between_a_heartbeat_before_the_end_and_a_reaper_period_after_it():
    assert theory.recovery_bounds(30, 10, 1) == (20, 25.5, 31)


def test_a_longer_lease_expires_falsely_less_often():
    rng = np.random.default_rng(1)
    left, freeze = 9 - rng.uniform(0, 3, 200_000), rng.exponential(4, 200_000)
    assert theory.false_expiry(9, 3, 4) == pytest.approx(np.mean(freeze > left), abs=0.003)


def test_attempts_to_the_end_add_up_and_the_dead_are_among_the_last():
    share = theory.attempts_pmf(0.5, 5)
    assert (sum(share), share, theory.dead_share(0.5, 5)) == (1, [0.5, 0.25, 0.125, 0.0625, 0.0625], 0.03125)


def test_batch_means_cover_the_mean_of_a_dependent_series():
    rng, values = np.random.default_rng(2), [0.0]
    for _ in range(50_000):
        values.append(0.9 * values[-1] + rng.normal())
    mean, half = theory.batch_mean_error(values)
    assert abs(mean) < half < 0.3


def test_too_few_values_for_batches_are_refused():
    with pytest.raises(InvalidInput, match="39 values are too few for 20 batches"):
        theory.batch_mean_error([1.0] * 39)
