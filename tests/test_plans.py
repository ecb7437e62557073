"""The plans that the shipped statements really get (auto_explain), among 200,000 future and 200,000 finished rows."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from working import working

from helpers import wait_until
from jobqueue import Backoff, Empty, Queue
from jobqueue.lab import database
from jobqueue.loop import Session

pytestmark = pytest.mark.shared

CROWD = """
insert into jobqueue.job (type, payload, run_at)
  select 'mail', '{}', jobqueue.now() + n * interval '1 minute' from generate_series(1, 200000) n;
insert into jobqueue.job (type, payload, status, run_at, attempts, epoch, started_at, finished_at,
    finished_epoch, finished_by) select 'mail', '{}', 'done', t, 1, 1, t, t, 1, 'A'
  from (select jobqueue.now() - n * interval '1 second' as t from generate_series(1, 200000) n) finished;
insert into jobqueue.job (type, payload) select 'mail', '{}' from generate_series(1, 2000);
insert into jobqueue.job (type, payload, run_at)
  select 'others', '{}', jobqueue.now() - interval '1 day' from generate_series(1, 50000);
"""
EXPLAIN = """
load 'auto_explain';
set auto_explain.log_min_duration = 0; set auto_explain.log_analyze = on; set auto_explain.log_buffers = on;
set auto_explain.log_format = json; set client_min_messages = log;
"""
HOSTILE = "; ".join(f"set enable_{name} = off" for name in ("hashjoin", "mergejoin", "sort", "memoize", "material"))
PAGES = 400  # ten jobs claimed touch about 110 pages; the whole table has more than 8,000


class Watched:
    """A session whose every statement leaves its plan in `plans`, as auto_explain saw it run."""

    def __init__(self, dsn):
        self.conn = psycopg.connect(dsn, autocommit=True)
        self.queue = Queue(self.conn)
        self.conn.add_notice_handler(self._keep)
        self.conn.execute(EXPLAIN)
        self.plans = []

    def _keep(self, diagnostic):
        if "plan:\n" in (diagnostic.message_primary or ""):
            self.plans.append(json.loads(diagnostic.message_primary.split("plan:\n", 1)[1])["Plan"])

    def watch(self, act):
        """What act(queue) answers, and every plan node of every statement that it sent."""
        self.plans.clear()
        answer = act(self.queue)
        return answer, [node for plan in self.plans for node in nodes(plan)]

    def pages(self):
        return sum(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] for plan in self.plans)


def nodes(plan):
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


def scans(found, table="job"):
    """How the table was read: (node type, index), once each."""
    read = (node for node in found if "Scan" in node["Node Type"] and node.get("Relation Name") == table)
    return {(node["Node Type"], node.get("Index Name")) for node in read}


def wasted(found):
    """Rows of `job` read from an index and thrown away by a filter."""
    return sum(node.get("Rows Removed by Filter", 0) for node in found if node.get("Relation Name") == "job")


@pytest.fixture(scope="module")
def crowd(server, template):
    with database.scratch(server.dsn, template=template) as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(CROWD)
        conn.execute("vacuum analyze")
        yield dsn


@pytest.fixture
def crowded(crowd):
    watched = Watched(crowd)
    yield watched
    watched.conn.close()


@pytest.fixture
def generic(crowded):
    """Prepared at once and planned without knowing the parameters, as after many executions."""
    crowded.conn.prepare_threshold = 0
    crowded.conn.execute("set plan_cache_mode = force_generic_plan")
    return crowded


# ---- the claim -----------------------------------------------------------------------------------------------------


def claim_ten(queue):
    return len(queue.claim("A", limit=10, types=["mail"]))


def due_condition(found):
    """The index condition by which the due rows were found."""
    return next(
        node["Index Cond"]
        for node in found
        if node.get("Relation Name") == "job" and "run_at" in node.get("Index Cond", "")
    )


@pytest.mark.parametrize("session", ["crowded", "generic"])
def test_a_claim_finds_its_jobs_by_its_partial_index_and_the_clock_is_an_index_bound(request, session):
    claimed, found = request.getfixturevalue(session).watch(claim_ten)
    assert (claimed, scans(found), wasted(found), "<= statement_timestamp()" in due_condition(found)) == (
        10,
        {("Index Scan", "job_ready"), ("Index Scan", "job_pkey")},
        0,
        True,
    )


def test_the_claims_index_holds_ready_rows_only(crowded):
    [predicate] = crowded.conn.execute(
        "select pg_get_expr(indpred, indrelid) from pg_index where indexrelid = 'jobqueue.job_ready'::regclass"
    ).fetchone()
    assert predicate == "(status = 'ready'::text)"


@pytest.mark.parametrize(
    "types", [["mail"], ["mail", "absent"], None], ids=["one type", "and an absent one", "all types"]
)
def test_a_claim_reads_few_pages_whatever_lies_in_the_table(crowded, types):
    claim, _ = crowded.watch(lambda queue: queue.claim("A", limit=10, types=types))
    assert (len(claim), crowded.pages() < PAGES) == (10, True), crowded.pages()


@pytest.mark.parametrize("types", [["absent"], ["absent", "not here"]], ids=str)
def test_an_empty_claim_and_its_reason_read_few_pages(crowded, types):
    claim, _ = crowded.watch(lambda queue: queue.claim("A", limit=10, types=types))
    assert (len(claim), crowded.pages() < 50) == (0, True), crowded.pages()


def test_a_claim_of_200_costs_no_more_than_twenty_claims_of_ten(crowded):
    crowded.watch(lambda queue: queue.claim("A", limit=200, types=["mail"]))
    assert crowded.pages() < 20 * PAGES


def test_a_reaper_pass_over_many_ended_leases_looks_each_up_once(crowded):
    leases = crowded.queue.claim("A", limit=300, lease_seconds=0.001, types=["mail"])
    reaped, _ = crowded.watch(lambda queue: queue.reap(limit=300, backoff=Backoff("constant", 9999, jitter="none")))
    assert (len(reaped), crowded.pages() < 300 * 40) == (len(leases), True), crowded.pages()


@pytest.mark.parametrize(
    "act, pages",
    [
        (lambda queue, leases: queue.heartbeat_many(leases), 100 * 20),
        (lambda queue, leases: queue.heartbeat(leases[0]), 30),
        (lambda queue, leases: queue.complete_many(leases[:50]), 50 * 40),
        (lambda queue, leases: queue.complete(leases[50]), 40),
        (lambda queue, leases: queue.fail(leases[51], "boom", delay_seconds=9999), 40),
        (lambda queue, leases: queue.release(leases[52], "stop", delay_seconds=9999), 40),
        (lambda queue, leases: queue.publish(leases[53], "report.csv", "ab" * 32), 40),
        (lambda queue, leases: queue.cancel(leases[54].id), 60),
        (lambda queue, leases: queue.reconcile(leases[55]), 20),
        (lambda queue, leases: queue.reap(), 500),
        (lambda queue, leases: queue.dead_letters(), 500),
        (lambda queue, leases: queue.enqueue("mail", key="a key", delay_seconds=9999), 60),
        (lambda queue, leases: queue.get(leases[0].id), 20),
    ],
    ids=[
        "heartbeat_many",
        "heartbeat",
        "complete_many",
        "complete",
        "fail",
        "release",
        "publish",
        "cancel",
        "reconcile",
        "reap",
        "dead_letters",
        "enqueue",
        "get",
    ],
)
def test_no_verb_scans_the_table(crowded, act, pages):
    leases = list(crowded.queue.claim("A", limit=100, types=["mail"]))
    _, found = crowded.watch(lambda queue: act(queue, leases))
    crowded_pages = crowded.pages()
    crowded.queue.complete_many(leases)
    assert ("Seq Scan" not in {kind for kind, _ in scans(found)}, crowded_pages <= pages) == (True, True), crowded_pages


@pytest.mark.parametrize("session", ["crowded", "generic"])
def test_a_batch_of_completions_goes_by_id(request, session):
    watched = request.getfixturevalue(session)
    leases = list(watched.queue.claim("A", limit=50, types=["mail"]))
    _, found = watched.watch(lambda queue: queue.complete_many(leases))
    assert {index for _, index in scans(found)} <= {"job_pkey", "job_running"}


# ---- the claim's limit and order -----------------------------------------------------------------------------------


def taken_per_claim(dsn, limit, types, settings=HOSTILE):
    """(returned, really running) after one claim among 60 due jobs."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(settings)
        returned = len(Queue(conn).claim("A", limit=limit, types=types))
        return returned, conn.execute("select count(*) from jobqueue.job where status = 'running'").fetchone()[0]


@pytest.mark.parametrize("analyzed", [False, True], ids=["never analyzed", "analyzed"])
@pytest.mark.parametrize("types", [["mail"], ["mail", "report"], None], ids=["one type", "two types", "all types"])
@pytest.mark.parametrize("limit", [1, 3, 50])
def test_a_claim_never_takes_more_than_its_limit_under_hostile_planner_settings(
    dsn, conn, queue, limit, types, analyzed
):
    queue.enqueue_many([{"type": type} for type in ("mail", "report") for _ in range(60)])
    conn.execute("analyze jobqueue.job" if analyzed else "select 1")
    assert taken_per_claim(dsn, limit, types) == (limit, limit)


@pytest.mark.parametrize(
    "settings",
    [
        HOSTILE + "; set enable_indexscan = off; set enable_bitmapscan = off",
        HOSTILE + "; set enable_nestloop = off",
        "set plan_cache_mode = force_generic_plan",
        "set jit = on; set jit_above_cost = 0",
    ],
    ids=["no index", "no nested loop", "generic plan", "jit"],
)
def test_a_claim_never_takes_more_than_its_limit_under_any_plan(dsn, queue, settings):
    queue.enqueue_many([{"type": "mail"}] * 60)
    assert taken_per_claim(dsn, 3, ["mail"], settings) == (3, 3)


def test_four_hostile_claimers_at_once_take_every_job_once_and_none_over_the_limit(dsn, queue):
    queue.enqueue_many([{"type": "mail"}] * 400)
    with ThreadPoolExecutor(4) as pool:
        batches = sum(pool.map(drain_in_sevens, [dsn] * 4), [])
    claimed = sum(batches, [])
    assert (len(claimed), len(set(claimed)), max(map(len, batches))) == (400, 400, 7)


def drain_in_sevens(dsn):
    """The ids claimed, one list a claim, until no job is left."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(HOSTILE)
        queue, batches = Queue(conn), []
        while (claim := queue.claim("A", limit=7)).empty is not Empty.NONE:
            batches.append([lease.id for lease in claim])
        return batches


@pytest.mark.parametrize("settings", ["", HOSTILE], ids=["as shipped", "hostile"])
def test_jobs_with_the_same_run_at_are_claimed_in_id_order(dsn, conn, settings):
    conn.execute("insert into jobqueue.job (type) select 'mail' from generate_series(1, 300)")
    conn.execute(settings or "select 1")
    queue = Queue(conn)
    claimed = [lease.id for _ in range(30) for lease in queue.claim("A", limit=10)]
    assert (len(claimed), claimed) == (300, sorted(claimed))


def test_a_claim_is_not_blocked_by_a_row_of_a_user_that_references_the_job(dsn, conn, queue):
    job = queue.enqueue("mail").id
    conn.execute("create table public.receipt (job bigint references jobqueue.job)")
    with psycopg.connect(dsn) as user:
        user.execute("insert into public.receipt values (%s)", (job,))
        claimed = [lease.id for lease in queue.claim("A")]
    conn.execute("drop table public.receipt")
    assert claimed == [job]


# ---- heartbeats stay HOT -------------------------------------------------------------------------------------------

UPDATES = "select n_tup_upd, n_tup_hot_upd from pg_stat_xact_user_tables where relid = 'jobqueue.job'::regclass"


def hot_share(conn, act, rounds):
    """(updates, the share of them that stayed HOT) as the server counts, on over transactions: hence differences."""
    total = hot = 0
    for _ in range(rounds):
        with conn.transaction():
            before = conn.execute(UPDATES).fetchone()
            act()
            after = conn.execute(UPDATES).fetchone()
        total, hot = total + after[0] - before[0], hot + after[1] - before[1]
    return total, hot / total


def test_at_least_four_fifths_of_the_heartbeats_of_a_batch_are_hot(conn, queue):
    queue.enqueue_many([{"type": "mail", "payload": {"n": n}} for n in range(600)])
    queue.complete_many(list(queue.claim("A", limit=300)))
    leases = list(queue.claim("A", limit=200))
    total, share = hot_share(conn, lambda: queue.heartbeat_many(leases, lease_seconds=60), 20)
    assert (total, share >= 0.8) == (4_000, True), share


def test_at_least_four_fifths_of_single_heartbeats_are_hot(conn, queue):
    queue.enqueue_many([{"type": "mail", "payload": {"n": n}} for n in range(40)])
    leases = list(queue.claim("A", limit=20))
    total, share = hot_share(conn, lambda: [queue.heartbeat(lease, lease_seconds=60) for lease in leases], 20)
    assert (total, share >= 0.8) == (400, True), share


def test_heartbeats_among_claims_and_completions_stay_hot(conn, queue):
    queue.enqueue_many([{"type": "mail"}] * 400)
    held = list(queue.claim("A", limit=50))
    shares = []
    for _ in range(20):
        queue.complete_many(list(queue.claim("A", limit=10)))
        shares.append(hot_share(conn, lambda: queue.heartbeat_many(held, lease_seconds=60), 1)[1])
    assert sum(shares) / len(shares) >= 0.8, shares


# ---- what the design relies on in the schema -----------------------------------------------------------------------


def test_no_index_of_job_holds_the_end_of_the_lease(conn):
    indexes = conn.execute(
        "select indexdef from pg_indexes where schemaname = 'jobqueue' and tablename = 'job'"
    ).fetchall()
    assert [definition for (definition,) in indexes if "locked_until" in definition] == []


def test_job_leaves_room_in_its_pages_and_sets_its_own_autovacuum(conn):
    [options] = conn.execute("select reloptions from pg_class where oid = 'jobqueue.job'::regclass").fetchone()
    given = dict(option.split("=") for option in options)
    assert (int(given["fillfactor"]) <= 75, "autovacuum_vacuum_scale_factor" in given) == (True, True)


CLOCK = """select provolatile, proconfig, lanname from pg_proc join pg_language on pg_language.oid = prolang
    where pg_proc.oid = 'jobqueue.now()'::regprocedure"""
EXPRESSIONS = """select pg_get_expr(adbin, adrelid) from pg_attrdef
    union all select pg_get_constraintdef(oid) from pg_constraint where connamespace = 'jobqueue'::regnamespace
    union all select pg_get_viewdef(oid) from pg_class where relkind = 'v' and relnamespace = 'jobqueue'::regnamespace
    union all select pg_get_functiondef(oid) from pg_proc
      where pronamespace = 'jobqueue'::regnamespace and proname <> 'now'"""


def test_the_clock_is_a_stable_function_without_settings_so_that_it_can_be_inlined(conn):
    assert conn.execute(CLOCK).fetchone() == ("s", None, "sql")


def test_the_database_alone_tells_the_time_no_other_clock_stands_in_the_schema(conn):
    """Defaults, CHECKs, generated columns, views and functions all ask jobqueue.now()."""
    clock = re.compile("current_timestamp|(clock|statement|transaction)_timestamp|localtimestamp|current_date", re.I)
    assert [text for (text,) in conn.execute(EXPRESSIONS) if clock.search(text)] == []


# ---- plans that were made while the table was empty ----------------------------------------------------------------

BUSY = """select exists (select from jobqueue.job where status = 'ready'
  union all select from jobqueue.job where status = 'running')"""
SETTINGS = "select current_setting('enable_seqscan'), current_setting('plan_cache_mode')"
READ = "select seq_tup_read from pg_stat_user_tables where relid = 'jobqueue.{}'::regclass"


def rows_read_by_sequential_scans(conn, table="job"):
    conn.execute("select pg_stat_force_next_flush()")
    return conn.execute(READ.format(table)).fetchone()[0]


def test_a_worker_that_began_on_an_empty_queue_drains_a_full_one_by_index(dsn, conn, queue):
    """Its statements were prepared on the empty table, and autovacuum has not come by when the backlog is there."""
    conn.execute("alter table jobqueue.job set (autovacuum_enabled = off); set enable_seqscan = off")
    before = rows_read_by_sequential_scans(conn)
    with working(dsn, {"mail": lambda lease, payload: None}):
        for _ in range(30):
            queue.enqueue("mail")
            wait_until(lambda: conn.execute(BUSY).fetchone() == (False,))
        queue.enqueue_many([{"type": "mail"}] * 1000)
        for _ in range(9):
            queue.enqueue_many([{"type": "mail"}] * 1000)
        wait_until(lambda: conn.execute(BUSY).fetchone() == (False,), 60)
    assert rows_read_by_sequential_scans(conn) - before < 10_000, "less than one look at the whole table"


def test_a_producer_that_began_on_an_empty_registry_finds_its_keys_by_index(dsn, conn, queue):
    conn.execute("alter table jobqueue.job_key set (autovacuum_enabled = off)")
    before = rows_read_by_sequential_scans(conn, "job_key")
    for part in range(20):
        jobs = [{"type": "mail", "key": f"{part} {n}"} for n in range(500)]
        queue.enqueue_many(jobs)
        queue.enqueue_many(jobs)  # every key is known
    assert rows_read_by_sequential_scans(conn, "job_key") == before


def test_only_the_queues_own_sessions_have_the_planners_settings_for_full_tables(dsn, queue):
    seen = []

    def handler(lease, context):
        seen.append(context.connection.execute(SETTINGS).fetchone())

    with working(dsn, {"mail": handler}):
        queue.enqueue("mail")
        wait_until(lambda: seen)
    own = Session(dsn, "a loop").conn.execute(SETTINGS).fetchone()
    assert (seen, own) == ([("on", "auto")], ("off", "force_generic_plan"))
