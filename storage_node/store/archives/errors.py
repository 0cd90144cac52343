"""Errors of archives, beside those of a store. Kinds are wire contract: append only.

None of these concerns the shard as an object: one whose members cannot be served is still stored, listed and read.
"""

from __future__ import annotations

from storage_node.store.errors import CorruptObject, StoreError


class ArchiveError(StoreError):
    """Root of what is raised about archives and their members, apart from ranges (errors.RangeError)."""

    kind = "archive"


class ArchiveDamaged(ArchiveError):
    """A truncated or lying archive. The message says what is wrong, and at which byte of which stream."""

    kind = "archive-damaged"


class ArchiveUnsupported(ArchiveError):
    """A sound archive that uses what we do not serve: sparse files, encryption, another compression."""

    kind = "archive-unsupported"


class ArchiveTooLarge(ArchiveError):
    """It would need more than its limits allow: members, names, inflated bytes, room for copies."""

    kind = "archive-too-large"


class NotAnArchive(ArchiveError):
    """Members were asked of an object that is no archive by its name, or not the one that its name says."""

    kind = "not-an-archive"


class MemberNotFound(ArchiveError):
    kind = "member-not-found"


class MemberCorrupt(CorruptObject):
    """The bytes of a member are not those that the index was made from."""

    kind = "member-corrupt"


class IndexDamaged(ArchiveError):
    """A member index that is not what was written, or of another format. Drop it and make it again."""

    kind = "archive-index-damaged"


class IndexStale(ArchiveError):
    """A member index of another state of the shard. Drop it and make it again."""

    kind = "archive-index-stale"


class CopiesBusy(ArchiveError):
    """No room for a decompressed copy until readers of others let go; it is worth trying again."""

    kind = "archive-copies-busy"


class LibraryMissing(ArchiveError):
    """The library for this kind of archive is not installed."""

    kind = "library-missing"
