"""Does a pin hold what it promises, and does the run stay as it was?"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from spike.casefile import batches, pinning
from spike.casefile.draft import Draft
from spike.casefile.holding import hold
from spike.casefile.ledger import Ledger
from spike.casefile.manifest import look_again, take_stock
from spike.casefile.pinning import draft_pin, pin_checkpoint, release
from spike.domain.errors import InputUnreadable, SpikeError
from spike.domain.manifest import Algorithm, ChangeKind, EntryKind, Guarantee, compare
from tests.casefile.small_runs import fingerprint, write_checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "run" / "step-200"
    write_checkpoint(path / "model.safetensors", 1)
    (path / "optim").mkdir()
    (path / "optim" / "state.bin").write_bytes(os.urandom(3000))
    (path / "latest").symlink_to("optim/state.bin")
    (path / "empty").mkdir()
    return path


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    path = tmp_path / "case" / "evidence"
    path.mkdir(parents=True)
    return path


def test_a_small_checkpoint_is_copied_or_cloned_and_survives_whatever_the_run_does(
    checkpoint: Path, evidence: Path
) -> None:
    before = {p.relative_to(checkpoint): p.read_bytes() for p in checkpoint.rglob("*") if p.is_file()}
    pin = pin_checkpoint(checkpoint, evidence / "pinned" / "a" / "step-200", root=evidence)
    assert pin.guarantee in (Guarantee.COPY, Guarantee.REFLINK)
    for path in checkpoint.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with path.open("r+b") as file:
                file.write(b"overwritten in place")
    held = evidence / "pinned" / "a" / "step-200"
    assert {p.relative_to(held): p.read_bytes() for p in held.rglob("*") if p.is_file()} == before
    assert all(p.stat().st_mode & 0o222 == 0 for p in held.rglob("*") if p.is_file())


def test_the_manifest_entries_name_every_thing_its_digest_and_its_origin(checkpoint: Path, evidence: Path) -> None:
    pin = pin_checkpoint(checkpoint, evidence / "pinned" / "a" / "step-200", root=evidence)
    kinds = {e.path.removeprefix("pinned/a/step-200"): e.kind for e in pin.entries}
    assert kinds == {
        "": EntryKind.DIRECTORY,
        "/empty": EntryKind.DIRECTORY,
        "/latest": EntryKind.SYMLINK,
        "/model.safetensors": EntryKind.FILE,
        "/optim": EntryKind.DIRECTORY,
        "/optim/state.bin": EntryKind.FILE,
    }
    for entry in pin.entries:
        assert bool(entry.digest) is (entry.kind is EntryKind.FILE)
        assert entry.origin.startswith(str(checkpoint))
        assert entry.guarantee is pin.guarantee


@pytest.mark.parametrize("copy_below", [0, 1 << 30])
def test_pinning_changes_nothing_in_the_run_but_the_link_count(
    checkpoint: Path, evidence: Path, copy_below: int
) -> None:
    for path in [*checkpoint.rglob("*"), checkpoint]:
        os.utime(path, ns=(10**18, 2 * 10**18), follow_symlinks=False)
    before = fingerprint(checkpoint.parent)
    pin = pin_checkpoint(checkpoint, evidence / "pinned" / "a" / "step-200", root=evidence, copy_below_bytes=copy_below)
    after = fingerprint(checkpoint.parent)
    assert {path: facts[:2] + facts[3:] for path, facts in after.items()} == {
        path: facts[:2] + facts[3:] for path, facts in before.items()
    }
    links = {after[p][2] for p in after if after[p] != before[p]}
    assert links == ({2} if pin.guarantee is Guarantee.HARD_LINK else set())


def test_a_hard_link_survives_deletion_and_is_never_called_safe_against_overwriting(
    checkpoint: Path, evidence: Path
) -> None:
    pin = pin_checkpoint(checkpoint, evidence / "pinned" / "a" / "step-200", root=evidence, copy_below_bytes=0)
    if pin.guarantee is Guarantee.REFLINK:
        pytest.skip("this filesystem shares blocks, so no hard link is made")
    assert pin.guarantee is Guarantee.HARD_LINK
    manifest = take_stock(evidence, pin.entries)
    (checkpoint / "model.safetensors").unlink()
    assert compare(manifest, look_again(evidence, Algorithm.SHA256)) == ()
    with (checkpoint / "optim" / "state.bin").open("r+b") as file:
        file.write(b"the next save")
    (change,) = [c for c in compare(manifest, look_again(evidence, Algorithm.SHA256)) if c.is_content]
    assert change.kind is ChangeKind.CHANGED
    assert "optim/state.bin" in change.path
    assert "overwritten in place" in change.statement
    # A quick look that trusts inode and ctime sees it too: writing moves the ctime.
    quick = compare(manifest, look_again(evidence, Algorithm.SHA256, known=manifest.entries))
    assert change in quick


def test_a_name_that_the_run_writes_again_is_copied_whatever_its_size(checkpoint: Path, evidence: Path) -> None:
    pin = pin_checkpoint(checkpoint, evidence / "pinned" / "x", root=evidence, written_again=True, copy_below_bytes=0)
    assert pin.guarantee in (Guarantee.COPY, Guarantee.REFLINK)


def test_a_single_file_is_pinned_under_its_own_name(tmp_path: Path, evidence: Path) -> None:
    source = tmp_path / "run" / "ckpt.pt"
    source.parent.mkdir()
    source.write_bytes(b"weights")
    pin = pin_checkpoint(source, evidence / "pinned" / "run@200" / "ckpt.pt", root=evidence)
    assert [e.path for e in pin.entries] == ["pinned/run@200/ckpt.pt"]
    assert (evidence / "pinned" / "run@200" / "ckpt.pt").read_bytes() == b"weights"


@pytest.mark.parametrize("target", ["/etc/passwd", "../../secret"])
def test_a_checkpoint_that_points_out_of_itself_is_refused(checkpoint: Path, evidence: Path, target: str) -> None:
    (checkpoint / "leak").symlink_to(target)
    with pytest.raises(InputUnreadable, match="outside the checkpoint"):
        pin_checkpoint(checkpoint, evidence / "pinned" / "x", root=evidence)
    assert not (evidence / "pinned" / "x").exists()


def test_a_checkpoint_without_files_is_refused(tmp_path: Path, evidence: Path) -> None:
    (tmp_path / "nothing").mkdir()
    with pytest.raises(InputUnreadable, match="no files"):
        pin_checkpoint(tmp_path / "nothing", evidence / "pinned" / "x", root=evidence)
    with pytest.raises(InputUnreadable, match="cannot read"):
        pin_checkpoint(tmp_path / "gone", evidence / "pinned" / "x", root=evidence)


LINK_OR_COPY = pytest.mark.parametrize("copy_below", [0, 1 << 30])


@LINK_OR_COPY
def test_a_checkpoint_that_is_being_written_is_not_pinned(checkpoint: Path, evidence: Path, copy_below: int) -> None:
    target = checkpoint / "model.safetensors"

    def still_saving(_num_bytes: int) -> None:
        with target.open("ab") as file:
            file.write(b"more")

    with pytest.raises(InputUnreadable, match="changed while it was read"):
        pin_checkpoint(
            checkpoint, evidence / "pinned" / "x", root=evidence, on_bytes=still_saving, copy_below_bytes=copy_below
        )
    assert list((evidence / "pinned").iterdir()) == []


@LINK_OR_COPY
def test_a_file_that_changes_after_its_turn_spoils_the_checkpoint_too(
    checkpoint: Path, evidence: Path, copy_below: int
) -> None:
    """Otherwise the pin would hold one file of this save and one of the next."""
    done: list[str] = []

    def overwrite_the_first(path: str, offset: int, _chunk: memoryview) -> None:
        if offset == 0 and done:
            with (checkpoint / done[0]).open("r+b") as file:
                file.write(b"the next save")
        done.append(path)

    with pytest.raises(InputUnreadable, match="changed while it was read"):
        pin_checkpoint(
            checkpoint,
            evidence / "pinned" / "x",
            root=evidence,
            copy_below_bytes=copy_below,
            on_chunk=overwrite_the_first,
        )
    assert len(done) == 2
    assert list((evidence / "pinned").iterdir()) == []


@LINK_OR_COPY
def test_a_run_that_rotates_while_its_files_are_read_does_not_spoil_the_pin(
    checkpoint: Path, evidence: Path, copy_below: int
) -> None:
    data = {p.relative_to(checkpoint): p.read_bytes() for p in checkpoint.rglob("*") if p.is_file()}
    held = hold(checkpoint, evidence.parent / ".held" / "step-200")

    def rotate(_num_bytes: int) -> None:
        shutil.rmtree(checkpoint, ignore_errors=True)

    place = evidence / "pinned" / "x" / "step-200"
    pin = pin_checkpoint(held, place, root=evidence, origin=checkpoint, on_bytes=rotate, copy_below_bytes=copy_below)
    assert not checkpoint.exists()
    assert {p.relative_to(place): p.read_bytes() for p in place.rglob("*") if p.is_file()} == data
    assert compare(take_stock(evidence, pin.entries), look_again(evidence, Algorithm.SHA256)) == ()


@LINK_OR_COPY
@pytest.mark.parametrize("size", [0, 1, 70_000, (4 << 20) + 3])
def test_whoever_wants_the_chunks_gets_every_byte_in_order_in_the_pass_that_hashes(
    tmp_path: Path, evidence: Path, copy_below: int, size: int
) -> None:
    source = tmp_path / "run" / "step-9"
    (source / "deep").mkdir(parents=True)
    data = {"a": os.urandom(size), "deep/b": os.urandom(size // 2), "deep/c": b"c"}
    for name, content in data.items():
        (source / name).write_bytes(content)
    seen: dict[str, bytes] = {}

    def listen(path: str, offset: int, chunk: memoryview) -> None:
        assert offset == len(seen.get(path, b""))
        seen[path] = seen.get(path, b"") + bytes(chunk)

    num_read = 0

    def count(num_bytes: int) -> None:
        nonlocal num_read
        num_read += num_bytes

    pin = pin_checkpoint(
        source,
        evidence / "pinned" / "x" / "step-9",
        root=evidence,
        copy_below_bytes=copy_below,
        on_chunk=listen,
        on_bytes=count,
    )
    assert {path: content for path, content in data.items() if content} == seen
    assert num_read == sum(map(len, data.values()))
    digests = {e.path.removeprefix("pinned/x/step-9/"): e.digest for e in pin.entries if e.digest}
    assert digests == {name: hashlib.sha256(content).hexdigest() for name, content in data.items()}


@LINK_OR_COPY
@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_an_interrupted_pin_is_gone_on_with_and_its_finished_files_are_only_fed(
    tmp_path: Path, evidence: Path, copy_below: int, algorithm: Algorithm
) -> None:
    source = tmp_path / "run" / "step-9"
    source.mkdir(parents=True)
    data = {name: os.urandom(3000) for name in "abcd"}
    for name, content in data.items():
        (source / name).write_bytes(content)
    given = {"root": evidence, "algorithm": algorithm, "copy_below_bytes": copy_below}
    place = evidence / "pinned" / "x" / "step-9"

    def stop(path: str, _offset: int, _chunk: memoryview) -> None:
        if path == "c":
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "BATCH_BYTES", 0)
        patch.setattr(batches, "MAX_WORKERS", 1)
        with pytest.raises(KeyboardInterrupt):
            pin_checkpoint(source, place, ledger=Ledger(tmp_path / "notes"), on_chunk=stop, **given)  # type: ignore[arg-type]
    seen: dict[str, int] = {}
    hashed: list[Path] = []

    def listen(path: str, _offset: int, chunk: memoryview) -> None:
        seen[path] = seen.get(path, 0) + len(chunk)

    fill_one = Draft._fill_one

    def counted(draft: Draft, path: str, *rest: object) -> object:
        hashed.append(Path(path))
        return fill_one(draft, path, *rest)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Draft, "_fill_one", counted)
        pin = pin_checkpoint(source, place, ledger=Ledger(tmp_path / "notes"), on_chunk=listen, **given)  # type: ignore[arg-type]
    assert seen == dict.fromkeys("abcd", 3000)
    assert sorted(map(str, hashed)) == ["c", "d"]
    assert {p.name: p.read_bytes() for p in place.iterdir()} == data
    assert compare(take_stock(evidence, pin.entries, algorithm=algorithm), look_again(evidence, algorithm)) == ()


def test_a_copy_whose_original_was_overwritten_since_the_kill_is_made_anew(tmp_path: Path, evidence: Path) -> None:
    source = tmp_path / "run" / "step-9"
    source.mkdir(parents=True)
    (source / "a").write_bytes(b"first save")
    (source / "b").write_bytes(b"first save")
    ledger = Ledger(tmp_path / "notes")
    place = evidence / "pinned" / "x" / "step-9"
    draft = draft_pin(source, place, root=evidence, ledger=ledger)
    assert set(draft.fill(["a"])) == {"a"}
    (source / "a").write_bytes(b"second one")
    pin_checkpoint(source, place, root=evidence, ledger=ledger)
    assert (place / "a").read_bytes() == b"second one"


def test_a_linked_pin_that_was_overwritten_after_the_kill_is_not_called_good(tmp_path: Path, evidence: Path) -> None:
    source = tmp_path / "run" / "step-9"
    source.mkdir(parents=True)
    (source / "a").write_bytes(b"first save")
    place = evidence / "pinned" / "x" / "step-9"
    given = {"root": evidence, "copy_below_bytes": 0}
    pin = pin_checkpoint(source, place, ledger=Ledger(tmp_path / "notes"), **given)  # type: ignore[arg-type]
    if pin.guarantee is Guarantee.REFLINK:
        pytest.skip("this filesystem shares blocks, so no hard link is made")
    again = pin_checkpoint(source, place, ledger=Ledger(tmp_path / "notes"), **given)  # type: ignore[arg-type]
    assert again == pin
    with (source / "a").open("r+b") as file:
        file.write(b"other save")
    with pytest.raises(InputUnreadable, match="overwritten after an interrupted freeze"):
        pin_checkpoint(source, place, ledger=Ledger(tmp_path / "notes"), **given)  # type: ignore[arg-type]


def test_a_single_file_that_was_pinned_before_a_kill_is_not_read_again(tmp_path: Path, evidence: Path) -> None:
    source = tmp_path / "run" / "ckpt.pt"
    source.parent.mkdir()
    source.write_bytes(b"weights")
    place = evidence / "pinned" / "run@200" / "ckpt.pt"
    pin = pin_checkpoint(source, place, root=evidence, ledger=Ledger(tmp_path / "notes"))
    num_read: list[int] = []
    again = pin_checkpoint(source, place, root=evidence, ledger=Ledger(tmp_path / "notes"), on_bytes=num_read.append)
    assert (again, num_read) == (pin, [])


def test_no_room_for_a_copy_and_no_link_is_said_with_numbers(
    checkpoint: Path, evidence: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinning, "SPARE_BYTES", 1 << 60)
    pin = pin_checkpoint(checkpoint, evidence / "pinned" / "x", root=evidence)
    assert pin.guarantee in (Guarantee.HARD_LINK, Guarantee.REFLINK)
    monkeypatch.setattr(pinning, "can_link", lambda _sample, _parent: False)
    monkeypatch.setattr(pinning, "can_clone", lambda _sample, _parent: False)
    with pytest.raises(SpikeError, match="no room") as refused:
        pin_checkpoint(checkpoint, evidence / "pinned" / "y", root=evidence)
    assert "SPIKE_CASES" in refused.value.hint


def test_where_blocks_can_be_shared_the_pin_is_a_clone_of_its_own_inode(
    checkpoint: Path, evidence: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FICLONE, played by a copy: few test machines have a filesystem that shares blocks."""
    import fcntl

    asked = []

    def ioctl(writer: int, request: int, reader: int) -> int:
        asked.append(request)
        os.write(writer, os.pread(reader, os.fstat(reader).st_size, 0))
        return 0

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    pin = pin_checkpoint(checkpoint, evidence / "pinned" / "a" / "step-200", root=evidence, copy_below_bytes=0)
    assert pin.guarantee is Guarantee.REFLINK
    assert set(asked) == {0x40049409}
    held = evidence / "pinned" / "a" / "step-200" / "model.safetensors"
    assert held.stat().st_nlink == 1
    assert held.stat().st_mode & 0o222 == 0
    assert held.stat().st_mtime_ns == (checkpoint / "model.safetensors").stat().st_mtime_ns
    assert compare(take_stock(evidence, pin.entries), look_again(evidence, Algorithm.SHA256)) == ()


def test_what_is_held_survives_the_rotation_that_comes_before_the_pin(checkpoint: Path, evidence: Path) -> None:
    data = (checkpoint / "model.safetensors").read_bytes()
    place = hold(checkpoint, evidence.parent / ".held" / "step-200")
    assert place != checkpoint
    for path in checkpoint.rglob("*"):
        if path.is_file():
            path.unlink()
    pin = pin_checkpoint(place, evidence / "pinned" / "step-200", root=evidence, origin=checkpoint)
    assert (evidence / "pinned" / "step-200" / "model.safetensors").read_bytes() == data
    assert all(e.origin.startswith(str(checkpoint)) for e in pin.entries)


def test_what_was_held_first_is_kept_when_a_freeze_is_repeated(checkpoint: Path, evidence: Path) -> None:
    place = evidence.parent / ".held" / "step-200"
    hold(checkpoint, place)
    first = (place / "model.safetensors").stat().st_ino
    (checkpoint / "model.safetensors").unlink()
    write_checkpoint(checkpoint / "model.safetensors", 99)
    hold(checkpoint, place)
    assert (place / "model.safetensors").stat().st_ino == first


def test_releasing_a_pin_leaves_the_run_its_files(checkpoint: Path, evidence: Path) -> None:
    data = (checkpoint / "model.safetensors").read_bytes()
    pin_checkpoint(checkpoint, evidence / "pinned" / "a" / "step-200", root=evidence, copy_below_bytes=0)
    assert release(evidence / "pinned" / "a" / "step-200") == 2
    assert not (evidence / "pinned" / "a").exists()
    assert (checkpoint / "model.safetensors").read_bytes() == data
    assert os.access(checkpoint / "model.safetensors", os.W_OK)
