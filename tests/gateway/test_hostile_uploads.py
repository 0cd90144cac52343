"""Parts of uploads that no honest client sends, too large for memory: each is refused, and leaves nothing behind."""

from __future__ import annotations

import base64
import hashlib
import random
import socket
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ais_loader.integrations.gateway.spool import AT_ONCE_BYTES
from ais_loader.testing import eventually
from tests.gateway.conftest import Served
from tests.gateway.test_hostile import STREAMING, UNSIGNED_TRAILER, chunked, refused, send, signed
from tests.open_files import open_files
from tests.table import table

MIB = 1 << 20
SIZE_BYTES = 3 * MIB
TIMEOUT_S = 180.0
DATA = random.Random(31).randbytes(SIZE_BYTES)


class Part:
    """A part of an upload that a test tries to store."""

    def __init__(self, served: Served, bucket: str) -> None:
        self.served = served
        self.upload = served.client.bucket(bucket).multipart("large")
        self.path = f"/{bucket}/large?partNumber=1&uploadId={self.upload.id}"

    def headers(self, given: Mapping[str, str] | None = None, **options: Any) -> tuple[dict[str, str], Any, Any]:
        return signed(self.served, "PUT", self.path, given, **options)

    def send(self, headers: Mapping[str, str], body: bytes = DATA) -> tuple[int, bytes]:
        return send(self.served, "PUT", self.path, headers, body)

    def raw(self, headers: Mapping[str, str], *pieces: bytes) -> bytes:
        """Send pieces, cut the connection for sending, and return the answer."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"PUT {self.path} HTTP/1.1\r\nHost: 127.0.0.1:{self.served.port}\r\n{lines}\r\n".encode()
        found = b""
        with socket.create_connection(("127.0.0.1", self.served.port), TIMEOUT_S) as sock:
            try:
                sock.sendall(head)
                for piece in pieces:
                    sock.sendall(piece)
                sock.shutdown(socket.SHUT_WR)
                while piece := sock.recv(1 << 16):
                    found += piece
            except ConnectionError:
                """The gateway has refused the rest."""
        return found

    @property
    def stored(self) -> list[tuple[int, int]]:
        return [(part.number, part.size_bytes) for part in self.upload.parts()]


def _temporary_files() -> int:
    """Return how many files without a name this process, which is the gateway's, has open in its folder for them."""
    return sum(path.startswith(tempfile.gettempdir()) and path.endswith("(deleted)") for path in open_files().values())


@pytest.fixture
def part(served: Served, bucket: str) -> Iterator[Part]:
    assert SIZE_BYTES > AT_ONCE_BYTES
    before = _temporary_files()
    made = Part(served, bucket)
    yield made
    eventually(lambda: _temporary_files() <= before, TIMEOUT_S)
    headers, _, _ = made.headers()
    assert made.send(headers)[0] == 200, "the gateway goes on, and the upload is as it was"
    assert made.stored == [(1, SIZE_BYTES)]
    info = made.upload.complete(size_bytes=SIZE_BYTES)
    assert made.served.client.bucket(made.upload.bucket).get(info.name) == DATA


def test_a_client_that_disconnects_at_any_moment(part: Part) -> None:
    headers, _, _ = part.headers({"Content-Length": str(SIZE_BYTES)})
    for sent in (0, 1, 65_535, 256 << 10, 512 << 10, MIB, MIB + 1, 2 * MIB, SIZE_BYTES - 1):
        assert b" 200 " not in part.raw(headers, DATA[:sent]).partition(b"\r\n")[0], sent
    assert part.stored == []


def test_clients_that_disconnect_at_once(part: Part) -> None:
    headers, _, _ = part.headers({"Content-Length": str(SIZE_BYTES)})

    def cut(number: int) -> bytes:
        return part.raw(headers, DATA[: number * 200_000])

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(cut, range(12)))
    assert not any(b" 200 " in answer.partition(b"\r\n")[0] for answer in answers)
    assert part.stored == []


def test_wrong_digests(part: Part) -> None:
    wrong = DATA[:-1] + bytes([DATA[-1] ^ 1])
    headers, _, _ = part.headers(word=hashlib.sha256(DATA).hexdigest())
    refused(part.send(headers, wrong), "XAmzContentSHA256Mismatch")
    md5 = base64.b64encode(hashlib.md5(DATA, usedforsecurity=False).digest()).decode()
    headers, _, _ = part.headers({"Content-MD5": md5})
    refused(part.send(headers, wrong), "BadDigest")
    crc = base64.b64encode(zlib.crc32(DATA).to_bytes(4, "big")).decode()
    headers, _, _ = part.headers({"x-amz-checksum-crc32": crc})
    refused(part.send(headers, wrong), "BadDigest")
    assert part.stored == []


def test_wrong_trailers(part: Part) -> None:
    given = {"x-amz-decoded-content-length": str(SIZE_BYTES), "x-amz-trailer": "x-amz-checksum-crc32"}
    headers, _, _ = part.headers(given, word=UNSIGNED_TRAILER)
    chunks = b"".join(b"%x\r\n%b\r\n" % (MIB, DATA[at : at + MIB]) for at in range(0, SIZE_BYTES, MIB)) + b"0\r\n"
    wrong = base64.b64encode((zlib.crc32(DATA) ^ 1).to_bytes(4, "big"))
    refused(part.send(headers, chunks + b"x-amz-checksum-crc32:" + wrong + b"\r\n\r\n"), "BadDigest")
    refused(part.send(headers, chunks + b"\r\n"), "MalformedTrailerError")
    refused(part.send(headers, chunks[:-3]), "IncompleteBody")
    short = {**given, "x-amz-decoded-content-length": str(SIZE_BYTES + 1)}
    headers, _, _ = part.headers(short, word=UNSIGNED_TRAILER)
    right = base64.b64encode(zlib.crc32(DATA).to_bytes(4, "big"))
    refused(part.send(headers, chunks + b"x-amz-checksum-crc32:" + right + b"\r\n\r\n"), "IncompleteBody")
    assert part.stored == []


def test_a_chunk_with_a_wrong_signature_in_the_middle(part: Part) -> None:
    chunks = [DATA[at : at + 100_000] for at in range(0, SIZE_BYTES, 100_000)]
    headers, auth, request = part.headers({"x-amz-decoded-content-length": str(SIZE_BYTES)}, word=STREAMING)
    made = chunked(auth, request, headers, chunks)
    middle = len(made) // 2
    body = b"".join(made)
    announced = {**headers, "Content-Length": str(len(body))}
    changed = made[middle][:-3] + bytes([made[middle][-3] ^ 1]) + b"\r\n"
    refused((0, part.raw(announced, *made[:middle], changed, *made[middle + 1 :])), "SignatureDoesNotMatch")
    refused(part.send(headers, b"".join([*made[:middle], *made[middle + 1 :]])), "SignatureDoesNotMatch")
    assert b" 200 " not in part.raw(announced, *made[:middle]).partition(b"\r\n")[0]
    assert part.stored == []


@table("difference", [-1, 1, MIB])
def test_false_lengths(part: Part, difference: int) -> None:
    word = hashlib.sha256(DATA).hexdigest()
    headers, _, _ = part.headers({"Content-Length": str(SIZE_BYTES + difference)}, word=word)
    assert b" 200 " not in part.raw(headers, DATA).partition(b"\r\n")[0]
    assert part.stored == []
