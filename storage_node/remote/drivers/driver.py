"""Driver: single requests to one kind of remote storage, without retries, and the objects that it describes.

A driver translates between names and the storage's keys, and the storage's failures to `RequestFailure`. `Backend` adds
what all kinds share: retries, limits, ranges, hedging and counters.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ais_loader.errors import LoaderError, RangeError, RemoteUnavailable
from storage_node.limits.pace import PaceLimits

CHUNK_BYTES = 1 << 20
"""Approximate size of the chunks in which objects are read."""
WHOLE_BYTES = 128 << 10
"""Content up to this size may come with the answer: the limit on the answer is no shorter than `PACE` allows."""

PACE = PaceLimits(rate_bytes_per_s=4096.0)
"""The slowest that a storage may send an answer, besides the limit on its silence."""
TOO_SLOW = f"its answer comes with less than {PACE.rate_bytes_per_s:,.0f} bytes per second"

Buffer = bytes | memoryview


class RequestFailure(Exception):
    """A request failed.

    Args:
        error: the error for callers, complete with a message.
        retry: whether another attempt may succeed.
        throttled: whether the storage asked for fewer requests.
        is_credentials: whether no credentials were found.
    """

    def __init__(
        self, error: LoaderError, *, retry: bool = False, throttled: bool = False, is_credentials: bool = False
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.retry = retry
        self.throttled = throttled
        self.is_credentials = is_credentials


class NotModified(Exception):
    """The object still has the entity tag that the caller knows."""


class PreconditionFailed(Exception):
    """The object has another entity tag than the requested one, or exists already."""


@dataclass(slots=True)
class ReadAnswer:
    """The beginning of an answer to a GET."""

    info: RemoteObject
    """The object as a whole."""
    start: int
    """Position of the first byte of `chunks` in the object."""
    chunks: AsyncGenerator[Buffer, None]
    """The content. Raises RequestFailure."""
    data: Buffer | None = None
    """The content, if all of it came with the answer; `chunks` has it, too."""
    release: Callable[[], object] | None = None
    """Releases what `chunks` holds even if it was never iterated. May be called again."""

    async def close(self) -> None:
        """End the answer. May be called again."""
        await self.chunks.aclose()
        if self.release is not None:
            self.release()


class ListedKey(NamedTuple):
    """One key of a listing."""

    key: str
    size_bytes: int
    etag: str
    modified_ns: int


class KeyPage(NamedTuple):
    """One page of a listing, in the order of the keys' UTF-8 bytes. Keys are relative to the prefix of the URL."""

    keys: Sequence[ListedKey]
    after: str
    """The last key, after which a listing can be continued; "" if this page is the last one."""
    markers: int = 0
    """Number of directory markers, which are not among the keys."""


@dataclass(slots=True)
class ListBounds:
    """Range of names of a listing in progress."""

    position: str = ""
    """The last key that was listed, or the one after which the listing begins."""
    until: str = ""
    """The last key that is listed; "" for no end. It may be changed to any key behind `position`."""


class PutConditions(NamedTuple):
    """Conditions of a put."""

    if_absent: bool = False
    if_etag: str = ""

    def __bool__(self) -> bool:
        return self.if_absent or bool(self.if_etag)


class Driver(Protocol):
    """Requests to one place. All raise RequestFailure."""

    host: str
    """Name of the server, by which requests are limited."""
    secrets: Sequence[str]
    """Values that no message may contain."""

    async def head(self, name: str) -> RemoteObject: ...

    async def open(
        self, name: str, start: int = 0, end: int | None = None, *, if_match: str = "", if_none_match: str = ""
    ) -> ReadAnswer:
        """Begin to read an object, or bytes `start` to `end` of it. A storage without ranges answers from byte 0.

        Raises NotModified, PreconditionFailed.
        """
        ...

    def pages(self, prefix: str, after: str) -> AsyncIterator[KeyPage]:
        """Yield the keys that begin with `prefix` and follow `after`, with one request for each page."""
        ...

    async def put(self, name: str, data: bytes, metadata: Mapping[str, str], conditions: PutConditions) -> RemoteObject:
        """Put a whole object. Metadata may have `CONTENT_HEADERS`. Raises PreconditionFailed."""
        ...

    async def put_stream(
        self, name: str, chunks: AsyncIterator[Buffer], metadata: Mapping[str, str], part_bytes: int
    ) -> RemoteObject:
        """Put an object in parts. It appears when all parts are there; if `chunks` raises, it does not appear."""
        ...

    async def delete(self, name: str) -> None: ...


async def begun(
    driver: Driver, name: str, start: int, end: int, *, if_match: str = "", if_none_match: str = ""
) -> ReadAnswer:
    """Begin to read bytes `start` to `end`. An object that is empty has no range to be requested."""
    try:
        return await driver.open(name, start, end, if_match=if_match, if_none_match=if_none_match)
    except RequestFailure as failure:
        if start or not isinstance(failure.error, RangeError):
            raise
        return await driver.open(name, if_match=if_match, if_none_match=if_none_match)


_MADE_UP = "modified-"


def made_up_etag(modified_ns: int, size_bytes: int) -> str:
    """Return a tag for an object of a server that sends none."""
    return f"{_MADE_UP}{modified_ns}-{size_bytes}"


def is_made_up(etag: str) -> bool:
    """Whether a tag is one that the server does not know."""
    return etag.startswith(_MADE_UP)


@dataclass(frozen=True, slots=True)
class RemoteObject:
    """An object at its remote storage."""

    name: str
    """Name relative to the prefix of the bucket's URL."""
    size_bytes: int
    etag: str
    """Entity tag as the storage sends it, with its quotes; "" if it has none. A file's is made of its inode, time and
    size; that of a web server without tags, of the time and size."""
    version: str = ""
    """Version id; "" if the storage has none."""
    modified_ns: int = 0
    """Time of the last modification, in nanoseconds since 1970."""
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The user's metadata. Listings leave it out, and so do files."""
    headers: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Those of `CONTENT_HEADERS` that the storage sends."""


class RemoteChanged(RemoteUnavailable):
    """The remote object was replaced or deleted after its first bytes were read. Reading it again returns the new
    version."""
