"""Do secrets that lie about in a run, its command lines and its environment reach a single byte of the case?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from spike.actions.checks.check import check_case
from spike.actions.evidence.freeze import Options, freeze
from spike.actions.report import write_report
from spike.actions.status import shipped_pages
from spike.casefile.case import Case
from spike.casefile.manifest import read_manifest
from spike.domain.run import Run
from spike.domain.signals import Damage, Source
from tests.casefile.small_runs import git, incident, make_run, signals
from tests.casefile.test_signing import write_keys

SECRETS = {
    "wandb": "7f3a9c1e5b2d8f4a6c0e7f3a9c1e5b2d8f4a6c0e",
    "hugging face": "hf_QwErTyUiOpAsDfGhJkLzXcVbNm012345",
    "aws id": "AKIAQ7W8E9R0T1Y2U3I4",
    "aws secret": "zXcVbNm0123456789/AsDfGhJkLqWeRtYuIoP+12",
    "github": "ghp_ZxCvBnMaSdFgHjKlQwErTyUiOp0123456789",
    "github fine-grained": "github_pat_11AAAAAAA0abcdefghij_klmnopqrst",
    "openai": "sk-proj-Zz9Yy8Xx7Ww6Vv5Uu4Tt3Ss2",
    "slack": "xoxb-998877665544-QqWwEeRrTtYy",
    "private key": "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCtiger",
    "url": "correcthorsebattery",
    "bearer": "tGzv3JOkF0XG5Qx2TlKWIAtiger",
    "password": "staple-tiger-77",
    "generic token": "deadbeefcafetiger01",
    "generic secret": "feedfacetiger02",
}


def _plant(root: Path) -> None:
    """One of everything: config, log, script, description, hidden file, binary log, tracked and untracked code."""
    key = f"-----BEGIN PRIVATE KEY-----\n{SECRETS['private key']}\n-----END PRIVATE KEY-----"
    (root / "cfg.yaml").write_text(
        f"lr: 0.0003\nwandb_api_key: {SECRETS['wandb']}\ndb:\n  password: {SECRETS['password']}\n"
        f"data: https://ada:{SECRETS['url']}@storage.example.org/corpus\n"
    )
    with (root / "log.jsonl").open("a") as log:
        log.write(json.dumps({"step": 301, "loss": 2.0, "note": f"uploading with {SECRETS['hugging face']}"}) + "\n")
    (root / "run.log").write_text(
        f"+ export AWS_ACCESS_KEY_ID={SECRETS['aws id']}\n+ export AWS_SECRET_ACCESS_KEY={SECRETS['aws secret']}\n"
        f"GET / Authorization: Bearer {SECRETS['bearer']}\n{key}\n"
    )
    (root / "settings.json").write_text(json.dumps({"slack": SECRETS["slack"], "MY_TOKEN": SECRETS["generic token"]}))
    (root / "spike.yaml").write_text(f"launch: python train.py --api-key {SECRETS['openai']}\n")
    (root / "helper.py").write_text(f"GITHUB = '{SECRETS['github']}'\nCLIENT_SECRET = '{SECRETS['generic secret']}'\n")
    (root / "events.out.tfevents.1").write_bytes(b"\x00\x01binary" + SECRETS["github fine-grained"].encode() + b"\x00")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    run = make_run(tmp_path / "run")
    root = Path(run.directory)
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "train.py")
    git(root, "commit", "-qm", f"never mind {SECRETS['github']}")
    git(root, "remote", "add", "origin", f"https://ada:{SECRETS['url']}@example.org/x.git")
    (root / "train.py").write_text(f"print('training')\nopenai_api_key = '{SECRETS['openai']}'\n")
    _plant(root)
    monkeypatch.setenv("WANDB_API_KEY", SECRETS["wandb"])
    monkeypatch.setenv("NCCL_AUTH_TOKEN", SECRETS["generic token"])
    monkeypatch.setenv("TORCH_PROXY", f"http://u:{SECRETS['url']}@proxy")
    return replace(
        run,
        launch=f"HF_TOKEN={SECRETS['hugging face']} python train.py --wandb-key {SECRETS['wandb']}",
        holdout=f"curl -H 'Authorization: Bearer {SECRETS['bearer']}' http://x",
        env=(("WANDB_API_KEY", SECRETS["wandb"]), ("AWS_SECRET_ACCESS_KEY", SECRETS["aws secret"])),
    )


def _frozen(run: Run) -> Case:
    leaky = replace(
        signals(),
        sources=(Source("log.jsonl", "jsonl", 300, 1, 300),),
        damages=(Damage("log.jsonl", 301, 9, f"cannot parse 'HF_TOKEN={SECRETS['hugging face']}'", False),),
    )
    return freeze(run, incident(), cases=Path(f"{run.directory}.spike"), operator="ada", signals=leaky)


def test_no_planted_secret_is_in_any_byte_of_the_case(run: Run) -> None:
    assert len(SECRETS) >= 12
    planted = b"".join(p.read_bytes() for p in Path(run.directory).rglob("*") if p.is_file() and ".git" not in p.parts)
    in_files = [name for name, secret in SECRETS.items() if secret.encode() in planted]
    assert len(in_files) == len(SECRETS)
    case = _frozen(run)
    case.record(f"record --token {SECRETS['generic token']}", f"password={SECRETS['password']}", 0)
    leaks = [
        (name, path.relative_to(case.path))
        for path in case.path.rglob("*")
        if path.is_file()
        for name, secret in SECRETS.items()
        if secret.encode() in path.read_bytes() or secret in path.name
    ]
    assert leaks == []


def test_what_was_taken_out_is_counted_and_the_rest_is_still_there(run: Run) -> None:
    case = _frozen(run)
    manifest = read_manifest(case.path)
    assert manifest is not None
    entries = {e.path: e for e in manifest.entries}
    assert entries["run/cfg.yaml"].redactions == 3
    assert entries["run/cfg.yaml"].origin_digest
    assert "lr: 0.0003" in (case.path / "evidence/run/cfg.yaml").read_text()
    assert entries["source/uncommitted.patch"].redactions == 1
    state = json.loads((case.path / "evidence/source/state.json").read_text())
    assert state["secrets_taken_out_of_patch"] == 1
    binary = [e for e in manifest.exclusions if "tfevents" in e.path]
    assert "looks like a secret" in binary[0].reason


def _decoded(path: Path) -> bytes:
    """The bytes of a file, and for Parquet (compressed columns) every value in it as text."""
    data = path.read_bytes()
    if path.suffix != ".parquet":
        return data
    import duckdb

    rows = duckdb.sql(f"select * from read_parquet('{path}')").fetchall()
    about = duckdb.sql(f"select decode(key), decode(value) from parquet_kv_metadata('{path}')").fetchall()
    return data + repr((rows, about)).encode()


def test_no_planted_secret_is_in_the_whole_case_after_check_report_and_signature(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(run.directory)
    (root / ".netrc").write_text(f"machine example.org login ada password {SECRETS['password']}\n")
    (root / "trainer_state.json").write_text(json.dumps({"args": {"hub_token": SECRETS["hugging face"]}}))
    (root / "wandb.json").write_text(json.dumps({"env": {"WANDB_API_KEY": SECRETS["wandb"]}}))
    jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ0aWdlciJ9.dGlnZXJ0aWdlcg"
    (root / "notes.log").write_text(f"cookie {jwt}\n+ python x.py --token={SECRETS['generic token']}\n")
    private, _public = write_keys(tmp_path)
    case = freeze(
        run,
        incident(),
        cases=Path(f"{run.directory}.spike"),
        operator="ada",
        signals=signals(),
        options=Options(key=private),
    )
    check_case(case, run)
    write_report(case, shipped_pages())
    case.record(f"branch --token {SECRETS['generic token']}", f"https://ada:{SECRETS['url']}@example.org", 0)
    planted = {**SECRETS, "jwt": jwt.rpartition(".")[2]}
    files = [path for path in case.path.rglob("*") if path.is_file()]
    leaks = [
        (name, path.relative_to(case.path))
        for path in files
        for data in (_decoded(path),)
        for name, secret in planted.items()
        if secret.encode() in data or secret in path.name
    ]
    with capsys.disabled():
        print(f"\nsecrets: {len(planted)} kinds searched in {len(files)} files, misses {len(leaks)}")
    assert leaks == []
    assert len(planted) >= 12
    assert any(path.suffix == ".parquet" for path in files)
    assert any(path.name == "postmortem.html" for path in files)
    # What is needed is still there: names, digests, commits.
    report = (case.path / "postmortem.md").read_text()
    manifest = read_manifest(case.path)
    assert manifest is not None
    assert manifest.tree_digest[:16] in report
    assert "loss" in report
    assert "lr: 0.0003" in (case.path / "evidence/run/cfg.yaml").read_text()
