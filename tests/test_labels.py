"""Labels are moved apart by the least there is to move, and the check for collisions sees them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from jobqueue.lab import labels

POSITIONS = st.lists(st.floats(-50, 150), min_size=1, max_size=12)


def test_labels_with_room_stay_where_they_are():
    assert labels.spread([10, 50, 90], 10, 0, 100) == [10, 50, 90]


def test_two_labels_at_one_place_part_evenly():
    assert labels.spread([50, 50], 10, 0, 100) == [45, 55]


def test_labels_at_the_edge_are_pushed_inside():
    assert labels.spread([0, 1, 100], 10, 0, 100) == [0, 10, 100]


def test_too_many_labels_share_the_room_there_is():
    assert labels.spread([5, 5, 5], 10, 0, 10) == [0, 5, 10]


@given(POSITIONS)
def test_spread_keeps_order_gap_and_bounds(wanted):
    placed = labels.spread(wanted, 7, 0, 100)
    assert all(-1e-9 <= p <= 100 + 1e-9 for p in placed)
    pairs = sorted(zip(wanted, placed, strict=True))
    assert all(b[1] - a[1] >= 7 - 1e-6 for a, b in zip(pairs, pairs[1:], strict=False))


SPANS = st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 30)).map(lambda p: (p[0], p[0] + p[1])), max_size=20)


@given(SPANS.map(sorted), st.integers(1, 5))
def test_rows_hold_no_two_spans_that_overlap(spans, most):
    chosen = labels.rows(spans, most)
    taken = [(row, *span) for row, span in zip(chosen, spans, strict=True) if row is not None]
    assert not [1 for i, a in enumerate(taken) for b in taken[i + 1 :] if a[0] == b[0] and a[1] < b[2] and b[1] < a[2]]


def test_a_span_without_a_row_is_named():
    assert labels.rows([(0, 10), (1, 5), (6, 9)], 1) == [0, None, None]


def test_a_stair_goes_below_everything_that_it_would_cross():
    assert labels.stairs([(0, 10), (2, 6), (7, 9), (12, 13)]) == [0, 1, 1, 0]


def test_wrapped_lines_are_no_wider_than_the_room_and_lose_no_word():
    text = "Queue age peaked at 7.17 s and was down to a tenth of it 34.5 s later"
    lines = labels.balanced(text, 12, 200, "bold")
    assert " ".join(lines) == text and max(labels.width(line, 12, "bold") for line in lines) <= 200


def test_a_number_and_its_unit_stay_on_one_line():
    lines = labels.wrap("stayed under 3.75 s from 12 min later on", 9, labels.width("stayed under 3.75", 9) + 1)
    assert lines == ["stayed under", "3.75 s from", "12 min later on"]


@pytest.mark.parametrize("sign", "×≤≥<>±")
def test_a_sign_and_its_number_stay_on_one_line(sign):
    room = labels.width(f"against that with held: {sign}", 9) + 1
    assert labels.wrap(f"against that with held: {sign} 1.23", 9, room) == ["against that with held:", f"{sign} 1.23"]


@pytest.mark.parametrize("text", ["short", "x" * 400])
def test_a_cut_text_fits_its_room(text):
    assert labels.width(labels.cut(text, 9, 120), 9) <= 120


def test_colliding_texts_are_reported():
    figure = Figure()
    figure.text(0.5, 0.5, "one")
    figure.text(0.5, 0.505, "two")
    assert labels.clashes(figure) == [("one", "two")]


def test_a_text_outside_the_figure_is_reported():
    figure = Figure()
    figure.text(0.98, 0.5, "over the edge")
    assert labels.clashes(figure) == [("over the edge", "")]


def test_hidden_texts_and_ticks_outside_the_axis_do_not_count():
    figure = Figure()
    ax = figure.add_axes((0.2, 0.2, 0.6, 0.6), xlim=(0, 1))
    ax.set_xticks([0.5, 0.5001, 7], ["a", "", "far"])
    figure.text(0.5, 0.9, "shown")
    figure.text(0.5, 0.9, "hidden", visible=False)
    assert labels.clashes(figure) == []
