"""Batches of a few small objects that are at hand are answered whole, in one message; all others the ordinary way."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import numpy as np
import pytest

from ais_loader.wire.answer_check import digest
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.frame import Response, decode_response
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.object_info import info_of
from storage_node.batch.fast_path import (
    ANSWERED,
    MAX_BYTES,
    MAX_BYTES_TOGETHER,
    MAX_ENTRIES,
    answer_from_file,
    answer_inline,
)
from storage_node.context.membership import Membership
from storage_node.store.read import file_frame
from storage_node.store.read.batch import StoreBatch
from storage_node.store.read.file_frame import FileFrame
from storage_node.store.read.frame_plan import FILE_FRAME_BYTES
from storage_node.store.store import Store
from tests.node.node_kit import RawSession, batch_of, bucket_of, serving
from tests.open_files import open_files
from tests.store.batch_read_kit import content, crc
from tests.store.store_kit import BUCKET, drive_of, file_of, flip_a_byte, put, store_at
from tests.table import table

pytestmark = pytest.mark.on_disk  # which answers RWF_NOWAIT


@pytest.fixture(params=["this one", "one built for an older C library"])
def any_python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter, such as one of uv or conda, in which `os.preadv` has no flags."""
    if request.param != "this one":
        monkeypatch.delattr(os, "RWF_NOWAIT")


def filled(store: Store, sizes: list[int]) -> list[str]:
    """Objects of these sizes, and the catalog's entries at hand."""
    found = [f"k{i}" for i in range(len(sizes))]
    for i, size in enumerate(sizes):
        put(store, found[i], content(i, size))
    StoreBatch(store, pb.BatchRequest(bucket=[BUCKET], name=found))
    return found


def answer(store: Store, wanted: list[str], **fields: object) -> Response | None:
    found = answer_inline(store, batch_of(wanted, bucket=BUCKET, **fields), 77)
    return None if found is None else decode_response(found[0])


@table("sizes", [[5_000], [5_000, 1, 70_000], [100] * MAX_ENTRIES])
def test_a_few_entries_are_one_message_in_request_order(tmp_path: Path, sizes: list[int]) -> None:
    with store_at(tmp_path) as store:
        found = filled(store, sizes)
        order = list(range(len(sizes)))[::-1]
        response = answer(store, [found[i] for i in order])
        assert response is not None
        assert response.frame is not None
        assert response.end is not None
        frame, end = response.frame, response.end
        assert bytes(frame.payload) == b"".join(content(i, sizes[i]) for i in order)
        assert frame.index.tolist() == list(range(len(sizes)))
        assert frame.size.tolist() == [sizes[i] for i in order]
        assert frame.checksum.tolist() == [crc(content(i, sizes[i])) for i in order]
        assert (frame.status == pb.OK).all()
        assert (frame.checksum_kind == pb.STORED).all()
        assert (end.outcome, end.entries, end.failed_entries) == (pb.End.COMPLETE, len(sizes), 0)
        assert end.payload_bytes == sum(sizes)
        assert end.digest == digest(frame.status, frame.checksum)


@pytest.mark.usefixtures("any_python")
@table("ranges", [[(7, 4_000)], [(4_999, 1), (0, 69_999), (5, 9), (70, 70)]])
def test_ranges_of_files_are_one_message_in_request_order(tmp_path: Path, ranges: list[tuple[int, int]]) -> None:
    with store_at(tmp_path) as store:
        found, columns = filled(store, [5_000, 70_000]), list(zip(*ranges, strict=True))
        wanted = [number % 2 for number in range(len(ranges))]
        fields = {"start": columns[0], "length": columns[1], "local": True}
        whole = [content(0, 5_000), content(1, 70_000)]
        parts = [whole[at][begin : begin + size] for at, (begin, size) in zip(wanted, ranges, strict=True)]
        held = len(open_files(tmp_path))
        response = answer(store, [found[at] for at in wanted], **fields)
        assert response is not None and response.frame is not None and response.end is not None
        frame, end = response.frame, response.end
        assert list(map(bytes, frame.entries())) == parts
        assert frame.checksum.tolist() == [crc(part) for part in parts]
        assert (frame.checksum_kind == pb.COMPUTED).all()
        assert (end.outcome, end.entries, end.payload_bytes) == (pb.End.COMPLETE, len(parts), sum(map(len, parts)))
        assert end.digest == digest(frame.status, frame.checksum)
        assert len(open_files(tmp_path)) == held
        os.truncate(file_of(store, found[0]), 5)
        assert answer(store, [found[at] for at in wanted], **fields) is None
        assert len(open_files(tmp_path)) == held


@pytest.mark.slow
@table("field", [name for name in pb.BatchRequest.DESCRIPTOR.fields_by_name if name not in ANSWERED])
def test_a_field_that_it_does_not_know_is_left_to_the_ordinary_way(tmp_path: Path, field: str) -> None:
    with store_at(tmp_path) as store:
        request = batch_of(filled(store, [100, 100]), bucket=BUCKET)
        assert answer_inline(store, request, 77) is not None
        unset = getattr(request, field)
        if isinstance(unset, str):
            setattr(request, field, "1")
        elif isinstance(unset, int):
            setattr(request, field, 1)
        else:
            numbers = {key: [1, 1] for key in ("bucket_index", "start", "length", "transform_index")}
            unset.extend({"transform": [pb.TransformCall()], **numbers}.get(field, ["1", "1"]))
        assert answer_inline(store, request, 77) is None


def test_what_takes_more_is_left_to_the_ordinary_way(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        found = filled(store, [100] * (MAX_ENTRIES + 1) + [MAX_BYTES, MAX_BYTES, MAX_BYTES + 1])
        *small, half, other_half, larger = found
        assert answer(store, small[:2]) is not None
        assert answer(store, small) is None  # too many
        assert answer(store, [half, other_half]) is not None
        assert answer(store, [small[0], half, other_half]) is None  # too large together
        assert answer(store, [small[0], larger]) is None
        assert answer(store, [found[0], "nobody"]) is None
        assert answer(store, []) is None
        for more in (
            {"start": [0, 0], "length": [1]},
            {"start": [0, 0], "length": [1, 0]},
            {"start": [0, 0], "length": [1, -1]},
            {"start": [-1, 0], "length": [1, 1]},
            {"start": [0, 1], "length": [1, 100]},
            {"start": [0, 0], "length": [1, 100]},  # a whole object is verified
            {"start": [0, 0], "length": [1, 1], "verify_ranges": True},
            {"member": ["a", "b"]},
            {"version": ["1", "2"]},
            {"first_index": 1},
            {"bucket_index": [0, 0]},
            {"resume_offset": 1},
            {"buffered": True},
            {"credit": MAX_BYTES_TOGETHER - 1},
        ):
            assert answer(store, found[:2], **more) is None, more
        flip_a_byte(file_of(store, found[1]))
        assert answer(store, found[:2]) is None
        assert answer(store, found[:1]) is not None
        drive_of(store)._cache.forget()
        assert answer(store, found[:1]) is None  # the catalog would have to be asked


def test_what_was_just_put_is_at_hand(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        for size in (5_000, MAX_BYTES):
            put(store, "k", content(1, size))
            response = answer(store, ["k"], whole_up_to=MAX_BYTES)
            assert response is not None and response.frame is not None
            assert bytes(response.frame.payload) == content(1, size)
        put(store, "large", content(1, MAX_BYTES + 1))
        found = answer_from_file(store, batch_of(["large"], bucket=BUCKET, receiver_checks=True), 77)
        assert found is not None
        found[0].close()
        store.delete(BUCKET, "k")
        assert answer(store, ["k"]) is None


def test_what_a_scan_has_located_is_at_hand(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        found = filled(store, [100, 200, MAX_BYTES + 1])
    with store_at(tmp_path) as store:
        assert answer(store, found[:2]) is None
        store.drive_set.fill_locations()
        assert drive_of(store).fill.wait(180)
        response = answer(store, found[1::-1])
        assert response is not None and response.frame is not None
        assert bytes(response.frame.payload) == content(1, 200) + content(0, 100)
        large = answer_from_file(store, batch_of(found[2:], bucket=BUCKET, receiver_checks=True), 77)
        assert large is not None
        large[0].close()
        assert answer(store, found[:1], whole_up_to=MAX_BYTES) is None  # its description is in the catalog


@pytest.mark.usefixtures("any_python")
def test_one_that_is_larger_is_answered_from_its_file(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        sizes = [MAX_BYTES, MAX_BYTES + 1, FILE_FRAME_BYTES, FILE_FRAME_BYTES + 1]
        found = filled(store, sizes)

        def from_file(*wanted: str, receiver_checks: bool = True, **fields: object) -> FileFrame | None:
            request = batch_of(list(wanted), bucket=BUCKET, receiver_checks=receiver_checks, **fields)
            answered = answer_from_file(store, request, 77)
            if answered is None:
                return None
            answered[0].close()
            assert answered[1] == answered[0].payload_bytes
            return answered[0]

        for at in (1, 2):
            frame = from_file(found[at])
            assert frame is not None
            data = content(at, sizes[at])
            [part] = frame.parts
            assert (part.offset, part.left_bytes, part.owned) == (0, sizes[at], False)
            response = decode_response(frame.prefix + data)
            assert response.frame is not None
            assert response.frame.payload == data
            assert (response.frame.checksum.tolist(), response.frame.checksum_kind[0]) == ([crc(data)], pb.UNCHECKED)
            assert response.end is not None
            assert response.end.digest == digest(response.frame.status, response.frame.checksum)
        one = found[1]
        assert from_file(found[0]) is None  # small enough to be read
        assert from_file(found[3]) is None  # comes in pieces
        assert from_file(one, receiver_checks=False) is None
        assert from_file(one, found[2]) is None
        assert from_file(one, credit=MAX_BYTES) is None
        assert from_file("nobody") is None
        assert from_file(one, start=[0], length=[1]) is None
        assert from_file(one, version=["1"]) is None
        held = len(open_files(tmp_path))
        path = file_of(store, one)
        os.truncate(path, MAX_BYTES)
        assert from_file(one) is None
        path.unlink()
        assert from_file(one) is None
        drive_of(store)._cache.forget()
        assert from_file(found[2]) is None
        assert len(open_files(tmp_path)) == held


def test_one_that_a_drive_has_to_be_waited_for_is_left_to_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store_at(tmp_path) as store:
        request = batch_of(filled(store, [MAX_BYTES + 1]), bucket=BUCKET, receiver_checks=True)
        monkeypatch.setattr(file_frame, "_is_cached", lambda *_: False)
        held = len(open_files(tmp_path))
        assert answer_from_file(store, request, 77) is None
        assert len(open_files(tmp_path)) == held


def test_a_node_answers_only_for_what_the_newest_map_gives_it(tmp_path: Path) -> None:
    with serving(tmp_path) as node, bucket_of(node) as bucket:
        names = [f"k{i}" for i in range(24)]
        for i, name in enumerate(names):
            bucket.put(name, content(i, 100))
        assert node.batches is not None
        store = node.batches.node.store
        StoreBatch(store, batch_of(names))

        def few(wanted: list[str], **fields: object) -> bool:
            return answer_inline(store, batch_of(wanted, **fields), 1, node.membership) is not None

        assert few(names)
        view = learn(node.membership, 3, store.record.current.buckets["b"].uuid_bytes)
        own = [
            name for name in names if view.position[node.membership.node_uuid] in view.owners(view.buckets["b"], name)
        ]
        others = [name for name in names if name not in own]
        assert len(own) >= 2
        assert others
        assert few(own)
        assert not few([own[0], others[0]])
        assert few([own[0], others[0]], local=True)
        assert few([own[0], others[0]], local=True, map_version=3)
        assert not few(own, local=True, map_version=2)
        with RawSession(node.url) as session:
            _, end = session.ask(1, batch_of(own[:1], local=True, map_version=2))
            assert (end.outcome, end.error_kind) == (pb.End.REFUSED, "stale-map")


def learn(membership: Membership, version: int, bucket_uuid: bytes) -> ClusterView:
    """A map of two nodes, this one and one that nobody has heard of."""
    map_ = cluster_pb.ClusterMap(cluster_uuid=bytes(16), version=version)
    for number, node_uuid in enumerate([membership.node_uuid, uuid.UUID(int=9).bytes], 1):
        map_.node.add(uuid=node_uuid, host=f"h{number}", endpoint="127.0.0.1:9", weight=1.0, number=number)
    map_.bucket.add(name="b", uuid=bucket_uuid, copies=1, min_copies=1)
    membership.learn(map_)
    assert membership.view is not None
    return membership.view


def test_the_same_bytes_come_by_either_way(tmp_path: Path) -> None:
    with serving(tmp_path) as node, bucket_of(node) as bucket, RawSession(node.url) as session:
        names = [f"k{i}" for i in range(12)]
        for i, name in enumerate(names):
            bucket.put(name, content(i, 2_000 + i))
        wanted = names[::-1]
        ordinary, first_end = session.ask(1, batch_of(wanted, credit=MAX_BYTES - 1))
        session.ask(2, batch_of(wanted))
        small, second_end = session.ask(3, batch_of(wanted))
        assert (first_end.digest, first_end.entries) == (second_end.digest, second_end.entries)
        assert first_end.payload_bytes == second_end.payload_bytes == sum(range(2_000, 2_012))
        assert b"".join(bytes(frame.payload) for frame in ordinary) == b"".join(bytes(f.payload) for f in small)
        assert np.concatenate([f.checksum for f in ordinary]).tolist() == small[0].checksum.tolist()


@table("size", [1, 10_000, 131_071, 131_072])
def test_an_opened_object_comes_with_its_description(tmp_path: Path, size: int) -> None:
    with store_at(tmp_path) as store:
        (name,) = filled(store, [size])
        response = answer(store, [name], whole_up_to=131_072)
        assert response is not None and response.frame is not None and response.end is not None
        assert bytes(response.frame.payload) == content(0, size)
        assert response.end.object == info_of("", "", store.head(BUCKET, name))


def test_what_cannot_be_opened_at_once_is_left_to_the_ordinary_way(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        small, other = filled(store, [100, 200])
        assert answer(store, [small], whole_up_to=131_072) is not None
        for names in (["nobody"], [small, other], [small, small]):
            assert answer(store, names, whole_up_to=131_072) is None
        request = batch_of([small], bucket=BUCKET, whole_up_to=131_072, receiver_checks=True)
        assert answer_from_file(store, request, 77) is None


@table("size", [0, 1, 131_073, 600_000])
@table("whole_up_to", [0, 131_072])
def test_a_large_or_empty_object_is_only_described(tmp_path: Path, size: int, whole_up_to: int) -> None:
    with store_at(tmp_path) as store:
        (name,) = filled(store, [size])
        response = answer(store, [name], whole_up_to=whole_up_to)
        assert response is not None and response.end is not None
        assert response.end.object == info_of("", "", store.head(BUCKET, name))
        assert (response.frame is None) == (size == 0 or size > whole_up_to)


@pytest.mark.slow
@table("size", [0, 100, 131_072, 131_073, 600_000])
def test_a_session_describes_what_is_opened_and_sends_it_only_if_it_is_small(tmp_path: Path, size: int) -> None:
    with serving(tmp_path) as node, bucket_of(node) as bucket, RawSession(node.url) as session:
        data, sent = content(0, size), 0 < size <= 131_072
        described = bucket.put("a", data)
        for at, fields in enumerate(
            ({}, {"buffered": True}, {"version": [described.version]})
        ):  # also the ordinary way
            frames, end = session.ask(10 + at, batch_of(["a"], whole_up_to=131_072, **fields))
            assert b"".join(bytes(frame.payload) for frame in frames) == (data if sent else b"")
            assert (len(frames), end.entries, end.failed_entries) == (int(sent), int(sent), 0)
            found = end.object
            assert (found.size_bytes, found.version, found.checksum) == (size, described.version, described.checksum)
            frames, end = session.ask(20 + at, batch_of(["a"], whole_up_to=0, **fields))
            assert (frames, end.object, end.entries) == ([], found, 0)
        for at, wrong in enumerate(({"start": [0], "length": [1]}, {"name": ["a", "a"]})):
            names = wrong.pop("name", ["a"])
            frames, end = session.ask(30 + at, batch_of(names, whole_up_to=1, **wrong))
            assert (end.outcome, end.error_kind) == (pb.End.REFUSED, "invalid-request")
        for at, names in enumerate((["nobody"], ["a"])):
            request = batch_of(names, whole_up_to=131_072, version=["1.1.1"])
            frames, end = session.ask(40 + at, request)
            assert (frames, end.HasField("object"), end.entries) == ([], False, 0)
        frames, end = session.ask(50, batch_of(["a"]))
        assert not end.HasField("object")
