"""The node as an operator sees it: starting, stopping, and what it says of itself."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from ais_loader import ClusterOptions, connect, errors
from ais_loader.errors import StoreLocked
from ais_loader.testing import NodeProcess, eventually, seeded_bytes
from ais_loader.wire.generated import ais_batch_pb2 as batch_pb
from storage_node import server as server_module
from storage_node.server import NodeServer
from storage_node.services.lifecycle import NodePart
from storage_node.settings.config import ServerConfig
from storage_node.store.read.batch import StoreBatch
from tests.node.node_kit import RawSession, batch_of, bucket_of, serving
from tests.patience import PATIENT_CLIENT

MiB = 1 << 20
FOREVER_S = 600.0
"""Longer than a test may take."""


def test_a_node_listens_on_loopback_alone_unless_told_otherwise(tmp_path: Path) -> None:
    assert ServerConfig().listen.host == "127.0.0.1"
    with serving(tmp_path) as node:
        assert node.url == f"grpc://127.0.0.1:{node.port}"
        others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
        for address in others - {address for address in others if address.startswith("127.")}:
            with pytest.raises(OSError):
                socket.create_connection((address, node.port), timeout=2).close()


@pytest.mark.slow
def test_a_port_in_use_is_said_and_leaves_the_drive_free(tmp_path: Path) -> None:
    with serving(tmp_path / "first") as node:
        second = NodeServer([tmp_path / "second"], ServerConfig(port=node.port))
        with pytest.raises(OSError, match=str(node.port)):
            second.start()
    with NodeServer([tmp_path / "second"], ServerConfig(port=0)):
        pass


@pytest.mark.parametrize("late", [False, True])
def test_a_node_that_does_not_start_in_time_ends_and_leaves_the_drive_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """`late`: it has started by the time it is told to end."""
    start, gave_up = server_module.start, threading.Event()

    async def slow_start(parts: Sequence[NodePart]) -> None:
        if late:
            await asyncio.to_thread(gave_up.wait, 180)
            await start(parts)
        else:
            await asyncio.Event().wait()

    node = NodeServer([tmp_path / "drive"], ServerConfig(port=0))
    abandon = node._abandon

    async def abandon_once_started() -> None:
        gave_up.set()
        await asyncio.to_thread(node._started.wait, 180)
        abandon()

    monkeypatch.setattr(server_module, "start", slow_start)
    monkeypatch.setattr(server_module, "START_TIMEOUT_S", 0.1)
    if late:
        monkeypatch.setattr(node, "_abandon", lambda: asyncio.create_task(abandon_once_started()))
    with pytest.raises(TimeoutError, match=r"did not start within 0\.1 s"):
        node.start()
    assert not node._thread.is_alive()
    monkeypatch.undo()
    with serving(tmp_path):
        pass


def test_a_drive_is_served_by_one_node_at_a_time(tmp_path: Path) -> None:
    with serving(tmp_path), pytest.raises(StoreLocked):
        NodeServer([tmp_path / "drive"], ServerConfig(port=0)).start()


def test_a_node_started_again_has_what_it_had(tmp_path: Path) -> None:
    with serving(tmp_path) as node, bucket_of(node) as bucket:
        bucket.put("a", b"1")
        described = bucket.client.describe()
    with serving(tmp_path) as node, bucket_of(node) as bucket:
        assert bucket.get("a") == b"1"
        assert bucket.client.describe()["store_uuid"] == described["store_uuid"]


def test_a_node_says_what_it_is(tmp_path: Path) -> None:
    with serving(tmp_path) as node, connect(node.url) as client:
        described = client.describe()
        assert described["pid"] == os.getpid()
        [drive] = described["drives"]  # type: ignore[misc]
        assert (drive["path"], drive["state"]) == (str(tmp_path / "drive"), "ok")
        assert 0 < drive["free_bytes"] <= drive["size_bytes"]


def test_a_node_knows_where_its_objects_are_before_the_first_read(tmp_path: Path) -> None:
    drives = [tmp_path / str(number) for number in range(2)]
    names = [f"{number:03}" for number in range(300)]
    with NodeServer(drives, ServerConfig(port=0)) as node, connect(node.url) as client:
        client.create_bucket("b").put_many((name, name.encode()) for name in names)
    with NodeServer(drives, ServerConfig(port=0)) as node:
        store = node._store
        assert store is not None
        assert all(drive is not None and drive.fill.wait(180) for drive in store.drives)
        assert StoreBatch.of_known(store, batch_pb.BatchRequest(bucket=["b"], name=names)) is not None
        with connect(node.url) as client:
            assert client.bucket("b").get_batch(names).tobytes() == [name.encode() for name in names]


def test_several_drives_are_one_store(tmp_path: Path) -> None:
    drives = [tmp_path / f"{at}" for at in range(3)]
    objects = {f"{at}": seeded_bytes(2000, seed=at) for at in range(90)}
    with NodeServer(drives, ServerConfig(port=0)) as node, bucket_of(node) as bucket:
        bucket.put_many(objects.items())
        assert bucket.get_batch(list(objects)).tobytes() == list(objects.values())
        assert [bucket.get(name) for name in objects] == list(objects.values())
        store = node._store
        assert store is not None
        for drive in store.drives:
            assert drive is not None and list(drive.scan_all(store.bucket("b").uuid_bytes, "", ""))


def test_a_node_with_idle_sessions_stops_at_once(tmp_path: Path) -> None:
    node = NodeServer([tmp_path / "drive"], ServerConfig(port=0)).start()
    sessions = [RawSession(node.url) for _ in range(5)]
    for session in sessions:
        session.ask(1, batch_pb.BatchRequest())
    node.stop(grace_s=FOREVER_S)
    for session in sessions:
        with pytest.raises((StopIteration, grpc.RpcError)):
            session.receive()
        session.__exit__()


@pytest.mark.slow
def test_a_node_that_stops_finishes_the_batches_that_it_has_begun(tmp_path: Path) -> None:
    objects = {f"{at}": seeded_bytes(500_000, seed=at) for at in range(40)}
    node = NodeServer([tmp_path / "drive"], ServerConfig(port=0)).start()
    with bucket_of(node) as bucket:
        bucket.put_many(objects.items())
    with RawSession(node.url) as session, RawSession(node.url) as idle:
        idle.ask(1, batch_pb.BatchRequest())
        session.send(1, batch_of(list(objects), credit=1))
        frames = [session.receive_frame()]
        stopping = threading.Thread(target=node.stop, args=(FOREVER_S,))
        stopping.start()
        with pytest.raises((StopIteration, grpc.RpcError)):
            idle.receive()
        session.send(2, batch_of(list(objects)))
        assert session.receive().reject.reason == "the node is stopping"
        session.send(1, batch_pb.Credit(payload_bytes=1 << 40))
        rest, end = session.answer(1)
        assert b"".join(frame.payload for frame in frames + rest) == b"".join(objects.values())
        assert end.outcome == batch_pb.End.COMPLETE
        stopping.join(180)
        assert not stopping.is_alive()


def test_a_stop_ends_calls_that_outlive_the_grace_period(tmp_path: Path) -> None:
    node = NodeServer([tmp_path / "drive"], ServerConfig(port=0)).start()
    with bucket_of(node) as bucket:
        bucket.put("a", bytes(20 * MiB))
    with RawSession(node.url) as session:
        session.send(1, batch_of(["a"], credit=1))  # never gets the credit for the rest
        session.receive_frame()
        node.stop(grace_s=0.2)
        with pytest.raises(grpc.RpcError):
            while True:
                session.receive()
    node.stop()  # again: nothing to do


@pytest.mark.slow
def test_putting_and_stopping_never_leaves_half_an_object(tmp_path: Path) -> None:
    data = seeded_bytes(3 * MiB)
    node = NodeServer([tmp_path / "drive"], ServerConfig(port=0)).start()
    with (
        ThreadPoolExecutor(4) as pool,
        connect(node.url, options=ClusterOptions(retry_s=0.1)) as client,
        connect(node.url, options=PATIENT_CLIENT) as patient,
    ):
        bucket = client.bucket(patient.create_bucket("b").name)

        stopping = threading.Event()

        def put_until_it_fails(worker: int) -> list[str]:
            stored: list[str] = []
            while True:
                try:
                    stored.append(bucket.put(f"{worker}/{len(stored)}", data).name)
                except errors.LoaderError:
                    if stopping.is_set():
                        return stored

        putting = [pool.submit(put_until_it_fails, worker) for worker in range(4)]
        eventually(lambda: len(list(patient.bucket("b").objects())) > 8)
        stopping.set()
        node.stop(grace_s=0.0)
        acknowledged = [name for done in putting for name in done.result(timeout=180)]
    with NodeServer([tmp_path / "drive"], ServerConfig(port=0)) as again, bucket_of(again) as bucket:
        found = {info.name: info.size_bytes for info in bucket.objects()}
        assert set(acknowledged) <= set(found)
        assert set(found.values()) == {len(data)}
        assert bucket.get_batch(list(found)).tobytes() == [data] * len(found)


def test_the_process_says_where_it_serves_and_exits_cleanly(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "drive") as node, connect(node.url) as client:
        client.create_bucket("b").put("a", b"1")
        assert client.describe()["pid"] == node.pid
        assert node.stop() == 0
        assert "Traceback" not in node.log()
