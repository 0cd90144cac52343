"""RemoteRead: the content of one version of a remote object, in order and complete.

The first answer brings an object up to `large_object_bytes`. The rest of a larger one is fetched in ranges, several at
once, each only if the object still has the same tag. A connection that breaks is continued from the byte reached.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol, Self

from ais_loader.errors import CorruptObject
from ais_loader.wire.cold_reads import later_ranges
from storage_node.remote.drivers.driver import CHUNK_BYTES, Buffer, RemoteObject

if TYPE_CHECKING:
    from storage_node.remote.location.remote_requests import OpenedAnswer
    from storage_node.settings.declarations import RemoteSettings


class RangeSource(Protocol):
    """The part of a `Backend` that continues an answer, and reads the ranges of a large object."""

    settings: RemoteSettings

    async def whole(self, opened: OpenedAnswer) -> Buffer | None: ...
    async def read_range(self, name: str, start: int, length: int, etag: str) -> memoryview: ...
    def resumed(self, opened: OpenedAnswer, start: int, end: int) -> AsyncGenerator[Buffer, None]: ...


class RemoteRead:
    """An object that is being read: a context manager, and an iterator of chunks of about 1 MiB.

    Iteration raises RemoteUnavailable, RemoteDenied, RemoteChanged if the object is replaced in the meantime, and
    CorruptObject instead of its last bytes if they have another MD5 than `md5`.
    """

    def __init__(self, source: RangeSource, opened: OpenedAnswer, first_bytes: int, *, md5: str = "") -> None:
        """`md5`: the digest in hexadecimal digits with which the content is compared; empty for none."""
        self.info: RemoteObject = opened.answer.info
        self.md5, self._digest, self._hashed_bytes = md5, hashlib.md5(usedforsecurity=False), 0
        self._source = source
        self._opened = opened
        self._first_bytes = min(self.info.size_bytes, first_bytes)
        self._chunks: AsyncGenerator[Buffer, None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Buffer]:
        if self._chunks is None:
            self._chunks = self._verified()
        return self._chunks

    async def close(self) -> None:
        """End the requests that are in flight. May be called again."""
        if self._chunks is not None:
            await self._chunks.aclose()
        await self._opened.close()

    async def read(self) -> bytes:
        """Return the whole content."""
        if (data := await self._source.whole(self._opened)) is not None:
            await self._compare(data)
            return bytes(data)
        return b"".join([chunk async for chunk in self])

    async def _verified(self) -> AsyncGenerator[Buffer, None]:
        async with aclosing(self._iterate()) as chunks:
            async for chunk in chunks:
                await self._compare(chunk)
                yield chunk

    async def _compare(self, chunk: Buffer) -> None:
        """Add bytes to the digest, and compare it if they are the last ones. Raises CorruptObject."""
        if not self.md5:
            return
        await asyncio.to_thread(self._digest.update, chunk)
        self._hashed_bytes += len(chunk)
        if self._hashed_bytes == self.info.size_bytes and (came := self._digest.hexdigest()) != self.md5:
            raise CorruptObject(
                f"{self.info.name}: bytes with the MD5 {came} came, and its ETag is {self.md5}: nothing was stored. If "
                "objects are encrypted by SSE-KMS or SSE-C there, set verify_md5=False"
            )

    async def _iterate(self) -> AsyncGenerator[Buffer, None]:
        info, settings = self.info, self._source.settings
        ranges = deque(later_ranges(info.size_bytes, self._first_bytes, settings.range_bytes))
        fetching: deque[asyncio.Task[memoryview]] = deque()

        def fetch_more() -> None:
            while ranges and len(fetching) < settings.ranges_per_object:
                start, length = ranges.popleft()
                fetching.append(asyncio.ensure_future(self._source.read_range(info.name, start, length, info.etag)))

        try:
            fetch_more()
            first = self._source.resumed(self._opened, 0, self._first_bytes)
            try:
                async for chunk in first:
                    yield chunk
            finally:
                await first.aclose()
            while fetching:
                content = await fetching.popleft()
                fetch_more()
                for start in range(0, len(content), CHUNK_BYTES):
                    yield content[start : start + CHUNK_BYTES]
        finally:
            for task in fetching:
                task.cancel()
            await asyncio.gather(*fetching, return_exceptions=True)
