"""The cockpit's editor of fault plans: a fault a line, drawn by a seed, checked, played, kept and read again.

Nothing here knows a queue or a fleet: the buttons call methods of the cockpit, which are there without a browser, too.
"""

import html

import ipywidgets as widgets

from jobqueue.errors import JobQueueError
from jobqueue.lab import faults, style

ROWS = 9
HELP = (
    "A fault a line: seconds from the start, kind, target, then what the kind needs. Kinds: "
    + ", ".join(faults.KINDS)
    + ". Lines that begin with # are left out."
)
FIRST = """\
# seconds kind target  …
3 kill worker-{1} seconds=6
5 pause worker-{2} seconds=8
14 cut worker-{3}
16 slow worker-{0} seconds=10 factor=10
18 skew worker-{1} by_seconds=3600 seconds=20
20 burst job n=50 service_seconds=0.2
"""


class Editor:
    """The widgets of the plan; what is wrong with it stands in the cockpit's error line once the text is left."""

    def __init__(self, cockpit):
        self._cockpit, self._said = cockpit, None
        first = FIRST.format(*(place % cockpit.fleet.size for place in range(4)))
        self.text = widgets.Textarea(value=first, rows=ROWS, continuous_update=False, layout={"width": "860px"})
        self.text.tooltip = HELP
        self.seed = widgets.BoundedIntText(value=cockpit.seed, min=0, max=2**31 - 1, description="seed")
        self.name = widgets.Text(value="plan", description="file name", continuous_update=False)
        for field in (self.seed, self.name):
            field.layout.width = "200px"
        self._line = widgets.HTML()
        acts = {
            "Play plan": cockpit.replay,
            "Stop plan": cockpit.stop_plan,
            "Draw plan": lambda: cockpit.draw(self.seed.value),
            "Save plan": lambda: cockpit.save_plan(self.name.value),
            "Load plan": lambda: cockpit.load_plan(self.name.value),
        }
        self.buttons = {name: self._button(name, act) for name, act in acts.items()}
        play, stop, draw, save, load = self.buttons.values()
        title = widgets.HTML(f"<b>Fault plan</b> <span style='font-size:12px'>{html.escape(HELP)}</span>")
        bar = widgets.HBox([play, stop, self.seed, draw, self.name, save, load])
        self.box = widgets.VBox([title, self.text, bar, self._line])
        self.box.add_class("jobqueue-plan")
        self.text.observe(self._changed, "value")

    def show(self, playing: float | None) -> None:
        """What the plan is, and how far it has been played."""
        try:
            plan = faults.parse(self.text.value)
        except JobQueueError:
            said = "this plan can't be played: see the error line"
        else:
            over = max((fault.until_seconds or fault.at for fault in plan), default=0)
            said = f"{style.count(len(plan), 'fault')} over {style.duration(over)}"
            if playing is not None:
                begun = sum(fault.at <= playing for fault in plan)
                said += f"; playing for {style.duration(round(playing))}, {begun} begun"
        if said != self._said:
            self._said = said
            self._line.value = f"<div class='jobqueue-plan-line' style='font-size:12px'>{html.escape(said)}</div>"

    def disable(self) -> None:
        for field in (*self.buttons.values(), self.text, self.seed, self.name):
            field.disabled = True

    def _button(self, name, act):
        button = widgets.Button(description=name, tooltip=name, layout={"width": "92px"})
        button.on_click(lambda _: self._cockpit.do(act))
        return button

    def _changed(self, _) -> None:
        self._cockpit.check_plan()
