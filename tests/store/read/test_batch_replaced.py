"""Objects replaced by others of another size between a batch's look-up and its reading: every item is one version's
bytes or says why not, and the sizes of a frame are those of its payload."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ais_loader.testing import seeded_bytes
from ais_loader.wire.checksum import crc32c
from ais_loader.wire.frame import TARGET_PAYLOAD_BYTES, Frame, decode_response
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.reserved import REMOTE_ETAG
from storage_node.store.read import frame_reader
from storage_node.store.read.batch import StoreBatch
from storage_node.store.read.file_frame import FileFrame
from storage_node.store.store import Store
from tests.store.snapshot_kit import reap
from tests.store.store_kit import BUCKET, put, store_at

OLD, NEW = seeded_bytes(3000, seed=1), seeded_bytes(5011, seed=2)
OTHER = seeded_bytes(700, seed=3)


Write = Callable[[Store, str, bytes], None]
Frames = Callable[..., Iterator[Frame]]


def put_in_segment(store: Store, name: str, data: bytes) -> None:
    beside = store.stage(BUCKET, f"{name}.beside", iter([data]), {}, len(data), None, grouped=True)
    store.commit_many([beside, store.stage(BUCKET, name, iter([data]), {}, len(data), None, grouped=True)])


def put_alone(store: Store, name: str, data: bytes) -> None:
    put(store, name, data)


@pytest.fixture(params=[put_alone, put_in_segment], ids=["file", "segment"])
def write(request: pytest.FixtureRequest) -> Callable[[Store, str, bytes], None]:
    found: Callable[[Store, str, bytes], None] = request.param
    return found


@pytest.fixture(params=["embedded", "node", "files"])
def frames(request: pytest.FixtureRequest) -> Frames:
    """What a batch gives its consumer, in this process, in messages, or in messages with bytes from files."""

    def embedded(reading: StoreBatch, target_bytes: int = TARGET_PAYLOAD_BYTES) -> Iterator[Frame]:
        for span in reading.spans(target_bytes):
            yield reading.read(span)

    def sent(reading: StoreBatch, target_bytes: int = TARGET_PAYLOAD_BYTES) -> Iterator[Frame]:
        for span in reading.spans(target_bytes):
            frame = decode_response(reading.read_encoded(span, 7)[0]).frame
            assert frame is not None
            yield frame

    def sent_from_files(reading: StoreBatch, target_bytes: int = TARGET_PAYLOAD_BYTES) -> Iterator[Frame]:
        reading.file_frame_bytes = target_bytes
        for span in reading.spans(target_bytes):
            message, _ = reading.read_message(span, 7)
            if isinstance(message, FileFrame):
                with closing(message):
                    parts = [os.pread(part.fd, part.left_bytes, part.offset) for part in message.parts]
                    message = b"".join((message.prefix, *parts))
            frame = decode_response(message).frame
            assert frame is not None
            yield frame

    found: Frames = {"embedded": embedded, "node": sent, "files": sent_from_files}[request.param]
    return found


def items(came: Iterator[Frame]) -> list[tuple[int, bytes]]:
    """(status, bytes) of each entry in order; every frame must add up."""
    found: list[tuple[int, bytes]] = []
    for frame in came:
        assert int(frame.size.sum()) == len(frame.payload)
        at = 0
        for status, size, checksum in zip(frame.status, frame.size, frame.checksum, strict=True):
            data = bytes(frame.payload[at : at + int(size)])
            assert not size or crc32c(data) == checksum
            found.append((int(status), data))
            at += int(size)
    return found


@pytest.mark.parametrize("new_bytes", [120_000, 70_000], ids=["larger", "smaller"])
def test_objects_that_are_replaced_before_several_frames_are_read_come_in_all_of_them(
    tmp_path: Path, write: Write, frames: Frames, new_bytes: int
) -> None:
    names = [f"n{at}" for at in range(7)]
    due = {name: seeded_bytes(100_000, seed=at) for at, name in enumerate(names)}
    with store_at(tmp_path) as store:
        for name, data in due.items():
            write(store, name, data)
        reading = StoreBatch(store, pb.BatchRequest(bucket=[BUCKET], name=names))
        for name in ("n0", "n3", "n6"):
            due[name] = seeded_bytes(new_bytes, seed=100)
            write(store, name, due[name])
        reap(store)
        assert items(frames(reading, 200_000)) == [(pb.OK, data) for data in due.values()]


@pytest.mark.parametrize("new", [NEW, NEW[:10]], ids=["larger", "smaller"])
def test_an_object_that_is_named_twice_and_replaced_shifts_nothing(
    tmp_path: Path, write: Write, frames: Frames, new: bytes
) -> None:
    with store_at(tmp_path) as store:
        write(store, "x", OLD)
        write(store, "after", OTHER)
        reading = StoreBatch(store, pb.BatchRequest(bucket=[BUCKET], name=["x", "after", "x", "after", "x"]))
        write(store, "x", new)
        reap(store)
        got = items(frames(reading))
    for at in (1, 3):
        assert got[at] == (pb.OK, OTHER)
    for at in (0, 2, 4):
        assert got[at] in ((pb.OK, OLD), (pb.OK, new))


def test_a_duplicate_that_is_pinned_gets_its_version_or_nothing(tmp_path: Path, write: Write, frames: Frames) -> None:
    with store_at(tmp_path) as store:
        write(store, "x", OLD)
        write(store, "after", OTHER)
        pinned = str(store.head(BUCKET, "x").version)
        reading = StoreBatch(
            store, pb.BatchRequest(bucket=[BUCKET], name=["x", "x", "after"], version=["", pinned, ""])
        )
        write(store, "x", NEW)
        reap(store)
        whole, other, after = items(frames(reading))
    assert whole in ((pb.OK, OLD), (pb.OK, NEW))
    assert other in ((pb.OK, OLD), (pb.NOT_FOUND, b""))
    assert after == (pb.OK, OTHER)


def test_a_duplicate_that_asks_for_a_range_gets_its_range(tmp_path: Path, write: Write, frames: Frames) -> None:
    with store_at(tmp_path) as store:
        write(store, "x", OLD)
        write(store, "after", OTHER)
        reading = StoreBatch(
            store,
            pb.BatchRequest(bucket=[BUCKET], name=["x", "x", "after"], start=[0, 0, 0], length=[-1, len(OLD), -1]),
        )
        write(store, "x", NEW)
        reap(store)
        whole, part, after = items(frames(reading))
    assert whole in ((pb.OK, OLD), (pb.OK, NEW))
    assert part in ((pb.OK, OLD), (pb.OK, NEW[: len(OLD)]))
    assert after == (pb.OK, OTHER)


def test_a_batch_that_goes_on_in_its_first_entry_keeps_a_frame_that_begins_with_a_failure(
    tmp_path: Path, frames: Frames
) -> None:
    large = seeded_bytes(3 << 20, seed=4)
    begun = 2 << 20
    with store_at(tmp_path) as store:
        put(store, "large", large)
        put(store, "after", OTHER)
        reading = StoreBatch(
            store,
            pb.BatchRequest(
                bucket=[BUCKET],
                name=["large", "missing", "after"],
                resume_offset=begun,
                resume_checksum=crc32c(large[:begun]),
                resume_version=str(store.head(BUCKET, "large").version),
            ),
        )
        came = [(frame.index.tolist(), frame.status.tolist(), bytes(frame.payload)) for frame in frames(reading)]
    assert [at for index, _, _ in came for at in index] == [0, 1, 2]
    assert came[0][2] == large[begun:]
    assert came[1][1:] == ([pb.NOT_FOUND, pb.OK], OTHER)


@pytest.mark.parametrize("part", [None, (10, 5 << 20)], ids=["whole", "range"])
def test_the_rest_of_an_object_that_is_replaced_after_the_look_up_is_of_no_other_version(
    tmp_path: Path, frames: Frames, part: tuple[int, int] | None
) -> None:
    """The new one has the same size: neither its bytes follow those of the old one, nor is it called damaged."""
    old, new = seeded_bytes(6 << 20, seed=5), seeded_bytes(6 << 20, seed=6)
    begun = 2 << 20
    with store_at(tmp_path) as store:
        put(store, "large", old)
        put(store, "after", OTHER)
        start, length = part or (0, len(old))
        request = pb.BatchRequest(
            bucket=[BUCKET],
            name=["large", "after"],
            start=[start, 0],
            length=[length, -1],
            resume_offset=begun,
            resume_checksum=crc32c(old[start : start + begun]),
            resume_version=str(store.head(BUCKET, "large").version),
        )
        reading = StoreBatch(store, request)
        put(store, "large", new)
        reap(store)
        assert items(frames(reading)) == [(pb.UNAVAILABLE, b""), (pb.OK, OTHER)]
        assert not store.damaged.found
        again = [*frames(StoreBatch(store, request))]
    pieces = [frame for frame in again if frame.piece is not None]
    assert pieces[0].begins_again
    assert b"".join(bytes(frame.payload) for frame in pieces) == new[start : start + length]


@pytest.mark.parametrize(
    ("pinned", "resumed", "tag", "status"),
    [
        ("etag:x", "", "x", pb.OK),
        ("etag:x", "", "y", pb.NOT_FOUND),
        ("etag:x", "etag:x", "y", pb.NOT_FOUND),
        ("", "etag:x", "y", pb.OK),
    ],
)
def test_the_rest_of_a_remote_object_begins_again_in_another_copy_unless_that_has_not_the_requested_tag(
    tmp_path: Path, frames: Frames, pinned: str, resumed: str, tag: str, status: int
) -> None:
    """It was fetched again: its version is another one, and its bytes may be the same."""
    data, begun = seeded_bytes(3 << 20, seed=7), 1 << 20
    with store_at(tmp_path) as store:
        old = put(store, "x", data, metadata={REMOTE_ETAG: "x"})
        new = put(store, "x", data[::-1], metadata={REMOTE_ETAG: tag})
        request = pb.BatchRequest(
            bucket=[BUCKET],
            name=["x"],
            version=[pinned],
            resume_offset=begun,
            resume_checksum=crc32c(data[:begun]),
            resume_version=resumed or str(old.version),
        )
        came = [*frames(StoreBatch(store, request))]
    assert b"".join(bytes(frame.payload) for frame in came) == (b"" if status else data[::-1])
    assert {int(frame.status[0]) for frame in came} == {status}
    assert {frame.piece.version for frame in came if frame.piece is not None} == (
        set() if status else {str(new.version)}
    )


def test_a_piece_of_an_object_that_was_replaced_names_the_version_that_it_is_of(tmp_path: Path, frames: Frames) -> None:
    with store_at(tmp_path) as store:
        put_in_segment(store, "x", OLD)
        reading = StoreBatch(store, pb.BatchRequest(bucket=[BUCKET], name=["x"], resume_offset=1000))
        new = bytes(reversed(OLD))
        put_in_segment(store, "x", new)
        reap(store)
        (frame,) = frames(reading)
        versions = {str(store.head(BUCKET, "x").version): new}
    assert frame.piece is not None
    assert bytes(frame.payload) == versions.get(frame.piece.version, OLD)[1000:]


def test_a_frame_stays_within_bounds_when_its_objects_are_replaced_by_large_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Write, frames: Frames
) -> None:
    monkeypatch.setattr(frame_reader, "MAX_GROWTH_BYTES", 3 * len(NEW))
    names = [f"n{at}" for at in range(8)]
    with store_at(tmp_path) as store:
        for name in [*names, "after"]:
            write(store, name, OTHER)
        reading = StoreBatch(store, pb.BatchRequest(bucket=[BUCKET], name=[*names, *names, "after"]))
        for name in names:
            write(store, name, NEW)
        reap(store)
        got = items(frames(reading))
        again = items(frames(StoreBatch(store, pb.BatchRequest(bucket=[BUCKET], name=names))))
    assert set(got[:-1]) == {(pb.OK, NEW), (pb.UNAVAILABLE, b"")}
    assert [status for status, _ in got].count(pb.OK) == 4
    assert got[-1] == (pb.OK, OTHER)
    assert again == [(pb.OK, NEW)] * len(names)


def test_later_frames_stay_within_bounds_when_their_objects_are_replaced_by_large_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Write, frames: Frames
) -> None:
    monkeypatch.setattr(frame_reader, "MAX_GROWTH_BYTES", 2 * len(NEW))
    names = [f"n{at}" for at in range(16)]
    with store_at(tmp_path) as store:
        for name in names:
            write(store, name, OTHER)
        reading = StoreBatch(store, pb.BatchRequest(bucket=[BUCKET], name=names))
        for name in names:
            if name != "n15":
                write(store, name, NEW)
        reap(store)
        came = [frame.status.tolist() for frame in frames(reading, 4 * len(OTHER))]
    grown = [pb.OK, pb.OK, pb.UNAVAILABLE, pb.UNAVAILABLE]
    assert came == [grown, grown, grown, [*grown[:3], pb.OK]]
