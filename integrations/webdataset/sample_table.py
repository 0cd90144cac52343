"""Sample table: the members of shards that form each sample, from the shards' indexes, in flat buffers.

WebDataset's own functions group the members, so that keys, fields and skipped members are the same as in an iteration
over the shards: members without an extension and metadata are skipped, adjacent members with the same key form a
sample, and a field that occurs twice in a sample is an error.

A million samples as Python objects take gigabytes, and every forked worker that reads one copies its memory page. Here,
a member takes its name and 20 bytes, and workers share the buffers without copies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ais_loader import Client, Entry, MemberInfo, ObjectInfo, errors
from ais_loader.extras import needs
from ais_loader.values.urls import split_url

from .whole_shards import require_whole

with needs("webdataset", "samples of shards"):
    from webdataset import shardlists, tariterators

_LISTED_TOGETHER = 8
_METADATA = re.compile(r"__[^/]*__($|/)")
"""Members that WebDataset skips, by the default of `tar_file_iterator`."""

Select = Callable[[str], bool]
Rename = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard. `version` is the one that was listed."""

    url: str
    bucket: str
    name: str
    version: str


class SampleTable:
    """An immutable table of n samples, by number. `SampleTable.listed` creates it."""

    def __init__(self, shards: Sequence[Shard], rename: Rename | None) -> None:
        self.shards = tuple(shards)
        self._rename = rename
        self._names = b""
        self._name_stops: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._sizes: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._member_stops: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        """End of each sample, in members."""
        self._shard_of: npt.NDArray[np.int32] = np.zeros(0, np.int32)

    @classmethod
    def listed(
        cls,
        client: Client,
        urls: Sequence[str],
        *,
        select: Select | None,
        rename: Rename | None,
        require_end: bool,
        timeout_s: float,
    ) -> SampleTable:
        """List the samples of these shards, in order. Reads only their indexes, a few at a time.

        Raises:
            InvalidRequest: A URL is not one of the store.
            ValueError: A sample has two members of the same field. The message names the shard.
            ObjectNotFound, BucketNotFound, ArchiveError, NodeUnavailable.
        """
        names: list[bytes] = []
        sizes: list[int] = []
        member_stops: list[int] = []
        shard_of: list[int] = []
        shards: list[Shard] = []
        targets = [split_url(url) for url in urls]

        def members_of(target: tuple[str, str]) -> tuple[ObjectInfo, list[MemberInfo]]:
            bucket = client.bucket(target[0])
            info = bucket.head(target[1])
            require_whole(client, info, timeout_s=timeout_s, require_end=require_end)
            return info, list(bucket.members(info.name, version=info.version))

        with ThreadPoolExecutor(_LISTED_TOGETHER, "ais-loader index") as pool:
            for url, (info, members) in zip(urls, pool.map(members_of, targets), strict=True):
                for sample in _grouped(url, members, select, rename):
                    for member in sample:
                        names.append(member.name.encode())
                        sizes.append(member.size_bytes)
                    member_stops.append(len(names))
                    shard_of.append(len(shards))
                shards.append(Shard(url, info.bucket, info.name, info.version))
        table = cls(shards, rename)
        table._names = b"".join(names)
        table._name_stops = np.fromiter(map(len, names), np.int64, len(names)).cumsum()
        table._sizes = np.array(sizes, np.int64)
        table._member_stops = np.array(member_stops, np.int64)
        table._shard_of = np.array(shard_of, np.int32)
        return table

    def __len__(self) -> int:
        return len(self._member_stops)

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
        return self.shards[self._shard_of.item(sample)]

    def fields(self, members: Sequence[str]) -> tuple[str, list[str]]:
        """Return the key of a sample with these members, and the field name of each."""
        rename = self._rename
        parts = [tariterators.base_plus_ext(rename(member) if rename else member) for member in members]
        return parts[0][0], [field.lower() for _, field in parts]

    def keys(self) -> list[str]:
        return [self.fields(self.members(sample)[:1])[0] for sample in range(len(self))]

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return the size of each sample in bytes, over all members, shape (n,)."""
        sums = np.concatenate([np.zeros(1, np.int64), self._sizes.cumsum()])
        return np.diff(sums[self._member_stops], prepend=0)

    def field_sizes(self, field: str) -> npt.NDArray[np.int64]:
        """Return the size in bytes of each sample's member of this field, or -1 if it has none, shape (n,)."""
        found = np.full(len(self), -1, np.int64)
        for sample in range(len(self)):
            _, fields = self.fields(self.members(sample))
            if field in fields:
                found[sample] = self._sizes[self._members_of(sample)[0] + fields.index(field)]
        return found

    def _members_of(self, sample: int) -> tuple[int, int]:
        return (self._member_stops.item(sample - 1) if sample else 0), self._member_stops.item(sample)


def _grouped(
    url: str, members: Sequence[MemberInfo], select: Select | None, rename: Rename | None
) -> Iterator[list[MemberInfo]]:
    """Yield the members of each sample of a shard."""
    if members and members[0].hidden:
        raise errors.ArchiveError(
            f"{url}: {members[0].hidden} of its files have the name of a later one, and cannot be asked for by name; "
            "write the shard with each name once, or read it with WebDataset"
        )
    files = (
        {"fname": name, "data": member, "__url__": url}
        for member in members
        if (name := _kept(member.name, select, rename)) is not None
    )
    try:
        for sample in tariterators.group_by_keys(files):
            yield [member for member in sample.values() if isinstance(member, MemberInfo)]
    except ValueError as error:
        raise ValueError(f"{url}: {error.args[0]}") from error


def _kept(name: str, select: Select | None, rename: Rename | None) -> str | None:
    """Treat a member's name like WebDataset's `tar_file_iterator`. Returns None if it is skipped."""
    if _METADATA.match(name):
        return None
    name = rename(name) if rename is not None else name
    return name if select is None or select(name) else None


def expanded(urls: str | Iterable[str]) -> list[str]:
    """Expand URLs as WebDataset does: with braces, joined by `::`, or one by one. Raises InvalidRequest."""
    listed = shardlists.expand_urls(urls) if isinstance(urls, str) else list(urls)
    if not listed:
        raise errors.InvalidRequest("no shards: give at least one URL like ais://bucket/shard.tar")
    return listed
