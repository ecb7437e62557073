"""Backoff: the formulas, their bounds, their means and what is refused."""

import random
import statistics
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from jobqueue.backoff import CHAIN_LINKS, JITTERS, SHAPES, Backoff
from jobqueue.errors import InvalidInput, JobQueueError

seconds = st.one_of(st.just(0), st.integers(0, 100_000), st.floats(0, 100_000))
attempts = st.one_of(st.integers(1, 200), st.integers(1, 10_000))


@st.composite
def backoffs(draw):
    floor, ceiling = sorted((draw(seconds), draw(seconds)))
    return Backoff(
        draw(st.sampled_from(SHAPES)),
        draw(seconds),
        draw(st.floats(1, 1_000_000)),
        floor,
        ceiling,
        draw(st.sampled_from(JITTERS)),
    )


def plain(**settings):
    return Backoff(jitter="none", **settings)


def delays(backoff, attempt, n, seed=7):
    rng = random.Random(seed)
    return [backoff.delay(attempt, rng) for _ in range(n)]


@given(backoffs(), attempts, st.integers(0, 2**32))
def test_a_delay_lies_between_its_floor_and_its_ceiling(backoff, attempt, seed):
    assert backoff.floor_seconds <= backoff.delay(attempt, random.Random(seed)) <= backoff.ceiling_seconds


@given(backoffs(), attempts, st.integers(0, 2**32))
def test_the_same_rng_state_gives_the_same_delay(backoff, attempt, seed):
    assert backoff.delay(attempt, random.Random(seed)) == backoff.delay(attempt, random.Random(seed))


@given(backoffs(), attempts, st.integers(0, 2**32))
def test_jitter_only_shortens_the_plain_delay(backoff, attempt, seed):
    assume(backoff.jitter != "decorrelated")
    longest = Backoff(**{**vars(backoff), "jitter": "none"}).delay(attempt, random.Random(0))
    assert backoff.delay(attempt, random.Random(seed)) <= longest


@given(backoffs(), st.integers(1, 9_999))
def test_without_jitter_a_later_attempt_never_waits_less(backoff, attempt):
    steady = Backoff(**{**vars(backoff), "jitter": "none"})
    assert steady.delay(attempt, random.Random(0)) <= steady.delay(attempt + 1, random.Random(0))


@pytest.mark.parametrize(
    ("backoff", "expected"),
    [
        (plain(shape="constant", base_seconds=3), [3, 3, 3, 3, 3]),
        (plain(shape="linear", base_seconds=3), [3, 6, 9, 12, 15]),
        (plain(), [1, 2, 4, 8, 16]),
        (plain(base_seconds=0.5, factor=3, ceiling_seconds=5), [0.5, 1.5, 4.5, 5, 5]),
        (plain(floor_seconds=3), [3, 3, 4, 8, 16]),
        (plain(base_seconds=0), [0, 0, 0, 0, 0]),
        (plain(base_seconds=10, ceiling_seconds=4), [4, 4, 4, 4, 4]),
        (plain(floor_seconds=2, ceiling_seconds=2), [2, 2, 2, 2, 2]),
    ],
)
def test_the_shapes_follow_their_formulas(backoff, expected):
    assert [backoff.delay(attempt, random.Random(0)) for attempt in range(1, 6)] == expected


def test_the_default_is_exponential_with_full_jitter_up_to_an_hour():
    assert Backoff() == Backoff("exponential", 1, 2, 0, 3600, "full")


@pytest.mark.parametrize("jitter", JITTERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_attempt_ten_thousand_does_not_overflow(shape, jitter):
    extremes = [Backoff(shape, base, factor, 0, 3600, jitter) for base in (0, 1e-300, 3600) for factor in (1, 2, 1e6)]
    assert all(0 <= b.delay(k, random.Random(1)) <= 3600 for b in extremes for k in (1, 1024, 1025, 10_000))


def test_a_base_of_zero_stays_zero_where_the_power_overflows():
    assert plain(base_seconds=0).delay(10_000, random.Random(1)) == 0


@pytest.mark.parametrize("jitter", ["full", "equal", "decorrelated"])
def test_ten_thousand_draws_stay_in_bounds_and_a_thousand_jobs_failing_together_spread(jitter):
    backoff = Backoff(jitter=jitter, ceiling_seconds=60)
    for attempt in (1, 2, 3, 5, 8, 13, 20):
        drawn = delays(backoff, attempt, 10_000)
        assert min(drawn) >= 0 and max(drawn) <= 60 and statistics.stdev(drawn[:1000]) > 0.05


def mean_bound(drawn):
    """Six standard errors: a seed fails this about twice in a thousand million."""
    return 6 * statistics.stdev(drawn) / len(drawn) ** 0.5


@pytest.mark.parametrize("attempt", [1, 2, 5, 8])
@pytest.mark.parametrize(
    ("jitter", "mean"),
    [
        ("full", lambda d, k: d / 2),
        ("equal", lambda d, k: 3 * d / 4),
        ("decorrelated", lambda d, k: 2 * 1.5**k - 1),  # E[dₖ] = (base + 3·E[dₖ₋₁]) / 2, base 1
    ],
)
def test_the_means_are_those_of_the_closed_form(jitter, mean, attempt):
    drawn = delays(Backoff(jitter=jitter, ceiling_seconds=1e9), attempt, 20_000)
    assert abs(statistics.fmean(drawn) - mean(2 ** (attempt - 1), attempt)) < mean_bound(drawn)


def test_equal_jitter_keeps_at_least_half_of_the_delay():
    assert min(delays(Backoff(jitter="equal"), 5, 5_000)) >= 8


def test_full_jitter_fills_its_whole_range():
    tenths = {int(drawn / 1.6) for drawn in delays(Backoff(), 5, 1_000)}
    assert tenths == set(range(10))


class CountingRandom(random.Random):
    links = 0

    def uniform(self, a, b):
        self.links += 1
        return super().uniform(a, b)


@pytest.mark.parametrize(("attempt", "links"), [(1, 1), (7, 7), (CHAIN_LINKS, 64), (10_000, 64)])
def test_a_decorrelated_chain_is_redrawn_from_attempt_1_with_at_most_64_links(attempt, links):
    rng = CountingRandom(3)
    Backoff(jitter="decorrelated").delay(attempt, rng)
    assert rng.links == links


def test_a_decorrelated_chain_multiplies_by_at_most_three():
    assert all(1 <= drawn <= 3**3 for drawn in delays(Backoff(jitter="decorrelated"), 3, 5_000))


@pytest.mark.parametrize("shape", SHAPES)
def test_decorrelated_jitter_does_not_depend_on_the_shape(shape):
    assert Backoff(shape, jitter="decorrelated").delay(6, random.Random(2)) == Backoff(jitter="decorrelated").delay(
        6, random.Random(2)
    )


def test_the_floor_is_applied_last():
    drawn = delays(Backoff(floor_seconds=10, ceiling_seconds=20), 5, 5_000)
    assert min(drawn) == 10 and 10 < max(drawn) <= 16


def test_delays_use_no_global_random_state():
    random.seed(1)
    before = random.getstate()
    delays(Backoff(), 3, 10)
    assert random.getstate() == before


def test_a_delay_is_a_float_and_a_backoff_is_frozen():
    backoff = plain(base_seconds=2)
    with pytest.raises(FrozenInstanceError):
        backoff.base_seconds = 3
    assert isinstance(backoff.delay(1, random.Random(0)), float)


NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shape": "fibonacci"}, "shape must be one of constant, linear, exponential, not 'fibonacci'"),
        ({"shape": None}, "shape must be one of constant, linear, exponential, not None"),
        ({"shape": ["linear"]}, "shape must be one of constant, linear, exponential, not ['linear']"),
        ({"jitter": "half"}, "jitter must be one of none, full, equal, decorrelated, not 'half'"),
        ({"jitter": None}, "jitter must be one of none, full, equal, decorrelated, not None"),
        ({"base_seconds": NAN}, "base_seconds must be a finite number of seconds, not nan"),
        ({"base_seconds": INFINITE}, "base_seconds must be a finite number of seconds, not inf"),
        ({"base_seconds": True}, "base_seconds must be a finite number of seconds, not True"),
        ({"base_seconds": "1"}, "base_seconds must be a finite number of seconds, not '1'"),
        ({"base_seconds": -1}, "base_seconds must lie in 0–3,162,240,000 seconds, not -1"),
        ({"floor_seconds": -0.5}, "floor_seconds must lie in 0–3,162,240,000 seconds, not -0.5"),
        ({"floor_seconds": None}, "floor_seconds must be a finite number of seconds, not None"),
        ({"ceiling_seconds": INFINITE}, "ceiling_seconds must be a finite number of seconds, not inf"),
        ({"ceiling_seconds": -1}, "ceiling_seconds must lie in 0–3,162,240,000 seconds, not -1"),
        ({"ceiling_seconds": 1e12}, "ceiling_seconds must lie in 0–3,162,240,000 seconds, not 1,000,000,000,000.0"),
        ({"factor": 0.5}, "factor must be a number in 1–1,000,000, not 0.5"),
        ({"factor": NAN}, "factor must be a number in 1–1,000,000, not nan"),
        ({"factor": True}, "factor must be a number in 1–1,000,000, not True"),
        ({"factor": 10**400}, f"factor must be a number in 1–1,000,000, not {10**400}"),
        (
            {"floor_seconds": 5, "ceiling_seconds": 4},
            "floor_seconds (5) must not exceed ceiling_seconds (4)",
        ),
    ],
)
def test_a_bad_setting_is_refused_with_its_name(settings, message):
    with pytest.raises(InvalidInput) as refused:
        Backoff(**settings)
    assert str(refused.value) == message
    assert isinstance(refused.value, JobQueueError) and isinstance(refused.value, ValueError)


@pytest.mark.parametrize("attempt", [0, -1, 1.0, True, None, "1", NAN])
def test_a_bad_attempt_is_refused(attempt):
    with pytest.raises(InvalidInput, match="^attempt must "):
        Backoff().delay(attempt, random.Random(0))


@pytest.mark.parametrize(("rng", "name"), [(None, "NoneType"), (random, "module"), (7, "int")])
def test_only_a_random_of_the_callers_own_is_accepted(rng, name):
    with pytest.raises(InvalidInput, match=f"^rng must be a random.Random, not {name}$"):
        Backoff().delay(1, rng)


def test_delays_are_the_same_in_every_process():
    """A seed must mean the same run tomorrow: Mersenne Twister is stable, and so is our order of draws."""
    drawn = [round(Backoff(jitter=jitter).delay(5, random.Random(7)), 9) for jitter in JITTERS]
    assert drawn == [16.0, 5.181324237, 10.590662119, 3.165267943]
