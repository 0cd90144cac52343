"""Bundles: entries in order, with placeholders; and a fault never looks like the end."""

from __future__ import annotations

import http.client
import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from ais_loader import errors
from ais_loader.integrations.gateway.server.options import Limits
from ais_loader.objects.archive import BatchArchive
from ais_loader.testing import eventually
from tests.gateway.conftest import Served
from tests.gateway.gateway_thread import GatewayThread
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
    whole = BatchArchive._in_parts

    def broken(archive: BatchArchive) -> Iterator[list[bytes | memoryview]]:
        yield next(whole(archive))
        raise errors.NodeUnavailable("gone")

    monkeypatch.setattr(BatchArchive, "_in_parts", broken)
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        bundled(served, bucket, ["a", "a", "a"])


def test_only_so_many_batches_are_answered_at_once(served: Served, bucket: str) -> None:
    large = data(7, 4 << 20)
    served.client.bucket(bucket).put("large", large)
    path, document = f"/{bucket}?bundle=", json.dumps(["large"] * 16)  # more than the buffers of sockets hold

    def connected() -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=180)

    with GatewayThread(served.clients, None, limits=Limits(batches=1, wait_s=0.1, still_s=180.0)) as gateway:
        with closing(connected()) as first, closing(connected()) as second:
            first.request("POST", path, document)
            answer = first.getresponse()
            assert answer.status == 200
            second.request("POST", path, document)
            refused = second.getresponse()
            assert (refused.status, b"SlowDown" in refused.read()) == (503, True)
            second.request("GET", f"/{bucket}/large")
            assert second.getresponse().read() == large
            assert members(answer.read()) == [("large", large)] * 16

        def is_answered() -> bool:
            with closing(connected()) as third:
                third.request("POST", path, document)
                return third.getresponse().status == 200

        eventually(is_answered)  # once the end of the first one is known
