"""Workloads: recipes drawn by seed, the arithmetic of load, and files read, or refused with the line's number."""

import math
import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from jobqueue import limits
from jobqueue.errors import InvalidInput
from jobqueue.lab import workload
from jobqueue.lab.workload import Arrival, Workload

ROOT = Path(__file__).parents[1]
SERVICES = [workload.constant(2.0), workload.exponential(3.0), workload.lognormal(3.0, cv=2),
            workload.lognormal(3.0, sigma=1), workload.pareto(3.0, 4.5), workload.uniform(1, 2)]
NUL = "a\0"
CSV = "time,type,duration,outcome\n"


def written(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refusal(type):
    """What the core says of such a type: a file's line is held to the same limit, in the same words."""
    with pytest.raises(InvalidInput) as refused:
        limits.job_type(type)
    return refused.value


def swf(*lines):
    """SWF lines from (submit, run, status, type)."""
    return "".join(f"1 {at} 0 {run} 1 -1 -1 -1 60 -1 {status} 1 1 {type} 1 -1 -1 -1\n"
                   for at, run, status, type in lines)


# --- Recipes ---

def test_the_same_seed_draws_the_same_workload_and_another_seed_another():
    recipe = workload.poisson(rate=2.0, service=workload.exponential(3.0), n=500)
    assert recipe.draw(7) == recipe.draw(7) != recipe.draw(8)


def test_a_recipe_survives_pickling_so_that_a_sweep_can_send_it_away():
    day, spikes = workload.daily(0.01, service=workload.pareto(3, 2)), workload.hourly(5, service=workload.constant(1))
    recipe = (day + spikes).head(50).scaled(60)
    assert pickle.loads(pickle.dumps(recipe)).draw(7) == recipe.draw(7)


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.law)
def test_a_law_of_service_has_the_mean_and_the_variance_that_it_states(service):
    seconds = service.sample(np.random.default_rng(1), 400_000)
    assert seconds.mean() == pytest.approx(service.mean_seconds, rel=0.02)
    assert seconds.var() / seconds.mean() ** 2 == pytest.approx(service.scv, rel=0.15, abs=1e-9)


def test_poisson_arrivals_come_at_their_rate_with_exponential_gaps():
    gaps = np.diff(workload.poisson(rate=4.0, service=workload.constant(1), n=50_000).draw(3).at_seconds)
    assert gaps.mean() == pytest.approx(1 / 4, rel=0.02)
    assert np.quantile(gaps, 0.95) == pytest.approx(math.log(20) / 4, rel=0.05)


def test_poisson_by_hours_ends_with_them():
    drawn = workload.poisson(rate=1.0, service=workload.constant(1), hours=2).draw(3)
    assert len(drawn) == pytest.approx(7200, abs=5 * math.sqrt(7200))
    assert 7100 < drawn.span_seconds < 7200


def test_a_day_has_its_mean_rate_and_its_busy_hours():
    drawn = workload.daily(1.0, service=workload.constant(1), days=2).draw(5)
    per_hour = np.bincount((drawn.at_seconds // 3600).astype(int), minlength=48)
    expected = np.tile(np.array(workload.OFFICE) / np.mean(workload.OFFICE) * 3600, 2)
    assert (abs(per_hour - expected) < 6 * np.sqrt(expected)).all()


def test_bursts_come_at_once_or_within_a_while():
    at_once = workload.bursts(3, every_seconds=60, n=2, service=workload.constant(1)).draw(1)
    strewn = workload.bursts(300, every_seconds=60, n=2, service=workload.constant(1), within_seconds=10).draw(1)
    assert at_once.at_seconds.tolist() == [0, 0, 0, 60, 60, 60]
    assert strewn.at_seconds[299] < 10 < 60 < strewn.at_seconds[300]
    assert len(set(strewn.at_seconds)) == 600


def test_a_spread_moves_each_hourly_schedule_by_the_same_offset_in_every_hour():
    spikes = workload.hourly(4, service=workload.constant(1), hours=3).draw(1)
    spread = workload.hourly(4, service=workload.constant(1), hours=3, spread_seconds=600).draw(1)
    assert spikes.at_seconds.tolist() == [0.0] * 4 + [3600.0] * 4 + [7200.0] * 4
    offsets = spread.at_seconds.reshape(3, 4) - [[0], [3600], [7200]]
    assert np.allclose(offsets, offsets[0])
    assert len(set(offsets[0])) == 4
    assert (offsets >= 0).all() and (offsets < 600).all()


def test_the_share_that_fails_fails():
    drawn = workload.poisson(rate=1, service=workload.constant(1), n=20_000, failed=0.1).draw(1)
    assert (drawn.outcome == "failed").mean() == pytest.approx(0.1, abs=0.01)


# --- Arithmetic ---

def one(at, type="job", seconds=1.0, outcome="done"):
    return Workload([at], [type], [seconds], [outcome])


def test_adding_merges_and_then_appends():
    pair = one(0.0) + one(4.0)
    assert (pair + one(2.0, "b")).frame().type.tolist() == ["job", "b", "job"]
    assert pair.then(one(2.0, "b")).at_seconds.tolist() == [0, 4, 6]


def test_jobs_of_one_instant_keep_their_order():
    assert [arrival.type for arrival in one(1.0, "z") + one(1.0, "a") + one(0.0, "m")] == ["m", "z", "a"]


def test_a_time_scale_shortens_time_and_work_alike_and_keeps_the_offered_load():
    drawn = workload.poisson(rate=2.0, service=workload.exponential(3.0), n=2000).draw(7)
    scaled = drawn.scaled(60)
    assert scaled.span_seconds == pytest.approx(drawn.span_seconds / 60)
    assert scaled.offered_load == pytest.approx(drawn.offered_load)
    assert drawn.offered_load == pytest.approx(6.0, rel=0.1)


def test_the_offered_load_of_one_instant_is_infinite_and_of_nothing_zero():
    assert (one(0.0).offered_load, one(0.0).head(0).offered_load) == (math.inf, 0.0)


def test_a_description_has_a_row_a_type_and_one_for_all():
    facts = (one(0.0, "a", 2.0) + one(10.0, "b", 4.0, "failed")).describe()
    assert facts.loc[:, ["jobs", "mean_seconds", "max_seconds", "erlangs", "failed"]].values.tolist() == [
        [1, 2.0, 2.0, 0.2, 0], [1, 4.0, 4.0, 0.4, 1], [2, 3.0, 4.0, 0.6, 1]]
    assert facts.index.tolist() == ["a", "b", "all"]


def test_the_arrays_of_a_workload_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        one(0.0).at_seconds[0] = 5


@pytest.mark.parametrize("make", [
    lambda: workload.poisson(rate=0, service=SERVICES[0], n=5),
    lambda: workload.poisson(rate=math.nan, service=SERVICES[0], n=5),
    lambda: workload.poisson(rate=1, service=SERVICES[0]),
    lambda: workload.poisson(rate=1, service=SERVICES[0], n=5, hours=1),
    lambda: workload.poisson(rate=1, service=SERVICES[0], n=2.5),
    lambda: workload.poisson(rate=1, service=SERVICES[0], n=True),
    lambda: workload.poisson(rate=1, service=SERVICES[0], n=5, type=""),
    lambda: workload.poisson(rate=1, service=SERVICES[0], n=5, type="é" * 101),
    lambda: workload.poisson(rate=1, service=SERVICES[0], n=5, failed=1.1),
    lambda: workload.daily(1, service=SERVICES[0], profile=(1, 2, 3)),
    lambda: workload.bursts(1, every_seconds=1, n=1, service=SERVICES[0], within_seconds=-1),
    lambda: workload.pareto(1, 1),
    lambda: workload.lognormal(1),
    lambda: workload.lognormal(1, cv=1, sigma=1),
    lambda: workload.uniform(2, 1),
    lambda: workload.constant(math.inf),
    lambda: Workload([0.0, 1.0], ["a"], [1.0], ["done"]),
    lambda: Workload([math.nan], ["a"], [1.0], ["done"]),
    lambda: Workload([0.0], ["a"], [-1.0], ["done"]),
    lambda: Workload([0.0], ["a"], [1.0], ["perhaps"]),
    lambda: Workload([0.0], ["a\ud800"], [1.0], ["done"]),
    lambda: one(0.0).scaled(0),
    lambda: one(0.0).head(-1),
])
def test_what_makes_no_sense_is_refused(make):
    with pytest.raises(InvalidInput):
        make()


# --- Files ---

def test_a_csv_is_read_in_any_order_of_lines_and_columns(tmp_path):
    lines = '2,mail,100.5,x,failed\n\n1,"report, big",90,y,\n'
    path = written(tmp_path, "trace.csv", "Duration, TYPE ,time,note,outcome\n" + lines)
    assert list(workload.read(path)) == [Arrival(0.0, "report, big", 1.0), Arrival(10.5, "mail", 2.0, "failed")]


def test_a_csv_may_give_instants_with_their_offsets(tmp_path):
    lines = "2026-03-29T01:59:59+01:00,a,1\n2026-03-29T01:00:00.5Z,b,2\n"
    path = written(tmp_path, "trace.csv", "time,type,duration\n" + lines)
    assert list(workload.read(path)) == [Arrival(0.0, "a", 1.0), Arrival(1.5, "b", 2.0)]


@pytest.mark.parametrize("content", [
    pytest.param(CSV.replace("\n", "\r\n") + "5,a,1,done\r\n", id="CRLF"),
    pytest.param("\ufeff" + CSV + "5,a,1,done", id="BOM, no last newline"),
    pytest.param(CSV + "5,a,1,done\n\n\n", id="blank lines"),
])
def test_a_csv_from_a_spreadsheet_is_read(tmp_path, content):
    assert list(workload.read(written(tmp_path, "TRACE.CSV", content))) == [Arrival(0.0, "a", 1.0)]


@pytest.mark.parametrize("line, problem", [
    ("5,a", "line 3: 2 fields, the header has 4"),
    ("5,a,1,done,more", "line 3: 5 fields, the header has 4"),
    ("5,a,nan,done", "line 3: duration nan is not a number of seconds from 0 up"),
    ("5,a,inf,done", "line 3: duration inf is not a number of seconds from 0 up"),
    ("5,a,-1,done", "line 3: duration -1 is not a number of seconds from 0 up"),
    ("5,a,2e9,done", "line 3: duration 2e9 s is more than 1e+09: wrong unit?"),
    ("5,a,soon,done", "line 3: duration 'soon' is not a number of seconds"),
    ("5,a,,done", "line 3: duration '' is not a number of seconds"),
    ("nan,a,1,done", "line 3: time nan is not a number of seconds from 0 up"),
    ("-5,a,1,done", "line 3: time -5 is not a number of seconds from 0 up"),
    ("2026-01-01T00:00:00Z,a,1,done", "line 3: time '2026-01-01T00:00:00Z' is not a number of seconds"),
    ("5,,1,done", f"line 3: {refusal('')}"),
    ("5," + "é" * 101 + ",1,done", f"line 3: {refusal('é' * 101)}"),
    ("5,a\0,1,done", f"line 3: {refusal(NUL)}"),
    ("5,a,1,maybe", "line 3: outcome 'maybe' is neither done nor failed"),
    ('5,"a,1,done', "line 3: unexpected end of data"),
    ("9999999999,a,1,done", ": its arrivals span 1e+10 s, more than 1e+09: wrong unit?"),
])
def test_a_csv_line_that_cannot_be_read_is_named(tmp_path, line, problem):
    with pytest.raises(InvalidInput) as refused:
        workload.read(written(tmp_path, "trace.csv", CSV + "4,a,1,done\n" + line + "\n"))
    assert str(refused.value) in (f"trace.csv {problem}", f"trace.csv{problem}")


@pytest.mark.parametrize("time, problem", [
    ("2026-01-01T00:00:00", "time '2026-01-01T00:00:00' has no UTC offset (+01:00, or Z)"),
    ("2026-02-30T00:00:00Z", "time '2026-02-30T00:00:00Z' is not ISO 8601"),
    ("yesterday", "time 'yesterday' is not ISO 8601"),
    ("", "time '' is not ISO 8601"),
])
def test_an_instant_that_is_none_or_somebodys_local_time_is_refused(tmp_path, time, problem):
    with pytest.raises(InvalidInput, match=f"^{re.escape(f'trace.csv line 2: {problem}')}$"):
        workload.read(written(tmp_path, "trace.csv", f"{CSV}{time},a,1,done\n"))


@pytest.mark.parametrize("name, content, problem", [
    ("trace.csv", "", "trace.csv: no job in it"),
    ("trace.csv", CSV, "trace.csv: no job in it"),
    ("trace.swf", "; only comments\n", "trace.swf: no job in it"),
    ("trace.csv", "time,kind,duration\n1,a,1\n",
     "trace.csv line 1: the header needs time, type, duration[, outcome], each once; it reads time, kind, duration"),
    ("trace.csv", "time,type,duration,time\n1,a,1,2\n",
     "trace.csv line 1: the header needs time, type, duration[, outcome], each once; "
     "it reads time, type, duration, time"),
    ("trace.csv", CSV.encode() + b"1,a,1,done\n2,\xff,1,done\n", "trace.csv line 3: not UTF-8"),
    ("trace.txt", "1", "trace.txt: a workload file ends in .csv or .swf"),
])
def test_a_file_without_a_workload_is_refused(tmp_path, name, content, problem):
    with pytest.raises(InvalidInput, match=f"^{re.escape(problem)}$"):
        workload.read(written(tmp_path, name, content))


def test_a_file_that_is_not_there_is_a_clear_error(tmp_path):
    with pytest.raises(InvalidInput, match="^cannot read none.csv: No such file or directory$"):
        workload.read(tmp_path / "none.csv")


def test_an_swf_file_is_read_by_its_fields(tmp_path):
    lines = swf((90, 5, 0, 7), (80, 3, 1, -1), (85, 2.5, 5, -1), (86, 1, -1, 7))
    assert list(workload.read(written(tmp_path, "trace.SWF", "; header\n" + lines))) == [
        Arrival(0.0, "job", 3.0), Arrival(5.0, "job", 2.5, "failed"), Arrival(6.0, "7", 1.0),
        Arrival(10.0, "7", 5.0, "failed")]


def test_swf_lines_without_work_of_their_own_are_left_out_and_counted(tmp_path, caplog):
    path = written(tmp_path, "trace.swf", swf((1, -1, 5, -1), (2, 10, 1, -1), (2, 6, 2, -1), (8, 4, 3, -1)))
    read = workload.read(path)
    assert (list(read), read.left_out) == ([Arrival(0.0, "job", 10.0)], 3)
    assert caplog.messages == ["trace.swf: 3 of 4 lines left out: never ran, or a part of another"]


@pytest.mark.parametrize("line, problem", [
    ("1 2 3", "3 fields, an SWF line has 18"),
    (swf((5, -2, 1, -1)), "run time (field 4) -2 is not a number of seconds from 0 up"),
    (swf((-1, 2, 1, -1)), "submit time (field 2) -1 is not a number of seconds from 0 up"),
    (swf((5, "nan", 1, -1)), "run time (field 4) nan is not a number of seconds from 0 up"),
    (swf((5, 2, 9, -1)), "status (field 11) 9 is not -1 to 5"),
    (swf((5, 2, "ok", -1)), "status (field 11) 'ok' is not a whole number"),
    (swf((5, 2, 1, 1.5)), "type (field 14) '1.5' is not a whole number"),
])
def test_an_swf_line_that_cannot_be_read_is_named(tmp_path, line, problem):
    with pytest.raises(InvalidInput, match=f"^{re.escape(f'trace.swf line 3: {problem}')}$"):
        workload.read(written(tmp_path, "trace.swf", "; header\n" + swf((1, 1, 1, -1)) + line))


def test_what_is_written_is_read_again_to_the_last_digit(tmp_path):
    skewed, burst = workload.lognormal(3, cv=2), workload.bursts(5, every_seconds=1, n=1, service=workload.constant(1))
    drawn = (workload.poisson(rate=1 / 3, service=skewed, n=200, type='a "quoted", type', failed=0.2) + burst).draw(7)
    drawn.to_csv(tmp_path / "out.csv")
    assert workload.read(tmp_path / "out.csv") == drawn


def test_the_made_up_day_is_the_one_that_its_readme_makes(tmp_path, monkeypatch):
    (tmp_path / "data/workloads").mkdir(parents=True)
    snippet = re.search(r"```python\n(.*?)```", (ROOT / "data/workloads/README.md").read_text(), re.S)[1]
    monkeypatch.chdir(tmp_path)
    exec(snippet, {})
    made, kept = (workload.read(root / "data/workloads/office-day.csv") for root in (tmp_path, ROOT))
    assert made == kept
    assert (kept.types, 300 < len(kept) < 600) == (["import", "invoice", "mail", "report"], True)


def test_the_real_day_is_read_whole():
    path = os.environ.get("JOBQUEUE_TRACE")
    if not path:
        pytest.skip("JOBQUEUE_TRACE names no trace file")
    day = workload.read(path)
    assert (len(day), day.left_out, day.types, day.span_seconds) == (18_482, 0, ["job"], 86_399.0)
    assert day.offered_load == pytest.approx(112_051_680 / 86_399)
