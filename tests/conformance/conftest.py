"""One suite for every way to reach a store. `batch/` runs with both readers besides, see its conftest.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ais_loader.testing import NodeProcess


@pytest.fixture(scope="session")
def python_reader_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that reads batches without the native reader."""
    drive = tmp_path_factory.mktemp("python-reader-node") / "drive"
    with NodeProcess(drive, environment={"AIS_LOADER_READER": "python"}) as node:
        yield node
