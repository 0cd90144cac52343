"""What cuts see on one copy of a bucket, and versions that come to it from others after they have ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader.errors import WriteTooLate
from storage_node.store import format as fmt
from storage_node.store.drive.preconditions import Condition
from storage_node.store.drive.transactions import Transactions
from storage_node.store.format import CatalogEntry, Version
from storage_node.store.fsck import fsck as doctor
from storage_node.store.read.object_reader import open_object
from storage_node.store.retained_replicas import KeptVersion, NewerFirst, Seen, seen, seen_after
from storage_node.store.store import Store
from storage_node.store.store_record import SnapshotRecord
from tests.store.snapshot_kit import LARGE, at, reap, retained
from tests.store.store_kit import BUCKET, drive_of

CUT, LATER = 1000, 3000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open([tmp_path / "d1", tmp_path / "d2"]) as opened:
        opened.create_bucket(BUCKET)
        yield opened


def uuid_of(store: Store) -> bytes:
    return store.bucket(BUCKET).uuid_bytes


def put(store: Store, counter: int, data: bytes, name: str = "a") -> None:
    upload = store.stage(BUCKET, name, [data], {})
    upload.assign(Version(1, counter, 1))
    upload.commit()


def delete(store: Store, counter: int, name: str = "a") -> None:
    store.delete(BUCKET, name, Version(1, counter, 1), keep_tombstone=True)


def cut(store: Store, **cuts: int) -> None:
    """The map's snapshots from now on, with their cuts."""
    named = {name: SnapshotRecord(number, 1, of_cluster=True) for name, number in cuts.items()}
    store.snapshots.follow({store.bucket(BUCKET).uuid: named})


def keep(store: Store, counter: int, data: bytes | None, ended: int, name: str = "a") -> None:
    """A version comes from another node; without data a deletion."""
    drive = store.drive_set.at(store.drive_set.placement.owner(uuid_of(store), name))
    file = drive.stage() if data is not None else None
    if file is not None and data is not None:
        file.write(data)
    size, checksum = (file.size_bytes, file.checksum) if file is not None else (0, 0)
    record = CatalogEntry(1, counter, 1, size, checksum, 7, 0, b"", b"")
    KeptVersion(drive, uuid_of(store), name, record, ended, {"k": "v"} if file is not None else {}, file).commit()


def read(store: Store, snapshot: str, name: str = "a") -> bytes | None:
    listed = dict(store.objects(at(snapshot)))
    if name not in listed:
        return None
    reader = open_object(store, at(snapshot), name)
    assert reader.record == listed[name]
    return b"".join(reader)


def found(store: Store, number: int) -> list[tuple[str, int, bool, int]]:
    """What this cut sees: name, counter, whether it was deleted, and when it ended."""
    rows = seen_after(store, uuid_of(store), "", number, 100)
    of_names = seen(store, uuid_of(store), [name for name, _ in rows], number)
    shown = []
    for (name, record), one in zip(rows, of_names, strict=True):
        assert isinstance(one, Seen) and one.record == record
        shown.append((name, record.counter, record.is_tombstone, one.ended))
    return shown


def test_of_a_cluster_deletions_are_retained_as_well_until_the_snapshot_goes(store: Store) -> None:
    for name in ("a", "b", "c", "d"):
        put(store, 10, name.encode(), name)
    delete(store, 20, "a")
    delete(store, 21, "b")
    cut(store, s=CUT)
    put(store, 1001, b"again", "a")
    store.replicas.forget_tombstone(BUCKET, "b", Version(1, 21, 1))
    delete(store, 1002, "c")
    forgotten = seen(store, uuid_of(store), ["b"], CUT)[0]
    assert forgotten is not None and forgotten.ended > CUT
    assert found(store, CUT) == [
        ("a", 20, True, 1001),
        ("b", 21, True, forgotten.ended),
        ("c", 10, False, 1002),
        ("d", 10, False, 0),
    ]
    assert [name for name, _ in store.objects(at("s"))] == ["c", "d"]
    assert retained(store) == ["a", "b", "c"]
    assert healthy(store)
    cut(store)
    store.snapshots.finish_trimming()
    assert retained(store) == [] and store.record.current.trimming == () and read_now(store) == b"again"


def read_now(store: Store, name: str = "a") -> bytes:
    return b"".join(open_object(store, BUCKET, name))


def healthy(store: Store) -> bool:
    report = doctor.check([drive.root for drive in store.drives if drive is not None], checksums=True)
    assert [finding for finding in report.findings if finding.kind != "in-motion"] == []
    return True


def test_a_write_from_before_the_cut_is_refused_and_a_copy_is_not(store: Store) -> None:
    put(store, 10, b"first")
    cut(store, s=CUT)
    late = store.stage(BUCKET, "a", [b"late"], {})
    late.assign(Version(1, 900, 2))
    late.require(Condition(after_cuts=True))
    with pytest.raises(WriteTooLate, match="write it again"):
        late.commit()
    with pytest.raises(WriteTooLate):
        store.delete(BUCKET, "a", Version(1, 901, 2), keep_tombstone=True, condition=Condition(after_cuts=True))
    assert isinstance(store.write_tombstones(BUCKET, [("a", Version(1, 902, 2), b"")])[0], WriteTooLate)
    assert read(store, "s") == read_now(store) == b"first"
    put(store, 900, b"a copy of what was there")
    assert read(store, "s") == read_now(store) == b"a copy of what was there"
    assert store.replicas.clock >= CUT
    fresh = store.stage(BUCKET, "a", [b"fresh"], {})
    fresh.assign(store.replicas.next_version(2, []))
    fresh.require(Condition(after_cuts=True))
    fresh.commit()
    assert (read(store, "s"), read_now(store)) == (b"a copy of what was there", b"fresh")


@pytest.mark.parametrize("data", [b"kept", LARGE, b""])
def test_what_has_ended_elsewhere_is_retained_and_never_becomes_the_object(store: Store, data: bytes) -> None:
    cut(store, s=CUT)
    keep(store, 500, data, 1500, "gone")  # replaced there, deleted, and forgotten
    put(store, 1500, b"now")
    keep(store, 500, data, 1500)
    for name in ("a", "gone"):
        assert read(store, "s", name) == data
    assert store.head(at("s"), "a").metadata == {"k": "v"}
    assert [name for name, _ in store.objects(BUCKET)] == ["a"] and read_now(store) == b"now"
    before = list(drive_keys(store))
    keep(store, 500, data, 1500)
    keep(store, 400, b"older", 1400)
    assert list(drive_keys(store)) == before
    reap(store)
    assert healthy(store)
    cut(store)
    store.snapshots.finish_trimming()
    reap(store)
    assert [name for name, _ in store.objects(BUCKET)] == ["a"] and healthy(store)


def drive_keys(store: Store) -> Iterator[bytes]:
    for drive in store.drives:
        assert drive is not None
        yield from (key for key, _ in drive.catalog.scan(fmt.RETAINED_PREFIX))


def test_what_was_retained_by_mistake_gives_way_to_what_the_cut_should_have_seen(store: Store) -> None:
    """This node missed the change of counter 500, and the next one replaced what it had."""
    put(store, 10, b"missed", "a")
    put(store, 10, b"deleted elsewhere", "b")
    cut(store, early=100)
    cut(store, early=100, s=CUT)
    for name in ("a", "b"):
        put(store, 1001, b"now", name)
    assert [read(store, "s", name) for name in ("a", "b")] == [b"missed", b"deleted elsewhere"]
    keep(store, 500, b"right", 1001, "a")
    keep(store, 500, None, 1001, "b")
    assert [read(store, "s", name) for name in ("a", "b")] == [b"right", None]
    assert [read(store, "early", name) for name in ("a", "b")] == [b"missed", b"deleted elsewhere"]
    assert found(store, 100) == [("a", 10, False, 500), ("b", 10, False, 500)]
    reap(store)
    assert healthy(store)
    cut(store, s=CUT)
    store.snapshots.finish_trimming()
    assert retained(store) == ["a", "b"] and read(store, "s") == b"right"


def test_an_end_is_what_the_node_knows_of_it_or_what_the_other_says(store: Store) -> None:
    cut(store, s=CUT)
    put(store, 1500, b"second")
    cut(store, s=CUT, t=2000)
    put(store, LATER, b"third")
    keep(store, 500, b"first", CUT + 1)  # on the other node it is still what counts
    assert (read(store, "s"), read(store, "t"), read_now(store)) == (b"first", b"second", b"third")
    keep(store, 500, b"first", 2001)  # there the second never was
    assert (read(store, "s"), read(store, "t")) == (b"first", b"second")
    cut(store, s=CUT, t=2000, u=LATER)
    keep(store, 500, b"first", LATER + 1)
    assert (read(store, "s"), read(store, "t"), read(store, "u")) == (b"first", b"second", b"third")


def test_what_something_older_would_hide_is_refused(store: Store) -> None:
    put(store, 10, b"old")
    cut(store, s=CUT)
    with pytest.raises(NewerFirst, match=r"1\.10\.1"):
        keep(store, 500, b"newer", 1500)
    put(store, 1500, b"now")
    keep(store, 500, b"newer", 1500)
    assert (read(store, "s"), read_now(store)) == (b"newer", b"now")
    assert retained(store) == ["a"]


def test_snapshots_of_a_cluster_outlive_the_process(store: Store, tmp_path: Path) -> None:
    put(store, 10, b"then")
    cut(store, s=CUT)
    put(store, 1001, b"now")
    keep(store, 500, b"kept", 1200, "b")
    store.close()
    with Store.open([tmp_path / "d1", tmp_path / "d2"]) as again:
        assert (read(again, "s"), read(again, "s", "b"), read_now(again)) == (b"then", b"kept", b"now")
        put(again, 1002, b"later")
        assert found(again, CUT) == [("a", 10, False, 1001), ("b", 500, False, 1200)]
        assert retained(again) == ["a", "b"]


def test_a_snapshot_that_goes_while_another_one_is_trimmed_leaves_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, 10, b"then")
    cut(store, s=CUT, t=CUT + 1)
    put(store, 2000, b"now")
    cut(store, t=CUT + 1)
    trim = Transactions.trim

    def trimmed(changes: Transactions, bucket_uuid: bytes) -> int:
        done = trim(changes, bucket_uuid)
        if changes is drive_of(store, "a").changes:
            cut(store)
        return done

    monkeypatch.setattr(Transactions, "trim", trimmed)
    store.snapshots.finish_trimming()
    assert retained(store) == ["a"] and store.record.current.trimming
    store.snapshots.finish_trimming()
    assert retained(store) == [] and not store.record.current.trimming
