"""Ranges of cold objects: of a large one, only what is read leaves the cloud, until much of it was read."""

from __future__ import annotations

import os

import pytest

from ais_loader import Entry, errors
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from tests.remote.conftest import LARGE_BYTES, RemoteBucket
from tests.remote.fault_proxy import FaultProxy

pytestmark = pytest.mark.slow

SIZE_BYTES = LARGE_BYTES + (2 << 20)


@pytest.fixture(scope="module")
def data() -> bytes:
    return os.urandom(SIZE_BYTES)


def test_ranges_of_a_large_object_are_read_alone(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, data: bytes
) -> None:
    remote_bucket.put("large", data)
    remote_bucket.put("small", data[:5000])
    ranges = [(0, 100), (2 << 18, 6 << 18), (SIZE_BYTES - 7, 7), (1 << 18, 300_000), (1 << 18, 300_000), (5, 0)]
    entries = [Entry(cold.name, "large", start=start, length=length) for start, length in ranges]
    entries += [Entry(cold.name, "small", start=4990), Entry(cold.name, "large", start=SIZE_BYTES, length=1)]
    items = list(client.get_batch(entries, on_error="placeholder"))
    expected = [data[start : start + length] for start, length in ranges] + [data[4990:5000], b""]
    assert [item.data.tobytes() for item in items] == expected
    assert [item.status.name for item in items] == ["OK"] * 7 + ["RANGE"]
    assert cold.get("large", start=10, length=20) == data[10:30]
    with pytest.raises(errors.RangeError):
        cold.get("large", start=SIZE_BYTES + 1)
    sent_bytes = sum(one.sent_bytes for one in proxy.requests if one.matches("GET", remote_bucket.path("large")))
    assert sent_bytes < 8 << 18
    assert [info.is_stored for info in cold.objects()] == [False, True]  # the small one is stored


def test_a_large_object_is_stored_when_much_of_it_was_read(
    cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, data: bytes
) -> None:
    remote_bucket.put("large", data)
    for at in range(0, SIZE_BYTES, 2 << 18):
        assert cold.get("large", start=at, length=2 << 18) == data[at : at + (2 << 18)]
    assert cold.head("large").is_stored
    proxy.forget()
    with cold.open("large") as file:
        file.seek(SIZE_BYTES - 3)
        assert file.read() == data[-3:]
    assert proxy.count("GET") == 0


def test_ranges_of_an_object_that_changes_are_of_one_version_each(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, data: bytes
) -> None:
    remote_bucket.put("large", data)
    assert cold.get("large", start=0, length=4) == data[:4]
    changed = data[::-1]
    remote_bucket.put("large", changed)
    assert cold.get("large", start=0, length=1 << 20) in (data[: 1 << 20], changed[: 1 << 20])
    assert cold.get("large", start=0, length=1 << 20) == changed[: 1 << 20]


@pytest.mark.parametrize("name", ["large", "small"])
def test_opening_a_cold_object_fetches_none_of_its_bytes(
    cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, data: bytes, name: str
) -> None:
    due = data if name == "large" else data[:5000]
    remote_bucket.put(name, due)
    proxy.forget()
    with cold.open(name) as file:
        assert (file.info.size_bytes, file.info.is_stored) == (len(due), False)
        assert [one.method for one in proxy.requests] == ["HEAD"]
        file.seek(-7, os.SEEK_END)
        assert file.read() == due[-7:]
        file.seek(0)
        assert file.read(2000) == due[:2000]
    sent_bytes = sum(one.sent_bytes for one in proxy.requests if one.matches("GET", remote_bucket.path(name)))
    assert sent_bytes < 1 << 20
    with cold.open(name) as file:
        assert file.read() == due
    assert cold.get(name) == due
    proxy.forget()
    with cold.open(name) as file:  # it is stored by now
        assert (file.info.is_stored, file.read()) == (True, due)
    assert not proxy.requests
    with pytest.raises(errors.ObjectNotFound):
        cold.open("nothing")
