"""A pinned version: its bytes, or NOT_FOUND that says so; never the bytes of another one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conformance_kit import MiB

from ais_loader import Bucket, Client, Entry, Status, errors
from ais_loader.testing import seeded_bytes
from tests.tar_kit import packed_tar

SMALL, LARGE = b"one", seeded_bytes(6 * MiB + 5, seed=1)
MEMBERS = {"a.wav": b"first", "b.wav": seeded_bytes(3000, seed=2)}


def test_the_version_that_an_object_has_is_read_whole_in_part_and_by_member(client: Client, bucket: Bucket) -> None:
    versions = {
        name: bucket.put(name, data).version
        for name, data in (("small", SMALL), ("large", LARGE), ("s.tar", packed_tar(MEMBERS)))
    }
    entries = [
        Entry(bucket.name, "small", version=versions["small"]),
        Entry(bucket.name, "small"),
        Entry(bucket.name, "large", start=MiB, length=2 * MiB, version=versions["large"]),
        Entry(bucket.name, "s.tar", "b.wav", version=versions["s.tar"]),
        Entry(bucket.name, "large", version=versions["large"]),
        Entry(bucket.name, "s.tar", "b.wav", start=10, length=20, version=versions["s.tar"]),
    ]
    wanted = [SMALL, SMALL, LARGE[MiB : 3 * MiB], MEMBERS["b.wav"], LARGE, MEMBERS["b.wav"][10:30]]
    assert [item.tobytes() for item in client.get_batch(entries)] == wanted
    assert bucket.get("large", version=versions["large"]) == LARGE
    assert bucket.get("large", start=7, length=9, version=versions["large"]) == LARGE[7:16]
    assert bucket.get("s.tar", member="a.wav", version=versions["s.tar"]) == b"first"
    with bucket.open("large", version=versions["large"]) as file:
        assert file.read() == LARGE
    with bucket.reader("small", version=versions["small"]) as reader:
        assert reader.read() == SMALL
    members = list(bucket.members("s.tar", version=versions["s.tar"]))
    assert [member.name for member in members] == list(MEMBERS)
    assert [client.get_batch([member.entry()]).packed().values.tobytes() for member in members] == [*MEMBERS.values()]


@pytest.mark.parametrize("change", ["replaced", "deleted", "deleted and put again"])
def test_a_version_that_is_gone_is_not_found_in_its_place_and_the_message_says_which(
    client: Client, bucket: Bucket, change: str
) -> None:
    pinned = {name: bucket.put(name, packed_tar(MEMBERS)).version for name in ("a.tar", "b.tar")}
    bucket.put("plain", SMALL)
    if change != "replaced":
        bucket.delete("a.tar")
    if change != "deleted":
        now = bucket.put("a.tar", packed_tar(MEMBERS)).version  # the same bytes are another version all the same
        assert now != pinned["a.tar"]
    entries = [
        Entry(bucket.name, "plain"),
        Entry(bucket.name, "a.tar", version=pinned["a.tar"]),
        Entry(bucket.name, "a.tar", "a.wav", version=pinned["a.tar"]),
        Entry(bucket.name, "a.tar", start=1, length=2, version=pinned["a.tar"]),
        Entry(bucket.name, "b.tar", "a.wav", version=pinned["b.tar"]),
    ]
    items = list(client.get_batch(entries, on_error="placeholder"))
    assert [item.status for item in items] == [Status.OK, *[Status.NOT_FOUND] * 3, Status.OK]
    assert items[0].tobytes() == SMALL and items[4].tobytes() == MEMBERS["a.wav"]
    for item in items[1:4]:
        assert isinstance(item.error, errors.ObjectNotFound) and not item.data
        assert "a.tar" in str(item.error)
        if change != "deleted":
            assert f"version {pinned['a.tar']} is gone, the store has {now}" in str(item.error)
    with pytest.raises(errors.ObjectNotFound):
        list(client.get_batch(entries))
    reads: list[Callable[[], object]] = [
        lambda: bucket.get("a.tar", version=pinned["a.tar"]),
        lambda: bucket.get("a.tar", member="a.wav", version=pinned["a.tar"]),
        lambda: bucket.open("a.tar", version=pinned["a.tar"]),
        lambda: bucket.reader("a.tar", version=pinned["a.tar"]),
        lambda: list(bucket.members("a.tar", version=pinned["a.tar"])),
        lambda: list(bucket.members("a.tar", "no such", version=pinned["a.tar"])),
    ]
    for read in reads:
        with pytest.raises(errors.ObjectNotFound, match="is gone" if change != "deleted" else "no object"):
            read()


def test_a_version_that_never_was_is_not_found(client: Client, bucket: Bucket) -> None:
    bucket.put("a", SMALL)
    for version in ("9999.1.0", "no version"):
        with pytest.raises(errors.ObjectNotFound, match=f"version {version} is gone"):
            bucket.get("a", version=version)
        [item] = client.get_batch([Entry(bucket.name, "a", version=version)], on_error="placeholder")
        assert item.status is Status.NOT_FOUND
