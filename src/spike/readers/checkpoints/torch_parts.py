"""What is in a directory of several torch files? model.pt beside optimizer.pt, or one file a rank."""

from __future__ import annotations

import re
from pathlib import Path

from spike.readers.checkpoints._contents import step_of
from spike.readers.checkpoints._directory import DirectoryReader
from spike.readers.checkpoints._parts import TORCH_SUFFIXES, Parts, check_ranks
from spike.readers.checkpoints.contract import GENERIC_DIRECTORY

_PART = re.compile(
    r"^(pytorch_model|model|adapter_model|weights|state_dict|optim\w*|lr_sched\w*|sched\w*|scaler|rng\w*|"
    r"random_states?\w*|train\w*_state|state|sampler\w*|data_?loader\w*|ema|meta)([._-]?(rank)?[._-]?\d+)?$",
    re.I,
)
_RANK = re.compile(r"rank[_-]?(\d+)(?=\D*$)", re.I)
_CORE = re.compile(r"model|optim|weights|state_dict", re.I)


class TorchParts(DirectoryReader):
    """One directory, one checkpoint, several files."""

    layout = "torch-parts"
    specificity = GENERIC_DIRECTORY
    has_marker = False

    def recognises(self, path: Path, names: frozenset[str]) -> bool:
        """Files named for the parts of one checkpoint (a model beside an optimizer), or one file a rank."""
        stems = [Path(name).stem for name in names if name.endswith(TORCH_SUFFIXES)]
        ranked = [stem for stem in stems if _RANK.search(stem)]
        parts = {stem for stem in stems if _PART.match(stem)}
        cores = {match[0].lower() for stem in parts if (match := _CORE.search(stem))}
        return bool(ranked) or len(cores) >= 2 or (len(parts) >= 2 and bool(cores))

    def read(self, parts: Parts) -> None:
        """Every torch and JSON file. The model first: where several parts hold a step, its own counts."""
        path = parts.root
        files = sorted(p for p in path.iterdir() if p.suffix in TORCH_SUFFIXES and p.is_file())
        for file in sorted(files, key=lambda p: (not p.stem.lower().startswith(("model", "pytorch_model")), p.name)):
            parts.add(file)
        for file in sorted(path.glob("*.json")):
            if file.stat().st_size < 1 << 20:
                value = parts.add_json(file, file.stem)
                if parts.contents.step is None:
                    parts.contents.step = step_of(value)
        check_ranks(parts, [file.stem for file in files], _RANK, "files")


READER = TorchParts()
