"""The rules of other designs through the same episodes: ours holds, each of theirs lets something through."""

import pytest

from jobqueue.lab import profiles
from jobqueue.sql import SQL


@pytest.fixture(scope="module")
def cells(server):
    return profiles.compare(server.dsn)


def seen(cells, profile):
    return {cell.episode: cell.anomalies for cell in cells if cell.profile == profile and cell.anomalies}


def test_nothing_gets_through_this_queue(cells):
    assert seen(cells, "this queue") == {}


@pytest.mark.parametrize(
    ("profile", "anomaly"),
    [
        ("rescue by age", "two executions at once"),
        ("rescue by age", "recovery takes an hour"),
        ("heartbeat by id", "stale write accepted"),
        ("delete on claim", "lost"),
        ("visibility timeout", "stale write accepted"),
        ("session lock", "two executions at once"),
    ],
)
def test_each_other_rule_lets_something_through(cells, profile, anomaly):
    assert anomaly in {each for anomalies in seen(cells, profile).values() for each in anomalies}


def test_every_cell_has_the_calls_that_led_there(cells):
    assert [cell for cell in cells if not cell.trace] == []


def test_the_matrix_has_a_row_for_each_design_and_a_column_for_each_episode(cells):
    assert profiles.table(cells).shape == (len(profiles.PROFILES), len(profiles.EPISODES))


def test_the_statements_are_ours_again_afterwards(cells):
    assert "epoch = %(epoch)s" in SQL.complete and "locked_until" in SQL.expired
