"""Uploads in parts: any order, side by side, gone on with elsewhere; one object at the end, or nothing at all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import google_crc32c
import pytest
from conformance_kit import MiB

from ais_loader import Bucket, Client, errors
from ais_loader.objects.put_spec import PARTS_PREFIX
from ais_loader.testing import seeded_bytes

DATA = seeded_bytes(2 * MiB + 77)
PARTS = [DATA[at : at + 500_000] for at in range(0, len(DATA), 500_000)]


def names(bucket: Bucket, prefix: str = "") -> list[str]:
    return [info.name for info in bucket.objects(prefix)]


def test_parts_sent_side_by_side_and_out_of_order_become_the_object(bucket: Bucket) -> None:
    bucket.put("big", b"old")
    upload = bucket.multipart("big", metadata={"k": "v"})
    with ThreadPoolExecutor(3) as pool:
        sent = list(pool.map(lambda number: upload.put_part(number, PARTS[number - 1]), [4, 2, 5, 1, 3]))
    assert [part.number for part in sent] == [4, 2, 5, 1, 3]
    upload.put_part(2, b"wrong")
    upload.put_part(2, PARTS[1])
    assert [(part.number, part.size_bytes) for part in upload.parts()] == [
        (number, len(part)) for number, part in enumerate(PARTS, 1)
    ]
    assert names(bucket) == ["big"] and bucket.get("big") == b"old"
    info = upload.complete(size_bytes=len(DATA), checksum=google_crc32c.value(DATA))
    assert bucket.get("big") == DATA
    assert (info.size_bytes, info.checksum, info.metadata) == (len(DATA), google_crc32c.value(DATA), {"k": "v"})
    assert names(bucket) == ["big"] and names(bucket, PARTS_PREFIX) == []
    for call in (upload.complete, lambda: upload.put_part(1, b"late")):
        with pytest.raises(errors.ObjectNotFound):
            call()
    assert names(bucket, PARTS_PREFIX) == []


def test_an_upload_goes_on_by_its_id(bucket: Bucket) -> None:
    first = bucket.multipart("a/b", part_bytes=500_000, metadata={"k": "v"})
    first.put_part(3, PARTS[2])
    again = Client(bucket.client._transport).bucket(bucket.name).multipart("a/b", upload_id=first.id)
    assert (again.part_bytes, [part.number for part in again.parts()]) == (500_000, [3])
    with pytest.raises(errors.InvalidRequest, match="a/b"):
        bucket.multipart("another", upload_id=first.id)
    for wrong in ("", "x" * 32, first.id + "/", "../" + first.id):
        with pytest.raises(errors.InvalidRequest):
            bucket.multipart("a/b", upload_id=wrong)
    with pytest.raises(errors.ObjectNotFound):
        bucket.multipart("a/b", upload_id="0" * 32)
    for number in (1, 2):
        again.put_part(number, PARTS[number - 1])
    info = first.complete()
    assert bucket.get("a/b") == b"".join(PARTS[:3])
    assert info.metadata == {"k": "v"}


def test_an_upload_that_is_not_whole_is_not_completed(bucket: Bucket) -> None:
    upload = bucket.multipart("a", part_bytes=10)
    with pytest.raises(errors.InvalidRequest, match="no parts"):
        upload.complete()
    for number in (0, -1, 10_001):
        with pytest.raises(errors.InvalidRequest, match="numbered"):
            upload.put_part(number, b"")
    with pytest.raises(errors.InvalidRequest, match="11 bytes"):
        upload.put_part(1, b"x" * 11)
    upload.put_part(3, b"last")
    upload.put_part(1, b"0123456789")
    with pytest.raises(errors.InvalidRequest, match="part 2 is missing"):
        upload.complete()
    upload.put_part(2, b"short")
    with pytest.raises(errors.InvalidRequest, match="part 2 has 5 bytes"):
        upload.complete()
    upload.put_part(2, b"abcdefghij")
    with pytest.raises(errors.ContentMismatch):
        upload.complete(size_bytes=25)
    assert names(bucket) == []
    upload.complete()
    assert bucket.get("a") == b"0123456789abcdefghijlast"


def test_completing_again_after_an_interruption_ends_it(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    upload = bucket.multipart("a")
    upload.put_part(1, b"one")
    upload.put_part(2, b"two")
    transport = bucket.client._transport
    delete = type(transport).delete
    calls: list[str] = []

    def interrupted(self: object, bucket: str, name: str, *more: object, **options: object) -> None:
        calls.append(name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        delete(transport, bucket, name, *more, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(type(transport), "delete", interrupted)
        upload.complete()
    made = bucket.head("a")
    assert [part.number for part in upload.parts()] == [2]
    with pytest.raises(errors.ObjectNotFound):
        upload.put_part(1, b"late")
    assert bucket.multipart("a", upload_id=upload.id).complete() == made
    assert (bucket.get("a"), names(bucket, PARTS_PREFIX)) == (b"onetwo", [])


def test_an_aborted_upload_leaves_nothing(bucket: Bucket) -> None:
    upload = bucket.multipart("a")
    upload.put_part(1, b"one")
    upload.abort()
    upload.abort()
    assert names(bucket, PARTS_PREFIX) == []
    with pytest.raises(errors.ObjectNotFound):
        upload.put_part(2, b"two")
    with pytest.raises(errors.ObjectNotFound):
        upload.complete()
    assert names(bucket, PARTS_PREFIX) == []


def test_forgotten_uploads_are_listed_and_swept(bucket: Bucket) -> None:
    one, two = bucket.multipart("a"), bucket.multipart("b")
    one.put_part(1, b"12345")
    found = {upload.id: upload for upload in bucket.uploads()}
    assert {upload.name: (upload.parts, upload.size_bytes) for upload in found.values()} == {"a": (1, 5), "b": (0, 0)}
    assert found.keys() == {one.id, two.id}
    assert bucket.sweep_uploads(older_than_s=24 * 3600) == []
    assert {upload.id for upload in bucket.sweep_uploads(older_than_s=-3600)} == {one.id, two.id}
    assert list(bucket.uploads()) == [] and names(bucket, PARTS_PREFIX) == []


def test_no_ordinary_name_reaches_parts(bucket: Bucket) -> None:
    bucket.put("a", b"x")
    upload = bucket.multipart("b")
    part = f"{PARTS_PREFIX}{upload.id}/00001"
    upload.put_part(1, b"one")
    for name in (part, PARTS_PREFIX + "x"):
        with pytest.raises(errors.InvalidName):
            bucket.put(name, b"")
        with pytest.raises(errors.InvalidName):
            bucket.copy("a", name)
        with pytest.raises(errors.InvalidName):
            bucket.multipart(name)
    assert names(bucket) == ["a"] and names(bucket, "a") == ["a"]
    assert upload.parts()[0].size_bytes == 3


def test_a_bucket_that_holds_parts_alone_counts_as_empty(client: Client, bucket_name: str) -> None:
    bucket = client.create_bucket(bucket_name)
    bucket.multipart("a").put_part(1, b"one")
    client.delete_bucket(bucket_name)
    with pytest.raises(errors.BucketNotFound):
        bucket.head("a")
