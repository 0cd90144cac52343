"""Archives under test, and what the standard library says is in them."""

from __future__ import annotations

import gzip
import io
import itertools
import random
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import lz4.frame
import zstandard

from storage_node.store.archives.archive import Archive, index_shard
from storage_node.store.archives.index import MemberIndex
from storage_node.store.archives.member import DEFAULT_LIMITS, ArchiveLimits, Member
from storage_node.store.archives.source import ByteSource
from storage_node.store.archives.tar_index import TarIndexer
from tests.store.archives.seekable_zstd import reframe
from tests.tar_kit import packed_tar

WRITTEN_BY_BSDTAR = Path(__file__).with_name("written_by_bsdtar")

NAMES = (
    "a.wav",
    "en/a.wav",
    "./en/a.wav",
    "/root/a.wav",
    "../../a.wav",
    "a//b",
    "with space.txt",
    "grüße/日本.flac",
    "n" * 99,
    "n" * 100,
    "n" * 101,
    "dir/" * 30 + "deep.txt",
    "d" * 150 + "/" + "n" * 90,
    "x" * 600,
    "back\\slash",
    "new\nline",
    "ünïcode" * 40,
)


class BytesSource:
    """Bytes as a source of an archive."""

    def __init__(self, data: bytes) -> None:
        self._data, self.size_bytes = data, len(data)

    def pread(self, length: int, offset: int) -> bytes:
        return self._data[offset : offset + length]


def content(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def our_name(name: str) -> str:
    """A name of `tarfile`, by the rule of member.py."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def tar_members(data: bytes) -> dict[str, bytes]:
    """What `tarfile` finds by name: regular files, and hard links to them."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        found: dict[str, bytes] = {}
        for name, member in {member.name: member for member in tar.getmembers()}.items():
            linked = member
            while linked.islnk():
                linked = tar._find_link_target(linked)  # type: ignore[attr-defined]
            if linked.isreg():
                file = tar.extractfile(member)
                assert file is not None
                found[our_name(name)] = file.read()
        return found


def zip_members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def make_tar(
    files: Sequence[tuple[str, bytes]], tar_format: int = tarfile.PAX_FORMAT, encoding: str = "utf-8"
) -> bytes:
    return packed_tar(files, tar_format=tar_format, encoding=encoding)


def index_of(tar: bytes, borders: Sequence[int] = ()) -> MemberIndex:
    """The index of a tar that comes in chunks with these borders."""
    indexer = TarIndexer()
    cuts = [0, *sorted(border for border in borders if border < len(tar)), len(tar)]
    for start, stop in itertools.pairwise(cuts):
        indexer.feed(memoryview(tar)[start:stop])
    return indexer.finish()


def open_archive(source: ByteSource, name: str, limits: ArchiveLimits = DEFAULT_LIMITS) -> Archive:
    """Open an object as an archive, with an index made for it."""
    return Archive(source, index_shard(source, name, limits), limits)


def read_member(archive: Archive, name: str | Member, start: int = 0, length: int | None = None) -> bytes:
    member = archive.index.find(name) if isinstance(name, str) else name
    return b"".join(archive.pieces(member, start, length))


def served(data: bytes, name: str = "shard.tar") -> dict[str, bytes]:
    """Every member, through an index made for it."""
    return members_of(open_archive(BytesSource(data), name))


def members_of(archive: Archive) -> dict[str, bytes]:
    return {member.name: read_member(archive, member) for member in archive.index}


def run(command: Sequence[str], stdin: bytes = b"", cwd: Path | None = None) -> bytes:
    return subprocess.run(command, input=stdin, capture_output=True, check=True, timeout=180, cwd=cwd).stdout


def in_zip(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def lz4_frame(data: bytes, *, linked: bool) -> bytes:
    packed = lz4.frame.compress(
        data,
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=linked,
        block_checksum=not linked,
        content_checksum=True,
    )
    return bytes(packed)


def halves(tar: bytes) -> tuple[bytes, bytes]:
    return tar[: len(tar) // 2], tar[len(tar) // 2 :]


def zstd_frame(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1, write_checksum=True).compress(data)


PACKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("s.tar.gz", lambda tar: gzip.compress(tar, 1)),
    "gzip members": ("s.TGZ", lambda tar: b"".join(gzip.compress(half, 1) for half in halves(tar)) + bytes(700)),
    "zstd, one frame": ("s.tar.zst", zstd_frame),
    "zstd, frames": ("s.tar.zst", lambda tar: zstd_frame(b"").join(zstd_frame(half) for half in halves(tar))),
    "zstd, seekable": ("s.tzst", lambda tar: b"".join(reframe([tar]))),
    "lz4, linked": ("s.tar.lz4", lambda tar: lz4_frame(tar, linked=True)),
    "lz4, independent": ("s.tar.lz4", lambda tar: lz4_frame(tar, linked=False)),
    "lz4, frames": ("s.tlz4", lambda tar: b"".join(lz4_frame(h, linked=i == 1) for i, h in enumerate(halves(tar)))),
}
if shutil.which("zstd"):
    PACKERS["zstd, by its own tool, of unknown size"] = ("s.tar.zst", lambda tar: run(["zstd", "-q", "-c"], tar))
if shutil.which("lz4"):
    PACKERS["lz4, by its own tool"] = ("s.tar.lz4", lambda tar: run(["lz4", "-q", "-c"], tar))


def packed_in_every_way(tar: bytes) -> dict[str, tuple[str, bytes]]:
    """How it is packed: name and bytes of the compressed shard."""
    return {way: (name, pack(tar)) for way, (name, pack) in PACKERS.items()}
