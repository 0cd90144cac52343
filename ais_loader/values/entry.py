"""Values of a batch: Entry (what to fetch), Item (the result), Status (its outcome)."""

from __future__ import annotations

import enum
import io
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ais_loader import errors
from ais_loader.name_matching import names_unknown_options
from ais_loader.values.pipeline import Etl
from ais_loader.values.urls import SCHEME, split_member, split_url
from ais_loader.wire.denied import content_of
from ais_loader.wire.reserved import ETAG_VERSION


class Status(enum.IntEnum):
    """Outcome of one entry. The numbers are part of the wire format: new ones are appended, and none is ever changed.

    Source: `Status` in protos/ais_batch.proto.
    """

    OK = 0
    """All its bytes arrived."""
    NOT_FOUND = 1
    """There is no such bucket or object, or the object does not have the requested version."""
    MEMBER_NOT_FOUND = 2
    """The archive exists, but has no such member."""
    RANGE = 3
    """The range is not within the object."""
    CORRUPT = 4
    """The stored bytes do not match their checksum."""
    TIMEOUT = 5
    """A node that has the object accepts connections but does not answer."""
    UNAVAILABLE = 6
    """No node that has the object can be reached, or its drive is not available."""
    FAILED = 7
    """Any other failure. The item's error describes it."""
    DENIED = 8
    """The client's token does not give the right to read this entry."""
    OBJECT_DENIED = 9
    """The object was taken down: see `Bucket.deny`."""


_ERROR_OF_STATUS: dict[int, type[errors.LoaderError]] = {
    Status.NOT_FOUND: errors.ObjectNotFound,
    Status.MEMBER_NOT_FOUND: errors.MemberNotFound,
    Status.RANGE: errors.RangeError,
    Status.CORRUPT: errors.CorruptObject,
    Status.TIMEOUT: errors.SilenceTimeout,
    Status.UNAVAILABLE: errors.NodeUnavailable,
    Status.FAILED: errors.EntryFailed,
    Status.DENIED: errors.AccessDenied,
    Status.OBJECT_DENIED: errors.ObjectDenied,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing to fetch: an object, a member of an archive, or one or several byte ranges of either.

    `bucket` may be `bucket@snapshot`. `name` is used literally and never split. `length=None` reads to the end. With
    `version`, only that version of the object is accepted. `opaque` is any value of your own: it stays in this process
    and comes back as `item.entry.opaque`. `ranges` requests several ranges instead of one, as pairs of start and
    length. The data is then the bytes of all ranges, one after another, from the same version: `version` if you give
    it, otherwise the newest at the time of the request. If the object is replaced meanwhile, the item fails with
    ObjectNotFound. Raises RangeError for a negative start or length, TypeError for one that is not an integer.
    """

    bucket: str
    name: str
    member: str | None = None
    start: int = 0
    length: int | None = None
    version: str | None = None
    opaque: Any = field(default=None, compare=False)
    ranges: tuple[tuple[int, int | None], ...] | None = None
    etl: Etl | None = None
    """The transform, or stages, to apply on the node that has the object. `member`, the range and `version` refer to
    the transform's input.
    """
    args: Mapping[str, Any] | None = field(default=None, hash=False)
    """Arguments of a single transform, with values that JSON can represent."""

    def __post_init__(self) -> None:
        # A batch makes thousands of these, so the common case is decided by plain comparisons.
        start, length = self.start, self.length
        if (
            type(start) is int
            and start >= 0
            and (length is None or (type(length) is int and length >= 0))
            and self.ranges is None
        ):
            return
        start, length = checked_range(start, length, self.name)
        object.__setattr__(self, "start", start)
        object.__setattr__(self, "length", length)
        if self.ranges is not None:
            object.__setattr__(self, "ranges", _checked_ranges(self.ranges, self.name))

    @classmethod
    def from_url(cls, url: str) -> Entry:
        """Parse `ais://bucket/name` or `ais://bucket/shard.tar/member`, which stand for a whole object or member.

        The object's name ends with the first path component that has an archive's extension (.tar, .tar.gz, .tgz,
        .tar.lz4, .tlz4, .tar.zst, .tzst, .zip, in upper or lower case), and the rest is the name of a member. To fetch
        objects from a folder that is named like an archive, make an Entry instead. Everything else is literal: `#`, `?`
        and `%` are ordinary characters of names.

        Raises InvalidRequest if there is no bucket or no name, and for another scheme; TypeError for a value that is
        not a str.
        """
        bucket, rest = split_url(url)
        name, member = split_member(rest)
        return cls(bucket, name, member)


Entry.__init__ = names_unknown_options()(Entry.__init__)  # type: ignore[method-assign]


def checked_range(start: Any, length: Any, name: str) -> tuple[int, int | None]:
    """Return the start and length of a range of `name` as plain integers. Raises RangeError, TypeError."""
    return _range_number("start", start, name), None if length is None else _range_number("length", length, name)


def _range_number(what: str, value: Any, name: str) -> int:
    """Convert an integer of any type to int. Raises RangeError for a negative one, TypeError."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name!r}: {what} is a {type(value).__name__}; need a whole number of bytes") from None
    if number < 0:
        raise errors.RangeError(
            f"{name!r}: {what}={number}: need 0 or more, because ranges are counted from an object's first byte"
        )
    return number


def _checked_ranges(ranges: Any, name: str) -> tuple[tuple[int, int | None], ...]:
    try:
        pairs = [(start, length) for start, length in ranges]
    except (TypeError, ValueError):
        raise TypeError(f"{name!r}: ranges={ranges!r}: need pairs of a start and a length in bytes") from None
    return tuple(checked_range(start, length, name) for start, length in pairs)


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Properties of a stored object."""

    bucket: str
    """The name of the object's bucket."""
    name: str
    """The object's name."""
    size_bytes: int
    """The object's size."""
    version: str
    """The version, which is new with every write, even of the same bytes. A remote object that is not stored has its
    ETag, after "etag:"."""
    checksum: int
    """CRC-32C of the whole object; 0 if it is not stored."""
    modified_ns: int
    """The wall-clock time of the commit, in nanoseconds since the epoch. It is for people: nothing is ordered by it."""
    metadata: dict[str, str] = field(default_factory=dict)
    """The metadata that `put` or `set_metadata` stored with the object."""

    @property
    def digest(self) -> str:
        """The content, as `Bucket.deny` takes it; meaningless for an object that is not stored."""
        return content_of(self.checksum, self.size_bytes)

    @property
    def is_stored(self) -> bool:
        """Whether the store has the object. A cold object of a remote bucket has the ETag as its version, and no
        checksum."""
        return not self.version.startswith(ETAG_VERSION)

    def entry(self, *, pinned: bool = False) -> Entry:
        """Return the Entry that fetches the whole object; with `pinned`, only in this version.

        Raises InvalidRequest if `pinned` is set for a cold object without an ETag, which an inventory may have.
        """
        if pinned:
            self.require_pinnable()
        return Entry(self.bucket, self.name, version=self.version if pinned else None)

    def require_pinnable(self) -> None:
        """Raise InvalidRequest for a cold object without an ETag."""
        if self.version == ETAG_VERSION:
            raise errors.InvalidRequest(f"{self.bucket}/{self.name}: no ETag is known, so it cannot be pinned")


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """Properties of a member of an archive."""

    bucket: str
    """The name of the archive's bucket."""
    shard: str
    """The name of the archive."""
    name: str
    """The member's name in the archive."""
    size_bytes: int
    """The member's size, unpacked."""
    checksum: int
    """CRC-32C of the member's bytes; 0 if it is not known, as of most members of archives that are not stored."""
    version: str
    """The version of the archive."""
    hidden: int = 0
    """How many files of the archive you cannot request, because a later file has the same name, or because they are in
    a second tar that was appended with `cat`."""

    def entry(self) -> Entry:
        """Return the Entry that fetches this member, from this version of the archive."""
        return Entry(self.bucket, self.shard, self.name, version=self.version)


EntryLike: TypeAlias = Entry | str | ObjectInfo | MemberInfo
"""An Entry, `ais://bucket/name` or `ais://bucket/shard.tar/member`. An ObjectInfo or MemberInfo stands for what it
describes. If a call takes `bucket`, a plain name is accepted too.
"""


def to_entry(entry: EntryLike, bucket: str | None = None) -> Entry:
    """Return the Entry that `entry` stands for. An Entry is returned unchanged. `bucket` is the bucket of plain names.

    Raises InvalidRequest, TypeError.
    """
    if isinstance(entry, Entry):
        return entry
    if isinstance(entry, (ObjectInfo, MemberInfo)):
        return entry.entry()
    if not isinstance(entry, str):
        raise TypeError(f"need an Entry or an ais:// URL, got {type(entry).__name__}")
    if bucket is not None and not entry.startswith(SCHEME):  # no name contains the double slash of a URL
        return Entry(bucket, entry)
    if "://" not in entry:
        raise errors.InvalidRequest(
            f"{entry!r}: need an Entry, or a URL like ais://bucket/name; for a plain name, pass bucket=..."
        )
    return Entry.from_url(entry)


class Item:
    """The result of one entry: number `index` of the batch.

    `data` is a read-only memoryview of bytes, shape (n,). It stays valid for as long as you keep it, but it keeps its
    whole frame (1 to 4 MiB) in memory, so use `tobytes()` to copy what should outlive the batch. If `status` is not OK,
    `data` is empty and `error` is the LoaderError that says why. Otherwise `error` is None.
    """

    __slots__ = ("_bucket", "_entry", "data", "error", "index", "status")

    def __init__(
        self,
        index: int,
        entry: Entry | str,
        status: Status,
        data: memoryview,
        error: errors.LoaderError | None,
        bucket: str | None = None,
    ) -> None:
        self.index = index
        self.status = status
        self.data = data
        self.error = error
        self._entry = entry
        self._bucket = bucket

    @property
    def entry(self) -> Entry:
        """The Entry that was requested. In a columnar batch it is created on first access, because most consumers never
        look.
        """
        if isinstance(self._entry, str):
            self._entry = Entry(self._bucket or "", self._entry)
        return self._entry

    @property
    def ok(self) -> bool:
        """Whether the entry was delivered with its data."""
        return self.error is None

    def tobytes(self) -> bytes:
        """Return a copy of the data. It does not keep the frame in memory."""
        return bytes(self.data)

    def open(self) -> io.BytesIO:
        """Return a copy of the data as a binary file, for libraries that read files: PIL, soundfile, numpy.

        Raises `error` if there is one.
        """
        if self.error is not None:
            raise self.error
        return io.BytesIO(self.data)

    def __reduce__(self) -> tuple[Any, ...]:
        return _item_again, (self.index, self.entry, self.status, self.tobytes(), self.error)

    def __repr__(self) -> str:
        return f"Item(index={self.index}, entry={self.entry!r}, status={self.status.name}, {len(self.data):,} bytes)"


def _item_again(index: int, entry: Entry, status: Status, data: bytes, error: errors.LoaderError | None) -> Item:
    return Item(index, entry, status, memoryview(data), error)


def entry_error(status: int, message: str, kind: str) -> errors.LoaderError:
    """Return the typed error of an entry that failed with this status."""
    cls = errors.BY_KIND.get(kind) if kind else None
    return (cls or _ERROR_OF_STATUS.get(status, errors.EntryFailed))(message)
