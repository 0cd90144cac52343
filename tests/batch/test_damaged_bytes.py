"""Damaged bytes never reach a reader: every public way of reading, over every transport, by default.

One byte of the only copy is flipped on the drive. Whatever is returned before the error must be what was put, and a
range of intact blocks must still be readable.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ais_loader import Bucket, Client, ClusterOptions, Entry, connect, errors
from ais_loader.cli import main
from ais_loader.integrations.fsspec import AISFileSystem
from ais_loader.testing import seeded_bytes, throwaway_folder
from ais_loader.transport.session.lane import Lanes
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from tests.every_value import every_value_once
from tests.node.cluster_kit import LocalCluster
from tests.store.store_kit import flip_a_byte
from tests.table import table
from tests.tar_kit import packed_tar

MiB = 1 << 20
BLOCK = 256 << 10
SIZES = {"0.3": 300_000, "3": 3 * MiB + 17, "12": 12 * MiB + 17}
STEP = 10_000


@dataclass
class Stored:
    client: Client
    objects: dict[str, bytes] = field(repr=False)
    """What was put. Each object has a damaged byte on its drive, 5/8 of the way."""
    transport: str

    @property
    def assembly(self) -> Any:
        return "target" if self.transport == "target" else "direct"

    @property
    def bucket(self) -> Bucket:
        return self.client.bucket("b")


def bad_at(data: bytes) -> int:
    return len(data) * 5 // 8


def _objects() -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for label, size in SIZES.items():
        data = seeded_bytes(size, seed=size)
        found[f"{label}.bin"] = data
        array = io.BytesIO()
        np.save(array, np.frombuffer(data, np.uint8))
        found[f"{label}.npy"] = array.getvalue()
        found[f"{label}.tar"] = packed_tar({"before": b"b" * 1000, "large": data, "after": b"a" * 1000}, "w:")
        found[f"{label}.tar.gz"] = packed_tar({"large": data}, "w:gz")
    return found


def _damage(roots: list[Path], objects: dict[str, bytes]) -> None:
    """Flip one byte of each object that has a file of its own, which all of these have."""
    by_size = {len(data): bad_at(data) for data in objects.values()}
    assert len(by_size) == len(objects)
    damaged = 0
    for root in roots:
        for path in (root / "objects").rglob("*"):
            if path.is_file() and (at := by_size.get(path.stat().st_size)) is not None:
                flip_a_byte(path, at)
                damaged += 1
    assert damaged == len(objects)


class Stores:
    """One store of each kind, opened when a test first needs it, with a damaged byte in each object."""

    def __init__(self, folder: Path, held: ExitStack) -> None:
        self._folder, self._held = folder, held
        self.objects = _objects()
        self._urls: dict[str, str] = {}

    def url(self, kind: str) -> str:
        if kind not in self._urls:
            self._urls[kind] = self._begin(kind, self._folder / kind)
        return self._urls[kind]

    def _begin(self, kind: str, folder: Path) -> str:
        folder.mkdir()
        if kind == "embedded":
            roots, url = [folder / "store"], f"file://{folder}/store"
        elif kind == "node":
            roots = [folder / "node"]
            url = self._held.enter_context(NodeServer(roots, ServerConfig(port=0, scrub_interval_s=0))).url
        else:
            cluster = self._held.enter_context(LocalCluster(folder, 2, scrub_interval_s=0))
            roots, url = [folder / "node-0", folder / "node-1"], cluster.nodes[0].url
        with connect(url) as client:
            bucket = client.create_bucket("b", exist_ok=True)
            for name, data in self.objects.items():
                bucket.put(name, data)
            for name in self.objects:
                if ".tar" in name:
                    assert next(iter(bucket.members(name)))  # so that no index is made of damaged bytes
        _damage(roots, self.objects)
        return url


@pytest.fixture(scope="module")
def stores() -> Iterator[Stores]:
    with throwaway_folder() as folder, ExitStack() as held:
        yield Stores(folder, held)


TRANSPORTS = {
    "embedded": "embedded",
    "unix": "node",
    "tcp": "node",
    "grpc": "node",
    "direct": "cluster",
    "direct-grpc": "cluster",
    "target": "cluster",
}
"""With the kind of store behind it."""
Place = tuple[str, str]
"""A transport, and a size."""
QUICK: list[Place] = [
    ("unix", "3"), ("embedded", "12"), ("tcp", "12"), ("grpc", "0.3"), ("direct", "3"), ("target", "12")
]  # fmt: skip
"""In the quick set, each of these reads some ways, and each way reads one of these."""


def _places() -> Iterator[Any]:
    """All transports and sizes: those of the quick set and one more of each transport are slow, others exhaustive."""
    for number, transport in enumerate(TRANSPORTS):
        others = [size for size in SIZES if (transport, size) not in QUICK]
        for size in SIZES:
            is_slow = size not in others or size == others[number % len(others)]
            mark = pytest.mark.slow if is_slow else pytest.mark.exhaustive
            yield pytest.param((transport, size), marks=mark, id=f"{transport}-{size}")


every_place = pytest.mark.parametrize("place", list(_places()))


@contextmanager
def opened(stores: Stores, transport: str) -> Iterator[Stored]:
    url = stores.url(TRANSPORTS[transport])
    options = None if transport == "embedded" else ClusterOptions(lane="grpc" if "grpc" in transport else "auto")
    with pytest.MonkeyPatch.context() as patch:
        if transport == "tcp":
            patch.setattr(Lanes, "_by_unix", Lanes._by_tcp)
        with connect(url, options=options) as client:
            yield Stored(client, stores.objects, transport)


Way = Callable[[Stored, str], Iterator[bytes | memoryview]]
"""Reads all of an object, or what it can before an error is raised."""
RangeWay = Callable[[Stored, str, int, int], bytes]


def by_get(stored: Stored, name: str) -> Iterator[bytes]:
    yield stored.bucket.get(name)


def by_pinned_get(stored: Stored, name: str) -> Iterator[bytes]:
    yield stored.bucket.get(name, version=stored.bucket.head(name).version)


def by_batch(stored: Stored, name: str) -> Iterator[bytes]:
    yield stored.bucket.get_batch([name], assembly=stored.assembly).tobytes()[0]


def by_batch_of_ranges(stored: Stored, name: str) -> Iterator[bytes]:
    size = len(stored.objects[name])
    entries = [Entry("b", name, start=at, length=min(MiB, size - at)) for at in range(0, size, MiB)]
    for item in stored.client.get_batch(entries, assembly=stored.assembly):
        yield item.tobytes()


def by_one_range(stored: Stored, name: str) -> Iterator[bytes]:
    """One range of nearly all of it: in pieces, where it is large."""
    data = stored.objects[name]
    yield data[:1] + stored.bucket.get(name, start=1)


def by_file(stored: Stored, name: str) -> Iterator[bytes]:
    with stored.bucket.open(name) as file:
        yield file.read()


def by_url(stored: Stored, name: str) -> Iterator[bytes]:
    with stored.client.open(f"ais://b/{name}") as file:
        yield file.read()


def by_file_in_steps(stored: Stored, name: str) -> Iterator[bytes]:
    with stored.bucket.open(name) as file:
        yield from iter(lambda: file.read(STEP), b"")


def by_file_without_read_ahead(stored: Stored, name: str) -> Iterator[bytes]:
    with stored.bucket.open(name, read_ahead_bytes=0) as file:
        yield from iter(lambda: file.read(20 * STEP), b"")


def by_readinto(stored: Stored, name: str) -> Iterator[bytes]:
    buffer = bytearray(3 * STEP)
    with stored.bucket.open(name) as file:
        while count := file.readinto(buffer):
            yield bytes(buffer[:count])


def by_chunks(stored: Stored, name: str) -> Iterator[memoryview]:
    with stored.bucket.reader(name) as reader:
        yield from reader.chunks()


def by_reader_in_steps(stored: Stored, name: str) -> Iterator[bytes]:
    with stored.bucket.reader(name) as reader:
        yield from iter(lambda: reader.read(STEP), b"")


def by_download(stored: Stored, name: str) -> Iterator[bytes]:
    with throwaway_folder() as folder:
        stored.bucket.download(name, folder / "files")
        yield (folder / "files" / name).read_bytes()


def by_fsspec_open(stored: Stored, name: str) -> Iterator[bytes]:
    with _files(stored).open(f"b/{name}") as file:
        yield from iter(lambda: file.read(STEP), b"")


def by_fsspec_get(stored: Stored, name: str) -> Iterator[bytes]:
    with throwaway_folder() as folder:
        _files(stored).get(f"b/{name}", str(folder / "file"))
        yield (folder / "file").read_bytes()


def by_fsspec_cat(stored: Stored, name: str) -> Iterator[bytes]:
    yield _files(stored).cat(f"b/{name}")


def by_command(stored: Stored, name: str) -> Iterator[bytes]:
    yield _command(stored, f"b/{name}")


WAYS: list[Way] = [
    by_get,
    by_pinned_get,
    by_batch,
    by_batch_of_ranges,
    by_one_range,
    by_file,
    by_url,
    by_file_in_steps,
    by_file_without_read_ahead,
    by_readinto,
    by_chunks,
    by_reader_in_steps,
    by_download,
    by_fsspec_open,
    by_fsspec_get,
    by_fsspec_cat,
    by_command,
]


def _files(stored: Stored) -> AISFileSystem:
    AISFileSystem.clear_instance_cache()
    lane = {"options": ClusterOptions(lane="grpc")} if "grpc" in stored.transport else {}
    return AISFileSystem(store=stored.client.url, connect_options=lane)


def _command(stored: Stored, *arguments: str) -> bytes:
    if stored.transport == "embedded":
        pytest.skip("the command opens the store anew; tests/batch/test_verified_reads.py has that")
    result = CliRunner(env={"AIS_LOADER_URL": stored.client.url}).invoke(main, ["get", *arguments])
    if result.exit_code:
        raise errors.CorruptObject(result.stderr)
    return result.stdout_bytes


def refuse_whole(stores: Stores, place: Place, way: Way) -> None:
    transport, size = place
    with opened(stores, transport) as stored:
        data, came = stored.objects[f"{size}.bin"], b""
        with pytest.raises(errors.CorruptObject):
            for part in way(stored, f"{size}.bin"):
                came += bytes(part)
        assert data.startswith(came) and len(came) <= bad_at(data)


@pytest.mark.slow
@table("place, way", [*every_value_once(QUICK, WAYS), *product(QUICK, [by_get, by_batch])])
def test_a_whole_object_with_a_damaged_byte_is_refused_before_the_byte_is_returned(
    stores: Stores, place: Place, way: Way
) -> None:
    refuse_whole(stores, place, way)


@every_place
@table("way", WAYS)
def test_a_whole_object_with_a_damaged_byte_is_refused_by_every_way(stores: Stores, place: Place, way: Way) -> None:
    refuse_whole(stores, place, way)


def range_by_get(stored: Stored, name: str, start: int, length: int) -> bytes:
    return stored.bucket.get(name, start=start, length=length)


def range_by_batch(stored: Stored, name: str, start: int, length: int) -> bytes:
    [item] = stored.client.get_batch([Entry("b", name, start=start, length=length)], assembly=stored.assembly)
    return item.tobytes()


def range_by_joined_ranges(stored: Stored, name: str, start: int, length: int) -> bytes:
    half = length // 2
    entry = Entry("b", name, ranges=((start, half), (start + half, length - half)))
    [item] = stored.client.get_batch([entry], assembly=stored.assembly)
    return item.tobytes()


def range_by_file(stored: Stored, name: str, start: int, length: int) -> bytes:
    with stored.bucket.open(name) as file:
        file.seek(start)
        return file.read(length)


def range_by_fsspec(stored: Stored, name: str, start: int, length: int) -> bytes:
    return _files(stored).cat_file(f"b/{name}", start, start + length)


def range_by_command(stored: Stored, name: str, start: int, length: int) -> bytes:
    return _command(stored, f"b/{name}", "--start", str(start), "--length", str(length))


RANGE_WAYS: list[RangeWay] = [
    range_by_get,
    range_by_batch,
    range_by_joined_ranges,
    range_by_file,
    range_by_fsspec,
    range_by_command,
]


def refuse_range(stores: Stores, place: Place, way: RangeWay) -> None:
    transport, size = place
    name = f"{size}.bin"
    with opened(stores, transport) as stored:
        data = stored.objects[name]
        at = bad_at(data)
        with pytest.raises(errors.CorruptObject):
            way(stored, name, at - 100, 200)
        with pytest.raises(errors.CorruptObject):
            way(stored, name, at // BLOCK * BLOCK, BLOCK if len(data) > 2 * BLOCK else BLOCK // 2)
        good = (at // BLOCK + 1) * BLOCK
        for start, length in ((good, min(BLOCK, len(data) - good)), (len(data) - 1000, 999)):
            assert way(stored, name, start, length) == data[start : start + length]


@pytest.mark.slow
@table("place, way", every_value_once(QUICK, RANGE_WAYS))
def test_a_range_is_refused_where_its_blocks_are_damaged_and_read_where_they_are_not(
    stores: Stores, place: Place, way: RangeWay
) -> None:
    refuse_range(stores, place, way)


@every_place
@table("way", RANGE_WAYS)
def test_a_range_of_damaged_blocks_is_refused_by_every_way(stores: Stores, place: Place, way: RangeWay) -> None:
    refuse_range(stores, place, way)


def member_by_get(stored: Stored, shard: str) -> Iterator[bytes]:
    yield stored.bucket.get(shard, member="large")


def member_by_batch(stored: Stored, shard: str) -> Iterator[bytes]:
    yield stored.client.get_batch([Entry("b", shard, member="large")], assembly=stored.assembly).tobytes()[0]


def member_by_file(stored: Stored, shard: str) -> Iterator[bytes]:
    with stored.bucket.open(shard, member="large") as file:
        yield from iter(lambda: file.read(50 * STEP), b"")


def member_by_tarfile(stored: Stored, shard: str) -> Iterator[bytes]:
    with stored.bucket.open(shard) as file, tarfile.open(fileobj=file, mode="r:*") as tar:
        member = tar.extractfile("large")
        assert member is not None
        yield from iter(lambda: member.read(50 * STEP), b"")


def member_by_webdataset(stored: Stored, shard: str) -> Iterator[bytes]:
    pytest.importorskip("webdataset")  # in an environment of its own; tests/front/webdataset has it there
    from ais_loader.integrations.webdataset import opener

    opener.install(stored.client.url)
    try:
        with opener.open_shard(f"ais://b/{shard}") as file, tarfile.open(fileobj=file, mode="r|*") as tar:
            for entry in tar:
                if entry.name == "large":
                    member = tar.extractfile(entry)
                    assert member is not None
                    yield from iter(partial(member.read, 50 * STEP), b"")
    finally:
        opener.uninstall()


SHARDS = ["tar", "tar.gz"]
MEMBER_WAYS: list[Way] = [member_by_get, member_by_batch, member_by_file, member_by_tarfile]


def refuse_member(stores: Stores, place: Place, way: Way, shard: str) -> None:
    transport, size = place
    with opened(stores, transport) as stored:
        data, came = stored.objects[f"{size}.bin"], b""
        with pytest.raises((errors.LoaderError, tarfile.ReadError)):
            for part in way(stored, f"{size}.{shard}"):
                came += bytes(part)
        assert data.startswith(came)


@pytest.mark.slow
@table("place, way, shard", [(place, *form) for place, form in every_value_once(QUICK, product(MEMBER_WAYS, SHARDS))])
def test_a_member_with_a_damaged_byte_is_refused_before_the_byte_is_returned(
    stores: Stores, place: Place, way: Way, shard: str
) -> None:
    refuse_member(stores, place, way, shard)


@every_place
@table("shard", SHARDS)
@table("way", [*MEMBER_WAYS, member_by_webdataset])
def test_a_member_with_a_damaged_byte_is_refused_by_every_way(
    stores: Stores, place: Place, way: Way, shard: str
) -> None:
    refuse_member(stores, place, way, shard)


def refuse_array(stores: Stores, place: Place) -> None:
    transport, size = place
    with (
        opened(stores, transport) as stored,
        stored.bucket.open(f"{size}.npy") as file,
        pytest.raises(errors.CorruptObject),
    ):
        np.load(file)


@pytest.mark.slow
@table("place", QUICK)
def test_an_array_with_a_damaged_byte_is_refused(stores: Stores, place: Place) -> None:
    refuse_array(stores, place)


@every_place
def test_an_array_with_a_damaged_byte_is_refused_everywhere(stores: Stores, place: Place) -> None:
    refuse_array(stores, place)


def refuse_range_of_member(stores: Stores, place: Place, shard: str) -> None:
    transport, size = place
    with opened(stores, transport) as stored:
        data = stored.objects[f"{size}.bin"]
        at = bad_at(data) - 2000  # the tar's headers come before it, and the archive is little larger

        def by_get(start: int, length: int) -> bytes:
            return stored.bucket.get(f"{size}.{shard}", member="large", start=start, length=length)

        def by_file(start: int, length: int) -> bytes:
            with stored.bucket.open(f"{size}.{shard}", member="large") as file:
                file.seek(start)
                return file.read(length)

        for way in (by_get, by_file):
            with pytest.raises(errors.LoaderError, match=r"checksum|unpack"):
                way(at - 10_000, 20_000)
            if at > BLOCK:
                assert way(1, 1000) == data[1:1001]


@table("place, shard", every_value_once(QUICK, SHARDS))
def test_a_range_of_a_member_is_refused_where_it_is_damaged_and_read_in_front_of_it(
    stores: Stores, place: Place, shard: str
) -> None:
    refuse_range_of_member(stores, place, shard)


@every_place
@table("shard", SHARDS)
def test_a_damaged_range_of_a_member_is_refused_everywhere(stores: Stores, place: Place, shard: str) -> None:
    refuse_range_of_member(stores, place, shard)


def read_without_verification(stores: Stores, place: Place) -> None:
    transport, size = place
    name = f"{size}.bin"
    with opened(stores, transport) as stored:
        data = stored.objects[name]
        at = bad_at(data)
        wrong = bytes([data[at] ^ 0xFF])
        assert stored.bucket.get(name, start=at, length=1, verify=False) == wrong
        [item] = stored.client.get_batch([Entry("b", name, start=at, length=1)], verify_ranges=False)
        assert item.tobytes() == wrong
        with stored.bucket.open(name, verify=False) as file:
            file.seek(at)
            assert file.read(1) == wrong


@pytest.mark.slow
@table("place", QUICK)
def test_without_verification_a_range_is_returned_as_it_is_on_the_drive(stores: Stores, place: Place) -> None:
    read_without_verification(stores, place)


@every_place
def test_without_verification_a_range_is_returned_as_it_is_everywhere(stores: Stores, place: Place) -> None:
    read_without_verification(stores, place)
