"""What is a report made of? Sections of blocks of spans, the same for Markdown and for HTML.

Text in here is plain: escaping is the business of the two templates, so that a hostile file name is harmless in
both. A link only ever leads to a path inside the case.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import ClassVar, TypeAlias
from urllib.parse import quote


class Tone(StrEnum):
    """How a value is meant, for colour; the words say it too."""

    GOOD = "good"
    BAD = "bad"
    WARN = "warn"
    QUIET = "quiet"


@dataclass(frozen=True, slots=True)
class Span:
    """A run of text of one kind."""

    text: str
    kind: str = "text"
    """"text", "strong", "code", "badge", or "fixed" for text that stays on one line."""
    href: str = ""
    """Percent-encoded path relative to the case; "" for none."""
    tone: Tone = Tone.QUIET


Inline: TypeAlias = tuple[Span, ...]
Words: TypeAlias = str | Span | Inline
"""What a builder accepts where a line of text goes."""


@dataclass(frozen=True, slots=True)
class Paragraph:
    kind: ClassVar[str] = "paragraph"
    spans: Inline


@dataclass(frozen=True, slots=True)
class Bullets:
    kind: ClassVar[str] = "bullets"
    items: tuple[Inline, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells; a column of `numeric` is set to the right."""

    kind: ClassVar[str] = "table"
    header: tuple[str, ...]
    rows: tuple[tuple[Inline, ...], ...]
    caption: str = ""
    numeric: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Tile:
    """One key figure."""

    label: str
    value: Inline
    note: Inline


@dataclass(frozen=True, slots=True)
class Tiles:
    kind: ClassVar[str] = "tiles"
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart by name; Markdown links the file, HTML takes the drawing in."""

    kind: ClassVar[str] = "figure"
    name: str
    """File name without suffix under figures/."""
    alt: str
    caption: Inline


@dataclass(frozen=True, slots=True)
class Command:
    """Something to type, on its own line."""

    kind: ClassVar[str] = "command"
    text: str


Block: TypeAlias = Paragraph | Bullets | Table | Tiles | Figure | Command


@dataclass(frozen=True, slots=True)
class Section:
    id: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Document:
    title: str
    meta: tuple[tuple[str, Inline], ...]
    """Label and value of the lines under the title."""
    sections: tuple[Section, ...]


def inline(*words: Words) -> Inline:
    """Strings, spans and lines of spans as one line of spans."""
    spans: list[Span] = []
    for word in words:
        if isinstance(word, str):
            spans += [Span(word)] if word else []
        elif isinstance(word, Span):
            spans.append(word)
        else:
            spans += word
    return tuple(spans)


def strong(text: str) -> Span:
    """Text that carries the sentence."""
    return Span(text, "strong")


def code(text: str, path: str = "") -> Span:
    """Something literal: a name, an id, a command; linked where it is a path of the case."""
    return Span(text, "code", case_href(path))


def badge(text: str, tone: Tone) -> Span:
    """A word that stands for a state."""
    return Span(text, "badge", "", tone)


def fixed(text: str) -> Span:
    """Text that must not be broken over two lines: a time."""
    return Span(text, "fixed")


def link(text: str, path: str) -> Span:
    """Text that leads to an artefact of the case."""
    return Span(text, "text", case_href(path))


def case_href(path: str) -> str:
    """`path` as a relative link; "" for one that would lead out of the case.

    A colon is encoded too, so that no text from a file can become a `javascript:` link.
    """
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts:
        return ""
    return quote(path, safe="/", errors="surrogateescape")


def table(
    header: tuple[str, ...], rows: Iterable[tuple[Words, ...]], caption: str = "", numeric: tuple[int, ...] = ()
) -> Table:
    """A table whose cells are given as words."""
    return Table(header, tuple(tuple(inline(cell) for cell in row) for row in rows), caption, numeric)


def paragraph(*words: Words) -> Paragraph:
    """One paragraph."""
    return Paragraph(inline(*words))


def bullets(items: Iterable[Words]) -> Bullets:
    """A list of lines."""
    return Bullets(tuple(inline(item) for item in items))
