"""Granted rights: a verified token's tenant and rights, and how long the calls that use it may go on.

A call, session, lane or watch that a token has begun ends with it (`lasting`). The error is retryable: a client that
has a newer token goes on with that one, and another client is refused at its next call.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextvars import ContextVar

from ais_loader.errors import AccessDenied, LoaderError, NodeUnavailable
from storage_node.security.rights.scopes import ETL, SEES, Scopes, right_names
from storage_node.security.rights.tokens import TokenClaims
from storage_node.store.names import SNAPSHOT_MARK, bucket_not_found
from storage_node.store.places import without_places

GRANTED: ContextVar[Granted | None] = ContextVar("granted", default=None)
"""Rights of the current task's client; None where no token is needed."""


class Granted:
    """The tenant and rights of one token. Belongs to the node's event loop."""

    __slots__ = ("_endpoints", "_live", "claims", "ended", "scopes", "tenant", "used_s")

    def __init__(self, claims: TokenClaims, endpoints: Callable[[], Iterable[str]] = tuple) -> None:
        """`endpoints`: returns the addresses that clients are not told. Raises InvalidRequest for a scope of a later
        version."""
        self._endpoints = endpoints
        self.claims = claims
        self.tenant = claims.tenant
        self.scopes = Scopes(claims.scopes)
        self.ended = False
        """Whether the token has expired or was revoked."""
        self.used_s = 0.0
        """When a call last came with the token, in seconds since the epoch."""
        self._live: set[asyncio.Timeout] = set()

    @property
    def is_used(self) -> bool:
        return bool(self._live)

    def told(self, text: str) -> str:
        """Return an error's text as this client is told it."""
        return without_places(text, self._endpoints())

    def sees(self, bucket: str) -> bool:
        """Whether the bucket exists for this client."""
        return self.scopes.may(SEES, bucket)

    def refusal(self, rights: int, bucket: str) -> LoaderError | None:
        """Return why none of these rights is granted on a bucket; None if one is. A bucket that the client does not see
        does not exist for it."""
        if self.scopes.may(rights, bucket):
            return None
        of = bucket.partition(SNAPSHOT_MARK)[0]
        if self.sees(bucket):
            return AccessDenied(f"the token gives no right to this on bucket {of!r}: it needs {_either(rights)}")
        return bucket_not_found(of, ())

    def require(self, rights: int, bucket: str) -> None:
        """Check that one of these rights is granted. Raises AccessDenied, BucketNotFound."""
        if (error := self.refusal(rights, bucket)) is not None:
            raise error

    def require_of(self, kind: str, rights: int, name: str) -> None:
        """Check a right on what is no bucket: a "transform" or a "profile". Raises AccessDenied."""
        if not self.scopes.may(rights, name):
            raise AccessDenied(f"the token gives no right to this on {kind} {name!r}: it needs {_either(rights)}")

    def sees_transform(self, name: str) -> bool:
        """Whether the transform exists for this client: a scope with a right of transforms matches its name."""
        return self.scopes.may(ETL, name)

    def require_anywhere(self, rights: int) -> None:
        """Check that one of these rights is granted on any name. Raises AccessDenied."""
        if not self.scopes.anywhere & rights:
            raise AccessDenied(f"the token gives no right to this: it needs {_either(rights)}")

    def end(self) -> None:
        """End everything that this token has begun."""
        self.ended = True
        for timeout in self._live:
            if not timeout.expired():
                timeout.reschedule(asyncio.get_running_loop().time())

    @contextlib.asynccontextmanager
    async def _lasting(self) -> AsyncIterator[None]:
        if self.ended:
            raise _ended()
        try:
            async with asyncio.timeout(None) as timeout:
                self._live.add(timeout)
                try:
                    yield
                finally:
                    self._live.discard(timeout)
        except TimeoutError:
            if timeout.expired():
                raise _ended() from None
            raise


def lasting(granted: Granted | None) -> contextlib.AbstractAsyncContextManager[None]:
    """Context of what a token has begun; it is cancelled when the token ends. Raises NodeUnavailable then."""
    return contextlib.nullcontext() if granted is None else granted._lasting()


def _ended() -> NodeUnavailable:
    return NodeUnavailable("the token of this call has expired or was revoked in the meantime: go on with another one")


def _either(rights: int) -> str:
    return " or ".join(repr(name) for name in right_names(rights).split(","))
