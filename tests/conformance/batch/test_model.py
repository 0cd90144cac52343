"""Random batches against a dict: whatever is asked, the answer is what Python's own slices say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from conformance_kit import fill
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ais_loader import Bucket, Client, Entry, Status
from ais_loader.testing import SeededObjects

pytestmark = pytest.mark.slow

SIZES = [0, 1, 2, 100, 4096, 65_536, 262_144, 262_145, 600_000, 1_048_576, 1_048_577, 4_194_304, 4_194_305, 6_000_000]
OBJECTS = SeededObjects({f"o/{at}": (size, at) for at, size in enumerate(SIZES)})


@pytest.fixture
def filled(bucket: Bucket) -> Bucket:
    fill(bucket, OBJECTS)
    return bucket


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    """Entries of which about one in six cannot be had."""
    bucket = draw(st.sampled_from(["here"] * 19 + ["no-such-bucket"]))
    name = draw(st.sampled_from([*OBJECTS, *OBJECTS, "missing"]))
    size = len(OBJECTS.get(name, b""))
    if draw(st.integers(0, 2)):
        return Entry(bucket, name)
    near = st.integers(0, 3) | st.integers(max(0, size - 3), size + 2) | st.integers(0, size)
    start = draw(near)
    length = draw(st.none() | st.integers(0, 3) | st.integers(0, max(0, size - start) + 1))
    return Entry(bucket, name, start=start, length=length)


def expected(entry: Entry) -> tuple[Status, bytes]:
    data = OBJECTS.get(entry.name)
    if entry.bucket != "here" or data is None:
        return Status.NOT_FOUND, b""
    stop = len(data) if entry.length is None else entry.start + entry.length
    if not 0 <= entry.start <= stop <= len(data):
        return Status.RANGE, b""
    return Status.OK, data[entry.start : stop]


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    # Only the store is shared between examples, and no example changes it.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    wanted=st.lists(entries(), max_size=40), streaming=st.booleans(), verify_ranges=st.booleans(), whole=st.booleans()
)
def test_any_batch_is_what_slices_of_a_dict_are(
    client: Client, filled: Bucket, wanted: list[Entry], streaming: bool, verify_ranges: bool, whole: bool
) -> None:
    asked = [replace(entry, bucket=filled.name) if entry.bucket == "here" else entry for entry in wanted]
    options: dict[str, Any] = {"streaming": streaming, "verify_ranges": verify_ranges, "on_error": "placeholder"}
    answers = [expected(entry) for entry in wanted]
    if whole:
        found = client.get_batch(asked, **options).tobytes()
        assert found == [data if status == Status.OK else None for status, data in answers]
        return
    batch = client.get_batch(asked, **options)
    items = [(item.index, item.status, item.tobytes()) for item in batch]
    assert items == [(at, *answer) for at, answer in enumerate(answers)]
