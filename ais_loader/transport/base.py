"""Transport contract between the client and a store. One conformance suite tests all implementations.

A transport connects lazily, may be used from any thread, raises only `ais_loader.errors`, and is bound to the process
that uses it: after a fork it connects again. Pickled, it carries its address, never a connection.

The checks of names and metadata below refuse strings without a UTF-8 form, which no request can carry and no store can
hold, and names that no archive may contain.
"""

from __future__ import annotations

import operator
import textwrap
import unicodedata
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from ais_loader import errors
from ais_loader.errors import LoaderError, from_node
from ais_loader.transport.retry import WriteTries
from ais_loader.values.denials import Denials
from ais_loader.values.entry import Entry, MemberInfo, ObjectInfo
from ais_loader.values.options import ClusterOptions, EmbeddedOptions
from ais_loader.values.promote import PromoteResult, PromoteSpec
from ais_loader.values.source import Buffer, Source
from ais_loader.values.summary import BucketSummary, SnapshotAction, SnapshotInfo
from ais_loader.wire.bucket_settings import BucketSettings
from ais_loader.wire.frame import FrameStream
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_compose_pb2 as compose_pb
from ais_loader.wire.generated import ais_etl_pb2 as etl_pb
from ais_loader.wire.generated import ais_objects_pb2 as objects_pb
from ais_loader.wire.generated import ais_remote_pb2 as remote_pb
from ais_loader.wire.names_block import NamesBlock
from ais_loader.wire.object_info import stored_of
from ais_loader.wire.plain import plain
from ais_loader.wire.redundancy import Redundancy
from ais_loader.wire.remote import Remote
from ais_loader.wire.reserved import require_unreserved

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

PAGE_SIZE = 1000
"""Objects that a page of a listing has, unless a caller knows better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutSpec:
    """Description of an object to be stored, and the size and checksum that its bytes must have."""

    bucket: str
    name: str
    metadata: dict[str, str]
    size_bytes: int | None = None
    checksum: int | None = None
    if_absent: bool = False
    """Store the object only if none of this name exists; VersionConflict otherwise."""
    if_version: str | None = None
    """Store the object only in place of this version; VersionConflict otherwise."""
    tries: WriteTries = field(default_factory=WriteTries, compare=False)
    """Attempts of this write. They share one write id, by which a store recognizes an attempt whose answer was lost."""

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
    settling: bool = False
    """`copies` was changed, and replicas are still being added or removed."""
    remote: Remote | None = None
    """The place of a remote bucket's objects; None for any other bucket."""
    quota_bytes: int = 0
    """The maximum size of its objects, all together; 0 if there is none."""
    quota_objects: int = 0
    """The maximum number of its objects; 0 if there is none."""
    redundancy: str = "copies"
    """How objects that have settled are kept: "copies", or "rs:K+M" for K data and M parity fragments."""


@dataclass(frozen=True, slots=True)
class PendingUploads:
    """Puts and deletions of one bucket with write="back" that one node has still to upload. In a cluster, each owner of
    an object counts it."""

    node: str
    """The endpoint of the node; "" for an embedded store."""
    bucket: str
    """The bucket's name."""
    count: int
    """Number of objects and deletions."""
    size_bytes: int
    """Bytes of the objects."""
    oldest_s: float
    """Age of the oldest one in seconds."""
    conflicts: int
    """Number of those, not in `count`, whose remote objects were changed by others against the write's condition."""
    failures: dict[str, LoaderError]
    """Errors of the first few that have failed so far, by name."""


@dataclass(frozen=True, slots=True)
class RemoteUsage:
    """Requests to the remote storage of one bucket for one tenant, since the node started."""

    node: str
    """The endpoint of the node; "" for an embedded store."""
    bucket: str
    """The bucket's name."""
    tenant: str
    """The tenant whose calls caused the requests; "" if they named none."""
    requests: dict[str, int]
    """The number of requests that were sent, by class: get, head, list, put, delete."""
    bytes_in: int = 0
    """Bytes received."""
    bytes_out: int = 0
    """Bytes sent."""
    throttled: int = 0
    """Answers that asked for fewer requests."""
    retried: int = 0
    """Requests that repeated a failed one."""
    hedged: int = 0
    """Second requests for slow answers."""
    errors: int = 0
    """Operations that failed."""
    wait_s: float = 0.0
    """Time that readers waited for cold objects, in seconds, summed over readers."""


class OpenedObject(NamedTuple):
    """An object that is opened as a file, in one version."""

    info: ObjectInfo
    """The version."""
    content: Callable[[], Buffer] | None = None
    """Returns all of its bytes, verified, or none if they have to be read after all. Called once, in any thread."""
    read: Callable[[int, int], Iterator[Buffer]] | None = None
    """Yields the bytes of a range (start, length), verified, in chunks, of any size of object; None if they have to be
    requested as batches. It holds this version from the first chunk on. Raises the errors of a GET."""


class Transport(Protocol):
    """All calls that the client makes to a store."""

    url: str

    @property
    def options(self) -> EmbeddedOptions | ClusterOptions: ...

    def create_bucket(self, name: str, settings: BucketSettings, *, exist_ok: bool) -> BucketInfo: ...
    def set_bucket(self, name: str, settings: BucketSettings) -> BucketInfo: ...
    def bucket(self, name: str) -> BucketInfo: ...
    def buckets(self) -> list[BucketInfo]: ...
    def delete_bucket(self, name: str, *, force: bool) -> int: ...

    def snapshots(self, action: SnapshotAction, bucket: str, name: str = "") -> list[SnapshotInfo]:
        """Return the existing snapshots, or the one that was created. Raises Unsupported in a cluster."""

    def put(self, spec: PutSpec, source: Source) -> ObjectInfo: ...
    def put_many(self, objects: Iterable[tuple[PutSpec, Source]]) -> Generator[ObjectInfo | LoaderError, None, None]:
        """Yield one result per object, in order. A failed object does not stop the others. Lazy, like `promote`."""

    def compose(
        self,
        request: compose_pb.ComposeRequest,
        moved: Callable[[int], None] | None = None,
        *,
        retry: bool = True,
        tries: WriteTries | None = None,
    ) -> ObjectInfo:
        """Create an object from parts of others. `moved` is called from time to time with the number of bytes written
        so far.

        `retry`: try again if the answer is lost. Otherwise the caller does so, with the same `tries`.
        """

    def get(self, entry: Entry, *, verify: bool, timeout_s: float) -> Iterator[Buffer]:
        """Yield the bytes of an entry without a version and transform: an object, a member, or one range of either."""

    def get_transformed(self, request: pb.BatchRequest, timeout_s: float) -> Buffer | None:
        """Return the transformed bytes of a request's only entry, a whole object, on the fastest path. Return None if
        that path does not apply. Raises SilenceTimeout, and the errors of the transforms."""

    def head(self, bucket: str, name: str) -> ObjectInfo: ...
    def open_object(self, bucket: str, name: str, *, whole_up_to: int, timeout_s: float) -> OpenedObject:
        """Look an object up, and get all of it if it has at most `whole_up_to` bytes, with one request.

        Bytes that are not in the store are not fetched for it. Raises the errors of `head`, and SilenceTimeout.
        """

    def open_cached(self, bucket: str, name: str, most_bytes: int) -> OpenedObject | None:
        """Return an object of at most `most_bytes` with its bytes, verified, without waiting for a drive or a node, so
        that an event loop may call this. None if that is not possible."""

    def open_member(
        self, bucket: str, name: str, member: str, *, whole_up_to: int, timeout_s: float
    ) -> OpenedObject | None:
        """Look a member of an archive up like `open_object`. The description is that of the archive, with size and
        checksum of the member.

        Return None if it cannot be opened with one request: the calls that look up the archive and list its members
        then tell why, or open it. Raises SilenceTimeout.
        """

    def head_names(self, bucket: str, names: Sequence[str]) -> list[ObjectInfo | LoaderError]:
        """Look up at most 1,000 names with one request. Return, for each name in order, the object or the error."""

    def delete(self, bucket: str, name: str, *, if_version: str | None = None) -> None: ...
    def delete_names(self, bucket: str, names: Sequence[str]) -> list[LoaderError | None]:
        """Delete at most 10,000 names with one request. Return, for each name in order, None or the error."""

    def deny(
        self, bucket: str, names: Sequence[str], contents: Sequence[str], reason: str, *, allow: bool
    ) -> list[errors.LoaderError | None]:
        """Deny names and contents, or with `allow` end that. Returns None or the error for each name, in order.

        Raises the errors of `Bucket.deny` about the whole call.
        """

    def denied(self, bucket: str) -> Denials:
        """Return what is denied. Raises BucketNotFound, NodeUnavailable, SilenceTimeout."""

    def summary(self, bucket: str, *, prefix: str, depth: int) -> BucketSummary: ...
    def objects(
        self,
        bucket: str,
        *,
        prefix: str,
        page_size: int = PAGE_SIZE,
        start_after: str = "",
        skip_missing_drives: bool = False,
        stored_only: bool = False,
    ) -> Iterator[ObjectInfo]:
        """List the objects whose names follow `start_after`, compared by their bytes; it need not be an existing name.

        `skip_missing_drives`: list what the other drives have instead of raising DriveFailed. In a remote bucket, the
        remote objects are listed too, unless `stored_only`; those that are not stored have their ETags as versions.
        """

    def names(self, bucket: str, *, prefix: str, skip_missing_drives: bool = False) -> Iterator[NamesBlock]:
        """List the names of the objects that `objects` lists, in order, in blocks of any size."""

    def level(
        self, bucket: str, *, prefix: str, page_size: int, skip_missing_drives: bool = False
    ) -> Iterator[ObjectInfo | str]:
        """List the objects that `objects` lists and that have no slash after the last one of `prefix`, and the folders
        of the others, up to that slash, sorted by name."""

    def warm(self, bucket: str, names: Sequence[str]) -> list[LoaderError | None]:
        """Store at most 1,000 objects of a remote bucket that are cold. Return None or the error for each, in order."""

    def evict(self, bucket: str, names: Sequence[str] | None, prefix: str, patterns: Sequence[str]) -> tuple[int, int]:
        """Remove stored copies of a remote bucket, of at most 10,000 names; if `names` is None, of those that
        begin with `prefix` and match one of `patterns`, if there are any. Return the number of copies and of their
        bytes."""

    def refresh_inventory(
        self, request: remote_pb.RefreshInventoryRequest
    ) -> Iterator[remote_pb.RefreshInventoryResponse]:
        """Make an inventory of a remote bucket that has an id for it, once all nodes know it. Nothing is repeated."""

    def can_expect(self, bucket: str) -> bool:
        """Return whether cold objects of this bucket are fetched on behalf of this client: it is a remote one."""

    def expect(self, request: remote_pb.ExpectRequest) -> bool:
        """Tell the store which objects of remote buckets a loader will read. Return False if a part of the store lacks
        earlier steps: the whole window is to be sent then. One attempt, of a few seconds."""

    def remote_usage(self) -> list[RemoteUsage]:
        """Return the requests to remote storage, by node, bucket and tenant."""

    def pending_uploads(self, bucket: str, prefix: str, wait_s: float) -> list[PendingUploads]:
        """Return what is still to be uploaded, by node and bucket ("": all), after it is uploaded or `wait_s` is over.
        A wait is at most 10 s."""

    def list_members(self, bucket: str, name: str, *, prefix: str, page_size: int) -> Iterator[MemberInfo]: ...

    def promote(self, spec: PromoteSpec) -> Generator[PromoteResult, None, None]:
        """Yield one result per file as it becomes known. Raises an error that concerns all files."""

    def etl(self, method: EtlMethod, request: Any) -> Any:
        """Call a method of the Etl service that has one answer; see protos/ais_etl.proto."""

    def watch_job(self, name: str) -> Iterator[etl_pb.JobInfo]:
        """Yield the job's state on every change, and every few seconds, until the job has ended. Lazy. Raises
        JobNotFound."""

    def copy_transformed(self, request: etl_pb.CopyObjectRequest) -> ObjectInfo: ...

    def open_batch(
        self, request: pb.BatchRequest, *, timeout_s: float, assembly: str = "auto", colocation: str = "none"
    ) -> FrameStream:
        """Begin one batch. Returns at once; only the stream's first frame may block.

        `assembly` and `colocation`, as in BatchOptions, matter only with several nodes.
        """

    def open_long_batch(self, request: pb.BatchRequest, *, timeout_s: float, window_bytes: int) -> FrameStream | None:
        """Begin a batch whose frames cost less but whose start costs more. The thread that consumes the frames drives
        it.

        The node sends at most `window_bytes` ahead. Nothing is retried: a broken connection ends the batch. Returns
        None if such a stream gains nothing; use `open_batch` then.
        """

    def refresh(self) -> None:
        """Make commits of other processes visible, where the transport caches a state. See `Client.refresh`."""

    def describe(self) -> dict[str, object]:
        """Describe the other end, for people. The result can be serialized as JSON."""

    def close(self) -> None: ...


def object_info(info: objects_pb.ObjectInfo) -> ObjectInfo:
    """Return the properties in a node's answer."""
    return ObjectInfo(info.bucket, info.name, *stored_of(info))


def pending_row(node: str, row: remote_pb.PendingBucket) -> PendingUploads:
    failures = {one.name: from_node(one.error.kind, one.error.message) for one in row.failure}
    return PendingUploads(node, row.bucket, row.count, row.bytes, row.oldest_s, row.conflicts, failures)


def usage_row(node: str, row: remote_pb.RemoteUsageRow) -> RemoteUsage:
    """Return the counters of one bucket and tenant, in the answer of `node`."""
    return RemoteUsage(node, **plain(row))


def drive_row(drive: Any, state: str) -> dict[str, object]:
    """Return a drive of `Transport.describe`, from the state of one or a node's answer."""
    columns = "objects_estimate", "free_bytes", "size_bytes"
    return {"uuid": drive.uuid, "path": drive.path, "state": state} | {one: getattr(drive, one) for one in columns}


MAX_COPIES = 2**32 - 1
MAX_QUOTA = 2**62
"""Largest number of copies of an object that a request can carry. A store keeps at most one on each host."""
MAX_METADATA_BYTES = 4096
"""Largest size of keys and values together, in UTF-8; the limit of the nodes."""


def require_text(text: str, refusal: type[errors.LoaderError], what: str) -> None:
    """Check a string. Raises `refusal` for a lone surrogate, InvalidRequest for anything but a string."""
    if not isinstance(text, str):
        raise errors.InvalidRequest(f"{what} {textwrap.shorten(repr(text), 60)}: need a str, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise refusal(f"{what} {text!r}: not valid Unicode (a lone surrogate has no UTF-8 form)") from None


def whole_number(what: str, value: Any, *, least: int, most: int | None = None) -> int:
    """Convert an integer of any type to int. Raises InvalidRequest if it is out of bounds, TypeError."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is a {type(value).__name__}; need an int") from None
    if number < least:
        raise errors.InvalidRequest(f"{what}={number}: need at least {least}")
    if most is not None and number > most:
        raise errors.InvalidRequest(f"{what}={number}: need at most {most:,}")
    return number


def checked_settings(
    *,
    copies: int | None,
    min_copies: int | None,
    remote: Remote | Literal[""] | None,
    quota_bytes: int | None,
    quota_objects: int | None,
    redundancy: str | None,
) -> BucketSettings:
    """Check settings of a bucket that a caller gave. Raises InvalidRequest, TypeError."""

    def checked(what: str, value: int | None, least: int, most: int) -> int | None:
        return None if value is None else whole_number(what, value, least=least, most=most)

    if redundancy is not None:
        if not isinstance(redundancy, str):
            raise TypeError(f"redundancy is a {type(redundancy).__name__}; need a str")
        Redundancy.parse(redundancy)  # raises
    return BucketSettings(
        checked("copies", copies, 1, MAX_COPIES),
        checked("min_copies", min_copies, 1, MAX_COPIES),
        remote,
        checked("quota_bytes", quota_bytes, 0, MAX_QUOTA),
        checked("quota_objects", quota_objects, 0, MAX_QUOTA),
        redundancy,
    )


def require_metadata(metadata: Mapping[str, str]) -> None:
    """Check metadata. Raises InvalidRequest unless it is small and maps strings to strings, without control characters
    and reserved keys.

    Values may contain tabs and line ends, keys may not.
    """
    size_bytes = 0
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise errors.InvalidRequest(f"metadata maps str to str, got {key!r}: {value!r}")
        for text, part, allowed in ((key, "key", ""), (value, "value", "\t\n\r")):
            require_text(text, errors.InvalidRequest, f"metadata, {part}")
            size_bytes += len(text.encode())
            if not text.isprintable():
                for char in text:
                    if unicodedata.category(char) == "Cc" and char not in allowed:
                        raise errors.InvalidRequest(f"metadata {key!r}: control character {char!r} in its {part}")
    require_unreserved(metadata)
    if size_bytes > MAX_METADATA_BYTES:
        raise errors.InvalidRequest(
            f"metadata has {size_bytes:,} bytes, keys and values together; {MAX_METADATA_BYTES:,} are allowed"
        )


def require_bucket(name: str) -> None:
    """Check the name of a bucket for any call but its creation. Raises BucketNotFound."""
    require_text(name, errors.BucketNotFound, "bucket name")


def require_object(bucket: str, name: str) -> None:
    """Check the name of an object for any call but a put. Raises BucketNotFound, ObjectNotFound."""
    require_bucket(bucket)
    require_text(name, errors.ObjectNotFound, "object name")


def member_name_fault(name: str) -> str | None:
    """Return why no archive created here may have a member of this name; None if it may. A tool that extracts members
    without checking their names would write outside of the chosen folder."""
    if name.startswith("/"):
        return "it is absolute"
    components = name.split("/")
    if ".." in components:
        return "it has the component '..'"
    return "it has an empty component" if "" in components else None
