"""Upgrades: each older schema, with data in it, becomes the one that a fresh install makes."""

from pathlib import Path

import psycopg
import pytest

from jobqueue import JobQueueError, Outcome, Queue, Schedules, metrics
from jobqueue.lab import database
from jobqueue.sql import SCHEMA_VERSION, migrations

VERSIONS = Path(__file__).resolve().parent / "versions"
OLDER = sorted(VERSIONS.glob("*.sql"))
# What a table is: its columns, constraints, indexes and settings, in words that don't depend on how it came to be.
SHAPE = """
select c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
  pg_get_expr(d.adbin, d.adrelid) from pg_class c
join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
where c.relnamespace = 'jobqueue'::regnamespace and c.relkind in ('r', 'v') order by c.relname, a.attnum;
select conrelid::regclass::text, contypid::regtype::text, conname, pg_get_constraintdef(oid) from pg_constraint
where connamespace = 'jobqueue'::regnamespace and contype <> 'n' order by 1, 2, 3;
select indexdef from pg_indexes where schemaname = 'jobqueue' order by 1;
select relname, reloptions, relpersistence from pg_class
where relnamespace = 'jobqueue'::regnamespace order by relname;
select p.proname, pg_get_functiondef(p.oid) from pg_proc p
where pronamespace = 'jobqueue'::regnamespace order by 1;
select viewname, definition from pg_views where schemaname = 'jobqueue' order by 1
"""


def shape(conn):
    return [conn.execute(part).fetchall() for part in SHAPE.split(";")]


@pytest.fixture
def empty(server):
    with database.scratch(server.dsn) as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        yield conn


@pytest.fixture(params=OLDER, ids=lambda path: f"version {int(path.stem)}")
def old(request, empty):
    empty.execute(request.param.read_text(encoding="utf-8"))
    return Queue(empty)


def test_every_older_version_has_its_schema_here_and_its_migration():
    older = set(range(1, SCHEMA_VERSION))
    assert {int(path.stem) for path in OLDER} == older and set(migrations()) == {number + 1 for number in older}


def test_an_upgraded_schema_is_the_one_that_a_fresh_install_makes(old, conn):
    old.install()
    assert shape(old.conn) == shape(conn)


def test_an_upgrade_keeps_jobs_leases_keys_and_schedules(old):
    keyed = old.enqueue("mail", {"to": "anna"}, key="k")
    waiting = old.enqueue("mail", None, delay_seconds=3600)
    (lease,) = old.claim("A", lease_seconds=3600, types=["mail"])
    (failed,) = [*old.claim("A")] or [None]
    Schedules(old.conn).put("nightly", "report", "0 3 * * *", timezone="Europe/Zurich", misfire="skip")
    before = old.get(keyed.id), old.get(waiting.id), Schedules(old.conn).list()
    old.install()
    assert (old.get(keyed.id), old.get(waiting.id), Schedules(old.conn).list()) == before and failed is None
    assert old.enqueue("mail", {"to": "anna"}, key="k") == (keyed.id, False, True)
    assert (old.heartbeat(lease), old.complete(lease)) == (Outcome.APPLIED, Outcome.APPLIED)
    old.conn.execute("update jobqueue.job set finished_at = finished_at - interval '1 day' where status = 'done'")
    assert old.archive(older_than_seconds=60) == 1 and metrics.snapshot(old.conn).depth.future == 1


def test_an_upgrade_gives_the_roles_their_rights_again(old):
    Queue(old.conn).conn.execute((Path(database.__file__).parents[1] / "roles.sql").read_text(encoding="utf-8"))
    old.install()
    seen = "select has_table_privilege('jobqueue_observer', 'jobqueue.depth', 'select')"
    assert old.conn.execute(seen).fetchone() == (True,)


def test_an_upgrade_that_can_not_go_on_changes_nothing_and_says_why(old):
    old.conn.execute("create view public.mine as select type, due from jobqueue.depth")
    before = shape(old.conn)
    with pytest.raises(JobQueueError, match="view mine depends on view jobqueue.depth"):
        old.install()
    assert shape(old.conn) == before
    assert old.conn.execute("select schema_version from jobqueue.meta").fetchone() < (SCHEMA_VERSION,)


def test_a_newer_schema_is_refused_with_both_versions(queue, conn):
    conn.execute("update jobqueue.meta set schema_version = %s", (SCHEMA_VERSION + 1,))
    with pytest.raises(JobQueueError, match=f"version {SCHEMA_VERSION + 1}, this package knows {SCHEMA_VERSION}"):
        queue.install()


def test_an_upgrade_keeps_what_others_may_read(old):
    old.conn.execute("create role grafana nologin")
    try:
        old.conn.execute("grant select on jobqueue.depth to grafana with grant option")
        old.conn.execute("grant select on jobqueue.horizon to public")
        old.install()
        seen = "select has_table_privilege('grafana', 'jobqueue.' || %s, %s)"
        rights = {"depth": "select with grant option", "horizon": "select", "lock_waits": "select"}
        found = [old.conn.execute(seen, right).fetchone() for right in rights.items()]
        assert found == [(True,), (True,), (False,)]
    finally:
        old.conn.execute("drop owned by grafana; drop role grafana")


def test_a_row_that_the_new_version_refuses_stops_the_upgrade_and_changes_nothing(old):
    old.conn.execute("insert into jobqueue.job (type, run_at) values ('mail', '20000-01-01')")
    before = shape(old.conn)
    with pytest.raises(JobQueueError, match='column "run_at" of table "job"'):
        old.install()
    assert shape(old.conn) == before
