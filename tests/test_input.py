"""Bad input of every kind: one clear error that says what and where, before any SQL, and nothing lost."""

import enum
import os
import random
import re
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import numpy as np
import pandas as pd
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Json

from jobqueue import Backoff, JobQueueError, Outcome, Queue
from jobqueue.errors import InvalidInput

pytestmark = pytest.mark.shared

NAN, INF = float("nan"), float("inf")
DIGEST = "ab" * 32
UTC = UTC
Colour = enum.Enum("Colour", "RED")


@pytest.fixture(scope="module")
def unplugged(shared):
    """A Queue whose connection is closed: whatever sends SQL fails with another error than bad input."""
    with psycopg.connect(shared, autocommit=True) as conn:
        queue = Queue(conn)
        queue.enqueue("mail")
        [lease] = queue.claim("A")
    queue.lease = lease
    return queue


@pytest.fixture(scope="module")
def fuzzed(shared):
    """A Queue whose jobs nobody looks at again."""
    with psycopg.connect(shared, autocommit=True) as conn:
        yield Queue(conn)


@pytest.fixture(scope="module")
def refuses():
    """refuses(match, act): `act` raises InvalidInput, which is a JobQueueError and a ValueError, and says `match`."""

    def check(match, act):
        with pytest.raises(InvalidInput, match=match) as caught:
            act()
        assert isinstance(caught.value, JobQueueError) and isinstance(caught.value, ValueError)

    return check


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def circular():
    value = {}
    value["self"] = value
    return value


# ---- payload -------------------------------------------------------------------------------------------------------

PAYLOADS = {
    "NaN": ({"items": [{}, {}, {}, {"price": NAN}]}, r"payload\.items\[3\]\.price"),
    "Infinity": ({"items": [{"price": -INF}]}, r"payload\.items\[0\]\.price"),
    "NUL": ({"items": [{}, {"name": "a\0b"}]}, r"payload\.items\[1\]\.name"),
    "lone surrogate": ({"items": ["ok", "bad\ud800"]}, r"payload\.items\[1\]"),
    "bytes": ({"a": {"b": b"raw"}}, r"payload\.a\.b.*bytes"),
    "Decimal": ({"a": [Decimal("1.5")]}, r"payload\.a\[0\].*Decimal"),
    "set": ({"a": {1, 2}}, r"payload\.a.*set"),
    "datetime": ({"a": datetime(2026, 1, 1, tzinfo=UTC)}, r"payload\.a.*datetime"),
    "np.int64": ({"a": [1, np.int64(5)]}, r"payload\.a\[1\].*int64"),
    "np.float32": ({"a": np.float32(5)}, r"payload\.a.*float32"),
    "np.bool_": ({"a": np.bool_(True)}, r"payload\.a.*bool"),
    "np.ndarray": ({"a": np.zeros(2)}, r"payload\.a.*ndarray"),
    "pd.Timestamp": ({"a": pd.Timestamp("2026-01-01")}, r"payload\.a.*Timestamp"),
    "pd.NaT": ({"a": pd.NaT}, r"payload\.a.*NaT"),
    "pd.NA": ({"a": pd.NA}, r"payload\.a.*NA"),
    "Enum": ({"a": Colour.RED}, r"payload\.a.*Colour"),
    "object": (object(), r"payload.*object"),
    "function": ({"a": len}, r"payload\.a.*function"),
    "generator": ({"a": (n for n in ())}, r"payload\.a.*generator"),
    "NaN at the top": (NAN, r"payload"),
    "NUL at the top": ("\0", r"payload"),
    "tuple as a key": ({"a": {(1, 2): 1}}, r"payload\.a.*key.*tuple"),
    "NUL in a key": ({"a": {"x\0": 1}}, r"payload\.a.*key"),
    "lone surrogate in a key": ({"a": {"x\udfff": 1}}, r"payload\.a.*key"),
    "NaN as a key": ({"a": {NAN: 1}}, r"payload\.a"),
    "inside a tuple": ({"a": (1, NAN)}, r"payload\.a\[1\]"),
    "deep nesting": (nested(100_000), r"payload.*(deep|nest)"),
    "circular": (circular(), r"payload.*(deep|nest|circular)"),
    "an integer of 5,000 digits": ({"a": 10**5000}, r"payload\.a"),
    "over 1 MiB": ({"a": "x" * (1 << 20)}, r"payload.*1,048,576"),
    "over 1 MiB in bytes, not in characters": ({"a": "é" * 600_000}, r"payload.*1,048,576"),
}


@pytest.mark.parametrize("payload, match", PAYLOADS.values(), ids=PAYLOADS)
def test_a_payload_that_cannot_be_stored_is_refused_with_its_path(unplugged, refuses, payload, match):
    refuses(match, lambda: unplugged.enqueue("mail", payload))


def test_a_message_about_a_payload_can_be_printed(unplugged):
    with pytest.raises(InvalidInput) as caught:
        unplugged.enqueue("mail", {"bad\ud800": {"worse\udfff": NAN}})
    assert str(caught.value).encode("utf-8")


@pytest.mark.parametrize(
    "payload",
    [
        None,
        True,
        0,
        -1,
        "",
        "é\u2028\U0001f600",
        [],
        {},
        [[], {}],
        {"": {"a b": [None]}},
        2**53 + 1,
        2**64,
        -(10**400),
        0.1,
        5e-324,
        1e22,
        "a" * 1_000_000,
        {"tuple": [1, 2]},
        "\\u0000",
        "'; drop table job; --",
        "%s %(x)s",
    ],
    ids=lambda value: f"{type(value).__name__} {value!r:.20}",
)
def test_a_payload_comes_back_as_it_was(queue, payload):
    queue.enqueue("mail", payload)
    [lease] = queue.claim("A")
    assert (lease.payload, type(lease.payload) is type(payload) or payload == 1e22) == (payload, True)


def test_a_tuple_is_stored_as_a_list_and_a_float_of_numpy_as_a_float(queue):
    queue.enqueue("mail", {"pair": (1, 2), "share": np.float64(0.25)})
    [lease] = queue.claim("A")
    assert lease.payload == {"pair": [1, 2], "share": 0.25}


@pytest.mark.parametrize(
    "payload",
    [[1] * 400_000, [1e300] * 5_000, {str(n): n for n in range(60_000)}, "é" * 400_000],
    ids=["many small items", "long numbers", "many keys", "two-byte letters"],
)
def test_what_the_check_on_payloads_would_refuse_is_bad_input_to_the_api_too(conn, queue, payload):
    """jsonb prints spaces after commas and 1e300 in 301 digits: the CHECK must never surface as a database error."""
    [fits] = conn.execute("select octet_length(%s::jsonb::text) <= 1048576", (Json(payload),)).fetchone()
    try:
        stored = queue.enqueue("mail", payload).created
    except InvalidInput:
        stored = False
    assert (stored, conn.execute("select count(*) from jobqueue.job").fetchone()) in ([(fits, (1,)), (False, (0,))])


ANY_TEXT = st.text(st.characters(codec=None, categories=None), max_size=30)  # lone surrogates and NUL included
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=15,
)
FUZZ = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def same(stored, given):
    """Equal as JSON; PostgreSQL's exact decimals come back from a float's shortest text."""
    if isinstance(given, float):
        return float(stored) == given
    if isinstance(given, list):
        return len(stored) == len(given) and all(map(same, stored, given))
    if isinstance(given, dict):
        return stored.keys() == given.keys() and all(same(stored[name], given[name]) for name in given)
    return stored == given and type(stored) is type(given)


def storable(text):
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


@FUZZ
@given(payload=ANY_JSON)
def test_any_payload_comes_back_as_it_was_or_is_refused_as_bad_input(fuzzed, payload):
    try:
        job = fuzzed.enqueue("mail", payload).id
    except InvalidInput as error:
        assert str(error).startswith("payload") and str(error).encode()
    else:
        assert same(fuzzed.get(job).payload, payload)


@FUZZ
@given(key=ANY_TEXT)
def test_any_key_is_stored_byte_for_byte_or_refused_as_bad_input(fuzzed, key):
    try:
        job = fuzzed.enqueue("mail", key=key).id
    except InvalidInput:
        assert not key or not storable(key)
    else:
        assert fuzzed.get(job).idempotency_key == key


@FUZZ
@given(text=ANY_TEXT, times=st.sampled_from([1, 5_000]))
def test_any_error_text_is_recorded_and_unchanged_where_it_can_be_stored(fuzzed, text, times):
    fuzzed.enqueue("fails", max_attempts=1)
    [lease] = fuzzed.claim("A", types=["fails"])
    outcome, stored = fuzzed.fail(lease, text * times), fuzzed.get(lease.id).last_error
    whole = storable(text) and len((text * times).encode()) <= 16_384
    assert (outcome, len(stored.encode()) <= 16_384) == (Outcome.APPLIED, True) and (
        stored == text * times or not whole
    )


# ---- every other argument ------------------------------------------------------------------------------------------

LONG = {
    "empty": "",
    "201 bytes": "x" * 201,
    "202 bytes of 101 letters": "é" * 101,
    "NUL": "a\0b",
    "lone surrogate": "a\ud800",
    "None": None,
    "int": 5,
    "bytes": b"mail",
}
NUMBERS = {
    "zero": 0,
    "negative": -1,
    "10001": 10_001,
    "bool": True,
    "float": 2.5,
    "string": "5",
    "None": None,
    "NaN": NAN,
    "huge": 10**5000,
    "np.float64": np.float64(2.0),
}
LEASES = {
    "zero": 0,
    "negative": -1,
    "below a millisecond": 0.0009,
    "over a day": 86_400.001,
    "NaN": NAN,
    "inf": INF,
    "bool": True,
    "string": "30",
    "None": None,
    "timedelta": timedelta(seconds=30),
    "huge": 10**400,
}
LIMITS = {
    "zero": 0,
    "negative": -1,
    "1001": 1_001,
    "bool": True,
    "float": 1.5,
    "string": "1",
    "None": None,
    "huge": 10**5000,
}
DELAYS = {
    "NaN": NAN,
    "negative": -0.001,
    "inf": INF,
    "minus inf": -INF,
    "string": "5",
    "bool": True,
    "timedelta": timedelta(1),
    "beyond every calendar": 1e15,
    "huge": 10**400,
}
INSTANTS = {
    "naive": datetime(2026, 1, 1),
    "date": date(2026, 1, 1),
    "text": "2026-01-01T00:00:00Z",
    "number": 1.7e9,
    "NaT": pd.NaT,
    "naive Timestamp": pd.Timestamp("2026-01-01"),
    "before year 1 in UTC": datetime.min.replace(tzinfo=timezone(timedelta(hours=3))),
    "after year 9999 in UTC": datetime.max.replace(tzinfo=timezone(-timedelta(hours=3))),
}
KEYS = {
    "empty": "",
    "513 bytes": "k" * 513,
    "514 bytes of 257 letters": "é" * 257,
    "reserved": "schedule/2026-01-01T00:00:00Z/x",
    "NUL": "k\0",
    "lone surrogate": "\udc00",
    "int": 5,
    "bytes": b"k",
}
IDS = {"text": "7", "bool": True, "float": 7.0, "None": None, "2**63": 2**63, "huge": 10**5000}


def cases():
    """(what, name of the value, call)"""
    calls = {
        "type": (LONG, lambda q, v: q.enqueue(v)),
        "max_attempts": (NUMBERS, lambda q, v: q.enqueue("mail", max_attempts=v)),
        "key": (KEYS, lambda q, v: q.enqueue("mail", key=v)),
        "delay_seconds": (DELAYS, lambda q, v: q.enqueue("mail", delay_seconds=v)),
        "run_at": (INSTANTS, lambda q, v: q.enqueue("mail", run_at=v)),
        "owner": (LONG, lambda q, v: q.claim(v)),
        "owner ": (LONG, lambda q, v: q.adopt(1, v)),
        "limit": (LIMITS, lambda q, v: q.claim("A", limit=v)),
        "limit ": (LIMITS, lambda q, v: q.reap(limit=v)),
        "limit  ": (LIMITS, lambda q, v: q.archive(older_than_seconds=1, limit=v)),
        "limit   ": (LIMITS, lambda q, v: q.dead_letters(limit=v)),
        "lease_seconds": (LEASES, lambda q, v: q.claim("A", lease_seconds=v)),
        "lease_seconds ": (LEASES, lambda q, v: q.adopt(1, "A", lease_seconds=v)),
        "lease_seconds  ": (LEASES, lambda q, v: q.heartbeat(q.lease, lease_seconds=v)),
        "lease_seconds   ": (LEASES, lambda q, v: q.heartbeat_many([q.lease], lease_seconds=v)),
        "delay_seconds ": (DELAYS, lambda q, v: q.fail(q.lease, "boom", delay_seconds=v)),
        "delay_seconds  ": (DELAYS, lambda q, v: q.release(q.lease, "stop", delay_seconds=v)),
        "older_than_seconds": ({**DELAYS, "None": None}, lambda q, v: q.archive(older_than_seconds=v)),
        "job_id": (IDS, lambda q, v: q.get(v)),
        "job_id ": (IDS, lambda q, v: q.cancel(v)),
        "job_id  ": (IDS, lambda q, v: q.explain(v)),
        "job_id   ": (IDS, lambda q, v: q.adopt(v, "A")),
        "job_id    ": ({k: v for k, v in IDS.items() if k != "None"}, lambda q, v: q.redrive([v])),
        "type    ": (
            {"one string": "mail", "an empty type": [""], "a number": [5], "not a list": 5, "over-long": ["x" * 201]},
            lambda q, v: q.claim("A", types=v),
        ),
        "type ": (LONG, lambda q, v: q.pause_type(v)),
        "type  ": (LONG, lambda q, v: q.resume_type(v)),
        "type   ": (LONG, lambda q, v: q.cancel_type(v)),
        "status": (
            {
                "ready": ("ready",),
                "running": ("done", "running"),
                "unknown": ("finished",),
                "one string": "done",
                "number": (5,),
            },
            lambda q, v: q.archive(older_than_seconds=1, statuses=v),
        ),
        "name": (
            {"empty": "", "NUL": "a\0", "lone surrogate": "\ud800", "int": 5, "None": None},
            lambda q, v: q.publish(q.lease, v, DIGEST),
        ),
        "digest": (
            {"empty": "", "NUL": "a\0", "int": 5, "None": None},
            lambda q, v: q.publish(q.lease, "report.csv", v),
        ),
    }
    return [
        pytest.param(what.strip(), call, value, id=f"{what.strip()}-{name}-{number}")
        for number, (what, (values, call)) in enumerate(calls.items())
        for name, value in values.items()
    ]


@pytest.mark.parametrize("what, call, value", cases())
def test_an_argument_out_of_bounds_is_refused_by_name_before_any_sql(unplugged, refuses, what, call, value):
    refuses(what, lambda: call(unplugged, value))


def test_a_delay_and_a_run_at_together_are_refused(unplugged, refuses):
    refuses(
        "run_at.*delay_seconds|delay_seconds.*run_at",
        lambda: unplugged.enqueue("mail", run_at=datetime(2026, 1, 1, tzinfo=UTC), delay_seconds=5),
    )


@pytest.mark.parametrize(
    "job, match",
    [
        ({"type": "mail", "payload": {"a": [NAN]}}, r"(jobs|job)\[?\s?1.*payload\.a\[0\]"),
        ({"type": ""}, r"(jobs|job)\[?\s?1.*type"),
        ({"payload": 1}, r"(jobs|job)\[?\s?1.*type"),
        ({"type": "mail", "priority": 5}, r"(jobs|job)\[?\s?1.*priority"),
        ({"type": "mail", "key": "schedule/x"}, r"(jobs|job)\[?\s?1.*key"),
        ({"type": "mail", "run_at": datetime(2026, 1, 1)}, r"(jobs|job)\[?\s?1.*run_at"),
        ({"type": "mail", "max_attempts": 0}, r"(jobs|job)\[?\s?1.*max_attempts"),
        ("mail", r"(jobs|job)\[?\s?1"),
    ],
    ids=[
        "payload",
        "empty type",
        "no type",
        "unknown name",
        "reserved key",
        "naive run_at",
        "max_attempts",
        "not a dict",
    ],
)
def test_one_bad_job_in_a_batch_is_refused_with_its_place(unplugged, refuses, job, match):
    refuses(match, lambda: unplugged.enqueue_many([{"type": "mail"}, job, {"type": "mail"}]))


def test_a_batch_with_one_bad_job_stores_none_and_uses_no_key(queue, conn):
    with pytest.raises(InvalidInput):
        queue.enqueue_many([{"type": "mail", "key": "k"}, {"type": "mail", "payload": NAN}])
    counts = conn.execute(
        "select (select count(*) from jobqueue.job), (select count(*) from jobqueue.job_key)"
    ).fetchone()
    assert (counts, queue.enqueue("mail", key="k").created) == ((0, 0), True)


def test_bad_input_inside_a_callers_transaction_leaves_it_usable(conn, queue):
    with conn.transaction():
        queue.enqueue("mail")
        with pytest.raises(InvalidInput):
            queue.enqueue("mail", {"a": NAN})
    assert conn.execute("select count(*) from jobqueue.job").fetchone() == (1,)


def test_a_bad_argument_does_not_end_the_lease(queue):
    queue.enqueue("mail")
    [lease] = queue.claim("A")
    for act in (
        lambda: queue.fail(lease, "boom", delay_seconds=NAN),
        lambda: queue.release(lease, "stop", delay_seconds=-1),
    ):
        with pytest.raises(InvalidInput):
            act()
    assert queue.complete(lease) is Outcome.APPLIED


@pytest.mark.parametrize(
    "accept",
    [
        lambda q: q.enqueue("é" * 100),
        lambda q: q.enqueue("mail", key="é" * 256),
        lambda q: q.enqueue("mail", max_attempts=10_000),
        lambda q: q.enqueue("mail", max_attempts=1),
        lambda q: q.enqueue("mail", delay_seconds=0),
        lambda q: q.enqueue("mail", run_at=datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=45)))),
        lambda q: q.claim("é" * 100),
        lambda q: q.claim("A", limit=1_000),
        lambda q: q.claim("A", lease_seconds=0.001),
        lambda q: q.claim("A", lease_seconds=86_400),
        lambda q: q.claim("A", types=["a", "a"]),
        lambda q: q.reap(limit=1_000),
        lambda q: q.enqueue("mail", max_attempts=np.int64(5).item()),
        lambda q: q.enqueue("mail", delay_seconds=np.float64(1.5)),
    ],
    ids=[
        "type",
        "key",
        "max_attempts",
        "one attempt",
        "no delay",
        "odd zone",
        "owner",
        "limit",
        "shortest lease",
        "longest lease",
        "types twice",
        "reap limit",
        "int",
        "np.float64",
    ],
)
def test_the_bounds_themselves_are_accepted(queue, accept):
    accept(queue)


def test_an_instant_in_another_zone_is_stored_as_the_same_instant(queue, conn):
    queue.enqueue("mail", run_at=datetime(2026, 1, 1, 5, 45, tzinfo=timezone(timedelta(hours=5, minutes=45))))
    assert conn.execute("select run_at from jobqueue.job").fetchone() == (datetime(2026, 1, 1, tzinfo=UTC),)


# ---- error texts are never a reason to lose the failure ------------------------------------------------------------

TEXTS = {
    "NUL": "bad\0text",
    "lone surrogate": "bad\ud800text",
    "both, and long": "\0\udfff" * 100_000,
    "empty": "",
    "percent and quotes": "100% 'x' \"y\" \\ %s",
    "two-byte letters": "é" * 1_000_000,
    "four-byte letters": "\U0001f600" * 500_000,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("permanent", [False, True], ids=["failed", "permanently"])
def test_a_failure_is_recorded_whatever_its_text(queue, conn, text, permanent):
    queue.enqueue("mail")
    [lease] = queue.claim("A")
    outcome = queue.fail(lease, text, permanent=permanent)
    size, attempts = conn.execute("select octet_length(last_error), attempts from jobqueue.job").fetchone()
    assert (outcome, size <= 16_384, attempts) == (Outcome.APPLIED, True, 1)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_release_is_recorded_whatever_its_reason(queue, text):
    queue.enqueue("mail")
    [lease] = queue.claim("A")
    assert queue.release(lease, text) is Outcome.APPLIED


def test_a_text_of_two_megabytes_keeps_its_head_and_its_tail(queue, conn):
    queue.enqueue("mail")
    [lease] = queue.claim("A")
    queue.fail(lease, "Traceback: first line\n" + "é" * 1_000_000 + "\nValueError: last line")
    [text] = conn.execute("select last_error from jobqueue.job").fetchone()
    assert (
        text.startswith("Traceback: first line\né"),
        text.endswith("é\nValueError: last line"),
        "\ufffd" in text,
        15_000 < len(text.encode()) <= 16_384,
    ) == (True, True, False, True)


@pytest.mark.parametrize("size", [16_383, 16_384, 16_385])
def test_a_text_is_cut_only_where_it_is_over_the_limit(queue, conn, size):
    queue.enqueue("mail")
    [lease] = queue.claim("A")
    queue.fail(lease, "x" * size)
    [stored] = conn.execute("select octet_length(last_error) from jobqueue.job").fetchone()
    assert (stored == size, stored <= 16_384) == (size <= 16_384, True)


def test_fifty_long_errors_leave_a_row_that_can_be_read_and_ended(queue, conn):
    job = queue.enqueue("mail", max_attempts=100).id
    for number in range(55):
        [lease] = queue.claim("A")
        assert queue.fail(lease, f"{number} " + "x" * 20_000, delay_seconds=0) is Outcome.APPLIED
    [lease] = queue.claim("A")
    assert (queue.complete(lease), len(queue.get(job).history)) == (Outcome.APPLIED, 50)


# ---- the same bounds as CHECKs, with names that are sentences ------------------------------------------------------

RUNNING = """status = 'running', attempts = 1, epoch = 1, locked_by = 'A', locked_until = jobqueue.now(),
    started_at = jobqueue.now()"""
BROKEN = {
    "an empty type": "type = ''",
    "a type of 201 bytes": "type = repeat('x', 201)",
    "a key of 513 bytes": "idempotency_key = repeat('x', 513)",
    "an empty key": "idempotency_key = ''",
    "a payload over 1 MiB": "payload = to_jsonb(repeat('x', 1100000))",
    "max_attempts 0": "max_attempts = 0",
    "max_attempts 10001": "max_attempts = 10001",
    "negative attempts": "attempts = -1",
    "an unknown status": "status = 'paused'",
    "an infinite run_at": "run_at = 'infinity'",
    "a last_error over 16 KiB": "last_error = repeat('x', 16385)",
    "51 history entries": "history = (select jsonb_agg(n) from generate_series(1, 51) n)",
    "a running row without an owner": RUNNING.replace("'A'", "null"),
    "a running row with an empty owner": RUNNING.replace("'A'", "''"),
    "an owner of 201 bytes": RUNNING.replace("'A'", "repeat('x', 201)"),
    "a running row without an end": RUNNING.replace("locked_until = jobqueue.now()", "locked_until = null"),
    "a running row that never ends": RUNNING.replace("locked_until = jobqueue.now()", "locked_until = 'infinity'"),
    "a running row without an epoch": RUNNING.replace("epoch = 1", "epoch = 0"),
    "a running row without an attempt": RUNNING.replace("attempts = 1", "attempts = 0"),
    "a ready row with an owner": "locked_by = 'A'",
    "a ready row with an end of lease": "locked_until = jobqueue.now()",
    "a ready row without an attempt left": "attempts = max_attempts",
    "more lost leases than attempts": "lease_losses = 1",
    "negative lost leases": "lease_losses = -1",
    "negative releases": "releases = -1",
    "a negative epoch": "epoch = -1",
    "a done row that names no epoch": "status = 'done', finished_at = jobqueue.now()",
}


@pytest.mark.parametrize("assignments", BROKEN.values(), ids=BROKEN)
def test_the_database_refuses_a_row_that_breaks_a_promise_in_a_sentence(conn, queue, assignments):
    queue.enqueue("mail", key="k")
    with pytest.raises(psycopg.errors.CheckViolation) as caught:
        conn.execute(f"update jobqueue.job set {assignments}")
    assert len(caught.value.diag.constraint_name.split()) >= 3, caught.value.diag.constraint_name


KEY = "insert into jobqueue.job_key (key, job_id, fingerprint) values ({}, 1, 1)"
SCHEDULE = "insert into jobqueue.schedule (id, job_type, cron{0}) values ('s', 'mail', '* * * * *'{1})"
OTHERS = {
    "a registered key of 513 bytes": KEY.format("repeat('x', 513)"),
    "an empty registered key": KEY.format("''"),
    "a schedule id of 401 bytes": SCHEDULE.format("", "").replace("'s'", "repeat('x', 401)"),
    "an empty schedule id": SCHEDULE.format("", "").replace("'s'", "''"),
    "a cron of 201 characters": SCHEDULE.format("", "").replace("'* * * * *'", "repeat('*', 201)"),
    "a schedule of an empty type": SCHEDULE.format("", "").replace("'mail'", "''"),
    "a schedule without attempts": SCHEDULE.format(", max_attempts", ", 0"),
    "an unknown misfire policy": SCHEDULE.format(", misfire", ", 'sometimes'"),
    "an unknown overlap policy": SCHEDULE.format(", overlap", ", 'sometimes'"),
    "a negative spread": SCHEDULE.format(", spread_seconds", ", -1"),
    "a negative grace": SCHEDULE.format(", misfire_grace_seconds", ", -1"),
    "a negative catch-up": SCHEDULE.format(", max_catch_up", ", -1"),
    "an empty paused type": "insert into jobqueue.paused_type (type) values ('')",
}


@pytest.mark.parametrize("statement", OTHERS.values(), ids=OTHERS)
def test_the_other_tables_refuse_what_is_out_of_bounds_in_a_sentence_too(conn, statement):
    with pytest.raises(psycopg.errors.CheckViolation) as caught:
        conn.execute(statement)
    assert len(caught.value.diag.constraint_name.split()) >= 3, caught.value.diag.constraint_name


# ---- backoff -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"shape": "quadratic"},
        {"jitter": "some"},
        {"base_seconds": -1},
        {"base_seconds": NAN},
        {"base_seconds": INF},
        {"factor": NAN},
        {"factor": -1},
        {"floor_seconds": -1},
        {"floor_seconds": 10, "ceiling_seconds": 5},
        {"ceiling_seconds": INF},
        {"ceiling_seconds": NAN},
        {"base_seconds": "1"},
        {"shape": None},
    ],
    ids=str,
)
def test_a_backoff_that_makes_no_sense_is_refused_when_it_is_made(refuses, options):
    refuses(list(options)[-1].split("_")[0], lambda: Backoff(**options))


@pytest.mark.parametrize("attempt", [0, -1, 1.5, True, "1", None])
def test_a_backoff_has_no_delay_before_the_first_attempt(refuses, attempt):
    refuses("attempt", lambda: Backoff().delay(attempt, random.Random(1)))


# ---- wrong databases -----------------------------------------------------------------------------------------------

DSNS = {
    "nobody listens": "postgresql://ada:s3cr3t-word@127.0.0.1:1/x",
    "unknown host": "postgresql://ada:s3cr3t-word@no-such-host.invalid/x",
    "bad percent sign in the password": "postgresql://ada:s3cr3t-%zz-word@127.0.0.1:1/x",
    "bad port": "postgresql://ada:s3cr3t-word@127.0.0.1:port/x",
    "no equals sign": "host=127.0.0.1 port=1 password=s3cr3t-word and more",
    "open quote": "host=127.0.0.1 port=1 password='s3cr3t-word",
    "unknown option": "host=127.0.0.1 port=1 password=s3cr3t-word passwort=s3cr3t-word",
    "password as an option of the address": "postgresql://ada@127.0.0.1:1/x?password=s3cr3t-word&nonsense=1",
}


@pytest.mark.parametrize("dsn", DSNS.values(), ids=DSNS)
def test_a_wrong_dsn_is_one_clear_line_on_the_command_line_without_the_password(dsn):
    done = subprocess.run(
        [sys.executable, "-m", "jobqueue", "stats", "--dsn", dsn],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PGCONNECT_TIMEOUT": "2"},
    )
    lines = done.stderr.strip().splitlines()
    assert (
        done.returncode,
        len(lines),
        "s3cr3t" in done.stderr + done.stdout,
        bool(re.search("database|connect|DSN", lines[0])),
    ) == (1, 1, False, True), done.stderr


@pytest.mark.parametrize("dsn", DSNS.values(), ids=DSNS)
def test_a_wrong_dsn_raises_without_the_password_anywhere_in_the_chain(dsn):
    from jobqueue import Reaper

    with pytest.raises(JobQueueError) as caught:
        Reaper(dsn).run_once()
    chain, error = [], caught.value
    while error is not None:
        chain.append(str(error))
        error = error.__cause__ or error.__context__
    assert not [text for text in chain if "s3cr3t" in text]
