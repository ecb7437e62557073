"""Whatever is set for a database or a role by default, or by the environment: loops and commands do their work."""

import os
import subprocess
import sys

import psycopg
import pytest
from psycopg import conninfo
from working import running

from helpers import wait_until
from jobqueue import JobQueueError, Queue, Reaper, Worker
from jobqueue.loop import connect

DEFAULTS = {
    "dates in German": "datestyle = 'German'",
    "another client encoding": "client_encoding = 'LATIN1'",
    "another time zone": "timezone = 'Asia/Tokyo'",
    "serializable": "default_transaction_isolation = 'serializable'",
    "idle sessions end": "idle_session_timeout = '100ms'",
    "short lock waits": "lock_timeout = '1ms'",
}


def by_default(conn, setting):
    name = conn.info.dbname
    conn.execute(f'alter database "{name}" set {setting}')


@pytest.mark.parametrize("setting", DEFAULTS.values(), ids=DEFAULTS)
def test_a_worker_does_its_work_whatever_the_database_sets_by_default(dsn, conn, queue, setting):
    by_default(conn, setting)
    queue.enqueue("mail", {"to": "José"})
    seen = []
    worker = Worker(dsn, {"mail": lambda lease, context: seen.append(lease.payload)})
    assert (worker.run_once(), seen, queue.get(1).status) == (1, [{"to": "José"}], "done")


def test_a_reaper_whose_polls_are_rarer_than_idle_sessions_may_be_still_reaps(dsn, conn, queue):
    by_default(conn, "idle_session_timeout = '50ms'")
    queue.enqueue("mail")
    reaper = Reaper(dsn, poll_seconds=0.5)
    with running(reaper):
        there = "select true from pg_stat_activity where application_name = 'jobqueue reaper' and datname = %s"
        wait_until(lambda: conn.execute(there, (conn.info.dbname,)).fetchone(), 5, "the reaper's session")
        queue.claim("gone", lease_seconds=0.2)
        wait_until(lambda: queue.get(1).status == "ready", 10, "the reaper")


def test_options_of_the_environment_hold_beside_the_loops_own(dsn, monkeypatch):
    monkeypatch.setenv("PGOPTIONS", "-c search_path=theirs")
    with connect(dsn, "jobqueue test") as conn:
        assert (conn.execute("show search_path").fetchone(), conn.execute("show timezone").fetchone()) == (
            ("theirs",),
            ("UTC",),
        )


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_cannot_store_any_text_is_refused_and_nothing_is_made(server, encoding):
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute(f"create database narrow encoding '{encoding}' locale 'C' template template0")
        try:
            with psycopg.connect(conninfo.make_conninfo(server.dsn, dbname="narrow"), autocommit=True) as narrow:
                with pytest.raises(JobQueueError, match=f"encoding is {encoding}"):
                    Queue(narrow).install()
                assert narrow.execute("select from pg_namespace where nspname = 'jobqueue'").fetchone() is None
        finally:
            conn.execute("drop database narrow")


@pytest.mark.parametrize("instant", ["20000-01-01", "4000-01-01 BC", "infinity"])
@pytest.mark.parametrize("table, column", [("job", "run_at"), ("schedule", "last_slot"), ("schedule", "next_run_at")])
def test_an_instant_that_no_loop_could_read_is_refused_by_the_row(conn, table, column, instant):
    given = {"job": "(type, run_at) values ('mail', %s)"}
    rest = given.get(table, f"(id, job_type, cron, {column}) values ('s', 'mail', '* * * * *', %s)")
    with pytest.raises(psycopg.errors.CheckViolation, match="instants are finite, in the years 1 to 9999"):
        conn.execute(f"insert into jobqueue.{table} {rest}", (instant,))


# ---- the command line ------------------------------------------------------------------------------------------------


def shell(command, **environment):
    """A line of bash in which `jobqueue` is the command line."""
    line = f'set -o pipefail; jobqueue() {{ {sys.executable} -m jobqueue "$@"; }}; {command}'
    return subprocess.run(["bash", "-c", line], capture_output=True, timeout=60, env={**os.environ, **environment})


def test_text_that_the_terminal_cannot_show_is_escaped(dsn, queue):
    queue.enqueue("Zoë")
    done = shell("jobqueue stats", JOBQUEUE_DSN=dsn, PYTHONIOENCODING="ascii")
    assert (done.returncode, b"oldest due Zo\\xeb" in done.stdout, done.stderr) == (0, True, b"")


OUTPUTS = {"a full disk": (">/dev/full", 1, 1), "nobody reads": ("| true", 1, 1), "closed": (">&-", 0, 0)}


@pytest.mark.parametrize("where, code, lines", OUTPUTS.values(), ids=OUTPUTS)
def test_output_that_nobody_takes_is_one_line_at_most(dsn, queue, where, code, lines):
    queue.enqueue_many([{"type": f"{place:0200}"} for place in range(800)])  # more than a pipe holds
    done = shell(f"jobqueue stats {where}", JOBQUEUE_DSN=dsn)
    assert (done.returncode, len(done.stderr.splitlines())) == (code, lines), done.stderr


def test_an_empty_dsn_is_refused_and_never_another_database(dsn, conn):
    done = shell('jobqueue enqueue mail --dsn "$NOT_SET"', JOBQUEUE_DSN=dsn)
    assert (done.returncode, b"--dsn is empty" in done.stderr) == (1, True)
    assert conn.execute("select count(*) from jobqueue.job").fetchone() == (0,)


MODULES = {
    "a syntax error": "def (:",
    "an error of its own": "raise RuntimeError('boom')",
    "a setting that is missing": "import os; os.environ['NO_SUCH_SETTING']",
}


@pytest.mark.parametrize("text", MODULES.values(), ids=MODULES)
def test_handlers_that_cannot_be_imported_are_one_line(dsn, tmp_path, text):
    (tmp_path / "theirs.py").write_text(text)
    done = shell("jobqueue worker --handlers theirs:HANDLERS", JOBQUEUE_DSN=dsn, PYTHONPATH=f"{os.getcwd()}:{tmp_path}")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr


def test_a_relative_module_and_a_payload_without_a_bottom_are_one_line(dsn):
    for command in ("worker --handlers .theirs:HANDLERS", f"enqueue mail {'[' * 50_000}"):
        done = shell(f"jobqueue {command}", JOBQUEUE_DSN=dsn)
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr[-300:]


@pytest.mark.parametrize("command", ["stats", "enqueue mail", "schedule list", "dead", "explain 1"])
def test_behind_a_pooler_no_command_sends_what_it_would_refuse(dsn, queue, monkeypatch, capsys, command):
    from jobqueue.__main__ import main

    sent = []
    plain = psycopg.connect
    monkeypatch.setattr(psycopg, "connect", lambda dsn, **given: sent.append(given) or plain(dsn, **given))
    name, *rest = command.split()
    assert main([name, "--pooled", "--dsn", dsn, *rest]) == 0
    assert [given for given in sent if "options" in given or given["prepare_threshold"] is not None] == []
