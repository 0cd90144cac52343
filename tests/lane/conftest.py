"""A node with one bucket, each module its own; a module may have a node of another kind by the same name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ais_loader import connect
from ais_loader.transport.grpc import connection
from ais_loader.transport.session import lane
from storage_node.context import peer_lane
from storage_node.server import NodeServer
from storage_node.services.lane import listener
from tests.node.node_kit import serving


@pytest.fixture(autouse=True, scope="module")
def patient() -> Iterator[None]:
    """A busy machine takes longer to open a lane than a client and a node wait, and then they do without."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (connection, lane, peer_lane):
            patch.setattr(module, "CONNECT_TIMEOUT_S", 20.0)
        patch.setattr(listener, "GREETING_TIMEOUT_S", 180.0)
        patch.setattr(listener, "LIFETIME_S", 180.0)
        yield


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeServer]:
    with serving(tmp_path_factory.mktemp("node")) as node:
        with connect(node.url) as client:
            client.create_bucket("b")
        yield node
