"""Slow, dead and greedy clients of a node: memory stays bounded, others go on, and nothing is left behind."""

from __future__ import annotations

import io
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from ais_loader import Client, ClusterOptions, Entry, ObjectInfo, connect, errors
from ais_loader.testing import (
    NodeProcess,
    SeededObjects,
    eventually,
    peak_rss_bytes,
    reset_peak_rss,
    rss_bytes,
    seeded_bytes,
    throwaway_folder,
)
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from tests.patience import PATIENT_CLIENT
from tests.store.small_drive import small_drive

pytestmark = pytest.mark.slow

MiB = 1 << 20
OBJECTS = SeededObjects({f"{at:03d}": (MiB, at) for at in range(64)})
GIGABYTE = [*OBJECTS] * 16


@pytest.fixture(scope="module")
def node() -> Iterator[NodeProcess]:
    with throwaway_folder() as folder, NodeProcess(folder / "drive") as node:
        with connect(node.url, options=PATIENT_CLIENT) as client:
            client.create_bucket("b").put_many(OBJECTS.items())
            client.bucket("b").get_batch(list(OBJECTS)).tobytes()  # what is allocated once is allocated now
        yield node


@pytest.fixture
def client(node: NodeProcess) -> Iterator[Client]:
    with connect(node.url, options=PATIENT_CLIENT) as client:
        yield client


def idle(described: dict[str, object]) -> bool:
    return (described["active_batches"], described["reserved_bytes"]) == (0, 0)


# -- slow consumers


def test_a_batch_that_nobody_reads_costs_a_window_and_holds_up_no_other(node: NodeProcess, client: Client) -> None:
    bucket = client.bucket("b")
    node.reset_peak_rss()
    before, mine = node.rss_bytes(), rss_bytes()
    reset_peak_rss()
    unread = [bucket.get_batch(GIGABYTE) for _ in range(8)]
    first = [next(batch) for batch in unread]
    for _ in range(5):
        assert bucket.get_batch(list(OBJECTS)).tobytes() == list(OBJECTS.values())
        assert bucket.get("003") == OBJECTS["003"]
    # 8 GiB have been asked for: a window of 8 MiB for each batch waits here, and a few frames there.
    assert node.peak_rss_bytes() - before < 150 * MiB
    assert peak_rss_bytes() - mine < 500 * MiB
    assert [item.data for item in first] == [OBJECTS["000"]] * 8
    for batch in unread:
        batch.close()
    eventually(lambda: idle(client.describe()))


def test_a_slow_consumer_of_a_gigabyte_gets_all_of_it_within_bounded_memory(node: NodeProcess, client: Client) -> None:
    node.reset_peak_rss()
    reset_peak_rss()
    before, mine = node.rss_bytes(), rss_bytes()
    for at, item in enumerate(client.bucket("b").get_batch(GIGABYTE)):
        assert item.tobytes() == OBJECTS[GIGABYTE[at]]
        threading.Event().wait(0.01)  # what a training step takes; nothing to wait for
    assert at == len(GIGABYTE) - 1
    assert node.peak_rss_bytes() - before < 100 * MiB
    assert peak_rss_bytes() - mine < 100 * MiB


def test_many_batches_in_flight_from_many_threads_stay_within_the_budget(node: NodeProcess, client: Client) -> None:
    node.reset_peak_rss()
    before = node.rss_bytes()
    names = list(OBJECTS)

    def work(seed: int) -> int:
        order = names[seed:] + names[:seed]
        batches = [[Entry("b", name) for name in order[at : at + 8]] for at in range(0, 64, 8)]
        for batch, wanted in zip(client.get_batches(batches, in_flight=4), batches, strict=True):
            for item, entry in zip(batch, wanted, strict=True):
                assert item.tobytes() == OBJECTS[entry.name]
        return 64

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) == 512
    assert node.peak_rss_bytes() - before < 256 * MiB + 150 * MiB
    eventually(lambda: idle(client.describe()))


# -- dead clients

READER = """
import sys
from ais_loader import connect
with connect(sys.argv[1]) as client:
    def begin():
        return client.bucket("b").get_batch([f"{at:03d}" for at in range(64)] * 16)
    batches = [begin() for _ in range(6)]
    collected = client.bucket("b").get_batch([f"{at:03d}" for at in range(32)], streaming=False)
    for batch in batches:
        next(batch)
    print("reading", flush=True)
    while True:  # until it is killed, however late
        for at, batch in enumerate(batches):
            if next(batch, None) is None:
                batches[at] = begin()
"""


def test_a_client_killed_in_the_middle_leaves_nothing_behind(node: NodeProcess, client: Client) -> None:
    client.bucket("b").get("000")
    sessions = int(str(client.describe()["open_sessions"]))
    for _ in range(2):
        reader = subprocess.Popen([sys.executable, "-c", READER, node.url], stdout=subprocess.PIPE)
        with reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == b"reading\n"
            assert int(str(client.describe()["active_batches"])) > 0
            reader.kill()
        assert reader.returncode == -signal.SIGKILL
    described = eventually(lambda: client.describe() if idle(client.describe()) else None)
    eventually(lambda: int(str(client.describe()["open_sessions"])) <= sessions)
    assert described is not None
    assert "Traceback" not in node.log()


# -- admission


@pytest.fixture
def strict_node() -> Iterator[NodeServer]:
    config = ServerConfig(port=0, max_active_batches=2, reject_retry_after_ms=20)
    with throwaway_folder() as folder, NodeServer([folder / "drive"], config) as node:
        with connect(node.url, options=PATIENT_CLIENT) as client:
            client.create_bucket("b").put_many(OBJECTS.items())
        yield node


def test_rejected_clients_come_back_until_all_are_served(strict_node: NodeServer) -> None:
    names = list(OBJECTS)

    def read(_: int) -> bool:
        with connect(strict_node.url, options=PATIENT_CLIENT) as client:
            return client.bucket("b").get_batch(names).tobytes() == list(OBJECTS.values())

    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(read, range(12)))


def test_a_client_that_is_rejected_again_and_again_is_told_so(strict_node: NodeServer) -> None:
    with connect(strict_node.url, options=ClusterOptions(retry_s=0.3)) as client:
        bucket = client.bucket("b")
        holding = [bucket.get_batch(list(OBJECTS)) for _ in range(2)]
        items = [next(batch) for batch in holding]
        started = time.monotonic()
        with pytest.raises(errors.Overloaded, match=r"2 batches are being served.*gave up after") as caught:
            list(bucket.get_batch(["000"]))
        assert time.monotonic() - started >= 0.3
        assert caught.value.retryable
        # The batches that were being served are whole.
        for item, batch in zip(items, holding, strict=True):
            assert [item.data, *(rest.data for rest in batch)] == list(OBJECTS.values())
    with connect(strict_node.url, options=PATIENT_CLIENT) as client:  # a moment later the node has ended them, too
        assert next(iter(client.bucket("b").get_batch(["000"]))).tobytes() == OBJECTS["000"]


# -- objects that change while they are read


def test_objects_replaced_and_deleted_under_readers_are_old_or_new_and_never_mixed_or_corrupt(client: Client) -> None:
    bucket = client.bucket("b")
    names = [f"moving/{at}" for at in range(12)]
    sizes = [700_000, 30_000, 5 * MiB]

    def version_of(data: memoryview) -> int:
        """Which version these bytes are; every byte of a version is the same."""
        [value] = set(bytes(data[:1]))
        assert data == bytes([value]) * len(data), "bytes of two versions in one object"
        return value

    def write(name: str, value: int) -> None:
        bucket.put(name, bytes([value]) * sizes[names.index(name) % 3])

    for name in names:
        write(name, 1)
    stop = threading.Event()

    writes = [0, 0]

    def keep_writing(number: int) -> None:
        for value in itertools.cycle(range(1, 250)):
            for name in names[number::2]:
                if stop.is_set():
                    return
                if value % 7 == 0:
                    bucket.delete(name)
                write(name, value)
                writes[number] += 1

    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(keep_writing, at) for at in range(2)]
        try:
            deadline = time.monotonic() + 3
            rounds = 0
            while (
                time.monotonic() < deadline or rounds < 5 or (min(writes) <= 5 and not any(map(Future.done, writing)))
            ):
                rounds += 1
                for item in bucket.get_batch(names * 3, on_error="placeholder"):
                    if item.ok:
                        assert len(item.data) == sizes[names.index(item.entry.name) % 3]
                        version_of(item.data)
                    else:
                        assert item.status.name == "NOT_FOUND", item.error
                for name in names[:3]:
                    try:
                        version_of(memoryview(bucket.get(name)))
                    except errors.ObjectNotFound:
                        continue
        finally:
            stop.set()
        for done in writing:
            done.result(timeout=180)
    assert min(writes) > 5


# -- a full drive


def test_a_full_drive_is_drive_full_over_grpc_and_reads_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        small_drive(tmp_path, monkeypatch) as drive,
        NodeServer([drive.root], ServerConfig(port=0)) as node,
        connect(node.url) as client,
    ):
        bucket = client.create_bucket("b")
        bucket.put("before", OBJECTS["000"])
        drive.leave(6 * MiB)
        with pytest.raises(errors.DriveFull):
            bucket.put("large", bytes(8 * MiB))
        with pytest.raises(errors.DriveFull):
            bucket.put("large", io.BytesIO(bytes(8 * MiB)))
        results = list(bucket.iter_put_many(((f"m/{at}", bytes(MiB)) for at in range(10)), on_error="yield"))
        assert {type(result) for result in results} >= {errors.DriveFull}
        stored = [info.name for info in results if isinstance(info, ObjectInfo)]
        assert [info.name for info in bucket.objects()] == ["before", *stored]
        assert bucket.get("before") == OBJECTS["000"]
        assert [item.data for item in bucket.get_batch(["before"] * 3)] == [OBJECTS["000"]] * 3
        drive.release()
        bucket.put("large", bytes(8 * MiB))
        assert bucket.get("large") == bytes(8 * MiB)


# -- scale


@pytest.mark.parametrize(
    "gibibytes", [pytest.param(2, marks=pytest.mark.slow), pytest.param(10, marks=pytest.mark.exhaustive)]
)
def test_gibibytes_in_one_batch_pass_through_little_memory(gibibytes: int) -> None:
    objects = {f"{at:04d}": seeded_bytes(MiB, seed=at) for at in range(1000)}
    with throwaway_folder() as folder, NodeProcess(folder / "drive") as node, connect(node.url) as client:
        bucket = client.create_bucket("b")
        bucket.put_many(objects.items())
        names = list(itertools.islice(itertools.cycle(objects), gibibytes * 1024))
        bucket.get_batch(names[:64]).tobytes()
        node.reset_peak_rss()
        reset_peak_rss()
        before, mine = node.rss_bytes(), rss_bytes()
        for at, item in enumerate(bucket.get_batch(names)):
            assert item.tobytes() == objects[names[at]]
        assert at == gibibytes * 1024 - 1
        assert node.peak_rss_bytes() - before < 256 * MiB
        assert peak_rss_bytes() - mine < 256 * MiB


CROWD = """
import sys
from ais_loader import connect
url, count = sys.argv[1], int(sys.argv[2])
clients = [connect(url) for _ in range(count)]
for client in clients:
    next(client.bucket("b").get_batch(["000"]))
print("open", flush=True)
sys.stdin.read()
"""


def test_a_thousand_idle_sessions_and_32_busy_ones_share_a_node() -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    processes, each = 8, 128
    with throwaway_folder() as folder, NodeProcess(folder / "drive") as node, connect(node.url) as client:
        client.create_bucket("b").put_many(OBJECTS.items())
        client.bucket("b").get_batch(list(OBJECTS)).tobytes()
        before = node.rss_bytes()
        threads_before = threads_of(node.pid)
        crowd = [
            subprocess.Popen(
                [sys.executable, "-c", CROWD, node.url, str(each)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            for _ in range(processes)
        ]
        try:
            for process in crowd:
                assert process.stdout is not None
                assert process.stdout.readline() == b"open\n"
            assert int(str(client.describe()["open_sessions"])) >= processes * each
            idle_bytes = node.rss_bytes() - before
            assert threads_of(node.pid) - threads_before < 32
            # Measured: 0.1 MiB for a session of its own connection.
            assert idle_bytes < processes * each * MiB // 2, f"{idle_bytes / MiB:.0f} MiB"

            def read(seed: int) -> bool:
                order = random_order(seed)[:24]  # of all 32, with what they keep, less than 2 GiB
                with connect(node.url, options=PATIENT_CLIENT) as busy:
                    for _ in range(3):
                        found = busy.bucket("b").get_batch(order, timeout_s=180.0).tobytes()
                        if found != [OBJECTS[name] for name in order]:
                            return False
                return True

            with ThreadPoolExecutor(32) as pool:
                assert all(pool.map(read, range(32)))
            assert node.peak_rss_bytes() - before < idle_bytes + 256 * MiB + 256 * MiB
        finally:
            for process in crowd:
                process.kill()
                process.communicate()
        eventually(lambda: int(str(client.describe()["open_sessions"])) < 10)


def random_order(seed: int) -> list[str]:
    import random

    return random.Random(seed).sample(list(OBJECTS), len(OBJECTS))


def threads_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))
