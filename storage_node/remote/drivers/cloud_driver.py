"""CloudDriver: single requests to S3 and its like, Google, Azure and web servers, over obstore.

obstore hands each answer to the loop by a thread of its own, which waits for the interpreter. A blocking call returns
in the thread that made it. Nobody can cancel such a call. It ends by obstore's limits, and the threads are daemons: a
storage that is silent delays neither its readers nor the end of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from ais_loader.errors import InvalidRequest, LoaderError, ObjectNotFound, RemoteDenied, RemoteUnavailable, Unsupported
from ais_loader.wire.remote import Remote
from ais_loader.wire.reserved import CONTENT_HEADERS, STORE_PREFIX
from storage_node.limits.blocking_calls import BlockingCalls
from storage_node.remote.drivers import driver, s3_listing
from storage_node.remote.drivers.driver import (
    CHUNK_BYTES,
    WHOLE_BYTES,
    Buffer,
    KeyPage,
    ListedKey,
    NotModified,
    PreconditionFailed,
    PutConditions,
    ReadAnswer,
    RemoteObject,
    RequestFailure,
    begun,
    made_up_etag,
)
from storage_node.remote.drivers.failures import failure_of, message
from storage_node.remote.drivers.listing_request import AzureListing, not_advancing, quoted_etag
from storage_node.remote.drivers.object_stores import ObjectStores, obstore_module

T = TypeVar("T")
_PAGE = 1000
_HEADERS = frozenset((*CONTENT_HEADERS, "storage-class"))
"""Attributes of obstore that are no metadata of the user."""
_NO_RANGES = ("Range request not supported", "non-partial response")


class CloudDriver:
    """Requests to one bucket, container or web server. See `Driver`.

    The checksums that S3 keeps (x-amz-checksum-*) cannot be verified: obstore does not expose them, nor how an object
    is encrypted, by which an ETag is an MD5 or not (`Remote.verify_md5`). TLS protects the content in transit, lengths
    are checked, and obstore's requests are signed with the checksum of what they put.

    Raises RemoteDenied if the location's configuration is incomplete.
    """

    def __init__(self, stores: ObjectStores) -> None:
        self._stores = stores
        self._obstore = obstore_module()
        self._remote: Remote = stores.remote
        self.host = stores.host
        self.secrets: Sequence[str] = stores.credentials.secrets
        try:
            self._reader = stores.reader
        except Exception as error:  # noqa: BLE001 - obstore's classes have no common one
            # The configuration is incomplete, such as one without the name of an account.
            reason = str(error).partition("\n\nDebug source")[0]
            raise RemoteDenied(message(self._remote.url, reason, self.secrets)) from None
        self._has_ranges = self._has_head = True
        self._has_answered = False
        self._azure = (
            AzureListing(stores, self.secrets) if self._remote.scheme == "az" and stores.can_list_azure else None
        )
        self._is_signing: bool | None = None

    async def head(self, name: str) -> RemoteObject:
        is_refused, is_web = True, self._remote.scheme.startswith("http")
        if self._has_head:
            try:
                with self._translated(name):
                    found = self._info(name, (await self._get(name, {"head": True}))[0])
                if found.size_bytes or not is_web:
                    return found
                is_refused = False
            except RequestFailure as failure:
                is_refused = isinstance(failure.error, RemoteDenied | Unsupported) and not failure.is_credentials
                if not is_refused and (is_web or not isinstance(failure.error, ObjectNotFound)):
                    raise
        # Some web servers answer GET alone, or say of HEAD's answer that it is empty. And no such answer has content: a
        # missing bucket looks like a missing object, and a refusal gives no reason.
        answer = await begun(self, name, 0, 1)
        await answer.close()
        self._has_head = not is_refused
        return answer.info

    async def open(
        self, name: str, start: int = 0, end: int | None = None, *, if_match: str = "", if_none_match: str = ""
    ) -> ReadAnswer:
        options: dict[str, Any] = {}
        if if_none_match:
            options["if_none_match"] = if_none_match
        if if_match.startswith('"'):  # no weak tag matches
            options["if_match"] = if_match
        is_range = self._has_ranges and (start > 0 or end is not None)
        if is_range:
            options["range"] = {"offset": start} if end is None else (start, end)
        with self._translated(name):
            try:
                result, data = await self._get(name, options)
            except Exception as error:
                if not is_range or not any(one in str(error) for one in _NO_RANGES):
                    raise
                del options["range"]
                result, data = await self._get(name, options)
                self._has_ranges, is_range = not result.meta["size"], False
        info = self._info(name, result)
        if if_match and info.etag != if_match:
            raise PreconditionFailed
        return ReadAnswer(info, result.range[0], self._chunks(name, result, data), data=data)

    async def pages(self, prefix: str, after: str) -> AsyncIterator[KeyPage]:
        if self._azure is not None:
            own = self._azure.pages(prefix, after)
        elif self._remote.scheme == "s3" or await self._can_sign():
            own = s3_listing.pages(self._stores, prefix, after, self.secrets)
        else:
            own = self._listed(prefix, after)
        async for page in own:
            if page.after and page.after <= after:
                raise not_advancing(f"{self._remote.url}/{prefix}", after, self.secrets)
            after = page.after
            yield page

    async def _listed(self, prefix: str, after: str) -> AsyncIterator[KeyPage]:
        """Yield pages of obstore's listing. It ends with an error at a key that is no path."""
        # obstore lists folders, not prefixes, and drops the slash at the end of a directory marker's key.
        stores, folder = self._stores, prefix.rpartition("/")[0]
        above = stores.prefix
        with self._translated(prefix):
            listed = self._obstore.list(
                self._reader, above + folder or None, offset=above + after if after else None, chunk_size=_PAGE
            )
        iterator = listed.__aiter__()
        while True:
            with self._translated(prefix):
                found = await anext(iterator, None)
            if found is None:
                return
            keys, markers = [], 0
            for meta in found:
                key = meta["path"].removeprefix(above)
                # Azure may ignore where the listing is to start.
                if key.startswith(prefix) and meta["path"].startswith(above) and key > after:
                    if not meta["size"] and await self._is_marker(key):
                        markers += 1
                    else:
                        etag = quoted_etag(meta["e_tag"] or "")
                        keys.append(ListedKey(key, meta["size"], etag, _ns(meta["last_modified"])))
            is_last = len(found) < _PAGE
            yield KeyPage(keys, "" if is_last else found[-1]["path"].removeprefix(above), markers)
            if is_last:
                return

    async def put(self, name: str, data: bytes, metadata: Mapping[str, str], conditions: PutConditions) -> RemoteObject:
        mode: Any = "overwrite"
        if conditions.if_absent:
            mode = "create"
        elif conditions.if_etag:
            mode = {"e_tag": conditions.if_etag}
            if self._remote.scheme == "gs":
                # Google compares generations, and no tags.
                there = await self.head(name)
                if there.etag != conditions.if_etag:
                    raise PreconditionFailed
                mode["version"] = there.version
        return await self._put(self._stores.writer, name, data, len(data), metadata, mode=mode, use_multipart=False)

    async def put_stream(
        self, name: str, chunks: AsyncIterator[Buffer], metadata: Mapping[str, str], part_bytes: int
    ) -> RemoteObject:
        size_bytes = 0

        async def counted() -> AsyncIterator[Buffer]:
            nonlocal size_bytes
            async for chunk in chunks:
                size_bytes += len(chunk)
                yield chunk

        put = await self._put(
            self._stores.part_writer,
            name,
            counted(),
            0,
            metadata,
            use_multipart=True,
            chunk_size=part_bytes,
            max_concurrency=4,
        )
        return replace(put, size_bytes=size_bytes)

    async def delete(self, name: str) -> None:
        with self._translated(name):
            await self._obstore.delete_async(self._reader, self._key(name))

    async def _can_sign(self) -> bool:
        """Whether URLs of a bucket of Google can be signed: not by every role."""
        if self._is_signing is None and self._remote.scheme == "gs":
            try:
                await asyncio.to_thread(self._stores.signed_url, "list-type=2")
                self._is_signing = True
            except Exception:  # noqa: BLE001 - obstore's classes have no common one
                self._is_signing = False
        return bool(self._is_signing)

    def _key(self, name: str) -> str:
        return self._stores.prefix + name

    async def _get(self, name: str, options: Mapping[str, Any]) -> tuple[Any, Buffer | None]:
        """Return obstore's answer, and the content if that is small and a thread is free to wait for it."""
        key = self._key(name)
        if (answer := CALLS.begin(lambda: self._get_now(key, options))) is not None:
            result, data = await self._paced(name, answer.outcome)
        else:
            result, data = await self._obstore.get_async(self._reader, key, options=options), None
        self._has_answered = True
        return result, data

    def _get_now(self, key: str, options: Mapping[str, Any]) -> tuple[Any, Buffer | None]:
        result = self._obstore.get(self._reader, key, options=options)
        start, end = result.range
        is_small = end - start <= WHOLE_BYTES and "head" not in options
        return result, memoryview(result.bytes()) if is_small else None

    async def _put(
        self, store: Any, name: str, content: Any, size_bytes: int, metadata: Mapping[str, str], **options: Any
    ) -> RemoteObject:
        if taken := next((key for key in metadata if key.lower() in _HEADERS), ""):
            raise InvalidRequest(f"metadata {taken!r}: remote storage has a header of this name")
        headers = {f"{STORE_PREFIX}{header}": header for header in CONTENT_HEADERS}
        attributes = {headers.get(key, key): value for key, value in metadata.items()}
        with self._translated(name):
            put = await self._obstore.put_async(
                store, self._key(name), content, attributes=attributes or None, **options
            )
        self._has_answered = True
        # The answer has no time; the storage's is this one, but for the difference of the clocks.
        return RemoteObject(name, size_bytes, put["e_tag"] or "", put["version"] or "", time.time_ns(), dict(metadata))

    async def _chunks(self, name: str, result: Any, data: Buffer | None) -> AsyncGenerator[Buffer, None]:
        if data is not None:
            yield data
            return
        start, end = result.range
        if end - start <= CHUNK_BYTES and (only := CALLS.begin(result.bytes)) is not None:
            yield memoryview(await self._paced(name, only.outcome))
            return
        iterator = result.stream(min_chunk_size=CHUNK_BYTES).__aiter__()
        while True:
            chunk = await self._paced(name, anext(iterator, None))
            if chunk is None:
                return
            yield memoryview(chunk)

    async def _paced(self, name: str, chunk: Awaitable[T]) -> T:
        """Limit the time for a chunk, which obstore shows when it is complete, and translate errors."""
        with self._translated(name):
            try:
                async with asyncio.timeout(CHUNK_BYTES / driver.PACE.rate_bytes_per_s):
                    return await chunk
            except TimeoutError:
                slow = RemoteUnavailable(message(f"{self._remote.url}/{name}", driver.TOO_SLOW, self.secrets))
                raise RequestFailure(slow, retry=True) from None

    async def _is_marker(self, key: str) -> bool:
        """Whether an empty object of a listing is the directory marker KEY/."""
        try:
            await self.head(key)
        except RequestFailure as failure:
            return isinstance(failure.error, ObjectNotFound)
        return False

    def _info(self, name: str, result: Any) -> RemoteObject:
        meta, attributes = result.meta, dict(result.attributes)
        size_bytes, modified_ns = int(meta["size"]), _ns(meta["last_modified"])
        return RemoteObject(
            name,
            size_bytes,
            meta["e_tag"] or made_up_etag(modified_ns, size_bytes),
            meta["version"] or "",
            modified_ns,
            {key: value for key, value in attributes.items() if key.lower() not in _HEADERS},
            {key.lower(): value for key, value in attributes.items() if key.lower() in CONTENT_HEADERS},
        )

    @contextlib.contextmanager
    def _translated(self, name: str) -> Iterator[None]:
        """Translate errors of obstore."""
        try:
            yield
        except (RequestFailure, NotModified, PreconditionFailed, LoaderError):
            raise
        except Exception as error:  # noqa: BLE001 - obstore's classes have no common one
            translated = failure_of(error, f"{self._remote.url}/{name}", self._remote.scheme, self.secrets)
            if isinstance(translated, RequestFailure) and translated.is_credentials and self._has_answered:
                # They have worked: the service that renews them does not answer.
                translated.retry = True
            raise translated from None


def _ns(when: datetime) -> int:
    return int(when.timestamp() * 1_000_000) * 1000


__all__ = ["CALLS", "BlockingCalls"]
CALLS = BlockingCalls(64)
"""Those of this process."""
