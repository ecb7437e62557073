"""The states of a job and the verbs between them, with the query that shows the evidence at each state."""

from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from jobqueue.lab import style

# state: place of its box, and where its evidence is
BOXES = {
    "ready": ((0.0, 2.0), "run_at, attempts\nfrom job where\nstatus = 'ready'"),
    "running": ((1.75, 2.0), "locked_by, epoch, locked_until\nfrom job where\nstatus = 'running'"),
    "done": ((3.5, 2.0), "finished_by, published_digest\nfrom job where\nstatus = 'done'"),
    "failed": ((3.5, 1.0), "last_error, history\nfrom dead_letters"),
    "dead": ((1.75, 0.0), "history: failed or lost\nfrom dead_letters"),
    "cancelled": ((0.0, 0.0), "history: cancelled\nfrom job where\nstatus = 'cancelled'"),
    "archive": ((3.5, 0.0), "the same columns\nfrom job_archive"),
}
# from, to, verbs, bend, place of the words
ARROWS = (
    ("ready", "running", "claim: epoch + 1", -0.1, (0.87, 2.2)),
    ("running", "ready", "fail, release, reap", -0.1, (0.87, 1.8)),
    ("running", "done", "complete", 0.0, (2.62, 2.09)),
    ("running", "failed", "fail permanently", 0.0, (2.75, 1.5)),
    ("running", "dead", "fail, reap:\nno attempt left", 0.0, (1.75, 1.2)),
    ("running", "cancelled", "cancel", 0.0, (1.22, 1.4)),
    ("ready", "cancelled", "cancel", 0.0, (0.0, 1.0)),
    ("dead", "ready", "redrive\n(failed ones, too)", 0.0, (1.2, 0.62)),
    ("done", "archive", "archive", -0.75, (4.3, 1.0)),
    ("failed", "archive", "archive", 0.0, (3.5, 0.5)),
    ("dead", "archive", "archive", 0.0, (2.62, 0.09)),
)
_WIDTH, _HEIGHT = 1.06, 0.6


@style.applied()
def states(**about):
    """One box a state (symbol, word, colour as everywhere), one arrow a verb; under each box its query."""
    figure, (ax,) = style.sheet(
        "A job's states, the verbs between them, and where the evidence is", [4.4], about, right=0.2, left=0.2
    )
    ax.set(xlim=(-0.62, 4.6), ylim=(-0.4, 2.45))
    ax.axis("off")
    boxes = {state: _box(ax, state, place, query) for state, (place, query) in BOXES.items()}
    for begin, end, words, bend, place in ARROWS:
        _arrow(ax, begin, end, boxes, bend)
        ground = {"boxstyle": "square,pad=0.1", "fc": "white", "ec": "none"}
        ax.text(*place, words, ha="center", va="center", size=8, bbox=ground, zorder=5)
    return figure


def _box(ax, state, place, query):
    mark = style.STATES.get(state)
    colour = mark.colour if mark else style.GREY
    corner = (place[0] - _WIDTH / 2, place[1] - _HEIGHT / 2)
    looks = {"boxstyle": "round,pad=0,rounding_size=0.06", "fc": "white", "ec": colour, "lw": 1.6}
    box = ax.add_patch(FancyBboxPatch(corner, _WIDTH, _HEIGHT, zorder=3, **looks))
    title = mark.text if mark else state
    ax.text(place[0], place[1] + 0.18, title, ha="center", va="center", color=colour, weight="bold", size=9.5, zorder=4)
    ax.text(place[0], place[1] - 0.07, query, ha="center", va="center", size=7.4, color=style.GREY, zorder=4)
    return box


def _arrow(ax, begin, end, boxes, bend):
    """From border to border; the boxes clip it."""
    ends = {"patchA": boxes[begin], "patchB": boxes[end], "shrinkA": 2, "shrinkB": 2}
    looks = {"arrowstyle": "-|>", "mutation_scale": 11, "color": "#333333", "lw": 0.9}
    bow = f"arc3,rad={bend}"
    ax.add_patch(FancyArrowPatch(BOXES[begin][0], BOXES[end][0], connectionstyle=bow, zorder=2, **ends, **looks))
