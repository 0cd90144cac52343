"""Values of a batch: Entry (what to fetch), Item (what came), Status (how it went)."""

from __future__ import annotations

import enum
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ais_loader import errors
from ais_loader.pipeline import Etl
from ais_loader.urls import SCHEME, split_member, split_url


class Status(enum.IntEnum):
    """How an entry fared. The numbers are wire format: appended to, never changed.

    Source: `Status` in protos/ais_batch.proto.
    """

    OK = 0
    """All its bytes came."""
    NOT_FOUND = 1
    """No such bucket or object, or not in the version asked for."""
    MEMBER_NOT_FOUND = 2
    """The archive is there, without that member."""
    RANGE = 3
    """The range is not one within the object."""
    CORRUPT = 4
    """The stored bytes are not those that were put."""
    TIMEOUT = 5
    """Who has it connects and says nothing."""
    UNAVAILABLE = 6
    """Nobody who has it can be reached, or its drive is away."""
    FAILED = 7
    """Anything else; the item's error says what."""


_ERROR_OF_STATUS: dict[int, type[errors.LoaderError]] = {
    Status.NOT_FOUND: errors.ObjectNotFound,
    Status.MEMBER_NOT_FOUND: errors.MemberNotFound,
    Status.RANGE: errors.RangeError,
    Status.CORRUPT: errors.CorruptObject,
    Status.TIMEOUT: errors.SilenceTimeout,
    Status.UNAVAILABLE: errors.NodeUnavailable,
    Status.FAILED: errors.EntryFailed,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing to fetch: an object, a member of an archive, or a byte range or several of either.

    `bucket` may be `bucket@snapshot`. `name` is taken literally and never split. `length=None` reads to the end.
    `version` accepts only that version of the object. `opaque` is yours: it stays in this process and comes back as
    `item.entry.opaque`. `ranges` is for several in place of one: pairs of start and length, of which the data is the
    bytes one after another, all of the same version; without `version` that is the newest one when the batch is asked
    for, and an item whose object is replaced meanwhile fails with ObjectNotFound.
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
    """What it passes through on the node that has it: a transform's name, or stages. Member, range and version are of
    the input."""
    args: Mapping[str, Any] | None = field(default=None, hash=False)
    """Arguments of a single transform, what JSON has."""

    @classmethod
    def from_url(cls, url: str) -> Entry:
        """What `ais://bucket/name` or `ais://bucket/shard.tar/member` means: the whole object or member.

        The name ends with the first component that has an archive's extension (.tar, .tar.gz, .tgz, .tar.lz4, .tlz4,
        .tar.zst, .tzst, .zip, in any case of letters), and what follows is a member of it; a folder of such a name
        needs an Entry. The rest is literal: `#`, `?` and `%` are characters of names.

        Raises InvalidRequest without a bucket or a name, and for another scheme; TypeError for what is no str.
        """
        bucket, rest = split_url(url)
        name, member = split_member(rest)
        return cls(bucket, name, member)


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object as the store knows it."""

    bucket: str
    name: str
    size_bytes: int
    version: str
    checksum: int
    """CRC-32C of the whole object."""
    modified_ns: int
    """Wall clock at commit, nanoseconds since the epoch. For people: nothing is ordered by it."""
    metadata: dict[str, str] = field(default_factory=dict)

    def entry(self, *, pinned: bool = False) -> Entry:
        """What fetches the whole object; `pinned`: in this version only."""
        return Entry(self.bucket, self.name, version=self.version if pinned else None)


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A member of an archive."""

    bucket: str
    shard: str
    """The archive's name."""
    name: str
    size_bytes: int
    checksum: int
    """CRC-32C of the member's bytes."""
    version: str
    """The archive's."""
    hidden: int = 0
    """The archive's: how many of its files cannot be asked for, because a later one has their name."""

    def entry(self) -> Entry:
        """What fetches it, in this version of the archive."""
        return Entry(self.bucket, self.shard, self.name, version=self.version)


EntryLike: TypeAlias = Entry | str | ObjectInfo | MemberInfo
"""An Entry, or `ais://bucket/name`, or `ais://bucket/shard.tar/member`; what is listed stands for what it is
about; where a call takes `bucket`, a name too."""


def to_entry(entry: EntryLike, bucket: str | None = None) -> Entry:
    """The Entry that is meant; an Entry is returned as it is. `bucket`: the one that mere names are of.

    Raises InvalidRequest, TypeError.
    """
    if isinstance(entry, Entry):
        return entry
    if isinstance(entry, (ObjectInfo, MemberInfo)):
        return entry.entry()
    if not isinstance(entry, str):
        raise TypeError(f"need an Entry or an ais:// URL, got {type(entry).__name__}")
    if bucket is not None and not entry.startswith(SCHEME):  # no name has the double slash of a URL
        return Entry(bucket, entry)
    if "://" not in entry:
        raise errors.InvalidRequest(
            f"{entry!r}: need an Entry, or a URL like ais://bucket/name; of a name also say the bucket, bucket=..."
        )
    return Entry.from_url(entry)


class Item:
    """One answer, in the place of its entry: number `index` of the batch.

    `data` is a read-only memoryview of bytes, shape (n,), valid for as long as it is kept; it keeps its whole frame
    (1 to 4 MiB) alive, so copy with `tobytes()` what outlives the batch. It is empty when `status` is not OK; `error`,
    a LoaderError and otherwise None, then says why.
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
        """What was asked for. Of a columnar batch it is made here: most consumers never look."""
        if isinstance(self._entry, str):
            self._entry = Entry(self._bucket or "", self._entry)
        return self._entry

    @property
    def ok(self) -> bool:
        """Whether it came with its data."""
        return self.error is None

    def tobytes(self) -> bytes:
        """A copy of the data, which keeps no frame alive."""
        return bytes(self.data)

    def open(self) -> io.BytesIO:
        """A copy of the data as a binary file, for what reads files: PIL, soundfile, numpy. Raises `error`, if any."""
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
    """The typed error of an entry that failed with this status."""
    cls = errors.BY_KIND.get(kind) if kind else None
    return (cls or _ERROR_OF_STATUS.get(status, errors.EntryFailed))(message)
