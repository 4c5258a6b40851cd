"""How fast is the index of a distributed checkpoint read as data, next to torch, which runs it?

    python bench/index.py [--tensors 6000] [--ranks 4] [--repeats 7]

The index is the one that torch writes for a model with AdamW: three tensors a weight, one shard a rank. Ratios of
processor time, least of several interleaved runs.

What the reader cannot have: CPython's C reader cannot be told to refuse a key that never ends to hash or a memo of
64 GB, so each opcode costs a turn of an interpreter's loop: 8 to 11 MB/s where torch reads 10 to 11, not 20 MB/s.
"""

from __future__ import annotations

import argparse
import pickle
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

MIN_SPEED = 0.7
"""Of torch's, which imports and calls what the file names, and checks neither places nor sizes."""


def index_of(num_tensors: int, num_ranks: int) -> bytes:
    """The `.metadata` of a model sharded over ranks."""
    import torch
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        TensorProperties,
        TensorStorageMetadata,
    )

    tensors, places, paths = {}, {}, {}
    kinds = ("model.{}", "optimizer.state.{}.exp_avg", "optimizer.state.{}.exp_avg_sq")
    for number in range(num_tensors):
        fqn = kinds[number % 3].format(f"layers.{number // 12}.feed_forward.w{number % 12}.weight")
        starts = [torch.Size((512 * rank, 0)) for rank in range(num_ranks)]
        for rank, start in enumerate(starts):
            places[MetadataIndex(fqn, start, rank)] = _StorageInfo(f"__{rank}_0.distcp", number << 22, 1 << 22)
        chunks = [ChunkStorageMetadata(start, torch.Size((512, 4096))) for start in starts]
        properties = TensorProperties(dtype=torch.bfloat16)
        tensors[fqn] = TensorStorageMetadata(properties, torch.Size((512 * num_ranks, 4096)), chunks)
        paths[fqn] = tuple(fqn.split("."))
    return pickle.dumps(Metadata(tensors, paths, places))


def fastest(cases: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Least processor seconds of each case, interleaved."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, run in cases.items():
            start = time.process_time()
            kept = run()
            times[name].append(time.process_time() - start)
            del kept
    return {name: min(values) for name, values in times.items()}


def main() -> int:
    from spike.readers.checkpoints._dcp import read_index
    from spike.readers.pickles import read_pickle

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", type=int, default=6000)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    data = index_of(args.tensors, args.ranks)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / ".metadata").write_bytes(data)
        cases: dict[str, Callable[[], object]] = {
            "torch's own, which runs it": lambda: pickle.loads(data),
            "the pickle, as data": lambda: read_pickle(data),
            "the index, checked": lambda: read_index(Path(folder)),
        }
        took = fastest(cases, args.repeats)
    megabytes, torch_takes = len(data) / 1e6, took["torch's own, which runs it"]
    print(f"an index of {args.tensors:,} tensors on {args.ranks} ranks, {megabytes:.1f} MB")
    for name, seconds in took.items():
        print(f"  {name:<28} {megabytes / seconds:6.1f} MB/s   {torch_takes / seconds:5.2f} x torch")
    holds = torch_takes / took["the index, checked"] >= MIN_SPEED
    print(f"  the index at least {MIN_SPEED} x torch: {'holds' if holds else 'MISSED'}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
