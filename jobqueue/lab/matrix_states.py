"""The states of the failure matrix: how a real queue is driven into each, what may be done, by whom, until when."""

import time

import psycopg

from .. import publication
from ..installation import fence
from ..queue import Queue
from ..schedules import Schedules
from .matrix import SQL, Drive, state

# ---------------------------------------------------------------- before a worker has it


@state(
    "enqueue not committed",
    "None on the queue: the job does not exist for anybody yet. End the producer's transaction.",
    "team of the producer",
    "The transaction is older than the producer's own timeout: roll it back; nothing has to be undone.",
)
def _not_committed(drive: Drive):
    conn = drive.stack.enter_context(psycopg.connect(drive.dsn))
    return SQL.row, {"id": Queue(conn).enqueue("mail").id}


@state(
    "enqueue without an answer",
    "Send the same request again with the same key: it makes nothing twice, and answers with the first job's id.",
    "team of the producer",
    "The answer has matches = false: two different requests share a key; stop the producer, the second one was not "
    "accepted.",
)
def _unanswered(drive: Drive):
    with psycopg.connect(drive.dsn, autocommit=True) as conn:  # its reply never came: the producer knows nothing
        Queue(conn).enqueue("mail", key="welcome/ada")
    again = drive.queue.enqueue("mail", key="welcome/ada")
    return SQL.key, {"key": "welcome/ada", "found": f"sent again: job {again.id}, created {again.created}"}


@state(
    "job ready",
    "None; it runs when a slot is free. If it waits too long, start workers for its type.",
    "on call",
    "Its age passes the target while workers are idle: take back the last change to workers or handlers.",
)
def _ready(drive: Drive):
    return SQL.due, {"id": drive.queue.enqueue("mail").id}


@state(
    "due, and no worker asks for its type",
    "Start a worker that has a handler for the type; nothing is lost by waiting.",
    "team of the handler",
    "The type is new with a release of the producer: take that release back until its workers are there.",
)
def _nobody(drive: Drive):
    drive.queue.enqueue("fax")
    claim = drive.other.claim("worker-1", types=["mail"])
    return SQL.waiting, {"type": "fax", "found": f"a worker for mail claims: {claim.empty.name}"}


@state(
    "ready and locked by an open transaction",
    "Find the transaction (the query names those that are open) and let it end; workers pass the row by meanwhile.",
    "database administrator",
    "It is older than idle_in_transaction_session_timeout: end it by pg_terminate_backend(pid).",
)
def _locked(drive: Drive):
    id = drive.queue.enqueue("mail").id
    conn = drive.stack.enter_context(psycopg.connect(drive.dsn, application_name="report"))
    conn.execute(SQL.lock, {"id": id})
    return SQL.open_transactions, {"found": f"a worker claims: {drive.queue.claim('worker-1').empty.name}"}


@state(
    "waiting for a retry",
    "None until run_at. Read last_error.",
    "team of the handler",
    "Every job of the type fails with the same error since a release: take that release back.",
)
def _retry(drive: Drive):
    lease = drive.running()
    drive.queue.fail(lease, "the mail server said no", delay_seconds=3600)
    return SQL.row, {"id": lease.id}


@state(
    "type paused",
    "`resume TYPE` once the cause is gone; running jobs of the type go on meanwhile.",
    "whoever paused it",
    "The backlog's age passes what the business bears: resume, or cancel the type.",
)
def _paused(drive: Drive):
    drive.other.pause_type("sms")
    return SQL.paused, {"type": "sms"}


# ---------------------------------------------------------------- under a lease


@state(
    "lease still valid",
    "None: adoption is refused. Wait for locked_until.",
    "on call",
    "None: a lease is never taken away by hand. If the effect must not happen: `cancel ID`.",
)
def _valid(drive: Drive):
    lease = drive.running()
    assert drive.other.adopt(lease.id, "worker-2") is None
    return SQL.lease, {"id": lease.id}


@state(
    "lease ended, nobody took over",
    "None: the next reaper gives it back. If none runs: `reaper`.",
    "on call",
    "It stays so for longer than a minute though a reaper runs: look whether the row is locked (“lease ended, row "
    "locked”).",
)
def _ended(drive: Drive):
    return SQL.lease, {"id": drive.expired().id}


@state(
    "lease ended, row locked by an open transaction",
    "Let the transaction end that holds the row (the query names those that are open): no reaper can see the job.",
    "database administrator",
    "It is older than idle_in_transaction_session_timeout: end it by pg_terminate_backend(pid).",
)
def _held(drive: Drive):
    lease = drive.expired()
    conn = drive.stack.enter_context(psycopg.connect(drive.dsn, application_name="report"))
    conn.execute(SQL.lock, {"id": lease.id})
    return SQL.open_transactions, {"found": f"the reaper gives back {len(drive.other.reap())}"}


@state(
    "adoption",
    "None: the old owner is fenced, and is told LOST. Its process may go on: the lease ended, not it.",
    "on call",
    "The destination does not check the epoch: compare what both epochs did there, and undo one of them.",
)
def _adopted(drive: Drive):
    lease = drive.expired()
    drive.other.adopt(lease.id, "worker-2", lease_seconds=60)
    return SQL.lease, {"id": lease.id, "found": f"the old owner completes: {drive.queue.complete(lease).name}"}


@state(
    "given back again and again",
    "Mend what the handler can't reach (last_reason). No attempt is used; the 21st in a row counts as a failed one.",
    "team of what the handler calls",
    "It began with a release of the handler: take that release back.",
)
def _given_back(drive: Drive):
    drive.queue.enqueue("mail")
    for _ in range(3):
        (lease,) = drive.queue.claim("worker-1")
        drive.queue.release(lease, "the mail server can't be reached")
    return SQL.releases, {"id": lease.id}


@state(
    "leases of one worker lost together",
    "None for the others: they run again, with one attempt and one lost lease more. The job that is there in every "
    "loss is the one that kills its worker: pause its type.",
    "team of the handler",
    "Jobs of other types die beside it: give its type a worker of its own (slots of one worker share their "
    "process's fate; notebook 06 counts who dies with it).",
)
def _together(drive: Drive):
    for type in ("mail", "poison"):
        drive.queue.enqueue(type)
    leases = list(drive.queue.claim("worker-1", limit=2, lease_seconds=0.001))
    while leases:  # one reaper's look after the other, until both are given back
        leases = leases[len(drive.other.reap()) :]
    return SQL.lost_together, {}


@state(
    "cancelled while running",
    "Tell what may already have happened (the sentence that cancel answers). Redrive on request.",
    "support",
    "Its effect is there all the same: undo it at the destination; the queue can't.",
)
def _cancelled(drive: Drive):
    lease = drive.running()
    drive.other.cancel(lease.id)
    return SQL.ends, {"id": lease.id, "found": f"its worker completes: {drive.queue.complete(lease).name}"}


# ---------------------------------------------------------------- results


@state(
    "candidate of an epoch that ended (orphan)",
    "None: the janitor sweeps it after its grace. Never publish it by hand.",
    "on call",
    "Orphans grow from day to day: find out which handler fails after writing.",
)
def _orphan(drive: Drive):
    lease = drive.running()
    publication.write(drive.folder, lease, b"never published")
    drive.queue.fail(lease, "the mail server said no", delay_seconds=3600)
    orphans = publication.orphans(drive.other.conn, drive.folder)
    return SQL.ends, {"id": lease.id, "found": f"orphans in the folder: {len(orphans)}"}


@state(
    "published, not complete",
    "None: its worker completes it, or the next epoch runs again and publishes its own. Do not deliver yet.",
    "on call",
    "It stays so for longer than its lease: see “lease ended”.",
)
def _published_only(drive: Drive):
    lease = drive.running()
    candidate = publication.write(drive.folder, lease, b"the result")
    drive.queue.publish(lease, "report.txt", candidate.digest)
    return SQL.published, {"id": lease.id}


@state(
    "completion without an answer",
    "None by hand: the worker sends it again until it knows; reconcile tells.",
    "on call",
    "reconcile answers LOST or CANCELLED: the effect belongs to an epoch that did not complete, compare.",
)
def _completion_unanswered(drive: Drive):
    lease = drive.running()
    drive.queue.complete(lease)  # its reply never came: another connection asks
    return SQL.finished, {"id": lease.id, "found": f"reconcile: {drive.other.reconcile(lease).name}"}


@state(
    "publication confirmed",
    "Deliver the result.",
    "on call",
    "verify does not answer “available”: do not deliver, see “artefact unavailable”.",
)
def _published(drive: Drive):
    return SQL.published, {"id": drive.published(), "found": "verify: available"}


@state(
    "artefact unavailable",
    "Do not deliver. Restore the file from its backup, or run the job again under a new key.",
    "team of the storage",
    "The restored bytes do not have the digest: this backup is not the result, take them away again.",
)
def _unavailable(drive: Drive):
    id = drive.published()
    publication.verify(drive.other.conn, drive.folder, id).path.unlink()
    found = publication.verify(drive.other.conn, drive.folder, id)
    why = found.reason.replace(str(drive.folder), "DIR")
    return SQL.published, {"id": id, "found": f"verify: {found.state}, {why}"}


# ---------------------------------------------------------------- finished


@state(
    "done",
    "None.",
    "nobody",
    "The effect is not at its destination: the handler acted outside the job's transaction; mend the handler, then "
    "run the job again under a new key.",
)
def _done(drive: Drive):
    lease = drive.running()
    drive.queue.complete(lease)
    return SQL.finished, {"id": lease.id}


@state(
    "failed: the handler said never",
    "Mend the input or the handler, then `redrive ID`.",
    "team of the handler",
    "It fails again after the redrive with the same error: leave it, and take the mended handler back.",
)
def _failed(drive: Drive):
    lease = drive.running()
    drive.queue.fail(lease, "the address does not exist", permanent=True)
    return SQL.dead_letter, {"id": lease.id}


@state(
    "dead: attempts exhausted by failures",
    "Mend the cause, then `redrive ID`.",
    "team of the handler",
    "It dies again after the redrive with the same error: leave it, and take the mended handler back.",
)
def _dead(drive: Drive):
    lease = drive.running(max_attempts=1)
    drive.queue.fail(lease, "the mail server said no")
    return SQL.dead_letter, {"id": lease.id}


@state(
    "dead: attempts exhausted by lost leases",
    "Find out what kills its workers (memory, a crash of a library) before any redrive.",
    "team of the handler",
    "A worker dies again after the redrive: `cancel ID`, and start that worker again.",
)
def _poison(drive: Drive):
    drive.queue.enqueue("mail", max_attempts=1)
    (lease,) = drive.queue.claim("worker-1", lease_seconds=0.001)
    while not drive.other.reap():
        time.sleep(0.001)
    return SQL.dead_letter, {"id": lease.id}


@state(
    "archived",
    "None: read job_archive. Its key stays used until key_ttl has passed.",
    "nobody",
    "The key is needed earlier: enqueue under another one, rather than delete rows.",
)
def _archived(drive: Drive):
    lease = drive.running()
    drive.queue.complete(lease)
    while not drive.queue.archive(older_than_seconds=0):
        time.sleep(0.001)
    return SQL.archived, {"id": lease.id}


# ---------------------------------------------------------------- schedules, and the database itself


@state(
    "slots missed",
    "Decide whether the work of those slots is needed; if so, enqueue it by hand. From now on "
    "misfire=all would catch up.",
    "owner of the schedule",
    "The next slot is missed, too: no scheduler runs, or none that reaches the database; start one.",
)
def _missed(drive: Drive):
    schedules = Schedules(drive.queue.conn)
    schedules.put("report", "mail", "* * * * *", misfire="skip")
    drive.queue.conn.execute(SQL.ten_minutes_late)
    schedules.tick()
    return SQL.missed, {"schedule": "report"}


@state(
    "schedule paused",
    "`schedule resume ID` once the cause is gone; slots of the pause are neither run nor missed.",
    "whoever paused it",
    "The work of the pause is needed: enqueue it by hand after the resume.",
)
def _schedule_paused(drive: Drive):
    schedules = Schedules(drive.queue.conn)
    schedules.put("report", "mail", "0 3 * * *")
    schedules.pause("report")
    return SQL.schedule, {"schedule": "report"}


@state(
    "schedule broken by hand",
    "Put the schedule again with an expression that can be read; other schedules go on.",
    "owner of the schedule",
    "Never edit rows of the table schedule by hand: put refuses what this row holds.",
)
def _broken(drive: Drive):
    schedules = Schedules(drive.queue.conn)
    schedules.put("nightly", "mail", "0 3 * * *")
    drive.queue.conn.execute(SQL.break_by_hand)
    schedules.tick()
    return SQL.schedule, {"schedule": "nightly"}


@state(
    "database restored, or failed over to a standby that was behind",
    "Before any worker starts: `fence --raise N`, N greater than the epochs that may be lost.",
    "database administrator",
    "Workers ran before the epochs were raised: stop them, raise, and compare effects of equal epochs.",
)
def _restored(drive: Drive):
    lease = drive.running()
    done = fence(drive.other.conn, 1000)
    told = f"leases given back: {done.leases}; the old owner completes: {drive.queue.complete(lease).name}"
    return SQL.row, {"id": lease.id, "found": told}
