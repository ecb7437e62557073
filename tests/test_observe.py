"""The observer reads a real queue into frames: every lease with its end, samples, and what faults cost."""

import pandas as pd
import pytest

from helpers import wait_until
from jobqueue import Backoff
from jobqueue.errors import JobQueueError
from jobqueue.lab import observe
from jobqueue.lab.observe import Observer, recoveries, worker_name


@pytest.fixture
def seen(dsn):
    with Observer(dsn, hz=50) as observer:
        yield observer


def claim(queue, owner="w", lease_seconds=30):
    return next(iter(queue.claim(owner, lease_seconds=lease_seconds)))


def test_a_done_attempt_has_the_instants_of_its_row(queue, seen):
    queue.enqueue("job")
    queue.complete(claim(queue))
    job = queue.get(1)
    frame = wait_until(lambda: len(seen.attempts) == 1 and [seen.attempts], 10, "the attempt")[0]
    row = frame.iloc[0]
    expected = [job.started_at.timestamp() - seen.origin, job.finished_at.timestamp() - seen.origin]
    assert [row["started"], row["ended"]] == pytest.approx(expected, abs=1e-5)
    assert (row["job_id"], row["epoch"], row["attempt"], row["owner"], row["outcome"]) == (1, 1, 1, "w", "done")


def test_an_attempt_that_was_seen_running_keeps_its_start_when_it_fails(queue, seen):
    queue.enqueue("job")
    lease = claim(queue)
    seen.wait_for(lambda s: s.running == 1, 10)
    queue.fail(lease, "broken", backoff=Backoff(base_seconds=100, jitter="none"))
    wait_until(lambda: list(seen.attempts["outcome"]) == ["failed"], 10, "the failure")
    assert seen.attempts["started"].notna().all()
    assert seen.wait_for(lambda s: s.waiting_retry == 1, 10).ready == 0


def test_what_began_and_failed_between_two_looks_has_an_end_and_no_start(queue, dsn):
    with Observer(dsn, hz=0.5) as slow:
        slow.wait_for(lambda s: True, 10)
        queue.enqueue("job")
        queue.fail(claim(queue), "broken", backoff=Backoff(base_seconds=100, jitter="none"))
        wait_until(lambda: list(slow.attempts["outcome"]) == ["failed"], 10, "the failure")
        assert slow.attempts["started"].isna().all() and slow.attempts["ended"].notna().all()


def test_a_lease_is_lost_once_and_the_next_attempt_is_another(queue, seen):
    queue.enqueue("job")
    claim(queue, "first", lease_seconds=0.05)
    wait_until(lambda: queue.reap(backoff=Backoff(base_seconds=0, jitter="none")), 10, "the end of the lease")
    queue.complete(claim(queue, "second"))
    wait_until(lambda: list(seen.attempts["outcome"]) == ["lost", "done"], 10, "both ends")
    assert list(seen.attempts["epoch"]) == [1, 2]


def test_a_lease_whose_row_was_deleted_by_hand_ends_unknown(queue, conn, seen, monkeypatch):
    monkeypatch.setattr(observe, "GONE_SECONDS", 0.1)
    queue.enqueue("job")
    claim(queue)
    seen.wait_for(lambda s: s.running == 1, 10)
    conn.execute("delete from jobqueue.job")
    wait_until(lambda: list(seen.attempts["outcome"]) == ["unknown"], 10, "the unknown end")


def test_a_sample_counts_what_the_table_holds(queue, seen):
    queue.enqueue_many([{"type": "job"}] * 5)
    queue.enqueue("job", delay_seconds=100)
    queue.complete(claim(queue))
    queue.fail(claim(queue), "never", permanent=True)
    claim(queue)
    sample = seen.wait_for(lambda s: s.done == 1 and s.dead == 1 and s.running == 1, 10)
    assert (sample.ready, sample.due, sample.waiting_retry) == (3, 2, 0)
    assert sample.leases[0]["owner"] == "w" and sample.leases[0]["left_seconds"] > 20


def test_only_due_jobs_make_the_queue_old(queue, seen):
    queue.enqueue("job", delay_seconds=100)
    assert seen.wait_for(lambda s: s.ready == 1, 10).oldest_age_seconds == 0


def test_old_attempts_are_dropped_and_recent_ones_kept(queue, seen, monkeypatch):
    monkeypatch.setattr(observe, "ATTEMPTS", 20)
    for _ in range(40):
        queue.enqueue("job")
        queue.complete(claim(queue))
    seen.wait_for(lambda s: s.done == 40, 10)
    wait_until(lambda: 40 in set(seen.attempts["job_id"]) and len(seen.attempts) <= 20, 10, "the last ones")


def test_waiting_in_vain_says_what_was_last_seen(seen):
    with pytest.raises(JobQueueError, match=r"did not come within 0.2 s; last seen: Sample\("):
        seen.wait_for(lambda s: s.done > 0, 0.2)


def test_what_a_fault_cost_is_read_off_the_attempts():
    attempts = pd.DataFrame(
        [
            (7, 1, "worker-1", 9.0, 14.0, "lost"),
            (7, 2, "worker-0", 15.5, 16.0, "done"),
            (8, 1, "worker-1", 1.0, 2.0, "lost"),
        ],
        columns=["job_id", "epoch", "worker", "started", "ended", "outcome"],
    )
    faults = pd.DataFrame(
        [(10.0, "kill", "worker-1"), (20.0, "start", "worker-1")], columns=["time_seconds", "kind", "target"]
    )
    assert recoveries(attempts, faults).to_dict("records") == [
        {"fault": "kill", "worker": "worker-1", "job_id": 7, "ready_again_seconds": 4.0, "running_again_seconds": 5.5}
    ]


@pytest.mark.parametrize(
    "owner, name",
    [("fleet-3d04a6e3/worker-1.2", "worker-1"), ("host/4711/x", "host/4711/x"), ("w", "w"), ("a/b.c", "a/b.c")],
)
def test_a_fleets_owners_share_a_lane_over_their_starts(owner, name):
    assert worker_name(owner) == name
