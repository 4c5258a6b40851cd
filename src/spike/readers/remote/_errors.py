"""What does a backend's exception mean: try again, no such object, not allowed, other bytes by now, or no store?

Backends raise what their HTTP library raises; they are told apart by the names of their classes, because importing
those libraries here would make every one of them a dependency.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

from spike.domain.errors import InputUnreadable, SpikeError
from spike.domain.redaction import redact
from spike.readers.remote.contract import StoreUnavailable

T = TypeVar("T")

PAUSES_S = (0.5, 1.0, 2.0, 4.0)
"""Before each new attempt; backends retry for themselves inside of one attempt already."""
FURTHER_BYTES = 1 << 16
"""A connection that brought so much before it broke was worth its while: a bad line is slow, and not the end."""
CHANGED = "changed while it was read"
_PASSING = frozenset(
    (
        *("TimeoutError", "HTTPClientError", "ConnectionError", "ClientConnectionError", "ClientPayloadError"),
        *("IncompleteRead", "ResponseParserError", "ServerDisconnectedError", "ConnectionClosedError"),
    )
)
_NO_LOGIN = frozenset(("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "DefaultCredentialsError"))
_PASSING_ERRNOS = frozenset(
    (
        *(errno.EBUSY, errno.EREMOTEIO, errno.EIO, errno.EAGAIN, errno.EPIPE),
        *(errno.ECONNRESET, errno.ECONNREFUSED, errno.ETIMEDOUT, errno.ENETUNREACH, errno.EHOSTUNREACH),
    )
)
LOGIN_HINT = "give the store's own credentials (AWS_PROFILE, AWS_ACCESS_KEY_ID, ...), then type the same command again"
AGAIN_HINT = "type the same command again when the store answers: what was read whole is kept"


class ShortRead(ConnectionError):
    """The connection ended before the bytes that were asked for had come."""


def is_passing(error: BaseException) -> bool:
    """True for throttling, 5xx, timeouts and broken connections: the same question may be answered later."""
    if _names(error) & _PASSING:
        return True
    return isinstance(error, OSError) and error.errno in _PASSING_ERRNOS


def is_precondition(error: BaseException) -> bool:
    """True where a store refused a read because its bytes are not those that were asked for (HTTP 412)."""
    return code_of(error) in ("PreconditionFailed", "412") or type(error).__name__ == "FileExpired"


def code_of(error: BaseException) -> str:
    """The store's own error code ("NoSuchKey"), "" where it gave none."""
    for link in (error, error.__cause__):
        response = getattr(link, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
    return ""


def asking(url: str, ask: Callable[[], T], *, what: str = "", how_far: Callable[[], int] = lambda: 0) -> T:
    """Ask the store, again after a pause where that may help; the last error becomes one for the operator.

    `FileNotFoundError` passes through: whether it matters is for the caller to say. `what` says what was asked for;
    attempts after which `how_far` has grown by `FURTHER_BYTES` are not counted.
    """
    attempts, reached = 0, how_far()
    while True:
        try:
            return ask()
        except (FileNotFoundError, SpikeError):
            raise
        except Exception as error:
            if how_far() >= reached + FURTHER_BYTES:
                attempts, reached = 0, how_far()
            if not is_passing(error) or attempts >= len(PAUSES_S):
                raise translated(error, url, what, attempts + 1) from error
            time.sleep(PAUSES_S[attempts])
            attempts += 1


def translated(error: Exception, url: str, what: str, attempts: int) -> SpikeError:
    """The error that the operator sees. Texts of backends may hold signed addresses, so they are redacted."""
    reason = redact(f"{type(error).__name__}: {str(error).strip() or code_of(error)}")
    place = f"{url}{f' ({what})' if what else ''}"
    if _names(error) & _NO_LOGIN:
        return StoreUnavailable(f"no credentials for {place}: {reason}", hint=LOGIN_HINT)
    if is_precondition(error):
        return InputUnreadable(f"{url} {CHANGED}", hint="wait until the save is over: spike freeze")
    if isinstance(error, PermissionError):
        return InputUnreadable(f"the store refuses {place}: {reason}", hint=LOGIN_HINT)
    if is_passing(error):
        return StoreUnavailable(f"{place} could not be read in {attempts} attempts: {reason}", hint=AGAIN_HINT)
    return InputUnreadable(f"cannot read {place}: {reason}", hint="look at the address in spike.yaml")


def _names(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}
