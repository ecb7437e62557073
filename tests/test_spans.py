"""Queue age and spans under way, exactly: against the definition at every hundredth of a second, and at their edges."""

import numpy as np
import pytest

from jobqueue.errors import InvalidInput
from jobqueue.lab import spans
from jobqueue.lab.spans import Age

NEVER = float("nan")
STEP = 0.01
INSTANTS = np.arange(0, 25, STEP) + STEP / 2


def some(seed):
    """(due, begun) of a dozen jobs, some of which never begin; instants fall together now and then."""
    rng = np.random.default_rng(seed)
    due = rng.integers(0, 20, rng.integers(0, 12)).astype(float)
    return due, np.where(rng.random(len(due)) < 0.2, NEVER, due + rng.integers(0, 9, len(due)))


def by_definition(due, begun):
    """The greatest time since due of those that are due and have not begun, at INSTANTS."""
    begun = np.where(np.isnan(begun), np.inf, begun)
    return np.array([max((at - d for d, b in zip(due, begun, strict=True) if d <= at < b), default=0.0)
                     for at in INSTANTS])  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_age_is_that_of_the_definition(seed):
    due, begun = some(seed)
    age, expected = Age(due, begun, 0, 25), by_definition(due, begun)
    assert age.at(INSTANTS) == pytest.approx(expected)
    assert age.most == pytest.approx(expected.max(), abs=STEP)
    assert age.share_above(3) == pytest.approx((expected > 3).mean(), abs=0.003)
    for q in (0, 0.3, 0.5, 0.9, 0.99, 1):
        assert age.quantile(q) == pytest.approx(np.quantile(expected, q), abs=0.05)
    edges = [0, 3, 7, 7.5, 18, 25]
    within = [expected[(a < INSTANTS) & (b > INSTANTS)].max() for a, b in zip(edges[:-1], edges[1:], strict=True)]
    assert age.peaks(edges[1:]) == pytest.approx(within, abs=STEP)


def test_a_tail_that_samples_miss_is_counted():
    """One job waits for 36 s of an hour: its p99 is 0, and a second more makes it positive; looks at 0, 6, … min see
    neither."""
    short, longer = (Age([100.0], [100.0 + wait], 0, 3600) for wait in (36.0, 40.0))
    assert (short.quantile(0.99), longer.quantile(0.99)) == (0, pytest.approx(4))
    assert longer.share_above(4) == pytest.approx(0.01) and longer.at(np.arange(0, 3600, 360)).max() == 0


def test_the_quantile_is_where_the_share_above_is_what_is_left():
    due, begun = some(3)
    age = Age(due, begun, 0, 25)
    for q in (0.6, 0.8, 0.95):
        assert age.share_above(age.quantile(q)) == pytest.approx(1 - q)


def test_a_window_counts_from_when_jobs_were_due_before_it():
    age = Age([0.0, 5.0], [12.0, NEVER], 10, 20)
    assert age.at([10, 11.9, 12, 19]) == pytest.approx([10, 11.9, 7, 14])
    assert (age.most, age.share_above(10)) == (15, pytest.approx((2 + 5) / 10))


def test_without_jobs_or_time_there_is_no_age():
    assert (Age([], [], 0, 10).quantile(0.99), Age([], [], 0, 10).most, Age([1], [2], 0, 0).share_above(0)) == (0, 0, 0)
    assert Age([], [], 0, 10).peaks([5, 10]).tolist() == [0, 0]


def test_due_and_begun_need_one_length():
    with pytest.raises(InvalidInput, match="one length: 2 and 1"):
        Age([1, 2], [3], 0, 10)


def test_spans_under_way_hold_their_beginning_and_not_their_end():
    started, ended = np.array([0.0, 1.0, 1.0]), np.array([1.0, NEVER, 2.0])
    assert spans.under_way(started, ended, [0, 0.5, 1, 1.5, 2]).tolist() == [1, 1, 2, 2, 1]
    assert spans.fullest(started, ended) == 1


def test_what_comes_together_is_counted_together_wherever_it_begins():
    assert spans.densest([0, 59, 61, 62, 300], 60) == (3, 59.0)
