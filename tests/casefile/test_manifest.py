"""Is a manifest exact, independent of order, readable by sha256sum, and impossible to lead astray?"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spike.casefile.codec import dumps, to_payload
from spike.casefile.manifest import manifest_text, read_manifest, take_stock, write_manifest
from spike.domain.errors import InputUnreadable
from spike.domain.manifest import (
    MANIFEST_SCHEMA,
    Algorithm,
    EntryKind,
    Exclusion,
    Manifest,
    ManifestEntry,
    compare,
    decode_path,
    encode_path,
    refuse_unsafe,
    tree_digest,
)

NASTY = (
    "plain",
    "with space",
    "per%cent",
    "line\nbreak",
    "car\rriage",
    "back\\slash",
    "ünïcode",
    "tab\t",
    "-dash",
    "#x",
)


@pytest.fixture
def case(tmp_path: Path) -> Path:
    (tmp_path / "evidence" / "dir").mkdir(parents=True)
    for name in NASTY:
        (tmp_path / "evidence" / "dir" / name).write_bytes(os.urandom(40))
    with open(os.fsencode(tmp_path / "evidence") + b"/not-utf8-\xff\xfe", "wb") as file:
        file.write(b"x")
    return tmp_path


@given(st.binary(min_size=1, max_size=40).filter(lambda b: b"\0" not in b))
def test_any_name_becomes_one_printable_line_and_comes_back(raw: bytes) -> None:
    name = os.fsdecode(raw)
    encoded = encode_path(name)
    assert decode_path(encoded) == name
    assert encoded.encode()  # valid UTF-8, no surrogates
    assert not any(ord(c) < 0x20 or ord(c) == 0x7F for c in encoded)


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "a/../b", "./a", "a//b", "a/", "~root/x", "", "a%00b", "a%2e", "a%0a", ".."]
)
def test_paths_that_could_lead_out_or_have_two_spellings_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        refuse_unsafe(path)


@pytest.mark.parametrize("path", ["a", "a/b.c", "..a/b", "a%25b", "x/~y", ".hidden/.git", "a%0Ab"])
def test_odd_but_harmless_paths_are_taken(path: str) -> None:
    refuse_unsafe(path)  # raises for what it refuses
    assert decode_path(encode_path(path)) == path


_NAMES = st.lists(st.sampled_from([f"p{n}" for n in range(12)]), min_size=1, max_size=12, unique=True)


@given(_NAMES, st.randoms())
def test_the_tree_digest_does_not_depend_on_the_order_and_does_on_everything_else(
    names: list[str], rng: random.Random
) -> None:
    entries = [ManifestEntry(n, "x", EntryKind.FILE, 1, 0o644, 0, digest=n * 4) for n in names]
    shuffled = list(entries)
    rng.shuffle(shuffled)
    digest = tree_digest(entries)
    assert tree_digest(shuffled) == digest
    assert tree_digest([replace(entries[0], mode=0o777, mtime_ns=5), *entries[1:]]) == digest
    assert tree_digest([replace(entries[0], digest="0"), *entries[1:]]) != digest
    assert tree_digest([replace(entries[0], path="other"), *entries[1:]]) != digest
    assert tree_digest([replace(entries[0], kind=EntryKind.SYMLINK), *entries[1:]]) != digest
    assert tree_digest(entries[1:]) != digest


@given(_NAMES, st.data())
def test_any_single_change_to_a_file_is_a_content_change_that_names_it(names: list[str], data: st.DataObject) -> None:
    entries = tuple(ManifestEntry(n, "x", EntryKind.FILE, 4, 0o644, 0, digest=f"d-{n}") for n in names)
    manifest = Manifest(Algorithm.SHA256, tree_digest(entries), entries)
    assert compare(manifest, entries) == ()
    at = data.draw(st.integers(0, len(entries) - 1))
    victim = entries[at]
    others = entries[:at] + entries[at + 1 :]
    forms = [
        (*others, replace(victim, digest="other", size=4)),
        (*others, replace(victim, digest="other", size=3)),
        (*others, replace(victim, digest="other", size=9)),
        (*others, replace(victim, digest="")),
        (*others, replace(victim, kind=EntryKind.SYMLINK, digest="", target="x")),
        (*others, replace(victim, path="renamed")),
        others,
    ]
    for form in forms:
        changes = compare(manifest, form)
        assert any(c.is_content and victim.path == c.path for c in changes)
        assert {c.path for c in changes} <= {victim.path, "renamed"}


def test_a_manifest_comes_back_as_it_was_written(case: Path) -> None:
    manifest = take_stock(case / "evidence")
    write_manifest(case, manifest)
    assert read_manifest(case) == manifest
    assert len(manifest.entries) == len(NASTY) + 2
    assert read_manifest(case / "evidence") is None


def test_the_text_of_a_manifest_is_that_of_every_other_artefact(case: Path) -> None:
    manifest = take_stock(case / "evidence", exclusions=[Exclusion("ü\u2028/%0A", 'a "reason"')])
    assert manifest_text(manifest) == dumps(to_payload(manifest, schema=MANIFEST_SCHEMA)).encode()


def test_a_manifest_that_was_written_before_entries_had_versions_is_still_read(case: Path) -> None:
    manifest = take_stock(case / "evidence")
    payload = to_payload(manifest, schema=MANIFEST_SCHEMA)
    del payload["references"]
    for entry in payload["entries"]:
        for later in ("version", "etag"):
            del entry[later]
    (case / "evidence" / "manifest.json").write_text(dumps(payload))
    assert read_manifest(case) == manifest


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="sha256sum is not installed")
def test_sha256sum_agrees_about_every_file(case: Path) -> None:
    write_manifest(case, take_stock(case / "evidence"))
    done = subprocess.run(("sha256sum", "-c", "SHA256SUMS"), cwd=case / "evidence", capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b": OK") == len(NASTY) + 1
    (case / "evidence" / "dir" / "plain").write_bytes(b"other")
    assert subprocess.run(("sha256sum", "-c", "SHA256SUMS"), cwd=case / "evidence", capture_output=True).returncode == 1


def test_blake3_sums_are_written_under_their_own_name(case: Path) -> None:
    from blake3 import blake3

    manifest = take_stock(case / "evidence", algorithm=Algorithm.BLAKE3)
    assert write_manifest(case, manifest)[1] == "evidence/B3SUMS"
    entry = next(e for e in manifest.entries if e.path == "dir/plain")
    assert entry.digest == blake3((case / "evidence" / "dir" / "plain").read_bytes()).hexdigest()


def test_a_symlink_out_of_the_evidence_is_refused_at_freeze(case: Path) -> None:
    (case / "evidence" / "dir" / "leak").symlink_to("/etc/passwd")
    with pytest.raises(InputUnreadable, match="outside the case"):
        take_stock(case / "evidence")


@pytest.mark.parametrize(
    "change",
    [
        {"path": "/etc/passwd"},
        {"path": "../../../etc/passwd"},
        {"path": "dir/../../x"},
        {"path": "~/x"},
        {"path": "a%00b"},
        {"path": "a%2fb"},
        {"kind": "symlink", "target": "/etc/passwd", "digest": ""},
        {"kind": "symlink", "target": "../../..", "digest": ""},
        {"kind": "no such kind"},
        {"size": "many"},
        {"path": "dir/per%25cent"},
    ],
)
def test_a_manifest_that_leads_astray_is_refused_whole(case: Path, change: dict[str, object]) -> None:
    write_manifest(case, take_stock(case / "evidence"))
    file = case / "evidence" / "manifest.json"
    payload = json.loads(file.read_text())
    at = next(i for i, e in enumerate(payload["entries"]) if e["path"] == "dir/plain")
    payload["entries"][at] |= change
    file.write_text(json.dumps(payload))
    with pytest.raises(InputUnreadable, match=r"manifest\.json"):
        read_manifest(case)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "spike.manifest/2"}', "[" * 100000, "\udcff"])
def test_a_manifest_that_is_none_is_refused(case: Path, text: str) -> None:
    (case / "evidence" / "manifest.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputUnreadable, match=r"manifest\.json"):
        read_manifest(case)
