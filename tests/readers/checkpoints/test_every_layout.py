"""On a directory that holds checkpoints of every layout, does `spike check` name each with its verdict and gaps?"""

import json
import os
import shutil

import pytest
from tests.readers.checkpoints.stacks import LATER, LAYOUTS, STACKS
from typer.testing import CliRunner

from spike.cli.app import app
from spike.domain.checkpoint import Role
from spike.domain.compare import by_identity
from spike.readers.checkpoints import find_checkpoints, scan_checkpoint

pytestmark = [pytest.mark.stack, pytest.mark.filterwarnings("ignore")]

MISSING = {
    "accelerate": {"data-cursor"},
    "dcp-safetensors": {"optimizer", "scheduler", "rng", "data-cursor"},
    "deepspeed": {"rng", "data-cursor", "scheduler"},
    "fsdp2": {"scheduler", "rng"},
    "hf-trainer": {"nothing"},
    "lightning": {"rng", "data-cursor"},
    "lightning-sharded": {"rng", "data-cursor"},
    "megatron": {"nothing"},
    "megatron-dist": {"nothing"},
    "nanogpt": {"scheduler", "rng", "data-cursor"},
    "olmo-core": {"nothing"},
    "safetensors": {"optimizer", "scheduler", "rng", "data-cursor"},
    "torch-parts": {"data-cursor"},
    "torchtitan": {"rng"},
}


@pytest.fixture
def every(written, tmp_path):
    """One directory with both generations of all stacks; stack -> its later checkpoint."""
    made = {}
    for stack in STACKS:
        pair = written(stack)
        base = os.path.commonpath([path.parent for path in pair])
        shutil.copytree(base, tmp_path / "run" / stack)
        made[stack] = tmp_path / "run" / stack / pair[1].relative_to(base)
    return made


def checked(run, *more):
    return CliRunner(env={"COLUMNS": "120"}).invoke(app, ["check", "--run", str(run), *more])


def test_every_layout_is_named_with_step_verdict_and_missing_state(every, tmp_path):
    (every["torch-parts"] / "notes.txt").write_text("by hand")
    payload = json.loads(checked(tmp_path / "run", "--json").stdout)
    tables = {table[0]: table[1] for table in payload["tables"]}
    names, *rows = tables["checkpoints"]
    by_path = {row[names.index("path")]: dict(zip(names, row, strict=True)) for row in rows}
    seen = 0
    for stack, path in every.items():
        row = by_path[path.relative_to(tmp_path / "run").as_posix()]
        verdict = "unverifiable" if stack == "dcp-safetensors" else "complete"
        assert (row["layout"], row["verdict"]) == (LAYOUTS.get(stack, stack), verdict), row
        assert int(row["step"]) == LATER
        assert set(row["missing"].split(", ")) <= MISSING[stack], (stack, row["missing"])
        assert MISSING[stack] - set(row["missing"].split(", ")) <= {"scheduler"}, (stack, row["missing"])
        seen += 1
    assert seen == len(MISSING) == 14
    assert {row["layout"] for row in by_path.values()} == {LAYOUTS.get(stack, stack) for stack in STACKS}
    assert by_path["torch-parts/step-3"]["strays"] == "notes.txt"
    going = tables["what the next save of the run does to them"]
    assert len(going) - 1 == len({(row["layout"], row["path"].rpartition("/")[0]) for row in by_path.values()})


def test_the_printed_table_fits_its_terminal(every, tmp_path):
    for columns in (80, 120):
        found = CliRunner(env={"COLUMNS": str(columns)}).invoke(app, ["check", "--run", str(tmp_path / "run")])
        _, _, tables = found.stdout.partition("\ncheckpoints\n")
        lines = tables.splitlines()
        assert len(lines) > 40
        assert max(map(len, lines)) <= columns
        assert sum("complete" in line.split() for line in lines) >= 20


def test_a_resume_that_would_take_a_torn_checkpoint_is_shown(every, tmp_path):
    (every["hf-trainer"] / "trainer_state.json").unlink()
    found = checked(tmp_path / "run" / "hf-trainer")
    _, _, text = found.stdout.partition("a resume would NOT load the newest whole checkpoint\n")
    assert text.splitlines()[1].split()[:4] == ["hf-trainer", ".", "checkpoint-3", "checkpoint-2"]


def test_every_tensor_of_every_stack_is_read_with_its_role(written):
    """Weights and moments, both in the later and the earlier generation, and all of them moved."""
    pairs = 0
    for stack in STACKS:
        earlier, later = (find_checkpoints(path.parent, path.name)[-1] for path in written(stack))
        before, after = (by_identity(scan_checkpoint(c).tensors) for c in (earlier, later))
        weights = [key for key in after if key[0] == Role.PARAMETER]
        moments = [key for key in after if key[0] == Role.MOMENT]
        has_optimizer = "optimizer" not in later.missing
        assert bool(moments) == has_optimizer, stack
        assert len(weights) >= 4
        assert before.keys() == after.keys(), stack
        assert all(before[key].digest != after[key].digest for key in weights), stack
        pairs += 1
    assert pairs == 14
