"""Backend: one remote location, and the operations on its objects.

    async with backend:
        async with await backend.get("train/000.tar") as read:
            async for chunk in read: ...

A `Driver` makes single requests, and `RemoteRequests` repeats them. This module makes operations of them: whole objects
of many requests, listings without keys that are no names, and conditions.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, Self

from ais_loader.errors import ContentMismatch, InvalidName, ObjectNotFound, RangeError, Unsupported, VersionConflict
from ais_loader.wire.gather.hedging import HedgeBudget
from ais_loader.wire.remote import Remote
from storage_node.remote.drivers.credentials import credentials_of
from storage_node.remote.drivers.destination import Destination
from storage_node.remote.drivers.driver import (
    Buffer,
    Driver,
    KeyPage,
    ListBounds,
    NotModified,
    PreconditionFailed,
    PutConditions,
    RemoteChanged,
    RemoteObject,
    RequestFailure,
    is_made_up,
)
from storage_node.remote.drivers.failures import message
from storage_node.remote.drivers.gate import Gate
from storage_node.remote.location.host_limiter import HostLimiter, HostLimiters
from storage_node.remote.location.remote_read import RemoteRead
from storage_node.remote.location.remote_requests import OpenedAnswer, RemoteRequests, Retries
from storage_node.remote.location.skipped_names import SkippedNames
from storage_node.remote.location.usage import RemoteBucketUsage
from storage_node.settings.declarations import RemoteSettings
from storage_node.store.names import object_name_fault, shown_name

MAX_CONDITIONAL_BYTES = 64 << 20
"""Larger objects are put in parts even with conditions. Conditions are then checked before the upload."""
_CONTROL = re.compile("[\x00-\x1f\x7f]")
_MD5 = re.compile("[0-9a-f]{32}")
_LEAST_PART_BYTES, _MOST_PARTS = 5 << 20, 9000
"""Limits of S3 for objects that are put in parts, the second rounded."""


class Backend:
    """One remote location. Belongs to one event loop, and is opened by its first request.

    Errors of all operations: RemoteDenied, RemoteUnavailable; InvalidName for names that the storage cannot have. Their
    messages name the URL and the object, and contain no secrets.

    Args:
        settings: limits and the file of profiles.
        limiters: limiters of the process.
        usage: counters of the bucket.
        budget: hedging budget of the process.
        file_roots: folders that may contain a file:// location; None for all.
        gate: gate of the process.
    """

    def __init__(
        self,
        remote: Remote,
        settings: RemoteSettings,
        limiters: HostLimiters,
        usage: RemoteBucketUsage,
        *,
        budget: HedgeBudget | None = None,
        file_roots: Sequence[Path] | None = (),
        gate: Gate,
    ) -> None:
        self.remote = remote
        self.settings = settings
        self.skipped = SkippedNames()
        """Keys that listings have left out, all together."""
        self._usage = usage
        self._file_roots = file_roots
        self._gate = gate
        rate, pace = remote.max_requests_per_s, None
        if rate:
            pace = HostLimiter(settings.max_requests, most_ahead=settings.prefetch_requests, per_s=rate)
        hedges = budget or HedgeBudget(settings.hedge_budget)
        self._requests = RemoteRequests(remote.url, self._open_driver, settings, limiters, usage, hedges, pace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Forget connections and credentials. The next request opens the location again."""
        self._requests.close()

    async def head(self, name: str) -> RemoteObject:
        """Return the description of an object. Raises ObjectNotFound."""
        self.check_name(name)
        return await self._requests.send("head", name, lambda driver: driver.head(name))

    async def get(self, name: str, *, unless_etag: str = "") -> RemoteRead | None:
        """Begin to read an object; None if it still has the tag `unless_etag`. Close the result.

        Raises ObjectNotFound.
        """
        self.check_name(name)
        # A tag that is made of the time and size is none that the storage can compare.
        if is_made_up(unless_etag) and (await self.head(name)).etag == unless_etag:
            return None
        first_bytes, known = self.settings.large_object_bytes, "" if is_made_up(unless_etag) else unless_etag
        try:
            opened = await self._requests.get(name, 0, first_bytes, if_none_match=known)
        except NotModified:
            return None
        tag = opened.answer.info.etag.strip('"').lower()
        is_md5 = self.remote.verify_md5 and _MD5.fullmatch(tag) is not None
        return RemoteRead(self, opened, first_bytes, md5=tag if is_md5 else "")

    async def read_range(self, name: str, start: int, length: int, etag: str) -> memoryview:
        """Read `length` bytes of the version that has this tag.

        Raises ObjectNotFound, RemoteChanged if another version is there now, RangeError if it is shorter.
        """
        self.check_name(name)
        if not length:
            return memoryview(b"")
        content, position = bytearray(length), 0
        try:
            opened = await self._requests.get(name, start, start + length, if_match=etag)
        except PreconditionFailed:
            self._raise_changed(name)
        size_bytes = opened.answer.info.size_bytes
        if start + length > size_bytes:
            await opened.close()
            raise RangeError(f"{self._place(name)}: bytes {start:,} to {start + length:,} of {size_bytes:,}")
        chunks = self.resumed(opened, start, start + length)
        try:
            async for chunk in chunks:
                content[position : position + len(chunk)] = chunk
                position += len(chunk)
        finally:
            await chunks.aclose()
        return memoryview(content)

    async def list(
        self,
        prefix: str = "",
        start_after: str = "",
        *,
        skipped: SkippedNames | None = None,
        bounds: ListBounds | None = None,
    ) -> AsyncGenerator[list[RemoteObject], None]:
        """Yield the objects whose names begin with `prefix` and follow `start_after`, in pages, in the order of the
        names' UTF-8 bytes. Descriptions have neither metadata nor content type.

        Args:
            skipped: where to note keys that are left out, besides `self.skipped`.
            bounds: where the listing ends, and where its position is noted.

        Raises Unsupported for web servers.
        """
        if self.remote.scheme in ("http", "https"):
            raise Unsupported(f"{self.remote.url}: a web server has no listing; name the objects")
        after = start_after
        pages: AsyncIterator[KeyPage] | None = None
        noted = [self.skipped] if skipped is None else [self.skipped, skipped]

        async def next_page(driver: Driver) -> KeyPage | None:
            nonlocal pages
            if pages is None:
                pages = driver.pages(prefix, after)
            try:
                return await anext(pages, None)
            except BaseException:
                pages = None  # the next attempt begins after the last page that came
                raise

        while True:
            page = await self._requests.send("list", prefix, next_page)
            if page is None:
                return
            after = page.after or after
            found, is_last = [], not page.after
            for key in page.keys:
                if key.key <= start_after:
                    continue
                if bounds is not None:
                    if bounds.until and key.key > bounds.until:
                        is_last = True
                        break
                    bounds.position = key.key
                if self.name_fault(key.key):
                    for one in noted:
                        one.note(key.key)
                    continue
                found.append(RemoteObject(key.key, key.size_bytes, key.etag, "", key.modified_ns))
            for one in noted:
                one.markers += page.markers
            if bounds is not None and bounds.until and after >= bounds.until:
                is_last = True
            if found:
                yield found
            if is_last:
                return

    async def put(
        self,
        name: str,
        chunks: AsyncIterator[Buffer],
        size_bytes: int,
        metadata: Mapping[str, str] | None = None,
        *,
        if_absent: bool = False,
        if_etag: str = "",
    ) -> RemoteObject:
        """Put an object of `size_bytes`. Its time is this node's.

        Small objects are put in one request, others in parts. Conditions on an object of more than
        MAX_CONDITIONAL_BYTES are checked before the upload, and not at its end.

        Raises VersionConflict if a condition does not hold, ContentMismatch if the chunks have another size,
        Unsupported for web servers.
        """
        self._check_writable("put")
        self.check_name(name)
        metadata = metadata or {}
        conditions = PutConditions(if_absent, if_etag)
        # Parts cost two requests more, one after another: not worth it for an object of two parts.
        if size_bytes <= (MAX_CONDITIONAL_BYTES if conditions else 2 * self.settings.range_bytes):
            data = bytearray()
            async for chunk in self._counted(name, chunks, size_bytes):
                data += chunk
            put = await self._put_whole(name, bytes(data), metadata, conditions)
        else:
            if conditions:
                await self._check_conditions(name, conditions)
            put = await self._put_parts(name, chunks, size_bytes, metadata)
        self._usage.note("bytes_out", size_bytes)
        return replace(put, size_bytes=size_bytes)

    async def delete(self, name: str) -> None:
        """Delete an object, if there is one. Raises Unsupported for web servers."""
        self._check_writable("delete")
        self.check_name(name)
        with contextlib.suppress(ObjectNotFound):
            await self._requests.send("delete", name, lambda driver: driver.delete(name))

    async def whole(self, opened: OpenedAnswer) -> Buffer | None:
        """Return the object and close the answer, if all of it came with the answer; None otherwise."""
        answer = opened.answer
        if answer.data is None or answer.start or len(answer.data) != answer.info.size_bytes:
            return None
        self._usage.note("bytes_in", len(answer.data))
        await opened.close()
        return answer.data

    async def resumed(self, opened: OpenedAnswer, start: int, end: int) -> AsyncGenerator[Buffer, None]:
        """Yield bytes `start` to `end` of an object, first from this answer, and after a failure from others.

        Closes the answers. Raises RemoteChanged, RemoteUnavailable.
        """
        info = opened.answer.info
        name, position, retries = info.name, start, Retries(self.settings.retry_s)
        while True:
            try:
                try:
                    at = opened.answer.start
                    if at > position:
                        raise RequestFailure(
                            self._requests.unavailable(name, f"the answer begins at byte {at:,}"), retry=True
                        )
                    async for chunk in opened.answer.chunks:
                        view = memoryview(chunk)[max(0, position - at) :]
                        at += len(chunk)
                        view = view[: end - position]
                        if view:
                            position += len(view)
                            self._usage.note("bytes_in", len(view))
                            retries.progressed()
                            yield view
                        if position == end:
                            break
                finally:
                    await opened.close()
                if position == end:
                    return
                raise RequestFailure(
                    self._requests.unavailable(name, f"the answer ended at byte {position:,} of {end:,}"), retry=True
                )
            except RequestFailure as failure:
                await self._requests.pause(failure, retries)
            try:
                opened = await self._requests.get(name, position, end, if_match=info.etag, retries=retries)
            except (PreconditionFailed, ObjectNotFound):
                self._raise_changed(name)
            self._usage.note("retried")

    def _open_driver(self) -> Driver:
        if self.remote.scheme == "file":
            from storage_node.remote.drivers.folder_driver import FolderDriver

            return FolderDriver(self.remote, self._file_roots)
        from storage_node.remote.drivers.cloud_driver import CloudDriver
        from storage_node.remote.drivers.object_stores import ObjectStores

        credentials = credentials_of(self.remote, self.settings.profiles)
        destination = Destination(self.remote, credentials, self.settings.hosts)
        way = destination.client_options(self._gate)
        return CloudDriver(ObjectStores(self.remote, destination, self.settings.timeout_s, way))

    async def _put_whole(
        self, name: str, data: bytes, metadata: Mapping[str, str], conditions: PutConditions
    ) -> RemoteObject:
        attempts = 0

        async def once(driver: Driver) -> RemoteObject:
            nonlocal attempts
            attempts += 1
            return await driver.put(name, data, metadata, conditions)

        try:
            return await self._requests.send("put", name, once)
        except ObjectNotFound:
            if not conditions.if_etag:
                raise
            raise VersionConflict(message(self._place(name), "not put: it is gone", ())) from None
        except PreconditionFailed:
            # An earlier attempt may have put the object, and only its answer was lost.
            if attempts > 1:
                with contextlib.suppress(ObjectNotFound):
                    there = await self.head(name)
                    if there.size_bytes == len(data) and there.etag.strip('"') == hashlib.md5(data).hexdigest():
                        return there
            there_is = "it exists" if conditions.if_absent else f"its tag is no longer {conditions.if_etag}"
            raise VersionConflict(message(self._place(name), f"not put: {there_is}", ())) from None

    async def _put_parts(
        self, name: str, chunks: AsyncIterator[Buffer], size_bytes: int, metadata: Mapping[str, str]
    ) -> RemoteObject:
        own: list[BaseException] = []
        part_bytes = max(self.settings.range_bytes, _LEAST_PART_BYTES, size_bytes // _MOST_PARTS + 1)

        async def counted() -> AsyncIterator[Buffer]:
            try:
                async for chunk in self._counted(name, chunks, size_bytes):
                    yield chunk
            except Exception as error:
                own.append(error)  # the driver's error would hide its type
                raise

        try:
            return await self._requests.answered(
                "put", name, lambda driver: driver.put_stream(name, counted(), metadata, part_bytes)
            )
        except Exception as error:
            if own:
                raise own[0] from None
            if isinstance(error, RequestFailure):
                self._usage.note("errors")
                raise error.error from None
            raise

    async def _check_conditions(self, name: str, conditions: PutConditions) -> None:
        try:
            etag = (await self.head(name)).etag
        except ObjectNotFound:
            etag = ""
        if (conditions.if_absent and etag) or (conditions.if_etag and etag != conditions.if_etag):
            raise VersionConflict(f"{self._place(name)}: not put: " + (f"its tag is {etag}" if etag else "it is gone"))

    async def _counted(self, name: str, chunks: AsyncIterator[Buffer], size_bytes: int) -> AsyncIterator[Buffer]:
        """Yield the chunks. Raises ContentMismatch if they have another size together."""
        came = 0
        async for chunk in chunks:
            came += len(chunk)
            if came > size_bytes:
                break
            if len(chunk):
                yield chunk
        if came != size_bytes:
            more = "at least " if came > size_bytes else ""
            raise ContentMismatch(f"{self._place(name)}: {more}{came:,} bytes came instead of {size_bytes:,}")

    def check_name(self, name: str) -> None:
        """Raise InvalidName for a name that no remote object can have."""
        if fault := self.name_fault(name):
            raise InvalidName(f"{self._place(shown_name(name))!r}: {fault}")

    def name_fault(self, name: str) -> str | None:
        """Return why a key cannot be a name; None if it can."""
        if name.startswith("/"):
            return "it begins with '/'"
        if fault := object_name_fault(name):
            return fault
        if self.remote.scheme != "file" and _CONTROL.search(name):
            return "it contains a control character, which the client for remote storage cannot send"
        return None

    def _check_writable(self, what: str) -> None:
        if not self.remote.is_writable:
            raise Unsupported(f"{self.remote.url}: a web server is read-only here: no {what}")

    def _place(self, name: str) -> str:
        return f"{self.remote.url}/{name}" if name else self.remote.url

    def _raise_changed(self, name: str) -> NoReturn:
        raise RemoteChanged(
            message(self._place(name), "the object was replaced or deleted while it was read", ())
        ) from None
