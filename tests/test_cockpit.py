"""The cockpit without a browser: a button is a method, a press reaches real processes, errors show on the page."""

import threading
from pathlib import Path

import psutil
import psycopg
import pytest

from helpers import wait_until
from jobqueue import Queue
from jobqueue.errors import InvalidInput
from jobqueue.lab import cockpit, database, handlers
from jobqueue.lab.fleet import Fleet
from jobqueue.lab.panel import ALLOWED

ENVIRONMENT = handlers.environment(lease_seconds=1.0)


@pytest.fixture(scope="module")
def stage(server):
    """A database, a fleet of three real workers and an open cockpit, shared by the tests of this file."""
    with database.scratch(server.dsn) as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            Queue(conn).install()
            Queue(conn).enqueue_many([{"type": "job", "payload": {"seconds": 0.2}}] * 40)
        with Fleet(dsn, size=3, concurrency=1, environment=ENVIRONMENT) as fleet:
            panel = cockpit.open(dsn, fleet, hz=10, lease_seconds=1.0)
            yield panel
            cockpit.close()


def state(panel, i):
    return panel.fleet.workers[i].state


def seen(panel, condition, what):
    """The first sample for which the condition holds."""
    return wait_until(lambda: (s := panel.seen.latest) and condition(s) and s, 20, what)


def press(panel, words):
    panel.refresh()
    panel.view.buttons()[words].click()


def settled(panel):
    """All that was pressed has been done."""
    panel._hands.submit(lambda: None).result(30)
    panel.refresh()


def row_buttons(panel, i):
    return {words.split()[0] for words in panel.view.buttons() if words.endswith(f" {i}")}


def test_jobs_are_drained_and_counted(stage):
    assert seen(stage, lambda s: s.done >= 40, "40 done jobs").dead == 0


def test_the_kill_button_kills_a_real_process_and_start_replaces_it(stage):
    pid = stage.fleet.workers[1].pid
    press(stage, "Kill 1")
    settled(stage)
    assert state(stage, 1) == "killed" and not Path(f"/proc/{pid}").exists()
    press(stage, "Start 1")
    wait_until(lambda: state(stage, 1) == "running", 20, "the new worker")
    assert stage.fleet.workers[1].pid != pid


def test_pause_and_resume_stop_the_process_and_let_it_go_on(stage):
    press(stage, "Pause 2")
    settled(stage)
    assert state(stage, 2) == "paused"
    press(stage, "Resume 2")
    settled(stage)
    assert state(stage, 2) == "running"


@pytest.mark.parametrize("act, left", [("pause", {"Kill", "Resume"}), ("kill", {"Start"}), ("start", None)])
def test_only_buttons_that_the_state_allows_can_be_seen(stage, act, left):
    if act == "start" and state(stage, 0) != "killed":
        stage.kill(0)
    getattr(stage, act)(0)
    wait_until(lambda: state(stage, 0) != "starting", 20, "a settled worker")
    stage.seen.look_at_fleet()
    stage.refresh()
    assert row_buttons(stage, 0) == (left or set(ALLOWED["running"]))


def test_an_error_of_a_button_is_shown_on_the_page_and_the_next_press_clears_it(stage):
    stage.do(lambda: stage.kill(99))
    settled(stage)
    assert "InvalidInput: no 99 in this fleet" in stage.view._error.value
    press(stage, "Burst")
    settled(stage)
    assert stage.view._error.value == ""
    seen(stage, lambda s: s.ready == s.running == 0, "the burst drained")


def test_a_text_of_the_page_cannot_inject_markup(stage):
    stage.view.error("<script>alert(1)</script>")
    assert "&lt;script&gt;" in stage.view._error.value
    stage.view.error("")


def test_a_poison_job_kills_its_workers_and_ends_dead(stage):
    (job_id,) = stage.poison(max_attempts=1)
    seen(stage, lambda s: s.dead >= 1, "a dead letter")
    with psycopg.connect(stage.dsn, autocommit=True) as conn:
        assert Queue(conn).get(job_id).status == "dead"
    for i, worker in enumerate(stage.fleet.workers):
        if not worker.alive:
            stage.start(i)


def test_what_was_done_is_in_the_log_and_in_the_frame_of_faults(stage):
    stage.pause(2)
    stage.resume(2)
    stage.burst(1)
    stage.seen.look_at_fleet()
    stage.refresh()
    assert stage.seen.faults["kind"].tolist()[-3:] == ["pause", "resume", "burst"]
    assert "⇈ burst  1 job" in stage.view._log.value.splitlines()[0]


def test_attempts_have_lanes_and_ends(stage):
    stage.burst(5, seconds=0.01)
    seen(stage, lambda s: s.ready == s.running == 0, "the end of the burst")
    attempts = stage.seen.attempts
    assert set(attempts["worker"]) <= {"worker-0", "worker-1", "worker-2"}
    ended = attempts[attempts["outcome"] == "done"].dropna(subset=["started"])
    assert len(ended) >= 5 and (ended["ended"] >= ended["started"]).all()
    assert not attempts.duplicated(["job_id", "epoch"]).any()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_half_an_hour_of_pictures_leaves_no_memory_behind(stage):
    for _ in range(50):
        stage.picture()
    before = psutil.Process().memory_info().rss
    for _ in range(1800):  # one a second
        stage.picture()
    assert psutil.Process().memory_info().rss - before < 50e6


def test_the_picture_is_a_png_of_a_fixed_size_and_cheap_while_nothing_steps(stage):
    first = stage.picture()
    draws = stage.costs()["static_draws"]
    second = stage.picture()
    sizes = {(int.from_bytes(png[16:20]), int.from_bytes(png[20:24])) for png in (first, second)}
    assert sizes == {stage._screen.size} and stage.costs()["static_draws"] <= draws + 1


def test_the_cell_shows_widgets_and_a_picture_beside_them(stage):
    bundle = stage._repr_mimebundle_()
    assert bundle["image/png"].startswith("iVBOR") and "application/vnd.jupyter.widget-view+json" in bundle


def test_an_export_writes_the_whole_run(stage, tmp_path):
    stage.directory = tmp_path
    saved = stage.export("run")
    assert sorted(path.name for path in saved) == [
        "run-ages.csv", "run-attempts.csv", "run-faults.csv", "run.md", "run.pdf", "run.png", "run.svg",
    ]  # fmt: skip
    assert "| lease_seconds | 1.0 |" in (tmp_path / "run.md").read_text()


def test_a_cockpit_without_a_server_or_a_load_says_so(stage):
    with pytest.raises(InvalidInput, match="^this cockpit has no server to stop"):
        stage.crash_database()
    with pytest.raises(InvalidInput, match="^this cockpit has no load"):
        stage.toggle_load()


def test_opening_another_closes_the_first(stage):
    with cockpit.Cockpit(stage.dsn, stage.fleet) as other:
        threads = [thread.name for thread in threading.enumerate()]
        assert threads.count("observer") == 2
    wait_until(lambda: [t.name for t in threading.enumerate()].count("observer") == 1, 10, "the end of its thread")
    assert all(button.disabled for button in other.view.buttons().values())


def test_the_observers_connection_is_never_a_long_transaction(stage):
    with psycopg.connect(stage.dsn, autocommit=True) as conn:
        rows = conn.execute(
            "select max(now() - xact_start) from pg_stat_activity where application_name = 'jobqueue observer'"
        ).fetchone()
    assert rows[0] is None or rows[0].total_seconds() < 2


def test_a_crash_of_the_database_leaves_a_gap_and_the_samples_go_on():
    with database.Server() as own, database.scratch(own.dsn) as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            Queue(conn).install()
        with (
            Fleet(dsn, size=1, environment=ENVIRONMENT) as fleet,
            cockpit.Cockpit(dsn, fleet, server=own, hz=10) as panel,
        ):
            seen(panel, lambda s: s.done == 0, "a first sample")
            panel.crash_database()
            wait_until(lambda: panel.seen.error, 10, "the database to be missed")
            before = panel.seen.latest.time_seconds
            panel.start_database()
            seen(panel, lambda s: s.time_seconds > before + 0.2, "samples after the crash")
            assert panel.seen.error is None
            assert list(panel.seen.faults["kind"]) == ["crash", "restart"]
