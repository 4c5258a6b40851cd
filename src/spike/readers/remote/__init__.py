"""What lies in an object store, and how are its bytes read without ever mixing two versions of them?

Any fsspec scheme; S3 by version id or If-Match, other stores by comparing size, mark and time before and after.
Credentials and endpoints are the backend's business (environment, its configuration files, FSSPEC_*): nothing of
them passes through here. Reads only.
"""

from __future__ import annotations

from spike.readers.remote._find import find_objects, find_stored, list_below
from spike.readers.remote._open import open_store
from spike.readers.remote._steady import as_it_is, refuse_change, usable_objects
from spike.readers.remote._stream import read_blocks
from spike.readers.remote.contract import Store, StoreUnavailable

__all__ = [
    "Store",
    "StoreUnavailable",
    "as_it_is",
    "find_objects",
    "find_stored",
    "list_below",
    "open_store",
    "read_blocks",
    "refuse_change",
    "usable_objects",
]
