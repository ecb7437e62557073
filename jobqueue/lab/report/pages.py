"""Blocks as pages of a PDF, drawn by matplotlib alone: A4 across, first text and tables, then a figure a page."""

import io
import math
from collections.abc import Iterator, Sequence

from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from .. import labels, style
from .blocks import Block, Figure, Heading, Listing, Paragraph, Table
from .markup import cell

WIDTH, HEIGHT, MARGIN = 11.69, 8.27, 0.6  # inches
ROOM = (WIDTH - 2 * MARGIN) * 72
BOTTOM = 0.65
HEAD, BODY, SMALL = 14, 9.5, 7.4
LEADING = 1.36
CELL = 4.0  # points around the text of a cell


def render(title: str, blocks: Sequence[Block]) -> bytes:
    """The PDF; the same blocks give the same bytes."""
    out = io.BytesIO()
    facts = {"Title": title, "Creator": "jobqueue.lab.report", "Producer": None, "CreationDate": None, "ModDate": None}
    with style.applied(), PdfPages(out, metadata=facts) as pdf:
        paper = _Paper(pdf, title)
        paper.heading(title, HEAD + 5)
        for block in blocks:
            if not isinstance(block, Figure):
                _PRINTED[type(block)](paper, block)
        paper.turn()
        for figure in sorted((block for block in blocks if isinstance(block, Figure)), key=lambda one: one.number):
            paper.insert(figure.sheet, figure.label, figure.caption)
    return out.getvalue()


class _Paper:
    """The page that is being written, from the top down; `turn` gives it away and begins another."""

    def __init__(self, pdf: PdfPages, title: str):
        self._pdf, self._title, self._number = pdf, title, 0
        self._begin()

    def _begin(self) -> None:
        self.canvas = Canvas(figsize=(WIDTH, HEIGHT), facecolor="white")
        self.left, self._used = HEIGHT - MARGIN, False

    def turn(self) -> None:
        if self._used:
            self._pdf.savefig(self._numbered(self.canvas, WIDTH, HEIGHT))
            self._begin()

    def insert(self, sheet: style.Sheet, label: str, caption: str) -> None:
        """A figure on a page of its own, with its caption below; the drawing keeps its size unless it is too large."""
        self.turn()
        width, height = sheet.get_size_inches()
        said = labels.wrap(f"{label}. {caption}", BODY, (width - 0.3) * 72)
        below = 0.18 + len(said) * BODY * LEADING / 72
        page = max(WIDTH, (height + below + 2 * MARGIN) * WIDTH / HEIGHT)
        tall = page * HEIGHT / WIDTH
        box = Bbox.from_bounds(-(page - width) / 2, height - tall + MARGIN, page, tall)
        added = [sheet.text(0.15 / width, -0.1 / height, "\n".join(said), size=BODY, va="top", linespacing=LEADING)]
        self._number += 1
        added.append(sheet.text((box.x1 - MARGIN) / width, (box.y0 + 0.3) / height, f"{self._number}", size=SMALL,
                                ha="right", color=style.GREY))  # fmt: skip
        self._pdf.savefig(sheet, bbox_inches=box)
        for text in added:
            text.remove()

    def room(self, points: float) -> None:
        """A new page unless so much is left."""
        if self.left - points / 72 < BOTTOM:
            self.turn()

    def down(self, points: float) -> None:
        self.left -= points / 72

    def write(self, text: str, x: float, size: float, **looks) -> None:
        """One line whose top is where the page is now; x in points from the margin."""
        self._used = True
        place = (MARGIN + x / 72) / WIDTH
        self.canvas.text(place, self.left / HEIGHT, text, size=size, va="top", **looks)

    def heading(self, text: str, size: float = HEAD) -> None:
        self.room(size * LEADING + 60)
        self.down(8)
        for line in labels.balanced(text, size, ROOM, "bold"):
            self.write(line, 0, size, weight="bold")
            self.down(size * LEADING)
        self.down(4)

    def lines(self, lines: Sequence[str], size: float, **looks) -> None:
        for line in lines:
            self.room(size * LEADING)
            self.write(line, 0, size, **looks)
            self.down(size * LEADING)

    def rule(self, points: float) -> None:
        """As long as so many points."""
        y, left = self.left / HEIGHT, MARGIN / WIDTH
        self.canvas.add_artist(Line2D([left, left + points / 72 / WIDTH], [y, y], color="#999999", lw=0.5))

    def _numbered(self, canvas, width: float, height: float):
        self._number += 1
        foot = {"size": SMALL, "color": style.GREY}
        canvas.text(MARGIN / width, 0.35 / height, labels.cut(self._title, SMALL, ROOM - 60), **foot)
        canvas.text(1 - MARGIN / width, 0.35 / height, f"{self._number}", ha="right", **foot)
        return canvas


def _heading(paper: _Paper, block: Heading) -> None:
    paper.heading(block.text)


def _paragraph(paper: _Paper, block: Paragraph) -> None:
    weight = "bold" if block.strong else "normal"
    paper.lines(labels.wrap(block.text, BODY, ROOM, weight), BODY, weight=weight)
    paper.down(5)


def _listing(paper: _Paper, block: Listing) -> None:
    for passage in block.text.split("\n\n"):
        lines = [part for line in passage.split("\n") for part in _indented(line)]
        paper.room(len(lines) * SMALL * LEADING)  # a query stays with its name
        paper.lines(lines, SMALL, color="#222222")
        paper.down(SMALL)


def _indented(line: str) -> Iterator[str]:
    indent = len(line) - len(line.lstrip())
    for part in labels.wrap(line, SMALL, ROOM - 20):
        yield " " * indent + part


def _table(paper: _Paper, block: Table) -> None:
    grid = _Grid(block)
    rows = [grid.wrapped(row) for row in block.frame.itertuples(index=False)]
    paper.room(3 * BODY * LEADING + grid.height(rows[0] if rows else grid.head) + grid.height(grid.head))
    paper.lines(labels.wrap(block.caption, BODY, ROOM, "bold"), BODY, weight="bold")
    paper.down(2)
    grid.write(paper, grid.head, "bold")
    for row in rows:
        for part in grid.parts(row):
            if paper.left - grid.height(part) / 72 < BOTTOM:
                paper.turn()
                grid.write(paper, grid.head, "bold")
            grid.write(paper, part)
    paper.rule(sum(grid.widths))
    paper.down(10)


class _Grid:
    """A table's columns on the paper: their widths in points, and their cells as wrapped lines."""

    def __init__(self, block: Table):
        self.flush = [name in block.numbers for name in block.frame.columns]
        self.widths = [share * ROOM for share in block.widths] or self._fitted(block)
        self.head = self.wrapped([str(name) for name in block.frame.columns], "bold")

    def _fitted(self, block: Table) -> list[float]:
        """Each as wide as its widest text, scaled to the page where they are too wide together."""
        wide = [
            max([labels.width(str(name), SMALL, "bold"), *(labels.width(cell(x), SMALL) for x in block.frame[name])])
            + 2 * CELL + 2
            for name in block.frame.columns
        ]  # fmt: skip
        scale = min(1.0, ROOM / sum(wide))
        return [width * scale for width in wide]

    def wrapped(self, values, weight: str = "normal") -> list[list[str]]:
        return [_fits(cell(value), width - 2 * CELL, weight) for value, width in zip(values, self.widths, strict=True)]

    def height(self, row: list[list[str]]) -> float:
        return max(map(len, row)) * SMALL * LEADING + CELL

    def parts(self, row: list[list[str]]) -> Iterator[list[list[str]]]:
        """A row that is taller than a page goes on on the next."""
        most = math.floor((HEIGHT - MARGIN - BOTTOM) * 72 / (SMALL * LEADING)) - 6
        for begin in range(0, max(map(len, row)), most):
            yield [lines[begin : begin + most] or [""] for lines in row]

    def write(self, paper: _Paper, row: list[list[str]], weight: str = "normal") -> None:
        paper.rule(sum(self.widths))
        paper.down(CELL * 0.6)
        x, top = 0.0, paper.left
        for lines, width, flush in zip(row, self.widths, self.flush, strict=True):
            paper.left = top
            for line in lines:
                at = x + width - CELL if flush else x + CELL / 2
                paper.write(line, at, SMALL, weight=weight, ha="right" if flush else "left")
                paper.down(SMALL * LEADING)
            x += width
        paper.left = top - (self.height(row) - CELL * 0.6) / 72


def _fits(text: str, room: float, weight: str) -> list[str]:
    """As labels.wrap, but a word that is too wide is broken, not cut: a table may lose nothing."""
    words = [part for word in " ".join(text.split()).split(" ") for part in _broken(word, room, weight)]
    return labels.wrap(" ".join(words), SMALL, room, weight)


def _broken(word: str, room: float, weight: str) -> Iterator[str]:
    while word and labels.width(word, SMALL, weight) > room:
        kept = next(k for k in range(len(word) - 1, 0, -1) if k == 1 or labels.width(word[:k], SMALL, weight) <= room)
        yield word[:kept]
        word = word[kept:]
    yield word


_PRINTED = {Heading: _heading, Paragraph: _paragraph, Listing: _listing, Table: _table}
