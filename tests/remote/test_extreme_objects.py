"""Objects of unusual sizes and encodings: every byte is that of the cloud, and what cannot be stored says why."""

from __future__ import annotations

import gzip
import os
import struct
from collections.abc import Iterator

import pytest

from ais_loader import Entry, Remote, errors
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from tests.remote.backend_kit import BUCKET, Asked, DecidedServer, Reply
from tests.remote.conftest import RemoteBucket

TIB = 1 << 40
SIZE_BYTES = 5 * TIB
"""Size of the largest object of S3."""


def virtual(start: int, end: int) -> bytes:
    """Bytes of an object in which every eight bytes are their position."""
    first = start // 8 * 8
    words = b"".join(struct.pack(">Q", at) for at in range(first, end, 8))
    return words[start - first : end - first]


@pytest.fixture
def virtual_bucket(client: Client, bucket_name: str, s3: object) -> Iterator[Bucket]:
    """A remote bucket with one object of 5 TiB, of which only short ranges can be requested."""

    def decide(asked: Asked) -> Reply:
        headers = {"ETag": '"v1"', "Last-Modified": "Tue, 01 Jan 2030 00:00:00 GMT"}
        if asked.method == "HEAD":
            return Reply(200, headers=headers | {"Content-Length": str(SIZE_BYTES)})
        if asked.range is None or asked.range[1] - asked.range[0] > 64 << 20:
            return Reply(400)
        start, end = asked.range[0], min(asked.range[1], SIZE_BYTES)
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{SIZE_BYTES}"
        is_short = end - start < 1 << 20
        return Reply(206, virtual(start, end) if is_short else bytes(end - start), headers)

    with DecidedServer(decide) as server:
        yield client.create_bucket(bucket_name, remote=Remote(f"s3://{BUCKET}", endpoint=server.url))
        client.delete_bucket(bucket_name, force=True)


def test_ranges_of_an_object_of_5_tib(client: Client, virtual_bucket: Bucket) -> None:
    starts = [0, 3, 4 * TIB + 5, SIZE_BYTES - 1000]
    assert virtual_bucket.head("a").size_bytes == SIZE_BYTES
    entries = [Entry(virtual_bucket.name, "a", start=start, length=1000) for start in starts]
    expected = [virtual(start, start + 1000) for start in starts]
    assert [item.data.tobytes() for item in client.get_batch(entries)] == expected
    assert virtual_bucket.get("a", start=SIZE_BYTES - 9) == virtual(SIZE_BYTES - 9, SIZE_BYTES)
    with pytest.raises(errors.RangeError, match="5,497,558,138,880"):
        virtual_bucket.get("a", start=SIZE_BYTES, length=1)


def test_an_object_of_5_tib_is_sent_through_but_not_stored(virtual_bucket: Bucket) -> None:
    with virtual_bucket.open("a") as file:
        assert file.read(1000) == virtual(0, 1000)
    with pytest.raises(errors.DriveFull, match=r"a: 5,497,558,138,880 bytes cannot be stored .*; read ranges"):
        virtual_bucket.warm(["a"])
    assert not virtual_bucket.head("a").is_stored


@pytest.mark.parametrize("size_bytes", [0, 1, 100_000])
def test_compressed_objects_come_as_they_are_stored(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, size_bytes: int
) -> None:
    stored = gzip.compress(os.urandom(size_bytes)) if size_bytes else b""
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    remote_bucket.s3.put(remote_bucket.name, "a", stored, headers=headers)
    assert cold.head("a").size_bytes == len(stored)
    assert [item.data.tobytes() for item in client.get_batch([Entry(cold.name, "a")])] == [stored]
    assert cold.get("a") == stored
    info = cold.head("a")
    assert info.is_stored and info.size_bytes == len(stored)
