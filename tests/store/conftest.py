"""Stores in memory for tests of the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.memory_folder import folder_in_memory


@pytest.fixture
def tmp_path(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    if request.path.name.startswith("test_batch_read"):
        yield tmp_path  # these choose their file system themselves
        return
    with folder_in_memory(tmp_path) as folder:
        yield folder
