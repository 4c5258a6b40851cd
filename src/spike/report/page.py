"""How does a document become one HTML file that opens offline and executes nothing?"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from spike.report.document import Document
from spike.report.text import visible, visible_lines

LONG_WORD = 36
"""Characters of a word beyond which it would push a table out of the page."""


def render_page(document: Document, figures: Mapping[str, str]) -> str:
    """The document with its drawings (`figures`: SVG text by name) inside, every other text escaped.

    The page has no script and forbids them, so even a hole in the escaping would show text and run nothing.
    """
    env = Environment(
        loader=PackageLoader("spike.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    env.filters |= {"visible": visible, "visible_lines": visible_lines, "breakable": breakable}
    style = files("spike.report").joinpath("templates", "postmortem.css").read_text(encoding="utf-8")
    drawings = {name: Markup(svg) for name, svg in figures.items()}
    template = env.get_template("postmortem.html.j2")
    return template.render(document=document, figures=drawings, style=Markup(style.strip()))


def breakable(text: str) -> Markup:
    """Escaped text in which a word longer than a column (a digest, a path) may be broken anywhere, and no other."""
    words = [escape(word) for word in visible(text).split(" ")]
    return Markup(" ").join(
        Markup('<span class="long">{}</span>').format(w) if len(w) > LONG_WORD else w for w in words
    )
