"""Embedded transport: the store in this process, by the same code that a node runs, without a network.

A writer ("a") holds the store alone. In a forked child, and after unpickling, a writer's transport becomes a reader
beside it: one writer, any number of readers. With embedded_puts and embedded_stream the only part of
ais_loader that loads storage_node, lazily.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakValueDictionary

from ais_loader import errors
from ais_loader.content import Buffer, Source
from ais_loader.entry import MemberInfo, ObjectInfo
from ais_loader.options import EmbeddedOptions
from ais_loader.promote import PromoteResult, PromoteSpec
from ais_loader.snapshots import SnapshotAction, SnapshotInfo
from ais_loader.summary import BucketSummary, PrefixSummary
from ais_loader.transport.base import BucketChange, BucketInfo, FrameStream, NoLongBatches, PutSpec
from ais_loader.transport.embedded_puts import object_info, put_groups, staged
from ais_loader.transport.embedded_stream import READ_PARTS, EmbeddedStream
from ais_loader.transport.validation import require_bucket, require_object, require_text
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_compose_pb2 as compose_pb

if TYPE_CHECKING:
    from storage_node.store.store import Store
    from storage_node.store.store_record import BucketRecord

_writers: WeakValueDictionary[frozenset[str], EmbeddedTransport] = WeakValueDictionary()
"""By their drives, those of this process that were opened for writing last."""


class EmbeddedTransport(NoLongBatches):
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
        self._options = options
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._helpers: ThreadPoolExecutor | None = None
        self._pid = os.getpid()
        self._closed = False
        self.on_wanted: Callable[[], object] | None = None
        """Of a writer: called when another one is about to be opened in this process; may close this one."""
        self._store_here()  # a wrong path or a held lock is told at once

    def __reduce__(self) -> tuple[Any, ...]:
        return _reader, (self._paths, self._options)

    def _store_here(self) -> Store:
        if self._closed:
            raise errors.Closed(f"the connection to {self.url} has been closed")
        if self._store is not None and self._pid == os.getpid():
            return self._store
        from storage_node.store.archives.limits import ShardLimits
        from storage_node.store.store import Store

        if self._pid != os.getpid():
            # Inherited through fork: a lock held by a thread that is not here would never be released.
            self._lock, self._pid, self._store, self._mode = threading.Lock(), os.getpid(), None, "r"
            self._helpers = None
        with self._lock:
            if self._store is None:
                if self._mode == "a" and (other := writer_here(self._paths)) is not None and other.on_wanted:
                    other.on_wanted()
                self._store = Store.open(
                    self._paths,
                    mode=self._mode,
                    durability=self._options.durability,
                    shard_limits=ShardLimits(self._options.open_shards, self._options.shard_copy_bytes),
                )
                if self._mode == "a":
                    _writers[_drives(self._paths)] = self
            return self._store

    @property
    def writes_here(self) -> bool:
        """Whether it holds the store for writing, in this process."""
        return self._mode == "a" and self._store is not None and self._pid == os.getpid()

    # -- buckets

    def create_bucket(
        self, name: str, *, copies: int, exist_ok: bool, min_copies: int = 1, reframe: bool = False
    ) -> BucketInfo:
        require_text(name, errors.InvalidName, "bucket name")
        made = self._store_here().create_bucket(
            name, copies=copies, exist_ok=exist_ok, min_copies=min_copies, reframe=reframe
        )
        return _bucket_info(name, made)

    def set_bucket(self, name: str, change: BucketChange) -> BucketInfo:
        require_bucket(name)
        store = self._store_here()
        return _bucket_info(name, store.set_bucket(name, change.copies, change.min_copies, change.reframe))

    def bucket(self, name: str) -> BucketInfo:
        require_bucket(name)
        return _bucket_info(name, self._store_here().bucket(name))

    def buckets(self) -> list[BucketInfo]:
        return [_bucket_info(name, record) for name, record in sorted(self._store_here().buckets().items())]

    def delete_bucket(self, name: str, *, force: bool) -> int:
        require_bucket(name)
        return self._store_here().delete_bucket(name, force=force)

    def snapshots(self, action: SnapshotAction, bucket: str, name: str = "") -> list[SnapshotInfo]:
        require_bucket(bucket)
        require_text(name, errors.InvalidName, "snapshot name")
        store = self._store_here()
        if action == "delete":
            store.snapshots.delete(bucket, name)
            return []
        found = [store.snapshots.create(bucket, name)] if action == "create" else store.snapshots.of(bucket)
        return [SnapshotInfo(bucket, *snapshot) for snapshot in found]

    # -- objects

    def put(self, spec: PutSpec, source: Source) -> ObjectInfo:
        return object_info(spec.bucket, spec.name, staged(self._store_here(), spec, source).commit())

    def put_many(
        self, objects: Iterable[tuple[PutSpec, Source]]
    ) -> Generator[ObjectInfo | errors.LoaderError, None, None]:
        yield from put_groups(self._store_here(), objects)

    def compose(
        self, request: compose_pb.ComposeRequest, moved: Callable[[int], None] | None = None, *, retry: bool = True
    ) -> ObjectInfo:
        from storage_node.store.compose import compose_object

        record = compose_object(self._store_here(), request, moved or (lambda moved_bytes: None))
        return object_info(request.object.bucket, request.object.name, record)

    def tar_end(self, request: compose_pb.TarEndRequest) -> compose_pb.TarEndResponse:
        from storage_node.store.tar_append import tar_end

        return tar_end(self._store_here(), request)

    def get(
        self,
        bucket: str,
        name: str,
        *,
        start: int,
        length: int | None,
        member: str | None,
        verify: bool,
        timeout_s: float,
    ) -> Iterator[Buffer]:
        from storage_node.store.read.object_reader import open_member, open_object

        require_object(bucket, name)
        store = self._store_here()
        if member:
            return open_member(store, bucket, name, member, start=start, length=length, verify=verify)
        return open_object(store, bucket, name, start=start, length=length, verify=verify)

    def head(self, bucket: str, name: str) -> ObjectInfo:
        require_object(bucket, name)
        return object_info(bucket, name, self._store_here().head(bucket, name))

    def delete(self, bucket: str, name: str, *, if_version: str | None = None) -> None:
        from storage_node.store.drive.preconditions import parse_condition

        require_object(bucket, name)
        self._store_here().delete(bucket, name, condition=parse_condition(False, if_version or ""))

    def delete_names(self, bucket: str, names: Sequence[str]) -> list[errors.LoaderError | None]:
        return self._store_here().delete_many(bucket, names)

    def summary(self, bucket: str, *, prefix: str, depth: int) -> BucketSummary:
        from storage_node.store.summary import Tally

        tally = Tally(prefix, depth)
        found = self._store_here().objects(bucket, prefix)
        tally.add((name, record.size_bytes) for name, record in found)
        by_prefix = {name: PrefixSummary(*sums) for name, sums in sorted(tally.folders.items())}
        return BucketSummary(bucket, prefix, tally.objects, tally.size_bytes, by_prefix)

    def objects(self, bucket: str, *, prefix: str, page_size: int) -> Iterator[ObjectInfo]:
        require_bucket(bucket)
        require_text(prefix, errors.InvalidRequest, "prefix")
        # In pages, as over a network: an iterator that is left lying holds no snapshot of the catalog.
        after = ""
        while True:
            page = list(self._store_here().objects(bucket, prefix, after, page_size))
            for name, record in page:
                yield object_info(bucket, name, record)
            if len(page) < page_size:
                return
            after = page[-1][0]

    def list_members(self, bucket: str, name: str, *, prefix: str, page_size: int) -> Iterator[MemberInfo]:
        from storage_node.store.member_listing import list_members

        require_object(bucket, name)
        require_text(prefix, errors.InvalidRequest, "prefix")
        first, version = 0, ""
        while True:
            page = list_members(self._store_here(), bucket, name, prefix, first, page_size, version)
            for member in page.members:
                yield MemberInfo(bucket, name, member.name, member.size_bytes, member.checksum, page.version)
            if not page.next:
                return
            first, version = page.next, page.version

    def promote(self, spec: PromoteSpec) -> Generator[PromoteResult, None, None]:
        from storage_node.promote.here import promote_path
        from storage_node.promote.job import Job
        from storage_node.promote.walk import Wanted

        wanted = Wanted(spec.prefix, spec.recursive, spec.include, spec.exclude)
        job = Job(spec.bucket, spec.move, spec.overwrite)
        for outcome in promote_path(self._store_here(), os.path.abspath(spec.path), wanted, job):
            if outcome.stored is None:
                error = outcome.error or errors.LoaderError("")
                yield PromoteResult(outcome.path, outcome.name, "failed", error=error)
            else:
                info = ObjectInfo(spec.bucket, outcome.name, *outcome.stored)
                yield PromoteResult(outcome.path, outcome.name, "skipped" if outcome.skipped else "promoted", info)

    # -- batches

    def open_batch(
        self, request: pb.BatchRequest, *, timeout_s: float, assembly: str = "auto", colocation: str = "none"
    ) -> FrameStream:
        store = self._store_here()
        return EmbeddedStream(store, request, self._helpers_here())

    def _helpers_here(self) -> ThreadPoolExecutor | None:
        """Threads that share the reading of a batch; none where this process is one of several that do so already."""
        if self._helpers is None and READ_PARTS > 1 and multiprocessing.parent_process() is None:
            with self._lock:
                if self._helpers is None:
                    self._helpers = ThreadPoolExecutor(READ_PARTS - 1, thread_name_prefix="ais-loader-read")
        return self._helpers

    def describe(self) -> dict[str, object]:
        from storage_node.store.read.native_reader import IMPLEMENTATION

        store = self._store_here()
        return {
            "url": self.url,
            "store_uuid": store.store_uuid,
            "mode": self._mode,
            "batch_reader": IMPLEMENTATION,
            "drives": [
                {
                    "uuid": state.uuid,
                    "path": state.path,
                    "state": state.problem or "ok",
                    "objects_estimate": state.objects_estimate,
                    "free_bytes": state.free_bytes,
                    "size_bytes": state.size_bytes,
                }
                for state in store.pool.states()
            ],
        }

    def close(self) -> None:
        self._closed = True
        if self._helpers is not None and self._pid == os.getpid():
            self._helpers.shutdown()
        if self._store is not None and self._pid == os.getpid():
            self._store.close()
        self._store = None


def drive_paths(url: str) -> list[str]:
    """The folders that a URL of an embedded store names. Raises InvalidRequest."""
    paths = [part.removeprefix("file://") for part in url.split(",")]
    if not all(paths):
        raise errors.InvalidRequest(f"{url!r} names an empty path")
    return paths


def writer_here(paths: Iterable[str]) -> EmbeddedTransport | None:
    """The transport of this process that holds the store on these drives for writing."""
    found = _writers.get(_drives(paths))
    return found if found is not None and found.writes_here else None


def _drives(paths: Iterable[str]) -> frozenset[str]:
    return frozenset(map(os.path.realpath, paths))


def _reader(paths: list[str], options: EmbeddedOptions) -> EmbeddedTransport:
    return EmbeddedTransport(paths, mode="r", options=options)


def _bucket_info(name: str, record: BucketRecord) -> BucketInfo:
    return BucketInfo(name, record.uuid, record.copies, reframe=record.reframe)
