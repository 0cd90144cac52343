"""Transports under test: one suite for every way to reach a store. `batch/` has fewer, see its
conftest.py.

Clients are kept from test to test, since opening one takes longer than most tests; one that a test closes is replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader import Client, ClusterOptions, connect, errors
from ais_loader.testing import throwaway_folder
from ais_loader.testing.node import NodeProcess
from ais_loader.values.options import LaneChoice
from storage_node.store.drive import drive
from tests.fixtures import TRANSPORTS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.definition.add_marker(pytest.mark.every_transport)


@pytest.fixture(scope="session")
def embedded_path() -> Iterator[Path]:
    """A store of this suite alone: its client holds it open."""
    with throwaway_folder() as folder:
        yield folder / "store"


@pytest.fixture(scope="session")
def kept_clients(embedded_path: Path) -> Iterator[dict[tuple[str, LaneChoice], Client]]:
    kept: dict[tuple[str, LaneChoice], Client] = {}
    yield kept
    for client in kept.values():
        client.close()


@pytest.fixture(params=[*TRANSPORTS[:-1], "same host", TRANSPORTS[-1]])
def url(request: pytest.FixtureRequest) -> str:
    return url_of(request, request.param)


def url_of(request: pytest.FixtureRequest, transport: str) -> str:
    """The URL of a store; "same host" is the folder of the node that "grpc" and "lane" are."""
    if transport == "embedded":
        return f"file://{request.getfixturevalue('embedded_path')}"
    if transport == "cluster":
        return str(request.getfixturevalue("shared_cluster").url)
    node: NodeProcess = request.getfixturevalue("node")
    return f"node://{node.drives[0]}" if transport == "same host" else node.url


@pytest.fixture(scope="session", autouse=True)
def reads_here_after_each_write() -> Iterator[None]:
    """Have clients of `node:///` read from the folder also right after a write, not ask the node."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drive, "FOLLOW_INTERVAL_S", 0.0)
        yield


@pytest.fixture
def lane(url: str) -> LaneChoice:
    """A cluster is reached by lanes, and so is the node of a folder; a single node by gRPC alone, so that both are held
    to everything."""
    return "auto" if "," in url or url.startswith("node:") else "grpc"


@pytest.fixture
def client(url: str, lane: LaneChoice, kept_clients: dict[tuple[str, LaneChoice], Client]) -> Client:
    key = url, lane
    if key in kept_clients:
        try:
            kept_clients[key].buckets()
        except errors.Closed:
            del kept_clients[key]
    if key not in kept_clients:
        options = ClusterOptions(lane=lane) if url.startswith(("grpc:", "grpcs:")) else None
        kept_clients[key] = connect(url, options=options)
    return kept_clients[key]
