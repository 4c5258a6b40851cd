"""Does freeze keep what lies in an object store as surely as what lies on a disk, and does verify say what it knows?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import numpy as np
import pytest

from spike.actions.checks.check import check_case, check_run
from spike.actions.detect import detect_run
from spike.actions.evidence.ask_store import verify_with_stores
from spike.actions.evidence.freeze import freeze, warnings_of
from spike.actions.evidence.release import release_pins
from spike.actions.evidence.verify import verify
from spike.casefile.case import Case, open_case
from spike.casefile.manifest import read_manifest
from spike.cli.app import app
from spike.cli.boundary import run_at_boundary
from spike.domain.errors import ExitCode, SpikeError
from spike.domain.manifest import Guarantee, Manifest
from spike.domain.verification import Integrity
from spike.readers.remote import StoreUnavailable
from spike.readers.run_file import load_run
from tests.casefile.small_runs import incident, make_run, signals, write_checkpoint
from tests.readers.s3_server import KEY, SECRET, S3Server, make_bucket, other_clients, running
from tests.readers.weak_link import weak_link

pytest.importorskip("s3fs")
pytest.importorskip("moto")
STEPS = (100, 150, 200, 250)


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
    for name, value in server.login().items():
        monkeypatch.setenv(name, value)


class World:
    """A run whose checkpoints lie in a bucket of its own."""

    def __init__(self, client: Any, place: Path, name: str, *, versioned: bool) -> None:
        self.client, self.place = client, place
        self.bucket = make_bucket(client, name, versioned=versioned)
        made = make_run(place / "run", ())
        self.run = replace(made, checkpoints=f"s3://{self.bucket}/job/step-{{step}}")
        for step in STEPS:
            self.put_checkpoint(step)

    def put_checkpoint(self, step: int, *, poison: float | None = None, seed: int | None = None) -> None:
        local = self.place / "made" / f"step-{step}" / "model.safetensors"
        write_checkpoint(local, seed if seed is not None else step, poison=poison)
        self.put(f"job/step-{step}/model.safetensors", local.read_bytes())
        self.put(f"job/step-{step}/state.json", json.dumps({"step": step}).encode())

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=key, Body=data)

    def made(self, step: int) -> bytes:
        return (self.place / "made" / f"step-{step}" / "model.safetensors").read_bytes()

    def freeze(self, **extra: Any) -> Case:
        given = {"signals": signals(), "operator": "ada", "cases": self.place / "cases", **extra}
        return freeze(given.pop("run", self.run), incident(), **given)


@pytest.fixture
def kept(client: Any, tmp_path: Path, request: pytest.FixtureRequest) -> World:
    return World(client, tmp_path, f"kept-{abs(hash(request.node.nodeid)):x}", versioned=True)


@pytest.fixture
def plain(client: Any, tmp_path: Path, request: pytest.FixtureRequest) -> World:
    return World(client, tmp_path, f"plain-{abs(hash(request.node.nodeid)):x}", versioned=False)


def _manifest(case: Case) -> Manifest:
    found = read_manifest(case.path)
    assert found is not None
    return found


def _weights(world: World, step: int) -> str:
    return f"pinned/s3:__{world.bucket}__job@{step}/step-{step}/model.safetensors"


@pytest.mark.parametrize("versioned", [True, False])
def test_checkpoints_of_a_bucket_are_copied_with_version_mark_and_digest(
    client: Any, tmp_path: Path, versioned: bool
) -> None:
    world = World(client, tmp_path, f"whole-{versioned}".lower(), versioned=versioned)
    case = world.freeze()
    facts = case.facts
    assert facts.last_good is not None
    assert (facts.last_good.step, facts.last_good.guarantee) == (200, "copy")
    assert facts.last_good.original == f"s3://{world.bucket}/job/step-200"
    assert ([p.step for p in facts.earlier], [p.step for p in facts.suspect]) == ([150, 100], [250])
    assert facts.not_pinned == ()
    entries = {e.path: e for e in _manifest(case).entries}
    for step in STEPS:
        entry = entries[_weights(world, step)]
        assert (case.path / "evidence" / entry.path).read_bytes() == world.made(step)
        assert entry.origin == f"s3://{world.bucket}/job/step-{step}/model.safetensors"
        head = client.head_object(Bucket=world.bucket, Key=f"job/step-{step}/model.safetensors")
        assert entry.etag == head["ETag"].strip('"')
        assert entry.version == (head["VersionId"] if versioned else "")
        assert entry.mtime_ns == int(head["LastModified"].timestamp()) * 10**9
        assert (entry.guarantee, entry.mode) == (Guarantee.COPY, 0o444)
    assert "no trial can be kept from writing to" in " ".join(warnings_of(case))
    assert verify(case.path).integrity is Integrity.INTACT
    assert world.freeze().path == case.path


def test_generations_that_are_torn_or_not_finite_are_passed_over_and_named(kept: World) -> None:
    kept.put_checkpoint(200, poison=float("nan"))
    kept.put_checkpoint(210)
    kept.put("job/step-210/model.safetensors", kept.made(210)[:-100])
    facts = kept.freeze().facts
    assert facts.last_good is not None
    assert facts.last_good.step == 150
    reasons = {path.rpartition("-")[2]: reason for path, reason in facts.not_pinned}
    assert set(reasons) == {"210", "200"}
    assert "not finite: w in model.safetensors" in reasons["200"]


def test_a_mask_of_infinities_that_an_older_generation_has_too_is_no_damage(kept: World) -> None:
    from safetensors.numpy import save

    mask = np.triu(np.full((4, 4), -np.inf, dtype=np.float32), 1)
    for step in STEPS:
        kept.put(f"job/step-{step}/model.safetensors", save({"w": np.full(4, step, dtype=np.float32), "mask": mask}))
    facts = kept.freeze().facts
    assert facts.last_good is not None
    assert (facts.last_good.step, [p.step for p in facts.earlier]) == (200, [150, 100])


def test_a_bucket_without_generations_is_said_loudly_and_the_rest_is_kept(client: Any, tmp_path: Path) -> None:
    run = replace(make_run(tmp_path / "run", ()), checkpoints="s3://hollow/job/step-{step}")
    make_bucket(client, "hollow", versioned=True)
    case = freeze(run, incident(), cases=tmp_path / "cases", operator="ada", signals=signals())
    assert (
        "NO USABLE CHECKPOINT BEFORE THE ONSET (s3://hollow/job/step-{step}: nothing in the store matches)"
        in (warnings_of(case)[0])
    )
    assert (case.path / "evidence" / "run" / "log.jsonl").is_file()
    assert verify(case.path).integrity is Integrity.INTACT


def _replace_while_reading(monkeypatch: pytest.MonkeyPatch, change: Any) -> list[str]:
    """Call `change` after the first object of step 200 was read, and before the next."""
    from spike.readers.remote import read_blocks

    done: list[str] = []

    def reading(store: Any, stored: Any) -> Any:
        blocks = list(read_blocks(store, stored))
        if "step-200/model" in stored.path and not done:
            done.append(stored.path)
            changing = threading.Thread(target=change)
            changing.start()
            changing.join()
        return iter(blocks)

    monkeypatch.setattr("spike.actions.evidence.fetch.read_blocks", reading)
    return done


@pytest.mark.parametrize(
    ("how", "versioned"),
    [
        ("an object overwritten", True),
        ("an object overwritten", False),
        ("an object added", True),
        ("an object deleted", False),
    ],
)
def test_a_generation_that_changes_while_it_is_read_is_never_a_mixture(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, versioned: bool
) -> None:
    world = World(client, tmp_path, f"moving-{abs(hash((how, versioned))):x}", versioned=versioned)

    def change() -> None:
        match how:
            case "an object overwritten":
                world.put_checkpoint(200, seed=9)
            case "an object added":
                world.put("job/step-200/optimizer.pt", b"late")
            case _:
                client.delete_object(Bucket=world.bucket, Key="job/step-200/state.json")

    done = _replace_while_reading(monkeypatch, change)
    case = world.freeze()
    assert len(done) == 1
    assert case.facts.last_good is not None
    assert case.facts.last_good.step == 150
    ((path, reason),) = case.facts.not_pinned
    assert path == f"s3://{world.bucket}/job/step-200"
    assert "changed while it was read" in reason
    assert list(case.path.rglob("*200*")) == []


def test_what_is_too_large_to_copy_is_named_with_versions_and_digests_and_asked_for_online(
    kept: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import hashlib

    monkeypatch.setattr("spike.actions.evidence.fetch.COPY_LIMIT_BYTES", 10)
    case = kept.freeze()
    assert case.facts.last_good is not None  # trials start from it: it is copied whatever its size
    assert (case.facts.earlier, case.facts.suspect) == ((), ())
    assert [reason[:17] for _, reason in case.facts.not_pinned] == ["named, not copied"] * 3
    manifest = _manifest(case)
    assert len(manifest.references) == 6
    named = {r.url: r for r in manifest.references}
    url = f"s3://{kept.bucket}/job/step-250/model.safetensors"
    assert named[url].digest == hashlib.sha256(kept.made(250)).hexdigest()
    assert named[url].guarantee is Guarantee.OBJECT_VERSION

    offline = verify_with_stores(case.path, is_online=False)
    assert offline.integrity is Integrity.INTACT
    assert offline.num_asked is None
    assert len(offline.references) == 6
    assert verify_with_stores(case.path, is_online=True).integrity is Integrity.INTACT
    kept.put_checkpoint(250, seed=1)  # a new version: the frozen one is still there
    assert verify_with_stores(case.path, is_online=True).integrity is Integrity.INTACT
    kept.client.delete_object(Bucket=kept.bucket, Key="job/step-250/model.safetensors", VersionId=named[url].version)
    found = verify_with_stores(case.path, is_online=True)
    assert found.integrity is Integrity.ALTERED
    assert [(c.kind.value, c.statement) for c in found.changes if c.is_content] == [
        ("deleted", f"{url} version {named[url].version} is gone")
    ]
    assert run_at_boundary(lambda: app(["verify", "--case", str(case.path)])) == 0
    assert capsys.readouterr().out.count("(by reference, not read here: --online asks its store)") == 6
    assert run_at_boundary(lambda: app(["verify", "--case", str(case.path), "--online"])) == 1
    assert f"CONTENT     {url} version {named[url].version} is gone" in capsys.readouterr().out
    assert release_pins(case) == 2
    assert len(_manifest(case).references) == 6


def test_too_large_without_versions_is_copied_anyway(plain: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spike.actions.evidence.fetch.COPY_LIMIT_BYTES", 10)
    case = plain.freeze()
    assert ([p.step for p in case.facts.earlier], _manifest(case).references) == ([150, 100], ())


def test_too_large_for_the_disk_and_without_versions_is_not_pinned_with_the_reason(
    plain: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spike.actions.evidence.fetch.SPARE_BYTES", 1 << 60)
    case = plain.freeze()
    assert case.facts.last_good is None
    assert all("no room" in reason and "keeps no versions" in reason for _, reason in case.facts.not_pinned)
    assert len(case.facts.not_pinned) == 4


def test_an_original_that_changed_is_told_online_and_the_copies_stay_good(plain: World) -> None:
    case = plain.freeze()
    plain.put_checkpoint(200, seed=77)
    plain.client.delete_object(Bucket=plain.bucket, Key="job/step-100/state.json")
    found = verify_with_stores(case.path, is_online=True)
    assert found.integrity is Integrity.INTACT
    assert found.num_asked == 8
    assert len(found.origins) == 2
    assert any("step-100/state.json is gone; the case holds the bytes" in s for s in found.origins)
    assert any("step-200/model.safetensors holds other bytes" in s for s in found.origins)


def test_a_store_that_does_not_answer_leaves_the_answer_incomplete(
    kept: World, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = kept.freeze()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with other_clients():
        found = verify_with_stores(case.path, is_online=True)
    assert found.integrity is Integrity.INCOMPLETE
    assert "s3://" in found.unfinished[0]
    assert found.num_asked == 0
    assert verify_with_stores(case.path, is_online=False).integrity is Integrity.INTACT


def test_a_fetch_that_dies_with_its_store_goes_on_without_reading_again(
    kept: World, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spike.actions.evidence.fetch.SMALL_BYTES", 0)  # one object after the other
    read: list[str] = []
    from spike.readers.remote import read_blocks

    def reading(store: Any, stored: Any) -> Any:
        if "step-150/state.json" in stored.path and not link.is_down and "step-150/state.json" not in read:
            link.is_down = True
        blocks = list(read_blocks(store, stored))
        read.append(stored.path.partition("job/")[2])
        return iter(blocks)

    with other_clients(), weak_link(server.port) as link:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{link.port}")
        monkeypatch.setattr("spike.actions.evidence.fetch.read_blocks", reading)
        monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)
        with pytest.raises(StoreUnavailable, match=r"step-150/state.json .* of it are kept in .*\.fetching") as failed:
            kept.freeze()
        assert failed.value.exit_code is ExitCode.UNREADABLE
        (case_path,) = (p for p in (kept.place / "cases").iterdir() if p.is_dir())
        assert verify(case_path).integrity is Integrity.INCOMPLETE
        first = list(read)
        assert first == ["step-200/model.safetensors", "step-200/state.json", "step-150/model.safetensors"]
        link.is_down = False
        read.append("step-150/state.json")
        # What is complete by now counts, though the run deletes it meanwhile.
        for name in ("model.safetensors", "state.json"):
            kept.client.delete_object(Bucket=kept.bucket, Key=f"job/step-200/{name}")
        case = kept.freeze()
    assert read[len(first) + 1 :].count("step-150/state.json") == 1
    assert not set(first) & set(read[len(first) + 1 :])
    assert case.facts.last_good is not None
    assert (case.facts.last_good.step, [p.step for p in case.facts.earlier]) == (200, [150, 100])
    entries = {e.path: e for e in _manifest(case).entries}
    assert all(entries[_weights(kept, step)].version for step in STEPS)
    assert not (case.path / ".held").exists()
    assert verify(case.path).integrity is Integrity.INTACT


KILLED = """
import os, signal, sys
from pathlib import Path
from spike.actions.evidence import fetch
from spike.actions.evidence.freeze import freeze
from spike.domain.run import Run
from tests.casefile.small_runs import incident, signals
reading = fetch.read_blocks
def dying(store, stored):
    blocks = reading(store, stored)
    yield next(blocks)[:1000]
    if "step-150/model" in stored.path:
        os.kill(os.getpid(), signal.SIGKILL)
    yield from reading(store, stored)
fetch.SMALL_BYTES = 0
fetch.read_blocks = lambda store, stored: dying(store, stored) if "step-150" in stored.path else reading(store, stored)
run = Run(directory=sys.argv[1], launch="python train.py --resume {checkpoint}", checkpoints=sys.argv[2])
freeze(run, incident(), cases=Path(sys.argv[3]), operator="ada", signals=signals())
"""


def test_a_killed_fetch_leaves_a_readable_case_and_goes_on(kept: World, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = kept.place / "cases"
    command = [sys.executable, "-c", KILLED, kept.run.directory, kept.run.checkpoints, str(cases)]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    (case_path,) = (p for p in cases.iterdir() if (p / "case.yaml").is_file())
    assert verify(case_path).integrity is Integrity.INCOMPLETE
    read: list[str] = []
    from spike.readers.remote import read_blocks

    def reading(store: Any, stored: Any) -> Any:
        read.append(stored.path.partition("job/")[2])
        return read_blocks(store, stored)

    monkeypatch.setattr("spike.actions.evidence.fetch.read_blocks", reading)
    case = kept.freeze()
    assert case.path == case_path
    assert sorted(read) == sorted(
        f"step-{step}/{name}" for step in (150, 100, 250) for name in ("model.safetensors", "state.json")
    )
    assert (case.path / "evidence" / _weights(kept, 150)).read_bytes() == kept.made(150)
    assert verify(case.path).integrity is Integrity.INTACT


def test_one_object_a_generation_is_a_pin_that_is_a_file(client: Any, tmp_path: Path) -> None:
    bucket = make_bucket(client, "single-files", versioned=True)
    run = replace(make_run(tmp_path / "run", ()), checkpoints=f"s3://{bucket}/ckpt-{{step}}.safetensors")
    for step in (190, 200):
        write_checkpoint(tmp_path / "made", step)
        client.put_object(Bucket=bucket, Key=f"ckpt-{step:05d}.safetensors", Body=(tmp_path / "made").read_bytes())
    case = freeze(run, incident(), cases=tmp_path / "cases", operator="ada", signals=signals())
    assert case.facts.last_good is not None
    assert (case.path / case.facts.last_good.pinned).read_bytes() == (tmp_path / "made").read_bytes()
    assert verify_with_stores(case.path, is_online=True).num_asked == 2


def test_strange_keys_never_leave_the_case_and_are_found_again_online(kept: World) -> None:
    strange = ("../../../evil", "%2Fetc%2Fpasswd", "ünï", "x?versionId=1", "sub/..%2f/y")
    for key in strange:
        kept.put(f"job/step-200/{key}", key.encode())
    before = {p for p in kept.place.rglob("*") if not p.is_relative_to(kept.place / "cases")}
    case = kept.freeze()
    assert {p for p in kept.place.rglob("*") if not p.is_relative_to(kept.place / "cases")} == before
    assert case.facts.last_good is not None
    pinned = case.path / case.facts.last_good.pinned
    fetched = {p.relative_to(pinned).as_posix() for p in pinned.rglob("*") if p.is_file()}
    assert fetched == {"model.safetensors", "state.json", *strange[1:]}
    (left_out,) = _manifest(case).exclusions
    assert (left_out.path.endswith("step-200/../../../evil"), "empty, '.' or '..'" in left_out.reason) == (True, True)
    assert verify(case.path).integrity is Integrity.INTACT
    found = verify_with_stores(case.path, is_online=True)
    assert (found.num_asked, found.origins, found.unfinished) == (12, (), ())


def test_logs_of_a_bucket_are_read_kept_and_named_by_their_address(kept: World) -> None:
    rows = (Path(kept.run.directory) / "log.jsonl").read_bytes() + b'{"step": 301, "api_key": "abcd1234efgh5678"}\n'
    kept.put("job/logs/metrics.jsonl", rows)
    kept.put("job/logs/more.pt", b"\0" * 100)
    (Path(kept.run.directory) / "log.jsonl").unlink()
    for named in ("job/logs/metrics.jsonl", "job/logs", "job/l*/metrics.jsonl"):
        run = replace(kept.run, metrics=(f"s3://{kept.bucket}/{named}",))
        found, detection = detect_run(run)
        assert [s.path for s in found.sources] == [f"s3://{kept.bucket}/job/logs/metrics.jsonl"]
        assert detection.incidents[0].onset_step == 222
    case = kept.freeze(run=run, signals=found)
    (entry,) = [e for e in _manifest(case).entries if e.role == "log"]
    assert entry.origin == f"s3://{kept.bucket}/job/logs/metrics.jsonl"
    assert (entry.redactions, bool(entry.version), bool(entry.etag)) == (1, True, True)
    assert b"abcd1234" not in (case.path / "evidence" / entry.path).read_bytes()
    assert verify_with_stores(case.path, is_online=True).origins == ()


def test_no_planted_credential_reaches_the_case(kept: World) -> None:
    directory = Path(kept.run.directory)
    kept.put("job/metrics.jsonl", (directory / "log.jsonl").read_bytes())
    asked = {"Bucket": kept.bucket, "Key": "job/metrics.jsonl"}
    signed = kept.client.generate_presigned_url("get_object", Params=asked, ExpiresIn=600)
    (signature,) = parse_qs(urlsplit(signed).query)["Signature"]
    (directory / "spike.yaml").write_text(
        f"launch: python train.py --resume {{checkpoint}}\ncheckpoints: {kept.run.checkpoints}\n"
        f"metrics: ['{signed}']\nenv: {{AWS_SECRET_ACCESS_KEY: '{SECRET}', AWS_ACCESS_KEY_ID: {KEY}}}\n"
    )
    run = load_run(directory)
    found, _ = detect_run(run)
    case = kept.freeze(run=run, signals=found)
    assert [e.role for e in _manifest(case).entries].count("log") == 2  # the signed one, and the one in the run
    planted = [text.encode() for text in (KEY, SECRET, SECRET[:20], signature, quote(signature, safe=""))]
    searched = 0
    for path in case.path.rglob("*"):
        assert KEY not in path.name
        if path.is_file():
            searched += 1
            data = path.read_bytes()
            assert [text for text in planted if text in data] == [], path
    assert searched > 15


@pytest.mark.parametrize(
    "address", [f"s3://{KEY}:{SECRET}@bucket/step-{{step}}", f"s3://{KEY}@bucket/{{step}}", "s3://bucket/no-step"]
)
def test_a_key_in_an_address_is_refused_without_repeating_it(tmp_path: Path, address: str) -> None:
    (tmp_path / "spike.yaml").write_text(f"checkpoints: '{address}'\n")
    with pytest.raises(SpikeError, match=r"spike.yaml:1: checkpoints: ") as refused:
        load_run(tmp_path)
    assert KEY not in refused.value.message
    assert SECRET[:8] not in refused.value.message


def _spike(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SPIKE_")}
    command = (sys.executable, "-m", "spike.cli.app", *words)
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


def test_the_commands_from_freeze_to_an_overwritten_object(kept: World) -> None:
    directory = Path(kept.run.directory)
    rng = np.random.default_rng(3)
    rows = [
        {"step": s, "loss": float(3 * s**-0.1 + rng.normal() * 0.01 + (3 if s in (222, 223) else 0))}
        for s in range(1, 301)
    ]
    kept.put("job/metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    (directory / "log.jsonl").unlink()
    (directory / "spike.yaml").write_text(
        f"launch: python train.py --resume {{checkpoint}}\ncheckpoints: {kept.run.checkpoints}\n"
        f"metrics: s3://{kept.bucket}/job/metrics.jsonl\n"
    )
    table = dict(check_run(load_run(directory)).tables)["checkpoints"]
    assert sorted(row[0] for row in table[1:] if row[2] == "remote") == ["100", "150", "200", "250"]

    frozen = _spike(directory, "freeze", "--json")
    assert frozen.returncode == 0, frozen.stderr
    payload = json.loads(frozen.stdout)
    assert payload["last_good"]["original"] == f"s3://{kept.bucket}/job/step-200"
    facts = {f.name: f.value for f in check_case(open_case(Path(payload["case"])), load_run(directory)).facts}
    assert (facts["checkpoint.integrity"], facts["checkpoint.finite"]) == ("whole", "yes")

    version = next(e.version for e in _manifest_at(payload["case"]).entries if e.path == _weights(kept, 200))
    kept.put_checkpoint(200, seed=5)
    assert verify_with_stores(Path(payload["case"]), is_online=True).origins == ()  # the frozen version is still there
    kept.client.delete_object(Bucket=kept.bucket, Key="job/step-200/model.safetensors", VersionId=version)
    online = _spike(directory, "verify", "--online")
    assert (online.returncode, online.stderr) == (0, "")
    assert f"version {version} is gone; the case holds the bytes as they were frozen" in online.stdout
    (Path(payload["case"]) / "evidence" / _weights(kept, 200)).chmod(0o644)
    (Path(payload["case"]) / "evidence" / _weights(kept, 200)).write_bytes(kept.made(200))
    assert _spike(directory, "verify").returncode == 1


def _manifest_at(case: str) -> Manifest:
    found = read_manifest(Path(case))
    assert found is not None
    return found
