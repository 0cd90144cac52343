"""One filled store, embedded and behind a storage node, for the whole run: the tests only read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from datasets_kit import BUCKET, CORPUS, RecordingTransport

from ais_loader import Client, connect
from ais_loader.testing import throwaway_node, throwaway_store


@pytest.fixture(scope="session")
def local_store() -> Iterator[Client]:
    """An embedded store's writer, which has been used before any worker is forked."""
    with throwaway_store(CORPUS, bucket=BUCKET) as client:
        yield client


@pytest.fixture(scope="session")
def node_store() -> Iterator[Client]:
    """A client of a storage node, which has been used before any worker is forked."""
    with throwaway_node(CORPUS, bucket=BUCKET) as node, connect(node.url) as client:
        assert client.bucket(BUCKET).get("en/001.wav") == CORPUS["en/001.wav"]
        yield client


@pytest.fixture(params=["embedded", "grpc"])
def store(request: pytest.FixtureRequest) -> Client:
    """The same store over each transport."""
    client: Client = request.getfixturevalue("local_store" if request.param == "embedded" else "node_store")
    return client


@pytest.fixture
def recording(local_store: Client) -> Iterator[RecordingTransport]:
    """A transport of a reader of its own, with a list of the requests made."""
    transport = RecordingTransport(local_store.url.removeprefix("file://"))
    yield transport
    transport.close()
