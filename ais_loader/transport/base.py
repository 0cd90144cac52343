"""Transport contract between the client and whatever reaches a store for it; one conformance suite tests them all.

A transport connects lazily, may be used from any thread, raises only `ais_loader.errors`, and is bound to the process
that uses it: after a fork it connects anew. Pickled, it carries its address, never a connection.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from ais_loader.errors import LoaderError
from ais_loader.transport.write_tries import WriteTries
from ais_loader.values.content import Buffer, Source
from ais_loader.values.entry import MemberInfo, ObjectInfo
from ais_loader.values.promote import PromoteResult, PromoteSpec
from ais_loader.values.snapshots import SnapshotAction, SnapshotInfo
from ais_loader.values.summary import BucketSummary
from ais_loader.wire.frame import Frame
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_compose_pb2 as compose_pb
from ais_loader.wire.generated import ais_etl_pb2 as etl_pb

EtlMethod: TypeAlias = Literal[
    "InitTransform",
    "ListTransforms",
    "GetTransform",
    "SetTransform",
    "DeleteTransform",
    "StartJob",
    "ListJobs",
    "ListJobFailures",
    "StopJob",
    "DeleteJob",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PutSpec:
    """What is to be stored, and what its bytes must be found to be."""

    bucket: str
    name: str
    metadata: dict[str, str]
    size_bytes: int | None = None
    checksum: int | None = None
    if_absent: bool = False
    """Store it only where there is no object of this name; VersionConflict otherwise."""
    if_version: str | None = None
    """Store it only in place of this version; VersionConflict otherwise."""
    tries: WriteTries = field(default_factory=WriteTries, compare=False)
    """By which a try is known whose answer was lost."""

    @property
    def is_conditional(self) -> bool:
        return self.if_absent or self.if_version is not None


@dataclass(frozen=True, slots=True)
class BucketInfo:
    """A bucket as the store knows it."""

    name: str
    """The bucket's name."""
    uuid: str
    """An id that no other bucket has, not even a later one of this name."""
    copies: int
    """The number of copies that each object has, on different hosts."""
    min_copies: int = 1
    """A write is refused when fewer copies than this can be written."""
    reframe: bool = False
    """Archives in one frame are stored with many, see `Client.create_bucket`."""
    settling: bool = False
    """`copies` was changed, and copies are still being made, or taken away."""


@dataclass(frozen=True, slots=True)
class BucketChange:
    """What is to be changed of a bucket; None: nothing."""

    copies: int | None = None
    min_copies: int | None = None
    reframe: bool | None = None


class FrameStream(Protocol):
    """The frames of one batch, in request order; exhausted only when the answer has been found whole.

    `__next__` blocks, for `timeout_s` at most. Raises LoaderError; entries received before stay valid.
    """

    @property
    def retries(self) -> int:
        """How often something was asked for again."""

    @property
    def paused_s(self) -> float:
        """Time spent between a failure and the next try."""

    @property
    def hedged(self) -> int:
        """Entries that were asked of a second node because the first was slow."""

    def node_of(self, index: int) -> str:
        """Who has sent an entry, for people."""

    def __iter__(self) -> Iterator[Frame]: ...
    def __next__(self) -> Frame: ...
    def read_all(self) -> list[bytes] | None:
        """Before the first frame: all entries as bytes of their own, where that is cheaper than frames and every entry
        is OK. None: take the frames; nothing has been consumed."""

    def close(self) -> None:
        """Abandon what is left. Never blocks, may be called again, and from any thread."""


class Transport(Protocol):
    """Everything that the client asks of a store."""

    url: str

    def create_bucket(
        self, name: str, *, copies: int, exist_ok: bool, min_copies: int = 1, reframe: bool = False
    ) -> BucketInfo: ...
    def set_bucket(self, name: str, change: BucketChange) -> BucketInfo: ...
    def bucket(self, name: str) -> BucketInfo: ...
    def buckets(self) -> list[BucketInfo]: ...
    def delete_bucket(self, name: str, *, force: bool) -> int: ...

    def snapshots(self, action: SnapshotAction, bucket: str, name: str = "") -> list[SnapshotInfo]:
        """Those that are there, or the one that was made. Raises Unsupported in a cluster."""

    def put(self, spec: PutSpec, source: Source) -> ObjectInfo: ...
    def put_many(self, objects: Iterable[tuple[PutSpec, Source]]) -> Generator[ObjectInfo | LoaderError, None, None]:
        """One result per object, in order; a failed object does not stop the others. Lazy, as `promote`."""

    def compose(
        self,
        request: compose_pb.ComposeRequest,
        moved: Callable[[int], None] | None = None,
        *,
        retry: bool = True,
        tries: WriteTries | None = None,
    ) -> ObjectInfo:
        """Make an object of parts of others. `moved` hears of the bytes written so far, now and then.

        `retry`: try again when the answer is lost; otherwise whoever calls does, with the same `tries`.
        """

    def tar_end(self, request: compose_pb.TarEndRequest) -> compose_pb.TarEndResponse:
        """Where a plain tar ends, and which members it has of those asked for. Raises ArchiveError."""

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
    ) -> Iterator[Buffer]: ...
    def get_transformed(self, request: pb.BatchRequest, timeout_s: float) -> Buffer | None:
        """What a request's one entry, a whole object, becomes by its transforms, by the shortest way; None where that
        is not the way. Raises SilenceTimeout, and what the transforms fail with."""

    def head(self, bucket: str, name: str) -> ObjectInfo: ...
    def head_names(self, bucket: str, names: Sequence[str]) -> list[ObjectInfo | LoaderError]:
        """At most 1,000 with one request; of each name, in order, the object or why it cannot be had."""

    def delete(self, bucket: str, name: str, *, if_version: str | None = None) -> None: ...
    def delete_names(self, bucket: str, names: Sequence[str]) -> list[LoaderError | None]:
        """At most 10,000 with one request; of each name, in order, None or why it was not deleted."""

    def summary(self, bucket: str, *, prefix: str, depth: int) -> BucketSummary: ...
    def objects(
        self, bucket: str, *, prefix: str, page_size: int, start_after: str = "", skip_missing_drives: bool = False
    ) -> Iterator[ObjectInfo]:
        """Those after `start_after` alone, by the bytes of names; it need not be a name.

        `skip_missing_drives`: list what is on the other drives, instead of raising DriveFailed.
        """

    def list_members(self, bucket: str, name: str, *, prefix: str, page_size: int) -> Iterator[MemberInfo]: ...

    def promote(self, spec: PromoteSpec) -> Generator[PromoteResult, None, None]:
        """One result per file, as it becomes known; raises for what concerns all of them."""

    def etl(self, method: EtlMethod, request: Any) -> Any:
        """A method of the Etl service with one answer; see protos/ais_etl.proto."""

    def watch_job(self, name: str) -> Iterator[etl_pb.JobInfo]:
        """When there is something new, and every few seconds, until it has ended. Lazy. Raises JobNotFound."""

    def copy_transformed(self, request: etl_pb.CopyObjectRequest) -> ObjectInfo: ...

    def open_batch(
        self, request: pb.BatchRequest, *, timeout_s: float, assembly: str = "auto", colocation: str = "none"
    ) -> FrameStream:
        """Begin one batch. Returns at once; the stream's first frame may be waited for.

        `assembly` and `colocation`, as in BatchOptions, matter to several nodes only.
        """

    def open_long_batch(self, request: pb.BatchRequest, *, timeout_s: float, window_bytes: int) -> FrameStream | None:
        """One whose frames cost less and whose beginning costs more, driven by the thread that takes them.

        At most `window_bytes` come ahead of it. Nothing is tried again: a connection that breaks ends it. None where
        there is nothing to be gained: then `open_batch`.
        """

    def refresh(self) -> None:
        """See what others have committed by now, where something is remembered. See `Client.refresh`."""

    def describe(self) -> dict[str, object]:
        """What is at the other end, for people: JSON-able."""

    def close(self) -> None: ...


class NoLongBatches:
    """Of a transport that gains nothing by `open_long_batch`."""

    def open_long_batch(self, request: pb.BatchRequest, *, timeout_s: float, window_bytes: int) -> FrameStream | None:
        return None


class NothingToRefresh:
    """Of a transport to nodes, which answer by what is committed."""

    def refresh(self) -> None:
        return
