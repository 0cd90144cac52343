"""Suites that others wrote: ceph's s3-tests, and those of AIStore's SDK. Those tests fail that the pages name."""

from __future__ import annotations

import pytest

from tests.doors import aistore_conformance, conformance
from tests.doors.environments import Unavailable


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("store", ["embedded", "node"])
def test_s3_conformance(store: str) -> None:
    try:
        passed = conformance.run(store)
    except Unavailable as error:
        pytest.skip(f"s3-tests: {error}")
    assert conformance.failures(passed) == set(conformance.REASONS)
    assert conformance.page(passed) == conformance.PAGE.read_text()


@pytest.mark.timeout(3300)
@pytest.mark.parametrize("store", ["embedded", "node", "cluster"])
def test_aistore_conformance(store: str) -> None:
    try:
        found = aistore_conformance.run(store)
    except Unavailable as error:
        pytest.skip(f"tests of AIStore's SDK: {error}")
    assert aistore_conformance.failures(found) == aistore_conformance.expected_failures(store)
    assert aistore_conformance.passed(found) == aistore_conformance.written(store)
