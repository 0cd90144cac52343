"""Bytes that a thread takes from the socket: whole and in order, however they come, and not waited for for ever."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader import Client, connect, errors
from ais_loader.testing import eventually, seeded_bytes
from ais_loader.wire.lane import DATA, HEADER, LAST, MESSAGE
from storage_node.server import NodeServer
from storage_node.services.lane.socket_payload import SocketPayload
from tests.lane.lane_kit import RawLane, open_lane
from tests.lane.test_lane_calls import PUT, end_of, frame, header_of, stored
from tests.node.node_kit import serving

DATA_OF_FIVE_PIECES = seeded_bytes(5 * (256 << 10) + 1234, seed=5)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("begun", [0, 1, 70_000, len(DATA_OF_FIVE_PIECES), len(DATA_OF_FIVE_PIECES) + 3])
def test_what_has_come_and_what_comes_is_handed_on_in_order_and_the_end_with_it(
    ends: tuple[socket.socket, socket.socket], begun: int
) -> None:
    ours, theirs = ends
    sent = DATA_OF_FIVE_PIECES + frame(LAST, b"end") + b"next"
    received = bytearray(sent[:begun])
    sender = threading.Thread(target=theirs.sendall, args=(sent[begun:],))
    sender.start()
    taken = bytearray()
    coming = SocketPayload(ours, received, len(DATA_OF_FIVE_PIECES), bytes.upper, threading.Semaphore())
    ended = None
    while len(taken) < len(DATA_OF_FIVE_PIECES):  # the thread that sends may be late
        ended = coming.each(taken.extend)
    ended = ended or coming.each(taken.extend)
    sender.join()
    assert taken == DATA_OF_FIVE_PIECES
    assert ended == b"END"
    assert received + ours.recv(10) == b"next"


@pytest.mark.parametrize("then", [frame(DATA, b"more"), frame(LAST), HEADER.pack(1 << 20, LAST), b"\0" * 5])
def test_what_is_no_end_of_the_call_is_left_where_it_is(ends: tuple[socket.socket, socket.socket], then: bytes) -> None:
    ours, theirs = ends
    theirs.sendall(b"12345" + then)
    received, taken = bytearray(), bytearray()
    coming = SocketPayload(ours, received, 5, bytes.upper, threading.Semaphore())
    assert coming.each(taken.extend) is None
    assert (taken, coming.left_bytes) == (b"12345", 0)
    left = bytes(received)
    while len(left) < len(then):
        left += ours.recv(100)
    assert left == then


@pytest.mark.parametrize("gone", [False, True])
def test_who_is_late_or_gone_is_not_waited_for(ends: tuple[socket.socket, socket.socket], gone: bool) -> None:
    ours, theirs = ends
    theirs.sendall(b"123")
    if gone:
        theirs.close()
    taken = bytearray()
    coming = SocketPayload(ours, bytearray(), 10, bytes.upper, threading.Semaphore())
    assert coming.each(taken.extend) is None
    assert (taken, coming.left_bytes) == (b"123", 7)


def test_a_client_that_sends_a_byte_now_and_then_does_not_keep_the_thread(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    stop, taken = threading.Event(), bytearray()

    def dribble() -> None:
        """Not ahead of the thread that takes them, which may stand still."""
        for sent in range(5_000):
            while sent > len(taken) + 100 and not stop.is_set():
                time.sleep(0.002)
            theirs.sendall(b"x")
            if stop.wait(0.002):
                return

    sender = threading.Thread(target=dribble)
    sender.start()
    coming = SocketPayload(ours, bytearray(), 5_000, bytes.upper, threading.Semaphore())
    assert coming.each(taken.extend) is None
    stop.set()
    sender.join()
    assert len(taken) == 5_000 - coming.left_bytes < 1_000


# -- at a node


@pytest.fixture
def client(node: NodeServer) -> Iterator[Client]:
    with connect(node.url) as client:
        yield client


@pytest.mark.parametrize("pause_at", [0, 1, 300_000, len(DATA_OF_FIVE_PIECES) - 1, len(DATA_OF_FIVE_PIECES)])
def test_a_client_that_pauses_anywhere_in_its_bytes_stores_them_whole(
    node: NodeServer, client: Client, pause_at: int
) -> None:
    name, data = f"paused/{pause_at}", DATA_OF_FIVE_PIECES
    with open_lane(node) as lane:
        lane.socket.sendall(PUT + header_of(name) + HEADER.pack(len(data), DATA) + data[:pause_at])
        # Longer than a thread waits: whatever is stored then has come by way of the event loop.
        assert not select.select([lane.socket], [], [], 0.05)[0]
        lane.socket.sendall(data[pause_at:] + end_of(data))
        assert stored(lane).size_bytes == len(data)
        lane.socket.sendall(PUT + header_of("next") + frame(DATA, b"1") + frame(DATA, b"2") + end_of(b"12"))
        assert stored(lane).size_bytes == 2
    assert client.bucket("b").get(name) == data
    assert client.bucket("b").get("next") == b"12"


def test_a_lane_that_was_late_once_is_not_slow_afterwards(node: NodeServer) -> None:
    data = DATA_OF_FIVE_PIECES[: 300 << 10]

    def shortest_s(lane: RawLane) -> float:
        taken_s = []
        for _ in range(20):
            began_s = time.perf_counter()
            lane.socket.sendall(PUT + header_of("in time") + frame(DATA, data) + end_of(data))
            assert stored(lane).size_bytes == len(data)
            taken_s.append(time.perf_counter() - began_s)
        return min(taken_s)

    with open_lane(node) as lane:
        before_s = shortest_s(lane)
        lane.socket.sendall(PUT + header_of("late") + HEADER.pack(len(data), DATA) + data[:100])
        assert not select.select([lane.socket], [], [], 0.05)[0]
        lane.socket.sendall(data[100:] + end_of(data))
        assert stored(lane).size_bytes == len(data)
        eventually(lambda: shortest_s(lane) < before_s + 0.015)  # a late one pauses for 0.02 s


def test_what_is_wrong_with_an_object_is_told_when_all_of_it_has_come_and_the_lane_goes_on(
    node: NodeServer, client: Client
) -> None:
    with open_lane(node) as lane:
        lane.socket.sendall(PUT + header_of("wrong") + frame(DATA, DATA_OF_FIVE_PIECES) + end_of(b"another"))
        kind, message = lane.receive()
        assert b"announced" in message and kind != MESSAGE
        lane.socket.sendall(PUT + header_of("right") + frame(DATA, b"1") + end_of(b"1"))
        assert stored(lane).size_bytes == 1
    with pytest.raises(errors.ObjectNotFound):
        client.bucket("b").get("wrong")


@pytest.mark.parametrize("cut", [0, 100_000, 1_000_000])
def test_a_client_that_goes_in_the_middle_of_its_bytes_stores_nothing(
    node: NodeServer, client: Client, cut: int
) -> None:
    assert node.batches is not None
    slots = node.batches.node.streams.slots
    eventually(lambda: node.lanes.open_lanes == 0)  # those of tests before
    with open_lane(node) as lane:
        begun = PUT + header_of("gone") + HEADER.pack(len(DATA_OF_FIVE_PIECES), DATA)
        lane.socket.sendall(begun + DATA_OF_FIVE_PIECES[:cut])
    # The slot is free before the call has begun, too. The lane closes when the call has ended.
    eventually(lambda: node.lanes.open_lanes == 0 and slots.held == 0)
    assert all(not list((Path(drive) / "staging").iterdir()) for drive in node._drives)
    assert not client.bucket("b").exists("gone")


@pytest.mark.parametrize("read_threads", [1, 3])
def test_a_node_with_few_threads_waits_on_none_of_them_and_takes_what_comes(tmp_path: Path, read_threads: int) -> None:
    with serving(tmp_path, read_threads=read_threads) as node, connect(node.url) as client:
        bucket, data = client.create_bucket("b"), DATA_OF_FIVE_PIECES
        lanes = [open_lane(node) for _ in range(4)]
        for at, lane in enumerate(lanes):  # more clients than threads, all of which pause
            lane.socket.sendall(PUT + header_of(f"{at}") + HEADER.pack(len(data), DATA) + data[:300_000])
        assert not select.select([lane.socket for lane in lanes], [], [], 0.05)[0]
        bucket.put("meanwhile", data)
        for lane in lanes:
            lane.socket.sendall(data[300_000:] + end_of(data))
            assert stored(lane).size_bytes == len(data)
            lane.socket.close()
        assert all(bucket.get(name) == data for name in ("0", "3", "meanwhile"))
