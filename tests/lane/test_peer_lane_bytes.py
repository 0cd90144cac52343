"""A lane at the node that asks, byte by byte: whole messages whatever the cuts, and one word for each way to end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ais_loader.wire.frame import FrameError
from ais_loader.wire.generated import ais_objects_pb2 as objects_pb
from ais_loader.wire.lane import (
    CALL,
    FAILED,
    GREETING,
    HEADER,
    MAGIC,
    MAX_RESPONSE_BYTES,
    MESSAGE,
    TOKEN_BYTES,
    VERSION,
    WELCOME,
)
from storage_node.context.peer_lane import PeerLane
from tests.node.loop_kit import settle
from tests.table import table

TOKEN = bytes(range(TOKEN_BYTES))
WELCOMED = HEADER.pack(0, WELCOME)
TIMEOUT_S = 180.0


def message(data: bytes, kind: int = MESSAGE) -> bytes:
    return HEADER.pack(len(data), kind) + data


def with_lane(talk: Callable[[PeerLane, socket.socket], Coroutine[Any, Any, None]]) -> tuple[list[bytes], Exception]:
    """What has come when the lane has ended, and why it has."""

    async def run() -> tuple[list[bytes], Exception]:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        with theirs:
            _, lane = await loop.create_connection(lambda: PeerLane(TOKEN), sock=ours)
            came: list[bytes] = []
            why: list[Exception] = []
            lane.deliver(lambda message: came.append(bytes(message)), why.append)
            assert await loop.sock_recv(theirs, 100) == GREETING.pack(MAGIC, VERSION, TOKEN)
            async with asyncio.timeout(TIMEOUT_S):
                await talk(lane, theirs)
                theirs.close()
                await lane.closed
        assert len(why) == 1
        return came, why[0]

    return asyncio.run(run())


def said(*parts: bytes) -> Callable[[PeerLane, socket.socket], Coroutine[Any, Any, None]]:
    async def talk(lane: PeerLane, theirs: socket.socket) -> None:
        for part in parts:
            await asyncio.get_running_loop().sock_sendall(theirs, part)
            await settle()

    return talk


MESSAGES = [b"a", b"", b"b" * 4088, b"c" * 4096, b"d" * 300_000, b"e"]
STREAM = WELCOMED + b"".join(map(message, MESSAGES))


@pytest.mark.slow
@table("step", [1, 7, 4096, 4097, len(STREAM)])
def test_messages_are_whole_wherever_they_were_cut(step: int) -> None:
    stream = STREAM if step > 7 else STREAM[:9000]
    came, why = with_lane(said(*(stream[at : at + step] for at in range(0, len(stream), step))))
    assert came == (MESSAGES if step > 7 else MESSAGES[:4])
    assert isinstance(why, ConnectionError)


@table("stop", range(1, HEADER.size + 3))
def test_an_end_in_the_middle_is_told_from_one_between_messages(stop: int) -> None:
    came, why = with_lane(said(WELCOMED + message(b"first") + message(b"second")[:stop]))
    assert came == [b"first"]
    assert "in the middle of a message" in str(why)
    assert str(with_lane(said(WELCOMED + message(b"first")))[1]) == "the lane has ended"


@table(
    "nonsense",
    [
        HEADER.pack(MAX_RESPONSE_BYTES + 1, MESSAGE),
        HEADER.pack((1 << 32) - 1, MESSAGE),
        HEADER.pack(3, CALL) + b"abc",
        b"HTTP/1.1 400 Bad Request\r\n",
        WELCOMED,
    ],
)
def test_what_makes_no_sense_ends_it(nonsense: bytes) -> None:
    came, why = with_lane(said(WELCOMED + message(b"first"), nonsense))
    assert came == [b"first"]
    assert isinstance(why, FrameError)


def test_nothing_is_taken_before_a_welcome() -> None:
    assert isinstance(with_lane(said(message(b"first")))[1], FrameError)


def test_the_node_says_why_it_ends_it() -> None:
    told = objects_pb.Error(kind="overloaded", message="no place").SerializeToString()
    assert str(with_lane(said(WELCOMED, message(told, FAILED)))[1]) == "no place"
    assert str(with_lane(said(message(told, FAILED)))[1]) == "no place"


def test_a_node_that_takes_nothing_holds_up_nobody() -> None:
    async def talk(lane: PeerLane, theirs: socket.socket) -> None:
        await asyncio.get_running_loop().sock_sendall(theirs, WELCOMED + message(b"first"))
        await lane.welcome
        for _ in range(100):
            lane.send(bytes(100_000))
        lane.abort()
        await lane.closed

    with_lane(talk)
