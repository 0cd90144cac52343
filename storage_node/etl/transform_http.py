"""HTTP endpoint of a node, where transforms' servers fetch inputs (hpull) and put outputs (direct put).

    GET /inputs/BUCKET/NAME?version=…     an input that is lent at this moment; requires its token
    PUT /results/BUCKET/NAME              the output of a job, written as any other object

There is nothing else here: no listing, no object that is not lent, no name to write that is not in a token. A token is
valid for one method, one name and a limited time. Tokens of inputs are signed with a key of this node, drawn when it
starts. Tokens of results are signed with a key that all nodes of a cluster derive from their secret, so that the node
that runs a job can direct a server to the node that will own the result. Such a token is used once. The node that
stores a result confirms it by a receipt, which is signed as well. From the receipt the job learns the version without
having to trust the server.

Belongs to one event loop. It listens only after its first use, and on loopback unless configured otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ais_loader.errors import LoaderError, NodeUnavailable, VersionConflict
from ais_loader.extras import MissingExtra, needs
from storage_node.etl.signed_tokens import SignedTokenRefused, new_nonce, signed, verified
from storage_node.etl.values import Content, Origin, PutResult
from storage_node.etl.webserver.protocol import CHECKSUM, CHUNK_BYTES, RECEIPT
from storage_node.settings.config import is_loopback

if TYPE_CHECKING:
    from aiohttp import web

SILENCE_S = 60.0
"""Time without data after which the sender of a result or the receiver of an input is considered gone."""
_SHUTDOWN_S = 2.0
_INPUTS, _RESULTS = "/inputs/", "/results/"
_GET, _PUT, _STORED = "get", "put", "stored"
METADATA = "metadata"
"""Key in the `extra` of a token: the object's metadata, as a mapping of strings."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PutTarget:
    """Where a server puts the result for one object."""

    url: str
    token: str


@dataclass(frozen=True, slots=True)
class PutClaims:
    """The put that a token permits."""

    bucket: str
    name: str
    max_bytes: int
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Data from the job: metadata, conditions."""


PutResultCallable = Callable[[PutClaims, AsyncIterator[bytes]], Awaitable[PutResult]]
"""Write an object through the ordinary path and return what was stored. If the chunks raise an error, it is passed on
and nothing is written."""


class TransformHttp:
    """A small HTTP server on the node's event loop, started at its first use."""

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, advertise: str = "", peer_secret: str = "") -> None:
        """Create the endpoint; it does not listen yet.

        Args:
            host: Address of this machine to listen on; not loopback only if the operator says so.
            port: Port to listen on; 0 means any free port.
            advertise: HOST or HOST:PORT under which servers on other machines reach it; by default the address it
                listens on.
            peer_secret: Secret of the cluster. Without one, results are accepted only with tokens of this node.
        """
        self._host, self._port, self._advertise = host, port, advertise
        self._own_key = secrets.token_bytes(32)
        shared = hmac.digest(peer_secret.encode(), b"ais-loader results of transforms", hashlib.sha256)
        self._put_key = shared if peer_secret else self._own_key
        self.is_shared = bool(peer_secret)
        """Whether other nodes accept tokens of this node, and this node theirs."""
        self._loans: dict[str, Content] = {}
        self._used: dict[str, float] = {}
        self._starting = asyncio.Lock()
        self._runner: web.AppRunner | None = None
        self._url = ""
        self.put_result: PutResultCallable | None = None
        """Stores a result. Without it, no result is accepted."""

    async def start(self) -> str:
        """Start listening and return the URL. May be called again. Raises OSError, MissingExtra."""
        async with self._starting:
            if self._runner is None:
                with needs("aiohttp", "the HTTP side of a node"):
                    from aiohttp import web
                app = web.Application(client_max_size=1)
                app.router.add_get(_INPUTS + "{name:.*}", self._lent)
                app.router.add_put(_RESULTS + "{name:.*}", self._receive)
                runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=_SHUTDOWN_S)
                await runner.setup()
                try:
                    await web.TCPSite(runner, self._host, self._port).start()
                except BaseException:
                    await runner.cleanup()
                    raise
                self._runner = runner
                host, port = runner.addresses[0][:2]
                self._url = f"http://{_endpoint(self._advertise or host, port)}"
                if not is_loopback(self._host):
                    log.info("inputs and results of transforms are served at %s", self._url)
        return self._url

    async def stop(self) -> None:
        """Close all connections. Those in use get a moment to finish."""
        async with self._starting:
            runner, self._runner = self._runner, None
            if runner is not None:
                await runner.cleanup()

    # -- inputs

    @contextlib.contextmanager
    def lent(self, origin: Origin, content: Content, lifetime_s: float) -> Iterator[tuple[str, str]]:
        """Lend an input: yield a URL and a token by which it can be fetched any number of times until the context ends.
        Call `start` first."""
        nonce = new_nonce()
        path = f"{_INPUTS}{quote(origin.bucket)}/{quote(origin.name)}?version={quote(origin.version)}"
        self._loans[nonce] = content
        try:
            yield self._url + path, signed(self._own_key, _GET, {"path": path, "nonce": nonce}, lifetime_s)
        finally:
            del self._loans[nonce]

    async def _lent(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        claims = self._claims(request, self._own_key, _GET)
        content = self._loans.get(claims["nonce"])
        if content is None:
            raise web.HTTPGone(text="this input is not lent any more")
        headers = {"Content-Type": "application/octet-stream", CHECKSUM: f"{content.checksum:08x}"}
        if content.data is not None and content.size_bytes <= CHUNK_BYTES:
            return web.Response(body=bytes(content.data), headers=headers)
        response = web.StreamResponse(headers=headers)
        response.content_length = content.size_bytes
        await response.prepare(request)
        for offset in range(0, content.size_bytes, CHUNK_BYTES):
            chunk = await read(content, offset, CHUNK_BYTES)
            if claims["nonce"] not in self._loans:  # its descriptor may have become that of another file
                raise ConnectionResetError("the input was taken back while it was read")
            async with asyncio.timeout(SILENCE_S):
                await response.write(chunk)
        return response

    # -- results

    async def results_url(self) -> str:
        """Return the URL to which servers may put results with tokens of other nodes. Empty if results are not accepted
        or the endpoint cannot listen."""
        if self.put_result is None or not self.is_shared:
            return ""
        try:
            return await self.start()
        except (OSError, MissingExtra) as error:
            log.warning("results of transforms cannot be put to this node: %s", error)
            return ""

    def target(
        self,
        owner_url: str,
        bucket: str,
        name: str,
        *,
        max_bytes: int,
        lifetime_s: float,
        extra: Mapping[str, Any] | None = None,
    ) -> PutTarget:
        """Return where to put one result: at the HTTP endpoint `owner_url`, which is this node's or, with the cluster's
        secret, another node's. Raises ValueError if it does not fit into a token."""
        path = f"{_RESULTS}{quote(bucket)}/{quote(name)}"
        claims = {
            "path": path,
            "nonce": new_nonce(),
            "bucket": bucket,
            "name": name,
            "max_bytes": max_bytes,
            "extra": dict(extra or {}),
        }
        return PutTarget(owner_url + path, signed(self._put_key, _PUT, claims, lifetime_s))

    def stored(self, target: PutTarget, receipt: str) -> PutResult:
        """Return the contents of the owner's receipt. Raises TokenRefused if it belongs to another put or has no valid
        signature."""
        put_claims = verified(self._put_key, target.token, _PUT)
        stored_claims = verified(self._put_key, receipt, _STORED)
        if stored_claims["nonce"] != put_claims["nonce"]:
            raise SignedTokenRefused("the receipt is of another result")
        return PutResult(stored_claims["version"], stored_claims["size"], stored_claims["checksum"])

    async def _receive(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        claims = self._claims(request, self._put_key, _PUT)
        if self.put_result is None:
            raise web.HTTPServiceUnavailable(text="this node takes no results")
        max_bytes = int(claims["max_bytes"])
        if (request.content_length or 0) > max_bytes:
            raise self._too_large(max_bytes)
        self._use_once(claims)
        allowed = PutClaims(claims["bucket"], claims["name"], max_bytes, claims["extra"])
        try:
            put = await self.put_result(allowed, _chunks(request, max_bytes))
        except (LoaderError, OSError, _TooLarge) as error:
            self._used.pop(claims["nonce"], None)  # nothing was written, so a retry is allowed, until it expires
            if isinstance(error, _TooLarge):
                raise self._too_large(max_bytes) from error
            text = f"{getattr(error, 'kind', 'io')}: {error}"
            if isinstance(error, VersionConflict):
                raise web.HTTPConflict(text=text) from error
            if isinstance(error, NodeUnavailable | OSError):
                raise web.HTTPServiceUnavailable(text=text) from error
            raise web.HTTPInternalServerError(text=text) from error
        result = {
            "nonce": claims["nonce"], "version": put.version, "size": put.size_bytes, "checksum": put.checksum,
        }  # fmt: skip
        receipt = signed(self._put_key, _STORED, result, max(claims["expires"] - time.time(), SILENCE_S))
        return web.Response(status=204, headers={RECEIPT: receipt})

    def _use_once(self, claims: Mapping[str, Any]) -> None:
        from aiohttp import web

        now_s = time.time()
        for nonce in [nonce for nonce, expires in self._used.items() if expires < now_s]:
            del self._used[nonce]
        if claims["nonce"] in self._used:
            raise web.HTTPConflict(text="the token has been used")
        self._used[claims["nonce"]] = claims["expires"]

    @staticmethod
    def _too_large(max_bytes: int) -> Exception:
        from aiohttp import web

        return web.HTTPRequestEntityTooLarge(max_bytes, 0, text=f"the result is larger than its {max_bytes:,} bytes")

    @staticmethod
    def _claims(request: web.Request, key: bytes, purpose: str) -> dict[str, Any]:
        from aiohttp import web

        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme != "Bearer":
            raise web.HTTPUnauthorized(text="no token: Authorization: Bearer …")
        try:
            claims = verified(key, token, purpose)
        except SignedTokenRefused as error:
            raise web.HTTPForbidden(text=str(error)) from error
        if claims["path"] != request.raw_path:
            raise web.HTTPForbidden(text="the token is of another object")
        return claims


def _endpoint(host: str, port: int) -> str:
    """Join host and port. `host` may contain a port of its own."""
    if host.count(":") > 1 and not host.startswith("["):
        host = f"[{host}]"
    return host if host.rpartition("]")[2].count(":") else f"{host}:{port}"


class _TooLarge(Exception):
    pass


async def _chunks(request: web.Request, max_bytes: int) -> AsyncIterator[bytes]:
    """Yield the body of a PUT. Raises _TooLarge, and OSError if the sender breaks off or sends nothing for long."""
    from aiohttp import ClientPayloadError

    size_bytes = 0
    while True:
        try:
            async with asyncio.timeout(SILENCE_S):
                chunk = await request.content.readany()
        except (ClientPayloadError, TimeoutError) as error:
            raise ConnectionError(f"the result broke off after {size_bytes:,} bytes") from error
        if not chunk:
            if not request.content.is_eof():
                raise ConnectionError(f"the result broke off after {size_bytes:,} bytes")
            return
        size_bytes += len(chunk)
        if size_bytes > max_bytes:
            raise _TooLarge
        yield chunk


async def read(content: Content, offset: int, length: int) -> bytes:
    """Read from an input: from memory directly, from a file in a thread."""
    if content.data is not None:
        return bytes(content.read(offset, length))
    return bytes(await asyncio.to_thread(content.read, offset, length))
