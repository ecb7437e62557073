"""JOBQUEUE_DSN names somebody's server: the lab says what it will do, works in databases of its own, removes them."""

import os
import signal
import subprocess
import sys

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from helpers import wait_until
from jobqueue import Queue
from jobqueue.lab import campaign, cli, database, laboratory, load, matrix, sim, workload
from jobqueue.lab.database import DatabaseError

ROLES = ("create role maker login createdb", "create role visitor login", "create database theirs owner maker")
ONE_JOB = workload.poisson(rate=1, service=workload.exponential(1), n=3)


@pytest.fixture(scope="module")
def foreign():
    """A second server with a database of theirs, in which a queue is installed and has a job."""
    with database.Server() as second:
        with psycopg.connect(second.dsn, autocommit=True) as conn:
            for statement in ROLES:
                conn.execute(statement)
        with psycopg.connect(theirs(second, "maker"), autocommit=True) as conn:
            Queue(conn).install()
            Queue(conn).enqueue("mail")
        yield second


def theirs(second, user):
    return make_conninfo(second.dsn, dbname="theirs", user=user)


def state(second):
    """All databases, and every row of their queue."""
    with psycopg.connect(theirs(second, "maker"), autocommit=True) as conn:
        names = conn.execute("select array_agg(datname order by datname) from pg_database").fetchone()[0]
        return names, conn.execute("select * from jobqueue.job").fetchall()


TOOLS = {
    "laboratory run": lambda **agreed: laboratory.run(None, progress=False, **agreed),
    "failure matrix": lambda **agreed: matrix.run(**agreed),
    "campaign": lambda **agreed: campaign.run(0.1, progress=False, **agreed),
    "load test": lambda **agreed: load.run(rates=[5], step_seconds=1, workers=1, producers=1, progress=False, **agreed),
}


@pytest.mark.parametrize("tool", TOOLS)
def test_without_a_yes_a_tool_says_what_it_would_do_and_does_nothing(tool, foreign, monkeypatch):
    monkeypatch.setenv("JOBQUEUE_DSN", theirs(foreign, "maker"))
    before = state(foreign)
    with pytest.raises(
        database.JobQueueError, match=rf"(?is)JOBQUEUE_DSN names .*dbname=theirs.*{tool}.*Nothing was done"
    ):
        TOOLS[tool](confirm=False)
    assert state(foreign) == before


@pytest.mark.parametrize("tool", TOOLS)
def test_a_role_that_may_not_create_databases_is_told_so(tool, foreign, monkeypatch):
    monkeypatch.setenv("JOBQUEUE_DSN", theirs(foreign, "visitor"))
    before = state(foreign)
    with pytest.raises(
        DatabaseError, match="^the laboratory works only in a database of its own, and visitor may not create one"
    ):
        TOOLS[tool](confirm=True)
    assert state(foreign) == before


def test_a_simulation_stops_there_too(foreign, monkeypatch):
    monkeypatch.setenv("JOBQUEUE_DSN", theirs(foreign, "visitor"))
    with pytest.raises(DatabaseError, match="visitor may not create one"):
        sim.run(ONE_JOB, workers=1, seed=1)


@pytest.mark.long
def test_the_matrix_is_made_in_databases_of_its_own(foreign, monkeypatch, tmp_path):
    monkeypatch.setenv("JOBQUEUE_DSN", theirs(foreign, "maker"))
    before = state(foreign)
    assert cli.main(["matrix", "--out", str(tmp_path), "--quiet", "--yes"]) == 0
    assert (state(foreign), (tmp_path / "failure-matrix.md").exists()) == (before, True)


def test_a_simulation_runs_in_a_database_of_its_own(foreign, monkeypatch):
    monkeypatch.setenv("JOBQUEUE_DSN", theirs(foreign, "maker"))
    before = state(foreign)
    assert set(sim.run(ONE_JOB, workers=1, seed=1).jobs["status"]) == {"done"}
    assert state(foreign) == before


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("tool", ["laboratory run", "campaign"])
def test_a_tool_holds_on_a_server_of_theirs_and_leaves_nothing(tool, foreign, monkeypatch):
    monkeypatch.setenv("JOBQUEUE_DSN", theirs(foreign, "maker"))
    monkeypatch.setenv("JOBQUEUE_LAB_YES", "1")
    before = state(foreign)
    found = TOOLS[tool]()
    assert (found["held"] if tool == "laboratory run" else found.held) is True
    assert state(foreign) == before


def test_a_prefix_needs_no_yes_and_leaves_theirs_alone(foreign, monkeypatch):
    monkeypatch.setenv("JOBQUEUE_DSN", theirs(foreign, "visitor"))
    with database.ground("It would do something.", foreign._found.folder) as place:
        assert (place.server is not None, "theirs" in place.dsn) == (True, False)


def test_the_cockpits_place_is_a_database_of_its_own_whose_server_cannot_be_stopped(foreign, monkeypatch):
    monkeypatch.setenv("JOBQUEUE_DSN", theirs(foreign, "maker"))
    before = state(foreign)
    with database.workplace("The cockpit plays there.", confirm=True) as place:
        with psycopg.connect(place.dsn, autocommit=True) as conn:
            Queue(conn).install()
        assert (place.server, psycopg.conninfo.conninfo_to_dict(place.dsn)["dbname"][:13]) == (None, "jobqueue_lab_")
    assert state(foreign) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_search_that_is_interrupted_ends_at_once_and_leaves_no_database(foreign, number):
    before, _ = state(foreign)
    asked = [sys.executable, "-m", "jobqueue", "lab", "explore", "--yes", "--quiet"]
    given = {**os.environ, "JOBQUEUE_DSN": theirs(foreign, "maker")}
    searching = "select true from pg_stat_activity where datname like 'jobqueue_lab_%' and state like 'idle in%'"
    with (
        subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=given) as search,
        psycopg.connect(foreign.dsn, autocommit=True) as conn,
    ):
        try:
            wait_until(lambda: conn.execute(searching).fetchone(), 30, "the search")
            search.send_signal(number)
            search.communicate(timeout=20)
        finally:
            search.kill()
    assert (search.returncode, state(foreign)[0]) == (128 + number, before)
