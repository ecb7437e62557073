"""A workload through real workers, one killed and one paused past its lease: nothing is lost, nothing applied twice."""

import os
from collections import Counter
from pathlib import Path

import pytest
from psycopg.types.json import Jsonb

from helpers import wait_until
from jobqueue.lab import handlers, workload
from jobqueue.lab.fleet import Fleet
from jobqueue.lab.replay import Feed
from jobqueue.lab.workload import Workload

OFFICE_DAY = Path(__file__).parents[1] / "data/workloads/office-day.csv"
LEASE = 3.0
REAPER_SECONDS = 1.0
KILLED, PAUSED = 1, 2


def drain(dsn, conn, history, drain_seconds):
    """Feed and drain the history with both faults in its course; the ids of its jobs."""
    handlers.prepare(conn)
    # Every job is to end done: the history's outcomes are left aside. Stubborn: a completion is sent however late.
    feed = Feed(dsn, history, outcomes=False, options={"stubborn": True, "record": True})
    environment = handlers.environment(types=history.types, lease_seconds=LEASE)
    with Fleet(dsn, size=4, concurrency=8, environment=environment) as fleet:
        feed.start()
        owners = [worker.owner for worker in fleet.workers]
        wait_until(lambda: leases(conn, owners[KILLED]) >= 3, 30)
        fleet.kill(KILLED)
        wait_until(lambda: leases(conn, owners[PAUSED]) >= 3, 30)
        fleet.pause(PAUSED)
        # Not all of them: one that was stopped between its effect and its COMMIT keeps its row locked, and in time.
        wait_until(lambda: lost(conn, owners[PAUSED]), LEASE + REAPER_SECONDS + 5)
        fleet.resume(PAUSED)
        assert feed.wait(drain_seconds)
        wait_until(lambda: feed.unfinished() == 0, drain_seconds)
        wait_until(lambda: "LOST" in fleet.log(PAUSED), 10)
        wait_until(lambda: lost(conn, owners[KILLED]), 10)
    return feed.ids


def leases(conn, owner):
    return conn.execute("select count(*) from jobqueue.job where locked_by = %s", (owner,)).fetchone()[0]


def lost(conn, owner):
    """How many leases were taken away from this owner."""
    end = [{"event": "lost", "owner": owner}]
    return conn.execute("select count(*) from jobqueue.job where history @> %s", (Jsonb(end),)).fetchone()[0]


def check(conn, ids):
    columns = "id, status, attempts, lease_losses, finished_epoch, finished_by"
    jobs = conn.execute(f"select {columns} from jobqueue.job").fetchall()
    effects = conn.execute("select destination, job_id, epoch, owner from jobqueue_lab.effect").fetchall()
    applied = sorted(effect[1:] for effect in effects if effect[0] == handlers.TRANSACTION)
    assert sorted(job[0] for job in jobs) == sorted(ids)
    assert Counter(job[1] for job in jobs) == {"done": len(ids)}
    assert applied == sorted((job[0], *job[4:]) for job in jobs)  # one a job, of the very epoch and owner that did it
    assert all(attempts == 1 + losses for _, _, attempts, losses, _, _ in jobs)
    refused = conn.execute("select coalesce(sum(n), 0) from jobqueue.incident where name = 'stale_write_refused'")
    assert refused.fetchone()[0] >= 1


def test_an_office_day_drains_though_one_worker_is_killed_and_one_paused(dsn, conn):
    day = workload.read(OFFICE_DAY)
    busier = Workload(day.at_seconds / 120, day.type, day.service_seconds / 12, day.outcome)
    check(conn, drain(dsn, conn, busier, drain_seconds=60))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_real_days_first_2000_jobs_drain_though_one_worker_is_killed_and_one_paused(dsn, conn):
    path = os.environ.get("JOBQUEUE_TRACE")
    if not path:
        pytest.skip("JOBQUEUE_TRACE names no trace file")
    check(conn, drain(dsn, conn, workload.read(path).head(2000).scaled(2000), drain_seconds=120))
