"""Snapshots of a bucket: what it was, whatever is put and deleted meanwhile, by every way to read a bucket."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import pytest
from conformance_kit import MiB, contents, fill, names_in, samples

from ais_loader import Bucket, Client, Entry, SnapshotInfo, connect, errors
from ais_loader.testing import NodeProcess, seeded_bytes, throwaway_folder
from tests.conformance.conftest import url_of
from tests.tar_kit import packed_tar

pytestmark = pytest.mark.slow

MEMBERS = {"a.wav": b"first", "b.wav": seeded_bytes(3000, seed=2)}


@pytest.fixture(params=["embedded", "grpc", "same host", "cluster"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(request: pytest.FixtureRequest, way: str) -> str:
    return url_of(request, way)


@pytest.fixture
def bucket(client: Client, bucket_name: str, way: str) -> Iterator[Bucket]:
    made = client.create_bucket(bucket_name, copies=2 if way == "cluster" else 1)
    yield made
    for snapshot in made.snapshots():
        made.delete_snapshot(snapshot.name)
    client.delete_bucket(bucket_name, force=True)


def test_a_snapshot_stays_as_it_was_by_every_way_to_read_it(client: Client, bucket: Bucket) -> None:
    objects = {**samples(30), "large": seeded_bytes(5 * MiB + 7, seed=3), "s.tar": packed_tar(MEMBERS), "empty": b""}
    fill(bucket, objects)
    infos = {info.name: info for info in bucket.objects()}
    made = bucket.snapshot("run-1")
    assert (made.name, made.bucket, made.objects) == ("run-1", bucket.name, len(objects))
    assert made.size_bytes == sum(map(len, objects.values())) and made.pinned == f"{bucket.name}@run-1"
    fill(bucket, {name: b"replaced " + name.encode() for name in [*list(objects)[:20], "large"]})
    for name in [*list(objects)[20:30], "s.tar"]:
        bucket.delete(name)
    fill(bucket, samples(5, prefix="later"))

    frozen = client.bucket(bucket.name, snapshot="run-1")
    assert frozen.name == made.pinned
    assert [info.name for info in frozen.objects(page_size=7)] == sorted(objects, key=str.encode)
    assert [info.name for info in frozen.objects("s/00001")] == [f"s/{at:06d}" for at in range(10, 20)]
    assert {info.name: info.version for info in frozen.objects()} == {n: i.version for n, i in infos.items()}
    entries = [f"ais://{made.pinned}/{name}" for name in reversed(objects)]
    assert contents(client.get_batch(entries)) == list(reversed(objects.values()))
    assert contents(frozen.get_batch(list(objects))) == list(objects.values())
    summary = frozen.summary()
    assert (summary.objects, summary.size_bytes) == (made.objects, made.size_bytes)
    assert contents(client.get_batches([entries[:5], entries[5:9]]).__next__()) == list(reversed(objects.values()))[:5]
    assert {name: frozen.get(name) for name in objects} == objects
    assert frozen.get("large", start=MiB, length=99, verify=True) == objects["large"][MiB : MiB + 99]
    assert frozen.head("s/000000").version == infos["s/000000"].version
    with frozen.open("large") as file, client.open(f"ais://{made.pinned}/large") as other:
        assert file.read() == other.read() == objects["large"]
    assert [member.name for member in frozen.members("s.tar")] == list(MEMBERS)
    assert frozen.get("s.tar", member="b.wav") == MEMBERS["b.wav"]
    mixed = [
        f"ais://{made.pinned}/s.tar/a.wav",
        f"ais://{bucket.name}/later/000000",
        Entry(made.pinned, "s/000003", start=1, length=5, version=infos["s/000003"].version),
        Entry(bucket.name, "s/000003"),
    ]
    later = samples(5, prefix="later")["later/000000"]
    wanted = [MEMBERS["a.wav"], later, objects["s/000003"][1:6], b"replaced s/000003"]
    assert contents(client.get_batch(mixed)) == wanted
    # What was deleted comes back by a copy out of the snapshot.
    frozen.copy("s/000025", "s/000025", to_bucket=bucket.name)
    assert bucket.get("s/000025") == objects["s/000025"]


def test_what_a_snapshot_has_not_is_not_found_and_so_is_one_that_is_not_there(client: Client, bucket: Bucket) -> None:
    bucket.put("a", b"1")
    bucket.snapshot("s")
    bucket.put("b", b"2")
    frozen, missing = client.bucket(bucket.name, snapshot="s"), client.bucket(bucket.name, snapshot="t")
    with pytest.raises(errors.ObjectNotFound, match="'b'"):
        frozen.get("b")
    with pytest.raises(errors.ObjectNotFound, match="is gone"):
        frozen.get("a", version=bucket.put("a", b"3").version)
    for read in (lambda: missing.get("a"), lambda: missing.head("a"), lambda: list(missing.objects()), missing.info):
        with pytest.raises(errors.SnapshotNotFound, match="no snapshot 't'"):
            read()
    with pytest.raises(errors.SnapshotNotFound, match="no snapshot ''"):
        client.bucket(bucket.name, snapshot="").get("a")
    items = list(client.get_batch([Entry(missing.name, "a"), Entry(frozen.name, "a")], on_error="placeholder"))
    assert isinstance(items[0].error, errors.SnapshotNotFound) and items[1].tobytes() == b"1"
    with pytest.raises(errors.BucketNotFound):
        client.bucket("no-such-bucket", snapshot="s").get("a")
    with pytest.raises(errors.BucketNotFound):
        client.bucket("no-such-bucket").snapshot("s")


def test_snapshots_are_listed_oldest_first_until_they_are_deleted(client: Client, bucket: Bucket) -> None:
    assert bucket.snapshots() == []
    made: list[SnapshotInfo] = []
    for at, name in enumerate(("z", "a", "M.1_2-3")):
        bucket.put(f"{at}", b"x" * at)
        made.append(bucket.snapshot(name))
    assert [(one.objects, one.size_bytes) for one in made] == [(1, 0), (2, 1), (3, 3)]
    assert bucket.snapshots() == made
    assert bucket.name in {info.name for info in client.buckets()}
    assert not any("@" in info.name for info in client.buckets())
    with pytest.raises(errors.SnapshotExists):
        bucket.snapshot("a")
    bucket.delete_snapshot("a")
    assert bucket.snapshots() == [made[0], made[2]]
    with pytest.raises(errors.SnapshotNotFound):
        bucket.delete_snapshot("a")
    again = bucket.snapshot("a")
    assert again.objects == 3 and bucket.snapshots() == [made[0], made[2], again]
    for name in ("", ".a", "a@b", "a/b", "ä", "x" * 64):
        with pytest.raises(errors.InvalidName):
            bucket.snapshot(name)


def test_a_snapshot_refuses_every_change_and_its_bucket_stays_as_long_as_it(client: Client, bucket: Bucket) -> None:
    bucket.put("a", b"1")
    bucket.snapshot("s")
    frozen = client.bucket(bucket.name, snapshot="s")
    for change in (
        lambda: frozen.put("b", b"2"),
        lambda: frozen.put("large", bytes(3 * MiB)),
        lambda: frozen.delete("a"),
        lambda: frozen.put_many([("b", b"2")]),
        lambda: frozen.snapshot("t"),
        lambda: frozen.delete_snapshot("s"),
        lambda: bucket.copy("a", "b", to_bucket=frozen.name),
        lambda: frozen.append("a", b"2"),
        lambda: frozen.set_metadata("a", {"x": "y"}),
        lambda: frozen.delete_many(["a"]),
        lambda: frozen.delete_prefix("a"),
        lambda: frozen.rename("a", "b"),
        lambda: frozen.put("a", b"2", if_absent=True),
        lambda: frozen.multipart("b").put_part(1, b"2"),
        lambda: client.delete_bucket(frozen.name, force=True),
    ):
        with pytest.raises(errors.SnapshotReadOnly, match="never changes"):
            change()
    with pytest.raises(errors.InvalidName):
        client.create_bucket(frozen.name)
    with pytest.raises(errors.BucketHasSnapshots):
        client.delete_bucket(bucket.name, force=True)
    assert names_in(client, frozen.name) == names_in(client, bucket.name) == ["a"]


def test_snapshots_under_writers_are_cuts_of_each_object_and_never_change(
    client: Client, bucket: Bucket, way: str
) -> None:
    """Of each object: at least what was acknowledged before the call, at most what was begun before its return."""
    begun, done = [0] * 4, [0] * 4
    stop = threading.Event()
    problems: list[BaseException] = []

    def write(worker: int) -> None:
        try:
            for number in itertools.count(1):
                if stop.is_set():
                    return
                begun[worker] = number
                # Odd numbers are there with so many bytes; even ones are a deletion.
                if number % 2:
                    bucket.put(f"w{worker}", number.to_bytes(4, "big") * (1 + number % 700))
                else:
                    bucket.delete(f"w{worker}")
                done[worker] = number
        except BaseException as error:  # noqa: BLE001 - told by the test
            problems.append(error)

    workers = [threading.Thread(target=write, args=(worker,)) for worker in range(4)]
    for worker in workers:
        worker.start()
    seen: dict[str, dict[str, bytes]] = {}
    try:
        for at in range(3 if way == "cluster" else 8):
            before = list(done)
            made = bucket.snapshot(f"s{at}")
            after = list(begun)
            frozen = client.bucket(bucket.name, snapshot=made.name)
            found = seen[made.name] = {name: frozen.get(name) for name in names_in(client, frozen.name)}
            assert made.objects == len(found) and made.size_bytes == sum(map(len, found.values()))
            for worker in range(4):
                data = found.get(f"w{worker}")
                possible = range(before[worker], after[worker] + 1)
                if data is None:
                    assert any(number % 2 == 0 for number in possible)
                    continue
                number = int.from_bytes(data[:4], "big")
                assert number in possible and data == data[:4] * (1 + number % 700)
    finally:
        stop.set()
        for worker in workers:
            worker.join(180)
    assert not problems
    for name, wanted in seen.items():
        frozen = client.bucket(bucket.name, snapshot=name)
        assert names_in(client, frozen.name) == sorted(wanted)
        assert contents(frozen.get_batch(sorted(wanted))) == [wanted[found] for found in sorted(wanted)]


def test_a_snapshot_survives_kill_9_of_its_node_with_the_same_bytes() -> None:
    before = {**samples(40), "large": seeded_bytes(2 * MiB, seed=9)}
    with throwaway_folder() as folder, NodeProcess(folder / "drive") as node:
        with connect(node.url) as client:
            bucket = client.create_bucket("speech")
            fill(bucket, before)
            made = bucket.snapshot("run-1")
            fill(bucket, dict.fromkeys(before, b"replaced"))
            bucket.delete("large")
        node.kill()
        node.start()
        with connect(node.url) as client:
            bucket = client.bucket("speech")
            assert bucket.snapshots() == [made]
            fill(bucket, dict.fromkeys(before, b"again"))
            frozen = client.bucket("speech", snapshot="run-1")
            assert contents(frozen.get_batch(list(before))) == list(before.values())
            assert [info.name for info in frozen.objects()] == sorted(before)
