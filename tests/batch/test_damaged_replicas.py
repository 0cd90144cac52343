"""Objects of several pieces whose replicas are damaged: read whole as long as each piece is intact on some node."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ais_loader import Bucket, Client, ClusterOptions, Entry, connect, errors
from ais_loader.testing import eventually, seeded_bytes, throwaway_folder
from ais_loader.values.entry import Status
from storage_node.cluster.repair.damage import DamageRepair
from storage_node.cluster.repair.repair import Repair
from tests.every_value import every_value_once, product_of
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.store.store_kit import file_of, flip_a_byte
from tests.tar_kit import packed_tar

pytestmark = pytest.mark.slow
MiB = 1 << 20
BLOCK = 256 << 10
LARGE = seeded_bytes(12 * MiB + 17, seed=3)
SMALL = {f"small-{at}": seeded_bytes(1000, seed=at) for at in range(4)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Two nodes with two copies, which do not repair what readers find damaged."""

    async def never(_: object) -> None:
        await asyncio.Event().wait()

    with pytest.MonkeyPatch.context() as patch, throwaway_folder() as folder, ExitStack() as held:
        patch.setattr(Repair, "_run", lambda *_: never(_))
        patch.setattr(DamageRepair, "run", never)
        cluster = LocalCluster(folder, 2, copies=2, scrub_interval_s=0)
        yield held.enter_context(cluster)


LANES = ["auto", "grpc"]


@pytest.fixture(params=LANES)
def client(request: pytest.FixtureRequest, cluster: LocalCluster) -> Iterator[Client]:
    with connect(cluster.nodes[0].url, options=ClusterOptions(lane=request.param, retry_s=10.0)) as client:
        yield client


def put(cluster: LocalCluster, name: str, data: bytes, bad: dict[int, int]) -> str:
    """Store an object on both nodes, and flip one byte of it on each of these owners, by rank: the bytes to flip.

    A client's write may leave out a busy node, and the other then has the only copy.
    """
    cluster.put({name: data})
    for rank, at in bad.items():
        flip_a_byte(file_of(cluster.batches(cluster.owners(name)[rank]).node.store, name, BUCKET), at)
    return name


def by_get(bucket: Bucket, name: str) -> bytes:
    return bucket.get(name)


def by_one_range(bucket: Bucket, name: str) -> bytes:
    return LARGE[:1] + bucket.get(name, start=1)


def _by_batch(bucket: Bucket, name: str, assembly: str, *, ordered: bool = True) -> bytes:
    """Between others, which must not suffer."""
    names = [*list(SMALL)[:2], name, *list(SMALL)[2:]]
    items = {}
    for item in bucket.get_batch(names, assembly=assembly, ordered=ordered):
        items[item.index] = item.tobytes()
    assert [items[at] for at in (0, 1, 3, 4)] == list(SMALL.values())
    return items[2]


def by_direct_batch(bucket: Bucket, name: str) -> bytes:
    return _by_batch(bucket, name, "direct")


def by_target_batch(bucket: Bucket, name: str) -> bytes:
    return _by_batch(bucket, name, "target")


def by_direct_batch_in_any_order(bucket: Bucket, name: str) -> bytes:
    return _by_batch(bucket, name, "direct", ordered=False)


def by_target_batch_in_any_order(bucket: Bucket, name: str) -> bytes:
    return _by_batch(bucket, name, "target", ordered=False)


def by_file(bucket: Bucket, name: str) -> bytes:
    with bucket.open(name) as file:
        return file.read()


def by_download(bucket: Bucket, name: str) -> bytes:
    with throwaway_folder() as folder:
        bucket.download(name, folder)
        return (folder / name).read_bytes()


def by_stream(bucket: Bucket, name: str) -> bytes:
    """By the call for objects that are too large for a batch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("storage_node.store.read.batch_lookup.MAX_ITEM_BYTES", MiB)
        return bucket.get(name)


Way = Callable[[Bucket, str], bytes]
WAYS: list[Way] = [
    by_get,
    by_one_range,
    by_direct_batch,
    by_target_batch,
    by_direct_batch_in_any_order,
    by_target_batch_in_any_order,
    by_file,
    by_download,
    by_stream,
]
ways = pytest.mark.parametrize(
    ("client", "way"),
    product_of(LANES, WAYS, quick=every_value_once(LANES, WAYS), others=pytest.mark.exhaustive),
    indirect=["client"],
)
"""Each way over one of the lanes; the exhaustive set has it over the other one, too."""
AT = {"at its beginning": 10, "in the middle": 6 * MiB + 77, "at its end": len(LARGE) - 1}


@pytest.fixture
def bucket(client: Client) -> Bucket:
    bucket = client.bucket(BUCKET)
    bucket.put_many(SMALL.items())
    return bucket


@pytest.mark.sampled(13)
@ways
@pytest.mark.parametrize("at", list(AT.values()), ids=list(AT))
def test_an_object_is_read_whole_where_one_replica_is_damaged(
    cluster: LocalCluster, bucket: Bucket, way: Way, at: int
) -> None:
    for rank in (0, 1):
        name = put(cluster, f"one-{rank}", LARGE, {rank: at})
        for _ in range(2):
            assert way(bucket, name) == LARGE


@ways
def test_an_object_is_read_whole_where_its_replicas_are_damaged_in_different_blocks(
    cluster: LocalCluster, bucket: Bucket, way: Way
) -> None:
    """The reader goes back to the first holder for what the second one has damaged."""
    first, second = 3 * MiB + 5, 9 * MiB + 5
    for at in ({0: first, 1: second}, {0: second, 1: first}):
        assert way(bucket, put(cluster, "both", LARGE, at)) == LARGE


@ways
def test_an_object_is_corrupt_where_all_replicas_are_damaged_in_the_same_block(
    cluster: LocalCluster, bucket: Bucket, way: Way
) -> None:
    at = 6 * MiB + 5
    name = put(cluster, "same", LARGE, {0: at, 1: at + 100})
    with pytest.raises(errors.CorruptObject):
        way(bucket, name)


def open_pinned(bucket: Bucket, entry: Entry, assembly: str) -> bytes:
    [item] = bucket.client.get_batch([entry], assembly=assembly, verify_ranges=True)
    return item.tobytes()


PINNED: dict[str, Callable[[Bucket, str, str], bytes]] = {
    "get": lambda bucket, name, version: bucket.get(name, version=version),
    "direct": lambda bucket, name, version: open_pinned(bucket, Entry(BUCKET, name, version=version), "direct"),
    "target": lambda bucket, name, version: open_pinned(bucket, Entry(BUCKET, name, version=version), "target"),
    "range": lambda bucket, name, version: open_pinned(bucket, Entry(BUCKET, name, None, 5, 99, version), "direct"),
    "range by target": lambda bucket, name, version: open_pinned(
        bucket, Entry(BUCKET, name, None, 5, 99, version), "target"
    ),
}


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("way", PINNED.values(), ids=PINNED)
def test_a_version_that_another_holder_has_replaced_is_not_called_corrupt(
    cluster: LocalCluster, bucket: Bucket, way: Callable[[Bucket, str, str], bytes], rank: int
) -> None:
    """A put has reached one holder, and the other one still has the old version, damaged."""
    for size in (50_000, len(LARGE)):
        name = put(cluster, f"replaced-{size}", LARGE[:size], {rank: 10})
        version = bucket.head(name).version
        put_newer(cluster, name, cluster.owners(name)[1 - rank], b"new")
        with pytest.raises(errors.ObjectReplaced, match="is gone, the store has"):
            way(bucket, name, version)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_file_of_a_version_that_another_holder_has_replaced_is_not_called_corrupt(
    cluster: LocalCluster, bucket: Bucket, rank: int
) -> None:
    name = put(cluster, "replaced-file", LARGE, {rank: 10})
    with bucket.open(name) as file:
        put_newer(cluster, name, cluster.owners(name)[1 - rank], b"new")
        with pytest.raises(errors.ObjectReplaced):
            file.read()


@pytest.mark.parametrize("rank", [0, 1])
def test_an_intact_replica_of_a_version_is_read_while_another_holder_has_a_newer_one(
    cluster: LocalCluster, bucket: Bucket, rank: int
) -> None:
    name = put(cluster, "half-replaced", LARGE, {})
    version = bucket.head(name).version
    put_newer(cluster, name, cluster.owners(name)[rank], b"new")
    for assembly in ("direct", "target"):
        assert open_pinned(bucket, Entry(BUCKET, name, version=version), assembly) == LARGE


@pytest.mark.parametrize("rank", [0, 1])
def test_a_version_that_the_other_holder_has_not_received_yet_stays_corrupt(
    cluster: LocalCluster, bucket: Bucket, rank: int
) -> None:
    name = put(cluster, "not-received", b"old" * 999, {})
    put_newer(cluster, name, cluster.owners(name)[rank], b"new" * 999)
    store = cluster.batches(cluster.owners(name)[rank]).node.store
    newer = str(store.locate(BUCKET, name)[1].version)
    flip_a_byte(file_of(store, name, BUCKET), 10)
    for assembly in ("direct", "target"):
        with pytest.raises(errors.CorruptObject):
            open_pinned(bucket, Entry(BUCKET, name, version=newer), assembly)


@ways
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("newer_bytes", [3 * MiB, 2])
def test_an_object_that_is_replaced_while_its_damaged_replica_is_read_is_read_in_its_new_version(
    cluster: LocalCluster, bucket: Bucket, way: Way, rank: int, newer_bytes: int
) -> None:
    """The pieces before the damage have been sent, and no holder has the rest of that version. A batch has not
    delivered them; a file and a stream have."""
    name = put(cluster, "half-read", LARGE, {rank: 6 * MiB})
    newer = LARGE[:1] + seeded_bytes(newer_bytes, seed=9)
    put_newer(cluster, name, cluster.owners(name)[1 - rank], newer)
    try:
        assert way(bucket, name) == newer
    except (errors.NodeUnavailable, errors.ObjectReplaced) as error:
        assert way in (by_file, by_download, by_stream) and "is gone" in str(error)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_version_that_one_holder_has_alone_goes_on_when_the_connection_to_it_has_broken(
    tmp_path: Path, rank: int, ordered: bool
) -> None:
    """The other holder has not received it yet, and cannot go on with what has come."""
    with LocalCluster(tmp_path, 2, copies=2, clients_linked=True, scrub_interval_s=0, repair_interval_s=600.0) as one:
        one.put({**SMALL, "x": LARGE})
        newer = seeded_bytes(len(LARGE), seed=9)
        alone = one.owners("x")[rank]
        put_newer(one, "x", alone, newer)
        with connect(one.client_links[0].url, options=ClusterOptions(retry_s=240.0, lane="grpc")) as client:
            bucket = client.bucket(BUCKET)
            assert bucket.get("small-0") == SMALL["small-0"]  # it knows the map
            one.client_links[alone].cut_after(6 * MiB)
            assert _by_batch(bucket, "x", "direct", ordered=ordered) in (LARGE, newer)


def test_a_stream_of_a_version_that_another_holder_has_replaced_begins_again(
    cluster: LocalCluster, bucket: Bucket
) -> None:
    """The download has delivered nothing yet."""
    for rank in (0, 1):
        name = put(cluster, f"replaced-stream-{rank}", LARGE, {rank: 10})
        newer = seeded_bytes(3 * MiB, seed=8)
        put_newer(cluster, name, cluster.owners(name)[1 - rank], newer)
        assert by_stream(bucket, name) == newer


def put_newer(cluster: LocalCluster, name: str, number: int, data: bytes) -> None:
    """Let one node alone have a newer version."""
    there = cluster.batches(number).node.store.locate(BUCKET, name)[1].version
    cluster.put_on(number, {name: data}, {name: there._replace(counter=there.counter + 1)})


@pytest.mark.parametrize("shard", ["s.tar", "s.tar.gz"])
@pytest.mark.parametrize("assembly", ["direct", "target"])
def test_a_large_member_is_read_whole_where_one_replica_is_damaged(
    cluster: LocalCluster, bucket: Bucket, assembly: str, shard: str
) -> None:
    archive = packed_tar({"before": b"b" * 1000, "large": LARGE}, "w:gz" if shard.endswith("gz") else "w:")
    for rank in (0, 1):
        name = put(cluster, shard, archive, {})
        assert [member.name for member in bucket.members(name)] == ["before", "large"]
        flip_a_byte(file_of(cluster.batches(cluster.owners(name)[rank]).node.store, name, BUCKET), 6 * MiB)
        for _ in range(2):
            [item] = bucket.client.get_batch([Entry(BUCKET, name, member="large")], assembly=assembly)
            assert item.tobytes() == LARGE


def test_an_object_is_not_called_corrupt_while_a_node_that_may_have_it_is_down(tmp_path: Path) -> None:
    with (
        LocalCluster(tmp_path, 2, copies=2, scrub_interval_s=0, repair_interval_s=600.0) as cluster,
        connect(cluster.nodes[0].url, options=ClusterOptions(retry_s=1.0)) as client,
    ):
        bucket = client.bucket(BUCKET)
        bucket.put_many(SMALL.items())
        for name, data in {"large": LARGE, "half": LARGE[: 3 * MiB]}.items():
            put(cluster, name, data, {})
            flip_a_byte(file_of(cluster.batches(0).node.store, name, BUCKET), 2 * MiB)
        cluster.nodes[1].stop(grace_s=0.2)
        for way in (by_get, by_direct_batch, by_target_batch, by_file, by_download, by_stream):
            for name in ("large", "half"):
                with pytest.raises(errors.NodeUnavailable):
                    way(bucket, name)


def test_an_object_is_not_called_corrupt_while_a_drive_that_may_have_it_is_missing(tmp_path: Path) -> None:
    with (
        LocalCluster(tmp_path, 2, copies=2, scrub_interval_s=0, repair_interval_s=600.0) as cluster,
        connect(cluster.nodes[0].url, options=ClusterOptions(retry_s=1.0)) as client,
    ):
        bucket = client.bucket(BUCKET)
        bucket.put_many(SMALL.items())
        large, half, root = "large", "half", tmp_path / "node-1"
        put(cluster, large, LARGE, {})
        put(cluster, half, LARGE[: 3 * MiB], {})
        for name in (large, half):
            flip_a_byte(file_of(cluster.batches(0).node.store, name, BUCKET), 2 * MiB)
        shutil.rmtree(root / "objects")

        def is_unavailable() -> None:
            for way in (by_get, by_one_range, by_file, by_download, by_stream):
                for name in (large, half):
                    with pytest.raises((errors.NodeUnavailable, errors.DriveFailed)):
                        way(bucket, name)
            both = [Entry(BUCKET, large), Entry(BUCKET, half)]
            for assembly in ("direct", "target"):
                items = list(client.get_batch(both, assembly=assembly, on_error="placeholder"))
                assert [item.status for item in items] == [Status.UNAVAILABLE] * 2

        is_unavailable()
        # The node notices, and looks for the drive: what is left of it must not be used as an empty one.
        problem = eventually(lambda: cluster.nodes[1].drives.problem_at(root))
        assert f"{root / 'objects'} is missing" in problem and not (root / "objects").exists()
        is_unavailable()
