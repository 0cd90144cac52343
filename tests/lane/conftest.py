"""A node with one bucket, each module its own; a module may have a node of another kind by the same name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ais_loader import connect
from storage_node.server import NodeServer
from tests.node.node_kit import serving


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeServer]:
    with serving(tmp_path_factory.mktemp("node"), stall_timeout_s=2.0) as node:
        with connect(node.url) as client:
            client.create_bucket("b")
        yield node
