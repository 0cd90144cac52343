"""Shares of clients: who waits for a slot, who loses one, and whose connection is closed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator

import pytest

from ais_loader.integrations.gateway.clients import Account
from ais_loader.integrations.gateway.request import S3Error
from ais_loader.integrations.gateway.server.options import Limits
from ais_loader.integrations.gateway.server.request_slots import RequestSlots
from ais_loader.testing import eventually
from tests.gateway.conftest import ACCOUNT, Served
from tests.gateway.gateway_thread import GatewayThread
from tests.gateway.raw_kit import connected, parsed, received, request
from tests.node.loop_kit import settle

SLOW, OTHER = Account("slow", "slow-secret"), Account("other", "other-secret")
LIMITS = Limits(requests=4, batches=2, still_s=0.5, wait_s=60.0)
BIG_BYTES = 64 << 20


@pytest.fixture
def shared(served: Served, bucket: str) -> Iterator[GatewayThread]:
    served.client.bucket(bucket).put("big", bytes(BIG_BYTES))
    served.client.bucket(bucket).put("small", b"1")
    accounts = {one.access_key: one for one in (ACCOUNT, SLOW, OTHER)}
    with GatewayThread(served.clients, accounts, limits=LIMITS) as gateway:
        yield gateway


def opened(gateway: GatewayThread, account: Account, method: str, path: str, body: bytes = b"") -> socket.socket:
    """Send a request of AIStore's, with a small buffer for its answer, of which only the beginning is taken."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(60)
    sock.connect(("127.0.0.1", gateway.port))
    bearer = {"Authorization": f"Bearer {account.access_key}:{account.secret_key}", "Connection": "close"}
    if body:
        bearer["Content-Length"] = str(len(body))
    sock.sendall(request(method, f"/v1/{path}", gateway.port, bearer) + body)
    return sock


def whole(gateway: GatewayThread, account: Account, path: str) -> tuple[int, bytes]:
    with opened(gateway, account, "GET", path) as sock:
        status, _, body = parsed(received(sock))
        return status, body


@pytest.mark.parametrize("account", [OTHER, SLOW], ids=["another key", "the same key"])
@pytest.mark.parametrize("kind", ["objects", "batches"])
def test_clients_that_take_nothing_make_room_for_others(
    bucket: str, shared: GatewayThread, account: Account, kind: str
) -> None:
    """More of them than there are slots, all with keys."""
    batch = json.dumps({"in": [{"objname": "big"}] * 4, "strm": True}).encode()
    small = json.dumps({"in": [{"objname": "small"}], "strm": True}).encode()
    with contextlib.ExitStack() as held:
        slow = []
        for _ in range(2 * LIMITS.requests):
            if kind == "objects":
                slow.append(held.enter_context(opened(shared, SLOW, "GET", f"objects/{bucket}/big")))
            else:
                slow.append(held.enter_context(opened(shared, SLOW, "GET", f"ml/moss/{bucket}", batch)))
        counters = shared.gateway.counters
        # On a busy machine the first ones have made room for the last ones by then.
        eventually(lambda: counters.active + counters.closed["slow_answer"] >= len(slow))
        if kind == "objects":
            assert whole(shared, account, f"objects/{bucket}/small") == (200, b"1")
        else:
            with opened(shared, account, "GET", f"ml/moss/{bucket}", small) as sock:
                status, _, body = parsed(received(sock))
            assert (status, b"small" in body) == (200, True)
        assert shared.gateway.counters.closed["slow_answer"] >= (account is SLOW)
    eventually(lambda: not shared.gateway.counters.active)


def test_a_client_that_goes_on_taking_keeps_its_slot(bucket: str, shared: GatewayThread) -> None:
    """Others wait, and it is the only one that gets its answer in small steps."""

    def keeps_it() -> bool:
        done = threading.Event()
        results: list[tuple[int, bytes]] = []

        def others() -> None:
            while not results or not done.is_set():
                with contextlib.suppress(IndexError):  # it stood still itself, and was cut off
                    results.append(whole(shared, OTHER, f"objects/{bucket}/small"))

        found = 0
        with contextlib.ExitStack() as held:
            for _ in range(2 * LIMITS.requests):
                held.enter_context(opened(shared, SLOW, "GET", f"objects/{bucket}/big"))
            with opened(shared, OTHER, "GET", f"objects/{bucket}/big") as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
                thread = threading.Thread(target=others)
                thread.start()
                pause = threading.Event()
                with contextlib.suppress(ConnectionError):
                    while piece := sock.recv(1 << 20):
                        found += len(piece)
                        if found < 8 << 20:
                            pause.wait(0.02)
                done.set()
                thread.join()
        assert set(results) == {(200, b"1")}
        return found > BIG_BYTES

    # On a busy machine it may stand still for longer than it wants to, and loses its slot; but not each time.
    eventually(keeps_it)


def test_a_request_that_gets_no_slot_in_time_is_refused() -> None:
    async def play() -> None:
        slots = RequestSlots(1, Limits(wait_s=0.2, still_s=600))
        async with slots.held("a", lambda: None):
            with pytest.raises(S3Error, match="too many"):
                async with slots.held("c", lambda: None):
                    pass
        assert slots._slots.held == 0

    asyncio.run(play())


def test_slots_pass_in_order_and_by_shares() -> None:
    async def play() -> None:
        slots, told = RequestSlots(3, Limits(wait_s=180, still_s=600)), []

        async def take(client: str, name: str, until: asyncio.Event) -> None:
            async with slots.held(client, lambda: None):
                told.append(name)
                await until.wait()

        ends = [asyncio.Event() for _ in range(6)]
        async with asyncio.TaskGroup() as group:
            for at, client in enumerate(("a", "a", "b")):
                group.create_task(take(client, f"{client}{at}", ends[at]))
            await settle()
            waiting = [group.create_task(take(client, client, ends[3 + at])) for at, client in enumerate("acb")]
            await settle()
            assert told == ["a0", "a1", "b2"]
            ends[2].set()  # "a" was first, and has its two already
            await settle()
            assert told == ["a0", "a1", "b2", "c"]
            waiting[0].cancel()
            ends[0].set()
            await settle()
            assert told == ["a0", "a1", "b2", "c", "b"]
            for end in ends:
                end.set()
        assert slots._slots.held == 0

    asyncio.run(play())


def test_an_address_with_many_idle_connections_makes_room(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    def at(gateway: GatewayThread, address: str) -> socket.socket:
        return socket.create_connection(("127.0.0.1", gateway.port), 60, (address, 0))

    with GatewayThread(served.clients, None, limits=Limits(connections=6)) as gateway, contextlib.ExitStack() as held:
        greedy = []
        for count in range(1, 7):
            greedy.append(held.enter_context(at(gateway, "127.0.0.2")))
            eventually(lambda count=count: gateway.gateway.counters.connections == count)
        asked = request("GET", "/", gateway.port, {"Connection": "close"})
        with at(gateway, "127.0.0.3") as sock:
            sock.sendall(asked)
            assert parsed(received(sock))[0] == 200
        assert received(greedy[0]) == b""
        assert gateway.gateway.counters.closed["limit"] == 1
        greedy[1].sendall(asked)
        assert parsed(received(greedy[1]))[0] == 200
        with connected(gateway.port) as sock:
            sock.sendall(asked)
            assert parsed(received(sock))[0] == 200
        more = [held.enter_context(at(gateway, "127.0.0.2")) for _ in range(10)]
        assert [received(sock) for sock in more[-3:]] == [b""] * 3
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []
