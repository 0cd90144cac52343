"""HTTP server of the page: reads a store for a browser on this machine, and for no other client.

It listens on loopback. A page of another site cannot make the browser read from it: a request with a Host other than
this server's own is rejected, whatever name leads here (DNS rebinding), and answers forbid their use by other origins.
Another user of the machine would have to know the random part of every path, which the printed address contains. Names
and contents of objects are always treated as data: paths do not contain them, the page inserts them as text, and bytes
are sent with a type from `preview.MEDIA` or as plain bytes, in a sandbox.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.resources import files
from typing import Any, TypeVar

from ais_loader.errors import InvalidName, InvalidRequest, LoaderError, NodeUnavailable, NotFound, SilenceTimeout
from ais_loader.extras import needs
from ais_loader.objects.client import Client
from ais_loader.ui import store_view
from ais_loader.ui.preview import MEDIA, ending

with needs("aiohttp", "ais-loader ui", extra="ui"):
    from aiohttp import web

HOST = "127.0.0.1"
_CALL_TIMEOUT_S = 60.0
_PIECE_BYTES = 4 << 20
_THREADS = 8
_PAGE = {"": "text/html", "app.js": "text/javascript", "style.css": "text/css"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "media-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_OF_CONTENT = {"Content-Security-Policy": "sandbox; default-src 'none'"}
_Answer = TypeVar("_Answer")
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def _guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Admit only the server's own hosts and reading methods, convert errors to JSON, and add the headers."""
    port = request.transport.get_extra_info("sockname")[1] if request.transport is not None else 0
    if request.headers.get("Host", "") not in {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}:
        answer: web.StreamResponse = web.json_response({"error": "this page is 127.0.0.1's alone"}, status=421)
    elif request.method not in ("GET", "HEAD"):
        answer = web.json_response({"error": "this page only reads"}, status=405, headers={"Allow": "GET, HEAD"})
    else:
        try:
            answer = await handler(request)
        except web.HTTPException as error:
            answer = web.json_response({"error": error.reason}, status=error.status)
        except LoaderError as error:
            answer = web.json_response({"error": str(error), "kind": error.kind}, status=_status(error))
        except TimeoutError:
            answer = web.json_response({"error": f"the store took more than {_CALL_TIMEOUT_S:g} s"}, status=504)
    if not answer.prepared:
        for name, value in _HEADERS.items():
            answer.headers.setdefault(name, value)
    return answer


def _status(error: LoaderError) -> int:
    if isinstance(error, NotFound):
        return 404
    if isinstance(error, (InvalidName, InvalidRequest)):
        return 400
    return 503 if isinstance(error, (NodeUnavailable, SilenceTimeout)) else 500


class StorePage:
    """The routes of one store's page."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ui")

    async def _run(self, call: Callable[..., _Answer], *arguments: Any) -> _Answer:
        future = asyncio.get_running_loop().run_in_executor(self._threads, call, self._client, *arguments)
        return await asyncio.wait_for(future, _CALL_TIMEOUT_S)

    def routes(self, prefix: str) -> list[web.RouteDef]:
        """Return all routes below `prefix`, which ends with a slash."""
        return [
            *(web.get(prefix + name, self._file(name or "index.html", kind)) for name, kind in _PAGE.items()),
            web.get(f"{prefix}api/buckets", self._json(store_view.buckets)),
            web.get(f"{prefix}api/sum", self._json(store_view.BucketSums().of, "bucket")),
            web.get(f"{prefix}api/folder", self._json(store_view.folder, "bucket", "prefix")),
            web.get(f"{prefix}api/object", self._json(store_view.described, "bucket", "name", "member")),
            web.get(f"{prefix}api/activity", self._json(store_view.activity)),
            web.get(f"{prefix}content", self._content),
        ]

    def _file(self, name: str, kind: str) -> _Handler:
        text = (files("ais_loader.ui") / "page" / name).read_text(encoding="utf-8")

        async def answer(_: web.Request) -> web.Response:
            return web.Response(text=text, content_type=kind, charset="utf-8")

        return answer

    def _json(self, call: Callable[..., dict[str, Any]], *names: str) -> _Handler:
        async def answer(request: web.Request) -> web.Response:
            return web.json_response(await self._run(call, *(_argument(request, name) for name in names)))

        return answer

    async def _content(self, request: web.Request) -> web.StreamResponse:
        """Send the bytes of an object or a member, or a range of them, all of one version."""
        item = await self._run(store_view.content, *(_argument(request, name) for name in ("bucket", "name", "member")))
        try:
            http_range = request.http_range
            start, stop, _ = http_range.indices(item.size_bytes)
        except ValueError:
            raise web.HTTPRequestRangeNotSatisfiable from None
        partial = http_range.start is not None or http_range.stop is not None
        if partial and start >= stop:
            raise web.HTTPRequestRangeNotSatisfiable
        answer = web.StreamResponse(status=206 if partial else 200, headers={**_HEADERS, **_OF_CONTENT})
        answer.content_type = MEDIA.get(ending(item.shown_name), "application/octet-stream")
        answer.content_length = stop - start
        answer.headers["Accept-Ranges"] = "bytes"
        if partial:
            answer.headers["Content-Range"] = f"bytes {start}-{stop - 1}/{item.size_bytes}"
        if answer.content_type == "application/octet-stream":
            answer.headers["Content-Disposition"] = "attachment"
        piece = await self._run(store_view.read, item, start, min(_PIECE_BYTES, stop - start))
        await answer.prepare(request)
        if request.method == "HEAD":
            return answer
        try:
            while piece:
                await answer.write(piece)
                start += len(piece)
                piece = await self._run(store_view.read, item, start, min(_PIECE_BYTES, stop - start))
            await answer.write_eof()
        except (LoaderError, TimeoutError):  # the headers have been sent: break the connection
            if request.transport is not None:
                request.transport.abort()
        return answer

    async def close(self, _: web.Application) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _argument(request: web.Request, name: str) -> str | None:
    """Return an argument of the query. Raises HTTPBadRequest if a required one is missing."""
    value = request.query.get(name)
    if value is None and name not in ("member", "prefix"):
        raise web.HTTPBadRequest(reason=f"which {name}?")
    return "" if value is None and name == "prefix" else value


def new_app(client: Client, token: str) -> web.Application:
    """Create an app that serves the page of a client's store below /TOKEN/, and nothing elsewhere."""
    app = web.Application(middlewares=[_guard])
    page = StorePage(client)
    app.add_routes(page.routes(f"/{token}/"))
    app.on_cleanup.append(page.close)
    return app


async def serve(client: Client, port: int, ready: Callable[[str], None], until: asyncio.Event) -> None:
    """Serve the page until an event. Calls `ready` with its address.

    Raises OSError if the port is taken.
    """
    token = secrets.token_urlsafe(16)
    runner = web.AppRunner(new_app(client, token), access_log=None, handle_signals=False, shutdown_timeout=2.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, HOST, port)
        await site.start()
        with suppress(asyncio.CancelledError):
            ready(f"http://{HOST}:{runner.addresses[0][1]}/{token}/")
            await until.wait()
    finally:
        await runner.cleanup()
