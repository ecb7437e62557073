"""The scripts for two sessions: each shows what a statement must do while, or after, another session holds its row."""

import time

from ..model import Claim
from ..queue import Queue, claim_arguments
from ..schedules import Schedules
from ..sql import SQL as QUEUE
from .sessions import SQL, Script, Step

# ---------------------------------------------------------------- what they start from


def _ready(queue: Queue, notes: dict) -> None:
    notes["job"] = queue.enqueue("mail").id


def _running(queue: Queue, notes: dict, jobs: int = 1, lease_seconds: float = 60) -> None:
    queue.enqueue_many([{"type": "mail"}] * jobs)
    notes["leases"] = list(queue.claim("A", limit=jobs, lease_seconds=lease_seconds))
    notes["lease"] = notes["leases"][0]


def _three_running(queue: Queue, notes: dict) -> None:
    _running(queue, notes, 3)


def _briefly_running(queue: Queue, notes: dict) -> None:
    _running(queue, notes, lease_seconds=0.4)


def _expired(queue: Queue, notes: dict) -> None:
    _running(queue, notes)
    notes["watch"].execute(SQL.end_leases)


def _failed(queue: Queue, notes: dict) -> None:
    _running(queue, notes)
    queue.fail(notes["lease"], "never", permanent=True)


def _done(queue: Queue, notes: dict) -> None:
    notes["job"] = queue.enqueue("mail", key="k").id
    queue.complete_many(list(queue.claim("A")))


def _scheduled(queue: Queue, notes: dict) -> None:
    Schedules(queue.conn).put("s", "mail", "* * * * *")
    notes["watch"].execute(SQL.make_due)


def _nothing(queue: Queue, notes: dict) -> None:
    pass


# ---------------------------------------------------------------- what the sessions do


def _claim_statement(queue: Queue, notes: dict) -> list:
    """The claim's own statement in an open transaction: `Queue.claim` refuses to join one."""
    asked = claim_arguments("A", {"mail": 60}, 1)
    return [f"job {row[0]}, epoch {row[4]}" for row in queue.conn.execute(QUEUE.claim, asked).fetchall()]


def _lock(queue: Queue, notes: dict) -> None:
    queue.conn.execute(SQL.lock_row, {"id": notes["lease"].id})


def _wait_for_the_end(queue: Queue, notes: dict) -> None:
    """Until the lease is over by the database's clock."""
    while not notes["watch"].execute(SQL.is_over, {"id": notes["lease"].id}).fetchone()[0]:
        time.sleep(0.01)


def _steps(*told: tuple) -> tuple[Step, ...]:
    return tuple(Step(*one) for one in told)


_COMPLETE = ("B", "complete", lambda queue, notes: queue.complete(notes["lease"]))
_REAP = ("A", "reap", lambda queue, notes: queue.reap())
_PUBLISH = ("B", "publish", lambda queue, notes: queue.publish(notes["lease"], "report", "aa"))
_CANCEL = ("B", "cancel", lambda queue, notes: queue.cancel(1))
_BEGIN, _COMMIT, _ROLLBACK = ("A", "begin"), ("A", "commit"), ("A", "rollback")


def _claim_by_b(queue: Queue, notes: dict) -> Claim:
    return queue.claim("B", types=["mail"])


SCRIPTS = {
    script.name: script
    for script in (
        Script(
            "claim beside an open claim",
            "a claim passes over a locked row and says so: it neither waits nor says `none`",
            _ready,
            _steps(
                _BEGIN,
                ("A", "claim", _claim_statement),
                ("B", "claim", _claim_by_b),
                _COMMIT,
                ("B", "claim again", _claim_by_b),
            ),
            (
                "A begin → returned",
                "A claim → returned [job 1, epoch 1]",
                "B claim → returned nothing: LOCKED",
                "A commit → returned",
                "B claim again → returned nothing: NONE",
            ),
            "job 1 running epoch 1 A",
        ),
        Script(
            "a claim that rolls back",
            "select and mark are one transaction: a rollback gives the job back",
            _ready,
            _steps(_BEGIN, ("A", "claim", _claim_statement), _ROLLBACK, ("B", "claim", _claim_by_b)),
            (
                "A begin → returned",
                "A claim → returned [job 1, epoch 1]",
                "A rollback → returned",
                "B claim → returned job 1, epoch 1",
            ),
            "job 1 running epoch 1 B",
        ),
        Script(
            "an enqueue that is not committed",
            "a job exists for others when its producer commits, and not before",
            _nothing,
            _steps(
                _BEGIN,
                ("A", "enqueue", lambda queue, notes: queue.enqueue("mail")),
                ("B", "claim", _claim_by_b),
                _COMMIT,
                ("B", "claim again", _claim_by_b),
            ),
            (
                "A begin → returned",
                "A enqueue → returned job 1, new",
                "B claim → returned nothing: NONE",
                "A commit → returned",
                "B claim again → returned job 1, epoch 1",
            ),
            "job 1 running epoch 1 B",
        ),
        Script(
            "a key that is not committed",
            "the second enqueue of a key waits for the first to commit, and then knows its job",
            _nothing,
            _steps(
                _BEGIN,
                ("A", "enqueue k", lambda queue, notes: queue.enqueue("mail", key="k")),
                ("B", "enqueue k", lambda queue, notes: queue.enqueue("mail", key="k")),
                _COMMIT,
            ),
            (
                "A begin → returned",
                "A enqueue k → returned job 1, new",
                "B enqueue k → blocked by A",
                "A commit → returned",
                "B enqueue k → returned job 1, known",
            ),
            "job 1 ready epoch 0",
        ),
        Script(
            "a key that is rolled back",
            "if the first enqueue rolls back, the second makes the job",
            _nothing,
            _steps(
                _BEGIN,
                ("A", "enqueue k", lambda queue, notes: queue.enqueue("mail", key="k")),
                ("B", "enqueue k", lambda queue, notes: queue.enqueue("mail", key="k")),
                _ROLLBACK,
            ),
            (
                "A begin → returned",
                "A enqueue k → returned job 1, new",
                "B enqueue k → blocked by A",
                "A rollback → returned",
                "B enqueue k → returned job 2, new",
            ),
            "job 2 ready epoch 0",
        ),
        Script(
            "a key while its job is archived",
            "a key stays known while the archiver moves its job",
            _done,
            _steps(
                _BEGIN,
                ("A", "archive", lambda queue, notes: queue.archive(older_than_seconds=0)),
                ("B", "enqueue k", lambda queue, notes: queue.enqueue("mail", key="k")),
                _COMMIT,
            ),
            (
                "A begin → returned",
                "A archive → returned 1",
                "B enqueue k → returned job 1, known",
                "A commit → returned",
            ),
            None,
        ),
        Script(
            "complete behind a reaper",
            "the fence is evaluated again after the wait (EvalPlanQual), and the look is a second statement",
            _expired,
            _steps(_BEGIN, _REAP, _COMPLETE, _COMMIT),
            (
                "A begin → returned",
                "A reap → returned [job 1 is ready]",
                "B complete → blocked by A",
                "A commit → returned",
                "B complete → returned LOST",
            ),
            "job 1 ready epoch 1",
        ),
        Script(
            "complete behind a reaper that rolls back",
            "the lease was never lost: the completion counts",
            _expired,
            _steps(_BEGIN, _REAP, _COMPLETE, _ROLLBACK),
            (
                "A begin → returned",
                "A reap → returned [job 1 is ready]",
                "B complete → blocked by A",
                "A rollback → returned",
                "B complete → returned APPLIED",
            ),
            "job 1 done epoch 1",
        ),
        Script(
            "reap beside an open heartbeat",
            "a reaper never waits, and never takes away what is being renewed",
            _expired,
            _steps(
                _BEGIN,
                ("A", "heartbeat", lambda queue, notes: queue.heartbeat(notes["lease"])),
                ("B", "reap", lambda queue, notes: queue.reap()),
                _COMMIT,
                ("B", "reap again", lambda queue, notes: queue.reap()),
            ),
            (
                "A begin → returned",
                "A heartbeat → returned APPLIED",
                "B reap → returned []",
                "A commit → returned",
                "B reap again → returned []",
            ),
            "job 1 running epoch 1 A",
        ),
        Script(
            "adopt behind a heartbeat",
            "the renewed end is seen after the wait: no lease in force is taken over",
            _expired,
            _steps(
                _BEGIN,
                ("A", "heartbeat", lambda queue, notes: queue.heartbeat(notes["lease"])),
                ("B", "adopt", lambda queue, notes: queue.adopt(1, "B") or "nothing"),
                _COMMIT,
            ),
            (
                "A begin → returned",
                "A heartbeat → returned APPLIED",
                "B adopt → blocked by A",
                "A commit → returned",
                "B adopt → returned nothing",
            ),
            "job 1 running epoch 1 A",
        ),
        Script(
            "publish behind a lock, past the end",
            "a publication that waited too long is refused: its clock is from after the wait",
            _briefly_running,
            _steps(
                _BEGIN,
                ("A", "lock the row", _lock),
                _PUBLISH,
                ("C", "wait for the lease's end", _wait_for_the_end),
                _COMMIT,
            ),
            (
                "A begin → returned",
                "A lock the row → returned",
                "B publish → blocked by A",
                "C wait for the lease's end → returned",
                "A commit → returned",
                "B publish → returned LEASE_EXPIRED",
            ),
            "job 1 running epoch 1 A",
        ),
        Script(
            "publish behind a reaper",
            "a publication decided on what it read before the wait would be a stale write",
            _expired,
            _steps(_BEGIN, _REAP, _PUBLISH, _COMMIT),
            (
                "A begin → returned",
                "A reap → returned [job 1 is ready]",
                "B publish → blocked by A",
                "A commit → returned",
                "B publish → returned LOST",
            ),
            "job 1 ready epoch 1",
        ),
        Script(
            "publish behind a cancellation",
            "what was true when it was read is not true when it is written: the fence is in the write",
            _running,
            _steps(_BEGIN, ("A", "cancel", lambda queue, notes: queue.cancel(1)), _PUBLISH, _COMMIT),
            (
                "A begin → returned",
                "A cancel → returned running, now cancelled",
                "B publish → blocked by A",
                "A commit → returned",
                "B publish → returned CANCELLED",
            ),
            "job 1 cancelled epoch 1",
        ),
        Script(
            "claim in a caller's transaction",
            "a claim never joins a transaction: rolled back, its epoch would be handed out twice",
            _ready,
            _steps(
                _BEGIN,
                ("A", "claim", lambda queue, notes: queue.claim("A", types=["mail"])),
                _ROLLBACK,
                ("B", "claim", _claim_by_b),
            ),
            (
                "A begin → returned",
                "A claim → raised JobQueueError",
                "A rollback → returned",
                "B claim → returned job 1, epoch 1",
            ),
            "job 1 running epoch 1 B",
        ),
        Script(
            "heartbeats beside one held row",
            "one row in an open transaction does not let the other leases of a worker lapse",
            _three_running,
            _steps(
                _BEGIN,
                ("A", "lock the row", _lock),
                ("B", "heartbeat all", lambda queue, notes: queue.heartbeat_many(notes["leases"])),
                _COMMIT,
            ),
            (
                "A begin → returned",
                "A lock the row → returned",
                "B heartbeat all → returned [HELD, APPLIED, APPLIED]",
                "A commit → returned",
            ),
            "job 1 running epoch 1 A, job 2 running epoch 1 A, job 3 running epoch 1 A",
        ),
        Script(
            "cancel behind a claim",
            "a cancellation tells the status that it really met, not the one that it read before the wait",
            _ready,
            _steps(_BEGIN, ("A", "claim", _claim_statement), _CANCEL, _COMMIT),
            (
                "A begin → returned",
                "A claim → returned [job 1, epoch 1]",
                "B cancel → blocked by A",
                "A commit → returned",
                "B cancel → returned running, now cancelled",
            ),
            "job 1 cancelled epoch 1",
        ),
        Script(
            "archive beside a redrive",
            "an archiver passes over a job that is coming back to life",
            _failed,
            _steps(
                _BEGIN,
                ("A", "redrive", lambda queue, notes: queue.redrive([1])),
                ("B", "archive", lambda queue, notes: queue.archive(older_than_seconds=0, statuses=("failed",))),
                _COMMIT,
            ),
            ("A begin → returned", "A redrive → returned [1]", "B archive → returned 0", "A commit → returned"),
            "job 1 ready epoch 1",
        ),
        Script(
            "one slot, two schedulers",
            "a second scheduler does not wait for the first, and does not fire its slot again",
            _scheduled,
            _steps(
                _BEGIN,
                ("A", "tick", lambda queue, notes: Schedules(queue.conn).tick()),
                ("B", "tick", lambda queue, notes: Schedules(queue.conn).tick()),
                _COMMIT,
                ("B", "tick again", lambda queue, notes: Schedules(queue.conn).tick()),
            ),
            (
                "A begin → returned",
                "A tick → returned 1 jobs",
                "B tick → returned 0 jobs",
                "A commit → returned",
                "B tick again → returned 0 jobs",
            ),
            "job 1 ready epoch 0",
        ),
        Script(
            "complete in an old snapshot",
            "in a REPEATABLE READ transaction older than the claim nothing can be said: it raises",
            _ready,
            _steps(
                ("A", "begin repeatable read"),
                ("A", "look", lambda queue, notes: queue.conn.execute(SQL.look_around) and None),
                ("B", "claim", lambda queue, notes: notes.setdefault("lease", _claim_by_b(queue, notes)[0])),
                ("A", "complete", lambda queue, notes: queue.complete(notes["lease"])),
                _ROLLBACK,
            ),
            (
                "A begin repeatable read → returned",
                "A look → returned",
                "B claim → returned job 1, epoch 1",
                "A complete → raised InfrastructureError",
                "A rollback → returned",
            ),
            "job 1 running epoch 1 B",
        ),
    )
}
