"""Transports under test: one suite for every way to reach a store. `batch/` runs with both readers, see its
conftest.py.

Clients are kept from test to test, since opening one takes longer than most tests; one that a test closes is replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader import Client, connect, errors
from ais_loader.testing import NodeProcess, throwaway_folder


@pytest.fixture(scope="session")
def python_reader_node() -> Iterator[NodeProcess]:
    """A node that reads batches without the native reader."""
    with throwaway_folder() as folder, NodeProcess(folder, environment={"AIS_LOADER_READER": "python"}) as node:
        yield node


@pytest.fixture(scope="session")
def embedded_path() -> Iterator[Path]:
    """A store of this suite alone: its client holds it open."""
    with throwaway_folder() as folder:
        yield folder / "store"


@pytest.fixture(scope="session")
def kept_clients(embedded_path: Path) -> Iterator[dict[str, Client]]:
    kept: dict[str, Client] = {}
    yield kept
    for client in kept.values():
        client.close()


@pytest.fixture
def client(url: str, kept_clients: dict[str, Client]) -> Client:
    if url in kept_clients:
        try:
            kept_clients[url].buckets()
        except errors.Closed:
            del kept_clients[url]
    if url not in kept_clients:
        kept_clients[url] = connect(url)
    return kept_clients[url]
