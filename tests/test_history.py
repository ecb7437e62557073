"""Histories: what a recorder keeps of each call, killed or not; what the rows say; JSON lines; merging."""

import threading
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from helpers import wait_until
from jobqueue import InfrastructureError, JobQueueError, Outcome, Queue, Worker, loop
from jobqueue.errors import InvalidInput
from jobqueue.lab import checks, handlers, history
from jobqueue.lab.history import Call, Effect, History, Recorder, Row, Slot

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def recorder(virtual_queue, clock):
    return Recorder(virtual_queue, "worker-1")


def told(recorder):
    """What is kept of each call, without its times."""
    return [(call.verb, call.answer, call.outcome, call.job_id, call.owner, call.epoch) for call in recorder.calls]


def test_a_recorder_keeps_every_verb_with_what_it_was_told(recorder, clock):
    job = recorder.enqueue("mail", key="k").id
    [lease] = recorder.claim("A", lease_seconds=10)
    recorder.heartbeat(lease, lease_seconds=10)
    recorder.publish(lease, "report", "aa")
    recorder.complete(lease)
    recorder.fail(lease, "too late")
    assert told(recorder) == [
        ("enqueue", "ok", None, job, None, None),
        ("claim", "ok", None, job, "A", 1),
        ("heartbeat", "ok", "APPLIED", job, "A", 1),
        ("publish", "ok", "APPLIED", job, "A", 1),
        ("complete", "ok", "APPLIED", job, "A", 1),
        ("fail", "ok", "CONFLICT", job, "A", 1),
    ]


def test_a_batch_is_a_call_for_each_of_its_jobs(recorder):
    recorder.enqueue_many([{"type": "mail"}, {"type": "mail"}])
    leases = list(recorder.claim("A", limit=2))
    recorder.heartbeat_many(leases)
    recorder.complete_many(leases)
    assert [call.verb for call in recorder.calls] == ["enqueue"] * 2 + ["claim"] * 2 + ["heartbeat"] * 2 + [
        "complete"
    ] * 2


def test_an_exchange_is_recorded_as_completions_and_claims(recorder):
    recorder.enqueue_many([{"type": "mail"}, {"type": "mail"}])
    leases = list(recorder.claim("A"))
    _, claim = recorder.exchange(leases, "A", leases={"mail": 30}, slots=1)
    assert [(call.verb, call.job_id, call.outcome) for call in recorder.calls[3:]] == [
        ("complete", leases[0].id, "APPLIED"),
        ("claim", claim[0].id, None),
    ]


def test_what_others_do_to_a_job_is_recorded_under_its_id(recorder, clock):
    job = recorder.enqueue("mail", max_attempts=1).id
    recorder.claim("A", lease_seconds=10)
    clock.advance(10)
    recorder.reap()
    recorder.redrive([job])
    recorder.cancel(job)
    assert told(recorder)[2:] == [
        ("reap", "ok", "dead", job, "A", 1),
        ("redrive", "ok", None, job, None, None),
        ("cancel", "ok", "cancelled", job, None, None),
    ]


def test_the_instant_of_a_grant_is_exact_and_every_call_lies_between_two_instants_of_the_database(recorder, clock):
    recorder.enqueue("mail")
    before = clock.now
    recorder.claim("A", lease_seconds=10)
    call = recorder.calls[-1]
    assert (call.invoked_at, call.granted_at, call.answered_at) == (before, before, before)


def test_a_call_without_a_reply_is_unknown(dsn, conn):
    with psycopg.connect(dsn, autocommit=True) as cut:
        recorder = Recorder(Queue(cut), "worker-1")
        recorder.enqueue("mail")
        [lease] = recorder.claim("A")
        conn.execute("select pg_terminate_backend(%s, 5000)", (cut.info.backend_pid,))
        with pytest.raises(InfrastructureError):
            recorder.complete(lease)
    assert told(recorder)[-1][:2] == ("complete", "unknown")


def test_a_refused_call_has_failed(recorder):
    with pytest.raises(InvalidInput):
        recorder.claim("")
    assert told(recorder) == [("claim", "failed", recorder.calls[0].outcome, None, "", None)]


def test_inside_a_callers_transaction_an_answer_is_not_known_to_count(recorder, virtual_conn):
    recorder.enqueue("mail")
    [lease] = recorder.claim("A")
    with virtual_conn.transaction(force_rollback=True):
        assert recorder.complete(lease) is Outcome.APPLIED
    assert (
        recorder.calls[-1].answer,
        checks.check(history.merge(recorder.history, history.from_database(virtual_conn))),
    ) == ("unknown", [])


def test_a_recorder_does_not_keep_a_claim_from_committing_by_itself(virtual_dsn, virtual_queue, clock):
    virtual_queue.enqueue("mail")
    with psycopg.connect(virtual_dsn, options=f"-c jobqueue.now={clock.now.isoformat().replace(' ', '')}") as own:
        recorder = Recorder(Queue(own), "worker-1")
        claimed = len(recorder.claim("A"))
    assert (claimed, virtual_queue.get(1).status) == (1, "running")


def test_a_file_has_what_was_begun_even_if_the_process_was_killed_in_a_line(recorder, virtual_queue, tmp_path):
    path = tmp_path / "worker.jsonl"
    written = Recorder(virtual_queue, "worker-1", file=path)
    written.enqueue("mail")
    written.claim("A")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:3]) + lines[3][:20])
    assert [(call.verb, call.answer) for call in history.read(path).calls] == [("enqueue", "ok"), ("claim", "unknown")]


def test_a_file_read_back_is_what_the_recorder_has(virtual_queue, tmp_path):
    written = Recorder(virtual_queue, "worker-1", file=tmp_path / "worker.jsonl")
    written.enqueue("mail", key="k")
    written.complete_many(list(written.claim("A")))
    assert history.read(tmp_path / "worker.jsonl") == written.history


def test_what_a_real_workers_loops_did_is_on_record(dsn, queue, conn, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "Queue", loop.Queue)  # is put back afterwards
    history.record_process(tmp_path)
    good, bad = (queue.enqueue(type, max_attempts=1).id for type in ("good", "bad"))
    worker = Worker(dsn, {"good": lambda lease, context: None, "bad": lambda lease, context: 1 / 0}, concurrency=1)
    thread = threading.Thread(target=worker.run)
    thread.start()
    wait_until(lambda: [queue.get(job).status for job in (good, bad)] == ["done", "dead"])
    worker.stop()
    thread.join(20)
    told = history.merge(*map(history.read, tmp_path.glob("*.jsonl")), history.from_database(conn, settled=True))
    assert (
        [(call.verb, call.outcome) for call in told.of_job(good)],
        [(call.verb, call.outcome) for call in told.of_job(bad)],
        checks.check(told),
    ) == ([("claim", None), ("complete", "APPLIED")], [("claim", None), ("fail", "APPLIED")], [])


def test_a_recorder_that_keeps_nothing_writes_all_the_same(virtual_queue, tmp_path):
    written = Recorder(virtual_queue, "worker-1", file=tmp_path / "worker.jsonl", keep=False)
    written.enqueue("mail")
    assert (written.calls, [call.verb for call in history.read(tmp_path / "worker.jsonl").calls]) == ((), ["enqueue"])


def test_what_a_recorder_does_not_record_goes_to_the_queue(recorder):
    assert recorder.get(1) is None


# ---- rows --------------------


def test_the_database_tells_live_and_archived_rows_effects_and_incidents(conn, queue):
    handlers.prepare(conn)
    first, second = (queue.enqueue("mail", key=key, max_attempts=2).id for key in "kl")
    leases = list(queue.claim("A", limit=2))
    queue.complete(leases[0])
    queue.archive(older_than_seconds=0)
    queue.fail(leases[1], "boom", permanent=True)
    conn.execute("insert into jobqueue.effect (key, job_id, epoch) values ('e', %s, 1)", (first,))
    conn.execute("insert into jobqueue_lab.effect values (%s, 1, 'A', 'outside')", (second,))
    conn.execute("insert into jobqueue.incident (name, n) values ('stale_write', 3)")
    read = history.from_database(conn, settled=True)
    assert (
        [(row.id, row.key, row.status, row.archived, [end.event for end in row.history]) for row in read.rows],
        [(effect.destination, effect.key, effect.once) for effect in read.effects],
        [(incident.name, incident.n) for incident in read.incidents],
        checks.check(read),
    ) == (
        [(first, "k", "done", True, []), (second, "l", "failed", False, ["failed_permanently"])],
        [("jobqueue.effect", "e", True), ("outside", f"lab/{second}", False)],
        [("stale_write", 3)],
        [],
    )


def test_expected_slots_are_those_of_the_cron_expression():
    expected = history.slots_expected("s", "*/10 * * * *", after=NOON, until=NOON + timedelta(minutes=25))
    assert expected.expected == (Slot("s", NOON + timedelta(minutes=10)), Slot("s", NOON + timedelta(minutes=20)))


# ---- values --------------------

WHOLE = History(
    calls=(Call("a", 1, "claim", "ok", job_id=1, owner="A", epoch=1, until=NOON, lease_seconds=10.0, invoked_at=NOON),),
    rows=(Row(1, key="k", slot=NOON, run_at=NOON, history=(history.End(NOON, "lost", "A", 1),)),),
    effects=(Effect("outside", "e", 1, 1, "A", NOON, once=False),),
    incidents=(history.Incident(NOON, "lease_lost", "mail", 2),),
    missed=(Slot("s", NOON, "misfire"),),
    expected=(Slot("s", NOON),),
    settled=True,
)


def test_a_history_survives_json_lines():
    assert history.loads(history.dumps(WHOLE)) == WHOLE


@pytest.mark.parametrize(
    "line, complaint",
    [
        ('{"calls": {"client": "a"}}\n', "line 1 is no Call"),
        ('{"jobs": {}}\n', "line 1: a history has"),
        ('{"calls": 1, "rows": 2}\n', "line 1 is not one fact"),
        ("[1]\n", "line 1 is not one fact"),
        ('nonsense\n{"settled": true}\n', "line 1 is not JSON"),
        ('{"rows": {"id": 1, "slot": "noon"}}\n', "line 1 is no Row"),
        ('{"rows": 3}\n', "line 1 is no Row"),
    ],
)
def test_what_is_no_history_is_refused_with_its_line(line, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        history.loads(line)


def test_merging_keeps_every_call_and_the_later_reading_of_a_row():
    early, late = History(rows=(Row(1), Row(2))), History(rows=(Row(1, status="done"),), settled=True)
    a, b = History(calls=(Call("b", 1, "reap"),)), History(calls=(Call("a", 1, "reap"), Call("a", 2, "reap")))
    merged = history.merge(a, early, b, late)
    assert (
        [(call.client, call.n) for call in merged.calls],
        [(row.id, row.status) for row in merged.rows],
        merged.settled,
    ) == ([("a", 1), ("a", 2), ("b", 1)], [(1, "done"), (2, "ready")], True)


def test_two_identical_effects_of_one_reading_both_stay():
    """Otherwise merging would hide the very duplicate that a checker looks for."""
    twice = History(effects=(Effect("inside", "e", 1, 1, "A", None), Effect("inside", "e", 1, 1, "A", None)))
    assert [len(one.effects) for one in (history.merge(twice, twice), history.loads(history.dumps(twice)))] == [2, 2]


def test_a_wrong_use_is_the_queues_own_error(recorder):
    with pytest.raises(JobQueueError):
        recorder.enqueue_many([{"kind": "mail"}])
