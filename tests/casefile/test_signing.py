"""Does a signature hold everything it should, and can openssl check it without us?"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from spike.casefile import journal
from spike.casefile.manifest import take_stock, write_manifest
from spike.casefile.signing import (
    PAYLOAD_TYPE,
    check_signature,
    pre_authentication_encoding,
    sign_manifest,
    signed_key_ids,
)
from spike.domain.errors import InputUnreadable, SpikeError


def write_keys(directory: Path, name: str = "key") -> tuple[Path, Path]:
    """(private, public) PEM files of a new ed25519 key."""
    key = Ed25519PrivateKey.generate()
    private, public = directory / f"{name}.pem", directory / f"{name}.pub"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


@pytest.fixture
def case(tmp_path: Path) -> Path:
    case = tmp_path / "case"
    (case / "evidence").mkdir(parents=True)
    (case / "evidence" / "a").write_bytes(b"evidence")
    write_manifest(case, take_stock(case / "evidence"))
    journal.append(case, "case", "opened", 0)
    journal.append(case, "freeze", "done", 0)
    return case


def test_a_signature_holds_with_the_right_key_and_no_other(case: Path, tmp_path: Path) -> None:
    private, public = write_keys(tmp_path)
    _, other = write_keys(tmp_path, "other")
    sign_manifest(case, "id", private)
    assert check_signature(case, public).journal_count == 2
    assert signed_key_ids(case) == (check_signature(case, public).key_id,)
    with pytest.raises(InputUnreadable, match="not made with the key"):
        check_signature(case, other)


def test_a_changed_manifest_is_not_the_signed_one(case: Path, tmp_path: Path) -> None:
    private, public = write_keys(tmp_path)
    sign_manifest(case, "id", private)
    (case / "evidence" / "a").write_bytes(b"planted!")
    write_manifest(case, take_stock(case / "evidence"))
    with pytest.raises(InputUnreadable, match="not the one that was signed"):
        check_signature(case, public)


def test_a_journal_rewritten_from_scratch_with_its_head_is_not_the_signed_one(case: Path, tmp_path: Path) -> None:
    private, public = write_keys(tmp_path)
    sign_manifest(case, "id", private)
    for name in (journal.JOURNAL_NAME, journal.HEAD_NAME):
        (case / name).unlink()
    journal.append(case, "case", "opened", 0)
    journal.append(case, "freeze", "nothing to see", 0)
    assert journal.verify_chain(case) == ()
    with pytest.raises(InputUnreadable, match="journal entry 2"):
        check_signature(case, public)


@pytest.mark.parametrize("field", ["payload", "sig", "payloadType", "gone"])
def test_a_tampered_envelope_does_not_hold(case: Path, tmp_path: Path, field: str) -> None:
    private, public = write_keys(tmp_path)
    file = case / sign_manifest(case, "id", private)
    envelope = json.loads(file.read_text())
    if field == "gone":
        file.unlink()
    elif field == "sig":
        envelope["signatures"][0]["sig"] = base64.b64encode(b"\0" * 64).decode()
    elif field == "payload":
        body = base64.b64decode(envelope["payload"]).replace(b'"case":"id"', b'"case":"xx"')
        envelope["payload"] = base64.b64encode(body).decode()
    else:
        envelope["payloadType"] = "text/plain"
    if field != "gone":
        file.write_text(json.dumps(envelope))
    with pytest.raises(InputUnreadable):
        check_signature(case, public)


def test_a_key_that_is_none_is_refused_with_the_command_that_makes_one(case: Path, tmp_path: Path) -> None:
    rsa = tmp_path / "rsa.pem"
    rsa.write_bytes(generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (tmp_path / "noise.pem").write_text("not a key")
    for path in (rsa, tmp_path / "noise.pem", tmp_path / "gone.pem"):
        with pytest.raises(SpikeError, match=r"\.pem") as refused:
            sign_manifest(case, "id", path)
        assert "openssl genpkey" in refused.value.hint


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_makes_keys_and_checks_signatures_of_ours(case: Path, tmp_path: Path) -> None:
    key, public = tmp_path / "key.pem", tmp_path / "key.pub"
    subprocess.run(("openssl", "genpkey", "-algorithm", "ed25519", "-out", str(key)), check=True, capture_output=True)
    subprocess.run(("openssl", "pkey", "-in", str(key), "-pubout", "-out", str(public)), check=True)
    envelope = json.loads((case / sign_manifest(case, "id", key)).read_text())
    body = base64.b64decode(envelope["payload"])
    (tmp_path / "signed").write_bytes(pre_authentication_encoding(PAYLOAD_TYPE, body))
    (tmp_path / "sig").write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    command = (
        "openssl",
        "pkeyutl",
        "-verify",
        "-pubin",
        "-inkey",
        "key.pub",
        "-rawin",
        "-in",
        "signed",
        "-sigfile",
        "sig",
    )
    assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 0
    statement = json.loads(body)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["subject"][0]["name"] == "evidence/manifest.json"
