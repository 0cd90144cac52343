"""What a client does with a lane that breaks, lies or is not there: the right bytes by another way, or an error."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ais_loader import Client, ClusterOptions, Status, connect, errors
from ais_loader.testing import eventually, seeded_bytes
from ais_loader.transport.session.lane import Lane, Lanes
from ais_loader.wire.frame import FrameError
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2 as objects_pb
from ais_loader.wire.lane import FAILED, GREETING, HEADER, MAX_RESPONSE_BYTES, MESSAGE, WELCOME
from storage_node.server import NodeServer
from storage_node.services import call_table
from storage_node.store.read import file_frame
from storage_node.store.read.file_frame import FileFrame
from tests.faulty_link import FaultyLink
from tests.node.node_kit import serving
from tests.store.store_kit import flip_a_byte, object_files
from tests.table import table

SIZE = 200_000
DATA = {f"s/{at:02}": seeded_bytes(SIZE + at, seed=at) for at in range(12)}
TIMEOUT_S = 180.0
AUTO = ClusterOptions(lane="auto")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeServer]:
    with serving(tmp_path) as node:
        with connect(node.url, options=AUTO) as client:
            bucket = client.create_bucket("b")
            for name, data in DATA.items():  # files of their own
                bucket.put(name, data)
        yield node


def read(client: Client, names: list[str] | None = None) -> list[bytes]:
    return [item.tobytes() for item in client.bucket("b").get_batch(names or list(DATA), timeout_s=TIMEOUT_S)]


def file_of(node: NodeServer, name: str) -> Path:
    """Each object has a size of its own."""
    [drive] = [Path(drive) for drive in node._drives]
    [path] = [path for path in object_files(drive) if path.stat().st_size == len(DATA[name])]
    return path


# -- a lane's own framing, against a peer that says what it is told to


@contextmanager
def scripted(*sent: bytes, then_close: bool = True) -> Iterator[Callable[[], Lane]]:
    """Makes the client's end of a lane whose node says so much and ends."""
    here, there = socket.socketpair()
    here.settimeout(TIMEOUT_S)

    def speak() -> None:
        there.recv(GREETING.size)
        for part in sent:
            there.sendall(part)
        if then_close:
            there.shutdown(socket.SHUT_WR)

    speaking = threading.Thread(target=speak)
    speaking.start()
    try:
        yield lambda: Lane(here, bytes(16))
    finally:
        here.close()
        speaking.join(TIMEOUT_S)
        there.close()


WELCOMED = HEADER.pack(0, WELCOME)
WHOLE = HEADER.pack(5, MESSAGE) + b"hello"


def test_messages_come_whole_and_in_order_and_the_end_between_two_is_an_end() -> None:
    with scripted(WELCOMED, WHOLE[:3], WHOLE[3:9], WHOLE[9:] + HEADER.pack(0, MESSAGE) + WHOLE) as lane:
        assert list(lane()) == [b"hello", b"", b"hello"]


@table("cut", range(len(WELCOMED)))
def test_a_welcome_that_is_cut_is_none(cut: int) -> None:
    with scripted(WELCOMED[:cut]) as lane, pytest.raises(OSError):
        lane()


@table("cut", range(1, len(WHOLE)))
def test_a_message_that_is_cut_is_never_taken_for_one(cut: int) -> None:
    with scripted(WELCOMED, WHOLE, WHOLE[:cut]) as lane:
        messages = iter(lane())
        assert next(messages) == b"hello"
        with pytest.raises(ConnectionError):
            next(messages)
    with scripted(WELCOMED, WHOLE[:cut]) as lane, pytest.raises(EOFError):
        lane().receive()


@table(
    "header",
    [HEADER.pack(MAX_RESPONSE_BYTES + 1, MESSAGE), b"\xff" * 8, HEADER.pack(3, 77)],
    ids=["size", "ff", "kind"],
)
def test_a_header_that_makes_no_sense_is_refused_before_anything_is_allocated(header: bytes) -> None:
    with scripted(WELCOMED, header, then_close=False) as lane, pytest.raises(FrameError):
        next(iter(lane()))


def test_why_a_node_ends_a_session_is_what_its_batches_raise() -> None:
    why = objects_pb.Error(kind="overloaded", message="no place").SerializeToString()
    with (
        scripted(WELCOMED, HEADER.pack(len(why), FAILED) + why) as lane,
        pytest.raises(errors.Overloaded, match="no place"),
    ):
        next(iter(lane()))


def test_one_that_is_cancelled_wakes_whoever_waits_and_one_that_is_stuffed_holds_up_nobody() -> None:
    with scripted(WELCOMED, then_close=False) as make:
        lane, ended = make(), threading.Event()

        def wait() -> None:
            with pytest.raises(EOFError):
                lane.receive()
            ended.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        for _ in range(100):  # the other end reads nothing any more: far more than a socket holds
            lane.send(bytes(1 << 20))
        lane.cancel()
        assert ended.wait(TIMEOUT_S)
        waiting.join(TIMEOUT_S)


# -- where there is none


def test_a_node_of_the_version_before_is_met_with_grpc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {name: call for name, call in call_table.TABLE.items() if name != "GetBatch/OpenLane"}
    monkeypatch.setattr(call_table, "TABLE", rows)
    with serving(tmp_path) as node, connect(node.url, options=AUTO) as client:
        client.create_bucket("b").put_many(DATA.items())
        assert read(client) == list(DATA.values())
        assert client.describe()["lane"] == "grpc"


def test_what_stands_between_is_not_gone_around(node: NodeServer) -> None:
    with FaultyLink(node.url) as link, connect(link.url, options=AUTO) as client:
        assert read(client) == list(DATA.values())
        assert client.describe()["lane"] == "grpc"


def test_from_elsewhere_it_is_tcp_and_where_that_is_closed_grpc(
    node: NodeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: Lanes, offer: pb.OpenLaneResponse) -> socket.socket:
        raise ConnectionRefusedError

    monkeypatch.setattr(Lanes, "_by_unix", refused)
    with connect(node.url, options=AUTO) as client:
        assert read(client) == list(DATA.values())
        assert client.bucket("b").get("s/03") == DATA["s/03"]
        assert client.describe()["lane"] == "tcp"
    monkeypatch.setattr(Lanes, "_by_tcp", refused)
    with connect(node.url, options=AUTO) as client:
        assert read(client) == list(DATA.values())
        assert client.describe()["lane"] == "grpc"


def test_another_choice_is_refused() -> None:
    with pytest.raises(errors.InvalidRequest, match="lane='unix'"):
        ClusterOptions(lane="unix")  # type: ignore[arg-type]


# -- bytes that the node has not looked at


def test_large_entries_are_sent_from_their_files(node: NodeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = count_file_frames(monkeypatch)
    with connect(node.url, options=AUTO) as client:
        assert read(client) == list(DATA.values())
        assert client.bucket("b").get("s/05") == DATA["s/05"]
    eventually(lambda: len(sent) == 2)
    assert not any(frame.damaged for frame in sent)
    with connect(node.url, options=ClusterOptions(lane="grpc")) as client:
        before = len(sent)
        assert read(client) == list(DATA.values())
    assert len(sent) == before


def count_file_frames(monkeypatch: pytest.MonkeyPatch) -> list[FileFrame]:
    sent: list[FileFrame] = []
    send = FileFrame.send

    def counted(self: FileFrame, sock: socket.socket, patience_ms: int = 5) -> None:
        send(self, sock, patience_ms)
        if self.done:
            sent.append(self)

    monkeypatch.setattr(FileFrame, "send", counted)
    return sent


@pytest.mark.parametrize("cached", [True, False])
def test_a_file_that_was_damaged_is_corrupt_in_its_place_and_nothing_else(
    node: NodeServer, cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not cached:
        monkeypatch.setattr(file_frame, "_is_cached", lambda *_: False)
    sent = count_file_frames(monkeypatch)
    flip_a_byte(file_of(node, "s/04"), 150_000)
    with connect(node.url, options=AUTO) as client:
        items = list(client.bucket("b").get_batch(list(DATA), on_error="placeholder", timeout_s=TIMEOUT_S))
        assert [item.status for item in items] == [Status.CORRUPT if name == "s/04" else Status.OK for name in DATA]
        assert [item.tobytes() for item in items if item.ok] == [data for name, data in DATA.items() if name != "s/04"]
        with pytest.raises(errors.CorruptObject):
            client.bucket("b").get("s/04")
        with pytest.raises(errors.CorruptObject):
            read(client)
    assert sent


@pytest.mark.parametrize("cached", [True, False])
def test_a_file_that_is_cut_while_it_is_sent_is_not_delivered(
    node: NodeServer, cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not cached:
        monkeypatch.setattr(file_frame, "_is_cached", lambda *_: False)
    path = file_of(node, "s/02")
    opened = file_frame.opened

    def cut(*arguments: object) -> FileFrame | None:
        frame = opened(*arguments)  # type: ignore[arg-type]
        os.truncate(path, 70_000)
        return frame

    with connect(node.url, options=AUTO) as client:
        assert read(client) == list(DATA.values())
        monkeypatch.setattr("storage_node.store.read.frame_reader.opened", cut)
        items = list(client.bucket("b").get_batch(list(DATA), on_error="placeholder", timeout_s=TIMEOUT_S))
        assert [item.status for item in items] == [Status.CORRUPT if name == "s/02" else Status.OK for name in DATA]
        assert [item.tobytes() for item in items if item.ok] == [data for name, data in DATA.items() if name != "s/02"]


@pytest.mark.slow
def test_an_object_that_is_replaced_while_it_is_sent_is_one_of_the_two(node: NodeServer) -> None:
    with connect(node.url, options=AUTO) as client:
        bucket = client.bucket("b")
        versions = {DATA["s/01"]}
        for at in range(30):
            data = seeded_bytes(SIZE + at, seed=1000 + at)
            versions.add(data)
            bucket.put("s/01", data)
            batch = client.get_batches([[f"ais://b/{name}" for name in DATA]] * 2, in_flight=2)
            found = {items[1].tobytes() for items in map(list, batch)}
            assert found <= versions


_AT_EXIT = """
import atexit, sys
import ais_loader
from ais_loader.transport.grpc import connection
from ais_loader.transport.session import lane

connection.CONNECT_TIMEOUT_S = lane.CONNECT_TIMEOUT_S = 20.0
bucket = ais_loader.connect(sys.argv[1]).bucket("b")
atexit.register(lambda: bucket.put_many((f"last/{at}", bytes(300_000 + at)) for at in range(6)))
"""


@pytest.mark.slow
def test_large_objects_are_put_while_the_interpreter_ends_and_begins_no_threads(node: NodeServer) -> None:
    command = [sys.executable, "-c", _AT_EXIT, node.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (done.returncode, done.stderr) == (0, "")
    with connect(node.url) as client:
        assert [one.size_bytes for one in client.bucket("b").objects("last/")] == [300_000 + at for at in range(6)]
