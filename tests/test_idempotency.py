"""One key, one job (DESIGN §5): at once, in open transactions, after done, archived, and while being archived."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from helpers import Session
from jobqueue import InfrastructureError, Queue

pytestmark = pytest.mark.shared

KEYS = [f"order {number}" for number in range(30)]


def jobs_of(conn, key):
    """How many jobs there are under the key, live and archived."""
    return conn.execute(
        """select count(*) from (select idempotency_key from jobqueue.job union all
        select idempotency_key from jobqueue.job_archive) every where idempotency_key = %s""",
        (key,),
    ).fetchone()[0]


def finish(queue, lease_count=1):
    assert len(queue.complete_many(list(queue.claim("A", limit=lease_count)))) == lease_count


def archive_everything_done(queue):
    return queue.archive(older_than_seconds=0)


# ---- one caller ----------------------------------------------------------------------------------------------------


def test_the_same_key_again_is_a_no_op_that_returns_the_first_id(queue, conn):
    first, again = queue.enqueue("mail", {"to": "ada"}, key="k"), queue.enqueue("mail", {"to": "ada"}, key="k")
    assert ((first.created, first.matches), (again.id, again.created, again.matches), jobs_of(conn, "k")) == (
        (True, True),
        (first.id, False, True),
        1,
    )


@pytest.mark.parametrize(
    "type, payload, matches",
    [
        ("mail", {"a": 1, "b": [2]}, True),
        ("mail", {"b": [2], "a": 1}, True),
        ("mail", {"a": 1.0, "b": [2]}, True),
        ("mail", {"a": 1, "b": [2, 2]}, False),
        ("mail", {"a": "1", "b": [2]}, False),
        ("mail", None, False),
        ("report", {"a": 1, "b": [2]}, False),
    ],
    ids=["same", "key order", "1.0 is 1", "payload", "type in payload", "no payload", "type"],
)
def test_another_type_or_payload_under_the_key_does_not_match(queue, type, payload, matches):
    first = queue.enqueue("mail", {"a": 1, "b": [2]}, key="k")
    again = queue.enqueue(type, payload, key="k")
    assert (again.id, again.created, again.matches) == (first.id, False, matches)


def test_a_mismatch_never_overwrites_the_first_job(queue, conn):
    queue.enqueue("mail", {"to": "ada"}, key="k", max_attempts=3)
    before = conn.execute("select to_jsonb(j) from jobqueue.job j").fetchall()
    queue.enqueue("report", {"to": "bob"}, key="k", max_attempts=9, delay_seconds=60)
    assert conn.execute("select to_jsonb(j) from jobqueue.job j").fetchall() == before


def test_jobs_without_a_key_are_all_created(queue):
    assert [queue.enqueue("mail", {"to": "ada"}).created for _ in range(3)] == [True] * 3


@pytest.mark.parametrize(
    "one, other",
    [("k", "k "), ("k", "K"), ("caf\u00e9", "cafe\u0301"), ("a", "\u0430")],
    ids=["trailing space", "case", "NFC and NFD", "Latin and Cyrillic"],
)
def test_keys_are_compared_byte_for_byte(queue, one, other):
    assert [queue.enqueue("mail", key=key).created for key in (one, other, one)] == [True, True, False]


def test_a_key_of_512_bytes_is_stored_whole(queue, conn):
    key = "é" * 256
    queue.enqueue("mail", key=key)
    assert conn.execute("select idempotency_key, (select key from jobqueue.job_key) from jobqueue.job").fetchone() == (
        key,
        key,
    )


def test_a_known_key_spends_no_id(queue):
    first = queue.enqueue("mail", key="k").id
    for _ in range(5):
        queue.enqueue("mail", key="k")
    assert queue.enqueue("mail").id == first + 1


# ---- the job's later life ------------------------------------------------------------------------------------------


def test_a_key_stays_used_after_its_job_is_done(queue, conn):
    first = queue.enqueue("mail", key="k")
    finish(queue)
    again = queue.enqueue("mail", key="k")
    assert ((again.id, again.created, again.matches), jobs_of(conn, "k")) == ((first.id, False, True), 1)


def test_a_key_stays_used_after_its_job_was_archived(queue, conn):
    first = queue.enqueue("mail", {"to": "ada"}, key="k")
    finish(queue)
    archived = archive_everything_done(queue)
    same, other = queue.enqueue("mail", {"to": "ada"}, key="k"), queue.enqueue("mail", {"to": "bob"}, key="k")
    assert (
        archived,
        (same.id, same.created, same.matches),
        (other.id, other.created, other.matches),
        jobs_of(conn, "k"),
    ) == (1, (first.id, False, True), (first.id, False, False), 1)


def test_a_key_stays_used_after_its_archived_row_is_gone(queue, conn):
    first = queue.enqueue("mail", key="k")
    finish(queue)
    archive_everything_done(queue)
    conn.execute("delete from jobqueue.job_archive")
    again = queue.enqueue("mail", key="k")
    assert (again.id, again.created, again.matches) == (first.id, False, True)


@pytest.mark.parametrize("end", ["dead", "failed", "cancelled"])
def test_a_key_stays_used_whatever_the_end(queue, end):
    first = queue.enqueue("mail", key="k", max_attempts=1)
    [lease] = queue.claim("A")
    {
        "dead": lambda: queue.fail(lease, "boom"),
        "failed": lambda: queue.fail(lease, "never", permanent=True),
        "cancelled": lambda: queue.cancel(first.id),
    }[end]()
    assert queue.enqueue("mail", key="k").id == first.id


# ---- batches -------------------------------------------------------------------------------------------------------


def test_a_batch_with_known_and_doubled_keys_creates_the_rest_in_input_order(queue, conn):
    old = queue.enqueue("mail", key="old").id
    keys = [f"new {number}" for number in range(97)] + ["old", "twice", "twice"]
    answers = queue.enqueue_many([{"type": "mail", "key": key} for key in keys])
    created = [answer.id for answer in answers if answer.created]
    assert (
        len(created),
        created == sorted(created),
        answers[97].id,
        answers[98].id == answers[99].id,
        [answer.created for answer in answers[97:]],
        jobs_of(conn, "twice"),
    ) == (98, True, old, True, [False, True, False], 1)


def test_a_batch_answers_for_every_job_with_its_own_id(queue, conn):
    keys = ["b", None, "a", "b", None, "c", "a"]
    answers = queue.enqueue_many([{"type": "mail", "payload": key, "key": key} for key in keys])
    stored = dict(conn.execute("select id, idempotency_key from jobqueue.job").fetchall())
    assert [stored[answer.id] for answer in answers] == keys


def test_a_batch_says_which_of_its_keys_had_another_payload(queue):
    queue.enqueue("mail", {"n": 1}, key="old")
    answers = queue.enqueue_many(
        [
            {"type": "mail", "payload": {"n": 2}, "key": "old"},
            {"type": "mail", "payload": 1, "key": "x"},
            {"type": "mail", "payload": 2, "key": "x"},
            {"type": "mail", "payload": 1, "key": "x"},
        ]
    )
    assert [(answer.created, answer.matches) for answer in answers] == [
        (False, False),
        (True, True),
        (False, False),
        (False, True),
    ]


def test_an_empty_batch_is_an_empty_answer(queue):
    assert queue.enqueue_many([]) == []


def test_two_batches_with_the_same_keys_in_opposite_order_do_not_deadlock(dsn, conn):
    batch = [{"type": "mail", "key": key} for key in KEYS]

    def enqueue(jobs):
        with psycopg.connect(dsn, autocommit=True) as own:
            return [answer.created for answer in Queue(own).enqueue_many(jobs)]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(enqueue, [batch, batch[::-1]] * 4))
    assert (sum(map(sum, answers)), conn.execute("select count(*) from jobqueue.job").fetchone()) == (30, (30,))


# ---- many callers --------------------------------------------------------------------------------------------------


def test_fifty_threads_enqueue_one_key_and_one_job_is_created(dsn, conn):
    barrier = threading.Barrier(50, timeout=30)

    def enqueue(_):
        with psycopg.connect(dsn, autocommit=True) as own:
            barrier.wait()
            return Queue(own).enqueue("mail", {"to": "ada"}, key="k")

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(enqueue, range(50)))
    assert (
        sum(answer.created for answer in answers),
        len({answer.id for answer in answers}),
        all(answer.matches for answer in answers),
        jobs_of(conn, "k"),
    ) == (1, 1, True, 1)


def test_a_second_enqueue_waits_for_the_open_transaction_and_finds_its_job(dsn):
    with Session(dsn) as first, Session(dsn) as second:
        with first.conn.transaction():
            job = first.queue.enqueue("mail", key="k").id
            second.run(lambda queue: queue.enqueue("mail", key="k"))
            assert second.is_blocked()
        answer = second.result()
        assert (answer.id, answer.created, answer.matches) == (job, False, True)


def test_a_second_enqueue_creates_the_job_when_the_first_rolls_back(dsn, conn):
    with Session(dsn) as first, Session(dsn) as second:
        with first.conn.transaction(force_rollback=True):
            first.queue.enqueue("mail", {"of": "first"}, key="k")
            second.run(lambda queue: queue.enqueue("mail", {"of": "second"}, key="k"))
            assert second.is_blocked()
        answer = second.result()
        assert ((answer.created, answer.matches), jobs_of(conn, "k")) == ((True, True), 1)


def test_a_batch_waits_for_the_open_key_and_answers_in_input_order(dsn):
    with Session(dsn) as first, Session(dsn) as second:
        with first.conn.transaction():
            job = first.queue.enqueue("mail", key="k").id
            second.run(lambda queue: queue.enqueue_many([{"type": "mail", "key": key} for key in ("a", "k", "b")]))
            assert second.is_blocked()
        answers = second.result()
        assert ([answer.created for answer in answers], answers[1].id) == ([True, False, True], job)


def repeatable_read_snapshot(conn):
    conn.execute("set transaction isolation level repeatable read")
    conn.execute("select from jobqueue.job_key")


@pytest.mark.parametrize(
    "enqueue",
    [lambda queue: queue.enqueue("mail", key="k"), lambda queue: queue.enqueue_many([{"type": "mail", "key": "k"}])],
    ids=["one", "many"],
)
def test_a_key_committed_after_a_repeatable_read_snapshot_raises_infrastructure_error(dsn, queue, enqueue):
    with psycopg.connect(dsn, autocommit=True) as own, pytest.raises(InfrastructureError), own.transaction():
        repeatable_read_snapshot(own)
        queue.enqueue("mail", key="k")
        enqueue(Queue(own))


def test_a_repeatable_read_caller_that_retries_finds_the_job(dsn, queue):
    first = queue.enqueue("mail", key="k")
    with psycopg.connect(dsn, autocommit=True) as own, own.transaction():
        repeatable_read_snapshot(own)
        again = Queue(own).enqueue("mail", key="k")
    assert (again.id, again.created) == (first.id, False)


def test_duplicates_inside_one_batch_are_fine_under_repeatable_read(dsn):
    with psycopg.connect(dsn, autocommit=True) as own, own.transaction():
        repeatable_read_snapshot(own)
        answers = Queue(own).enqueue_many([{"type": "mail", "key": key} for key in ("a", "b", "a", None)])
    assert [answer.created for answer in answers] == [True, True, False, True]


def test_the_archiver_moving_that_very_row_never_lets_a_key_in_twice(dsn, conn, queue):
    keys = [f"order {number}" for number in range(600)]
    queue.enqueue_many([{"type": "mail", "key": key} for key in keys])
    finish(queue, len(keys))
    moving = threading.Event()

    def archiver(_):
        with psycopg.connect(dsn, autocommit=True) as own:
            return sum(iter(lambda: Queue(own).archive(older_than_seconds=0, limit=2), 0))

    def producer(seed):
        with psycopg.connect(dsn, autocommit=True) as own:
            answers = [Queue(own).enqueue("mail", key=key) for key in endless(keys, seed, moving)]
        return len(answers), sum(answer.created for answer in answers)

    with ThreadPoolExecutor(6) as pool:
        producers = [pool.submit(producer, seed) for seed in range(4)]
        moved = sum(pool.map(archiver, range(2)))
        moving.set()
        tried, created = map(sum, zip(*(done.result() for done in producers), strict=True))
    assert (moved, tried > 200, created, {jobs_of(conn, key) for key in keys}) == (600, True, 0, {1})


def endless(keys, seed, stop):
    """Keys in a seeded random order until `stop` is set."""
    draw = random.Random(seed)
    while not stop.is_set():
        yield draw.choice(keys)
