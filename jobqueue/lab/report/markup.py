"""Blocks as one HTML file that needs nothing else: inline SVG, inline style, no script, no address of anything."""

import html
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from string import Template

import pandas as pd

from .. import style
from .blocks import Block, Figure, Heading, Listing, Paragraph, Table

GENERATOR = "jobqueue.lab.report"
SHORT = 12  # rows: a table that no page of a print may cut in two
_BREAK = "\u200b"  # Unicode's own word for <wbr>
_ENDS = re.compile(r"(?<=[_/])(?=\w)|(?<=[(.])(?=[^\W\d])")  # of the parts of a name, a path, a call
_FILES = resources.files(__package__)


def page(title: str, blocks: Sequence[Block], drawn: Mapping[str, bytes]) -> bytes:
    """The whole document; `drawn` has the SVG of each figure by its slug."""
    headings = [block.text for block in blocks if isinstance(block, Heading)]
    contents = "".join(f'<li><a href="#{_anchor(text)}">{_text(text)}</a></li>' for text in headings)
    known = {block.number for block in blocks if isinstance(block, Figure)}
    body = "\n".join(
        _figure(block, drawn[block.slug]) if isinstance(block, Figure) else _linked(_MAKERS[type(block)](block), known)
        for block in blocks
    )
    template = Template((_FILES / "page.html").read_text(encoding="utf-8"))
    css = (_FILES / "page.css").read_text(encoding="utf-8")
    told = {"title": _text(title), "css": css, "contents": contents, "body": body, "generator": GENERATOR}
    return template.substitute(told).encode()


def inline_svg(content: bytes, own: str) -> str:
    """An SVG file to stand inside of HTML: no prolog, no metadata, and ids that begin with `own`."""
    text = content.decode()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'\bid="', f'id="{own}', text)
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{own}", text)
    return text.replace("<svg ", '<svg aria-hidden="true" ', 1).strip()


def _heading(block: Heading) -> str:
    return f'<h2 id="{_anchor(block.text)}">{_text(block.text)}</h2>'


def _options(text: str) -> str:
    """An option of a command line stays on one line."""
    return re.sub(r"(?<!\S)(--[a-z-]+)", r'<span class="one">\1</span>', text)


def _paragraph(block: Paragraph) -> str:
    said = _options(_text(block.text))
    return f"<p><strong>{said}</strong></p>" if block.strong else f"<p>{said}</p>"


def _listing(block: Listing) -> str:
    """Each part after an empty line stays on one page of a print."""
    return "\n".join(f'<pre class="whole">{_text(part)}</pre>' for part in re.split(r"\n{2,}", block.text))


def _figure(block: Figure, content: bytes) -> str:
    said = f"{block.sheet.finding}. {block.caption}"
    picture = inline_svg(content, f"f{block.number}-")
    return (
        f'<figure id="figure-{block.number}"><div role="img" aria-label="{_text(said)}">{picture}</div>'
        f"<figcaption>{block.label}. {_text(block.caption)}</figcaption></figure>"
    )


def _table(block: Table) -> str:
    columns, short = list(block.frame.columns), "whole" if len(block.frame) <= SHORT else ""
    flush = ["right" if name in block.numbers else "" for name in columns]
    head = "".join(f"<th{_class(side)}>{_text(name)}</th>" for name, side in zip(columns, flush, strict=True))
    rows = "\n".join(_row(values, flush) for values in block.frame.itertuples(index=False))
    widths = "".join(f'<col style="width:{share:.0%}">' for share in block.widths)
    return (
        f"<table{_class(short)}><caption>{_text(block.caption)}</caption>{widths and f'<colgroup>{widths}</colgroup>'}"
        f"<thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>"
    )


def _row(values, flush) -> str:
    cells = (f"<td{_class(side)}>{_parted(cell(value))}</td>" for value, side in zip(values, flush, strict=True))
    return f"<tr>{''.join(cells)}</tr>"


def cell(value) -> str:
    """A value as a table shows it."""
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer() and abs(value) < 1e15):
        return f"{value:,.0f}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def _class(side: str) -> str:
    return f' class="{side}"' if side else ""


def _linked(text: str, known: set[int]) -> str:
    """ "Figure 3" leads there, wherever it is named."""
    return re.sub(r"\bFigure (\d+)\b", lambda m: f'<a href="#figure-{m[1]}">{m[0]}</a>' if int(m[1]) in known else m[0],
                  text)  # fmt: skip


def _anchor(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _text(text: str) -> str:
    return html.escape(style.name(text, 100_000) if "\n" not in str(text) else str(text))


def _parted(text: str) -> str:
    """A long name or path breaks after one of its parts where a line must, and a short word nowhere."""
    parts = re.sub(r"\S{20,}", lambda word: _ENDS.sub(_BREAK, word[0]), text)
    return _text(re.sub(rf"[^\s{_BREAK}]{{32}}(?=\w)", rf"\g<0>{_BREAK}", parts)).replace(_BREAK, "<wbr>")


_MAKERS = {Heading: _heading, Paragraph: _paragraph, Listing: _listing, Table: _table}
