"""Compaction of segments while clients read: in an embedded store and in a node."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ais_loader import Bucket, EmbeddedOptions, connect
from ais_loader.testing import eventually
from ais_loader.transport.embedded import EmbeddedTransport
from storage_node.store.store import Store
from tests.changing_folder import files_below
from tests.node.node_kit import bucket_of, scrape, serving

pytestmark = pytest.mark.slow

NAMES = [f"{number:03}" for number in range(300)]
CONTENTS = {name: random.Random(name).randbytes(400) for name in NAMES}
KEPT = NAMES[::20]


@contextmanager
def store_of(kind: str, folder: Path, compact_bytes_per_s: int) -> Iterator[tuple[Store, Bucket]]:
    if kind == "node":
        with serving(folder, compact_bytes_per_s=compact_bytes_per_s) as node, bucket_of(node) as bucket:
            assert node._store is not None
            yield node._store, bucket
        return
    with connect(folder / "drive", options=EmbeddedOptions(compact_bytes_per_s=compact_bytes_per_s)) as client:
        transport = client._transport
        assert isinstance(transport, EmbeddedTransport)
        yield transport._store_here(), client.create_bucket("b")


def segments_of(folder: Path) -> set[str]:
    found = files_below(folder / "drive" / "objects" / "segments")
    return {path.name for path, _ in found if path.name.startswith("segment.")}


@pytest.mark.parametrize("kind", ["embedded", "node"])
def test_objects_are_the_same_while_their_segments_are_compacted(tmp_path: Path, kind: str) -> None:
    with store_of(kind, tmp_path, 1 << 30) as (store, bucket):
        for drive in store.drives:
            assert drive is not None
            drive._garbage._grace_s = 0.05
        bucket.put_many((name, data, {"of": name}) for name, data in CONTENTS.items())
        before = {name: bucket.head(name) for name in KEPT}
        old = segments_of(tmp_path)
        bucket.delete_many([name for name in NAMES if name not in KEPT])

        def are_gone() -> bool:
            with bucket.get_batch(KEPT) as items:
                assert [bytes(item.data) for item in items] == [CONTENTS[name] for name in KEPT]
            assert bucket.get(KEPT[3], version=before[KEPT[3]].version) == CONTENTS[KEPT[3]]
            return not old & segments_of(tmp_path)

        eventually(are_gone)
        assert {name: bucket.head(name) for name in KEPT} == before
        eventually(lambda: store.upkeep.counts.moved_objects == len(KEPT))


@pytest.mark.parametrize("kind", ["embedded", "node"])
def test_a_rate_of_zero_leaves_segments_alone(tmp_path: Path, kind: str) -> None:
    with store_of(kind, tmp_path, 0) as (store, bucket):
        [drive] = store.drives
        assert drive is not None
        drive._garbage._grace_s = 0.05
        bucket.put_many(CONTENTS.items())
        old = segments_of(tmp_path)
        bucket.delete_many([name for name in NAMES if name not in KEPT])
        eventually(lambda: len(drive.sparse) > 0 and drive.due_in_s() is None)
        assert segments_of(tmp_path) == old
        assert store.upkeep.counts.moved_objects == 0


def test_a_node_counts_what_it_compacts(tmp_path: Path) -> None:
    with serving(tmp_path, metrics_port=0, compact_bytes_per_s=1 << 30) as node, bucket_of(node) as bucket:
        assert node._store is not None
        for drive in node._store.drives:
            assert drive is not None
            drive._garbage._grace_s = 0.05
        bucket.put_many(CONTENTS.items())
        old = segments_of(tmp_path)
        bucket.delete_many([name for name in NAMES if name not in KEPT])
        eventually(lambda: not old & segments_of(tmp_path))

        def counted() -> dict[str, float]:
            lines = [line.split() for line in scrape(node).splitlines() if not line.startswith("#")]
            return {line[0].removeprefix("ais_loader_"): float(line[1]) for line in lines if len(line) == 2}

        eventually(lambda: counted()["sparse_segments_removed_total"] == len(old))
        now = counted()
        assert (now["compacted_objects_total"], now["compacted_bytes_total"]) == (len(KEPT), 400 * len(KEPT))
        assert now["sparse_segments"] == 0
        assert now["sparse_segments_removed_bytes_total"] > 400 * len(NAMES)
