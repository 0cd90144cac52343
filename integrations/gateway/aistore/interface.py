"""AIStore's API for the HTTP server: it admits requests, answers them, and turns errors into answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ais_loader.errors import LoaderError
from ais_loader.objects.client import Client

from ..clients import Account, Clients
from ..request import Refusal, Response, S3Error, parse_json, query_pairs
from ..spool import BodyMemory
from .accounts import client_for
from .bodies import AisBody
from .request import AISError, AisRequest, check_bucket_name, error_response, of_store, provider_named
from .router import Route, route

_ROOT = "/v1"
_MARKER = "ais-loader-body"
"""Parameter of an upload that has been sent to the same address again, now with its body."""


def is_aistore(path: str) -> bool:
    """Whether a path is one of AIStore's API. "v1" is no valid name of a bucket in S3."""
    return path == _ROOT or path.startswith(f"{_ROOT}/")


def error_answer(error: Refusal, method: str, path: str, remote_addr: str) -> Response:
    """Return the answer that tells a client of AIStore of an error."""
    return error_response(error, method, path, remote_addr)


class Admitted:
    """A request whose headers have been accepted. It is answered when its body has arrived."""

    def __init__(
        self,
        begin: Callable[[Client], AisRequest],
        route: Route,
        client: Client | Callable[[], Client],
        access_key: str,
        body: AisBody | None,
    ) -> None:
        """`begin` makes the request of a client. The client may be a function that opens it, which `check` calls."""
        self.body = body
        self.access_key = access_key
        """The access key that the request comes from; "" for a token, and if everything is open."""
        self.redirect: Response | None = None
        """An answer that the headers alone decide."""
        self.name = route.calls[0].name
        """Name of the call, for metrics and logs; before the body is known, of the first that it may be."""
        self._begin, self._route, self._client = begin, route, client

    @property
    def is_batch(self) -> bool:
        """Whether the answer has many objects."""
        return self._route.calls[0].is_batch

    @property
    def must_check(self) -> bool:
        """Whether `check` has to be called, which waits, before the body is taken."""
        return not isinstance(self._client, Client)

    def check(self) -> None:
        """Check the client's token with the store. Raises AISError."""
        if not isinstance(self._client, Client):
            self._client = self._client()

    def at_once(self) -> Response | None:
        """Answer a request without a body on the event loop, if nothing has to be waited for. Raises Refusal."""
        assert isinstance(self._client, Client)
        return self._route.calls[0].at_once(self._begin(self._client))

    def answer(self) -> Response:
        """Answer the request, whose body has arrived. Raises Refusal."""
        assert isinstance(self._client, Client)
        request = self._begin(self._client)
        request.body = self.body
        if self._route.body == "json":
            request.json = self._json()
        try:
            call = self._route.choose(request.action)
            self.name = call.name
            return call.answer(request)
        except LoaderError as error:
            raise of_store(error, request.bucket_url, request.key) from error

    def _json(self) -> Any:
        data = self.body.read() if self.body is not None else b""
        if not data.strip():
            return None
        try:
            return parse_json(data)
        except ValueError:
            raise AISError(400, "the body is not JSON") from None


def admit(
    method: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    *,
    is_tls: bool,
    clients: Clients,
    keys: Mapping[str, Account] | None,
    spool: str | None,
    memory: BodyMemory,
) -> Admitted:
    """Accept a request by its headers. Raises Refusal.

    Over TLS, the SDK sends the headers of an upload first, with a length of 0 if it does not know it, and the body only
    where a redirection says. Every upload is thus sent to its own address with one parameter more.
    """
    parameters = dict(query_pairs(query))
    client, access_key = client_for(headers, keys, clients)
    found = route(method, path[len(_ROOT) + 1 :], parameters)
    scheme = "https" if is_tls else "http"
    base_url = f"{scheme}://{headers.get('host', '')}"
    provider = provider_named(parameters)

    def begin(client: Client) -> AisRequest:
        return AisRequest(
            *(method, path, parameters, headers, found.bucket, found.key, client, base_url),
            rest=found.rest,
            provider=provider,
            spool=spool,
            access_key=access_key,
            needs_token=keys is not None,
        )

    if any("/B" in call.place for call in found.calls):
        check_bucket_name(found.bucket)
    length = headers.get("content-length")
    if length is not None and not (length.isascii() and length.isdigit()):
        raise AISError(400, "Content-Length: need a whole number")
    if found.body == "bytes" and is_tls and _MARKER not in parameters:
        admitted = Admitted(begin, found, client, access_key, None)
        # The SDK takes only an address with a scheme and a host.
        place = f"{base_url}{path}?{query}{'&' if query else ''}{_MARKER}=1"
        admitted.redirect = Response(307, {"location": place})
        return admitted
    body = None
    if found.body and (length is not None or "transfer-encoding" in headers):
        if int(length or 0) > found.limit_bytes:
            raise S3Error("EntityTooLarge", f"the body has more than {found.limit_bytes:,} bytes", status=413)
        checked = headers if found.body == "bytes" else {}
        announced = int(length) if length is not None else None
        body = AisBody(checked, folder=spool, most_bytes=found.limit_bytes, memory=memory, announced_bytes=announced)
    return Admitted(begin, found, client, access_key, body)
