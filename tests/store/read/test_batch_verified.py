"""Verified ranges whose block checksums are lost: a status in its place, and the rest of the batch unharmed."""

from __future__ import annotations

from pathlib import Path

from ais_loader import Entry, Status, connect
from ais_loader.testing import seeded_bytes
from storage_node.store import format as fmt
from storage_node.store.drive.catalog import Catalog, WriteBatch
from storage_node.store.store import Store


def test_lost_block_checksums_are_corrupt_in_their_place(tmp_path: Path) -> None:
    data = seeded_bytes(1_000_000)
    with connect(tmp_path / "store") as client:
        bucket = client.create_bucket("b")
        for name in ("a", "lost", "c"):
            bucket.put(name, data)
    with Store.open([tmp_path / "store"], mode="r") as store:
        generation = store.head("b", "lost").generation
    catalog = Catalog(tmp_path / "store" / "catalog", writable=True)
    batch = WriteBatch(raw_mode=True)
    batch.delete(fmt.blocks_key(generation, 0))
    catalog.write(batch, sync=True)
    catalog.close()
    with connect(tmp_path / "store") as client:
        entries = [Entry("b", name, start=300_000, length=400_000) for name in ("a", "lost", "c")]
        items = list(client.get_batch(entries, on_error="placeholder", verify_ranges=True))
        assert [item.status for item in items] == [Status.OK, Status.CORRUPT, Status.OK]
        assert items[2].tobytes() == data[300_000:700_000]
        assert "block checksums" in str(items[1].error)
