"""No loader of these tests leaves a thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from loading_kit import our_threads

from ais_loader.testing import eventually


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = our_threads()
    yield
    eventually(lambda: our_threads() == before)  # a loader that has raised a stall does not wait for its threads
