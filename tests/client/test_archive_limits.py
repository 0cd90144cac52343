"""What archives may hold of a store in this process, and of a node: said to `connect`, and as the node's settings."""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path

import pytest

from ais_loader import Client, EmbeddedOptions, connect, errors
from ais_loader.testing import seeded_bytes
from tests.node.node_kit import serving

pytestmark = pytest.mark.slow

zstandard = pytest.importorskip("zstandard")
MEMBER_BYTES = 17 << 20


def one_frame() -> bytes:
    """An archive without restart points, whose members are read from a decompressed copy."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        header = tarfile.TarInfo("a")
        header.size = MEMBER_BYTES
        archive.addfile(header, io.BytesIO(seeded_bytes(MEMBER_BYTES, seed=1)))
    data: bytes = zstandard.ZstdCompressor(level=1).compress(packed.getvalue())
    return data


def refuses(client: Client) -> None:
    with pytest.raises(errors.ArchiveTooLarge, match="budget"):
        client.bucket("b").get("s.tar.zst", member="a")


def test_an_embedded_store_has_the_limits_given_and_its_pickled_readers_too(tmp_path: Path) -> None:
    with connect(tmp_path / "store") as client:
        client.create_bucket("b").put("s.tar.zst", one_frame())
        assert client.bucket("b").get("s.tar.zst", member="a") == seeded_bytes(MEMBER_BYTES, seed=1)
    with connect(tmp_path / "store", options=EmbeddedOptions(shard_copy_bytes=1 << 20)) as client:
        refuses(client)
        with pickle.loads(pickle.dumps(client)) as reader:
            refuses(reader)
    with pytest.raises(errors.InvalidRequest, match="open_shards"):
        connect(tmp_path / "store", options=EmbeddedOptions(open_shards=0))


def test_a_node_has_the_limits_of_its_settings_and_shows_them(tmp_path: Path) -> None:
    with serving(tmp_path, shard_copy_bytes=1 << 20, open_shards=3) as node, connect(node.url) as client:
        client.create_bucket("b").put("s.tar.zst", one_frame())
        refuses(client)
        limits = client.describe()["limits"]
        assert isinstance(limits, dict)
        assert (limits["open_shards"], limits["shard_copy_bytes"]) == ("3", str(1 << 20))
