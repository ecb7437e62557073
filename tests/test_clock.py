"""The virtual clock: one session's time, which stands still until told."""
from datetime import UTC, datetime, timedelta, timezone

import psycopg
import pytest

from jobqueue.errors import InvalidInput, JobQueueError
from jobqueue.lab.clock import VirtualClock


def now(conn):
    return conn.execute("select jobqueue.now()").fetchone()[0]


def test_it_begins_at_a_fixed_instant(virtual_conn, clock):
    assert clock.now == now(virtual_conn) == datetime(2026, 1, 1, tzinfo=UTC)


def test_it_stands_still(virtual_conn, clock):
    assert now(virtual_conn) == now(virtual_conn)


def test_advance_moves_it_to_the_microsecond(virtual_conn, clock):
    assert clock.advance(0.000001) == clock.now == now(virtual_conn) == datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC)


def test_set_goes_anywhere_and_is_kept_in_utc(virtual_conn, clock):
    clock.set(datetime(1999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-5))))
    assert (clock.now.isoformat(), now(virtual_conn)) == ("2000-01-01T04:00:00+00:00", clock.now)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "1", True])
def test_advance_refuses_what_is_not_a_step_forward(clock, seconds):
    with pytest.raises(InvalidInput, match="seconds must"):
        clock.advance(seconds)


@pytest.mark.parametrize("instant", [datetime(2026, 1, 1), "2026-01-01", None])
def test_set_refuses_what_is_not_an_aware_datetime(clock, instant):
    with pytest.raises(InvalidInput, match="instant"):
        clock.set(instant)


def test_it_does_not_move_inside_a_transaction(virtual_conn, clock):
    with virtual_conn.transaction(), pytest.raises(JobQueueError, match="time does not move inside a transaction"):
        clock.advance(1)
    assert clock.now == now(virtual_conn) == datetime(2026, 1, 1, tzinfo=UTC)


def test_it_refuses_a_connection_that_is_not_autocommit(virtual_dsn):
    with psycopg.connect(virtual_dsn) as conn, pytest.raises(JobQueueError, match="needs an autocommit connection"):
        VirtualClock(conn)


def test_it_refuses_a_queue_on_the_databases_clock(conn):
    with pytest.raises(JobQueueError, match="only install\\(virtual=True\\) bends time"):
        VirtualClock(conn)


def test_it_refuses_a_database_without_a_queue(server):
    with psycopg.connect(server.dsn, autocommit=True) as conn, pytest.raises(JobQueueError, match="no queue here yet"):
        VirtualClock(conn)


def test_a_session_without_a_clock_has_no_time(virtual_dsn, clock):
    with psycopg.connect(virtual_dsn, autocommit=True) as conn, pytest.raises(psycopg.errors.UndefinedObject):
        now(conn)


def test_each_session_has_its_own(virtual_dsn, virtual_conn, clock):
    with psycopg.connect(virtual_dsn, autocommit=True) as conn:
        VirtualClock(conn).advance(60)
        assert now(conn) - now(virtual_conn) == timedelta(seconds=60)
