"""What a ramp of load says: the sustainable rate, the knee, the limit that came first, what to change, a broker or not.

Pure functions of the table of steps (`ramp.Step.row`, one row an offered rate): other data, another verdict.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from . import style

KEEPS_UP = 0.95  # completed ÷ arrived; less, and a backlog grows although nobody has waited long yet
BUSY, FULL = 0.9, 0.95  # shares of slots or of a worker's core, and of the machine's processors
OURS = 0.5  # of the machine's processors, used by the load itself: less, and it is not the load that fills them
# Of the sessions that write, found waiting. A worker's rounds wait for a commit most of the time and lose nothing by
# it, since their batches grow meanwhile; a producer's next job has to wait.
COMMIT_SHARE, ROUNDS_SHARE, LOCK_SHARE = 0.5, 0.8, 0.3
DEAD_TUPLES, SLOWER = 20_000, 4.0  # dead rows in the claim's way, and claims so many times as slow as at first
HEADROOM = 0.7  # of the sustainable rate: what a plan may use (notebook 03 says why)
BATCHED = 10  # jobs a transaction from which on enqueues are batched
LIMITS = ("workers", "commits", "locks", "vacuum", "connections")
WORDS = {
    "workers": "the workers",
    "commits": "commits",
    "locks": "locks",
    "vacuum": "dead rows that vacuum has not removed",
    "connections": "connections",
}
CRITERION = (
    "a broker is indicated when the rate you need is above what this server sustains at the target age, the limit that "
    "came first is the database's own writing (commits or locks), and enqueues are batched already: workers, "
    "connections and vacuum can be changed without one"
)


@dataclass(frozen=True)
class Verdict:
    """Rates in jobs a second; None where the ramp did not reach it. broker: None where no rate was asked for."""

    sustainable_rate: float | None
    missed_rate: float | None
    knee_rate: float | None
    limit: str | None
    limit_rate: float | None
    reason: str
    change: str
    broker: bool | None
    broker_reason: str


def judge(
    steps: pd.DataFrame, *, target_age_seconds: float, required_rate: float | None = None, enqueue_batch: int = 1
) -> Verdict:
    """The verdict of these steps at the p95 of queue age; `pressures` says how near each limit was at each step."""
    steps = steps.sort_values("offered", kind="stable", ignore_index=True)
    good = meets(steps, target_age_seconds)
    sustainable, missed = _bracket(steps["offered"], good)
    near = pressures(steps)
    place = len(steps) - 1 if missed is None else int(np.flatnonzero(~good)[0])
    row, pressed = steps.iloc[place], near.iloc[place]
    limit = str(pressed.idxmax()) if missed is not None and pressed.max() >= 1 else None
    reason, change = _reason(limit, row, enqueue_batch) if limit else _no_reason(missed, pressed, row)
    broker, why = _broker(limit, sustainable, missed, required_rate, enqueue_batch)
    at = float(row["offered"]) if limit else None
    return Verdict(sustainable, missed, knee(steps), limit, at, reason, change, broker, why)


def meets(steps: pd.DataFrame, target_age_seconds: float) -> np.ndarray:
    """Which steps refuse nobody, do what arrives, and keep the p95 of queue age within the target."""
    kept = (steps["completed"] >= KEEPS_UP * steps["arrived"] - 1) & (steps["refused"] == 0)
    return (kept & (steps["age_p95_seconds"] <= target_age_seconds)).to_numpy()


def knee(steps: pd.DataFrame) -> float | None:
    """Where the curve of age turns: the step farthest below the chord from first to last (Satopää et al. 2011).

    None where there are fewer than three steps, or the age does not grow tenfold.
    """
    steps = steps.sort_values("offered", kind="stable", ignore_index=True)
    x, y = steps["offered"].to_numpy(float), steps["age_p95_seconds"].to_numpy(float)
    if len(x) < 3 or y[-1] < 10 * max(y[0], 1e-3):
        return None
    below = (x - x[0]) / (x[-1] - x[0]) - (y - y[0]) / (y[-1] - y[0])
    return float(x[below.argmax()])


def pressures(steps: pd.DataFrame) -> pd.DataFrame:
    """A column a limit, a row a step: 1 is at its limit.

    Where producers fall behind, their waits count, and full workers don't: these do what is sent. Where slots are full
    of handlers, nothing else that a worker waits for counts.
    """
    behind = _behind(steps)
    workers = _workers(steps)
    workers[["slots", "core"]] = workers[["slots", "core"]].mask(behind, 0.0)
    free = (workers["slots"] < 1).astype(float)
    rounds = free * steps["worker_commit_waits"] / ROUNDS_SHARE
    commits = (steps["producer_commit_waits"] / COMMIT_SHARE).where(behind, rounds)
    locks = steps["producer_lock_waits"].where(behind, free * steps["worker_lock_waits"]) / LOCK_SHARE
    slower = steps["claim_p50_seconds"] / max(float(steps["claim_p50_seconds"].iloc[0]), 1e-6) / SLOWER
    return pd.DataFrame({
        "workers": workers.max(axis=1),
        "commits": commits,
        "locks": locks,
        "vacuum": np.minimum(slower.fillna(0), steps["dead_tuples"] / DEAD_TUPLES),
        "connections": np.maximum(steps["sessions"] / steps["max_sessions"] / FULL, steps["refused"].clip(upper=2)),
    })  # fmt: skip


def _behind(steps):
    """Whether jobs wait for their enqueue longer than for their claim afterwards."""
    return steps["lag_p95_seconds"] > 0.5 * steps["pickup_p95_seconds"]


def _workers(steps) -> pd.DataFrame:
    ours = steps["processors_used"] >= OURS
    parts = {"slots": steps["slots_busy"] / BUSY, "core": steps["worker_processor"] / BUSY,
             "machine": (steps["processors_busy"] / FULL).where(ours, 0.0)}  # fmt: skip
    return pd.DataFrame(parts)


def _bracket(rates: pd.Series, good: np.ndarray) -> tuple[float | None, float | None]:
    """The last rate before the first that misses, and that one."""
    bad = np.flatnonzero(~good)
    missed = float(rates[bad[0]]) if len(bad) else None
    kept = rates[: bad[0]] if len(bad) else rates
    return (float(kept.iloc[-1]) if len(kept) else None), missed


def _reason(limit: str, row: pd.Series, enqueue_batch: int) -> tuple[str, str]:
    who = "producer" if _behind(row) else "worker"
    if limit == "workers":
        part = str(_workers(row.to_frame().T.astype(float)).iloc[0].idxmax())
        return _worker_reason(part, row)
    if limit == "commits":
        said = f"{row[f'{who}_commit_waits']:.0%} of the {who}s' sessions wait for a commit"
        return said, _cheaper_commits(who, enqueue_batch)
    if limit == "locks":
        return (f"{row[f'{who}_lock_waits']:.0%} of the {who}s' sessions wait for a lock",
                "fewer sessions with larger batches; `waits` says which lock it is")  # fmt: skip
    if limit == "vacuum":
        return _vacuum_reason(row)
    refused = f", {int(row['refused'])} connections were refused" if row["refused"] else ""
    return (f"{int(row['sessions'])} of {int(row['max_sessions'])} connections are open{refused}",
            "a transaction pooler (workers then take --pooled), or a higher max_connections")  # fmt: skip


def _worker_reason(part: str, row: pd.Series) -> tuple[str, str]:
    if part == "slots":
        return f"the slots are {row['slots_busy']:.0%} busy with handlers", "more slots: concurrency, or more workers"
    if part == "core":
        said = f"each worker process uses {row['worker_processor']:.0%} of a core"
        return said, "one more worker process: a process runs Python on one core"
    return (f"the processors of this machine are {row['processors_busy']:.0%} busy",
            "workers on another machine than the server, or more cores")  # fmt: skip


def _cheaper_commits(who: str, enqueue_batch: int) -> str:
    if who == "worker":
        return "a larger prefetch, so that a commit carries more jobs"
    if enqueue_batch < BATCHED:
        return "enqueue in batches (enqueue_many): a batch is one commit"
    return "faster storage for the WAL: enqueues are batched already"


def _vacuum_reason(row: pd.Series) -> tuple[str, str]:
    dead = f"{style.count(row['dead_tuples'])} dead rows stand before the claim, which takes "
    dead += style.duration(row["claim_p50_seconds"])
    if row["horizon_seconds"] > 5:
        held = style.duration(row["horizon_seconds"])
        return f"{dead}; a snapshot has been held for {held}", "end the session that holds the snapshot"
    return dead, "let autovacuum come sooner and without pauses to jobqueue.job"


def _no_reason(missed: float | None, near: pd.Series, row: pd.Series) -> tuple[str, str]:
    if missed is None:
        return "no step missed the target: the ramp ended before a limit", "nothing; go on with higher rates"
    if row["processors_busy"] >= FULL:
        others = row["processors_busy"] - row["processors_used"]
        said = f"the processors are {row['processors_busy']:.0%} busy, {others:.0%} with what is not this load"
        return said, "the machine: measure where nothing else runs"
    share = f"{min(near.max(), 0.99):.0%}"  # what was not reached never reads 100 %
    said = f"no limit was reached; the nearest, {WORDS[str(near.idxmax())]}, was at {share} of its own"
    return said, "look at `waits`, and at what else this machine does"


def _broker(limit, sustainable, missed, required, enqueue_batch) -> tuple[bool | None, str]:
    """By CRITERION."""
    if sustainable is None:
        kept = "even the lowest rate that was tried missed the target"
    else:
        kept = f"{'' if missed else 'at least '}{style.count(sustainable)} jobs a second are sustained"
    if required is None:
        return None, f"{kept}: below that a broker buys no time; give required_rate to have your own rate judged"
    if sustainable is not None and required <= HEADROOM * sustainable:
        return False, f"{kept}, and {style.count(required)} are needed: no broker, with room to spare"
    if sustainable is not None and required <= sustainable:
        return False, f"{kept}, and {style.count(required)} are needed: no broker, but less than 30 % is left for peaks"
    asked = f"{kept}, and {style.count(required)} are needed"
    if missed is None:
        return None, f"{asked}, which the ramp did not reach: go on with higher rates"
    if limit is None:
        return None, f"{asked}; but what came first is not known: find it before you decide"
    if limit not in ("commits", "locks"):
        return False, f"{asked}; but what came first is {WORDS[limit]}, which a broker does not move"
    if enqueue_batch < BATCHED:
        return False, f"{asked}; but enqueues are not batched yet: each is a commit. Batch them, and measure again"
    return True, f"{asked}; the limit is the database's own writing, and enqueues are batched already: a broker it is"
