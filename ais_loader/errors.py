"""Error tree of clients, stores and nodes: everything raised on purpose, by what the caller does next.

    LoaderError
    ├── NotFound (LookupError)          the name is wrong, or the data is gone: BucketNotFound, ObjectNotFound, ...
    ├── InvalidRequest (ValueError)     the call is wrong: InvalidName, RangeError, ItemTooLarge, BucketExists, ...
    ├── VersionConflict                 somebody else was first: read again, and decide anew
    ├── CorruptObject                   the stored bytes are damaged: restore them, see `ais-loader doctor`
    ├── ArchiveError                    members cannot be had from this object: NotAnArchive, ArchiveDamaged, ...
    ├── SourceChanged, SourceUnreadable     a file that was to be promoted: promote again when it rests, or may be read
    ├── PromoteIncomplete               some files were not promoted: promote again, the rest is there
    ├── TransformError                  a transform made nothing of an object: TransformFailed, TransformTimeout, ...
    ├── StoreError                      the store or a drive needs an operator: StoreLocked, DriveFull, ...
    ├── NodeUnavailable (ConnectionError)   retryable: nobody answers
    │   └── OutcomeUnknown              a write may have been done: read what there is, and decide anew
    ├── Overloaded                      retryable: the node asked to come back later, again and again
    ├── StaleMap                        retryable: the cluster has changed meanwhile; clients plan anew by themselves
    ├── WriteTooLate                    retryable: something came in between: write it again
    ├── SilenceTimeout (TimeoutError)   retryable: nothing arrived for timeout_s
    ├── Closed                          the client, store or batch was closed before this call
    └── EntryFailed                     an entry of a batch failed in a way that has no class of its own

Each class has a `kind`, which travels on the wire: kinds are added, never renamed. Every error takes one string and
pickles, so it crosses a DataLoader worker's boundary as itself.

A store in the same process raises these classes; a node sends kind and message, from which its client makes the error
anew. A node's own classes derive from the one here that its clients receive, and inherit its kind.
"""

from __future__ import annotations

from typing import ClassVar


class LoaderError(Exception):
    """Root of everything raised on purpose. One string argument; pickles."""

    kind: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False


class NotFound(LoaderError, LookupError):
    """The name is wrong, or what it meant is gone."""

    kind = "not-found"


class BucketNotFound(NotFound):
    """There is no bucket of this name; `create_bucket` makes one."""

    kind = "bucket-not-found"


class SnapshotNotFound(BucketNotFound):
    """The bucket has no snapshot of this name."""

    kind = "snapshot-not-found"


class ObjectNotFound(NotFound):
    """There is no object of this name, or it does not have the version asked for any more."""

    kind = "object-not-found"


class ObjectDeleted(ObjectNotFound):
    """There is a tombstone: what another node of the cluster may still have is older, so none needs to be asked."""

    kind = "object-deleted"


class MemberNotFound(NotFound):
    """The archive is there and has no member of this name."""

    kind = "member-not-found"


class InvalidRequest(LoaderError, ValueError):
    """The call is wrong, and would be wrong again: nothing was changed."""

    kind = "invalid-request"


class InvalidName(InvalidRequest):
    """A name that no bucket, object or snapshot may have; the message says why."""

    kind = "invalid-name"


class RangeError(InvalidRequest):
    """A range that begins or ends outside its object. Nothing is ever silently shorter."""

    kind = "range"


class ItemTooLarge(InvalidRequest):
    """An entry too large for an item in memory: read it in ranges, or as a file."""

    kind = "item-too-large"


class Unsupported(InvalidRequest):
    """What this store, or this version of a node, cannot do."""

    kind = "unsupported"


class BucketExists(InvalidRequest):
    """There is a bucket of this name already; see `exist_ok`."""

    kind = "bucket-exists"


class BucketNotEmpty(InvalidRequest):
    """A bucket with objects is deleted only with `force`."""

    kind = "bucket-not-empty"


class BucketHasSnapshots(BucketNotEmpty):
    """A bucket with snapshots is not deleted, not by force either: a run may be reading them."""

    kind = "bucket-has-snapshots"


class SnapshotExists(InvalidRequest):
    """The bucket has a snapshot of this name already."""

    kind = "snapshot-exists"


class SnapshotReadOnly(InvalidRequest):
    """A change of a bucket by the name of one of its snapshots, which never change."""

    kind = "snapshot-read-only"


class ContentMismatch(InvalidRequest):
    """A PUT whose bytes differ from the size or checksum announced; nothing was stored."""

    kind = "content-mismatch"


class MemberExists(InvalidRequest):
    """The archive that a member is to be added to has one of that name."""

    kind = "member-exists"


class VersionConflict(LoaderError):
    """`if_absent` or `if_version` does not hold; the message says what is there. Nothing was changed."""

    kind = "version-conflict"


class CorruptObject(LoaderError):
    """The stored bytes are not those that were put; `ais-loader doctor` says more."""

    kind = "corrupt-object"


class MemberCorrupt(CorruptObject):
    """The bytes of an archive's member are not those that were put."""

    kind = "member-corrupt"


class ArchiveError(LoaderError):
    """Members cannot be had from this object. As an object it is still stored, listed and read."""

    kind = "archive"


class NotAnArchive(ArchiveError):
    """It is none by its name, or another one than its name says."""

    kind = "not-an-archive"


class ArchiveDamaged(ArchiveError):
    """A truncated or lying archive; the message says what is wrong, and at which byte of which stream."""

    kind = "archive-damaged"


class ArchiveUnsupported(ArchiveError):
    """A sound archive that uses what is not served: sparse files, encryption, another compression."""

    kind = "archive-unsupported"


class ArchiveTooLarge(ArchiveError):
    """It needs more than its limits allow: members, names, inflated bytes, room for copies."""

    kind = "archive-too-large"


class LibraryMissing(ArchiveError):
    """The node has not got the library for this kind of archive."""

    kind = "library-missing"


class ArchiveIndexError(ArchiveError):
    """The archive's index of members is damaged; it is made anew when a member is next asked for."""

    kind = "archive-index-damaged"


class ArchiveIndexStale(ArchiveError):
    """The index of members is of another object than the archive that is there; it is made anew."""

    kind = "archive-index-stale"


class SourceRefused(InvalidRequest):
    """A file that may not be promoted: outside the node's roots, no regular file, or no name for an object."""

    kind = "source-refused"


class SourceChanged(LoaderError):
    """A file that was written to while it was promoted; nothing was stored of it."""

    kind = "source-changed"


class SourceUnreadable(LoaderError):
    """A file that the operating system does not let whoever promotes it read, or that has gone."""

    kind = "source-unreadable"


class PromoteIncomplete(LoaderError):
    """Some files were not promoted; the message has the first reason. Promoting again goes on with the rest."""

    kind = "promote-incomplete"


class TransformNotFound(NotFound):
    """There is no transform of this name; `client.etl.init` makes one."""

    kind = "transform-not-found"


class TransformExists(InvalidRequest):
    """There is a transform, or a job, of this name already; see `replace`."""

    kind = "transform-exists"


class TransformRefused(InvalidRequest):
    """What the operator of a node does not allow: code, this command, that address, or limits above the node's."""

    kind = "transform-refused"


class TransformError(LoaderError):
    """A transform did not make anything of an object; the object itself is as it was."""

    kind = "transform"


class TransformFailed(TransformError):
    """It raised, died, or made what its limits do not allow; the message says which."""

    kind = "transform-failed"


class TransformTimeout(TransformError):
    """It took longer than its `timeout_s`, and was ended."""

    kind = "transform-timeout"


class TransformGone(TransformError):
    """It was stopped, deleted or replaced meanwhile, or cannot be reached."""

    kind = "transform-gone"


class TransformIncomplete(TransformError):
    """A job left out some objects; the message has the first reason. Run again, it goes on with the rest."""

    kind = "transform-incomplete"


class JobNotFound(NotFound):
    """There is no job of this name."""

    kind = "job-not-found"


class StoreError(LoaderError):
    """The store, or a drive of it, needs an operator."""

    kind = "store"


class StoreNotFound(StoreError, LookupError):
    """There is no store at this path."""

    kind = "store-not-found"


class StoreLocked(StoreError):
    """Another process has the store open for writing; mode="r" reads beside it."""

    kind = "store-locked"


class StoreReadOnly(StoreError):
    """The store was opened for reading."""

    kind = "store-read-only"


class StoreFormatError(StoreError):
    """What stands on a drive is damaged, or was written by a later version."""

    kind = "store-format"


class DriveFull(StoreError):
    """The drive that owns the name has no room for it."""

    kind = "drive-full"


class DriveFailed(StoreError):
    """The drive that owns the name is missing, disabled or broken."""

    kind = "drive-failed"


class Closed(LoaderError):
    """The client, store or batch was closed before this call."""

    kind = "closed"


class NodeUnavailable(LoaderError, ConnectionError):
    """Nobody answers, or too few nodes to do it. A write may have been done all the same."""

    kind = "node-unavailable"
    retryable = True
    reached = True
    """False: no connection was made, so that whatever was asked for has not been done."""


class ClockOffset(NodeUnavailable):
    """Nodes' clocks differ by more than `max_clock_offset_s`, so that a write could not be ordered; its message says
    whose."""

    kind = "clock-offset"


class OutcomeUnknown(NodeUnavailable):
    """A write or deletion may have been done, or not, or may yet be; nobody who could tell answers.

    It has been tried again for `retry_s`, unless it is one of many, and was not done twice. Read what is there before
    writing again: the object may be this one, an older one, or one that somebody else has put since.
    """

    kind = "outcome-unknown"
    retryable = False


class Overloaded(LoaderError):
    """The node asked to come back later, for as long as the client tried."""

    kind = "overloaded"
    retryable = True


class CopiesBusy(Overloaded):
    """No room to unpack an archive until readers of others let go; it is worth trying again."""

    kind = "archive-copies-busy"


class StaleMap(LoaderError):
    """The request was planned with an older map of the cluster than the node's own: its names may be others' now."""

    kind = "stale-map"
    retryable = True


class WriteTooLate(LoaderError):
    """A snapshot that this write should be in, or another write that it would have undone, came in between: write it
    again."""

    kind = "write-too-late"
    retryable = True


class SilenceTimeout(LoaderError, TimeoutError):
    """Nothing arrived for `timeout_s`. A write may have been done all the same."""

    kind = "timeout"
    retryable = True


class EntryFailed(LoaderError):
    """An entry of a batch failed in a way that has no class of its own."""

    kind = "entry-failed"


def _subclasses(cls: type[LoaderError]) -> list[type[LoaderError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in _subclasses(child))]


def from_kind(kind: str, message: str) -> LoaderError:
    """The error that a store or node means by `kind`; LoaderError itself for a kind of a later version."""
    return BY_KIND.get(kind, LoaderError)(message)


def from_node(kind: str, message: str) -> LoaderError:
    """As `from_kind`, of a node: one that has closed its store is about to stop, and nobody has closed its client."""
    return NodeUnavailable(message) if kind == Closed.kind else from_kind(kind, message)


BY_KIND = {cls.kind: cls for cls in _subclasses(LoaderError)}
