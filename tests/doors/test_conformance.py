"""ceph's s3-tests: those fail that the page names, and no others."""

from __future__ import annotations

import pytest

from tests.doors.conformance import PAGE, REASONS, failures, page, run
from tests.doors.environments import Unavailable


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("store", ["embedded", "node"])
def test_conformance(store: str) -> None:
    try:
        passed = run(store)
    except Unavailable as error:
        pytest.skip(f"s3-tests: {error}")
    assert failures(passed) == set(REASONS)
    assert page(passed) == PAGE.read_text()
