"""Many simulations at once, each in a database of its own, on any executor of concurrent.futures.

    grid = {"workload": [recipe], "workers": [4, 8, 16], "lease_seconds": [10, 30, 60], "seed": range(3)}
    table = sim.sweep(grid)                                         # processes of this machine
    table = sim.sweep(grid, executor=Client(...).get_executor())    # a Dask cluster

Where the executor is given and `dsn` is not, each process takes its own machine's server: JOBQUEUE_DSN's or the lab's.
"""

import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from multiprocessing import get_context

import pandas as pd
from tqdm.auto import tqdm

from ..errors import InvalidInput
from . import database

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def summary(run) -> dict:
    """The figures of one run that fit in a row of a table; seconds."""
    waits, jobs = run.jobs["wait_seconds"].dropna(), run.jobs
    rows = {f"wait_{name}_seconds": float(waits.quantile(q)) for name, q in QUANTILES.items()}
    ages = {f"age_{name}_seconds": run.age_quantile(q) for name, q in QUANTILES.items()}
    return {
        "jobs": len(jobs), "done": int(jobs["status"].eq("done").sum()),
        "dead": int(jobs["status"].isin(["dead", "failed"]).sum()), "attempts": len(run.attempts),
        "lease_losses": int(jobs["lease_losses"].sum()), "refused": len(run.refused),
        "wait_mean_seconds": float(waits.mean()), **rows, **ages,
        "age_max_seconds": run.age.most,
        "span_seconds": run.span_seconds, "real_seconds": run.real_seconds,
    }  # fmt: skip


def sweep(grid: Mapping[str, Iterable] | Iterable[Mapping], *, executor: Executor | None = None,
          measure: Callable = summary, dsn: str | None = None, progress: bool = True) -> pd.DataFrame:
    """A row for each point, in the grid's order: its arguments of `sim.run`, what `measure(run)` tells, and `error`.

    grid: {argument: values}, all combinations, or a list of arguments. measure: importable. A run that raises has its
    error's text in the row and nothing measured, and the others go on. Interrupted, nothing is left behind.
    """
    points = _points(grid)
    with _ready(executor, dsn) as (pool, where):
        futures = {pool.submit(one, point, measure, where): place for place, point in enumerate(points)}
        try:
            found = _collected(futures, progress)
        except BaseException:
            for future in futures:
                future.cancel()
            raise
    table = pd.DataFrame([_shown(point) | found[place] for place, point in enumerate(points)])
    table["error"] = pd.Series([found[place]["error"] for place in range(len(points))], dtype=object)
    return table


def one(point: Mapping, measure: Callable, dsn: str | None) -> dict:
    """One run, in whatever process: what was measured and error=None, or the error alone."""
    from . import sim

    try:
        run = sim.run(**{"dsn": dsn, "progress": False, **point})
        return {**measure(run), "error": None}
    except Exception as error:  # a single run that fails is a row of the result
        return {"error": f"{type(error).__name__}: {error}"}


def _points(grid) -> list[dict]:
    if isinstance(grid, Mapping):
        names, values = list(grid), [_values(name, value) for name, value in grid.items()]
        points = [dict(zip(names, combined, strict=True)) for combined in itertools.product(*values)]
    else:
        points = [dict(point) for point in grid]
    if not points:
        raise InvalidInput("the grid of a sweep is empty")
    for place, point in enumerate(points):
        if "workload" not in point:
            raise InvalidInput(f"point {place} of the grid has no workload")
    return points


def _values(name: str, values) -> list:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise InvalidInput(f"the grid needs a list of values for {name}, not {values!r:.100}")
    return list(values)


@contextmanager
def _ready(executor: Executor | None, dsn: str | None):
    """The caller's executor, or processes of ours with one server that all share."""
    if executor is not None:
        yield executor, dsn
        return
    with database.start(fresh=False) if dsn is None else nullcontext(dsn) as where:
        # Spawned: a fork would share this process's connections.
        pool = ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn"))
        try:
            yield pool, where
        finally:
            pool.shutdown(cancel_futures=True)


def _collected(futures: dict[Future, int], progress: bool) -> dict[int, dict]:
    found = {}
    with tqdm(total=len(futures), unit="run", disable=not progress, leave=False) as bar:
        for future in as_completed(futures):
            found[futures[future]] = _outcome(future)
            bar.update()
    return found


def _outcome(future: Future) -> dict:
    """A process that died takes its run with it, and that is said, too."""
    error = future.exception()
    return future.result() if error is None else {"error": f"{type(error).__name__}: {error}"}


def _shown(point: Mapping) -> dict:
    """The arguments that fit in a table: a workload is named by its size alone."""
    return {name: _brief(value) for name, value in point.items() if name != "dsn"}


def _brief(value):
    if isinstance(value, (int, float, str, bool)) or value is None:
        return value
    if hasattr(value, "draw"):
        return f"{len(value)} jobs" if hasattr(value, "__len__") else "recipe"
    return value if type(value).__name__ == "Backoff" else str(value)
