"""spike verify: is the case still what was recorded?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spike.cli.options import CaseOption, JsonOption, RunOption
from spike.cli.output import answer, emit_json, finish, progress
from spike.domain.errors import ExitCode

if TYPE_CHECKING:
    from spike.domain.verification import Verification

MAX_LINES = 40
"""A copied case differs in every modification time; the rest is counted."""


def verify(
    run: RunOption = Path(),
    case: CaseOption = None,
    public_key: Annotated[
        Path | None, typer.Option("--public-key", help="Check the signature with this ed25519 key (PEM).")
    ] = None,
    online: Annotated[
        bool, typer.Option("--online", help="Ask object stores whether what the case names or copied is still there.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Read every byte of a case and hold it against what was recorded; needs neither the run nor its machine.

    Exit code 1 for changed, added or missing content; 4 where a command was interrupted; metadata is only reported.
    """
    from spike.actions.evidence.ask_store import verify_with_stores
    from spike.domain.verification import Integrity

    with progress("reading", total=None) as advance:
        chosen = case.resolve() if case else _newest(run)
        found = verify_with_stores(chosen, is_online=online, public_key=public_key, on_bytes=advance)
    if as_json:
        emit_json(_payload(found))
    else:
        _show(found)
    match found.integrity:
        case Integrity.INTACT:
            finish(ExitCode.PASSED)
        case Integrity.ALTERED:
            finish(ExitCode.ANSWER_NO)
        case Integrity.INCOMPLETE:
            finish(ExitCode.INCONCLUSIVE)


def _newest(run: Path) -> Path:
    from spike.casefile.case import cases_dir, list_cases
    from spike.domain.errors import SpikeError
    from spike.readers.run_file import load_run

    described = load_run(run)
    found = list_cases(cases_dir(described))
    if not found:
        raise SpikeError(f"the run in {described.directory} has no case yet", hint="spike freeze")
    return found[-1]


def _show(found: Verification) -> None:
    answer(f"{found.integrity.upper()}  {found.case}")
    if found.tree_digest:
        answer(f"evidence    {found.num_files} files, {found.num_bytes / 1e6:.1f} MB, tree {found.tree_digest}")
    if found.num_released:
        answer(f"released    {found.num_released} files of pinned checkpoints; the manifest keeps their digests")
    for change in (*found.changes, *found.artefacts):
        if change.is_content:
            answer(f"CONTENT     {change.statement}")
    for sentence in found.references:
        asked = "its store was asked" if found.num_asked is not None else "not read here: --online asks its store"
        answer(f"reference   {sentence} (by reference, {asked})")
    for sentence in found.origins[:MAX_LINES]:
        answer(f"original    {sentence}")
    for fault in found.chain:
        answer(f"{'JOURNAL' if fault.is_tampering else 'unfinished'}     {fault.fault}: {fault.statement}")
    for reason in found.unfinished:
        if all(reason != fault.statement for fault in found.chain):
            answer(f"unfinished  {reason}")
    for change in found.metadata[:MAX_LINES]:
        answer(f"metadata    {change.statement}")
    if len(found.metadata) > MAX_LINES:
        answer(f"metadata    and {len(found.metadata) - MAX_LINES} more; --json lists them all")
    if found.unrecorded:
        shown = ", ".join(found.unrecorded[:5])
        answer(f"unrecorded  {len(found.unrecorded)} files outside evidence/ that no command recorded: {shown}")
    answer(f"signature   {found.signature}")
    if found.num_asked is not None:
        answer(f"asked       {found.num_asked} objects, {len(found.origins)} originals are not what they were")
    if found.unfinished:
        store = ", or spike verify --online when the store answers" if found.num_asked is not None else ""
        answer(f"next        type the interrupted command again, then spike verify{store}")


def _payload(found: Verification) -> dict[str, Any]:
    from spike.casefile.codec import to_payload

    return to_payload(found, schema="spike.verification/1")
