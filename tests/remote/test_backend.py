"""Backends of all kinds keep one contract: bytes, names, order, conditions and errors. S3 is moto's."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest

from ais_loader.errors import (
    ContentMismatch,
    InvalidName,
    ObjectNotFound,
    RangeError,
    RemoteDenied,
    VersionConflict,
)
from ais_loader.wire.remote import Remote
from storage_node.remote.remote_changed import RemoteChanged
from storage_node.remote.skipped_names import SkippedNames
from tests.remote.backend_kit import (
    BUCKET,
    MIB,
    Asked,
    DecidedServer,
    OneBackend,
    Reply,
    chunked,
    content,
    moto_keys,
    moto_put,
    moto_s3,
    moto_server,
    names,
    read,
)

NAMES = ["+plus&=.bin", "a b%25c#é?.txt", "a%2Fb", 'a*b|c^d`e"f<g>', "a.b", "a/b", "a~b[1]{x}", "ä/ö", "日本/語.txt"]
Make = Callable[..., OneBackend]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with moto_server() as url:
        yield url


@pytest.fixture(params=["s3", "file"])
def make(request: pytest.FixtureRequest, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    return _maker(request.param, endpoint, tmp_path, monkeypatch)


@pytest.fixture
def make_s3(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    return _maker("s3", endpoint, tmp_path, monkeypatch)


def _maker(kind: str, endpoint: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "an-access-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-key")
    for key in list(moto_s3().buckets[BUCKET].keys):
        moto_s3().delete_object(BUCKET, key)
    (folder / "objects").mkdir()
    remotes = {
        "s3": Remote(f"s3://{BUCKET}/pre fix", endpoint=endpoint),
        "file": Remote(f"file://{folder}/objects"),
    }
    return lambda **changed: OneBackend(remotes[kind], None, **changed)


@pytest.mark.parametrize("size_bytes", [0, 5, 3 * MIB, 17 * MIB + 1])
def test_objects_come_back_with_their_tags(make: Make, size_bytes: int) -> None:
    async def run() -> None:
        data = os.urandom(size_bytes)
        async with make() as backend:
            put = await backend.put("a/b", chunked(data), size_bytes, {"colour": "red"}, "text/x")
            found = await backend.get("a/b")
            assert found is not None
            async with found:
                assert await found.read() == data
            assert (found.info.name, found.info.size_bytes, found.info.etag) == ("a/b", size_bytes, put.etag)
            if backend.remote.scheme == "s3":
                assert (found.info.content_type, dict(found.info.metadata)) == ("text/x", {"colour": "red"})
            assert await backend.head("a/b") == found.info
            assert await backend.get("a/b", unless_etag=put.etag) is None
            (listed,) = [one async for page in backend.list() for one in page]
            assert (listed.name, listed.size_bytes, listed.etag) == ("a/b", size_bytes, put.etag)
            assert backend.counts.bytes_in == backend.counts.bytes_out == size_bytes

    asyncio.run(run())


def test_large_objects_are_fetched_in_ranges(make: Make) -> None:
    async def run() -> None:
        data = os.urandom(16 * MIB)
        async with make() as backend:
            await backend.put("big", chunked(data), len(data))
            assert await read(backend, "big") == data
            assert backend.counts.requests["get"] == 4

    asyncio.run(run())


def test_names_come_back_as_they_are(make: Make) -> None:
    async def run() -> None:
        async with make() as backend:
            for name in NAMES:
                await backend.put(name, chunked(name.encode()), len(name.encode()))
            for name in NAMES:
                assert await read(backend, name) == name.encode()
            assert await names(backend) == sorted(NAMES, key=str.encode)
            if backend.remote.scheme == "s3":
                assert moto_keys() == sorted(f"pre fix/{name}" for name in NAMES)

    asyncio.run(run())


def test_listings_have_prefixes_starts_and_pages(make: Make) -> None:
    async def run() -> None:
        async with make() as backend:
            await backend.put("b/1", chunked(b"x"), 1)
            above = "pre fix/" if backend.remote.scheme == "s3" else ""
            wanted = sorted([*(f"a/{number:04}" for number in range(1100)), "a-", "a.b", "b/1"])
            for name in wanted[:-1]:
                if backend.remote.scheme == "file":
                    path = Path(backend.remote.url.removeprefix("file://")) / name
                    path.parent.mkdir(exist_ok=True)
                    path.write_bytes(b"x")
                else:
                    moto_put(above + name, b"x")
            assert await names(backend) == wanted
            assert await names(backend, "a/1") == [f"a/{number}" for number in range(1000, 1100)]
            assert await names(backend, "a/", "a/1097") == ["a/1098", "a/1099"]
            assert await names(backend, "", "a/1098") == ["a/1099", "b/1"]
            assert await names(backend, "a", "a.b") == wanted[2:-1]
            assert await names(backend, "nothing/here") == []
            assert await names(backend, "", "z") == []

    asyncio.run(run())


def test_conditions_of_puts(make: Make) -> None:
    async def run() -> None:
        async with make() as backend:
            first = await backend.put("a", chunked(b"1"), 1, if_absent=True)
            with pytest.raises(VersionConflict, match="a: not put: it exists"):
                await backend.put("a", chunked(b"2"), 1, if_absent=True)
            second = await backend.put("a", chunked(b"22"), 2, if_etag=first.etag)
            with pytest.raises(VersionConflict, match="its tag is no longer"):
                await backend.put("a", chunked(b"3"), 1, if_etag=first.etag)
            assert await read(backend, "a") == b"22"
            assert (await backend.head("a")).etag == second.etag

    asyncio.run(run())


def test_what_is_deleted_or_never_was_is_not_found(make: Make) -> None:
    async def run() -> None:
        async with make() as backend:
            await backend.put("a", chunked(b"1"), 1)
            await backend.delete("a")
            await backend.delete("a")
            for asked in (backend.get("a"), backend.head("a"), backend.read_range("a", 0, 1, "")):
                with pytest.raises(ObjectNotFound, match=f"^{backend.remote.url}/a: "):
                    await asked
            assert backend.counts.errors == 0

    asyncio.run(run())


def test_ranges_belong_to_one_version(make: Make) -> None:
    async def run() -> None:
        async with make() as backend:
            first = await backend.put("a", chunked(b"0123456789"), 10)
            assert bytes(await backend.read_range("a", 3, 4, first.etag)) == b"3456"
            assert bytes(await backend.read_range("a", 10, 0, first.etag)) == b""
            for start, length in ((8, 3), (10, 1), (100, 1)):
                with pytest.raises(RangeError):
                    await backend.read_range("a", start, length, first.etag)
            await backend.put("a", chunked(b"abcdefghijk"), 11)
            with pytest.raises(RemoteChanged, match="was replaced or deleted"):
                await backend.read_range("a", 3, 4, first.etag)

    asyncio.run(run())


def test_an_object_that_is_replaced_while_it_is_read_is_never_mixed(make: Make) -> None:
    async def run() -> None:
        old, new = bytes(17 * MIB), b"x" * (17 * MIB)
        async with make(ranges_per_object=1) as backend:
            await backend.put("a", chunked(old), len(old))
            found = await backend.get("a")
            assert found is not None
            async with found:
                chunks = aiter(found)
                came = bytes(await anext(chunks))
                await backend.put("a", chunked(new), len(new))
                try:
                    async for chunk in chunks:
                        came += chunk
                except RemoteChanged:
                    assert came == old[: len(came)]
                else:
                    # A file stays open; ranges that were fetched before count as well.
                    assert came == old
            assert await read(backend, "a") == new

    asyncio.run(run())


def test_a_put_of_another_size_puts_nothing(make: Make) -> None:
    async def run() -> None:
        async with make() as backend:
            for size_bytes in (1, 3, 20 * MIB):
                with pytest.raises(ContentMismatch, match="bytes came instead of"):
                    await backend.put("a", chunked(b"22"), size_bytes)

            async def failing() -> object:
                yield bytes(7 * MIB)
                raise KeyError("the client is gone")

            with pytest.raises(KeyError, match="the client is gone"):
                await backend.put("a", failing(), 20 * MIB)
            assert await names(backend) == []
            assert not moto_s3().buckets[BUCKET].multiparts

    asyncio.run(run())


def test_keys_that_are_no_names_are_skipped_and_counted(make_s3: Make) -> None:
    keys = ["/lead", "a//b", "./x", "x\ty", "a/../b", "full/", "\x7f"]

    async def run() -> None:
        async with make_s3() as backend:
            for key in keys:
                moto_put(f"pre fix/{key}", b"1")
            for marker in ("", "empty/"):
                moto_put(f"pre fix/{marker}", b"")
            await backend.put("good", chunked(b"1"), 1)
            skipped = SkippedNames()
            assert [one.name async for page in backend.list(skipped=skipped) for one in page] == ["good"]
            assert skipped == backend.skipped
            assert (skipped.count, skipped.markers) == (len(keys), 2)
            assert sorted(skipped.names) == sorted(key if key.isprintable() else repr(key)[1:-1] for key in keys)
            for key in keys:
                with pytest.raises(InvalidName):
                    await backend.get(key)

    asyncio.run(run())


def test_public_objects_of_google(tmp_path: Path) -> None:
    objects = {f"pre/{key}": f"<{key}>".encode() for key in ("a b%c/é", "a/1", "a/2", "b")} | {
        "pre/folder/": b"",
        "pre/zero": b"",
    }

    def decide(asked: Asked) -> Reply:
        parts = urlsplit(asked.path)
        query = dict(parse_qsl(parts.query))
        if unquote(parts.path) == f"/{BUCKET}":
            found = [
                f"<Contents><Key>{key}</Key><Size>{len(data)}</Size><ETag>x</ETag>"
                "<LastModified>2030-01-01T00:00:00.000Z</LastModified></Contents>"
                for key, data in sorted(objects.items())
                if key.startswith(query.get("prefix", "")) and key > query.get("start-after", "")
            ]
            return Reply(200, f"<ListBucketResult>{''.join(found)}</ListBucketResult>".encode())
        data = objects.get(unquote(parts.path).removeprefix(f"/{BUCKET}/"))
        return Reply(404) if data is None else content(asked, data)

    async def run() -> None:
        async with OneBackend(Remote(f"gs://{BUCKET}/pre", profile="gs"), profiles=str(profiles)) as backend:
            assert await names(backend) == ["a b%c/é", "a/1", "a/2", "b", "zero"]
            assert backend.skipped.markers == 1
            assert await names(backend, "a/", "a/1") == ["a/2"]
            assert await names(backend, "a") == ["a b%c/é", "a/1", "a/2"]
            assert await read(backend, "a b%c/é") == "<a b%c/é>".encode()
            assert await read(backend, "zero") == b""
            with pytest.raises(ObjectNotFound):
                await backend.head("a/3")

    with DecidedServer(decide) as server:
        profiles = tmp_path / "profiles.toml"
        profiles.touch(0o600)
        profiles.write_text(f'[gs]\nanonymous = true\nendpoint = "{server.url}"\n')
        asyncio.run(run())
    assert not any("authorization" in asked.headers for asked in server.asked)


def test_a_bucket_that_does_not_exist(endpoint: str, make_s3: Make) -> None:
    async def run() -> None:
        async with OneBackend(Remote("s3://no-bucket/x", endpoint=endpoint)) as backend:
            for asked in (backend.get("a"), backend.head("a"), backend.put("a", chunked(b"1"), 1), names(backend)):
                with pytest.raises(RemoteDenied, match=r"^s3://no-bucket/x/.*: NoSuchBucket: "):
                    await asked

    asyncio.run(run())
