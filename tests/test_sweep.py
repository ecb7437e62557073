"""Sweeps: any executor, a database a run, failures as rows."""

import os
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import pandas as pd
import psycopg
import pytest

from jobqueue import Backoff
from jobqueue.errors import InvalidInput
from jobqueue.lab import faults, sim, workload
from jobqueue.lab.sweep import summary

RECIPE = workload.poisson(rate=1.0, service=workload.exponential(1.0), n=60)
REPEATED = ["jobs", "done", "attempts", "wait_mean_seconds", "wait_p99_seconds", "age_p99_seconds", "span_seconds"]


def deaths(run):
    return {"deaths": int(run.jobs["status"].eq("dead").sum())}


def crash(run):
    os._exit(3)


def databases(dsn):
    with psycopg.connect(dsn, autocommit=True) as conn:
        return {name for (name,) in conn.execute("select datname from pg_database where datname like 'jobqueue_lab_%'")}


def test_a_grid_gives_a_row_for_each_combination_in_its_order(server):
    grid = {"workload": [RECIPE], "workers": [1, 3], "seed": range(2)}
    with ThreadPoolExecutor(2) as pool:
        table = sim.sweep(grid, executor=pool, dsn=server.dsn, progress=False)
    assert table[["workers", "seed", "jobs", "done", "error"]].values.tolist() == [
        [1, 0, 60, 60, None], [1, 1, 60, 60, None], [3, 0, 60, 60, None], [3, 1, 60, 60, None]]  # fmt: skip
    assert table["wait_mean_seconds"].iloc[0] > table["wait_mean_seconds"].iloc[2]


def test_a_run_in_a_sweep_is_the_run_by_itself(server):
    with ThreadPoolExecutor(1) as pool:
        table = sim.sweep(
            [{"workload": RECIPE, "workers": 2, "seed": 4}], executor=pool, dsn=server.dsn, progress=False
        )
    alone = summary(sim.run(RECIPE, workers=2, seed=4, dsn=server.dsn, progress=False))
    assert table[REPEATED].iloc[0].to_dict() == {name: alone[name] for name in REPEATED}


def test_a_run_that_fails_is_a_row_with_its_error_and_the_others_go_on(server):
    grid = [{"workload": RECIPE, "workers": 1}, {"workload": RECIPE, "workers": 1, "faults": [faults.kill(7, at=1)]}]
    before = databases(server.dsn)
    with ThreadPoolExecutor(1) as pool:
        table = sim.sweep(grid, executor=pool, dsn=server.dsn, progress=False)
    assert table["done"].fillna(-1).tolist() == [60, -1]
    assert table["error"].tolist() == [
        None,
        "InvalidInput: kill at 1 s aims at worker-7, but there are worker-0 to worker-0",
    ]
    assert databases(server.dsn) == before


def test_a_process_pool_of_its_own_and_ones_own_measure(server):
    backoffs = [Backoff(base_seconds=1), Backoff(base_seconds=2)]
    grid = {"workload": [RECIPE], "backoff": backoffs, "failing": [0.9], "max_attempts": [2]}
    table = sim.sweep(grid, measure=deaths, dsn=server.dsn, progress=False)
    assert table["deaths"].gt(30).all() and table["backoff"].tolist() == backoffs


def test_a_process_that_dies_is_reported_and_not_waited_for(server):
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        table = sim.sweep([{"workload": RECIPE}], executor=pool, measure=crash, dsn=server.dsn, progress=False)
    assert table["error"].str.startswith("BrokenProcessPool").tolist() == [True]


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ([], "the grid of a sweep is empty"),
        ({"workload": [RECIPE], "workers": 4}, "the grid needs a list of values for workers, not 4"),
        ([{"workers": 4}], "point 0 of the grid has no workload"),
    ],
)
def test_a_grid_that_is_none_is_refused(grid, words):
    with pytest.raises(InvalidInput, match=words):
        sim.sweep(grid)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_dask_cluster_runs_a_sweep_with_the_same_result(server):
    distributed = pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    grid = {"workload": [RECIPE], "workers": [1, 3], "seed": [4]}
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        table = sim.sweep(grid, executor=client.get_executor(), dsn=server.dsn, progress=False)
    with ThreadPoolExecutor(1) as pool:
        here = sim.sweep(grid, executor=pool, dsn=server.dsn, progress=False)
    pd.testing.assert_frame_equal(
        table.drop(columns="real_seconds"), here.drop(columns="real_seconds"), check_exact=True
    )
