"""Takedowns, over every way to reach a store: what is denied is refused in place, by every read and write."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator

import pytest

from ais_loader import Client, Entry, Status, errors
from ais_loader.objects.bucket import Bucket

SMALL = b"small and unique "


@pytest.fixture
def kept(bucket: Bucket) -> Iterator[Bucket]:
    """A bucket with a large object, small ones of one group, an archive, and a snapshot of all of them."""
    bucket.put("large", b"large" * 60_000)
    bucket.put_many([(f"small/{number:02}", SMALL * (number + 1)) for number in range(20)])
    bucket.put("shard.tar", tar_of({"a.txt": b"first", "b.txt": b"second"}))
    bucket.snapshot("before")
    bucket.put("small/03", b"written after the snapshot")
    yield bucket
    bucket.delete_snapshot("before")


def tar_of(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def test_denied_objects_are_refused_by_all_reads_and_writes(client: Client, kept: Bucket) -> None:
    names = ["large", "small/03", "small/04", "shard.tar", "never put"]
    found = kept.deny(names, reason="order 17")
    assert [(one.name, one.reason) for one in found.names] == [(name, "order 17") for name in sorted(names)]
    assert found.is_purged
    copies = {one.name: {copy.kind for copy in one.copies} for one in found.names}
    assert copies["never put"] == set()
    assert copies["large"] == {"file"}
    assert copies["small/03"] == {"file", "segment of a snapshot"} or copies["small/03"] == {
        "segment",
        "segment of a snapshot",
    }
    snapshot = client.bucket(f"{kept.name}@before")
    for name in names:
        for of in (kept, snapshot):
            for read in (of.get, of.head, lambda name, of=of: of.get(name, start=1, length=2)):
                with pytest.raises(errors.ObjectDenied, match="order 17"):
                    read(name)
        with pytest.raises(errors.ObjectDenied):
            kept.put(name, b"again")
        with pytest.raises(errors.ObjectDenied):
            kept.copy(name, "a copy")
        with pytest.raises(errors.ObjectDenied):
            kept.append(name, b"more")
    [result] = kept.put_many([("small/04", b"again")], on_error="return").failures
    assert isinstance(result.error, errors.ObjectDenied)
    with pytest.raises(errors.ObjectDenied):
        kept.get("shard.tar", member="a.txt")
    with pytest.raises(errors.ObjectDenied):
        list(kept.members("shard.tar"))
    assert "large" not in list(kept)
    assert [one is not None for one in kept.head_many(["large", "small/01"])] == [False, True]
    assert not kept.exists("small/03") and kept.get("small/01") == SMALL * 2


def test_denied_entries_keep_their_places_in_a_batch(client: Client, kept: Bucket) -> None:
    kept.deny(["small/04", "shard.tar"], reason="why")
    of = kept.name
    entries = [
        Entry(of, "small/05"),
        Entry(of, "small/04"),
        Entry(of, "missing"),
        Entry(of, "shard.tar", member="b.txt"),
        Entry(of, "small/06", start=1, length=3),
        Entry(of, "small/04", start=1, length=3),
        Entry(f"{of}@before", "small/04"),
        Entry(f"{of}@before", "small/03"),
    ]
    items = list(client.get_batch(entries, on_error="placeholder"))
    denied = Status.OBJECT_DENIED
    wanted = [Status.OK, denied, Status.NOT_FOUND, denied, Status.OK, denied, denied, Status.OK]
    assert [item.status for item in items] == wanted
    assert [bytes(items[at].data) for at in (0, 4, 7)] == [SMALL * 6, (SMALL * 7)[1:4], SMALL * 4]
    assert all(isinstance(items[at].error, errors.ObjectDenied) for at in (1, 3, 5, 6))
    with pytest.raises(errors.ObjectDenied, match="why"):
        list(client.get_batch(entries))


def test_allowing_ends_a_denial_and_does_not_bring_bytes_back(client: Client, kept: Bucket) -> None:
    kept.deny(["small/04", "small/05"], reason="why")
    assert kept.allow(["small/04", "small/06", "nothing"]) == 1
    assert [one.name for one in kept.denied().names] == ["small/05"]
    assert kept.get("small/06") == SMALL * 7  # was not denied, and stays
    with pytest.raises(errors.ObjectNotFound):
        kept.get("small/04")
    with pytest.raises(errors.ObjectNotFound):
        client.bucket(f"{kept.name}@before").get("small/04")
    first = kept.put("small/04", b"new")
    assert kept.get("small/04") == b"new"
    assert kept.put("small/04", b"newer").version != first.version
    kept.deny(["small/04"], reason="once more")
    with pytest.raises(errors.ObjectDenied, match="once more"):
        kept.get("small/04")
    kept.allow(["small/04"])
    kept.put("small/04", b"newest")
    assert kept.get("small/04") == b"newest"
    kept.delete("small/04")
    with pytest.raises(errors.ObjectNotFound):
        kept.get("small/04")


def test_denied_contents_are_refused_under_every_name(client: Client, kept: Bucket) -> None:
    digest = kept.head("small/07").digest
    kept.copy("small/07", "another name")
    found = kept.deny(digests=[digest], reason="known picture")
    assert dict(found.digests) == {digest: "known picture"}
    assert [(one.name, one.digest) for one in found.names] == [("another name", digest), ("small/07", digest)]
    for name in ("small/07", "another name"):
        with pytest.raises(errors.ObjectDenied):
            kept.get(name)
    with pytest.raises(errors.ObjectDenied, match=digest):
        kept.put("a third", SMALL * 8)
    [result] = kept.put_many([("a fourth", SMALL * 8), ("a fifth", b"other")], on_error="return").failures
    assert (result.name, type(result.error)) == ("a fourth", errors.ObjectDenied)
    assert kept.get("a fifth") == b"other"
    assert kept.allow(digests=[digest]) == 2
    kept.put("small/07", SMALL * 8)
    assert kept.get("small/07") == SMALL * 8
    assert len(kept.denied()) == 0


def test_wrong_denials_are_refused(client: Client, kept: Bucket) -> None:
    for wrong in (
        lambda: kept.deny(["small/01"], reason=""),
        lambda: kept.deny(["small/01"], reason="x" * 257),
        lambda: kept.deny(digests=["12345678"], reason="why"),
        lambda: kept.deny("small/01", reason="why"),
        lambda: kept.deny(["/small"], reason="why"),
        lambda: kept.deny(["/.lines/small/01"], reason="why"),
        lambda: kept.deny(["small\ud800"], reason="why"),
        lambda: client.bucket(f"{kept.name}@before").deny(["small/01"], reason="why"),
    ):
        with pytest.raises((errors.InvalidRequest, TypeError)):
            wrong()
    with pytest.raises(errors.BucketNotFound):
        client.bucket("no-such-bucket").deny(["small/01"], reason="why")
    assert kept.get("small/01") == SMALL * 2
    assert len(kept.denied()) == 0
