"""Files of what was replaced or deleted stay until a test has them removed, or says when.

Otherwise they go after seconds, which a machine that stands still takes between two steps of a test.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from storage_node.store.drive import ended_versions


@pytest.fixture(autouse=True, scope="module")
def dead_files_stay() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ended_versions, "GRACE_S", 3600.0)
        yield
