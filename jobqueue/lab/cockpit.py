"""The live cockpit: counts, workers with their buttons, a moving picture, faults to inject, an export.

    panel = cockpit.open(dsn, fleet, server=server)     # the last expression of a cell shows it
    panel.kill(1); panel.pause(2); panel.resume(2)      # what the buttons do, for a run without a browser
    panel.draw(seed=7); panel.replay()                  # a plan of faults by seed, in the editor; played from there
    panel.export("my-run")                              # svg, png, pdf, csv and a caption

A thread samples (`observe`), an asyncio task shows, a worker thread draws (`screen`). One cockpit a kernel: opening
another closes the first. It owns neither the fleet nor the server.
"""

import asyncio
import base64
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg

from jobqueue import Queue
from jobqueue.errors import InvalidInput, JobQueueError
from jobqueue.lab import charts, export, faults, inject, style
from jobqueue.lab.observe import Observer
from jobqueue.lab.panel import View
from jobqueue.lab.screen import WINDOW_SECONDS, Screen
from jobqueue.loop import connect

STATUS_SECONDS = 5.0  # a screen reader speaks the status line; more often than that nobody can listen
BURST, SLOW = 200, 20
_current: "Cockpit | None" = None


def open(dsn, fleet, *, server=None, load=None, hz=4.0, seed=1, directory=None, **about):  # noqa: A001 - cockpit.open
    """A Cockpit of a running fleet, sampling at once; an older one of this kernel is closed.

    server: a `database.Server`, for the faults of the database. load: a `replay.Feed`, started and stopped by a button.
    `about` are parameters of the run: they go into the export's subtitle and caption. `directory` is the export's.
    """
    global _current
    close()
    _current = Cockpit(dsn, fleet, server=server, load=load, hz=hz, seed=seed, directory=directory, about=about)
    _current.show()
    return _current


def close():
    """Close the cockpit of this kernel, if there is one."""
    global _current
    if _current is not None:
        _current.close()
    _current = None


def is_attended():
    """Whether somebody can press the buttons: a kernel of JupyterLab, Voilà or VS Code, not one that runs by itself."""
    page = os.environ.get("SERVER_SOFTWARE", "").startswith("voila/")
    return page or any(name in os.environ for name in ("JPY_SESSION_NAME", "VSCODE_PID"))


class Cockpit:
    """Every action is a method, named as its button; each may be called without a browser."""

    def __init__(self, dsn, fleet, *, server=None, load=None, hz=4.0, seed=1, directory=None, about=None):
        self.dsn, self.fleet, self.server, self.load = dsn, fleet, server, load
        self.seed, self.hz, self.directory, self.about = seed, hz, directory, dict(about or {})
        self.frames, self.frame_seconds, self.click_seconds = 0, [], []
        self._random = random.Random(seed)
        self._loading = False
        self._spoken = 0.0
        self._task = self._loop = None
        self._closed = threading.Event()
        self.played, self._player, self._plan_stopped, self._plan_began = [], None, None, 0.0
        self._hands = ThreadPoolExecutor(1, thread_name_prefix="cockpit")  # a crash recovery must not block the kernel
        self._screen = Screen()
        self.seen = Observer(dsn, fleet, hz=hz).start()
        self.view = View(self)
        self.refresh()

    # --- Faults of the fleet: a target is a worker's index or a loop's name ---

    def kill(self, target):
        self.fleet.kill(target)

    def pause(self, target):
        self.fleet.pause(target)

    def resume(self, target):
        self.fleet.resume(target)

    def stop(self, target):
        self.fleet.stop(target)

    def cut(self, target):
        return self.fleet.cut(target)

    def slow(self, target, seconds=None, factor=10):
        """Attempts of this worker (its index) or type (its name) take so many times as long."""
        self.fleet.slow(target, seconds, factor)

    def skew(self, target, by_seconds, seconds=None):
        """Its wall clock is wrong by so much."""
        self.fleet.skew(target, by_seconds, seconds)

    def down(self, type, seconds=None):
        """What the type depends on is away."""
        self.fleet.down(type, seconds)

    def start(self, target):
        self.fleet.start(target)

    def restart(self, target):
        """Stop it in peace, if it lives, and start it again."""
        self.fleet.restart(target)

    def kill_random(self):
        return self.fleet.kill_random(self._random)

    def pause_all(self):
        self.fleet.pause_all()

    def resume_all(self):
        self.fleet.resume_all()

    def stop_all(self):
        self.fleet.stop_all()

    # --- Faults of the database and of the jobs ---

    def crash_database(self):
        """kill -9 of the postmaster."""
        self._of_the_server().kill()
        self.seen.note("crash", "database")

    def stop_database(self, mode="fast"):
        self._of_the_server().stop(mode)
        self.seen.note("stop", "database")

    def start_database(self):
        self._of_the_server().start()
        self.seen.note("restart", "database")

    def poison(self, n=1, max_attempts=3):
        """`n` jobs that kill whoever runs them; dead after `max_attempts`."""
        return self._enqueue("poison", "poison", [{"type": "poison", "max_attempts": max_attempts}] * n)

    def slow_jobs(self, n=SLOW, seconds=0.5):
        """`n` jobs that take ten times `seconds`."""
        return self._enqueue("slow", style.count(n, "job"), [{"type": "slow", "payload": {"seconds": seconds}}] * n)

    def burst(self, n=BURST, seconds=0.2, type="job"):
        """`n` jobs at once."""
        return self._enqueue("burst", style.count(n, "job"), [{"type": type, "payload": {"seconds": seconds}}] * n)

    def toggle_load(self):
        """Start the load, or stop it; started again it goes on where it was."""
        if self.load is None:
            raise InvalidInput("this cockpit has no load: give one to cockpit.open(load=…)")
        self._loading = not self._loading
        (self.load.start if self._loading else self.load.stop)()
        return self._loading

    # --- A plan of faults: text in the editor, a list here ---

    @property
    def plan(self):
        """The editor's plan, checked against this fleet and this server; InvalidInput says which line is wrong."""
        return list(inject.check(faults.parse(self.view.editor.text.value), self))

    @plan.setter
    def plan(self, plan):
        text = faults.listed(inject.check(plan, self))
        if threading.current_thread() is threading.main_thread():
            self.view.editor.text.value = text
        else:  # a button's action: widgets are the main thread's
            self._soon(setattr, self.view.editor.text, "value", text)

    def draw(self, seed=None, minutes=1):
        """A plan by seed, as a campaign's, without what this cockpit can't do; it stands in the editor then."""
        from jobqueue.lab import campaign  # only for who asks: it brings half of the lab with it

        drawn = campaign.plan(minutes, self.seed if seed is None else seed, self.fleet.size)
        self.plan = found = [fault for fault in drawn if self._can(fault)]
        return found

    def play(self, plan):
        """Apply a plan of `lab.faults`, in seconds from now, as the buttons would; returns after its last step."""
        self.played = list(inject.check(plan, self))
        inject.play(self.played, self, self._closed)

    def replay(self):
        """Play the editor's plan in the background; a step that meets nobody is shown in the error line."""
        if self.playing is not None:
            raise InvalidInput("a plan is being played: stop it first")
        self.played, self._plan_began, self._plan_stopped = self.plan, time.monotonic(), threading.Event()
        asked = (self.played, self, self._plan_stopped, lambda error: self._soon(self.view.error, f"plan: {error}"))
        self._player = threading.Thread(target=inject.play, args=asked, name="plan", daemon=True)
        self._player.start()

    def stop_plan(self):
        """End the plan that is being played; what it has done stays done."""
        if self._plan_stopped is not None:
            self._plan_stopped.set()

    @property
    def playing(self):
        """Seconds since the plan began; None when none is being played."""
        return time.monotonic() - self._plan_began if self._player is not None and self._player.is_alive() else None

    def save_plan(self, name="plan"):
        """Write the editor's plan as NAME.json beside the exports; returns what was saved."""
        return self._write_plan(self.plan, name)

    def load_plan(self, name="plan"):
        """Read a plan that was saved, or one of a campaign's or a simulation's (`faults.dumps`)."""
        path = export.place(name, ".json", directory=self.directory)
        if not path.exists():
            raise InvalidInput(f"there is no plan {path.name} in {'/'.join(path.parent.parts[-2:])}")
        self.plan = found = faults.loads(path.read_text(encoding="utf-8"))
        return found

    def check_plan(self):
        """What is wrong with the editor's plan goes to the error line; what was said of it before goes away."""
        try:
            self.plan  # noqa: B018 - its errors are what is wanted
            self.view.plan_error("")
        except JobQueueError as error:
            self.view.plan_error(f"plan: {error}")

    def _write_plan(self, plan, name):
        path = export.place(name, ".json", directory=self.directory)
        path.write_text(faults.dumps(plan) + "\n", encoding="utf-8")
        return export.Saved((path,))

    def _can(self, fault):
        try:
            inject.check([fault], self)
        except InvalidInput:
            return False
        return True

    # --- What was seen ---

    def overview(self):
        """The whole run so far as one figure."""
        return charts.overview(self.seen.ages, self.seen.attempts, self.seen.faults, **self._about())

    def export(self, name="live-run"):
        """Write the overview, the frames behind it and the plan that was played, if one was; returns the paths."""
        seen = {"ages": self.seen.ages, "attempts": self.seen.attempts, "faults": self.seen.faults}
        figure = charts.overview(*seen.values(), **self._about())
        saved = export.save(figure, name, seen, directory=self.directory, **self._about())
        if not self.played:
            return saved
        return export.Saved((*saved, *self._write_plan(self.played, f"{name}-plan")))

    def picture(self):
        """The moving picture as it is now, as PNG bytes."""
        begun = time.thread_time()
        samples = self.seen.recent(WINDOW_SECONDS + 10)
        attempts = self.seen.recent_attempts(WINDOW_SECONDS + 10)
        png = self._screen.render(samples, attempts, self.seen.events(), self.seen.now)
        self.frame_seconds = [*self.frame_seconds[-999:], time.thread_time() - begun]
        return png

    def costs(self):
        """What it costs: CPU seconds of a frame, frames shown, whole redraws, seconds from a click to its display."""
        spent = sorted(self.frame_seconds) or [0.0]
        clicks = sorted(self.click_seconds) or [0.0]
        return {
            "frame_seconds_median": spent[len(spent) // 2],
            "frame_seconds_max": spent[-1],
            "frames": self.frames,
            "static_draws": self._screen.static_draws,
            "click_seconds_max": clicks[-1],
        }

    # --- Life ---

    def show(self):
        """Begin to update, in the event loop of the kernel; without one the methods alone work."""
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._task = self._loop.create_task(self._update())

    def close(self):
        """Stop sampling and showing; what is on the page stays as it was."""
        if self._closed.is_set():
            return
        self._closed.set()
        self.stop_plan()
        if self._loading:
            self.load.stop()
        if self._task is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
        self.seen.stop()
        self._hands.shutdown(wait=False, cancel_futures=True)
        self.view.disable()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _repr_mimebundle_(self, include=None, exclude=None):
        """The widgets, and a picture for where they cannot live: a notebook opened again without its kernel."""
        bundle = self.view.box._repr_mimebundle_(include=include, exclude=exclude)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        return {**data, "image/png": base64.b64encode(self.picture()).decode()}

    def refresh(self):
        """Bring the texts and buttons up to what was last seen."""
        self.view.show(self.seen.latest, self.seen.workers, self.seen.events(), self.seen.error, self.load)
        self.view.editor.show(self.playing)

    def do(self, action):
        """Run an action for a button: elsewhere, in order of the clicks; an error is shown on the page."""
        begun = time.monotonic()
        self.view.error("")
        self._hands.submit(self._act, action, begun)

    def _act(self, action, begun):
        said = ""
        try:
            said = action()
            self.seen.look_at_fleet()
        except (JobQueueError, psycopg.Error, OSError, RuntimeError) as error:
            self._soon(self.view.error, f"{type(error).__name__}: {error}")
        except Exception as error:  # a callback's error shows nowhere else
            self._soon(self.view.error, f"unexpected {type(error).__name__}: {error}")
            raise
        self._soon(self._acted, said if isinstance(said, export.Saved) else "", begun)

    def _acted(self, said, begun):
        if said:
            self.view.say(repr(said))
        self.refresh()
        self.click_seconds.append(time.monotonic() - begun)

    def _soon(self, call, *arguments):
        if self._loop is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(call, *arguments)
        else:
            call(*arguments)

    async def _update(self):
        while not self._closed.is_set():
            begun = time.monotonic()
            try:
                if self.view.live and self.seen.latest:
                    self.view.picture(await asyncio.to_thread(self.picture))
                    self.frames += 1
                self.refresh()
                if begun - self._spoken >= STATUS_SECONDS:
                    self._spoken = begun
                    self.view.speak(self._status())
            except Exception as error:  # the page is the only place where it can be seen
                self.view.error(f"{type(error).__name__}: {error}")
            await asyncio.sleep(max(0.02, 1 / self.hz - (time.monotonic() - begun)))

    def _status(self):
        latest = self.seen.latest
        if latest is None or self.seen.error:
            return f"The database cannot be asked: {self.seen.error or 'no sample yet'}"
        workers = [worker for worker in self.seen.workers if worker.name.startswith("worker-")]
        running = sum(worker.state == "running" for worker in workers)
        return (
            f"{running} of {len(workers)} workers running; {latest.ready} jobs ready, {latest.running} running, "
            f"{latest.waiting_retry} waiting for retry, {latest.dead} dead; "
            f"oldest age {style.duration(round(latest.oldest_age_seconds, 1))}"
        )

    def _about(self):
        return {"seed": self.seed, "postgres": self.seen.postgres, "workers": self.fleet.size, **self.about}

    def _of_the_server(self):
        if self.server is None:
            raise InvalidInput("this cockpit has no server to stop: give one to cockpit.open(server=…)")
        return self.server

    def _enqueue(self, kind, target, jobs):
        with connect(self.dsn, "jobqueue cockpit") as conn:
            made = Queue(conn).enqueue_many(jobs)
        self.seen.note(kind, target)
        return [job.id for job in made]
