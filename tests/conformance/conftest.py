"""Transports under test: one suite for every way to reach a store. `batch/` runs with both readers, see its
conftest.py.

Clients are kept from test to test, since opening one takes longer than most tests; one that a test closes is replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader import Client, ClusterOptions, connect, errors
from ais_loader.testing import throwaway_folder
from ais_loader.values.options import LaneChoice


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


@pytest.fixture
def lane(url: str) -> LaneChoice:
    """A cluster is reached by lanes and a single node by gRPC alone, so that both are held to everything."""
    return "auto" if "," in url else "grpc"


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
