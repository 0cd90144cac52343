"""The index of a segment is there twice: with one of them damaged nothing is lost, and nothing deleted comes back."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage_node.store import format as fmt
from storage_node.store.drive.catalog import WriteBatch
from storage_node.store.files.segment_file import SegmentFile, open_segment
from storage_node.store.files.segment_format import HEAD_BYTES, LIVE, encode_state, row_offset
from storage_node.store.fsck import fsck as doctor
from tests.store.segment_kit import (
    LEFT,
    NAMES,
    OBJECTS,
    assert_holds,
    head_of,
    identities_in,
    lose_begin,
    lose_end,
    make,
    overwrite,
    put_group,
    rebuilt,
    states_in,
)
from tests.store.snapshot_kit import reap
from tests.store.store_kit import (
    BUCKET,
    assert_sound,
    contents,
    drive_of,
    flip_a_byte,
    kinds,
    object_files,
    read,
    store_at,
)
from tests.table import table


def cut_the_end(file: Path) -> None:
    os.truncate(file, head_of(file).copy_at)


def cut_the_trailer(file: Path) -> None:
    os.truncate(file, file.stat().st_size - HEAD_BYTES)


def first_identity(file: Path) -> int:
    return row_offset(head_of(file).slots)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "begin": lose_begin,
    "end": lose_end,
    "magic": lambda file: flip_a_byte(file, 0),
    "length": lambda file: flip_a_byte(file, 12),
    "state of one deleted": lambda file: overwrite(file, row_offset(0), bytes(16)),
    "state of one alive": lambda file: overwrite(file, row_offset(2), b"\xff" * 16),
    "place": lambda file: flip_a_byte(file, row_offset(2) + 17),
    "identity": lambda file: flip_a_byte(file, first_identity(file) + 300),
    "copy's place": lambda file: flip_a_byte(file, head_of(file).copy_at + row_offset(7) + 20),
    "trailer": lambda file: flip_a_byte(file, file.stat().st_size - HEAD_BYTES + 9),
    "end gone": cut_the_end,
    "trailer gone": cut_the_trailer,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.sampled(6)
def test_with_one_copy_damaged_a_rebuild_has_everything_and_a_repair_makes_it_whole(
    tmp_path: Path, damage: str
) -> None:
    segment, now, seen = make(tmp_path)
    DAMAGES[damage](segment)
    report = rebuilt(tmp_path)
    assert [finding.kind for finding in report.errors] == []
    assert [tmp_path / finding.path for finding in report.of("segment-copy")] == [segment]
    assert_holds(tmp_path, now, seen)
    assert kinds(doctor.check([tmp_path], checksums=True)) == ["segment-copy"]
    [mended] = doctor.repair([tmp_path]).findings
    assert (mended.kind, mended.repaired) == ("segment-copy", "written anew from the other copy")
    assert_sound(tmp_path)
    # Each of the two is whole now, by itself.
    for lose in (lose_end, lose_begin):
        lose(segment)
        rebuilt(tmp_path)
        assert_holds(tmp_path, now, seen)
        doctor.repair([tmp_path])
        assert_sound(tmp_path)


@pytest.mark.slow
@table("reaped", [True, False], ids=["reaped", "dead"])
@table("lose", [lose_begin, lose_end])
def test_what_is_deleted_after_a_copy_was_lost_does_not_come_back(
    tmp_path: Path, lose: Callable[[Path], None], reaped: bool
) -> None:
    segment, now, seen = make(tmp_path, reaped=reaped)
    lose(segment)
    with store_at(tmp_path) as store:
        store.delete(BUCKET, LEFT[-1])
    rebuilt(tmp_path)
    assert_holds(tmp_path, {name: data for name, data in now.items() if name != LEFT[-1]}, seen)
    doctor.repair([tmp_path])
    assert_sound(tmp_path)


def test_parts_of_both_copies_make_a_whole(tmp_path: Path) -> None:
    segment, now, seen = make(tmp_path)
    head = head_of(segment)
    half = row_offset(head.slots // 2)
    overwrite(segment, HEAD_BYTES, b"\x5a" * (half - HEAD_BYTES))
    overwrite(segment, head.copy_at + half, b"\x5a" * (row_offset(head.slots) - half))
    at_identities = row_offset(head.slots)
    part = (head.index_bytes - at_identities) // 2
    overwrite(segment, at_identities + part, bytes(head.index_bytes - at_identities - part))
    rebuilt(tmp_path)
    assert_holds(tmp_path, now, seen)
    doctor.repair([tmp_path])
    assert_sound(tmp_path)
    lose_begin(segment)
    rebuilt(tmp_path)
    assert_holds(tmp_path, now, seen)


@pytest.mark.slow
@table("what", ["state", "place", "identity"])
def test_of_what_is_lost_in_both_copies_one_object_is_missed_and_nothing_removed_unasked(
    tmp_path: Path, what: str
) -> None:
    with store_at(tmp_path) as store:
        put_group(store, OBJECTS)
        [segment] = object_files(tmp_path)
    head = head_of(segment)
    place = {"state": row_offset(3), "place": row_offset(3) + 20, "identity": first_identity(segment)}[what]
    for copy_at in (0, head.copy_at):
        flip_a_byte(segment, copy_at + place)
    lost = NAMES[0 if what == "identity" else 3]
    left = {name: data for name, data in OBJECTS.items() if name != lost}
    with store_at(tmp_path) as store:
        assert contents(store) == OBJECTS  # the catalog knows where it is
    assert "segment-damaged" not in kinds(doctor.check([tmp_path], checksums=True))
    assert len(rebuilt(tmp_path).of("no-identity")) == 1
    for _ in range(2):
        report = doctor.repair([tmp_path])
        assert [finding.repaired for finding in report.findings] == [None] * len(report.findings)
    with store_at(tmp_path) as store:
        assert contents(store) == left
        # The segment is named by others: only its slot can be known to be in question.
        assert "segment-copy" in kinds(doctor.check([tmp_path]))
    for copy_at in (0, head.copy_at):
        flip_a_byte(segment, copy_at + place)  # the medium has recovered
    doctor.repair([tmp_path])
    with store_at(tmp_path) as store:
        assert contents(store) == OBJECTS
    assert_sound(tmp_path)


def test_dropping_what_cannot_be_told_leaves_what_was_taken_back(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put_group(store, OBJECTS)
        [segment] = object_files(tmp_path)
        for name in OBJECTS:  # the catalog forgets all of it, as if it was of before
            drive, _ = store.locate(BUCKET, name)
            batch = WriteBatch(raw_mode=True)
            batch.delete(fmt.object_key(store.bucket(BUCKET).uuid_bytes, name))
            drive.catalog.write(batch, sync=False)
    for copy_at in (0, head_of(segment).copy_at):
        flip_a_byte(segment, copy_at + row_offset(3) + 20)
    report = doctor.repair([tmp_path], drop_damaged=True)
    assert sorted(kinds(report)) == ["recoverable"] * 39 + ["segment-damaged"]
    with store_at(tmp_path) as store:
        assert contents(store) == {name: data for name, data in OBJECTS.items() if name != NAMES[3]}
    assert_sound(tmp_path)


@pytest.mark.parametrize("copy", [0, 1])
def test_a_crash_between_the_two_states_of_a_deletion_does_not_bring_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copy: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(SegmentFile, "wipe", lambda *_, **__: None)  # a power failure has undone it
        segment, now, seen = make(tmp_path)
    for slot in (0, 4):
        overwrite(segment, (0, head_of(segment).copy_at)[copy] + row_offset(slot), encode_state(LIVE))
    rebuilt(tmp_path)
    assert_holds(tmp_path, now, seen)
    assert kinds(doctor.check([tmp_path])) == []  # a writer might be between the two
    doctor.repair([tmp_path])
    assert states_in(segment, 0) == states_in(segment, 1)
    assert [at for at in range(6) if identities_in(segment)[at] is None] == [0, 4]
    (lose_begin, lose_end)[1 - copy](segment)
    rebuilt(tmp_path)
    assert_holds(tmp_path, now, seen)


@pytest.mark.parametrize("whole", [False, True])
def test_wiping_a_slot_of_a_truncated_segment_does_not_make_the_file_longer(tmp_path: Path, whole: bool) -> None:
    with store_at(tmp_path) as store:
        put_group(store, OBJECTS)
        [segment] = object_files(tmp_path)
        _, cut = store.locate(BUCKET, NAMES[3])
    os.truncate(segment, cut.offset + 1)
    with segment.open("r+b") as opened:
        SegmentFile(opened.fileno(), head_of(segment), lambda _: None).wipe(range(2, 5), whole=whole)
    assert [at for at in range(6) if identities_in(segment)[at] is None] == [2, 3, 4]
    assert segment.stat().st_size == cut.offset + 1


def test_a_file_that_was_cut_inside_an_object_is_not_made_longer_before_that_is_dropped(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put_group(store, OBJECTS)
        [segment] = object_files(tmp_path)
        _, last = store.locate(BUCKET, NAMES[-1])
    os.truncate(segment, last.offset + 1)
    report = rebuilt(tmp_path)
    assert [finding.kind for finding in (*report.warnings, *report.errors)] == ["segment-copy", "wrong-size"]
    left = {name: data for name, data in OBJECTS.items() if name != NAMES[-1]}
    for _ in range(2):
        assert kinds(doctor.repair([tmp_path])) == ["segment-copy", "wrong-size"]
        assert segment.stat().st_size == last.offset + 1
    with store_at(tmp_path) as store:
        assert {name: read(store, name) for name in left} == left
    doctor.repair([tmp_path], drop_damaged=True)
    assert_sound(tmp_path)
    lose_begin(segment)
    rebuilt(tmp_path)
    with store_at(tmp_path) as store:
        assert contents(store) == left


@pytest.mark.slow
@table("kept", [0, 20, 39])
def test_holes_spare_the_copy(tmp_path: Path, kept: int) -> None:
    with store_at(tmp_path) as store:
        put_group(store, OBJECTS)
        [segment] = object_files(tmp_path)
        store.delete_many(BUCKET, [name for at, name in enumerate(NAMES) if at != kept])
        reap(store)
        assert segment.stat().st_blocks * 512 <= 10 * 4096
    assert_sound(tmp_path)
    for lose in (lose_begin, lose_end):
        lose(segment)
        rebuilt(tmp_path)
        with store_at(tmp_path) as store:
            assert contents(store) == {NAMES[kept]: OBJECTS[NAMES[kept]]}
        doctor.repair([tmp_path])


@pytest.mark.parametrize("copy", [0, 1])
def test_a_copy_that_cannot_be_read_or_written_is_as_good_as_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copy: int
) -> None:
    segment, now, seen = make(tmp_path)
    bad, copy_at = segment.stat().st_ino, head_of(segment).copy_at
    really = {"pread": os.pread, "pwrite": os.pwrite}

    def failing(name: str) -> Callable[[int, int | bytes, int], int | bytes]:
        def call(fd: int, what: int | bytes, offset: int) -> int | bytes:
            in_copy = 1 if offset >= copy_at else 0 if offset < head_of_bytes else None
            if in_copy == copy and os.fstat(fd).st_ino == bad:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return really[name](fd, what, offset)  # type: ignore[operator, no-any-return]

        return call

    head_of_bytes = head_of(segment).index_bytes
    with monkeypatch.context() as patch:
        for name in really:
            patch.setattr(os, name, failing(name))
        with store_at(tmp_path) as store:
            store.delete(BUCKET, LEFT[-1])
            del now[LEFT[-1]]
            assert drive_of(store).faults.io_errors > 0 or copy == 1
        assert states_in(segment, 1 - copy)[int(LEFT[-1])] != LIVE
        rebuilt(tmp_path)
        assert_holds(tmp_path, now, seen)
    assert_holds(tmp_path, now, seen)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 1 << 30), bit=st.integers(0, 7), second=st.booleans(), length=st.integers(1, 600))
def test_whatever_is_wrong_in_one_copy_the_segment_says_the_same(
    sound: Path, tmp_path: Path, at: int, bit: int, second: bool, length: int
) -> None:
    file, segment_bytes = tmp_path / "segment", sound.read_bytes()
    with opened(sound) as whole:
        expected = said(whole)
        assert not whole.is_damaged(in_motion=False)
    head = head_of(sound)
    size = head.index_bytes + (HEAD_BYTES if second else 0)
    damaged = bytearray(segment_bytes)
    base = head.copy_at if second else 0
    for where in range(at % size, min(at % size + length, size)):
        damaged[base + where] ^= 1 << bit
    file.write_bytes(damaged)
    with opened(file) as segment:
        assert said(segment) == expected
        assert segment.mend() and file.read_bytes() == segment_bytes


def said(segment: SegmentFile) -> object:
    slots = range(segment.slots)
    each = [(segment.state(slot), segment.identity(slot), segment.place(slot)) for slot in slots]
    assert [state for state, _, _ in each] == segment.states().tolist()
    assert [identity for _, identity, _ in each] == segment.identities()
    return each


@contextlib.contextmanager
def opened(file: Path) -> Iterator[SegmentFile]:
    fd = os.open(file, os.O_RDWR)
    try:
        segment = open_segment(fd, lambda error: None)
        assert isinstance(segment, SegmentFile)
        yield segment
    finally:
        os.close(fd)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("segment")
    with store_at(root) as store:
        put_group(store, OBJECTS)
        store.delete_many(BUCKET, NAMES[::3])
        [segment] = object_files(root)
        shutil.copy(segment, root / "sound")
    return root / "sound"


def test_a_state_that_is_seen_half_written_is_not_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment, _, _ = make(tmp_path)
    head, pread, torn = head_of(segment), os.pread, []

    def tearing(fd: int, size: int, offset: int) -> bytes:
        data = pread(fd, size, offset)
        if (offset, size) == (head.copy_at, head.index_bytes) and not torn:
            torn.append(offset)
            return data[: row_offset(2)] + b"\xff" * 8 + data[row_offset(2) + 8 :]
        return data

    monkeypatch.setattr(os, "pread", tearing)
    assert kinds(doctor.check([tmp_path])) == [] and torn
