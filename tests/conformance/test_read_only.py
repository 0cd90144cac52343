"""A client connected for reading only: it reads all that is there and changes nothing. The same on every transport."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable

import pytest
from conformance_kit import contents

from ais_loader import Bucket, Client, connect, errors
from ais_loader.transport.base import Transport
from ais_loader.transport.read_only import READS
from ais_loader.wire.generated.ais_remote_pb2 import RefreshInventoryRequest

CHANGES: dict[str, Callable[[Bucket], object]] = {
    "create_bucket": lambda bucket: bucket.client.create_bucket("another"),
    "set_bucket": lambda bucket: bucket.set(min_copies=1),
    "delete_bucket": lambda bucket: bucket.client.delete_bucket(bucket.name, force=True),
    "snapshots": lambda bucket: bucket.snapshot("now"),
    "put": lambda bucket: bucket.put("a", b"2"),
    "put_many": lambda bucket: bucket.put_many([("a", b"2")]),
    "compose": lambda bucket: bucket.copy("a", "b"),
    "delete": lambda bucket: bucket.delete("a"),
    "delete_names": lambda bucket: bucket.delete_many(["a"]),
    "deny": lambda bucket: bucket.deny(["a"], reason="why"),
    "warm": lambda bucket: bucket.warm(["a"]),
    "refresh_inventory": lambda bucket: bucket._transport.refresh_inventory(RefreshInventoryRequest()),
    "evict": lambda bucket: bucket.evict(["a"]),
    "promote": lambda bucket: bucket.promote("/nowhere"),
    "etl": lambda bucket: bucket.transform("b", etl="t"),
    "copy_transformed": lambda bucket: bucket.copy("a", "b", etl="t"),
}


def test_every_call_of_a_transport_reads_or_is_tried_below() -> None:
    calls = {name for name, member in inspect.getmembers(Transport) if callable(member) and not name.startswith("_")}
    assert calls - READS == set(CHANGES)


@pytest.mark.parametrize("change", list(CHANGES))
def test_a_client_that_only_reads_changes_nothing(url: str, bucket: Bucket, change: str) -> None:
    version = bucket.put("a", b"1").version
    with connect(url, mode="r") as reader:
        mine = reader.bucket(bucket.name)
        with pytest.raises(errors.StoreReadOnly, match="reading only"):
            CHANGES[change](mine)
        assert (mine.get("a"), mine.head("a").version) == (b"1", version)
        assert [found.name for found in mine.objects()] == ["a"]
        assert mine.snapshots() == []


def test_after_a_refresh_a_reader_has_what_was_replaced(url: str, bucket: Bucket) -> None:
    bucket.put("a", b"1")
    with connect(url, mode="r") as reader:
        mine = reader.bucket(bucket.name)
        for data in (b"2", b"3"):
            bucket.put("a", data)
            reader.refresh()
            assert (mine.get("a"), contents(mine.get_batch(["a"]))) == (data, [data])
    bucket.client.refresh()  # nothing to a writer


def test_it_reads_batches_and_stays_a_reader_when_it_is_pickled(client: Client, url: str, bucket: Bucket) -> None:
    bucket.put("a", b"1")
    with connect(url, mode="r") as reader, pickle.loads(pickle.dumps(reader)) as other:
        assert contents(other.bucket(bucket.name).get_batch(["a", "a"])) == [b"1", b"1"]
        with pytest.raises(errors.StoreReadOnly):
            other.bucket(bucket.name).put("a", b"2")
