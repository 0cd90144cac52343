"""Batches whose entries are found by their locations: they show what the catalog shows, whatever happens meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store.native import read_list
from storage_node.store.read.batch import StoreBatch
from storage_node.store.store import Store
from tests.store.batch_kit import batch
from tests.store.batch_read_kit import columns
from tests.store.segment_kit import put_group
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


def is_located(store: Store, names: list[str]) -> bool:
    return StoreBatch(store, pb.BatchRequest(bucket=[BUCKET], name=names))._table.files is not None


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
            thread.join(60)
        assert not any(thread.is_alive() for thread in readers)
        assert wrong == []
