"""A real S3 server in a process of its own, for tests that talk to it through the real client."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

KEY, SECRET = "AKIA" + "TESTING7EXAMPLE4", "pl4nted/Secret+Key0fTh3T3stS3rv3rAAAAAAA"
_STARTS_WITHIN_S = 30.0


@dataclass(slots=True)
class S3Server:
    """One moto server; `stop` and `start` keep the port, not the objects."""

    port: int
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **self.environment},
        )
        deadline = time.monotonic() + _STARTS_WITHIN_S
        while time.monotonic() < deadline:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                urllib.request.urlopen(f"{self.endpoint}/moto-api/data.json", timeout=5).close()
                return
            time.sleep(0.05)
        raise RuntimeError("the S3 server did not start")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def client(self) -> Any:
        """A synchronous client of the tests' own, which spike does not use."""
        import botocore.session

        return botocore.session.get_session().create_client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        )

    def login(self) -> dict[str, str]:
        """What an operator's environment holds."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",
        }


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def running(**environment: str) -> Iterator[S3Server]:
    server = S3Server(free_port(), environment)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def make_bucket(client: Any, name: str, *, versioned: bool) -> str:
    client.create_bucket(Bucket=name)
    if versioned:
        client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    return name


@contextlib.contextmanager
def other_clients() -> Iterator[None]:
    """Clients that read the environment anew, and are forgotten again: one process has one client otherwise."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    try:
        yield
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
