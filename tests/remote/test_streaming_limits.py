"""Limits of objects that are read while they arrive: full drives, slow readers, slow clouds, and nodes that die."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ais_loader import Entry, Remote, connect, errors
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from ais_loader.testing.node import NodeProcess
from ais_loader.testing.waiting import eventually
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from tests.cluster_processes import ClusterProcesses
from tests.patience import PATIENT_CLIENT
from tests.remote.backend_kit import ANY_HOST
from tests.remote.conftest import RemoteBucket
from tests.remote.fault_proxy import FaultProxy
from tests.remote.s3_server import S3Server
from tests.remote.test_cluster_faults import UNHEDGED, first_owner, made, process_of
from tests.remote.test_streaming import FIRST_BYTES, HELD_BYTES, MIB, frames_of, take
from tests.store.small_drive import SmallDrive, small_drive

pytestmark = pytest.mark.slow


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallDrive]:
    with small_drive(tmp_path, monkeypatch) as drive:
        yield drive


@pytest.fixture(params=["embedded", "grpc"])
def full_client(request: pytest.FixtureRequest, s3: S3Server, full: SmallDrive) -> Iterator[Client]:
    if request.param == "embedded":
        with connect(full.root) as client:
            yield client
    else:
        with (
            NodeServer([full.root], ServerConfig(port=0, remote_min_free_bytes=0, remote_hosts=("any",))) as node,
            connect(node.url) as client,
        ):
            yield client


def test_a_full_drive_is_served_through(
    full_client: Client,
    full: SmallDrive,
    remote_bucket: RemoteBucket,
    caplog: pytest.LogCaptureFixture,
) -> None:
    contents = {
        "small": os.urandom(100_000),
        "frame": os.urandom(3 * MIB),
        "large": os.urandom((20 << 20) + 3),
        "fetched in ranges": bytes(range(256)) * (140 << 10),
    }
    for name, data in contents.items():
        remote_bucket.put(name, data)
    bucket = full_client.create_bucket("train", remote=Remote(remote_bucket.url, endpoint=remote_bucket.endpoint))
    own = full_client.create_bucket("own")
    own.put("kept", b"k" * MIB)
    full.leave(0)
    names = [*contents, "small", "large"]
    entries = [*(Entry("train", name) for name in names), Entry("own", "kept")]
    with caplog.at_level(logging.WARNING, "storage_node"):
        items = full_client.get_batch(entries)
        for item, name in zip(items, [*names, "kept"], strict=True):
            assert item.data.tobytes() == contents.get(name, b"k" * MIB), name
        assert bucket.get("large") == contents["large"]
        assert bucket.get("large", start=5 * MIB, length=100) == contents["large"][5 * MIB :][:100]
        with bucket.open("large") as file:
            file.seek(MIB)
            assert file.read(2 * MIB) == contents["large"][MIB : 3 * MIB]
    assert [info.is_stored for info in bucket.objects()] == [False] * len(contents)
    assert sum("without being stored" in record.getMessage() for record in caplog.records) == 1
    full.release()
    eventually(lambda: bucket.get("large") == contents["large"] and bucket.head("large").is_stored)


def test_a_drive_that_fills_up_while_an_object_arrives_is_served_through(
    full_client: Client, full: SmallDrive, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    data = os.urandom(12 << 20)
    remote_bucket.put("a", data)
    bucket = full_client.create_bucket("train", remote=Remote(remote_bucket.url, endpoint=remote_bucket.endpoint))
    with proxy.held("GET", remote_bucket.path("a"), after=HELD_BYTES) as held:
        frames = frames_of(full_client, bucket, "a")
        got = take(frames, FIRST_BYTES)
        held.wait_for(1)
        full.leave(0)
        held.release()
        got += b"".join(bytes(frame.payload) for frame in frames)
    assert got == data
    assert not bucket.head("a").is_stored


def test_a_slow_reader_neither_delays_others_nor_takes_memory(
    s3: S3Server, tmp_path: Path, remote_bucket: RemoteBucket
) -> None:
    data = os.urandom(MIB) * 192
    with NodeProcess(tmp_path, arguments=ANY_HOST) as node, connect(node.url) as client:
        remote = Remote(remote_bucket.url, endpoint=remote_bucket.endpoint)
        bucket = client.create_bucket("train", remote=remote)
        remote_bucket.put("warm", data[: 64 * MIB])
        bucket.warm()  # what a fetch needs in any case
        remote_bucket.put("a", data)
        before_bytes = _resident_bytes(node)
        slow = [frames_of(client, bucket, "a") for _ in range(4)]
        got = [take(one, MIB) for one in slow]
        eventually(lambda: bucket.head("a").is_stored)
        assert _resident_bytes(node) - before_bytes < 96 * MIB
        for one, first in zip(slow, got, strict=True):
            assert first + b"".join(bytes(frame.payload) for frame in one) == data


def _resident_bytes(node: NodeProcess) -> int:
    """Return the memory of a node, without files that it has mapped."""
    for line in Path(f"/proc/{node.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no RssAnon")


def test_the_limit_of_a_fetch_is_one_on_silence(
    s3: S3Server, tmp_path: Path, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    data = os.urandom(12 << 20)
    remote_bucket.put("a", data)
    config = ServerConfig(port=0, remote_fetch_timeout_s=12.0, remote_hosts=("any",))  # a machine may stand still
    with NodeServer([tmp_path / "drive"], config) as node, connect(node.url) as client:
        bucket = client.create_bucket("train", remote=Remote(remote_bucket.url, endpoint=remote_bucket.endpoint))
        proxy.bytes_per_s = 12 * MIB / 16
        assert bucket.get("a") == data  # in 16 s
        bucket.evict()
        proxy.bytes_per_s = None
        with proxy.held("GET", remote_bucket.path("a"), after=HELD_BYTES), pytest.raises(errors.RemoteUnavailable):
            bucket.get("a")


def test_an_object_too_large_for_a_batch_is_sent_while_it_arrives(
    cold: Bucket, client: Client, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    data = os.urandom(MIB) * 257
    remote_bucket.put("a", data)
    with proxy.held("GET", remote_bucket.path("a"), skip=2, times=1, after=MIB) as held:
        chunks = client._transport.get(Entry(cold.name, "a"), verify=True, timeout_s=180.0)
        got = [bytes(next(chunks))]
        held.wait_for(1)
        assert not cold.head("a").is_stored
        held.release()
        got += map(bytes, chunks)
    assert b"".join(got) == data
    assert cold.head("a").is_stored


@pytest.fixture
def cluster(remote_bucket: RemoteBucket, tmp_path: Path) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path, 3, arguments=UNHEDGED) as running:
        yield running


@pytest.mark.parametrize("assembly", ["direct", "target"])
def test_a_batch_survives_the_kill_of_the_node_that_fetches_and_sends(
    cluster: ClusterProcesses, remote_bucket: RemoteBucket, proxy: FaultProxy, assembly: str
) -> None:
    data = os.urandom(12 << 20)
    remote_bucket.put("a", data)
    with connect(cluster.url, options=PATIENT_CLIENT) as client, ThreadPoolExecutor(1) as pool:
        bucket = made(client, remote_bucket)
        victim = cluster.nodes[process_of(cluster, client, first_owner(client, "train", "a"))]
        with proxy.held("GET", remote_bucket.path("a"), times=1, after=HELD_BYTES) as held:
            entries = [Entry("train", "a")] * 2
            reading = pool.submit(
                lambda: [item.data.tobytes() for item in client.get_batch(entries, timeout_s=180, assembly=assembly)]
            )
            held.wait_for(1)
            victim.kill()
            assert reading.result(180) == [data] * 2
        assert proxy.count("GET", remote_bucket.path("a")) == 2
        assert bucket.get("a") == data


def test_a_node_that_does_not_fetch_sends_bytes_while_they_arrive(
    cluster: ClusterProcesses, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    data = os.urandom(12 << 20)
    remote_bucket.put("a", data)
    with connect(cluster.url, options=PATIENT_CLIENT) as client:
        bucket = made(client, remote_bucket)
        fetching = process_of(cluster, client, first_owner(client, "train", "a"))
        others = [node for at, node in enumerate(cluster.nodes) if at != fetching]
        with proxy.held("GET", remote_bucket.path("a"), after=HELD_BYTES) as held:
            streams = []
            for node in others:
                here = connect(node.url, options=PATIENT_CLIENT)
                streams.append((here, frames_of(here, bucket, "a", local=False)))
            got = [take(frames, FIRST_BYTES) for _, frames in streams]
            held.wait_for(1)
            held.release()
            for (here, frames), first in zip(streams, got, strict=True):
                assert first + b"".join(bytes(frame.payload) for frame in frames) == data
                here.close()
        assert proxy.count("GET", remote_bucket.path("a")) == 1
        assert bucket.head("a").is_stored
