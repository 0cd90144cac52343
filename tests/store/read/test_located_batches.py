"""Batches whose entries are found by their locations: they show what the catalog shows, whatever happens meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store.native import read_list
from storage_node.store.read.batch import StoreBatch
from storage_node.store.read.batch_lookup import BatchLookup
from storage_node.store.store import Store
from tests.store.batch_kit import batch
from tests.store.batch_read_kit import columns
from tests.store.segment_kit import put_group
from tests.store.snapshot_kit import at
from tests.store.store_kit import BUCKET, drive_of, file_of, put, store_at

NAMES = [f"o{at}" for at in range(20)]
GROUP = {name: name.encode() * (at * 300) for at, name in enumerate(NAMES)}
ENOUGH = 8
"""Batches after which a segment is mapped."""


def due(*names: str, **other: bytes) -> list[tuple[int, bytes]]:
    return [(pb.OK, (GROUP | other)[name]) for name in names]


def warm(store: Store) -> None:
    for _ in range(ENOUGH):
        assert batch(store, NAMES) == due(*NAMES)
    assert is_located(store, NAMES)


def is_located(store: Store, names: list[str], bucket: str = BUCKET, pins: Sequence[str] = ()) -> bool:
    return StoreBatch(store, pb.BatchRequest(bucket=[bucket], name=names, version=pins))._table.files is not None


def versions(store: Store) -> dict[str, str]:
    return {name: str(store.head(BUCKET, name).version) for name in NAMES}


def outcomes(reading: StoreBatch) -> list[tuple[int, bytes, str]]:
    """(status, bytes, error) of each entry, as frames deliver them."""
    found: list[tuple[int, bytes, str]] = []
    for span in reading.spans():
        frame = reading.read(span)
        faults = [frame.errors.get(index) for index in frame.index.tolist()]
        texts = ["" if fault is None else fault.message for fault in faults]
        found += zip(frame.status.tolist(), map(bytes, frame.entries()), texts, strict=True)
    reading.close()
    return found


def segment(store: Store, name: str) -> Path:
    return file_of(store, name).parent


def test_objects_of_segments_and_of_their_own_files(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put_group(store, GROUP)
        put(store, "alone", b"a" * 200_000)
        put(store, "empty", b"")
        wanted = ["alone", *NAMES[::-1], "empty", "o3", "o3"]
        for _ in range(ENOUGH):
            assert batch(store, wanted) == due(*wanted, alone=b"a" * 200_000, empty=b"")
        assert is_located(store, wanted)
        assert batch(store, ["o1", "missing"]) == [*due("o1"), (pb.NOT_FOUND, b"")]
        large = b"l" * (5 << 20)
        put(store, "large", large)
        for _ in range(2):
            assert batch(store, ["o1", "large", "o2"]) == due("o1", "large", "o2", large=large)


def test_what_is_not_known_is_learned_from_the_catalog(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put_group(store, GROUP)
        put(store, "large", b"l" * (5 << 20))
    with store_at(tmp_path) as store:
        drive_of(store).fill.stop()
        request = pb.BatchRequest(bucket=[BUCKET], name=["o1", "o2"])
        assert StoreBatch.of_known(store, request) is None
        assert batch(store, ["o1"]) == due("o1")
        assert StoreBatch.of_known(store, request) is None
        assert batch(store, ["o1", "o2"]) == due("o1", "o2")
        assert StoreBatch.of_known(store, request) is not None
        assert is_located(store, ["o1", "o3"])
        assert not is_located(store, ["o1", "missing"])
        assert not is_located(store, ["o1", "large"])
        assert batch(store, ["o1", "missing", "o4"]) == [*due("o1"), (pb.NOT_FOUND, b""), *due("o4")]


def test_overwritten_and_deleted_objects(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put_group(store, GROUP)
        warm(store)
        put(store, "o3", b"alone")
        assert batch(store, NAMES) == due(*NAMES, o3=b"alone")
        put_group(store, {"o4": b"together", "o5": b"as well"})
        assert batch(store, NAMES) == due(*NAMES, o3=b"alone", o4=b"together", o5=b"as well")
        store.delete(BUCKET, "o6")
        assert batch(store, ["o5", "o6"]) == [*due("o5", o5=b"as well"), (pb.NOT_FOUND, b"")]
        put_group(store, GROUP)
        drive_of(store).reap(everything=True)
        assert batch(store, NAMES) == due(*NAMES)


def test_a_removed_segment_is_let_go(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put_group(store, GROUP)
        warm(store)
        reading = StoreBatch(store, pb.BatchRequest(bucket=[BUCKET], name=NAMES))
        held = reading._table.files
        assert held is not None
        before = segment(store, "o1")
        assert all(file.is_mapped for file in held)
        n = len(held)
        with pytest.raises(ValueError, match="not a range of a file"):  # which lets go of what it did not take
            read_list(*columns(0, held, [-1] * n, [1] * n, [0] * n))
        other = {name: data + b"!" for name, data in GROUP.items()}
        put_group(store, other)
        drive_of(store).reap(everything=True)
        assert not before.exists()
        assert all(file.is_dropped and not file.is_mapped for file in held)
        # A batch that was looked up before reads what there is now.
        (span,) = reading.spans()
        assert bytes(reading.read(span).payload) == b"".join(other.values())
        assert batch(store, NAMES) == due(*NAMES, **other)


@pytest.mark.parametrize("encoded", [False, True])
def test_damage_is_an_error_of_its_entry(tmp_path: Path, encoded: bool) -> None:
    with store_at(tmp_path) as store:
        put_group(store, GROUP)
        warm(store)
        _, record = store.locate(BUCKET, "o7")
        with segment(store, "o7").open("r+b") as opened:
            opened.seek(record.offset + 5)
            opened.write(b"\0\0\0")
        wrong = [(pb.CORRUPT, b"") if name == "o7" else due(name)[0] for name in NAMES]
        assert batch(store, NAMES) == wrong
        assert batch(store, NAMES) == wrong
        reading = StoreBatch(store, pb.BatchRequest(bucket=[BUCKET], name=["o7"]))
        assert reading.read_all() is None
        (span,) = reading.spans()
        if encoded:
            reading.read_encoded(span, 1)
        else:
            reading.read(span)
        assert (reading.status.tolist(), reading.end(1).failed_entries) == ([pb.CORRUPT], 1)


def test_a_segment_that_is_gone_is_looked_up_again(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put_group(store, GROUP)
        assert is_located(store, NAMES)
        segment(store, "o1").unlink()
        assert {status for status, _ in batch(store, NAMES)} == {pb.CORRUPT}


def test_a_reader_follows_a_writer(tmp_path: Path) -> None:
    with store_at(tmp_path) as store, Store.open([tmp_path], mode="r") as reader:
        put_group(store, GROUP)
        warm(reader)
        put(store, "o3", b"new")
        assert batch(reader, NAMES) == due(*NAMES, o3=b"new")
        store.delete(BUCKET, "o3")
        assert batch(reader, ["o3"]) == [(pb.NOT_FOUND, b"")]


def test_several_drives(tmp_path: Path) -> None:
    with store_at(tmp_path / "a", tmp_path / "b") as store:
        put_group(store, GROUP)
        warm(store)
        store.delete(BUCKET, "o9")
        assert batch(store, ["o8", "o9"]) == [*due("o8"), (pb.NOT_FOUND, b"")]


def test_snapshots_and_deleted_buckets_are_not_confused(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put_group(store, GROUP)
        warm(store)
        store.delete_bucket(BUCKET, force=True)
        assert {status for status, _ in batch(store, NAMES)} == {pb.NOT_FOUND}
        store.create_bucket(BUCKET)
        assert {status for status, _ in batch(store, NAMES)} == {pb.NOT_FOUND}
        put(store, "o1", b"of the new one")
        assert batch(store, ["o1"]) == [(pb.OK, b"of the new one")]


def test_pinned_entries_are_located_if_their_versions_are_the_current_ones(tmp_path: Path) -> None:
    with store_at(tmp_path / "a", tmp_path / "b") as store:
        put_group(store, GROUP)
        pins = [version if at % 3 else "" for at, version in enumerate(versions(store).values())]
        request = pb.BatchRequest(bucket=[BUCKET], name=NAMES, version=pins)
        for _ in range(ENOUGH):
            assert outcomes(StoreBatch(store, request)) == [(*one, "") for one in due(*NAMES)]
            assert StoreBatch(store, request).read_all() == list(GROUP.values())
        assert is_located(store, NAMES, pins=pins) and StoreBatch.of_known(store, request) is not None
        put(store, "o3", b"not pinned")
        assert is_located(store, NAMES, pins=pins)
        put(store, "o4", b"another version")
        assert not is_located(store, NAMES, pins=pins) and StoreBatch.of_known(store, request) is None
        now = versions(store)["o4"]
        gone = (pb.NOT_FOUND, b"", f"'o4': version {pins[4]} is gone, the store has {now}")
        good = [(*one, "") for one in due(*NAMES, o3=b"not pinned")]
        assert outcomes(StoreBatch(store, request)) == [*good[:4], gone, *good[5:]]
        store.delete(BUCKET, "o5")
        assert [status for status, *_ in outcomes(StoreBatch(store, request))[3:7]] == [
            pb.OK,
            *[pb.NOT_FOUND] * 2,
            pb.OK,
        ]


def test_a_pin_is_compared_as_a_text(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put_group(store, GROUP)
        epoch, counter, node = store.head(BUCKET, "o1").version
        for other in (f"0{epoch}.{counter}.{node}", f" {epoch}.{counter}.{node}", f"{epoch}.{counter}", "etag:x", "o1"):
            [(status, data, _)] = outcomes(
                StoreBatch(store, pb.BatchRequest(bucket=[BUCKET], name=["o1"], version=[other]))
            )
            assert (status, data) == (pb.NOT_FOUND, b""), other


def test_an_object_that_was_denied_before_is_read_in_its_version(tmp_path: Path) -> None:
    """Its epoch has no room in a location."""
    with store_at(tmp_path) as store:
        put_group(store, GROUP)
        assert store.denied.deny(BUCKET, ["o1"], "why") == store.denied.allow(BUCKET, ["o1"]) == [None]
        put_group(store, {"o1": b"again"})
        pin = str(store.head(BUCKET, "o1").version)
        assert int(pin.split(".")[0]) > 1 << 16
        counter = pin.split(".")[1]
        for version, status in ((pin, pb.OK), (f"0.{counter}.0", pb.NOT_FOUND), (f"1.{counter}.0", pb.NOT_FOUND)):
            request = pb.BatchRequest(bucket=[BUCKET], name=["o1", "o2"], version=[version, ""])
            first, second = outcomes(StoreBatch(store, request))
            assert (first[0], second[:2]) == (status, due("o2")[0])
        assert is_located(store, ["o1", "o2"], pins=[pin, ""])


@pytest.mark.parametrize("encoded", [False, True])
def test_a_version_that_goes_between_look_up_and_reading_is_not_replaced_by_another(
    tmp_path: Path, encoded: bool
) -> None:
    with store_at(tmp_path) as store:
        put_group(store, GROUP)
        warm(store)
        pins = [version if at % 2 else "" for at, version in enumerate(versions(store).values())]
        reading = StoreBatch(store, pb.BatchRequest(bucket=[BUCKET], name=NAMES, version=pins))
        assert reading._table.files is not None
        other = {name: data + b"!" for name, data in GROUP.items()}
        put_group(store, other)
        drive_of(store).reap(everything=True)
        if encoded:
            (span,) = reading.spans()
            reading.read_encoded(span, 1)
            assert reading.status.tolist() == [pb.NOT_FOUND if pin else pb.OK for pin in pins]
        else:
            found = outcomes(reading)
            for (status, data, text), name, pin in zip(found, NAMES, pins, strict=True):
                assert (status, data) == ((pb.NOT_FOUND, b"") if pin else (pb.OK, other[name])), name
                assert not pin or f"version {pin} is gone" in text


def test_a_snapshot_is_located_also_after_overwrites_and_deletions(tmp_path: Path) -> None:
    with store_at(tmp_path / "a", tmp_path / "b") as store:
        put_group(store, GROUP)
        pinned = at(store.snapshots.create(BUCKET, "v1").name)
        assert is_located(store, NAMES, pinned)
        known = pb.BatchRequest(bucket=[pinned], name=NAMES)
        assert StoreBatch.of_known(store, known) is not None
        before = StoreBatch(store, known)
        put_group(store, dict.fromkeys(NAMES[:4], b"replaced"))
        put(store, "o4", b"alone")
        for name in NAMES[5:8]:
            store.delete(BUCKET, name)
        put(store, "later", b"not in it")
        for drive in store.drives:
            assert drive is not None
            drive.reap(everything=True)
        for _ in range(ENOUGH):
            assert batch(store, NAMES, pinned) == due(*NAMES)
        assert outcomes(before) == [(*one, "") for one in due(*NAMES)]
        assert is_located(store, NAMES, pinned)
        assert StoreBatch.of_known(store, known) is None  # the catalogs have to be read
        assert batch(store, ["o9", "later", "o1"], pinned) == [*due("o9"), (pb.NOT_FOUND, b""), *due("o1")]
        assert [status for status, _ in batch(store, NAMES[:9])] == [pb.OK] * 5 + [pb.NOT_FOUND] * 3 + [pb.OK]
        held = StoreBatch(store, known)
        assert held._table.files is not None
        assert store.denied.deny(BUCKET, ["o2", "o9"], "why") == [None, None]
        for drive in store.drives:
            assert drive is not None
            drive.reap(everything=True)
        refused = [pb.OBJECT_DENIED if name in ("o2", "o9") else pb.OK for name in NAMES]
        assert [status for status, _ in batch(store, NAMES, pinned)] == refused
        assert [status for status, *_ in outcomes(held)] == refused
        store.snapshots.delete(BUCKET, "v1")
        assert {status for status, _ in batch(store, NAMES, pinned)} == {pb.NOT_FOUND}


@pytest.mark.parametrize("pinned", [False, True])
def test_what_is_deleted_while_other_locations_are_read_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pinned: bool
) -> None:
    """Of a snapshot or in a pinned version: what was found first is not known any more, but its version is."""
    with store_at(tmp_path) as store:
        put_group(store, GROUP)
        snapshot = at(store.snapshots.create(BUCKET, "v1").name)
        then = versions(store)
    with store_at(tmp_path) as store:
        drive_of(store).fill.stop()
        assert batch(store, ["o1"]) == due("o1")
        learn = BatchLookup._learn

        def deleted_meanwhile(*arguments: Any) -> None:
            learn(*arguments)
            store.delete(BUCKET, "o1")

        monkeypatch.setattr(BatchLookup, "_learn", deleted_meanwhile)
        pins = [then["o1"], then["o2"]] if pinned else []
        request = pb.BatchRequest(bucket=[BUCKET if pinned else snapshot], name=["o1", "o2"], version=pins)
        first, second = outcomes(StoreBatch(store, request))
        assert second[:2] == due("o2")[0]
        assert first[:2] == ((pb.NOT_FOUND, b"") if pinned else due("o1")[0])


def test_a_pinned_entry_of_a_snapshot_has_the_version_that_the_snapshot_has(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put_group(store, GROUP)
        then = versions(store)
        pinned = at(store.snapshots.create(BUCKET, "v1").name)
        put_group(store, {"o1": b"1", "o2": b"2"})
        now = versions(store)
        pins = [then["o1"], now["o2"], then["o3"], ""]
        found = outcomes(StoreBatch(store, pb.BatchRequest(bucket=[pinned], name=NAMES[1:5], version=pins)))
        assert [one[:2] for one in found] == [*due("o1"), (pb.NOT_FOUND, b""), *due("o3", "o4")]
        assert found[1][2] == f"'o2': version {now['o2']} is gone, the store has {then['o2']}"


@pytest.mark.parametrize("shared", [False, True])
def test_a_reader_sees_of_a_snapshot_what_the_writer_does(tmp_path: Path, shared: bool) -> None:
    """With a table of locations that the writer shares, which publishes its commits, and without."""
    with store_at(tmp_path) as store, Store.open([tmp_path], mode="r") as reader:
        put_group(store, GROUP | ({f"other{at}": b"" for at in range(2000)} if shared else {}))
        warm(reader)
        put(store, "o3", b"before the first")
        first = at(store.snapshots.create(BUCKET, "v1").name)
        assert batch(reader, NAMES, first) == due(*NAMES, o3=b"before the first")
        put(store, "o3", b"before the second")
        put(store, "o4", b"before the second")
        second = at(store.snapshots.create(BUCKET, "v2").name)
        for _ in range(2):
            assert batch(reader, NAMES, second) == due(*NAMES, o3=b"before the second", o4=b"before the second")
            assert batch(reader, NAMES, first) == due(*NAMES, o3=b"before the first")
        put(store, "o3", b"after it")
        assert batch(reader, NAMES, second) == due(*NAMES, o3=b"before the second", o4=b"before the second")
        assert store.denied.deny(BUCKET, ["o4"], "why") == [None]
        assert batch(reader, ["o4", "o5"], first) == [(pb.OBJECT_DENIED, b""), *due("o5")]


def test_a_reader_reads_nothing_anew_for_a_snapshot_while_the_writer_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store_at(tmp_path) as store, Store.open([tmp_path], mode="r") as reader:
        put_group(store, GROUP | {f"other{at}": b"" for at in range(2000)})
        pinned = at(store.snapshots.create(BUCKET, "v1").name)
        assert batch(reader, NAMES, pinned) == due(*NAMES)
        drive, looks = drive_of(reader), list[object]()
        monkeypatch.setattr("storage_node.store.drive.drive.READER_STALENESS_S", 1e6)
        catch_up = drive.catalog.catch_up
        monkeypatch.setattr(drive.catalog, "catch_up", lambda: (looks.append(0), catch_up())[1])
        assert batch(reader, NAMES, pinned) == due(*NAMES)
        assert looks == []
        put(store, "o1", b"later")
        assert batch(reader, NAMES, pinned) == due(*NAMES)
        assert looks


def test_a_closed_store_gives_nothing_away(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put_group(store, GROUP)
        warm(store)
    assert {status for status, _ in batch(store, NAMES)} == {pb.UNAVAILABLE}


@pytest.mark.slow
def test_reads_beside_overwrites_are_of_one_version_each_and_never_go_back(tmp_path: Path) -> None:
    rounds = 60
    with store_at(tmp_path) as store:

        def data(name: str, number: int) -> bytes:
            return f"{name}/{number:03d}".encode() * 600

        put_group(store, {name: data(name, 0) for name in NAMES})
        done, wrong = threading.Event(), list[object]()
        committed = [0]

        def read() -> None:
            while not done.is_set():
                least = committed[0]
                for name, (status, found) in zip(NAMES, batch(store, NAMES), strict=True):
                    number = int(found[len(name) + 1 : len(name) + 4]) if status == pb.OK else -1
                    if status != pb.OK or found != data(name, number) or number < least:
                        wrong.append((name, status, number, least))

        readers = [threading.Thread(target=read) for _ in range(3)]
        for thread in readers:
            thread.start()
        for number in range(1, rounds):
            put_group(store, {name: data(name, number) for name in NAMES})
            committed[0] = number
            drive_of(store).reap(everything=True)
        done.set()
        for thread in readers:
            thread.join(180)
        assert not any(thread.is_alive() for thread in readers)
        assert wrong == []
