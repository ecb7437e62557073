"""What the cockpit shows: cards, a row for each process with the buttons its state allows, the picture, log and errors.

Nothing here knows a queue: a `View` is given what was seen, and its buttons call the methods of the cockpit.
"""

import html
from functools import partial

import ipywidgets as widgets

from jobqueue.lab import style
from jobqueue.lab.editor import Editor

LOG_LINES = 12
SLOW_SECONDS, HOUR_SECONDS = 20, 3_600
# What a process in this state can be told; a button that would do nothing is not there.
ALLOWED = {
    "starting": ("Kill",),
    "running": ("Kill", "Pause", "Stop", "Cut"),
    "paused": ("Kill", "Resume"),
    "stopping": ("Kill",),
    "killed": ("Start",),
    "exited": ("Start",),
}
TIPS = {
    "Kill": "SIGKILL: nothing is cleaned up; its jobs come back when their leases end",
    "Pause": "SIGSTOP: the process freezes, its leases run out; its late answers must be refused",
    "Resume": "SIGCONT: it goes on where it stood",
    "Stop": "SIGTERM: it takes no new job and releases what it cannot finish",
    "Cut": "Terminate its database sessions: it reconnects and reconciles",
    "Start": "A new process under the same name; its owner is a new one",
}
_STYLES = {"Kill": "danger"}  # Jupyter's other colours leave white text at less than 3:1


class View:
    """The widgets: no queue and no fleet in here, only what is shown and which button calls what."""

    def __init__(self, cockpit):
        self._cockpit = cockpit
        self._texts = {}
        width, height = (f"{pixels}px" for pixels in cockpit._screen.size)
        self._cards, self._log, self._error, self._status = (widgets.HTML() for _ in range(4))
        self._image = widgets.Image(format="png", value=cockpit.picture(), layout={"width": width, "height": height})
        self._live = widgets.ToggleButton(
            value=True,
            description="Live updates",
            layout={"width": "110px"},
            tooltip="Stop or start the redraw; sampling goes on",
        )
        self._rows = {w.name: _Row(cockpit, w.name) for w in cockpit.seen.workers}
        self.editor = Editor(cockpit)
        self.box = widgets.VBox(
            [
                self._cards,
                *(row.box for row in self._rows.values()),
                self._toolbar(),
                self._faults(),
                self._aimed(),
                self._image,
                self._error,
                self._log,
                self.editor.box,
                self._status,
            ]
        )
        self.box.add_class("jobqueue-cockpit")

    @property
    def live(self):
        return self._live.value

    def buttons(self):
        """Those that can be seen, by their words."""
        own = [button for row in self._rows.values() for button in row.visible()]
        bars = [*self._bar.children[1:], *self._faulty.children, *self._aims.children[1:]]
        return {button.description: button for button in [*own, *bars, *self.editor.buttons.values()]}

    def show(self, latest, workers, events, error, load=None):
        self._set("cards", self._cards, _cards(latest, self._done_rate(latest)))
        for worker in workers:
            self._rows[worker.name].show(worker, latest)
        self._set("log", self._log, _log(events))
        if load is not None:
            self._set(
                "fed", self._fed, f"<span class='jobqueue-fed'>{load.enqueued:,} of {load.total:,} jobs fed</span>"
            )
        if error:
            self.error(f"database: {error}")
        elif self._texts.get("error", "").startswith("database: "):
            self.error("")

    def picture(self, png):
        self._image.value = png

    def speak(self, said):
        self._set("status", self._status, f"<div role='status' aria-live='polite'>{html.escape(said)}</div>")

    def say(self, said):
        self._set("said", self._error, f"<div class='jobqueue-said'>{html.escape(said)}</div>")

    def plan_error(self, said):
        """Of the plan in the editor: shown like any other, and taken away when the plan is right again."""
        if said or self._texts.get("error", "").startswith("plan: "):
            self.error(said)

    def error(self, said):
        self._texts["error"] = said
        shown = f"<pre role='alert' class='jobqueue-error'>{html.escape(said[-1500:])}</pre>" if said else ""
        self._set("said", self._error, shown)

    def disable(self):
        for button in [
            *(b for row in self._rows.values() for b in row.buttons.values()),
            *self._bar.children,
            *self._faulty.children,
            *self._aims.children,
        ]:
            button.disabled = True
        self.editor.disable()
        self.speak("This cockpit is closed.")

    def _set(self, key, widget, value):
        """An equal value would send nothing, and a page that blinks without a change is read as one."""
        if self._texts.get(f"shown {key}") != value:
            self._texts[f"shown {key}"] = widget.value = value

    def _toolbar(self):
        cockpit = self._cockpit
        acts = {
            "Kill random": cockpit.kill_random,
            "Pause all": cockpit.pause_all,
            "Resume all": cockpit.resume_all,
            "Stop all": cockpit.stop_all,
            **({"Load": self._toggle} if cockpit.load else {}),
            "Export": cockpit.export,
        }
        self._fed = widgets.HTML()
        self._bar = widgets.HBox([self._live, *(_button(cockpit, name, act) for name, act in acts.items())])
        return widgets.HBox([self._bar, self._fed])

    def _toggle(self):
        loading = self._cockpit.toggle_load()
        self.buttons()["Load"].button_style = "info" if loading else ""

    def _faults(self):
        cockpit = self._cockpit
        acts = {"Burst": cockpit.burst, "Slow jobs": cockpit.slow_jobs, "Poison job": cockpit.poison}
        if cockpit.server:
            acts |= {
                "Crash database": cockpit.crash_database,
                "Stop database": cockpit.stop_database,
                "Start database": cockpit.start_database,
            }
        self._faulty = widgets.HBox([_button(cockpit, name, act) for name, act in acts.items()])
        return self._faulty

    def _aimed(self):
        """Faults of one process, which is chosen: rows have no room for them."""
        cockpit, names = self._cockpit, {name: _target(name) for name in self._rows}
        chosen = widgets.Dropdown(options=names, description="for", layout={"width": "200px"})
        acts = {
            f"Slow for {SLOW_SECONDS} s": lambda: cockpit.slow(chosen.value, SLOW_SECONDS),
            "Clock 1 h ahead": lambda: cockpit.skew(chosen.value, HOUR_SECONDS),
            "Clock right again": lambda: cockpit.skew(chosen.value, 0),
            "Restart": lambda: cockpit.restart(chosen.value),
        }
        self._aims = widgets.HBox([chosen, *(_button(cockpit, name, act) for name, act in acts.items())])
        return self._aims

    def _done_rate(self, latest):
        """Jobs done per second over the last five."""
        recent = self._cockpit.seen.recent(5.0)
        if latest is None or len(recent) < 2:
            return 0.0
        return max(0.0, (recent[-1].done - recent[0].done) / max(recent[-1].time_seconds - recent[0].time_seconds, 0.1))


class _Row:
    """One process: what it is and does, and the buttons that its state allows."""

    def __init__(self, cockpit, name):
        self.name, self._shown = name, None
        target = _target(name)
        short = str(target)
        self.label = widgets.HTML(layout={"width": "520px"})
        self.buttons = {
            act: _button(
                cockpit,
                f"{act} {short}",
                partial(getattr(cockpit, act.lower()), target),
                TIPS[act],
                _STYLES.get(act, ""),
            )
            for act in TIPS
        }
        self.box = widgets.HBox([self.label, *self.buttons.values()], layout={"height": "34px", "overflow": "hidden"})

    def show(self, worker, latest):
        text = _worker(worker, latest)
        if text != self._shown:
            self._shown = self.label.value = text
        for act, button in self.buttons.items():
            display = "" if act in ALLOWED[worker.state] else "none"
            if button.layout.display != display:
                button.layout.display = display

    def visible(self):
        return [button for button in self.buttons.values() if button.layout.display != "none"]


def _target(name):
    """What the cockpit's methods call it: a worker by its place, a loop by its name."""
    return int(name.rpartition("-")[2]) if name.startswith("worker-") else name


def _button(cockpit, name, act, tip="", look=""):
    width = f"{max(76, 30 + 8 * len(name))}px"
    button = widgets.Button(description=name, tooltip=tip or name, button_style=look, layout={"width": width})
    button.on_click(lambda _: cockpit.do(act))
    return button


def _cards(latest, done_rate):
    """Six numbers, the oldest age first among them: it is the one that users feel."""
    if latest is None:
        return "<div class='jobqueue-cards'>no sample yet</div>"
    states = ("ready", "running", "waiting_retry", "dead")
    cards = [(style.STATES[s].text, style.count(getattr(latest, s)), style.STATES[s].colour, s) for s in states]
    cards += [
        ("✓ done per second", f"{done_rate:.1f}", style.BLACK, "done_rate"),
        ("oldest age", style.duration(round(latest.oldest_age_seconds, 1)), style.BLUE, "age"),
    ]
    cells = "".join(
        f"<div style='border:1px solid #999;border-top:4px solid {colour};padding:4px 10px;min-width:108px'>"
        f"<div style='font-size:12px;line-height:1.3'>{word}</div>"
        f"<div class='jobqueue-{key}' style='font-size:22px;line-height:1.2;font-weight:600'>{value}</div></div>"
        for word, value, colour, key in cards
    )
    return f"<div class='jobqueue-cards' style='display:flex;gap:8px'>{cells}</div>"


def _worker(worker, latest):
    """● worker-1 · pid 4711 · running · heard 0.2 s ago · job 17 and 1 more"""
    colour = {"running": style.GREEN, "paused": style.PURPLE, "killed": style.VERMILLION}.get(worker.state, style.BLACK)
    parts = [f"pid {worker.pid}", f"<b class='jobqueue-state'>{worker.state}</b>"]
    if latest is not None and worker.alive:
        heard = latest.heard.get(worker.owner)
        parts += [f"heard {style.duration(round(heard, 1))} ago" if heard is not None else "no session"]
        parts += _jobs([lease for lease in latest.leases if lease["owner"] == worker.owner])
    elif latest is not None:
        left = [lease for lease in latest.leases if lease["owner"] == worker.owner]
        parts += [f"code {worker.code}", *_jobs(left, "still leases ")]
    name = html.escape(worker.name)
    return (
        f"<span data-worker='{name}' data-state='{worker.state}' style='white-space:nowrap'>"
        f"<span style='color:{colour};font-size:15px'>{worker.symbol}</span> <b>{name}</b> · {' · '.join(parts)}</span>"
    )


def _jobs(leases, word=""):
    if not leases:
        return []
    more = f" and {len(leases) - 1} more" if len(leases) > 1 else ""
    late = min(lease["left_seconds"] for lease in leases)
    lease = f", lease over for {style.duration(-late)}" if late < 0 else ""
    return [f"{word}job {leases[0]['id']}{more}{lease}"]


def _log(events):
    """The last events in words, the newest first; their numbers are those of the fault lane."""
    lines = []
    for at, kind, target, _ in events[-LOG_LINES:][::-1]:
        mark = style.FAULTS.get(kind)
        lines.append(f"{at:8.1f} s  {mark.text if mark else kind}  {target}")
    body = html.escape("\n".join(lines) or "nothing has happened yet")
    return (
        f"<pre class='jobqueue-log' aria-label='event log' style='font-size:12px;line-height:1.3;margin:0'>{body}</pre>"
    )
