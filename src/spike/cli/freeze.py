"""spike freeze: keep the evidence before anything changes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spike.cli.options import CaseOption, JsonOption, RunOption
from spike.cli.output import answer, emit_json, talk

if TYPE_CHECKING:
    from spike.actions.evidence.freeze import Options
    from spike.casefile.case import Case
    from spike.domain.case import PinnedCheckpoint
    from spike.domain.incident import Incident
    from spike.domain.manifest import Manifest
    from spike.domain.run import Run
    from spike.domain.signals import Signals


def freeze(
    run: RunOption = Path(),
    case: CaseOption = None,
    step: Annotated[
        int | None,
        typer.Option("--step", "-s", help="The incident around this step, or your own onset where none stands out."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", help="Sign the evidence with this ed25519 private key (PEM).")
    ] = None,
    hash_name: Annotated[str, typer.Option("--hash", help="sha256, or blake3 (about three times as fast).")] = "sha256",
    new: Annotated[bool, typer.Option("--new", help="Open another case though this incident has one.")] = False,
    shard: Annotated[
        str, typer.Option("--shard", metavar="I/N", help="Hash one of N parts only; run all N, then --merge.")
    ] = "",
    merge: Annotated[bool, typer.Option("--merge", help="Complete a case whose N shards are done.")] = False,
    release: Annotated[
        bool, typer.Option("--release", help="Let go of the pinned checkpoints of a closed case.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Open a case: pin the checkpoints around the onset, hash everything, copy the small files.

    Nothing is written into the run. Typed again for the same incident, it finds its own case and checks it.
    """
    from spike.casefile.case import cases_dir
    from spike.cli.byte_progress import byte_progress
    from spike.readers.run_file import load_run

    described = load_run(run)
    if release:
        _release(described, case, key, as_json)
        return
    options = _options(hash_name, key, new, step, merge)
    _refuse_together(shard, options)
    begun = None if new else _begun(case, any_state=bool(shard) or merge)
    shelf = _cases(case) or cases_dir(described)
    if shard:
        _freeze_shard(described, shard, begun, shelf, options, as_json)
        return
    signals, incident = _occasion(described, begun, step)
    from spike.actions.evidence.freeze import freeze as act

    with byte_progress("freezing") as on_progress:
        found = act(
            described,
            incident,
            cases=shelf,
            operator="",
            case=begun,
            signals=signals,
            options=options,
            on_progress=on_progress,
            talk=talk,
        )
    _show(found, as_json)


def _freeze_shard(run: Run, shard: str, begun: Case | None, shelf: Path, options: Options, as_json: bool) -> None:
    from spike.actions.evidence.opening import Occasion, find_or_open_once, onset_of
    from spike.cli.freeze_shard import freeze_shard, parse

    parse(shard)  # before a case is opened for it
    if begun is None:
        _, incident = _occasion(run, None, options.step)
        occasion = Occasion(run, incident, incident.onset_step if incident is not None else options.step)
        begun = find_or_open_once(shelf, occasion, operator="", say=talk)
    freeze_shard(run, shard, begun, onset_of(begun.facts, options.step), options, as_json=as_json)


def _refuse_together(shard: str, options: Options) -> None:
    from spike.domain.errors import SpikeError

    chosen = {"--merge": options.is_merge, "--new": options.is_new, "--key": options.key is not None}
    for name, is_given in chosen.items():
        if shard and is_given:
            hint = "spike freeze --merge --key KEY.pem, when all shards are done" if name == "--key" else ""
            raise SpikeError(f"--shard does one part of a case, and {name} is about all of it", hint=hint)
    if options.is_merge and options.is_new:
        raise SpikeError("--merge completes a case, and --new opens another one", hint="spike freeze --merge")


def _begun(case: Path | None, *, any_state: bool) -> Case | None:
    """The very case that was named, if it is there and not complete."""
    from spike.casefile.case import open_case
    from spike.casefile.manifest import read_manifest

    if case is None or not (case / "case.yaml").is_file():
        return None
    found = open_case(case.resolve())
    return found if any_state or read_manifest(found.path) is None else None


def _cases(case: Path | None) -> Path | None:
    """`--case` of a case that exists means its shelf; any other path is the shelf itself."""
    if case is None:
        return None
    return (case.parent if (case / "case.yaml").is_file() else case).resolve()


def _options(hash_name: str, key: Path | None, new: bool, step: int | None, merge: bool) -> Options:
    from spike.actions.evidence.freeze import Options
    from spike.domain.errors import SpikeError
    from spike.domain.manifest import Algorithm

    if hash_name not in tuple(Algorithm):
        raise SpikeError(f"--hash {hash_name} is not known", hint="spike freeze --hash sha256, or --hash blake3")
    if key is not None and not key.is_file():
        raise SpikeError(f"there is no key {key}", hint=f"openssl genpkey -algorithm ed25519 -out {key}")
    return Options(Algorithm(hash_name), key, new, step, merge)


def _occasion(run: Run, begun: Case | None, step: int | None) -> tuple[Signals | None, Incident | None]:
    """What to freeze for: what the case was opened for, an incident, or the step that the operator named."""
    from spike.actions.detect import detect_run, primary_incident
    from spike.domain.errors import ExitCode, InputUnreadable, SpikeError

    try:
        signals, detection = detect_run(run)
    except InputUnreadable as error:
        if step is None and begun is None:
            raise
        talk(f"no signals: {error.message}")
        return None, begun.facts.incident if begun is not None else None
    if begun is not None:
        return signals, begun.facts.incident
    incident = primary_incident(detection, step)
    if incident is None and step is None:
        raise SpikeError(
            f"no incident stands out in the signals of {run.directory}, so there is nothing to freeze for",
            hint="spike detect, which says what was read; spike freeze --step STEP if you know better",
            exit_code=ExitCode.ANSWER_NO,
        )
    return signals, incident


def _release(run: Run, case: Path | None, key: Path | None, as_json: bool) -> None:
    from spike.actions.evidence.release import release_pins
    from spike.actions.open_case import existing_case

    found = existing_case(run, case)
    facts = found.facts
    pins = [pin for pin in (facts.last_good, *facts.earlier, *facts.suspect) if pin is not None]
    num_files = release_pins(found, key)
    if as_json:
        emit_json({"schema": "spike.release/1", "case": str(found.path), "files": num_files})
        return
    for pin in pins:
        answer(f"let go    step {pin.step}, {pin.guarantee} of {pin.original}")
    if num_files:
        answer(f"{num_files} pinned files of {found.path} were let go; their digests stay in the manifest")
    else:
        answer(f"nothing was pinned in {found.path}, so nothing was let go")


def _show(case: Case, as_json: bool) -> None:
    from spike.actions.evidence.freeze import warnings_of
    from spike.casefile.manifest import read_manifest
    from spike.casefile.signing import signed_key_ids

    manifest = read_manifest(case.path)
    assert manifest is not None, "freeze returned, so the manifest is there"
    warnings, signed = warnings_of(case), bool(signed_key_ids(case.path))
    following = f"spike check --case {case.path}"
    if as_json:
        emit_json(_payload(case, manifest, warnings, signed, following))
        return
    facts = case.facts
    answer(f"case      {case.path}")
    answer(f"onset     step {_onset(case)}{'' if facts.incident else ', named by the operator: no incident there'}")
    for role, pins in (("last good", (facts.last_good,)), ("earlier", facts.earlier), ("suspect", facts.suspect)):
        for pin in pins:
            if pin is not None:
                answer(f"{role:<9} step {pin.step}, {pin.guarantee} of {pin.original}")
    for path, reason in facts.not_pinned:
        answer(f"not used  {path}: {reason}")
    num_bytes = sum(e.size for e in manifest.entries)
    answer(f"evidence  {len(manifest.entries)} entries, {num_bytes / 1e6:.1f} MB, {manifest.algorithm}")
    if manifest.exclusions:
        answer(f"left out  {len(manifest.exclusions)} files, with reasons in {case.path / 'evidence/manifest.json'}")
    answer(f"tree      {manifest.tree_digest}{' (signed)' if signed else ' (note it down elsewhere, or use --key)'}")
    for warning in warnings:
        answer(f"WARNING   {warning}")
    answer(f"next      {following}")


def _onset(case: Case) -> int | None:
    found = case.read_json("evidence/situation.json")
    return found["onset_step"] if found else None


def _payload(case: Case, manifest: Manifest, warnings: tuple[str, ...], signed: bool, following: str) -> dict[str, Any]:
    facts = case.facts

    def pin(found: PinnedCheckpoint) -> dict[str, Any]:
        return {
            "step": found.step,
            "original": found.original,
            "pinned": found.pinned,
            "guarantee": found.guarantee,
        }

    return {
        "schema": "spike.freeze/1",
        "case": str(case.path),
        "id": facts.id,
        "onset_step": _onset(case),
        "incident": facts.incident.kind if facts.incident else None,
        "last_good": pin(facts.last_good) if facts.last_good else None,
        "earlier": [pin(p) for p in facts.earlier],
        "suspect": [pin(p) for p in facts.suspect],
        "not_pinned": [{"path": path, "reason": reason} for path, reason in facts.not_pinned],
        "algorithm": manifest.algorithm,
        "tree_digest": manifest.tree_digest,
        "entries": len(manifest.entries),
        "bytes": sum(e.size for e in manifest.entries),
        "exclusions": [{"path": e.path, "reason": e.reason} for e in manifest.exclusions],
        "signed": signed,
        "warnings": list(warnings),
        "next": following,
    }
