"""Batches of several nodes whose parts leave from files: the right bytes come, or it is said which are not."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ais_loader import Client, Status, connect
from ais_loader.testing import SeededObjects
from ais_loader.testing.waiting import eventually
from storage_node.store.read.file_frame import FileFrame
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.store.store_kit import file_of, flip_a_byte

DATA = SeededObjects({f"{at:02}": (400_000 + at, at) for at in range(12)})
TIMEOUT_S = 180.0


@pytest.fixture(params=["direct", "target"])
def assembly(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def from_files(monkeypatch: pytest.MonkeyPatch) -> list[FileFrame]:
    """What was sent from files, whole."""
    sent: list[FileFrame] = []
    send = FileFrame.send

    def noted(self: FileFrame, sock: socket.socket, patience_ms: int = 5) -> None:
        send(self, sock, patience_ms)
        if self.done:
            sent.append(self)

    monkeypatch.setattr(FileFrame, "send", noted)
    return sent


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, 2, copies=request.param, spread=DATA) as cluster:
        cluster.put(DATA)
        yield cluster
        cluster.settle()


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with connect(",".join(node.url for node in cluster.nodes)) as client:
        yield client


def statuses(client: Client, assembly: str) -> dict[str, Status]:
    """Of all objects, each whole and right if it is said to be."""
    batch = client.bucket(BUCKET).get_batch(list(DATA), assembly=assembly, on_error="placeholder", timeout_s=TIMEOUT_S)
    items = dict(zip(DATA, batch, strict=True))
    assert all(item.status != Status.OK or item.tobytes() == DATA[name] for name, item in items.items())
    return {name: item.status for name, item in items.items()}


@pytest.mark.parametrize("cluster", [1], indirect=True)
def test_owners_send_from_their_files(
    cluster: LocalCluster, client: Client, assembly: str, from_files: list[FileFrame]
) -> None:
    bucket = client.bucket(BUCKET)
    assert bucket.get_batch(list(DATA), assembly=assembly).tobytes() == list(DATA.values())
    of_each = [len(cluster.names_of(number, DATA)) for number in (0, 1)]

    def parts_from_files() -> int:
        from_files.clear()
        assert bucket.get_batch(list(DATA), assembly=assembly).tobytes() == list(DATA.values())
        return sum(len(frame.parts) for frame in from_files)

    # A target reads what it has itself. Lanes are opened beside the first batches, and carry later ones.
    expected = [len(DATA)] if assembly == "direct" else of_each
    eventually(lambda: parts_from_files() in expected)


@pytest.mark.parametrize("cluster", [1], indirect=True)
def test_what_is_damaged_is_corrupt_in_its_place(cluster: LocalCluster, client: Client, assembly: str) -> None:
    assert set(statuses(client, assembly).values()) == {Status.OK}  # lanes are open now
    damaged = [cluster.names_of(number, DATA)[-1] for number in (0, 1)]
    for number, name in enumerate(damaged):
        flip_a_byte(file_of(cluster.batches(number).node.store, name, BUCKET), 200_000)
    assert statuses(client, assembly) == {name: Status.CORRUPT if name in damaged else Status.OK for name in DATA}


@pytest.mark.parametrize("cluster", [2], indirect=True)
@pytest.mark.parametrize("harm", [lambda path: flip_a_byte(path, 200_000), lambda path: os.truncate(path, 100_000)])
def test_what_is_damaged_comes_from_another_copy(
    cluster: LocalCluster, client: Client, assembly: str, harm: Callable[[Path], object]
) -> None:
    assert set(statuses(client, assembly).values()) == {Status.OK}
    for number in (0, 1):
        for name in cluster.names_of(number, DATA)[::2]:
            harm(file_of(cluster.batches(number).node.store, name, BUCKET))
    assert set(statuses(client, assembly).values()) == {Status.OK}
