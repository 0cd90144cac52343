"""Takedowns in coded buckets: a denied object is refused at once, and its bytes leave the fragments of its group."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from ais_loader import Status, connect, errors
from ais_loader.testing import eventually
from storage_node.batch.gather.fragments import GatheredFragments
from storage_node.cluster.coding import fragments
from storage_node.cluster.coding.keeper import Keeper
from storage_node.context.errors import TooFewCopies
from tests.coding.coded_kit import CodedCluster
from tests.node.cluster_kit import BUCKET

pytestmark = pytest.mark.slow

DRAW = random.Random(7)
OBJECTS = {f"s/{number:02}": DRAW.randbytes(40_000) for number in range(20)}


def files_with(folder: Path, data: bytes) -> list[str]:
    """Files with a piece of an object: fragments cut it."""
    found = [os.path.join(root, file) for root, _, files in os.walk(folder) for file in files]
    return [path for path in found if os.path.isfile(path) and data[1000:1400] in Path(path).read_bytes()]


@pytest.mark.parametrize("snapshot", [False, True])
def test_the_bytes_of_denied_objects_leave_their_group_and_the_others_stay(
    tmp_path: Path, snapshot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fragments, "WINDOW_BYTES", 4096)  # objects end in one window, and others begin in the next
    with CodedCluster(tmp_path, coding_grace_s=4.0, repair_interval_s=0.5) as cluster:
        [manifest] = cluster.put_coded(OBJECTS)
        with connect(cluster.nodes[0].url) as client:
            bucket, denied = client.bucket(BUCKET), ["s/03", "s/11"]
            if snapshot:
                bucket.snapshot("kept")
            assert all(files_with(tmp_path, OBJECTS[name]) for name in denied)
            found = bucket.deny(denied, reason="order")
            assert {copy.kind for one in found.names for copy in one.copies} == {"fragments"}
            assert not found.is_purged
            others = {name: data for name, data in OBJECTS.items() if name not in denied}

            def check() -> None:
                for of in [BUCKET, f"{BUCKET}@kept"] if snapshot else [BUCKET]:
                    items = list(client.bucket(of).get_batch(list(OBJECTS), on_error="placeholder"))
                    for item in items:
                        if item.entry.name in denied:
                            assert item.status == Status.OBJECT_DENIED
                        else:
                            assert bytes(item.data) == OBJECTS[item.entry.name]

            check()
            with pytest.raises(errors.ObjectDenied):
                bucket.get("s/03")
            eventually(lambda: not any(files_with(tmp_path, OBJECTS[name]) for name in denied), timeout_s=90.0)
            eventually(lambda: bucket.denied().is_purged, timeout_s=60.0)
            check()
            entry = cluster.entry(cluster.owners("s/04")[0], "s/04")
            assert entry.group == manifest.group  # nothing was moved
            # The parity is that of what is left: no node asks for the first two fragments.
            monkeypatch.setattr(
                GatheredFragments,
                "failing",
                lambda _, bucket, names: {one for one in names if one[32:35] in ("/0/", "/1/")},
            )
            assert [bytes(item.data) for item in bucket.get_batch(list(others))] == list(others.values())


def test_lost_fragments_are_written_again_while_denied_bytes_cannot_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []

    async def wipe(*of: object) -> bool:
        tried.append(of)
        raise TooFewCopies("no host is left")

    monkeypatch.setattr(Keeper, "_wipe", wipe)
    with CodedCluster(tmp_path, coding_grace_s=4.0, repair_interval_s=0.5) as cluster:
        [manifest] = cluster.put_coded(OBJECTS)
        with connect(cluster.nodes[0].url) as client:
            client.bucket(BUCKET).deny(["s/03"], reason="order")
        eventually(lambda: bool(tried))
        lost = manifest.fragments[1]
        store = cluster.store(cluster.holder(lost))
        store.delete(cluster.companion, lost)
        eventually(lambda: [one.has_file for one in store.replicas.newest(cluster.companion, [lost]) if one] == [True])
