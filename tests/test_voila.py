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

from helpers import CHROMIUM, wait_until

ROOT = Path(__file__).parents[1]
START_SECONDS = 60
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage")


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


@pytest.mark.browser
@pytest.mark.timeout(180)
def test_a_worker_is_killed_by_the_keyboard_alone_and_a_plan_played(url, tmp_path):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 1500})
        page.set_default_timeout(90_000)
        page.goto(url)
        page.wait_for_selector("[data-worker='worker-1'][data-state='running']")
        page.get_by_role("button", name="Kill 1", exact=True).focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("[data-worker='worker-1'][data-state='killed']")
        plan = page.locator(".jobqueue-plan textarea")
        plan.fill("0 pause worker-2\n0.2 explode worker-3")
        page.keyboard.press("Tab")
        page.wait_for_selector("[role=alert]:has-text('plan: line 2: a fault is one of kill')")
        plan.fill("0 pause worker-2\n0.2 start worker-1")
        page.keyboard.press("Tab")
        page.wait_for_selector("[role=alert]", state="detached")
        page.get_by_role("button", name="Play plan", exact=True).focus()
        page.keyboard.press("Space")
        page.wait_for_selector("[data-worker='worker-2'][data-state='paused']")
        page.wait_for_selector("[data-worker='worker-1'][data-state='running']")
        assert "of 4 workers running" in page.locator("[role=status]").inner_text()
        page.locator(".jobqueue-cockpit").screenshot(path=str(tmp_path / "voila.png"))
        browser.close()
