"""Objects that a coder has found, when it comes to read them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ais_loader.testing import eventually
from ais_loader.wire import recycled
from ais_loader.wire.bucket_uuid import draw_bucket_uuid
from storage_node.cluster.coding import coder
from storage_node.cluster.coding.coder import _held
from storage_node.cluster.coding.plan import Candidate, manifest_name
from storage_node.store.format import Version
from tests.coding.coded_kit import CodedCluster
from tests.node.cluster_kit import BUCKET as CODED
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


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [3, 1500])
def test_no_group_is_written_whose_manifest_a_node_that_is_away_would_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, wanted: int
) -> None:
    """And a node does not draw until it has another one: its event loop has more to do."""
    caplog.set_level(logging.INFO)
    away, drawn = 6, list[bytes]()
    with CodedCluster(tmp_path, nodes=7, coding_delay_s=0.0) as cluster:

        def is_owned(group: bytes) -> bool:
            return away in cluster.owners(manifest_name(group))

        def draw() -> bytes:
            """The first groups are those of the node that is away."""
            drawn.append(
                next(group for group in iter(draw_bucket_uuid, b"") if is_owned(group) == (len(drawn) < wanted))
            )
            return drawn[-1]

        monkeypatch.setattr(coder, "draw_bucket_uuid", draw)
        cluster.stop(away)
        names = [
            name for name in map(str, range(1000)) if cluster.owners(name)[0] == 0 and away not in cluster.owners(name)
        ]
        objects = {name: bytes([at]) * 20_000 for at, name in enumerate(names[:20])}
        versions = dict.fromkeys(objects, Version(1, cluster.store(0).replicas.clock + 1))
        for number in range(away):
            mine = {name: data for name, data in objects.items() if number in cluster.owners(name)}
            cluster.put_on(number, mine, versions)
        eventually(lambda: all(cluster.entry(at, name).is_coded for name in objects for at in cluster.owners(name)))
        assert len(drawn) > wanted
        for number in range(away):
            found = cluster.store(number).replicas.newest(CODED, [*map(manifest_name, drawn[:wanted])])
            assert found == [None] * wanted, "it stays as long as nobody can ask that node for entries of its group"
        assert ("of 1,000 groups" in caplog.text) == (wanted > 1000)
