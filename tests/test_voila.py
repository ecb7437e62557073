"""`./run cockpit`: the live cockpit as a page of its own; started as the command does, and nothing is left of it."""

import os
import re
import socket
import subprocess
import sys
import urllib.request
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import psutil
import pytest

from helpers import wait_until

ROOT = Path(__file__).parents[1]
START_SECONDS = 60


def command_of_run(monkeypatch, *arguments):
    """What `./run cockpit` becomes once its set-up is done."""
    loader = SourceFileLoader("run_script", str(ROOT / "run"))
    run = module_from_spec(spec_from_loader("run_script", loader))
    loader.exec_module(run)
    became = []
    monkeypatch.setattr(run, "set_up", lambda *extras: became.append(extras))
    monkeypatch.setattr(run, "become", lambda module, *given: became.append([sys.executable, "-m", module, *given]))
    run.cockpit(list(arguments))
    assert became[0] == ("lab", "cockpit")
    return became[1]


@pytest.fixture
def url(monkeypatch, tmp_path):
    """The address of a running `./run cockpit`; at the end all of its processes are gone."""
    pytest.importorskip("voila", reason="the extra `cockpit` is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = command_of_run(monkeypatch, "--no-browser", f"--port={port}", "--Voila.ip=127.0.0.1")
    folders = {f"JUPYTER_{kind}_DIR": str(tmp_path / kind) for kind in ("CONFIG", "RUNTIME")}
    env = os.environ | folders | {"PYTHONPATH": str(ROOT), "JOBQUEUE_EXPORTS": str(tmp_path / "exports")}
    with open(tmp_path / "voila.log", "wb") as log:
        server = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until(lambda: answers(port, server, tmp_path / "voila.log"), START_SECONDS, "Voilà")
        yield f"http://127.0.0.1:{port}/"
    finally:
        started = psutil.Process(server.pid).children(recursive=True)
        server.terminate()
        server.wait(30)
        wait_until(lambda: not [one for one in started if one.is_running() and one.status() != "zombie"], 20,
                   f"the end of {started}")  # fmt: skip


def answers(port, server, log):
    assert server.poll() is None, f"Voilà ended at once: {log.read_text()[-2000:]}"
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.long
@pytest.mark.timeout(180)
def test_the_page_holds_the_cockpit_and_its_end_leaves_nothing_behind(url, tmp_path):
    with urllib.request.urlopen(url, timeout=120) as answer:
        page = answer.read().decode()
    there = ("application/vnd.jupyter.widget-view+json", "330 jobs to come over 30 s, 4 workers with 2 slots each")
    assert ([words in page for words in there], "Traceback" in page) == ([True, True], False)
    assert re.search(r"<title>(.*?)</title>", page)[1] == "04-kill-pause-resume"
    wait_until(lambda: len(workers_of(tmp_path)) == 4, 20, "its four workers")


def workers_of(folder):
    """Worker processes of the cockpit that was started with these folders."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if "--handlers" in process.cmdline() and str(folder) in process.environ().get("JOBQUEUE_EXPORTS", ""):
                found.append(process)
    return found
