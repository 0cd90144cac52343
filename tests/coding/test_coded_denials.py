"""Takedowns in coded buckets: a denied object is refused at once, and its group ends, without the other objects."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from ais_loader import Status, connect, errors
from ais_loader.testing import eventually
from tests.coding.coded_kit import CodedCluster
from tests.node.cluster_kit import BUCKET

pytestmark = pytest.mark.slow

DRAW = random.Random(7)
OBJECTS = {f"s/{number:02}": DRAW.randbytes(40_000) for number in range(20)}


def files_with(folder: Path, data: bytes) -> list[str]:
    """Files with a piece of an object: fragments cut it."""
    found = [os.path.join(root, file) for root, _, files in os.walk(folder) for file in files]
    return [path for path in found if os.path.isfile(path) and data[1000:1400] in Path(path).read_bytes()]


def test_the_group_of_a_denied_object_ends_and_the_others_stay(tmp_path: Path) -> None:
    with CodedCluster(tmp_path, coding_grace_s=3.0, repair_interval_s=0.5) as cluster:
        cluster.put_coded(OBJECTS)
        with connect(cluster.nodes[0].url) as client:
            bucket, denied = client.bucket(BUCKET), ["s/03", "s/11"]
            assert all(files_with(tmp_path, OBJECTS[name]) for name in denied)
            found = bucket.deny(denied, reason="order")
            assert {copy.kind for one in found.names for copy in one.copies} == {"fragments"}
            assert not found.is_purged
            items = list(bucket.get_batch(list(OBJECTS), on_error="placeholder"))
            for item, (name, data) in zip(items, OBJECTS.items(), strict=True):
                if name in denied:
                    assert item.status == Status.OBJECT_DENIED
                else:
                    assert bytes(item.data) == data
            with pytest.raises(errors.ObjectDenied):
                bucket.get("s/03")
            eventually(lambda: not any(files_with(tmp_path, OBJECTS[name]) for name in denied), timeout_s=90.0)
            eventually(lambda: bucket.denied().is_purged, timeout_s=60.0)
            others = {name: data for name, data in OBJECTS.items() if name not in denied}
            assert [bytes(item.data) for item in bucket.get_batch(list(others))] == list(others.values())
