"""Error tree of clients, stores and nodes: everything that is raised on purpose, grouped by what the caller does next.

    LoaderError
    ├── NotFound (LookupError)          the name is wrong, or the data is gone: BucketNotFound, ObjectNotFound, ...
    ├── InvalidRequest (ValueError)     the call is wrong: InvalidName, RangeError, ItemTooLarge, BucketExists, ...
    ├── AccessDenied (PermissionError)  the token is missing, is not accepted, or does not give the right to this
    ├── ObjectDenied                    the object was taken down: leave it out
    ├── VersionConflict                 someone else was first: read again, then decide
    ├── CorruptObject                   the stored bytes are damaged: restore them, see `ais-loader doctor`
    ├── MediaError                      audio or video that cannot be decoded: store the file again, or leave it out
    ├── ArchiveError                    members of this object cannot be read: NotAnArchive, ArchiveDamaged, ...
    ├── SourceChanged, SourceUnreadable     a file to promote: try again when it is at rest, or readable
    ├── PromoteIncomplete               some files were not promoted, the others were: promote again
    ├── TransformError                  a transform failed on an object: TransformFailed, TransformTimeout, ...
    ├── StoreError                      the store or a drive needs an operator: StoreLocked, DriveFull, ...
    ├── NodeUnavailable (ConnectionError)   retryable: no node answers
    │   └── OutcomeUnknown              a write may have taken effect: read, then decide
    ├── RemoteUnavailable (ConnectionError)     retryable: the cloud storage of a remote bucket does not answer
    │   └── RemoteDenied                it refused: correct the credentials, the permissions or the bucket's settings
    │       └── RemoteLimitReached      the bucket's own limit for a day: raise it, or wait
    ├── Overloaded                      retryable: the node kept asking the client to retry later
    ├── StaleMap                        retryable: the cluster has changed; clients plan again automatically
    ├── WriteTooLate                    retryable: something else came first: write again
    ├── SilenceTimeout (TimeoutError)   retryable: nothing arrived for timeout_s
    ├── Closed                          the client, store or batch was closed before this call
    └── EntryFailed                     an entry of a batch failed in a way that has no class of its own

Each class has a `kind`, which is sent over the network. Kinds are added, never renamed. Every error takes one string
and can be pickled, so it keeps its type when it crosses from a DataLoader worker.

A store in the same process raises these classes. A node sends the kind and the message, from which its client recreates
the error. A node's own classes derive from the class here that its clients receive, and inherit its kind.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self


class LoaderError(Exception):
    """The root of all errors that are raised on purpose. It takes one string and can be pickled."""

    kind: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False
    cause: BaseException | None = None
    """The error that led to this one, such as an error of gRPC or of the file system. Tracebacks do not show it, and it
    is not pickled."""

    def caused_by(self, cause: BaseException) -> Self:
        """Set `cause`, and return this error: `raise InvalidRequest(...).caused_by(error) from None`."""
        self.cause = cause
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: value for name, value in self.__dict__.items() if name != "cause"}
        return (type(self), self.args, state) if state else (type(self), self.args)


class NotFound(LoaderError, LookupError):
    """The name is wrong, or what it named is gone."""

    kind = "not-found"


class BucketNotFound(NotFound):
    """There is no bucket of this name. `create_bucket` creates one."""

    kind = "bucket-not-found"


class SnapshotNotFound(BucketNotFound):
    """The bucket has no snapshot of this name."""

    kind = "snapshot-not-found"


class ObjectNotFound(NotFound):
    """There is no object of this name, or no longer in the requested version."""

    kind = "object-not-found"


class ObjectDeleted(ObjectNotFound):
    """There is a tombstone. Any copy on another node is older, so no other node needs to be asked."""

    kind = "object-deleted"


class ObjectReplaced(ObjectNotFound):
    """The object has a newer version than the requested one."""

    kind = "object-replaced"


class MemberNotFound(NotFound):
    """The archive exists, but has no member of this name."""

    kind = "member-not-found"


class InvalidRequest(LoaderError, ValueError):
    """The call is invalid, and would be invalid again. Nothing was changed."""

    kind = "invalid-request"


class InvalidName(InvalidRequest):
    """A name that no bucket, object or snapshot may have. The message says why."""

    kind = "invalid-name"


class RangeError(InvalidRequest):
    """A range that begins or ends outside its object. Ranges are never silently shortened."""

    kind = "range"


class ItemTooLarge(InvalidRequest):
    """An entry that is too large for an item in memory. Read it in ranges, or as a file."""

    kind = "item-too-large"


class Unsupported(InvalidRequest):
    """An operation that this store, or this version of a node, does not support."""

    kind = "unsupported"


class BucketExists(InvalidRequest):
    """A bucket of this name already exists. See `exist_ok`."""

    kind = "bucket-exists"


class BucketNotEmpty(InvalidRequest):
    """The bucket has objects. It can be deleted only with `force`."""

    kind = "bucket-not-empty"


class BucketHasSnapshots(BucketNotEmpty):
    """The bucket has snapshots. It cannot be deleted, even with `force`, because a run may be reading them."""

    kind = "bucket-has-snapshots"


class SnapshotExists(InvalidRequest):
    """The bucket already has a snapshot of this name."""

    kind = "snapshot-exists"


class SnapshotReadOnly(InvalidRequest):
    """An attempt to change a bucket through one of its snapshots, which never change."""

    kind = "snapshot-read-only"


class ContentMismatch(InvalidRequest):
    """A PUT whose bytes do not match the announced size or checksum. Nothing was stored."""

    kind = "content-mismatch"


class AccessDenied(LoaderError, PermissionError):
    """The node needs a token, did not accept it, or it does not give the right to this. Nothing was changed."""

    kind = "denied"


class ObjectDenied(LoaderError):
    """The object, or its content, is denied (`Bucket.deny`): it is neither read nor written, and its bytes are gone."""

    kind = "object-denied"


class VersionConflict(LoaderError):
    """`if_absent` or `if_version` does not hold. The message says what is there. Nothing was changed."""

    kind = "version-conflict"


class CorruptObject(LoaderError):
    """The stored bytes are not those that were put. `ais-loader doctor` reports details."""

    kind = "corrupt-object"


class MediaError(LoaderError):
    """Audio or video that cannot be read by time: damaged, truncated, or of a kind that PyAV does not decode."""

    kind = "media"


class MemberCorrupt(CorruptObject):
    """The bytes of an archive's member are not those that were put."""

    kind = "member-corrupt"


class ArchiveError(LoaderError):
    """Members of this object cannot be read. It can still be stored, listed and read as an object."""

    kind = "archive"


class NotAnArchive(ArchiveError):
    """The object's name is not that of an archive, or its content is not what the name says."""

    kind = "not-an-archive"


class ArchiveDamaged(ArchiveError):
    """The archive is truncated or inconsistent. The message says what is wrong, and at which byte of which stream."""

    kind = "archive-damaged"


class ArchiveUnsupported(ArchiveError):
    """A valid archive that uses an unsupported feature: sparse files, encryption, or another compression."""

    kind = "archive-unsupported"


class ArchiveTooLarge(ArchiveError):
    """The archive exceeds a limit: on members, names, decompressed bytes, or space for copies."""

    kind = "archive-too-large"


class LibraryMissing(ArchiveError):
    """The node lacks the library for this kind of archive."""

    kind = "library-missing"


class ArchiveIndexError(ArchiveError):
    """The archive's index of members is damaged. It is rebuilt when a member is next requested."""

    kind = "archive-index-damaged"


class ArchiveIndexStale(ArchiveError):
    """The index of members belongs to another object than the current archive. It is rebuilt."""

    kind = "archive-index-stale"


class SourceRefused(InvalidRequest):
    """A file that may not be promoted: outside the node's roots, not a regular file, or not a valid object name."""

    kind = "source-refused"


class SourceChanged(LoaderError):
    """A file that was written to during its promotion. Nothing of it was stored."""

    kind = "source-changed"


class SourceUnreadable(LoaderError):
    """A file that the promoting process is not permitted to read, or that is gone."""

    kind = "source-unreadable"


class PromoteIncomplete(LoaderError):
    """Some files were not promoted. The message gives the first reason. Promoting again continues with the rest."""

    kind = "promote-incomplete"


class TransformNotFound(NotFound):
    """There is no transform of this name. `client.etl.init` creates one."""

    kind = "transform-not-found"


class TransformExists(InvalidRequest):
    """A transform or a job of this name already exists. See `replace`."""

    kind = "transform-exists"


class TransformRefused(InvalidRequest):
    """The operator of a node does not allow this: code, the command, the address, or limits above the node's."""

    kind = "transform-refused"


class TransformError(LoaderError):
    """A transform produced no result for an object. The object itself is unchanged."""

    kind = "transform"


class TransformFailed(TransformError):
    """The transform raised, died, or exceeded one of its limits. The message says which."""

    kind = "transform-failed"


class TransformTimeout(TransformError):
    """The transform took longer than its `timeout_s`, and was ended."""

    kind = "transform-timeout"


class TransformGone(TransformError):
    """The transform was stopped, deleted or replaced in the meantime, or cannot be reached."""

    kind = "transform-gone"


class TransformIncomplete(TransformError):
    """A job left out some objects. The message gives the first reason. Run again, it continues with the rest."""

    kind = "transform-incomplete"


class JobNotFound(NotFound):
    """There is no job of this name."""

    kind = "job-not-found"


class StoreError(LoaderError):
    """The store, or one of its drives, needs an operator."""

    kind = "store"


class StoreNotFound(StoreError, LookupError):
    """There is no store at this path."""

    kind = "store-not-found"


class StoreLocked(StoreError):
    """Another process has the store open for writing. mode="r" can read alongside it."""

    kind = "store-locked"


class StoreReadOnly(StoreError):
    """The store was opened for reading only."""

    kind = "store-read-only"


class StoreFormatError(StoreError):
    """The data on a drive is damaged, or was written by a later version."""

    kind = "store-format"


class DriveFull(StoreError):
    """The drive that owns the name has no room for the object."""

    kind = "drive-full"


class QuotaExceeded(StoreError):
    """The object would exceed the quota of its bucket. Nothing was stored. Delete something, or raise the quota."""

    kind = "quota-exceeded"


class DriveFailed(StoreError):
    """The drive that owns the name is missing, disabled or broken."""

    kind = "drive-failed"


class Closed(LoaderError):
    """The client, store, batch or iteration was closed before this call."""

    kind = "closed"


class NodeUnavailable(LoaderError, ConnectionError):
    """No node answers, or too few for the operation. A write may have taken effect nevertheless."""

    kind = "node-unavailable"
    retryable = True
    reached = True
    """False if no connection was made, so that the operation cannot have been done."""


class NodeUntrusted(NodeUnavailable):
    """The node's certificate does not hold, or one side uses TLS and the other does not. The message says which, and
    what to do."""

    kind = "node-untrusted"
    reached = False


class ClockOffset(NodeUnavailable):
    """The nodes' clocks differ by more than `max_clock_offset_s`, so that a write could not be ordered, or a snapshot
    not be made. The message names the nodes."""

    kind = "clock-offset"


class OutcomeUnknown(NodeUnavailable):
    """A write or deletion may have taken effect, or not, or may still do so. No node that could tell answers.

    It has been retried for `retry_s`. It was not done twice. Read before you write again: the object may be the one
    that you wrote, an older one, or one that someone else has put since.
    """

    kind = "outcome-unknown"
    retryable = False


class RemoteUnavailable(LoaderError, ConnectionError):
    """The remote storage of a bucket does not answer, or throttled the request for too long. The message is that of the
    remote storage, without secrets."""

    kind = "remote-unavailable"
    retryable = True


class RemoteDenied(RemoteUnavailable):
    """The remote storage of a bucket refused a request: credentials that are missing, wrong or expired, no permission,
    a bucket or container that does not exist, or one of another region."""

    kind = "remote-denied"
    retryable = False


class RemoteLimitReached(RemoteDenied):
    """A bucket has received its limit for a day (`Remote.max_bytes_per_day`). Raise the limit, or wait until midnight
    UTC. Stored objects can be read."""

    kind = "remote-limit-reached"


class Overloaded(LoaderError):
    """The node asked the client to retry later, for as long as the client tried."""

    kind = "overloaded"
    retryable = True


class CopiesBusy(Overloaded):
    """There is no room to unpack an archive until readers of other archives finish. It is worth retrying."""

    kind = "archive-copies-busy"


class StaleMap(LoaderError):
    """The request was planned with an older cluster map than the node's. Its names may now belong to other nodes."""

    kind = "stale-map"
    retryable = True


class WriteTooLate(LoaderError):
    """A snapshot that should contain this write, or another write that it would have undone, came first. Write
    again."""

    kind = "write-too-late"
    retryable = True


class SilenceTimeout(LoaderError, TimeoutError):
    """Nothing arrived for `timeout_s`. A write may have taken effect nevertheless."""

    kind = "timeout"
    retryable = True


class EntryFailed(LoaderError):
    """An entry of a batch failed in a way that has no class of its own."""

    kind = "entry-failed"


def _subclasses(cls: type[LoaderError]) -> list[type[LoaderError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in _subclasses(child))]


def from_kind(kind: str, message: str) -> LoaderError:
    """Return the error that `kind` stands for, or LoaderError itself for a kind from a later version."""
    return BY_KIND.get(kind, LoaderError)(message)


def from_node(kind: str, message: str) -> LoaderError:
    """Like `from_kind`, for a node: if it has closed its store, it is about to stop, but the client is not closed."""
    return NodeUnavailable(message) if kind == Closed.kind else from_kind(kind, message)


BY_KIND = {cls.kind: cls for cls in _subclasses(LoaderError)}
