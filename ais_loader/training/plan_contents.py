"""Contents of a plan: the sizes of all that it reads, and which of it is cold, as the store describes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ais_loader.objects.client import Client
from ais_loader.training.cold_reads import ColdObject, PartRead
from ais_loader.values.entry import Entry, ObjectInfo
from ais_loader.wire.remote import Remote
from ais_loader.wire.reserved import ETAG_VERSION

_LISTED = 100
"""Number of names of a remote bucket from which on they are listed, a thousand with each request."""
_BLOCK_BYTES = 512
"""Headers of a tar have as many bytes, and members are padded to a multiple."""


class Part(NamedTuple):
    """One request of an entry: an object, a member, or a range of one. `length` -1: to its end."""

    bucket: str
    name: str
    member: str
    start: int
    length: int


def parts_of_entry(entry: Entry) -> Iterator[Part]:
    """Yield the requests of an entry. A transform reads what the entry names as a whole."""
    for start, length in entry.ranges or ((entry.start, entry.length),) if entry.etl is None else ((0, None),):
        yield Part(entry.bucket, entry.name, entry.member or "", start, -1 if length is None else length)


def entry_of_part(part: Part) -> Entry:
    return Entry(part.bucket, part.name, part.member or None, part.start, None if part.length < 0 else part.length)


class PlanContents:
    """
    Attributes:
        cold: The objects of remote buckets, stored or not, by bucket and name.
        remotes: Their buckets.
        missing: The number of objects that do not exist.
    """

    def __init__(self, client: Client, large_bytes: int, parts: Iterable[Part], *, is_ahead: bool) -> None:
        """`is_ahead`: archives are fetched as a whole, so that it does not matter where their members are."""
        self._client, self._large, self._is_ahead = client, large_bytes, is_ahead
        names: dict[str, dict[str, None]] = {}
        for part in parts:
            names.setdefault(part.bucket, {})[part.name] = None
        self.remotes: dict[str, Remote] = {}
        self._infos: dict[tuple[str, str], ObjectInfo | None] = {}
        self._members: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}
        self.cold: dict[tuple[str, str], ColdObject] = {}
        for bucket, wanted in names.items():
            self._look_up(bucket, wanted)
        self.missing = sum(info is None for info in self._infos.values())

    def _look_up(self, bucket: str, wanted: dict[str, None]) -> None:
        of, found = self._client.bucket(bucket), dict[str, ObjectInfo | None]()
        remote = of.info().remote if "@" not in bucket and self._client._transport.can_expect(bucket) else None
        if remote is not None and remote.can_list and (remote.inventory or len(wanted) > _LISTED):
            first, last = min(wanted), max(wanted)
            same = next(
                (at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first)
            )
            listed = of.objects(first[:same])
            found = {info.name: info for info in listed if info.name in wanted}
        left = [name for name in wanted if name not in found]
        found |= zip(left, of.head_many(left), strict=True)
        self._infos |= {(bucket, name): info for name, info in found.items()}
        if remote is not None:
            self.remotes[bucket] = remote
            for name, info in found.items():
                if info is not None:
                    is_validated = remote.validate_after_s == 0
                    self.cold[bucket, name] = ColdObject(info.size_bytes, info.is_stored, is_validated)

    def read(self, part: Part) -> tuple[int | None, PartRead | None]:
        """Return the bytes of a part, None if they are not known; and the read of its remote object, if it has one."""
        info = self._infos[part[:2]]
        if info is None:
            return 0, None
        cold, at, size_bytes = self.cold.get(part[:2]), 0, info.size_bytes
        if part.member:
            is_plain = part.name.lower().endswith((".tar", ".zip"))
            if not info.is_stored and not (is_plain and not self._is_ahead and size_bytes > self._large):
                return None, None if cold is None else PartRead(cold, 0, 0 if is_plain else -1)
            at, size_bytes = self._members_of(info).get(part.member, (0, 0))
        stop = size_bytes if part.length < 0 else min(part.start + part.length, size_bytes)
        length, is_whole = max(0, stop - part.start), not part.member and not part.start and part.length < 0
        if cold is None or is_whole:
            return length, None if cold is None else PartRead(cold)
        return length, PartRead(cold, at + part.start, at + part.start + length, bool(part.member))

    def _members_of(self, info: ObjectInfo) -> dict[str, tuple[int, int]]:
        """Return the place and size of each member, of a tar without long names; those of others are about there."""
        key, at = (info.bucket, info.name), _BLOCK_BYTES
        if (found := self._members.get(key)) is None:
            found = self._members[key] = {}
            for one in self._client.bucket(info.bucket).members(info.name):
                found[one.name] = at, one.size_bytes
                at += _BLOCK_BYTES + one.size_bytes + -one.size_bytes % _BLOCK_BYTES
                if key in self.cold:  # the nodes know it by now, or have stored it
                    self.cold[key].is_known = True
                    self.cold[key].is_cached |= not one.version.startswith(ETAG_VERSION)
        return found
