"""Large frames from files: the bytes and their order, whatever lies between; cut in the middle; within the credit."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from ais_loader import Client, ClusterOptions, Entry, Status, connect
from ais_loader.testing import seeded_bytes
from ais_loader.wire.frame import TARGET_PAYLOAD_BYTES
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.server import NodeServer
from storage_node.store.read import file_frame
from storage_node.store.read.file_frame import FileFrame
from storage_node.store.read.frame_plan import FILE_FRAME_BYTES
from tests.lane.lane_kit import open_lane
from tests.node.node_kit import serving

MIB = 1 << 20
DATA = {f"{at:02}": seeded_bytes(700_000 + at, seed=at) for at in range(16)}
SMALL = {f"small/{at}": seeded_bytes(900 + at, seed=100 + at) for at in range(3)}
TIMEOUT_S = 20.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeServer]:
    with serving(tmp_path_factory.mktemp("files")) as node:
        with connect(node.url) as client:
            bucket = client.create_bucket("b")
            for name, data in (DATA | SMALL).items():
                bucket.put(name, data)
        yield node


@pytest.fixture
def client(node: NodeServer) -> Iterator[Client]:
    with connect(node.url, options=ClusterOptions(lane="auto")) as client:
        yield client


@pytest.fixture(params=[True, False], ids=["cached", "cold"])
def cached(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether frames are sent on the event loop, or by a thread."""
    monkeypatch.setattr(file_frame, "_is_cached", lambda *_: request.param)
    return bool(request.param)


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[FileFrame]:
    """Those that were begun."""
    begun: list[FileFrame] = []
    send = FileFrame.send

    def noted(self: FileFrame, sock: socket.socket, patience_ms: int = 5) -> None:
        if self not in begun:
            begun.append(self)
        send(self, sock, patience_ms)

    monkeypatch.setattr(FileFrame, "send", noted)
    return begun


@pytest.mark.usefixtures("cached")
def test_entries_share_large_frames(client: Client, frames: list[FileFrame]) -> None:
    items = client.bucket("b").get_batch(list(DATA), timeout_s=TIMEOUT_S)
    assert [item.tobytes() for item in items] == list(DATA.values())
    assert [len(frame.parts) for frame in frames] == [5, 5, 5, 1]
    assert all(frame.payload_bytes <= FILE_FRAME_BYTES for frame in frames)


def test_all_that_lies_between_comes_in_its_place(client: Client, frames: list[FileFrame]) -> None:
    names = list(DATA)
    entries = [
        *(Entry("b", name) for name in names[:4]),
        Entry("b", "nothing"),
        *(Entry("b", name) for name in SMALL),
        Entry("b", names[4], start=1000, length=650_000),
        *(Entry("b", name) for name in names[5:]),
    ]
    items = list(client.get_batch(entries, on_error="placeholder", timeout_s=TIMEOUT_S))
    due = [
        *(DATA[name] for name in names[:4]),
        b"",
        *SMALL.values(),
        DATA[names[4]][1000:651_000],
        *(DATA[name] for name in names[5:]),
    ]
    assert [item.tobytes() for item in items] == due
    assert [at for at, item in enumerate(items) if item.status != Status.OK] == [4]
    assert len(frames) < len(DATA) / 2


def test_one_that_is_asked_for_twice_comes_twice(client: Client) -> None:
    names = [*DATA, "03", "04", "03"]
    items = client.bucket("b").get_batch(names, timeout_s=TIMEOUT_S)
    assert [item.tobytes() for item in items] == [DATA[name] for name in names]


@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize("cut_bytes", [0, 2 * MIB])
def test_a_connection_that_breaks_in_the_middle_of_one_costs_nothing_of_the_answer(
    client: Client, monkeypatch: pytest.MonkeyPatch, cut_bytes: int
) -> None:
    cut: list[FileFrame] = []
    send = FileFrame.send

    def cut_second(self: FileFrame, sock: socket.socket, patience_ms: int = 5) -> None:
        if self not in cut and len(cut) < 2:
            cut.append(self)
            if len(cut) == 2:
                left_bytes = cut_bytes
                for part in self.parts:
                    with suppress(BlockingIOError):
                        left_bytes -= os.sendfile(sock.fileno(), part.fd, part.offset, min(left_bytes, part.left_bytes))
                sock.shutdown(socket.SHUT_RDWR)
                raise ConnectionResetError("cut")
        send(self, sock, patience_ms)

    monkeypatch.setattr(FileFrame, "send", cut_second)
    batch = client.bucket("b").get_batch(list(DATA), timeout_s=TIMEOUT_S)
    assert [item.tobytes() for item in batch] == list(DATA.values())
    assert len(cut) == 2


@pytest.mark.parametrize("credit_bytes", [1, 2 * MIB, 5 * MIB, 8 * MIB])
def test_what_comes_is_within_the_credit_but_for_a_frame_of_half_of_it(node: NodeServer, credit_bytes: int) -> None:
    with open_lane(node) as lane:
        request = pb.BatchRequest(
            bucket=["b"], name=list(DATA), initial_credit_bytes=credit_bytes, ordered=True, receiver_checks=True
        )
        lane.send(1, request=request)
        came, largest = b"", 0
        most_bytes = max(credit_bytes // 2, TARGET_PAYLOAD_BYTES + 700_000)
        lane.socket.settimeout(0.3)
        try:
            while True:
                frame = lane.response().frame
                assert frame is not None
                largest = max(largest, len(frame.payload))
                came += bytes(frame.payload)
        except TimeoutError:
            """No credit is left."""
        assert largest <= most_bytes
        assert credit_bytes <= len(came) < credit_bytes + most_bytes
        lane.socket.settimeout(TIMEOUT_S)
        lane.send(1, credit=pb.Credit(payload_bytes=1 << 40))
        while (response := lane.response()).end is None:
            assert response.frame is not None
            came += bytes(response.frame.payload)
        if response.frame is not None:
            came += bytes(response.frame.payload)
    assert came == b"".join(DATA.values())
