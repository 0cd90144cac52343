"""A node that stands still for some seconds takes part in a promotion of these tests all the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ais_loader.transport.cluster import promote


@pytest.fixture(autouse=True, scope="module")
def patient_looks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(promote, "LOOK_TIMEOUT_S", 180.0)
        yield
