"""Slots against independent oracles: cronsim, the rule minute by minute, croniter where it holds, and tables."""

import itertools
import random
import re
import time
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from cronsim import CronSim, CronSimError
from hypothesis import given
from hypothesis import strategies as st

from jobqueue.cron import FAMILY, Cron, preview
from jobqueue.errors import InvalidInput, JobQueueError

MINUTE = timedelta(minutes=1)
BERLIN, ANGELES, HOWE, APIA = "Europe/Berlin", "America/Los_Angeles", "Australia/Lord_Howe", "Pacific/Apia"


def at(text):
    """An instant in UTC, or with the offset that it names."""
    instant = datetime.fromisoformat(text)
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def times(slots, form="%H:%M"):
    return [f"{slot:{form}}" for slot in slots]


def days(cron, after, n=3, **settings):
    return times(preview(cron, after=at(after), limit=n, **settings), "%Y-%m-%d")


def on(cron, day, zone="UTC", form="%H:%M"):
    """The slots in UTC of one local day: [00:00, 24:00) on the wall clock of the zone."""
    begin = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone))
    begin, end = begin.astimezone(UTC), (begin + timedelta(days=1)).astimezone(UTC)  # a local day, 23 to 25 hours
    return times(Cron(cron, zone).slots(begin - timedelta(microseconds=1), end - timedelta(microseconds=1)), form)


# ---- clock changes: the tables -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cron", "zone", "day", "expected"),
    [
        # the gap
        ("30 2 * * *", BERLIN, "2026-03-29", ["01:00"]),
        ("0 2,3 * * *", BERLIN, "2026-03-29", ["01:00"]),
        ("0,30 2 * * *", BERLIN, "2026-03-29", ["01:00"]),
        ("59 1 * * *", BERLIN, "2026-03-29", ["00:59"]),
        ("0 3 * * *", BERLIN, "2026-03-29", ["01:00"]),
        ("*/15 2 * * *", BERLIN, "2026-03-29", []),
        ("0 */2 * * *", BERLIN, "2026-03-29", ["23:00", *(f"{h - 2:02}:00" for h in range(4, 24, 2))]),
        ("30 2 * * *", ANGELES, "2026-03-08", ["10:00"]),
        # the fold
        ("30 2 * * *", BERLIN, "2026-10-25", ["00:30"]),
        ("0 2 * * *", BERLIN, "2026-10-25", ["00:00"]),
        ("15 1,2,3 * * *", BERLIN, "2026-10-25", ["23:15", "00:15", "02:15"]),
        ("*/30 2 * * *", BERLIN, "2026-10-25", ["00:00", "00:30", "01:00", "01:30"]),
        ("30 1 * * *", ANGELES, "2026-11-01", ["08:30"]),
        # half an hour at Lord Howe
        ("45 1 * * *", HOWE, "2026-04-05", ["14:45"]),
        ("15,45 * * * *", HOWE, "2026-04-05", None),
        ("15 2 * * *", HOWE, "2026-10-04", ["15:30"]),
        # the day that Apia never had
        ("0 12 * * *", APIA, "2011-12-29", ["22:00"]),
        ("0 12 * * *", APIA, "2011-12-31", ["10:00", "22:00"]),
    ],
)
def test_fixed_times_fire_once_and_others_by_the_wall_clock(cron, zone, day, expected):
    if expected is None:  # both passes of the half hour that comes twice, 01:30–02:00
        assert on(cron, day, zone)[:5] == ["13:15", "13:45", "14:15", "14:45", "15:15"]
        return
    assert on(cron, day, zone)[: max(1, len(expected))] == expected


def test_hourly_through_the_fold_is_five_distinct_instants():
    slots = list(Cron("0 * * * *", BERLIN).slots(at("2026-10-24T22:59"), at("2026-10-25T03:00")))
    assert times(slots) == ["23:00", "00:00", "01:00", "02:00", "03:00"]
    assert times([slot.astimezone(ZoneInfo(BERLIN)) for slot in slots]) == ["01:00", "02:00", "02:00", "03:00", "04:00"]


def test_half_hourly_through_the_fold():
    slots = Cron("*/30 * * * *", BERLIN).slots(at("2026-10-24T23:59"), at("2026-10-25T02:00"))
    assert times(slots) == ["00:00", "00:30", "01:00", "01:30", "02:00"]


def test_lord_howe_hourly_skips_the_hour_inside_its_half_hour_gap():
    assert times(preview("0 * * * *", timezone=HOWE, after=at("2026-10-04T01:43+10:30"), limit=2)) == ["16:00", "17:00"]


def test_noon_of_the_day_that_apia_never_had_fires_at_the_first_instant_after_it():
    slots = preview("0 12 * * *", timezone=APIA, after=at("2011-12-29T22:00"), limit=3)
    assert slots == [at("2011-12-30T10:00"), at("2011-12-30T22:00"), at("2011-12-31T22:00")]


def test_a_start_in_the_second_pass_never_goes_back_to_the_first():
    start = at("2026-11-01T01:30-08:00")
    assert Cron("45 1 * * *", ANGELES).after(start) == at("2026-11-02T09:45")
    assert Cron("*/45 1 * * *", ANGELES).after(start) == at("2026-11-01T09:45")


@pytest.mark.parametrize("cron", ["*/15 * * * *", "0,15,30,45 0-23 * * *", "0 * * * *"])
@pytest.mark.parametrize("zone", [BERLIN, ANGELES, HOWE, "America/St_Johns"])
def test_no_slot_appears_twice_and_all_are_in_order_and_in_utc(cron, zone):
    slots = list(Cron(cron, zone).slots(at("2010-01-01T00:00"), at("2011-01-01T00:00")))
    assert all(a < b for a, b in itertools.pairwise(slots)) and {slot.tzinfo for slot in slots} == {UTC}


# ---- the dialect: tables -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("0 0 13 * 5", ["01-02", "01-09", "01-13"]),  # both given: either
        ("0 0 */2 * 1", ["01-05", "01-19", "02-09"]),  # one begins with *: both
        ("0 0 1-31/2 * 1", ["01-03", "01-05", "01-07"]),
        ("0 0 ? * 1", ["01-05", "01-12", "01-19"]),
        ("0 0 13 * ?", ["01-13", "02-13", "03-13"]),
        ("0 0 1 * 1#1", ["01-05", "02-01", "02-02"]),
        ("0 0 * * 1#1", ["01-05", "02-02", "03-02"]),
        ("0 0 * * mon-wed#2", ["01-12", "01-13", "01-14"]),
        ("0 0 * * fri#5", ["01-30", "05-29", "07-31"]),
        ("0 0 * * L5", ["01-30", "02-27", "03-27"]),
        ("0 0 * * l7", ["01-25", "02-22", "03-29"]),
        ("0 0 L * *", ["01-31", "02-28", "03-31"]),
        ("0 0 1,L * *", ["01-31", "02-01", "02-28"]),
        ("0 0 28-L 2 *", ["02-28"]),
        ("0 0 15W * *", ["01-15", "02-16", "03-16"]),
        ("0 0 w1 * *", ["02-02", "03-02", "04-01"]),
        ("0 0 31w * *", ["01-30", "02-27", "03-31"]),
        ("0 0 * * sat-sun", ["01-03", "01-04", "01-10"]),
        ("0 0 * * 6-0", ["01-03", "01-04", "01-10"]),
        ("0 0 * * 5-1", ["01-02", "01-03", "01-04"]),
        ("0 0 * * 0-7", ["01-02", "01-03", "01-04"]),
        ("0 0 * * 7-0", ["01-04", "01-11", "01-18"]),
        ("0 0 * * mon-mon", ["01-05", "01-12", "01-19"]),
        ("0 0 * * tue-tue#2", ["01-13", "02-10", "03-10"]),
        ("0 0 * * 5/2", ["01-02", "01-09", "01-16"]),  # a step ends on Saturday
        ("0 0 1 jan-jan *", []),
        ("0 0 1 nov-jan *", ["11-01", "12-01"]),
        ("0 0 1 FEB,Mar *", ["02-01", "03-01"]),
    ],
)
def test_days(cron, expected):
    slots = Cron(cron).slots(at("2026-01-01T00:00"), at("2026-12-31T00:00"))
    assert times(itertools.islice(slots, 3), "%m-%d") == expected


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("5-5 * * * *", ["00:05", "01:05", "02:05"]),
        ("0 9-9 * * *", ["09:00"]),
        ("0 9-9/3 * * *", ["09:00"]),
        ("*/70 * * * *", ["00:00", "01:00", "02:00"]),
        ("*/45 * * * *", ["00:00", "00:45", "01:00"]),
        ("50/5 3 * * *", ["03:50", "03:55"]),
        ("59/5 3 * * *", ["03:59"]),
        ("58-1 5 * * *", ["05:00", "05:01", "05:58"]),
        ("0 22-2 * * *", ["00:00", "01:00", "02:00"]),
        ("1-10/4 0 * * *", ["00:01", "00:05", "00:09"]),
        ("*,5 3 * * *", ["03:00", "03:01", "03:02"]),
        ("00005 003 * * *", ["03:05"]),
        (" 5\t3 *  * * ", ["03:05"]),
    ],
)
def test_times_of_a_day(cron, expected):
    assert on(cron, "2026-06-01")[:3] == expected


@pytest.mark.parametrize("name", [*FAMILY, "@HOURLY", " @Daily "])
def test_the_hourly_family(name):
    long = FAMILY[name.strip().lower()]
    after = at("2026-05-05T05:05")
    assert preview(name, after=after, id="an id must not turn them into croniter's hashed forms") == preview(
        long, after=after
    )


@pytest.mark.parametrize("first", range(8))
@pytest.mark.parametrize("last", [6, 7])
@pytest.mark.parametrize("step", range(1, 8))
def test_steps_over_the_week_are_those_of_cronsim(first, last, step):
    if first >= last:
        return
    week = [(at("2026-03-01T00:00") + timedelta(days=n)) for n in range(7)]
    ours = Cron(f"0 0 * * {first}-{last}/{step}")
    theirs = CronSim(f"0 0 * * {first}-{last}/{step}", week[0])
    assert [ours._on(day.date()) for day in week] == [theirs.match_dow(day.date()) for day in week]


@pytest.mark.parametrize(
    ("after", "expected"),
    [("2026-01-01T00:00", ["2028", "2032"]), ("2095-01-01T00:00", ["2096", "2104"])],
)
def test_29_february_knows_that_2100_has_none(after, expected):
    assert times(preview("0 0 29 2 *", after=at(after), limit=2), "%Y") == expected


def test_29_february_on_a_sunday_is_found_forty_years_ahead():
    assert days("0 0 29 2 */7", "2088-03-01T00:00", 1) == ["2128-02-29"]


def test_last_days_follow_leap_years():
    assert days("0 0 L * *", "2027-12-31T12:00") == ["2028-01-31", "2028-02-29", "2028-03-31"]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("2026-01-01T00:05", "00:10"),
        ("2026-01-01T00:04:59.999999", "00:05"),
        ("2026-01-01T00:05:00.000001", "00:10"),
        ("2026-01-01T01:04+01:00", "00:05"),
    ],
)
def test_a_slot_is_strictly_after_the_start(after, expected):
    assert times([Cron("*/5 * * * *").after(at(after))]) == [expected]


def test_until_is_the_last_slot_that_counts():
    assert times(Cron("*/5 * * * *").slots(at("2026-01-01T00:00"), at("2026-01-01T00:10"))) == ["00:05", "00:10"]


def test_the_time_means_the_zone_and_not_the_starts_offset():
    assert Cron("0 9 * * *", "Asia/Kolkata").after(at("2026-01-01T00:00-08:00")) == at("2026-01-02T03:30")


# ---- drawn from the id ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("H * * * *", ["00:06", "01:06", "02:06"]),
        ("H/15 * * * *", ["00:06", "00:21", "00:36"]),
        ("H(0-9) 5 * * *", ["05:06"]),
        ("H(0-29)/10 5 * * *", ["05:06", "05:16", "05:26"]),
        ("0 H * * *", ["21:00"]),
    ],
)
def test_h_is_the_same_in_every_process(cron, expected):
    slots = Cron(cron, id="nightly").slots(at("2025-12-31T23:59"), at("2026-01-01T23:59"))
    assert times(itertools.islice(slots, 3)) == expected


def test_h_spreads_over_ids_and_in_the_day_of_month_leaves_no_month_out():
    drawn = {preview("H H H * *", after=at("2026-01-01T00:00"), limit=12, id=f"s{n}")[0] for n in range(50)}
    months = [len(set(days("H H H * *", "2025-12-31T23:59", 12, id=f"s{n}"))) for n in range(50)]
    assert len(drawn) > 45 and months == [12] * 50


# ---- oracles -------------------------------------------------------------------------------------

WINDOWS = [  # zone, the day of a clock change (or of none)
    (BERLIN, "2026-03-29"),
    (BERLIN, "2026-10-25"),
    (ANGELES, "2026-03-08"),
    (ANGELES, "2026-11-01"),
    (HOWE, "2026-04-05"),
    (HOWE, "2026-10-04"),
    (APIA, "2011-12-30"),
    ("America/Sao_Paulo", "2018-11-04"),
    ("America/Sao_Paulo", "2018-02-18"),
    ("America/St_Johns", "2010-11-07"),
    ("America/St_Johns", "2010-03-14"),
    ("Antarctica/Troll", "2026-03-29"),
    ("Antarctica/Troll", "2026-10-25"),
    ("Africa/Casablanca", "2026-03-22"),
    ("Africa/Cairo", "2026-04-24"),
    ("Asia/Beirut", "2026-03-29"),
    ("Asia/Pyongyang", "2018-05-05"),
    ("Asia/Kolkata", "2026-06-01"),
    ("UTC", "2028-02-29"),
]
ODD = {HOWE, "America/St_Johns", "Asia/Pyongyang"}  # changes by half an hour, or one minute past midnight

# Every difference from cronsim 2.8, and what was decided. The first two are of the dialect; the third is of cronsim's
# stepping, and there the rule itself (`by_the_rule`, below) is the oracle.
DECISIONS = {
    "5-5/10 is the one value 5 (cronsim: from 5 to the field's end)": lambda cron, zone: re.search(
        r"(?<![\d-])(\d+)-\1/", cron
    ),
    "a day of week with a step ends on Saturday (cronsim: on 7, which is Sunday)": lambda cron, zone: re.search(
        r"(^|,)\d/", cron.split()[4]
    ),
    "after a change by half an hour or across midnight cronsim steps past slots, or for ever": lambda cron, zone: (
        zone in ODD and not is_fixed(cron)
    ),
}


def is_fixed(cron):
    minute, hour = cron.split()[:2]
    return not (minute.startswith("*") or hour.startswith("*"))


def minutes(begin, end):
    return [begin + n * MINUTE for n in range((end - begin) // MINUTE)]


@cache
def walk(zone, after, until):
    """Minute by minute: the instant, the wall clock, whether it shows that for the second time, what it left out."""
    zone, instant, told = ZoneInfo(zone), after, []
    before = after.astimezone(zone).replace(tzinfo=None)
    while (instant := instant + MINUTE) <= until:
        local = instant.astimezone(zone)
        wall = local.replace(tzinfo=None)
        told.append((instant, wall, local.fold, minutes(before + MINUTE, wall)))
        before = wall
    return told


def by_the_rule(cron, zone, after, until):
    """cronsim's field sets, and the rule for clock changes in its plainest form."""
    fields, fixed = CronSim(cron, after), is_fixed(cron)
    is_day = cache(fields.match_day)

    def named(wall):
        return (
            wall.minute in fields.minutes
            and wall.hour in fields.hours
            and wall.month in fields.months
            and is_day(wall.date())
        )

    return [
        instant
        for instant, wall, again, left_out in walk(zone, after, until)
        if (named(wall) and not (fixed and again)) or (fixed and any(map(named, left_out)))
    ]


def by_cronsim(cron, zone, after, until):
    found = (slot.astimezone(UTC) for slot in CronSim(cron, after.astimezone(ZoneInfo(zone))))
    return list(itertools.takewhile(lambda slot: slot <= until, found))


def field(rng, low, high, star):
    """A random field: stars, values, ranges, steps and lists of them."""

    def item():
        a, b = sorted((rng.randint(low, high), rng.randint(low, high)))
        forms = [f"{a}", f"{a}", f"{a}-{b}", f"{a}-{b}/{rng.randint(1, 9)}", f"{a}/{rng.randint(1, high)}"]
        return rng.choice([*forms, f"*/{rng.randint(1, high + 5)}"])

    return "*" if rng.random() < star else ",".join(item() for _ in range(rng.choice((1, 1, 1, 2, 3))))


def generated(seed, n=60):
    """(cron, zone, after, until) around clock changes; the hours of the changes are favoured."""
    rng = random.Random(seed)
    for _ in range(n):
        minute = rng.choice((field(rng, 0, 59, 0.1), "0", "30", "15,45", "*/10", "*/15"))
        hour = rng.choice((field(rng, 0, 23, 0.3), "1-3", "2", "*", "0", "0-4", "23", "*/2"))
        dow = field(rng, 0, 7, 0.7) if rng.random() < 0.85 else f"{rng.randint(0, 7)}#{rng.randint(1, 5)}"
        dom = field(rng, 1, 31, 0.7) if rng.random() < 0.9 else "L"
        zone, day = rng.choice(WINDOWS)
        middle = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
        after, until = middle - timedelta(hours=30), middle + timedelta(hours=54)
        yield f"{minute} {hour} {dom} {field(rng, 1, 12, 0.85)} {dow}", zone, after, until


def ours(cron, zone, after, until):
    return list(Cron(cron, zone).slots(after, until))


@pytest.mark.parametrize("seed", range(8))
def test_slots_around_clock_changes_are_those_of_cronsim_and_of_the_rule(seed):
    """480 expressions and zones; where cronsim differs a decision says so, and the rule agrees with us."""
    unexplained, compared = [], 0
    for case in generated(seed):
        decided = [name for name, applies in DECISIONS.items() if applies(*case[:2])]
        of_dialect = any("cronsim steps" not in name for name in decided)
        try:
            slots = ours(*case)
        except InvalidInput:  # the date never comes: cronsim finds that out only after 50 years of searching
            slots = []
        if not of_dialect and slots != by_the_rule(*case):
            unexplained.append((case, "the rule"))
        if slots and not decided:
            compared += 1
            if slots != by_cronsim(*case):
                unexplained.append((case, "cronsim"))
    assert unexplained == [] and compared >= 20


@pytest.mark.parametrize(
    ("decision", "cron", "zone", "after", "until"),
    [
        ("5-5/10", "5-5/10 * * * *", "UTC", "2026-01-01T00:00", "2026-01-01T02:00"),
        ("a day of week", "0 0 * * 5/2", "UTC", "2026-01-01T00:00", "2026-01-20T00:00"),
        ("after a change", "*/10 23 * * *", HOWE, "2026-04-04T14:00", "2026-04-05T14:00"),
    ],
)
def test_each_decision_is_a_real_difference_from_cronsim(decision, cron, zone, after, until):
    case = (cron, zone, at(after), at(until))
    assert [name.startswith(decision) for name, applies in DECISIONS.items() if applies(cron, zone)] == [True]
    assert ours(*case) != by_cronsim(*case)


def test_cronsim_goes_back_in_the_second_pass_and_ours_does_not():
    start = at("2026-11-01T01:30-08:00").astimezone(ZoneInfo(ANGELES))
    assert next(CronSim("45 1 * * *", start)).astimezone(UTC) < start < Cron("45 1 * * *", ANGELES).after(start)


@pytest.mark.parametrize("cron", ["0 22-2 * * *", "0 0 * * sat-sun", "0 0 15W * *", "0 0 * * L5", "0 0 ? * *"])
def test_croniters_forms_that_cronsim_refuses(cron):
    with pytest.raises(CronSimError):
        CronSim(cron, at("2026-01-01T00:00"))
    assert len(preview(cron, after=at("2026-01-01T00:00"))) == 10


CRONITERS = [
    "0 22-2 * * *", "58-2 3 * * *", "0 0 * * sat-sun", "0 0 * * fri-mon", "0 0 * * 6-0", "0 0 15W * *", "0 0 1W * *",
    "0 0 31W * *", "0 0 W30 * *", "0 0 * * L5", "0 0 * * L1,L3", "0 0 * * 2#3", "0 0 * * 1#1,3#5", "0 0 L * *",
    "0 0 L 2 *", "0 0 ? * 3", "H H * * *", "H/7 H(3-9)/2 * * *", "0 0 * oct-feb *", "0 0 1,15,L * *",
]  # fmt: skip


@pytest.mark.parametrize("cron", CRONITERS)
def test_where_no_clock_changes_the_forms_of_croniter_mean_what_croniter_does(cron):
    start = at("2026-01-01T00:00")
    theirs = croniter(cron, start, ret_type=datetime, hash_id="nightly")
    assert preview(cron, after=start, limit=100, id="nightly") == [theirs.get_next() for _ in range(100)]


@given(
    st.sampled_from(["* * * * *", "*/7 * * * *", "30 1-3 * * *", "0 0 29 2 *", "0 12 * * 1#1"]),
    st.sampled_from([BERLIN, HOWE, APIA, "UTC"]),
    st.datetimes(datetime(2011, 12, 1), datetime(2026, 11, 1)),
    st.integers(0, 200_000),
    st.integers(0, 50),
)
def test_a_backlog_is_the_exact_count_and_the_newest_slots(cron, zone, after, seconds, newest):
    after = after.replace(tzinfo=UTC)
    until = after + timedelta(seconds=seconds)
    slots = ours(cron, zone, after, until)
    assert Cron(cron, zone).backlog(after, until, newest) == (len(slots), slots[max(0, len(slots) - newest) :])


@given(st.integers(0, 10**9), st.sampled_from(["*/20 1-3 * * *", "30 2 * * *", "0 * * * *"]))
def test_slots_do_not_depend_on_where_one_starts(seconds, cron):
    zone, start = "America/St_Johns", at("1990-01-01T00:00") + timedelta(seconds=seconds)
    slots = preview(cron, timezone=zone, after=start, limit=8)
    assert [Cron(cron, zone).after(slot) for slot in slots[:-1]] == slots[1:]


def test_half_a_million_missed_slots_are_counted_in_under_two_seconds():
    begun = time.perf_counter()
    count, newest = Cron("* * * * *", BERLIN).backlog(at("2025-06-01T00:00"), at("2026-06-01T00:00"), 100)
    assert (count, len(newest), newest[-1]) == (525_600, 100, at("2026-06-01T00:00"))
    assert time.perf_counter() - begun < 2


# ---- refusals ------------------------------------------------------------------------------------

NOT_UNDERSTOOD = "is not understood; it takes"


@pytest.mark.parametrize(
    ("cron", "message"),
    [
        (None, "cron must be a string, not NoneType"),
        (5, "cron must be a string, not int"),
        (b"* * * * *", "cron must be a string, not bytes"),
        ("", "cron '' has 0 fields; it takes five: minute, hour, day of month, month, day of week"),
        ("* * * *", "cron '* * * *' has 4 fields; it takes five: minute, hour, day of month, month, day of week"),
        ("*/10 * * * * *", "cron '*/10 * * * * *' has 6 fields; it takes five"),
        ("0 0 * * * * 2030", "has 7 fields; it takes five"),
        ("CRON_TZ=UTC 0 0 * * *", "has 6 fields; it takes five"),
        ("* * * * *\n", r"cron '* * * * *\n' holds a line break, a control character or one outside ASCII"),
        ("* * *\u00a0* *", r"holds a line break, a control character or one outside ASCII"),
        ("\uff15 * * * *", "holds a line break, a control character or one outside ASCII"),
        ("* * * * *\0", "holds a line break, a control character or one outside ASCII"),
        ("0 " * 100 + "x", "cron has 201 characters, at most 200 are allowed"),
        ("* " * 1_000_000, "cron has 2,000,000 characters, at most 200 are allowed"),
        ("@reboot", "cron '@reboot' is not one of @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly"),
        ("@every 5m", "cron '@every 5m' is not one of @yearly"),
        ("R * * * *", "cron 'R * * * *': minute 'r' would be drawn anew in every process; H is drawn once"),
        ("0 R(1-5) * * *", "hour 'r(1-5)' would be drawn anew"),
        ("0 0 r/3 * *", "day of month 'r/3' would be drawn anew"),
        ("H * * * *", "cron 'H * * * *': minute 'h' is drawn from the schedule's id, and there is none"),
        ("61 * * * *", f"cron '61 * * * *': minute '61' {NOT_UNDERSTOOD} 0–59, lists, ranges and steps"),
        ("* 24 * * *", f"hour '24' {NOT_UNDERSTOOD} 0–23"),
        ("* * 0 * *", f"day of month '0' {NOT_UNDERSTOOD} 1–31, L or 15W"),
        ("* * 32 * *", f"day of month '32' {NOT_UNDERSTOOD}"),
        ("* * 32W * *", "the day before W must lie in 1–31, not 32"),
        ("* * 15W,16 * *", f"day of month '15w,16' {NOT_UNDERSTOOD}"),
        ("* * LW * *", f"day of month 'lw' {NOT_UNDERSTOOD}"),
        ("* * L-3 * *", f"day of month 'l-3' {NOT_UNDERSTOOD}"),
        ("* * * 13 *", f"month '13' {NOT_UNDERSTOOD} 1–12 or jan–dec"),
        ("* * * 0 *", f"month '0' {NOT_UNDERSTOOD}"),
        ("* * * mai *", f"month 'mai' {NOT_UNDERSTOOD}"),
        ("* * * * 8", f"day of week '8' {NOT_UNDERSTOOD} 0–7, sun–sat, fri#2 or L5"),
        ("* * * * 1#6", f"day of week '1#6' {NOT_UNDERSTOOD}"),
        ("* * * * 5L", f"day of week '5l' {NOT_UNDERSTOOD}"),
        ("* * * * L", f"day of week 'l' {NOT_UNDERSTOOD}"),
        ("* * * * 1,2#1", "day of week '1,2#1' mixes plain and numbered days"),
        ("* * * * 0-6,1#1", "day of week '0-6,1#1' mixes plain and numbered days"),
        ("? * * * *", f"minute '?' {NOT_UNDERSTOOD}"),
        ("22-2/2 * * * *", "minute '22-2/2' wraps round with a step: write its values as a list"),
        ("* * * * sat-mon/2", "day of week 'sat-mon/2' wraps round with a step"),
        ("*/0 * * * *", f"minute '*/0' {NOT_UNDERSTOOD}"),
        ("-5 * * * *", f"minute '-5' {NOT_UNDERSTOOD}"),
        ("5- * * * *", f"minute '5-' {NOT_UNDERSTOOD}"),
        ("1,,2 * * * *", f"minute '1,,2' {NOT_UNDERSTOOD}"),
        ("1.5 * * * *", f"minute '1.5' {NOT_UNDERSTOOD}"),
        ("1_0 * * * *", f"minute '1_0' {NOT_UNDERSTOOD}"),
        ("** * * * *", f"minute '**' {NOT_UNDERSTOOD}"),
        ("a b c d e", f"minute 'a' {NOT_UNDERSTOOD}"),
        ("0 0 31 2 *", "cron '0 0 31 2 *': the date it names never comes"),
        ("0 0 30,31 feb *", "the date it names never comes"),
        ("0 0 31 4,6,9,11 *", "the date it names never comes"),
        ("0 0 */18 * 6#4", "the date it names never comes"),  # the 1st or 19th is never a fourth Saturday
    ],
)
def test_what_is_not_in_the_dialect_is_refused_with_the_reason_within_a_second(cron, message):
    begun = time.perf_counter()
    with pytest.raises(InvalidInput, match=re.escape(message)) as refused:
        Cron(cron)
    assert time.perf_counter() - begun < 1
    assert isinstance(refused.value, JobQueueError) and isinstance(refused.value, ValueError)


@given(st.text("0123456789*/,-#?LWHRhlw(@) \tmonfeb", max_size=40))
def test_any_text_is_either_refused_or_has_slots(text):
    try:
        slots = preview(text, after=at("2026-01-01T00:00"), limit=3, id="x")
    except InvalidInput:
        return
    assert 1 <= len(slots) <= 3 and slots == sorted(set(slots))


def test_a_weekday_on_a_date_that_may_not_exist_is_still_a_weekday():
    assert days("0 0 31 2 1", "2026-01-01T00:00", 2) == ["2026-02-02", "2026-02-09"]


def test_a_cron_that_only_names_the_gap_has_no_slot():
    with pytest.raises(InvalidInput, match="^this cron has no slot within 50 years after .* in Europe/Berlin$"):
        Cron("* 2 * 3 L0", BERLIN).after(at("2026-01-01T00:00"))


@pytest.mark.parametrize(
    "zone",
    ["Mars/Phobos", "europe/berlin", "Europe", "localtime", "Factory", "../etc/passwd", "/UTC", "UTC ", "+01:00"],
)
def test_what_is_no_iana_zone_is_refused(zone):
    with pytest.raises(InvalidInput, match=re.escape(f"timezone {zone!r} is not an IANA time zone")):
        Cron("* * * * *", zone)


@pytest.mark.parametrize("zone", [None, 1, "", "x" * 101, "U\0C", "\ud800"])
def test_what_is_no_name_of_a_zone_is_refused(zone):
    with pytest.raises(InvalidInput, match="^timezone "):
        Cron("* * * * *", zone)


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (datetime(2026, 1, 1), "after is naive (2026-01-01T00:00:00): give it a time zone, e.g. timezone.utc"),
        ("2026-01-01", "after must be a datetime with a time zone, not '2026-01-01'"),
        (None, "after must be a datetime with a time zone, not None"),
        (datetime(1899, 12, 31, tzinfo=UTC), "after must lie in the years 1900–9899, not in 1899"),
        (datetime.max.replace(tzinfo=UTC), "after must lie in the years 1900–9899, not in 9999"),
    ],
)
def test_a_bad_start_is_refused(after, message):
    with pytest.raises(InvalidInput) as refused:
        preview("* * * * *", after=after)
    assert str(refused.value) == message


@pytest.mark.parametrize("limit", [0, 1001, True, 2.0])
def test_a_preview_is_bounded(limit):
    with pytest.raises(InvalidInput, match="^limit must "):
        preview("* * * * *", after=at("2026-01-01T00:00"), limit=limit)
