"""Sample table: the members of shards that form each sample, from the shards' indexes, in flat buffers.

Members form samples as in WebDataset: a name divides into key and field at the first dot after the last slash. Members
without a field, metadata and what macOS adds (`__MACOSX/`, `.DS_Store`, `._a.jpg`) are skipped. Members of a shard with
the same key form a sample. They need not be adjacent, as in WebDataset, because the whole index is known. A field that
occurs twice in a sample is an error.

A million samples as Python objects take gigabytes, and every forked worker that reads one copies its memory page. Here,
a member takes its name and 16 bytes, and workers share the buffers without copies.

Source: webdataset 1.0.2, tariterators.py: `base_plus_ext`, `group_by_keys`, `tar_file_iterator`.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from ais_loader.errors import ArchiveError, InvalidRequest
from ais_loader.name_matching import Patterns, matcher, pattern_list
from ais_loader.objects.pinned import pinned_members
from ais_loader.transport.base import PAGE_SIZE, Transport
from ais_loader.values.entry import Entry, MemberInfo, ObjectInfo
from ais_loader.values.urls import ARCHIVE_EXTENSIONS

LISTED_TOGETHER = 8
_METADATA = re.compile(r"__[^/]*__($|/)|__MACOSX/")
"""Members that WebDataset skips by default, and those of zips that the Finder makes."""
_KEY_AND_FIELD = re.compile(r"^((?:.*/|)[^./]+)[.]([^/]*)$")

log = logging.getLogger(__name__)

Select = Callable[[str], bool]
Rename = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard. `version` is the one that was listed."""

    url: str
    bucket: str
    name: str
    version: str


class SampleTable(Sequence[dict[str, Entry]]):
    """Immutable sequence of n samples. Each is a dict from field, in lower case, to the member's entry, in the order of
    the shard and in the shard's version at the time of listing. `Bucket.samples` creates it."""

    def __init__(
        self,
        shards: Iterable[tuple[Shard, Sequence[MemberInfo]]],
        *,
        select: Select | None = None,
        rename: Rename | None = None,
    ) -> None:
        """
        Args:
            shards: Shards with all of their members, in order.
            select, rename: A function that says whether a member is used, by its name, and one that changes names for
                keys and fields. The renamed name is selected.

        Raises InvalidRequest for a field that occurs twice in a sample, ArchiveError for a shard with hidden members.
        """
        self._rename = rename
        found: list[Shard] = []
        names: list[bytes] = []
        lengths: list[npt.NDArray[np.int64]] = []
        sizes: list[npt.NDArray[np.int64]] = []
        counts: list[npt.NDArray[np.int64]] = []
        samples_of: list[int] = []
        for shard, members in shards:
            found.append(shard)
            grouped = _grouped(shard.url, members, select, rename)
            used = [member for sample in grouped for member in sample]
            encoded = [member.name.encode() for member in used]
            names.append(b"".join(encoded))
            lengths.append(np.fromiter(map(len, encoded), np.int64, len(encoded)))
            sizes.append(np.fromiter((member.size_bytes for member in used), np.int64, len(used)))
            counts.append(np.fromiter(map(len, grouped), np.int64, len(grouped)))
            samples_of.append(len(grouped))
        none = np.zeros(0, np.int64)
        self.shards = tuple(found)
        self._names = b"".join(names)
        self._name_stops = np.concatenate([none, *lengths]).cumsum()
        self._sizes = np.concatenate([none, *sizes])
        self._member_stops = np.concatenate([none, *counts]).cumsum()
        """End of each sample, in members."""
        self._shard_of = np.repeat(np.arange(len(found), dtype=np.int32), samples_of)

    def __repr__(self) -> str:
        return f"<SampleTable of {len(self):,} samples in {len(self.shards):,} shards>"

    def __len__(self) -> int:
        return len(self._member_stops)

    @overload
    def __getitem__(self, index: int) -> dict[str, Entry]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[dict[str, Entry]]: ...
    def __getitem__(self, index: Any) -> Any:
        indices = range(len(self))[index]
        if isinstance(indices, range):
            return [self[at] for at in indices]
        _, fields = self.fields(self.members(indices))
        return dict(zip(fields, self.entries(indices), strict=True))

    def members(self, sample: int) -> list[str]:
        """Return the names of a sample's members, in the order of the shard."""
        stops, names = self._name_stops, self._names
        return [
            names[stops.item(at - 1) if at else 0 : stops.item(at)].decode() for at in range(*self._members_of(sample))
        ]

    def entries(self, sample: int) -> list[Entry]:
        """Return the entries of a sample's members, in the version that was listed."""
        shard = self.shard(sample)
        return [Entry(shard.bucket, shard.name, member, version=shard.version) for member in self.members(sample)]

    def shard(self, sample: int) -> Shard:
        """Return the shard that has a sample."""
        return self.shards[self._shard_of.item(sample)]

    def fields(self, members: Sequence[str]) -> tuple[str, list[str]]:
        """Return the key of a sample with these members, and the field of each."""
        rename = self._rename
        parts = [_key_and_field(rename(member) if rename else member) for member in members]
        return parts[0][0], [field for _, field in parts]

    def keys(self) -> list[str]:
        """Return the key of each sample. Different shards may contain the same key."""
        return [self.fields(self.members(sample)[:1])[0] for sample in range(len(self))]

    def sizes_bytes(self, field: str | None = None) -> npt.NDArray[np.int64]:
        """Return the size of each sample over all its members, or of its member of this field (-1 if there is none),
        shape (n,). Upper and lower case of a field are the same. A field that no sample has logs a warning."""
        if field is None:
            sums = np.concatenate([np.zeros(1, np.int64), self._sizes.cumsum()])
            stops: npt.NDArray[np.int64] = sums[self._member_stops]
            stops[1:] -= stops[:-1].copy()
            return stops
        found = np.full(len(self), -1, np.int64)
        known: set[str] = set()
        for sample in range(len(self)):
            _, fields = self.fields(self.members(sample))
            if field.lower() in fields:
                found[sample] = self._sizes[self._members_of(sample)[0] + fields.index(field.lower())]
            known.update(fields)
        if len(self) and field.lower() not in known:
            log.warning("no sample has a field %r; the fields are %s", field, ", ".join(sorted(known)))
        return found

    def digest(self) -> str:
        """Return a digest of what the samples fetch, in their order, the same on every platform."""
        shards = [(shard.bucket, shard.name, shard.version) for shard in self.shards]
        digest = hashlib.blake2b(repr((len(self), shards)).encode("utf-8", "surrogatepass"), digest_size=16)
        for column in (self._name_stops, self._member_stops, self._shard_of.astype(np.int64)):
            digest.update(column.astype("<i8", copy=False).data)
        digest.update(self._names)
        return digest.hexdigest()

    def _members_of(self, sample: int) -> tuple[int, int]:
        return (self._member_stops.item(sample - 1) if sample else 0), self._member_stops.item(sample)


def bucket_samples(transport: Transport, bucket: str, prefix: str, pattern: Patterns | None) -> SampleTable:
    """See `Bucket.samples`."""
    fits = None if pattern is None else matcher(pattern_list("pattern", pattern))
    listed = [
        info
        for info in transport.objects(bucket, prefix=prefix)
        if info.name.lower().endswith(ARCHIVE_EXTENSIONS) and (fits is None or fits(info.name))
    ]

    def members_of(info: ObjectInfo) -> tuple[Shard, list[MemberInfo]]:
        shard = Shard(f"ais://{info.bucket}/{info.name}", info.bucket, info.name, info.version)
        return shard, list(pinned_members(transport, bucket, info.name, "", PAGE_SIZE, info.version))

    with ThreadPoolExecutor(LISTED_TOGETHER, "ais-loader index") as pool:
        return SampleTable(pool.map(members_of, listed))


def _grouped(
    url: str, members: Sequence[MemberInfo], select: Select | None, rename: Rename | None
) -> list[list[MemberInfo]]:
    """Return the members of each sample of a shard, in the order of their first members."""
    if members and members[0].hidden:
        raise ArchiveError(
            f"{url}: {members[0].hidden} of its files have the name of a later one, or are in a tar behind the first, "
            "and cannot be asked for by name; write each name once, and join tars with tar --concatenate, not cat"
        )
    samples: dict[str, dict[str, MemberInfo]] = {}
    for member in members:
        name = _kept(member.name, select, rename)
        own, field = ("", "") if name is None else _key_and_field(name)
        if not own:
            continue
        sample = samples.setdefault(own, {})
        if field in sample:
            raise InvalidRequest(f"{url}: {name}: duplicate file name: the sample {own!r} has {sorted(sample)}")
        sample[field] = member
    return [list(sample.values()) for sample in samples.values()]


def _kept(name: str, select: Select | None, rename: Rename | None) -> str | None:
    """Return the name of a member for its key and field. None if it is skipped."""
    if _METADATA.match(name):
        return None
    name = rename(name) if rename is not None else name
    return name if select is None or select(name) else None


def _key_and_field(name: str) -> tuple[str, str]:
    """Return the key and the field of a member, or two empty texts if it has none."""
    found = _KEY_AND_FIELD.match(name)
    return ("", "") if found is None else (found[1], found[2].lower())
