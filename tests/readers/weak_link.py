"""A network between a client and a server that breaks when it is told to."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

_PIECE = 16384


@dataclass(slots=True)
class WeakLink:
    """Forwards TCP connections to `target`; every counter is set and read by tests."""

    target: int
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    cuts_left: int = 0
    """So many answers of more than `cut_after` bytes are ended in the middle."""
    cut_after: int = 50_000
    busy_left: int = 0
    """So many requests are answered with 503 by the link itself."""
    is_down: bool = False
    num_cut: int = 0
    num_busy: int = 0
    num_requests: int = 0

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def serve(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with contextlib.suppress(OSError), near:
            request = near.recv(65536)
            while request and not self.is_down:
                self.num_requests += 1
                if self.busy_left > 0:
                    self.busy_left -= 1
                    self.num_busy += 1
                    body = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
                    near.sendall(b"HTTP/1.1 503 Slow Down\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                elif not self._forward(near, request):
                    return
                request = near.recv(65536)

    def _forward(self, near: socket.socket, request: bytes) -> bool:
        """One request on a connection of its own; False where the link broke."""
        with socket.create_connection(("127.0.0.1", self.target)) as far:
            far.sendall(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
            sent = 0
            while piece := far.recv(_PIECE):
                near.sendall(piece)
                sent += len(piece)
                if sent > self.cut_after and self.cuts_left > 0:
                    self.cuts_left -= 1
                    self.num_cut += 1
                    return False
        return False  # the answer said that the connection closes


@contextlib.contextmanager
def weak_link(target: int) -> Iterator[WeakLink]:
    link = WeakLink(target)
    threading.Thread(target=link.serve, daemon=True).start()
    try:
        yield link
    finally:
        link.listener.close()
