"""The node's HTTP side: never more than what a token names; and addresses: never another than an operator's."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ais_loader.errors import NodeUnavailable, TransformFailed, TransformRefused
from ais_loader.wire.generated import ais_etl_pb2 as pb
from storage_node.etl import signed_tokens, transform_http
from storage_node.etl.servers.stage import require_allowed
from storage_node.etl.signed_tokens import SignedTokenRefused, signed, verified
from storage_node.etl.transform_http import PutTarget, TransformHttp
from storage_node.etl.values import Content, Origin, PutResult
from tests.etl.servers.server_kit import HPULL, HPUSH, ORIGIN, WS, Owner, new_server, of_file, open_stage, run
from tests.table import table

KEY = b"k" * 32


@contextlib.asynccontextmanager
async def started(peer_secret: str = "") -> AsyncIterator[tuple[TransformHttp, aiohttp.ClientSession, Owner]]:
    side, owner = TransformHttp(peer_secret=peer_secret), Owner()
    side.put_result = owner.put
    await side.start()
    async with aiohttp.ClientSession() as session:
        try:
            yield side, session, owner
        finally:
            await side.stop()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def said(answer: Any) -> tuple[int, str]:
    async with answer as response:
        return response.status, await response.text()


def test_an_input_is_had_by_its_token_as_long_as_it_is_lent(tmp_path: Path) -> None:
    async def main() -> None:
        async with started() as (side, session, _):
            large = of_file(tmp_path / "x", bytes(range(256)) * 10_000)
            for content, data in ((Content.of(b"input"), b"input"), (large, bytes(range(256)) * 10_000)):
                with side.lent(ORIGIN, content, 10) as (url, token):
                    assert url.endswith("/inputs/b/gr%C3%B6%C3%9Fer/a%20%23%3F%25.txt?version=7")
                    for _ in range(2):
                        async with session.get(_raw(url), headers=bearer(token)) as answer:
                            assert (answer.status, await answer.read()) == (200, data)
                assert await said(session.get(_raw(url), headers=bearer(token))) == (
                    410,
                    "this input is not lent any more",
                )
            large.close()

    run(main())


def test_what_is_read_of_an_input_that_is_taken_back_meanwhile_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with started() as (side, session, _):
            large, lent = of_file(tmp_path / "x", bytes(range(256)) * 10_000), contextlib.ExitStack()
            url, token = lent.enter_context(side.lent(ORIGIN, large, 10))

            async def taken_back(content: Content, offset: int, length: int) -> bytes:
                lent.close()  # its descriptor may be closed now, and be that of another file
                return b"other bytes"

            monkeypatch.setattr(transform_http, "read", taken_back)
            async with session.get(_raw(url), headers=bearer(token)) as answer:
                with pytest.raises(aiohttp.ClientPayloadError):
                    assert [chunk async for chunk in answer.content.iter_any()] == []
                assert answer.content.total_bytes == 0
            large.close()

    run(main())


def _raw(url: str) -> Any:
    from yarl import URL

    return URL(url, encoded=True)


def test_no_token_gives_more_than_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with started() as (side, session, owner), started() as (other, _, _):
            url = await side.start()
            target = side.target(url, "to", "n", max_bytes=10, lifetime_s=60)
            with (
                side.lent(ORIGIN, Content.of(b"a"), 10) as (lent, token),
                other.lent(ORIGIN, Content.of(b"a"), 10) as (_, foreign),
                side.lent(Origin("b", "other", "7"), Content.of(b"b"), 10) as (second, second_token),
            ):
                assert await said(session.get(_raw(lent))) == (401, "no token: Authorization: Bearer …")
                assert (await said(session.get(_raw(lent), headers={"Authorization": f"Basic {token}"})))[0] == 401
                for wrong in ("", "x", "x.y", token + "A", "A" + token, token.replace(".", ""), "ä.ö", foreign):
                    status, text = await said(session.get(_raw(lent), headers=bearer(wrong)))
                    assert status in (401, 403) and ("not signed by this node" in text or "no token" in text), wrong
                of_another = (403, "the token is of another object")
                assert await said(session.get(_raw(lent), headers=bearer(second_token))) == of_another
                assert await said(session.get(_raw(second), headers=bearer(token))) == of_another
                for changed in (lent.replace("version=7", "version=8"), lent.split("?")[0], lent + "&x=1"):
                    assert await said(session.get(_raw(changed), headers=bearer(token))) == of_another
                # For another method, both ways.
                assert await said(session.get(_raw(lent), headers=bearer(target.token))) == (
                    403,
                    "the token is for put, not for get",
                )
                path = lent.replace("/inputs/", "/results/")
                status, text = await said(session.put(_raw(path), headers=bearer(token), data=b"x"))
                assert (status, text) == (403, "the token is for get, not for put")
                assert (await said(session.put(_raw(lent), headers=bearer(target.token), data=b"x")))[0] == 405
                assert (await said(session.delete(_raw(target.url), headers=bearer(target.token))))[0] == 405
                put_elsewhere = target.url.replace("/to/n", "/to/m")
                assert await said(session.put(put_elsewhere, headers=bearer(target.token), data=b"x")) == of_another
                foreign_target = other.target(url, "to", "n", max_bytes=10, lifetime_s=60)
                assert (await said(session.put(target.url, headers=bearer(foreign_target.token), data=b"x")))[0] == 403
                now_s = signed_tokens.time.time()
                with monkeypatch.context() as later:
                    later.setattr(signed_tokens.time, "time", lambda: now_s + 61)
                    for asked in (
                        session.get(_raw(lent), headers=bearer(token)),
                        session.put(target.url, headers=bearer(target.token), data=b"x"),
                    ):
                        assert await said(asked) == (403, "the token has expired")
                for nowhere in ("/", "/objects", "/metrics"):
                    assert (await said(session.get(url + nowhere, headers=bearer(token))))[0] == 404
            assert owner.objects == {}

    run(main())


def test_a_result_is_taken_once_whole_and_within_its_size() -> None:
    async def main() -> None:
        async with started() as (side, session, owner):
            url = await side.start()

            def target(name: str, **extra: Any) -> PutTarget:
                return side.target(url, "to", name, max_bytes=10, lifetime_s=60, extra=extra)

            async def put(target: PutTarget, data: Any) -> tuple[int, str]:
                return await said(session.put(target.url, headers=bearer(target.token), data=data))

            async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
                for part in parts:
                    yield part

            first = target("a", why="because")
            assert await put(first, b"0123456789") == (204, "")
            assert await put(first, b"0123456789") == (409, "the token has been used")
            assert owner.claims[0].extra == {"why": "because"}
            for body in (b"0123456789x", chunks(b"01234", b"56789", b"x")):
                assert await put(target("b"), body) == (413, "the result is larger than its 10 bytes")
            assert await put(target("b"), chunks(b"01234", b"56789")) == (204, "")
            again = target("a", if_absent=True)
            for _ in range(2):  # not used up by a try that wrote nothing
                assert await put(again, b"x") == (409, "version-conflict: to/a is there already")
            assert owner.objects == {"to/a": b"0123456789", "to/b": b"0123456789"}
            side.put_result = None
            assert await put(target("d"), b"") == (503, "this node takes no results")

    run(main())


def test_a_result_that_breaks_off_is_told_so_to_whoever_writes_it() -> None:
    async def main() -> None:
        async with started() as (side, _, _):
            url = await side.start()
            ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
            begun = asyncio.Event()

            async def write(claims: Any, chunks: AsyncIterator[bytes]) -> PutResult:
                try:
                    async for _ in chunks:
                        begun.set()
                except BaseException as error:
                    ended.set_result(error)
                    raise
                ended.set_result(None)
                return PutResult("1", 0, 0)

            side.put_result = write
            for head in ("Content-Length: 9\r\n\r\n1234", "Transfer-Encoding: chunked\r\n\r\n4\r\n1234\r\n"):
                ended = asyncio.get_running_loop().create_future()
                begun.clear()
                target = side.target(url, "to", "c", max_bytes=10, lifetime_s=60)
                _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
                path = target.url.removeprefix(url)
                writer.write(
                    f"PUT {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {target.token}\r\n{head}".encode()
                )
                await writer.drain()
                await begun.wait()
                writer.close()
                assert isinstance(await ended, OSError)

    run(main())


def test_a_result_that_fails_after_its_token_has_expired_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with started() as (side, session, owner):
            url, begun, go = await side.start(), asyncio.Event(), asyncio.Event()

            async def fail(claims: Any, chunks: AsyncIterator[bytes]) -> PutResult:
                begun.set()
                await go.wait()
                raise NodeUnavailable("no owner answers")

            def put(name: str) -> Any:
                target = side.target(url, "to", name, max_bytes=10, lifetime_s=60)
                return session.put(target.url, headers=bearer(target.token), data=b"x")

            side.put_result = fail
            slow = asyncio.create_task(said(put("slow")))
            await begun.wait()
            side.put_result, now_s = owner.put, signed_tokens.time.time()
            with monkeypatch.context() as later:
                later.setattr(signed_tokens.time, "time", lambda: now_s + 61)
                assert (await said(put("other")))[0] == 204
            go.set()
            assert await slow == (503, "node-unavailable: no owner answers")

    run(main())


def test_a_result_goes_to_another_node_by_the_secret_of_the_cluster_alone() -> None:
    async def main() -> None:
        async with (
            started("a secret of the cluster") as (job, _, _),
            started("a secret of the cluster") as (owner_side, session, owner),
            started("another secret") as (stranger, _, _),
        ):
            url = await owner_side.start()
            target = job.target(url, "to", "n", max_bytes=10, lifetime_s=60)
            async with session.put(target.url, headers=bearer(target.token), data=b"made") as answer:
                receipt = answer.headers["Ais-Etl-Receipt"]
            stored = job.stored(target, receipt)
            assert (stored.version, stored.size_bytes, stored.checksum) == ("v1", 4, Content.of(b"made").checksum)
            assert owner.objects == {"to/n": b"made"}
            other = job.target(url, "to", "other", max_bytes=10, lifetime_s=60)
            with pytest.raises(SignedTokenRefused, match="of another result"):
                job.stored(other, receipt)
            for forged in ("", other.token, stranger.target(url, "to", "n", max_bytes=1, lifetime_s=1).token):
                with pytest.raises(SignedTokenRefused):
                    job.stored(target, forged)
            wrong = stranger.target(url, "to", "n", max_bytes=10, lifetime_s=60)
            assert (await said(session.put(wrong.url, headers=bearer(wrong.token), data=b"x")))[0] == 403

    run(main())


def test_a_server_that_says_it_has_put_and_has_not_is_not_believed() -> None:
    async def main() -> None:
        async def liar(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 204 No Content\r\nAis-Etl-Receipt: made.up\r\nConnection: close\r\n\r\n")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(liar, "127.0.0.1", 0)
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with open_stage(address) as (stage, side):
            target = side.target(await side.start(), "to", "n", max_bytes=10, lifetime_s=60)
            with pytest.raises(TransformFailed, match="the server's receipt: the token was not signed"):
                await stage.run_to(ORIGIN, Content.of(b""), "", target)
        server.close()

    run(main())


def test_nothing_listens_before_it_is_needed() -> None:
    async def main() -> None:
        with new_server("http").running() as address:
            async with open_stage(address) as (stage, side):
                (await stage.run(ORIGIN, Content.of(b"x"), "")).close()
                assert side._runner is None
            async with open_stage(address, HPULL) as (stage, side):
                (await stage.run(ORIGIN, Content.of(b"x"), "")).close()
                assert (await side.start()).startswith("http://127.0.0.1:")

    run(main())


@table(
    ("advertise", "url"),
    [("", "http://127.0.0.1:PORT"), ("a.example", "http://a.example:PORT"), ("a.example:80", "http://a.example:80"),
     ("::1", "http://[::1]:PORT"), ("[::1]", "http://[::1]:PORT"), ("[::1]:80", "http://[::1]:80")],
)  # fmt: skip
def test_it_is_found_where_it_is_said_to_be(advertise: str, url: str) -> None:
    async def main() -> None:
        side = TransformHttp(advertise=advertise)
        found = await side.start()
        assert side._runner is not None
        assert found == url.replace("PORT", str(side._runner.addresses[0][1]))
        await side.stop()

    run(main())


# -- tokens


def test_a_token_is_what_was_signed_and_for_its_purpose() -> None:
    token = signed(KEY, "get", {"path": "/ä", "n": 1}, 60)
    claims = verified(KEY, token, "get")
    assert (claims["path"], claims["n"]) == ("/ä", 1)
    body, _, mac = token.partition(".")
    raised = json.dumps({"path": "/other", "purpose": "get", "expires": 9e9}).encode()
    forged = signed_tokens._encoded(raised)
    for wrong in (f"{forged}.{mac}", f"{body}.", f".{mac}", body, f"{body}.{mac[:-1]}"):
        with pytest.raises(SignedTokenRefused, match="not signed"):
            verified(KEY, wrong, "get")
    with pytest.raises(SignedTokenRefused, match="not signed"):
        verified(b"another", token, "get")
    with pytest.raises(ValueError, match="too long for a direct put"):
        signed(KEY, "put", {"extra": "x" * 6000}, 60)


# -- addresses

ALLOWED = ("http://127.0.0.1:9000", "https://Transforms.example", "http://[::1]:9000/base/")


@table(
    ("address", "communication", "expected"),
    [
        ("http://127.0.0.1:9000", HPUSH, "http://127.0.0.1:9000"),
        ("http://127.0.0.1:9000/flac/", HPULL, "http://127.0.0.1:9000/flac"),
        ("HTTPS://transforms.EXAMPLE:443/x", WS, "HTTPS://transforms.EXAMPLE:443/x"),
        ("http://[::1]:9000", WS, "http://[::1]:9000"),
    ],
)
def test_an_address_of_the_operators_is_gone_to(address: str, communication: Any, expected: str) -> None:
    assert require_allowed(pb.TransformServer(address=address, communication=communication), ALLOWED) == expected


@table(
    ("address", "communication", "said"),
    [
        ("http://127.0.0.1:9001", HPUSH, "not among the servers that the operator allows"),
        ("http://127.0.0.2:9000", HPUSH, "not among"),
        ("http://localhost:9000", HPUSH, "not among"),
        ("https://127.0.0.1:9000", HPUSH, "not among"),
        ("http://transforms.example", HPUSH, "not among"),
        ("http://127.0.0.1:9000.evil.example", HPUSH, "Port could not be cast"),
        ("http://127.0.0.1:9000@evil.example", HPUSH, "need http://HOST:PORT"),
        ("http://user@127.0.0.1:9000", HPUSH, "need http://HOST:PORT"),
        ("http://127.0.0.1:9000?x", HPUSH, "need http://HOST:PORT"),
        ("http://127.0.0.1:9000#x", HPUSH, "need http://HOST:PORT"),
        ("http://evil.example\\@127.0.0.1:9000", HPUSH, "need http://HOST:PORT"),
        ("http://127.0.0.1:99999", HPUSH, "out of range"),
        ("grpc://10.0.0.4:9001", WS, "need http://HOST:PORT"),
        ("file:///etc/passwd", HPUSH, "need http://HOST:PORT"),
        ("unix:/run/x", WS, "need http://HOST:PORT"),
        ("", HPUSH, "need http://HOST:PORT"),
    ],
)
def test_no_other_is(address: str, communication: Any, said: str) -> None:
    with pytest.raises(TransformRefused, match=said.replace(".", r"\.")):
        require_allowed(pb.TransformServer(address=address, communication=communication), ALLOWED)


def test_a_stage_of_an_address_that_is_not_allowed_is_not_made() -> None:
    async def main() -> None:
        with pytest.raises(TransformRefused, match="see the setting etl_servers"):
            async with open_stage("http://127.0.0.1:9000", allowed=["http://127.0.0.1:9001"]):
                pass

    run(main())


def test_no_server_is_sent_to_addresses_that_its_author_has_not_listed() -> None:
    async def main() -> None:
        with new_server("http").running() as address:
            async with open_stage(address) as (stage, _):
                for url in ("http://192.0.2.1:80/results/x", "https://127.0.0.1/results/x", "file:///etc/passwd"):
                    with pytest.raises(NodeUnavailable, match="neither on this machine nor among the `nodes`"):
                        await stage.run_to(ORIGIN, Content.of(b""), "", PutTarget(url, "token"))

    run(main())
