"""What archives cost a node: bombs, headers without end and a million members take bounded memory, and no node dies."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import pytest
import zstandard

from ais_loader import Bucket, Entry, connect, errors
from ais_loader.testing import NodeProcess, throwaway_folder
from tests.store.archives.archive_kit import in_zip, make_tar
from tests.store.archives.test_member_index import empty_members
from tests.tar_kit import packed_tar

MiB = 1 << 20


@pytest.fixture
def own_node() -> Iterator[NodeProcess]:
    with throwaway_folder() as folder, NodeProcess(folder / "drive") as node:
        yield node


def extended_header(kind: bytes, size: int) -> bytes:
    fields = struct.pack("100s24x12s12s8sc100x8s247x", b"x", b"%011o" % size, b"0" * 11, b" " * 8, kind, b"ustar\x0000")
    return fields[:148] + b"%06o\0 " % sum(fields) + fields[156:]


def costly_archives() -> Iterator[tuple[str, bytes]]:
    """Small ones that ask for much."""
    tar = packed_tar({"zeros": bytes(100 * MiB)})
    yield "bomb.tar.zst", zstandard.ZstdCompressor().compress(tar)
    wide = zstandard.ZstdCompressionParameters(window_log=29, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    yield "window.tar.zst", stream.compress(tar[:MiB]) + stream.flush()
    yield "bomb.zip", in_zip({str(at): tar[: 30 * MiB] for at in range(3)})
    # Half a million records, each of a name of its own; and an extended header that announces 8 GiB.
    records = b"".join(b"15 %07x=abc\n" % at for at in range(500_000))
    yield "records.tar", extended_header(b"x", len(records)) + records + bytes(-len(records) % 512)
    yield "announced.tar", extended_header(b"x", (8 << 30) - 1) + bytes(1024)
    links = extended_header(b"1", 0) * 20_000 + make_tar([("a", b"")])
    yield "links.tar.zst", zstandard.ZstdCompressor().compress(links)


@pytest.mark.slow
def test_archives_that_ask_for_much_get_little(own_node: NodeProcess) -> None:
    with connect(own_node.url) as client:
        bucket = client.create_bucket("b")
        bucket.put("good.tar", packed_tar({"a": b"1"}))
        assert bucket.get("good.tar", member="a") == b"1"
        own_node.reset_peak_rss()
        before = own_node.rss_bytes()
        for name, data in costly_archives():
            bucket.put(name, data)
            with pytest.raises((errors.ArchiveError, errors.MemberNotFound)):
                bucket.get(name, member="nobody")
            assert own_node.peak_rss_bytes() - before < 250 * MiB, name
        assert bucket.get("good.tar", member="a") == b"1"


@pytest.mark.slow
def test_a_million_members_are_served_in_bounded_memory(own_node: NodeProcess) -> None:
    compressor = zstandard.ZstdCompressor(level=1)
    shard = b"".join(compressor.compress(empty_members(at, at + 1000)) for at in range(0, 1_000_000, 1000))
    with connect(own_node.url) as client:
        bucket: Bucket = client.create_bucket("b")
        own_node.reset_peak_rss()
        before = own_node.rss_bytes()
        bucket.put("s.tar.zst", shard)
        names = [f"en/{at:07d}.wav" for at in random.Random(1).sample(range(1_000_000), 2000)]
        assert client.get_batch([Entry("b", "s.tar.zst", name) for name in names]).tobytes() == [b""] * len(names)
        with pytest.raises(errors.MemberNotFound):
            bucket.get("s.tar.zst", member="en/1000000.wav")
        listed = bucket.members("s.tar.zst")
        assert [next(listed).name for _ in range(3)] == [f"en/{at:07d}.wav" for at in range(3)]
        assert own_node.peak_rss_bytes() - before < 500 * MiB
