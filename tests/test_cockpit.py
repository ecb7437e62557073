"""The cockpit without a browser: a button is a method, a press reaches real processes, errors show on the page."""

import threading
from pathlib import Path

import psutil
import psycopg
import pytest

from helpers import wait_until
from jobqueue import Queue
from jobqueue.errors import InvalidInput
from jobqueue.lab import cockpit, database, faults, handlers
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
    with psycopg.connect(stage.dsn, autocommit=True) as conn:  # 200 jobs: they would take 14 s
        for (job_id,) in conn.execute("select id from jobqueue.job where status = 'ready'").fetchall():
            Queue(conn).cancel(job_id)
    seen(stage, lambda s: s.ready == s.running == 0, "the end of the burst")


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
def test_ten_minutes_of_pictures_leave_no_memory_behind(stage):
    for _ in range(50):
        stage.picture()
    before = psutil.Process().memory_info().rss
    for _ in range(600):  # one a second
        stage.picture()
    assert psutil.Process().memory_info().rss - before < 20e6


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


def edit(panel, text):
    panel.view.editor.text.value = text
    panel.refresh()


def test_a_plan_that_is_wrong_is_named_in_the_error_line_until_it_is_right(stage):
    said = []
    for text in (
        "3 explode worker-1",
        "1 cut worker-0\n3 kill worker-9",
        "3 crash database seconds=1",
        "3 outage database gently seconds=1",
        "3 kill reaper-2",
        "3 kill worker-2",
    ):
        edit(stage, text)
        said.append(stage.view._error.value)
    assert [("role='alert'" in each, words in each) for each, words in zip(said, (
        "plan: line 1: a fault is one of kill",
        "plan: kill at 3 s aims at worker-9, but there are worker-0 to worker-2",
        "plan: crash at 3 s needs a server of our own", "plan: an outage is of the database, or database smart, ",
        "plan: kill at 3 s aims at reaper-2, but this fleet has reaper, worker-0",
        ""), strict=True)] == [(True, True)] * 5 + [(False, True)]  # fmt: skip


def test_the_editors_plan_is_played_by_its_button_and_can_be_played_again(stage):
    edit(
        stage,
        "0 pause worker-0 seconds=0.3\n0.1 skew worker-1 by_seconds=3600 seconds=5\n0.2 slow job seconds=0.1 factor=2",
    )
    for _ in range(2):
        press(stage, "Play plan")
        settled(stage)
        wait_until(lambda: stage.playing is None, 20, "the end of the plan")
    stage.seen.look_at_fleet()
    stage.refresh()
    assert [e[1:3] for e in stage.seen.events()][-8:] == [
        ("pause", "worker-0"), ("skew", "worker-1"), ("slow", "job"), ("resume", "worker-0")] * 2  # fmt: skip
    assert stage.view.editor._line.value.endswith("3 faults over 5.1 s</div>")


def test_a_step_that_meets_nobody_is_shown_and_the_plan_goes_on(stage):
    edit(stage, "0 start worker-0\n0.1 pause worker-0 seconds=0.1")
    stage.replay()
    wait_until(lambda: stage.playing is None, 20, "the end of the plan")
    assert "plan: worker-0 is alive" in stage.view._error.value and state(stage, 0) == "running"
    stage.view.error("")


def test_a_plan_can_be_stopped_and_only_one_is_played(stage):
    edit(stage, "60 kill worker-0")
    stage.replay()
    with pytest.raises(InvalidInput, match="^a plan is being played: stop it first$"):
        stage.replay()
    press(stage, "Stop plan")
    wait_until(lambda: stage.playing is None, 10, "the end of the plan")
    assert state(stage, 0) == "running"


def test_a_plan_is_drawn_by_seed_kept_and_read_again(stage, tmp_path):
    stage.directory = tmp_path
    stage.view.editor.seed.value = 9
    press(stage, "Draw plan")
    settled(stage)
    drawn = stage.plan
    press(stage, "Save plan")
    settled(stage)
    edit(stage, "")
    assert (stage.plan, (tmp_path / "plan.json").exists()) == ([], True)
    press(stage, "Load plan")
    settled(stage)
    assert stage.plan == drawn and {fault.kind for fault in drawn} >= {"kill", "pause", "skew", "slow"}
    assert stage.draw(9) == drawn != stage.draw(10)
    assert not {fault.kind for fault in drawn} & {"crash", "outage"}  # this cockpit has no server


def test_a_plan_that_is_not_there_is_named_without_the_folder_of_this_machine(stage, tmp_path):
    stage.directory = tmp_path / "a" / "b"
    with pytest.raises(InvalidInput, match=r"^there is no plan mine\.json in a/b$"):
        stage.load_plan("mine")


def test_the_plan_that_was_played_is_exported_with_the_run(stage, tmp_path):
    stage.directory = tmp_path
    stage.play([faults.burst(at=0, n=1, service_seconds=0.01)])
    saved = stage.export("run")
    assert saved[-1].name == "run-plan.json" and faults.loads(saved[-1].read_text()) == stage.played


def test_a_chosen_process_is_slowed_skewed_and_restarted(stage):
    stage.view._aims.children[0].value = 1
    pid = stage.fleet.workers[1].pid
    for words in ("Slow for 20 s", "Clock 1 h ahead", "Clock right again", "Restart"):
        press(stage, words)
    settled(stage)
    wait_until(lambda: state(stage, 1) == "running", 20, "the new worker")
    assert stage.fleet.workers[1].pid != pid
    assert [e.kind for e in stage.fleet.events if e.target == "worker-1"][-6:] == [
        "slow",
        "skew",
        "skew",
        "stop",
        "exit",
        "start",
    ]


def test_every_action_can_be_reached_by_the_keyboard(stage):
    """Each is a button, a field or a list of the browser's own, none is taken out of the order of tabs."""

    def widgets_of(box):
        yield box
        for child in getattr(box, "children", ()):
            yield from widgets_of(child)

    kinds = {type(widget).__name__ for widget in widgets_of(stage.view.box)}
    assert kinds <= {
        "VBox",
        "HBox",
        "HTML",
        "Image",
        "Button",
        "ToggleButton",
        "Dropdown",
        "Textarea",
        "BoundedIntText",
        "Text",
    }
    assert {widget.tabbable for widget in widgets_of(stage.view.box)} == {None}


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
