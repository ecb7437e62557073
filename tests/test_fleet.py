"""The supervisor and its client on plain processes, then a fleet of real workers: faults, facts, nothing left over."""

import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from signal import SIGCONT, SIGINT, SIGKILL, SIGSTOP, SIGTERM

import psutil
import pytest
from jupyter_client.manager import start_new_kernel
from psycopg.conninfo import make_conninfo

from helpers import wait_until
from jobqueue import InfrastructureError
from jobqueue.errors import InvalidInput
from jobqueue.lab import conditions, handlers
from jobqueue.lab.fleet import Fleet
from jobqueue.lab.processes import FleetError, Processes

ROOT = Path(__file__).parents[1]
SLEEPER = [sys.executable, "-c", "import signal; signal.pause()"]


@pytest.fixture
def processes():
    opened = Processes()
    yield opened
    opened.close()


def kinds(processes, name):
    return [event.kind for event in processes.events if event.target == name]


def gone(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


# --- Facts come from the operating system ---


def test_a_process_is_what_the_operating_system_shows(processes):
    processes.start("a", SLEEPER)
    states = [processes.status()["a"].state]
    for number in (SIGSTOP, SIGCONT, SIGKILL):
        processes.signal("a", number)
        states.append(processes.status()["a"].state)
    assert states == ["running", "paused", "running", "killed"]
    assert (processes.status()["a"].code, kinds(processes, "a")) == (-SIGKILL, ["start", "pause", "resume", "kill"])


def test_what_somebody_else_did_to_a_process_is_seen_too(processes):
    processes.start("a", SLEEPER)
    pid = processes.status()["a"].pid
    for number, state in ((SIGSTOP, "paused"), (SIGCONT, "running"), (SIGKILL, "killed")):
        os.kill(pid, number)
        wait_until(lambda state=state: processes.status()["a"].state == state, 5)
    assert kinds(processes, "a") == ["start", "pause", "resume", "kill"]


def test_an_end_is_an_event_at_once_though_nobody_asks(processes):
    processes.start("a", [sys.executable, "-c", "raise SystemExit(3)"])
    begun = time.time()
    supervisor = psutil.Process(processes.supervisor_pid)  # the system is asked, not it: what it has seen is no zombie
    wait_until(lambda: not supervisor.children(), 5, "the end that the supervisor has seen")
    event = processes.events[-1]
    assert (event.kind, processes.status()["a"].code) == ("exit", 3)
    assert event.at.timestamp() - begun < 0.9


def test_a_process_asked_to_end_is_stopping_until_it_has(processes):
    ignore = "import signal; signal.signal(signal.SIGTERM, lambda *_: None); print('up', flush=True)"
    processes.start("a", [sys.executable, "-c", f"{ignore}\nwhile True: signal.pause()"])
    wait_until(lambda: processes.log("a") == "up\n", 10)
    processes.signal("a", SIGTERM)
    assert processes.status()["a"].state == "stopping"
    processes.end(["a"], grace_seconds=0.1)
    assert (processes.status()["a"].state, kinds(processes, "a")) == ("killed", ["start", "stop", "kill"])


def test_a_killed_process_takes_its_helpers_with_it(processes):
    code = f"import subprocess; p = subprocess.Popen({SLEEPER!r}); print(p.pid, flush=True); p.wait()"
    processes.start("a", [sys.executable, "-c", code])
    helper = int(wait_until(lambda: processes.log("a"), 10))
    processes.signal("a", SIGKILL)
    wait_until(lambda: gone(helper), 5)


# --- Starts ---


def test_one_that_exits_with_its_restart_code_starts_again_with_the_next_number(processes):
    code = "print({start}, flush=True); raise SystemExit(75 if {start} < 3 else 4)"
    processes.start("a", [sys.executable, "-c", code], restart_code=75)
    wait_until(lambda: processes.status()["a"].code == 4, 20)
    assert (processes.log("a"), processes.status()["a"].start) == ("1\n2\n3\n", 3)
    assert kinds(processes, "a") == ["start", "exit", "restart", "exit", "restart", "exit"]


def test_one_that_ended_can_be_started_again_and_one_that_lives_cannot(processes):
    processes.start("a", SLEEPER)
    pid = processes.status()["a"].pid
    with pytest.raises(FleetError, match=rf"^a is alive \(pid {pid}\)$"):
        processes.start("a", SLEEPER)
    processes.signal("a", SIGKILL)
    processes.start("a", SLEEPER)
    assert (processes.status()["a"].state, processes.status()["a"].start) == ("running", 2)


def test_what_cannot_be_done_is_an_error_and_the_supervisor_goes_on(processes):
    with pytest.raises(FleetError, match=r"^\[Errno 2\] No such file or directory: '/nowhere/program'$"):
        processes.start("a", ["/nowhere/program"])
    processes.start("b", [sys.executable, "-c", "pass"])
    wait_until(lambda: not processes.status()["b"].alive, 10)
    with pytest.raises(FleetError, match=r"^b has ended \(exited\)$"):
        processes.signal("b", SIGSTOP)
    with pytest.raises(FleetError, match=r"^there is no process a$"):
        processes.signal("a", SIGSTOP)
    assert list(processes.status()) == ["b"]


def test_the_environment_reaches_the_process_and_not_its_arguments(processes):
    code = "import os, signal; print(os.environ['SECRET'], flush=True); signal.pause()"
    processes.start("a", [sys.executable, "-c", code], env={"SECRET": "word {start}"})
    wait_until(lambda: processes.log("a") == "word 1\n", 10)
    assert "word" not in " ".join(psutil.Process(processes.status()["a"].pid).cmdline())


def test_every_call_may_come_from_any_thread(processes):
    def toggle(name):
        processes.start(name, SLEEPER)
        for _ in range(20):
            processes.signal(name, SIGSTOP)
            assert processes.status()[name].state == "paused"
            processes.signal(name, SIGCONT)
            assert processes.status()[name].state == "running"
        return name

    with ThreadPoolExecutor(8) as threads:
        names = list(threads.map(toggle, "abcdefgh"))
    assert [kinds(processes, name) for name in names] == [["start", *["pause", "resume"] * 20]] * 8


# --- Ends: of the client, of the supervisor ---

CLIENT = """
import signal, sys, threading
from jobqueue.lab.processes import Processes
processes = Processes()
# Started from a thread that ends: the parent's death signal must not be bound to it.
def start():
    for name in ("running", "paused"):
        processes.start(name, [sys.executable, "-c", "import signal; signal.pause()"])
    processes.signal("paused", signal.SIGSTOP)
thread = threading.Thread(target=start); thread.start(); thread.join()
pids = [process.pid for process in processes.status().values()]
print(processes.supervisor_pid, *pids, processes.logs, flush=True)
"""


def client(more):
    """A process that stands for a kernel, and the pids of its supervisor, of a running and of a paused process."""
    kernel = subprocess.Popen(
        [sys.executable, "-c", CLIENT + more], stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    )
    *pids, logs = kernel.stdout.readline().split()
    return kernel, [int(pid) for pid in pids], Path(logs)


@pytest.mark.parametrize("end", ["signal.pause()", "sys.exit(0)"], ids=["SIGKILL", "exit without close"])
def test_when_the_client_ends_nothing_is_left_not_even_a_stopped_process(end):
    kernel, pids, logs = client(end)
    kernel.kill()
    kernel.wait()
    wait_until(lambda: all(map(gone, pids)), 10)
    assert not logs.exists()


def test_a_forked_child_that_holds_the_pipe_open_delays_the_end_only_a_moment():
    kernel, pids, _ = client("""
import os
if os.fork() == 0:
    os.setsid(); print(os.getpid(), flush=True)
signal.pause()
""")
    child = int(kernel.stdout.readline())
    try:
        kernel.kill()
        kernel.wait()
        wait_until(lambda: all(map(gone, pids)), 10)
        assert not gone(child)
    finally:
        os.kill(child, SIGKILL)


def test_a_forked_child_is_refused():
    kernel, _, _ = client("""
import os
from jobqueue.lab.processes import FleetError
if os.fork() == 0:
    try: processes.status()
    except FleetError as error: print(error, flush=True)
    os._exit(0)
os.wait()
""")
    assert kernel.stdout.readline() == f"this fleet belongs to process {kernel.pid}: a forked child can't use it\n"
    kernel.wait(10)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
def test_when_the_supervisor_is_killed_nothing_is_left_and_the_client_is_told(processes):
    for name in ("running", "paused"):
        processes.start(name, SLEEPER)
    processes.signal("paused", SIGSTOP)
    pids = [process.pid for process in processes.status().values()]
    os.kill(processes.supervisor_pid, SIGKILL)
    wait_until(lambda: all(map(gone, pids)), 5)
    with pytest.raises(FleetError, match="^the supervisor has ended, and its processes with it$"):
        processes.status()


def test_an_interrupt_of_the_client_reaches_nobody_and_leaves_the_pipe_whole():
    """Each is sent when the client has asked for it: one that came outside of its `try` would end it, rightly."""
    kernel, pids, _ = client("""
for turn in range(30):
    try:
        print(turn, flush=True)
        while True: processes.status()
    except KeyboardInterrupt:
        pass
print([p.state for p in processes.status().values()], flush=True)
""")
    rng = random.Random(7)
    try:
        for turn in range(30):
            assert kernel.stdout.readline() == f"{turn}\n"
            with suppress(subprocess.TimeoutExpired):  # amid an exchange, now here, now there
                kernel.wait(rng.uniform(0, 0.01))
            os.killpg(kernel.pid, SIGINT)  # as a kernel's interrupt does: the whole group
        assert kernel.stdout.readline() == "['running', 'paused']\n"
        assert not any(map(gone, pids[:1]))
    finally:
        kernel.kill()
        kernel.wait()
        wait_until(lambda: all(map(gone, pids)), 10)


# --- A fleet of real workers ---

LEASE = 2.0
REAPER_SECONDS = POLL_SECONDS = 1.0  # the defaults of `python -m jobqueue reaper` and `worker`
SLACK = 1.0  # two cores, shared with the rest of the tests


@pytest.fixture
def fleet(dsn):
    """Two real workers with one slot each, whose jobs run under a short lease."""
    environment = handlers.environment(lease_seconds=LEASE)
    with Fleet(dsn, size=2, concurrency=1, grace_seconds=0, environment=environment) as running:
        yield running


def begun(queue, job_id, epoch=1):
    """The job, once its epoch is running."""
    return wait_until(lambda: (row := queue.get(job_id)).status == "running" and row.epoch == epoch and row, 15)


def holder(fleet, queue, job_id):
    owners = [worker.owner for worker in fleet.workers]
    return owners.index(begun(queue, job_id).locked_by)


def ends(job):
    return [(entry["event"], entry["epoch"]) for entry in job.history]


def test_a_fleet_runs_jobs_and_leaves_no_process(dsn, queue, server):
    with Fleet(dsn, size=2) as fleet:
        jobs = [queue.enqueue("job", {"seconds": 0.01}).id for _ in range(20)]
        wait_until(lambda: all(queue.get(id).status == "done" for id in jobs), 20)
        facts = fleet.workers + fleet.loops
        assert [(worker.name, worker.state, worker.symbol) for worker in facts] == [
            ("worker-0", "running", "●"),
            ("worker-1", "running", "●"),
            ("reaper", "running", "●"),
        ]
        assert {queue.get(id).finished_by for id in jobs} <= {worker.owner for worker in facts}
    assert [worker.state for worker in fleet.workers] == ["exited", "exited"]
    assert [worker.code for worker in fleet.workers] == [0, 0]
    assert all(gone(worker.pid) for worker in facts)


def test_a_job_of_a_killed_worker_is_ready_within_its_lease_and_a_reaper_period_and_runs_again(fleet, queue):
    job_id = queue.enqueue("job", {"seconds": 1.5}).id
    fleet.kill(victim := holder(fleet, queue, job_id))
    killed_at = fleet.events[-1].at
    again = begun(queue, job_id, epoch=2)
    lost_at = datetime.fromisoformat(again.history[0]["at"])
    assert (lost_at - killed_at).total_seconds() < LEASE + REAPER_SECONDS + SLACK
    assert (again.started_at - again.run_at).total_seconds() < POLL_SECONDS + SLACK
    assert again.run_at >= lost_at
    done = wait_until(lambda: (row := queue.get(job_id)).status == "done" and row, 15)
    assert (ends(done), done.attempts, done.lease_losses) == ([("lost", 1)], 2, 1)
    assert (fleet.workers[victim].state, fleet.workers[victim].code) == ("killed", -SIGKILL)


def test_a_job_of_a_stopped_worker_is_released_and_no_attempt_is_used(fleet, queue):
    job_id = queue.enqueue("job", {"seconds": 1.0}).id
    fleet.stop(victim := holder(fleet, queue, job_id))
    done = wait_until(lambda: (row := queue.get(job_id)).status == "done" and row, 15)
    assert (ends(done), done.attempts, done.lease_losses, done.releases) == ([("released", 1)], 1, 0, 0)
    wait_until(lambda: not fleet.workers[victim].alive, 10)
    assert (fleet.workers[victim].state, fleet.workers[victim].code) == ("exited", 0)


def test_a_worker_paused_past_its_lease_is_told_that_it_lost_and_its_effect_is_not_applied(fleet, queue, conn):
    handlers.prepare(conn)
    job_id = queue.enqueue("job", {"seconds": 0.5, "stubborn": True, "record": True}).id
    fleet.pause(victim := holder(fleet, queue, job_id))
    done = wait_until(lambda: (row := queue.get(job_id)).status == "done" and row, 20)
    fleet.resume(victim)
    wait_until(lambda: "LOST" in fleet.log(victim), 10)
    effects = conn.execute("select destination, epoch from jobqueue_lab.effect order by at").fetchall()
    assert (ends(done), done.finished_epoch) == ([("lost", 1)], 2)
    # Outside the transaction the late effect arrives, after the one of the newer epoch: what a fence is for.
    assert effects == [("outside", 2), ("transaction", 2), ("outside", 1)]


def test_a_worker_whose_sessions_are_cut_recovers_and_no_attempt_is_charged(fleet, queue):
    job_id = queue.enqueue("job", {"seconds": 1.5}).id
    assert fleet.cut(victim := holder(fleet, queue, job_id)) >= 1
    done = wait_until(lambda: (row := queue.get(job_id)).status == "done" and row, 15)
    assert (done.attempts, done.lease_losses) == (1, 0)
    assert (fleet.workers[victim].state, fleet.events[-1].kind) == ("running", "cut")


def finished(queue, job_id):
    return wait_until(lambda: (row := queue.get(job_id)).status == "done" and row, 20)


def test_attempts_of_a_slow_worker_take_longer_and_those_after_its_end_do_not(fleet, queue):
    for place in range(2):
        fleet.slow(place, factor=20)
    slow = finished(queue, queue.enqueue("job", {"seconds": 0.05}).id)
    fleet.slow(0, seconds=0)
    fleet.slow(1, seconds=0)
    plain = finished(queue, queue.enqueue("job", {"seconds": 0.05}).id)
    lasted = [(job.finished_at - job.started_at).total_seconds() for job in (slow, plain)]
    assert (lasted[0] >= 1.0, lasted[1] < 1.0) == (True, True), lasted
    assert [event.kind for event in fleet.events[-4:]] == ["slow"] * 4


def test_what_a_type_depends_on_can_be_down(fleet, queue):
    fleet.down("job")
    job_id = queue.enqueue("job", max_attempts=1).id
    wait_until(lambda: queue.get(job_id).status == "dead", 20)
    assert "RuntimeError: what this type depends on is away" in queue.get(job_id).last_error


def test_a_worker_with_a_clock_a_day_ahead_stores_no_instant_of_its_own(fleet, queue, conn):
    handlers.prepare(conn)
    for place in range(2):
        fleet.skew(place, 86_400)
    job = finished(queue, queue.enqueue("job", {"record": True}).id)
    ahead, early, late = conn.execute(
        "select min(worker_clock - at), min(at), max(at) from jobqueue_lab.effect"
    ).fetchone()
    assert round(ahead.total_seconds() / 10) == 8640
    assert job.created_at <= job.started_at <= early <= late and (job.finished_at - late).total_seconds() < 5


def test_a_process_whose_clock_is_wrong_says_so_whatever_it_asks(processes):
    path = processes.logs / "conditions.json"
    conditions.Conditions(path).put("skew", "a", -86_400, None)
    code = (
        "import logging, time; from datetime import UTC, date, datetime; from jobqueue.lab import conditions\n"
        "real = time.clock_gettime(time.CLOCK_REALTIME); conditions.bend_the_clock()\n"
        "record = logging.makeLogRecord({}); record.__init__('a', 20, '', 1, '', (), None)\n"
        "told = [time.time(), time.time_ns() / 1e9, time.clock_gettime(time.CLOCK_REALTIME), "
        "datetime.now(UTC).timestamp(), "
        "datetime.now().timestamp(), datetime.utcnow().replace(tzinfo=UTC).timestamp(), datetime.today().timestamp(), "
        "time.mktime(time.localtime()), time.mktime(time.strptime(time.strftime('%c'))), "
        "time.mktime(time.strptime(time.ctime())), record.created]\n"
        "print([round((each - real) / 10) for each in told], flush=True)"
    )
    env = {conditions.FILE: str(path), conditions.PROCESS: "a", "PYTHONPATH": str(ROOT)}
    processes.start("a", [sys.executable, "-W", "ignore", "-c", code], env=env)
    wait_until(lambda: not processes.status()["a"].alive, 20)
    assert processes.log("a") == f"{[-8640] * 11}\n"


def test_a_worker_whose_slots_are_stuck_is_replaced_under_a_new_owner(fleet, queue):
    job_id = queue.enqueue("stuck", max_attempts=1).id
    victim = holder(fleet, queue, job_id)
    before = fleet.workers[victim]
    wait_until(lambda: fleet.workers[victim].pid != before.pid and fleet.workers[victim].state == "running", 20)
    assert fleet.workers[victim].owner == before.owner[:-1] + "2"
    assert [event.kind for event in fleet.events if event.target == before.name] == ["start", "exit", "restart"]
    assert queue.get(job_id).status == "dead"


def test_a_poison_job_kills_workers_until_it_is_dead_and_they_can_be_started_again(fleet, queue):
    job_id = queue.enqueue("poison", max_attempts=1).id
    wait_until(lambda: queue.get(job_id).status == "dead", 15)
    victim = next(i for i, worker in enumerate(fleet.workers) if worker.state == "killed")
    fleet.start(victim)
    wait_until(lambda: fleet.workers[victim].state == "running", 15)
    assert (queue.get(job_id).attempts, queue.get(job_id).lease_losses) == (1, 1)


def test_all_can_be_paused_resumed_and_restarted_and_a_random_one_killed(fleet):
    fleet.pause_all()
    assert [worker.state for worker in fleet.workers] == ["paused", "paused"]
    fleet.resume_all()
    assert [worker.state for worker in fleet.workers] == ["running", "running"]
    victim = fleet.kill_random(random.Random(7))
    fleet.restart(victim)
    fleet.restart(1 - victim)
    wait_until(lambda: [worker.state for worker in fleet.workers] == ["running", "running"], 20)
    assert [worker.owner[-2:] for worker in fleet.workers] == [".2", ".2"]
    fleet.stop_all()
    wait_until(lambda: [worker.state for worker in fleet.workers] == ["exited", "exited"], 10)


def test_a_target_that_is_not_there_is_refused(fleet):
    with pytest.raises(InvalidInput, match="^no 2 in this fleet: it has 0 to 1, reaper, worker-0, worker-1$"):
        fleet.kill(2)


@pytest.mark.parametrize(
    "handlers, problem",
    [
        ("nowhere:HANDLERS", "nowhere"),
        ("jobqueue.lab.handlers:NOTHING", "NOTHING"),
        ("jobqueue.lab.handlers:OUTSIDE", "handlers must map"),
    ],
)
def test_handlers_that_cannot_be_loaded_end_the_start_with_the_workers_own_words(dsn, handlers, problem):
    with pytest.raises(FleetError, match=rf"^worker-\d ended at once \(exit [12]\): .*{problem}"), Fleet(dsn, handlers):
        pass


def test_handlers_that_are_no_module_and_name_are_refused_before_anything_starts(dsn):
    with pytest.raises(InvalidInput, match="^handlers must be 'module:NAME', not 'print'$"):
        Fleet(dsn, handlers="print")


def test_a_fleet_on_a_database_that_is_not_there_says_so_without_the_password():
    fleet = Fleet("host=127.0.0.1 port=1 dbname=none user=u password=hush-hush")
    with pytest.raises(InfrastructureError, match="can't connect to 127.0.0.1:1/none: ") as refused, fleet:
        pass
    assert "hush-hush" not in str(refused.value)


def test_no_process_list_shows_the_password(dsn, queue):
    with Fleet(make_conninfo(dsn, password="hush-hush"), size=1) as fleet:
        pids = [worker.pid for worker in fleet.workers + fleet.loops] + [psutil.Process(fleet.workers[0].pid).ppid()]
        shown = " ".join(" ".join(psutil.Process(pid).cmdline()) for pid in pids)
    assert ("jobqueue" in shown, "hush" in shown) == (True, False)


KERNEL = """
import signal, sys
from jobqueue.lab.fleet import Fleet
fleet = Fleet(sys.argv[1], size=2).__enter__()
fleet.pause(0)
pids = [worker.pid for worker in fleet.workers + fleet.loops]
try:
    print(*pids, flush=True)
    signal.pause()
except KeyboardInterrupt:
    print([worker.state for worker in fleet.workers + fleet.loops], flush=True)
signal.pause()
"""


def test_a_kernel_can_be_interrupted_and_when_it_is_killed_no_worker_is_left(dsn):
    kernel = subprocess.Popen(
        [sys.executable, "-c", KERNEL, dsn], stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    )
    pids = [int(pid) for pid in kernel.stdout.readline().split()]
    pids.append(psutil.Process(pids[0]).ppid())
    os.killpg(kernel.pid, SIGINT)
    assert kernel.stdout.readline() == "['paused', 'running', 'running']\n"
    kernel.kill()
    kernel.wait()
    wait_until(lambda: all(map(gone, pids)), 10)


@pytest.mark.long
def test_the_same_holds_for_a_jupyter_kernel(dsn):
    manager, client = start_new_kernel()
    answers = []

    def run(code):
        client.execute_interactive(code, timeout=60, output_hook=lambda message: answers.append(message["content"]))

    try:
        run(KERNEL.split("try:")[0].replace("sys.argv[1]", repr(dsn)) + "print(*pids)")
        pids = [int(pid) for answer in answers if answer.get("name") == "stdout" for pid in answer["text"].split()]
        sleeping = client.execute("signal.pause()")
        wait_until(lambda: client.get_iopub_msg(timeout=30)["content"].get("code") == "signal.pause()", 30)
        manager.interrupt_kernel()
        reply = client.get_shell_msg(timeout=30)
        assert (reply["parent_header"]["msg_id"], reply["content"]["ename"]) == (sleeping, "KeyboardInterrupt")
        answers.clear()
        run("print([worker.state for worker in fleet.workers + fleet.loops])")
        assert "['paused', 'running', 'running']\n" in [answer.get("text") for answer in answers]
        os.kill(manager.provisioner.process.pid, SIGKILL)
        wait_until(lambda: all(map(gone, pids)), 10)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
