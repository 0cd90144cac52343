"""An S3 server for all tests of a process, a proxy in front of it for each test, and a new bucket."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.remote.fault_proxy import FaultProxy
from tests.remote.s3_server import CREDENTIALS, S3Server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A server, and its credentials in the environment of this process and of the nodes that it starts from then on."""
    with S3Server() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(s3.endpoint) as running:
        yield running


@dataclass(frozen=True, slots=True)
class RemoteBucket:
    """A bucket of the S3 server. `url` and `endpoint` are those of a Remote; tests put and get beside the proxy."""

    s3: S3Server
    name: str
    endpoint: str
    """The URL of the test's proxy."""

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    def path(self, key: str) -> str:
        """The path of an object, by which the proxy knows it."""
        return f"{self.name}/{key}"

    def put(self, key: str, data: bytes, **metadata: str) -> str:
        """Return the new ETag."""
        return self.s3.put(self.name, key, data, metadata=metadata)

    def get(self, key: str) -> bytes:
        """Raises KeyError."""
        return self.s3.get(self.name, key)

    def delete(self, key: str) -> None:
        """Raises KeyError."""
        self.s3.delete(self.name, key)

    def keys(self) -> list[str]:
        return self.s3.keys(self.name)


@pytest.fixture
def remote_bucket(s3: S3Server, proxy: FaultProxy) -> RemoteBucket:
    """A new, empty bucket, with the test's proxy in front of it."""
    return RemoteBucket(s3, s3.bucket(), proxy.url)
