"""What a review consists of, whatever it is printed on: headings, paragraphs, tables, figures, listings."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd

from ..style import Sheet


def amount(value: float) -> str:
    """A number as it is read: 0.983, 25.2, 1,297."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


@dataclass(frozen=True)
class Heading:
    text: str


@dataclass(frozen=True)
class Paragraph:
    text: str
    strong: bool = False


@dataclass(frozen=True)
class Listing:
    """Text whose lines stay as they are, such as commands."""

    text: str


@dataclass(frozen=True)
class Table:
    """widths: shares of the page, one a column; numbers: columns that are set flush right."""

    caption: str
    frame: pd.DataFrame
    widths: Sequence[float] = ()
    numbers: Sequence[str] = ()
    slug: str = ""


@dataclass(frozen=True)
class Figure:
    """slug: name of its files; caption: what it shows, a sentence; frames: the data behind it, by name."""

    number: int
    slug: str
    sheet: Sheet
    caption: str
    frames: dict[str, pd.DataFrame]
    parameters: dict = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"Figure {self.number}"


Block = Heading | Paragraph | Listing | Table | Figure
