"""Evidence charts: no label collides or leaves the paper, however long the names; what is left out is said."""

import pandas as pd
import pytest

from jobqueue.errors import InvalidInput
from jobqueue.lab import charts, labels

LONG = "an actor with a very long name, as a scenario of somebody else may have"
STEPS = pd.DataFrame(
    {
        "at_seconds": [0, 10, -60],
        "actor": ["A", "clock", "B"],
        "action": ["claim", "tick", "heartbeat epoch 1"],
        "answer": ["job 1, epoch 1", "", "APPLIED"],
    }
)
LINES = pd.DataFrame(
    {
        "session": list("ABAB"),
        "action": ["begin", "complete", "commit", "complete"],
        "state": ["returned", "blocked", "returned", "returned"],
        "answer": ["", "by A", "", "LOST"],
    }
)
RESULTS = pd.DataFrame(
    {
        "scenario": ["one job", LONG],
        "depth": [5, 6],
        "states": [2026, 9],
        "transitions": [10731, 40],
        "seconds": [1.0, 2.0],
        "complete": [True, False],
        "violation": ["none", "a lease that has ended changes nothing"],
    }
)
MUTANTS = pd.DataFrame(
    {
        "mutant": ["heartbeat by id", LONG],
        "caught by": ["explorer", "nothing"],
        "after": ["33 states", ""],
        "steps": [4, None],
        "checkers": ["stale write accepted, two valid authorities", ""],
    }
)
ABOUT = {"seed": 1, "postgres": "18.6"}
CHARTS = {
    "a trace": lambda: charts.trace(STEPS, "a lease that has ended changes nothing", **ABOUT),
    "a trace that breaks nothing": lambda: charts.trace(STEPS),
    "a trace of many steps": lambda: charts.trace(pd.concat([STEPS] * 30)),
    "a trace of many long names": lambda: charts.trace(
        pd.DataFrame([{"at_seconds": n, "actor": f"{n} {LONG}", "action": LONG, "answer": LONG * 3} for n in range(9)]),
        LONG * 2,
    ),
    "a trace of nothing": lambda: charts.trace([]),
    "an interleaving": lambda: charts.interleaving(LINES, "the fence is evaluated again after the wait", **ABOUT),
    "an interleaving that never ends": lambda: charts.interleaving(LINES.head(2)),
    "coverage": lambda: charts.coverage(RESULTS, **ABOUT),
    "coverage of nothing": lambda: charts.coverage([]),
    "mutants": lambda: charts.mutant_matrix(MUTANTS, **ABOUT),
    "no mutants": lambda: charts.mutant_matrix([]),
}


def texts(figure):
    return {text.get_text() for text in labels.visible_texts(figure)}


@pytest.mark.parametrize("name", CHARTS)
def test_no_label_collides_or_leaves_the_paper(name):
    assert labels.clashes(CHARTS[name]()) == []


def test_the_step_that_broke_the_promise_is_marked_and_only_that():
    marked = [text for text in texts(CHARTS["a trace"]()) if text.startswith("✖")]
    assert marked == ["✖ heartbeat epoch 1 → APPLIED"]


def test_time_may_run_backwards_in_a_trace():
    assert "3 · −60 s" in texts(CHARTS["a trace"]())


def test_steps_that_are_not_drawn_are_announced():
    assert "Note: the first 40 of 90 rows are drawn" in texts(CHARTS["a trace of many steps"]())


@pytest.mark.parametrize(
    "name, finding",
    [
        ("a trace", "3 steps to a broken promise: a lease that has ended changes nothing"),
        ("an interleaving", "The fence is evaluated again after the wait"),
        ("coverage", "1 violation in 10,771 calls over 2 families of actors"),
        ("mutants", "1 of 2 mutants caught"),
    ],
)
def test_the_title_states_the_finding(name, finding):
    assert CHARTS[name]().finding == finding


def test_a_wait_says_for_whom_and_what_came_of_it():
    assert {"‖ complete blocked by A", "complete → LOST"} <= texts(CHARTS["an interleaving"]())


def test_a_search_that_was_cut_short_is_announced():
    assert any("was ended by its time limit" in text for text in texts(CHARTS["coverage"]()))


def test_a_mutant_that_got_through_says_so():
    assert "✖ got through" in texts(CHARTS["mutants"]())


def test_a_frame_without_its_columns_is_refused():
    with pytest.raises(InvalidInput, match="answer"):
        charts.trace(STEPS.drop(columns="answer"))
