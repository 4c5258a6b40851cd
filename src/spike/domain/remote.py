"""What is known of evidence that lies in an object store, and how may its address be shown?

Pure: addresses, names and identities. Nobody is asked here; `spike.readers.remote` does that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

from spike.domain.redaction import REDACTED, redact

MAX_NAME_BYTES = 255
"""Of one component of a file name, on every common filesystem."""
_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")
_PORT = re.compile(r":\d{0,5}$")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object as the store described it."""

    path: str
    """As the store's own client names it: `bucket/key`."""
    size: int
    etag: str
    """The store's own mark of the content; "" where it has none."""
    version: str
    """Id under which these bytes can be read again after the key was overwritten; "" where no versions are kept."""
    modified_ns: int
    """When it was written, Unix nanoseconds; 0 where the store does not say."""

    def is_same(self, other: StoredObject) -> bool:
        """True where nothing that both descriptions hold speaks against the same bytes."""
        if self.version and other.version and self.version != other.version:
            return False
        return (self.size, self.etag) == (other.size, other.etag) and (
            bool(self.etag) or self.modified_ns == other.modified_ns
        )


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """One generation below a store's prefix, or in one object."""

    path: str
    step: int
    objects: tuple[StoredObject, ...]
    is_single: bool
    """The path is an object itself, not a prefix of several."""

    @property
    def num_bytes(self) -> int:
        """Of all its objects."""
        return sum(o.size for o in self.objects)


def is_url(text: str) -> bool:
    """True for an address of an object store (`s3://bucket/key`, `memory://x`), false for every path."""
    return bool(_URL.match(text))


def shown_url(url: str) -> str:
    """The address for people: without credentials, and on one line whatever bytes a key holds."""
    return "".join(c if c.isprintable() else quote(c, errors="surrogateescape") for c in safe_url(url))


def safe_url(url: str) -> str:
    """The address without credentials: user info cut, signatures of signed addresses replaced."""
    scheme, _, rest = url.partition("://")
    host = rest.partition("/")[0]
    # A secret key may hold slashes, and people paste it as it is: KEY:SEC/RET@bucket.
    if "@" in host or (":" in host and "@" in rest and not _PORT.search(host)):
        cut = host.rpartition("@")[2] + rest[len(host) :] if "@" in host else rest.rpartition("@")[2]
        rest = f"{REDACTED}@{cut}"
    return redact(f"{scheme}://{rest}")


def has_login(url: str) -> bool:
    """True where the address holds a user name or a key."""
    return f"://{REDACTED}@" in safe_url(url)


def why_not_a_file_name(relative: str) -> str:
    """ "" for a key that can be the path of a file below a directory; else the reason why it cannot."""
    parts = relative.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "its key has a component that is empty, '.' or '..'"
    if "\0" in relative:
        return "its key holds a NUL"
    if any(len(part.encode("utf-8", "surrogateescape")) > MAX_NAME_BYTES for part in parts):
        return f"its key has a component longer than {MAX_NAME_BYTES} bytes"
    return ""
