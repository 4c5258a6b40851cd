"""Who vouches for this evidence? An in-toto statement in a DSSE envelope, signed with an ed25519 key.

The statement names the digest of manifest.json and the journal's newest entry, so one signature holds every file
of the evidence and everything that was recorded up to then. Without a signature, somebody who rewrites files,
manifest, journal and head together is not found out; with it, only the key's owner could.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spike.casefile import journal
from spike.casefile.atomic import write_atomic
from spike.casefile.codec import canonical, dumps
from spike.casefile.manifest import EVIDENCE, MANIFEST_NAME, SIGNATURE_NAME, read_manifest
from spike.domain.errors import InputUnreadable, SpikeError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:spike:evidence:1"


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature that holds."""

    key_id: str
    """SHA-256 of the public key (DER)."""
    manifest_sha256: str
    journal_count: int
    journal_digest: str


def sign_manifest(case: Path, case_id: str, key_file: Path) -> str:
    """Sign the manifest as it is and the journal up to its newest entry; returns the artefact's path in the case.

    Raises `SpikeError` where the key is not an unencrypted ed25519 private key, or nothing is frozen yet.
    """
    key = _private_key(key_file)
    manifest = read_manifest(case)
    if manifest is None:
        raise SpikeError(f"{case} has no manifest to sign", hint="spike freeze")
    newest = journal.read_journal(case)[-1]
    name = f"{EVIDENCE}/{MANIFEST_NAME}"
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": hashlib.sha256((case / name).read_bytes()).hexdigest()}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "case": case_id,
            "treeDigest": manifest.tree_digest,
            "journal": {"count": newest.seq, "digest": newest.digest},
        },
    }
    body = canonical(statement)
    envelope = {
        "payloadType": PAYLOAD_TYPE,
        "payload": base64.b64encode(body).decode(),
        "signatures": [
            {
                "keyid": _key_id(key.public_key()),
                "sig": base64.b64encode(key.sign(pre_authentication_encoding(PAYLOAD_TYPE, body))).decode(),
            }
        ],
    }
    write_atomic(case / EVIDENCE / SIGNATURE_NAME, dumps(envelope).encode())
    return f"{EVIDENCE}/{SIGNATURE_NAME}"


def check_signature(case: Path, public_key_file: Path) -> Signature:
    """The signature over the manifest that is there now and the journal's chain, checked with this key.

    Raises `InputUnreadable` with the reason where it does not hold, `SpikeError` for a file that is no such key.
    """
    from cryptography.exceptions import InvalidSignature

    key = _public_key(public_key_file)
    body, signatures = _read_envelope(case / EVIDENCE / SIGNATURE_NAME)
    signed = pre_authentication_encoding(PAYLOAD_TYPE, body)
    for raw in signatures:
        try:
            key.verify(raw, signed)
            break
        except InvalidSignature:
            continue
    else:
        raise InputUnreadable(f"the signature of {case} was not made with the key of {public_key_file}")
    found = _read_statement(body, _key_id(key))
    now = hashlib.sha256((case / EVIDENCE / MANIFEST_NAME).read_bytes()).hexdigest()
    if found.manifest_sha256 != now:
        raise InputUnreadable(f"{EVIDENCE}/{MANIFEST_NAME} is not the one that was signed")
    if journal.entry_digest_at(case, found.journal_count) != found.journal_digest:
        raise InputUnreadable(f"journal entry {found.journal_count} is not the one that was signed")
    return found


def signed_key_ids(case: Path) -> tuple[str, ...]:
    """Which keys claim to have signed; nothing is checked. Empty where there is no envelope."""
    try:
        envelope = json.loads((case / EVIDENCE / SIGNATURE_NAME).read_text(encoding="utf-8"))
        return tuple(str(s["keyid"]) for s in envelope["signatures"])
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def pre_authentication_encoding(payload_type: str, body: bytes) -> bytes:
    """What DSSE v1 signs: "DSSEv1", then type and body, each with its length in front."""
    name = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(name), name, len(body), body)


def _read_envelope(path: Path) -> tuple[bytes, list[bytes]]:
    try:
        envelope: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if envelope["payloadType"] != PAYLOAD_TYPE:
            raise ValueError(f"payload type is {envelope['payloadType']!r}")
        body = base64.b64decode(envelope["payload"], validate=True)
        return body, [base64.b64decode(s["sig"], validate=True) for s in envelope["signatures"]]
    except FileNotFoundError:
        raise InputUnreadable(f"{path} does not exist: the evidence is not signed") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputUnreadable(f"{path} is not a DSSE envelope: {error}") from error


def _read_statement(body: bytes, key_id: str) -> Signature:
    try:
        statement = json.loads(body)
        if statement["predicateType"] != PREDICATE_TYPE or statement["_type"] != STATEMENT_TYPE:
            raise ValueError(f"it is a {statement['predicateType']!r}")
        return Signature(
            key_id=key_id,
            manifest_sha256=str(statement["subject"][0]["digest"]["sha256"]),
            journal_count=int(statement["predicate"]["journal"]["count"]),
            journal_digest=str(statement["predicate"]["journal"]["digest"]),
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise InputUnreadable(f"what was signed is not a statement about a case: {error}") from error


def _private_key(path: Path) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    hint = "make one: openssl genpkey -algorithm ed25519 -out key.pem"
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise SpikeError(f"cannot use {path} as a signing key: {error}", hint=hint) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SpikeError(f"{path} is not an ed25519 key", hint=hint)
    return key


def _public_key(path: Path) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    hint = "openssl pkey -in key.pem -pubout -out key.pub"
    try:
        key = load_pem_public_key(path.read_bytes())
    except (OSError, ValueError, TypeError) as error:
        raise SpikeError(f"cannot use {path} as a public key: {error}", hint=hint) from error
    if not isinstance(key, Ed25519PublicKey):
        raise SpikeError(f"{path} is not an ed25519 public key", hint=hint)
    return key


def _key_id(key: Ed25519PublicKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()
