"""Remote servers that send too much, too slowly, or for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from ais_loader.errors import LoaderError, RemoteUnavailable
from ais_loader.wire.remote import Remote
from storage_node.limits import bounded_xml
from storage_node.limits.pace import PaceLimits
from storage_node.remote.drivers import driver, s3_listing
from tests.remote.backend_kit import MIB, Asked, DecidedServer, OneBackend, Reply, content, names, read
from tests.table import table

SLOW = r"less than [0-9,]+ bytes per second"


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


def s3_page(keys: list[str], *, is_last: bool = True, more: str = "") -> bytes:
    rows = "".join(f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in keys)
    ending = "false" if is_last else "true"
    return f"<ListBucketResult>{rows}<IsTruncated>{ending}</IsTruncated>{more}</ListBucketResult>".encode()


def listed(decide: Callable[[Asked], Reply], remote: Remote | None = None, profiles: str = "") -> tuple[list[str], int]:
    """Return the names that a server lists, and the number of requests. Raises the listing's error."""

    async def run() -> list[str]:
        async with OneBackend(remote or server.remote(), retry_s=0.2, profiles=profiles) as backend:
            return await asyncio.wait_for(names(backend), 180)

    with DecidedServer(decide) as server:
        return asyncio.run(run()), len(server.asked)


def refused(answer: bytes, reason: str) -> None:
    with pytest.raises(RemoteUnavailable, match=f"its listing cannot be read: .*{reason}"):
        listed(lambda _: Reply(200, answer))


def test_a_page_has_a_size() -> None:
    refused(s3_page(["a"], more="<a>" + "x" * bounded_xml.MAX_BYTES + "</a>"), "more than 4,194,304 bytes")
    most = s3_page([f"{at:04}" + "ä" * 510 for at in range(1000)], more=" " * MIB)
    assert len(listed(lambda _: Reply(200, most))[0]) == 1000


@table(
    "answer, reason",
    [
        (b"<ListBucketResult>" + b"<a/>" * 200_000 + b"</ListBucketResult>", "too many elements"),
        (b"<ListBucketResult>" + b"<a>" * 20, "too many elements"),
        (b"<!DOCTYPE a [<!ENTITY b 'c'>]><ListBucketResult>&b;</ListBucketResult>", "document types"),
        (b"<!DOCTYPE a SYSTEM 'file:///etc/passwd'><ListBucketResult/>", "document types"),
        (b"<Error/>", "root must be ListBucketResult"),
        (b"<ListBucketResult>", "not well-formed"),
        (b"<?xml version='1.0' encoding='nonsense'?><ListBucketResult/>", ""),
        (b"", "not well-formed"),
        (s3_page(["a"]).replace(b"1</Size>", b"one</Size>"), "invalid literal"),
    ],
    ids=lambda value: str(value[:40]),
)
def test_what_is_no_listing_is_refused(answer: bytes, reason: str) -> None:
    refused(answer, reason)


def test_the_event_loop_parses_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()

    def parse(*arguments: Any) -> bounded_xml.Element:
        threads.add(threading.get_ident())
        return bounded_xml.parse(*arguments)

    monkeypatch.setattr(s3_listing, "parse", parse)
    found, _ = listed(lambda _: Reply(200, s3_page(["a", "b"])))
    assert found == ["a", "b"]
    assert threads and threading.get_ident() not in threads


@table("pages", [[["a", "b"]], [["a", "b"], ["c", "d"]], [["c"], ["a"]]], ids=str)
def test_a_listing_that_does_not_advance_ends(pages: list[list[str]]) -> None:
    def decide(asked: Asked) -> Reply:
        return Reply(200, s3_page(pages[asked.number % len(pages)], is_last=False))

    with pytest.raises(RemoteUnavailable, match=r"does not advance after '[bcd]': each page must follow"):
        listed(decide)


@pytest.fixture
def azure(tmp_path: Path) -> Callable[[Callable[[Asked], Reply]], list[str]]:
    """Lists a container whose server a function decides."""

    def azure_listed(decide: Callable[[Asked], Reply]) -> list[str]:
        async def run() -> list[str]:
            async with OneBackend(Remote("az://c", profile="az"), retry_s=0.2, profiles=str(profiles)) as backend:
                return await asyncio.wait_for(names(backend), 180)

        with DecidedServer(decide) as server:
            profiles = tmp_path / "profiles.toml"
            profiles.touch(0o600)
            profiles.write_text(f'[az]\naccount_name = "account"\naccount_key = "a2V5"\nendpoint = "{server.url}"\n')
            return asyncio.run(run())

    return azure_listed


@table("length", [1, 2, 3, 7])
@table("with_keys", [False, True])
def test_markers_of_azure_in_a_circle_end(
    azure: Callable[[Callable[[Asked], Reply]], list[str]], length: int, with_keys: bool
) -> None:
    def decide(asked: Asked) -> Reply:
        marker = int(dict(parse_qsl(urlsplit(asked.path).query)).get("marker", "m0")[1:])
        blob = f"<Blob><Name>k{marker}</Name><Properties><Content-Length>1</Content-Length></Properties></Blob>"
        more = f"<NextMarker>m{marker + 1 if marker < 3 + length - 1 else 3}</NextMarker>"
        blobs = f"<Blobs>{blob if with_keys else ''}</Blobs>"
        return Reply(200, f"\ufeff<EnumerationResults>{blobs}{more}</EnumerationResults>".encode())

    with pytest.raises(LoaderError, match=r"does not advance|such names cannot be listed here"):
        azure(decide)


def test_a_page_that_comes_too_slowly_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "PACE", PaceLimits(rate_bytes_per_s=1e6, rate_window_s=0.1))
    slowly = Reply(200, s3_page(["a"] * 5000), pause_s=0.01)
    refusal = Reply(403, b"<Error><Code>AccessDenied</Code></Error>" + b" " * 60_000, pause_s=0.01)
    for reply in (slowly, refusal):
        with pytest.raises(RemoteUnavailable, match=SLOW):
            listed(lambda _, reply=reply: reply)  # type: ignore[misc]


def test_an_object_that_comes_too_slowly_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "PACE", PaceLimits(rate_bytes_per_s=10 * MIB))

    def decide(asked: Asked) -> Reply:
        reply = content(asked, bytes(20_000))
        reply.pause_s = 0.01
        return reply

    async def run() -> None:
        async with OneBackend(server.remote(), retry_s=0.2) as backend:
            with pytest.raises(RemoteUnavailable, match=SLOW):
                await asyncio.wait_for(read(backend, "a"), 180)

    with DecidedServer(decide) as server:
        asyncio.run(run())
