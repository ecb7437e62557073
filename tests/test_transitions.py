"""Each verb of DESIGN §3: from → to, its fence, its counters, its history; on virtual time, every instant exact."""

import json
from datetime import datetime, timedelta
from types import SimpleNamespace

import psycopg
import pytest
from psycopg.rows import dict_row

from jobqueue import Backoff, Empty, JobQueueError, Lease, Outcome, Queue
from jobqueue.errors import InvalidInput

pytestmark = pytest.mark.shared

COLUMNS = [
    "id", "type", "payload", "idempotency_key", "status", "run_at", "attempts", "max_attempts", "locked_by",
    "locked_until", "last_error", "created_at", "epoch", "started_at", "finished_at", "finished_epoch", "finished_by",
    "lease_losses", "releases", "schedule_id", "slot", "published_name", "published_digest", "published_epoch",
    "published_by", "history_trimmed", "history",
]  # fmt: skip
DIGEST = "ab" * 32
SEVEN = Backoff(shape="constant", base_seconds=7, jitter="none")
DOUBLING = Backoff(shape="exponential", base_seconds=1, factor=2, jitter="none")
EVERY_END = ("done", "failed", "dead", "cancelled")


# ---- helpers -------------------------------------------------------------------------------------------------------


def row(conn, job_id, table="job"):
    """The contract's columns of one row; history as (event, owner, epoch, error)."""
    with conn.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute(f"select * from jobqueue.{table} where id = %s", (job_id,)).fetchone()
    return found and {**{name: found[name] for name in COLUMNS}, "history": told(found["history"])}


def told(history):
    return [(entry["event"], entry.get("owner"), entry.get("epoch"), entry.get("error")) for entry in history]


def changed(before, after, *, but=()):
    """What became different, by column."""
    return {name: after[name] for name in COLUMNS if after[name] != before[name] and name not in but}


def claim_one(queue, owner="A", **options):
    [lease] = queue.claim(owner, lease_seconds=10, **options)
    return lease


@pytest.fixture
def mail(virtual_conn, virtual_queue, clock):
    """One job of type mail, claimed by A at T with a lease of ten seconds; `.change(act)` tells what `act` changed."""
    job = virtual_queue.enqueue("mail", {"to": "ada"}, max_attempts=3).id
    lease = claim_one(virtual_queue)

    def change(act, *, but=()):
        before = row(virtual_conn, job)
        act()
        return changed(before, row(virtual_conn, job), but=but)

    return SimpleNamespace(id=job, lease=lease, change=change, row=lambda: row(virtual_conn, job), T=clock.now)


def seconds(number):
    return timedelta(seconds=number)


# ---- enqueue -------------------------------------------------------------------------------------------------------


def test_an_enqueued_job_is_ready_due_now_and_unstarted(virtual_conn, virtual_queue, clock):
    enqueued = virtual_queue.enqueue("mail", {"to": "ada"}, key="k", max_attempts=7)
    assert row(virtual_conn, enqueued.id) == {
        **dict.fromkeys(COLUMNS),
        "id": enqueued.id,
        "type": "mail",
        "payload": {"to": "ada"},
        "idempotency_key": "k",
        "status": "ready",
        "run_at": clock.now,
        "created_at": clock.now,
        "attempts": 0,
        "max_attempts": 7,
        "epoch": 0,
        "lease_losses": 0,
        "releases": 0,
        "history": [],
        "history_trimmed": 0,
    }


def test_a_delay_and_a_run_at_move_run_at_only(virtual_conn, virtual_queue, clock):
    delayed = virtual_queue.enqueue("mail", delay_seconds=90).id
    planned = virtual_queue.enqueue("mail", run_at=clock.now + seconds(45)).id
    assert [(row(virtual_conn, job)["run_at"], row(virtual_conn, job)["created_at"]) for job in (delayed, planned)] == [
        (clock.now + seconds(90), clock.now),
        (clock.now + seconds(45), clock.now),
    ]


def test_no_payload_is_json_null_and_comes_back_as_none(virtual_conn, virtual_queue):
    virtual_queue.enqueue("mail")
    kind = virtual_conn.execute("select jsonb_typeof(payload) from jobqueue.job").fetchone()
    assert (kind, claim_one(virtual_queue).payload) == (("null",), None)


def test_a_batch_is_answered_in_input_order_with_its_own_instants(virtual_conn, virtual_queue, clock):
    jobs = virtual_queue.enqueue_many([{"type": "b", "run_at": clock.now + seconds(5)}, {"type": "a", "payload": [1]}])
    stored = [row(virtual_conn, job.id) for job in jobs]
    assert [(job["type"], job["payload"], job["run_at"] - clock.now) for job in stored] == [
        ("b", None, seconds(5)),
        ("a", [1], seconds(0)),
    ]


# ---- claim ---------------------------------------------------------------------------------------------------------


def test_a_claim_leases_the_job_to_one_owner_and_counts_the_attempt(virtual_conn, virtual_queue, clock):
    before = row(virtual_conn, virtual_queue.enqueue("mail").id)
    clock.advance(3)
    claim_one(virtual_queue)
    assert changed(before, row(virtual_conn, before["id"])) == {
        "status": "running",
        "epoch": 1,
        "attempts": 1,
        "locked_by": "A",
        "started_at": clock.now,
        "locked_until": clock.now + seconds(10),
    }


def test_a_lease_tells_everything_the_handler_needs(virtual_queue, clock):
    job = virtual_queue.enqueue("mail", {"to": "ada"}).id
    assert claim_one(virtual_queue) == Lease(
        id=job,
        type="mail",
        payload={"to": "ada"},
        owner="A",
        epoch=1,
        attempt=1,
        releases=0,
        locked_until=clock.now + seconds(10),
        slot=None,
        run_at=clock.now,
    )


def test_the_second_claim_of_a_job_has_the_next_epoch_and_attempt(virtual_queue):
    virtual_queue.enqueue("mail")
    virtual_queue.fail(claim_one(virtual_queue), "boom", delay_seconds=0)
    lease = claim_one(virtual_queue, "B")
    assert (lease.owner, lease.epoch, lease.attempt) == ("B", 2, 2)


def test_claims_come_by_run_at_then_id(virtual_queue, clock):
    ids = [virtual_queue.enqueue("mail", run_at=clock.now - seconds(ago)).id for ago in (0, 5, 5, 9)]
    assert [lease.id for lease in virtual_queue.claim("A", limit=10)] == [ids[3], ids[1], ids[2], ids[0]]


def test_a_job_is_due_at_its_run_at_and_not_a_moment_before(virtual_queue, clock):
    virtual_queue.enqueue("mail", delay_seconds=10)
    clock.advance(9.999)
    early = len(virtual_queue.claim("A"))
    clock.advance(0.001)
    assert (early, len(virtual_queue.claim("A"))) == (0, 1)


def test_a_claim_takes_only_the_types_asked_for(virtual_queue):
    for type in ("mail", "report", "mail"):
        virtual_queue.enqueue(type)
    assert [lease.type for lease in virtual_queue.claim("A", limit=10, types=["mail", "other"])] == ["mail", "mail"]


def test_a_claim_without_types_takes_every_type_in_order(virtual_queue):
    ids = [virtual_queue.enqueue(type).id for type in ("c", "a", "b", "a")]
    assert [lease.id for lease in virtual_queue.claim("A", limit=10)] == ids


def test_a_claim_never_takes_more_than_its_limit(virtual_queue):
    virtual_queue.enqueue_many([{"type": "mail"}] * 7)
    assert [len(virtual_queue.claim("A", limit=3)) for _ in range(4)] == [3, 3, 1, 0]


def test_a_claim_with_jobs_is_not_empty(virtual_queue):
    virtual_queue.enqueue("mail")
    claim = virtual_queue.claim("A")
    assert (len(claim), claim.empty) == (1, None)


def test_a_claim_of_no_types_at_all_is_empty(virtual_queue):
    virtual_queue.enqueue("mail")
    claim = virtual_queue.claim("A", types=[])
    assert (len(claim), claim.empty) == (0, Empty.NONE)


def test_a_claim_finds_none_where_no_job_is_eligible(virtual_queue):
    virtual_queue.enqueue("report")
    claim = virtual_queue.claim("A", types=["mail"])
    assert (list(claim), claim.empty, claim.next_run_at) == ([], Empty.NONE, None)


def test_a_claim_too_early_says_when_the_next_job_of_its_types_is_due(virtual_queue, clock):
    virtual_queue.enqueue("report", delay_seconds=1)
    virtual_queue.enqueue("mail", delay_seconds=20)
    virtual_queue.enqueue("mail", delay_seconds=10)
    claim = virtual_queue.claim("A", types=["mail"])
    assert (len(claim), claim.empty, claim.next_run_at) == (0, Empty.NOT_DUE, clock.now + seconds(10))


def test_a_claim_says_locked_while_another_transaction_holds_the_due_row(virtual_queue, virtual_dsn):
    virtual_queue.enqueue("mail")
    with psycopg.connect(virtual_dsn) as holder:
        holder.execute("select from jobqueue.job for no key update")
        claim = virtual_queue.claim("A")
    assert (len(claim), claim.empty, len(virtual_queue.claim("A"))) == (0, Empty.LOCKED, 1)


def test_a_paused_type_is_not_claimed_until_it_is_resumed(virtual_queue):
    virtual_queue.enqueue("mail")
    virtual_queue.pause_type("mail")
    paused = [len(virtual_queue.claim("A")), len(virtual_queue.claim("A", types=["mail"]))]
    virtual_queue.resume_type("mail")
    assert (paused, len(virtual_queue.claim("A"))) == ([0, 0], 1)


def test_pausing_and_resuming_twice_is_a_no_op(virtual_conn, virtual_queue):
    for verb in (
        virtual_queue.pause_type,
        virtual_queue.pause_type,
        virtual_queue.resume_type,
        virtual_queue.resume_type,
    ):
        verb("mail")
    assert virtual_conn.execute("select count(*) from jobqueue.paused_type").fetchone() == (0,)


def test_a_paused_type_does_not_hold_up_the_others(virtual_queue):
    virtual_queue.enqueue("mail")
    other = virtual_queue.enqueue("report").id
    virtual_queue.pause_type("mail")
    assert [lease.id for lease in virtual_queue.claim("A", limit=2)] == [other]


def test_a_row_made_ready_by_hand_is_claimed(virtual_conn, virtual_queue, clock):
    job = virtual_queue.enqueue("mail", delay_seconds=3600).id
    virtual_conn.execute("update jobqueue.job set run_at = jobqueue.now() where id = %s", (job,))
    assert claim_one(virtual_queue).id == job


@pytest.mark.parametrize(
    "verb", [lambda queue, job: queue.claim("B"), lambda queue, job: queue.adopt(job, "B")], ids=["claim", "adopt"]
)
def test_claim_and_adopt_refuse_inside_a_callers_transaction(mail, virtual_conn, virtual_queue, clock, verb):
    virtual_queue.enqueue("mail")
    clock.advance(10)
    with virtual_conn.transaction(), pytest.raises(JobQueueError, match="transaction"):
        verb(virtual_queue, mail.id)
    assert virtual_conn.execute("select count(*) from jobqueue.job where locked_by = 'B'").fetchone() == (0,)


def test_a_claim_on_a_connection_without_autocommit_commits_by_itself(conn, queue, dsn):
    queue.enqueue("mail")
    with psycopg.connect(dsn) as manual:
        Queue(manual).claim("A")
        manual.rollback()
    assert conn.execute("select status, epoch from jobqueue.job").fetchone() == ("running", 1)


def test_a_claim_is_refused_where_a_connection_without_autocommit_has_begun(queue, dsn):
    queue.enqueue("mail")
    with psycopg.connect(dsn) as manual:
        manual.execute("select 1")
        with pytest.raises(JobQueueError, match="transaction"):
            Queue(manual).claim("A")


def test_a_claim_is_durable_where_synchronous_commit_is_off(conn, queue):
    queue.enqueue_many([{"type": "mail"}] * 20)
    conn.execute("set synchronous_commit = off")
    durable = [is_flushed_after(conn, lambda: queue.claim("A")) for _ in range(20)]
    assert durable.count(True) >= 15, durable  # another backend may write between the two readings


def is_flushed_after(conn, act):
    act()
    return conn.execute("select pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()").fetchone()[0]


def test_a_claim_leaves_the_sessions_synchronous_commit_alone(conn, queue):
    queue.enqueue("mail")
    conn.execute("set synchronous_commit = off")
    queue.claim("A")
    assert conn.execute("show synchronous_commit").fetchone() == ("off",)


# ---- adopt ---------------------------------------------------------------------------------------------------------


def test_adopt_changes_nothing_at_nine_seconds_and_takes_over_at_ten(mail, virtual_queue, clock):
    clock.advance(9)
    at_nine = mail.change(lambda: virtual_queue.adopt(mail.id, "B", lease_seconds=10))
    clock.advance(1)
    at_ten = mail.change(lambda: virtual_queue.adopt(mail.id, "B", lease_seconds=10), but=["history"])
    assert (at_nine, at_ten) == (
        {},
        {
            "locked_by": "B",
            "epoch": 2,
            "attempts": 2,
            "lease_losses": 1,
            "started_at": mail.T + seconds(10),
            "locked_until": mail.T + seconds(20),
        },
    )


def test_adopt_answers_with_a_lease_or_none(mail, virtual_queue, clock):
    early = virtual_queue.adopt(mail.id, "B", lease_seconds=10)
    clock.advance(10)
    assert (early, virtual_queue.adopt(mail.id, "B", lease_seconds=10)) == (
        None,
        Lease(
            id=mail.id,
            type="mail",
            payload={"to": "ada"},
            owner="B",
            epoch=2,
            attempt=2,
            releases=0,
            locked_until=clock.now + seconds(10),
            slot=None,
            run_at=clock.now - seconds(10),
        ),
    )


def test_adopt_notes_whose_lease_was_lost_and_writes_an_incident(mail, virtual_conn, virtual_queue, clock):
    clock.advance(10)
    virtual_queue.adopt(mail.id, "B")
    incident = virtual_conn.execute("select type, n, at from jobqueue.incident").fetchall()
    assert ([entry[:3] for entry in mail.row()["history"]], incident) == ([("lost", "A", 1)], [("mail", 1, clock.now)])


def test_adopt_is_refused_where_no_attempt_is_left(virtual_conn, virtual_queue, clock):
    job = virtual_queue.enqueue("mail", max_attempts=1).id
    claim_one(virtual_queue)
    clock.advance(10)
    before = row(virtual_conn, job)
    assert (virtual_queue.adopt(job, "B"), row(virtual_conn, job)) == (None, before)


def test_adopt_takes_only_running_rows(mail, virtual_queue, clock):
    virtual_queue.fail(mail.lease, "boom", delay_seconds=0)
    clock.advance(10)
    ready = virtual_queue.adopt(mail.id, "B")
    virtual_queue.cancel(mail.id)
    assert (ready, virtual_queue.adopt(mail.id, "B"), virtual_queue.adopt(10**12, "B")) == (None, None, None)


# ---- heartbeat -----------------------------------------------------------------------------------------------------


def test_a_heartbeat_moves_the_end_of_the_lease_and_nothing_else(mail, virtual_queue, clock):
    clock.advance(4)
    assert mail.change(lambda: virtual_queue.heartbeat(mail.lease, lease_seconds=10)) == {
        "locked_until": mail.T + seconds(14)
    }


def test_a_heartbeat_never_shortens_a_lease(mail, virtual_queue):
    assert mail.change(lambda: virtual_queue.heartbeat(mail.lease, lease_seconds=1)) == {}


def test_heartbeat_many_never_shortens_a_lease(mail, virtual_queue):
    assert mail.change(lambda: virtual_queue.heartbeat_many([mail.lease], lease_seconds=1)) == {}


def test_a_heartbeat_is_accepted_after_expiry_while_nobody_took_over(mail, virtual_queue, clock):
    clock.advance(60)
    assert mail.change(lambda: virtual_queue.heartbeat(mail.lease, lease_seconds=10)) == {
        "locked_until": mail.T + seconds(70)
    }


def test_heartbeat_many_renews_every_lease_at_once(virtual_conn, virtual_queue, clock):
    virtual_queue.enqueue_many([{"type": "mail"}] * 3)
    leases = list(virtual_queue.claim("A", limit=3, lease_seconds=10))
    clock.advance(5)
    outcomes = virtual_queue.heartbeat_many(leases, lease_seconds=10)
    ends = virtual_conn.execute("select distinct locked_until from jobqueue.job").fetchall()
    assert (outcomes, ends) == ([Outcome.APPLIED] * 3, [(clock.now + seconds(10),)])


# ---- complete ------------------------------------------------------------------------------------------------------


def test_complete_ends_the_job_and_names_who_did_it(mail, virtual_queue, clock):
    clock.advance(4)
    assert mail.change(lambda: virtual_queue.complete(mail.lease)) == {
        "status": "done",
        "finished_at": clock.now,
        "finished_epoch": 1,
        "finished_by": "A",
        "locked_by": None,
        "locked_until": None,
    }


def test_complete_is_accepted_after_expiry_while_nobody_took_over(mail, virtual_queue, clock):
    clock.advance(60)
    assert virtual_queue.complete(mail.lease) is Outcome.APPLIED


def test_strict_complete_is_accepted_just_before_expiry_and_refused_at_it(mail, virtual_queue, clock):
    clock.advance(10)
    at_ten = virtual_queue.complete(mail.lease, strict=True)
    clock.set(mail.T + seconds(9.999))
    assert (at_ten, virtual_queue.complete(mail.lease, strict=True)) == (Outcome.LEASE_EXPIRED, Outcome.APPLIED)


def test_complete_many_ends_every_job_at_once(virtual_conn, virtual_queue):
    virtual_queue.enqueue_many([{"type": "mail"}] * 3)
    outcomes = virtual_queue.complete_many(list(virtual_queue.claim("A", limit=3)))
    rows = virtual_conn.execute(
        "select distinct status, finished_by, finished_epoch, locked_by from jobqueue.job"
    ).fetchall()
    assert (outcomes, rows) == ([Outcome.APPLIED] * 3, [("done", "A", 1, None)])


def test_a_stale_owner_changes_nothing_whatever_it_says(mail, virtual_queue, clock):
    clock.advance(10)
    virtual_queue.adopt(mail.id, "B")
    stale = mail.lease
    assert (
        mail.change(
            lambda: [
                virtual_queue.complete(stale),
                virtual_queue.fail(stale, "late"),
                virtual_queue.fail(stale, "late", permanent=True),
                virtual_queue.release(stale, "late"),
                virtual_queue.heartbeat(stale),
                virtual_queue.publish(stale, "f", DIGEST),
                virtual_queue.complete_many([stale]),
                virtual_queue.heartbeat_many([stale]),
            ]
        )
        == {}
    )


# ---- fail ----------------------------------------------------------------------------------------------------------


def test_a_failed_attempt_goes_back_to_ready_after_its_backoff(mail, virtual_queue, clock):
    clock.advance(4)
    assert mail.change(lambda: virtual_queue.fail(mail.lease, "boom", backoff=SEVEN)) == {
        "status": "ready",
        "run_at": clock.now + seconds(7),
        "locked_by": None,
        "locked_until": None,
        "last_error": "boom",
        "history": [("failed", "A", 1, "boom")],
    }


def test_backoff_grows_with_the_attempts(mail, virtual_queue, clock):
    virtual_queue.fail(mail.lease, "boom", delay_seconds=0)
    virtual_queue.fail(claim_one(virtual_queue), "boom", backoff=DOUBLING)
    assert mail.row()["run_at"] == clock.now + seconds(2)


def test_the_default_backoff_is_full_jitter_up_to_a_second_at_the_first_attempt(mail, virtual_queue, clock):
    virtual_queue.fail(mail.lease, "boom")
    assert clock.now <= mail.row()["run_at"] <= clock.now + seconds(1)


def test_a_delay_that_is_given_replaces_the_backoff(mail, virtual_queue, clock):
    virtual_queue.fail(mail.lease, "boom", delay_seconds=90, backoff=SEVEN)
    assert mail.row()["run_at"] == clock.now + seconds(90)


def test_the_last_allowed_failure_makes_the_job_dead(mail, virtual_queue, clock):
    virtual_queue.fail(mail.lease, "first", delay_seconds=0)
    virtual_queue.fail(claim_one(virtual_queue), "second", delay_seconds=0)
    last = claim_one(virtual_queue)
    assert mail.change(
        lambda: virtual_queue.fail(last, "third"), but=["history", "run_at", "finished_epoch", "finished_by"]
    ) == {"status": "dead", "finished_at": clock.now, "locked_by": None, "locked_until": None, "last_error": "third"}


def test_max_attempts_one_is_one_execution(virtual_conn, virtual_queue):
    job = virtual_queue.enqueue("mail", max_attempts=1).id
    virtual_queue.fail(claim_one(virtual_queue), "boom", delay_seconds=0)
    assert (row(virtual_conn, job)["status"], virtual_queue.claim("A").empty) == ("dead", Empty.NONE)


def test_a_permanent_failure_is_failed_with_attempts_left(mail, virtual_queue, clock):
    assert mail.change(
        lambda: virtual_queue.fail(mail.lease, "never", permanent=True), but=["run_at", "finished_epoch", "finished_by"]
    ) == {
        "status": "failed",
        "finished_at": clock.now,
        "locked_by": None,
        "locked_until": None,
        "last_error": "never",
        "history": [("failed_permanently", "A", 1, "never")],
    }


def test_a_permanent_failure_on_the_last_attempt_is_still_failed_by_decision(virtual_conn, virtual_queue):
    job = virtual_queue.enqueue("mail", max_attempts=1).id
    virtual_queue.fail(claim_one(virtual_queue), "never", permanent=True)
    assert row(virtual_conn, job)["status"] == "failed"


def test_a_failure_sets_the_count_of_releases_in_a_row_to_zero(mail, virtual_queue):
    virtual_queue.release(mail.lease, "no database")
    virtual_queue.fail(claim_one(virtual_queue), "boom", delay_seconds=0)
    assert mail.row()["releases"] == 0


# ---- release -------------------------------------------------------------------------------------------------------


def test_a_release_gives_the_attempt_back_and_is_counted(mail, virtual_queue, clock):
    clock.advance(4)
    assert mail.change(lambda: virtual_queue.release(mail.lease, "no database", delay_seconds=30)) == {
        "status": "ready",
        "attempts": 0,
        "releases": 1,
        "run_at": clock.now + seconds(30),
        "started_at": None,
        "locked_by": None,
        "locked_until": None,
        "history": [("released", "A", 1, "no database")],
    }


def test_an_uncounted_release_leaves_the_count_of_releases(mail, virtual_queue):
    virtual_queue.release(mail.lease, "shutdown", counted=False)
    assert {name: mail.row()[name] for name in ("attempts", "releases", "epoch")} == {
        "attempts": 0,
        "releases": 0,
        "epoch": 1,
    }


def test_the_next_lease_tells_how_often_the_job_was_released(mail, virtual_queue):
    virtual_queue.release(mail.lease, "no database")
    lease = claim_one(virtual_queue)
    assert (lease.epoch, lease.attempt, lease.releases) == (2, 1, 1)


def test_a_release_after_expiry_and_before_any_reaper_gives_the_attempt_back(mail, virtual_queue, clock):
    clock.advance(60)
    virtual_queue.release(mail.lease, "shutdown")
    assert (mail.row()["attempts"], mail.row()["lease_losses"]) == (0, 0)


def test_the_attempt_of_the_last_execution_can_be_given_back(virtual_conn, virtual_queue):
    job = virtual_queue.enqueue("mail", max_attempts=1).id
    virtual_queue.release(claim_one(virtual_queue), "shutdown")
    assert (row(virtual_conn, job)["status"], claim_one(virtual_queue).attempt) == ("ready", 1)


# ---- reap ----------------------------------------------------------------------------------------------------------


def test_reap_takes_nothing_at_nine_seconds_and_the_lease_at_ten(mail, virtual_queue, clock):
    clock.advance(9)
    at_nine = mail.change(lambda: virtual_queue.reap(backoff=SEVEN))
    clock.advance(1)
    at_ten = mail.change(lambda: virtual_queue.reap(backoff=SEVEN), but=["history", "last_error"])
    assert (at_nine, at_ten) == (
        {},
        {
            "status": "ready",
            "lease_losses": 1,
            "run_at": clock.now + seconds(7),
            "locked_by": None,
            "locked_until": None,
        },
    )


def test_reap_says_whose_lease_was_lost_and_what_became_of_the_job(mail, virtual_queue, clock):
    clock.advance(10)
    [reaped] = virtual_queue.reap()
    assert (reaped.id, reaped.type, reaped.owner, reaped.epoch, reaped.status) == (mail.id, "mail", "A", 1, "ready")


def test_reap_notes_the_loss_in_the_row_and_as_an_incident(mail, virtual_conn, virtual_queue, clock):
    clock.advance(10)
    virtual_queue.reap()
    incident = virtual_conn.execute("select type, n, at from jobqueue.incident").fetchall()
    assert ([entry[:3] for entry in mail.row()["history"]], incident) == ([("lost", "A", 1)], [("mail", 1, clock.now)])


def test_a_lost_last_attempt_is_dead_though_nobody_reported_it(virtual_conn, virtual_queue, clock):
    job = virtual_queue.enqueue("mail", max_attempts=1).id
    claim_one(virtual_queue)
    clock.advance(10)
    [reaped] = virtual_queue.reap()
    after = row(virtual_conn, job)
    assert (reaped.status, after["status"], after["attempts"], after["lease_losses"], after["finished_at"]) == (
        "dead",
        "dead",
        1,
        1,
        clock.now,
    )


def test_reap_backs_off_by_the_attempts_used(mail, virtual_queue, clock):
    virtual_queue.fail(mail.lease, "boom", delay_seconds=0)
    claim_one(virtual_queue)
    clock.advance(10)
    virtual_queue.reap(backoff=DOUBLING)
    assert mail.row()["run_at"] == clock.now + seconds(2)


def test_reap_draws_a_delay_of_its_own_for_every_row(virtual_conn, virtual_queue, clock):
    virtual_queue.enqueue_many([{"type": "mail"}] * 50)
    virtual_queue.claim("A", limit=50, lease_seconds=10)
    clock.advance(10)
    virtual_queue.reap()
    distinct, low, high = virtual_conn.execute(
        "select count(distinct run_at), min(run_at), max(run_at) from jobqueue.job"
    ).fetchone()
    assert (distinct > 40, low >= clock.now, high <= clock.now + seconds(1)) == (True, True, True)


def test_reap_takes_at_most_its_limit_and_the_rest_next_time(virtual_queue, clock):
    virtual_queue.enqueue_many([{"type": "mail"}] * 7)
    virtual_queue.claim("A", limit=7, lease_seconds=10)
    clock.advance(10)
    assert [len(virtual_queue.reap(limit=3)) for _ in range(4)] == [3, 3, 1, 0]


def test_a_lost_lease_sets_the_count_of_releases_in_a_row_to_zero(mail, virtual_queue, clock):
    virtual_queue.release(mail.lease, "no database")
    claim_one(virtual_queue)
    clock.advance(10)
    virtual_queue.reap()
    assert (mail.row()["releases"], mail.row()["lease_losses"]) == (0, 1)


def test_a_failure_told_after_the_reaper_is_lost_and_not_charged(mail, virtual_queue, clock):
    clock.advance(10)
    virtual_queue.reap()
    assert (virtual_queue.fail(mail.lease, "late"), mail.row()["attempts"], mail.row()["last_error"]) == (
        Outcome.LOST,
        1,
        mail.row()["last_error"],
    )


# ---- alerts: NOTIFY by the very statement that makes a dead letter ---------------------------------------------------


ALERTS = {
    "failed": lambda queue, lease, clock: queue.fail(lease, "never", permanent=True),
    "dead": lambda queue, lease, clock: queue.fail(lease, "boom"),
    "dead by a lost lease": lambda queue, lease, clock: (clock.advance(10), queue.reap()),
}


def alerts(conn):
    """The payloads that this session has been notified of."""
    return [json.loads(notify.payload) for notify in conn.notifies(timeout=0.05, stop_after=1)]


@pytest.fixture
def listening(virtual_conn):
    virtual_conn.execute("listen jobqueue_alert")
    return virtual_conn


@pytest.mark.parametrize("end", ALERTS)
def test_a_dead_letter_raises_an_alert_that_names_it(listening, virtual_queue, clock, end):
    job = virtual_queue.enqueue("mail", max_attempts=1).id
    ALERTS[end](virtual_queue, claim_one(virtual_queue), clock)
    assert [(alert["id"], alert["type"], alert["status"]) for alert in alerts(listening)] == [
        (job, "mail", end.split()[0])
    ]


@pytest.mark.parametrize("end", ["dead", "dead by a lost lease"])
def test_an_attempt_that_will_be_retried_raises_none(listening, virtual_queue, clock, end):
    virtual_queue.enqueue("mail", max_attempts=2)
    ALERTS[end](virtual_queue, claim_one(virtual_queue), clock)
    assert alerts(listening) == []


def test_an_alert_is_raised_only_when_the_caller_commits(listening, virtual_queue):
    virtual_queue.enqueue("mail", max_attempts=1)
    lease = claim_one(virtual_queue)
    with listening.transaction(force_rollback=True):
        virtual_queue.fail(lease, "boom")
    rolled_back = alerts(listening)
    virtual_queue.fail(lease, "boom")
    assert (rolled_back, len(alerts(listening))) == ([], 1)


# ---- publish -------------------------------------------------------------------------------------------------------


def test_publish_names_the_candidate_and_who_wrote_it(mail, virtual_queue):
    assert mail.change(lambda: virtual_queue.publish(mail.lease, "report.csv", DIGEST)) == {
        "published_name": "report.csv",
        "published_digest": DIGEST,
        "published_epoch": 1,
        "published_by": "A",
    }


def test_publish_is_refused_at_expiry_though_nobody_took_over(mail, virtual_queue, clock):
    clock.advance(10)
    assert (virtual_queue.publish(mail.lease, "report.csv", DIGEST), mail.row()["published_name"]) == (
        Outcome.LEASE_EXPIRED,
        None,
    )


def test_one_epoch_publishes_once(mail, virtual_queue):
    virtual_queue.publish(mail.lease, "report.csv", DIGEST)
    assert mail.change(lambda: virtual_queue.publish(mail.lease, "other.csv", "cd" * 32)) == {}


def test_a_later_epoch_publishes_over_the_first(mail, virtual_queue):
    virtual_queue.publish(mail.lease, "report.csv", DIGEST)
    virtual_queue.fail(mail.lease, "boom", delay_seconds=0)
    second = claim_one(virtual_queue, "B")
    assert mail.change(lambda: virtual_queue.publish(second, "report.csv", "cd" * 32)) == {
        "published_digest": "cd" * 32,
        "published_epoch": 2,
        "published_by": "B",
    }


# ---- cancel --------------------------------------------------------------------------------------------------------


def test_cancelling_a_ready_job_ends_it_and_names_no_owner(virtual_conn, virtual_queue, clock):
    job = virtual_queue.enqueue("mail").id
    answer = virtual_queue.cancel(job)
    after = row(virtual_conn, job)
    assert (
        answer.before,
        answer.after,
        after["status"],
        after["finished_at"],
        [entry[:2] for entry in after["history"]],
    ) == ("ready", "cancelled", "cancelled", clock.now, [("cancelled", None)])


def test_cancelling_a_running_job_ends_it_and_names_whose_epoch_was_cut(mail, virtual_queue, clock):
    answer = virtual_queue.cancel(mail.id)
    after = mail.row()
    assert (
        answer.before,
        answer.after,
        after["status"],
        after["locked_by"],
        [entry[:3] for entry in after["history"]],
    ) == ("running", "cancelled", "cancelled", None, [("cancelled", "A", 1)])


def test_the_sentence_for_support_says_who_may_already_have_done_what_since_when(virtual_queue, clock):
    job = virtual_queue.enqueue("mail").id
    claim_one(virtual_queue, "worker-7")
    since = clock.now
    clock.advance(5)
    message = virtual_queue.cancel(job).message
    needed = (str(job), "worker-7", "epoch 1", f"{since:%H:%M:%S}")
    assert [word for word in needed if word not in message] == [], message


def test_the_sentence_for_support_about_a_ready_job_accuses_nobody(virtual_queue):
    job = virtual_queue.enqueue("mail").id
    message = virtual_queue.cancel(job).message
    assert (str(job) in message, "epoch" in message) == (True, False), message


def test_a_cancelled_ready_job_is_never_claimed(virtual_queue):
    virtual_queue.cancel(virtual_queue.enqueue("mail").id)
    assert virtual_queue.claim("A").empty is Empty.NONE


@pytest.mark.parametrize("end", ["done", "failed", "cancelled"])
def test_cancelling_a_finished_job_changes_nothing(mail, virtual_queue, end):
    finish(virtual_queue, mail.lease, end)
    answers = []
    assert mail.change(lambda: answers.append(virtual_queue.cancel(mail.id))) == {}
    assert (answers[0].before, answers[0].after) == (end, end)


def finish(queue, lease, end):
    return {
        "done": lambda: queue.complete(lease),
        "failed": lambda: queue.fail(lease, "never", permanent=True),
        "dead": lambda: queue.fail(lease, "boom", delay_seconds=0),
        "cancelled": lambda: queue.cancel(lease.id),
    }[end]()


def test_cancelling_an_unknown_job_has_no_before(virtual_queue):
    assert virtual_queue.cancel(10**12).before is None


def test_cancel_type_ends_ready_and_running_jobs_of_that_type_only(virtual_conn, virtual_queue):
    virtual_queue.enqueue_many([{"type": "mail"}] * 3 + [{"type": "report"}])
    claim_one(virtual_queue)
    cancelled = virtual_queue.cancel_type("mail")
    rows = virtual_conn.execute("select type, status, count(*) from jobqueue.job group by 1, 2 order by 1").fetchall()
    assert (cancelled, rows) == (3, [("mail", "cancelled", 3), ("report", "ready", 1)])


# ---- redrive -------------------------------------------------------------------------------------------------------


def test_redrive_gives_a_dead_job_all_its_attempts_and_keeps_epoch_and_history(virtual_conn, virtual_queue, clock):
    job = virtual_queue.enqueue("mail", max_attempts=1).id
    claim_one(virtual_queue)
    clock.advance(10)
    virtual_queue.reap()
    clock.advance(5)
    redriven = virtual_queue.redrive([job])
    after = row(virtual_conn, job)
    assert (
        redriven,
        {
            name: after[name]
            for name in ("status", "attempts", "lease_losses", "releases", "epoch", "run_at", "finished_at")
        },
        [entry[:3:2] for entry in after["history"]],
    ) == (
        [job],
        {
            "status": "ready",
            "attempts": 0,
            "lease_losses": 0,
            "releases": 0,
            "epoch": 1,
            "run_at": clock.now,
            "finished_at": None,
        },
        [("lost", 1), ("redriven", 1)],
    )


def test_redrive_takes_dead_letters_and_cancelled_jobs_only_on_request(virtual_queue):
    ids = [dead_letter(virtual_queue, end) for end in ("dead", "failed", "cancelled", "done")]
    live = virtual_queue.enqueue("ready").id
    first, second = virtual_queue.redrive(ids + [live]), virtual_queue.redrive(ids + [live], cancelled=True)
    assert (sorted(first), second) == (ids[:2], ids[2:3])


def dead_letter(queue, end, type="mail"):
    job = queue.enqueue(type, max_attempts=1).id
    finish(queue, claim_one(queue, types=[type]), end)
    return job


def test_redrive_by_type_takes_its_dead_letters_only(virtual_queue):
    dead_letter(virtual_queue, "dead")
    reports = [dead_letter(virtual_queue, end, "report") for end in ("dead", "failed")]
    assert sorted(virtual_queue.redrive(type="report")) == reports


def test_redrive_never_takes_everything_by_accident(virtual_conn, virtual_queue):
    job = dead_letter(virtual_queue, "dead")
    with pytest.raises(InvalidInput):
        virtual_queue.redrive()
    assert row(virtual_conn, job)["status"] == "dead"


def test_redrive_does_not_touch_an_archived_job(virtual_conn, virtual_queue, clock):
    job = dead_letter(virtual_queue, "dead")
    clock.advance(1)
    virtual_queue.archive(older_than_seconds=0, statuses=("dead",))
    assert (virtual_queue.redrive([job]), row(virtual_conn, job, "job_archive")["status"]) == ([], "dead")


def test_a_redriven_job_has_the_next_epoch_at_its_first_attempt(virtual_queue):
    virtual_queue.redrive([dead_letter(virtual_queue, "dead")])
    lease = claim_one(virtual_queue)
    assert (lease.epoch, lease.attempt) == (2, 1)


# ---- archive -------------------------------------------------------------------------------------------------------


def test_archive_moves_the_whole_row(mail, virtual_conn, virtual_queue, clock):
    virtual_queue.complete(mail.lease)
    before = mail.row()
    clock.advance(61)
    moved = virtual_queue.archive(older_than_seconds=60)
    assert (moved, mail.row(), row(virtual_conn, mail.id, "job_archive")) == (1, None, before)


def test_archive_leaves_jobs_younger_than_the_cut_off(mail, virtual_queue, clock):
    virtual_queue.complete(mail.lease)
    clock.advance(59)
    early = virtual_queue.archive(older_than_seconds=60)
    clock.advance(2)
    assert (early, virtual_queue.archive(older_than_seconds=60)) == (0, 1)


def test_archive_takes_other_ends_only_when_asked(virtual_conn, virtual_queue, clock):
    for end in EVERY_END:
        dead_letter(virtual_queue, end)
    virtual_queue.enqueue("ready")
    claim_one(virtual_queue)
    clock.advance(1)
    moved = [
        virtual_queue.archive(older_than_seconds=0),
        virtual_queue.archive(older_than_seconds=0, statuses=("dead", "cancelled")),
    ]
    left = virtual_conn.execute("select status from jobqueue.job order by 1").fetchall()
    assert (moved, left) == ([1, 2], [("failed",), ("running",)])


def test_archive_works_in_batches(virtual_queue, clock):
    virtual_queue.enqueue_many([{"type": "mail"}] * 5)
    virtual_queue.complete_many(list(virtual_queue.claim("A", limit=5)))
    clock.advance(1)
    assert [virtual_queue.archive(older_than_seconds=0, limit=2) for _ in range(4)] == [2, 2, 1, 0]


# ---- history, errors, transactions, reading ------------------------------------------------------------------------


def test_history_keeps_the_newest_fifty_entries_and_counts_the_rest(virtual_conn, virtual_queue):
    job = virtual_queue.enqueue("mail").id
    for number in range(1, 54):
        virtual_queue.release(claim_one(virtual_queue), f"release {number}", counted=False)
    after = row(virtual_conn, job)
    assert (len(after["history"]), after["history"][0][3], after["history"][-1][3], after["history_trimmed"]) == (
        50,
        "release 4",
        "release 53",
        3,
    )


def test_history_names_its_instants(mail, virtual_conn, virtual_queue, clock):
    virtual_queue.fail(mail.lease, "boom", delay_seconds=0)
    [[entry]] = virtual_conn.execute("select history->0->>'at' from jobqueue.job").fetchall()
    assert datetime.fromisoformat(entry) == clock.now


def test_epoch_rises_with_every_claim_and_adoption_and_never_falls(mail, virtual_queue, clock):
    epochs = [mail.lease.epoch]
    clock.advance(10)
    epochs.append(virtual_queue.adopt(mail.id, "B", lease_seconds=10).epoch)
    clock.advance(10)
    virtual_queue.reap(backoff=SEVEN)
    clock.advance(7)
    last = claim_one(virtual_queue)
    virtual_queue.fail(last, "boom")
    virtual_queue.redrive([mail.id])
    assert epochs + [last.epoch, claim_one(virtual_queue).epoch] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "act",
    [
        lambda queue, lease: queue.complete(lease),
        lambda queue, lease: queue.complete(lease, strict=True),
        lambda queue, lease: queue.complete_many([lease]),
        lambda queue, lease: queue.fail(lease, "boom"),
        lambda queue, lease: queue.release(lease, "stop"),
        lambda queue, lease: queue.heartbeat(lease, lease_seconds=60),
        lambda queue, lease: queue.publish(lease, "report.csv", DIGEST),
        lambda queue, lease: queue.cancel(lease.id),
    ],
    ids=["complete", "strict", "complete_many", "fail", "release", "heartbeat", "publish", "cancel"],
)
def test_a_verb_in_a_callers_transaction_counts_when_the_caller_commits(mail, virtual_conn, virtual_queue, act):
    def rolled_back():
        with virtual_conn.transaction(force_rollback=True):
            act(virtual_queue, mail.lease)

    assert (mail.change(rolled_back), mail.change(lambda: act(virtual_queue, mail.lease)) != {}) == ({}, True)


def test_enqueue_joins_the_callers_transaction(virtual_conn, virtual_queue):
    with virtual_conn.transaction(force_rollback=True):
        virtual_queue.enqueue("mail", key="k")
    assert (virtual_queue.claim("A").empty, virtual_queue.enqueue("mail", key="k").created) == (Empty.NONE, True)


def test_a_refused_verb_leaves_the_callers_transaction_usable(mail, virtual_conn, virtual_queue):
    virtual_queue.cancel(mail.id)
    with virtual_conn.transaction():
        outcome = virtual_queue.complete(mail.lease)
        job = virtual_queue.enqueue("mail").id
    assert (outcome, row(virtual_conn, job)["status"]) == (Outcome.CANCELLED, "ready")


def test_finished_at_is_never_before_started_at_in_a_transaction_begun_before_the_claim(conn, queue, dsn):
    queue.enqueue("mail")
    with psycopg.connect(dsn) as slow:
        slow.execute("select 1")
        Queue(slow).complete(claim_one(queue))
    assert conn.execute("select finished_at >= started_at from jobqueue.job").fetchone() == (True,)


def test_get_reads_the_whole_row_or_none(mail, virtual_queue):
    job, stored = virtual_queue.get(mail.id), mail.row()
    assert ({name: getattr(job, name) for name in COLUMNS if name != "history"}, virtual_queue.get(10**12)) == (
        {name: stored[name] for name in COLUMNS if name != "history"},
        None,
    )


def test_dead_letters_lists_dead_and_failed_jobs_with_their_reason(virtual_queue):
    for end, type in (("dead", "mail"), ("failed", "report"), ("done", "mail"), ("cancelled", "mail")):
        dead_letter(virtual_queue, end, type)
    listed = {(job.type, job.status, job.last_error) for job in virtual_queue.dead_letters()}
    assert (
        listed,
        [job.type for job in virtual_queue.dead_letters(type="report")],
        len(virtual_queue.dead_letters(limit=1)),
    ) == ({("mail", "dead", "boom"), ("report", "failed", "never")}, ["report"], 1)


def explained(queue, job, *needed):
    """The words that the explanation lacks."""
    text = queue.explain(job)
    return [word for word in map(str, needed) if word not in text] and text


def test_explain_tells_who_holds_the_job_and_how_long_its_lease_lasts(virtual_queue):
    job = virtual_queue.enqueue("mail").id
    claim_one(virtual_queue, "worker-7")
    assert not explained(virtual_queue, job, job, "mail", "running", "worker-7", "10.0 s")


def test_explain_of_a_job_whose_lease_has_ended_says_so(virtual_queue, clock):
    job = virtual_queue.enqueue("mail").id
    claim_one(virtual_queue, "worker-7")
    clock.advance(11)
    before = virtual_queue.explain(job)
    virtual_queue.reap()
    assert ("ended" in before or "expired" in before, "lost" in virtual_queue.explain(job)) == (True, True), before


def test_explain_of_a_job_that_waits_says_until_when_and_what_went_wrong(virtual_queue, clock):
    job = virtual_queue.enqueue("mail").id
    virtual_queue.fail(claim_one(virtual_queue, "worker-7"), "no such mailbox", delay_seconds=90)
    assert not explained(virtual_queue, job, "no such mailbox", "worker-7", f"{clock.now + seconds(90):%H:%M:%S}")


def test_explain_of_a_paused_type_says_so(virtual_queue):
    job = virtual_queue.enqueue("mail").id
    virtual_queue.pause_type("mail")
    assert not explained(virtual_queue, job, "paused")


def test_explain_of_a_dead_job_tells_the_reason_and_what_can_be_done(virtual_queue):
    assert not explained(virtual_queue, dead_letter(virtual_queue, "dead"), "dead", "boom", "redrive")


def test_explain_of_an_archived_job_still_tells_its_story(virtual_queue, clock):
    job = dead_letter(virtual_queue, "done")
    clock.advance(1)
    virtual_queue.archive(older_than_seconds=0)
    assert not explained(virtual_queue, job, job, "done", "archive")


def test_explain_of_an_unknown_job_says_so(virtual_queue):
    assert str(10**12) in virtual_queue.explain(10**12)
