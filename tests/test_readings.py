"""What notebook 11 says of its measurements follows them."""

from dataclasses import replace

import pandas as pd
import pytest
from test_load import _peers, _pickups, steps

from jobqueue.lab import horizon, load, readings


def result(batch=1, **changed):
    facts = {"version": "18.6", "server": "a server", "processors": 2, "synchronous_commit": "on"}
    setting = load.Setting(enqueue_batch=batch)
    return load.Result(setting, 0.5, 2000.0, 1, facts, steps(**changed), pd.DataFrame(), pd.DataFrame())


def churned():
    """Ten rounds of each variant, whose claims take 1, 1, 2 and 3 ms in the end."""
    rows = [(one.name, 100 * n, 0.1 * n, 0.001 * max(1, place), 1000.0 * (place + 1), 0, 1e6)
            for place, one in enumerate(horizon.VARIANTS) for n in range(1, 21)]  # fmt: skip
    return pd.DataFrame(rows, columns=horizon.COLUMNS)


@pytest.fixture
def given():
    wakes = _pickups().rename(columns={"prefetch": "wake"}).assign(wake=["poll", "notify"])
    return {"woken": wakes, "batched": _pickups(), "churned": churned(), "others": _peers()}


def test_each_question_has_its_answer_in_figures(given):
    slow, quick = result(slots_busy=0.97), replace(result(50), steps=steps().assign(offered=[400, 800, 1600, 3200]))
    assert readings.text(slow, quick, **given).splitlines() == [
        "sustained, with p95 of age within 500 ms: 800 jobs a second (p95 30 ms)",
        "  at 1,600/s 1,600 are done, and p95 is 2 s",
        "what comes first at 1,600/s: workers; the slots are 97% busy with handlers",
        "a job's price: 100 µs of a worker and 900 B of WAL at 200/s, 100 µs of a worker and 900 B of WAL at 1,600/s",
        f"with 50 jobs a commit: 1,600 jobs a second (p95 30 ms), × 2; then: {quick.verdict.reason}",
        "pick-up at 500/s: poll 200 ms in the median, 500 ms at p99; notify 4 ms in the median, 20 ms at p99",
        "one worker, 500/s offered, does 400 with prefetch 0, 500 with prefetch 50",
        "a claim after 2,000 jobs, against the same with no snapshot held (1,000 dead rows):",
        "  held, with watermark: × 1.00, 2,000 dead rows",
        "  held, without watermark: × 2.00, 3,000 dead rows",
        "  held, with watermark and archive: × 3.00, 4,000 dead rows",
        "queues of this kind drain 5,000 (another) to 15,000 (this queue) a second with one worker, a factor of 3",
    ]


def test_a_ramp_that_keeps_every_rate_or_none_says_so(given):
    all_kept, none = result(age_p95_seconds=0.1), replace(result(), target_age_seconds=0.001)
    said = readings.text(all_kept, none, **given)
    assert "within 500 ms: at least 1,600 jobs a second (p95 100 ms)\nwhat comes first: none found" in said
    assert "with 1 jobs a commit: none of these rates (200/s misses it already); then: " in said
