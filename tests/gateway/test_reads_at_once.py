"""Small objects in memory are answered without a slot and without a thread; whatever may wait has to have both."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader.integrations.gateway.clients import Clients
from ais_loader.integrations.gateway.request import INLINE_BYTES
from ais_loader.integrations.gateway.server.options import Limits
from ais_loader.testing import eventually, seeded_bytes
from tests.gateway.gateway_thread import GatewayThread
from tests.gateway.raw_kit import connected, parsed, received, request

pytestmark = pytest.mark.on_disk  # which answers RWF_NOWAIT

SMALL = seeded_bytes(10_240, seed=1)
BIG = bytes(16 << 20)
LIMITS = Limits(requests=1, still_s=600.0, idle_s=600.0, wait_s=0.05)


class Place:
    """A gateway with one slot over an embedded store."""

    def __init__(self, folder: Path, clients: Clients, port: int) -> None:
        self.folder, self.port = folder, port
        self.client = clients.of(None)
        self.bucket = self.client.create_bucket("b")

    def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        with connected(self.port) as sock:
            sock.sendall(request("GET", path, self.port, {"Connection": "close", **(headers or {})}))
            status, _, body = parsed(received(sock))
            return status, body

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """The only slot is held by a client that takes nothing of its answer."""
        with contextlib.ExitStack() as held:

            def is_held() -> bool:
                """Whoever had the slot before may not have given it back."""
                sock = held.enter_context(socket.socket())
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                sock.connect(("127.0.0.1", self.port))
                sock.sendall(request("GET", "/b/big", self.port))
                return sock.recv(100).startswith(b"HTTP/1.1 200")

            eventually(is_held)
            yield

    def drop_from_memory(self) -> None:
        """Write the files of all objects to the drive, and drop them from the page cache."""
        for path in (self.folder / "objects").rglob("*"):
            if path.is_file():
                fd = os.open(path, os.O_RDONLY)
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with (
        contextlib.closing(Clients(str(tmp_path / "store"), ())) as clients,
        GatewayThread(clients, None, limits=LIMITS) as gateway,
    ):
        place = Place(tmp_path / "store", clients, gateway.port)
        place.bucket.put_many([("big", BIG), ("small", SMALL), ("limit", SMALL * 7)])
        yield place


def test_small_objects_in_memory_are_read_while_every_slot_is_held(place: Place) -> None:
    assert len(SMALL * 7) > INLINE_BYTES
    for name in ("small", "limit", "big"):  # their places are known then
        eventually(lambda name=name: place.get(f"/b/{name}")[0] == 200)
    with place.full():
        assert place.get("/b/small") == (200, SMALL)
        assert place.get("/b/small", {"Range": "bytes=5-9"}) == (206, SMALL[5:10])
        assert place.get("/b/small", {"If-None-Match": "*"}) == (304, b"")
        assert place.get("/b/small", {"Range": "bytes=99999-"})[0] == 416
        assert place.get("/v1/objects/b/small") == (200, SMALL)
        assert place.get("/v1/objects/b/small", {"Range": "bytes=-3"}) == (206, SMALL[-3:])
        place.bucket.put("small", SMALL[::-1])
        assert place.get("/b/small") == (200, SMALL[::-1])
        # All others wait for the slot, which nobody gives back.
        waiting = ("/b/limit", "/b/big", "/b/none", "/b?list-type=2", "/v1/objects/b/limit")
        assert {path: place.get(path)[0] for path in waiting} == dict.fromkeys(waiting, 503)
        place.bucket.delete("small")
        assert place.get("/b/small")[0] == 503
    eventually(lambda: place.get("/b/small")[0] == 404)


def test_objects_that_are_not_in_memory_wait_for_a_slot(place: Place) -> None:
    assert place.get("/b/small") == (200, SMALL)
    with place.full():
        eventually(lambda: (place.drop_from_memory(), place.get("/b/small"))[1][0] == 503)
    eventually(lambda: place.get("/b/small") == (200, SMALL))
