"""The table of Outcomes of DESIGN §3, cell by cell, for live and archived rows, on virtual time."""

from dataclasses import replace

import psycopg
import pytest

from jobqueue import Backoff, InfrastructureError, Outcome, Queue

pytestmark = pytest.mark.shared

NAME, DIGEST, OTHER = "report.csv", "ab" * 32, "cd" * 32
EVERY_END = ("done", "failed", "dead", "cancelled")
AT_ONCE = Backoff(shape="constant", base_seconds=0, jitter="none")

# Left: what happened to a job after A claimed it (B is somebody else). Right: what A hears when it speaks now.
# `strict` is complete(strict=True), `refuse` fail(permanent=True), `digest` reconcile(name=…, digest=…).
TABLE = """
what happened             complete  strict    fail      refuse    release   heartbeat publish   reconcile digest
# the UPDATE hits the row; reconcile, which changes nothing, says that it is still mine
claim                     applied   applied   applied   applied   applied   applied   applied   held      held
expire                    applied   expired   applied   applied   applied   applied   expired   held      expired
# no row
complete archive forget   unknown   unknown   unknown   unknown   unknown   unknown   unknown   unknown   unknown
# published by me: a fact that no later end changes
publish                   applied   applied   applied   applied   applied   applied   already   held      already
publish-other             applied   applied   applied   applied   applied   applied   conflict  held      conflict
publish expire            applied   expired   applied   applied   applied   applied   already   held      already
publish complete          already   already   conflict  conflict  conflict  conflict  already   already   already
publish-other complete    already   already   conflict  conflict  conflict  conflict  conflict  already   conflict
publish fail              conflict  conflict  already   conflict  conflict  conflict  already   conflict  already
publish cancel            cancelled cancelled cancelled cancelled cancelled cancelled already   cancelled already
publish expire reap       lost      lost      lost      lost      lost      lost      already   lost      already
publish fail B B-publish  conflict  conflict  already   conflict  conflict  conflict  conflict  conflict  conflict
# done by me
complete                  already   already   conflict  conflict  conflict  conflict  conflict  already   conflict
# history: me failed
fail                      conflict  conflict  already   conflict  conflict  conflict  conflict  conflict  conflict
once fail                 conflict  conflict  already   conflict  conflict  conflict  conflict  conflict  conflict
fail B                    conflict  conflict  already   conflict  conflict  conflict  conflict  conflict  conflict
fail B B-complete         conflict  conflict  already   conflict  conflict  conflict  conflict  conflict  conflict
once fail redrive B       conflict  conflict  already   conflict  conflict  conflict  conflict  conflict  conflict
# history: me failed permanently
refuse                    conflict  conflict  conflict  already   conflict  conflict  conflict  conflict  conflict
refuse redrive B          conflict  conflict  conflict  already   conflict  conflict  conflict  conflict  conflict
# history: me released
release                   conflict  conflict  conflict  conflict  already   conflict  conflict  conflict  conflict
release B                 conflict  conflict  conflict  conflict  already   conflict  conflict  conflict  conflict
release B B-complete      conflict  conflict  conflict  conflict  already   conflict  conflict  conflict  conflict
release cancel            conflict  conflict  conflict  conflict  already   conflict  conflict  conflict  conflict
# history: me cancelled; or me lost and the row cancelled at my epoch
cancel                    cancelled cancelled cancelled cancelled cancelled cancelled cancelled cancelled cancelled
expire cancel             cancelled cancelled cancelled cancelled cancelled cancelled cancelled cancelled cancelled
expire reap cancel        cancelled cancelled cancelled cancelled cancelled cancelled cancelled cancelled cancelled
cancel redrive B          cancelled cancelled cancelled cancelled cancelled cancelled cancelled cancelled cancelled
# history: me lost
expire reap               lost      lost      lost      lost      lost      lost      lost      lost      lost
once expire reap          lost      lost      lost      lost      lost      lost      lost      lost      lost
expire adopt              lost      lost      lost      lost      lost      lost      lost      lost      lost
expire reap B             lost      lost      lost      lost      lost      lost      lost      lost      lost
expire reap B cancel      lost      lost      lost      lost      lost      lost      lost      lost      lost
expire reap B B-complete  lost      lost      lost      lost      lost      lost      lost      lost      lost
# a database that was set back: the row's epoch is below mine
rewind                    lost      lost      lost      lost      lost      lost      lost      lost      lost
# anything else: a later epoch, another owner of my epoch, my end trimmed away
expire reap B trim        lost      lost      lost      lost      lost      lost      lost      lost      lost
fail trim                 lost      lost      lost      lost      lost      lost      lost      lost      lost
release B trim            lost      lost      lost      lost      lost      lost      lost      lost      lost
cancel trim               lost      lost      lost      lost      lost      lost      lost      lost      lost
usurp                     lost      lost      lost      lost      lost      lost      lost      lost      lost
usurp B-complete          lost      lost      lost      lost      lost      lost      lost      lost      lost
"""
WORDS = {
    "applied": Outcome.APPLIED,
    "already": Outcome.ALREADY_APPLIED,
    "expired": Outcome.LEASE_EXPIRED,
    "lost": Outcome.LOST,
    "cancelled": Outcome.CANCELLED,
    "conflict": Outcome.CONFLICT,
    "unknown": Outcome.UNKNOWN_JOB,
    "held": Outcome.HELD,
}
VERBS = {
    "complete": lambda queue, lease: queue.complete(lease),
    "strict": lambda queue, lease: queue.complete(lease, strict=True),
    "fail": lambda queue, lease: queue.fail(lease, "boom", delay_seconds=0),
    "refuse": lambda queue, lease: queue.fail(lease, "never", permanent=True),
    "release": lambda queue, lease: queue.release(lease, "stop"),
    "heartbeat": lambda queue, lease: queue.heartbeat(lease, lease_seconds=10),
    "publish": lambda queue, lease: queue.publish(lease, NAME, DIGEST),
    "reconcile": lambda queue, lease: queue.reconcile(lease),
    "digest": lambda queue, lease: queue.reconcile(lease, name=NAME, digest=DIGEST),
    "complete_many": lambda queue, lease: queue.complete_many([lease])[0],
    "heartbeat_many": lambda queue, lease: queue.heartbeat_many([lease], lease_seconds=10)[0],
}


def lines():
    """The table as (steps, {verb: Outcome}), one pair a line."""
    head, *rows = [line for line in TABLE.strip().splitlines() if not line.startswith("#")]
    verbs = head[26:].split()
    return [(row[:26].strip(), dict(zip(verbs, map(WORDS.get, row[26:].split()), strict=True))) for row in rows]


def is_finished(steps):
    *_, last = steps.split()
    return last in ("complete", "B-complete", "refuse", "cancel") or steps in ("once fail", "once expire reap")


class Story:
    """One job and what happens to it: A's lease is `mine`, B's is `other`."""

    def __init__(self, conn, queue, clock, type):
        self.conn, self.queue, self.clock, self.type = conn, queue, clock, type

    def tell(self, steps):
        self.id = self.queue.enqueue(self.type, max_attempts=1 if "once" in steps else 5).id
        self.mine = self.claim("A")
        self.other = replace(self.mine, owner="B")
        for step in steps.split():
            STEPS[step](self)
        return self

    def claim(self, owner):
        [lease] = self.queue.claim(owner, lease_seconds=10, types=[self.type])
        return lease

    def take(self, lease):
        self.other = lease

    def by_hand(self, statement):
        self.conn.execute(statement, (self.id,))

    def archive(self):
        self.clock.advance(1)
        self.queue.archive(older_than_seconds=0, statuses=EVERY_END)


STEPS = {
    "once": lambda story: None,
    "claim": lambda story: None,
    "complete": lambda story: story.queue.complete(story.mine),
    "fail": lambda story: story.queue.fail(story.mine, "boom", delay_seconds=0),
    "refuse": lambda story: story.queue.fail(story.mine, "never", permanent=True),
    "release": lambda story: story.queue.release(story.mine, "stop"),
    "publish": lambda story: story.queue.publish(story.mine, NAME, DIGEST),
    "publish-other": lambda story: story.queue.publish(story.mine, NAME, OTHER),
    "expire": lambda story: story.clock.advance(10),
    "reap": lambda story: story.queue.reap(backoff=AT_ONCE),
    "cancel": lambda story: story.queue.cancel(story.id),
    "redrive": lambda story: story.queue.redrive([story.id], cancelled=True),
    "adopt": lambda story: story.take(story.queue.adopt(story.id, "B")),
    "B": lambda story: story.take(story.claim("B")),
    "B-complete": lambda story: story.queue.complete(story.other),
    "B-publish": lambda story: story.queue.publish(story.other, NAME, OTHER),
    "archive": Story.archive,
    "forget": lambda story: story.by_hand("delete from jobqueue.job_archive where id = %s"),
    "rewind": lambda story: story.by_hand("""update jobqueue.job set status = 'ready', epoch = 0, attempts = 0,
        locked_by = null, locked_until = null, started_at = null where id = %s"""),
    "trim": lambda story: story.by_hand("""update jobqueue.job set history = '[]',
        history_trimmed = history_trimmed + jsonb_array_length(history) where id = %s"""),
    "usurp": lambda story: story.by_hand("update jobqueue.job set locked_by = 'B' where id = %s"),
}


def stored(conn, job_id):
    """The row as the database has it, live or archived."""
    live = conn.execute("select to_jsonb(j) from jobqueue.job j where id = %s", (job_id,)).fetchone()
    return live or conn.execute("select to_jsonb(j) from jobqueue.job_archive j where id = %s", (job_id,)).fetchone()


@pytest.fixture
def tell(virtual_conn, virtual_queue, clock):
    """tell(steps, verb) -> a fresh job's Story; a type of its own keeps one cell's claims out of another's."""
    return lambda steps, verb: Story(virtual_conn, virtual_queue, clock, f"cell {verb}").tell(steps)


def ask(story, verb):
    """The Outcome; a verb that was not applied must have left the row as it was."""
    before = stored(story.conn, story.id)
    outcome = VERBS[verb](story.queue, story.mine)
    unchanged = stored(story.conn, story.id) == before
    return outcome if unchanged or outcome is Outcome.APPLIED else f"{outcome.name} but the row changed"


@pytest.mark.parametrize("steps, expected", lines(), ids=[steps for steps, _ in lines()])
def test_every_verb_answers_as_the_table_says(tell, steps, expected):
    assert {verb: ask(tell(steps, verb), verb) for verb in expected} == expected


ENDED = [(steps, expected) for steps, expected in lines() if is_finished(steps)]


@pytest.mark.parametrize("steps, expected", ENDED, ids=[steps for steps, _ in ENDED])
def test_an_archived_row_answers_like_the_live_one(tell, steps, expected):
    assert {verb: ask(tell(steps + " archive", verb), verb) for verb in expected} == expected


@pytest.mark.parametrize("steps, expected", lines(), ids=[steps for steps, _ in lines()])
def test_complete_many_and_heartbeat_many_answer_like_the_single_verbs(tell, steps, expected):
    answers = {verb: ask(tell(steps, verb), verb) for verb in ("complete_many", "heartbeat_many")}
    assert answers == {"complete_many": expected["complete"], "heartbeat_many": expected["heartbeat"]}


def test_the_many_verbs_answer_in_the_order_of_their_leases(tell, virtual_queue):
    leases = [tell(steps, steps).mine for steps in ("cancel", "complete", "claim", "fail", "usurp")]
    assert [outcome.name for outcome in virtual_queue.complete_many(leases)] == [
        "CANCELLED",
        "ALREADY_APPLIED",
        "APPLIED",
        "CONFLICT",
        "LOST",
    ]


def test_the_same_lease_twice_in_one_batch_gets_two_answers(tell, virtual_queue):
    lease = tell("claim", "twice").mine
    assert set(virtual_queue.complete_many([lease, lease])) <= {Outcome.APPLIED, Outcome.ALREADY_APPLIED}


def test_a_stranger_with_my_epoch_in_my_batch_is_not_told_applied(tell, virtual_queue):
    mine = tell("claim", "batch").mine
    leases = [mine, replace(mine, owner="B")]
    assert [virtual_queue.heartbeat_many(leases), virtual_queue.complete_many(leases)] == [
        [Outcome.APPLIED, Outcome.LOST]
    ] * 2


def test_two_epochs_of_one_job_in_one_batch_get_their_own_answers(tell, virtual_queue):
    story = tell("fail B", "epochs")
    assert virtual_queue.complete_many([story.mine, story.other, story.mine]) == [
        Outcome.CONFLICT,
        Outcome.APPLIED,
        Outcome.CONFLICT,
    ]


def test_the_many_verbs_take_an_empty_list(virtual_queue):
    assert (virtual_queue.complete_many([]), virtual_queue.heartbeat_many([])) == ([], [])


def test_a_job_that_never_was_is_unknown_to_every_verb(tell, virtual_queue):
    stranger = replace(tell("claim", "any").mine, id=10**12)
    assert {verb(virtual_queue, stranger) for verb in VERBS.values()} == {Outcome.UNKNOWN_JOB}


def test_another_epoch_under_my_own_name_is_lost_and_changes_nothing(tell, virtual_queue):
    story = tell("expire", "own name")
    virtual_queue.adopt(story.id, "A")
    assert {verb: ask(story, verb) for verb in VERBS} == dict.fromkeys(VERBS, Outcome.LOST)


SWALLOW = """
create sequence public.tries;
create function public.swallow() returns trigger language plpgsql as
$$ begin perform nextval('public.tries'); return null; end $$;
create trigger swallow before update on jobqueue.job for each row execute function public.swallow();
"""


@pytest.fixture
def swallowing(virtual_conn):
    """A function that makes every UPDATE of a job hit nothing from now on, and counts them."""
    yield lambda: virtual_conn.execute(SWALLOW)
    virtual_conn.execute("drop function public.swallow cascade; drop sequence public.tries")


@pytest.mark.parametrize("verb", ["complete", "strict", "fail", "refuse", "release", "heartbeat", "publish"])
def test_an_update_that_never_lands_is_sent_again_twice_at_most_and_then_raises(
    tell, virtual_conn, virtual_queue, swallowing, verb
):
    lease = tell("claim", verb).mine
    swallowing()
    with pytest.raises(InfrastructureError):
        VERBS[verb](virtual_queue, lease)
    assert virtual_conn.execute("select last_value from public.tries").fetchone()[0] in (2, 3)


SPEAKING = [
    "complete",
    "strict",
    "fail",
    "refuse",
    "release",
    "heartbeat",
    "publish",
    "reconcile",
    "complete_many",
    "heartbeat_many",
]


@pytest.mark.parametrize("verb", SPEAKING)
def test_a_repeatable_read_snapshot_older_than_the_claim_raises_instead_of_saying_lost(dsn, queue, verb):
    queue.enqueue("mail")
    with psycopg.connect(dsn) as old:
        take_snapshot(old)
        [lease] = queue.claim("A")
        with pytest.raises(InfrastructureError):
            VERBS[verb](Queue(old), lease)


@pytest.mark.parametrize("verb", SPEAKING)
def test_a_repeatable_read_snapshot_older_than_the_job_raises_instead_of_saying_unknown(dsn, queue, verb):
    with psycopg.connect(dsn) as old:
        take_snapshot(old)
        queue.enqueue("mail")
        [lease] = queue.claim("A")
        with pytest.raises(InfrastructureError):
            VERBS[verb](Queue(old), lease)


def take_snapshot(conn):
    conn.execute("set transaction isolation level repeatable read")
    conn.execute("select from jobqueue.job")
