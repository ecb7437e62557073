"""The caller's connection may be set up in any way that psycopg and PostgreSQL allow: every verb does its work."""

from datetime import datetime, timedelta, timezone

import psycopg
import pytest
from psycopg.rows import class_row, dict_row, namedtuple_row

from helpers import wait_until
from jobqueue import Backoff, Empty, InfrastructureError, JobQueueError, Outcome, Queue

pytestmark = pytest.mark.shared

AT_ONCE = Backoff(shape="constant", base_seconds=0, jitter="none")
DIGEST = "ab" * 32


class Whatever:
    """A row of a caller's own kind."""

    def __init__(self, **columns):
        self.columns = columns


def settings(*statements):
    """A set-up that runs statements on the new connection."""
    return lambda conn: [conn.execute(statement) for statement in statements]


CALLERS = {
    "as it comes": ({}, settings()),
    "dict rows": ({"row_factory": dict_row}, settings()),
    "namedtuple rows": ({"row_factory": namedtuple_row}, settings()),
    "rows of a class": ({"row_factory": class_row(Whatever)}, settings()),
    "client-side cursors": ({"cursor_factory": psycopg.ClientCursor}, settings()),
    "everything prepared": ({"prepare_threshold": 0}, settings("set plan_cache_mode = force_generic_plan")),
    "nothing prepared": ({"prepare_threshold": None}, settings()),
    "time zone of Berlin": ({}, settings("set timezone = 'Europe/Berlin'")),
    "half-hour time zone": ({}, settings("set timezone = 'Asia/Kathmandu'")),
    "empty search path": ({}, settings("set search_path = ''")),
    "repeatable read by default": ({}, settings("set default_transaction_isolation = 'repeatable read'")),
    "serializable by default": ({}, settings("set default_transaction_isolation = 'serializable'")),
    "verbose intervals": ({}, settings("set intervalstyle = 'postgres_verbose'", "set extra_float_digits = 0")),
    "escapes in hex": ({}, settings("set bytea_output = 'escape'", "set quote_all_identifiers = on")),
    "asynchronous commit": ({}, settings("set synchronous_commit = off")),
}


def no_lease_in_force(conn):
    return conn.execute("select id from jobqueue.job where locked_until > jobqueue.now()").fetchall() == []


def live_a_life(queue):
    """One job through every verb; the answers, in order."""
    run_at = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=5)))
    first, again = (queue.enqueue("mail", {"to": "ada"}, key="k", run_at=run_at, max_attempts=9) for _ in range(2))
    [lease] = queue.claim("A")
    answers = [
        first.id == again.id,
        again.matches,
        lease.payload,
        queue.heartbeat(lease),
        queue.publish(lease, "f", DIGEST),
    ]
    answers += [queue.release(lease, "stop"), queue.claim("B", types=["other"]).empty]
    [lease] = queue.claim("B")
    answers += [queue.fail(lease, "boom", backoff=AT_ONCE), queue.reconcile(lease)]
    [lease] = queue.claim("C", lease_seconds=0.001)
    wait_until(lambda: no_lease_in_force(queue.conn), 5, "the end of the lease")
    adopted = queue.adopt(first.id, "D", lease_seconds=0.001)
    wait_until(lambda: no_lease_in_force(queue.conn), 5, "the end of the lease")
    answers += [
        adopted.epoch,
        [one.status for one in queue.reap(backoff=AT_ONCE)],
        queue.heartbeat_many([lease, adopted]),
    ]
    [lease] = queue.claim("E")
    answers += [queue.complete(lease, strict=True), queue.get(first.id).finished_by, queue.cancel(first.id).before]
    answers += [
        queue.archive(older_than_seconds=0),
        queue.complete_many([lease]),
        queue.get(first.id).run_at.utcoffset() is None,
    ]
    many = queue.enqueue_many([{"type": "mail", "key": key} for key in ("k", "new")])
    [lease] = queue.claim("F")
    answers += [[one.created for one in many], queue.fail(lease, "never", permanent=True), len(queue.dead_letters())]
    return [*answers, queue.redrive([lease.id]) == [lease.id], queue.cancel_type("mail"), bool(queue.explain(lease.id))]


LIFE = [
    *(True, True, {"to": "ada"}, Outcome.APPLIED, Outcome.APPLIED),
    *(Outcome.APPLIED, Empty.NONE),
    *(Outcome.APPLIED, Outcome.CONFLICT),
    *(4, ["ready"], [Outcome.LOST, Outcome.LOST]),
    *(Outcome.APPLIED, "E", "done"),
    *(1, [Outcome.ALREADY_APPLIED], False),
    *([False, True], Outcome.APPLIED, 1),
    *(True, 1, True),
]


@pytest.mark.parametrize("connect, set_up", CALLERS.values(), ids=CALLERS)
def test_a_whole_life_through_any_connection(dsn, connect, set_up):
    with psycopg.connect(dsn, autocommit=True, **connect) as conn:
        set_up(conn)
        assert live_a_life(Queue(conn)) == LIFE


def test_without_autocommit_everything_counts_when_the_caller_commits(dsn):
    with psycopg.connect(dsn) as conn, psycopg.connect(dsn, autocommit=True) as other:
        Queue(conn).enqueue("mail")
        before = Queue(other).claim("A").empty
        conn.commit()
        assert (before, len(Queue(other).claim("A"))) == (Empty.NONE, 1)


def test_without_autocommit_a_claim_after_an_uncommitted_enqueue_is_refused_and_loses_nothing(dsn):
    with psycopg.connect(dsn) as conn:
        queue = Queue(conn)
        queue.enqueue("mail")
        with pytest.raises(JobQueueError, match="transaction"):
            queue.claim("A")
        conn.commit()
        assert len(queue.claim("A")) == 1


VERBS = {
    "enqueue": lambda queue, lease: queue.enqueue("mail", key="k"),
    "enqueue_many": lambda queue, lease: queue.enqueue_many([{"type": "mail", "key": "k"}]),
    "heartbeat": lambda queue, lease: queue.heartbeat(lease, lease_seconds=600),
    "heartbeat_many": lambda queue, lease: queue.heartbeat_many([lease], lease_seconds=600),
    "complete": lambda queue, lease: queue.complete(lease),
    "strict complete": lambda queue, lease: queue.complete(lease, strict=True),
    "complete_many": lambda queue, lease: queue.complete_many([lease]),
    "fail": lambda queue, lease: queue.fail(lease, "boom"),
    "release": lambda queue, lease: queue.release(lease, "stop"),
    "publish": lambda queue, lease: queue.publish(lease, "f", DIGEST),
    "cancel": lambda queue, lease: queue.cancel(lease.id),
    "cancel_type": lambda queue, lease: queue.cancel_type("mail"),
    "reap": lambda queue, lease: queue.reap(),
    "redrive": lambda queue, lease: queue.redrive(type="dead"),
    "archive": lambda queue, lease: queue.archive(older_than_seconds=0),
    "pause_type": lambda queue, lease: queue.pause_type("mail"),
}
STATE = """select (select jsonb_agg(to_jsonb(j) order by id) from jobqueue.job j),
    (select count(*) from jobqueue.job_archive), (select count(*) from jobqueue.paused_type)"""


def a_job_of_every_kind(queue):
    """A lease in force; beside it a job with an ended lease, a dead and a done one."""
    for type in ("done", "dead", "expired", "mail"):
        queue.enqueue(type, max_attempts=1)
    done, dead, _, lease = queue.claim("A", limit=4)
    queue.complete(done)
    queue.fail(dead, "boom")
    queue.conn.execute("update jobqueue.job set locked_until = jobqueue.now() where type = 'expired'")
    return lease


@pytest.mark.parametrize("verb", VERBS)
def test_without_autocommit_every_verb_counts_when_the_caller_commits_and_not_before(dsn, verb):
    """Also as the first statement of the transaction: none of them commits what is the caller's to decide."""
    with psycopg.connect(dsn) as conn, psycopg.connect(dsn, autocommit=True) as other:
        lease = a_job_of_every_kind(Queue(other))
        before = other.execute(STATE).fetchone()
        VERBS[verb](Queue(conn), lease)
        conn.rollback()
        rolled_back = other.execute(STATE).fetchone()
        VERBS[verb](Queue(conn), lease)
        conn.commit()
        assert (rolled_back == before, other.execute(STATE).fetchone() != before) == (True, True)


def test_a_claim_is_refused_in_a_pipeline_that_has_begun_a_transaction(dsn):
    with psycopg.connect(dsn) as conn:
        Queue(conn).enqueue("mail")
        conn.commit()
        with pytest.raises(JobQueueError, match="transaction"), conn.pipeline():
            conn.execute("select 1")
            Queue(conn).claim("A")


def test_two_queues_on_one_connection_share_its_transactions(dsn):
    with psycopg.connect(dsn, autocommit=True) as conn:
        with conn.transaction():
            Queue(conn).enqueue("mail", key="k")
            again = Queue(conn).enqueue("mail", key="k")
        assert again.created is False


def test_a_savepoint_that_rolls_back_takes_its_own_enqueue_only(dsn):
    with psycopg.connect(dsn, autocommit=True) as conn:
        queue = Queue(conn)
        with conn.transaction():
            queue.enqueue("mail", key="outer")
            with conn.transaction(force_rollback=True):
                queue.enqueue("mail", key="inner")
        assert [queue.enqueue("mail", key=key).created for key in ("outer", "inner")] == [False, True]


UNREADABLE = {"client_encoding LATIN1": "set client_encoding = 'LATIN1'", "German dates": "set datestyle = 'German'"}


@pytest.mark.parametrize("statement", UNREADABLE.values(), ids=UNREADABLE)
def test_a_claim_whose_answer_could_not_be_read_is_refused_and_takes_no_job(dsn, queue, statement):
    job = queue.enqueue("mail", {"to": "José"})
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(statement)
        for verb in (
            lambda: Queue(conn).claim("A"),
            lambda: Queue(conn).exchange([], "A", leases={"mail": 9}, slots=1),
        ):
            with pytest.raises(JobQueueError, match="open it with client_encoding='utf8'"):
                verb()
        with pytest.raises(JobQueueError, match="open it with client_encoding='utf8'"):
            Queue(conn).enqueue("mail", {"price": "5 €"}) and Queue(conn).get(job.id)
    assert queue.get(job.id).status == "ready"


def test_after_its_connection_was_lost_every_verb_says_so_and_no_claim_speaks_of_a_transaction(dsn, conn):
    with psycopg.connect(dsn, autocommit=True) as cut:
        conn.execute("select pg_terminate_backend(%s)", (cut.info.backend_pid,))
        verbs = [lambda: Queue(cut).claim("A"), lambda: Queue(cut).adopt(1, "A")]
        verbs += [lambda: Queue(cut).exchange([], "A", leases={"mail": 9}, slots=1), lambda: Queue(cut).enqueue("mail")]
        for verb in verbs * 2:
            with pytest.raises(InfrastructureError):
                verb()
