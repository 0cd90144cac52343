"""Write-back of one node: uploads what its drives hold and remote storage does not have yet.

The drives have the journal (see `storage_node.store.drive.upload_journal`). In memory are the pending uploads of this
process, which follow the changes of the store. Several names are uploaded at once, each name by one task at a time: a
later write of it waits, and takes its place. In a cluster each owner has the record of an object. The first one that
answers uploads it, and the others ask it what has become of it (see `upload_owners`).

What cannot be uploaded stays, however long that takes. So that it does not fill the drives, a PUT waits while
`remote_write_back_bytes` are pending.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ais_loader.errors import LoaderError, ObjectNotFound, Overloaded, Unsupported, VersionConflict
from ais_loader.wire.backoff import Backoff
from ais_loader.wire.generated import ais_objects_pb2 as objects
from ais_loader.wire.generated import ais_remote_pb2 as pb
from ais_loader.wire.reserved import ETAG_VERSION, REMOTE_DELETED, REMOTE_ETAG, REMOTE_PENDING
from storage_node.context.remote_buckets import RemoteBucket, RemoteBuckets
from storage_node.limits.tasks import keep_going
from storage_node.limits.wakeup import Wakeup
from storage_node.remote.inventory.inventories import is_hidden
from storage_node.remote.location.backends import Backends
from storage_node.remote.write_back.upload_owners import UploadOwners
from storage_node.remote.write_back.upload_plan import ANY, Base, PendingUpload, Step, base_of, pending_upload
from storage_node.remote.write_back.uploader import NoteChanges, Uploader
from storage_node.settings.declarations import RemoteSettings
from storage_node.store.drive.preconditions import Condition, condition_of
from storage_node.store.format import CatalogEntry, encode_metadata, is_pending
from storage_node.store.replica_state import not_found_message
from storage_node.store.store import Store

UPLOADS_AT_ONCE = 16
RECORD_BYTES = 1024
"""Bytes that count for each pending upload in addition to its content."""
ASK_S = 0.5
"""Interval at which other owners are asked about their pending uploads."""
UNKNOWN_S = 3.0
"""Age of a pending upload at which this owner uploads it if the one before it does not know it."""
FAILURES_SHOWN = 5
_RETRY = Backoff(0.25, 5.0)
_TOGETHER_S = 0.02
log = logging.getLogger(__name__)
Key = tuple[bytes, str]


@dataclass(slots=True)
class _WaitingUpload:
    """A pending upload, guarded by the lock of its WriteBack."""

    upload: PendingUpload
    since_s: float
    """Time since which the name has been pending, as of `time.time`."""
    failure: LoaderError | None = None
    failures: int = 0
    is_conflict: bool = False

    @property
    def counted_bytes(self) -> int:
        return 0 if self.is_conflict else self.upload.size_bytes + RECORD_BYTES


class WriteBack:
    """Changes are noted from any thread; everything else belongs to one event loop.

    Args:
        read: Runs a function that may wait for a drive, off the event loop.
        owners: The owners of an object in a cluster.
    """

    def __init__(
        self,
        store: Store,
        *,
        buckets: RemoteBuckets,
        backends: Backends,
        read: Callable[..., Awaitable[Any]],
        settings: RemoteSettings,
        owners: UploadOwners,
        note_changes: NoteChanges,
    ) -> None:
        self._store, self._buckets, self._backends, self._owners = store, buckets, backends, owners
        self._read, self._settings, self._note_changes = read, settings, note_changes
        self._uploader = Uploader(store, read, note_changes)
        self._lock = threading.Lock()
        self._pending: dict[Key, _WaitingUpload] = {}  # guarded by _lock, as are _ready and _bytes
        self._ready: deque[Key] = deque()
        self._bucket_uuids: set[bytes] = set()
        """Buckets that have had pending uploads."""
        self.pending_bytes = 0
        """Bytes that are to be uploaded, but for conflicts."""
        self._admitted_bytes = 0
        """Announced bytes of PUTs that are running."""
        self._running: set[Key] = set()
        self._to_ask: dict[str, set[Key]] = {}
        """Pending uploads by the endpoint of the owner that uploads them."""
        self._loop = asyncio.get_running_loop()
        self._wake, self._ask_due = Wakeup(), Wakeup()
        self._progress = asyncio.Event()
        store.watch_changes(self._changed, self._bucket_uuids)
        work = (("uploading to remote storage", self._run), ("asking owners for uploads", self._ask))
        self._tasks = [asyncio.create_task(keep_going(*one)) for one in work]
        self._uploads: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Stop. What is pending is uploaded when the store is opened again."""
        self._store.unwatch_changes(self._changed)
        tasks = [*self._tasks, *self._uploads]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- what is pending

    def _changed(self, bucket_uuid: bytes, name: str, entry: CatalogEntry | None) -> None:
        """Follow a change of the store: the current entry of a name, None for an object that is gone."""
        key = bucket_uuid, name
        if entry is None or not entry.raw_metadata or not is_pending(entry.raw_metadata):
            waiting = self._pending.get(key)  # maybe newer: changes are noted in another order than they were made
            if waiting is not None and (entry is None or entry.version >= waiting.upload.version):
                self._drop_ended(key, waiting)
            return
        upload = pending_upload(bucket_uuid, name, entry)
        assert upload is not None
        with self._lock:
            before = self._pending.get(key)
            if before is not None and before.upload.version >= upload.version:
                return
            since_s = before.since_s if before is not None and not before.is_conflict else time.time()
            self._drop(key)
            self._add(key, _WaitingUpload(upload, since_s))
        self._wake.set()

    def _add(self, key: Key, waiting: _WaitingUpload) -> None:
        self._bucket_uuids.add(key[0])
        self._pending[key] = waiting
        self.pending_bytes += waiting.counted_bytes
        self._ready.append(key)

    def _drop(self, key: Key) -> None:
        if (gone := self._pending.pop(key, None)) is not None:
            self.pending_bytes -= gone.counted_bytes

    def _load(self) -> None:
        for bucket_uuid, name, entry in self._store.uploads.pending():
            key, upload = (bucket_uuid, name), pending_upload(bucket_uuid, name, entry)
            if upload is None:
                continue
            waiting = _WaitingUpload(upload, entry.modified_ns / 1e9)
            with self._lock:
                if key in self._pending:
                    continue
                self._add(key, waiting)
            self._drop_ended(key, waiting)  # a change between the look and here was not noted

    def _drop_ended(self, key: Key, waiting: _WaitingUpload) -> bool:
        """Drop a pending upload if the store has none for its name. Returns whether the store has none. Waits for a
        drive."""
        try:
            entry = self._store.uploads.newest(*key)
        except LoaderError:
            return False  # its drive cannot be read now
        if entry is not None and is_pending(entry.raw_metadata):
            return False
        with self._lock:
            if self._pending.get(key) is waiting:
                self._drop(key)
        self._wake.set()
        return True

    def require_kept(self, bucket: RemoteBucket, name: str) -> None:
        """Raise ObjectNotFound for an object that was deleted here, and whose remote object is still to be deleted, and
        for what the store keeps under hidden names. Thread-safe."""
        waiting = self._pending.get((bucket.uuid, name))
        if is_hidden(name) or (waiting is not None and waiting.upload.is_deletion):
            raise ObjectNotFound(not_found_message(bucket.name, name))

    def deletions(self, bucket_uuid: bytes, prefix: str, start_after: str, until: str) -> list[str]:
        """Return names for which `is_deleted` is true, after one name and up to another ("": no limit)."""
        with self._lock:
            waiting = list(self._pending.values())
        names = [one.upload.name for one in waiting if one.upload.is_deletion and one.upload.bucket_uuid == bucket_uuid]
        after, last = start_after.encode(), until.encode()
        return [name for name in names if name.startswith(prefix) and after < name.encode() <= (last or name.encode())]

    async def hidden(self, bucket: RemoteBucket, prefix: str, start_after: str, until: str) -> set[str]:
        """Return names whose remote objects are to be deleted, by this or any other node."""
        names = set(self.deletions(bucket.uuid, prefix, start_after, until))
        request = pb.PendingDeletionsRequest(
            bucket_uuid=bucket.uuid, prefix=prefix, start_after=start_after, until=until
        )
        return names | await self._owners.deletions(request)

    def rows(
        self, bucket_uuid: bytes | None = None, prefix: str = "", *, all_buckets: bool = False
    ) -> list[pb.PendingBucket]:
        """Return what is pending by bucket. `all_buckets`: also for buckets that have nothing pending. Thread-safe."""
        buckets = self._buckets.all()
        names = {bucket.uuid: bucket.name for bucket in buckets}
        rows: dict[bytes, pb.PendingBucket] = {}
        if all_buckets:
            rows = {one.uuid: pb.PendingBucket(bucket=one.name) for one in buckets if one.remote.is_write_back}
        with self._lock:
            waiting = list(self._pending.values())
        now_s = time.time()
        for one in waiting:
            of = one.upload.bucket_uuid
            if (bucket_uuid is not None and of != bucket_uuid) or not one.upload.name.startswith(prefix):
                continue
            row = rows.setdefault(of, pb.PendingBucket(bucket=names.get(of, of.hex())))
            if one.is_conflict:
                row.conflicts += 1
            else:
                row.count += 1
                row.bytes += one.upload.size_bytes
                row.oldest_s = max(row.oldest_s, now_s - one.since_s)
            if one.failure is not None and (len(row.failure) < FAILURES_SHOWN or one.is_conflict):
                error = objects.Error(kind=one.failure.kind, message=str(one.failure))
                failure = pb.PendingFailure(name=one.upload.name, error=error)
                if len(row.failure) >= FAILURES_SHOWN:  # conflicts are named before what may pass
                    last = next((at for at, other in enumerate(row.failure) if other.error.kind != error.kind), None)
                    if last is not None:
                        row.failure[last].CopyFrom(failure)
                else:
                    row.failure.append(failure)
        return [rows[of] for of in sorted(rows)]

    async def flush(self, bucket_uuid: bytes | None, prefix: str, wait_s: float) -> None:
        """Wait until what is pending now is uploaded, or is a conflict, for a limited time."""
        with self._lock:
            wanted = {
                key: one.upload.version
                for key, one in self._pending.items()
                if (bucket_uuid is None or key[0] == bucket_uuid) and key[1].startswith(prefix)
            }
            # Those that have failed are tried at once.
            self._ready += [key for key in wanted if not self._pending[key].is_conflict]
        self._wake.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while wanted := {key: version for key, version in wanted.items() if self._is_waiting(key)}:
                    self._progress.clear()
                    await self._progress.wait()
                    await asyncio.sleep(_TOGETHER_S)

    def _is_waiting(self, key: Key) -> bool:
        return (one := self._pending.get(key)) is not None and not one.is_conflict

    # -- writing

    @contextlib.asynccontextmanager
    async def admitted(self, bucket: RemoteBucket, name: str, size_bytes: int) -> AsyncIterator[None]:
        """Return a context for one PUT, which is entered when there is room for its bytes.

        Raises Overloaded after `remote_write_back_wait_s`, Unsupported for a place that cannot be written.
        """
        bucket.require_writable()
        try:
            async with asyncio.timeout(self._settings.write_back_wait_s):
                while not await self._has_room(bucket, name, size_bytes):
                    self._progress.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(ASK_S):  # other nodes do not wake this one
                            await self._progress.wait()
        except TimeoutError:
            raise Overloaded(
                f"{bucket.name}/{name}: {self.pending_bytes:,} bytes are still to be uploaded to {bucket.remote.url}, "
                f"{self._settings.write_back_bytes:,} may be (remote_write_back_bytes); nothing was stored, try later"
            ) from None
        self._admitted_bytes += size_bytes
        try:
            yield
        finally:
            self._admitted_bytes -= size_bytes
            self._progress.set()

    async def _has_room(self, bucket: RemoteBucket, name: str, size_bytes: int) -> bool:
        elsewhere = await self._owners.pending_bytes(bucket, name)
        pending = max(self.pending_bytes + self._admitted_bytes, elsewhere)
        return not pending or pending + size_bytes <= self._settings.write_back_bytes

    async def mark(self, bucket: RemoteBucket, put: objects.PutHeader | objects.SmallObject) -> None:
        """Mark a put as one that is to be uploaded. A condition on the ETag of a cold object is replaced by one that
        there is no object here: the upload has to meet it. Waits for a drive if the put is conditional.

        Raises InvalidName, InvalidRequest, and what `cold_etag` raises.
        """
        if etag := await self.cold_etag(bucket, put.name, put.condition.if_version):
            put.condition.if_version, put.condition.if_absent = "", True
        condition = condition_of(put)
        await self._note_changes(bucket, [put.name])
        put.metadata[REMOTE_PENDING] = Base(etag).encode() if etag else await self._mark(bucket, put.name, condition)

    async def cold_etag(self, bucket: RemoteBucket, name: str, if_version: str) -> str:
        """Return the ETag that a condition names as the version of a cold object; "" if it names none.

        Raises InvalidName; VersionConflict if the object is not cold, or has another ETag; ObjectNotFound.
        """
        self._backends.of(bucket).check_name(name)
        etag = if_version.removeprefix(ETAG_VERSION)
        if etag == if_version:
            return ""
        entry = await self._read(self._store.uploads.newest, bucket.uuid, name)
        if entry is not None and not entry.is_tombstone:
            raise VersionConflict(f"{bucket.name}/{name}: it has version {entry.version} now; nothing was changed")
        if entry is not None and is_pending(entry.raw_metadata):
            raise ObjectNotFound(f"{bucket.name}/{name}: it was deleted")
        if (found := (await self._backends.of(bucket).head(name)).etag) != etag:
            raise VersionConflict(f"{bucket.name}/{name}: the remote ETag is {found} now; nothing was changed")
        return etag

    async def _mark(self, bucket: RemoteBucket, name: str, condition: Condition | None) -> str:
        if condition is None or not (condition.if_absent or condition.if_version):
            return ANY.encode()
        entry = await self._read(self._store.uploads.newest, bucket.uuid, name)
        return base_of(entry).encode()

    async def deletion_mark(
        self, bucket: RemoteBucket, names: Sequence[str], condition: Condition | None, etag: str = ""
    ) -> bytes:
        """Return the metadata of tombstones that are to be uploaded. `condition`: only for a single one. Raises
        Unsupported."""
        if not bucket.remote.is_writable:
            raise Unsupported(f"bucket {bucket.name!r} is read-only: nothing can be deleted at {bucket.remote.url}")
        await self._note_changes(bucket, names)
        base = Base(etag).encode() if etag else await self._mark(bucket, names[0] if names else "", condition)
        return encode_metadata({REMOTE_PENDING: base})

    # -- uploading

    async def _run(self) -> None:
        await self._read(self._load)
        while True:
            self._begin()
            await self._wake.wait()
            self._progress.set()

    def _begin(self) -> None:
        buckets: dict[bytes, RemoteBucket] | None = None
        while len(self._running) < UPLOADS_AT_ONCE:
            with self._lock:
                key = self._ready.popleft() if self._ready else None
                if key is None:
                    return
                waiting = self._pending.get(key)
            if waiting is None or waiting.is_conflict or key in self._running:
                continue  # one that is running is looked at again when it ends
            buckets = buckets or {bucket.uuid: bucket for bucket in self._buckets.all()}
            bucket = buckets.get(key[0])
            if bucket is None:  # the map is not known yet, or it is no remote bucket any more
                self._later(key, _RETRY.longest_s)
                continue
            endpoint = self._owners.uploader_of(bucket, key[1])
            if endpoint:
                self._to_ask.setdefault(endpoint, set()).add(key)
                self._ask_due.set()
                continue
            self._start(bucket, key, waiting)

    def _start(self, bucket: RemoteBucket, key: Key, waiting: _WaitingUpload) -> None:
        self._running.add(key)
        task = asyncio.create_task(self._upload(bucket, key, waiting))
        self._uploads.add(task)
        task.add_done_callback(self._uploads.discard)

    def _later(self, key: Key, pause_s: float) -> None:
        self._loop.call_later(pause_s, self._again, key)

    def _again(self, key: Key) -> None:
        with self._lock:
            if key in self._pending:
                self._ready.append(key)
        self._wake.set()

    async def _upload(self, bucket: RemoteBucket, key: Key, waiting: _WaitingUpload) -> None:
        error: LoaderError | None = None
        step: Step | None = None
        try:
            step = await self._uploader.upload(bucket, self._backends.of(bucket), key[1])
            is_deleted = step is not None and step.is_over and waiting.upload.is_deletion
            if is_deleted and not self._owners.are_several(bucket):
                await self._read(self._store.uploads.forget_deletion, *key, waiting.upload.version)
        except Exception as failure:  # noqa: BLE001 - otherwise nobody would try again
            error = failure if isinstance(failure, LoaderError) else LoaderError(repr(failure))
        finally:
            self._running.discard(key)
            self._wake.set()
        if step is Step.REPLACED:
            log.warning("%s/%s: the remote object was replaced by others right after its upload", bucket.name, key[1])
        if step is Step.CONFLICT:
            error = _conflict(bucket, key[1])
        self._note_end(bucket, key, waiting, step, error)

    def _note_end(
        self, bucket: RemoteBucket, key: Key, tried: _WaitingUpload, step: Step | None, error: LoaderError | None
    ) -> None:
        with self._lock:
            now = self._pending.get(key)
            if now is None:
                return
            if now is not tried:
                self._ready.append(key)
                return
            if step is Step.DONE:  # the entry was not pending: its change is noted at any moment, or was missed
                self._drop(key)
                return
            if error is not None:
                now.failure, now.failures = error, now.failures + 1
            if step is Step.CONFLICT:
                self.pending_bytes -= now.counted_bytes
                now.is_conflict = True
        if step is Step.CONFLICT:
            log.error("%s", error)
            self._progress.set()
            return
        if error is not None and now.failures in (1, 10, 100):
            log.warning("%s/%s is not uploaded for now: %s", bucket.name, key[1], error)
        self._later(key, _RETRY.pause_s(now.failures))

    # -- other owners

    async def _ask(self) -> None:
        while True:
            await self._ask_due.wait()
            await asyncio.sleep(ASK_S)
            asked, self._to_ask = self._to_ask, {}
            await asyncio.gather(*(self._ask_owner(endpoint, keys) for endpoint, keys in asked.items()))

    async def _ask_owner(self, endpoint: str, keys: Iterable[Key]) -> None:
        by_bucket: dict[bytes, list[_WaitingUpload]] = {}
        with self._lock:
            for key in keys:
                if (one := self._pending.get(key)) is not None:
                    by_bucket.setdefault(key[0], []).append(one)
        buckets = {bucket.uuid: bucket for bucket in self._buckets.all()}
        for uuid, waiting in by_bucket.items():
            bucket = buckets.get(uuid)
            states: Sequence[pb.UploadState] | None = None
            if bucket is not None:
                states = await self._owners.states(endpoint, bucket, [one.upload for one in waiting])
            for at, one in enumerate(waiting):
                key = one.upload.bucket_uuid, one.upload.name
                if bucket is None or states is None:
                    self._later(key, ASK_S)
                    continue
                try:
                    await self._take_state(bucket, key, one, states[at])
                except Exception as error:  # noqa: BLE001 - otherwise nobody would ask again
                    log.warning("%s/%s is not uploaded for now: %r", bucket.name, key[1], error)
                    self._later(key, _RETRY.longest_s)

    async def _take_state(self, bucket: RemoteBucket, key: Key, one: _WaitingUpload, state: pb.UploadState) -> None:
        if state.kind == pb.UploadState.DONE:
            is_settled = await self._read(self._store.uploads.settle, *key, one.upload.version, state.metadata)
            if is_settled or not await self._ended(key, one):
                self._again(key)
        elif state.kind == pb.UploadState.CONFLICT:
            self._note_end(bucket, key, one, Step.CONFLICT, _conflict(bucket, key[1]))
        elif (
            state.kind == pb.UploadState.UNKNOWN
            and time.time() - one.upload.modified_ns / 1e9 > UNKNOWN_S
            and self._owners.is_owner(bucket, key[1])
            and key not in self._running
        ):
            self._start(bucket, key, one)
        elif state.kind == pb.UploadState.PENDING or not await self._ended(key, one):
            self._later(key, ASK_S)

    async def _ended(self, key: Key, waiting: _WaitingUpload) -> bool:
        """See `_drop_ended`. Two threads may have noted changes of the store in another order than they were made."""
        return bool(await self._read(self._drop_ended, key, waiting))

    async def states(self, bucket: RemoteBucket, request: pb.UploadStatesRequest) -> pb.UploadStatesResponse:
        """Return what this node knows of versions that another owner has pending."""

        def look() -> list[pb.UploadState]:
            states = []
            for name, version in zip(request.name, request.version, strict=True):
                state = _state_of(self._store.uploads.newest(bucket.uuid, name), version)
                one = self._pending.get((bucket.uuid, name))
                if state.kind == pb.UploadState.PENDING and one is not None and one.is_conflict:
                    state.kind = pb.UploadState.CONFLICT
                states.append(state)
            return states

        return pb.UploadStatesResponse(state=await self._read(look), pending_bytes=self.pending_bytes)


def _conflict(bucket: RemoteBucket, name: str) -> VersionConflict:
    return VersionConflict(
        f"{bucket.name}/{name}: the remote object was changed by others, against the condition of the write: it was "
        "not uploaded. The store has it; put or delete it again without a condition to replace theirs"
    )


def _state_of(entry: CatalogEntry | None, version: str) -> pb.UploadState:
    if entry is None or str(entry.version) != version:
        return pb.UploadState(kind=pb.UploadState.UNKNOWN)
    if is_pending(entry.raw_metadata):
        return pb.UploadState(kind=pb.UploadState.PENDING)
    if {REMOTE_ETAG, REMOTE_DELETED} & entry.metadata.keys():
        return pb.UploadState(kind=pb.UploadState.DONE, metadata=entry.raw_metadata)
    return pb.UploadState(kind=pb.UploadState.UNKNOWN)
