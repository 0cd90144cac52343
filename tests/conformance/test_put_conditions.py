"""PUT and DELETE on conditions: a compare-and-set, whoever the others are; and metadata, which go with an object."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from conformance_kit import MiB, names_in

from ais_loader import Bucket, Client, Entry, ObjectInfo, connect, errors
from ais_loader.testing import NodeProcess, seeded_bytes
from tests.cluster_processes import ClusterProcesses

LARGE = 5 * MiB + 3

COUNT_UP = """
import sys
from ais_loader import connect, errors
url, name, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
with connect(url) as client:
    bucket = client.bucket(name)
    while times:
        info = bucket.head("n")
        try:
            value = str(int(info.metadata["value"]) + 1)
            bucket.put("n", b"x", metadata={"value": value}, if_version=info.version)
        except errors.VersionConflict:
            continue
        times -= 1
"""


@pytest.fixture
def clients(bucket: Bucket, url: str) -> Iterator[list[Client]]:
    """Several where a store allows it: an embedded one has one writer."""
    if not url.startswith("grpc://"):
        yield [bucket.client] * 4
        return
    with ExitStack() as held:
        yield [held.enter_context(connect(url)) for _ in range(4)]


def all_at_once(clients: list[Client], work: Callable[[Client, int], None], times: int = 2) -> None:
    failed: list[BaseException] = []

    def run(client: Client, number: int) -> None:
        try:
            work(client, number)
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    threads = [threading.Thread(target=run, args=(client, number)) for number, client in enumerate(clients * times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=180)
        assert not thread.is_alive()
    if failed:
        raise failed[0]


def count_up(bucket: Bucket, name: str, times: int) -> None:
    """Read, add one, write what was read; again when somebody else was first."""
    while times:
        info = bucket.head(name)
        value = int(info.metadata["value"])
        try:
            bucket.put(name, b"x", metadata={"value": str(value + 1)}, if_version=info.version)
        except errors.VersionConflict:
            continue
        times -= 1


# -- conditions


@pytest.mark.parametrize("size", [0, 300_000, LARGE])
def test_an_object_is_put_where_none_is_and_then_no_second_one(bucket: Bucket, size: int) -> None:
    first = seeded_bytes(size, seed=1)
    info = bucket.put("a", first, if_absent=True, metadata={"k": "1"})
    with pytest.raises(errors.VersionConflict, match=f"{info.version}"):
        bucket.put("a", seeded_bytes(size, seed=2), if_absent=True)
    with pytest.raises(errors.VersionConflict):
        bucket.put("a", io.BytesIO(seeded_bytes(size, seed=2)), if_absent=True)
    assert (bucket.get("a"), bucket.head("a")) == (first, info)


@pytest.mark.parametrize("size", [10, LARGE])
def test_a_version_is_replaced_once(bucket: Bucket, size: int) -> None:
    first = bucket.put("a", b"1")
    second = bucket.put("a", seeded_bytes(size, seed=2), if_version=first.version)
    assert second.version != first.version
    for stale in (first.version, "7.77777.0"):
        with pytest.raises(errors.VersionConflict, match=second.version):
            bucket.put("a", seeded_bytes(size, seed=3), if_version=stale)
    assert (bucket.get("a"), bucket.head("a")) == (seeded_bytes(size, seed=2), second)
    with pytest.raises(errors.VersionConflict):
        bucket.put("b", b"", if_version=first.version)
    assert names_in(bucket.client, bucket.name) == ["a"]


def test_what_was_deleted_is_absent(bucket: Bucket) -> None:
    first = bucket.put("a", b"1", if_absent=True)
    bucket.delete("a")
    with pytest.raises(errors.VersionConflict):
        bucket.put("a", b"2", if_version=first.version)
    second = bucket.put("a", b"3", if_absent=True)
    assert second.version != first.version
    assert bucket.get("a") == b"3"


def test_a_version_is_deleted_or_nothing_is(bucket: Bucket) -> None:
    first = bucket.put("a", b"1")
    second = bucket.put("a", b"2")
    with pytest.raises(errors.VersionConflict, match=second.version):
        bucket.delete("a", if_version=first.version)
    assert bucket.get("a") == b"2"
    bucket.delete("a", if_version=second.version)
    with pytest.raises(errors.ObjectNotFound):
        bucket.head("a")
    for gone in ("a", "never"):
        with pytest.raises(errors.VersionConflict):
            bucket.delete(gone, if_version=second.version)


def test_a_put_from_what_can_be_read_once_has_a_condition_too(bucket: Bucket) -> None:
    class Once(io.RawIOBase):
        def __init__(self, data: bytes) -> None:
            self._left = io.BytesIO(data)

        def readable(self) -> bool:
            return True

        def read(self, size: int = -1) -> bytes:
            return self._left.read(min(size, 50_000) if size >= 0 else 50_000)

    data = seeded_bytes(LARGE)
    bucket.put("a", Once(data), if_absent=True)  # type: ignore[arg-type]
    with pytest.raises(errors.VersionConflict):
        bucket.put("a", Once(b"x" + data), if_absent=True)  # type: ignore[arg-type]
    assert bucket.get("a") == data


def test_of_many_writers_of_an_absent_object_one_wins(clients: list[Client], bucket: Bucket) -> None:
    names = [f"{number}" for number in range(6)]
    won: dict[str, list[int]] = {name: [] for name in names}

    def write(client: Client, number: int) -> None:
        for name in names:
            try:
                client.bucket(bucket.name).put(name, b"%d" % number, if_absent=True)
                won[name].append(number)
            except errors.VersionConflict:
                continue

    all_at_once(clients, write)
    assert [len(winners) for winners in won.values()] == [1] * len(names)
    assert {name: bucket.get(name) for name in names} == {name: b"%d" % winners[0] for name, winners in won.items()}


def test_counters_that_are_read_and_replaced_lose_nothing(clients: list[Client], bucket: Bucket) -> None:
    bucket.put("n", b"x", metadata={"value": "0"})
    all_at_once(clients, lambda client, _: count_up(client.bucket(bucket.name), "n", 5), times=1)
    assert bucket.head("n").metadata == {"value": "20"}


@pytest.mark.slow
@pytest.mark.parametrize("fixture", ["node", "shared_cluster"])
def test_processes_that_count_together_lose_nothing(fixture: str, request: pytest.FixtureRequest) -> None:
    there: NodeProcess | ClusterProcesses = request.getfixturevalue(fixture)
    with connect(there.url) as client:
        bucket = client.create_bucket(f"counted-{fixture.replace('_', '-')}", copies=2 if "cluster" in fixture else 1)
        bucket.put("n", b"x", metadata={"value": "0"})
        running = [
            subprocess.Popen([sys.executable, "-c", COUNT_UP, there.url, bucket.name, "8"], stderr=subprocess.PIPE)
            for _ in range(2)
        ]
        for process in running:
            _, said = process.communicate(timeout=180)
            assert process.returncode == 0, said.decode()
        assert bucket.head("n").metadata == {"value": "16"}
        client.delete_bucket(bucket.name, force=True)


@pytest.mark.slow
def test_deleting_and_making_again_is_won_by_one_each_time(clients: list[Client], bucket: Bucket) -> None:
    """As with locks: who makes the object has it, and deletes the version that it made."""
    inside: list[int] = []
    entered = 0

    def work(client: Client, number: int) -> None:
        nonlocal entered
        mine, done = client.bucket(bucket.name), 0
        while done < 3:
            try:
                info = mine.put("lock", b"the same bytes", if_absent=True)
            except errors.VersionConflict:
                continue
            inside.append(number)
            assert inside == [number]
            entered += 1
            inside.remove(number)
            mine.delete("lock", if_version=info.version)
            done += 1

    all_at_once(clients, work, times=1)
    assert (entered, names_in(bucket.client, bucket.name)) == (12, [])


def test_in_a_group_each_object_has_the_condition_for_itself(bucket: Bucket) -> None:
    names = [f"{number:03d}" for number in range(300)]
    for name in names[::50]:
        bucket.put(name, b"old")
    large = bucket.put("large/old", b"old")
    objects: list[Any] = [(name, b"new " + name.encode()) for name in names]
    objects[10:10] = [("large/new", bytes(LARGE)), ("large/old", bytes(LARGE)), ("000", b"again"), ("001", b"again")]
    results = list(bucket.iter_put_many(objects, if_absent=True, on_error="yield"))
    expected = ["there" if int(name) % 50 == 0 else "stored" for name in names]
    expected[10:10] = ["stored", "there", "there", "there"]
    assert ["stored" if isinstance(result, ObjectInfo) else "there" for result in results] == expected
    assert {type(result) for result in results} == {ObjectInfo, errors.VersionConflict}
    assert bucket.get_batch(names).tobytes() == [
        b"old" if int(name) % 50 == 0 else b"new " + name.encode() for name in names
    ]
    assert bucket.head("large/old") == large


def test_the_first_conflict_of_a_group_is_raised(bucket: Bucket) -> None:
    bucket.put("b", b"old")
    with pytest.raises(errors.VersionConflict):
        bucket.put_many([("a", b"1"), ("b", b"2")], if_absent=True)
    assert bucket.get("a") == b"1"
    assert bucket.get("b") == b"old"


@pytest.mark.parametrize("version", ["", "1", "1.2", "1.2.x", "a.b.c", 7])
def test_what_is_no_version_is_refused_before_anything_is_sent(bucket: Bucket, version: Any) -> None:
    with pytest.raises(errors.InvalidRequest, match="version"):
        bucket.put("a", b"", if_version=version)
    with pytest.raises(errors.InvalidRequest, match="version"):
        bucket.delete("a", if_version=version)
    with pytest.raises(errors.InvalidRequest, match="version"):
        bucket.set_metadata("a", {}, if_version=version)
    with pytest.raises(errors.InvalidRequest, match="exclude"):
        bucket.put("a", b"", if_version="1.2.3", if_absent=True)


def test_a_missing_bucket_is_no_conflict(client: Client) -> None:
    with pytest.raises(errors.BucketNotFound):
        client.bucket("no-such-bucket").put("a", b"", if_absent=True)
    with pytest.raises(errors.BucketNotFound):
        client.bucket("no-such-bucket").delete("a", if_version="1.2.3")


# -- metadata


def test_metadata_are_in_heads_and_lists_and_come_with_groups(bucket: Bucket) -> None:
    infos = bucket.put_many([("a", b"1", {"speaker": "7"}), ("b", b"2"), ("c", bytes(LARGE), {"long": "yes"})]).infos
    expected = {"a": {"speaker": "7"}, "b": {}, "c": {"long": "yes"}}
    assert {info.name: info.metadata for info in infos} == expected
    assert {info.name: info.metadata for info in bucket.objects()} == expected
    assert {name: bucket.head(name).metadata for name in expected} == expected


def test_metadata_of_a_write_on_a_condition_are_those_that_were_given(bucket: Bucket) -> None:
    info = bucket.put("a", b"1", metadata={"k": "v"}, if_absent=True)
    bucket.put_many([("b", b"1", {"k": "w"})], if_absent=True)
    assert (info.metadata, bucket.head("a").metadata) == ({"k": "v"}, {"k": "v"})
    assert [one.metadata for one in bucket.objects()] == [{"k": "v"}, {"k": "w"}]


@pytest.mark.parametrize(
    "metadata",
    [
        {"k": 5},
        {5: "v"},
        {"k": None},
        {"k": "\ud800"},
        {"k": "x" * 4096},
        {"k": "\0"},
        {"a\nb": ""},
        {"k": "\x1b[2J"},
        {"\0write": "00"},
        ["k"],
        "k=v",
    ],
    ids=lambda metadata: repr(metadata)[:20],
)
def test_metadata_that_nobody_should_have_are_refused(bucket: Bucket, metadata: Any) -> None:
    kept = bucket.put("a", b"1", metadata={"k": "v"})
    with pytest.raises(errors.InvalidRequest, match="metadata"):
        bucket.put("a", b"2", metadata=metadata)
    with pytest.raises(errors.InvalidRequest, match="metadata"):
        bucket.set_metadata("a", metadata)
    with pytest.raises(errors.InvalidRequest, match="metadata"):
        bucket.put_many([("a", b"2", metadata)])
    assert bucket.head("a") == kept


@pytest.mark.parametrize("size", [11, LARGE])
def test_metadata_are_replaced_and_the_bytes_stay(bucket: Bucket, size: int) -> None:
    data = seeded_bytes(size)
    before = bucket.put("a", data, metadata={"k": "1", "gone": "soon"})
    after = bucket.set_metadata("a", {"k": "2"})
    assert (after.metadata, after.size_bytes, after.checksum) == ({"k": "2"}, size, before.checksum)
    assert after.version != before.version
    assert (bucket.head("a"), bucket.get("a")) == (after, data)
    with pytest.raises(errors.VersionConflict):
        bucket.set_metadata("a", {"k": "3"}, if_version=before.version)
    last = bucket.set_metadata("a", {}, if_version=after.version)
    assert (bucket.head("a"), last.metadata) == (last, {})
    with pytest.raises(errors.ObjectNotFound):
        bucket.set_metadata("b", {})
    with pytest.raises(errors.VersionConflict):
        bucket.set_metadata("b", {}, if_version=last.version)


@pytest.mark.slow
def test_metadata_that_are_replaced_undo_no_put(clients: list[Client], bucket: Bucket) -> None:
    bucket.put("a", b"0", metadata={"value": "0"})

    def work(client: Client, number: int) -> None:
        mine = client.bucket(bucket.name)
        if number % 2:
            for _ in range(5):
                mine.set_metadata("a", {"value": "set"})
        else:
            for _ in range(5):
                added = False
                while not added:
                    info = mine.head("a")
                    try:
                        data = client.get_batch([Entry(bucket.name, "a", version=info.version)]).tobytes()[0]
                        mine.put("a", data + b"+", metadata={}, if_version=info.version)
                        added = True
                    except (errors.VersionConflict, errors.ObjectNotFound):
                        continue

    all_at_once(clients, work, times=1)
    assert bucket.get("a") == b"0" + b"+" * 10
