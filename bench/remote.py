"""What does fetching a checkpoint as evidence cost this machine, against the client's own download?

Processor time of the client only: a local S3 server (moto, another process) copies a whole object for each range that
it is asked for, so waiting times say more about it than about either client. spike lists before and after, asks for
every object's version, reads ranges of it, hashes, writes and syncs; the peer is s3fs `get`, which only writes, and
the same with a SHA-256 pass over its files. Cases interleaved, medians. Run: python bench/remote.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spike.actions.evidence.fetch import Fetch
from spike.actions.evidence.remote_run import list_remote
from spike.casefile.case import Case, create_case
from spike.casefile.ledger import Ledger
from spike.domain.case import CaseFacts
from spike.domain.manifest import Algorithm
from spike.domain.run import Run

PORT = 5997
LOGIN = {
    "AWS_ENDPOINT_URL": f"http://127.0.0.1:{PORT}",
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_DEFAULT_REGION": "us-east-1",
}


def main() -> None:
    """Start the server, measure every case, print one line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ |= LOGIN
    quiet = subprocess.DEVNULL
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(PORT)]
    server = subprocess.Popen(command, stdout=quiet, stderr=quiet)
    try:
        _wait()
        with tempfile.TemporaryDirectory() as place:
            for name, sizes in {"8 x 32 MiB": [32 << 20] * 8, "400 x 64 KiB": [64 << 10] * 400}.items():
                _compare(name, sizes, Path(place), options.rounds)
    finally:
        server.kill()
        server.wait()


def _wait() -> None:
    for _ in range(200):
        try:
            urllib.request.urlopen(f"{LOGIN['AWS_ENDPOINT_URL']}/moto-api/data.json", timeout=2).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the S3 server did not start")


def _compare(name: str, sizes: list[int], place: Path, rounds: int) -> None:
    import s3fs

    peer = s3fs.S3FileSystem(use_listings_cache=False)
    bucket = f"bench-{len(sizes)}"
    peer.mkdir(bucket)
    peer.call_s3("put_bucket_versioning", Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    for number, size in enumerate(sizes):
        peer.pipe_file(f"{bucket}/step-1/part-{number:04d}", os.urandom(size))
    cases: dict[str, Callable[[Path], object]] = {
        "s3fs get": lambda target: peer.get(f"{bucket}/step-1", str(target), recursive=True),
        "s3fs get, then sha256": lambda target: _get_and_hash(peer, f"{bucket}/step-1", target),
        "spike fetch": lambda target: _fetch(f"s3://{bucket}/step-{{step}}", target),
    }
    times: dict[str, list[float]] = {case: [] for case in cases}
    for turn in range(rounds):
        for case, run in cases.items():
            target = place / f"{bucket}-{turn}-{case.replace(' ', '-')}"
            begun = time.process_time()
            run(target)
            times[case].append(time.process_time() - begun)
            shutil.rmtree(target)
    floor = statistics.median(times["s3fs get"])
    for case, found in times.items():
        median = statistics.median(found)
        each = median / len(sizes) * 1e3
        print(f"{name:<14} {case:<24} {median:7.2f} s  {each:7.2f} ms an object  {median / floor:5.2f} x")


def _get_and_hash(peer: Any, source: str, target: Path) -> None:
    peer.get(source, str(target), recursive=True)
    for path in target.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                hashlib.file_digest(file, "sha256")


def _fetch(pattern: str, target: Path) -> None:
    remote = list_remote(pattern)
    facts = CaseFacts("case", "2026-01-01T00:00:00Z", "bench", "0", Run(str(target)), None, None)
    case: Case = create_case(target, facts)
    ledger = Ledger(case.path / ".held/hashed")
    fetch = Fetch(case, remote, case.path / ".held", Algorithm.SHA256, ledger, lambda _count: None)
    (url,) = remote.generations
    fetch(url, case.path / "evidence/pinned/a/step-1", is_start=True)
    ledger.close()


if __name__ == "__main__":
    main()
