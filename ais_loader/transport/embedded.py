"""Embedded transport: the store in this process, on the code that a node runs, without a network.

A writer ("a") holds the store exclusively. In a forked child, and after unpickling, a writer's transport becomes a
reader: one writer, any number of readers. This is the only module of ais_loader that imports storage_node; it is
imported only when such a store is opened.

The module is long because one class has all calls of `Transport`: each is short, and leads to the code of the node.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakValueDictionary

from ais_loader import errors
from ais_loader.tracebacks import short_tracebacks
from ais_loader.transport.base import (
    BucketInfo,
    EtlMethod,
    OpenedObject,
    PendingUploads,
    PutSpec,
    RemoteUsage,
    drive_row,
    object_info,
    pending_row,
    require_bucket,
    require_object,
    require_text,
    usage_row,
)
from ais_loader.transport.embedded_puts import header_of, put_groups, staged, stored_info
from ais_loader.transport.embedded_streams import COLD, ColdStream, EmbeddedStream, GeneratedStream, cold_part
from ais_loader.transport.listings import PAGE_BYTES, BucketListings, Item, MembersPage, items_of
from ais_loader.transport.read_only import ETL_READS
from ais_loader.transport.retry import WriteTries
from ais_loader.values.denials import Denials, merged_denials
from ais_loader.values.entry import Entry, ObjectInfo
from ais_loader.values.options import EmbeddedOptions
from ais_loader.values.promote import PromoteResult, PromoteSpec
from ais_loader.values.source import Buffer, Source
from ais_loader.values.summary import BucketSummary, PrefixSummary, SnapshotAction, SnapshotInfo
from ais_loader.wire.bucket_settings import BucketSettings
from ais_loader.wire.frame import FrameStream
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_compose_pb2 as compose_pb
from ais_loader.wire.generated import ais_contents_pb2 as contents_pb
from ais_loader.wire.generated import ais_etl_pb2 as etl_pb
from ais_loader.wire.generated import ais_objects_pb2 as objects_pb
from ais_loader.wire.generated import ais_remote_pb2 as remote_pb
from ais_loader.wire.object_info import stored_of
from ais_loader.wire.remote import Remote
from storage_node.limits.tasks import results_of
from storage_node.promote.into_store import promote_path
from storage_node.promote.job import Job
from storage_node.promote.walk import Wanted
from storage_node.store.archives.open_archives import ShardLimits
from storage_node.store.compose import compose_object
from storage_node.store.denied_objects import denied_page
from storage_node.store.drive import locking
from storage_node.store.drive.preconditions import parse_condition
from storage_node.store.read.heads import local_heads
from storage_node.store.read.object_reader import list_members, open_member, open_object, read_cached, read_located
from storage_node.store.store import Store
from storage_node.store.store_record import BucketRecord
from storage_node.store.summary import NameSummary

if TYPE_CHECKING:
    from storage_node.context.remote_buckets import RemoteBucket
    from storage_node.etl.embedded import EmbeddedEtl
    from storage_node.remote.embedded import EmbeddedRemote

# More threads than cores do not read faster, and more than a few take CPU time from the trainer.
READ_PARTS = min(4, len(os.sched_getaffinity(0)))

_FORKED = 'this client was opened with mode="a" by another process, which then forked this one'
_UNPICKLED = 'this client is an unpickled copy of one that was opened with mode="a"'
_writers: WeakValueDictionary[frozenset[str], EmbeddedTransport] = WeakValueDictionary()
"""Transports of this process that were most recently opened for writing, by their sets of drives."""


@short_tracebacks
class EmbeddedTransport(BucketListings):
    """A `Transport` on drives of this machine."""

    def __init__(
        self,
        paths: list[str],
        *,
        mode: Literal["a", "r"] = "a",
        options: EmbeddedOptions = EmbeddedOptions(),  # noqa: B008  # frozen
    ) -> None:
        self._paths = [os.path.abspath(path) for path in paths]
        self.url = ",".join("file://" + path for path in self._paths)
        self._mode = mode
        self.options = options
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._helpers: ThreadPoolExecutor | None = None
        self._etl: EmbeddedEtl | None = None
        self._remote: EmbeddedRemote | None = None
        self._pid = os.getpid()
        self._closed = False
        self._copied_by = ""
        """Why a client that was opened for writing cannot write in this process; the beginning of a message."""
        self.on_wanted: Callable[[], object] | None = None
        """Callback of a writer, called before another writer is opened in this process; it may close this one."""
        store = self._store_here()  # report a wrong path or a held lock at once
        if mode == "a" and store.uploads.has_pending:
            self._remote_here()  # it uploads what an earlier process has left

    def __reduce__(self) -> tuple[Any, ...]:
        return _reader, (self._paths, self.options, self._mode == "a" or bool(self._copied_by))

    def _store_here(self) -> Store:
        if self._closed:
            raise errors.Closed(f"the connection to {self.url} has been closed")
        if self._store is not None and self._pid == os.getpid():
            return self._store
        if self._pid != os.getpid():
            # Inherited through fork: a lock held by a thread that does not exist in this process is never released.
            if self._mode == "a":
                self._copied_by = _FORKED
            self._lock, self._pid, self._store, self._mode = threading.Lock(), os.getpid(), None, "r"
            self._helpers = self._etl = self._remote = None
        with self._lock:
            if self._store is None:
                if self._mode == "a" and (other := writer_here(self._paths)) is not None and other.on_wanted:
                    other.on_wanted()
                self._store = Store.open(
                    self._paths,
                    mode=self._mode,
                    durability=self.options.durability,
                    shard_limits=ShardLimits(
                        self.options.open_shards, self.options.shard_index_bytes, self.options.shard_copy_bytes
                    ),
                    compact_bytes_per_s=self.options.compact_bytes_per_s,
                )
                if self._mode == "a":
                    _writers[_drives(self._paths)] = self
            return self._store

    def _store_to_write(self) -> Store:
        """Return the store for a call that changes it. Raises StoreReadOnly if another process opened the client."""
        store = self._store_here()
        if self._copied_by:
            raise errors.StoreReadOnly(
                f"{self._copied_by}, and can only read: one process at a time writes to an embedded store. Write in "
                'the process that opened it, or close the client there and call connect(..., mode="a") here. Several '
                "processes can write to a storage node, see `ais-loader serve`"
            )
        return store

    @property
    def writes_here(self) -> bool:
        """Whether this transport holds the store for writing, in this process."""
        return self._mode == "a" and self._store is not None and self._pid == os.getpid()

    # -- buckets

    def create_bucket(self, name: str, settings: BucketSettings, *, exist_ok: bool) -> BucketInfo:
        require_text(name, errors.InvalidName, "bucket name")
        return _bucket_info(name, self._store_to_write().create_bucket(name, settings, exist_ok=exist_ok))

    def set_bucket(self, name: str, settings: BucketSettings) -> BucketInfo:
        require_bucket(name)
        store = self._store_to_write()
        if settings.remote is not None and (place := self._remote_bucket(name)) is not None:
            self._remote_here().require_settable(place, settings.remote)
        return _bucket_info(name, store.set_bucket(name, settings))

    def bucket(self, name: str) -> BucketInfo:
        require_bucket(name)
        return _bucket_info(name, self._store_here().bucket(name))

    def buckets(self) -> list[BucketInfo]:
        return [_bucket_info(name, record) for name, record in sorted(self._store_here().buckets().items())]

    def delete_bucket(self, name: str, *, force: bool) -> int:
        require_bucket(name)
        store = self._store_to_write()
        if (place := self._remote_bucket(name)) is not None:
            self._remote_here().require_settable(place, None)
        return store.delete_bucket(name, force=force)

    def snapshots(self, action: SnapshotAction, bucket: str, name: str = "") -> list[SnapshotInfo]:
        require_bucket(bucket)
        require_text(name, errors.InvalidName, "snapshot name")
        store = self._store_here() if action == "list" else self._store_to_write()
        if action == "delete":
            store.snapshots.delete(bucket, name)
            return []
        found = [store.snapshots.create(bucket, name)] if action == "create" else store.snapshots.of(bucket)
        return [SnapshotInfo(bucket, *snapshot) for snapshot in found]

    # -- objects

    def put(self, spec: PutSpec, source: Source) -> ObjectInfo:
        if (bucket := self._remote_bucket(spec.bucket)) is not None:
            self._store_to_write()
            return object_info(self._remote_here().put(bucket, header_of(spec), source.chunks()))
        return stored_info(spec.bucket, spec.name, staged(self._store_to_write(), spec, source).commit())

    def put_many(
        self, objects: Iterable[tuple[PutSpec, Source]]
    ) -> Generator[ObjectInfo | errors.LoaderError, None, None]:
        store = self._store_to_write()
        for is_remote, group in itertools.groupby(objects, lambda one: self._remote_bucket(one[0].bucket) is not None):
            if not is_remote:
                yield from put_groups(store, group)
                continue
            for spec, source in group:
                try:
                    yield self.put(spec, source)
                except errors.LoaderError as error:
                    yield error

    def compose(
        self,
        request: compose_pb.ComposeRequest,
        moved: Callable[[int], None] | None = None,
        *,
        retry: bool = True,
        tries: WriteTries | None = None,
    ) -> ObjectInfo:
        if self._remote_bucket(bucket := request.object.bucket) is not None:
            raise errors.Unsupported(f"bucket {bucket!r} is a remote one: an embedded store cannot compose into it")
        entry = compose_object(self._store_to_write(), request, moved or (lambda moved_bytes: None))
        return stored_info(request.object.bucket, request.object.name, entry)

    def get(self, entry: Entry, *, verify: bool, timeout_s: float) -> Iterator[Buffer]:
        bucket, name, start, length = entry.bucket, entry.name, entry.start, entry.length
        require_object(bucket, name)
        store = self._store_here()
        if (place := self._remote_bucket(bucket)) is not None:
            is_part = self._is_cold(bucket, name) if entry.member else bool(start or length is not None)
            if is_part and self._can_fetch:
                return cold_part(store, self._remote_here(), entry, verify=verify)
            if entry.member is None and self._can_fetch:
                if (chunks := self._remote_here().chunks(place, name)) is not None:
                    return chunks
            else:
                self._ensure([(place, name)])
            if not self._can_fetch and isinstance(self.head_names(bucket, [name])[0], errors.ObjectNotFound):
                raise errors.StoreReadOnly(COLD.format(name))
        if entry.member:
            return open_member(store, bucket, name, entry.member, start=start, length=length, verify=verify)
        return open_object(store, bucket, name, start=start, length=length, verify=verify)

    def get_transformed(self, request: pb.BatchRequest, timeout_s: float) -> Buffer | None:
        return self._etl_here().kept(request)

    def _is_cold(self, bucket: str, name: str) -> bool:
        try:
            self._store_here().head(bucket, name)
        except errors.ObjectNotFound:
            return True
        return False

    def head(self, bucket: str, name: str) -> ObjectInfo:
        require_object(bucket, name)
        try:
            return stored_info(bucket, name, self._store_here().head(bucket, name))
        except errors.ObjectNotFound:
            place = self._remote_bucket(bucket) if self._can_fetch else None
            if place is None:
                raise
        remote = self._remote_here()
        return object_info(remote.run(remote.tier.descriptions.head(place, name)))

    def open_object(self, bucket: str, name: str, *, whole_up_to: int, timeout_s: float) -> OpenedObject:
        """The object is read when its bytes are used, from the file of the version that was looked up."""
        require_object(bucket, name)
        store = self._store_here()
        if self._remote_bucket(bucket) is not None:  # its copies may need validation
            return OpenedObject(self.head(bucket, name))
        drive, entry = store.locate(bucket, name)
        info = stored_info(bucket, name, entry)

        def content() -> Buffer:
            return read_located(drive, entry, f"{bucket}/{name}") if self._is_here(store) else b""

        def read(start: int, length: int) -> Iterator[Buffer]:
            store, version = self._store_here(), info.version
            return open_object(store, bucket, name, start=start, length=length, version=version).views()

        return OpenedObject(info, content if 0 < info.size_bytes <= whole_up_to else None, read)

    def open_cached(self, bucket: str, name: str, most_bytes: int) -> OpenedObject | None:
        if (store := self._store) is None or not self._is_here(store):
            return None
        of = store.record.current.buckets.get(bucket)
        if of is None or of.remote is not None or store.replicas.stale.any:
            return None
        found = store.drive_set.cached(of.uuid_bytes, name)
        if found is None or found[1].size_bytes > most_bytes or store.record.current.buckets.get(bucket) is not of:
            return None
        data = read_cached(*found)
        return None if data is None else OpenedObject(stored_info(bucket, name, found[1]), lambda: data)

    def open_member(
        self, bucket: str, name: str, member: str, *, whole_up_to: int, timeout_s: float
    ) -> OpenedObject | None:
        """A small member is read when its bytes are used, from the file of the version that was looked up."""
        require_object(bucket, name)
        store = self._store_here()
        if self._remote_bucket(bucket) is not None:  # its copies may need validation
            return None
        try:
            reader = open_member(store, bucket, name, member)
        except errors.LoaderError:
            return None
        archive = stored_info(bucket, name, reader.record)
        info = replace(archive, size_bytes=reader.length, checksum=reader.member.checksum)
        if not 0 < info.size_bytes <= whole_up_to:
            return OpenedObject(info)

        def content() -> Buffer:
            with contextlib.suppress(OSError, errors.LoaderError):  # another read then tells why
                return b"".join(reader) if self._is_here(store) else b""
            return b""

        return OpenedObject(info, content)

    def _is_here(self, store: Store) -> bool:
        """Whether this is still the open store: it was not closed, and this is no forked child."""
        return self._store is store and self._pid == os.getpid()

    def head_names(self, bucket: str, names: Sequence[str]) -> list[ObjectInfo | errors.LoaderError]:
        require_bucket(bucket)
        found = local_heads(self._store_here(), bucket, names)
        if (place := self._remote_bucket(bucket)) is not None and self._can_fetch:
            remote = self._remote_here()
            found = remote.run(remote.tier.descriptions.with_cold(place, names, found))
        return [
            one if isinstance(one, errors.LoaderError) else ObjectInfo(bucket, name, *one)
            for name, one in zip(names, found, strict=True)
        ]

    def delete(self, bucket: str, name: str, *, if_version: str | None = None) -> None:
        require_object(bucket, name)
        store = self._store_to_write()
        if (place := self._remote_bucket(bucket)) is not None:
            request = objects_pb.DeleteRequest(bucket=bucket, name=name, if_version=if_version or "")
            remote = self._remote_here()
            remote.run(remote.tier.bucket_writes.delete(place, request))
            return
        store.delete(bucket, name, condition=parse_condition(False, if_version or ""))

    def delete_names(self, bucket: str, names: Sequence[str]) -> list[errors.LoaderError | None]:
        if (place := self._remote_bucket(bucket)) is None:
            return self._store_to_write().delete_many(bucket, names)
        remote = self._remote_here()
        requests = [objects_pb.DeleteRequest(bucket=bucket, name=name) for name in names]
        return remote.run(results_of(remote.tier.bucket_writes.delete(place, request) for request in requests))

    def deny(
        self, bucket: str, names: Sequence[str], contents: Sequence[str], reason: str, *, allow: bool
    ) -> list[errors.LoaderError | None]:
        denials = self._store_to_write().denied
        denials.change_contents(bucket, [] if allow else contents, contents if allow else [], reason)
        return denials.allow(bucket, names) if allow else denials.deny(bucket, names, reason)

    def denied(self, bucket: str) -> Denials:
        store, request = self._store_here(), contents_pb.ListDeniedRequest(bucket=bucket)
        pages: list[tuple[str, contents_pb.ListDeniedResponse]] = []
        while not pages or request.start_after:
            pages.append(("", denied_page(store, request)))
            request.start_after = pages[-1][1].next
        return merged_denials(pages, {})

    def summary(self, bucket: str, *, prefix: str, depth: int) -> BucketSummary:
        tally = NameSummary(prefix, depth)
        found = self._store_here().objects(bucket, prefix)
        tally.add((name, entry.size_bytes) for name, entry in found)
        by_prefix = {name: PrefixSummary(*sums) for name, sums in sorted(tally.folders.items())}
        return BucketSummary(bucket, prefix, tally.objects, tally.size_bytes, by_prefix)

    def _pages(self, request: objects_pb.ListRequest) -> Iterator[Sequence[Item]]:
        """See `BucketListings`. Between two pages, an iterator that is never finished holds no snapshot of the
        catalog."""
        wanted, after = request, request.start_after
        while True:
            page = self._store_here().replicas.page(
                wanted.bucket,
                wanted.prefix,
                after,
                most=wanted.page_size,
                most_bytes=PAGE_BYTES,
                skip_missing=wanted.skip_missing_drives,
                names_only=wanted.names_only,
                one_level=wanted.one_level,
            )
            if wanted.names_only:
                yield page.names or [name.encode() for name, _ in page.objects]
            else:
                objects = [stored_info(wanted.bucket, name, entry) for name, entry in page.objects]
                yield items_of(objects, [name for name, _ in page.folders], wanted.prefix) if page.folders else objects
            if page.next is None:
                return
            after = page.next

    def _remote_of(self, bucket: str) -> Remote | None:
        place = self._remote_bucket(bucket) if self._can_fetch else None
        return None if place is None else place.remote

    def _remote_pages(self, bucket: str, prefix: str, start_after: str) -> Iterator[remote_pb.ListRemoteResponse]:
        place = self._remote_bucket(bucket)
        return iter(()) if place is None else self._remote_here().pages(place, prefix, start_after)

    def _member_page(self, request: objects_pb.ListMembersRequest) -> MembersPage:
        store, bucket, name = self._store_here(), request.bucket, request.name
        wanted = request.prefix, request.first, request.page_size, request.version
        place = None
        try:
            page = list_members(store, bucket, name, *wanted)
        except errors.ObjectNotFound:
            place = self._remote_bucket(bucket) if self._can_fetch else None
            if place is None:
                raise
        if place is not None:
            from storage_node.remote.archives.cold_parts import WantedPage

            remote = self._remote_here()
            cold = remote.run(remote.tier.reads.member_page(place, name, WantedPage(*wanted)))
            page = list_members(store, bucket, name, *wanted) if cold is None else cold
        members = [(member.name, member.size_bytes, member.checksum) for member in page.members]
        return MembersPage(page.version, members, page.next, page.hidden)

    # -- remote buckets

    @property
    def _can_fetch(self) -> bool:
        """Whether this process may store what it fetches."""
        return self._mode == "a" and not self._copied_by

    def _remote_bucket(self, name: str) -> RemoteBucket | None:
        record = self._store_here().find_bucket(name)
        if record is None or record.remote is None or record.cut is not None:
            return None
        from storage_node.context.remote_buckets import RemoteBucket

        return RemoteBucket(name, record.uuid_bytes, record.remote)

    def _remote_here(self) -> EmbeddedRemote:
        """Return the remote tier of this process, started on first use."""
        store = self._store_to_write()
        with self._lock:
            if self._remote is None:
                from storage_node.remote.embedded import EmbeddedRemote

                self._remote = EmbeddedRemote(store)
            return self._remote

    def _ensure(self, objects: Sequence[tuple[RemoteBucket, str]]) -> None:
        if self._can_fetch:
            remote = self._remote_here()
            reads = remote.tier.reads
            remote.run(reads.ensure(*objects[0]) if len(objects) == 1 else reads.ensure_all(objects))

    def _require_remote(self, bucket: str) -> RemoteBucket:
        """Return a remote bucket. Raises BucketNotFound, and InvalidRequest for another one."""
        require_bucket(bucket)
        self._store_here().bucket(bucket)
        if (place := self._remote_bucket(bucket)) is None:
            raise errors.InvalidRequest(f"bucket {bucket!r} is not a remote one")
        return place

    def _remote_to_change(self, bucket: str) -> RemoteBucket:
        self._store_to_write().drive_set.require_writable()
        return self._require_remote(bucket)

    def warm(self, bucket: str, names: Sequence[str]) -> list[errors.LoaderError | None]:
        place, remote = self._remote_to_change(bucket), self._remote_here()
        return remote.run(remote.tier.reads.warm(place, names))

    def evict(self, bucket: str, names: Sequence[str] | None, prefix: str, patterns: Sequence[str]) -> tuple[int, int]:
        self._remote_to_change(bucket)
        from storage_node.remote.copies.stored_copies import evict

        return evict(self._store_here(), bucket, names, prefix, patterns, self._remote_here().tier.space)

    def refresh_inventory(
        self, request: remote_pb.RefreshInventoryRequest
    ) -> Iterator[remote_pb.RefreshInventoryResponse]:
        place, remote = self._remote_to_change(request.bucket), self._remote_here()
        return remote.each(remote.tier.inventories.refresh(place, request))

    def can_expect(self, bucket: str) -> bool:
        return self._can_fetch and self._remote_bucket(bucket) is not None

    def expect(self, request: remote_pb.ExpectRequest) -> bool:
        return not self._remote_here().expect(request).incomplete

    def pending_uploads(self, bucket: str, prefix: str, wait_s: float) -> list[PendingUploads]:
        uuid = None
        if bucket:
            uuid = self._require_remote(bucket).uuid
        if not self._can_fetch:
            return []
        return [pending_row("", row) for row in self._remote_here().pending(uuid, prefix, wait_s)]

    def remote_usage(self) -> list[RemoteUsage]:
        return [usage_row("", row) for row in self._remote.usage().row] if self._remote is not None else []

    def promote(self, spec: PromoteSpec) -> Generator[PromoteResult, None, None]:
        wanted = Wanted(spec.prefix, spec.recursive, spec.include, spec.exclude)
        job = Job(spec.bucket, spec.move, spec.overwrite)
        store, path = self._store_to_write(), os.path.abspath(spec.path)
        promote = None
        if (place := self._remote_bucket(spec.bucket)) is not None:
            place.require_writable()
            promote = partial(self._remote_here().promote, job, self.head_names)
        for outcome in promote_path(store, path, wanted, job, promote):
            if outcome.stored is None:
                error = outcome.error or errors.LoaderError("")
                yield PromoteResult(outcome.path, outcome.name, "failed", error=error)
            else:
                info = ObjectInfo(spec.bucket, outcome.name, *outcome.stored)
                yield PromoteResult(outcome.path, outcome.name, "skipped" if outcome.skipped else "promoted", info)

    # -- transforms

    def etl(self, method: EtlMethod, request: Any) -> Any:
        if method not in ETL_READS:
            self._store_to_write()
        return self._etl_here().call(method, request)

    def watch_job(self, name: str) -> Iterator[etl_pb.JobInfo]:
        yield from self._etl_here().watch(name)

    def copy_transformed(self, request: etl_pb.CopyObjectRequest) -> ObjectInfo:
        self._store_to_write()
        info = self._etl_here().call("CopyObject", request).info
        return ObjectInfo(request.to_bucket, request.to_name, *stored_of(info))

    def _etl_here(self) -> EmbeddedEtl:
        """Return the transforms of this process, started on first use; a forked child starts its own."""
        store = self._store_here()
        with self._lock:
            if self._etl is None:
                from storage_node.etl.embedded import EmbeddedEtl

                self._etl = EmbeddedEtl(store, self._remote_here)
            return self._etl

    # -- batches

    def open_batch(
        self, request: pb.BatchRequest, *, timeout_s: float, assembly: str = "auto", colocation: str = "none"
    ) -> FrameStream:
        store = self._store_here()
        places = list(map(self._remote_bucket, request.bucket))
        is_remote = any(places)
        if request.transform:
            if is_remote:
                at = request.bucket_index or [0] * len(request.name)
                cold = [(places[of], name) for of, name in zip(at, request.name, strict=True)]
                self._ensure([(place, name) for place, name in cold if place is not None])
            return GeneratedStream(self._etl_here().frames(request))
        if is_remote:
            return ColdStream(store, request, self._remote_here() if self._can_fetch else None)
        return EmbeddedStream(store, request, self._helpers_here(), READ_PARTS)

    def open_long_batch(self, request: pb.BatchRequest, *, timeout_s: float, window_bytes: int) -> FrameStream | None:
        return None

    def _helpers_here(self) -> ThreadPoolExecutor | None:
        """Return the threads that share the reading of a batch; None in a child process, whose siblings read in
        parallel already."""
        if self._helpers is None and READ_PARTS > 1 and multiprocessing.parent_process() is None:
            with self._lock:
                if self._helpers is None:
                    self._helpers = ThreadPoolExecutor(READ_PARTS - 1, thread_name_prefix="ais-loader-read")
        return self._helpers

    def refresh(self) -> None:
        self._store_here().refresh()

    def is_current(self, buckets: Iterable[str]) -> bool:
        """Make a reader see every change that a writer of this host has acknowledged, and return whether it may answer
        for the writer: False for remote buckets, missing ones, and right after a change.

        Raises Unsupported if the writer has to see every read, and other errors of the store.
        """
        store = self._store_here()
        if not store.follow():
            return False
        return all((found := store.find_bucket(name)) is not None and found.remote is None for name in buckets)

    def describe(self) -> dict[str, object]:
        store = self._store_here()
        pending = self._remote.pending(None, "", 0.0) if self._remote is not None else []
        from storage_node.remote.embedded import config

        return {
            "url": self.url,
            "store_uuid": store.store_uuid,
            "mode": self._mode,
            "pending_uploads": sum(row.count for row in pending),
            "pending_upload_bytes": sum(row.bytes for row in pending),
            "oldest_pending_upload_s": max((row.oldest_s for row in pending), default=0.0),
            "upload_conflicts": sum(row.conflicts for row in pending),
            "limits": config().as_text(),
            "drives": [drive_row(state, state.problem or "ok") for state in store.pool.states()],
        }

    def close(self) -> None:
        self._closed = True
        if self._pid == os.getpid():
            if self._helpers is not None:
                self._helpers.shutdown()
            for part in (self._etl, self._remote, self._store):
                if part is not None:
                    part.close()
        self._etl = self._remote = self._store = None


def writer_here(paths: Iterable[str]) -> EmbeddedTransport | None:
    """Return the transport of this process that holds the store on these drives for writing."""
    found = _writers.get(_drives(paths))
    return found if found is not None and found.writes_here else None


def writing_mark(paths: Iterable[str]) -> tuple[object, ...]:
    """Return a value that differs from an earlier one if a writer of this store, in any process, has got on since."""
    return tuple(locking.writing_mark(Path(path)) for path in paths)


def note_writing(paths: Iterable[str]) -> None:
    """Show processes that wait for this one to write that it has got on, with bytes that are not in the store yet."""
    for path in paths:
        locking.note_writing(Path(path))


def _drives(paths: Iterable[str]) -> frozenset[str]:
    return frozenset(map(os.path.realpath, paths))


def _reader(paths: list[str], options: EmbeddedOptions, of_a_writer: bool) -> EmbeddedTransport:
    reader = EmbeddedTransport(paths, mode="r", options=options)
    reader._copied_by = _UNPICKLED if of_a_writer else ""
    return reader


def _bucket_info(name: str, record: BucketRecord) -> BucketInfo:
    return BucketInfo(
        name,
        record.uuid,
        record.copies,
        remote=record.remote,
        quota_bytes=record.quota_bytes,
        quota_objects=record.quota_objects,
    )
