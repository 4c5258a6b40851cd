"""What was preserved, what did the files show, and with which digests?"""

from __future__ import annotations

from collections.abc import Iterator

from spike.domain.facts import NOT_MEASURED
from spike.report.document import Block, Section, Words, bullets, code, inline, link, paragraph, table
from spike.report.facts import CHECKS, MANIFEST, EvidenceRow, PostmortemFacts
from spike.report.phrases import place_phrase
from spike.report.sources import fact_artefact, prose, sources
from spike.report.text import name, plural, size, visible

MAX_ROWS = 40
"""A sharded checkpoint has thousands of files; the manifest lists them all."""
MAX_DETAIL_ROWS = 10
"""Rows up to which a table of the checks is told in full; what changed in which tensor belongs to who asks for it."""
DIGEST_CHARS = 16
"""64 bits of a SHA-256 identify a file to a reader; the manifest holds all of it."""


def evidence_section(facts: PostmortemFacts) -> Section:
    """Frozen files and pinned checkpoints, then what the checks read from them."""
    blocks: list[Block] = []
    if facts.evidence:
        total = sum(row.num_bytes for row in facts.evidence)
        count = plural(len(facts.evidence), "file")
        blocks.append(
            paragraph(f"{count}, {size(total)}, each with its {facts.algorithm} in ", code(MANIFEST, MANIFEST), ".")
        )
        blocks.append(_evidence_table(facts.evidence, facts.algorithm))
    else:
        blocks.append(paragraph("No evidence was frozen."))
    blocks += _fact_blocks(facts)
    return Section("evidence", "Evidence", tuple(blocks))


def _evidence_table(rows: tuple[EvidenceRow, ...], algorithm: str) -> Block:
    caption = "" if len(rows) <= MAX_ROWS else f"The first {MAX_ROWS} of {len(rows):,}; the manifest lists all."
    shown = [(code(name(r.path), r.path), visible(r.origin), size(r.num_bytes), _digest(r)) for r in rows[:MAX_ROWS]]
    return table(("Evidence", "Origin", "Size", algorithm), shown, caption, numeric=(2,))


def _digest(row: EvidenceRow) -> Words:
    return code(row.digest[:DIGEST_CHARS])


def _fact_blocks(facts: PostmortemFacts) -> Iterator[Block]:
    known = [f for f in facts.facts if f.value != NOT_MEASURED]
    if known:
        rows = []
        for fact in known:
            where = place_phrase(fact.where)
            statement = inline(prose(fact.statement, facts), f" ({where})" if where else "")
            rows.append(
                (
                    link(fact.name, fact_artefact(fact, facts)),
                    code(fact.value),
                    statement,
                    sources(fact.evidence, facts),
                )
            )
        yield table(("Fact", "Value", "What was found", "Evidence"), rows, "What the checks and the trials measured.")
    tables = facts.checks.tables if facts.checks is not None else ()
    for title, cells in tables:
        if 1 < len(cells) <= MAX_DETAIL_ROWS + 1:
            yield _detail_table(title, cells)
    long = [
        f"{visible(title)} ({len(cells) - 1:,} rows)" for title, cells in tables if len(cells) > MAX_DETAIL_ROWS + 1
    ]
    if long:
        yield paragraph("Longer tables are in ", code(CHECKS, CHECKS), f": {'; '.join(long)}.")


def _detail_table(title: str, cells: tuple[tuple[str, ...], ...]) -> Block:
    header = tuple(visible(c) for c in cells[0])
    rows = [tuple(name(c) for c in (*row, *[""] * len(header))[: len(header)]) for row in cells[1:]]
    caption = visible(title)
    return table(header, rows, f"{caption[:1].upper()}{caption[1:]}")


def record_section(facts: PostmortemFacts) -> Section:
    """What the report itself was made from."""
    rows = [(code(name(r.path), r.path), size(r.num_bytes), code(r.digest)) for r in facts.artefacts]
    words = ["Written from the files below and nothing else; the same case gives the same report."]
    if facts.chain_digest:
        words.append(f"The journal's chain stands at {facts.chain_digest[:DIGEST_CHARS]} after the last command above.")
    words.append("Check that nothing was altered with")
    blocks: tuple[Block, ...] = (paragraph(" ".join(words), " ", code("spike verify"), "."),)
    if rows:
        blocks = (*blocks, table(("Artefact", "Size", "SHA-256"), rows, numeric=(1,)))
    return Section("record", "Record", blocks)


def gap_bullets(gaps: tuple[tuple[str, str], ...]) -> Block:
    """What freeze could not keep."""
    return bullets(inline(code(name(what)), f": {visible(why)}") for what, why in gaps)
