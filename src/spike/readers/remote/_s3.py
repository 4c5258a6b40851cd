"""How is S3 read so that the bytes are those of one version? By version id, and with If-Match on the ETag.

Keys are sent to the store as they are: fsspec's own paths would read `key?versionId=x` as another key.
"""

from __future__ import annotations

from typing import Any

from spike.domain.errors import InputUnreadable
from spike.domain.remote import StoredObject
from spike.readers.remote._errors import CHANGED, ShortRead, asking, code_of
from spike.readers.remote._open import AnyStore, nanoseconds

_UNVERSIONED = ("", "null")
"""Version ids of a bucket without versioning, or from the time before it was switched on: they protect nothing."""
_PIECE_BYTES = 1 << 18
_ABSENT = ("NoSuchVersion", "NoSuchKey", "404", "MethodNotAllowed", "405")
"""405 is what S3 answers for a delete marker."""


class S3Store(AnyStore):
    """S3 and everything that speaks it (MinIO, Ceph, R2), through s3fs."""

    def head(self, path: str, version: str = "") -> StoredObject | None:
        """See `Store`."""
        bucket, _, key = path.partition("/")
        extra = {"VersionId": version} if version else {}
        try:
            found = asking(
                self.url(path), lambda: self.filesystem.call_s3("head_object", Bucket=bucket, Key=key, **extra)
            )
        except FileNotFoundError:
            return None
        except InputUnreadable as error:
            cause = error.__cause__
            # A version id that never was is a bad request (400) to a HEAD, which has no body to say more.
            if cause is not None and (code_of(cause) in _ABSENT or (version and code_of(cause) == "400")):
                return None
            raise
        return _stored(path, found)

    def read(self, stored: StoredObject, start: int, end: int) -> bytes:
        """See `Store`. After a broken connection the rest is asked for, from the byte at which it broke."""
        url, got = self.url(stored.path), bytearray()

        def ask() -> bytes:
            if start + len(got) < end:
                self._more(stored, start + len(got), end, got)
            if len(got) != end - start:
                raise ShortRead(f"{len(got)} of {end - start} bytes came")
            return bytes(got)

        try:
            return asking(url, ask, what=f"bytes {start} to {end} of {stored.size}", how_far=lambda: len(got))
        except FileNotFoundError as error:
            raise InputUnreadable(f"{url} {CHANGED}: it was deleted") from error
        except InputUnreadable as error:
            if error.__cause__ is not None and code_of(error.__cause__) in ("InvalidRange", "416"):
                raise InputUnreadable(f"{url} {CHANGED}: it is shorter now") from error
            raise

    def _more(self, stored: StoredObject, start: int, end: int, got: bytearray) -> None:
        from fsspec.asyn import sync

        bucket, _, key = stored.path.partition("/")
        wanted = {"Bucket": bucket, "Key": key, "Range": f"bytes={start}-{end - 1}"}
        if stored.etag:
            wanted["IfMatch"] = f'"{stored.etag}"'
        if stored.version:
            wanted["VersionId"] = stored.version
        sync(self.filesystem.loop, _body, self.filesystem, wanted, got)


async def _body(filesystem: Any, wanted: dict[str, str], got: bytearray) -> None:
    """Append what comes to `got`, as it comes: what is there when the connection breaks is not asked for again."""
    response = await filesystem._call_s3("get_object", **wanted)
    try:
        async for piece in response["Body"].iter_chunks(_PIECE_BYTES):
            got += piece
    finally:
        response["Body"].close()


def _stored(path: str, row: dict[str, Any]) -> StoredObject:
    version = str(row.get("VersionId") or "")
    return StoredObject(
        path=path,
        size=int(row["ContentLength"]),
        etag=str(row.get("ETag", "")).strip('"'),
        version="" if version in _UNVERSIONED else version,
        modified_ns=nanoseconds(row.get("LastModified", 0)),
    )
