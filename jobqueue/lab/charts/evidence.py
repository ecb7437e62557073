"""Evidence as pictures: a trace of the explorer, two sessions step by step, what a search covered, which mutant fell to
what."""

from jobqueue.lab import labels, style
from jobqueue.lab.charts import frame as frames

_ROW, _HEAD = 0.27, 0.3  # inches
_MOST = 40
_TEXT_INCHES = 4.9
_HUNTERS = ("explorer", "two sessions", "plan", "property")
_CAUGHT = style.Mark("●", "caught", style.GREEN)
_THROUGH = style.Mark("✖", "got through", style.VERMILLION)
_BLOCKED = style.Mark("‖", "waits", style.PURPLE, (0, (2, 1)))


@style.applied()
def trace(steps, promise=None, **about):
    """A trace of the explorer, one row a step: `steps` has at_seconds, actor, action, answer. `promise`: the broken
    one.

    The last step is the one that broke it; without a promise no step is marked.
    """
    steps = frames.columns(steps, "trace", "at_seconds", "actor", "action", "answer")
    what = (
        f"{style.count(len(steps), 'step')} to a broken promise: {promise}"
        if promise
        else f"A trace of {style.count(len(steps), 'step')}"
    )
    rows = [(row.actor, f"{row.action}{_told(row.answer)}") for row in steps.itertuples()]
    marks = [_THROUGH if promise and number == len(steps) else None for number in range(1, len(steps) + 1)]
    times = [style.duration(at) if at >= 0 else f"−{style.duration(-at)}" for at in steps["at_seconds"]]
    figure, _ = _lanes(what, rows, marks, [f"{number} · {at}" for number, at in enumerate(times, 1)], about)
    style.note(
        figure, _left_out(steps), "each row: step · virtual time; ✖ the step that broke the promise" if promise else ""
    )
    return figure


@style.applied()
def interleaving(lines, lesson=None, **about):
    """Two sessions, one row a line: `lines` has session, action, state, answer. A wait is a bar to where it ended."""
    lines = frames.columns(lines, "interleaving", "session", "action", "state", "answer")
    waits = _waits(lines)
    rows = [(row.session, f"{row.action} {_stands(row)}") for row in lines.itertuples()]
    marks = [_BLOCKED if row.state == "blocked" else None for row in lines.itertuples()]
    figure, (ax, places) = _lanes(
        _sentence(lesson or "sessions, step by step"), rows, marks, [str(n) for n in range(1, len(rows) + 1)], about
    )
    for session, begun, ended in waits:
        ax.plot(
            [places[session]] * 2,
            [begun, ended],
            color=_BLOCKED.colour,
            lw=5,
            alpha=0.45,
            solid_capstyle="butt",
            zorder=1,
        )
    style.note(
        figure, _left_out(lines), "‖ waits for another session's lock, until the end of its bar" if waits else ""
    )
    return figure


@style.applied()
def coverage(results, **about):
    """What searches covered: `results` has scenario, depth, states, transitions, seconds, complete, violation."""
    names = ("scenario", "depth", "states", "transitions", "seconds", "complete", "violation")
    results = frames.columns(results, "coverage", *names)
    figure, [ax] = style.sheet(_covered(results), [max(0.42 * len(results), 0.6)], about, left=2.3, right=3.1)
    if results.empty:
        style.empty(ax, "nothing was searched")
        return figure
    ax.set(ylim=(len(results) - 0.5, -0.5), xlim=(0, style.ceiling(results["transitions"].max())))
    ax.set_yticks(
        range(len(results)), [labels.cut(style.name(name, 40), style.SMALL, 150) for name in results["scenario"]]
    )
    ax.grid(False, axis="y")
    for place, row in enumerate(results.itertuples()):
        _cover(ax, place, row)
    ax.xaxis.set_major_formatter(style.thousands)
    ax.set_xlabel("calls in every order (bar: transitions; ○: different states they led to)", size=style.TEXT)
    style.note(
        figure, [f"{row.scenario} was ended by its time limit" for row in results.itertuples() if not row.complete]
    )
    return figure


@style.applied()
def mutant_matrix(table, **about):
    """Which mutant fell to what, and after how much: `table` is that of jobqueue.lab.mutants."""
    table = frames.columns(table, "mutant_matrix", "mutant", "caught by", "after", "steps", "checkers")
    caught = int((table["caught by"] != "nothing").sum())
    what = f"{caught} of {style.count(len(table), 'mutant')} caught" if len(table) else "No mutants"
    figure, [ax] = style.sheet(what, [max(0.21 * (len(table) + 1.5), 0.6)], about, left=2.75, right=2.3)
    if table.empty:
        style.empty(ax, "no mutant was let loose")
        return figure
    ax.set(xlim=(-0.5, len(_HUNTERS) - 0.5), ylim=(len(table) - 0.5, -2), xticks=[])
    for place, hunter in enumerate(_HUNTERS):
        _head(ax, place, hunter)
    ax.set_yticks(range(len(table)), [labels.cut(style.name(name, 60), style.SMALL, 185) for name in table["mutant"]])
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.tick_params(length=0)
    ax.annotate(
        "checkers, too",
        (1, -0.75),
        (10, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        size=style.SMALL,
        weight="bold",
        va="bottom",
        annotation_clip=False,
    )
    for place, (_, row) in enumerate(table.iterrows()):
        _cell(ax, place, row)
    style.note(figure, [], f"{_CAUGHT.text}, with how many states, lines, plans or seeds it took; {_THROUGH.text}")
    return figure


# ---------------------------------------------------------------- lanes


def _lanes(what, rows, marks, ticks, about):
    """Actors as columns, steps as rows, what was said at the right."""
    shown = rows[:_MOST]
    actors = list(dict.fromkeys(actor for actor, _ in shown))
    places = {actor: place for place, actor in enumerate(actors)}
    figure, [ax] = style.sheet(what, [_HEAD + _ROW * max(len(shown), 1)], about, left=0.95, right=_TEXT_INCHES)
    room = (style.WIDTH - 0.95 - _TEXT_INCHES) * 72 / max(len(actors), 1) - 6
    ax.set(xlim=(-0.5, max(len(actors), 1) - 0.5), ylim=(len(shown) - 0.4, -0.6 - _HEAD / _ROW), xticks=[])
    for actor, place in places.items():
        _head(ax, place, labels.cut(style.name(actor, 30), style.SMALL, room))
    ax.set_yticks(range(len(shown)), ticks[: len(shown)])
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.tick_params(length=0)
    ax.grid(False)
    for place in places.values():
        ax.plot([place] * 2, [-0.6, len(shown) - 0.4], color="#cfcfcf", lw=0.9, zorder=0)
    for number, ((actor, said), mark) in enumerate(zip(shown, marks, strict=False)):
        _say(ax, number, places[actor], said, mark)
    if not shown:
        style.empty(ax, "no step")
    return figure, (ax, places)


def _head(ax, place, text):
    ax.text(place, -0.75, text, size=style.SMALL, weight="bold", ha="center", va="bottom")


def _say(ax, number, place, said, mark):
    colour = mark.colour if mark else style.BLUE
    ax.plot([place], [number], marker="o" if mark is None else "s", ms=7, color=colour, ls="none", zorder=3)
    ax.plot([place, ax.get_xlim()[1]], [number, number], color=colour, lw=0.6, ls=":", zorder=1)
    text = f"{mark.symbol} {said}" if mark else said
    weight = "bold" if mark is _THROUGH else "normal"
    text = labels.cut(style.name(text, 200), style.SMALL, _TEXT_INCHES * 72 - 22, weight)
    ax.annotate(
        text,
        (1, number),
        (8, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        va="center",
        size=style.SMALL,
        weight=weight,
        annotation_clip=False,
    )


def _sentence(text):
    return text[:1].upper() + text[1:]


def _told(answer):
    return f" → {answer}" if answer else ""


def _stands(row):
    if row.state == "returned":
        return f"→ {row.answer}" if row.answer else ""
    return f"{row.state} {row.answer}".strip()


def _waits(lines):
    """(session, first row, last row) of each wait; one that never ends goes on to the last row."""
    out, begun = [], {}
    for number, row in enumerate(lines.itertuples()):
        if row.state == "blocked":
            begun[row.session] = number
        elif row.session in begun:
            out.append((row.session, begun.pop(row.session), number))
    return out + [(session, number, len(lines) - 1) for session, number in begun.items()]


def _left_out(rows):
    return [f"the first {_MOST} of {len(rows)} rows are drawn"] if len(rows) > _MOST else []


# ---------------------------------------------------------------- coverage and mutants


def _covered(results):
    total = int(results["transitions"].sum()) if len(results) else 0
    found = int((results["violation"] != "none").sum()) if len(results) else 0
    over = f"{style.count(total, 'call')} over {len(results)} {'family' if len(results) == 1 else 'families'} of actors"
    return (
        f"{style.count(found, 'violation')} in {over}"
        if found
        else f"No violation in {over}, in every order up to the bound"
    )


def _cover(ax, place, row):
    broken = row.violation != "none"
    colour = style.VERMILLION if broken else style.GREEN
    ax.barh(
        place,
        row.transitions,
        height=0.6,
        facecolor=style.tint(colour),
        edgecolor=colour,
        lw=0.9,
        hatch="///" if broken else None,
    )
    ax.plot([row.states], [place], marker="o", ms=5.5, mfc="white", mec=style.BLACK, ls="none", zorder=3)
    held = f"✖ {row.violation}" if broken else "✓ none"
    said = f"{held} · {row.depth} deep · {row.transitions:,} calls · {row.states:,} states"
    said = labels.cut(said, style.SMALL, 3.1 * 72 - 20)
    ax.annotate(
        said,
        (1, place),
        (8, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        va="center",
        size=style.SMALL,
        annotation_clip=False,
    )


def _cell(ax, place, row):
    if row["caught by"] not in _HUNTERS:
        ax.text(
            1.5, place, _THROUGH.text, color=_THROUGH.colour, ha="center", va="center", size=style.SMALL, weight="bold"
        )
        return
    at = _HUNTERS.index(row["caught by"])
    ax.plot([at - 0.36], [place], marker="o", ms=6, color=_CAUGHT.colour, ls="none", clip_on=False)
    ground = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    ax.text(at - 0.28, place, row["after"], va="center", size=style.SMALL, bbox=ground)
    if row["checkers"]:
        first, *others = row["checkers"].split(", ")
        said = labels.cut(f"✓ {first}{f', {len(others)} more' if others else ''}", style.SMALL, 2.3 * 72 - 22)
        ax.annotate(
            said,
            (1, place),
            (10, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="center",
            size=style.SMALL,
            annotation_clip=False,
        )
