"""Files opened from a node: how many requests they take, and what becomes of damaged ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader import Bucket, ClusterOptions, connect, errors
from ais_loader.objects.pinned import WHOLE_BYTES
from ais_loader.testing import eventually, seeded_bytes
from storage_node.server import NodeServer
from tests.node.node_kit import scrape, serving
from tests.store.store_kit import flip_a_byte
from tests.table import table
from tests.tar_kit import packed_tar

pytestmark = pytest.mark.slow

DATA = seeded_bytes(700_000)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeServer]:
    with serving(tmp_path, metrics_port=0) as node:
        yield node


@pytest.fixture(params=["auto", "grpc"])
def bucket(node: NodeServer, request: pytest.FixtureRequest) -> Iterator[Bucket]:
    with connect(node.url, options=ClusterOptions(lane=request.param)) as client:
        yield client.create_bucket("b", exist_ok=True)


def asked(node: NodeServer) -> tuple[float, float]:
    """Return how many batches and how many calls on single objects the node has answered."""
    samples = [line.rpartition(" ") for line in scrape(node).splitlines() if not line.startswith("#")]
    counted = [
        sum(float(value) for name, _, value in samples if name.startswith(f"ais_loader_{kind}_total"))
        for kind in ("batches", "requests")
    ]
    return counted[0], counted[1]


def require(node: NodeServer, before: tuple[float, float], *, batches: int, calls: int) -> None:
    """Require that the node has answered this many batches and calls since."""
    due = (before[0] + batches, before[1] + calls)
    eventually(lambda: asked(node) == due)


@table("size", [1, 10_000, WHOLE_BYTES])
def test_a_small_file_takes_one_request(node: NodeServer, bucket: Bucket, size: int) -> None:
    bucket.put("a", DATA[:size])
    before = asked(node)
    with bucket.open("a") as file:
        assert file.read() == DATA[:size]
        file.seek(0)
        assert file.read() == DATA[:size]
    require(node, before, batches=1, calls=0)


@table("size", [0, WHOLE_BYTES + 1, len(DATA)])
def test_another_file_takes_one_for_its_properties_and_one_for_its_bytes(
    node: NodeServer, bucket: Bucket, size: int
) -> None:
    bucket.put("a", DATA[:size])
    before = asked(node)
    with bucket.open("a") as file:
        assert file.size() == size
        require(node, before, batches=0, calls=1)
        assert file.read() == DATA[:size]
    require(node, before, batches=int(size > 0), calls=1)


@table("size", [0, 10_000, len(DATA)])
def test_properties_take_one_call_that_is_no_batch(node: NodeServer, bucket: Bucket, size: int) -> None:
    bucket.put("a", DATA[:size], metadata={"k": "v", "l": "w"})
    for _ in range(3):
        before = asked(node)
        info = bucket.head("a")
        assert (info.size_bytes, info.metadata, info.is_stored) == (size, {"k": "v", "l": "w"}, True)
        require(node, before, batches=0, calls=1)
    with pytest.raises(errors.ObjectNotFound):
        bucket.head("nothing")


@pytest.mark.parametrize("size", [10_000, len(DATA)])
def test_a_damaged_object_is_opened_and_its_bytes_are_refused(
    node: NodeServer, bucket: Bucket, tmp_path: Path, size: int
) -> None:
    version = bucket.put("a", DATA[:size]).version
    (stored,) = (path for path in (tmp_path / "drive" / "objects").rglob("*") if path.is_file())
    flip_a_byte(stored, 5_000)
    with bucket.open("a") as file:
        assert (file.info.version, file.info.size_bytes) == (version, size)
        with pytest.raises(errors.CorruptObject):
            file.read(10)
        assert file.tell() == 0


@table(("name", "mode"), [("s.tar", "w:"), ("s.tar.gz", "w:gz")])
@table("size", [0, 1, 10_000, WHOLE_BYTES, WHOLE_BYTES + 1, len(DATA)])
def test_opening_a_member_takes_one_request(node: NodeServer, bucket: Bucket, name: str, mode: str, size: int) -> None:
    bucket.put(name, packed_tar({"other": b"other", "m": DATA[:size]}, mode))
    small, before = 0 < size <= WHOLE_BYTES, asked(node)
    with bucket.open(name, member="m") as file:
        assert file.size() == size
        require(node, before, batches=int(small), calls=int(not small))
        assert file.read() == DATA[:size]
    require(node, before, batches=int(size > 0), calls=int(not small))


@pytest.mark.parametrize("size", [10_000, len(DATA)])
def test_a_damaged_member_is_opened_and_its_bytes_are_refused(
    node: NodeServer, bucket: Bucket, tmp_path: Path, size: int
) -> None:
    version = bucket.put("s.tar", packed_tar({"m": DATA[:size]})).version
    with bucket.open("s.tar", member="m") as file:  # which makes the index
        assert file.read() == DATA[:size]
    (stored,) = (path for path in (tmp_path / "drive" / "objects").rglob("*") if path.is_file())
    flip_a_byte(stored, 5_000)
    with bucket.open("s.tar", member="m") as file:
        assert (file.info.version, file.info.size_bytes) == (version, size)
        with pytest.raises(errors.CorruptObject):
            file.read(10)
        assert file.tell() == 0
