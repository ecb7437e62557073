"""Scripted interleavings: each goes as it must on the shipped statements, and one that goes otherwise says where."""

from dataclasses import replace

import pytest

from jobqueue.lab import database, sessions
from jobqueue.lab.scripts import SCRIPTS
from jobqueue.lab.sessions import Script, Step, Told


@pytest.fixture(scope="module")
def dsn(server, template):
    with database.scratch(server.dsn, template=template) as fresh:
        yield fresh


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_goes_as_it_must(dsn, name):
    played = sessions.play(dsn, SCRIPTS[name])
    assert (played.lines, played.after) == (SCRIPTS[name].expect, SCRIPTS[name].after)


def test_a_step_tells_blocked_returned_and_rows(dsn):
    played = sessions.play(dsn, SCRIPTS["complete behind a reaper"])
    assert played.told == (
        Told("A", "begin", "returned", ""),
        Told("A", "reap", "returned", "[job 1 is ready]", 1),
        Told("B", "complete", "blocked", "by A"),
        Told("A", "commit", "returned", ""),
        Told("B", "complete", "returned", "LOST"),
    )


def test_a_script_is_a_table_too(dsn):
    frame = sessions.play(dsn, SCRIPTS["reap beside an open heartbeat"]).frame()
    assert (list(frame.columns), frame["rows"].dropna().tolist()) == (
        ["session", "action", "state", "answer", "rows"],
        [0, 0],
    )


def test_the_first_line_that_is_not_as_expected_is_named(dsn):
    script = SCRIPTS["complete behind a reaper"]
    other = replace(script, expect=(*script.expect[:4], "B complete → returned APPLIED"))
    assert sessions.play(dsn, other).differs_at == 5


def test_rows_at_the_end_that_are_not_as_expected_count_too(dsn):
    other = replace(SCRIPTS["complete behind a reaper"], after="job 1 done epoch 1")
    assert sessions.play(dsn, other).differs_at == 6


def test_a_session_that_waits_for_ever_is_ended(dsn):
    script = SCRIPTS["complete behind a reaper"]
    stuck = replace(script, steps=script.steps[:3], expect=())
    assert sessions.play(dsn, stuck).lines[-1] == "B complete → never came back"


def test_an_error_of_a_step_is_told_and_the_script_goes_on(dsn):
    script = Script(
        "wrong",
        "",
        lambda queue, notes: None,
        (Step("A", "claim", lambda queue, notes: queue.claim("")), Step("A", "begin")),
        (),
    )
    assert sessions.play(dsn, script).lines == ("A claim → raised InvalidInput", "A begin → returned")


def test_the_table_of_scripts_says_which_waited(dsn):
    table = sessions.table(
        [sessions.play(dsn, SCRIPTS[name]) for name in ("adopt behind a heartbeat", "reap beside an open heartbeat")]
    )
    assert table[["waits", "as it must"]].values.tolist() == [[1, True], [0, True]]
