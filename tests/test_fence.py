"""The fence: every live epoch raised, leases taken away; on a promoted standby that had lost the last claims."""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo

from helpers import Session, wait_until
from jobqueue import Backoff, Outcome, Queue
from jobqueue.errors import InvalidInput
from jobqueue.installation import fence
from jobqueue.lab import binaries, database

pytestmark = pytest.mark.shared

DIGEST = "ab" * 32


@pytest.fixture
def jobs(conn, queue):
    """One job in every state, by its name; all but the ready one were claimed once by A."""
    made = {
        name: queue.enqueue(name, max_attempts=1 if name in ("dead", "last") else 5).id
        for name in ("ready", "running", "last", "done", "dead", "failed", "cancelled", "archived")
    }
    leases = {
        lease.type: lease for lease in queue.claim("A", limit=8, types=[name for name in made if name != "ready"])
    }
    for name in ("done", "archived"):
        queue.complete(leases[name])
    conn.execute("update jobqueue.job set finished_at = finished_at - interval '1 day' where type = 'archived'")
    queue.archive(older_than_seconds=3_600)
    queue.fail(leases["dead"], "boom")
    queue.fail(leases["failed"], "never", permanent=True)
    queue.cancel(made["cancelled"])
    return made, leases


def states(conn):
    return {
        type: found
        for type, *found in conn.execute(
            "select type, status, epoch, attempts, lease_losses from (table jobqueue.job union all table "
            "jobqueue.job_archive) x"
        )
    }


def test_every_live_epoch_is_raised_and_leases_are_taken_away(conn, jobs):
    done = fence(conn, 1_000)
    assert (done[:2], states(conn)) == (
        (6, 2),
        {
            "ready": ["ready", 1_000, 0, 0],
            "running": ["ready", 1_001, 1, 1],
            "last": ["dead", 1_001, 1, 1],
            "dead": ["dead", 1_001, 1, 0],
            "failed": ["failed", 1_001, 1, 0],
            "cancelled": ["cancelled", 1_001, 1, 0],
            "done": ["done", 1, 1, 0],
            "archived": ["done", 1, 1, 0],
        },
    )


def test_owners_of_leases_from_before_are_answered_lost(conn, queue, jobs):
    lease = jobs[1]["running"]
    fence(conn, 7)
    assert [
        queue.heartbeat(lease),
        queue.complete(lease),
        queue.complete(lease, strict=True),
        queue.fail(lease, "no"),
        queue.release(lease, "no"),
        queue.publish(lease, "x", DIGEST),
        queue.reconcile(lease),
    ] == [Outcome.LOST] * 7


def test_the_next_claim_stands_above_every_epoch_from_before(conn, queue, jobs):
    fence(conn, 50)
    queue.redrive(list(jobs[0].values()), cancelled=True)
    assert {lease.type: lease.epoch for lease in queue.claim("B", limit=10)} == {
        "ready": 51,
        "running": 52,
        "last": 52,
        "dead": 52,
        "failed": 52,
        "cancelled": 52,
    }


def test_the_row_tells_of_its_fence(conn, queue, jobs):
    made, _ = jobs
    fence(conn, 50)
    told = [
        (entry["event"], entry["owner"], entry["epoch"], entry["error"]) for entry in queue.get(made["running"]).history
    ]
    assert told == [("lost", "A", 1, None), ("fenced", None, 1, "every live epoch was raised by 50")]
    assert "its epoch was raised after a fail-over or a restore: every live epoch was raised by 50" in queue.explain(
        made["running"]
    )


def test_a_full_history_stays_within_its_bound(conn, queue, jobs):
    conn.execute("""update jobqueue.job set history = (select jsonb_agg(jsonb_build_object('at',
              jobqueue.iso(jobqueue.now()), 'event', 'released',
                    'owner', 'A', 'epoch', n, 'error', null)) from generate_series(1, 50) n) where type = 'running'""")
    fence(conn, 1)
    job = queue.get(jobs[0]["running"])
    assert (len(job.history), job.history_trimmed, job.history[-1]["event"]) == (50, 2, "fenced")


def test_twice_raises_twice_and_loses_nothing(conn, jobs):
    first, second = fence(conn, 10), fence(conn, 10)
    assert (first.leases, second.leases, states(conn)["ready"][1], states(conn)["running"][1]) == (2, 0, 20, 21)


def test_new_ids_begin_after_those_that_the_lost_part_may_have_given_out(conn, queue, jobs):
    last = max(jobs[0].values())
    done = fence(conn, 1)
    assert (done.next_id > last + 1_000_000, queue.enqueue("mail").id) == (True, done.next_id + 1)


def test_a_fence_waits_for_a_claim_that_is_under_way_and_takes_its_lease_too(dsn, conn, queue):
    added = queue.enqueue("mail")
    with Session(dsn) as claimer, Session(dsn) as fencer:
        with claimer.conn.transaction():
            claimer.conn.execute(
                "update jobqueue.job set status = 'running', epoch = 1, attempts = 1, locked_by = 'A', "
                "started_at = jobqueue.now(), "
                "locked_until = jobqueue.now() + interval '1 hour'"
            )
            fencer.run(lambda queue: fence(queue.conn, 9))
            assert fencer.is_blocked()
        done = fencer.result()
    job = queue.get(added.id)
    assert (done.leases, job.status, job.epoch, job.history[0]["owner"]) == (1, "ready", 10, "A")


def test_an_empty_queue_is_fenced_without_complaint(conn):
    assert fence(conn, 5)[:2] == (0, 0)


@pytest.mark.parametrize("by", [0, -1, 10**12 + 1, 1.5, True, "7"])
def test_a_raise_that_is_no_positive_whole_number_is_refused(conn, jobs, by):
    before = states(conn)
    with pytest.raises(InvalidInput, match="raise must"):
        fence(conn, by)
    assert states(conn) == before


def test_a_fence_that_fails_changes_nothing(conn, jobs):
    before = states(conn)
    conn.execute(
        "create function refuse() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$; "
        "create trigger refuse before update on jobqueue.job for each row when (new.epoch > 100) execute "
        "function refuse()"
    )
    try:
        with pytest.raises(psycopg.errors.RaiseException):
            fence(conn, 1_000)
        assert states(conn) == before
    finally:
        conn.execute("drop trigger refuse on jobqueue.job; drop function refuse()")


# ---- a fail-over to an asynchronous standby --------------------------------------------------------------------------


class Standby:
    """A streaming replica of a server, which can be stopped, started and promoted."""

    def __init__(self, server):
        self.folder = Path(tempfile.mkdtemp(prefix="standby-", dir=os.environ["JOBQUEUE_LAB_HOME"]))
        self.sockets = Path(tempfile.mkdtemp(prefix="jobqueue-standby-"))
        self.programs, self.user = Path(server._found.folder), binaries.unprivileged()
        self.process = None
        for folder in (self.folder, self.sockets):
            folder.chmod(0o700)
            if self.user:
                shutil.chown(folder, self.user)
        address = conninfo.conninfo_to_dict(server.dsn)
        self.port = address["port"]
        self.dsn = conninfo.make_conninfo(server.dsn, host=str(self.sockets))

    def copy(self, dsn):
        source = conninfo.make_conninfo(dsn, dbname=None)
        self._do("pg_basebackup", "-d", source, "-D", self.folder, "-R", "-X", "stream", "-c", "fast")

    def start(self):
        # no fewer connections than the primary has: a standby refuses to start with less
        settings = ("listen_addresses=", f"max_connections={database.SETTINGS['max_connections']}")
        command = [self.programs / "postgres", "-D", self.folder, "-k", self.sockets, "-p", str(self.port)]
        command += [word for setting in settings for word in ("-c", setting)]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/", **self._as_whom())
        wait_until(self._is_up, 60, "the standby")

    def stop(self):
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)
            self.process = None

    def promote(self):
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            assert conn.execute("select pg_promote(true, 60)").fetchone() == (True,)

    def remove(self):
        with suppress(subprocess.TimeoutExpired):
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.sockets, ignore_errors=True)

    def _is_up(self):
        with suppress(psycopg.OperationalError), psycopg.connect(self.dsn):
            return True
        assert self.process.poll() is None, (self.folder / "log").read_text()
        return False

    def _do(self, program, *arguments):
        subprocess.run(
            [self.programs / program, *map(str, arguments)], check=True, cwd="/", capture_output=True, **self._as_whom()
        )

    def _as_whom(self):
        own = {"user": self.user, "group": pwd.getpwnam(self.user).pw_gid, "extra_groups": []} if self.user else {}
        return {
            "env": {"PATH": os.environ["PATH"], "LC_ALL": "C", "JOBQUEUE_LAB_HOME": os.environ["JOBQUEUE_LAB_HOME"]},
            **own,
        }


@contextmanager
def standby_of(server):
    standby = Standby(server)
    try:
        standby.copy(server.dsn)
        yield standby
    finally:
        standby.remove()


def caught_up(primary, standby_dsn):
    """The standby has replayed all that the primary has written so far."""
    [position] = primary.execute("select pg_current_wal_lsn()::text").fetchone()
    with psycopg.connect(standby_dsn, autocommit=True) as conn:
        wait_until(
            lambda: conn.execute("select pg_last_wal_replay_lsn() >= %s::pg_lsn", (position,)).fetchone()[0],
            30,
            "the standby's replay",
        )


class Destination:
    """An outer system that accepts a write unless it has seen a newer epoch, or another owner of the same one."""

    def __init__(self):
        self.seen = {}

    def write(self, lease):
        epoch, owner = self.seen.get(lease.id, (0, lease.owner))
        if lease.epoch < epoch or (lease.epoch == epoch and owner != lease.owner):
            return "refused"
        self.seen[lease.id] = lease.epoch, lease.owner
        return "accepted"


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fenced", [False, True], ids=["without the fence", "with the fence"])
def test_a_promoted_standby_that_lost_the_last_claims(nothing_left_behind, fenced):
    """A holds a claim that the standby never saw. Without the fence B gets a lower epoch, and destinations refuse B."""
    with database.Server() as server, standby_of(server) as standby:
        destination, at_once = Destination(), Backoff(shape="constant", base_seconds=0, jitter="none")
        with psycopg.connect(server.dsn, autocommit=True) as conn:
            primary = Queue(conn)
            primary.install()
            known, lost = primary.enqueue("report").id, primary.enqueue("report").id
            [held] = primary.claim("A")
            standby.start()
            caught_up(conn, standby.dsn)
            standby.stop()
            [zombie] = primary.claim("A", lease_seconds=3_600)
            for _ in range(2):  # A fails twice and claims again: the destination has seen epoch 3
                primary.fail(zombie, "again", backoff=at_once)
                [zombie] = primary.claim("A", lease_seconds=3_600)
            vanished = primary.enqueue("report").id
            assert ((held.id, zombie.id, zombie.epoch), destination.write(zombie)) == ((known, lost, 3), "accepted")
        server.kill()
        standby.start()
        standby.promote()
        if fenced:
            command = [sys.executable, "-m", "jobqueue", "fence", "--raise", "100", "--dsn", standby.dsn]
            said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
            assert said.startswith("raised 2 live epochs by 100, took 1 leases away; new jobs begin after id 1000")
        with psycopg.connect(standby.dsn, autocommit=True) as conn:
            queue = Queue(conn)
            claims = {lease.id: lease for lease in queue.claim("B", limit=5)}
            answers = (
                claims[lost].epoch,
                destination.write(claims[lost]),
                destination.write(zombie),
                queue.complete(zombie),
                queue.complete(held),
            )
            fresh = queue.enqueue("report").id
        assert answers == (
            (101, "accepted", "refused", Outcome.LOST, Outcome.LOST)
            if fenced
            else (1, "refused", "accepted", Outcome.LOST, Outcome.APPLIED)
        )
        assert fresh > vanished or not fenced
