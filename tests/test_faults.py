"""Faults as data: frozen, checked, and the same after a trip through JSON."""

import pytest

from jobqueue.errors import InvalidInput
from jobqueue.lab import faults
from jobqueue.lab.charts import fault as spells

PLAN = [
    faults.kill(3, at=600), faults.kill("reaper", at=1, seconds=5), faults.start(3, at=700),
    faults.freeze(1, at=10, seconds=90), faults.freeze(0, at=3), faults.resume(0, at=20), faults.stop(2, at=30),
    faults.cut(1, at=40), faults.slow(1, at=5, seconds=60), faults.slow("mail", at=5, seconds=60, factor=3),
    faults.skew(2, at=6, by_seconds=-3600, seconds=30), faults.skew("scheduler-2", at=6, by_seconds=86400),
    faults.down("mail", at=9, seconds=600, capacity=5), faults.poison(at=50),
    faults.burst(at=60, n=100, service_seconds=0.5), faults.outage(at=70, seconds=30), faults.crash_database(at=80),
]  # fmt: skip


def test_a_plan_is_the_same_after_json():
    assert faults.loads(faults.dumps(PLAN)) == PLAN


def test_a_plan_is_the_same_after_its_listing():
    assert faults.parse("# a comment\n\n" + faults.listed(PLAN)) == sorted(PLAN, key=lambda fault: fault.at)


def test_a_listing_reads_as_a_person_would_write_it():
    assert faults.listed([faults.kill(3, at=6, seconds=1.5), faults.Fault(2, "outage", "database fast", 3)]) == (
        "2 outage database fast seconds=3\n6 kill worker-3 seconds=1.5\n"
    )


@pytest.mark.parametrize("line, words", [
    ("3 kill", "line 2: a fault is: seconds, kind, target, then name=value as the kind needs it"),
    ("soon kill worker-1", "line 2: could not convert string to float: 'soon'"),
    ("3 explode worker-1", "line 2: a fault is one of kill, start"),
    ("3 kill worker-1 minutes=3", "line 2: a fault has no 'minutes'"),
    ("3 burst job n=2.5 service_seconds=1", "line 2: invalid literal for int"),
    ("3 slow job seconds=5", "line 2: a fault of kind slow needs factor"),
])  # fmt: skip
def test_a_line_that_is_no_fault_is_named(line, words):
    with pytest.raises(InvalidInput, match=f"^{words}"):
        faults.parse(f"1 cut worker-0\n{line}")


def test_json_holds_only_what_is_said():
    assert faults.dumps(PLAN[:1]) == '[{"at": 600, "kind": "kill", "target": "worker-3"}]'


def test_every_kind_can_be_made():
    assert {fault.kind for fault in PLAN} == set(faults.KINDS)


def test_a_fault_is_frozen():
    with pytest.raises(AttributeError):
        PLAN[0].at = 3


def test_a_plan_is_ordered_by_time_and_knows_its_workers():
    assert [fault.at for fault in faults.check(PLAN, 4)] == sorted(fault.at for fault in PLAN)
    assert (PLAN[0].worker, PLAN[1].worker, PLAN[9].worker) == (3, None, None)


def test_a_frame_of_faults_is_what_charts_ask_for():
    found = spells.spells(
        faults.frame([faults.kill(3, at=600, seconds=30), faults.freeze(1, at=10), faults.resume(1, at=20)]), 1000
    )
    assert [(one.kind, one.target, one.start, one.end) for one in found] == [
        ("pause", "worker-1", 10, 20),
        ("kill", "worker-3", 600, 630),
    ]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: faults.kill("janitors", at=1), "a worker is named by its place"),
        (lambda: faults.kill(-1, at=1), "worker must lie in 0–"),
        (lambda: faults.kill(True, at=1), "worker must be a whole number"),
        (lambda: faults.freeze(1, at=-1), "at must lie in 0–"),
        (lambda: faults.slow(1, at=1, seconds=5, factor=0), "factor must lie in"),
        (lambda: faults.Fault(1, "skew", "worker-1"), "a fault of kind skew needs by_seconds"),
        (lambda: faults.skew(1, at=1, by_seconds=1e10), "by_seconds must lie in -1,000,000,000"),
        (lambda: faults.kill("reaper-two", at=1), "a worker is named by its place"),
        (lambda: faults.burst(at=1, n=0), "n must lie in 1–"),
        (lambda: faults.Fault(1, "explode", "worker-1"), "a fault is one of kill, start"),
        (lambda: faults.Fault(1, "slow", "worker-1", 5), "a fault of kind slow needs factor"),
        (lambda: faults.Fault(1, "outage", "database"), "a fault of kind outage needs seconds"),
        (
            lambda: faults.check([faults.Fault(1, "kill", "mail")], 3),
            "kill at 1 s aims at 'mail': no worker, nor reaper or scheduler",
        ),
        (lambda: faults.loads("["), "a plan of faults is JSON"),
        (lambda: faults.loads('{"at": 1}'), "a plan of faults is a JSON list"),
        (lambda: faults.loads('[{"at": 1, "kind": "kill", "goal": 3}]'), "fault 0: "),
        (lambda: faults.check(PLAN, 3), "kill at 600 s aims at worker-3, but there are worker-0 to worker-2"),
    ],
)
def test_what_is_no_fault_is_refused(make, words):
    with pytest.raises(InvalidInput, match=words):
        make()
