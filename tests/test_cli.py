"""The command line as processes: output, exit codes, one clear line for an error, and never a password."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys

import psycopg
import pytest
from psycopg import conninfo

from helpers import wait_until
from jobqueue import publication
from jobqueue.__main__ import COMMANDS, main
from jobqueue.lab import database

pytestmark = pytest.mark.shared


@pytest.fixture
def run(dsn, capsys):
    """run("stats", "--check") → (exit code, what it printed, what it complained)."""

    def run(command, *arguments):
        code = main([command, "--dsn", dsn, *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def process(*arguments, **environment):
    given = {name: value for name, value in os.environ.items() if name != "JOBQUEUE_DSN"} | environment
    return subprocess.run(
        [sys.executable, "-m", "jobqueue", *arguments], capture_output=True, text=True, timeout=60, env=given
    )


def kill(queue, type="mail", error="ValueError: boom"):
    queue.enqueue(type, max_attempts=1)
    lease = queue.claim("A", types=[type])[0]
    queue.fail(lease, error)
    return lease.id


def statuses(conn):
    return dict(conn.execute("select status, count(*) from jobqueue.job group by 1").fetchall())


# ---- the door --------------------------------------------------------------------------------------------------------


def test_the_help_names_every_command():
    done = process("--help")
    assert (done.returncode, [name for name in COMMANDS if not re.search(rf"^    {name}\b", done.stdout, re.M)]) == (
        0,
        [],
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_of_its_own(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert (ended.value.code, COMMANDS[name][1].split("(")[0][:20] in capsys.readouterr().out) == (0, True)


def test_the_database_may_come_from_the_environment(dsn, queue):
    queue.enqueue("mail")
    done = process("stats", JOBQUEUE_DSN=dsn)
    assert (done.returncode, done.stdout.splitlines()[0][:8], done.stderr) == (0, "ready 1 ", "")


def test_an_unreachable_database_is_one_line_and_shows_no_password():
    done = process("stats", "--dsn", "postgresql://someone:geheim@127.0.0.1:1/nothing")
    assert (
        done.returncode,
        done.stdout,
        "geheim" in done.stderr,
        len(done.stderr.splitlines()) <= 3,
        done.stderr.startswith("jobqueue stats: can't connect to 127.0.0.1:1/nothing: "),
    ) == (1, "", False, True, True)


def test_v_shows_the_traceback_and_still_no_password():
    done = process("stats", "-v", "--dsn", "postgresql://someone:geheim@127.0.0.1:1/nothing")
    assert (done.returncode, "Traceback (most recent call last)" in done.stderr, "geheim" in done.stderr) == (
        1,
        True,
        False,
    )


def test_a_database_without_the_schema_says_what_to_run(server):
    with database.scratch(server.dsn) as empty:
        done = process("stats", "--dsn", empty)
    assert (done.returncode, "run install first" in done.stderr, "Traceback" in done.stderr) == (1, True, False)


def test_install_is_idempotent(server):
    with database.scratch(server.dsn) as empty:
        assert [(done.returncode, done.stdout) for done in (process("install", "--dsn", empty) for _ in range(2))] == [
            (0, "installed\n")
        ] * 2


# ---- jobs ------------------------------------------------------------------------------------------------------------


def test_enqueue_prints_what_it_did(run):
    first, again, other = (
        json.loads(run("enqueue", "mail", payload, "--key", "k")[1]) for payload in ('{"a": 1}', '{"a": 1}', '{"a": 2}')
    )
    assert [(one["created"], one["matches"], one["id"] == first["id"]) for one in (first, again, other)] == [
        (True, True, True),
        (False, True, True),
        (False, False, True),
    ]


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("mail", "{a: 1}"), "the payload is not JSON"),
        (("",), "type must have 1–200 bytes"),
        (("mail", "--max-attempts", "0"), "max_attempts must lie in"),
        (("mail", "--key", "schedule/x"), "key must not begin with"),
        (("mail", "--delay-seconds", "-1"), "delay_seconds must lie in"),
    ],
)
def test_bad_input_is_one_line_and_exit_1(run, arguments, said):
    code, out, err = run("enqueue", *arguments)
    assert (code, out, err.startswith("jobqueue enqueue: "), said in err, err.count("\n")) == (1, "", True, True, 1)


def test_a_dead_letter_is_listed_explained_redriven(run, queue):
    job = kill(queue, error="Traceback …\nValueError: boom")
    kill(queue, type="report")
    listed = run("dead", "--type", "mail")[1].rstrip("\n").split("\t")
    explained = run("explain", job)[1]
    redriven = run("redrive", job)[1]
    assert (
        (listed[0], *listed[1:3], listed[4]),
        f"python -m jobqueue redrive {job}" in explained,
        redriven,
        queue.get(job).status,
    ) == ((str(job), "mail", "dead", "ValueError: boom"), True, f"redriven: 1 ({job})\n", "ready")


def test_redrive_by_type_leaves_others(run, queue):
    mails, report = [kill(queue) for _ in range(3)], kill(queue, type="report")
    assert (run("redrive", "--type", "mail")[1], [queue.get(id).status for id in (*mails, report)]) == (
        f"redriven: 3 ({', '.join(map(str, mails))})\n",
        ["ready"] * 3 + ["dead"],
    )


def test_redrive_never_means_everything_by_accident(run, queue):
    kill(queue)
    code, _, err = run("redrive")
    assert (code, "it never redrives everything by accident" in err) == (1, True)


def test_cancel_one_and_cancel_by_type(run, queue):
    one = queue.enqueue("mail").id
    queue.enqueue_many([{"type": "mail"}] * 3 + [{"type": "report"}])
    said = run("cancel", one)[1]
    by_type = run("cancel", "--type", "mail")[1]
    assert (said.startswith(f"Job {one} is cancelled"), by_type, statuses(queue.conn)) == (
        True,
        "cancelled: 3\n",
        {"cancelled": 4, "ready": 1},
    )


@pytest.mark.parametrize("arguments", [(), ("1", "--type", "mail")])
def test_cancel_wants_one_of_the_two(run, arguments):
    code, _, err = run("cancel", *arguments)
    assert (code, "give the id of one job, or --type for all of a type" in err) == (1, True)


def test_pause_and_resume_a_type(run, queue):
    queue.enqueue("mail")
    said = run("pause", "mail")[1]
    paused = len(queue.claim("A"))
    resumed = run("resume", "mail")[1]
    assert (
        said.startswith("paused: jobs of type 'mail'"),
        paused,
        resumed.startswith("resumed: "),
        len(queue.claim("A")),
    ) == (True, 0, True, 1)


def test_explain_verifies_the_published_file(run, queue, tmp_path):
    queue.enqueue("report")
    lease = queue.claim("A")[0]
    candidate = publication.write(tmp_path, lease, b"1,2")
    unpublished = run("explain", lease.id, "--artifacts", tmp_path)[1]
    queue.publish(lease, "report.csv", candidate.digest)
    available = run("explain", lease.id, "--artifacts", tmp_path)[1]
    candidate.path.write_bytes(b"altered")
    altered = run("explain", lease.id, "--artifacts", tmp_path)[1]
    assert [text.splitlines()[-1] for text in (unpublished, available, altered)] == [
        f"Result in {tmp_path}: nothing; nothing was published.",
        f"Result in {tmp_path}: available; the bytes have the published digest. It is {candidate.path}",
        f"Result in {tmp_path}: unavailable; its file was altered: its sha256 is "
        f"{hashlib.sha256(b'altered').hexdigest()}.",
    ]


# ---- measures --------------------------------------------------------------------------------------------------------


def test_stats_tell_the_queue_at_this_instant(run, queue):
    kill(queue)
    queue.enqueue_many([{"type": "mail"}, {"type": "mail", "delay_seconds": 99}, {"type": "report"}])
    queue.claim("A", types=["report"])
    code, out, _ = run("stats")
    lines = out.splitlines()
    assert (code, lines[0], [line for line in lines if line.startswith("  ")][1:]) == (
        0,
        "ready 2 (due 1, future 1, retrying 0), running 1 (0 expired), dead 1, done in the last minute 0",
        ["  dead letters mail: 1"],
    )


def test_the_check_passes_a_healthy_queue_and_names_what_is_wrong_otherwise(run, queue):
    healthy = run("stats", "--check")
    kill(queue)
    dead = run("stats", "--check", "--max-age-seconds", "300")
    allowed = run("stats", "--check", "--max-dead", "1")
    queue.conn.execute("insert into jobqueue.job (type, run_at) values ('mail', jobqueue.now() - interval '301 s')")
    old = run("stats", "--check", "--max-dead", "1")
    queue.conn.execute(
        "insert into jobqueue.schedule (id, job_type, cron, missed_slots) values ('s', 't', '* * * * *', 2)"
    )
    missed = run("stats", "--check", "--max-dead", "1", "--max-age-seconds", "900", "--max-missed", "1")
    assert [(code, out) for code, out, _ in (healthy, dead, allowed, old, missed)] == [
        (0, "all within their thresholds\n"),
        (1, "1 dead letters, 0 allowed: mail 1\n"),
        (0, "all within their thresholds\n"),
        (1, "the oldest due job of type 'mail' has waited 301 s, 300 s allowed\n"),
        (1, "2 slots of schedules were missed, 1 allowed\n"),
    ]


def test_openmetrics_end_with_eof(run, queue):
    queue.enqueue("mail")
    code, out, _ = run("stats", "--openmetrics")
    assert (code, 'jobqueue_due_jobs{type="mail"} 1.0' in out, out.endswith("# EOF\n")) == (0, True, True)


# ---- fence and loops -------------------------------------------------------------------------------------------------


def test_fence_says_what_it_did(run, queue):
    queue.enqueue_many([{"type": "mail"}] * 3)
    queue.claim("A")
    code, out, _ = run("fence", "--raise", "40")
    assert (
        code,
        out.startswith("raised 3 live epochs by 40, took 1 leases away; new jobs begin after id "),
        queue.claim("B", limit=3)[0].epoch > 40,
    ) == (0, True, True)


def test_fence_wants_to_know_by_how_much(dsn):
    done = process("fence", "--dsn", dsn)
    assert (done.returncode, "the following arguments are required: --raise" in done.stderr) == (2, True)


@pytest.mark.parametrize("by", ["0", "-5"])
def test_a_fence_that_raises_nothing_is_refused(run, by):
    code, _, err = run("fence", "--raise", by)
    assert (code, "raise must lie in 1–1,000,000,000,000" in err) == (1, True)


@pytest.mark.parametrize(
    "command", [("reaper",), ("janitor",), ("scheduler",), ("worker", "--handlers", "jobqueue.lab.handlers:HANDLERS")]
)
def test_each_loop_ends_on_sigterm_with_code_0(dsn, command):
    with subprocess.Popen(
        [sys.executable, "-m", "jobqueue", *command, "--dsn", dsn], stderr=subprocess.PIPE, text=True
    ) as loop:
        try:
            with psycopg.connect(dsn, autocommit=True) as conn:
                connected = (
                    "select from pg_stat_activity where datname = current_database()"
                    " and backend_type = 'client backend' and pid <> pg_backend_pid()"
                )
                wait_until(
                    lambda: loop.poll() is not None or conn.execute(connected).fetchone() is not None,
                    20,
                    "the loop's connection",
                )
            loop.send_signal(signal.SIGTERM)
            _, err = loop.communicate(timeout=20)
        finally:
            loop.kill()
    assert (loop.returncode, err) == (0, "")


def test_a_loop_logs_json_lines_if_asked(dsn):
    away = conninfo.make_conninfo(dsn, port="1")
    with subprocess.Popen(
        [sys.executable, "-m", "jobqueue", "reaper", "--log-json", "--dsn", away], stderr=subprocess.PIPE, text=True
    ) as loop:
        line = json.loads(loop.stderr.readline())
        loop.send_signal(signal.SIGTERM)
        loop.communicate(timeout=20)
    assert (line["level"], line["logger"], "trying again in" in line["message"]) == ("WARNING", "jobqueue", True)


def test_the_janitor_takes_its_options(dsn, queue, tmp_path):
    kill(queue)
    queue.enqueue("mail")
    queue.complete(queue.claim("A")[0])
    command = [
        "janitor",
        "--dsn",
        dsn,
        "--archive-after-seconds",
        "0",
        "--statuses",
        "done,dead",
        "--artifacts",
        str(tmp_path),
        "--archive-ttl-seconds",
        "86400",
    ]
    with subprocess.Popen([sys.executable, "-m", "jobqueue", *command], stderr=subprocess.PIPE, text=True) as loop:
        wait_until(
            lambda: queue.conn.execute("select count(*) from jobqueue.job_archive").fetchone() == (2,),
            20,
            "both in the archive",
        )
        loop.send_signal(signal.SIGTERM)
        _, err = loop.communicate(timeout=20)
    assert (loop.returncode, err) == (0, "")


def test_bad_statuses_of_the_janitor_are_refused(dsn):
    done = process("janitor", "--dsn", dsn, "--statuses", "done,ready")
    assert (done.returncode, done.stderr) == (
        1,
        "jobqueue janitor: statuses must be some of done, failed, dead, cancelled, not ['done', 'ready']\n",
    )
