"""The groups of the laboratory run: what each does on the real system, and what must be seen."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg

from .. import publication
from ..errors import InfrastructureError, JobQueueError
from ..model import Lease
from ..queue import Queue, claim_arguments
from ..schedules import Schedules
from ..sql import SQL, statements, text
from ..worker import Worker
from . import destination
from .laboratory import Bench, group

LAB = statements(text("lab/groups.sql"))


# ---------------------------------------------------------------- claims


def _claim_in_the_open(queue: Queue, owner: str) -> list:
    """The claim's own statement in the caller's transaction, which `Queue.claim` refuses to join."""
    return queue.conn.execute(SQL.claim, claim_arguments(owner, {"mail": 30.0}, 1)).fetchall()


@group("two sessions claim different jobs", "Do two claims that overlap in time ever take the same job?")
def two_sessions(lab: Bench) -> None:
    a, b = lab.session("A"), lab.session("B")
    first, second = a.enqueue("mail").id, a.enqueue("mail").id
    with a.conn.transaction(), b.conn.transaction():
        taken = [_claim_in_the_open(queue, name) for queue, name in ((a, "A"), (b, "B"))]
        lab.see(
            "jobs of A and B before either transaction ends",
            [[row[0] for row in rows] for rows in taken],
            [[first], [second]],
        )


@group("select and mark in one transaction", "What does a crash between choosing a job and marking it leave?")
def one_transaction(lab: Bench) -> None:
    a, b = lab.session("A"), lab.session("B")
    id = a.enqueue("mail").id
    with a.conn.transaction(force_rollback=True):
        lab.see("A's claim, not yet committed", [row[0] for row in _claim_in_the_open(a, "A")], [id])
    job = b.get(id)
    lab.see(
        "the row after A's rollback",
        f"{job.status}, epoch {job.epoch}, attempts {job.attempts}",
        "ready, epoch 0, attempts 0",
    )
    lab.see("B's claim", b.claim("B"), f"job {id}, epoch 1")


@group("an empty claim is not an empty queue", "Does a worker learn that a due job is only locked right now?")
def locked_is_not_empty(lab: Bench) -> None:
    a, b = lab.session("A"), lab.session("B")
    id = a.enqueue("mail").id
    with a.conn.transaction():
        a.conn.execute(LAB.lock, {"id": id})
        lab.see("B's claim while A's transaction holds the row", b.claim("B"), "nothing: LOCKED")
    lab.see("B's claim after it", b.claim("B"), f"job {id}, epoch 1")
    lab.see("a claim of an empty queue", b.claim("B"), "nothing: NONE")


# ---------------------------------------------------------------- authority


@group("adoption at logical time 9 and 10", "When may a job with a lease until 10 be taken over?", virtual=True)
def adoption(lab: Bench) -> None:
    a, b = lab.session("A"), lab.session("B")
    clock = lab.clock(a, b)
    id = a.enqueue("mail").id
    a.claim("A", lease_seconds=10)
    clock.set(9)
    lab.see("adoption at 9", b.adopt(id, "B"), None)
    clock.set(10)
    lab.see("adoption at 10", b.adopt(id, "B"), f"job {id}, epoch 2")
    job = b.get(id)
    found = (job.locked_by, job.epoch, job.attempts, job.lease_losses)
    lab.see("the row: owner, epoch, attempts, lost leases", found, ("B", 2, 2, 1))


@group("the old session goes on executing", "What can a worker still do whose lease was taken over?", virtual=True)
def old_session(lab: Bench) -> None:
    a, b = lab.session("A"), lab.session("B")
    clock = lab.clock(a, b)
    a.enqueue("mail")
    (old,) = a.claim("A", lease_seconds=10)
    clock.set(10)
    new = b.adopt(old.id, "B", lease_seconds=10)
    end = b.get(old.id).locked_until
    stale = publication.write(lab.folder, old, b"by the old owner")
    lab.see("the old owner's heartbeat", a.heartbeat(old, lease_seconds=1000), "LOST")
    lab.see("the new lease is as long as before", b.get(old.id).locked_until == end, True)
    lab.see("the old owner's publication", a.publish(old, "report.txt", stale.digest), "LOST")
    lab.see("its candidate is still on disk", stale.path.exists(), True)
    good = publication.write(lab.folder, new, b"by the new owner")
    lab.see("the new owner's publication", b.publish(new, "report.txt", good.digest), "APPLIED")
    job = b.get(old.id)
    named = (job.published_name, job.published_digest, job.published_epoch)
    lab.see("the row: name, digest and epoch of the published candidate", named, ("report.txt", good.digest, 2))


@group("check-then-write leaves a window", "Is it enough to look at the epoch before writing?", virtual=True)
def check_then_write(lab: Bench) -> None:
    a, b = lab.session("A"), lab.session("B")
    clock = lab.clock(a, b)
    a.conn.execute(LAB.make_destination)
    a.enqueue("mail")
    (old,) = a.claim("A", lease_seconds=10)
    looked = a.get(old.id).epoch == old.epoch
    clock.set(10)
    new = b.adopt(old.id, "B")
    b.conn.execute(LAB.write_unfenced, {"id": new.id, "epoch": new.epoch})
    if looked:
        a.conn.execute(LAB.write_unfenced, {"id": old.id, "epoch": old.epoch})
    written = lab.value(LAB.written)
    lab.see("epochs written, in order, by writers that looked first: the stale one came last", written, [2, 1])
    refused = a.conn.execute(LAB.write_fenced, {"id": old.id, "epoch": old.epoch}).rowcount
    lab.see("rows changed by the stale write with the fence in its WHERE", refused, 0)


# ---------------------------------------------------------------- ends


@group("complete once", "What does a repeated completion answer, and what does reconciling show?")
def complete_once(lab: Bench) -> None:
    a = lab.session("A")
    a.enqueue("mail")
    (lease,) = a.claim("A")
    candidate = publication.write(lab.folder, lease, b"the result")
    a.publish(lease, "report.txt", candidate.digest)
    lab.see("the first completion", a.complete(lease), "APPLIED")
    lab.see("the same completion again", a.complete(lease), "ALREADY_APPLIED")
    changed = next(sent.rows for sent in reversed(lab.sent) if sent.statement == "complete")
    lab.see("rows that the repeated UPDATE changed", changed, 0)
    lab.see("reconcile, which changes nothing", a.reconcile(lease), "ALREADY_APPLIED")
    lab.see(
        "reconcile with the candidate's name and digest",
        a.reconcile(lease, name="report.txt", digest=candidate.digest),
        "ALREADY_APPLIED",
    )
    found = publication.verify(a.conn, lab.folder, lease.id)
    seen = (found.state, found.epoch, found.digest)
    lab.see("verify: the file, its epoch and digest", seen, ("available", 1, candidate.digest))


@group("lost, cancelled and incompatible told apart", "Does a worker learn why its report was refused?", virtual=True)
def told_apart(lab: Bench) -> None:
    a, b = lab.session("A"), lab.session("B")
    clock = lab.clock(a, b)
    a.enqueue_many([{"type": "mail"}] * 3)
    lost, cancelled, failed = a.claim("A", limit=3, lease_seconds=10)
    b.cancel(cancelled.id)
    a.fail(failed, "the mail server said no")
    clock.set(10)
    b.adopt(lost.id, "B")
    lab.see("complete after an adoption", a.complete(lost), "LOST")
    lab.see("complete after a cancellation", a.complete(cancelled), "CANCELLED")
    lab.see("complete after this lease had reported a failure", a.complete(failed), "CONFLICT")


@group("cancellation refuses conditional transitions", "What is blocked once support has cancelled a running job?")
def cancellation(lab: Bench) -> None:
    a, support = lab.session("A"), lab.session("support")
    a.enqueue("mail")
    (lease,) = a.claim("A")
    told = support.cancel(lease.id)
    lab.see("cancel: status before and after", (told.before, told.after), ("running", "cancelled"))
    verbs = {
        "heartbeat": a.heartbeat(lease),
        "publish": a.publish(lease, "report.txt", "0" * 64),
        "fail": a.fail(lease, "late"),
        "release": a.release(lease, "late"),
        "complete": a.complete(lease),
    }
    for verb, outcome in verbs.items():
        lab.see(f"{verb} by the worker, after it", outcome, "CANCELLED")
    lab.see("cancel's sentence says that A has held epoch 1", "A has held epoch 1" in told.message, True)


# ---------------------------------------------------------------- files


@group("orphans are swept during a publication", "Can the sweep take away what is being published?")
def orphan_sweep(lab: Bench) -> None:
    a, janitor = lab.session("A"), lab.session("janitor")
    a.enqueue("mail")
    (first,) = a.claim("A")
    orphan = publication.write(lab.folder, first, b"of an epoch that failed")
    a.fail(first, "no", delay_seconds=0)
    (second,) = a.claim("A")
    candidate = publication.write(lab.folder, second, b"about to be published")
    with a.conn.transaction():
        a.publish(second, "report.txt", candidate.digest)
        lab.see(
            "candidates swept while the publication is not committed",
            publication.sweep(janitor.conn, lab.folder, grace_seconds=0),
            1,
        )
    lab.see("the candidate of the failed epoch is still on disk", orphan.path.exists(), False)
    lab.see("verify of the published file", publication.verify(a.conn, lab.folder, second.id).state, "available")


@group("artefact unavailable", "Is a result shown whose file is missing or was changed?")
def unavailable(lab: Bench) -> None:
    a = lab.session("A")
    a.enqueue("mail")
    (lease,) = a.claim("A")
    candidate = publication.write(lab.folder, lease, b"the result")
    a.publish(lease, "report.txt", candidate.digest)
    a.complete(lease)
    candidate.path.chmod(0o600)
    candidate.path.write_bytes(b"something else")
    lab.see("verify, the file altered", publication.verify(a.conn, lab.folder, lease.id).state, "unavailable")
    candidate.path.unlink()
    lab.see("verify, the file gone", publication.verify(a.conn, lab.folder, lease.id).state, "unavailable")


@group("storage drills", "What does a full disk, a read-only folder or another file system leave?")
def storage(lab: Bench) -> None:
    a = lab.session("A")
    a.enqueue("mail")
    (lease,) = a.claim("A")
    said = _in_child(_FULL, lab.folder, lease)
    lab.see("writing to a disk that takes no more (the process may write 64 KiB)", said, "InfrastructureError")
    lab.see("files that it left", sorted(os.listdir(lab.folder)), [])
    lab.folder.chmod(0o555)
    lab.see("writing to a read-only folder", _in_child(_NOT_ROOT + _PLAIN, lab.folder, lease), "InfrastructureError")
    lab.folder.chmod(0o700)
    lab.see("files that it left", sorted(os.listdir(lab.folder)), [])
    other = _another_file_system(lab.folder)
    if other:
        source = other / f"jobqueue-lab-{os.getpid()}"
        source.write_bytes(b"from another file system")
        candidate = publication.write(lab.folder, lease, source)
        source.unlink()
        same = candidate.path.read_bytes() == b"from another file system"
        lab.see("a file from another file system arrives whole", same, True)
    else:
        lab.leave_out("this machine has no second file system to write to")


# ---------------------------------------------------------------- enqueueing


@group("an uncommitted enqueue is invisible", "Can a worker start a job whose transaction is rolled back?")
def uncommitted(lab: Bench) -> None:
    producer, worker = lab.session("producer"), lab.session("worker")
    with producer.conn.transaction(force_rollback=True):
        id = producer.enqueue("mail").id
        lab.see("a claim before the commit", worker.claim("W"), "nothing: NONE")
    lab.see("the row after the rollback", worker.get(id), None)


@group("duplicate key", "What does the same request twice make?")
def duplicate_key(lab: Bench) -> None:
    a = lab.session("A")
    first = a.enqueue("mail", {"to": "ada"}, key="welcome/ada")
    lab.see("the same request again", a.enqueue("mail", {"to": "ada"}, key="welcome/ada"), f"job {first.id}, known")
    other = a.enqueue("mail", {"to": "bob"}, key="welcome/ada")
    lab.see("the same key with another payload: id, created, matches", tuple(other), (first.id, False, False))
    lab.see("jobs in the table", lab.value(LAB.jobs), 1)


@group("the archive keeps keys", "Is a key free again once its job is out of sight?")
def archive_keeps_keys(lab: Bench) -> None:
    a = lab.session("A")
    first = a.enqueue("mail", key="welcome/ada")
    (lease,) = a.claim("A")
    a.complete(lease)
    lab.see("rows archived", a.archive(older_than_seconds=0), 1)
    lab.see("the same key again", a.enqueue("mail", key="welcome/ada"), f"job {first.id}, known")
    lab.see("a repeated completion still knows its answer", a.complete(lease), "ALREADY_APPLIED")


# ---------------------------------------------------------------- attempts


@group("an infrastructure error is not an attempt", "Does a job die because its dependency's host was away?")
def infrastructure(lab: Bench) -> None:
    def away(lease, context):
        raise InfrastructureError("the mail server can't be reached")

    a = lab.session("A")
    id = a.enqueue("mail", max_attempts=1).id
    Worker(lab.dsn, {"mail": away}).run_once()
    job = a.get(id)
    lab.see("the row: status, attempts, releases", (job.status, job.attempts, job.releases), ("ready", 0, 1))


@group("a poison job dies", "Does a job that kills its worker ever stop, and what becomes of a job beside it?")
def poison(lab: Bench) -> None:
    a = lab.session("A")
    poison, beside = a.enqueue("poison", max_attempts=2).id, a.enqueue("mail", max_attempts=2).id
    _claimed_and_killed(lab, a, [poison, beside])
    job = a.get(beside)
    told = (job.status, job.attempts, job.lease_losses)
    lab.see("the healthy job beside it, same worker: status, attempts, lost leases", told, ("ready", 1, 1))
    lab.see("its next attempt, in another worker", a.complete(a.claim("A", types=["mail"])[0]), "APPLIED")
    _claimed_and_killed(lab, a, [poison])
    job = a.get(poison)
    told = (job.status, job.attempts, job.lease_losses)
    lab.see("the poison job: status, attempts, lost leases", told, ("dead", 2, 2))


@group("one slot, two schedulers", "Does a slot fire twice when two schedulers meet it?", virtual=True)
def one_slot(lab: Bench) -> None:
    a, b = lab.session("scheduler A"), lab.session("scheduler B")
    clock = lab.clock(a, b)
    Schedules(a.conn).put("report", "mail", "*/5 * * * *")
    clock.set(300)
    made = [len(Schedules(queue.conn).tick().jobs) for queue in (a, b)]
    lab.see("jobs made by A, by B", made, [1, 0])
    lab.see("jobs in the table", lab.value(LAB.jobs), 1)


@group("skewed worker clocks", "What does a worker change whose clock is an hour wrong?")
def skewed(lab: Bench) -> None:
    a = lab.session("A")
    ids = [a.enqueue("mail").id for _ in range(2)]
    wrong = [_python(_SKEWED, lab.dsn, str(hours * 3600)).strip() for hours in (-1, 1)]
    lab.see("hours by which each worker's own clock is wrong, as its handler sees it", wrong, ["-1", "1"])
    rows = [a.get(id) for id in ids]
    ends = [job.status for job in rows]
    lab.see("jobs run by a worker whose clock is an hour behind, an hour ahead", ends, ["done", "done"])
    lab.see("rows with an instant outside of this test", lab.value(LAB.odd_instants), 0)


# ---------------------------------------------------------------- identities


@group("identity drills", "What if two processes hold the same name, or a pid comes back?", virtual=True)
def identity(lab: Bench) -> None:
    a, twin = lab.session("A"), lab.session("A again")
    clock = lab.clock(a, twin)
    a.enqueue_many([{"type": "mail"}] * 2)
    (mine,) = a.claim("A", lease_seconds=10)
    (its,) = twin.claim("A", lease_seconds=10)
    lab.see("two workers with one name hold different jobs", mine.id != its.id, True)
    clock.set(10)
    again = twin.adopt(mine.id, "A", lease_seconds=10)
    lab.see("the epoch of an adoption under the same name", again.epoch, 2)
    lab.see("the process before it completes", a.complete(mine), "LOST")
    lab.see("the process after it completes", twin.complete(again), "APPLIED")
    owners = [Worker(lab.dsn, {"mail": print}).owner for _ in range(2)]
    lab.see("default owners differ, though the pid is the same", owners[0] != owners[1], True)


# ---------------------------------------------------------------- destinations


@group("a destination over HTTP", "Does the queue's fence protect a service that does not check it?", virtual=True)
def over_http(lab: Bench) -> None:
    a, b = lab.session("A"), lab.session("B")
    clock = lab.clock(a, b)
    a.enqueue("mail")
    (old,) = a.claim("A", lease_seconds=10)
    clock.set(10)
    new = b.adopt(old.id, "B")
    with destination.serve() as service:
        expected = (["taken"] * 3, ["taken", "taken", "stale"], ["taken", "known", "stale"])
        for door, answers in zip(destination.DOORS, expected, strict=True):
            seen = [destination.post(service.url, door, lease) for lease in (new, new, old)]
            lab.see(f"{door}: the new owner, the new owner once more, the old owner", seen, answers)
        effects = {door: len(taken) for door, taken in service.taken.items()}
        lab.see("effects that each took in", list(effects.values()), [3, 2, 1])


# ---------------------------------------------------------------- processes of their own

_SKEWED = """
import datetime, json, os, sys, tempfile
from jobqueue.lab import conditions
with tempfile.TemporaryDirectory() as folder:
    os.environ |= {conditions.FILE: folder + "/conditions.json", conditions.PROCESS: "worker"}
    with open(os.environ[conditions.FILE], "w") as file:
        json.dump({"skew worker": [float(sys.argv[2]), None]}, file)
    conditions.bend_the_clock()
    from jobqueue import Worker
    def mail(lease, context):  # a lease is half a minute long: what this process takes for now, against its end
        print(round((datetime.datetime.now(datetime.UTC) - lease.locked_until).total_seconds() / 3600))
    Worker(sys.argv[1], {"mail": mail}, concurrency=1, prefetch=0).run_once()
"""

_NOT_ROOT = """
import os
from jobqueue import publication
from jobqueue.lab.groups import lease_of
if os.geteuid() == 0:  # root may write everywhere: nothing would be refused
    os.setgid(65534), os.setuid(65534)
"""

_PLAIN = """
import json, sys
from jobqueue import publication
from jobqueue.lab.groups import lease_of
try:
    publication.write(sys.argv[1], lease_of(json.loads(sys.argv[2])), b"x" * 1_000_000)
    print("written")
except Exception as error:
    print(type(error).__name__)
"""
_FULL = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n" + (
    "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n" + _PLAIN
)


def lease_of(known: dict) -> Lease:
    """A lease as far as its candidate's name needs it."""
    return Lease(known["id"], "mail", None, known["owner"], known["epoch"], 1, 0, None)


def _in_child(code: str, folder: Path, lease: Lease) -> str:
    known = json.dumps({"id": lease.id, "owner": lease.owner, "epoch": lease.epoch})
    return _python(code, str(folder), known).strip()


def _python(code: str, *arguments: str) -> str:
    root = str(Path(__file__).resolve().parents[2])
    environment = os.environ | {"PYTHONPATH": root}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True, timeout=120
    )
    if done.returncode:
        raise JobQueueError(f"a process of the laboratory failed: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout


_POISONED = """
import os, signal, sys, threading
from jobqueue import Handler, Worker
beside = threading.Event()
def poison(lease, context):
    beside.wait(float(sys.argv[2]))
    os.kill(os.getpid(), signal.SIGKILL)
def mail(lease, context):
    beside.set()
    threading.Event().wait()
handlers = {"poison": Handler(poison, lease_seconds=0.2), "mail": Handler(mail, lease_seconds=0.2)}
Worker(sys.argv[1], handlers, concurrency=2).run_once()
"""


def _claimed_and_killed(lab: Bench, queue: Queue, ids: list[int]) -> None:
    """A real process claims the jobs, and one of them kills it; then its leases end and are taken away."""
    root = str(Path(__file__).resolve().parents[2])
    wait = "20" if len(ids) > 1 else "0"  # for the neighbour to have begun
    command = [sys.executable, "-c", _POISONED, lab.dsn, wait]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": root}, timeout=120)
    lab.see("the worker is ended by signal", -done.returncode, 9)
    for id in ids:
        lab.value(LAB.wait_for_the_end, id=id)
    queue.reap()
    with psycopg.connect(lab.dsn, autocommit=True) as conn:
        for id in ids:
            conn.execute(LAB.due_now, {"id": id})


def _another_file_system(folder: Path) -> Path | None:
    candidates = [Path("/dev/shm"), Path(tempfile.gettempdir()), Path.home()]
    device = folder.stat().st_dev
    usable = [p for p in candidates if p.is_dir() and os.access(p, os.W_OK) and p.stat().st_dev != device]
    return usable[0] if usable else None
