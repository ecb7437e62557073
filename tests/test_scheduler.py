"""The scheduler as a loop and as real processes: killed, doubled, cut off from its database."""

import logging
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

import psutil
import psycopg
import pytest

from helpers import wait_until
from jobqueue import JobQueueError, Scheduler, Schedules
from jobqueue.lab.clock import VirtualClock

START = datetime(2026, 3, 2, 8, 0, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def put(conn, n=1, **settings):
    """Schedules s0, s1 … for every minute, all misfires run."""
    given = {"misfire": "all", "max_catch_up": 10_000} | settings
    for i in range(n):
        Schedules(conn).put(f"s{i}", "t", "* * * * *", **given)


def ten_minutes_ago(conn):
    """As if every scheduler had been down: ten slots of each schedule are due (the newest may be on time)."""
    conn.execute(
        "update jobqueue.schedule set next_run_at = date_trunc('minute', jobqueue.now()) - interval '9 minutes'"
    )


def fired(conn):
    """(schedule, slot) of every job, in order."""
    return conn.execute("select schedule_id, slot from jobqueue.job order by schedule_id, slot").fetchall()


def at(dsn, instant):
    """A DSN whose sessions live at this virtual instant."""
    return psycopg.conninfo.make_conninfo(dsn, options=f"-c jobqueue.now={instant.isoformat()}")


@contextmanager
def scheduler_process(dsn, *, clock_off_by=0, **settings):
    """A forked process that runs a Scheduler until it is killed at the end of the block."""
    pid = os.fork()
    if pid == 0:
        try:
            real = time.time
            time.time = lambda: real() + clock_off_by
            logging.disable(logging.CRITICAL)
            Scheduler(dsn, **({"poll_seconds": 0.01} | settings)).run()
        finally:
            os._exit(1)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextmanager
def command(dsn, *arguments):
    process = subprocess.Popen(
        [sys.executable, "-m", "jobqueue", *arguments, "--dsn", dsn],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


# ---- the loop ---------------------------------------------------------------------------------------


def test_run_once_is_one_tick_and_says_how_much_it_did(conn, dsn):
    put(conn, 3)
    ten_minutes_ago(conn)
    scheduler = Scheduler(dsn, limit=2)
    assert [scheduler.run_once() for _ in range(3)] == [20, 10, 0]
    scheduler.session.drop()


def test_a_broken_schedule_is_logged_once_and_the_others_go_on(conn, dsn, caplog):
    put(conn, 2)
    conn.execute("update jobqueue.schedule set cron = '61 * * * *' where id = 's0'")
    ten_minutes_ago(conn)
    scheduler = Scheduler(dsn)
    with caplog.at_level(logging.ERROR, "jobqueue"):
        assert [scheduler.run_once() for _ in range(3)] == [11, 0, 0]
    scheduler.session.drop()
    assert [record.getMessage()[:40] for record in caplog.records] == ["schedule 's0': cron '61 * * * *': minute"]


def test_missed_slots_are_logged(conn, dsn, caplog):
    put(conn, misfire="skip")
    ten_minutes_ago(conn)
    scheduler = Scheduler(dsn)
    with caplog.at_level(logging.WARNING, "jobqueue"):
        scheduler.run_once()
    scheduler.session.drop()
    assert " slots were missed" in caplog.records[0].getMessage()


def test_a_bad_setting_is_refused(dsn):
    with pytest.raises(JobQueueError, match="^limit must lie in 1–1,000, not 0$"):
        Scheduler(dsn, limit=0)
    with pytest.raises(JobQueueError, match="^poll_seconds must lie in "):
        Scheduler(dsn, poll_seconds=0)


# ---- real processes ---------------------------------------------------------------------------------


def test_three_schedulers_at_once_make_one_job_a_slot(conn, dsn):
    put(conn, 40)
    ten_minutes_ago(conn)
    with scheduler_process(dsn, limit=7), scheduler_process(dsn, limit=7), scheduler_process(dsn, limit=7):
        wait_until(lambda: len(fired(conn)) >= 400, 60, "400 jobs")
    made = fired(conn)
    assert len(made) == len(set(made)) and {id for id, _ in made} == {f"s{n}" for n in range(40)}


def test_schedulers_whose_machines_clocks_are_wrong_make_one_job_a_slot(conn, dsn):
    put(conn, 3)
    ten_minutes_ago(conn)
    last = conn.execute("select date_trunc('minute', jobqueue.now())").fetchone()[0]
    with scheduler_process(dsn, clock_off_by=600), scheduler_process(dsn, clock_off_by=-600):
        wait_until(lambda: sum(slot <= last for _, slot in fired(conn)) == 30, 60, "30 jobs for 30 slots")
        assert not conn.execute("select bool_or(slot > jobqueue.now()) from jobqueue.job").fetchone()[0]
    assert len(fired(conn)) == len(set(fired(conn)))


def test_a_scheduler_whose_session_is_cut_comes_back(conn, dsn):
    put(conn)
    ten_minutes_ago(conn)
    sessions = "from pg_stat_activity where application_name = 'jobqueue scheduler' and datname = current_database()"
    with scheduler_process(dsn):
        wait_until(lambda: len(fired(conn)) >= 10, 30, "the first ten jobs")
        cut = conn.execute(f"select pid, pg_terminate_backend(pid) {sessions}").fetchone()[0]
        conn.execute(
            "delete from jobqueue.job; delete from jobqueue.job_key; update jobqueue.schedule set last_slot = null"
        )
        ten_minutes_ago(conn)
        wait_until(lambda: len(fired(conn)) >= 10, 30, "ten jobs by a new session")
        assert conn.execute(f"select pid {sessions}").fetchone()[0] != cut


def test_the_command_schedules_until_sigterm(conn, dsn):
    put(conn)
    ten_minutes_ago(conn)
    with command(dsn, "scheduler", "--poll-seconds", "0.05") as process:
        wait_until(lambda: len(fired(conn)) >= 10, 60, "ten jobs")
        process.terminate()
        assert process.wait(20) == 0


def test_the_command_refuses_to_schedule_without_the_key_that_keeps_slots_single(conn, dsn):
    put(conn)
    conn.execute("alter table jobqueue.job_key drop constraint job_key_pkey")
    with command(dsn, "scheduler") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (
        1,
        "",
        "jobqueue scheduler: the primary key of jobqueue.job_key is missing or invalid: slots could fire twice\n",
    )


def test_schedules_by_the_command_line(conn, dsn):
    def said(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "jobqueue", "schedule", *arguments, "--dsn", dsn], capture_output=True, text=True
        )
        return done.returncode, done.stdout + done.stderr

    assert said("put", "nightly", "report", "30 2 * * *", '{"n": 1}', "--timezone", "Europe/Berlin") == (0, "")
    stored = Schedules(conn).list()[0]
    assert (stored.payload, stored.timezone, stored.misfire) == ({"n": 1}, "Europe/Berlin", "last")
    assert said("pause", "nightly") == (0, "")
    assert said("list") == (0, "nightly\treport\t30 2 * * *\tEurope/Berlin\tpaused\tmissed 0\n")
    assert said("resume", "nightly") == (0, "")
    assert said("remove", "nightly") == (0, "")
    assert said("remove", "nightly") == (1, "jobqueue schedule: there is no schedule 'nightly'\n")
    assert said("list") == (0, "no schedules\n")
    assert said(
        "preview", "30 2 * * *", "--timezone", "Europe/Berlin", "--after", "2026-03-29T00:00Z", "--limit", "1"
    ) == (
        0,
        "2026-03-29 01:00:00Z\tSun 2026-03-29 03:00:00 +0200 Europe/Berlin\n",
    )


def killed_at_random(dsn, conn, minutes, schedules, seed):
    """A process for each minute that finds one slot of each schedule due; killed at a random moment of a tick's length.

    Returns how many were killed amid their tick; what they left is decided by a last tick.
    """
    rng, amid, usual = random.Random(seed), 0, 0.2
    for minute in range(1, minutes + 1):
        slot = (START + minute * MINUTE).replace(second=0)
        with scheduler_process(at(dsn, START + minute * MINUTE)) as pid:
            wait_until(lambda: conn.execute(SESSIONS).fetchone()[0], 30, "its session")
            if minute == 1:  # how long a whole tick takes on this machine
                begun = time.monotonic()
                wait_until(lambda slot=slot: decided(conn, slot) == schedules, 30, "a whole tick")
                usual = time.monotonic() - begun
            else:
                with suppress(psutil.TimeoutExpired):  # it does not end by itself
                    psutil.Process(pid).wait(rng.uniform(0, usual))
        wait_until(lambda: not conn.execute(SESSIONS).fetchone()[0], 30, "the end of its session")
        amid += 0 < decided(conn, slot) < schedules
    VirtualClock(conn, START + minutes * MINUTE)
    while Schedules(conn).tick().jobs:
        pass
    return amid


SESSIONS = """
    select count(*) from pg_stat_activity
    where application_name = 'jobqueue scheduler' and datname = current_database()"""


def decided(conn, slot):
    return conn.execute("select count(*) from jobqueue.job where slot = %s", (slot,)).fetchone()[0]


def every(minutes, schedules):
    """(schedule, slot), each exactly once."""
    slots = [(START + minute * MINUTE).replace(second=0) for minute in range(1, minutes + 1)]
    return [(id, slot) for id in sorted(f"s{n}" for n in range(schedules)) for slot in slots]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_hundred_kills_at_random_moments_leave_exactly_one_job_a_slot(virtual_dsn, virtual_conn, clock):
    clock.set(START)
    put(virtual_conn, 60)
    amid = killed_at_random(virtual_dsn, virtual_conn, 201, 60, seed=7)
    assert fired(virtual_conn) == every(201, 60)
    assert amid >= 20, f"only {amid} of 200 were killed amid their tick: that proves little"


@pytest.mark.short
def test_ten_kills_leave_exactly_one_job_a_slot(virtual_dsn, virtual_conn, clock):
    clock.set(START)
    put(virtual_conn, 20)
    killed_at_random(virtual_dsn, virtual_conn, 11, 20, seed=11)
    assert fired(virtual_conn) == every(11, 20)
