"""Lanes of a hostile client: what it can make a node hold is bounded, and other clients are served meanwhile."""

from __future__ import annotations

import contextlib
import os
import statistics
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ais_loader import ClusterOptions, connect
from ais_loader.testing import NodeProcess, eventually, seeded_bytes
from ais_loader.wire.lane import CALL, DATA, HEADER, MESSAGE
from tests.lane.lane_kit import RawLane, offers_of
from tests.lane.test_lane_calls import PUT, frame, header_of

pytestmark = pytest.mark.slow
MiB = 1 << 20
LARGEST = 32 * MiB
CONTENT = seeded_bytes(10_000, seed=3)
PUT_MANY = frame(CALL, b"Objects/PutMany")
OPTIONS = ClusterOptions(lane="auto", retry_s=240.0)


@contextmanager
def lanes_of(node: NodeProcess, count: int, *, tcp: bool = False) -> Iterator[list[RawLane]]:
    """Up to so many lanes that the node has welcomed."""
    with ExitStack() as stack:
        lanes = []
        for offer in offers_of(node, count):
            lane = stack.enter_context(RawLane(offer, tcp=tcp))
            with contextlib.suppress(OSError, struct.error):  # refused
                lane.greet(offer.token)
                lanes.append(lane)
        yield lanes


def tell(lanes: list[RawLane], message: bytes) -> None:
    for lane in lanes:
        with contextlib.suppress(OSError):
            lane.socket.sendall(message)


def open_descriptors(node: NodeProcess) -> int:
    return len(os.listdir(f"/proc/{node.pid}/fd"))


def assert_served(node: NodeProcess, name: str) -> None:
    """A client that comes now stores and reads an object."""
    with connect(node.url, options=OPTIONS) as client:
        bucket = client.create_bucket("b", exist_ok=True)
        bucket.put(name, CONTENT)
        assert bucket.get(name) == CONTENT


@pytest.mark.parametrize(
    "announcement",
    [
        PUT + HEADER.pack(LARGEST, MESSAGE),
        PUT_MANY + HEADER.pack(LARGEST, MESSAGE),
        PUT + header_of("announced") + HEADER.pack(LARGEST, DATA),
        HEADER.pack(LARGEST, MESSAGE),
    ],
    ids=["the first message of a PUT", "a group", "bytes of an object", "a request of a session"],
)
def test_announced_bytes_take_no_memory_before_they_arrive(tmp_path: Path, announcement: bytes) -> None:
    arguments = ["--set", "max_message_bytes=128 MiB"]
    with NodeProcess([tmp_path], arguments=arguments) as node:
        assert_served(node, "before")
        with lanes_of(node, 16) as lanes:
            before = node.rss_bytes()
            tell(lanes, announcement + bytes(1000))
            assert_served(node, "meanwhile")
            assert node.peak_rss_bytes() - before < 64 * MiB


def test_half_calls_leave_descriptors_to_clients_and_end(tmp_path: Path) -> None:
    launcher = ["prlimit", "--nofile=500:500"]
    with NodeProcess([tmp_path], arguments=["--set", "message_timeout_s=3"], launcher=launcher) as node:
        assert_served(node, "before")
        quiet = open_descriptors(node)
        with lanes_of(node, 500) as lanes:
            tell(lanes, HEADER.pack(11, CALL))
            assert_served(node, "meanwhile")
            assert len(lanes) > 100
            eventually(lambda: open_descriptors(node) <= quiet + 10)
            assert_served(node, "afterwards")


def test_lanes_that_trickle_do_not_slow_other_clients(tmp_path: Path) -> None:
    with NodeProcess([tmp_path]) as node, connect(node.url, options=OPTIONS) as client:
        bucket = client.create_bucket("b")
        bucket.put("whole", CONTENT)

        def median_s() -> float:
            taken = []
            for _ in range(60):
                began_s = time.perf_counter()
                bucket.head("whole")
                taken.append(time.perf_counter() - began_s)
            return statistics.median(taken)

        quiet_s = min(median_s() for _ in range(3))
        stop = threading.Event()

        def trickle(lanes: list[RawLane]) -> None:
            while not stop.wait(0.2):
                tell(lanes, frame(DATA, b"xy")[:9])
                tell(lanes, b"y")

        with lanes_of(node, 200) as lanes:
            tell(lanes, PUT + header_of("trickled"))
            thread = threading.Thread(target=trickle, args=(lanes,))
            thread.start()
            try:  # others may make the machine slower, but not all the time
                eventually(lambda: median_s() < 20 * quiet_s)
            finally:
                stop.set()
                thread.join()
