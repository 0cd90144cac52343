"""Servers that refuse HEAD, or answer it without a size: a GET of one byte asks the same, and no object is missing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from ais_loader import Entry, Remote, Status, errors
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from tests.remote.backend_kit import BUCKET, Asked, DecidedServer, OneBackend, Reply, content, read
from tests.table import table

OBJECTS = {"a": bytes(range(256)) * 40, "b": b"b" * 1000, "empty": b""}
REFUSALS = [400, 401, 403, 405, 406, 501]


def decide(asked: Asked, status: int = 405, *, ranges: bool = True) -> Reply:
    """Answer like a server that refuses HEAD with this status; 200 is an answer to HEAD without a size."""
    found = OBJECTS.get(asked.path.rpartition("/")[2])
    if asked.method == "HEAD":
        return Reply(status, headers={"Transfer-Encoding": "chunked"} if status == 200 else {})
    if found is None:
        return Reply(404)
    if not ranges:
        asked.headers.pop("range", None)
    return content(asked, found)


def heads(server: DecidedServer) -> int:
    return sum(asked.method == "HEAD" for asked in server.asked)


@contextlib.contextmanager
def serving(status: int, *, ranges: bool = True) -> Iterator[DecidedServer]:
    with DecidedServer(lambda asked: decide(asked, status, ranges=ranges)) as server:
        yield server


@pytest.mark.slow
@table("status", [200, *REFUSALS])
@table("scheme", ["http", "s3"])
def test_a_refused_head_is_asked_again_as_a_get(monkeypatch: pytest.MonkeyPatch, scheme: str, status: int) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")

    async def run() -> None:
        async with OneBackend(Remote(server.url) if scheme == "http" else server.remote()) as backend:
            with pytest.raises(errors.ObjectNotFound):
                await backend.head("none")
            for name, data in [*OBJECTS.items()] * 2:
                found = await backend.head(name)
                assert (found.size_bytes, found.etag) == (len(data), '"v1"')
            with pytest.raises(errors.ObjectNotFound):
                await backend.head("none")
            assert bytes(await backend.read_range("a", 5, 10, '"v1"')) == OBJECTS["a"][5:15]
            assert [await read(backend, name) for name in OBJECTS] == list(OBJECTS.values())

    with serving(status) as server:
        asyncio.run(run())
    assert heads(server) == 2  # of the object that is missing, and of the first one
    assert [asked.range for asked in server.asked if asked.path.endswith("/b")][:2] == [(0, 1), (0, 1)]


@pytest.mark.slow
@table("status", [403, 405])
def test_a_server_that_refuses_head_and_ranges(status: int) -> None:
    async def run() -> None:
        async with OneBackend(Remote(server.url)) as backend:
            for name, data in [*OBJECTS.items()] * 2:
                assert (await backend.head(name)).size_bytes == len(data)
            assert bytes(await backend.read_range("a", 5, 10, '"v1"')) == OBJECTS["a"][5:15]

    with serving(status, ranges=False) as server:
        asyncio.run(run())
    assert heads(server) == 1


def test_a_web_server_that_sends_the_size_of_its_answer_to_head() -> None:
    def empty(asked: Asked) -> Reply:
        return Reply(200) if asked.method == "HEAD" else decide(asked)

    async def run() -> None:
        async with OneBackend(Remote(server.url)) as backend:
            for name, data in OBJECTS.items():
                assert (await backend.head(name)).size_bytes == len(data)
            with pytest.raises(errors.ObjectNotFound):
                await backend.head("none")

    with DecidedServer(empty) as server:
        asyncio.run(run())


def test_an_empty_object_that_comes_whole_leaves_ranges_as_they_are() -> None:
    """Many servers answer a range of an empty file with status 200."""

    def whole(asked: Asked) -> Reply:
        return decide(asked, ranges=not asked.path.endswith("/empty"))

    async def run() -> None:
        async with OneBackend(Remote(server.url)) as backend:
            assert (await backend.head("empty")).size_bytes == 0
            assert bytes(await backend.read_range("a", 5, 10, '"v1"')) == OBJECTS["a"][5:15]

    with DecidedServer(whole) as server:
        asyncio.run(run())
    assert server.asked[-1].range == (5, 15)


@pytest.mark.slow
@table("status", REFUSALS)
def test_objects_that_may_not_be_read_are_denied_and_not_missing(status: int) -> None:
    async def run() -> None:
        async with OneBackend(Remote(server.url)) as backend:
            for call in (backend.head("a"), backend.get("a")):
                with pytest.raises(errors.RemoteDenied, match=f"status {status}: not for you"):
                    await call

    with DecidedServer(lambda _: Reply(status, b"not for you")) as server:
        asyncio.run(run())


@pytest.fixture(params=[405, 403])
def bucket(request: pytest.FixtureRequest, client: Client, bucket_name: str, s3: object) -> Iterator[Bucket]:
    """A bucket over a server that refuses HEAD with this status."""
    with serving(request.param) as server:
        yield client.create_bucket(bucket_name, remote=Remote(server.url))
        client.delete_bucket(bucket_name, force=True)


def test_every_read_of_a_server_that_refuses_head(client: Client, bucket: Bucket) -> None:
    data = OBJECTS["a"]
    assert bucket.exists_many(["a", "none", "b"]) == [True, False, True]
    assert (bucket.head("a").size_bytes, bucket.head("empty").size_bytes) == (len(data), 0)
    entries = [Entry(bucket.name, "a", start=7, length=9), Entry(bucket.name, "none"), Entry(bucket.name, "b")]
    items = list(client.get_batch(entries, on_error="placeholder"))
    assert [item.status for item in items] == [Status.OK, Status.NOT_FOUND, Status.OK]
    assert [items[0].tobytes(), items[2].tobytes()] == [data[7:16], OBJECTS["b"]]
    with bucket.open("a") as file:
        file.seek(-10, 2)
        assert file.read() == data[-10:]
    assert bucket.get("a", start=3, length=4) == data[3:7]
    with pytest.raises(errors.ObjectNotFound):
        bucket.get("none", start=3, length=4)
    assert bucket.warm(["a", "b", "empty"]).warmed + bucket.head("b").is_stored >= 1
    assert [bucket.get(name) for name in OBJECTS] == list(OBJECTS.values())


def test_a_refusal_is_no_absence(client: Client, bucket_name: str, s3: object) -> None:
    with DecidedServer(lambda _: Reply(405)) as server:
        bucket = client.create_bucket(bucket_name, remote=Remote(server.url))
        for call in (bucket.exists, bucket.head, bucket.get, bucket.open, lambda name: bucket.warm([name])):
            with pytest.raises(errors.RemoteDenied):
                call("a")
        (item,) = client.get_batch([Entry(bucket_name, "a")], on_error="placeholder")
        assert item.status == Status.UNAVAILABLE
        client.delete_bucket(bucket_name, force=True)


def test_writes_to_a_storage_that_refuses_head(client: Client, bucket_name: str, s3: object) -> None:
    """Uploads in the background compare the remote object, with a HEAD."""
    stored: dict[str, bytes] = {"a": b"before"}

    def answer(asked: Asked) -> Reply:
        name = asked.path.rpartition("/")[2].partition("?")[0]
        if asked.method == "HEAD":
            return Reply(405)
        if asked.method == "PUT":
            stored[name] = asked.body
            return Reply(200, headers={"ETag": f'"{len(stored[name])}"'})
        return content(asked, stored[name], f'"{len(stored[name])}"') if name in stored else Reply(404)

    with DecidedServer(answer) as server:
        remote = Remote(f"s3://{BUCKET}", endpoint=server.url, write="back")
        bucket = client.create_bucket(bucket_name, remote=remote)
        bucket.put("a", b"after", if_version=bucket.head("a").version)
        bucket.put("b", b"new")
        bucket.flush()
        assert stored == {"a": b"after", "b": b"new"}
        client.delete_bucket(bucket_name, force=True)
