"""Small cold objects: committed in groups, while each keeps its own bytes, its own error and its own place."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ais_loader import Bucket, Client, Entry, Remote, connect, errors
from ais_loader.testing.node import NodeProcess
from ais_loader.testing.waiting import eventually
from ais_loader.wire.checksum import crc32c
from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.remote import embedded
from storage_node.remote.arriving import object_intake
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from storage_node.store.chunked_put import put_small
from storage_node.store.store import Store
from tests.patience import PATIENT_CLIENT
from tests.remote.backend_kit import ANY_HOST
from tests.remote.conftest import RemoteBucket
from tests.remote.fault_proxy import Fault, FaultProxy
from tests.remote.test_write_back_kills import armed
from tests.store.small_drive import small_drive

SIZE_BYTES = 5000
WAIT_S = 180
Objects = dict[str, bytes]
Group = Sequence[pb.SmallObject]
Results = list[pb.ObjectInfo | errors.LoaderError]
PutSmall = Callable[[Store, Group], Results]


def put(remote_bucket: RemoteBucket, count: int, size_bytes: int = SIZE_BYTES) -> Objects:
    objects = {f"{at:03}": os.urandom(size_bytes) for at in range(count)}
    for name, data in objects.items():
        remote_bucket.put(name, data)
    return objects


def read(client: Client, bucket: Bucket, names: Sequence[str]) -> list[bytes | type[errors.LoaderError]]:
    """Read a batch: the bytes of each entry, or the class of its error."""
    items = client.get_batch([Entry(bucket.name, name) for name in names], on_error="placeholder")
    return [item.data.tobytes() if item.error is None else type(item.error) for item in items]


@pytest.fixture
def stored_groups(monkeypatch: pytest.MonkeyPatch) -> list[PutSmall]:
    """What embedded stores of this test put groups with: the last of these functions."""
    doing: list[PutSmall] = [put_small]
    monkeypatch.setattr(object_intake, "STALL_S", float(WAIT_S))  # no group overtakes one that a test holds
    monkeypatch.setattr(embedded, "put_small", lambda store, objects: doing[-1](store, objects))
    return doing


@pytest.fixture
def own(remote_bucket: RemoteBucket, tmp_path: Path, stored_groups: object) -> Iterator[tuple[Client, Bucket]]:
    """An embedded store of this process, and a bucket with nothing stored."""
    with connect(tmp_path / "store") as client:
        yield client, client.create_bucket("b", remote=Remote(remote_bucket.url, endpoint=remote_bucket.endpoint))


@pytest.mark.parametrize("how", ["batch", "warm"])
def test_objects_that_arrive_together_share_commits(
    own: tuple[Client, Bucket], remote_bucket: RemoteBucket, proxy: FaultProxy, stored_groups: list[PutSmall], how: str
) -> None:
    client, bucket = own
    objects = put(remote_bucket, 40)
    all_have_come, groups = threading.Event(), list[list[str]]()

    def held(store: Store, group: Group) -> Results:
        groups.append([small.name for small in group])
        assert all_have_come.wait(WAIT_S)
        return put_small(store, group)

    stored_groups.append(held)
    with ThreadPoolExecutor(1) as pool:
        if how == "batch":
            reading = pool.submit(lambda: read(client, bucket, [*objects]) == [*objects.values()])
        else:
            reading = pool.submit(lambda: bucket.warm([*objects]).warmed == len(objects))
        eventually(lambda: sum(request.done for request in proxy.requests if request.method == "GET") == len(objects))
        all_have_come.set()
        assert reading.result(WAIT_S)
    assert sorted(name for group in groups for name in group) == [*objects]
    assert len(groups) < len(objects) / 2
    assert read(client, bucket, [*objects]) == [*objects.values()]


def test_checksum_size_and_metadata_are_those_of_each_object(
    own: tuple[Client, Bucket], remote_bucket: RemoteBucket
) -> None:
    client, bucket = own
    objects = put(remote_bucket, 8) | {"empty": b""}
    remote_bucket.put("empty", b"", of="nothing")
    assert read(client, bucket, [*objects]) == [*objects.values()]
    for name, data in objects.items():
        info = bucket.head(name)
        assert (info.is_stored, info.size_bytes, info.checksum) == (True, len(data), crc32c(data))
    assert bucket.head("empty").metadata["of"] == "nothing"


def test_a_full_drive_fails_the_objects_that_it_cannot_take_and_no_other(
    own: tuple[Client, Bucket], remote_bucket: RemoteBucket, stored_groups: list[PutSmall]
) -> None:
    client, bucket = own
    objects = put(remote_bucket, 12)
    without_room = {"003", "007"}

    def full(store: Store, group: Group) -> Results:
        results = iter(put_small(store, [small for small in group if small.name not in without_room]))
        return [errors.DriveFull("full") if small.name in without_room else next(results) for small in group]

    stored_groups.append(full)
    assert read(client, bucket, [*objects]) == [*objects.values()]  # sent without being stored
    assert {name for name in objects if bucket.head(name).is_stored} == {*objects} - without_room
    warmed = bucket.warm([*objects], on_error="return")
    assert {failure.name for failure in warmed.failures} == without_room
    assert all(isinstance(failure.error, errors.DriveFull) for failure in warmed.failures)
    stored_groups.append(put_small)
    eventually(lambda: bucket.warm([*objects], on_error="return").complete)


def test_a_group_that_fails_as_a_whole_marks_each_of_its_readers(
    own: tuple[Client, Bucket], remote_bucket: RemoteBucket, stored_groups: list[PutSmall]
) -> None:
    client, bucket = own
    objects = put(remote_bucket, 12)

    def failed(store: Store, group: Group) -> Results:
        raise errors.DriveFailed("the drive is gone")

    stored_groups.append(failed)
    items = client.get_batch([Entry("b", name) for name in objects], on_error="placeholder")
    assert all("the drive is gone" in str(item.error) for item in items)
    assert not any(bucket.head(name).is_stored for name in objects)


def test_a_missing_and_a_refused_object_fail_alone(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    objects = put(remote_bucket, 10)
    remote_bucket.delete("004")
    with proxy.on("GET", remote_bucket.path("006"), Fault(status=403)):
        found = read(client, cold, [*objects])
    failed = {"004": errors.ObjectNotFound, "006": errors.RemoteDenied}
    assert found == [failed.get(name, data) for name, data in objects.items()]


def test_an_object_that_was_replaced_fails_alone_for_who_wants_the_old_version(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket
) -> None:
    objects = put(remote_bucket, 6)
    versions = {name: cold.head(name).version for name in objects}
    remote_bucket.put("002", b"new")
    entries = [Entry(cold.name, name, version=version) for name, version in versions.items()]
    items = list(client.get_batch(entries, on_error="placeholder"))
    assert [item.error is None for item in items] == [name != "002" for name in objects]
    assert [item.data.tobytes() for item in items if item.error is None] == [
        data for name, data in objects.items() if name != "002"
    ]
    assert cold.get("002") == b"new"


def test_two_batches_at_once_take_each_object_from_the_cloud_once(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    objects = put(remote_bucket, 20)
    names = [*objects]
    with proxy.held("GET", "*") as held, ThreadPoolExecutor(2) as pool:
        batches = [pool.submit(read, client, cold, names), pool.submit(read, client, cold, names[::-1])]
        held.wait_for(10)
        held.release()
        assert batches[0].result(WAIT_S) == [*objects.values()]
        assert batches[1].result(WAIT_S) == [*objects.values()][::-1]
    assert [proxy.count("GET", remote_bucket.path(name)) for name in names] == [1] * len(names)


def test_objects_in_memory_stay_within_the_budget(
    own: tuple[Client, Bucket],
    remote_bucket: RemoteBucket,
    monkeypatch: pytest.MonkeyPatch,
    stored_groups: list[PutSmall],
) -> None:
    monkeypatch.setattr(object_intake, "MEMORY_BYTES", 3 * SIZE_BYTES)
    client, bucket = own
    objects = put(remote_bucket, 30)
    groups: list[int] = []

    def counted(store: Store, group: Group) -> Results:
        groups.append(sum(len(small.data) for small in group))
        return put_small(store, group)

    stored_groups.append(counted)
    assert read(client, bucket, [*objects]) == [*objects.values()]
    assert max(groups) <= 3 * SIZE_BYTES and sum(groups) == 30 * SIZE_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("point", ["put.staged", "put.intended", "put.renamed", "put.published", "put.committed"])
def test_a_kill_in_the_middle_of_a_group_leaves_whole_objects_only(
    remote_bucket: RemoteBucket, tmp_path: Path, point: str
) -> None:
    objects = put(remote_bucket, 60)
    names = [*objects]
    with NodeProcess(tmp_path / "drive", arguments=ANY_HOST) as node:
        with connect(node.url) as client:
            bucket = client.create_bucket("b", remote=Remote(remote_bucket.url, endpoint=remote_bucket.endpoint))
            answered = names[:10]
            assert read(client, bucket, answered) == [objects[name] for name in answered]
        armed(node, point)
        with connect(node.url, options=PATIENT_CLIENT) as client, ThreadPoolExecutor(1) as pool:
            reading = pool.submit(lambda: list(client.get_batch([Entry("b", name) for name in names])))
            eventually(lambda: not node.alive)
            node.kill()
            node.start()
            assert [item.data.tobytes() for item in reading.result(WAIT_S)] == [*objects.values()]
        with connect(node.url) as client:
            bucket = client.bucket("b")
            infos = [bucket.head(name) for name in names]
            assert [info.checksum for info in infos if info.is_stored] == [
                crc32c(objects[info.name]) for info in infos if info.is_stored
            ]
            assert all(info.is_stored for info in infos[:10])
            assert read(client, bucket, names) == [*objects.values()]


@pytest.mark.slow
def test_small_objects_are_read_from_a_drive_that_fills_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote_bucket: RemoteBucket
) -> None:
    objects = put(remote_bucket, 100, 120_000)
    config = ServerConfig(port=0, remote_min_free_bytes=0, remote_hosts=("any",))
    with (
        small_drive(tmp_path, monkeypatch) as drive,
        NodeServer([drive.root], config) as node,
        connect(node.url) as client,
    ):
        bucket = client.create_bucket("b", remote=Remote(remote_bucket.url, endpoint=remote_bucket.endpoint))
        kept = client.create_bucket("own").put("kept", b"k" * (1 << 20))
        drive.leave(20 << 20)
        for _ in range(2):
            assert read(client, bucket, [*objects]) == [*objects.values()]
        assert client.bucket("own").head("kept").checksum == kept.checksum
