"""Servers that hang, close, lie, speak something else, or are not there: what becomes of their objects."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import websockets.asyncio.server

from ais_loader.errors import TransformFailed, TransformGone, TransformTimeout
from ais_loader.wire.generated import ais_etl_pb2 as etl_pb
from ais_loader.wire.generated import ais_etl_server_pb2 as pb
from storage_node.etl.servers import stage as stages
from storage_node.etl.values import Content
from tests.etl.servers.server_kit import (
    CHANNELS,
    GO_ON,
    HPULL,
    HPUSH,
    ORIGIN,
    WAITING,
    WS,
    bytes_of,
    new_server,
    open_stage,
    run,
)
from tests.free_ports import free_port
from tests.node.loop_kit import settle, until
from tests.table import table

Communication = etl_pb.TransformServer.Communication
Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"


@contextlib.asynccontextmanager
async def listening(peer: Peer) -> AsyncIterator[str]:
    """The address of somebody who does `peer` with each connection."""

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await peer(reader, writer)
        writer.close()

    server = await asyncio.start_server(served, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def asked(reader: asyncio.StreamReader, body_bytes: int = 5) -> None:
    await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(body_bytes)


def answering(*answers: bytes, close: bool = True) -> Peer:
    """With one answer after another, over all connections; the last again and again."""
    left = list(answers)

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await asked(reader)
            writer.write(left.pop(0) if len(left) > 1 else left[0])
            await writer.drain()
            if close:
                return

    return peer


@pytest.mark.slow
@table(
    ("answer", "said"),
    [
        (b"", r"broke off: .*, in 3 tries"),
        (b"\x00\x01junk\r\n\r\n", r"broke off: .*, in 3 tries"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", r"broke off: .*, in 3 tries"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", r"broke off: .*, in 3 tries"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhalf\r\n", r"broke off: .*, in 3 tries"),
        (b"HTTP/1.1 200 OK\r\n\r\nhalf", r"neither Content-Length nor chunks"),
        (b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nhalf", r"neither Content-Length nor chunks"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone", "HTTP 404 Not Found: none"),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 9\r\n\r\nno vowels", "t: b/.*: no vowels$"),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", "HTTP 500 Oh"),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\n\xff\xfe", "HTTP 500 Oh"),
        (b"HTTP/1.1 500 \xff\r\nContent-Length: 2\r\n\r\n\xff\xfe", r"HTTP 500 \\udcff$"),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 4\r\n\r\n\x1b[2J", r"\\x1b\[2J$"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "HTTP 204 No Content where 200 is due"),
        (
            b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
            "HTTP 302 Found, and redirects are not followed",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
            "Content-Encoding gzip, which was not asked for",
        ),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 9999999\r\n\r\n" + b"x" * 999_999, "xxxx …$"),
    ],
)
def test_a_wrong_answer_fails_the_object_and_says_why(answer: bytes, said: str) -> None:
    async def main() -> None:
        async with listening(answering(answer)) as address, open_stage(address) as (stage, _):
            with pytest.raises(TransformFailed, match=said):
                await stage.run(ORIGIN, Content.of(b"input"), "")

    run(main())


@table(
    "first",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n",
        b"junk",
    ],
)
def test_an_object_that_was_not_answered_is_asked_for_again(first: bytes) -> None:
    async def main() -> None:
        async with listening(answering(first, OK)) as address, open_stage(address) as (stage, _):
            assert bytes_of(await stage.run(ORIGIN, Content.of(b"input"), "")) == b"abc"

    run(main())


def test_more_than_was_announced_is_not_taken_for_the_next_answer() -> None:
    async def main() -> None:
        longer = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad"
        peer = answering(longer, OK, close=False)
        async with listening(peer) as address, open_stage(address, connections=1) as (stage, _):
            for _ in range(3):
                assert bytes_of(await stage.run(ORIGIN, Content.of(b"input"), "")) == b"abc"

    run(main())


def test_a_server_that_sends_without_end_is_stopped_at_the_limit() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
            await writer.drain()

    async def main() -> None:
        async with listening(endless) as address, open_stage(address, output_bytes=5 << 20) as (stage, _):
            with pytest.raises(TransformFailed, match="more than 5,242,880 bytes"):
                await stage.run(ORIGIN, Content.of(b"input"), "")

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize("communication", [HPUSH, HPULL, WS], ids=Communication.Name)
def test_a_server_that_says_nothing_times_out(communication: Communication) -> None:
    gone: list[bool] = []

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1 << 16):
            pass
        gone.append(True)

    async def main() -> None:
        async with listening(silent) as address, open_stage(address, communication, timeout_s=0.3) as (stage, side):
            await side.start()  # which is not what takes too long
            with pytest.raises(TransformTimeout):
                await stage.run(ORIGIN, Content.of(b"input" * 1_000_000), "")
            await until(lambda: gone, 0.01)  # its connection is closed, not kept

    run(main())


@pytest.mark.slow
@table("communication", [HPUSH, HPULL, WS], ids=Communication.Name)
def test_a_server_that_is_not_there_is_gone_after_a_while_and_at_once_for_those_behind(
    communication: Communication,
) -> None:
    async def main() -> None:
        async with open_stage(f"http://127.0.0.1:{free_port()}", communication, gone_after_s=0.4) as (stage, _):
            with pytest.raises(TransformGone, match=r"nobody answers at .*, for 0\.4 s"):
                await stage.run(ORIGIN, Content.of(b"input"), "")
            results = await asyncio.gather(
                *(stage.run(ORIGIN, Content.of(b"input"), "") for _ in range(20)), return_exceptions=True
            )
            assert {type(result) for result in results} == {TransformGone}

    run(main())


def test_what_is_no_websocket_says_so() -> None:
    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    async def main() -> None:
        async with listening(web) as address, open_stage(address, WS) as (stage, _):
            with pytest.raises(TransformFailed, match="HTTP 404 where a WebSocket is due"):
                await stage.run(ORIGIN, Content.of(b"input"), "")

    run(main())


WRONG_FRAMES: dict[str, tuple[Any, str]] = {
    "text": ("hello", "closed the WebSocket"),
    "junk": (b"\xff\xff\xff", "no ServerOutput"),
    "half": (pb.ServerOutput(data=b"half").SerializeToString(), "closed the WebSocket"),
    "nothing": (None, "closed the WebSocket"),
    "too large": (bytes(5 << 20), "closed the WebSocket"),
}


@pytest.mark.slow
@table("case", WRONG_FRAMES)
def test_a_websocket_that_is_wrong_once_is_made_anew_and_one_that_stays_so_fails_the_object(case: str) -> None:
    frame, said = WRONG_FRAMES[case]

    async def main() -> None:
        wrong = 0

        async def peer(socket: websockets.asyncio.server.ServerConnection) -> None:
            nonlocal wrong
            async for message in socket:
                assert isinstance(message, bytes)
                if wrong:
                    wrong -= 1
                    if frame is not None:
                        await socket.send(frame)
                    return
                data = pb.ServerInput.FromString(message).data
                await socket.send(pb.ServerOutput(data=data.upper(), last=True).SerializeToString())

        async with websockets.asyncio.server.serve(peer, "127.0.0.1", 0) as server:
            address = f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
            async with open_stage(address, WS, connections=1) as (stage, _):
                for faults in (0, 1, 2):
                    wrong = faults
                    assert bytes_of(await stage.run(ORIGIN, Content.of(b"input"), "")) == b"INPUT"
                wrong = 3
                with pytest.raises(TransformFailed, match=f"{said}.*, in 3 tries"):
                    await stage.run(ORIGIN, Content.of(b"input"), "")
                assert bytes_of(await stage.run(ORIGIN, Content.of(b"input"), "")) == b"INPUT"

    run(main())


@pytest.mark.parametrize("abrupt", [False, True])
def test_connections_that_a_server_let_go_of_while_they_were_idle_cost_no_object(abrupt: bool) -> None:
    """As uvicorn does with those that have answered none of its pings for 40 s."""

    async def main() -> None:
        there: set[websockets.asyncio.server.ServerConnection] = set()

        async def peer(socket: websockets.asyncio.server.ServerConnection) -> None:
            there.add(socket)
            with contextlib.suppress(websockets.exceptions.ConnectionClosed):
                async for message in socket:
                    assert isinstance(message, bytes)
                    await asyncio.sleep(0.05)
                    data = pb.ServerInput.FromString(message).data
                    await socket.send(pb.ServerOutput(data=data.upper(), last=True).SerializeToString())

        async with websockets.asyncio.server.serve(peer, "127.0.0.1", 0, close_timeout=20) as server:
            address = f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
            async with open_stage(address, WS, connections=8) as (stage, _):

                async def eight() -> None:
                    outputs = await asyncio.gather(*(stage.run(ORIGIN, Content.of(b"input"), "") for _ in range(8)))
                    assert list(map(bytes_of, outputs)) == [b"INPUT"] * 8

                await eight()
                assert len(there) == 8
                closing = []
                for socket in there:
                    if abrupt:
                        socket.transport.abort()
                    else:  # it waits for an answer that nobody gives who does not read
                        closing.append(asyncio.ensure_future(socket.close(1011)))
                await settle()
                for _ in range(3):
                    assert bytes_of(await stage.run(ORIGIN, Content.of(b"input"), "")) == b"INPUT"
                await eight()
                for task in closing:
                    task.cancel()

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "communication"),
    [pytest.param(*case, id=f"{case[0]}-{Communication.Name(case[1])}") for case in CHANNELS],
)
@pytest.mark.sampled(4)
def test_a_server_that_is_started_anew_in_the_middle_loses_no_object(
    framework: str, communication: Communication
) -> None:
    with contextlib.ExitStack() as held:
        run(restarted(framework, communication, held))


async def restarted(framework: str, communication: Communication, held: contextlib.ExitStack) -> None:
    address = held.enter_context(new_server(framework).running())
    port = int(address.rpartition(":")[2])
    async with open_stage(address, communication, connections=4) as (stage, _):
        inputs = [b"x%d" % number for number in range(120)]
        args = '{"sleep_s": 0.05}'
        job = [asyncio.create_task(stage.run(ORIGIN, Content.of(data), args)) for data in inputs]
        await asyncio.wait(job, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.to_thread(held.close)
        assert not all(task.done() for task in job)
        with new_server(framework).running(port=port):
            made = [bytes_of(content) for content in await asyncio.gather(*job)]
            await stage.close()  # the server waits for connections that are in use
    assert made == [data.upper() for data in inputs]


@pytest.mark.slow
@pytest.mark.parametrize("communication", [HPUSH, WS], ids=Communication.Name)
def test_a_stage_that_is_closed_lets_what_runs_end_and_takes_no_more(
    communication: Communication, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "CLOSE_S", 180.0)  # on a machine that stands still, what runs takes longer

    async def main() -> None:
        with new_server("fastapi").running() as address:
            async with open_stage(address, communication, connections=1) as (stage, _):
                WAITING.clear()
                GO_ON.clear()
                try:
                    running = asyncio.create_task(stage.run(ORIGIN, Content.of(b"x"), '{"waits": true}'))
                    await until(WAITING.is_set)
                    waiting = asyncio.create_task(stage.run(ORIGIN, Content.of(b"y"), ""))
                    closing = asyncio.create_task(stage.close())
                    await until(lambda: stage._closed)
                finally:
                    GO_ON.set()
                await closing
                assert bytes_of(await running) == b"X"
                with pytest.raises(TransformGone, match="stopped, deleted or replaced meanwhile"):
                    await waiting

    run(main())
