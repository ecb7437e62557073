"""The janitor on a real database: what goes, what stays, in batches, two at once, and while the queue is busy."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from helpers import Session, wait_until
from jobqueue import InfrastructureError, Janitor, Outcome, Queue, publication
from jobqueue.errors import InvalidInput
from jobqueue.model import Lease
from jobqueue.sql import SQL

pytestmark = pytest.mark.shared

DAY = 86_400


def finished(conn, status, age_seconds, *, count=1, key=None):
    """Ids of jobs that ended so long ago, in the row's own words."""
    rows = conn.execute(
        """insert into jobqueue.job (type, status, attempts, epoch, finished_at, finished_epoch, finished_by,
                  idempotency_key, created_at)
           select 'mail', %(status)s, 1, 1, at, case when %(status)s = 'done' then 1 end, case when %(status)s =
             'done' then 'A' end,
                  %(key)s::text, at
           from (select jobqueue.now() - %(age)s * interval '1 second' as at) x, generate_series(1, %(count)s)
             returning id""",
        {"status": status, "age": age_seconds, "count": count, "key": key},
    ).fetchall()
    if key:
        conn.execute(
            """insert into jobqueue.job_key (key, job_id, fingerprint, created_at)
                        select idempotency_key, id, 0, created_at from jobqueue.job where id = %s""",
            rows[0],
        )
    return [row[0] for row in rows]


def clean(dsn, **options):
    """Runs until nothing is left to do; how much was done."""
    janitor = Janitor(dsn, **options)
    return sum(iter(janitor.run_once, 0))


def live(conn):
    return [row[0] for row in conn.execute("select id from jobqueue.job order by id")]


def archived(conn):
    return [row[0] for row in conn.execute("select id from jobqueue.job_archive order by id")]


def keys(conn):
    return [row[0] for row in conn.execute("select key from jobqueue.job_key order by key")]


# ---- archive ---------------------------------------------------------------------------------------------------------


def test_done_jobs_go_to_the_archive_after_a_day_and_other_ends_stay(dsn, conn):
    young = finished(conn, "done", DAY - 60)
    old = finished(conn, "done", DAY + 60)
    others = [id for status in ("failed", "dead", "cancelled") for id in finished(conn, status, 90 * DAY)]
    assert (clean(dsn), archived(conn), live(conn)) == (1, old, sorted(young + others))


def test_statuses_are_archived_by_one_age(dsn, conn):
    ids = {status: finished(conn, status, 100)[0] for status in ("done", "failed", "dead", "cancelled")}
    clean(dsn, archive_after_seconds=50, statuses=("done", "cancelled"))
    assert archived(conn) == sorted([ids["done"], ids["cancelled"]])


def test_each_status_may_have_its_own_age(dsn, conn):
    ids = {
        (status, age): finished(conn, status, age)[0]
        for status in ("done", "cancelled", "dead")
        for age in (100, 1_000, 10_000)
    }
    clean(dsn, archive_after_seconds={"done": 50, "cancelled": 500, "dead": 5_000})
    stay = sorted(ids[one] for one in (("cancelled", 100), ("dead", 100), ("dead", 1_000)))
    assert live(conn) == stay


def test_live_jobs_are_never_archived(dsn, conn, queue):
    queue.enqueue_many([{"type": "mail"}] * 2)
    queue.claim("A")
    conn.execute(
        "update jobqueue.job set created_at = created_at - interval '9 days', run_at = run_at - interval '9 days'"
    )
    assert (clean(dsn, archive_after_seconds=0, statuses=("done", "failed", "dead", "cancelled")), len(live(conn))) == (
        0,
        2,
    )


def test_the_archived_row_is_the_same_row(dsn, conn, queue):
    queue.enqueue("mail", {"a": 1}, key="k")
    queue.complete(queue.claim("A")[0])
    before = queue.get(live(conn)[0])
    clean(dsn, archive_after_seconds=0)
    after = queue.get(before.id)
    assert (vars(after) | {"archived": False}) == vars(before) and after.archived


def test_one_pass_takes_one_batch_of_each_kind(dsn, conn):
    finished(conn, "done", 2 * DAY, count=25)
    conn.execute(
        "insert into jobqueue.incident (at, name) select jobqueue.now() - interval '8 days', 'x' from "
        "generate_series(1, 15)"
    )
    janitor = Janitor(dsn, limit=10)
    assert [janitor.run_once() for _ in range(4)] == [20, 15, 5, 0]


def test_a_row_that_somebody_holds_is_left_for_the_next_pass(dsn, conn):
    held, free = finished(conn, "done", 2 * DAY)[0], finished(conn, "done", 2 * DAY)[0]
    with Session(dsn) as holder, holder.conn.transaction():
        holder.conn.execute("select from jobqueue.job where id = %s for key share", (held,))
        first = (clean(dsn), archived(conn))
    assert (first, clean(dsn), archived(conn)) == ((1, [free]), 1, sorted([held, free]))


def test_a_lease_of_an_archived_job_learns_what_became_of_it(dsn, conn, queue):
    queue.enqueue("mail")
    lease = queue.claim("A")[0]
    queue.complete(lease)
    clean(dsn, archive_after_seconds=0)
    assert (queue.complete(lease), queue.fail(lease, "no")) == (Outcome.ALREADY_APPLIED, Outcome.CONFLICT)


def test_archived_rows_go_after_their_time_if_one_is_given(dsn, conn, queue):
    old, young = finished(conn, "done", 20 * DAY)[0], finished(conn, "done", 5 * DAY)[0]
    clean(dsn)
    kept = archived(conn)
    clean(dsn, archive_ttl_seconds=10 * DAY)
    assert (kept, archived(conn), queue.get(old)) == (sorted([old, young]), [young], None)


# ---- keys ------------------------------------------------------------------------------------------------------------


def test_a_key_outlives_its_job_until_its_time_is_over(dsn, conn, queue):
    old = finished(conn, "done", 31 * DAY, key="old")[0]
    finished(conn, "done", 29 * DAY, key="young")
    clean(dsn)
    assert (keys(conn), queue.enqueue("mail", key="old").created, queue.get(old).archived) == (["young"], True, True)


def test_the_end_of_the_job_counts_and_not_the_age_of_its_key(dsn, conn):
    job_id = finished(conn, "done", 29 * DAY, key="k")[0]
    conn.execute("update jobqueue.job_key set created_at = created_at - interval '1 year'")
    clean(dsn)
    before = (keys(conn), archived(conn))
    conn.execute("update jobqueue.job_archive set finished_at = finished_at - interval '2 days'")
    clean(dsn)
    assert (before, keys(conn)) == ((["k"], [job_id]), [])


@pytest.mark.parametrize("status", ["ready", "running", "dead", "failed", "cancelled", "done"])
def test_a_key_never_goes_before_its_job_has_left_the_live_table(dsn, conn, queue, status):
    added = queue.enqueue("mail", key="k", delay_seconds=40 * DAY if status == "ready" else 0)
    if status == "running":
        queue.claim("A")
    elif status != "ready":
        conn.execute("delete from jobqueue.job")
        added = added._replace(id=finished(conn, status, 400 * DAY)[0])
        conn.execute("update jobqueue.job_key set job_id = %s", (added.id,))
    conn.execute("update jobqueue.job_key set created_at = created_at - interval '400 days'")
    clean(dsn, archive_after_seconds=999 * DAY)
    assert queue.enqueue("mail", key="k") == (
        added.id,
        False,
        keys(conn) == ["k"] and queue.enqueue("mail", key="k").matches,
    )


def test_once_the_archive_row_has_gone_the_age_of_the_key_counts(dsn, conn):
    finished(conn, "done", 20 * DAY, key="young")
    finished(conn, "done", 31 * DAY, key="old")
    clean(dsn, archive_ttl_seconds=DAY, key_ttl_seconds=30 * DAY)
    assert (archived(conn), keys(conn)) == ([], ["young"])


def test_a_shorter_time_for_keys_is_taken_at_its_word(dsn, conn):
    finished(conn, "done", 2 * DAY, key="k")
    clean(dsn, key_ttl_seconds=3_600)
    assert keys(conn) == []


def test_a_schedules_keys_go_as_others_do(dsn, conn):
    finished(conn, "done", 31 * DAY, key="schedule/2026-10-30T03:00:00Z/nightly")
    clean(dsn)
    assert keys(conn) == []


def test_a_key_counts_until_its_purge_commits(dsn, conn, queue):
    [old] = finished(conn, "done", 31 * DAY, key="k")
    queue.archive(older_than_seconds=0)
    with Session(dsn) as purger, purger.conn.transaction():
        assert purger.conn.execute(SQL.purge_keys, {"age": 30 * DAY, "limit": 10}).rowcount == 1
        during = queue.enqueue("mail", key="k")
    after = queue.enqueue("mail", key="k")
    assert (during.id, during.created, after.id > old, after.created) == (old, False, True, True)


def test_a_key_enqueued_while_the_archiver_moves_its_row_makes_no_second_job(dsn, conn, queue):
    """Every order of one archiver, one janitor and one enqueuer, in open transactions."""
    finished(conn, "done", 2 * DAY, key="k")
    [first] = live(conn)
    with Session(dsn) as archiver, Session(dsn) as producer:
        with archiver.conn.transaction():
            assert archiver.queue.archive(older_than_seconds=0) == 1
            during = producer.run(lambda queue: queue.enqueue("mail", key="k")).result()
            clean(dsn)
        after = queue.enqueue("mail", key="k")
    assert (during.id, during.created, after.id, after.created) == (first, False, first, False)


def test_keys_of_jobs_enqueued_again_while_archivers_move_their_rows_never_make_two_jobs(dsn, conn, queue):
    """Six enqueuers of thirty keys, two janitors that archive at once, one worker that finishes: each key one job."""
    wanted = [f"key {number}" for number in range(30)]
    end = time.monotonic() + 4
    created = []

    def enqueuer():
        with psycopg.connect(dsn, autocommit=True) as own:
            mine = Queue(own)
            while time.monotonic() < end:
                created.extend(added.id for key in wanted if (added := mine.enqueue("mail", key=key)).created)

    def worker():
        with psycopg.connect(dsn, autocommit=True) as own:
            mine = Queue(own)
            while time.monotonic() < end:
                mine.complete_many(list(mine.claim("A", limit=5)))

    def janitor():
        own = Janitor(dsn, archive_after_seconds=0, limit=3)
        while time.monotonic() < end:
            own.run_once()

    with ThreadPoolExecutor(9) as pool:
        for running in [pool.submit(act) for act in [enqueuer] * 6 + [worker] + [janitor] * 2]:
            running.result()
    clean(dsn, archive_after_seconds=0)
    assert (len(created), len(live(conn)) + len(archived(conn)), len(keys(conn))) == (30, 30, 30)


# ---- what is only kept for a while -----------------------------------------------------------------------------------


def test_old_incidents_missed_slots_and_listeners_go_and_young_ones_stay(dsn, conn):
    conn.execute("""
        insert into jobqueue.incident (at, name) select jobqueue.now() - age, age::text from unnest(array['6 days',
          '8 days']::interval[]) age;
        insert into jobqueue.missed_slot select 's', jobqueue.now() - age, 'late' from unnest(array['29 days', '31
          days']::interval[]) age;
        insert into jobqueue.listener (owner, types, at) select age::text, '{mail}', jobqueue.now() - age from
          unnest(array['1 minute', '6 minutes']::interval[]) age
    """)
    clean(dsn)
    left = conn.execute("""select (select array_agg(name) from jobqueue.incident), (select count(*) from
              jobqueue.missed_slot),
                                  (select array_agg(owner) from jobqueue.listener)""").fetchone()
    assert left == (["6 days"], 1, ["00:01:00"])


def test_effects_are_never_forgotten(dsn, conn):
    conn.execute(
        "insert into jobqueue.effect (key, job_id, epoch, created_at) values ('k', 1, 1, jobqueue.now() - "
        "interval '10 years')"
    )
    clean(dsn, archive_after_seconds=0, key_ttl_seconds=0, archive_ttl_seconds=0)
    assert conn.execute("select count(*) from jobqueue.effect").fetchone() == (1,)


# ---- orphans ---------------------------------------------------------------------------------------------------------


def candidate(queue, folder, content=b"x", *, publish=False):
    queue.enqueue("report")
    lease = queue.claim("A")[0]
    written = publication.write(folder, lease, content)
    if publish:
        queue.publish(lease, "report", written.digest)
    queue.complete(lease)
    return written.path


def test_orphans_are_swept_and_results_stay(dsn, conn, queue, tmp_path):
    orphan, result = candidate(queue, tmp_path), candidate(queue, tmp_path, publish=True)
    young = clean(dsn, artifacts=tmp_path)
    assert (young, clean(dsn, artifacts=tmp_path, orphan_grace_seconds=0), orphan.exists(), result.exists()) == (
        0,
        1,
        False,
        True,
    )


def test_an_orphan_that_appears_between_two_passes_is_found_by_the_next(dsn, queue, tmp_path):
    janitor = Janitor(dsn, artifacts=tmp_path, orphan_grace_seconds=0)
    found = [janitor.run_once()]
    for _ in range(3):
        candidate(queue, tmp_path)
        found.append(janitor.run_once())
    assert found == [0, 1, 1, 1]


def test_files_of_pruned_archive_rows_go_only_if_the_archive_is_pruned(dsn, conn, queue, tmp_path):
    result = candidate(queue, tmp_path, publish=True)
    conn.execute("update jobqueue.job set finished_at = finished_at - interval '40 days'")
    os.utime(result, (result.stat().st_mtime - 40 * DAY,) * 2)
    clean(dsn, artifacts=tmp_path, archive_ttl_seconds=30 * DAY)
    pruned = (queue.conn.execute("select count(*) from jobqueue.job_archive").fetchone()[0], result.exists())
    lost = publication.write(tmp_path, Lease(10**9, "report", None, "A", 1, 1, 0, None), b"y").path
    os.utime(lost, (result.parent.stat().st_mtime - 40 * DAY,) * 2)
    clean(dsn, artifacts=tmp_path, orphan_grace_seconds=0)
    assert (pruned, lost.exists()) == ((0, False), True)


# ---- input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, said",
    [
        ({"statuses": "done"}, "statuses must be some of"),
        ({"statuses": ("ready",)}, "statuses must be some of"),
        ({"archive_after_seconds": -1}, "archive_after_seconds of done"),
        ({"archive_after_seconds": {"running": 1}}, "archive_after_seconds must be by"),
        ({"key_ttl_seconds": -1}, "key_ttl_seconds"),
        ({"archive_ttl_seconds": float("nan")}, "archive_ttl_seconds"),
        ({"archive_ttl_seconds": -1}, "archive_ttl_seconds"),
        ({"orphan_grace_seconds": "1 h"}, "orphan_grace_seconds"),
        ({"limit": 0}, "limit"),
    ],
)
def test_bad_options_are_refused_before_any_sql(options, said):
    with pytest.raises(InvalidInput, match=said):
        Janitor("host=nowhere.invalid", **options)


# ---- run and stop ----------------------------------------------------------------------------------------------------


def test_stop_ends_it_between_two_batches(dsn, conn):
    finished(conn, "done", 2 * DAY, count=500)
    janitor = Janitor(dsn, limit=1)
    thread = threading.Thread(target=janitor.run)
    thread.start()
    wait_until(lambda: archived(conn), 10, "the first batch")
    janitor.stop()
    thread.join(10)
    assert (thread.is_alive(), 0 < len(archived(conn)) < 500, len(live(conn)) + len(archived(conn))) == (
        False,
        True,
        500,
    )


def test_a_stop_during_a_pass_leaves_its_other_batches(dsn, conn):
    finished(conn, "done", 2 * DAY)
    finished(conn, "cancelled", 2 * DAY)
    janitor = Janitor(dsn, statuses=("done", "cancelled"))
    archive, janitor._archive = janitor._archive, lambda status, age: (archive(status, age), janitor.stop())[0]
    assert (janitor.run_once(), len(archived(conn)), len(live(conn))) == (1, 1, 1)


def test_it_survives_the_loss_of_its_connection(dsn, conn, tmp_path):
    janitor = Janitor(dsn, poll_seconds=0.05, artifacts=tmp_path)
    thread = threading.Thread(target=janitor.run)
    thread.start()
    try:
        pid = wait_until(
            lambda: conn.execute(
                "select pid from pg_stat_activity where application_name = 'jobqueue janitor' and datname = "
                "current_database()"
            ).fetchone(),
            10,
        )
        conn.execute("select pg_terminate_backend(%s)", pid)
        finished(conn, "done", 2 * DAY)
        wait_until(lambda: archived(conn), 10, "the archive after the lost connection")
    finally:
        janitor.stop()
        thread.join(10)
    assert not thread.is_alive()


def test_a_folder_that_cannot_be_listed_is_named(dsn, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InfrastructureError, match="the folder '.*file' can't be listed: Not a directory"):
        Janitor(dsn, artifacts=tmp_path / "file").run_once()


def test_sigterm_stops_the_process_between_batches(dsn, conn):
    finished(conn, "done", 2 * DAY, count=20_000)
    command = [sys.executable, "-m", "jobqueue", "janitor", "--dsn", dsn, "--limit", "10"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: archived(conn), 20, "the first batch")
        process.send_signal(signal.SIGTERM)
        _, words = process.communicate(timeout=20)
    assert (process.returncode, words, len(live(conn)) + len(archived(conn))) == (0, "", 20_000)


# ---- CASES G3 --------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_janitors_move_200_000_rows_and_claims_stay_quick(dsn, conn, queue):
    """Nothing lost or doubled. 99 of 100 claims take under 50 ms, or three times what they take without a janitor."""
    for status, count in (("done", 200_000), ("cancelled", 500), ("dead", 20)):
        finished(conn, status, 2 * DAY, count=count)
    conn.execute("vacuum analyze jobqueue.job")
    queue.enqueue_many([{"type": "mail"}] * 1_000)
    options = {"archive_after_seconds": {"done": DAY, "cancelled": DAY, "dead": 30 * DAY}}
    quiet = claims(queue, lambda claimed: claimed < 300)
    started = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(clean, dsn, **options) for _ in range(2)]
        busy = claims(queue, lambda claimed: not all(one.done() for one in running))
        moved = [one.result() for one in running]
    print(f"\n{sum(moved)} rows in {time.monotonic() - started:.1f} s by two {moved}")
    print("\n".join(f"{name}: {told(took)}" for name, took in (("claims without", quiet), ("claims meanwhile", busy))))
    left = conn.execute(
        "select status, count(*) from jobqueue.job where created_at < jobqueue.now() - interval '1 day' group by 1"
    )
    assert (sum(moved), len(archived(conn)), left.fetchall(), min(moved) > 10_000) == (
        200_500,
        200_500,
        [("dead", 20)],
        True,
    )
    assert part(busy, 0.99) < max(0.05, 3 * part(quiet, 0.99))


def claims(queue, go_on):
    """Seconds that each claim of ten took, sorted."""
    took = []
    while go_on(len(took)):
        begun = time.perf_counter()
        leases = list(queue.claim("A", limit=10))
        took.append(time.perf_counter() - begun)
        queue.complete_many(leases)
        queue.enqueue_many([{"type": "mail"}] * len(leases))
    return sorted(took)


def part(took, share):
    return took[int((len(took) - 1) * share)]


def told(took):
    return (
        ", ".join(f"{share:.0%} within {part(took, share) * 1e3:.1f} ms" for share in (0.5, 0.99, 1))
        + f" ({len(took)})"
    )
