"""Fixtures of stores, clients, and buckets, of which `tests.conftest` makes a plugin for all tests.

One node process serves an entire test session, so tests are separated by buckets: each `bucket` has its own name.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader import errors
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import CA_VARIABLE, Client, connect
from ais_loader.testing.node import NodeProcess
from ais_loader.testing.stores import throwaway_folder
from tests.cluster_processes import ClusterProcesses

TRANSPORTS = ("embedded", "grpc", "cluster")
SECURE_VARIABLE = "AIS_LOADER_TEST_SECURE"
"""If this environment variable is set, the shared nodes use TLS."""


@pytest.fixture(scope="session")
def promote_root() -> Iterator[Path]:
    """The folder from which the shared nodes may promote files. Tests create their own folders in it."""
    with throwaway_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def identity() -> Iterator[Path | None]:
    """The identity folder of the shared nodes, whose CA all clients of this process trust; None without TLS."""
    if not os.environ.get(SECURE_VARIABLE):
        yield None
        return
    with throwaway_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv(CA_VARIABLE, str(folder / "ca.pem"))
        yield folder


@pytest.fixture(scope="session")
def node(promote_root: Path, identity: Path | None) -> Iterator[NodeProcess]:
    """A node that all tests share. Never pause or kill it."""
    arguments = ["--promote-root", str(promote_root)]
    with (
        throwaway_folder() as folder,
        NodeProcess(folder / "drive", arguments=arguments, identity=identity) as running,
    ):
        yield running


@pytest.fixture(scope="session")
def shared_cluster(promote_root: Path, identity: Path | None) -> Iterator[ClusterProcesses]:
    """Three nodes that all tests share. Never pause or kill one."""
    arguments = ["--promote-root", str(promote_root)]
    with throwaway_folder() as folder, ClusterProcesses(folder, 3, arguments=arguments, identity=identity) as running:
        yield running


@pytest.fixture(scope="session")
def embedded_path() -> Iterator[Path]:
    """The folder of an existing embedded store that all tests share. Open it with one client at a time."""
    with throwaway_folder() as folder:
        connect(folder / "store").close()
        yield folder / "store"


@pytest.fixture(params=TRANSPORTS)
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a store. Every test that uses this fixture runs once per transport."""
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
    """A new client for `url`, closed at the end."""
    with connect(url) as connected:
        yield connected


@pytest.fixture
def bucket_name() -> str:
    """A name that no other test uses."""
    return f"t-{uuid.uuid4().hex[:16]}"


@pytest.fixture
def bucket(client: Client, bucket_name: str) -> Iterator[Bucket]:
    """A new, empty bucket of `client`, deleted at the end if the client is still open."""
    yield client.create_bucket(bucket_name)
    with contextlib.suppress(errors.Closed, errors.NotFound):
        client.delete_bucket(bucket_name, force=True)
