"""The laboratory run, the failure matrix and the campaign: what they show, and that they can fail."""

import json
import os
import re
import subprocess
import sys
from unittest.mock import ANY

import pandas as pd
import psycopg
import pytest

from jobqueue import sql
from jobqueue.__main__ import COMMANDS
from jobqueue.errors import InvalidInput
from jobqueue.lab import (
    aftermath,
    campaign,
    cli,
    destination,
    faults,
    groups,  # noqa: F401 - registers them
    handlers,
    laboratory,
    matrix,
    replay,
    sim,
    workload,
)

DEBIAN = "/usr/lib/postgresql/15"
pytestmark = pytest.mark.timeout(300)  # whichever test is the first pays for a run of all groups, or of all states


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """The command, as it ended, and what it wrote."""
    path = tmp_path_factory.mktemp("laboratory") / "new.json"
    command = [sys.executable, "-m", "jobqueue", "lab", "--output", str(path), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert path.stat().st_size, done.stderr
    return done, json.loads(path.read_text())


@pytest.fixture
def found(command):
    return command[1]


def test_every_group_of_the_laboratory_run_holds_and_the_command_exits_by_the_verdict(command):
    done, found = command
    assert {each["name"]: each["verdict"] for each in found["groups"] if each["verdict"] != "held"} == {}
    assert (done.returncode, found["held"]) == (0, True), done.stderr


def test_every_group_says_what_it_sent_and_what_it_saw(found):
    bare = [each["name"] for each in found["groups"] if not each["statements"] or not each["observations"]]
    assert (len(found["groups"]) >= 20, bare) == (True, [])


def test_every_statement_of_the_laboratory_run_can_be_pasted(found, conn, virtual_conn, clock):
    """Into an installed database, as psql would send it: it is understood, and what it finds there is up to it."""
    conn.execute("create table public.destination (n bigint generated always as identity, job_id bigint, epoch bigint)")
    refused = []
    for group in found["groups"]:
        for sent in group["statements"]:
            if sent["statement"] == "make_destination":
                continue
            try:
                with conn.transaction(force_rollback=True):
                    conn.execute(sent["sql"])
            except psycopg.Error as error:
                refused.append((group["name"], sent["statement"], str(error)))
    assert refused == []


def test_observations_read_as_sentences_not_as_python(found):
    words = [
        text for group in found["groups"] for each in group["observations"] for text in (each["what"], each["seen"])
    ]
    assert [text for text in words if re.search(r"\bTrue\b|\bFalse\b|\bNone\b|^\(|'", text) and "'s" not in text] == []


@pytest.mark.long
@pytest.mark.skipif(not os.path.exists(DEBIAN), reason="no PostgreSQL 15 in Debian's place")
def test_the_laboratory_run_holds_on_postgresql_15():
    found = laboratory.run(None, DEBIAN, progress=False)
    assert (found["postgresql"][:2], found["held"]) == ("15", True)


def test_a_completion_without_its_epoch_breaks_the_laboratory_run(monkeypatch):
    unfenced = sql.SQL.complete.replace(
        "and locked_by = %(owner)s and epoch = %(epoch)s", "and %(owner)s <> '' and %(epoch)s > 0"
    )
    monkeypatch.setattr(sql.SQL, "complete", unfenced)
    name = "lost, cancelled and incompatible told apart"
    [group] = [group for group in laboratory.GROUPS if group[0] == name]
    monkeypatch.setattr(laboratory, "GROUPS", [group])
    found = laboratory.run(None, progress=False)
    assert ([(each["name"], each["verdict"]) for each in found["groups"]], found["held"]) == ([(name, "broken")], False)


def test_an_output_that_exists_is_refused_and_left_as_it_is(tmp_path):
    path = tmp_path / "there.json"
    path.write_text("mine")
    with pytest.raises(InvalidInput, match="exists"):
        laboratory.run(path)
    assert path.read_text() == "mine"


# ---------------------------------------------------------------- the failure matrix


@pytest.fixture(scope="module")
def matrix_found():
    return matrix.run()


def test_every_state_of_the_matrix_was_reached_and_observed(matrix_found):
    states = {entry.state: entry.observed for entry in matrix_found.entries}
    unseen = [state for state, observed in states.items() if observed.startswith("no row")]
    assert (len(states) >= 25, unseen) == (True, ["enqueue not committed"])


def test_every_query_of_the_matrix_can_be_pasted(matrix_found, conn):
    """Into another database, where it finds nothing."""
    said = {entry.state: conn.execute(entry.query + ";").fetchall() for entry in matrix_found.entries}
    assert set(map(len, said.values())) == {0}


def test_every_command_that_the_matrix_advises_exists(matrix_found):
    advised = {
        command.split()[0] for entry in matrix_found.entries
        for command in re.findall("`([^`]+)`", entry.action + entry.roll_back)
    }  # fmt: skip
    assert advised <= set(COMMANDS) and len(advised) >= 5


def test_every_state_says_what_to_do_who_does_it_and_when_to_go_back(matrix_found):
    vague = [e.state for e in matrix_found.entries
             if len(e.roll_back) < 40 or not e.action.endswith((".", ")")) or not e.responsible]  # fmt: skip
    assert vague == []


@pytest.mark.long
def test_the_command_writes_the_matrix_and_it_reads_the_same_twice(matrix_found, tmp_path, capsys):
    assert cli.main(["matrix", "--out", str(tmp_path / "new" / "folder"), "--project", "Vega", "--quiet"]) == 0
    page = (tmp_path / "new" / "folder" / "failure-matrix.html").read_text()
    assert ("Failure matrix of Vega" in page, page.count("<svg"), "<script" in page) == (True, 1, False)
    assert str(tmp_path / "new" / "folder" / "failure-matrix.md") in capsys.readouterr().out.splitlines()
    again = pd.read_csv(tmp_path / "new" / "folder" / "failure-matrix.csv")
    assert again[["state", "query"]].equals(matrix_found.frame()[["state", "query"]])


def test_a_matrix_for_a_folder_that_is_a_file_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="is no folder, or can't be made"):
        cli.main(["matrix", "--out", str(tmp_path / "file")])


def test_the_matrix_is_saved_as_markdown_csv_and_html(matrix_found, tmp_path):
    names = {path.name for path in matrix_found.save(tmp_path)}
    assert {"failure-matrix.md", "failure-matrix.html", "failure-matrix.csv", "retention.csv", "states.svg"} <= names


def test_retention_counts_each_table_that_keeps_evidence(matrix_found):
    kept = dict(matrix_found.retention(jobs_per_day=1000).itertuples(index=False))
    assert {"job rows", "archive rows", "key rows"} <= set(kept) and min(kept.values()) > 0


# ---------------------------------------------------------------- the campaign


def test_a_campaign_judges_what_it_finds(dsn, conn, queue, tmp_path):
    """A row of before the campaign, an effect twice, a job that is still ready, an enqueue that nobody answered."""
    handlers.prepare(conn)
    feed = replay.Feed(dsn, workload.poisson(rate=1, service=workload.exponential(1), n=1).draw(1))
    done, open_job = queue.enqueue("job", {"record": "transaction"}).id, queue.enqueue("job").id
    (lease,) = queue.claim("W")
    queue.complete(lease)
    effect = (
        "insert into jobqueue_lab.effect (job_id, epoch, owner, destination, worker_clock) "
        "values (%s, 1, 'W', 'transaction', now())"
    )
    for _ in range(2):
        conn.execute(effect, (done,))
    conn.execute("update jobqueue.job set created_at = created_at - interval '1 day' where id = %s", (open_job,))
    now = conn.execute("select now()").fetchone()[0]
    service = destination.Service()
    for door, epoch in (("fenced with a key", 1), ("unguarded", 2), ("unguarded", 1)):
        service.take(door, done, epoch)
    left = aftermath.Left(dsn, tmp_path, feed, service, [], now, now, ())
    report = aftermath.judge(left, aftermath.Report(1, 1, "18", []))
    assert {promise: members for promise, members in report.broken.items() if members} == {
        "no effect is applied twice": [done],
        "every enqueue was answered in the end": [0],
        "every unknown is resolved: nothing is ready or running": [[open_job, "ready"]],
        "no stored instant is a worker's": [[f"job {open_job}", ANY]],
        "checker: lost": [f"job {open_job}: everything has ended, and it is still ready"],
        "checker: duplicated effect": [f"lab/{done} at transaction: taken in 2 times"],
    }
    assert (report.held, report.doors["unguarded"]) == (False, {"taken": 2, "refused": 0, "repeated": 1, "stale": 1})


def test_each_door_of_a_destination_keeps_out_what_it_promises():
    service = destination.Service()
    told = {door: [service.take(door, 1, epoch) for epoch in (1, 2, 2, 1)] for door in destination.DOORS}
    assert told == {"unguarded": [200] * 4, "fenced": [200, 200, 200, 409], "fenced with a key": [200, 208, 208, 409]}
    assert [service.repeated(door) for door in destination.DOORS] == [[1], [1], []]
    assert [service.stale(door) for door in destination.DOORS] == [[1], [], []]


def test_a_plan_is_the_same_for_the_same_seed_and_survives_json():
    plan = campaign.plan(10, 7)
    assert (campaign.plan(10, 7), faults.loads(faults.dumps(plan))) == (plan, plan)


def test_a_plan_of_ten_minutes_has_the_faults_that_a_campaign_promises():
    plan = campaign.plan(10, 7)
    kinds = [fault.kind for fault in plan if fault.worker is not None or fault.target.startswith("database")]
    away = [fault for fault in plan if fault.kind == "kill" and fault.target.startswith("scheduler")]
    assert {fault.kind for fault in plan} >= {"slow", "skew", "poison", "burst", "cut"} and len(away) == 4
    enough = (
        kinds.count("kill") >= 150,
        kinds.count("pause") >= 60,
        kinds.count("crash") + kinds.count("outage") >= 15,
    )
    assert enough == (True, True, True), {kind: kinds.count(kind) for kind in set(kinds)}


def test_the_same_plan_is_played_by_simulated_workers(server):
    plan = campaign.plan(1, 7, 4)
    load = workload.poisson(rate=5, service=workload.exponential(0.05), n=200)
    run = sim.run(load, workers=4, lease_seconds=2, faults=plan, seed=1, progress=False, dsn=server.dsn)
    assert run.jobs["status"].value_counts().to_dict() == {"done": 300, "dead": 1}
    assert set(run.events["kind"]) >= {fault.kind for fault in plan}


def test_another_seed_is_another_plan():
    assert campaign.plan(10, 7) != campaign.plan(10, 8)


@pytest.mark.short
def test_half_a_minute_of_faults_breaks_no_promise():
    report = campaign.run(0.5, 3, progress=False)
    assert (report.held, report.injected.get("kill", 0) >= 5, report.jobs >= 1000) == (True, True, True), report.text()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_minutes_of_faults_break_no_promise():
    report = campaign.run(2, 5, progress=False)
    assert (report.held, report.injected.get("pause", 0) >= 6, report.jobs >= 4000) == (True, True, True), report.text()
    missed = {id: (misfires, overlaps) for id, _, _, _, _, misfires, overlaps in report.slots}
    assert (missed["campaign/all"], missed["campaign/skip"][0] >= 1) == ((0, 0), True)
    assert report.clocks["by_a_wrong_clock"] >= 50 and report.doors["fenced with a key"]["repeated"] == 0
