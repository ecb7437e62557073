"""What notebook 11 reads off its own measurements: a sentence a question, each computed from the frames.

    print(readings.text(result, changed, woken=woken, batched=batched, churned=churned, others=others))
"""

from collections.abc import Iterator

import pandas as pd

from . import horizon, load, peers
from .style import count, duration


def text(
    result: load.Result,
    changed: load.Result,
    *,
    woken: pd.DataFrame,
    batched: pd.DataFrame,
    churned: pd.DataFrame,
    others: pd.DataFrame,
) -> str:
    """result, changed: ramps with one and with more jobs a commit. woken, batched: `load.vary` of wake and of prefetch.
    churned: `horizon.study`; others: `peers.drains`."""
    lines = [*_ramp(result), *_change(result, changed), *_wake(woken), *_batch(batched), *_held(churned)]
    return "\n".join([*lines, *_others(others)])


def _ramp(result: load.Result) -> Iterator[str]:
    found, steps, target = result.verdict, result.steps, duration(result.target_age_seconds)
    yield f"sustained, with p95 of age within {target}: {_kept(result)}"
    if found.missed_rate:
        row = steps[steps["offered"] == found.missed_rate].iloc[0]
        yield f"  at {count(row['offered'])}/s {count(row['completed'])} are done, and p95 is {_age(row)}"
    at = f" at {count(found.limit_rate)}/s" if found.limit else ""
    yield f"what comes first{at}: {found.limit or 'none found'}; {found.reason}"
    least, most = steps.iloc[0], steps.iloc[-1]
    prices = [f"{_price(row)} at {count(row['offered'])}/s" for row in (least, most)]
    yield f"a job's price: {', '.join(prices)}"


def _price(row: pd.Series) -> str:
    return f"{1000 * row['worker_cpu_ms_per_job']:,.0f} µs of a worker and {row['wal_bytes_per_job']:,.0f} B of WAL"


def _change(result: load.Result, changed: load.Result) -> Iterator[str]:
    before, after = result.verdict.sustainable_rate, changed.verdict.sustainable_rate
    times = f", × {after / before:.3g}" if before and after else ""
    jobs = changed.setting.enqueue_batch
    yield f"with {jobs} jobs a commit: {_kept(changed)}{times}; then: {changed.verdict.reason}"


def _kept(result: load.Result) -> str:
    found = result.verdict
    if not found.sustainable_rate:
        return f"none of these rates ({count(found.missed_rate)}/s misses it already)"
    row = result.steps[result.steps["offered"] == found.sustainable_rate].iloc[0]
    least = "" if found.missed_rate else "at least "
    return f"{least}{count(found.sustainable_rate)} jobs a second (p95 {_age(row)})"


def _age(row: pd.Series) -> str:
    return duration(row["age_p95_seconds"])


def _wake(woken: pd.DataFrame) -> Iterator[str]:
    one = woken.set_index("wake")
    said = [f"{name} {duration(row['pickup_p50_seconds'])} in the median, {duration(row['pickup_p99_seconds'])} at p99"
            for name, row in one.iterrows()]  # fmt: skip
    yield f"pick-up at {count(woken['offered'].max())}/s: {'; '.join(said)}"


def _batch(batched: pd.DataFrame) -> Iterator[str]:
    said = [f"{count(row['completed'])} with prefetch {row['prefetch']:.0f}" for _, row in batched.iterrows()]
    yield f"one worker, {count(batched['offered'].max())}/s offered, does {', '.join(said)}"


def _held(churned: pd.DataFrame) -> Iterator[str]:
    table = horizon.table(churned).set_index("variant")
    free = next(one.name for one in horizon.VARIANTS if not one.held)
    jobs, dead = count(churned["jobs"].max()), count(table.at[free, "dead_tuples"])
    yield f"a claim after {jobs} jobs, against the same with no snapshot held ({dead} dead rows):"
    for name, row in table.drop(index=free).iterrows():
        times = row["claim_last_ms"] / table.at[free, "claim_last_ms"]
        yield f"  {name}: × {times:.2f}, {count(row['dead_tuples'])} dead rows"


def _others(others: pd.DataFrame) -> Iterator[str]:
    others = others[~peers.floors(others)]
    best, worst = others.loc[others["drain_1"].idxmax()], others.loc[others["drain_1"].idxmin()]
    yield (
        f"queues of this kind drain {count(worst['drain_1'])} ({worst['name']}) to {count(best['drain_1'])} "
        f"({best['name']}) a second with one worker, a factor of {best['drain_1'] / worst['drain_1']:,.0f}"
    )
