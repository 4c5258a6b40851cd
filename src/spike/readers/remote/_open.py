"""Which store does an address mean, and what does it say of its objects? Any fsspec scheme; S3 has its own reader."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from spike.domain.errors import InputUnreadable, SpikeError
from spike.domain.redaction import redact
from spike.domain.remote import StoredObject, safe_url, shown_url
from spike.readers.remote._errors import CHANGED, ShortRead, asking, code_of
from spike.readers.remote.contract import Store

_INSTALL = {"s3": "'spike-runbook[s3]'", "s3a": "'spike-runbook[s3]'", "gs": "gcsfs", "gcs": "gcsfs"}
_INSTALL |= {"az": "adlfs", "abfs": "adlfs", "http": "aiohttp", "https": "aiohttp", "oci": "ocifs"}
_MARKS = ("ETag", "etag", "md5Hash", "content_md5")
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "created")


def open_store(url: str) -> Store:
    """The store of this address. Nothing is asked yet.

    Raises `SpikeError` with the pip command where the backend's package is missing, and for unknown schemes.
    """
    from fsspec.core import url_to_fs

    scheme = url.partition("://")[0]
    try:
        # Listings are never cached: a second look that remembers the first one would find no change.
        filesystem, root = url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        package = _INSTALL.get(scheme, "")
        hint = f"pip install {package}" if package else f"install the package that fsspec needs for {scheme}://"
        raise SpikeError(f"{shown_url(url)} needs a package that is not installed: {error}", hint=hint) from error
    except ValueError as error:
        raise SpikeError(
            f"{shown_url(url)}: {redact(str(error))}", hint="an address is SCHEME://BUCKET/KEY, like s3://bucket/run"
        ) from error
    if "s3" in _protocols(filesystem):
        from spike.readers.remote._s3 import S3Store

        return S3Store(filesystem, root, scheme)
    return AnyStore(filesystem, root, scheme)


class AnyStore:
    """A store without versions that we know how to ask for: a change shows in size, mark or time."""

    def __init__(self, filesystem: Any, root: str, scheme: str) -> None:
        self.filesystem = filesystem
        self.root = root
        self.scheme = scheme
        self.is_concurrent = bool(getattr(filesystem, "async_impl", False))

    def url(self, path: str) -> str:
        """See `Store`."""
        return shown_url(self._full(path))

    def address(self, path: str) -> str:
        """See `Store`."""
        return safe_url(self._full(path))

    def path_of(self, address: str) -> str:
        """See `Store`. Not by the backend: it would take a part of a strange key for a version or a query."""
        rest = address.partition("://")[2]
        return rest if self._is_flat and not self.root.startswith("/") else f"/{rest.lstrip('/')}"

    def names(self, folder: str) -> tuple[tuple[str, bool], ...]:
        """See `Store`."""
        try:
            rows = asking(self.url(folder), lambda: self.filesystem.ls(folder, detail=True), what="listing")
        except (FileNotFoundError, NotADirectoryError) as error:
            self._refuse_absent(error)
            return ()
        found = {str(row["name"]).rstrip("/").rpartition("/")[2]: row["type"] != "directory" for row in rows}
        return tuple(sorted(found.items()))

    def below(self, folder: str) -> tuple[StoredObject, ...]:
        """See `Store`."""
        try:
            rows = asking(self.url(folder), lambda: self.filesystem.find(folder, detail=True), what="listing")
        except FileNotFoundError as error:
            self._refuse_absent(error)
            return ()
        found = (described(name, row) for name, row in rows.items() if row["type"] != "directory")
        return tuple(sorted(found, key=lambda o: o.path))

    def head(self, path: str, version: str = "") -> StoredObject | None:
        """See `Store`."""
        del version
        try:
            row = asking(self.url(path), lambda: self.filesystem.info(path))
        except FileNotFoundError:
            return None
        return None if row["type"] == "directory" else described(path, row)

    def read(self, stored: StoredObject, start: int, end: int) -> bytes:
        """See `Store`. One request tells nothing about the version: callers compare `head` before and after."""
        url = self.url(stored.path)

        def ask() -> bytes:
            data: bytes = self.filesystem.cat_file(stored.path, start=start, end=end)
            if len(data) != end - start:
                raise ShortRead(f"{len(data)} of {end - start} bytes came")
            return data

        try:
            return asking(url, ask, what=f"bytes {start} to {end} of {stored.size}")
        except FileNotFoundError as error:
            raise InputUnreadable(f"{url} {CHANGED}: it was deleted") from error

    def _refuse_absent(self, error: Exception) -> None:
        """An empty folder is an answer; a bucket that does not exist is a mistake in the address."""
        if code_of(error) == "NoSuchBucket":
            raise InputUnreadable(
                f"there is no bucket of {self.url(self.root)}", hint="correct the address in spike.yaml"
            ) from error

    def _full(self, path: str) -> str:
        if "://" in path:
            return path
        return f"{self.scheme}://{path.lstrip('/') if self._is_flat else path}"

    @property
    def _is_flat(self) -> bool:
        """True where paths have no root of their own (`bucket/key`)."""
        return "file" not in _protocols(self.filesystem)


def described(path: str, row: dict[str, Any]) -> StoredObject:
    """What a backend's description of an object says; backends name the same things differently."""
    mark = next((str(row[key]) for key in _MARKS if row.get(key)), "")
    when = next((row[key] for key in _TIMES if row.get(key)), 0)
    return StoredObject(path, int(row.get("size") or 0), mark.strip('"'), "", nanoseconds(when))


def nanoseconds(when: object) -> int:
    """A backend's time as Unix nanoseconds, to the microsecond; 0 for what is none."""
    if isinstance(when, str):
        try:
            when = datetime.fromisoformat(when)
        except ValueError:
            return 0
    seconds = when.timestamp() if isinstance(when, datetime) else when
    return round(seconds * 1e6) * 1000 if isinstance(seconds, int | float) else 0


def _protocols(filesystem: Any) -> tuple[str, ...]:
    found = filesystem.protocol
    return (found,) if isinstance(found, str) else tuple(found)
