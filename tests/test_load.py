"""The load test: real producers and workers are measured; the verdict follows the data, and nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import psutil
import psycopg
import pytest

from helpers import wait_until
from jobqueue.errors import InvalidInput
from jobqueue.lab import charts, database, labels, load, notebooks, peers, producer, ramp, verdict, waits
from jobqueue.lab.spans import Age
from jobqueue.lab.verdict import judge

RATES = [200.0, 400.0, 800.0, 1600.0]
AGES = [0.01, 0.02, 0.03, 2.0]


def steps(**changed):
    """A ramp whose last step misses the target; `changed` replaces values of that step."""
    count = len(RATES)
    calm = {"arrived": RATES, "sent": RATES, "completed": RATES, "offered": RATES}
    for quantile, factor in (("p50", 0.5), ("p95", 1.0), ("p99", 1.5)):
        calm[f"age_{quantile}_seconds"] = [factor * age for age in AGES]
    still = {"claim_p50_seconds": 0.001, "claim_p95_seconds": 0.002, "slots_busy": 0.2, "worker_processor": 0.2}
    still |= {"processors_busy": 0.3, "processors_used": 0.3, "worker_commit_waits": 0.2, "producer_commit_waits": 0.1}
    still |= {"pickup_p95_seconds": 0.02, "lag_p95_seconds": 0.001}
    still |= {"worker_lock_waits": 0.0, "producer_lock_waits": 0.0, "dead_tuples": 500.0, "horizon_seconds": 0.0}
    still |= {"sessions": 14.0, "max_sessions": 97.0, "refused": 0, "unsent": 0, "commits_per_second": 500.0}
    still |= {"worker_cpu_ms_per_job": 0.1, "server_cpu_ms_per_job": 0.2, "wal_bytes_per_job": 900.0}
    frame = pd.DataFrame(calm | {name: [value] * count for name, value in still.items()}).astype(float)
    for name, value in changed.items():
        frame.loc[count - 1, name] = value
    return frame


LIMITS = {
    "slots": ({"slots_busy": 0.98}, "workers", "the slots are 98% busy", "more slots"),
    "a core": ({"worker_processor": 0.97}, "workers", "each worker process uses 97%", "one more worker process"),
    "the machine": (
        {"processors_busy": 0.99, "processors_used": 0.9}, "workers", "processors of this machine are 99% busy",
        "workers on another machine",
    ),
    "commits of producers": (
        {"lag_p95_seconds": 2.0, "producer_commit_waits": 0.9}, "commits",
        "90% of the producers' sessions wait for a commit", "enqueue in batches",
    ),
    "commits of workers": ({"worker_commit_waits": 0.95}, "commits", "95% of the workers' sessions", "larger prefetch"),
    "locks": ({"worker_lock_waits": 0.6}, "locks", "60% of the workers' sessions wait for a lock", "fewer sessions"),
    "a held snapshot": (
        {"claim_p50_seconds": 0.04, "dead_tuples": 90_000.0, "horizon_seconds": 60.0}, "vacuum",
        "a snapshot has been held for 60 s", "end the session",
    ),
    "vacuum": ({"claim_p50_seconds": 0.04, "dead_tuples": 90_000.0}, "vacuum", "90,000 dead rows", "autovacuum"),
    "connections": ({"refused": 3, "lag_p95_seconds": 2.0}, "connections", "3 connections were refused", "pooler"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITS)
def test_each_limit_is_named_with_its_reason_and_what_to_change(name):
    changed, limit, reason, change = LIMITS[name]
    found = judge(steps(**changed), target_age_seconds=0.5)
    assert (found.sustainable_rate, found.missed_rate, found.limit, found.limit_rate) == (800, 1600, limit, 1600)
    assert reason in found.reason and change in found.change


def test_without_any_limit_the_nearest_one_is_told():
    found = judge(steps(), target_age_seconds=0.5)
    assert (found.limit, found.limit_rate) == (None, None)
    assert found.reason == "no limit was reached; the nearest, commits, was at 25% of its own"


def test_full_slots_explain_why_a_worker_waits_and_busy_workers_do_not_explain_producers():
    full = steps(slots_busy=0.97, worker_commit_waits=1.0, worker_lock_waits=0.9)
    assert judge(full, target_age_seconds=0.5).limit == "workers"
    behind = steps(lag_p95_seconds=2.0, slots_busy=0.97, producer_commit_waits=0.8)
    assert judge(behind, target_age_seconds=0.5).limit == "commits"


def test_processors_that_others_keep_busy_are_not_the_loads_limit():
    found = judge(steps(processors_busy=1.0, processors_used=0.3), target_age_seconds=0.5)
    assert (found.limit, found.change) == (None, "the machine: measure where nothing else runs")
    assert found.reason == "the processors are 100% busy, 70% with what is not this load"


def test_the_sustainable_rate_follows_the_target_and_a_backlog_that_grows_counts_as_missed():
    assert judge(steps(), target_age_seconds=0.015).sustainable_rate == 200
    assert judge(steps(), target_age_seconds=0.005).sustainable_rate is None
    assert judge(steps(), target_age_seconds=10).missed_rate is None
    growing = steps()
    growing.loc[1, "completed"] = 300
    assert judge(growing, target_age_seconds=0.5).sustainable_rate == 200


def test_the_knee_is_where_the_curve_turns_and_a_flat_one_has_none():
    assert verdict.knee(steps()) == 800
    assert verdict.knee(steps().head(3)) is None


@pytest.mark.parametrize(
    ("required", "changed", "batch", "broker", "why"),
    [
        (500, {}, 1, False, "with room to spare"),
        (700, {}, 1, False, "less than 30 % is left"),
        (2000, {"slots_busy": 1.0}, 1, False, "the workers, which a broker does not move"),
        (2000, {"lag_p95_seconds": 2.0, "producer_commit_waits": 0.9}, 1, False, "not batched yet"),
        (2000, {"lag_p95_seconds": 2.0, "producer_commit_waits": 0.9}, 50, True, "a broker it is"),
        (2000, {"worker_lock_waits": 0.6}, 50, True, "a broker it is"),
        (2000, {"age_p95_seconds": 0.1}, 1, None, "go on with higher rates"),
        (2000, {}, 50, None, "not known: find it before you decide"),
        (None, {}, 1, None, "give required_rate"),
    ],
)
def test_a_broker_is_indicated_by_the_criterion(required, changed, batch, broker, why):
    found = judge(steps(**changed), target_age_seconds=0.5, required_rate=required, enqueue_batch=batch)
    assert found.broker is broker and why in found.broker_reason


# ---- what is measured ------------------------------------------------------------------------------------------------


def test_the_oldest_age_counts_from_the_instant_a_job_was_meant_for():
    jobs = pd.DataFrame({"due": [0.0, 1.0, 2.0], "created": [0.0, 1.0, 2.0], "started": [4.0, 1.5, np.nan],
                         "finished": [4.1, 1.6, np.nan]})  # fmt: skip
    age = Age(jobs["due"], jobs["started"], 0.0, 10.0)
    ages = ramp.oldest_ages(age).set_index("time_seconds")["oldest_age_seconds"]
    assert [round(ages[at], 9) for at in (0.0, 3.0, 4.0, 9.0)] == [0.0, 3.0, 2.0, 7.0]


def test_a_job_that_a_producer_did_not_send_in_time_waits_like_the_others():
    sent = pd.DataFrame({"due": [0.0], "created": [0.0], "started": [0.5], "finished": [0.6]})
    jobs = ramp.with_unsent(sent, [1.0])
    measured = ramp.of_jobs(jobs, Age(jobs["due"], jobs["started"], 0.0, 4.0), ramp.Window(0.0, 4.0))
    assert (measured["arrived"], measured["sent"], measured["completed"]) == (0.5, 0.25, 0.25)
    assert measured["age_p99_seconds"] == pytest.approx(3.0 - 0.04)


def test_a_slot_is_busy_from_the_claim_to_the_completion_of_a_job_that_takes_long():
    jobs = pd.DataFrame({"due": 0.0, "created": 0.0, "started": [0.0, 5.0, np.nan], "finished": [4.0, np.nan, np.nan]})
    window, long = ramp.Window(2.0, 10.0), ramp.Setting(workers=1, concurrency=2, service_seconds=4.0)
    assert ramp.slots_busy(jobs, window, long) == pytest.approx((2 + 5) / 8 / 2)
    assert ramp.slots_busy(jobs, window, replace(long, service_seconds=0.04)) == pytest.approx(0.04 / 8 / 2)


@pytest.mark.parametrize(
    ("wait_type", "wait", "group"),
    [
        ("", "", waits.PROCESSOR),
        ("IO", "WalSync", waits.COMMIT),
        ("IO", "WALSync", waits.COMMIT),
        ("LWLock", "WALWrite", waits.COMMIT),
        ("IPC", "SyncRep", waits.COMMIT),
        ("LWLock", "BufferContent", waits.LOCK),
        ("Lock", "transactionid", waits.LOCK),
        ("IO", "DataFileRead", waits.DISK),
        ("Timeout", "VacuumDelay", waits.OTHER),
        ("Client", "ClientRead", None),
    ],
)
def test_waits_are_grouped_by_what_would_help(wait_type, wait, group):
    assert waits.group(wait_type, wait) == group


@pytest.mark.parametrize(("arrivals", "spread"), [("constant", 0.001), ("poisson", 0.1)])
def test_arrivals_come_at_the_offered_rate_and_by_seed(arrivals, spread):
    order = producer.Order(seconds=20, rate=100, result="", arrivals=arrivals, seed="1")
    at = list(producer.arrivals(order))
    assert at == list(producer.arrivals(order)) and at == sorted(at) and at[0] >= 0 and at[-1] < 20
    assert len(at) / 2000 == pytest.approx(1, rel=spread, abs=1e-3)
    assert np.std(np.diff(at)) == pytest.approx(0 if arrivals == "constant" else 0.01, abs=0.001)


def test_a_ramp_measures_real_workers_and_is_stored_and_read_again(server, tmp_path):
    result = load.run(rates=[40, 120], step_seconds=4, dsn=server.dsn, workers=1, producers=1, progress=False, seed=3,
                      required_rate=60)  # fmt: skip
    assert list(result.steps["offered"]) == [40, 120]
    measured = result.steps.iloc[-1]
    assert 0.6 * 120 < measured["completed"] < 1.4 * 120
    assert 0 < measured["claim_p50_seconds"] < 1 and 0 < measured["enqueue_p50_seconds"] < 1
    assert 100 < measured["wal_bytes_per_job"] < 20_000 and measured["commits_per_second"] > 120
    assert measured["worker_cpu_ms_per_job"] > 0 and measured["server_cpu_ms_per_job"] > 0
    assert set(result.waits["who"]) >= {"worker", "producer"} and set(result.waits["group"]) <= set(waits.GROUPS)
    again = load.read(result.save(tmp_path / "run"))
    assert (again.text(), again.verdict, again.parameters()) == (result.text(), result.verdict, result.parameters())
    assert json.loads((tmp_path / "run" / "run.json").read_text())["kind"] == "load"
    pd.testing.assert_frame_equal(again.steps, result.steps)
    assert _databases(server) == []


@pytest.mark.long
@pytest.mark.parametrize(("given", "said"), [({"service_seconds": 0.1, "workers": 1, "concurrency": 2}, "the slots")])
def test_workers_that_are_full_are_found_on_a_real_server(server, given, said):
    result = load.run(rates=[8, 60], step_seconds=4, target_age_seconds=0.4, dsn=server.dsn, progress=False, **given)
    assert (result.verdict.sustainable_rate, result.verdict.limit) == (pytest.approx(14, abs=8), "workers")
    assert said in result.verdict.reason and "more slots" in result.text()


@pytest.mark.long
def test_a_server_that_is_out_of_connections_is_found():
    with database.Server(settings={"max_connections": 14}) as small:
        result = load.run(rates=[20, 60], step_seconds=2, dsn=small.dsn, workers=1, producers=2, connections=6,
                          target_age_seconds=0.05, progress=False)  # fmt: skip
    assert (result.verdict.limit, "a transaction pooler" in result.verdict.change) == ("connections", True)
    assert result.steps["refused"].iloc[0] > 0


@pytest.mark.long
def test_notify_wakes_an_idle_worker_and_polling_takes_its_period(server):
    found = load.vary("wake", ["notify", "poll"], rate=6, step_seconds=4, poll_seconds=1.0, workers=1, producers=1,
                      dsn=server.dsn, progress=False, arrivals="constant")  # fmt: skip
    told = dict(zip(found["wake"], found["pickup_p50_seconds"], strict=True))
    assert told["notify"] < 0.2 < told["poll"] < 1.2


# ---- whose server ----------------------------------------------------------------------------------------------------


def _databases(server):
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        rows = conn.execute("select datname from pg_database where datname like 'jobqueue_lab_%'").fetchall()
    return [name for (name,) in rows if _is_load(server, name)]


def _is_load(server, name):
    """Other tests' databases live on this server too; ours have jobs with an intended instant."""
    try:
        with psycopg.connect(server.dsn, dbname=name, autocommit=True) as conn:
            return bool(conn.execute("select 1 from jobqueue.job where payload ? 'due' limit 1").fetchall())
    except (psycopg.OperationalError, psycopg.errors.UndefinedTable):
        return False


def test_a_server_of_yours_is_used_only_after_a_yes(server, monkeypatch):
    monkeypatch.setenv("JOBQUEUE_DSN", server.dsn)
    asked = []
    with pytest.raises(database.DatabaseError, match="Nothing was done: agree by --yes"):
        load.run(rates=[10], confirm=lambda said: asked.append(said))
    assert "a database of its own there" in asked[0] and "2 workers and 8 producers" in asked[0]


def test_without_createdb_it_stops_and_says_so(server):
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute("create role load_guest login")
        try:
            with pytest.raises(database.DatabaseError, match="load_guest may not create one"):
                load.run(rates=[10], dsn=psycopg.conninfo.make_conninfo(server.dsn, user="load_guest"))
        finally:
            conn.execute("drop role load_guest")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rates": []}, "rates must rise"),
        ({"rates": [5, 5]}, "rates must rise"),
        ({"rates": [0]}, "a rate must"),
        ({"workers": 0}, "workers must"),
        ({"wake": "push"}, "wake must be one of notify, poll, not 'push'"),
        ({"arrivals": "burst"}, "arrivals must be one of poisson, constant"),
        ({"target_age_seconds": 0}, "target_age_seconds must"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(given, message):
    with pytest.raises(InvalidInput, match=message):
        load.run(dsn="host=/nowhere", **given)


def test_a_folder_without_a_run_says_so(tmp_path):
    with pytest.raises(InvalidInput, match="holds no stored load run"):
        load.read(tmp_path)


def test_an_interrupt_leaves_no_process_and_no_database(server):
    argv = [sys.executable, "-m", "jobqueue", "lab", "load", "--yes", "--rates", "30", "40", "--step-seconds", "20"]
    argv += ["--workers", "1", "--producers", "1", "--quiet"]
    mine = psutil.Process()
    run = subprocess.Popen(argv, env=os.environ | {"JOBQUEUE_DSN": server.dsn}, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)  # fmt: skip
    try:
        wait_until(lambda: _databases(server), 120, "the first job of the load")
        family = psutil.Process(run.pid).children(recursive=True)
        run.send_signal(signal.SIGINT)
        said, _ = run.communicate(timeout=60)
    finally:
        run.kill()
        run.wait()
    assert (run.returncode, said.startswith("JOBQUEUE_DSN names"), "Traceback" in said) == (130, True, False)
    assert len(family) >= 3 and psutil.wait_procs(family, timeout=10)[1] == []
    assert _databases(server) == [] and mine.is_running()


@pytest.mark.long
def test_the_time_limit_ends_the_ramp(server):
    began = time.monotonic()
    result = load.run(rates=range(20, 140, 10), step_seconds=1, limit_seconds=12, dsn=server.dsn, workers=1,
                      producers=1, progress=False)  # fmt: skip
    assert 1 <= len(result.steps) < 12 and time.monotonic() - began < 30


# ---- pictures --------------------------------------------------------------------------------------------------------


def _result():
    rows = [(rate, who, group, 0.3) for rate in RATES for who in ("worker", "producer") for group in waits.GROUPS]
    seen = pd.DataFrame(rows, columns=["offered", "who", "group", "sessions"]).assign(wait="x")
    facts = {"version": "18.6", "server": "a server", "processors": 2, "synchronous_commit": "on"}
    return load.Result(load.Setting(), 0.5, 2000.0, 1, facts, steps(slots_busy=0.97), seen, pd.DataFrame())


FIGURES = {
    "curve": lambda one: charts.load_curve(one.steps, target_age_seconds=0.5, sustainable_rate=800, knee_rate=400,
                                           limit=one.verdict.limit),
    "waits": lambda one: charts.load_waits(one.waits),
    "costs": lambda one: charts.load_costs(one.steps),
    "dimension": lambda one: charts.load_dimension(_pickups(), "prefetch"),
    "peers": lambda one: charts.peers(_peers()),
}  # fmt: skip


def _pickups():
    return pd.DataFrame({"prefetch": [0, 50], "offered": 500.0, "completed": [400.0, 500.0],
                         "pickup_p50_seconds": [0.2, 0.004], "pickup_p95_seconds": [0.4, 0.01],
                         "pickup_p99_seconds": [0.5, 0.02]})  # fmt: skip


def _peers():
    return pd.DataFrame({"name": ["this queue", "another"], "drain_1": [15_000.0, 5_000.0], "drain_2": [18_000.0, None],
                         "ours": [True, False]})  # fmt: skip


def test_the_floor_is_no_queue_to_be_compared_with_and_says_what_it_is():
    floor = pd.DataFrame({"name": ["pgfloor (pgbench)"], "drain_1": 28_000.0, "drain_2": None, "ours": False})
    figure = charts.peers(pd.concat([_peers(), floor]))
    said = [text.get_text() for text in labels.visible_texts(figure)]
    assert figure.finding == FINDINGS["peers"] and labels.clashes(figure) == []
    assert any("pgfloor is no queue" in text and "…" not in text for text in said)


FINDINGS = {
    "curve": "800 jobs a second keep the p95 of queue age within 500 ms; then workers come first",
    "waits": "At the highest rate sessions that are at work spend 20% of their time waiting for a commit",
    "costs": "At the highest rate a job costs 100 µs of a worker, 200 µs of the server and 900 bytes of WAL",
    "dimension": "Median pick-up at 500 jobs a second: 4 ms with prefetch 50, 200 ms with 0",
    "peers": "One worker of this queue drains 15,000 jobs a second, 3.00 times another, the fastest other queue",
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figures_title_is_computed_and_no_text_collides(name):
    figure = FIGURES[name](_result())
    assert (figure.finding, labels.clashes(figure)) == (FINDINGS[name], [])


def test_the_curve_marks_target_knee_and_sustained_rate():
    figure = FIGURES["curve"](_result())
    marks = {line.get_label(): line for line in figure.axes[0].lines}
    assert (marks["sustained"].get_xdata()[0], marks["knee"].get_xdata()[0]) == (800, 400)
    assert marks["target"].get_ydata()[0] == 0.5
    assert list(marks["p95"].get_ydata()) == AGES


def test_the_text_changes_with_the_data():
    one = _result()
    calm = replace(one, steps=steps(age_p95_seconds=0.1), required_rate=600.0)
    assert "limit        workers, at 1,600/s: the slots are 97% busy" in one.text()
    assert "limit        none found: no step missed the target" in calm.text()
    assert "broker       not indicated: at least 1,600 jobs a second are sustained, and 600 are needed" in calm.text()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_notebook_measures_in_small_and_exports_its_figures(monkeypatch, tmp_path):
    monkeypatch.setenv("JOBQUEUE_EXPORTS", str(tmp_path))
    small = {"RATES": (20, 40), "BATCHED_RATES": (50,), "STEP_SECONDS": 1.0, "BATCHES": (0, 50), "BATCH_RATE": 50.0}
    path = notebooks.NOTEBOOKS / "11-when-do-you-need-a-broker.ipynb"
    ran = notebooks.execute(path, parameters=small | {"CHURNED": 1000, "REQUIRED": 5.0})
    said = "".join(output.get("text", "") for cell in ran.cells for output in cell.get("outputs", []))
    assert "broker       not indicated: at least 40 jobs a second are sustained, and 5 are needed" in said
    names = ("load", "waits", "costs", "wake", "batches", "horizon", "peers")
    assert all((tmp_path / f"11-{name}.csv").stat().st_size > 100 for name in names)


# ---- other queues ----------------------------------------------------------------------------------------------------


def test_peers_are_medians_of_a_benchmark_or_named_as_published(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "ROOT", tmp_path)
    published = peers.drains()
    assert "authors' machine" in published.attrs["source"] and published["ours"].sum() == 1
    rows = [("drain1", name, value) for name, value in (("ours", 9), ("ours", 10), ("ours", 30), ("pgqueuer", 4))]
    rows += [("drain2", "ours", 12), ("drain1", "graphile", 8), ("drain1", "pgfloor", 20), ("pickup", "ours", 1)]
    place = tmp_path / "data" / "runs" / "bench-1"
    place.mkdir(parents=True)
    pd.DataFrame(rows, columns=["reading", "contender", "value"]).to_csv(place / "bench.csv")
    found = peers.drains()
    assert (found.attrs["source"], found["drain_1"].tolist()) == ("./run bench, bench-1", [20, 10, 8, 4])
    assert found.loc[1, ["name", "drain_2", "ours"]].tolist() == ["this queue", 12, True]
    with pytest.raises(InvalidInput, match="holds no drains"):
        peers.drains(tmp_path / "none.csv")
