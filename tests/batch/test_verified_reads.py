"""Reads that are to be verified, of bytes that rotted on the drive: refused on every path, whatever their size and
whoever brings them; what lies in sound blocks beside them is delivered."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from ais_loader import Bucket, Entry, connect, errors
from ais_loader.cli import main
from ais_loader.testing import seeded_bytes
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from tests.every_value import every_value_once, product_of
from tests.node.cluster_kit import LocalCluster
from tests.store.store_kit import flip_a_byte
from tests.tar_kit import packed_tar

pytestmark = pytest.mark.on_disk  # which answers RWF_NOWAIT

MiB = 1 << 20
DATA = seeded_bytes(9 * MiB, seed=7)
MEMBERS = {"before": b"b" * 1000, "large": DATA, "after": b"a" * 1000}
SHARDS = ("s.tar", "s.tar.gz", "stored.zip", "deflated.zip")
BAD = 2 * MiB + 77
"""Where in the bytes one is flipped: in the third piece."""


class Stored(NamedTuple):
    url: str
    bucket: Bucket
    roots: list[Path]


@cache
def archive_of(shard: str) -> bytes:
    if ".tar" in shard:
        return packed_tar(MEMBERS, "w:gz" if shard.endswith("gz") else "w:")
    method = zipfile.ZIP_STORED if shard == "stored.zip" else zipfile.ZIP_DEFLATED
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method, compresslevel=1 if method else None) as file:
        for name, data in MEMBERS.items():
            file.writestr(name, data)
    return out.getvalue()


@pytest.fixture
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stored]:
    with ExitStack() as held:
        if request.param == "embedded":
            roots, url = [tmp_path / "store"], f"file://{tmp_path}/store"
        elif request.param == "grpc":
            roots = [tmp_path / "node"]
            url = held.enter_context(NodeServer(roots, ServerConfig(port=0))).url
        else:
            cluster = held.enter_context(LocalCluster(tmp_path, 2))
            roots, url = [tmp_path / "node-0", tmp_path / "node-1"], cluster.nodes[0].url
        client = held.enter_context(connect(url))
        yield Stored(url, client.create_bucket("b", exist_ok=True), roots)


def rot(stored: Stored, size_bytes: int, at: int) -> None:
    """Flip a byte of the object of this size."""
    [file] = [
        path
        for root in stored.roots
        for path in (root / "objects").rglob("*")
        if path.is_file() and path.stat().st_size == size_bytes
    ]
    flip_a_byte(file, at)


def by_get(stored: Stored, entry: Entry) -> bytes:
    return bytes(
        stored.bucket.get(entry.name, start=entry.start, length=entry.length, member=entry.member, verify=True)
    )


def by_pinned_get(stored: Stored, entry: Entry) -> bytes:
    version = stored.bucket.head(entry.name).version
    return bytes(
        stored.bucket.get(
            entry.name, start=entry.start, length=entry.length, member=entry.member, version=version, verify=True
        )
    )


def by_batch(stored: Stored, entry: Entry, assembly: str = "direct") -> bytes:
    other = Entry("b", entry.name, start=0, length=10, member=entry.member and "before")
    first, item, last = stored.bucket.client.get_batch([other, entry, other], verify_ranges=True, assembly=assembly)
    assert first.tobytes() == last.tobytes() == (DATA if entry.member is None else MEMBERS["before"])[:10]
    return item.tobytes()


def by_target(stored: Stored, entry: Entry) -> bytes:
    return by_batch(stored, entry, "target")


def by_command(stored: Stored, entry: Entry) -> bytes:
    name = f"b/{entry.name}" if entry.member is None else f"ais://b/{entry.name}/{entry.member}"
    arguments = ["get", name, "--start", str(entry.start), "--length", str(entry.length), "--verify"]
    if stored.url.startswith("file:"):
        stored.bucket.client.close()  # it would hold the lock
    result = CliRunner(env={"AIS_LOADER_URL": stored.url}).invoke(main, arguments)
    if result.exit_code:
        assert result.exit_code == 1
        raise errors.CorruptObject(result.stderr)
    return result.stdout_bytes


def by_file(stored: Stored, entry: Entry) -> bytes:
    with stored.bucket.open(entry.name, verify=True) as file:
        file.seek(entry.start)
        return b"".join(iter(lambda: file.read(entry.length), b""))[: entry.length]


Way = Callable[[Stored, Entry], bytes]
STORES = ["embedded", "grpc", "cluster"]
LENGTHS = [3 * MiB, 7 * MiB]
"""In one piece of a response, and in several."""
WAYS: list[Way] = [by_get, by_pinned_get, by_target, by_batch, by_command, by_file]


def reads_again(way: Way, stored: Stored) -> bool:
    return not (way is by_command and stored.url.startswith("file:"))


@pytest.mark.parametrize(
    ("stored", "way", "length"),
    product_of(STORES, WAYS, LENGTHS, quick=every_value_once(["grpc", "embedded"], WAYS, [LENGTHS[1], *LENGTHS])),
    indirect=["stored"],
)
def test_a_range_with_a_flipped_byte_is_refused(stored: Stored, way: Way, length: int) -> None:
    stored.bucket.put("x", DATA)
    rot(stored, len(DATA), BAD)
    if reads_again(way, stored) and way is not by_file:
        sound = Entry("b", "x", start=3 * MiB + 5, length=length - 2 * MiB)
        assert way(stored, sound) == DATA[3 * MiB + 5 : 3 * MiB + 5 + length - 2 * MiB]
    with pytest.raises(errors.CorruptObject):
        way(stored, Entry("b", "x", start=1, length=length))


MEMBER_WAYS: list[tuple[Way, str]] = [
    *((by_get, shard) for shard in SHARDS),
    *((by_batch, shard) for shard in SHARDS),
    (by_target, "s.tar"),
    (by_command, "s.tar"),
]


@pytest.mark.parametrize(
    ("stored", "form", "length"),
    product_of(
        STORES, MEMBER_WAYS, LENGTHS, quick=every_value_once(["grpc", "embedded"], MEMBER_WAYS, [LENGTHS[1], *LENGTHS])
    ),
    indirect=["stored"],
    ids=lambda value: f"{value[0].__name__} {value[1]}" if isinstance(value, tuple) else None,
)
@pytest.mark.sampled(20)
def test_a_range_of_a_member_with_a_flipped_byte_is_refused(stored: Stored, form: tuple[Way, str], length: int) -> None:
    way, shard = form
    archive = archive_of(shard)
    stored.bucket.put(shard, archive)
    wanted = Entry("b", shard, start=1, length=length, member="large")
    if reads_again(way, stored):
        assert way(stored, wanted) == DATA[1 : 1 + length]
    rot(stored, len(archive), archive.find(DATA[:64]) + BAD if shard in ("s.tar", "stored.zip") else BAD)
    with pytest.raises(errors.LoaderError, match=r"checksum|CRC|unpack"):
        way(stored, wanted)
