"""Layout of groups, and their manifests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ais_loader.errors import StoreFormatError
from ais_loader.wire import frame as wire
from ais_loader.wire.frame import WIRE_U32, Frame
from ais_loader.wire.gather.hedging import Hedging
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from storage_node.cluster.coding.group import SMALL_BYTES, Manifest, Piece, Slot, lay_out
from storage_node.cluster.coding.group_reader import GroupReader
from storage_node.store.format import Version

KIB = 1 << 10
MANIFEST = Manifest(
    bytes(range(16)),
    2,
    1,
    64 * KIB,
    bytes(16),
    ("a/0/x", "a/1/y", "a/2/z"),
    (Slot("größe", Version(1, 2**60, 3), 0, 10, 2**32 - 1), Slot("b", Version(1, 5, 0), 10, 0, 0)),
)


@given(st.lists(st.integers(0, 400 * KIB), min_size=1, max_size=30), st.integers(1, 8), st.sampled_from([64, 256, 512]))
def test_objects_lie_side_by_side_and_small_ones_in_one_fragment(sizes: list[int], data: int, most_kib: int) -> None:
    offsets, fragment_bytes = lay_out(sizes, data, most_kib * KIB)
    manifest = MANIFEST._replace(data=data, fragment_bytes=fragment_bytes)
    assert fragment_bytes % (4 * KIB) == 0
    assert 1 <= len(offsets) <= len(sizes)
    end = 0
    for offset, size in zip(offsets, sizes, strict=False):
        assert offset >= end, "they do not overlap"
        end = offset + size
        pieces = manifest.pieces(offset, size)
        assert sum(piece.size_bytes for piece in pieces) == size
        assert len(pieces) <= 1 or size > min(SMALL_BYTES, most_kib * KIB)
    assert sizes[0] > data * most_kib * KIB or fragment_bytes <= most_kib * KIB
    if len(offsets) < len(sizes) and sizes[0] <= data * most_kib * KIB:
        assert sum(sizes[: len(offsets) + 1]) > data * (most_kib * KIB - min(SMALL_BYTES, most_kib * KIB))


def test_large_objects_share_a_group_without_gaps() -> None:
    offsets, fragment_bytes = lay_out([3000 * KIB] * 5, 4, 4096 * KIB)
    assert offsets == [at * 3000 * KIB for at in range(5)]
    assert 4 * fragment_bytes < 1.03 * 15_000 * KIB


def test_small_objects_leave_little_room_unused() -> None:
    offsets, fragment_bytes = lay_out([10 * KIB] * 1000, 4, 4096 * KIB)
    assert len(offsets) == 1000
    assert 4 * fragment_bytes < 1.03 * 10_000 * KIB


def test_a_range_of_a_large_object_spans_fragments() -> None:
    offsets, fragment_bytes = lay_out([1_000_000], 4, 64 * KIB)
    assert (offsets, fragment_bytes) == ([0], 248 * KIB)
    manifest = MANIFEST._replace(data=4, fragment_bytes=fragment_bytes)
    assert manifest.pieces(248 * KIB - 1, 2) == [Piece(0, 248 * KIB - 1, 1), Piece(1, 0, 1)]
    assert manifest.pieces(999_999, 1) == [Piece(3, 999_999 - 744 * KIB, 1)]
    with pytest.raises(StoreFormatError, match="not in group 0001"):
        manifest.pieces(992 * KIB - 1, 2)


@pytest.mark.parametrize("manifest", [MANIFEST, MANIFEST._replace(slots=())])
def test_a_manifest_is_decoded_as_it_was_encoded(manifest: Manifest) -> None:
    assert Manifest.decode(manifest.encode()) == manifest


@pytest.mark.parametrize("encoded", [b"", b"x", MANIFEST.encode()[:-1], MANIFEST._replace(parity=2).encode()])
def test_a_damaged_manifest_is_refused(encoded: bytes) -> None:
    with pytest.raises(StoreFormatError, match="manifest"):
        Manifest.decode(encoded)


def test_a_manifest_takes_little_beside_its_objects() -> None:
    slots = tuple(
        Slot(f"en/train/{at:08}.flac", Version(1, 2**60 + at * 65536, 3), at * 10240, 10240, at * 2654435761 % 2**32)
        for at in range(1600)
    )
    assert len(MANIFEST._replace(slots=slots).encode()) < 1600 * 40


class ManifestInPieces:
    """Sends the beginning of a manifest that is replaced, and then all of the new one."""

    hedging = Hedging(0)

    def __init__(self, old: bytes, new: bytes) -> None:
        self._old, self._new = old, new

    async def frames(self, request: pb.BatchRequest) -> AsyncGenerator[Frame, None]:
        for whole, start, stop in ((self._old, 0, 40), (self._new, 0, 70), (self._new, 70, len(self._new))):
            zero, data = np.zeros(1, np.uint8), memoryview(whole)[start:stop]
            piece = wire.Piece(start, len(whole), "1.1.1")
            yield Frame(zero.astype(WIRE_U32), np.array([len(data)], WIRE_U32), zero, zero, zero, data, piece)

    def failing(self, bucket: str, names: Iterable[str]) -> Collection[str]:
        return ()

    def stood_still(self, bucket: str, late: Iterable[str], arrived: Iterable[str]) -> None: ...


def test_a_manifest_that_begins_again_is_that_of_its_new_version() -> None:
    fewer = MANIFEST._replace(slots=MANIFEST.slots[:1])
    reader = GroupReader(ManifestInPieces(MANIFEST.encode(), fewer.encode()))
    assert asyncio.run(reader.manifest(cluster_pb.MapBucket(name="b"), MANIFEST.group)) == fewer
