"""A workload fed to the real queue: in time, once whatever happens, and told what is wrong."""

import re

import psycopg
import pytest

from jobqueue import InfrastructureError, Queue
from jobqueue.errors import InvalidInput
from jobqueue.lab import database
from jobqueue.lab.fleet import FleetError
from jobqueue.lab.replay import Feed
from jobqueue.lab.workload import Workload


@pytest.fixture
def steady():
    """Twenty jobs, one every 50 ms, of two types; the last fails."""
    return Workload([i / 20 for i in range(20)], ["a", "b"] * 10, [0.1] * 20, ["done"] * 19 + ["failed"])


def rows(conn):
    return conn.execute("select type, payload, max_attempts from jobqueue.job order by id").fetchall()


def test_each_job_is_enqueued_when_its_time_has_come(dsn, conn, steady):
    feed = Feed(dsn, steady.scaled(0.5), time_scale=2)
    feed.run(progress=False)
    late = conn.execute("""select extract(epoch from created_at - first_value(created_at) over (order by id))::float8
                           from jobqueue.job order by id""").fetchall()
    assert (feed.enqueued, feed.total, feed.unfinished()) == (20, 20, 20)
    assert all(-0.02 < at - i / 20 < 0.5 for i, (at,) in enumerate(late))
    assert rows(conn)[-1] == ("b", {"seconds": 0.1, "outcome": "failed"}, 5)


def test_options_go_into_every_payload_and_outcomes_can_be_left_aside(dsn, conn, steady):
    Feed(dsn, steady.head(20).scaled(100), outcomes=False, max_attempts=7, options={"record": True}).run(progress=False)
    assert rows(conn)[-1] == ("b", {"seconds": 0.001, "record": True}, 7)


def test_what_was_fed_is_not_fed_again(dsn, conn, steady):
    first, second = Feed(dsn, steady, time_scale=100), Feed(dsn, steady, time_scale=100)
    first.run(progress=False)
    second.run(progress=False)
    assert (second.ids, len(rows(conn))) == (first.ids, 20)


def test_a_feed_that_was_stopped_goes_on_where_it_was(dsn, conn, steady):
    feed = Feed(dsn, steady).start()
    while feed.enqueued < 5:
        assert not feed.wait(0.01)
    feed.stop()
    assert feed.wait(10)
    assert 5 <= feed.enqueued < 20
    feed.run(progress=False)
    assert [row[0] for row in rows(conn)] == ["a", "b"] * 10


def test_a_name_that_fed_something_else_is_refused(dsn, steady):
    Feed(dsn, steady, time_scale=100, name="mine").run(progress=False)
    other = Feed(dsn, steady, time_scale=200, name="mine").start()
    with pytest.raises(InvalidInput, match="^a feed 'mine' has fed something else here: give this one its own name$"):
        other.wait(10)


def test_a_database_that_restarts_delays_a_feed_and_loses_nothing(steady):
    with database.Server() as server, database.scratch(server.dsn) as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            Queue(conn).install()
        feed = Feed(dsn, steady).start()
        while feed.enqueued < 5:
            assert not feed.wait(0.01)
        server.kill()
        assert not feed.wait(1.0)
        server.start()
        assert feed.wait(30)
        with psycopg.connect(dsn, autocommit=True) as conn:
            assert [row[0] for row in rows(conn)] == ["a", "b"] * 10


def test_a_database_without_the_schema_is_an_error_at_once(server, steady):
    refused = pytest.raises(FleetError, match="^no schema jobqueue in this database: run")
    with database.scratch(server.dsn) as empty, refused:
        Feed(empty, steady).start()


def test_a_database_that_is_not_there_is_an_error_at_once_without_the_password(steady):
    feed = Feed("host=127.0.0.1 port=1 dbname=none user=u password=hush-hush", steady)
    with pytest.raises(InfrastructureError, match=re.escape("can't connect to 127.0.0.1:1/none: ")) as refused:
        feed.start()
    assert "hush-hush" not in str(refused.value)
