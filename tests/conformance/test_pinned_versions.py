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


def test_a_mixed_batch_has_the_wanted_version_of_each_entry(client: Client, bucket_name: str) -> None:
    bucket = client.create_bucket(bucket_name)
    objects = {f"o{at:02}": f"{at:03} ".encode() * 700 for at in range(40)} | {"s.tar": packed_tar(MEMBERS)}
    then = {name: bucket.put(name, data).version for name, data in objects.items()}
    frozen = bucket.snapshot("v1").pinned
    try:
        now = {name: bucket.put(name, b"new " + objects[name]).version for name in ("o03", "o04", "o05")}
        for name in ("o06", "s.tar"):
            bucket.delete(name)
        gone = Status.NOT_FOUND
        wanted: list[tuple[Entry, bytes | Status]] = [
            (Entry(bucket_name, "o01"), objects["o01"]),
            (Entry(bucket_name, "o02", version=then["o02"]), objects["o02"]),
            (Entry(bucket_name, "o03", version=then["o03"]), gone),
            (Entry(bucket_name, "o03", version=now["o03"]), b"new " + objects["o03"]),
            (Entry(bucket_name, "o03"), b"new " + objects["o03"]),
            (Entry(frozen, "o03"), objects["o03"]),
            (Entry(frozen, "o03", version=then["o03"]), objects["o03"]),
            (Entry(frozen, "o04", version=now["o04"]), gone),
            (Entry(frozen, "o05", start=3, length=100), objects["o05"][3:103]),
            (Entry(bucket_name, "o05", start=3, length=100, version=then["o05"]), gone),
            (Entry(bucket_name, "o07", ranges=((0, 4), (8, 4)), version=then["o07"]), objects["o07"][:4] * 2),
            (Entry(frozen, "o06"), objects["o06"]),
            (Entry(bucket_name, "o06", version=then["o06"]), gone),
            (Entry(frozen, "s.tar", "b.wav"), MEMBERS["b.wav"]),
            (Entry(frozen, "s.tar", "a.wav", version=then["s.tar"]), MEMBERS["a.wav"]),
            (Entry(frozen, "none"), gone),
        ]
        items = list(client.get_batch([entry for entry, _ in wanted], on_error="placeholder"))
        got = [item.tobytes() if item.ok else item.status for item in items]
        assert got == [content for _, content in wanted]
        for where in (bucket_name, frozen):  # whole objects of one bucket, which are found together
            entries = [Entry(where, f"o{at:02}", version=then[f"o{at:02}"] if at % 3 else None) for at in range(40)]
            items = list(client.get_batch(entries, on_error="placeholder"))
            for entry, item in zip(entries, items, strict=True):
                name, content = entry.name, objects[entry.name]
                if where == bucket_name and (name == "o06" or (name in now and entry.version)):
                    assert item.status is gone and isinstance(item.error, errors.ObjectNotFound), name
                else:
                    assert item.tobytes() == (b"new " if where == bucket_name and name in now else b"") + content, name
            good = [item for item in items if item.ok]
            assert len(good) == (40 if where == frozen else 37)
            packed = client.get_batch([item.entry for item in good]).packed()
            assert packed.values.tobytes() == b"".join(item.data for item in good)
    finally:
        bucket.delete_snapshot("v1")


def test_members_of_pinned_shards_are_read_or_refused_one_by_one(client: Client, bucket: Bucket) -> None:
    shards = {f"{at}.tar": {f"{member}.bin": bytes([at, member]) * 500 for member in range(6)} for at in range(3)}
    then = {name: bucket.put(name, packed_tar(members)).version for name, members in shards.items()}
    now = bucket.put("1.tar", packed_tar(dict.fromkeys(shards["1.tar"], b"new"))).version
    entries = [
        Entry(bucket.name, shard, member, version=version)
        for member in ("4.bin", "0.bin", "none")
        for shard, version in (("0.tar", then["0.tar"]), ("1.tar", then["1.tar"]), ("1.tar", now), ("2.tar", None))
    ]
    items = list(client.get_batch(entries, on_error="placeholder"))
    for item in items:
        entry = item.entry
        if entry.version == then["1.tar"]:
            assert isinstance(item.error, errors.ObjectNotFound) and "is gone" in str(item.error)
        elif entry.member == "none":
            assert isinstance(item.error, errors.MemberNotFound)
        else:
            assert item.tobytes() == (b"new" if entry.name == "1.tar" else shards[entry.name][entry.member or ""])
