"""Patience of these tests, on a machine that stands still."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from storage_node.cluster.map import buckets
from tests.node.drive_kit import TIMEOUT_S, patient_operators


@pytest.fixture(autouse=True, scope="module")
def patient() -> Iterator[None]:
    """Calls of operators and changes of the map wait for nodes that do not answer for some seconds."""
    with patient_operators(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets, "CHANGE_TIMEOUT_S", TIMEOUT_S)
        patch.setattr(buckets, "LIST_TIMEOUT_S", TIMEOUT_S)
        yield
