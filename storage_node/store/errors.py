"""Errors of a store. The `kind` of an error is part of the wire contract: add kinds, never rename one.

Clients raise their own tree (`ais_loader.errors`), chosen by `kind`, whether the store is in their process or not.
"""

from __future__ import annotations

from typing import ClassVar


class StoreError(Exception):
    """Root of everything that a store raises on purpose. One string argument; pickles."""

    kind: ClassVar[str] = "internal"


class InvalidName(StoreError):
    kind = "invalid-name"


class InvalidRequest(StoreError):
    kind = "invalid-request"


class BucketNotFound(StoreError):
    kind = "bucket-not-found"


class SnapshotNotFound(BucketNotFound):
    kind = "snapshot-not-found"


class SnapshotExists(StoreError):
    kind = "snapshot-exists"


class SnapshotReadOnly(StoreError):
    """A change of a bucket by the name of one of its snapshots."""

    kind = "snapshot-read-only"


class Unsupported(StoreError):
    kind = "unsupported"


class BucketExists(StoreError):
    kind = "bucket-exists"


class BucketNotEmpty(StoreError):
    kind = "bucket-not-empty"


class BucketHasSnapshots(BucketNotEmpty):
    kind = "bucket-has-snapshots"


class ObjectNotFound(StoreError):
    kind = "object-not-found"


class ObjectDeleted(ObjectNotFound):
    """There is a tombstone: what another node may still have is older."""

    kind = "object-deleted"


class RangeError(StoreError):
    """A byte range that does not lie within its object."""

    kind = "range"


class CorruptObject(StoreError):
    """The bytes on the drive are not the bytes that were put."""

    kind = "corrupt-object"


class ContentMismatch(StoreError):
    """A PUT whose bytes differ from the length or checksum that came with them; nothing was stored."""

    kind = "content-mismatch"


class VersionConflict(StoreError):
    """A write or deletion on a condition that does not hold; nothing was changed."""

    kind = "version-conflict"


class WriteTooLate(VersionConflict):
    """A write whose version was given before a snapshot was made of which it is no part; nothing was changed."""

    kind = "write-too-late"


class StoreNotFound(StoreError):
    kind = "store-not-found"


class StoreLocked(StoreError):
    kind = "store-locked"


class StoreReadOnly(StoreError):
    kind = "store-read-only"


class FormatError(StoreError):
    """A drive whose contents this version cannot use: another format, a damaged identity, a foreign folder."""

    kind = "store-format"


class DriveFull(StoreError):
    kind = "drive-full"


class DriveFailed(StoreError):
    """The operating system refused to read or write a drive."""

    kind = "drive-failed"


class StoreClosed(StoreError):
    kind = "closed"


class SourceRefused(StoreError):
    """A file that may not be promoted: outside the roots, no regular file, or with a name that no object can have."""

    kind = "source-refused"


class SourceChanged(StoreError):
    """A file that was written to while it was promoted; nothing was stored."""

    kind = "source-changed"


class SourceUnreadable(StoreError):
    """A file that the operating system does not let the node read, or that has gone."""

    kind = "source-unreadable"
