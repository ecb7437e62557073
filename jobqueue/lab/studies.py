"""The runs that notebooks 01, 02, 03 and 05 show: each a function from parameters to frames, repeatable by its seed."""

import random
from collections.abc import Mapping, Sequence
from datetime import datetime

import numpy as np
import pandas as pd
import psycopg

from .. import Backoff, Queue, limits
from ..errors import InvalidInput
from ..model import Job
from . import database, faults, sim, theory, workload
from .clock import BEGINNING, VirtualClock, elapsed
from .observe import recoveries
from .simulation import SIM
from .workload import Recipe, Service, Workload

STEPS = ["seconds", "who", "does", "answer"]
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
KILLED_LEASE_SECONDS = 30.0


# ---- one job, one lease ----------------------------------------------------------------------------------------------


def as_row(job: Job, now: datetime) -> dict:
    """What a job's row says at an instant, in seconds since it was created."""
    return {
        "seconds": (now - job.created_at).total_seconds(), "status": job.status, "locked_by": job.locked_by or "",
        "epoch": job.epoch, "attempts": job.attempts, "lease_losses": job.lease_losses,
        "locked_until": f"{(job.locked_until - job.created_at).total_seconds():g}" if job.locked_until else "",
    }  # fmt: skip


def takeover(queue: Queue, clock: VirtualClock, *, lease_seconds: float, heartbeats: int,
             late_seconds: float) -> tuple[int, pd.DataFrame, list[dict]]:
    """worker-1 claims a job, renews its lease `heartbeats` times and falls silent; worker-2 tries to adopt it, once a
    second, and completes it four seconds later; after `late_seconds` more, worker-1 says that it has done it.

    Returns the job's id, the steps (seconds, who, does, answer) and the leases (epoch, started).
    """
    begun, steps, job_id = clock.now, [], queue.enqueue("report.build").id

    def tell(who, does, answer):
        steps.append(((clock.now - begun).total_seconds(), who, does, answer))

    (first,) = queue.claim("worker-1", lease_seconds=lease_seconds)
    starts = [{"epoch": first.epoch, "started": clock.now}]
    tell("worker-1", "claim", f"epoch {first.epoch}")
    for _ in range(heartbeats):
        clock.advance(lease_seconds / 3)
        tell("worker-1", "heartbeat", queue.heartbeat(first, lease_seconds=lease_seconds).name)
    second = None
    while second is None:
        clock.advance(1)
        second = queue.adopt(job_id, "worker-2", lease_seconds=lease_seconds)
        tell("worker-2", "adopt", f"epoch {second.epoch}" if second else "no: the lease is in force")
    starts.append({"epoch": second.epoch, "started": clock.now})
    clock.advance(4)
    tell("worker-2", "complete", queue.complete(second).name)
    clock.advance(late_seconds)
    tell("worker-1", "complete", queue.complete(first).name)
    return job_id, pd.DataFrame(steps, columns=STEPS), starts


# ---- backoff and jitter ----------------------------------------------------------------------------------------------


def delays(policies: Mapping[str, Backoff], *, attempts: int, draws: int, seed: int) -> pd.DataFrame:
    """policy, attempt, delay_seconds: so many draws of each policy's delay after attempts 1 to `attempts`."""
    rng = random.Random(seed)
    rows = [(name, attempt, backoff.delay(attempt, rng)) for name, backoff in policies.items()
            for attempt in range(1, attempts + 1) for _ in range(draws)]
    return pd.DataFrame(rows, columns=["policy", "attempt", "delay_seconds"])


def herd(jitters: Sequence[str], *, jobs: int, base_seconds: float, seed: int, dsn: str) -> pd.DataFrame:
    """policy, delay_seconds: how long each of `jobs` waits whose workers were all killed at one instant.

    Their leases were given at one instant, so they end at one; the reaper's backoff is all that spreads the retries.
    The same leases are reaped with each jitter, and rolled back.
    """
    with database.scratch(dsn) as own, psycopg.connect(own, autocommit=True) as conn:
        queue = Queue(conn)
        queue.install(virtual=True)
        clock = VirtualClock(conn)
        _enqueue_and_claim(queue, jobs)
        clock.advance(KILLED_LEASE_SECONDS)
        parts = [_herd(conn, jitter, base_seconds, seed) for jitter in jitters]
    return pd.concat(parts, ignore_index=True)


def _enqueue_and_claim(queue: Queue, jobs: int) -> None:
    for begin in range(0, jobs, limits.BATCH):
        count = min(limits.BATCH, jobs - begin)
        queue.enqueue_many([{"type": "job"}] * count)
        queue.claim("killed", lease_seconds=KILLED_LEASE_SECONDS, limit=count)


def _herd(conn, jitter, base_seconds, seed):
    queue = Queue(conn, rng=random.Random(f"{seed}/backoff"))
    backoff = Backoff("constant", base_seconds=base_seconds, jitter=jitter)
    with conn.transaction(force_rollback=True):
        while queue.reap(limit=limits.BATCH, backoff=backoff):
            pass
        delays = [float(seconds) for (seconds,) in conn.execute(SIM.delays)]
    return pd.DataFrame({"policy": jitter, "delay_seconds": delays})


def contention(policies: Mapping[str, Backoff], competitors: Sequence[int], *, seeds: Sequence[int],
               dsn: str) -> pd.DataFrame:
    """policy, competitors, seed, calls, seconds: n jobs begin at one instant and need a service that bears one call a
    second, refused ones included; how many calls, and how long, until all of them are done.

    Each policy and number is a type with a service of its own, so that one run a seed holds them all.
    """
    rows = [row for seed in seeds for row in _competitions(policies, competitors, seed, dsn)
            if seed == seeds[0] or policies[row[0]].jitter != "none"]
    found = pd.DataFrame(rows, columns=["policy", "competitors", "seed", "calls", "seconds"])
    return found.sort_values("policy", key=lambda names: names.map(list(policies).index), kind="stable",
                             ignore_index=True)


def _competitions(policies, competitors, seed, dsn):
    groups = {f"{name}/{n}": (name, n) for name in policies for n in competitors}
    types = [kind for kind, (_, n) in groups.items() for _ in range(n)]
    total = len(types)
    together = Workload(np.zeros(total), types, np.full(total, 0.1), ["done"] * total)
    run = sim.run(together, workers=1, concurrency=total, seed=seed, dsn=dsn, max_attempts=10_000, samples=1,
                  backoff={kind: policies[name] for kind, (name, _) in groups.items()}, progress=False,
                  faults=[faults.down(kind, at=0, seconds=0, capacity=1) for kind in groups])
    by_type = run.attempts.groupby("type")["ended"]
    calls, ended = by_type.size(), by_type.max()
    return [(name, n, seed, int(calls[kind]), float(ended[kind])) for kind, (name, n) in groups.items()]


def dependency(backoff: Backoff, *, rate: float, capacity: float | None, max_attempts: int, seed: int, dsn: str,
               down_at: float = 300, down_seconds: float = 600, until_seconds: float = 1500) -> sim.Run:
    """Calls to a service that is away for a while, until the end of the time, a job each.

    Back again, it bears `capacity` calls a second, refused ones included, or any number where None.
    """
    calls = workload.poisson(rate=rate, service=workload.exponential(0.5), hours=until_seconds / 3600)
    away = faults.down("job", at=down_at, seconds=down_seconds, capacity=capacity)
    return sim.run(calls, workers=1, concurrency=200, backoff=backoff, faults=[away], max_attempts=max_attempts,
                   seed=seed, dsn=dsn, until_seconds=until_seconds, sample_seconds=10, progress=False)


def recovery(run: sim.Run, back_at: float) -> dict:
    """What the absence of a service came to: calls, dead jobs, and when nothing waited for a retry, for the first time
    after it was back."""
    calm = _calm_at(run, back_at)
    after = run.attempts[run.attempts["started"] >= back_at]
    return {
        "jobs": len(run.jobs), "calls": len(run.attempts), "calls after it was back": len(after),
        "refused then": int((after["outcome"] == "failed").sum()), "dead": int((run.jobs["status"] == "dead").sum()),
        "minutes until no retry waited": round((calm - back_at) / 60, 1),
    }  # fmt: skip


def _calm_at(run: sim.Run, since: float) -> float:
    """The first instant from then on at which no job is between its first failure and its end; inf: none was seen."""
    failed = run.attempts[run.attempts["outcome"] == "failed"].groupby("job_id")["ended"].min()
    ended = elapsed(run.jobs.set_index("id")["finished_at"]).fillna(np.inf)
    for began, end in sorted(zip(failed, ended[failed.index], strict=True)):
        if began > since:
            break
        since = max(since, end)
    return since


# ---- queue age under load --------------------------------------------------------------------------------------------


def at_load(utilisation: float, *, service: Service, workers: int, jobs: int, seed: int) -> dict:
    """The arguments of `sim.run` for Poisson arrivals at a utilisation."""
    if not 0 < utilisation < 1:
        raise InvalidInput(f"utilisation must lie between 0 and 1, or the queue grows for ever: {utilisation}")
    rate = utilisation * workers / service.mean_seconds
    recipe = workload.poisson(rate=rate, service=service, n=jobs)
    return {"workload": recipe, "workers": workers, "seed": seed, "samples": 1000, "lease_seconds": 3600}


def load_figures(run: sim.Run) -> dict:
    """Quantiles of queue age (`Run.age_quantile`), and the mean wait with half of its 95 % interval.

    The first tenth began in an empty queue and is left out of the wait.
    """
    waits = run.jobs["wait_seconds"].to_numpy()[len(run.jobs) // 10 :]
    mean, error = theory.batch_mean_error(waits)
    ages = {name: run.age_quantile(q) for name, q in QUANTILES.items()}
    return {**ages, "max": run.age.most, "wait_mean": mean, "wait_error": error}


def load_points(utilisations: Sequence[float], *, service: Service, workers: int, jobs: int, seed: int, dsn: str,
                executor=None) -> pd.DataFrame:
    """A row a utilisation: the figures of `load_figures`, and the mean wait by Erlang C or Pollaczek and Khinchine."""
    grid = [at_load(u, service=service, workers=workers, jobs=jobs, seed=seed) for u in utilisations]
    table = sim.sweep(grid, measure=load_figures, dsn=dsn, executor=executor, progress=False)
    if len(failed := table["error"].dropna()):
        raise InvalidInput(f"a run of the sweep failed: {failed.iloc[0]}")
    table.insert(0, "utilisation", list(utilisations))
    mean = service.mean_seconds
    table["wait_theory"] = [theory.mean_wait(u * workers / mean, mean, workers, service.scv) for u in utilisations]
    return table[["utilisation", *QUANTILES, "max", "wait_mean", "wait_error", "wait_theory"]]


def office_week(rate: float, *, weekend: float, service: Service) -> Recipe:
    """Seven office days from virtual time's first, a Thursday; `rate` a second on working days, a share at weekends."""
    two, rest = (workload.daily(rate, service=service, days=days) for days in (2, 3))
    quiet = workload.daily(rate * weekend, service=service, days=2)
    return two + quiet.delayed(2 * 86_400) + rest.delayed(4 * 86_400)


def instants(samples: pd.DataFrame) -> pd.DataFrame:
    """Samples of a run with `at`, the instant of each in virtual time."""
    return samples.assign(at=pd.Timestamp(BEGINNING) + pd.to_timedelta(samples["time_seconds"], unit="s"))


# ---- the length of a lease -------------------------------------------------------------------------------------------


def killed(leases: Sequence[float], *, workers: int, reap_seconds: float, seed: int, dsn: str) -> pd.DataFrame:
    """lease_seconds, recovery_seconds: each of `workers` is killed at a random instant in the middle of a job."""
    return pd.concat([_killed(lease, workers, reap_seconds, seed, dsn) for lease in leases], ignore_index=True)


def _killed(lease, workers, reap_seconds, seed, dsn):
    at = 2 * lease + np.random.default_rng([seed, 1]).uniform(0, lease, workers)
    plan = [faults.kill(worker, at=float(at[worker])) for worker in range(workers)]
    run = _long_jobs(lease, workers, plan, reap_seconds, seed, dsn, until_seconds=4 * lease + 2 * reap_seconds + 1)
    back = recoveries(run.attempts, faults.frame(plan))["ready_again_seconds"]
    return pd.DataFrame({"lease_seconds": lease, "recovery_seconds": back})


def frozen(leases: Sequence[float], *, workers: int, mean_freeze_seconds: float, reap_seconds: float, seed: int,
           dsn: str) -> pd.DataFrame:
    """lease_seconds, freezes, expired, refused: each of `workers` freezes once, for an exponential time."""
    rows = [_frozen(lease, workers, mean_freeze_seconds, reap_seconds, seed, dsn) for lease in leases]
    return pd.DataFrame(rows, columns=["lease_seconds", "freezes", "expired", "refused"])


def _frozen(lease, workers, mean_freeze_seconds, reap_seconds, seed, dsn):
    rng = np.random.default_rng([seed, 2])
    at, seconds = 2 * lease + rng.uniform(0, lease, workers), rng.exponential(mean_freeze_seconds, workers)
    plan = [faults.freeze(worker, float(at[worker]), float(seconds[worker])) for worker in range(workers)]
    end = float((at + seconds).max()) + lease + reap_seconds
    run = _long_jobs(lease, workers, plan, reap_seconds, seed, dsn, until_seconds=end)
    expired = recoveries(run.attempts, faults.frame(plan))["worker"].nunique()
    return lease, workers, expired, int((run.refused["outcome"] == "LOST").sum())


def _long_jobs(lease, workers, plan, reap_seconds, seed, dsn, until_seconds):
    """A job for each worker, begun at random within the first lease, that outlasts the run by heartbeats."""
    begin = np.random.default_rng([seed, 0]).uniform(0, lease, workers)
    jobs = Workload(begin, ["job"] * workers, np.full(workers, 2 * until_seconds), ["done"] * workers)
    return sim.run(jobs, workers=workers, lease_seconds=lease, faults=plan, reap_seconds=reap_seconds, seed=seed,
                   dsn=dsn, until_seconds=until_seconds, samples=1, progress=False)


def heartbeats(leases: Sequence[float], *, run: sim.Run, beats: int = 3) -> pd.DataFrame:
    """What renewing costs: heartbeats a job, over the attempts of a run and by the closed form for exponential times.

    A handler that runs for S, renewed every h = lease ÷ beats, sends floor(S/h) of them; E = 1 ÷ (exp(h/mean) − 1).
    """
    took = (run.attempts["ended"] - run.attempts["started"]).to_numpy()
    rows = [(lease, np.floor(took / (lease / beats)).mean(), 1 / np.expm1(lease / beats / took.mean()))
            for lease in leases]
    table = pd.DataFrame(rows, columns=["lease_seconds", "heartbeats_per_job", "closed_form"])
    return table.assign(a_second_per_1000_running=1000 * table["heartbeats_per_job"] / took.mean())
