"""The bench: bars judged right, a small real run of ours and the floor, what is missing said aloud."""
from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import test_house as house
from bench import bars, chart, command, contenders, drain, floor, plan, report, track
from bench.amounts import QUICK, Reading
from bench.bars import BARS, BEST_PEER, BEST_PYTHON, Bar
from bench.contenders import ours
from bench.stage import BenchError, Stage
from helpers import processes_of, wait_until
from jobqueue.errors import InvalidInput
from jobqueue.lab import labels

ROOT = Path(__file__).resolve().parents[1]
FILES = ["bench.csv", "bench.json", "bench.png", "bench.txt"]


def readings(name: str, **of_contenders: list[float]) -> list[Reading]:
    """A value a round, of each contender."""
    return [Reading(number, name, contender, value)
            for contender, values in of_contenders.items() for number, value in enumerate(values, 1)]


def judged(bar: Bar, read: list[Reading], **missing: str) -> bars.Verdict:
    [verdict] = bars.judge(read, missing, (bar,))
    return verdict


# ---- house rules, for this package too -------------------------------------------------------------------------------

SOURCES = sorted((ROOT / "bench").glob("*.py")) + sorted((ROOT / "bench/contenders").glob("*.py"))


def test_no_sql_is_written_in_python():
    assert house.breaking(SOURCES, house.sql_in_python) == {}


def test_functions_are_short_and_lines_too():
    def long(path):
        lines = [f"line {n}" for n, line in enumerate(house.text(path).splitlines(), 1) if len(line) > 120]
        return lines + [each.name for each in house.functions(path) if house.length(each) > 40]

    assert house.breaking(SOURCES, long) == {}


def test_every_file_opens_with_a_sentence():
    assert [path.name for path in SOURCES if not re.match(r"[A-Za-z`].*[.:?]$", _opening(path), re.S)] == []


def _opening(path: Path) -> str:
    return (ast.get_docstring(ast.parse(house.text(path))) or "").split("\n\n")[0]


def test_bench_and_peers_are_no_part_of_the_package():
    foreign = house.breaking(house.MODULES + house.LAB, lambda path: house.foreign_imports(path) & {"bench"})
    assert foreign == {}


# ---- bars ------------------------------------------------------------------------------------------------------------

def test_a_bar_takes_the_median_of_the_ratios_of_each_round():
    """The rounds differ tenfold, the ratios don't: a ratio of medians would be 0.75."""
    read = readings("drain1", ours=[3000, 800, 150], pgfloor=[4000, 1000, 300])
    verdict = judged(Bar("drain1", 0.7, "pgfloor"), read)
    assert (verdict.result, verdict.median, verdict.low, verdict.high, verdict.rounds) == ("held", 0.75, 0.5, 0.8, 3)


def test_a_round_that_one_of_both_has_missed_counts_for_nothing():
    read = readings("drain1", ours=[100, 100]) + [Reading(2, "drain1", "graphile", 50)]
    assert judged(Bar("drain1", 1.15, "graphile"), read).rounds == 1


def test_the_best_peer_is_the_best_of_each_round():
    read = readings("drain1", ours=[30, 30], pgqueuer=[10, 5], chancy=[5, 15])
    verdict = judged(Bar("drain1", 3.0, BEST_PYTHON), read)
    assert (verdict.result, verdict.low, verdict.high) == ("MISSED", 2.0, 3.0)


def test_a_verdict_names_the_best_peer_and_those_who_were_not_there():
    read = readings("drain1", ours=[30], pgqueuer=[10], chancy=[5])
    assert judged(Bar("drain1", 3.0, BEST_PYTHON), read).note == "pgqueuer; without procrastinate, dbos"


def test_a_bar_over_a_group_is_held_only_in_part_while_one_of_it_is_not_there():
    read = readings("drain1", ours=[30], chancy=[5], procrastinate=[1], dbos=[2])
    assert judged(Bar("drain1", 3.0, BEST_PYTHON), read).result == "held in part"


def test_of_latencies_less_is_better():
    read = readings("pickup_p99", ours=[10.0], graphile=[20.0], pgqueuer=[9.0])
    assert judged(Bar("pickup_p99", 1.0, BEST_PEER), read).median == pytest.approx(0.9)


@pytest.mark.parametrize(("value", "result"), [(2.0, "held"), (2.1, "MISSED")])
def test_a_cost_is_held_up_to_its_limit(value, result):
    assert judged(Bar("idle_queries", 2.0), readings("idle_queries", ours=[value])).result == result


@pytest.mark.parametrize(("value", "result"), [(0.85, "held"), (0.84, "MISSED")])
def test_a_share_is_held_down_to_its_limit(value, result):
    assert judged(Bar("held", 0.85), readings("held", ours=[value])).result == result


def test_a_full_table_is_compared_with_the_empty_one_of_the_same_round():
    read = readings("future", ours=[90, 50]) + readings("empty", ours=[100, 50])
    assert judged(Bar("future", 0.9, "ours", of="empty"), read).median == 0.95


def test_a_peer_that_is_not_installed_leaves_its_bar_unmeasured_and_says_why():
    verdict = judged(Bar("drain1", 1.15, "graphile"), readings("drain1", ours=[1.0]), graphile="not installed")
    assert (verdict.result, verdict.note) == ("not measured", "graphile: not installed")


def test_what_was_not_asked_for_is_told_apart():
    assert judged(Bar("drain1", 1.15, "graphile"), []).result == "not asked for"


@pytest.mark.parametrize(("result", "strict", "code"), [
    ("held", False, 0), ("MISSED", False, 1), ("not measured", False, 0), ("not measured", True, 1),
    ("not asked for", True, 0),
    ("held in part", False, 0), ("held in part", True, 1)])
def test_a_missed_bar_ends_with_one(result, strict, code):
    assert command.exit_code([bars.Verdict(BARS[0], "held"), bars.Verdict(BARS[1], result)], strict) == code


def test_every_bar_is_about_something_that_is_measured():
    known = {*contenders.NAMES, BEST_PYTHON, BEST_PEER, None}
    assert [bar for bar in BARS if bar.reading not in bars.READINGS or bar.against not in known
            or bar.of not in {*bars.READINGS, None}] == []


def test_every_contender_says_at_what_price():
    told = [contenders.load(name).facts for name in contenders.NAMES]
    assert [facts.package for facts in told if not (facts.settings and facts.back_after and facts.tells)] == []


# ---- what is shown ---------------------------------------------------------------------------------------------------

@pytest.fixture
def full():
    """A run in which everybody took part."""
    rates = {name: [1000.0 * 3**place, 900.0 * 3**place] for place, name in enumerate(contenders.NAMES)}
    return plan.Run([each for name in chart.PANELS for each in readings(name, **rates)], {"dbos": "drain1: it broke"})


def test_no_label_of_the_chart_touches_another(full):
    assert labels.clashes(chart.draw(full.readings, {"rounds": 2, "cores": 2})) == []


def test_the_chart_states_what_was_found(full):
    figure = chart.draw(readings("drain1", ours=[30.0], pgqueuer=[10.0], graphile=[25.0], pgfloor=[40.0]), {})
    assert figure.finding == "A worker drains 3.00 × the best Python peer, 1.20 × graphile-worker, 0.75 × the floor"


def test_a_chart_of_nothing_says_so():
    texts = [text.get_text() for text in labels.visible_texts(chart.draw([], {}))]
    assert "none of what is drawn was measured" in texts


def test_the_report_shows_who_failed_and_with_what_words(full):
    assert "dbos: drain1: it broke" in report.text(full, bars.judge(full.readings, full.missing))


def test_the_csv_has_a_row_a_reading(full):
    frame = report.frame(full)
    assert (list(frame.columns), len(frame)) == (
        ["round", "reading", "contender", "value", "unit", "facts"], len(full.readings))


def test_a_saved_run_reads_back_as_it_was(full, tmp_path):
    report.write(tmp_path, full, bars.judge(full.readings, full.missing))
    assert report.read(tmp_path / "bench.json") == full


@pytest.mark.parametrize(("arguments", "words"), [
    (["--only", "nobody"], "--only: nobody is not among pgfloor, driver, ours,"),
    (["--tests", ","], "--tests: nothing is not"),
    (["--rounds", "0"], "--rounds must be at least 1"), (["--again", "no.json"], "--again: no.json is no bench.json")])
def test_bad_input_is_one_clear_line(capsys, arguments, words):
    assert (command.main(arguments), words in capsys.readouterr().err) == (2, True)


# ---- measuring -------------------------------------------------------------------------------------------------------

def test_a_tracker_counts_what_several_threads_do(tmp_path):
    tracker = track.Tracker(str(track.prepare(tmp_path / "count")))
    threads = [threading.Thread(target=lambda: [tracker.hit() for _ in range(500)]) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert track.read(tmp_path / "count").calls == 2000


def test_with_two_workers_the_clock_starts_when_both_have_begun():
    watch = drain._Watch(seen=[(100.0, 0, 0), (101.0, 10, 1), (103.0, 40, 2), (105.0, 100, 2)],
                         counts=[track.Count(70, 101.0, 105.0), track.Count(30, 103.0, 105.0)],
                         cpu=[(10, 1.0, 2.0), (100, 1.9, 3.8)])
    found = drain._result(watch, confirmed=106.0, workers=2)
    assert (found.rate, found.lag_seconds, found.server_cpu, found.worker_cpu) == (
        20.0, 1.0, pytest.approx(1e4), pytest.approx(2e4))


@pytest.fixture(scope="module")
def stage(nothing_left_behind):
    with Stage() as stage:
        yield stage


def test_a_floor_that_ran_out_of_rows_is_no_floor(stage):
    with pytest.raises(BenchError, match="pgfloor drain: the table of 2,000 rows ran empty within 1 s"):
        floor.drain(stage, 1, 1, fill=2000)


@pytest.mark.timeout(300)
def test_a_small_run_of_ours_and_the_floor(tmp_path, monkeypatch):
    """Everything that needs no other queue, by the real command; no folder of its own is left."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    code = command.main(["--quick", "--no-peers", "--tests", "drain1,enqueue,bulk", "--out", str(tmp_path / "o")])
    told = json.loads((tmp_path / "o/bench.json").read_text())
    read = {(each["name"], each["contender"]) for each in told["readings"]}
    both = {(name, who) for name in ("drain1", "enqueue", "bulk") for who in ("ours", "pgfloor")}
    alone = {("bulk_keyed", "ours"), ("enqueue", "driver")}
    assert (code, told["missing"], read, list(scratch.iterdir())) == (0, {}, both | alone, [])
    assert sorted(path.name for path in (tmp_path / "o").iterdir()) == FILES


def test_a_peer_that_is_not_there_is_said_to_be_not_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(contenders, "NODE_FOLDER", tmp_path)
    run = plan.measure(["graphile"], ["drain1"], 1, QUICK, progress=False)
    assert (run.readings, run.missing["graphile"].partition(";")[0]) == ([], "not installed")


def test_a_worker_that_does_not_start_is_told_with_its_last_words(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ours, "OPTIONS", ["--no-such-option"])
    code = command.main(["--quick", "--only", "ours", "--tests", "drain1", "--out", str(tmp_path)])
    assert (code, "unrecognized arguments: --no-such-option" in capsys.readouterr().out) == (2, True)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_promises_hold_under_a_mixed_load_and_an_idle_worker_is_cheap():
    """And what only this queue is measured at, all of it, comes to an end."""
    run = plan.measure(["ours"], ["growth", "held", "pickup", "mixed", "idle"], 1, QUICK, progress=False)
    found = {each.name: each.value for each in run.readings}
    assert (run.missing, found["mixed_violations"], found["idle_queries"] <= 2) == ({}, 0, True)
    assert set(found) >= {"empty", "finished", "future", "due", "held", "pickup_p50", "pickup_p99", "mixed_lag_p99"}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_drain_is_a_fair_share_of_the_floor():
    """A safe limit on any machine, beside other tests; the bars are for ./run bench alone."""
    run = plan.measure(["pgfloor", "ours"], ["drain1"], 3, QUICK, progress=False)
    assert judged(Bar("drain1", 0.2, "pgfloor"), run.readings, **run.missing).result == "held"


def is_working(home: Path) -> bool:
    """Whether a worker lives among what was started with this home."""
    for process in processes_of(str(home)):
        with suppress(psutil.Error):
            if "worker" in process.cmdline():
                return True
    return False


@pytest.mark.long
def test_an_interrupted_run_shows_what_it_has_and_leaves_nothing(tmp_path):
    home = Path(tempfile.mkdtemp(dir=os.environ["JOBQUEUE_LAB_HOME"], prefix="bench-"))
    home.chmod(0o711)  # the server's user must be able to walk there
    argv = [sys.executable, "-m", "bench", "--no-peers", "--tests", "drain1", "--rounds", "50", "--out", str(tmp_path)]
    run = subprocess.Popen(argv, cwd=ROOT, env={**os.environ, "JOBQUEUE_LAB_HOME": str(home)}, text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        wait_until(lambda: is_working(home), 60, "a worker")
        run.send_signal(signal.SIGINT)
        said, _ = run.communicate(timeout=60)
    finally:
        run.kill()
    assert (run.returncode, "saved bench.json" in said) == (130, True)
    wait_until(lambda: not processes_of(str(home)), 12, "the end of all its processes")


def test_a_broken_file_is_refused(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(InvalidInput, match="is no bench.json that could be read"):
        report.read(tmp_path / "x.json")
