"""Backends of all kinds keep one contract: bytes, names, order, conditions and errors.

S3 is moto's; Azure and Google are emulators, which `make test-remote` installs.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest

from ais_loader.errors import (
    ContentMismatch,
    InvalidName,
    ObjectNotFound,
    RangeError,
    RemoteDenied,
    Unsupported,
    VersionConflict,
)
from ais_loader.wire.remote import Remote
from storage_node.remote.drivers import listing_request
from storage_node.remote.drivers.driver import RemoteChanged
from storage_node.remote.drivers.object_stores import ObjectStores
from storage_node.remote.location.skipped_names import SkippedNames
from tests.remote.backend_kit import BUCKET, MIB, Asked, DecidedServer, OneBackend, Reply, chunked, content, names, read
from tests.remote.s3_server import S3Server
from tests.remote.services import KINDS, WRITABLE, Place, running

NAMES = ["+plus&=.bin", "a b%25c#é?.txt", "a%2Fb", 'a*b|c^d`e"f<g>', "a.b", "a/b", "a~b[1]{x}", "ä/ö", "日本/語.txt"]
ORDERED = ["a", "a b", "a-", "a.b", "a/b", "a/é", "a0", "aé", "a\uffee", "a😀", "b"]
"""Names in the order of UTF-8, which is neither that of UTF-16 nor of folders."""


every = pytest.mark.parametrize("service", KINDS, indirect=True, scope="module")
writable = pytest.mark.parametrize("service", WRITABLE, indirect=True, scope="module")
"""All kinds but web servers, which can neither be written nor listed."""
clouds = pytest.mark.parametrize("service", ["s3", "gs", "az"], indirect=True, scope="module")


@pytest.fixture(scope="module")
def service(
    request: pytest.FixtureRequest, s3: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Path], Place]]:
    with running(request.param, s3, tmp_path_factory.mktemp("service")) as make:
        yield make


@pytest.fixture
def place(service: Callable[[Path], Place], tmp_path: Path) -> Place:
    """An empty place."""
    return service(tmp_path)


@writable
@pytest.mark.parametrize("size_bytes", [0, 5, 3 * MIB, 11 * MIB + 1])
def test_objects_come_back_with_their_tags(place: Place, size_bytes: int) -> None:
    async def run() -> None:
        data = os.urandom(size_bytes)
        async with place.backend() as backend:
            put = await backend.put("a/b", chunked(data), size_bytes, {"colour": "red", "ais.content-type": "text/x"})
            found = await backend.get("a/b")
            assert found is not None
            async with found:
                assert await found.read() == data
            assert (found.info.name, found.info.size_bytes, found.info.etag) == ("a/b", size_bytes, put.etag)
            if backend.remote.scheme != "file":
                assert (found.info.headers["content-type"], found.info.metadata) == ("text/x", {"colour": "red"})
            assert await backend.head("a/b") == found.info
            assert await backend.get("a/b", unless_etag=put.etag) is None
            (listed,) = [one async for page in backend.list() for one in page]
            assert (listed.name, listed.size_bytes, listed.etag) == ("a/b", size_bytes, put.etag)
            assert backend.counts.bytes_in == backend.counts.bytes_out == size_bytes
            assert place.uploads() == 0

    asyncio.run(run())


@every
def test_large_objects_are_fetched_in_ranges(place: Place) -> None:
    async def run() -> None:
        data = os.urandom(16 * MIB)
        place.put("big", data)
        async with place.backend() as backend:
            assert await read(backend, "big") == data
            assert backend.counts.requests["get"] == 4

    asyncio.run(run())


@every
def test_objects_that_are_empty_are_read(place: Place) -> None:
    async def run() -> None:
        place.put("empty", b"")
        async with place.backend() as backend:
            assert await read(backend, "empty") == b""
            assert (await backend.head("empty")).size_bytes == 0
            with pytest.raises(RangeError):
                await backend.read_range("empty", 0, 1, (await backend.head("empty")).etag)

    asyncio.run(run())


@pytest.mark.parametrize("service", ["s3", "gs", "az", "http"], indirect=True, scope="module")
def test_objects_come_as_they_are_stored_whatever_their_encoding(place: Place) -> None:
    """No client and no cloud inflates them: sizes and ranges are those of what is stored."""
    stored = gzip.compress(os.urandom(1000) + bytes(3 * MIB))

    async def run() -> None:
        place.put("a.json.gz", stored, {"Content-Encoding": "gzip", "Content-Type": "application/json"})
        async with place.backend() as backend:
            info = await backend.head("a.json.gz")
            assert info.size_bytes == len(stored)
            assert info.headers.items() >= {"content-encoding": "gzip", "content-type": "application/json"}.items()
            assert await read(backend, "a.json.gz") == stored
            assert bytes(await backend.read_range("a.json.gz", 5, 100, info.etag)) == stored[5:105]
            if backend.remote.scheme != "http":
                assert [one.size_bytes async for page in backend.list() for one in page] == [len(stored)]

    asyncio.run(run())


@writable
def test_names_come_back_as_they_are(place: Place) -> None:
    async def run() -> None:
        async with place.backend() as backend:
            for name in NAMES:
                await backend.put(name, chunked(name.encode()), len(name.encode()))
            for name in NAMES:
                assert await read(backend, name) == name.encode()
            assert await names(backend) == sorted(NAMES, key=str.encode)
            assert place.keys() == sorted(place.above + name for name in NAMES)

    asyncio.run(run())


@writable
def test_listings_have_the_order_of_utf8(place: Place) -> None:
    async def run() -> None:
        for name in ORDERED:
            if name != "a" or place.remote.scheme != "file":  # a folder cannot be a file, too
                place.put(name, b"x")
        wanted = [name for name in ORDERED if name != "a" or place.remote.scheme != "file"]
        async with place.backend() as backend:
            assert await names(backend) == wanted
            for at in (0, 3, len(wanted) - 2):
                assert await names(backend, "", wanted[at]) == wanted[at + 1 :]

    asyncio.run(run())


@pytest.mark.slow
@writable
def test_listings_have_prefixes_starts_and_pages(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing_request, "PAGE_KEYS", 40)  # the servers of tests have pages of 100

    async def run() -> None:
        async with place.backend() as backend:
            await backend.put("b/1", chunked(b"x"), 1)
            wanted = sorted([*(f"a/{number:04}" for number in range(150)), "a-", "a.b", "b/1"])
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda name: place.put(name, b"x"), wanted[:-1]))
            assert await names(backend) == wanted
            assert await names(backend, "a/01") == [f"a/{number:04}" for number in range(100, 150)]
            assert await names(backend, "a/", "a/0147") == ["a/0148", "a/0149"]
            assert await names(backend, "", "a/0148") == ["a/0149", "b/1"]
            assert await names(backend, "a", "a.b") == wanted[2:-1]
            assert await names(backend, "nothing/here") == []
            assert await names(backend, "", "z") == []

    asyncio.run(run())


@writable
def test_conditions_of_puts(place: Place) -> None:
    async def run() -> None:
        async with place.backend() as backend:
            first = await backend.put("a", chunked(b"1"), 1, if_absent=True)
            with pytest.raises(VersionConflict, match="a: not put: it exists"):
                await backend.put("a", chunked(b"2"), 1, if_absent=True)
            second = await backend.put("a", chunked(b"22"), 2, if_etag=first.etag)
            with pytest.raises(VersionConflict, match="its tag is no longer"):
                await backend.put("a", chunked(b"3"), 1, if_etag=first.etag)
            with pytest.raises(VersionConflict, match=r"its tag is no longer|it is gone"):
                await backend.put("none", chunked(b"3"), 1, if_etag=first.etag)
            assert await read(backend, "a") == b"22"
            assert (await backend.head("a")).etag == second.etag
            assert await names(backend) == ["a"]

    asyncio.run(run())


@writable
def test_what_is_deleted_or_never_was_is_not_found(place: Place) -> None:
    async def run() -> None:
        async with place.backend() as backend:
            await backend.put("a", chunked(b"1"), 1)
            await backend.delete("a")
            await backend.delete("a")
            for asked in (backend.get("a"), backend.head("a"), backend.read_range("a", 0, 1, "")):
                with pytest.raises(ObjectNotFound, match=f"^{backend.remote.url}/a: "):
                    await asked
            assert backend.counts.errors == 0

    asyncio.run(run())


@every
def test_ranges_belong_to_one_version(place: Place) -> None:
    async def run() -> None:
        place.put("a", b"0123456789")
        async with place.backend() as backend:
            etag = (await backend.head("a")).etag
            assert bytes(await backend.read_range("a", 3, 4, etag)) == b"3456"
            assert bytes(await backend.read_range("a", 10, 0, etag)) == b""
            for start, length in ((8, 3), (10, 1), (100, 1)):
                with pytest.raises(RangeError):
                    await backend.read_range("a", start, length, etag)
            assert await backend.get("a", unless_etag=etag) is None
            place.put("a", b"abcdefghijk")
            with pytest.raises(RemoteChanged, match="was replaced or deleted"):
                await backend.read_range("a", 3, 4, etag)
            assert await read(backend, "a") == b"abcdefghijk"

    asyncio.run(run())


@every
def test_an_object_that_is_replaced_while_it_is_read_is_never_mixed(place: Place) -> None:
    async def run() -> None:
        old, new = bytes(11 * MIB), b"x" * (11 * MIB)
        place.put("a", old)
        async with place.backend(ranges_per_object=1) as backend:
            found = await backend.get("a")
            assert found is not None
            async with found:
                chunks = aiter(found)
                came = bytes(await anext(chunks))
                place.put("a", new)
                with contextlib.suppress(RemoteChanged):
                    async for chunk in chunks:
                        came += chunk
                assert came == old[: len(came)]
            assert await read(backend, "a") == new

    asyncio.run(run())


@writable
def test_a_put_of_another_size_puts_nothing(place: Place) -> None:
    async def run() -> None:
        async with place.backend() as backend:
            for size_bytes in (1, 3, 20 * MIB):
                with pytest.raises(ContentMismatch, match="bytes came instead of"):
                    await backend.put("a", chunked(b"22"), size_bytes)

            async def failing() -> object:
                yield bytes(7 * MIB)
                raise KeyError("the client is gone")

            with pytest.raises(KeyError, match="the client is gone"):
                await backend.put("a", failing(), 20 * MIB)
            assert await names(backend) == []
            assert place.uploads() == 0

    asyncio.run(run())


@clouds
def test_keys_that_are_no_names_are_skipped_and_counted(place: Place) -> None:
    keys = ["/lead", "a//b", "full/"]
    if place.remote.scheme != "az":  # which resolves them, as URLs are
        keys += ["./x", "a/../b"]
    if place.remote.scheme == "s3":
        keys += ["x\ty", "\x7f"]
    if place.remote.scheme == "az":  # it counts characters, and we bytes
        keys += ["語" * 400]

    async def run() -> None:
        async with place.backend() as backend:
            for key in keys:
                place.put(key, b"1")
            for marker in ("", "empty/"):
                if marker or place.remote.scheme == "s3":
                    place.put(marker, b"")
            await backend.put("good", chunked(b"1"), 1)
            skipped = SkippedNames()
            assert [one.name async for page in backend.list(skipped=skipped) for one in page] == ["good"]
            assert skipped == backend.skipped
            assert (skipped.count, skipped.markers) == (len(keys), 2 if place.remote.scheme == "s3" else 1)
            assert sorted(skipped.names) == sorted(key if key.isprintable() else repr(key)[1:-1] for key in keys)
            for key in keys:
                with pytest.raises(InvalidName):
                    await backend.get(key)

    asyncio.run(run())


@clouds
def test_a_place_that_does_not_exist(place: Place) -> None:
    async def run() -> None:
        remote = replace(place.remote, url=f"{place.remote.scheme}://no-bucket-here/x")
        async with OneBackend(remote, profiles=place.profiles) as backend:
            for asked in (backend.get("a"), backend.head("a"), backend.put("a", chunked(b"1"), 1), names(backend)):
                with pytest.raises(RemoteDenied, match=r"no-bucket-here/x/.*: (NoSuchBucket|ContainerNotFound): "):
                    await asked

    asyncio.run(run())


@pytest.mark.parametrize("can_sign", [True, False])
def test_public_objects_of_google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_sign: bool) -> None:
    if not can_sign:  # the listing is obstore's then

        def refused(*_: object) -> str:
            raise PermissionError("this role signs nothing")

        monkeypatch.setattr(ObjectStores, "signed_url", refused)
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


def test_pages_of_azure_continue_at_their_markers_and_must_be_in_order(tmp_path: Path) -> None:
    pages = {"": ["a", "b"], "m1": ["c", "d"], "m2": ["😀", "\uffee"], "m3": ["\ue000"]}

    def decide(asked: Asked) -> Reply:
        query = dict(parse_qsl(urlsplit(asked.path).query))
        assert asked.headers["authorization"].startswith("SharedKey account:")
        marker = query.get("marker", "")
        blobs = "".join(
            f"<Blob><Name>{key}</Name><Properties><Etag>0x{ord(key):X}</Etag><Content-Length>1</Content-Length>"
            "</Properties></Blob>"
            for key in pages[marker]
        )
        after = list(pages)[list(pages).index(marker) + 1 :][:1]
        more = f"<NextMarker>{after[0]}</NextMarker>" if after else "<NextMarker />"
        return Reply(200, f"<EnumerationResults><Blobs>{blobs}</Blobs>{more}</EnumerationResults>".encode())

    async def run() -> None:
        async with OneBackend(Remote("az://container", profile="az"), profiles=str(profiles)) as backend:
            listing = backend.list()
            assert [[one.name for one in await anext(listing)] for _ in range(3)] == [
                ["a", "b"],
                ["c", "d"],
                ["\uffee", "😀"],
            ]
            with pytest.raises(Unsupported, match="name the objects in your entries"):
                await anext(listing)
            before = len(server.asked)
            following = backend.list("", "d")
            assert [one.etag for one in await anext(following)] == ['"0xFFEE"', '"0x1F600"']
            await following.aclose()
            assert [asked.path.partition("marker=")[2][:2] for asked in server.asked[before:]] == ["m2"]

    with DecidedServer(decide) as server:
        profiles = tmp_path / "profiles.toml"
        profiles.touch(0o600)
        profiles.write_text(f'[az]\naccount_name = "account"\naccount_key = "a2V5"\nendpoint = "{server.url}"\n')
        asyncio.run(run())
