"""Objects that a coder has found, when it comes to read them."""

from __future__ import annotations

from pathlib import Path

from ais_loader.wire import recycled
from storage_node.cluster.coding.coder import _held
from storage_node.cluster.coding.plan import Candidate
from tests.store.segment_kit import put_group
from tests.store.store_kit import BUCKET, drive_of, file_of, flip_a_byte, object_files, put, store_at


def test_what_was_deleted_or_replaced_since_is_not_coded(tmp_path: Path) -> None:
    objects = {name: bytes([at]) * 1000 for at, name in enumerate(["deleted", "kept", "replaced"])}
    with store_at(tmp_path / "drive") as store:
        put_group(store, objects)  # one segment: the bytes of all are there while any of them is
        drive = drive_of(store)
        found = [Candidate(name, store.head(BUCKET, name), drive) for name in objects]
        store.delete(BUCKET, "deleted")
        put(store, "replaced", b"new")
        left, offsets, fragment_bytes, held = _held(store.bucket(BUCKET).uuid_bytes, found, 4)
    assert ([one.name for one in left], offsets) == (["kept"], [0])
    assert held == objects["kept"].ljust(4 * fragment_bytes, b"\0")


def test_what_is_damaged_or_gone_leaves_zeros_and_the_others_are_where_they_should_be(tmp_path: Path) -> None:
    small = {f"small/{at}": bytes([at + 1]) * 5000 for at in range(3)}
    large = {f"large/{at}": bytes([at + 11]) * 300_000 for at in range(3)}
    with store_at(tmp_path / "drive") as store:
        put_group(store, small)
        [segment] = object_files(tmp_path / "drive")
        for name, data in large.items():
            put(store, name, data)
        objects = {**small, **large}
        found = [Candidate(name, store.head(BUCKET, name), drive_of(store)) for name in objects]
        flip_a_byte(segment, store.head(BUCKET, "small/1").offset)
        file_of(store, "large/0").unlink()
        _, _, fragment_bytes, _ = _held(store.bucket(BUCKET).uuid_bytes, found, 4)
        recycled.take(4 * fragment_bytes)[:] = b"\xff" * (4 * fragment_bytes)  # what another group has left
        left, offsets, _, held = _held(store.bucket(BUCKET).uuid_bytes, found, 4)
    assert [one.name for one in left] == ["small/0", "small/2", "large/1", "large/2"]
    expected = bytearray(4 * fragment_bytes)
    for one, offset in zip(left, offsets, strict=True):
        expected[offset : offset + one.entry.size_bytes] = objects[one.name]
    assert held == expected
