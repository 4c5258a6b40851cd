"""Does every damage to every layout get its verdict, with the file and the reason? One table of all cells."""

import os
import re
import shutil
from dataclasses import dataclass

import pytest
from tests.readers.checkpoints import damages
from tests.readers.checkpoints.stacks import EARLIER, LATER, LAYOUTS, STACKS

from spike.actions.checks.check_checkpoints import checkpoint_facts
from spike.actions.checks.check_scene import scene_of_run
from spike.domain.checkpoint import Integrity
from spike.domain.run import Run
from spike.readers.checkpoints import inspect_checkpoint, readers, scan_checkpoint

pytestmark = [
    pytest.mark.stack,
    pytest.mark.filterwarnings("ignore"),
]

COMPLETE, TORN, CORRUPT = Integrity.COMPLETE, Integrity.TORN, Integrity.CORRUPT
OVERWRITTEN, UNVERIFIABLE = Integrity.OVERWRITTEN, Integrity.UNVERIFIABLE
NO_PROOF = "no checksum and no step"
COUNTS = f"optimizer counts {EARLIER} updates where the step is {LATER}"


@dataclass(frozen=True)
class Cell:
    """One damage of one stack: what is done to which files, and what must be said."""

    stack: str
    damage: str
    files: tuple[str, ...]
    integrity: Integrity
    words: str
    compared: str = ""
    """What the comparison with the earlier generation must say where the files alone cannot."""


def cells():
    """The whole table. `files` are relative to the checkpoint."""
    rows = {
        # stack: (torn main file, missing shard, missing marker, swapped files, files of a save that began again)
        "accelerate": {
            "torn": [("optimizer.bin", TORN, "optimizer.bin"), ("model.safetensors", TORN, "model.safetensors")],
            "shard": [("model.safetensors", TORN, "no model file"), ("optimizer.bin", COMPLETE, "no optimizer file")],
            "swap": [
                ("optimizer.bin", COMPLETE, "mixed generations.* counts 2 .* 3 steps", "moments.* are byte by byte"),
                ("model.safetensors", COMPLETE, NO_PROOF, "model.safetensors|parameters"),
            ],
            "again": [("model.safetensors optimizer.bin", UNVERIFIABLE, "minutes after .*: a later save")],
        },
        "deepspeed": {
            "torn": [("mp_rank_00_model_states.pt", TORN, "model_states.pt")],
            "shard": [
                ("bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", TORN, "partitions are missing .rank 1"),
                ("mp_rank_00_model_states.pt", TORN, "no model states"),
            ],
            "marker": [("../latest", COMPLETE, "`latest` still names step 2")],
            "swap": [
                (
                    "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
                    CORRUPT,
                    "mixed generations: it counts (2|3), .* counts (2|3)",
                ),
                ("mp_rank_00_model_states.pt", COMPLETE, "counts 3 updates where the step is 2"),
            ],
            "again": [("mp_rank_00_model_states.pt bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", CORRUPT, "mixed")],
        },
        "hf-trainer": {
            "torn": [("optimizer.pt", TORN, "optimizer.pt"), ("trainer_state.json", TORN, "no whole JSON")],
            "shard": [("optimizer.pt", TORN, "no optimizer file"), ("model.safetensors", TORN, "no model file")],
            "marker": [("trainer_state.json", TORN, "trainer_state.json is missing: it is written last")],
            "swap": [
                ("optimizer.pt", COMPLETE, f"mixed generations.*{COUNTS}", "moments.* are byte by byte"),
                ("model.safetensors", COMPLETE, NO_PROOF, "model.safetensors|parameters"),
            ],
            "again": [("model.safetensors optimizer.pt", OVERWRITTEN, "written again after trainer_state.json")],
        },
        "lightning": {"torn": [("", TORN, "step=3.ckpt")]},
        "lightning-sharded": {
            "torn": [("__0_0.distcp", TORN, "__0_0.distcp"), ("meta.pt", TORN, "meta.pt")],
            "shard": [("__1_0.distcp", TORN, "__1_0.distcp: is missing"), (".metadata", TORN, "no .metadata")],
            "marker": [("meta.pt", TORN, "meta.pt is missing: it is written last")],
            "swap": [
                ("__0_0.distcp", COMPLETE, "", "__0_0.distcp .*is byte by byte"),
                ("__1_0.distcp", COMPLETE, COUNTS, "__1_0.distcp .*is byte by byte"),
            ],
            "again": [("__0_0.distcp __1_0.distcp", OVERWRITTEN, "written again after")],
        },
        "megatron": {
            "torn": [("mp_rank_01/model_optim_rng.pt", TORN, "model_optim_rng.pt")],
            "shard": [("mp_rank_01", TORN, "1 of 2 model ranks are missing, first tensor 1")],
            "marker": [("../latest_checkpointed_iteration.txt", COMPLETE, "still names 2")],
            "swap": [("mp_rank_01/model_optim_rng.pt", CORRUPT, "mixed generations: it says step")],
            "again": [("mp_rank_00/model_optim_rng.pt", CORRUPT, "mixed generations: it says step")],
        },
        "megatron-dist": {
            "torn": [("__0_0.distcp", TORN, "__0_0.distcp"), ("common.pt", TORN, "common.pt")],
            "shard": [("__0_0.distcp", TORN, "__0_0.distcp: is missing")],
            "marker": [("metadata.json", TORN, "metadata.json is missing"), (".metadata", TORN, "no .metadata")],
            "swap": [("__0_0.distcp", CORRUPT, "sha256 digest"), ("common.pt", CORRUPT, "sha256 digest")],
            "again": [("__0_0.distcp", OVERWRITTEN, "written again after")],
        },
        "nanogpt": {"torn": [("", TORN, "ckpt.pt")], "again": [("", TORN, "ckpt.pt")]},
        "olmo-core": {
            "torn": [("model_and_optim/__0_0.distcp", TORN, "__0_0.distcp"), ("train/rank1.pt", TORN, "rank1.pt")],
            "shard": [("train/rank1.pt", TORN, "1 of 2 ranks"), ("train", TORN, "rank0.pt is missing")],
            "marker": [(".metadata.json", TORN, ".metadata.json is missing")],
            "swap": [
                ("train/rank1.pt", CORRUPT, "mixed generations: it says step"),
                ("model_and_optim/__0_0.distcp", COMPLETE, COUNTS, "byte by byte"),
            ],
            "again": [
                ("model_and_optim/__0_0.distcp", OVERWRITTEN, "written again after"),
                ("model_and_optim/__0_0.distcp train/rank0.pt", CORRUPT, "mixed generations.*written again after"),
            ],
        },
        "safetensors": {
            "torn": [("model-00001-of-00002.safetensors", TORN, "model-00001-of-00002.safetensors")],
            "shard": [("model-00002-of-00002.safetensors", TORN, "1 of 2 shards are missing")],
            "marker": [("model.safetensors.index.json", COMPLETE, "no index: only the numbering|no index: only")],
            "swap": [("model-00001-of-00002.safetensors", COMPLETE, NO_PROOF, "model-00001.*is byte by byte")],
            "again": [("model-00001-of-00002.safetensors", UNVERIFIABLE, "minutes after .*: a later save")],
        },
        "dcp-safetensors": {
            "torn": [("shard-00001-model-00001-of-00001.safetensors", TORN, "shard-00001")],
            "shard": [
                ("shard-00001-model-00001-of-00001.safetensors", TORN, "the shards hold 64 of 128 elements"),
                (
                    "shard-00002-model-00001-of-00001.safetensors",
                    UNVERIFIABLE,
                    "how many ranks",
                    "another type or shape",
                ),
            ],
            "swap": [
                ("shard-00001-model-00001-of-00001.safetensors", UNVERIFIABLE, NO_PROOF, "shard-00001.*byte by byte")
            ],
            "again": [("shard-00001-model-00001-of-00001.safetensors", UNVERIFIABLE, "minutes after")],
        },
        "torch-parts": {
            "torn": [("optimizer.pt", TORN, "optimizer.pt"), ("model.pt", TORN, "model.pt")],
            "shard": [("optimizer.pt", COMPLETE, "missing: optimizer")],
            "swap": [
                ("optimizer.pt", COMPLETE, COUNTS, "byte by byte"),
                ("model.pt", COMPLETE, "counts 3 updates where the step is 2"),
            ],
            "again": [("model.pt", UNVERIFIABLE, "minutes after .*: a later save")],
        },
        "torchtitan": {
            "torn": [("__0_0.distcp", TORN, "__0_0.distcp"), (".metadata", CORRUPT, ".metadata")],
            "shard": [("__0_0.distcp", TORN, "__0_0.distcp: is missing")],
            "marker": [(".metadata", TORN, "no .metadata, which is written last")],
            "swap": [("__0_0.distcp", COMPLETE, "its path says step 3, its contents say 2")],
            "again": [("__0_0.distcp", OVERWRITTEN, "written again after .metadata")],
        },
        "fsdp2": {
            "torn": [("__1_0.distcp", TORN, "__1_0.distcp")],
            "shard": [("__1_0.distcp", TORN, "__1_0.distcp: is missing")],
            "marker": [(".metadata", TORN, "no .metadata, which is written last")],
            "swap": [
                ("__0_0.distcp", COMPLETE, "", "__0_0.distcp .*is byte by byte"),
                ("__1_0.distcp", COMPLETE, "path says step 3|counts", "byte by byte"),
            ],
            "again": [("__0_0.distcp", OVERWRITTEN, "written again after .metadata")],
        },
    }
    for stack, by_damage in rows.items():
        for damage, entries in by_damage.items():
            yield from (Cell(stack, damage, tuple(first.split()) or ("",), *rest) for first, *rest in entries)
        has_crc = stack not in ("accelerate", "hf-trainer", "safetensors", "dcp-safetensors")
        compared = "" if has_crc else "element 1 of"
        kept = UNVERIFIABLE if stack == "dcp-safetensors" else COMPLETE
        yield Cell(stack, "flip", ("",), CORRUPT if has_crc else kept, "CRC-32" if has_crc else NO_PROOF, compared)


CELLS = tuple(cells())
NOT_APPLICABLE = {
    ("lightning", "shard"): "one file",
    ("lightning", "marker"): "the file is moved into place",
    ("lightning", "swap"): "one file",
    ("lightning", "again"): "the file is moved into place",
    ("nanogpt", "shard"): "one file",
    ("nanogpt", "marker"): "one file, no marker",
    ("nanogpt", "swap"): "one file",
    ("accelerate", "marker"): "no file is written last",
    ("dcp-safetensors", "marker"): "no file is written last",
    ("torch-parts", "marker"): "no file is written last",
}
DAMAGES = ("torn", "shard", "marker", "flip", "swap", "again")


def judged(path):
    """(integrity, everything said) after the index and every byte were read."""
    found = inspect_checkpoint(path)
    said = f"{found.reason} missing: {' '.join(found.missing)}"
    if found.is_whole:
        unreadable = scan_checkpoint(found).unreadable
        if unreadable:
            return CORRUPT, "; ".join(f"{where}: {why}" for where, why in unreadable)
    return found.integrity, said


def harm(cell, later, earlier):
    """Do to the later checkpoint what the cell says."""
    targets = [(later / name if name else later, earlier / name if name else earlier) for name in cell.files]
    if cell.damage == "torn":
        for file, _ in targets:
            damages.cut(file)
    elif cell.damage in ("shard", "marker"):
        for file, _ in targets:
            if file.name in ("latest", "latest_checkpointed_iteration.txt"):
                file.write_text(re.sub(r"\d+", str(EARLIER), file.read_text()))
            elif file.is_dir():
                shutil.rmtree(file)
            else:
                file.unlink()
    elif cell.damage == "flip":
        damages.flip(later)
    elif cell.damage == "swap":
        for file, other in targets:
            damages.swap(file, other)
    elif cell.stack == "nanogpt":  # torch.save truncates the one file and is killed
        damages.cut(later)
    else:
        damages.begin_again(targets)


@pytest.mark.parametrize("cell", CELLS, ids=lambda c: f"{c.stack}-{c.damage}-{'+'.join(c.files) or 'file'}")
def test_the_damage_is_named_with_its_verdict(cell, written, tmp_path):
    earlier, later = written.copy(cell.stack, tmp_path)
    markers = [p for p in later.parent.glob("latest*") if p.is_file()]
    damages.settle(later, markers)
    control = UNVERIFIABLE if cell.stack == "dcp-safetensors" else COMPLETE
    assert judged(later)[0] is control, "before the damage nothing is wrong"
    harm(cell, later, earlier)
    integrity, said = judged(later)
    assert (integrity, bool(re.search(cell.words, said, re.S))) == (cell.integrity, True), said
    if cell.compared:
        root = os.path.commonpath([earlier, later])
        facts, _ = checkpoint_facts(scene_of_run(Run(directory=root)))
        texts = [
            fact.statement
            for fact in facts
            if fact.name in ("checkpoint.generation", "checkpoint.bit-flip", "checkpoint.tensors")
        ]
        assert re.search(cell.compared, "\n".join(texts)), texts


def test_the_table_leaves_no_cell_of_no_layout_out():
    tried = {(cell.stack, cell.damage) for cell in CELLS}
    wanted = {(stack, damage) for stack in STACKS for damage in DAMAGES}
    assert wanted - tried == NOT_APPLICABLE.keys()
    assert tried <= wanted
    assert {reader.layout for reader in readers()} == {LAYOUTS.get(stack, stack) for stack in STACKS}
    assert len(CELLS) == 97
    assert all(cell.words or cell.compared for cell in CELLS), "nothing is silently complete"
