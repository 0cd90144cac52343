"""Batches that break off: the client always notices, and a client that leaves takes nothing with it."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader.integrations.gateway.clients import Clients
from ais_loader.integrations.gateway.server.options import Limits
from ais_loader.testing import NodeProcess
from tests.gateway.aistore.calls import ask, call, connection, succeeded
from tests.gateway.aistore.test_batch import batch, entry
from tests.gateway.conftest import ACCOUNT, Served
from tests.gateway.gateway_thread import GatewayThread
from tests.gateway.test_boto3 import data
from tests.gateway.test_bundle import members

OBJECT_BYTES = 8 << 20
COUNT = 16


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "drive") as running:
        yield running


@pytest.fixture
def gateway(node: NodeProcess) -> Iterator[Served]:
    """A gateway with one slot over a node of its own, and a bucket `b` with 128 MiB."""
    clients = Clients(node.url, [ACCOUNT])
    try:
        limits = Limits(requests=1, wait_s=60, idle_s=600, still_s=600)  # a silent client keeps its slot
        with GatewayThread(clients, {ACCOUNT.access_key: ACCOUNT}, limits=limits) as running:
            served = Served(running, clients)
            bucket = served.client.create_bucket("b")
            content = data(1, OBJECT_BYTES)
            for number in range(COUNT):
                bucket.put(f"o{number}", content)
            yield served
    finally:
        clients.close()


def begun(served: Served, *, goes_on: bool) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """Return a connection, and the answer to a large batch of which a part has been read."""
    entries = [entry("b", f"o{number}") for number in range(COUNT)]
    opened = connection(served)
    answer = ask(opened, "GET", "ml/moss", {"in": entries, "strm": True, "coer": goes_on})
    assert answer.status == 200
    assert len(answer.read(1 << 20)) == 1 << 20
    return opened, answer


@pytest.mark.slow
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_node_is_killed_in_the_middle(node: NodeProcess, gateway: Served, goes_on: bool) -> None:
    opened, answer = begun(gateway, goes_on=goes_on)
    node.kill()
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        answer.read()
    opened.close()


@pytest.mark.slow
def test_a_client_that_leaves_frees_its_slot(gateway: Served) -> None:
    for _ in range(3):
        opened, answer = begun(gateway, goes_on=True)
        answer.close()
        opened.close()
    small = succeeded(batch(gateway, [entry("b", "o1", start=5, length=3)]))
    assert members(small.body) == [("b/o1", data(1, OBJECT_BYTES)[5:8])]


@pytest.mark.slow
def test_an_entry_that_disappears_in_a_strict_batch(gateway: Served) -> None:
    gateway.client.bucket("b").delete(f"o{COUNT - 1}")
    entries = [entry("b", f"o{number}") for number in range(COUNT)]
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        call(gateway, "GET", "ml/moss", {"in": entries, "strm": True})
    refused = call(gateway, "GET", "ml/moss", {"in": entries, "strm": False})
    assert refused.status == 404
