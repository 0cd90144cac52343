"""Member index of one shard: a compact file beside the shard, memory-mapped if it is large.

An index is built by one pass over the shard (tar_index.py, zip_index.py) and saved once. When the shard changes,
another file replaces it. An index takes 40 bytes and the name for each member (49 in a zip), plus the restart points of
a compressed tar. Opening it reads the whole file once, to verify it. After that a look-up touches a few pages.
FORMAT.md has the measurements, and lists what can happen to a mapping.

Threads: an open index is immutable and may be used from any number of threads. Its file must not be modified while it
is open; `save` replaces files and never modifies them. A caller that keeps an index open checks `is_whole` before each
use.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from ais_loader.errors import ArchiveIndexError, ArchiveIndexStale, MemberNotFound
from ais_loader.name_matching import did_you_mean
from storage_node.store.archives.index_format import (
    HEADER_BYTES,
    IndexBody,
    IndexHead,
    ShardState,
    decode_body,
    decode_head,
    encode_body,
    encode_head,
)
from storage_node.store.archives.kinds import ArchiveKind
from storage_node.store.archives.member import STORED, Member, require_readable
from storage_node.store.archives.table import MemberColumns
from storage_node.store.checksum import crc32c
from storage_node.store.files import staged_file
from storage_node.store.files.growing_file import sync_folder
from storage_node.store.files.object_files import read_fully
from storage_node.store.format import Version
from storage_node.store.permissions import private

READ_BYTES = 1 << 20
"""Files up to this size, about 17,000 members, are read into memory instead of mapped: the kernel kills a process that
touches a mapping whose file has been truncated or whose medium fails. `IndexCache` bounds their memory."""
_PIECE_BYTES = 1 << 20
_FEW_NAMES = 16
_LISTED_AT_ONCE = 1 << 14
_UNBOUND = ShardState(Version(0, 0), 0, 0)


class FoundMembers(NamedTuple):
    """Results of `find_many`, one row for each requested name; zeros where `found` is false."""

    found: npt.NDArray[np.bool_]
    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    checksums: npt.NDArray[np.uint32]
    methods: npt.NDArray[np.uint8]
    """STORED if the bytes at `offsets` are the member's own. Only a zip has other methods; `find` gives the packed
    size."""


class MemberIndex:
    def __init__(self, head: IndexHead, data: memoryview) -> None:
        self._head = head
        self._data = data
        self._body: IndexBody = decode_body(head, data)
        # Python integers come out of a memoryview several times faster than out of an array.
        self._hashes = data[: 8 * head.members].cast("Q")

    @classmethod
    def of(cls, columns: MemberColumns, kind: ArchiveKind, content_bytes: int, plan: bytes = b"") -> MemberIndex:
        """Build an index in memory that is not yet bound to a shard. `plan` locates the content of a compressed tar."""
        data = encode_body(columns, kind, plan)
        head = IndexHead(
            kind,
            _UNBOUND,
            crc32c(data),
            len(columns.hashes),
            len(columns.names),
            content_bytes,
            columns.seed,
            columns.hidden,
            len(plan),
            len(data),
            kind is not ArchiveKind.ZIP and bool(columns.methods.any()),
        )
        return cls(head, memoryview(data))

    def with_plan(self, kind: ArchiveKind, plan: bytes) -> MemberIndex:
        """Return an index of the same members with another kind and plan, such as those of a compressed tar."""
        kept = len(self._data) - len(self._body.plan) - -len(self._body.plan) % 8
        data = bytes(self._data[:kept]) + plan + bytes(-len(plan) % 8)
        head = self._head._replace(kind=kind, body_checksum=crc32c(data), plan_bytes=len(plan), body_bytes=len(data))
        return MemberIndex(head, memoryview(data))

    def save(self, path: Path, shard: ShardState, *, sync: bool = False) -> None:
        """Write the index file for this state of the shard, or replace it. With `sync` it survives a loss of power.

        Raises OSError; the previous file is then still in place.
        """
        partial = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        try:
            with open(partial, "xb", opener=private) as file:
                staged_file.require_space(file.fileno(), self.file_bytes)
                file.write(encode_head(self._head._replace(shard=shard)))
                file.write(self._data)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise
        if sync:
            sync_folder(path.parent)

    @classmethod
    def open(cls, path: Path, shard: ShardState) -> MemberIndex:
        """Read or map the file, and verify it.

        Raises:
            FileNotFoundError: there is no such file.
            OSError: it cannot be read.
            ArchiveIndexStale: it belongs to another state of the shard.
            ArchiveIndexError: it is damaged, or of another format.
        """
        try:
            with path.open("rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                if size < HEADER_BYTES:
                    raise ArchiveIndexError(f"a member index cannot have {size} bytes")
                data = read_fully(file.fileno(), size) if size <= READ_BYTES else _mapped(file.fileno(), size)
            head = decode_head(data[:HEADER_BYTES])
            if head.shard != shard:
                raise ArchiveIndexStale(
                    f"{path}: the index is of version {head.shard.version}, the shard is {shard.version}"
                )
            return cls(head, memoryview(data)[HEADER_BYTES:])
        except ArchiveIndexError as error:
            raise ArchiveIndexError(f"{path}: {error}") from None

    @property
    def is_mapped(self) -> bool:
        """Whether the index is mapped from its file, and so holds a descriptor."""
        return isinstance(self._data.obj, mmap.mmap)

    @property
    def is_whole(self) -> bool:
        """Whether the index can be used; False after its mapped file was truncated."""
        mapped = self._data.obj
        if not isinstance(mapped, mmap.mmap):
            return True
        try:
            return mapped.size() >= self.file_bytes
        except OSError:
            return False

    @property
    def kind(self) -> ArchiveKind:
        return self._head.kind

    @property
    def content_bytes(self) -> int:
        """Size of the address space of members' offsets: the uncompressed tar, or the zip file."""
        return self._head.content_bytes

    @property
    def hidden(self) -> int:
        """Number of regular files that cannot be read because a later entry has the same name."""
        return self._head.hidden

    @property
    def plan(self) -> memoryview:
        return self._body.plan

    @property
    def file_bytes(self) -> int:
        """Size of the file that `save` writes."""
        return HEADER_BYTES + len(self._data)

    def __len__(self) -> int:
        return self._head.members

    def __iter__(self) -> Iterator[Member]:
        """Iterate over the members in the order of the archive."""
        return (member for _, member in self.listed())

    def listed(self, prefix: str = "", start: int = 0) -> Iterator[tuple[int, Member]]:
        """Iterate over members whose names begin with `prefix`, in the order of the archive, each with its position in
        that order. It begins at position `start`, so that a listing can continue after the end of a page."""
        wanted = prefix.encode("utf-8", "surrogatepass")
        for first in range(start, len(self), _LISTED_AT_ONCE):
            rows = self._body.listing[first : first + _LISTED_AT_ONCE]
            for at in np.flatnonzero(self._begin_with(rows, wanted)).tolist():
                yield first + at, self._member(rows.item(at))

    def _begin_with(self, rows: npt.NDArray[np.uint32], prefix: bytes) -> npt.NDArray[np.bool_]:
        """Return for each row whether its name begins with `prefix`."""
        body = self._body
        starts = body.name_at[rows].astype(np.int64)
        fits = body.name_at[rows.astype(np.int64) + 1].astype(np.int64) - starts >= len(prefix)
        octets = np.frombuffer(body.names, np.uint8)
        for at, octet in enumerate(prefix):  # byte by byte: few names are left after the first differing one
            left = np.flatnonzero(fits)
            fits[left] = octets[starts[left] + at] == octet
        return fits

    def names(self, prefix: str = "") -> Iterator[str]:
        return (member.name for _, member in self.listed(prefix))

    def find(self, name: str) -> Member:
        """Raises MemberNotFound, ArchiveUnsupported for a member that is only listed."""
        row = self._row(name.encode("utf-8", "surrogatepass"))
        if row < 0:
            raise MemberNotFound(f"has no member {name[:200]!r}{self._did_you_mean(name)}")
        return require_readable(self._member(row))

    def _did_you_mean(self, name: str) -> str:
        bare = name.removeprefix("./").lstrip("/")
        near = [one for one in (f"./{bare}", bare, f"/{bare}") if one in self]
        return did_you_mean(name, near, cutoff=0.0)

    def __contains__(self, name: str) -> bool:
        return self._row(name.encode("utf-8", "surrogatepass")) >= 0

    def find_many(self, names: Sequence[str]) -> FoundMembers:
        """Look up many names at once. Repeated names get a row each. Offsets in a zip are those of packed bytes."""
        n = len(names)
        rows = np.full(n, -1, np.int64)
        if n and len(self):
            encoded = [name.encode("utf-8", "surrogatepass") for name in names]
            seed, intdigest = self._head.seed, xxhash.xxh3_64_intdigest
            digests = np.fromiter((intdigest(name, seed) for name in encoded), np.uint64, n)
            at = np.searchsorted(self._body.hashes, digests)
            near = np.minimum(at, len(self) - 1)
            hit = self._body.hashes[near] == digests
            starts, ends = self._body.name_at[near].tolist(), self._body.name_at[near + 1].tolist()
            blob = self._body.names
            for i in np.flatnonzero(hit).tolist():
                if blob[starts[i] : ends[i]] == encoded[i]:
                    rows[i] = near[i]
                else:
                    rows[i] = self._row(encoded[i])  # hash collision
        found = rows >= 0
        if not len(self):
            nothing = np.zeros(n, np.int64)
            return FoundMembers(found, nothing, nothing, nothing.astype(np.uint32), nothing.astype(np.uint8))
        body = self._body
        return FoundMembers(
            found,
            np.where(found, body.offsets[rows].astype(np.int64), 0),
            np.where(found, body.sizes[rows].astype(np.int64), 0),
            np.where(found, body.checksums[rows], np.uint32(0)),
            np.where(found, body.methods[rows], np.uint8(STORED)),
        )

    def places(self, names: Sequence[str]) -> list[tuple[int, int, int] | None]:
        """Return offset, size and checksum of each stored member, or None.

        A batch over thousands of shards asks each of them for one or two names, for which arrays cost more than loops.
        """
        if len(names) > _FEW_NAMES:
            members = self.find_many(names)
            columns = members.offsets.tolist(), members.sizes.tolist(), members.checksums.tolist()
            rows = zip(*columns, strict=True)
            is_place = (members.found & (members.methods == STORED)).tolist()
            return [place if found else None for found, place in zip(is_place, rows, strict=True)]
        body, places = self._body, list[tuple[int, int, int] | None]()
        for name in names:
            row = self._row(name.encode("utf-8", "surrogatepass"))
            is_place = row >= 0 and body.methods.item(row) == STORED
            place = (body.offsets.item(row), body.sizes.item(row), body.checksums.item(row)) if is_place else None
            places.append(place)
        return places

    def _row(self, name: bytes) -> int:
        """Return the row of a name, or -1."""
        hashes, members = self._hashes, self._head.members
        digest = xxhash.xxh3_64_intdigest(name, self._head.seed)
        row = bisect_left(hashes, digest)
        while row < members and hashes[row] == digest:
            if self._name(row) == name:
                return row
            row += 1
        return -1

    def _name(self, row: int) -> bytes:
        start, end = self._body.name_at[row : row + 2].tolist()
        return bytes(self._body.names[start:end])

    @staticmethod
    def _text(name: bytes) -> str:
        try:
            return name.decode()
        except UnicodeDecodeError:
            raise ArchiveIndexError(f"matching checksums, but a name that is no text: {name[:200]!r}") from None

    def _member(self, row: int) -> Member:
        body = self._body
        return Member(
            self._text(self._name(row)),
            body.offsets.item(row),
            body.sizes.item(row),
            body.checksums.item(row),
            body.packed.item(row),
            body.methods.item(row),
        )


def _mapped(fd: int, size_bytes: int) -> mmap.mmap:
    """Map the file after reading all of it: an unreadable medium raises OSError here, but through a mapping it would
    kill the process."""
    at, piece = 0, bytearray(_PIECE_BYTES)
    while at < size_bytes and (count := os.preadv(fd, [piece], at)):
        at += count
    if at < size_bytes:
        raise ArchiveIndexError(f"a member index that has {at} of its {size_bytes} bytes")
    return mmap.mmap(fd, size_bytes, access=mmap.ACCESS_READ)
