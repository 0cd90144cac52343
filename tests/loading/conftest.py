"""No loader of these tests leaves a thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from loading_kit import our_threads


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = our_threads()
    yield
    assert our_threads() == before
