"""How does a document become Markdown that no name in it can break?"""

from __future__ import annotations

import re

from jinja2 import Environment, PackageLoader, StrictUndefined

from spike.report.document import Document, Inline, Span
from spike.report.text import visible, visible_lines

_SPECIAL = re.compile(r"([\\`*\[\]<>|~&$])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
"""Characters with a meaning in GitHub's Markdown; an underscore inside a word has none."""
_LINE_START = re.compile(r"^(\s*)([#>+-]|\d+(?=[.)])|={3,})")


def render_markdown(document: Document) -> str:
    """The document as GitHub-flavoured Markdown, relative links, one final newline."""
    env = Environment(
        loader=PackageLoader("spike.report", "templates"),
        autoescape=False,  # Markdown: each filter below escapes for it
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    env.filters |= {
        "md_text": escape,
        "md_spans": spans,
        "md_line_start": guard_line_start,
        "md_fence": fence,
    }
    text = env.get_template("postmortem.md.j2").render(document=document)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def escape(text: str) -> str:
    """Text on one line that means itself."""
    return _SPECIAL.sub(lambda m: "\\" + m[0], visible(text))


def guard_line_start(text: str) -> str:
    """Already escaped text, kept from becoming a heading, quote or list."""
    return _LINE_START.sub(lambda m: f"{m[1]}\\{m[2]}" if not m[2].isdigit() else f"{m[1]}{m[2]}\\", text)


def spans(line: Inline) -> str:
    """A line of spans."""
    return "".join(_span(span) for span in line)


def _span(span: Span) -> str:
    match span.kind:
        case "code":
            shown = _code(span.text)
        case "strong" | "badge":
            shown = f"**{escape(span.text)}**" if span.text.strip() else ""
        case _:
            shown = escape(span.text)
    return f"[{shown}]({span.href})" if span.href and shown else shown


def _code(text: str) -> str:
    """A code span; its fence is longer than any run of backticks inside, its pipes are safe in a table."""
    shown = visible(text) or " "
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    ticks = "`" * (longest + 1)
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{ticks}{pad}{shown}{pad}{ticks}".replace("|", "\\|")


def fence(text: str) -> str:
    """A block of text to copy."""
    shown = visible_lines(text)
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}sh\n{shown}\n{ticks}"
