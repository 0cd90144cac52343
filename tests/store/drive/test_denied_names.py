"""Denials on one drive: what other nodes may send, and what the catalog rewrites."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from ais_loader.errors import DriveFull, InvalidRequest, ObjectDenied
from ais_loader.testing import eventually
from ais_loader.wire.denied import content_of
from ais_loader.wire.generated import ais_contents_pb2 as contents_pb
from ais_loader.wire.generated import ais_replica_pb2 as replica_pb
from ais_loader.wire.generated import ais_snapshot_copies_pb2 as copies_pb
from ais_loader.wire.reserved import DENIED, REMOTE_DELETED, REMOTE_PENDING
from storage_node.cluster.replication.replica import coded_entry, recode
from storage_node.remote.write_back.uploader import _settled
from storage_node.services.snapshots import _begin
from storage_node.store import format as fmt
from storage_node.store.denied_objects import DeniedName, DeniedObjects, denied_page
from storage_node.store.drive import upkeep
from storage_node.store.drive.drive import Drive
from storage_node.store.format import CatalogEntry, Version
from storage_node.store.store import Store
from tests.changing_folder import bytes_of, files_below
from tests.store.store_kit import BUCKET, drive_of, put, read, store_at


def tells_of_somebody(folder: Path) -> bool:
    """Whether any file does. A table that RocksDB has compacted may be there for a moment longer."""
    return any(b"somebody" in (bytes_of(path) or b"") for path, _ in files_below(folder))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with store_at(tmp_path / "drive") as opened:
        yield opened


@pytest.mark.parametrize("is_copy", [False, True])
@pytest.mark.parametrize("denied", [False, True])
def test_no_object_gets_the_version_of_a_denial(store: Store, is_copy: bool, denied: bool) -> None:
    before = put(store, "a", b"good").version
    if denied:
        store.denied.deny(BUCKET, ["a"], "order")
        [tombstone] = store.replicas.newest(BUCKET, ["a"])
        assert tombstone is not None
        before = tombstone.version
    sent = Version(before.epoch | fmt.DENIAL_BIT, before.counter + 1, 3)
    with store.begin_put(BUCKET, "a") as upload, pytest.raises(ObjectDenied):
        upload.write(b"sent")
        upload.assign(sent, is_copy=is_copy)
        upload.commit()
    [left] = store.replicas.newest(BUCKET, ["a"])
    assert left is not None and left.version == before
    if not denied:
        assert read(store, "a") == b"good"


def test_a_coded_entry_with_the_version_of_a_denial_is_refused() -> None:
    entry = CatalogEntry(1, 2, 3, 4, 5, 6, 7, fmt.coded_path(bytes(16)), b"", b"")
    assert coded_entry(fmt.encode_entry(entry)) == entry
    with pytest.raises(InvalidRequest, match="denial"):
        coded_entry(fmt.encode_entry(entry._replace(epoch=1 | fmt.DENIAL_BIT)))


def test_a_deletion_that_is_to_be_uploaded_keeps_the_reason_of_a_denial(store: Store) -> None:
    store.denied.deny(BUCKET, ["a"], "order")
    store.delete(BUCKET, "a", keep_tombstone=True, raw_metadata=fmt.encode_metadata({REMOTE_PENDING: "*"}))
    [left] = store.replicas.newest(BUCKET, ["a"])
    assert left is not None and left.is_denied and fmt.is_pending(left.raw_metadata)
    assert left.metadata[DENIED] == "order"
    settled = left._replace(raw_metadata=_settled(left, None))
    assert settled.metadata == {DENIED: "order", REMOTE_DELETED: "1"}


def test_a_takedown_rewrites_no_more_of_the_catalog_than_its_names(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "a", b"one", metadata={"k": "v"})
    store.snapshots.create(BUCKET, "kept")
    put(store, "a", b"two", metadata={"k": "v"})
    ranges: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr(drive_of(store).catalog, "compact", lambda *keys: ranges.append(keys))
    store.denied.deny(BUCKET, ["a"], "order")
    assert len(ranges) == 2 and all(first[:17] == last[:17] for first, last in ranges)


def test_a_name_is_not_reported_as_purged_before_the_catalog_is_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def purged(store: Store) -> list[bool]:
        return [bool(one.row.purged_ns) for one in store.denied.names(BUCKET)]

    def full(*_: bytes) -> None:
        raise DriveFull("no space left")

    with store_at(tmp_path / "drive") as store:
        put(store, "a", b"one", metadata={"speaker": "somebody"})
        put(store, "a", b"two")
        monkeypatch.setattr(drive_of(store).catalog, "compact", full)
        assert store.denied.deny(BUCKET, ["a", "never put"], "order") == [None, None]
        with pytest.raises(DriveFull):
            drive_of(store).reap()
        assert purged(store) == [False, False]
    with store_at(tmp_path / "drive") as store:
        assert purged(store) == [True, True]
        eventually(lambda: not tells_of_somebody(tmp_path / "drive"))


def test_a_compaction_that_failed_is_repeated_while_the_store_is_open(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, tries = drive_of(store).catalog, list[bytes]()
    compact = catalog.compact

    def full(*keys: bytes) -> None:
        tries.append(keys[0])
        if len(tries) < 4:
            raise DriveFull("no space left")
        compact(*keys)

    monkeypatch.setattr(upkeep, "_RETRY_S", 0.01)
    monkeypatch.setattr(catalog, "compact", full)
    put(store, "a", b"one", metadata={"speaker": "somebody"})
    put(store, "a", b"two")
    assert store.denied.deny(BUCKET, ["a"], "order") == [None]
    eventually(lambda: all(one.row.purged_ns for one in store.denied.names(BUCKET)))
    eventually(lambda: not tells_of_somebody(tmp_path))


def test_a_name_denied_anew_during_a_compaction_is_compacted_anew(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = drive_of(store).catalog
    compact, count = catalog.compact, list[bytes]()

    def put_meanwhile(*keys: bytes) -> None:
        if len(count) == 2:
            assert drive_of(store)._changes.denied.uncompacted()
        compact(*keys)
        count.append(keys[0])
        if len(count) == 2:  # both ranges of the first denial
            with ThreadPoolExecutor(1) as other:
                other.submit(store.denied.allow, BUCKET, ["a"]).result()
                other.submit(put, store, "a", b"two", metadata={"speaker": "somebody"}).result()
            denying.append(pool.submit(store.denied.deny, BUCKET, ["a"], "again"))
            eventually(lambda: (left := store.replicas.newest(BUCKET, ["a"])[0]) is not None and left.is_denied)

    denying: list[Future[object]] = []
    monkeypatch.setattr(catalog, "compact", put_meanwhile)
    put(store, "a", b"one")
    with ThreadPoolExecutor(1) as pool:
        store.denied.deny(BUCKET, ["a"], "order")
    assert denying[0].result() == [None]
    assert [bool(one.row.purged_ns) for one in store.denied.names(BUCKET)] == [True]
    eventually(lambda: not tells_of_somebody(tmp_path))


@pytest.mark.parametrize("group", [b"", bytes(16)])
def test_other_nodes_send_no_denied_content_to_be_kept(store: Store, group: bytes) -> None:
    entry = put(store, "a", b"picture")
    content = content_of(entry.checksum, entry.size_bytes)
    store.denied.change_contents(BUCKET, [content], [], "order")
    ref = replica_pb.BucketRef(name=BUCKET, uuid=store.bucket(BUCKET).uuid_bytes)
    header = copies_pb.KeepHeader(bucket=ref, name="b", ended=entry.counter + 1, group=group)
    header.version.epoch, header.version.counter = entry.epoch, entry.counter
    header.checksum, header.size_bytes = entry.checksum, entry.size_bytes
    with pytest.raises(ObjectDenied, match=content):
        _begin(store, header)
    coded = entry._replace(path=fmt.coded_path(bytes(16)), offset=7)
    request = replica_pb.RecodeRequest(bucket=ref, wall_ms=store.clock.wall_ms())
    for name, sent in ("b", coded), ("c", coded._replace(checksum=1)):
        request.name.append(name)
        request.entry.append(fmt.encode_entry(sent))
    assert list(recode(store, request, grace_s=60).done) == [1]
    assert store.replicas.newest(BUCKET, ["b"]) == [None]


@pytest.mark.parametrize("is_kept", [False, True])
def test_what_replaces_an_object_before_its_content_is_denied_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    """Unless a snapshot sees the denied content: it goes with its name."""
    entry = put(store, "a", b"picture")
    put(store, "b", b"picture")
    if is_kept:
        store.snapshots.create(BUCKET, "kept")
    found = Drive.values

    def replaced(drive: Drive, bucket_uuid: bytes) -> Iterator[tuple[str, bytes]]:
        yield from found(drive, bucket_uuid)
        put(store, "a", b"another")

    monkeypatch.setattr(Drive, "values", replaced)
    store.denied.change_contents(BUCKET, [content_of(entry.checksum, entry.size_bytes)], [], "order")
    assert [one.name for one in store.denied.names(BUCKET)] == (["a", "b"] if is_kept else ["b"])
    if not is_kept:
        assert read(store, "a") == b"another"
    with pytest.raises(ObjectDenied):
        put(store, "c", b"picture")


def test_a_page_has_all_drives_of_a_name(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is on two drives while its object moves between them."""
    for name in "abc":
        put(store, name, b"picture")
    store.denied.deny(BUCKET, list("abc"), "order")
    found = DeniedObjects.names

    def on_two(denied: DeniedObjects, bucket: str, start_after: str) -> Iterator[DeniedName]:
        for one in found(denied, bucket, start_after):
            yield from (one, one)

    monkeypatch.setattr(DeniedObjects, "names", on_two)
    pages, after = list[list[str]](), ""
    while not pages or after:
        page = denied_page(store, contents_pb.ListDeniedRequest(bucket=BUCKET, start_after=after, limit=2))
        pages.append([one.name for one in page.name])
        after = page.next
    assert pages == [["a", "a", "b", "b"], ["c", "c"]]
