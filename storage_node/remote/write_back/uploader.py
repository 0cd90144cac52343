"""Uploader: carries out the plan of one pending upload, between the store's journal and a remote location."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, closing
from typing import Any

from ais_loader.errors import ObjectNotFound, RemoteUnavailable, VersionConflict
from ais_loader.wire.reserved import REMOTE_DELETED, REMOTE_ETAG, REMOTE_PENDING
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.remote.copies.object_metadata import STAMP_KEY, metadata_of, remote_metadata
from storage_node.remote.drivers.driver import RemoteObject
from storage_node.remote.location.backend import Backend
from storage_node.remote.write_back.upload_plan import (
    Attempt,
    FoundObject,
    PendingUpload,
    Stamp,
    Step,
    next_step,
    pending_upload,
)
from storage_node.store.failpoints import failpoint
from storage_node.store.format import CatalogEntry, encode_metadata
from storage_node.store.read.object_reader import open_object
from storage_node.store.store import Store

_LOOKS = 4
"""Looks at the remote object before an upload is put off, because others keep changing it."""
REPLACED_ETAG = 'W/"replaced"'
"""ETag of a copy whose remote object others have replaced at once: no object has it."""


NoteChanges = Callable[[RemoteBucket, Sequence[str]], Awaitable[None]]
"""Marks objects as changed, for the bucket's inventory."""


class Uploader:
    """Belongs to one event loop. `read` runs a function that may wait for a drive, off the loop."""

    def __init__(self, store: Store, read: Callable[..., Awaitable[Any]], note_changes: NoteChanges) -> None:
        self._store, self._read, self._note_changes = store, read, note_changes

    async def upload(self, bucket: RemoteBucket, backend: Backend, name: str) -> Step | None:
        """Upload what is pending of a name. Returns how that ended; None if something newer has to be uploaded.

        Raises RemoteUnavailable, RemoteDenied, ObjectNotFound and others of the store: it can be tried again.
        """
        uploads = self._store.uploads
        entry: CatalogEntry | None = await self._read(uploads.newest, bucket.uuid, name)
        upload = pending_upload(bucket.uuid, name, entry) if entry is not None else None
        if entry is None or upload is None:
            return Step.DONE
        attempt = Attempt.decode(await self._read(uploads.attempt, bucket.uuid, name))
        for _ in range(_LOOKS):
            found = await self._look(backend, name)
            seen = None if found is None else FoundObject(found.etag, Stamp.decode(found.metadata))
            step = next_step(upload, seen, attempt)
            if step is Step.SEND:
                attempt = Attempt(seen.etag if seen is not None else "")
                noted = functools.partial(uploads.begin, bucket.uuid, name, upload.version, attempt.encode())
                if not await self._read(noted):
                    return None
                try:
                    found = await self._send(bucket, backend, upload, entry, attempt)
                except VersionConflict:
                    continue  # somebody has changed it since the look, or the answer to this request was lost
                failpoint("upload.sent")
                step = Step.DONE
            if step.is_over:
                await self._note_changes(bucket, [name])  # a refresh of the inventory may have listed it before
                raw_metadata = _settled(entry, found if step is Step.DONE else None)
                settle = functools.partial(uploads.settle, bucket.uuid, name, upload.version, raw_metadata)
                return step if await self._read(settle) else None
            if step is Step.OBSOLETE:
                await self._drop(bucket, upload, entry)
            return step
        raise RemoteUnavailable(f"{bucket.name}/{name}: others keep changing the remote object; not uploaded yet")

    async def _drop(self, bucket: RemoteBucket, upload: PendingUpload, entry: CatalogEntry) -> None:
        """Remove an entry that a newer one of this bucket has replaced on other nodes, which may have evicted it since:
        repair would not bring it here."""
        name, version = upload.name, upload.version
        settle = functools.partial(self._store.uploads.settle, bucket.uuid, name, version, _settled(entry, None))
        if await self._read(settle) and not upload.is_deletion:
            await self._read(self._store.delete, bucket.name, name, version)

    async def _look(self, backend: Backend, name: str) -> RemoteObject | None:
        with contextlib.suppress(ObjectNotFound):
            return await backend.head(name)
        return None

    async def _send(
        self, bucket: RemoteBucket, backend: Backend, upload: PendingUpload, entry: CatalogEntry, attempt: Attempt
    ) -> RemoteObject | None:
        """Raises VersionConflict if the remote object is not the one of the attempt."""
        if upload.is_deletion:
            await backend.delete(upload.name)
            return None
        metadata = remote_metadata(entry.metadata) | {STAMP_KEY: upload.stamp.encode()}
        async with aclosing(self._chunks(bucket.name, upload)) as chunks:
            return await backend.put(
                upload.name, chunks, upload.size_bytes, metadata, if_absent=not attempt.etag, if_etag=attempt.etag
            )

    async def _chunks(self, bucket: str, upload: PendingUpload) -> AsyncGenerator[bytes, None]:
        opened = functools.partial(open_object, self._store, bucket, upload.name, version=str(upload.version))
        with closing(await self._read(opened)) as reader:
            while chunk := await self._read(next, reader, b""):
                yield bytes(chunk)


def _users(entry: CatalogEntry) -> dict[str, str]:
    return {key: value for key, value in entry.metadata.items() if key != REMOTE_PENDING}


def _settled(entry: CatalogEntry, found: RemoteObject | None) -> bytes:
    """Return the metadata of an entry that is uploaded. `found`: the remote object; None if it has been replaced."""
    if entry.is_tombstone:
        return encode_metadata(_users(entry) | {REMOTE_DELETED: "1"})
    own = metadata_of(found) if found is not None else {REMOTE_ETAG: REPLACED_ETAG}
    return encode_metadata(own | _users(entry))
