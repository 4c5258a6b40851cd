"""What must be possible with a store, whatever its protocol, and how does one say that it does not answer?"""

from __future__ import annotations

from typing import Protocol

from spike.domain.errors import ExitCode, SpikeError
from spike.domain.remote import StoredObject


class StoreUnavailable(SpikeError):
    """The store does not answer, or not to us: nothing follows about what lies there, so the command ends."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, exit_code=ExitCode.UNREADABLE)


class Store(Protocol):
    """One store, opened with whatever credentials its backend finds. Paths are the backend's: `bucket/key`.

    Every method raises `StoreUnavailable` where the store does not answer, `InputUnreadable` where it says no.
    """

    root: str
    """The path that the address named."""
    is_concurrent: bool
    """True where several threads may ask at once."""

    def url(self, path: str) -> str:
        """The address of a path for people: without credentials, on one line."""

    def address(self, path: str) -> str:
        """The address of a path without credentials, its key as it is."""

    def path_of(self, address: str) -> str:
        """The path of an address in this store."""

    def names(self, folder: str) -> tuple[tuple[str, bool], ...]:
        """(name, is it an object?) of everything directly below a folder; empty where there is none."""

    def below(self, folder: str) -> tuple[StoredObject, ...]:
        """Every object below a folder, at any depth; versions are not asked for. Empty where there is none."""

    def head(self, path: str, version: str = "") -> StoredObject | None:
        """One object as it is now (or this version of it), None where it is not there."""

    def read(self, stored: StoredObject, start: int, end: int) -> bytes:
        """The bytes [start, end) of exactly this version, or of the content with exactly this mark.

        Raises `InputUnreadable` ("changed while it was read") where the store has other bytes now.
        """
