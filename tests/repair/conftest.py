"""Patience of these tests, on a machine that stands still."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.node.drive_kit import patient_operators


@pytest.fixture(autouse=True, scope="module")
def patient() -> Iterator[None]:
    """Operators wait for nodes that do not answer for some seconds."""
    with patient_operators():
        yield
