"""Fixtures for pytest: `pytest_plugins = ["ais_loader.testing.fixtures"]`, or import those that you need.

One node process serves a whole test session, so tests keep apart by buckets: each `bucket` has a name of its own.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader import errors
from ais_loader.bucket import Bucket
from ais_loader.client import Client, connect
from ais_loader.testing.cluster import ClusterProcesses
from ais_loader.testing.folders import throwaway_folder
from ais_loader.testing.node import NodeProcess

TRANSPORTS = ("embedded", "grpc", "cluster")


@pytest.fixture(scope="session")
def promote_root() -> Iterator[Path]:
    """The folder from which the shared nodes may promote files; tests make folders of their own in it."""
    with throwaway_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def node(promote_root: Path) -> Iterator[NodeProcess]:
    """A node that all tests share: never pause or kill it."""
    arguments = ["--promote-root", str(promote_root)]
    with throwaway_folder() as folder, NodeProcess(folder / "drive", arguments=arguments) as running:
        yield running


@pytest.fixture(scope="session")
def shared_cluster(promote_root: Path) -> Iterator[ClusterProcesses]:
    """Three nodes that all tests share: never pause or kill one."""
    arguments = ["--promote-root", str(promote_root)]
    with throwaway_folder() as folder, ClusterProcesses(folder, 3, arguments=arguments) as running:
        yield running


@pytest.fixture(scope="session")
def embedded_path() -> Iterator[Path]:
    """The folder of an embedded store that all tests share, made already. Opened by one client at a time."""
    with throwaway_folder() as folder:
        connect(folder / "store").close()
        yield folder / "store"


@pytest.fixture(params=TRANSPORTS)
def url(request: pytest.FixtureRequest) -> str:
    """Where a store is: every test that asks for it runs once per transport."""
    if request.param == "grpc":
        found: NodeProcess = request.getfixturevalue("node")
        return found.url
    if request.param == "cluster":
        cluster: ClusterProcesses = request.getfixturevalue("shared_cluster")
        return cluster.url
    path: Path = request.getfixturevalue("embedded_path")
    return f"file://{path}"


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    """A new client of `url`, closed at the end."""
    with connect(url) as connected:
        yield connected


@pytest.fixture
def bucket_name() -> str:
    """A name that no other test uses."""
    return f"t-{uuid.uuid4().hex[:16]}"


@pytest.fixture
def bucket(client: Client, bucket_name: str) -> Iterator[Bucket]:
    """A new and empty bucket of `client`, deleted at the end if the client is still open."""
    yield client.create_bucket(bucket_name)
    with contextlib.suppress(errors.Closed, errors.NotFound):
        client.delete_bucket(bucket_name, force=True)
