"""Is what comes out of an object store exactly one version of it, whatever happens meanwhile?"""

from __future__ import annotations

import os
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.readers.s3_server import KEY, SECRET, S3Server, make_bucket, other_clients, running
from tests.readers.weak_link import weak_link

from spike.domain.errors import InputUnreadable, SpikeError
from spike.domain.remote import safe_url, shown_url, why_not_a_file_name
from spike.readers.remote import (
    StoreUnavailable,
    as_it_is,
    find_objects,
    find_stored,
    list_below,
    open_store,
    read_blocks,
    refuse_change,
    usable_objects,
)

pytest.importorskip("s3fs")
pytest.importorskip("moto")
NUM_BYTES = 300_000


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with running() as found, other_clients():
        yield found


@pytest.fixture(scope="module")
def client(server: S3Server) -> Any:
    return server.client()


@pytest.fixture(autouse=True)
def _quick(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spike.readers.remote._errors.PAUSES_S", (0.0, 0.0, 0.0, 0.0))
    monkeypatch.setattr("spike.readers.remote._stream.RANGE_BYTES", 1 << 16)
    for name, value in server.login().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def bucket(client: Any, request: pytest.FixtureRequest) -> str:
    name = f"plain-{abs(hash(request.node.name)):x}"
    return make_bucket(client, name, versioned=False)


@pytest.fixture
def versioned(client: Any, request: pytest.FixtureRequest) -> str:
    name = f"kept-{abs(hash(request.node.name)):x}"
    return make_bucket(client, name, versioned=True)


def _put(client: Any, bucket: str, key: str, data: bytes | None = None) -> bytes:
    data = os.urandom(NUM_BYTES) if data is None else data
    client.put_object(Bucket=bucket, Key=key, Body=data)
    return data


def test_an_overwritten_object_is_still_read_under_its_version(client: Any, versioned: str) -> None:
    before = _put(client, versioned, "run/step-1.pt")
    store = open_store(f"s3://{versioned}/run/step-1.pt")
    stored = store.head(store.root)
    assert stored is not None
    assert stored.version
    _put(client, versioned, "run/step-1.pt", b"new")
    assert b"".join(read_blocks(store, stored)) == before
    client.delete_object(Bucket=versioned, Key="run/step-1.pt")
    assert store.head(store.root) is None
    assert store.head(store.root, stored.version) == stored
    assert store.head(store.root, "00000000-0000-0000-0000-000000000000") is None


@pytest.mark.parametrize("size", [3, NUM_BYTES])
def test_an_object_that_was_overwritten_before_it_is_read_is_refused(client: Any, bucket: str, size: int) -> None:
    _put(client, bucket, "step-1.pt")
    store = open_store(f"s3://{bucket}/step-1.pt")
    stored = store.head(store.root)
    assert stored is not None
    assert stored.version == ""
    _put(client, bucket, "step-1.pt", os.urandom(size))
    with pytest.raises(InputUnreadable, match=rf"s3://{bucket}/step-1.pt changed while it was read"):
        b"".join(read_blocks(store, stored))


@pytest.mark.parametrize("how", ["overwritten", "deleted"])
def test_an_object_that_changes_between_two_ranges_is_refused(client: Any, bucket: str, how: str) -> None:
    _put(client, bucket, "step-1.pt", bytes(40 << 16))
    store = open_store(f"s3://{bucket}/step-1.pt")
    stored = store.head(store.root)
    assert stored is not None
    blocks = read_blocks(store, stored)
    next(blocks)
    if how == "deleted":
        client.delete_object(Bucket=bucket, Key="step-1.pt")
    else:
        _put(client, bucket, "step-1.pt", bytes(20 << 16) + b"x" + bytes((20 << 16) - 1))
    with pytest.raises(InputUnreadable, match="changed while it was read"):
        list(blocks)


def test_a_multi_part_upload_is_read_whole_and_keeps_its_mark(client: Any, versioned: str) -> None:
    parts = [os.urandom(5 << 20), os.urandom(1 << 16)]
    upload = client.create_multipart_upload(Bucket=versioned, Key="big.pt")["UploadId"]
    marks = [
        client.upload_part(Bucket=versioned, Key="big.pt", UploadId=upload, PartNumber=n, Body=part)["ETag"]
        for n, part in enumerate(parts, 1)
    ]
    named = {"Parts": [{"PartNumber": n, "ETag": mark} for n, mark in enumerate(marks, 1)]}
    client.complete_multipart_upload(Bucket=versioned, Key="big.pt", UploadId=upload, MultipartUpload=named)
    store = open_store(f"s3://{versioned}/big.pt")
    stored = store.head(store.root)
    assert stored is not None
    assert stored.etag.endswith("-2")
    assert b"".join(read_blocks(store, stored)) == b"".join(parts)


def test_generations_are_found_by_the_pattern_and_nothing_else(client: Any, bucket: str) -> None:
    for key in ("run/step-20/a", "run/step-0100/a", "run/step-0100/sub/b", "run/step-x/a", "run/step-3.pt", "other/a"):
        _put(client, bucket, key, b"x")
    for folder in ("run/step-20/", "run/step-40/"):
        _put(client, bucket, folder, b"")
    found = find_stored(open_store(f"s3://{bucket}/run/step-{{step}}"))
    assert [(c.step, len(c.objects), c.is_single) for c in found] == [(20, 1, False), (100, 2, False)]
    (single,) = find_stored(open_store(f"s3://{bucket}/run/step-{{step}}.pt"))
    assert (single.step, single.is_single) == (3, True)
    (deep,) = find_stored(open_store(f"s3://{bucket}/r*/step-{{step}}/sub"))
    assert (deep.step, [o.path for o in deep.objects]) == (100, [f"{bucket}/run/step-0100/sub/b"])
    assert {o.path.rpartition("/")[2] for o in find_objects(open_store(f"s3://{bucket}/run/step-0100"))} == {"a", "b"}


def test_an_empty_bucket_holds_nothing_and_a_missing_one_is_a_mistake(bucket: str) -> None:
    assert find_stored(open_store(f"s3://{bucket}/run/step-{{step}}")) == ()
    with pytest.raises(InputUnreadable, match="there is no bucket of s3://no-such-bucket/"):
        find_stored(open_store("s3://no-such-bucket/run/step-{step}"))


def test_a_missing_package_and_an_unknown_scheme_say_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(SpikeError, match="not installed") as missing:
        open_store("gs://bucket/step-{step}")
    assert missing.value.hint == "pip install gcsfs"
    with pytest.raises(SpikeError, match="nonsense"):
        open_store("nonsense://bucket/step-{step}")


def test_wrong_credentials_and_none_are_told_apart_and_never_repeated(
    server: S3Server, client: Any, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _put(client, bucket, "step-1/a", b"x")
    address = f"s3://{bucket}/step-{{step}}"
    _reset_auth(server, "0")
    try:
        with other_clients(), pytest.raises(InputUnreadable, match="the store refuses s3://") as refused:
            find_stored(open_store(address))
    finally:
        _reset_auth(server, "inf")
    assert "AWS_PROFILE" in refused.value.hint
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    with other_clients(), pytest.raises(StoreUnavailable, match="no credentials for s3://"):
        find_stored(open_store(address))
    assert KEY not in refused.value.message
    assert SECRET not in refused.value.message


def _reset_auth(server: S3Server, count: str) -> None:
    kind = {"Content-Type": "application/octet-stream"}
    request = urllib.request.Request(f"{server.endpoint}/moto-api/reset-auth", count.encode(), kind, method="POST")
    urllib.request.urlopen(request, timeout=10).close()


def test_broken_connections_and_throttling_cost_a_range_and_not_the_truth(
    server: S3Server, client: Any, versioned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spike.readers.remote._stream.RANGE_BYTES", 1 << 18)
    data = _put(client, versioned, "step-1.pt", os.urandom(2 << 20))
    with other_clients(), weak_link(server.port) as link:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{link.port}")
        store = open_store(f"s3://{versioned}/step-1.pt")
        stored = store.head(store.root)
        assert stored is not None
        link.cuts_left, link.busy_left = 5, 3
        assert b"".join(read_blocks(store, stored)) == data
        assert (link.num_cut, link.num_busy) == (5, 3)


def test_a_store_that_stays_away_is_named_after_a_bounded_number_of_attempts(
    server: S3Server, client: Any, versioned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _put(client, versioned, "step-1.pt")
    with other_clients(), weak_link(server.port) as link:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{link.port}")
        store = open_store(f"s3://{versioned}/step-1.pt")
        stored = store.head(store.root)
        assert stored is not None
        monkeypatch.setattr(store.filesystem, "retries", 1)  # type: ignore[attr-defined]
        blocks = read_blocks(store, stored)
        next(blocks)
        link.busy_left = 10_000
        with pytest.raises(StoreUnavailable, match=rf"s3://{versioned}/step-1.pt \(bytes \d+ to \d+ of") as failed:
            list(blocks)
    assert "in 5 attempts" in failed.value.message
    assert "type the same command again" in failed.value.hint


STRANGE = {
    "../../evil": "empty, '.' or '..'",
    "a//b": "empty, '.' or '..'",
    "./c": "empty, '.' or '..'",
    "n" * 300: "longer than 255",
    "%2Fetc%2Fpasswd": "",
    "ünï/cødé": "",
    "x?versionId=1": "",
    "-rf ~": "",
}


def test_strange_keys_are_files_below_the_checkpoint_or_left_out_with_a_reason(client: Any, bucket: str) -> None:
    for key in STRANGE:
        _put(client, bucket, f"step-1/{key}", key.encode())
    store = open_store(f"s3://{bucket}/step-{{step}}")
    (generation,) = find_stored(store)
    usable, left_out = usable_objects(store, generation)
    assert len(usable) + len(left_out) == len(STRANGE) == 8
    names = {o.path.removeprefix(f"{generation.path}/"): o for o in usable}
    assert set(names) == {key for key, reason in STRANGE.items() if not reason}
    for name, stored in names.items():
        assert b"".join(read_blocks(store, as_it_is(store, stored))) == name.encode()
    assert all("not fetched: its key has a component" in e.reason for e in left_out)


def test_a_line_break_in_a_key_stays_in_the_key_and_out_of_messages() -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe_file("/strange/step-1/a\nb\x1b[31m", b"data")
    store = open_store("memory://strange/step-{step}")
    (generation,) = find_stored(store)
    ((stored,), left_out) = usable_objects(store, generation)
    assert left_out == ()
    assert b"".join(read_blocks(store, stored)) == b"data"
    assert store.url(stored.path) == "memory://strange/step-1/a%0Ab%1B[31m"
    assert store.address(stored.path) == "memory://strange/step-1/a\nb\x1b[31m"


def test_an_object_that_is_a_folder_too_is_refused_by_name(client: Any, bucket: str) -> None:
    _put(client, bucket, "step-1/a", b"x")
    _put(client, bucket, "step-1/a/b", b"y")
    store = open_store(f"s3://{bucket}/step-{{step}}")
    (generation,) = find_stored(store)
    with pytest.raises(InputUnreadable, match="step-1/a is an object and a folder"):
        usable_objects(store, generation)


@pytest.mark.parametrize("change", ["overwritten", "deleted", "added", "nothing"])
@pytest.mark.parametrize("scheme", ["s3", "memory", "file"])
def test_any_difference_between_two_listings_of_a_generation_is_found(
    client: Any, bucket: str, tmp_path: Path, scheme: str, change: str
) -> None:
    import fsspec

    root = {"s3": bucket, "memory": f"/{bucket}", "file": str(tmp_path)}[scheme]
    filesystem, _ = fsspec.core.url_to_fs(f"{scheme}://{root.lstrip('/') if scheme == 'memory' else root}")
    filesystem.makedirs(f"{root}/step-1", exist_ok=True)
    for name in ("a", "b"):
        filesystem.pipe_file(f"{root}/step-1/{name}", b"before")
    store = open_store(f"{scheme}://{root.lstrip('/') if scheme == 'memory' else root}/step-{{step}}")
    (generation,) = find_stored(store)
    match change:
        case "overwritten":
            filesystem.pipe_file(f"{root}/step-1/b", b"after!")
        case "deleted":
            filesystem.rm_file(f"{root}/step-1/b")
        case "added":
            filesystem.pipe_file(f"{root}/step-1/c", b"new")
    now = list_below(store, generation)
    if change == "nothing":
        refuse_change(store, generation.objects, now)
        return
    with pytest.raises(InputUnreadable, match=r"step-1/[bc] changed while it was read: it (was|is)"):
        refuse_change(store, generation.objects, now)


@pytest.mark.parametrize(
    ("address", "safe"),
    [
        ("s3://AKIA0123456789ABCDEF:ab/cd+ef@bucket/run", "s3://<redacted>@bucket/run"),
        ("sftp://ada:pass@host:22/run/step-{step}", "sftp://<redacted>@host:22/run/step-{step}"),
        ("https://h/m.jsonl?X-Amz-Signature=0123456789abcdef&b=1", "https://h/m.jsonl?X-Amz-Signature=<redacted>&b=1"),
        ("s3://bucket/run@3/step-{step}", "s3://bucket/run@3/step-{step}"),
        ("http://host:8080/run@3/x", "http://host:8080/run@3/x"),
    ],
)
def test_an_address_is_shown_without_its_credentials(address: str, safe: str) -> None:
    assert safe_url(address) == shown_url(address) == safe


@pytest.mark.parametrize("name", ["a", "a/b", "..a", "a..", "...", "a b", "%2e%2e"])
def test_ordinary_names_are_not_refused(name: str) -> None:
    assert why_not_a_file_name(name) == ""
