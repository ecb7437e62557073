"""The supervisor and its client on plain processes, then a fleet of real workers: faults, facts, nothing left over."""

import os
import select
import subprocess
import sys
import time
from pathlib import Path
from signal import SIGCONT, SIGINT, SIGKILL, SIGSTOP, SIGTERM

import psutil
import pytest
from helpers import wait_until

from jobqueue.lab.processes import FleetError, Processes

ROOT = Path(__file__).parents[1]
SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


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
    time.sleep(1.0)
    event = processes.events[-1]
    assert (event.kind, processes.status()["a"].code) == ("exit", 3)
    assert event.at.timestamp() - begun < 0.9


def test_a_process_asked_to_end_is_stopping_until_it_has(processes):
    ignore = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: None); print('up', flush=True)"
    processes.start("a", [sys.executable, "-c", f"{ignore}; time.sleep(600)"])
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
    code = "import os, time; print(os.environ['SECRET'], flush=True); time.sleep(600)"
    processes.start("a", [sys.executable, "-c", code], env={"SECRET": "word {start}"})
    wait_until(lambda: processes.log("a") == "word 1\n", 10)
    assert "word" not in " ".join(psutil.Process(processes.status()["a"].pid).cmdline())


# --- Ends: of the client, of the supervisor ---

CLIENT = """
import sys, time, threading
from jobqueue.lab.processes import Processes
from signal import SIGSTOP
processes = Processes()
# Started from a thread that ends: the parent's death signal must not be bound to it.
def start():
    for name in ("running", "paused"):
        processes.start(name, [sys.executable, "-c", "import time; time.sleep(600)"])
    processes.signal("paused", SIGSTOP)
thread = threading.Thread(target=start); thread.start(); thread.join()
pids = [process.pid for process in processes.status().values()]
print(processes.supervisor_pid, *pids, processes.logs, flush=True)
"""


def client(more):
    """A process that stands for a kernel, and the pids of its supervisor, of a running and of a paused process."""
    kernel = subprocess.Popen([sys.executable, "-c", CLIENT + more], stdout=subprocess.PIPE, text=True, cwd=ROOT,
                              start_new_session=True)
    *pids, logs = kernel.stdout.readline().split()
    return kernel, [int(pid) for pid in pids], Path(logs)


@pytest.mark.parametrize("end", ["time.sleep(600)", "sys.exit(0)"], ids=["SIGKILL", "exit without close"])
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
time.sleep(600)
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
    kernel, pids, _ = client("""
interrupted = 0
while interrupted < 30:
    try:
        for _ in range(1000): processes.status()
    except KeyboardInterrupt:
        interrupted += 1
print([p.state for p in processes.status().values()], flush=True)
""")
    try:
        deadline = time.monotonic() + 60
        while kernel.poll() is None and time.monotonic() < deadline:
            os.killpg(kernel.pid, SIGINT)  # as a kernel's interrupt does: the whole group
            time.sleep(0.05)
            if select.select([kernel.stdout], [], [], 0)[0]:
                break
        assert kernel.stdout.readline() == "['running', 'paused']\n"
        assert not any(map(gone, pids[:1]))
    finally:
        kernel.kill()
        kernel.wait()
        wait_until(lambda: all(map(gone, pids)), 10)
