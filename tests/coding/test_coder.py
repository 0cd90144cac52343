"""Objects that a coder has found, when it comes to read them."""

from __future__ import annotations

from pathlib import Path

from storage_node.cluster.coding.coder import _held
from storage_node.cluster.coding.plan import Candidate
from tests.store.segment_kit import put_group
from tests.store.store_kit import BUCKET, drive_of, put, store_at


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
