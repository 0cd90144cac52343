"""Damaged copies in a cluster: mended from another holder when somebody meets them, and found when nobody does."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from ais_loader import connect
from ais_loader.errors import CorruptObject, LoaderError
from ais_loader.testing import SeededObjects, eventually, seeded_bytes
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.cluster.repair import peers
from storage_node.store.read.object_reader import open_member, open_object
from storage_node.store.store import Store
from tests.node.cluster_kit import BUCKET, Answer, LocalCluster, to_one_node
from tests.node.drive_kit import drive_cluster
from tests.node.node_kit import serving
from tests.store.store_kit import contents, file_of, flip_a_byte
from tests.tar_kit import packed_tar

pytestmark = pytest.mark.slow
TIMEOUT_S = 180.0
NEVER_S = 3600.0
LEASE_S = 120.0
"""No node goes away here: nodes that stand still for a moment are read from."""
OBJECTS = SeededObjects({f"k{at:02d}": (700_000 if at % 4 == 0 else 5_000, at) for at in range(16)})


def store_of(cluster: LocalCluster, number: int) -> Store:
    return cluster.batches(number).node.store


def harm(store: Store) -> list[str]:
    """Every second object that has a file of its own, in different ways; their names."""
    names = [name for name, _ in store.objects(BUCKET) if file_of(store, name, BUCKET).is_file()][::2]
    for at, name in enumerate(names):
        [flip_a_byte, Path.unlink, lambda path: os.truncate(path, 10)][at % 3](file_of(store, name, BUCKET))
    return names


def read_here(store: Store) -> dict[str, bytes]:
    return contents(store, BUCKET)


def test_a_copy_that_a_reader_finds_damaged_is_mended_from_another_holder(tmp_path: Path) -> None:
    with (
        LocalCluster(
            tmp_path, 3, copies=2, repair_interval_s=NEVER_S, scrub_interval_s=0, read_lease_s=LEASE_S
        ) as cluster,
        connect(",".join(node.url for node in cluster.nodes)) as client,
    ):
        bucket = client.bucket(BUCKET)
        for name, data in OBJECTS.items():
            bucket.put(name, data)
        store = store_of(cluster, 0)
        versions = {name: entry.version for name, entry in store.objects(BUCKET)}
        damaged = harm(store)
        assert len(damaged) >= 3
        for assembly in ("direct", "target"):
            assert bucket.get_batch(list(OBJECTS), assembly=assembly).tobytes() == list(OBJECTS.values())
        cluster.ask(damaged, local=True)  # also those that readers ask another holder for
        eventually(lambda: store.damaged.mended >= len(damaged) and not len(store.damaged), TIMEOUT_S)
        assert {name: data for name, data in OBJECTS.items() if name in versions} == read_here(store)
        assert {name: entry.version for name, entry in store.objects(BUCKET)} == versions
        assert cluster.nodes[0].repair.progress().scrub.mended == store.damaged.mended


def test_a_copy_that_is_large_is_mended_however_long_it_takes_to_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "PUSH_TIMEOUT_S", 1.0)
    data = seeded_bytes(12 << 20, seed=1)
    with (
        LocalCluster(
            tmp_path,
            2,
            copies=2,
            repair_interval_s=NEVER_S,
            repair_bytes_per_s=4 << 20,
            scrub_interval_s=0.5,
            scrub_bytes_per_s=1 << 30,
        ) as cluster,
        connect(",".join(node.url for node in cluster.nodes)) as client,
    ):
        client.bucket(BUCKET).put("large", data)
        store = store_of(cluster, 1)
        eventually(lambda: [name for name, _ in store.objects(BUCKET)] == ["large"], TIMEOUT_S)
        flip_a_byte(file_of(store, "large", BUCKET))
        eventually(lambda: store.damaged.mended, TIMEOUT_S)
        assert read_here(store) == {"large": data}


def test_what_nobody_reads_is_found_by_the_scrub_and_mended(tmp_path: Path) -> None:
    with (
        LocalCluster(
            tmp_path,
            3,
            copies=2,
            repair_interval_s=NEVER_S,
            scrub_interval_s=0.5,
            scrub_bytes_per_s=1 << 30,
            read_lease_s=LEASE_S,
        ) as cluster,
        connect(",".join(node.url for node in cluster.nodes)) as client,
    ):
        bucket = client.bucket(BUCKET)
        bucket.put_many(OBJECTS.items())
        store = store_of(cluster, 2)
        damaged = harm(store)
        assert damaged
        mine = {name for name, _ in store.objects(BUCKET)}
        eventually(lambda: store.damaged.found > 0 and not len(store.damaged), TIMEOUT_S)
        eventually(lambda: cluster.nodes[2].repair.progress().scrub.finished_s > 0, TIMEOUT_S)

        def whole() -> bool:
            try:
                return read_here(store) == {name: data for name, data in OBJECTS.items() if name in mine}
            except CorruptObject:
                return False

        eventually(whole, TIMEOUT_S)


def test_a_node_of_its_own_finds_and_counts_what_it_cannot_mend(tmp_path: Path) -> None:
    with (
        serving(tmp_path, scrub_interval_s=0.5, scrub_bytes_per_s=1 << 30) as node,
        connect(node.url) as client,
    ):
        bucket = client.create_bucket(BUCKET)
        bucket.put("a", bytes(10_000))
        bucket.put("b", bytes(10_000))
        assert node.batches is not None
        store = node.batches.node.store
        flip_a_byte(file_of(store, "a", BUCKET))
        eventually(lambda: node.repair.progress().scrub.damaged == 1, TIMEOUT_S)
        bucket.put("a", b"again")
        eventually(lambda: node.repair.progress().scrub.damaged == 0, TIMEOUT_S)
        assert node.repair.progress().scrub.found == 1 and node.repair.progress().scrub.mended == 0


@pytest.mark.parametrize("shard", ["s.tar", "s.tar.gz", "deflated.zip"])
@pytest.mark.parametrize("way", ["batch", "get"])
def test_a_copy_of_an_archive_in_which_a_member_is_damaged_is_mended(tmp_path: Path, shard: str, way: str) -> None:
    members = {f"m{at}": seeded_bytes(300_000, seed=at) for at in range(4)}
    archive = archive_of(shard, members)
    with (
        LocalCluster(tmp_path, 2, copies=2, repair_interval_s=NEVER_S, scrub_interval_s=0) as cluster,
        connect(",".join(node.url for node in cluster.nodes)) as client,
    ):
        bucket = client.bucket(BUCKET)
        bucket.put(shard, archive)
        assert bucket.get(shard, member="m0") == members["m0"]
        for number in range(2):
            store = store_of(cluster, number)
            flip_a_byte(file_of(store, shard, BUCKET), len(archive) // 2)
            if way == "batch":
                found = cluster_read(cluster, number, shard, list(members))
                assert [data for data in found if data in members.values()] != list(members.values())
            else:
                with pytest.raises(LoaderError):
                    for member in members:
                        b"".join(open_member(store, BUCKET, shard, member))
            eventually(lambda store=store: store.damaged.mended == 1 and not len(store.damaged), TIMEOUT_S)  # type: ignore[misc]
            assert read_here(store) == {shard: archive}
            assert cluster_read(cluster, number, shard, list(members)) == list(members.values())


def test_members_are_listed_by_a_holder_that_has_the_archive_whole(tmp_path: Path) -> None:
    members = {f"m{at}": seeded_bytes(300_000, seed=at) for at in range(4)}
    archive = archive_of("s.tar", members)
    with (
        LocalCluster(tmp_path, 2, copies=2, repair_interval_s=NEVER_S, scrub_interval_s=0) as cluster,
        connect(",".join(node.url for node in cluster.nodes)) as client,
    ):
        bucket = client.bucket(BUCKET)
        bucket.put("s.tar", archive)
        first = store_of(cluster, cluster.owners("s.tar")[0])
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            flip_a_byte(file_of(first, "s.tar", BUCKET), tar.getmember("m2").offset + 1)
        for drive in first.drives:
            assert drive is not None
            for index in (drive.root / "members").iterdir():
                index.unlink()
        assert [member.name for member in bucket.members("s.tar")] == list(members)
        eventually(lambda: first.damaged.mended == 1 and not len(first.damaged), TIMEOUT_S)
        assert bucket.get("s.tar", member="m2") == members["m2"]


def test_an_archive_that_was_damaged_when_it_was_put_is_compared_once(tmp_path: Path) -> None:
    archive = bytearray(archive_of("deflated.zip", {"m": seeded_bytes(50_000, seed=1)}))
    archive[25_000] ^= 1
    with serving(tmp_path, scrub_interval_s=0) as node, connect(node.url) as client:
        bucket = client.create_bucket(BUCKET)
        bucket.put("deflated.zip", bytes(archive))
        assert node.batches is not None
        damaged = node.batches.node.store.damaged
        for _ in range(2):
            with pytest.raises(LoaderError):
                bucket.get("deflated.zip", member="m")
            eventually(lambda: damaged.found == 1 and not len(damaged), TIMEOUT_S)
        assert bucket.get("deflated.zip") == archive


def archive_of(shard: str, members: Mapping[str, bytes]) -> bytes:
    if ".tar" in shard:
        return packed_tar(members, "w:gz" if shard.endswith("gz") else "w:")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return out.getvalue()


def cluster_read(cluster: LocalCluster, number: int, shard: str, members: Sequence[str]) -> list[bytes]:
    """What one node delivers from its own drives."""
    request = pb.BatchRequest(bucket=[BUCKET], name=[shard] * len(members), member=members, local=True)
    with closing(to_one_node(cluster.nodes[number].url)) as transport:
        answer = Answer.of(transport.open_batch(request, timeout_s=TIMEOUT_S))
    return [answer.data[at] for at in range(len(members))]


def test_a_damaged_copy_is_mended_beside_one_on_a_drive_that_is_disabled(tmp_path: Path) -> None:
    config = {"scrub_interval_s": 0, "repair_interval_s": NEVER_S}
    with drive_cluster(tmp_path, 2, buckets={BUCKET: 2}, **config) as cluster, connect(cluster.url) as client:
        client.bucket(BUCKET).put_many(OBJECTS.items())
        cluster.copied(BUCKET, set(OBJECTS))
        store, node = cluster.store(1), cluster.nodes[1]
        drive, uuid = store.drives[0], store.bucket(BUCKET).uuid_bytes
        assert drive is not None
        away = {name for name, _ in drive.scan(uuid, "", "")}
        versions = {name: entry.version for name, entry in store.objects(BUCKET)}
        kept = next(name for name in versions if name not in away and file_of(store, name, BUCKET).is_file())
        disabled = node.drives.disable(drive.identity.drive_uuid)
        asyncio.run_coroutine_threadsafe(disabled, node._loop).result(TIMEOUT_S)
        flip_a_byte(file_of(store, kept, BUCKET))
        for name in (min(away), kept):
            store.damaged.note(uuid, name, versions[name])
        eventually(lambda: store.damaged.mended, TIMEOUT_S)
        assert store.damaged.by_bucket() == {uuid: {min(away): versions[min(away)]}}
        with closing(open_object(store, BUCKET, kept)) as reader:
            assert b"".join(reader) == OBJECTS[kept]
