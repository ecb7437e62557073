"""Every mutant is caught, for the reason it is meant to show; on the shipped queue the same hunters find nothing."""

import pytest

from jobqueue.errors import JobQueueError
from jobqueue.lab import drills, mutants
from jobqueue.lab.mutants import MUTANTS, Edit, Mutant
from jobqueue.queue import Queue
from jobqueue.sql import SQL

SLOW = ("decision without a revision", "removal without a tombstone", "slot outside the job's transaction")


@pytest.fixture(scope="module")
def places(server):
    with mutants.places_on(server.dsn) as places:
        yield places


def marked(names):
    return [pytest.param(name, marks=pytest.mark.long if name in SLOW else ()) for name in names]


@pytest.mark.parametrize("name", marked(MUTANTS))
def test_a_mutant_is_caught(places, name):
    hunted = mutants.hunt(MUTANTS[name], places)
    checks = {violation.check for violation in hunted.checks}
    assert (hunted.catch is not None, set(MUTANTS[name].seen_by_checks) <= checks) == (True, True), checks


def test_there_are_more_than_twelve_by_every_kind_of_hunter():
    kinds = {mutants.kind(mutant) for mutant in MUTANTS.values()}
    assert (len(MUTANTS) > 12, kinds) == (True, {"explorer", "two sessions", "plan", "property"})


def test_the_unfenced_heartbeat_is_found_in_under_fifty_states(places):
    catch = mutants.hunt(MUTANTS["heartbeat by id"], places).catch
    assert (catch.unit, catch.tries < 50, catch.steps, catch.promise) == (
        "states",
        True,
        4,
        "a lease that has ended changes nothing",
    )


HUNTERS = {f"{mutants.kind(one)}: {one.hunter.args}": one.hunter for one in MUTANTS.values() if one.name not in SLOW}


@pytest.mark.parametrize("name", HUNTERS)
def test_the_same_hunter_finds_nothing_in_the_shipped_queue(places, name):
    assert HUNTERS[name](places) is None


@pytest.mark.long
@pytest.mark.parametrize("name", SLOW)
def test_the_slow_hunters_find_nothing_in_the_shipped_queue_either(places, name):
    assert MUTANTS[name].hunter(places) is None


def test_the_drill_sets_off_no_checker_on_the_shipped_queue(places):
    assert drills.run(places.virtual) == []


def test_the_drill_has_something_to_check(places):
    history = drills.record(places.virtual)
    assert ({call.verb for call in history.calls}, len(history.rows)) == (
        {"enqueue", "claim", "adopt", "heartbeat", "publish", "complete", "release", "reap", "cancel"},
        7,
    )


@pytest.mark.parametrize("name", MUTANTS)
def test_after_a_mutant_the_queue_is_the_shipped_one_again(name):
    before = dict(vars(SQL)), dict(vars(Queue))
    with MUTANTS[name].applied():
        pass
    assert (dict(vars(SQL)), dict(vars(Queue))) == before


def test_every_mutant_differs_from_the_shipped_queue():
    assert [mutant.name for mutant in MUTANTS.values() if not mutant.edits and not mutant.swaps] == []


def test_a_mutant_whose_text_is_gone_says_so():
    gone = Mutant("gone", "", None, (Edit("complete", "no such text", ""),))
    with pytest.raises(JobQueueError, match="has to be written anew"), gone.applied():
        pass


def test_a_mutant_that_gets_through_is_a_row_that_says_nothing_caught_it(places):
    harmless = Mutant(
        "harmless",
        "nothing of note",
        MUTANTS["jitter below zero"].hunter,
        (Edit("complete", "returning id", "returning  id"),),
    )
    row = mutants.table([mutants.hunt(harmless, places)]).iloc[0]
    assert (row["mutant"], row["caught by"], row["after"]) == ("harmless", "nothing", "")


def test_the_table_says_what_caught_a_mutant_and_after_how_much(places):
    row = mutants.table([mutants.hunt(MUTANTS["reaper by its own clock"], places)]).iloc[0]
    assert row[["caught by", "promise", "steps", "after", "checkers"]].tolist() == [
        "explorer",
        "no lease is taken away while it is in force",
        2,
        "5 states",
        "two valid authorities",
    ]
