"""hpush and hpull: one HTTP request for each object, over persistent connections.

hpush sends the object in the body of a PUT. hpull sends a GET with the object's URL on this node's HTTP endpoint, where
the server fetches it. If the request names a file instead, the two are alike.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from ais_loader.errors import TransformRefused
from ais_loader.extras import needs
from storage_node.etl.servers.channel import CONNECT_S, OutputReceiver, PutFailed, ServerFailed, Unanswered
from storage_node.etl.transform_http import TransformHttp, read
from storage_node.etl.values import Content, Origin, escaped
from storage_node.etl.webserver.protocol import (
    CHUNK_BYTES,
    MAX_ERROR_CHARACTERS,
    PUT_FAILED,
    RECEIPT,
    TRANSFORM_PATH,
    TransformRequest,
    short,
)

if TYPE_CHECKING:
    import aiohttp

IDLE_S = 60.0
"""Time after which an unused connection is closed."""


def new_session() -> aiohttp.ClientSession:
    """Return a session that sends only what the node sets: no cookies, no compression, no proxy from the environment.

    Raises TransformRefused without aiohttp.
    """
    with needs("aiohttp", "transforms that are servers", TransformRefused):
        import aiohttp
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
        trust_env=False,
    )


class HttpChannel:
    """Sends each object as one request. The pool has as many connections as there are concurrent requests."""

    def __init__(self, address: str, transform_http: TransformHttp | None, lent_s: float = 0.0) -> None:
        """`transform_http`: Endpoint that lends inputs for `lent_s` seconds (hpull); None for hpush."""
        self._lent_s = lent_s
        self._url = address + TRANSFORM_PATH
        self._transform_http = transform_http
        self._session = new_session()

    async def ask(self, request: TransformRequest, origin: Origin, content: Content, receiver: OutputReceiver) -> str:
        if self._transform_http is None:
            return await self._exchange("PUT", request, content, receiver)
        if request.file:
            return await self._exchange("GET", request, content, receiver)
        await self._transform_http.start()
        with self._transform_http.lent(origin, content, self._lent_s) as (url, token):
            return await self._exchange("GET", replace(request, source_url=url, source_token=token), content, receiver)

    async def _exchange(
        self, method: str, request: TransformRequest, content: Content, receiver: OutputReceiver
    ) -> str:
        import aiohttp

        headers = request.headers()
        body: bytes | AsyncIterator[bytes] | None = None
        if method == "PUT" and not request.file:
            headers["Content-Length"] = str(content.size_bytes)
            body = _body(content)
        call = self._session.request(method, self._url, data=body, headers=headers, allow_redirects=False)
        try:
            answer = await call
            try:
                return await _answered(answer, request, receiver)
            except BaseException:
                answer.close()  # closes the connection too: it may have unread data
                raise
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unanswered(f"nobody answers at {self._url}: {error}", connected=False) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unanswered(f"{self._url} broke off: {error!r}", connected=True) from error

    async def close(self) -> None:
        await self._session.close()


def _body(content: Content) -> bytes | AsyncIterator[bytes]:
    if content.data is not None and content.size_bytes <= CHUNK_BYTES:
        return bytes(content.data)
    return _chunks(content)


async def _chunks(content: Content) -> AsyncIterator[bytes]:
    for offset in range(0, content.size_bytes, CHUNK_BYTES):
        yield await read(content, offset, CHUNK_BYTES)


async def _answered(answer: aiohttp.ClientResponse, request: TransformRequest, receiver: OutputReceiver) -> str:
    if answer.status == 204 and request.put_url:
        await answer.read()
        return answer.headers.get(RECEIPT, "")
    if answer.status != 200 or request.put_url:
        await _refused(answer)
    await _received(answer, receiver)
    return ""


async def _received(answer: aiohttp.ClientResponse, receiver: OutputReceiver) -> None:
    if (encoding := answer.headers.get("Content-Encoding", "identity")) != "identity":
        raise ServerFailed(f"it answered with Content-Encoding {encoding}, which was not asked for")
    if answer.content_length is None:
        if answer.headers.get("Transfer-Encoding", "").lower() != "chunked":
            raise ServerFailed("it answered with neither Content-Length nor chunks, so that a break is not noticed")
    elif answer.content_length <= CHUNK_BYTES:
        await receiver.take(await answer.read())
        return
    async for chunk in answer.content.iter_any():
        await receiver.take(chunk)


async def _refused(answer: aiohttp.ClientResponse) -> NoReturn:
    problem = ""
    with contextlib.suppress(UnicodeDecodeError):
        problem = escaped(short((await answer.content.read(4 * MAX_ERROR_CHARACTERS)).decode()))
    status = escaped(f"HTTP {answer.status} {answer.reason}")
    if answer.status == 503:
        raise Unanswered(f"{status}: {problem}", connected=False)
    if PUT_FAILED in answer.headers:
        raise PutFailed(problem)
    if answer.status == 500 and problem:
        raise ServerFailed(problem)
    if 300 <= answer.status < 400:
        raise ServerFailed(f"{status}, and redirects are not followed")
    if answer.status in (200, 204):
        raise ServerFailed(f"{status} where {'204' if answer.status == 200 else '200'} is due: see direct_put")
    raise ServerFailed(f"{status}: {problem}" if problem else status)
