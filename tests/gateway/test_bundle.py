"""Bundles: entries in order, with placeholders; and a fault never looks like the end."""

from __future__ import annotations

import http.client
import io
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest

from ais_loader import errors
from ais_loader.objects.archive import BatchArchive
from tests.gateway.conftest import Served
from tests.gateway.test_boto3 import data
from tests.gateway.test_hostile import bundled
from tests.tar_kit import packed_tar


def members(tar: bytes) -> list[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        return [(one.name, archive.extractfile(one).read()) for one in archive]  # type: ignore[union-attr]


def test_entries_in_order(served: Served, bucket: str) -> None:
    objects = {f"o{number}": data(number, 1000 * number) for number in range(50)}
    handle = served.client.bucket(bucket)
    handle.put_many(objects.items())
    handle.put("s.tar", packed_tar({"m": b"member"}))
    entries: list[Any] = [*reversed(objects), "none", "s.tar/m", {"key": "o9", "start": 5, "length": 7}]
    entries += [{"key": "s.tar", "member": "m"}, {"key": "s.tar", "member": "none"}, "o1", "o1"]
    status, tar = bundled(served, bucket, entries)
    assert status == 200
    assert members(tar) == [
        *((name, objects[name]) for name in reversed(objects)),
        ("__404__/none", b""),
        ("s.tar/m", b"member"),
        ("o9", objects["o9"][5:12]),
        ("s.tar/m", b"member"),
        ("__404__/s.tar/none", b""),
        ("o1", objects["o1"]),
        ("o1", objects["o1"]),
    ]


def test_a_fault_ends_the_connection_before_the_end(
    served: Served, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.client.bucket(bucket).put("a", data(1, 3 << 20))
    whole = BatchArchive.__iter__

    def broken(archive: BatchArchive) -> Iterator[bytes]:
        yield next(whole(archive))
        raise errors.NodeUnavailable("gone")

    monkeypatch.setattr(BatchArchive, "__iter__", broken)
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        bundled(served, bucket, ["a", "a", "a"])
