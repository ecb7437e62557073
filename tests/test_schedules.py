"""Schedules on virtual time: one job per slot, and what becomes of slots that nobody saw in time."""

import random
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from helpers import Session
from jobqueue import Queue
from jobqueue.errors import InfrastructureError, InvalidInput, JobQueueError
from jobqueue.lab.clock import VirtualClock
from jobqueue.schedules import MISSED_KEPT, Due, Schedules, Ticked
from jobqueue.sql import SQL

START = datetime(2026, 3, 2, 8, 0, 30, tzinfo=UTC)  # a Monday


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.fixture
def schedules(virtual_conn, clock):
    clock.set(START)
    return Schedules(virtual_conn)


def slots(conn):
    """Slots of all jobs, live and archived, as they are keyed."""
    rows = conn.execute(
        "select schedule_id, slot, idempotency_key"
        " from (select * from jobqueue.job union all select * from jobqueue.job_archive) j"
        " where schedule_id is not null order by slot, schedule_id"
    ).fetchall()
    for id, slot, key in rows:
        assert key == f"schedule/{slot.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}/{id}"
    return [f"{slot.astimezone(UTC):%H:%M}" for _, slot, _ in rows]


def missed(conn):
    return [
        (f"{slot.astimezone(UTC):%H:%M}", reason)
        for slot, reason in conn.execute("select slot, reason from jobqueue.missed_slot order by slot").fetchall()
    ]


def row(schedules, id="a"):
    return next(one for one in schedules.list() if one.id == id)


def ready(conn):
    return conn.execute("select count(*) from jobqueue.job where status = 'ready'").fetchone()[0]


# ---- one job per slot ----------------------------------------------------------------------------


def test_a_slot_becomes_one_job_with_its_key_and_the_schedules_payload(schedules, clock):
    schedules.put("nightly", "report", "*/5 * * * *", payload={"n": 1}, max_attempts=3)
    clock.set(at("2026-03-02T08:05:02"))
    ticked = schedules.tick()
    job = Queue(schedules.conn).get(ticked.jobs[0].id)
    assert (job.type, job.payload, job.max_attempts, job.schedule_id) == ("report", {"n": 1}, 3, "nightly")
    assert (job.slot, job.run_at) == (at("2026-03-02T08:05"), at("2026-03-02T08:05"))
    assert job.idempotency_key == "schedule/2026-03-02T08:05:00Z/nightly"
    assert schedules.tick().jobs == []


def test_the_lease_tells_the_handler_its_slot_in_utc(schedules, clock):
    schedules.conn.execute("set timezone to 'Europe/Berlin'")
    schedules.put("a", "t", "*/5 * * * *")
    clock.advance(300)
    schedules.tick()
    lease = Queue(schedules.conn).claim("w").leases[0]
    assert (lease.slot, lease.slot.utcoffset(), lease.payload) == (at("2026-03-02T08:05"), timedelta(), None)


def test_nothing_is_due_before_the_first_slot_after_put(schedules, clock):
    clock.set(at("2026-03-02T08:05"))
    schedules.put("a", "t", "*/5 * * * *")
    assert schedules.tick().jobs == [] and row(schedules).next_run_at == at("2026-03-02T08:10")


def test_a_slot_fires_at_its_very_instant(schedules, clock):
    schedules.put("a", "t", "*/5 * * * *")
    clock.set(at("2026-03-02T08:05") - timedelta(microseconds=1))
    assert schedules.tick().jobs == []
    clock.set(at("2026-03-02T08:05"))
    assert len(schedules.tick().jobs) == 1


def test_ticks_that_find_nothing_spend_no_job_ids(schedules, clock):
    schedules.put("a", "t", "*/5 * * * *")
    for _ in range(20):
        clock.advance(1)
        schedules.tick()
    assert Queue(schedules.conn).enqueue("t").id == 1


def test_a_tick_wakes_an_idle_worker(schedules, clock, virtual_dsn):
    schedules.put("a", "t", "*/5 * * * *")
    with psycopg.connect(virtual_dsn, autocommit=True) as listener:
        VirtualClock(listener, START)
        listener.execute("listen jobqueue_job")
        listener.execute("insert into jobqueue.listener (owner, types) values ('w', '{t}')")
        clock.advance(300)
        schedules.tick()
        assert [heard.payload for heard in listener.notifies(timeout=5, stop_after=1)] == ["w"]


def test_two_schedulers_with_clocks_ten_minutes_either_way_make_one_job_a_slot(virtual_dsn, schedules):
    """Stronger than needed: here the databases' own clocks disagree; the machines' clocks are never read."""
    schedules.put("a", "t", "*/5 * * * *", misfire="all")
    with psycopg.connect(virtual_dsn, autocommit=True) as early, psycopg.connect(virtual_dsn, autocommit=True) as late:
        clocks = [(VirtualClock(early), timedelta(minutes=10)), (VirtualClock(late), -timedelta(minutes=10))]
        for minute in range(145):
            for clock, off in clocks:
                clock.set(START + timedelta(minutes=minute) + off)
            for conn in (early, late) if minute % 2 else (late, early):
                Schedules(conn).tick()
    fired = slots(schedules.conn)
    assert fired == [f"{START + timedelta(minutes=5 * n):%H:%M}" for n in range(1, 31)]


def test_a_scheduler_that_decides_late_is_fenced_by_the_revision(schedules, clock, virtual_dsn):
    schedules.put("a", "t", "*/5 * * * *")
    clock.advance(300)
    with Session(virtual_dsn) as other:
        VirtualClock(other.conn, clock.now)
        second = Schedules(other.conn)
        due = _due(second)
        assert len(schedules.tick().jobs) == 1
        assert second._decide(due) == Ticked()
    assert slots(schedules.conn) == ["08:05"]


def test_a_change_between_computing_and_deciding_wins(schedules, clock, virtual_dsn):
    schedules.put("a", "t", "*/5 * * * *")
    clock.advance(300)
    due = _due(schedules)
    schedules.put("a", "t", "0 12 * * *")
    assert schedules._decide(due).jobs == [] and slots(schedules.conn) == []


def _due(schedules):
    return schedules._made(Due, SQL.schedules_due, limit=10)[0]


def test_a_row_held_by_an_open_transaction_does_not_keep_the_others_waiting(schedules, clock, virtual_dsn):
    schedules.put("a", "t", "*/5 * * * *")
    schedules.put("b", "t", "*/5 * * * *")
    clock.advance(300)
    with Session(virtual_dsn) as other, other.conn.transaction():
        other.conn.execute("select from jobqueue.schedule where id = 'a' for update")
        assert len(schedules.tick(limit=1).jobs) == 1
    assert len(schedules.tick().jobs) == 1 and slots(schedules.conn) == ["08:05", "08:05"]


def test_a_tick_that_is_rolled_back_decides_nothing(schedules, clock):
    schedules.put("a", "t", "*/5 * * * *")
    clock.advance(300)
    with schedules.conn.transaction(force_rollback=True):
        assert len(schedules.tick().jobs) == 1
    assert slots(schedules.conn) == [] and len(schedules.tick().jobs) == 1


def test_three_hundred_schedules_at_one_instant_all_fire(schedules, clock):
    for n in range(300):
        schedules.put(f"s{n}", "t", "0 9 * * *")
    clock.set(at("2026-03-02T09:00:05"))
    made = [len(schedules.tick(limit=100).jobs) for _ in range(4)]
    assert made == [100, 100, 100, 0] and slots(schedules.conn) == ["09:00"] * 300


# ---- misfires ------------------------------------------------------------------------------------


@pytest.mark.parametrize("late_seconds", [61, 180, 299])
@pytest.mark.parametrize(("misfire", "jobs", "passed"), [("all", 36, 0), ("last", 1, 35), ("skip", 0, 36)])
def test_three_hours_down_with_every_five_minutes(schedules, clock, misfire, jobs, passed, late_seconds):
    schedules.put("a", "t", "*/5 * * * *", misfire=misfire)
    clock.set(at("2026-03-02T11:00") + timedelta(seconds=late_seconds))
    ticked = schedules.tick()
    assert (len(ticked.jobs), ticked.missed, row(schedules).missed_slots) == (jobs, passed, passed)
    assert len(missed(schedules.conn)) == passed
    assert row(schedules).last_slot == at("2026-03-02T11:00") and row(schedules).next_run_at == at("2026-03-02T11:05")


def test_last_runs_the_newest_slot_and_names_the_others(schedules, clock):
    schedules.put("a", "t", "*/5 * * * *", misfire="last")
    clock.set(at("2026-03-02T08:22"))
    schedules.tick()
    assert slots(schedules.conn) == ["08:20"]
    assert missed(schedules.conn) == [("08:05", "misfire"), ("08:10", "misfire"), ("08:15", "misfire")]


@pytest.mark.parametrize("misfire", ["all", "last", "skip"])
def test_a_slot_within_the_grace_always_runs(schedules, clock, misfire):
    schedules.put("a", "t", "*/5 * * * *", misfire=misfire)
    clock.set(at("2026-03-02T08:06"))
    assert (len(schedules.tick().jobs), row(schedules).missed_slots) == (1, 0)


@pytest.mark.parametrize(("late_seconds", "jobs"), [(60, 1), (60.000001, 0)])
def test_more_than_the_grace_is_a_misfire(schedules, clock, late_seconds, jobs):
    schedules.put("a", "t", "0 * * * *", misfire="skip")
    clock.set(at("2026-03-02T09:00") + timedelta(seconds=late_seconds))
    assert len(schedules.tick().jobs) == jobs


def test_last_leaves_the_misfire_where_a_later_slot_is_on_time(schedules, clock):
    schedules.put("a", "t", "*/5 * * * *", misfire="last")
    clock.set(at("2026-03-02T08:20:10"))
    schedules.tick()
    assert slots(schedules.conn) == ["08:20"] and row(schedules).missed_slots == 3


def test_catching_up_is_bounded_to_the_newest(schedules, clock):
    schedules.put("a", "t", "*/5 * * * *", misfire="all", max_catch_up=3)
    clock.set(at("2026-03-02T11:02"))
    schedules.tick()
    assert slots(schedules.conn) == ["10:50", "10:55", "11:00"] and row(schedules).missed_slots == 33


def test_a_year_of_missed_minutes_is_counted_exactly_and_named_within_bounds(schedules, clock):
    schedules.put("a", "t", "* * * * *", misfire="all")
    clock.set(START + timedelta(days=365))
    ticked = schedules.tick()
    assert (len(ticked.jobs), ticked.missed) == (101, 525_600 - 101)  # 100 caught up and one on time
    assert len(missed(schedules.conn)) == MISSED_KEPT


def test_missed_slots_that_stay_named_are_bounded(schedules, clock):
    schedules.put("a", "t", "* * * * *", misfire="skip")
    for _ in range(15):
        clock.advance(120 * 60 + 90)
        schedules.tick()
    assert MISSED_KEPT <= len(missed(schedules.conn)) <= MISSED_KEPT + 121 < row(schedules).missed_slots


# ---- overlap and spread --------------------------------------------------------------------------


def test_overlap_skip_passes_while_the_previous_run_is_ready_or_running(schedules, clock):
    queue = Queue(schedules.conn)
    schedules.put("a", "t", "*/5 * * * *", overlap="skip")
    clock.set(at("2026-03-02T08:05:01"))
    schedules.tick()
    clock.set(at("2026-03-02T08:10:01"))
    assert schedules.tick().missed == 1  # ready
    lease = queue.claim("w", lease_seconds=3600).leases[0]
    clock.set(at("2026-03-02T08:15:01"))
    assert schedules.tick().missed == 1  # running
    queue.complete(lease)
    clock.set(at("2026-03-02T08:20:01"))
    assert len(schedules.tick().jobs) == 1
    assert missed(schedules.conn) == [("08:10", "overlap"), ("08:15", "overlap")] and row(schedules).missed_slots == 2


def test_overlap_allow_runs_beside_the_previous(schedules, clock):
    schedules.put("a", "t", "*/5 * * * *")
    for _ in range(3):
        clock.advance(300)
        schedules.tick()
    assert ready(schedules.conn) == 3


def test_of_several_slots_at_once_overlap_skip_runs_the_newest(schedules, clock):
    schedules.put("a", "t", "*/5 * * * *", misfire="all", overlap="skip")
    clock.set(at("2026-03-02T08:20:10"))
    schedules.tick()
    assert slots(schedules.conn) == ["08:20"] and row(schedules).missed_slots == 3
    assert {reason for _, reason in missed(schedules.conn)} == {"overlap"}


def test_a_spread_moves_run_at_by_a_stable_offset_and_not_the_slot(schedules, clock):
    for n in range(40):
        schedules.put(f"s{n}", "t", "*/5 * * * *", spread_seconds=200)
    for _ in range(2):
        clock.advance(300)
        schedules.tick()
    rows = schedules.conn.execute("select schedule_id, run_at - slot from jobqueue.job").fetchall()
    offsets = dict(rows)
    assert len(set(rows)) == 40 and len(set(offsets.values())) == 40
    assert min(offsets.values()) >= timedelta() and max(offsets.values()) < timedelta(seconds=200)
    assert offsets["s0"] == timedelta(seconds=184, microseconds=451041)  # the same in every process


# ---- pause, change, remove -----------------------------------------------------------------------


def test_slots_while_paused_are_neither_run_nor_missed(schedules, clock):
    schedules.put("a", "t", "0 2 * * *")
    clock.set(at("2026-03-03T01:00"))
    schedules.pause("a")
    clock.set(at("2026-03-03T07:49"))
    assert schedules.tick().missed == 0
    schedules.resume("a")
    assert schedules.tick().jobs == []
    assert (row(schedules).next_run_at, row(schedules).missed_slots) == (at("2026-03-04T02:00"), 0)


def test_resuming_what_is_not_paused_passes_over_nothing(schedules, clock):
    schedules.put("a", "t", "*/5 * * * *")
    clock.set(at("2026-03-02T08:05:20"))
    schedules.resume("a")
    assert len(schedules.tick().jobs) == 1


def test_a_paused_schedule_stays_paused_when_it_is_put_again(schedules):
    schedules.put("a", "t", "*/5 * * * *")
    schedules.pause("a")
    schedules.put("a", "t", "*/10 * * * *")
    assert (row(schedules).paused, row(schedules).next_run_at) == (True, None)


def test_the_same_schedule_put_again_keeps_the_slots_of_an_outage(schedules, clock):
    """Every deployment puts its schedules again; that must not swallow what was missed meanwhile."""
    schedules.put("a", "t", "*/5 * * * *", misfire="all")
    clock.set(at("2026-03-02T08:22"))
    schedules.put("a", "t", "*/5 * * * *", misfire="all", payload={"v": 2})
    schedules.tick()
    assert slots(schedules.conn) == ["08:05", "08:10", "08:15", "08:20"]


@pytest.mark.parametrize("change", [{"cron": "*/7 * * * *"}, {"timezone": "Asia/Kolkata"}])
def test_a_changed_time_never_replays_the_past(schedules, clock, change):
    schedules.put("a", "t", "*/5 * * * *", misfire="all")
    clock.set(at("2026-03-02T08:22"))
    schedules.put("a", "t", **({"cron": "*/5 * * * *", "misfire": "all"} | change))
    assert schedules.tick().jobs == [] and row(schedules).next_run_at > clock.now


def test_a_slot_that_has_fired_never_fires_again_though_its_key_is_pruned_and_the_clock_steps_back(schedules, clock):
    schedules.put("a", "t", "*/5 * * * *")
    clock.set(at("2026-03-02T08:05:01"))
    schedules.tick()
    schedules.conn.execute("delete from jobqueue.job_key")
    for again in ("*/5 * * * *", "5 * * * *", "*/5 * * * *"):
        clock.set(START)
        schedules.remove("a")
        schedules.put("a", "t", again)
        clock.set(at("2026-03-02T08:05:10"))
        assert schedules.tick().jobs == []


def test_where_the_clock_stands_before_the_last_slot_the_next_one_comes_after_it(schedules, clock):
    schedules.put("a", "t", "*/5 * * * *")
    clock.set(at("2026-03-02T08:05:01"))
    schedules.tick()
    clock.set(START)
    schedules.put("a", "t", "5,10 * * * *")
    assert row(schedules).next_run_at == at("2026-03-02T08:10")
    schedules.conn.execute("update jobqueue.schedule set next_run_at = jobqueue.now()")
    assert schedules.tick().jobs == [] and row(schedules).next_run_at == at("2026-03-02T08:10")


def test_a_next_run_at_set_back_by_hand_neither_fires_nor_misses_again(schedules, clock):
    schedules.put("a", "t", "*/5 * * * *", misfire="skip")
    clock.set(at("2026-03-02T08:12"))
    assert schedules.tick().missed == 2
    schedules.conn.execute("update jobqueue.schedule set next_run_at = '2026-03-02T08:05Z'")
    assert schedules.tick() == Ticked() and row(schedules).last_slot == at("2026-03-02T08:10")


def test_a_slot_at_or_before_last_slot_does_not_fire_even_if_the_row_was_changed_by_hand_meanwhile(schedules, clock):
    schedules.put("a", "t", "*/5 * * * *", misfire="all")
    clock.set(at("2026-03-02T08:10:01"))
    due = _due(schedules)
    schedules.conn.execute("update jobqueue.schedule set last_slot = '2026-03-02T08:05Z'")
    assert len(schedules._decide(due).jobs) == 1 and slots(schedules.conn) == ["08:10"]


def test_last_slot_never_goes_back(schedules, clock):
    schedules.put("a", "t", "*/5 * * * *")
    clock.set(at("2026-03-02T08:05:01"))
    due = _due(schedules)
    schedules.conn.execute("update jobqueue.schedule set last_slot = '2026-03-02T09:00Z'")
    schedules._decide(due)
    assert row(schedules).last_slot == at("2026-03-02T09:00")


def test_a_removed_schedule_leaves_a_tombstone_and_its_jobs(schedules, clock):
    schedules.put("a", "t", "*/5 * * * *")
    clock.advance(300)
    schedules.tick()
    schedules.remove("a")
    clock.advance(300)
    assert schedules.list() == [] and schedules.tick().jobs == [] and ready(schedules.conn) == 1
    assert schedules.conn.execute("select removed_at, last_slot from jobqueue.schedule").fetchall() == [
        (at("2026-03-02T08:05:30"), at("2026-03-02T08:05"))
    ]


@pytest.mark.parametrize("verb", ["remove", "pause", "resume"])
@pytest.mark.parametrize("known", [True, False])
def test_a_schedule_that_is_not_there_is_said_by_name(schedules, verb, known):
    if known:
        schedules.put("a", "t", "*/5 * * * *")
        schedules.remove("a")
    with pytest.raises(JobQueueError, match="^there is no schedule 'a'$"):
        getattr(schedules, verb)("a")


def test_a_time_that_changes_with_the_clocks_keeps_to_utc_slots(schedules, clock):
    schedules.put("a", "t", "30 2 * * *", timezone="Europe/Berlin")
    schedules.put("b", "t", "0 * * * *", timezone="Europe/Berlin")
    schedules.conn.execute("set timezone to 'Europe/Berlin'")
    clock.set(at("2026-10-24T23:30"))
    schedules.pause("a"), schedules.resume("a"), schedules.pause("b"), schedules.resume("b")
    while clock.now < at("2026-10-25T03:30"):
        clock.advance(600)
        schedules.tick()
    assert slots(schedules.conn) == ["00:00", "00:30", "01:00", "02:00", "03:00"]


def test_lateness_in_the_fold_is_measured_in_utc_whatever_the_sessions_zone(schedules, clock):
    """02:30 summer time and 02:11 winter time are 41 minutes apart; by their wall clocks Python finds −19."""
    clock.set(at("2026-10-25T00:15"))
    schedules.put("a", "t", "30 * * * *", misfire="skip")
    schedules.conn.execute("set timezone to 'Europe/Berlin'")
    clock.set(at("2026-10-25T01:11"))
    assert (schedules.tick().missed, row(schedules).last_slot.tzinfo) == (1, UTC)


# ---- broken rows and refusals --------------------------------------------------------------------


def test_broken_rows_are_reported_once_and_do_not_stop_the_others(schedules, clock):
    for id in "abcde":
        schedules.put(id, "t", "*/5 * * * *")
    schedules.conn.execute("update jobqueue.schedule set cron = '61 * * * *' where id = 'a'")
    schedules.conn.execute("update jobqueue.schedule set timezone = 'Mars/Phobos' where id = 'b'")
    schedules.conn.execute("update jobqueue.schedule set job_type = 'nobody handles this' where id = 'c'")
    clock.advance(300)
    ticked = schedules.tick()
    assert len(ticked.jobs) == 3 and ticked.problems == [
        "schedule 'a': cron '61 * * * *': minute '61' is not understood; it takes 0–59, lists, ranges and steps",
        "schedule 'b': timezone 'Mars/Phobos' is not an IANA time zone (such as Europe/Berlin)",
    ]
    assert schedules.tick().problems == []
    assert [(one.problem is None, one.next_run_at is None) for one in schedules.list()][:3] == [
        (False, True),
        (False, True),
        (True, False),
    ]


def test_a_hundred_broken_rows_do_not_starve_the_others(schedules, clock):
    schedules.conn.execute(
        "insert into jobqueue.schedule (id, job_type, cron, next_run_at)"
        " select 'broken' || n, 't', 'no cron', jobqueue.now() from generate_series(1, 150) n"
    )
    schedules.put("z", "t", "*/5 * * * *")
    clock.advance(300)
    assert [len(schedules.tick().problems) for _ in range(3)] == [100, 50, 0] and slots(schedules.conn) == ["08:05"]


def test_a_mended_row_goes_on_after_resume(schedules, clock):
    schedules.put("a", "t", "*/5 * * * *")
    schedules.conn.execute("update jobqueue.schedule set cron = 'x'")
    clock.advance(300)
    schedules.tick()
    schedules.conn.execute("update jobqueue.schedule set cron = '*/5 * * * *'")
    schedules.resume("a")
    assert (row(schedules).problem, row(schedules).next_run_at) == (None, at("2026-03-02T08:10"))


def test_a_row_that_the_database_refuses_to_fire_is_a_problem_of_that_row(schedules, clock):
    schedules.conn.execute("alter table jobqueue.job add constraint \"no such type\" check (type <> 'bad')")
    schedules.put("a", "bad", "*/5 * * * *")
    schedules.put("b", "t", "*/5 * * * *")
    clock.advance(300)
    ticked = schedules.tick()
    assert len(ticked.jobs) == 1 and 'violates check constraint "no such type"' in ticked.problems[0]


VALID = "update pg_index set indisvalid = %s where indexrelid = 'jobqueue.job_key_pkey'::regclass"


def test_without_the_key_of_job_key_nothing_is_fired(schedules, clock):
    schedules.put("a", "t", "*/5 * * * *")
    schedules.conn.execute("alter table jobqueue.job_key drop constraint job_key_pkey")
    clock.advance(300)
    with pytest.raises(JobQueueError, match="^the primary key of jobqueue.job_key is missing or invalid"):
        schedules.tick()
    schedules.conn.execute("create unique index job_key_pkey on jobqueue.job_key (key)")
    schedules.conn.execute(
        "update pg_index set indisvalid = false where indexrelid = 'jobqueue.job_key_pkey'::regclass"
    )
    with pytest.raises(JobQueueError, match="^the primary key of jobqueue.job_key is missing or invalid"):
        schedules.tick()
    schedules.conn.execute(VALID, (True,))
    assert len(schedules.tick().jobs) == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cron": "0 0 31 2 *"}, "cron '0 0 31 2 *': the date it names never comes"),
        ({"cron": "* * *"}, "cron '* * *' has 3 fields; it takes five: minute, hour, day of month, month, day of week"),
        ({"cron": "0 " * 101}, "cron has 202 characters, at most 200 are allowed"),
        ({"timezone": "Mars/Phobos"}, "timezone 'Mars/Phobos' is not an IANA time zone (such as Europe/Berlin)"),
        ({"id": ""}, "id must have 1–400 bytes in UTF-8, this one has 0"),
        ({"id": "é" * 201}, "id must have 1–400 bytes in UTF-8, this one has 402"),
        ({"job_type": "x" * 201}, "type must have 1–200 bytes in UTF-8, this one has 201"),
        ({"misfire": "none"}, "misfire must be one of skip, last, all, not 'none'"),
        ({"overlap": None}, "overlap must be one of allow, skip, not None"),
        ({"max_catch_up": 0}, "max_catch_up must lie in 1–10,000, not 0"),
        ({"max_attempts": 10_001}, "max_attempts must lie in 1–10,000, not 10,001"),
        ({"spread_seconds": -1}, "spread_seconds must lie in 0–86,400 seconds, not -1"),
        ({"misfire_grace_seconds": float("nan")}, "misfire_grace_seconds must be a finite number of seconds, not nan"),
    ],
)
def test_a_bad_schedule_is_refused_before_any_sql(schedules, wrong, message):
    with pytest.raises(InvalidInput) as refused:
        schedules.put(**({"id": "a", "job_type": "t", "cron": "*/5 * * * *"} | wrong))
    assert str(refused.value) == message and schedules.list() == []


def test_a_cron_with_no_slot_in_its_zone_is_refused_within_a_second(schedules):
    """Germany's clocks jump over 02:00–03:00 on the last Sunday of March, every year."""
    with pytest.raises(InvalidInput, match="^this cron has no slot within 50 years after "):
        schedules.put("a", "t", "* 2 * 3 L0", timezone="Europe/Berlin")


def test_all_columns_come_back(schedules):
    settings = {
        "timezone": "Europe/Berlin", "payload": [1], "spread_seconds": 2.5, "misfire": "all",
        "misfire_grace_seconds": 9, "max_catch_up": 7, "overlap": "skip", "max_attempts": 3,
    }  # fmt: skip
    schedules.put("a", "t", "0 9 * * *", **settings)
    stored = row(schedules)
    assert {name: getattr(stored, name) for name in settings} == settings
    assert (stored.next_run_at, stored.missed_slots, stored.problem) == (at("2026-03-03T08:00"), 0, None)


def test_preview_needs_no_database():
    assert Schedules.preview("0 9 * * *", timezone="Europe/Berlin", after=START, limit=2) == [
        at("2026-03-03T08:00"),
        at("2026-03-04T08:00"),
    ]


# ---- all at once ------------------------------------------------------------------------------------


@pytest.mark.long
def test_schedulers_rollbacks_edits_removals_archiver_and_pruned_keys_never_double_a_slot(virtual_dsn, schedules):
    """100 virtual minutes of three schedulers (a third of their ticks rolled back), an editor and an archiver."""
    instant, over, errors = [START], threading.Event(), []
    for n in range(5):
        schedules.put(f"s{n}", "t", "* * * * *", misfire="all")

    def acting(act, seed):
        with psycopg.connect(virtual_dsn, autocommit=True) as conn:
            clock, rng = VirtualClock(conn), random.Random(seed)
            while not over.is_set():
                clock.set(instant[0])
                try:
                    act(conn, rng)
                except InfrastructureError:
                    pass  # an edit met two others: that is for its caller to repeat
                except Exception as error:
                    errors.append(error)

    def tick(conn, rng):
        with conn.transaction(force_rollback=rng.random() < 0.3):
            Schedules(conn).tick(limit=rng.choice([1, 2, 100]))

    def edit(conn, rng):
        id = f"s{rng.randrange(5)}"
        with suppress(JobQueueError):
            rng.choice([Schedules(conn).remove, Schedules(conn).pause, Schedules(conn).resume])(id)
        Schedules(conn).put(id, "t", rng.choice(["* * * * *", "*/2 * * * *", "*/3 * * * *"]), misfire="all")
        with suppress(JobQueueError):
            Schedules(conn).resume(id)

    def clean(conn, rng):
        queue = Queue(conn)
        for lease in queue.claim("w", limit=5):
            queue.complete(lease)
        queue.archive(older_than_seconds=0, limit=50)
        conn.execute("delete from jobqueue.job_key where random() < 0.2")

    acts = [tick, tick, tick, edit, clean]
    threads = [threading.Thread(target=acting, args=(act, seed)) for seed, act in enumerate(acts)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        over.wait(0.03)
        instant[0] += timedelta(seconds=20)
    over.set()
    for thread in threads:
        thread.join(30)
    fired = schedules.conn.execute(
        "select schedule_id, slot, count(*) from"
        " (select * from jobqueue.job union all select * from jobqueue.job_archive) j group by 1, 2"
    ).fetchall()
    assert errors == [] and [one for one in fired if one[2] > 1] == [] and len(fired) > 100
