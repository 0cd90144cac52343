"""One filled store, embedded and behind a storage node, for the whole run: the tests only read."""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from datasets_kit import BUCKET, CORPUS, JOIN_TIMEOUT_S, RecordingTransport

from ais_loader import Client, connect

_NODE = """
import sys
from storage_node.config import ServerConfig
from storage_node.run import run_node
run_node([sys.argv[1]], ServerConfig(port=0), lambda node: print(node.port, flush=True))
"""


@contextmanager
def running_node(drive: Path) -> Iterator[str]:
    """A storage node in a process of its own; its URL."""
    node = subprocess.Popen([sys.executable, "-c", _NODE, str(drive)], stdout=subprocess.PIPE)
    assert node.stdout is not None
    try:
        assert select.select([node.stdout], [], [], JOIN_TIMEOUT_S)[0], "the node does not start"
        yield f"grpc://127.0.0.1:{int(node.stdout.readline())}"
    finally:
        node.terminate()
        try:
            node.wait(JOIN_TIMEOUT_S)
        finally:
            node.kill()
            node.stdout.close()


def fill(client: Client) -> None:
    assert len(list(client.create_bucket(BUCKET).put_many(CORPUS.items()))) == len(CORPUS)


@pytest.fixture(scope="session")
def local_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """An embedded store's writer, which has been used before any worker is forked."""
    with connect(tmp_path_factory.mktemp("embedded") / "store") as client:
        fill(client)
        yield client


@pytest.fixture(scope="session")
def node_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a storage node, which has been used before any worker is forked."""
    with running_node(tmp_path_factory.mktemp("node")) as url, connect(url) as client:
        fill(client)
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
