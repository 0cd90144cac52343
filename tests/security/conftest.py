from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node.security.identity.identity_folder import IdentityFolder
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig


@pytest.fixture
def identity(tmp_path: Path) -> IdentityFolder:
    folder = IdentityFolder(tmp_path / "identity")
    folder.make()
    return folder


@pytest.fixture
def node(tmp_path: Path, identity: IdentityFolder) -> Iterator[NodeServer]:
    """A node with TLS."""
    config = ServerConfig(port=0, read_threads=4)
    with NodeServer([tmp_path / "drive"], config, identity=identity.path) as node:
        yield node
