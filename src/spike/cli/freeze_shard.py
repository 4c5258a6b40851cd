"""spike freeze --shard i/n: one part of the reading, for one process of many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spike.cli.byte_progress import byte_progress
from spike.cli.output import answer, emit_json, talk

if TYPE_CHECKING:
    from spike.actions.evidence.freeze import Options
    from spike.actions.evidence.freeze_shards import ShardDone
    from spike.casefile.case import Case
    from spike.domain.run import Run
    from spike.domain.shards import Shard

MAX_NAMED = 8


def freeze_shard(run: Run, text: str, case: Case, onset: int | None, options: Options, *, as_json: bool) -> None:
    """Do one part, and say what is left to do."""
    from spike.actions.evidence.freeze_shards import freeze_shard as act

    shard = parse(text)
    with byte_progress(f"shard {shard}") as on_progress:
        done = act(case, run, shard, onset=onset, algorithm=options.algorithm, on_progress=on_progress)
    if done is None:
        talk(f"case {case.path} is frozen already; nothing is left to do for shard {shard}")
    if as_json:
        emit_json(_payload(case, shard, done))
    else:
        _show(case, shard, done)


def parse(text: str) -> Shard:
    """The shard that was typed. Raises `SpikeError`."""
    from spike.domain.errors import SpikeError
    from spike.domain.shards import Shard

    try:
        return Shard.parse(text)
    except ValueError as error:
        raise SpikeError(f"--shard {error}", hint="spike freeze --shard 1/4, and 2/4, 3/4, 4/4 elsewhere") from error


def _following(case: Case, done: ShardDone | None) -> str:
    from spike.actions.evidence.shard_plan import command

    if done is None:
        return f"spike check --case {case.path}"
    return f"{command(case)} " + (f"--shard {done.missing[0]}" if done.missing else "--merge")


def _show(case: Case, shard: Shard, done: ShardDone | None) -> None:
    answer(f"case      {case.path}")
    if done is not None:
        again = "" if done.num_bytes_read else " (all of it had been done before)"
        answer(f"shard     {shard}: {done.num_files} files, {done.num_bytes / 1e6:.1f} MB hashed{again}")
        for path, reason in done.problems:
            answer(f"WARNING   {path}: {reason}; the merge looks at it once more")
        if done.missing:
            named = ", ".join(map(str, done.missing[:MAX_NAMED])) + (", ..." if len(done.missing) > MAX_NAMED else "")
            answer(f"missing   {len(done.missing)} of {shard.count} shards: {named}")
    answer(f"next      {_following(case, done)}")


def _payload(case: Case, shard: Shard, done: ShardDone | None) -> dict[str, Any]:
    return {
        "schema": "spike.freeze-shard/1",
        "case": str(case.path),
        "shard": str(shard),
        "already_frozen": done is None,
        "files": done.num_files if done else 0,
        "bytes": done.num_bytes if done else 0,
        "bytes_read": done.num_bytes_read if done else 0,
        "problems": [{"path": path, "reason": reason} for path, reason in (done.problems if done else ())],
        "missing": [str(s) for s in (done.missing if done else ())],
        "next": _following(case, done),
    }
