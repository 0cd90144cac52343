"""HTTP server of the gateway: reads requests, has them verified and answered in threads, and sends the answers.

Memory is bounded in both directions. A body is taken as fast as it is decoded, and kept in a file if the bodies have no
room in memory. An answer is read from the store as fast as the client takes it. `server/` has what bounds clients, and
counts requests.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, nullcontext, suppress
from functools import partial
from ipaddress import ip_address
from typing import Any, TypeVar

from ais_loader.errors import LoaderError
from ais_loader.extras import needs
from storage_node.limits.call_slots import CallSlot, peer_of_address
from storage_node.settings.config import is_loopback

from .aistore.interface import admit, error_answer, is_aistore
from .bodies import Body
from .clients import Account, Clients
from .direct_send import DirectSend, head
from .post_form import PostForm
from .request import INLINE_BYTES, Incoming, Refusal, Request, Response, S3Error, of_store, query_pairs
from .router import S3Call, route, split_path, virtual_bucket
from .server.access_log import AccessLog
from .server.bounded_server import (
    PAGE_PREFIX,
    BoundedServer,
    ListenerSite,
    cut,
    exchange_of,
    own_headers,
    read_at_once,
    refusal,
)
from .server.counters import GatewayCounters
from .server.exchange import Exchange
from .server.options import GatewayOptions
from .server.request_slots import RequestSlots
from .signature import UNSIGNED, Signed, verify
from .spool import AT_ONCE_BYTES, BodyMemory, BodySpool
from .websites import refuse_websites

with needs("aiohttp", "ais-loader gateway", extra="gateway"):
    from aiohttp import HttpVersion11, web
    from multidict import CIMultiDict

log = logging.getLogger(__name__)
T = TypeVar("T")
_BATCH_BYTES = 256 << 10
_CROWDED_BATCH_BYTES = 32 << 10
_WIDE_BODIES, _WIDE_BATCH_BYTES, _WIDE_READ_BYTES = 8, 512 << 10, 256 << 10
"""So many large bodies at once are received in larger pieces, with fewer turns of threads."""
_PIECE_BYTES = 64 << 10
"""Answers are handed to connections in pieces of this size: asyncio copies what a client does not take at once."""
_PIECE_OVERHEAD_BYTES = 64
"""Memory that each piece of a body takes beyond its bytes. A client can send pieces of one byte."""
_INLINE_BYTES = 64 << 10
"""Bodies up to this size are decoded on the event loop, which costs less than a change of threads."""
_FEED_THREADS = 4
_SMALL_BODY_BYTES = 64 << 10
_END = object()


class Gateway:
    """Answers requests on the S3 interface of a store."""

    def __init__(
        self,
        clients: Clients,
        keys: Mapping[str, Account] | None,
        options: GatewayOptions | None = None,
    ) -> None:
        """`keys`: accounts by access keys. None: requests need no signature. Raises OSError."""
        self._clients, self._keys = clients, keys
        self._options = options or GatewayOptions()
        self.limits = self._options.limits
        self.counters = GatewayCounters()
        log_file = self._options.access_log
        self._access_log = AccessLog(log_file) if log_file is not None else None
        self._page: web.Application | None = None
        self._threads = ThreadPoolExecutor(self.limits.requests, thread_name_prefix="gateway")
        self._feeds = ThreadPoolExecutor(_FEED_THREADS, thread_name_prefix="gateway-body")
        self._slots = RequestSlots(self.limits.requests, self.limits)
        self._large_bodies = asyncio.Semaphore(self.limits.large_bodies)
        self._batches = RequestSlots(self.limits.batches, self.limits)
        self._memory = BodyMemory(self.limits.bodies_bytes)
        self._pending_bytes = 0
        self._wide_bodies = 0
        self._server: BoundedServer | None = None
        self._runner: web.ServerRunner | None = None
        self._is_loopback = False
        """Whether it listens on loopback."""

    async def start(self, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections from a socket, which `stop` closes. Raises OSError."""
        if token := self._options.page_token:
            from ais_loader.ui.server import new_app

            self._page = new_app(self._clients.of(None), f"{PAGE_PREFIX.strip('/')}/{token}")
            self._page.freeze()
            await self._page.startup()
        self._is_loopback = is_loopback(str(listener.getsockname()[0]))
        self._server = BoundedServer(
            self._handle, self.limits, self.counters, access_log=self._access_log, page=self._page
        )
        self._runner = web.ServerRunner(self._server, shutdown_timeout=self.limits.grace_s)
        await self._runner.setup()
        await ListenerSite(self._runner, listener, tls, self.limits.idle_s).start()

    async def stop(self) -> None:
        """Let running requests finish for `grace_s`, then end."""
        if self._runner is not None and self._server is not None:
            cutting = asyncio.get_running_loop().call_later(self.limits.grace_s, self._server.cut)
            await self._runner.cleanup()
            cutting.cancel()
        if self._page is not None:
            await self._page.cleanup()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._feeds.shutdown(wait=False, cancel_futures=True)
        if self._access_log is not None:
            self._access_log.close()

    async def _run(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    async def _handle(self, http: web.BaseRequest) -> web.StreamResponse:
        exchange = exchange_of(http)
        request_id = exchange.request_id
        if self._page is not None and isinstance(http, web.Request):
            exchange.call, exchange.path = "Page", PAGE_PREFIX  # the rest of the path is secret
            return await self._page._handle(http)
        refused: Refusal
        try:
            headers = _joined(http, self.limits.headers_bytes)
            if self._keys is None:
                refuse_websites(headers, self._options.domains, is_loopback=self._is_loopback)
            if self._is_aistore(http):
                return await self._answer_aistore(http, headers, exchange)
            return await self._answer(http, headers, exchange)
        except Refusal as error:
            refused = error
        except LoaderError as error:
            refused = of_store(error)
        except ConnectionError:
            # The client is gone, or was cut off. Raised, aiohttp would log it as an error.
            if http.transport is not None:
                http.transport.abort()
            return web.Response()
        except TimeoutError:
            refused = S3Error("RequestTimeout", "nothing arrived, or was taken, for too long")
        except Exception:
            log.exception("request %s failed", request_id)
            refused = S3Error("InternalError", "the request failed; the log of the gateway says why")
        return await self._refuse(http, refused, request_id)

    def _is_aistore(self, http: web.BaseRequest) -> bool:
        """Whether a request is one of AIStore's API. Paths below a bucket's own host are keys."""
        path = http._message.path.partition("?")[0]
        return is_aistore(path) and not virtual_bucket(http.headers.get("Host", ""), self._options.domains)

    async def _refuse(self, http: web.BaseRequest, error: Refusal, request_id: str) -> web.StreamResponse:
        path = http.rel_url.raw_path[:1024]
        if self._is_aistore(http):
            return self._at_once(http, error_answer(error, http.method, path, http.remote or ""), request_id)
        has_body = http.method != "HEAD" and error.status != 304
        answer = refusal(error, path, request_id, has_body=has_body)
        if not http.content.at_eof():
            answer.force_close()
        return answer

    def _at_once(self, http: web.BaseRequest, response: Response, request_id: str) -> web.Response:
        """Return an answer that does not wait for the body."""
        assert isinstance(response.body, bytes)
        headers = response.headers | own_headers(request_id)
        answer = web.Response(status=response.status, headers=headers, body=response.body or None)
        if not http.content.at_eof():
            answer.force_close()
        return answer

    async def _answer_aistore(
        self, http: web.BaseRequest, headers: Mapping[str, str], exchange: Exchange
    ) -> web.StreamResponse:
        path, _, query = http._message.path.partition("?")
        admitted = admit(
            http.method,
            path,
            query,
            headers,
            is_tls=self._is_tls(http, headers),
            clients=self._clients,
            keys=self._keys,
            spool=self._options.spool,
            memory=self._memory,
        )
        exchange.call, exchange.access_key = admitted.name, admitted.access_key
        try:
            if admitted.must_check:
                async with self._slots.held(*self._holder(http, exchange)):
                    await self._run(admitted.check)
            if admitted.redirect is not None:
                return self._at_once(http, admitted.redirect, exchange.request_id)
            if admitted.body is not None:
                await self._receive(http, admitted.body)
            elif (response := admitted.at_once()) is not None:
                return await self._send(http, response, exchange.request_id, ())
            return await self._answered(http, admitted.answer, admitted.body, exchange, is_batch=admitted.is_batch)
        finally:
            exchange.call = admitted.name
            if admitted.body is not None:
                admitted.body.close()

    def _is_tls(self, http: web.BaseRequest, headers: Mapping[str, str]) -> bool:
        """Whether the client uses TLS, to the gateway or to a proxy in front of it."""
        if http.secure or headers.get("x-forwarded-proto", "").lower() != "https":
            return http.secure
        return any(ip_address(http.remote or "::") in network for network in self._options.proxies)

    async def _answer(
        self, http: web.BaseRequest, headers: Mapping[str, str], exchange: Exchange
    ) -> web.StreamResponse:
        path, _, query = http._message.path.partition("?")
        host = headers.get("host", "")
        parameters = dict(query_pairs(query))
        bucket, key = split_path(path, host, self._options.domains)
        bucket_path = f"/{bucket}{path}" if virtual_bucket(host, self._options.domains) else path
        form = PostForm.of(http.method, bucket, key, query, headers.get("content-type", ""), self._keys)
        signed = Signed(None, UNSIGNED)  # as far as it is known before a form has come
        if form is None:
            signed = verify(http.method, path, query, headers, bucket_path, self._keys)
        exchange.access_key = signed.account.access_key if signed.account is not None else ""
        call = route(http.method, bucket, key, parameters, headers)
        exchange.call = call.name
        if call.name == "PostObject" and form is None:
            raise S3Error("NotImplemented", "POST of a bucket without a form of the type multipart/form-data")
        body = self._body(http, call, headers, signed, form)
        try:
            if body is not None:
                await self._receive(http, body)
            if form is not None and form.account is not None:
                signed, exchange.access_key = Signed(form.account, UNSIGNED), form.account.access_key
            request = Request(
                http.method,
                path,
                parameters,
                headers,
                bucket,
                key,
                self._clients.of(signed.account),
                body,
                self._options.with_members,
                exchange.access_key,
            )
            if (response := call.at_once(request)) is not None:
                return await self._send(http, response, exchange.request_id, ())
            return await self._answered(http, lambda: call.answer(request), body, exchange, is_batch=call.is_batch)
        finally:
            if body is not None:
                body.close()

    async def _answered(
        self,
        http: web.BaseRequest,
        answer: Callable[[], Response],
        body: BodySpool | None,
        exchange: Exchange,
        *,
        is_batch: bool,
    ) -> web.StreamResponse:
        """Answer a request in a thread, and send the answer. Raises S3Error if too many are being answered."""
        holder = self._holder(http, exchange)
        async with AsyncExitStack() as held:
            kinds = (self._batches, self._slots) if is_batch else (self._slots,)
            slots = [await held.enter_async_context(kind.held(*holder)) for kind in kinds]
            is_large = body is not None and not body.is_in_memory
            if (is_batch or http.method == "GET") and not is_large and http.version == HttpVersion11:
                direct = DirectSend.on(http.transport, self.limits, slots)
                if direct is not None:
                    return await self._answer_directly(http, answer, direct, exchange.request_id, slots)
            async with self._large_bodies if is_large else nullcontext():
                response = await self._run(answer)
            return await self._send(http, response, exchange.request_id, slots)

    async def _answer_directly(
        self,
        http: web.BaseRequest,
        answer: Callable[[], Response],
        direct: DirectSend,
        request_id: str,
        slots: Sequence[CallSlot],
    ) -> web.StreamResponse:
        """Answer a request in a thread, which also sends the answer if it has a large body."""
        keep_alive = http.keep_alive

        def head_of(response: Response) -> bytes:
            headers = [*(response.headers | own_headers(request_id)).items(), *response.repeated]
            size_bytes = len(response.body) if isinstance(response.body, bytes) else response.size_bytes
            return head(response.status, headers, size_bytes=size_bytes, keep_alive=keep_alive)

        job = self._threads.submit(direct.answer, answer, head_of)
        try:
            response = await asyncio.wrap_future(job)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                direct.stop()  # the thread then ends, and closes what it has opened
                if job.cancel():
                    direct.close()
            elif not direct.has_begun:
                raise
            self.counters.closed["slow_answer"] += direct.is_slow
            raise self._ended_early(http, error, request_id) from None
        finally:
            http.writer.output_size += direct.sent_bytes
        if direct.has_begun:
            return _SentAnswer(response.status, keep_alive=keep_alive)
        return await self._send(http, response, request_id, slots)

    def _ended_early(self, http: web.BaseRequest, error: BaseException, request_id: str) -> BaseException:
        """End a connection in the middle of an answer, and return the error to raise.

        The status has been sent. Without the end of the body, the client knows that it is not complete.
        """
        if http.transport is not None:
            http.transport.abort()
        if isinstance(error, (ConnectionError, asyncio.CancelledError)) and not isinstance(error, LoaderError):
            return error
        log.warning("request %s ended in the middle of its answer: %s", request_id, error)
        return ConnectionResetError("the answer ended early")

    def _holder(self, http: web.BaseRequest, exchange: Exchange) -> tuple[str, Callable[[], None]]:
        """Return who shares its slots with this request, and what ends it if another request needs its own."""
        peer = peer_of_address(exchange.client) if exchange.client else ""
        holder = f"key {exchange.access_key}" if exchange.access_key else f"address {peer}"
        return holder, partial(self._cut, http)

    def _cut(self, http: web.BaseRequest) -> None:
        """End a connection, also if a thread sends on it."""
        self.counters.closed["slow_answer"] += 1
        if http.transport is not None:
            cut(http.transport)

    def _body(
        self, http: web.BaseRequest, call: S3Call, headers: Mapping[str, str], signed: Signed, form: PostForm | None
    ) -> Body | None:
        has_body = "content-length" in headers or "transfer-encoding" in headers
        if not call.most_bytes and not http.can_read_body:
            return None
        if call.name in ("PutObject", "UploadPart") and not has_body:
            raise S3Error("MissingContentLength", "need Content-Length")
        most_bytes = call.most_bytes or _SMALL_BODY_BYTES
        length = headers.get("content-length", "0")
        if not signed.payload.startswith("STREAMING-") and int(length) > most_bytes:
            raise S3Error("EntityTooLarge", f"the body has more than {most_bytes:,} bytes")
        # A completion announces the checksum of the object, and not of the document with its parts.
        is_checked = call.name != "CompleteMultipartUpload"
        return Body(
            headers,
            signed,
            folder=self._options.spool,
            most_bytes=most_bytes,
            memory=self._memory,
            is_checked=is_checked and form is None,
            form=form,
        )

    async def _receive(self, http: web.BaseRequest, body: Incoming) -> None:
        """Take the body. Raises Refusal, also if it ends early."""
        if http.headers.get("Expect", "").lower() == "100-continue" and http.version >= HttpVersion11:
            await http.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            http.writer.output_size = 0
        loop = asyncio.get_running_loop()
        pending: list[bytes] = []
        pending_bytes, batch_bytes = 0, _BATCH_BYTES
        is_wide = (http.content_length or 0) > AT_ONCE_BYTES and self._wide_bodies < _WIDE_BODIES
        if is_wide:
            self._wide_bodies += 1
            batch_bytes = _WIDE_BATCH_BYTES
            read_at_once(http, _WIDE_READ_BYTES)
        try:
            while not http.content.at_eof():
                data, _ = await http.content.readchunk()  # neither joined nor copied; empty between chunks of HTTP
                if data:
                    pending.append(data)
                    taken_bytes = len(data) + _PIECE_OVERHEAD_BYTES
                    pending_bytes += taken_bytes
                    self._pending_bytes += taken_bytes
                is_crowded = self._pending_bytes > self.limits.pending_bytes
                if pending_bytes >= (_CROWDED_BATCH_BYTES if is_crowded else batch_bytes):
                    await loop.run_in_executor(self._feeds, body.feed, pending)
                    self._pending_bytes -= pending_bytes
                    pending, pending_bytes = [], 0
        except (web.HTTPException, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise S3Error("IncompleteBody", "the connection ended before the body") from None
        except Exception as error:
            if isinstance(error, (Refusal, LoaderError)):
                raise
            raise S3Error("IncompleteBody", f"the body is not valid: {type(error).__name__}") from None
        finally:
            self._pending_bytes -= pending_bytes
            if is_wide:
                self._wide_bodies -= 1
                read_at_once(http)
        if pending_bytes <= _INLINE_BYTES:
            _finish(body, pending)
        else:
            await loop.run_in_executor(self._feeds, _finish, body, pending)

    async def _send(
        self, http: web.BaseRequest, response: Response, request_id: str, slots: Sequence[CallSlot]
    ) -> web.StreamResponse:
        headers = CIMultiDict([*(response.headers | own_headers(request_id)).items(), *response.repeated])
        body = response.body
        if isinstance(body, bytes) and (body or response.size_bytes is None):
            if http.method == "HEAD" or response.status == 204:
                return web.Response(status=response.status, headers=headers)
            if len(body) <= INLINE_BYTES:
                return web.Response(status=response.status, headers=headers, body=body)
        answer = web.StreamResponse(status=response.status, headers=headers)
        if isinstance(body, bytes) and body:
            answer.content_length = len(body)
        elif response.size_bytes is not None:
            answer.content_length = response.size_bytes
        elif http.version < HttpVersion11:  # the end of the connection would not tell a whole answer from a cut one
            raise S3Error("HttpVersionNotSupported", "the length of the answer is not known before: need HTTP/1.1")
        else:
            answer.enable_chunked_encoding()
        chunks: Iterator[Any] = iter((body,) if body else ()) if isinstance(body, bytes) else body
        try:
            await answer.prepare(http)
            while (chunk := await self._run(next, chunks, _END)) is not _END:
                for part in chunk if isinstance(chunk, list) else (chunk,):
                    await _write(answer, part, slots)
            await answer.write_eof()
        except BaseException as error:  # noqa: BLE001 - raised as what it is to the client
            raise self._ended_early(http, error, request_id) from None
        finally:
            close = getattr(chunks, "close", None)
            if close is not None:
                with suppress(Exception):
                    await self._run(close)
        return answer


class _SentAnswer(web.StreamResponse):
    """An answer that was sent without the HTTP server."""

    def __init__(self, status: int, *, keep_alive: bool) -> None:
        super().__init__(status=status)
        self._may_continue = keep_alive

    @property
    def keep_alive(self) -> bool:
        return self._may_continue

    async def prepare(self, request: web.BaseRequest) -> None: ...

    async def write_eof(self, data: bytes = b"") -> None: ...


def _finish(body: Incoming, pieces: list[bytes]) -> None:
    body.feed(pieces)
    body.finish()


async def _write(answer: web.StreamResponse, data: Any, slots: Sequence[CallSlot]) -> None:
    view = memoryview(data)
    for at in range(0, len(view), _PIECE_BYTES):
        piece = view[at : at + _PIECE_BYTES]
        with ExitStack() as waits:
            for slot in slots:
                waits.enter_context(slot.waiting())
            await answer.write(piece)
        for slot in slots:
            slot.moved(len(piece))


def _joined(http: web.BaseRequest, most_bytes: int) -> dict[str, str]:
    """Return the headers by names in lower case. Raises S3Error unless they are UTF-8, and of a body as it is sent."""
    found: dict[str, str] = {}
    for name, value in http.headers.items():
        name = name.lower()
        found[name] = f"{found[name]},{value}" if name in found else value
    try:
        size_bytes = len("".join((*found, *found.values())).encode())
    except UnicodeEncodeError:
        raise S3Error("InvalidArgument", "a header is not UTF-8") from None
    if size_bytes > most_bytes:
        raise S3Error("RequestHeaderSectionTooLarge", f"the headers have more than {most_bytes:,} bytes")
    if (coding := found.get("transfer-encoding", "chunked").strip().lower()) != "chunked":
        raise S3Error("NotImplemented", f"Transfer-Encoding {coding[:40]!r}: need chunked")
    return found
