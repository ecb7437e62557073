"""Text that never collides: places for labels on a line and in rows, and the check of a finished figure."""

import re
from functools import cache
from itertools import combinations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ft2font import LoadFlags
from matplotlib.text import Text

# A number stays on one line with its unit, and with the sign before it.
_UNIT = re.compile(r"(?<=\d) (?=(?:ms|s|min|h|d|%)(?!\w))|(?<=[×≤≥<>±]) (?=\d)")


def spread(wanted, gap, low, high):
    """Positions at least `gap` apart within [low, high], in the order of `wanted` and as near to it as can be.

    Least squares by pooling adjacent violators. Where there is no room for all, the gap shrinks to what there is.
    """
    if len(wanted) > 1:
        gap = min(gap, (high - low) / (len(wanted) - 1))
    order = sorted(range(len(wanted)), key=lambda k: wanted[k])
    blocks = []
    for i, k in enumerate(order):
        blocks.append((wanted[k] - i * gap, 1))
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            blocks[-2:] = [_pooled(*blocks[-2:])]
    flat = [mean for mean, size in blocks for _ in range(size)]
    top = high - (len(wanted) - 1) * gap
    placed = {k: min(max(flat[i], low), top) + i * gap for i, k in enumerate(order)}
    return [placed[k] for k in range(len(wanted))]


def rows(spans, most):
    """A row for each (left, right) so that no two of a row overlap; None where `most` rows don't suffice."""
    ends: list[float] = []
    chosen: list[int | None] = []
    for left, right in spans:
        row = next((i for i, end in enumerate(ends) if end <= left), None)
        if row is None and len(ends) < most:
            ends.append(left)
            row = len(ends) - 1
        if row is not None:
            ends[row] = right
        chosen.append(row)
    return chosen


def stairs(spans):
    """A row for each (left, right), each below all that it overlaps, so that a line up to its left crosses no label."""
    chosen: list[int] = []
    for left, _ in spans:
        above = [row for (_, right), row in zip(spans, chosen, strict=False) if right > left]
        chosen.append(1 + max(above, default=-1))
    return chosen


def width(text, size, weight="normal"):
    """Width of one line of `text` in points, as the figure's own font draws it."""
    return size * 1.02 * sum(_advance(character, weight) for character in text)  # hinting at 100 dpi adds up to 2 %


def wrap(text, size, room, weight="normal"):
    """The lines of `text`, none wider than `room` points; a word that is wider alone is cut with an ellipsis."""
    lines = [""]
    for word in _UNIT.sub("\u00a0", " ".join(text.split())).split(" "):
        word = cut(word.replace("\u00a0", " "), size, room, weight)
        longer = f"{lines[-1]} {word}".strip()
        if width(longer, size, weight) <= room:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def balanced(text, size, room, weight="normal"):
    """As `wrap`, in as few lines, but with the lines about equally long: no last line of one word."""
    lines = wrap(text, size, room, weight)
    while len(lines) > 1 and len(narrower := wrap(text, size, room * 0.96, weight)) == len(lines):
        lines, room = narrower, room * 0.96
    return lines


def cut(text, size, room, weight="normal"):
    """`text`, shortened in its middle until it is at most `room` points wide."""
    kept = len(text)
    while kept > 1 and width(_middle(text, kept), size, weight) > room:
        kept -= 1
    return _middle(text, kept)


def clashes(figure):
    """Pairs of visible texts whose boxes overlap, and (text, "") for each that leaves the figure."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    boxes = [(text.get_text(), Text.get_window_extent(text, renderer)) for text in visible_texts(figure)]
    out = [(a, "") for a, box in boxes if not _inside(box, figure.bbox)]
    return out + [(a, b) for (a, one), (b, two) in combinations(boxes, 2) if _overlap(one, two)]


def visible_texts(figure):
    """Every text that is drawn: not hidden, not empty, and no tick label of a tick outside its axis."""
    ticks = {id(text) for axes in figure.axes for text in _outer_ticks(axes)}
    return [
        text
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and id(text) not in ticks and _shown(text)
    ]


@cache
def _advance(character, weight):
    """Width of one character at size 1; kerning, which would only shorten a text, is left out."""
    font = get_font(findfont(FontProperties(family="DejaVu Sans", weight=weight)))
    font.set_size(100, 72)
    return font.load_char(ord(character), flags=LoadFlags.NO_HINTING).linearHoriAdvance / 65536 / 100


def _pooled(one, two):
    return (one[0] * one[1] + two[0] * two[1]) / (one[1] + two[1]), one[1] + two[1]


def _middle(text, kept):
    if kept >= len(text):
        return text
    head = kept // 2
    return text[: kept - head] + "…" + text[len(text) - head :]


def _inside(box, frame):
    return box.x0 >= frame.x0 - 1 and box.y0 >= frame.y0 - 1 and box.x1 <= frame.x1 + 1 and box.y1 <= frame.y1 + 1


def _overlap(one, two):
    return (min(one.x1, two.x1) - max(one.x0, two.x0) > 1) and (min(one.y1, two.y1) - max(one.y0, two.y0) > 1)


def _shown(text):
    return text.axes is None or text.axes.get_visible()


def _outer_ticks(axes):
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        slack = (high - low) * 1e-9
        for minor in (False, True):
            for place, text in zip(axis.get_ticklocs(minor=minor), axis.get_ticklabels(minor=minor), strict=False):
                if not low - slack <= place <= high + slack:
                    yield text
