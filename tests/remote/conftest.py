"""An S3 server for all tests of a process, a proxy in front of it for each test, and a new bucket."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from ais_loader import errors
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from ais_loader.testing import throwaway_folder
from ais_loader.testing.node import NodeProcess
from ais_loader.wire.remote import Remote
from storage_node.remote import embedded
from storage_node.settings.config import ServerConfig
from tests.cluster_processes import ClusterProcesses
from tests.remote.backend_kit import ANY_HOST
from tests.remote.fault_proxy import FaultProxy
from tests.remote.s3_server import CREDENTIALS, S3Server

LARGE_BYTES, RANGE_BYTES = 8 << 20, 2 << 20
"""Objects of more bytes are fetched in ranges of this size, by the nodes and embedded stores of these tests: a quarter
of the defaults, as the servers of tests are slow."""
SETTINGS = {"remote_large_object_bytes": LARGE_BYTES, "remote_range_bytes": RANGE_BYTES, "remote_hedge_budget": 0.0}
"""Without second requests for what is slow: tests count requests, also on a machine on which all is slow."""
_ARGUMENTS = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
_TOKEN = {"AWS_SESSION_TOKEN": "test-token"}
"""With it, the server is reached through the gate."""


def _of_nodes(promote_root: Path) -> list[str]:
    return [*_ARGUMENTS, *ANY_HOST, "--promote-root", str(promote_root), "--set", "etl_code=true"]


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A server, and its credentials in the environment of this process and of the nodes that it starts from then on."""
    with S3Server() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        patch.setattr(embedded, "ServerConfig", partial(ServerConfig, **SETTINGS))
        yield server


@pytest.fixture(scope="session")
def node(s3: S3Server, promote_root: Path) -> Iterator[NodeProcess]:
    """A node with the credentials of the S3 server. Never pause or kill it."""
    with (
        throwaway_folder() as folder,
        NodeProcess(folder / "drive", arguments=_of_nodes(promote_root), environment=_TOKEN) as running,
    ):
        yield running


@pytest.fixture(scope="session")
def shared_cluster(s3: S3Server, promote_root: Path) -> Iterator[ClusterProcesses]:
    """Three nodes with the credentials of the S3 server. Never pause or kill one."""
    with throwaway_folder() as folder, ClusterProcesses(folder, 3, arguments=_of_nodes(promote_root)) as running:
        yield running


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


@pytest.fixture
def cold(client: Client, bucket_name: str, remote_bucket: RemoteBucket) -> Iterator[Bucket]:
    """A remote bucket over `remote_bucket`, with nothing stored."""
    remote = Remote(remote_bucket.url, endpoint=remote_bucket.endpoint)
    yield client.create_bucket(bucket_name, remote=remote, copies=2 if "," in client.url else 1)
    with contextlib.suppress(errors.Closed, errors.NotFound):
        client.delete_bucket(bucket_name, force=True)
