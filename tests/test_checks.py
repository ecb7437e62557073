"""Checkers: each finds its own violation in a history made by hand and names its members, and none in an honest one."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from jobqueue import Schedules
from jobqueue.lab import checks
from jobqueue.lab.history import (
    OK,
    UNKNOWN,
    Call,
    Effect,
    End,
    History,
    Policy,
    Row,
    Slot,
    from_database,
    merge,
    slots_expected,
)

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def at(seconds):
    return NOON + timedelta(seconds=seconds)


def call(verb, seconds, *, answer=OK, outcome=None, job=1, **told):
    """A call that took no time, of a client that is its owner."""
    client = told.get("owner") or "client"
    return Call(
        client, int(seconds * 10), verb, answer, outcome, job, invoked_at=at(seconds), answered_at=at(seconds), **told
    )


def grant(seconds, epoch, owner="A", lease=10, verb="claim", **told):
    return call(verb, seconds, owner=owner, epoch=epoch, until=at(seconds + lease), lease_seconds=lease, **told)


def applied(verb, seconds, epoch, owner="A", outcome="APPLIED", **told):
    return call(verb, seconds, owner=owner, epoch=epoch, outcome=outcome, **told)


def done(epoch=1, **told):
    return Row(1, status="done", attempts=epoch, epoch=epoch, finished_epoch=epoch, finished_by="A", **told)


def ran(slot, created, id=1, ended=1e6):
    """A job of a slot; it has ended at an instant, or has not."""
    finished = None if ended is None else at(ended)
    return Row(id, status="done", schedule_id="s", slot=at(slot), created_at=at(created), finished_at=finished)


SLOT = "s at 2030-01-01T12:01:00Z"
HONEST = History(
    calls=(
        call("enqueue", 0, key="k", created=True),
        grant(0, 1),
        applied("heartbeat", 5, 1, lease_seconds=10),
        grant(15, 2, "B", verb="adopt"),
        applied("complete", 16, 1, outcome="LOST"),
        applied("complete", 17, 2, "B"),
    ),
    rows=(
        replace(done(2), key="k", lease_losses=1, history=(End(at(15), "lost", "A", 1),)),
        Row(2, status="done", attempts=1, epoch=1, finished_epoch=1, schedule_id="s", slot=at(60)),
    ),
    effects=(
        Effect("inside", "k", 1, 2),
        Effect("outside", "k", 1, 1, once=False),
        Effect("outside", "k", 1, 2, once=False),
    ),
    missed=(Slot("s", at(120), "misfire"),),
    expected=(Slot("s", at(60)), Slot("s", at(120))),
    policies=(Policy("s", "skip"),),
    settled=True,
)

BROKEN = {
    "lost": [
        (History((call("enqueue", 0, created=True),)), "job 1"),
        (History(rows=(Row(1, status="ready"),), settled=True), "job 1"),
        (History(rows=(Row(1, status="running", attempts=1, epoch=1),), settled=True), "job 1"),
    ],
    "duplicated effect": [(History(effects=(Effect("inside", "k", 1, 1), Effect("inside", "k", 1, 2))), "k at inside")],
    "stale write accepted": [
        (History((grant(0, 1), grant(10, 2, "B"), applied(verb, 11, 1))), "job 1")
        for verb in ("complete", "heartbeat", "publish", "fail", "release")
    ]
    + [(History(rows=(replace(done(2), finished_epoch=1),)), "job 1")],
    "two valid authorities": [
        (History((grant(0, 1), grant(9.999, 2, "B", verb="adopt"))), "job 1"),
        (History((grant(0, 1), applied("heartbeat", 8, 1, lease_seconds=10), grant(15, 2, "B"))), "job 1"),
        (
            History(
                (grant(0, 1), grant(5, 2, "B")), (Row(1, epoch=2, attempts=2, history=(End(at(4), "lost", "A", 1),)),)
            ),
            "job 1",
        ),
        (History((grant(0, 1), grant(5, 1, "B"))), "job 1"),
    ],
    "epoch not increasing": [
        (History((grant(0, 2), grant(20, 2, "B"))), "job 1"),
        (History((grant(0, 2), grant(20, 1, "B"))), "job 1"),
        (History((grant(0, 3),), (Row(1, epoch=2, attempts=2),)), "job 1"),
    ],
    "slot fired twice": [
        (
            History(rows=(Row(1, schedule_id="s", slot=at(60)), Row(2, schedule_id="s", slot=at(60), archived=True))),
            "s at 2030-01-01T12:01:00Z",
        )
    ],
    "slot never fired": [(History(expected=(Slot("s", at(60)),)), "s at 2030-01-01T12:01:00Z")],
    "slot against its policy": [
        (History(rows=(ran(60, 61),), missed=(Slot("s", at(60), "misfire"),), policies=(Policy("s"),)), SLOT),
        (History(rows=(ran(60, 200),), policies=(Policy("s", "skip"),)), SLOT),
        (History(rows=(ran(60, 300), ran(120, 300, 2)), policies=(Policy("s", "last"),)), SLOT),
        (History(rows=(ran(0, 1),), missed=(Slot("s", at(60), "misfire"),), policies=(Policy("s", "last"),)), SLOT),
        (History(rows=(ran(120, 121),), missed=(Slot("s", at(60), "misfire"),), policies=(Policy("s", "all"),)), SLOT),
        (History(rows=(ran(120, 121),), missed=(Slot("s", at(60), "overlap"),), policies=(Policy("s"),)), SLOT),
        (History(missed=(Slot("s", at(60), "overlap"),), policies=(Policy("s", overlap="skip"),)), SLOT),
        (History(rows=(ran(0, 1, ended=70), ran(60, 61, 2)), policies=(Policy("s", overlap="skip"),)), SLOT),
        (History(rows=(ran(0, 1, ended=None), ran(60, 61, 2)), policies=(Policy("s", overlap="skip"),)), SLOT),
    ],
    "terminal state left": [
        (History((grant(0, 1), applied("complete", 1, 1), grant(2, 2, "B"))), "job 1"),
        (History((grant(0, 1), applied("complete", 1, 1)), (Row(1, status="ready", epoch=1, attempts=1),)), "job 1"),
        (
            History(rows=(Row(1, status="ready", epoch=1, history=(End(at(1), "failed_permanently", "A", 1),)),)),
            "job 1",
        ),
        (
            History(
                rows=(
                    Row(
                        1,
                        status="dead",
                        epoch=2,
                        attempts=5,
                        history=(End(at(1), "cancelled", "A", 1), End(at(2), "lost", "A", 2)),
                    ),
                )
            ),
            "job 1",
        ),
    ],
    "attempts over budget": [
        (History(rows=(Row(1, attempts=6, epoch=6),)), "job 1"),
        (History(rows=(Row(1, attempts=1, lease_losses=2, epoch=2),)), "job 1"),
        (History((grant(0, 1), grant(10, 2)), (Row(1, attempts=1, max_attempts=1, epoch=2),)), "job 1"),
    ],
    "resurrected after cancel": [
        (History((grant(0, 1), call("cancel", 1, outcome="cancelled", created=True), grant(2, 2, "B"))), "job 1"),
        (
            History((grant(0, 1), call("cancel", 1, outcome="cancelled", created=True), applied("publish", 2, 1))),
            "job 1",
        ),
    ],
    "one key two jobs": [
        (
            History(
                (call("enqueue", 0, key="k"), call("enqueue", 1, key="k", job=2)), (Row(1, key="k"), Row(2, key="k"))
            ),
            "k",
        ),
        (History(rows=(Row(1, key="k"), Row(2, key="k", archived=True))), "k"),
    ],
}


def test_nothing_is_found_in_an_honest_history():
    assert checks.check(HONEST) == []


def test_every_checker_has_a_history_that_breaks_it():
    assert set(BROKEN) == set(checks.CHECKS)


@pytest.mark.parametrize(
    "name, broken, member",
    [(name, broken, member) for name, cases in BROKEN.items() for broken, member in cases],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_checker_finds_its_violation_and_names_its_member(name, broken, member):
    assert member in {violation.member for violation in checks.CHECKS[name](broken) if violation.check == name}


def test_one_lost_and_one_doubled_do_not_cancel_out():
    history = History(
        calls=(call("enqueue", 0, job=1, created=True), call("enqueue", 1, job=2, created=True)),
        rows=(Row(2),),
        effects=(Effect("inside", "b", 2, 1), Effect("inside", "b", 2, 2)),
    )
    assert [(one.check, one.member) for one in checks.check(history)] == [
        ("lost", "job 1"),
        ("duplicated effect", "b at inside"),
    ]


@pytest.mark.parametrize(
    "honest",
    [
        History((grant(0, 1), applied("publish", 9.9, 1), grant(10, 2, "B"))),
        History((grant(0, 1), applied("release", 3, 1), grant(4, 2, "B"))),
        History((grant(0, 1), applied("complete", 3, 1, answer=UNKNOWN, outcome=None), grant(4, 2, "B"))),
        History(
            (grant(0, 1), call("cancel", 1, outcome="cancelled", created=True), call("redrive", 2), grant(3, 2, "B"))
        ),
        History(
            (grant(0, 1), grant(4, 2, "B")), (Row(1, epoch=2, attempts=1, history=(End(at(3), "released", "A", 1),)),)
        ),
        History((call("enqueue", 0, answer=UNKNOWN),)),
        History(
            (grant(0, 1), grant(11, 2), grant(22, 3)),
            (
                Row(
                    1,
                    epoch=3,
                    attempts=1,
                    max_attempts=1,
                    history=(
                        End(at(10), "released", "A", 1),
                        End(at(21), "lost", "A", 2),
                        End(at(21), "redriven", None, 2),
                    ),
                ),
            ),
        ),
        History(
            rows=(
                Row(
                    1,
                    status="ready",
                    epoch=1,
                    history=(End(at(1), "cancelled", "A", 1), End(at(2), "redriven", None, 1)),
                ),
            )
        ),
        History((applied("complete", 5, 1, answer=UNKNOWN), grant(6, 2, "B"))),
    ],
    ids=[
        "published before the other's grant",
        "released early",
        "unknown end",
        "cancelled, redriven",
        "released behind the recorder's back",
        "unknown enqueue",
        "redriven and released",
        "cancelled and redriven",
        "unknown completion",
    ],
)
def test_what_may_rightly_happen_is_no_violation(honest):
    assert checks.check(honest) == []


def test_the_table_has_a_row_for_each_checker_with_its_promise():
    table = checks.table(HONEST)
    assert (
        list(table["check"]),
        set(table["violations"]),
        all(text.endswith((".", ")")) for text in table["promise"]),
    ) == (list(checks.CHECKS), {0}, True)


def test_a_violation_shows_its_evidence():
    [found] = checks.check(History((grant(0, 1), grant(10, 2, "B"), applied("complete", 11, 1))))
    assert (found.detail, len(found.evidence)) == ("complete by epoch 1 was applied after epoch 2 had been granted", 2)


def test_the_slots_of_the_real_scheduler_keep_to_their_policies(virtual_conn, clock, virtual_queue):
    """Ten minutes without a scheduler, then a job that does not end before the next slot."""
    schedules = Schedules(virtual_conn)
    policies = [(misfire, overlap) for misfire in ("skip", "last", "all") for overlap in ("allow", "skip")]
    for misfire, overlap in policies:
        schedules.put(
            f"{misfire} {overlap}", "t", "* * * * *", misfire=misfire, overlap=overlap, misfire_grace_seconds=5
        )
    beginning = clock.now
    for seconds in (60, 600, 61, 60):
        clock.advance(seconds)
        schedules.tick()
    slots = [slots_expected(name, "* * * * *", after=beginning, until=clock.now) for name in map(" ".join, policies)]
    found = merge(from_database(virtual_conn), *slots)
    assert checks.check(found) == []
    swapped = [replace(one, misfire="all", overlap="allow") for one in found.policies]
    told = {one.member.split(" at ")[0] for one in checks.check(replace(found, policies=tuple(swapped)))}
    assert told == {" ".join(each) for each in policies} - {"all allow"}
