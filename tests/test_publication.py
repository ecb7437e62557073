"""Candidates on a real file system: whole or absent, one result whatever is killed, orphans swept and results kept."""

import errno
import hashlib
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from helpers import wait_until
from jobqueue import Handler, InfrastructureError, Outcome, Queue, Reaper, Worker, publication
from jobqueue.backoff import Backoff
from jobqueue.errors import InvalidInput, JobQueueError

pytestmark = pytest.mark.shared

AT_ONCE = Backoff(shape="constant", base_seconds=0, jitter="none")
EMPTY = hashlib.sha256(b"").hexdigest()


def claim(queue, owner="A"):
    queue.enqueue("report")
    return queue.claim(owner)[0]


def take_away(queue, lease):
    """The lease ends and the reaper gives the job back."""
    queue.conn.execute("update jobqueue.job set locked_until = jobqueue.now() where id = %s", (lease.id,))
    assert [reaped.id for reaped in queue.reap(backoff=AT_ONCE)] == [lease.id]


def publish(queue, folder, lease, content, name="report.csv"):
    candidate = publication.write(folder, lease, content)
    assert queue.publish(lease, name, candidate.digest) is Outcome.APPLIED
    return candidate


def age(path, seconds):
    seen = path.stat().st_mtime - seconds
    os.utime(path, (seen, seen))


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


# ---- writing ---------------------------------------------------------------------------------------------------------


def test_a_candidate_has_the_bytes_and_their_lower_case_sha256(queue, tmp_path):
    candidate = publication.write(tmp_path, claim(queue), b"a,b\n1,2\n")
    assert (candidate.path.read_bytes(), candidate.digest, candidate.size) == (
        b"a,b\n1,2\n",
        hashlib.sha256(b"a,b\n1,2\n").hexdigest(),
        8,
    )


@pytest.mark.parametrize("content", [bytearray(b"xyz"), memoryview(b"xyz"), memoryview(bytes(range(8))).cast("H")])
def test_every_kind_of_bytes_is_taken(queue, tmp_path, content):
    assert publication.write(tmp_path, claim(queue), content).path.read_bytes() == bytes(content)


def test_a_file_is_copied_and_left_alone(queue, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(os.urandom(3 << 20))
    candidate = publication.write(tmp_path / "out", claim(queue), source)
    assert candidate.path.read_bytes() == source.read_bytes()


@pytest.mark.skipif(
    not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == os.stat("/var/tmp").st_dev, reason="one file system"
)
def test_a_file_of_another_file_system_becomes_a_candidate(queue, tmp_path):
    source = Path(f"/dev/shm/jobqueue-{os.getpid()}-source")
    source.write_bytes(b"from elsewhere")
    try:
        with pytest.raises(OSError) as failed:  # what a plain rename would have done
            source.rename(tmp_path / "renamed")
        assert failed.value.errno == errno.EXDEV
        assert publication.write(tmp_path, claim(queue), source).path.read_bytes() == b"from elsewhere"
    finally:
        source.unlink()


def test_the_folder_is_made(queue, tmp_path):
    assert publication.write(tmp_path / "deep" / "er", claim(queue), b"x").path.parent == tmp_path / "deep" / "er"


def test_an_empty_artefact_is_refused_unless_the_handler_means_it(queue, tmp_path):
    lease = claim(queue)
    with pytest.raises(InvalidInput, match="the artefact is empty: pass allow_empty=True"):
        publication.write(tmp_path, lease, b"")
    assert names(tmp_path) == []
    assert publication.write(tmp_path, lease, b"", allow_empty=True).digest == EMPTY


@pytest.mark.parametrize(
    "source, said",
    [
        ("missing", "can't be read: .*No such file"),
        (".", "is not a regular file"),
        ("a\0b", "can't be read: .*embedded null (byte|character)"),
    ],
)
def test_a_source_that_cannot_be_read_is_named(queue, tmp_path, source, said):
    with pytest.raises(InvalidInput, match=said):
        publication.write(tmp_path / "out", claim(queue), source)
    assert not (tmp_path / "out").exists()


def test_something_that_is_neither_bytes_nor_a_path_is_refused(queue, tmp_path):
    with pytest.raises(InvalidInput, match="bytes or the path of a file, not int"):
        publication.write(tmp_path, claim(queue), 7)


def test_a_pipe_is_refused_instead_of_waited_for(queue, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidInput, match="is not a regular file"):
        publication.write(tmp_path / "out", claim(queue), tmp_path / "pipe")


def test_a_folder_that_is_a_file_is_named(queue, tmp_path):
    (tmp_path / "out").write_bytes(b"")
    with pytest.raises(
        InfrastructureError, match="the folder '.*out' can't take the candidate: (File exists|Not a directory)"
    ):
        publication.write(tmp_path / "out", claim(queue), b"x")


@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="needs a folder that refuses even root")
def test_a_folder_that_takes_no_file_is_named(queue):
    with pytest.raises(InfrastructureError, match="the folder '/proc/self' can't take the candidate"):
        publication.write("/proc/self", claim(queue), b"x")


def small_files_only(content_bytes):
    """A child whose files may have 64 KiB at most: the kernel itself breaks its write in the middle."""
    return f"""
import resource, signal, sys
from jobqueue import publication, InfrastructureError
from jobqueue.model import Lease
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
lease = Lease(7, "report", None, "A", 1, 1, 0, None)
try:
    publication.write(sys.argv[1], lease, bytes({content_bytes}))
except InfrastructureError as error:
    print(error)
"""


def test_a_disk_that_is_full_in_the_middle_of_a_file_leaves_no_half_of_it(tmp_path):
    out = run_child(small_files_only(1 << 20), tmp_path)
    assert (out.stdout.strip(), names(tmp_path)) == (
        f"the folder '{tmp_path}' can't take the candidate: File too large",
        [],
    )


def run_child(code, *arguments, **options):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=60, **options
    )


def test_names_that_differ_by_case_or_unicode_form_do_not_collide(conn, queue, tmp_path):
    jobs = {}
    for name in ("Report", "report", "caf\u00e9", "cafe\u0301", "../../etc/passwd", "a/b", "."):
        lease = claim(queue)
        publish(queue, tmp_path, lease, name.encode(), name)
        jobs[lease.id] = name
    found = {job: publication.verify(conn, tmp_path, job) for job in jobs}
    assert {job: (one.name, one.path.read_bytes().decode(), one.path.parent) for job, one in found.items()} == {
        job: (name, name, tmp_path) for job, name in jobs.items()
    }


def test_two_owners_of_one_epoch_do_not_share_a_candidate(queue, tmp_path):
    lease = claim(queue)
    paths = {
        publication.write(tmp_path, replace(lease, owner=owner), b"same").path
        for owner in ("A", "a", "A/../B", "é" * 90)
    }
    assert (len(paths), {path.parent for path in paths}) == (4, {tmp_path})


# ---- what is the result ----------------------------------------------------------------------------------------------


def test_what_was_published_is_available_live_and_archived(conn, queue, tmp_path):
    lease = claim(queue)
    candidate = publish(queue, tmp_path, lease, b"x")
    queue.complete(lease)
    live = publication.verify(conn, tmp_path, lease.id)
    queue.archive(older_than_seconds=0)
    archived = publication.verify(conn, tmp_path, lease.id)
    assert (
        live
        == archived
        == publication.Published(
            lease.id,
            "available",
            "the bytes have the published digest",
            "report.csv",
            candidate.digest,
            1,
            "A",
            candidate.path,
        )
    )


def test_a_candidate_that_was_not_published_is_no_result(conn, queue, tmp_path):
    lease = claim(queue)
    publication.write(tmp_path, lease, b"x")
    assert publication.verify(conn, tmp_path, lease.id) == publication.Published(
        lease.id, "nothing", "nothing was published"
    )


def test_a_missing_file_is_unavailable(conn, queue, tmp_path):
    lease = claim(queue)
    publish(queue, tmp_path, lease, b"x").path.unlink()
    found = publication.verify(conn, tmp_path, lease.id)
    assert (found.state, found.reason, found.path) == ("unavailable", "its file is missing or can't be read", None)


def test_an_altered_file_is_unavailable(conn, queue, tmp_path):
    lease = claim(queue)
    publish(queue, tmp_path, lease, b"x").path.write_bytes(b"y")
    found = publication.verify(conn, tmp_path, lease.id)
    assert (found.state, found.reason, found.path) == (
        "unavailable",
        f"its file was altered: its sha256 is {hashlib.sha256(b'y').hexdigest()}",
        None,
    )


def test_a_folder_in_the_place_of_the_file_is_unavailable(conn, queue, tmp_path):
    lease = claim(queue)
    candidate = publish(queue, tmp_path, lease, b"x")
    candidate.path.unlink()
    candidate.path.mkdir()
    assert publication.verify(conn, tmp_path, lease.id).state == "unavailable"


def test_a_publication_of_an_epoch_that_was_taken_over_is_not_the_result(conn, queue, tmp_path):
    first = claim(queue)
    publish(queue, tmp_path, first, b"old")
    take_away(queue, first)
    second = queue.claim("B")[0]
    during = publication.verify(conn, tmp_path, first.id)
    publish(queue, tmp_path, second, b"new")
    after = publication.verify(conn, tmp_path, first.id)
    assert [(one.state, one.epoch, one.path and one.path.read_bytes()) for one in (during, after)] == [
        ("earlier", 1, None),
        ("available", 2, b"new"),
    ]


def test_a_stale_candidate_is_refused_and_never_shown(conn, queue, tmp_path):
    stale = claim(queue)
    candidate = publication.write(tmp_path, stale, b"old")
    take_away(queue, stale)
    current = queue.claim("B")[0]
    publish(queue, tmp_path, current, b"new")
    outcome = queue.publish(stale, "report.csv", candidate.digest)
    found = publication.verify(conn, tmp_path, stale.id)
    assert (outcome, found.owner, found.path.read_bytes()) == (Outcome.LOST, "B", b"new")


def test_an_unknown_job_has_no_result(conn, tmp_path):
    assert publication.verify(conn, tmp_path, 10**12).state == "unknown job"


# ---- orphans ---------------------------------------------------------------------------------------------------------


def test_orphans_are_candidates_whose_epoch_has_ended_without_publishing_them(conn, queue, tmp_path):
    kept = publish(queue, tmp_path, (held := claim(queue)), b"kept")
    second = publication.write(tmp_path, held, b"written later, refused")
    assert queue.publish(held, "report.csv", second.digest) is Outcome.CONFLICT
    before = publication.orphans(conn, tmp_path)
    queue.complete(held)
    after = publication.orphans(conn, tmp_path)
    assert (
        before,
        [(one.path, one.job_id, one.epoch, one.digest, one.known) for one in after],
        kept.path.exists(),
    ) == ([], [(second.path, held.id, 1, second.digest, True)], True)


END = {
    "complete": lambda queue, lease: queue.complete(lease),
    "fail": lambda queue, lease: queue.fail(lease, "no", delay_seconds=3600),
    "fail permanently": lambda queue, lease: queue.fail(lease, "no", permanent=True),
    "release": lambda queue, lease: queue.release(lease, "later"),
    "cancel": lambda queue, lease: queue.cancel(lease.id),
    "reap": take_away,
    "a new claim": lambda queue, lease: (take_away(queue, lease), queue.claim("A")),
    "archive": lambda queue, lease: (queue.complete(lease), queue.archive(older_than_seconds=0)),
}


@pytest.mark.parametrize("end", END)
def test_a_candidate_is_swept_once_its_epoch_has_ended(conn, queue, tmp_path, end):
    lease = claim(queue)
    publication.write(tmp_path, lease, b"x")
    assert publication.sweep(conn, tmp_path, grace_seconds=0) == 0
    END[end](queue, lease)
    assert (publication.sweep(conn, tmp_path, grace_seconds=0), names(tmp_path)) == (1, [])


@pytest.mark.parametrize("end", END)
def test_a_published_file_is_never_swept(conn, queue, tmp_path, end):
    lease = claim(queue)
    candidate = publish(queue, tmp_path, lease, b"x")
    END[end](queue, lease)
    assert (publication.sweep(conn, tmp_path, grace_seconds=0), names(tmp_path)) == (0, [candidate.path.name])


def test_a_candidate_of_an_expired_lease_stays_while_its_epoch_can_go_on(conn, queue, tmp_path):
    lease = claim(queue)
    publication.write(tmp_path, lease, b"x")
    conn.execute("update jobqueue.job set locked_until = jobqueue.now() - interval '1 day'")
    assert publication.sweep(conn, tmp_path, grace_seconds=0) == 0


def test_the_file_of_an_epoch_that_this_database_has_not_seen_stays(conn, queue, tmp_path):
    """After a fail-over the row may stand at an older epoch than the file: then it proves nothing."""
    lease = claim(queue)
    publication.write(tmp_path, replace(lease, epoch=3), b"x")
    queue.complete(lease)
    assert publication.sweep(conn, tmp_path, grace_seconds=0) == 0


def test_the_grace_is_counted_from_the_files_own_time(conn, queue, tmp_path):
    lease = claim(queue)
    young, old = (publication.write(tmp_path, lease, content) for content in (b"young", b"old"))
    queue.complete(lease)
    age(old.path, 601)
    assert (publication.sweep(conn, tmp_path, grace_seconds=600), names(tmp_path)) == (1, [young.path.name])


def test_a_file_of_an_unknown_job_is_listed_and_stays(conn, queue, tmp_path):
    lost = publication.write(tmp_path, replace(claim(queue), id=999), b"x")
    age(lost.path, 10**6)
    listed = [(one.job_id, one.known) for one in publication.orphans(conn, tmp_path)]
    assert (listed, publication.sweep(conn, tmp_path, grace_seconds=0), names(tmp_path)) == (
        [(999, False)],
        0,
        [lost.path.name],
    )


def test_a_file_of_an_unknown_job_goes_after_the_time_that_is_given(conn, queue, tmp_path):
    young, old = (publication.write(tmp_path, replace(claim(queue), id=999), content) for content in (b"1", b"2"))
    age(old.path, 101)
    swept = publication.sweep(conn, tmp_path, grace_seconds=0, unknown_after_seconds=100)
    assert (swept, names(tmp_path)) == (1, [young.path.name])


def test_foreign_files_are_neither_listed_nor_touched(conn, tmp_path):
    for name in (
        "README",
        "1.2.3",
        f"{'9' * 30}.1.{'a' * 16}.{'b' * 64}",
        f"1.1.{'a' * 16}.{'b' * 63}",
        f"1.1.{'A' * 16}.{'b' * 64}",
    ):
        (tmp_path / name).write_bytes(b"")
    before = names(tmp_path)
    assert (
        publication.orphans(conn, tmp_path),
        publication.sweep(conn, tmp_path, grace_seconds=0),
        names(tmp_path),
    ) == ([], 0, before)


def test_a_folder_that_does_not_exist_yet_has_no_orphans(conn, tmp_path):
    assert publication.sweep(conn, tmp_path / "none", grace_seconds=0) == 0


def test_more_files_than_one_step_are_swept(conn, queue, tmp_path):
    lease = claim(queue)
    published = publish(queue, tmp_path, lease, b"x")
    queue.complete(lease)
    stem = published.path.name.rsplit(".", 1)[0]
    for number in range(2_500):
        (tmp_path / f"{stem}.{number:064x}").touch()
    assert (publication.sweep(conn, tmp_path, grace_seconds=0), names(tmp_path)) == (2_500, [published.path.name])


@pytest.mark.parametrize("seconds", [-1, float("nan"), "1"])
def test_a_grace_that_is_no_time_is_refused(conn, tmp_path, seconds):
    with pytest.raises(InvalidInput, match="grace_seconds"):
        publication.sweep(conn, tmp_path, grace_seconds=seconds)


def test_sweeping_while_workers_publish_removes_no_result(dsn, conn, queue, tmp_path):
    """Two sweepers without any grace against workers that publish, lose leases and publish again."""
    count, stop = 150, threading.Event()

    def report(lease, context):
        publication.write(tmp_path, lease, f"never published {lease.id} {lease.epoch}".encode())
        context.publish(f"{lease.id} {lease.epoch}".encode(), "report")
        if lease.attempt == 1 and lease.id % 3 == 0:
            raise ValueError("after publishing")

    def sweep():
        with psycopg.connect(dsn, autocommit=True) as own:
            while not stop.is_set():
                swept.append(publication.sweep(own, tmp_path, grace_seconds=0))

    swept, handler = [], Handler(report, backoff=AT_ONCE)
    queue.enqueue_many([{"type": "report"}] * count)
    worker = Worker(dsn, {"report": handler}, artifacts=tmp_path, poll_seconds=0.05)
    threads = [threading.Thread(target=target, daemon=True) for target in (sweep, sweep, worker.run)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: ends(conn) == {"done": count}, 60, "all reports done")
    finally:
        stop.set()
        worker.stop()
        for thread in threads:
            thread.join(20)
    publication.sweep(conn, tmp_path, grace_seconds=0)
    states = {
        publication.verify(conn, tmp_path, job_id).state for (job_id,) in conn.execute("select id from jobqueue.job")
    }
    assert (states, len(names(tmp_path)), sum(swept) > count / 2) == ({"available"}, count, True)


def ends(conn):
    return dict(conn.execute("select status, count(*) from jobqueue.job group by status").fetchall())


# ---- through a worker ------------------------------------------------------------------------------------------------


def run(dsn, fn, folder, **options):
    Worker(dsn, {"report": Handler(fn, backoff=AT_ONCE)}, owner="A", artifacts=folder, **options).run_once()


def test_a_handler_publishes_and_its_result_is_available(dsn, conn, queue, tmp_path):
    added, outcomes = queue.enqueue("report"), []
    run(dsn, lambda lease, context: outcomes.append(context.publish(b"1,2", "report.csv")), tmp_path)
    found = publication.verify(conn, tmp_path, added.id)
    assert (outcomes, found.state, found.owner, found.path.read_bytes(), queue.get(added.id).status) == (
        [Outcome.APPLIED],
        "available",
        "A",
        b"1,2",
        "done",
    )


def test_publishing_the_same_again_is_already_applied_and_something_else_a_conflict(dsn, conn, queue, tmp_path):
    outcomes = []

    def report(lease, context):
        outcomes.extend(context.publish(content, "report.csv") for content in (b"1", b"1", b"2"))

    added = queue.enqueue("report")
    run(dsn, report, tmp_path)
    assert (outcomes, publication.verify(conn, tmp_path, added.id).path.read_bytes()) == (
        [Outcome.APPLIED, Outcome.ALREADY_APPLIED, Outcome.CONFLICT],
        b"1",
    )


@pytest.mark.parametrize(
    "content, options, said",
    [
        (b"", {}, "the artefact is empty"),
        ("missing.csv", {}, "can't be read"),
        (b"x", {"name": ""}, "name must have 1–400 bytes"),
    ],
)
def test_a_bad_artefact_is_a_failed_attempt_with_its_reason(dsn, queue, tmp_path, content, options, said):
    added = queue.enqueue("report", max_attempts=1)
    run(dsn, lambda lease, context: context.publish(content, **({"name": "report.csv"} | options)), tmp_path)
    job = queue.get(added.id)
    assert (job.status, said in job.last_error, names(tmp_path)) == ("dead", True, [])


def test_an_empty_artefact_is_published_if_the_handler_says_so(dsn, conn, queue, tmp_path):
    added = queue.enqueue("report")
    run(dsn, lambda lease, context: context.publish(b"", "report.csv", allow_empty=True), tmp_path)
    found = publication.verify(conn, tmp_path, added.id)
    assert (found.state, found.digest) == ("available", EMPTY)


def test_a_folder_that_takes_nothing_costs_no_attempt(dsn, queue, tmp_path):
    (tmp_path / "out").write_bytes(b"in the way")
    added = queue.enqueue("report", max_attempts=1)
    run(dsn, lambda lease, context: context.publish(b"x", "report.csv"), tmp_path / "out")
    job = queue.get(added.id)
    assert (job.status, job.attempts, job.releases, job.history[-1]["event"]) == ("ready", 0, 1, "released")


def test_a_worker_without_a_folder_says_what_is_missing(dsn, queue):
    added = queue.enqueue("report", max_attempts=1)
    run(dsn, lambda lease, context: context.publish(b"x", "report.csv"), None)
    assert (
        "JobQueueError: this worker has no folder for candidates: give it artifacts=DIR"
        in queue.get(added.id).last_error
    )


def test_a_handler_that_was_overtaken_publishes_nothing(dsn, conn, queue, tmp_path):
    said = []

    def report(lease, context):
        take_away(Queue(conn), lease)
        Queue(conn).claim("B")
        try:
            context.publish(b"stale", "report.csv")
        except JobQueueError as error:
            said.append((type(error).__name__, context.lost.is_set()))

    added = queue.enqueue("report")
    run(dsn, report, tmp_path)
    assert (said, publication.verify(conn, tmp_path, added.id).state, queue.get(added.id).locked_by) == (
        [("LeaseLost", True)],
        "nothing",
        "B",
    )


def test_a_candidate_that_changes_before_it_is_published_is_noticed(queue, tmp_path):
    candidate = publication.write(tmp_path, claim(queue), b"x")
    candidate.path.write_bytes(b"y")
    with pytest.raises(InfrastructureError, match="is altered since it was written: nothing was published"):
        publication.recheck(candidate)
    candidate.path.unlink()
    with pytest.raises(InfrastructureError, match="is gone: nothing was published"):
        publication.recheck(candidate)


# ---- kill -9 at every point ------------------------------------------------------------------------------------------

CHILD = """
import os, signal, sys
import psycopg
from jobqueue import Queue, publication

dsn, folder, point = sys.argv[1:]

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def dying(original, before):
    def act(*given, **options):
        if before:
            die()
        original(*given, **options)
        die()
    return act

with psycopg.connect(dsn, autocommit=True) as conn:
    queue = Queue(conn)
    lease = queue.claim("killed", lease_seconds=0.2)[0]
    if point == "in the middle of the write":
        def halves():
            yield b"half of "
            die()
        publication._chunks = lambda source: halves()
    if point == "after the write":
        os.fsync = dying(os.fsync, before=True)
    if point == "after the file's fsync":
        os.fsync = dying(os.fsync, before=False)
    if point == "after the rename":
        publication._sync_folder = die
    candidate = publication.write(folder, lease, b"result")
    if point == "after the candidate":
        die()
    if point == "before the commit":
        with conn.transaction():
            assert queue.publish(lease, "report.csv", candidate.digest).name == "APPLIED"
            die()
    assert queue.publish(lease, "report.csv", candidate.digest).name == "APPLIED"
    die()
"""
POINTS = [
    "in the middle of the write",
    "after the write",
    "after the file's fsync",
    "after the rename",
    "after the candidate",
    "before the commit",
    "after the commit",
]


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_point_there_is_one_result_in_the_end_and_nothing_else(dsn, conn, queue, tmp_path, point):
    added = queue.enqueue("report")
    killed = run_child(CHILD, dsn, tmp_path, point)
    assert (killed.returncode, killed.stderr) == (-signal.SIGKILL, "")
    left = len(names(tmp_path))
    reaper = Reaper(dsn, backoff=AT_ONCE)
    wait_until(reaper.run_once, 10, "the lost lease")
    run(dsn, lambda lease, context: context.publish(b"result", "report.csv"), tmp_path)
    publication.sweep(conn, tmp_path, grace_seconds=0)
    found = publication.verify(conn, tmp_path, added.id)
    assert (left, queue.get(added.id).status, found.state, found.digest, names(tmp_path)) == (
        1,
        "done",
        "available",
        hashlib.sha256(b"result").hexdigest(),
        [found.path.name],
    )


def test_killed_after_the_commit_the_result_of_the_last_epoch_is_available_without_another_run(
    dsn, conn, queue, tmp_path
):
    added = queue.enqueue("report", max_attempts=1)
    run_child(CHILD, dsn, tmp_path, "after the commit")
    wait_until(Reaper(dsn).run_once, 10, "the lost lease")
    found = publication.verify(conn, tmp_path, added.id)
    assert (queue.get(added.id).status, found.state, publication.orphans(conn, tmp_path)) == ("dead", "available", [])
