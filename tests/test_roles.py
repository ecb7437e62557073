"""Least privilege: each role can do its verbs through the real classes, and is refused what it must not do."""

import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime

import psycopg
import pytest
from psycopg import conninfo, sql

from helpers import wait_until
from jobqueue import Handler, Janitor, JobQueueError, Outcome, Queue, Reaper, Scheduler, Schedules, Worker, metrics
from jobqueue.backoff import Backoff
from jobqueue.bulk import COPY_FROM
from jobqueue.lab import database

ROLES = ("jobqueue_producer", "jobqueue_worker", "jobqueue_observer")
AT_ONCE = Backoff(shape="constant", base_seconds=0, jitter="none")
DIGEST = "ab" * 32


@contextmanager
def login(dsn, *roles, options="login"):
    """DSN of a new login role that is a member of these."""
    name = f"someone_{secrets.token_hex(4)}"
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(sql.SQL(f"create role {{}} {options}").format(sql.Identifier(name)))
        for role in roles:
            admin.execute(sql.SQL("grant {} to {}").format(sql.Identifier(role), sql.Identifier(name)))
    try:
        yield conninfo.make_conninfo(dsn, user=name)
    finally:
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute(sql.SQL("drop owned by {0} cascade; drop role {0}").format(sql.Identifier(name)))


@pytest.fixture(scope="module")
def cluster(nothing_left_behind):
    """A server of its own: what is dropped and renamed here belongs to all databases of a cluster."""
    with database.Server() as started:
        yield started


@pytest.fixture(scope="module")
def dsn(server, template):
    with database.scratch(server.dsn, template=template) as fresh, psycopg.connect(fresh, autocommit=True) as conn:
        Queue(conn).install(roles=True)
        yield fresh


@pytest.fixture
def conn(dsn):
    with psycopg.connect(dsn, autocommit=True) as own:
        for table in (
            "job",
            "job_archive",
            "job_key",
            "effect",
            "schedule",
            "missed_slot",
            "incident",
            "paused_type",
            "listener",
        ):
            own.execute(f"delete from jobqueue.{table}")
        yield own


@pytest.fixture
def owner(conn):
    return Queue(conn)


@pytest.fixture
def as_role(dsn, conn):
    """as_role("producer", "worker") → (dsn, connection) of a login that is a member of these."""
    with ExitStack() as stack:

        def enter(*names):
            own = stack.enter_context(login(dsn, *(f"jobqueue_{name}" for name in names)))
            return own, stack.enter_context(psycopg.connect(own, autocommit=True))

        yield enter


def refused(conn, statement, *given):
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute(statement, given)


# ---- installing ------------------------------------------------------------------------------------------------------


def test_without_roles_none_is_created_and_with_them_twice_is_no_error(dsn, conn):
    Queue(conn).install(roles=True)
    Queue(conn).install()
    assert conn.execute(
        "select count(*) from pg_roles where rolname = any (%s) and not rolcanlogin", (list(ROLES),)
    ).fetchone() == (3,)


def test_eight_databases_at_once_may_install_roles(cluster):
    """Roles belong to the cluster: the advisory lock of one database does not hold up another's."""

    def one(_):
        with database.scratch(cluster.dsn) as fresh, psycopg.connect(fresh, autocommit=True) as own:
            Queue(own).install(roles=True)
            return own.execute(
                "select has_column_privilege('jobqueue_producer', 'jobqueue.job', 'payload', 'insert')"
            ).fetchone()[0]

    for _ in range(3):
        with psycopg.connect(cluster.dsn, autocommit=True) as admin:
            for role in ROLES:
                admin.execute(f"drop role if exists {role}")
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(one, range(8))) == [True] * 8


@contextmanager
def someones_database(cluster, options):
    """A database in which a login role with these options may create a schema: connections of it and of a superuser."""
    with (
        database.scratch(cluster.dsn) as fresh,
        psycopg.connect(fresh, autocommit=True) as admin,
        login(fresh, options=options) as own,
    ):
        name = conninfo.conninfo_to_dict(own)["user"]
        admin.execute(
            sql.SQL("grant create on database {} to {}").format(*map(sql.Identifier, (admin.info.dbname, name)))
        )
        for role in ROLES:
            admin.execute(f"drop role if exists {role}")
        with psycopg.connect(own, autocommit=True) as conn:
            yield conn, admin
            conn.execute("drop schema if exists jobqueue cascade")
        for role in ROLES:
            admin.execute(f"drop role if exists {role}")


def test_an_owner_without_createrole_is_told_what_it_needs_and_nothing_is_changed(cluster):
    with someones_database(cluster, "login") as (conn, admin):
        with pytest.raises(
            JobQueueError,
            match=r"can't be set up by this user \(permission denied to create role\): it needs CREATEROLE",
        ):
            Queue(conn).install(roles=True)
        before = conn.execute("select count(*) from pg_namespace where nspname = 'jobqueue'").fetchone()
        for role in ROLES:
            admin.execute(f"create role {role}")
        Queue(conn).install(roles=True)  # where the roles exist, owning the schema is enough
        after = conn.execute("select has_table_privilege('jobqueue_observer', 'jobqueue.job', 'select')").fetchone()
    assert (before, after) == ((0,), (True,))


def test_an_owner_with_createrole_needs_no_superuser(cluster):
    with someones_database(cluster, "login createrole") as (conn, admin):
        Queue(conn).install(roles=True)
        Queue(conn).install(roles=True)
        assert conn.execute("select count(*) from pg_roles where rolname = any (%s)", (list(ROLES),)).fetchone() == (3,)


def test_a_virtual_install_gives_the_same_roles(server):
    with database.scratch(server.dsn) as fresh, psycopg.connect(fresh, autocommit=True) as own:
        Queue(own).install(virtual=True, roles=True)
        assert own.execute(
            "select has_function_privilege('jobqueue_producer', 'jobqueue.now()', 'execute')"
        ).fetchone() == (True,)


def test_functions_are_bound_at_creation_and_public_may_not_call_them(conn):
    assert (
        conn.execute(
            """select proname from pg_proc where pronamespace = 'jobqueue'::regnamespace
           and (prosqlbody is null or proconfig is not null or prosecdef or has_function_privilege('public', oid,
             'execute'))"""
        ).fetchall()
        == []
    )


# ---- producer --------------------------------------------------------------------------------------------------------


def test_a_producer_enqueues_in_every_form(owner, as_role, conn):
    _, own = as_role("producer")
    queue = Queue(own)
    conn.execute("insert into jobqueue.listener (owner, types) values ('idle', '{mail}')")
    first = queue.enqueue("mail", {"a": 1}, key="k")
    answers = [
        queue.enqueue("mail", {"a": 1}, key="k"),
        queue.enqueue("mail", {"a": 2}, key="k"),
        queue.enqueue("mail", delay_seconds=9),
        *queue.enqueue_many([{"type": "mail", "key": "k"}, {"type": "mail", "run_at": datetime.now(UTC)}]),
    ]
    with own.transaction():
        queue.enqueue("mail")
    assert (
        [(one.created, one.matches) for one in [first, *answers]],
        conn.execute("select count(*) from jobqueue.listener").fetchone(),
    ) == ([(True, True), (False, True), (False, False), (True, True), (False, False), (True, True)], (0,))


@pytest.mark.parametrize("plan", [{}, {"delay_seconds": 9}], ids=["due", "later"])
@pytest.mark.parametrize("keyed", [True, False], ids=["keys", "no keys"])
def test_a_producer_enqueues_by_copy(as_role, conn, plan, keyed):
    queue = Queue(as_role("producer")[1])
    jobs = [{"type": "mail", **plan} | ({"key": f"k{n}"} if keyed else {}) for n in range(COPY_FROM)]
    told = [one.created for _ in range(2) for one in queue.enqueue_many(jobs)]
    assert told == [True] * COPY_FROM + [not keyed] * COPY_FROM


@pytest.mark.parametrize(
    "statement",
    [
        "select payload from jobqueue.job",
        "select * from jobqueue.job_archive",
        "select * from jobqueue.dead_letters",
        "select * from jobqueue.effect",
        "update jobqueue.job set status = 'cancelled'",
        "update jobqueue.job set payload = '1'",
        "delete from jobqueue.job",
        "delete from jobqueue.job_key",
        "update jobqueue.job_key set job_id = 1",
        "insert into jobqueue.job (type, status, finished_at) values ('mail', 'cancelled', jobqueue.now())",
        "insert into jobqueue.job (type, epoch) values ('mail', 9)",
        "insert into jobqueue.schedule (id, job_type, cron) values ('s', 'mail', '* * * * *')",
        "insert into jobqueue.paused_type (type) values ('mail')",
        "truncate jobqueue.job",
        "drop table jobqueue.job",
        "create table jobqueue.mine ()",
        "create or replace function jobqueue.now() returns timestamptz language sql return 'epoch'::timestamptz",
        "select setval('jobqueue.job_id_seq', 1)",
    ],
)
def test_a_producer_is_refused(owner, as_role, statement):
    owner.enqueue("mail", {"secret": 1})
    refused(as_role("producer")[1], statement)


@pytest.mark.parametrize(
    "verb",
    [
        lambda queue: queue.claim("A"),
        lambda queue: queue.reap(),
        lambda queue: queue.cancel(1),
        lambda queue: queue.redrive([1]),
        lambda queue: queue.get(1),
        lambda queue: queue.pause_type("mail"),
        lambda queue: queue.archive(older_than_seconds=0),
        lambda queue: metrics.snapshot(queue.conn),
    ],
)
def test_a_producer_is_refused_every_other_verb(owner, as_role, verb):
    owner.enqueue("mail")
    with pytest.raises(JobQueueError, match="42501"):
        verb(Queue(as_role("producer")[1]))


# ---- worker ----------------------------------------------------------------------------------------------------------


def test_a_worker_does_every_verb_of_a_lease(owner, as_role):
    queue = Queue(as_role("worker")[1])
    owner.enqueue_many([{"type": "mail"}] * 6)
    a, b, c, d, e, f = queue.claim("A", limit=6)
    owner.conn.execute("update jobqueue.job set locked_until = jobqueue.now() where id = any (%s)", ([e.id, f.id],))
    adopted = queue.adopt(e.id, "A")
    outcomes = [
        queue.heartbeat(a),
        queue.publish(a, "x", DIGEST),
        queue.complete(a),
        queue.complete(b, strict=True),
        queue.fail(c, "no"),
        queue.release(d, "later"),
        *queue.heartbeat_many([adopted]),
        *queue.complete_many([adopted]),
        queue.reconcile(adopted),
    ]
    assert (outcomes, [one.id for one in queue.reap()], queue.get(a.id).status, "done" in queue.explain(a.id)) == (
        [Outcome.APPLIED] * 8 + [Outcome.ALREADY_APPLIED],
        [f.id],
        "done",
        True,
    )


def test_the_worker_and_the_reaper_run_under_their_role(owner, as_role, tmp_path):
    own, _ = as_role("worker")
    done = []

    def handler(lease, context):
        if lease.type == "bad":
            raise ValueError("no")
        context.heartbeat()
        context.publish(b"x", "x")
        done.append(context.effect(f"effect {lease.id}"))

    owner.enqueue_many([{"type": "mail"}, {"type": "mail"}, {"type": "bad", "max_attempts": 1}])
    worker = Worker(own, {"mail": handler, "bad": Handler(handler, backoff=AT_ONCE)}, artifacts=tmp_path)
    worker.run_once()
    Reaper(own).run_once()
    statuses = owner.conn.execute("select type, status from jobqueue.job order by id").fetchall()
    assert (statuses, done) == ([("mail", "done"), ("mail", "done"), ("bad", "dead")], [True, True])


def test_an_idle_worker_listens_and_signs_off_under_its_role(owner, as_role):
    own, _ = as_role("worker")
    worker = Worker(own, {"mail": lambda lease, context: None}, poll_seconds=1)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        wait_until(
            lambda: owner.conn.execute("select from jobqueue.listener").fetchone() is not None, 10, "the listener's row"
        )
        added = owner.enqueue("mail")
        wait_until(lambda: owner.get(added.id).status == "done", 10, "the job that was announced")
    finally:
        worker.stop()
        thread.join(10)
    assert owner.conn.execute("select count(*) from jobqueue.listener").fetchone() == (0,)


@pytest.mark.parametrize(
    "statement",
    [
        "delete from jobqueue.job",
        "update jobqueue.job set payload = '1'",
        "update jobqueue.job set type = 'x'",
        "update jobqueue.job set max_attempts = 1",
        "update jobqueue.job set idempotency_key = 'x'",
        "insert into jobqueue.job (type) values ('x')",
        "delete from jobqueue.job_archive",
        "insert into jobqueue.job_archive select * from jobqueue.job",
        "delete from jobqueue.job_key",
        "select * from jobqueue.job_key",
        "delete from jobqueue.effect",
        "update jobqueue.effect set key = 'x'",
        "delete from jobqueue.incident",
        "insert into jobqueue.paused_type (type) values ('mail')",
        "update jobqueue.schedule set cron = '* * * * *'",
        "truncate jobqueue.job",
        "update jobqueue.meta set schema_version = 9",
        "drop schema jobqueue cascade",
    ],
)
def test_a_worker_is_refused(owner, as_role, statement):
    owner.enqueue("mail")
    refused(as_role("worker")[1], statement)


def test_a_worker_alone_may_not_enqueue_and_with_the_producers_role_it_may(owner, as_role):
    with pytest.raises(JobQueueError, match="42501"):
        Queue(as_role("worker")[1]).enqueue("mail")
    assert Queue(as_role("worker", "producer")[1]).enqueue("mail").created


def test_a_scheduler_runs_as_producer_and_worker(owner, as_role):
    own, _ = as_role("producer", "worker")
    Schedules(owner.conn).put("s", "mail", "* * * * *", misfire="all")
    owner.conn.execute(
        "update jobqueue.schedule set next_run_at = next_run_at - interval '10 minutes', last_slot = null"
    )
    Scheduler(own).run_once()
    slots = owner.conn.execute(
        "select count(*) >= 9, bool_and(slot is not null and schedule_id = 's') from jobqueue.job"
    ).fetchone()
    assert slots == (True, True)


def test_a_janitor_is_no_worker(owner, as_role):
    owner.enqueue("mail")
    owner.complete(owner.claim("A")[0])
    with pytest.raises(JobQueueError, match="42501"):
        Janitor(as_role("worker")[0], archive_after_seconds=0).run_once()


# ---- observer --------------------------------------------------------------------------------------------------------


def test_an_observer_reads_every_measure_and_every_story(owner, as_role):
    owner.enqueue("mail", max_attempts=1)
    owner.fail(owner.claim("A")[0], "boom")
    _, own = as_role("observer")
    [letter] = Queue(own).dead_letters()
    assert (
        metrics.snapshot(own).dead["mail"],
        len(metrics.report(own)),
        "boom" in Queue(own).explain(letter.id),
        "jobqueue_dead_letters" in metrics.openmetrics(own),
    ) == (1, len(metrics.VIEWS), True, True)


def test_an_observer_sees_other_roles_open_transactions(owner, as_role, dsn):
    _, own = as_role("observer")
    with psycopg.connect(dsn) as forgotten:
        forgotten.execute("select 1")
        assert metrics.snapshot(own).oldest_transaction_seconds > 0


@pytest.mark.parametrize(
    "table",
    [
        "job",
        "job_archive",
        "job_key",
        "effect",
        "schedule",
        "missed_slot",
        "incident",
        "paused_type",
        "listener",
        "meta",
    ],
)
def test_an_observer_changes_no_table(owner, as_role, table):
    _, own = as_role("observer")
    refused(own, f"delete from jobqueue.{table}")
    refused(own, f"insert into jobqueue.{table} default values")


@pytest.mark.parametrize(
    "verb",
    [
        lambda queue: queue.enqueue("mail"),
        lambda queue: queue.claim("A"),
        lambda queue: queue.reap(),
        lambda queue: queue.cancel(1),
        lambda queue: queue.redrive([1]),
        lambda queue: queue.resume_type("mail"),
        lambda queue: queue.archive(older_than_seconds=0),
    ],
)
def test_an_observer_is_refused_every_verb_that_changes_something(owner, as_role, verb):
    owner.enqueue("mail")
    with pytest.raises(JobQueueError, match="42501"):
        verb(Queue(as_role("observer")[1]))


# ---- nobody ----------------------------------------------------------------------------------------------------------


def test_a_role_without_any_of_them_gets_nowhere(owner, as_role):
    _, own = as_role()
    for statement in (
        "select * from jobqueue.depth",
        "select jobqueue.now()",
        "insert into jobqueue.job (type) values ('x')",
    ):
        refused(own, statement)
