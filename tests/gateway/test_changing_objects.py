"""Objects that are damaged, replaced or deleted before or while they are sent."""

from __future__ import annotations

import contextlib
import http.client
import random
import ssl
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, cast

import pytest

from ais_loader import Client, errors
from ais_loader.integrations.gateway.clients import Clients
from ais_loader.integrations.gateway.server.certificate import Certificate
from ais_loader.testing import NodeProcess, throwaway_folder
from storage_node.security.identity.identity_folder import IdentityFolder
from tests.changing_folder import bytes_of, files_below
from tests.gateway.gateway_thread import GatewayThread
from tests.gateway.test_sending import requested

MIB = 1 << 20
LARGE_BYTES = 9 * MIB


class Place:
    """A gateway without keys, the client of its store, and the folder with its files."""

    def __init__(self, port: int, clients: Clients, folder: Path) -> None:
        self.port, self.clients, self.folder = port, clients, folder
        self.client: Client = clients.of(None)

    def get(self, name: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        """Return status and body. Raises IncompleteRead or ConnectionError if the answer is cut."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=180)) as connection:
            connection.request("GET", f"/b/{name}", headers=headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def flip(self, data: bytes, at: int) -> None:
        """Change one byte in the only file that has these bytes."""
        folders = self.folder.rglob("objects")
        files = [path for path, found in files_below(*folders) if found.st_size == len(data)]
        (file,) = [path for path in files if bytes_of(path) == data]
        with file.open("r+b") as opened:
            opened.seek(at)
            opened.write(bytes([data[at] ^ 1]))


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with throwaway_folder() as folder:
        yield folder


@pytest.fixture(scope="module", params=["embedded", "grpc"])
def url(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    if request.param == "embedded":
        yield str(folder / "store")
    else:
        with NodeProcess(folder / "drive") as node:
            yield node.url


@pytest.fixture(scope="module")
def place(url: str, folder: Path) -> Iterator[Place]:
    with contextlib.ExitStack() as held:
        clients = Clients(url, [])
        held.callback(clients.close)
        clients.of(None).create_bucket("b")
        gateway = held.enter_context(GatewayThread(clients, None))
        yield Place(gateway.port, clients, folder)


def data_of(seed: int, size_bytes: int) -> bytes:
    return random.Random(seed).randbytes(size_bytes)


@pytest.mark.parametrize("size_bytes", [200 << 10, 700 << 10, MIB])
def test_no_byte_of_a_damaged_object_up_to_a_mib_is_sent(place: Place, size_bytes: int) -> None:
    data = data_of(size_bytes, size_bytes)
    place.client.bucket("b").put("damaged", data)
    assert place.get("damaged") == (200, data)
    place.flip(data, size_bytes - 1)
    status, document = place.get("damaged")
    assert status == 500
    assert b"<Error>" in document
    if size_bytes > 512 << 10:
        part = place.get("damaged", {"Range": "bytes=0-99"})
        assert part == (206, data[:100]), "its own block is what it was"


@pytest.mark.parametrize("at", [0, 5 * MIB, LARGE_BYTES - 1])
def test_a_damaged_large_object_is_cut_before_the_damage(place: Place, at: int) -> None:
    data = data_of(at + 1, LARGE_BYTES)
    place.client.bucket("b").put("large", data)
    place.flip(data, at)
    try:
        status, document = place.get("large")
    except http.client.IncompleteRead as cut:
        assert at
        assert len(cut.partial) <= at
        assert data.startswith(cut.partial)
    except ConnectionError:
        assert at, "the status of an error was expected"
    else:
        assert (at, status) == (0, 500)
        assert b"<Error>" in document


@pytest.mark.parametrize("change", ["replace", "delete"])
def test_an_object_that_changes_while_it_is_sent_is_sent_as_it_was_or_cut(place: Place, change: str) -> None:
    data, other = data_of(1, LARGE_BYTES), data_of(2, LARGE_BYTES)
    bucket = place.client.bucket("b")
    bucket.put(str(LARGE_BYTES), data)
    with requested(place.port) as sock:
        found = bytearray(sock.recv(100))
        if change == "replace":
            bucket.put(str(LARGE_BYTES), other)
        else:
            bucket.delete(str(LARGE_BYTES))
        with contextlib.suppress(ConnectionError):
            while len(found) < LARGE_BYTES + 200 and (piece := sock.recv(MIB)):
                found += piece
                if len(found.partition(b"\r\n\r\n")[2]) == LARGE_BYTES:
                    break
        body = found.partition(b"\r\n\r\n")[2]
    assert data.startswith(body)
    if place.client.url.startswith("file:"):
        assert len(body) == LARGE_BYTES, "its file stays open"
    if change == "replace":
        assert place.get(str(LARGE_BYTES)) == (200, other)
    else:
        assert place.get(str(LARGE_BYTES))[0] == 404


@pytest.mark.parametrize("size_bytes", [1000, 300 << 10, MIB, 2 * MIB])
def test_an_object_that_is_replaced_all_the_time_is_never_mixed_nor_missing(place: Place, size_bytes: int) -> None:
    bucket, ended = place.client.bucket("b"), threading.Event()
    bucket.put("moving", bytes(size_bytes))

    def replace() -> None:
        for number in range(1, 1000):
            bucket.put("moving", bytes([number % 256]) * size_bytes)
            if ended.is_set():
                return

    def read(_: int) -> None:
        try:
            status, data = place.get("moving")
        except http.client.IncompleteRead as cut:
            assert size_bytes > MIB, "its bytes were there before the answer began"
            data, status = cut.partial, 200
        else:
            assert status == 503 or len(data) == size_bytes
        if status == 503:  # a node is asked twice for a larger object
            assert size_bytes > MIB
            assert b"is replaced faster" in data
            return
        assert status == 200
        assert data == data[:1] * len(data)

    with ThreadPoolExecutor(4) as pool:
        writer = pool.submit(replace)
        try:
            list(pool.map(read, range(40)))
        finally:
            ended.set()
        writer.result(180)


def test_the_rest_of_an_object_that_was_replaced_by_a_shorter_one(place: Place) -> None:
    bucket = place.client.bucket("b")
    bucket.put("shorter", b"12345")
    assert place.get("shorter", {"Range": "bytes=10-"})[0] == 416
    assert place.get("shorter", {"Range": "bytes=10-", "If-Range": '"the-longer-one"'}) == (200, b"12345")
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", place.port, timeout=180)) as connection:
        connection.request("HEAD", "/b/shorter")
        answer = connection.getresponse()
        answer.read()
    etag = str(answer.getheader("etag"))
    assert place.get("shorter", {"Range": "bytes=3-", "If-Range": etag}) == (206, b"45")
    assert place.get("shorter", {"Range": "bytes=10-", "If-Range": etag})[0] == 416


def test_large_bodies_over_tls(place: Place, tmp_path: Path) -> None:
    data = data_of(3, LARGE_BYTES)
    place.client.bucket("b").put("tls", data)
    identity = IdentityFolder(tmp_path / "identity")
    identity.make()
    files = identity.node_files(bytes(16), ["127.0.0.1"])
    context = ssl.create_default_context(cafile=files.ca_file)
    certificate = Certificate(files.cert_file, files.key_file)
    with GatewayThread(place.clients, None, certificate=certificate) as gateway:
        connection = http.client.HTTPSConnection("127.0.0.1", gateway.port, timeout=180, context=context)
        with contextlib.closing(connection):
            for _ in range(2):
                connection.request("GET", "/b/tls")
                assert connection.getresponse().read() == data
            connection.request("POST", "/b?bundle=", '["tls", "tls"]')
            with tarfile.open(fileobj=connection.getresponse(), mode="r|") as tar:
                members = [(member.name, cast(IO[bytes], tar.extractfile(member)).read() == data) for member in tar]
            assert members == [("tls", True), ("tls", True)]


def test_a_deleted_object_is_not_found(place: Place) -> None:
    bucket = place.client.bucket("b")
    bucket.put("gone", data_of(4, MIB))
    bucket.delete("gone")
    assert place.get("gone")[0] == 404
    with pytest.raises(errors.ObjectNotFound):
        bucket.get("gone")
