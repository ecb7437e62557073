"""The simulated queue against the closed forms: waits, tails, Little's law, the herd after a failure; fixed seeds."""

import numpy as np
import pytest

from jobqueue import Backoff
from jobqueue.lab import faults, sim, theory, workload
from jobqueue.lab.charts import policy
from jobqueue.lab.workload import Workload
from jobqueue.sql import SQL

SERVICE = 1.0


def served(server, service, servers, utilisation, n, seed=1, samples=2000):
    rate = utilisation * servers / service.mean_seconds
    recipe = workload.poisson(rate=rate, service=service, n=n)
    return rate, sim.run(recipe, workers=servers, seed=seed, dsn=server.dsn, progress=False, samples=samples)


def settled(run):
    """Waits in order of arrival, without those of the first tenth, which began in an empty queue."""
    waits = run.jobs["wait_seconds"].to_numpy()
    return waits[len(waits) // 10 :]


def holds_little(run, within=0.1):
    sampled, by_sojourn = run.mean_in_system()
    return sampled == pytest.approx(by_sojourn, rel=within)


def tail_misses(waits, rate, servers):
    """Of ten points between the median of those who wait and a hundredth, how many leave their 95 % interval."""
    levels = np.array([theory.wait_quantile(1 - p, rate, SERVICE, servers) for p in np.geomspace(0.4, 0.02, 10)])
    expected = theory.wait_tail(levels, rate, SERVICE, servers)
    found = [theory.batch_mean_error(waits > level) for level in levels]
    return sum(abs(share - p) > error for (share, error), p in zip(found, expected, strict=True))


# ---- M/M/c -----------------------------------------------------------------------------------------------------------

SHORT = [(1, 0.5, 1500), (4, 0.8, 2500)]
FULL = [
    (servers, utilisation, n)
    for servers in (1, 4, 8)
    for utilisation, n in ((0.5, 6_000), (0.8, 12_000), (0.9, 24_000))
]


def check_mean(server, servers, utilisation, n):
    rate, run = served(server, workload.exponential(SERVICE), servers, utilisation, n)
    mean, error = theory.batch_mean_error(settled(run))
    assert abs(mean - theory.mean_wait(rate, SERVICE, servers)) <= error
    assert holds_little(run)
    assert run.jobs["service_seconds"].mean() == pytest.approx(SERVICE, rel=0.1)


@pytest.mark.short
@pytest.mark.parametrize(("servers", "utilisation", "n"), SHORT)
def test_the_mean_wait_lies_in_its_interval_around_erlangs(server, servers, utilisation, n):
    check_mean(server, servers, utilisation, n)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("servers", "utilisation", "n"), FULL)
def test_the_mean_wait_lies_in_its_interval_around_erlangs_at_length(server, servers, utilisation, n):
    check_mean(server, servers, utilisation, n)


# ---- the tail, which tells orders apart that share their mean --------------------------------------------------------


def last_in_first_out(monkeypatch):
    mutant = SQL.claim.replace("order by j.run_at, j.id limit", "order by j.run_at desc, j.id desc limit")
    assert mutant != SQL.claim
    monkeypatch.setattr(SQL, "claim", mutant)


def test_the_tail_of_the_wait_is_that_of_first_come_first_served(server):
    rate, run = served(server, workload.exponential(SERVICE), 2, 0.8, 4000)
    assert tail_misses(settled(run), rate, 2) <= 1


def test_a_last_in_first_out_mutant_keeps_the_mean_and_fails_on_the_tail(server, monkeypatch):
    last_in_first_out(monkeypatch)
    rate, run = served(server, workload.exponential(SERVICE), 2, 0.8, 4000)
    mean, error = theory.batch_mean_error(settled(run))
    assert abs(mean - theory.mean_wait(rate, SERVICE, 2)) <= error
    assert tail_misses(settled(run), rate, 2) >= 5
    assert holds_little(run)


# ---- M/G/1 -----------------------------------------------------------------------------------------------------------


def check_pollaczek_khinchine(server, utilisation, n, cv):
    service = workload.lognormal(SERVICE, cv=cv)
    rate, run = served(server, service, 1, utilisation, n)
    mean, error = theory.batch_mean_error(settled(run))
    assert abs(mean - theory.mean_wait(rate, SERVICE, 1, cv2=service.scv)) <= error
    assert holds_little(run)


@pytest.mark.short
def test_a_lognormal_service_waits_as_pollaczek_and_khinchine_say(server):
    check_pollaczek_khinchine(server, 0.5, 2500, cv=0.8)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("utilisation", "cv"), [(0.5, 2), (0.8, 1.5)])
def test_a_lognormal_service_waits_as_pollaczek_and_khinchine_say_at_length(server, utilisation, cv):
    check_pollaczek_khinchine(server, utilisation, 20_000, cv)


# ---- the herd after a failure ----------------------------------------------------------------------------------------


def delays_after_one_instant(server, jitter, n):
    """n jobs fail at one instant; how long the database makes each wait for its retry."""
    together = Workload(np.zeros(n), ["job"] * n, np.zeros(n), ["done"] * n)
    backoff = Backoff("constant", base_seconds=60, jitter=jitter)
    run = sim.run(together, workers=n // 1000, concurrency=1000, backoff=backoff, dsn=server.dsn, progress=False,
                  faults=[faults.down("job", at=0, seconds=1)], until_seconds=0.1, seed=5, samples=1)  # fmt: skip
    assert run.jobs["status"].eq("ready").all() and run.attempts["ended"].eq(0.1).all()
    return (run.jobs["run_at"] - run.jobs["created_at"]).dt.total_seconds().to_numpy() - 0.1


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("jitter", ["full", "equal"])
def test_the_herd_of_20000_retries_has_the_index_of_its_jitter(server, jitter):
    index = policy.herd(delays_after_one_instant(server, jitter, 20_000))[2]
    assert index == pytest.approx(theory.herd_index(jitter), rel=0.1)


@pytest.mark.short
@pytest.mark.parametrize("jitter", ["full", "equal"])
def test_a_small_herd_lies_near_the_index_of_its_jitter(server, jitter):
    """200 a bin: the fullest of ten is about 12 % above their mean."""
    index = policy.herd(delays_after_one_instant(server, jitter, 2000))[2]
    assert index == pytest.approx(theory.herd_index(jitter), rel=0.25)


def test_without_jitter_all_come_back_at_one_instant(server):
    assert set(delays_after_one_instant(server, "none", 1000).round(6)) == {60.0}
