"""Stores in memory for tests of faults; see tests/store/memory_folder.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.memory_folder import folder_in_memory


@pytest.fixture
def tmp_path(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    if not request.path.name.startswith("test_store_"):
        yield tmp_path
        return
    with folder_in_memory(tmp_path) as folder:
        yield folder
