"""Many jobs at once: COPY while keys are new, one statement otherwise; the same answers, the same rows."""

import threading
import time
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from working import working

from helpers import wait_until
from jobqueue import Queue
from jobqueue.bulk import COPY_FROM
from jobqueue.errors import InvalidInput, JobQueueError
from jobqueue.model import Enqueued

MANY = COPY_FROM + 50
SOON = datetime.now(UTC) + timedelta(hours=1)


def mixed(n):
    """Jobs of every kind that needs no key; texts that COPY would have to escape."""
    kinds = [
        {"type": "mail"},
        {"type": "tab\tand \\ back", "payload": {"text": 'line\nbreak, "quotes", \\N, \\. and ü'}},
        {"type": "mail", "payload": [1, None, "x"], "run_at": SOON},
        {"type": "mail", "delay_seconds": 90, "max_attempts": 1},
        {"type": "mail", "payload": None},
    ]
    return [kinds[place % len(kinds)] for place in range(n)]


def rows(conn):
    return conn.execute(
        """select type, payload, status, attempts, max_attempts, idempotency_key, history, epoch,
           case when run_at = %s then 'soon' else round(extract(epoch from run_at - created_at))::text end
           from jobqueue.job order by id""",
        (SOON,),
    ).fetchall()


def test_copied_jobs_are_the_same_as_those_of_the_statement(conn, queue):
    told = queue.enqueue_many(mixed(MANY))
    copied = rows(conn)
    conn.execute("delete from jobqueue.job")
    for _ in range(0, MANY, 10):
        queue.enqueue_many(mixed(10))
    assert copied == rows(conn) and len(copied) == MANY
    assert [one.id for one in told] == sorted({one.id for one in told}) and set(map(type, told)) == {Enqueued}


def test_copied_jobs_are_answered_in_input_order(queue):
    told = queue.enqueue_many([{"type": "mail", "payload": place} for place in range(MANY)])
    assert [queue.get(one.id).payload for one in told[::50]] == list(range(MANY))[::50]


def test_what_is_due_at_once_is_due_before_its_answer(queue):
    queue.enqueue_many([{"type": "mail"}] * MANY)
    assert len(queue.claim("A", limit=MANY)) == MANY


@pytest.mark.parametrize("keep", [True, False], ids=["committed", "rolled back"])
def test_copied_jobs_count_with_the_callers_transaction(dsn, conn, queue, keep):
    with psycopg.connect(dsn, autocommit=True) as own, own.transaction(force_rollback=not keep):
        Queue(own).enqueue_many([{"type": "mail"}] * MANY)
        assert len(queue.claim("A", limit=MANY)) == 0
    assert len(queue.claim("A", limit=MANY)) == (MANY if keep else 0)


def test_bad_input_among_many_is_named_before_any_sql(conn, queue):
    jobs = [{"type": "mail"}] * MANY
    with conn.transaction():
        with pytest.raises(InvalidInput, match=rf"^jobs\[{MANY}\]: type must have 1–200 bytes"):
            queue.enqueue_many([*jobs, {"type": ""}])
        queue.enqueue("mail")  # the transaction goes on
    assert conn.execute("select count(*) from jobqueue.job").fetchone() == (1,)


def test_in_a_callers_pipeline_many_go_by_the_statement(conn, queue):
    with conn.pipeline():
        told = queue.enqueue_many([{"type": "mail"}] * MANY)
    assert len(queue.claim("A", limit=MANY)) == len(told) == MANY


def test_copied_jobs_wake_a_worker_that_waits(dsn, conn, queue):
    ran, done = [], threading.Event()

    def handler(lease, context):
        ran.append(lease.id)
        if len(ran) == MANY:
            done.set()

    with working(dsn, {"mail": handler}, poll_seconds=60):
        wait_until(lambda: conn.execute("select count(*) from jobqueue.listener").fetchone() == (1,))
        began = time.monotonic()
        queue.enqueue_many([{"type": "mail"}] * MANY)
        assert done.wait(20) and time.monotonic() - began < 20


# ---- under keys ------------------------------------------------------------------------------------------------------


def keyed(n, prefix="k"):
    """Under keys whose order is not that of the input; of every other kind, and one in five without a key."""
    keys = [None if place % 5 == 4 else f"{prefix}-{n - place}" for place in range(n)]
    return [job | {"key": key} for job, key in zip(mixed(n), keys, strict=True)]


def registry(conn):
    return conn.execute(
        """select k.key, k.job_id = j.id, k.fingerprint, j.idempotency_key = k.key, j.type
           from jobqueue.job_key k left join jobqueue.job j on j.id = k.job_id order by k.key"""
    ).fetchall()


def test_jobs_copied_under_keys_are_the_same_as_those_of_the_statement(conn, queue):
    told = queue.enqueue_many(keyed(MANY))
    copied, known = rows(conn), registry(conn)
    conn.execute("delete from jobqueue.job; delete from jobqueue.job_key")
    jobs = keyed(MANY)
    for begin in range(0, MANY, 10):
        queue.enqueue_many(jobs[begin : begin + 10])
    assert (copied, known) == (rows(conn), registry(conn)) and len(copied) == MANY
    assert [one.id for one in told] == sorted({one.id for one in told}) and all(one.created for one in told)


@pytest.mark.parametrize("place", [0, 60, MANY - 1])
def test_one_known_key_among_many_new_ones_is_told(queue, conn, place):
    jobs = [{"type": "mail", "payload": n, "key": f"k{n}"} for n in range(MANY)]
    first = queue.enqueue(**jobs[place])
    told = queue.enqueue_many(jobs)
    assert told[place] == Enqueued(first.id, False) and sum(one.created for one in told) == MANY - 1
    assert [queue.get(one.id).payload for one in told] == list(range(MANY))
    assert conn.execute("select count(*) from jobqueue.job_key").fetchone() == (MANY,)


def test_a_known_key_with_another_payload_and_a_key_twice_are_told(queue):
    queue.enqueue("mail", "other", key="k7")
    jobs = [{"type": "mail", "payload": n % 140, "key": f"k{n % 140}"} for n in range(MANY)]
    told = queue.enqueue_many(jobs)
    assert not told[7].matches and [one.created for one in told[140:]] == [False] * 10
    assert [one.id for one in told[140:]] == [one.id for one in told[:10]]


@pytest.mark.parametrize("keep", [True, False], ids=["committed", "rolled back"])
@pytest.mark.parametrize("known", [True, False], ids=["a key is known", "all are new"])
@pytest.mark.parametrize("autocommit", [True, False])
def test_keyed_jobs_count_with_the_callers_transaction(dsn, conn, queue, keep, known, autocommit):
    if known:
        queue.enqueue("mail", key="k5")
    with psycopg.connect(dsn, autocommit=autocommit) as own, own.transaction(force_rollback=not keep):
        before = Queue(own).enqueue("mail")
        told = Queue(own).enqueue_many([{"type": "mail", "key": f"k{n}"} for n in range(MANY)])
        after = Queue(own).enqueue("mail")
        assert conn.execute("select count(*) from jobqueue.job").fetchone() == (int(known),)
    assert len({before.id, after.id, *(one.id for one in told)}) == MANY + 2
    expected = MANY + 2 if keep else int(known)
    assert conn.execute("select count(*) from jobqueue.job").fetchone() == (expected,)


def test_on_an_idle_connection_without_autocommit_keyed_jobs_wait_for_the_callers_commit(dsn, conn, queue):
    with psycopg.connect(dsn) as own:
        Queue(own).enqueue_many([{"type": "mail", "key": f"k{n}"} for n in range(MANY)])
        assert conn.execute("select count(*) from jobqueue.job").fetchone() == (0,)
        own.commit()
    assert conn.execute("select count(*) from jobqueue.job").fetchone() == (MANY,)


@pytest.mark.parametrize("key", [{}, {"key": "k"}], ids=["no keys", "a key"])
def test_an_id_that_is_taken_is_no_known_key(conn, queue, key):
    """Rows with ids of somebody's own: an error that names the table, and nothing is left."""
    conn.execute("insert into jobqueue.job (id, type) values (nextval('jobqueue.job_id_seq') + 50, 'theirs')")
    with pytest.raises(JobQueueError, match="job_pkey"):
        queue.enqueue_many([{"type": "mail"} | key, *[{"type": "mail"}] * MANY])
    assert conn.execute("select type from jobqueue.job").fetchall() == [("theirs",)]
    assert conn.execute("select from jobqueue.job_key").fetchall() == []


def test_two_who_send_the_same_keys_at_once_make_each_job_once(dsn, conn, queue):
    """In opposite orders, too: keys are locked in their own order, so neither waits for ever."""
    jobs = [{"type": "mail", "payload": n, "key": f"k{n}"} for n in range(MANY)]
    told = {}

    def send(name, batch):
        with psycopg.connect(dsn, autocommit=True) as own:
            told[name] = Queue(own).enqueue_many(batch)

    threads = [threading.Thread(target=send, args=(n, jobs[:: 1 if n % 2 else -1])) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(one.created for answers in told.values() for one in answers) == MANY
    assert {tuple(one.id for one in answers[:: 1 if n % 2 else -1]) for n, answers in told.items()} == {
        tuple(one.id for one in told[1])
    }
    assert conn.execute("select count(*), count(distinct payload) from jobqueue.job").fetchone() == (MANY, MANY)


# ---- the hint to idle workers ----------------------------------------------------------------------------------------


@pytest.fixture
def deaf(conn, queue):
    """A queue whose NOTIFYs fail: a trigger raises where a listener's row goes."""
    conn.execute("""insert into jobqueue.listener (owner, types) values ('idle', '{mail}');
        create function public.refuse() returns trigger language plpgsql as $$ begin raise 'no hint today'; end $$;
        create trigger refuse before delete on jobqueue.listener for each row execute function public.refuse()""")
    return queue


def test_a_job_is_there_though_the_hint_to_an_idle_worker_failed(deaf):
    """Its commit has been confirmed: an error would make the caller enqueue it again."""
    enqueued = [deaf.enqueue("mail"), deaf.enqueue("mail", key="k"), *deaf.enqueue_many([{"type": "mail"}] * 200)]
    assert [deaf.get(one.id).status for one in enqueued] == ["ready"] * 202


def test_in_the_callers_transaction_a_failed_hint_fails_the_transaction(deaf, conn):
    with pytest.raises(JobQueueError, match="no hint today"), conn.transaction():
        deaf.enqueue("mail")
    assert conn.execute("select count(*) from jobqueue.job").fetchone() == (0,)


def test_a_job_for_later_and_one_that_nobody_waits_for_wake_nobody(conn, queue):
    conn.execute("insert into jobqueue.listener (owner, types) values ('idle', '{mail}')")
    queue.enqueue("mail", delay_seconds=60)
    queue.enqueue("report")
    queue.enqueue_many([{"type": "mail", "delay_seconds": 60}, {"type": "report", "key": "k"}])
    assert conn.execute("select owner from jobqueue.listener").fetchall() == [("idle",)]
    queue.enqueue("mail", key="now")
    assert conn.execute("select owner from jobqueue.listener").fetchall() == []
