"""Archives that are re-framed on their way to several copies: the same bytes on all of them, nothing left behind."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ais_loader.testing import seeded_bytes
from storage_node.store.checksum import crc32c
from tests.node.cluster_kit import LocalCluster
from tests.node.write_kit import Writer, cluster_of, copies_of, put_messages, staged_files

zstandard = pytest.importorskip("zstandard")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with cluster_of(tmp_path, 3, copies=2) as running:
        running.map.bucket[0].reframe = True
        running.learn()
        yield running


def one_frame() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for at in range(40):
            header = tarfile.TarInfo(f"{at}")
            header.size = 60_000
            archive.addfile(header, io.BytesIO(30 * seeded_bytes(2000, seed=at)))
    data: bytes = zstandard.ZstdCompressor(level=1).compress(packed.getvalue())
    return data


@pytest.mark.slow
def test_all_copies_are_the_same_re_framed_bytes_whichever_node_they_come_to(cluster: LocalCluster) -> None:
    data = one_frame()
    for number in range(3):
        for name in (f"one-{number}.tar.zst", f"many-{number}.tar.zst"):
            with Writer(cluster.nodes[number].url) as writer:
                if name.startswith("one"):
                    info = writer.put(name, data, chunk=10_000, metadata={"k": "v"})
                else:
                    (result,) = writer.put_many({name: data})
                    info = result.info
            copies = copies_of(cluster, name)
            assert len(copies) == 2 and len(set(copies.values())) == 1  # another node stands in for a busy owner
            [(version, stored)] = set(copies.values())
            assert stored is not None and stored != data
            assert (version, len(stored), crc32c(stored)) == (info.version, info.size_bytes, info.checksum)
            assert dict(info.metadata)["ais-original-crc32c"] == f"{crc32c(data):08x}"


def test_an_archive_that_does_not_come_whole_leaves_nothing(cluster: LocalCluster) -> None:
    data = one_frame()
    with Writer(cluster.nodes[0].url) as writer:
        messages = list(put_messages("s.tar.zst", data, chunk=10_000))
        for broken in (messages[:-1], messages[:5] + messages[-1:], [*messages[:3], messages[0]]):
            with pytest.raises(grpc.RpcError) as caught:
                writer.stub.Put(iter(broken), timeout=60.0)
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert copies_of(cluster, "s.tar.zst") == {}
    assert staged_files(cluster) == 0
    for node in range(3):
        drive = cluster.batches(node).node.store.drives[0]
        assert drive is not None and not [path for path in drive.root.iterdir() if path.name.startswith("tmp")]
