"""Coded entries that another node sends: which of them a node takes, and when it refuses all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader.errors import BucketNotFound, InvalidRequest, StoreFormatError, WriteTooLate
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_replica_pb2 as wire
from storage_node.cluster.repair.transfers import recode_request
from storage_node.cluster.replication.replica import newest, recode
from storage_node.store.drive.version_clock import MAX_EPOCH
from storage_node.store.format import CatalogEntry, coded_path, encode_entry
from storage_node.store.store import Store
from tests.store.store_kit import BUCKET, put, read, store_at

GROUP, LATER = bytes(15) + b"\1", bytes(15) + b"\2"
GRACE_S = 60.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with store_at(tmp_path / "drive") as opened:
        yield opened


def request(store: Store, coded: dict[str, CatalogEntry], ago_s: float = 0.0, **more: bool) -> wire.RecodeRequest:
    bucket = cluster_pb.MapBucket(name=BUCKET, uuid=store.bucket(BUCKET).uuid_bytes)
    values = [(name, encode_entry(entry)) for name, entry in coded.items()]
    return recode_request(bucket, values, store.clock.wall_ms() - int(1000 * ago_s), **more)


def coded(entry: CatalogEntry, group: bytes = GROUP) -> CatalogEntry:
    return entry._replace(path=coded_path(group), offset=7)


def test_a_node_takes_what_is_no_older_than_its_own(store: Store) -> None:
    same, older = put(store, "same", b"1", metadata={"who": "x"}), put(store, "older", b"1")
    newer = put(store, "older", b"2")
    sent = {"same": coded(same), "older": coded(older), "missing": coded(newer)}
    assert list(recode(store, request(store, sent), GRACE_S).done) == [0, 2]
    assert store.head(BUCKET, "same") == sent["same"]
    assert store.head(BUCKET, "missing") == sent["missing"]
    assert read(store, "older") == b"2"
    again = {"same": coded(same, LATER)}
    assert list(recode(store, request(store, again), GRACE_S).done) == [0]
    assert list(recode(store, request(store, sent), GRACE_S).done) == [2], "of two groups, the later one counts"


def test_only_files_are_replaced_where_the_sender_does_not_know_the_rest(store: Store) -> None:
    entry = put(store, "a", b"1", metadata={"who": "x"})
    bare = coded(entry)._replace(modified_ns=0, raw_metadata=b"")
    sent = {"missing": bare, "a": bare}
    assert list(recode(store, request(store, sent, only_files=True), GRACE_S).done) == [1]
    assert store.head(BUCKET, "a") == coded(entry)
    assert store.replicas.newest(BUCKET, ["missing"]) == [None]


def test_what_was_under_way_for_long_is_refused(store: Store) -> None:
    entry = put(store, "a", b"1")
    with pytest.raises(WriteTooLate, match="too long ago"):
        recode(store, request(store, {"a": coded(entry)}, ago_s=GRACE_S / 2 + 1), GRACE_S)
    assert store.head(BUCKET, "a") == entry
    assert list(recode(store, request(store, {"a": coded(entry)}, ago_s=GRACE_S / 2 - 5), GRACE_S).done) == [0]


def test_a_request_that_means_something_else_is_refused(store: Store) -> None:
    entry = put(store, "a", b"1")
    wrong = request(store, {"a": coded(entry)})
    wrong.entry[0] = encode_entry(entry)
    with pytest.raises(InvalidRequest, match="not in a group"):
        recode(store, wrong, GRACE_S)
    wrong.entry[0] = b"".join((wrong.entry[0][:1], b"\1", encode_entry(coded(entry))[2:]))
    with pytest.raises(InvalidRequest, match="not in a group"):
        recode(store, wrong, GRACE_S)
    wrong.entry[0] = wrong.entry[0][:20]
    with pytest.raises(StoreFormatError, match="20 bytes"):
        recode(store, wrong, GRACE_S)
    wrong.entry[0] = encode_entry(coded(entry)._replace(epoch=MAX_EPOCH + 1))
    with pytest.raises(InvalidRequest, match="epoch"):
        recode(store, wrong, GRACE_S)
    wrong = request(store, {"a": coded(entry)})
    wrong.bucket.uuid = bytes(16)
    with pytest.raises(BucketNotFound):
        recode(store, wrong, GRACE_S)
    wrong = request(store, {"a": coded(entry)})
    del wrong.entry[:]
    with pytest.raises(InvalidRequest, match="0 entries of 1 names"):
        recode(store, wrong, GRACE_S)
    assert store.head(BUCKET, "a") == entry


def test_a_node_that_is_asked_for_coded_objects_tells_only_of_these(store: Store) -> None:
    entries = {name: put(store, name, b"1") for name in ("coded", "deleted", "plain")}
    store.delete(BUCKET, "deleted", keep_tombstone=True)
    recode(store, request(store, {"coded": coded(entries["coded"])}), GRACE_S)
    asked = wire.NewestRequest(
        bucket=wire.BucketRef(name=BUCKET, uuid=store.bucket(BUCKET).uuid_bytes),
        name=["plain", "coded", "missing", "deleted"],
        allow_unknown=True,
        coded_only=True,
    )
    assert [(one.name, one.group) for one in newest(store, asked).object] == [("coded", GROUP)]
    asked.coded_only = False
    assert [one.name for one in newest(store, asked).object] == list(asked.name)
