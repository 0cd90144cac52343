"""PUTs of small objects that reach a node at the same time share commits; each still has its own outcome."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import pytest

from ais_loader import ClusterOptions, connect, errors
from ais_loader.objects.bucket import Bucket
from ais_loader.testing import NodeProcess, eventually
from ais_loader.wire.generated import ais_objects_pb2 as pb
from tests.cluster_processes import ClusterProcesses
from tests.node.write_kit import BUCKET, Writer
from tests.patience import PATIENT_CLIENT
from tests.replication.test_replication_faults import write_quietly

THREADS = 8


def put_all(bucket: Bucket, objects: dict[str, bytes]) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda item: bucket.put(*item), objects.items()))


def objects_of(seed: int, count: int = 160) -> dict[str, bytes]:
    """Return objects around the largest size that is committed together with others, and archives."""
    drawn = random.Random(seed)
    sizes = (0, 1, 700, 65_535, 65_536, 65_537, 140_000)
    suffixes = ("", ".wav", ".tar")
    return {f"{at:03}{drawn.choice(suffixes)}": drawn.randbytes(drawn.choice(sizes)) for at in range(count)}


@pytest.mark.slow
@pytest.mark.parametrize("lane", ["auto", "grpc"])
def test_puts_of_many_threads_are_all_there_before_and_after_a_kill(
    tmp_path: Path, lane: Literal["auto", "grpc"]
) -> None:
    objects = objects_of(3)
    with NodeProcess(tmp_path / "drive") as node:
        with connect(node.url, options=ClusterOptions(lane=lane)) as client:
            bucket = client.create_bucket("b")
            put_all(bucket, objects)
            assert {name: bucket.get(name) for name in objects} == objects
            put_all(bucket, changed := {name: data[::-1] + b"!" for name, data in objects.items()})
        node.kill()
        node.start()
        with connect(node.url, options=ClusterOptions(lane=lane)) as client:
            assert {item.entry.name: item.tobytes() for item in client.bucket("b").get_batch([*changed])} == changed


@pytest.mark.slow
def test_of_many_writers_on_one_condition_one_succeeds(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "drive") as node, connect(node.url) as client:
        bucket = client.create_bucket("b")

        def put(at: int) -> bool:
            try:
                bucket.put("one", b"%d" % at, if_absent=True)
            except errors.VersionConflict:
                return False
            return True

        with ThreadPoolExecutor(THREADS) as pool:
            succeeded = [at for at, done in enumerate(pool.map(put, range(64))) if done]
        assert len(succeeded) == 1 and bucket.get("one") == b"%d" % succeeded[0]


def test_a_put_that_is_refused_leaves_those_beside_it_alone(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "drive") as node, connect(node.url) as client:
        bucket = client.create_bucket("b")
        missing = client.bucket("none")

        def put(at: int) -> str:
            try:
                if at % 4 == 1:
                    bucket.put(f"{at}", b"12345", checksum=4)
                elif at % 4 == 2:
                    bucket.put(f"{at}", b"12345", checksum=7)
                elif at % 4 == 3:
                    missing.put(f"{at}", b"12345")
                else:
                    bucket.put(f"{at}", b"12345")
            except errors.LoaderError as error:
                return type(error).__name__
            return ""

        with ThreadPoolExecutor(THREADS) as pool:
            outcomes = list(pool.map(put, range(64)))
        assert outcomes == ["", "ContentMismatch", "ContentMismatch", "BucketNotFound"] * 16
        assert sorted(one.name for one in bucket.objects()) == sorted(f"{at}" for at in range(0, 64, 4))


@pytest.mark.slow
def test_puts_into_a_cluster_go_on_while_one_node_is_frozen(tmp_path: Path) -> None:
    objects = objects_of(5, 60)
    with ClusterProcesses(tmp_path, 3, buckets={BUCKET: 2}) as cluster:
        with Writer(cluster.nodes[0].url) as writer:

            def put(name: str) -> str:
                done = list[pb.ObjectInfo]()

                def once() -> bool:
                    done.append(writer.put(name, objects[name], size_bytes=len(objects[name])))
                    return True

                eventually(lambda: write_quietly(once))  # a busy node may seem to be frozen, too
                return done[0].version

            cluster.nodes[1].pause()
            try:
                with ThreadPoolExecutor(THREADS) as pool:
                    versions = dict(zip(objects, pool.map(put, objects), strict=True))
            finally:
                cluster.nodes[1].resume()
        with connect(cluster.url, options=PATIENT_CLIENT) as client:
            bucket = client.bucket(BUCKET)
            assert {name: bucket.get(name) for name in objects} == objects
            assert {name: bucket.head(name).version for name in objects} == versions
