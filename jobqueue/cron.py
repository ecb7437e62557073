"""When a schedule's slots are: a cron expression in an IANA time zone, as instants in UTC; pure, without a clock.

The dialect is croniter's with five fields (minute, hour, day of month, month, day of week) and @yearly, @annually,
@monthly, @weekly, @daily, @midnight, @hourly. Fields are separated by spaces or tabs; upper and lower case are one:

    *  5  5-9  22-2  mon-fri  */15  5/15  1-30/7  1,15,30     22-2 and sat-sun wrap round, and then take no step
    */70 is the first value alone; 0 and 7 are Sunday, and a step in the day of week ends on Saturday
    ?      the same as *, in the two day fields
    L      last day of the month;  15W  the weekday (Monday to Friday) nearest to the 15th;  31W  to the last day
    fri#2  second Friday;  L5  last Friday; neither is mixed with plain days
    H  H/15  H(0-29)  H(0-29)/10    drawn from the schedule's id, the same in every process and for ever;
           in the day of month H alone draws from 1–28, so that no month is left out

Day of month and day of week follow crontab(5): if either begins with * (or ?) both must match, otherwise either one.

Clock changes follow cronsim's (Debian cron's) rule. A *fixed* time, neither minute nor hour beginning with *, inside
the gap fires once, at the first instant after it (several in one gap are one slot), and inside the fold once, in the
first pass. Every other expression has no slot inside the gap, and slots in both passes of the fold.

Refused, with the reason: six and seven fields, @reboot, @every, R (drawn anew in every process), dates that never
come, line breaks and anything outside ASCII, more than 200 characters. croniter 7.0.0 only expands the fields: its own
iteration fires fixed times twice in the fold, and it reads 5-5 as the whole field (here: 5).
"""

import calendar
import functools
import itertools
import re
import zoneinfo
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from croniter import croniter

from . import limits
from .errors import InvalidInput

FAMILY = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
FIELDS = ("minute", "hour", "day of month", "month", "day of week")
HINTS = ("0–59", "0–23", "1–31, L or 15W", "1–12 or jan–dec", "0–7, sun–sat, fri#2 or L5")
FULL = (range(60), range(24), range(1, 32), range(1, 13), range(7))
DAY_OF_MONTH, DAY_OF_WEEK = 2, 4
HORIZON = timedelta(days=50 * 366)  # 29 February on one weekday is at most 40 years away
YEARS = (1900, 9900)  # before 1900 a zone may change twice a day; after 9900 datetime ends

_RANGE = re.compile(r"(\w+)-(\w+)(/\d+)?(#\d+)?", re.ASCII)
_HASHED = re.compile(r"h(\(.*)?(/.*)?")
_WORKDAY = re.compile(r"(\d+)w|w(\d+)", re.ASCII)
_DAY, _SECOND, _NOW = timedelta(days=1), timedelta(seconds=1), timedelta()
_Run = tuple[datetime, list[timedelta]]  # a base, and how long after it each slot is
_Values = set[Any]  # numbers, and "l" for the last


class Cron:
    """A cron expression, read once. Raises InvalidInput, saying what is wrong and where, within milliseconds."""

    def __init__(self, expression: str, timezone: str = "UTC", id: str = "") -> None:
        fields = _split(expression)
        self._id = limits.text(id, "id", limits.SCHEDULE_BYTES, least=0)
        self._zone = _zone(timezone)
        self._workday = _workday(fields)
        expanded, self._nth = _expand(fields, id, expression)
        minutes, hours, self._days, self._months, self._weekdays = expanded
        self._times = [timedelta(hours=h, minutes=m) for h in sorted(hours) for m in sorted(minutes)]
        self._fixed = not (fields[0].startswith("*") or fields[1].startswith("*"))
        self._both_days = fields[DAY_OF_MONTH][0] in "*?" or fields[DAY_OF_WEEK][0] in "*?"
        if not any(self._on(day) for day in _every_kind_of_year()):
            raise InvalidInput(f"cron {expression!r}: the date it names never comes")

    def after(self, instant: datetime) -> datetime:
        """The first slot after an instant (never the instant itself), in UTC. Raises InvalidInput if there is none."""
        slot = next(self.slots(instant), None)
        if slot is None:
            raise InvalidInput(f"this cron has no slot within 50 years after {instant.isoformat()} in {self._zone.key}")
        return slot

    def slots(self, after: datetime, until: datetime | None = None) -> Iterator[datetime]:
        """The slots in (after, until], oldest first, in UTC; without `until` they end where 50 years hold none."""
        for base, times in self._runs(_instant(after, "after"), _instant(until or _last(), "until")):
            for offset in times:
                yield base + offset

    def backlog(self, after: datetime, until: datetime, newest: int) -> tuple[int, list[datetime]]:
        """How many slots lie in (after, until], exactly, and the newest of them, oldest first: 5 ms for a year."""
        count, kept = 0, 0
        recent: deque[_Run] = deque()
        for base, times in self._runs(_instant(after, "after"), _instant(until, "until")):
            count += len(times)
            kept += len(times)
            recent.append((base, times))
            while recent and kept - len(recent[0][1]) >= newest:
                kept -= len(recent.popleft()[1])
        slots = [base + offset for base, times in recent for offset in times]
        return count, slots[len(slots) - min(newest, len(slots)) :]

    def _runs(self, after: datetime, until: datetime) -> Iterator[_Run]:
        """(base, times) pairs in order; the slots are base + each time, all of them in (after, until]."""
        found = after
        for base, times in self._days_of_slots(after):
            if base > min(until, found + HORIZON):
                return
            found = base if times else found
            times = times[bisect_right(times, after - base) : bisect_right(times, until - base)]
            if times:
                yield base, times

    def _days_of_slots(self, after: datetime) -> Iterator[_Run]:
        """As `_runs`, from two days before (longer than any fold), without an end, and with empty days in it."""
        begin = after.replace(microsecond=0) - 2 * _DAY
        while begin.year < YEARS[1]:
            before = self._offset(begin)
            end = self._first_change(begin, begin + _DAY, before)
            yield from self._within(begin, end, before)
            shift = self._offset(end) - before
            begin = end
            if self._fixed and shift < _NOW:
                begin = end - shift  # the second pass of the fold has no fixed slots
            elif self._fixed and shift and any(times for _, times in self._within(end, end + shift, before)):
                yield end, [_NOW]  # all fixed slots of the gap
                begin = end + _SECOND  # a slot of its own at that instant is the same slot

    def _within(self, begin: datetime, end: datetime, offset: timedelta) -> Iterator[_Run]:
        """(base, times) of each local day in [begin, end), where the offset from UTC is constant."""
        day, last = (begin + offset).date(), (end + offset - _SECOND).date()
        while day <= last:
            base = datetime.combine(day, time(), UTC) - offset
            times = self._times if self._on(day) else []
            yield base, times[bisect_left(times, begin - base) : bisect_left(times, end - base)]
            day += _DAY

    def _offset(self, instant: datetime) -> timedelta:
        return instant.astimezone(self._zone).utcoffset() or _NOW

    def _first_change(self, begin: datetime, end: datetime, offset: timedelta) -> datetime:
        """The first whole second after `begin` at which the zone has another offset, or `end`."""
        if self._offset(end) == offset:
            return end
        while end - begin > _SECOND:
            middle = begin + (end - begin) // 2
            middle = middle.replace(microsecond=0)
            begin, end = (middle, end) if self._offset(middle) == offset else (begin, middle)
        return end

    def _on(self, day: date) -> bool:
        if day.month not in self._months:
            return False
        if self._both_days:
            return self._on_weekday(day) and self._on_day_of_month(day)
        return self._on_weekday(day) or self._on_day_of_month(day)

    def _on_day_of_month(self, day: date) -> bool:
        if self._workday:
            return day.day == _nearest_workday(day, self._workday)
        return day.day in self._days or ("l" in self._days and (day + _DAY).day == 1)

    def _on_weekday(self, day: date) -> bool:
        weekday = day.isoweekday() % 7
        if not self._nth:
            return weekday in self._weekdays
        wanted = self._nth.get(weekday, ())
        return (day.day + 6) // 7 in wanted or ("l" in wanted and (day + 7 * _DAY).month != day.month)


def preview(cron: str, *, timezone: str = "UTC", after: datetime, limit: int = 10, id: str = "") -> list[datetime]:
    """The next slots after an instant, in UTC; give the schedule's id where the expression contains H."""
    slots = Cron(cron, timezone, id).slots(after)
    return list(itertools.islice(slots, limits.integer(limit, "limit", 1, limits.BATCH)))


def _split(expression: object) -> list[str]:
    if not isinstance(expression, str):
        raise InvalidInput(f"cron must be a string, not {type(expression).__name__}")
    if len(expression) > limits.CRON_CHARACTERS:
        raise InvalidInput(f"cron has {len(expression):,} characters, at most {limits.CRON_CHARACTERS} are allowed")
    if not re.fullmatch(r"[!-~ \t]*", expression):
        raise InvalidInput(f"cron {expression!r} holds a line break, a control character or one outside ASCII")
    text = expression.lower().strip()
    if text.startswith("@") and text not in FAMILY:
        raise InvalidInput(f"cron {expression!r} is not one of {', '.join(FAMILY)}")
    fields = FAMILY.get(text, text).split()
    if len(fields) != 5:
        raise InvalidInput(f"cron {expression!r} has {len(fields)} fields; it takes five: {', '.join(FIELDS)}")
    return fields


def _expand(fields: list[str], id: str, expression: str) -> tuple[list[_Values], dict[int, _Values]]:
    """The values of each field as croniter expands them; for numbered weekdays also {weekday: {1..5 or "l"}}."""
    prepared = [_prepared(text, i, id, f"cron {expression!r}: {FIELDS[i]} {text!r} ") for i, text in enumerate(fields)]
    try:
        expanded, nth = croniter.expand(" ".join(prepared), hash_id=id.encode())
    except ValueError:  # its own words miss the field
        i = next(i for i, text in enumerate(prepared) if not _understood(text, i, id))
        what = f"cron {expression!r}: {FIELDS[i]} {fields[i]!r} is not understood"
        raise InvalidInput(f"{what}; it takes {HINTS[i]}, lists, ranges and steps") from None
    return [set(FULL[i]) if "*" in values else set(values) for i, values in enumerate(expanded)], nth


def _understood(text: str, i: int, id: str) -> bool:
    return bool(croniter.is_valid(" ".join(["*"] * i + [text] + ["*"] * (4 - i)), hash_id=id.encode()))


def _prepared(text: str, i: int, id: str, refusal: str) -> str:
    """A field with croniter's traps taken out of it."""
    if re.match(r"r(\W|$)", text):
        raise InvalidInput(f"{refusal}would be drawn anew in every process; H is drawn once, from the schedule's id")
    if _HASHED.fullmatch(text) and not id:
        raise InvalidInput(f"{refusal}is drawn from the schedule's id, and there is none")
    if i == DAY_OF_MONTH and text == "h":
        return "h(1-28)"
    if i == DAY_OF_MONTH and _WORKDAY.fullmatch(text):
        return "1"
    items = text.split(",")
    if len({"#" in item or item.startswith("l") for item in items}) > 1 and i == DAY_OF_WEEK:
        raise InvalidInput(f"{refusal}mixes plain and numbered days")
    return ",".join(_unwrapped(item, i, refusal) for item in items)


def _unwrapped(item: str, i: int, refusal: str) -> str:
    """x-x as x: croniter means the whole field by it. No step where a range wraps: croniter counts wrongly there."""
    match = _RANGE.fullmatch(item)
    if not match:
        return item
    low, high = (croniter.ALPHACONV[i].get(name, name) for name in match.group(1, 2))
    if not (str(low).isdigit() and str(high).isdigit()):
        return item
    low, high = int(low), int(high)
    if low == high or (i == DAY_OF_WEEK and (low, high) == (7, 0)):
        return f"{low}{match[4] or ''}"
    if low > high and match[3]:
        raise InvalidInput(f"{refusal}wraps round with a step: write its values as a list")
    return item


def _workday(fields: list[str]) -> int | None:
    match = _WORKDAY.fullmatch(fields[DAY_OF_MONTH])
    if not match:
        return None
    return limits.integer(int(match[1] or match[2]), "the day before W", 1, 31)


def _nearest_workday(day: date, target: int) -> int:
    last = calendar.monthrange(day.year, day.month)[1]
    target = min(target, last)
    weekday = day.replace(day=target).weekday()
    if weekday == 5:
        return target - 1 if target > 1 else 3
    if weekday == 6:
        return target + 1 if target < last else target - 2
    return target


def _every_kind_of_year() -> Iterator[date]:
    """28 years hold every weekday of every date, 29 February too."""
    return (date(2000, 1, 1) + n * _DAY for n in range(28 * 366))


def _zone(name: str) -> zoneinfo.ZoneInfo:
    limits.text(name, "timezone", 100)
    if name not in _zone_names():
        raise InvalidInput(f"timezone {name!r} is not an IANA time zone (such as Europe/Berlin)")
    return zoneinfo.ZoneInfo(name)


@functools.cache
def _zone_names() -> set[str]:
    return zoneinfo.available_timezones() - {"localtime", "Factory"}  # what this machine calls local, and a placeholder


def _instant(value: object, what: str) -> datetime:
    instant = limits.instant(value, what)
    if not YEARS[0] <= instant.year < YEARS[1]:
        raise InvalidInput(f"{what} must lie in the years {YEARS[0]}–{YEARS[1] - 1}, not in {instant.year}")
    return instant


def _last() -> datetime:
    return datetime(YEARS[1] - 1, 12, 31, tzinfo=UTC)
