"""Objects made of parts of others, in one store: damage is never copied, and a crash leaves the old or the new."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import ais_loader
from ais_loader.errors import CorruptObject, InvalidRequest
from ais_loader.objects.put_spec import PARTS_PREFIX
from ais_loader.wire.generated import ais_compose_pb2 as pb
from storage_node.store.compose import MAX_PARTS, check_parts, compose_object
from storage_node.store.format import BLOCK_BYTES
from tests.faults.crash_kit import CrashServer
from tests.store.store_kit import BUCKET, assert_sound, contents, file_of, flip_a_byte, names, put, read, store_at

DATA = os.urandom(5 * BLOCK_BYTES + 9)


def request(*ranges: tuple[int, int | None], to: str = "made") -> pb.ComposeRequest:
    made = pb.ComposeRequest()
    made.object.bucket, made.object.name = BUCKET, to
    for start, length in ranges:
        made.part.add(range=pb.ComposeRange(bucket=BUCKET, name="source", start=start, length=length))
    return made


@pytest.mark.parametrize("size", [1000, len(DATA)])
def test_a_damaged_source_makes_no_object_and_what_lies_beside_the_damage_does(tmp_path: Path, size: int) -> None:
    with store_at(tmp_path) as store:
        put(store, "made", b"old")
        put(store, "source", DATA[:size])
        flip_a_byte(file_of(store, "source"), size // 2)
        for parts in ([(0, None)], [(0, 10), (size // 2, 1)], [(size // 2 - 3, 6)]):
            with pytest.raises(CorruptObject):
                compose_object(store, request(*parts))
        if size > BLOCK_BYTES:
            compose_object(store, request((0, BLOCK_BYTES), (4 * BLOCK_BYTES + 5, None), to="beside"))
            assert read(store, "beside") == DATA[:BLOCK_BYTES] + DATA[4 * BLOCK_BYTES + 5 :]
        assert read(store, "made") == b"old"
        assert not list((tmp_path / "staging").iterdir())


def test_a_source_that_shrank_makes_no_object(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put(store, "source", DATA)
        os.truncate(file_of(store, "source"), len(DATA) - 1)
        with pytest.raises(CorruptObject):
            compose_object(store, request((0, None)))
        assert names(store) == ["source"]


def test_what_a_snapshot_sees_is_copied_back(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put(store, "a", b"old", metadata={"k": "v"})
        store.snapshots.create(BUCKET, "s")
        put(store, "a", b"new")
        back = pb.ComposeRequest(inherit_metadata=True)
        back.object.bucket, back.object.name = BUCKET, "a"
        back.part.add(range=pb.ComposeRange(bucket=f"{BUCKET}@s", name="a"))
        assert compose_object(store, back).metadata == {"k": "v"}
        assert (read(store, "a"), read(store, "a", f"{BUCKET}@s")) == (b"old", b"old")


def test_requests_without_bounds_or_sense_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="10,001"):
        check_parts(request(*[(0, 0)] * (MAX_PARTS + 1)))
    with pytest.raises(InvalidRequest, match="neither"):
        check_parts(pb.ComposeRequest(part=[pb.ComposePart()]))
    with pytest.raises(InvalidRequest, match="metadata"):
        check_parts(pb.ComposeRequest(inherit_metadata=True))


CODE = """
import sys
import ais_loader
from storage_node.store import failpoints

operation, point, root = sys.argv[1:]
client = ais_loader.connect(root)
bucket = client.bucket("speech")
upload = bucket.multipart("source", upload_id=next(bucket.uploads()).id) if operation == "complete" else None
failpoints.arm(point)
if operation == "rename":
    bucket.rename("source", "to")
elif operation == "append":
    bucket.append("source", b"more")
elif operation == "complete":
    upload.complete()
client.close()
"""
_PUT = ("put.staged", "put.renamed", "put.committed")
CRASHES = [
    *itertools.product(("append",), _PUT),
    *itertools.product(("rename",), (*_PUT, "delete.committed")),
    *itertools.product(("complete",), (*_PUT, "put.committed:2", "delete.committed", "delete.committed:3")),
]


@pytest.fixture(scope="module")
def crashes() -> Iterator[CrashServer]:
    with CrashServer() as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize(("operation", "point"), CRASHES)
@pytest.mark.sampled(8)
def test_a_crash_leaves_the_old_or_the_new_and_doing_it_again_ends_it(
    tmp_path: Path, crashes: CrashServer, operation: str, point: str
) -> None:
    with store_at(tmp_path) as store:
        put(store, "source", b"source")
    if operation == "complete":
        with ais_loader.connect(tmp_path) as client:
            upload = client.bucket(BUCKET).multipart("source")
            for number, data in enumerate((b"one", b"two"), 1):
                upload.put_part(number, data)
    assert crashes.run("run_code", code=CODE, arguments=[operation, point, str(tmp_path)]) == -9
    with ais_loader.connect(tmp_path) as client:
        bucket = client.bucket(BUCKET)
        there = {info.name: bucket.get(info.name) for info in bucket.objects()}
        if operation == "append":
            assert there["source"] == (b"sourcemore" if point == "put.committed" else b"source")
        elif operation == "rename":
            assert there in ({"source": b"source"}, {"source": b"source", "to": b"source"}, {"to": b"source"})
            assert ("to" in there) == (point in ("put.committed", "delete.committed"))
            if "source" in there:
                bucket.rename("source", "to")
            assert [info.name for info in bucket.objects()] == ["to"]
        else:
            assert there["source"] == (b"source" if point in ("put.staged", "put.renamed") else b"onetwo")
            for left in bucket.uploads():
                bucket.multipart("source", upload_id=left.id).complete()
            assert bucket.get("source") == b"onetwo" and list(bucket.objects(PARTS_PREFIX)) == []
    with store_at(tmp_path) as store:
        assert set(contents(store)) <= {"source", "to"}
    assert_sound(tmp_path)
