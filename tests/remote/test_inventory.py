"""Inventories on every transport: listings read them, whatever happens to objects meanwhile, and ask the cloud less."""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from ais_loader import Remote, ShufflePlan, errors
from ais_loader.cli.main import main
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from ais_loader.testing import throwaway_folder
from ais_loader.values.entry_table import EntryTable
from ais_loader.wire.inventory import Row
from storage_node.remote.inventory.inventories import InventoryWriter, RowRun
from tests.remote.conftest import RemoteBucket
from tests.remote.fault_proxy import Fault, FaultProxy
from tests.remote.test_remote_buckets import data_of, filled
from tests.store.store_kit import store_at
from tests.table import table


def lists(proxy: FaultProxy) -> int:
    """Return the number of listing requests so far."""
    return sum("list-type=2" in one.query for one in proxy.requests)


def listed(bucket: Bucket, prefix: str = "") -> list[tuple[str, int, str, int]]:
    return [(info.name, info.size_bytes, info.version, info.modified_ns) for info in bucket.objects(prefix)]


def names_of(bucket: Bucket, prefix: str = "") -> list[str]:
    """Return the names of a listing, which are those of the entries, too."""
    found = [info.name for info in bucket.objects(prefix)]
    table = bucket.entries(prefix)
    assert isinstance(table, EntryTable) and table.names(range(len(table))) == found
    return found


@pytest.mark.slow
def test_listings_read_the_inventory_and_ask_the_cloud_nothing(
    cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    names = filled(remote_bucket, 12) + filled(remote_bucket, 5, "fr/ü/")
    assert cold.inventory() is None
    before = listed(cold)
    began = datetime.now(UTC)
    info = cold.refresh_inventory()
    assert (info.prefix, info.count, info.skipped) == ("", 17, 0)
    assert info.size_bytes == sum(size_bytes for _, size_bytes, _, _ in before)
    assert (began - info.listed_at).total_seconds() < 1 and info.listed_at <= datetime.now(UTC)
    assert cold.inventory() == info
    proxy.forget()
    assert listed(cold) == before
    assert names_of(cold) == sorted(names) and names_of(cold, "fr/") == names[12:] and names_of(cold, "x") == []
    assert [one.name for one in cold.objects(start_after="en/010.bin")] == names[11:]
    assert [one.name for one in cold.entries("en/", pattern="*1.bin")] == ["en/001.bin", "en/011.bin"]
    assert lists(proxy) == 0 and proxy.count("*") == 0


def test_a_dataset_of_a_prefix_asks_the_cloud_for_its_objects_alone(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    from ais_loader import MapDataset

    names = filled(remote_bucket, 10)
    cold.refresh_inventory()
    proxy.forget()
    dataset = MapDataset(client, f"ais://{cold.name}/en/")
    assert dataset.__getitems__([3, 7]) == [data_of(3), data_of(7)]
    assert len(dataset) == len(names) and lists(proxy) == 0 and proxy.count("GET", "*") == 2


def test_a_plan_that_has_its_names_lists_nothing(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    from ais_loader import BatchLoader, MapDataset

    names = filled(remote_bucket, 8)
    proxy.forget()
    samples = MapDataset(client, names, bucket=cold.name)
    batch = next(iter(BatchLoader(samples, ShufflePlan(len(samples), 4))))
    assert len(batch) == 4 and lists(proxy) == 0


@pytest.mark.slow
def test_what_the_cloud_has_beside_the_inventory_is_read_all_the_same(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket
) -> None:
    filled(remote_bucket, 3)
    cold.refresh_inventory()
    remote_bucket.put("en/later", b"later")
    remote_bucket.delete("en/001.bin")
    assert names_of(cold) == ["en/000.bin", "en/001.bin", "en/002.bin"]
    assert cold.get("en/later") == b"later"
    items = list(client.get_batch(cold.entries("en/"), on_error="placeholder"))
    assert [item.status.name for item in items] == ["OK", "NOT_FOUND", "OK", "OK"]  # the later one is stored now
    assert cold.refresh_inventory().count == 3
    assert names_of(cold) == ["en/000.bin", "en/002.bin", "en/later"]


@pytest.mark.slow
def test_changes_through_the_store_are_listed_as_they_are(
    cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    names = filled(remote_bucket, 6)
    cold.refresh_inventory()
    cold.put("en/001.bin", b"replaced")
    cold.put("new", b"new")
    cold.put("new and deleted", b"1")
    cold.delete("new and deleted")
    cold.get(names[2])
    cold.delete_many([names[2], names[3]])
    version = cold.put(names[4], b"1").version
    cold.delete(names[4], if_version=version)
    left = [names[0], names[1], names[5], "new"]
    proxy.forget()
    assert names_of(cold) == left
    cold.evict()
    assert names_of(cold) == left and cold.head("new").size_bytes == 3
    assert [info.size_bytes for info in cold.objects("en/001")] == [8]
    assert lists(proxy) == 0
    assert cold.refresh_inventory().count == 4 and names_of(cold) == left
    proxy.forget()
    assert names_of(cold) == left and proxy.count("*") == 0  # no object is marked any more


@pytest.mark.slow
def test_a_change_during_a_refresh_is_kept(cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy) -> None:
    names = filled(remote_bucket, 4)
    cold.refresh_inventory()
    cold.put("marked before", b"1")
    seen: list[int] = []

    def delete(count: int) -> None:
        if not seen:
            cold.delete(names[0])
            cold.put("marked before", b"22")
            held.release()
        seen.append(count)

    with proxy.held("GET", remote_bucket.name) as held:
        cold.refresh_inventory(progress=delete)
    assert seen
    cold.evict()
    assert names_of(cold) == [*names[1:], "marked before"]
    assert [info.size_bytes for info in cold.objects("marked")] == [2]


def test_the_marks_of_an_inventory_are_deleted_here_alone(
    client: Client, bucket_name: str, remote_bucket: RemoteBucket
) -> None:
    remote = Remote(remote_bucket.url, endpoint=remote_bucket.endpoint, write="back")
    bucket = client.create_bucket(bucket_name, remote=remote, copies=2 if "," in client.url else 1)
    bucket.refresh_inventory()
    bucket.put("a", b"a")
    bucket.flush(timeout_s=180)
    bucket.refresh_inventory()  # removes the mark of "a", and the first list
    assert not [row for row in client.pending_uploads() if row.bucket == bucket.name]
    bucket.drop_inventory()
    assert not [row for row in client.pending_uploads() if row.bucket == bucket.name]
    assert remote_bucket.keys() == ["a"]
    client.delete_bucket(bucket_name, force=True)


@pytest.mark.parametrize("write", ["through", "back"])
def test_changes_that_reach_the_cloud_after_a_refresh_has_listed_it_are_listed(
    client: Client, bucket_name: str, remote_bucket: RemoteBucket, proxy: FaultProxy, write: str
) -> None:
    names = filled(remote_bucket, 4)
    remote = Remote(remote_bucket.url, endpoint=remote_bucket.endpoint, write=write)  # type: ignore[arg-type]
    bucket = client.create_bucket(bucket_name, remote=remote, copies=2 if "," in client.url else 1)
    bucket.refresh_inventory()
    with (
        proxy.held("PUT", remote_bucket.path("new")) as put,
        proxy.held("DELETE", remote_bucket.path(names[0])) as deletion,
        ThreadPoolExecutor(3) as threads,
    ):
        changes = [threads.submit(bucket.put, "new", b"new"), threads.submit(bucket.delete, names[0])]
        put.wait_for(1)
        deletion.wait_for(1)
        bucket.refresh_inventory()
        put.release()
        deletion.release()
        for change in changes:
            change.result(180)
    if write == "back":
        bucket.flush(timeout_s=180)
    bucket.evict(prefix="")
    assert names_of(bucket) == [*names[1:], "new"]
    assert bucket.get("new") == b"new"
    client.delete_bucket(bucket_name, force=True)


def test_names_that_no_object_can_have_are_counted(cold: Bucket, remote_bucket: RemoteBucket) -> None:
    for key in ("a//b", "ok", "z/../y"):
        remote_bucket.put(key, b"1")
    info = cold.refresh_inventory()
    assert (info.count, info.skipped, info.skipped_names) == (1, 2, ("a//b", "z/../y"))
    assert cold.inventory() == info and names_of(cold) == ["ok"]


def test_an_inventory_of_a_prefix_says_nothing_about_other_names(
    cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    names = filled(remote_bucket, 3) + filled(remote_bucket, 2, "fr/")
    info = cold.refresh_inventory("en/")
    assert (info.prefix, info.count) == ("en/", 3)
    proxy.forget()
    assert [one.name for one in cold.objects("en/00")] == names[:3] and lists(proxy) == 0
    assert [one.name for one in cold.objects()] == names and lists(proxy) == 1


def test_a_new_place_forgets_the_inventory_and_a_new_rule_does_not(cold: Bucket, remote_bucket: RemoteBucket) -> None:
    names = filled(remote_bucket, 3)
    info = cold.refresh_inventory()
    remote_bucket.put("later", b"1")
    cold.set(remote=Remote(remote_bucket.url, endpoint=remote_bucket.endpoint, validate=60.0))
    assert cold.inventory() == info and names_of(cold) == names
    cold.set(remote=Remote(f"{remote_bucket.url}/en", endpoint=remote_bucket.endpoint))
    assert cold.inventory() is None and hidden(cold) == []
    assert [one.name for one in cold.objects()] == ["000.bin", "001.bin", "002.bin"]
    cold.set(remote=Remote(remote_bucket.url, endpoint=remote_bucket.endpoint))
    assert [one.name for one in cold.objects()] == [*names, "later"]
    cold.refresh_inventory()
    cold.set(remote="")
    assert list(cold) == [] and hidden(cold) == []
    with pytest.raises(errors.InvalidRequest, match="not a remote one"):
        cold.inventory()


def hidden(bucket: Bucket) -> list[str]:
    """Return the names of all objects that belong to inventories."""
    return [info.name for info in bucket._transport.objects(bucket.name, prefix="/.inventory/", page_size=1000)]


def test_a_dropped_inventory_leaves_nothing(client: Client, cold: Bucket, remote_bucket: RemoteBucket) -> None:
    names = filled(remote_bucket, 3)
    cold.refresh_inventory()
    cold.put("new", b"1")
    assert len(hidden(cold)) == 3 and list(cold) == [*names, "new"]
    assert cold.summary().objects == 1
    cold.drop_inventory()
    cold.drop_inventory()
    assert cold.inventory() is None and hidden(cold) == []
    assert cold.info().remote == Remote(remote_bucket.url, endpoint=remote_bucket.endpoint)
    assert [one.name for one in cold.objects()] == [*names, "new"]
    cold.refresh_inventory()
    cold.evict()
    client.delete_bucket(cold.name)  # an inventory alone does not keep a bucket


def test_only_the_store_writes_hidden_objects(cold: Bucket, remote_bucket: RemoteBucket) -> None:
    filled(remote_bucket, 1)
    cold.refresh_inventory()
    with pytest.raises(errors.InvalidName, match="those of inventories"):
        cold.put(hidden(cold)[0], b"1")
    with pytest.raises(errors.ObjectNotFound):
        cold.get("/.inventory/0123456789abcdef/current")
    with pytest.raises(errors.InvalidRequest, match="refresh_inventory"):
        Remote(remote_bucket.url, inventory="mine")


def test_an_inventory_whose_data_are_missing_is_not_read(
    cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    names = filled(remote_bucket, 3)
    cold.refresh_inventory()
    (data,) = [name for name in hidden(cold) if "/data-" in name]
    cold._transport.delete(cold.name, data)
    proxy.forget()
    with caplog.at_level(logging.WARNING):
        assert list(cold) == names and [one.name for one in cold.entries()] == names
    assert lists(proxy) == 2 and "its inventory cannot be read" in caplog.text


def test_a_refused_listing_leaves_the_old_inventory(
    cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    names = filled(remote_bucket, 3)
    info = cold.refresh_inventory()
    remote_bucket.put("later", b"1")
    with proxy.on("GET", remote_bucket.name, Fault(status=403)), pytest.raises(errors.RemoteDenied):
        cold.refresh_inventory()
    assert cold.inventory() == info and names_of(cold) == names


def test_a_pinned_entry_is_read_in_the_listed_version_alone(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket
) -> None:
    filled(remote_bucket, 2)
    cold.refresh_inventory()
    remote_bucket.put("en/001.bin", b"replaced")
    items = list(client.get_batch(cold.entries(pinned=True), on_error="placeholder"))
    assert [item.status.name for item in items] == ["OK", "NOT_FOUND"]


def test_the_command_line_shows_makes_and_removes_it(cold: Bucket, remote_bucket: RemoteBucket, url: str) -> None:
    filled(remote_bucket, 3)
    filled(remote_bucket, 2, "fr/")
    remote_bucket.put("a//b", b"1")

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(main, ["remote", "inventory", *arguments, "--store", url])
        assert result.exit_code == 0, result.output
        return result.stdout

    if url.startswith("grpc"):
        assert run(cold.name, "--refresh").startswith(f"{cold.name}: 5 objects, ")
        shown = json.loads(run(cold.name, "--json"))
        assert (shown["count"], shown["skipped"], shown["skipped_names"]) == (5, 1, ["a//b"])
        assert json.loads(run(f"{cold.name}/fr", "--refresh", "--json"))["prefix"] == "fr/"
        assert run(cold.name, "--drop") == ""
    failed = CliRunner().invoke(main, ["remote", "inventory", cold.name, "--drop", "--refresh", "--store", url])
    assert failed.exit_code == 2 and "give one of them" in failed.output


@table("names", [("a", "c", "b"), ("a", "a")])
def test_a_listing_that_is_not_in_order_makes_no_inventory(names: tuple[str, ...]) -> None:
    with throwaway_folder() as folder, store_at(folder) as store:
        run, writer = RowRun(store), InventoryWriter(store)
        try:
            run.append([Row(name.encode(), 1, 0, b"") for name in names])
            with pytest.raises(errors.RemoteUnavailable, match=f"lists '{names[-1]}' twice, or out of order"):
                writer.write([run])
        finally:
            run.close()
            writer.close()
