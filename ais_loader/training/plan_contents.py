"""Contents of a plan: the sizes of all that it reads, and which of it is cold, as the store describes them."""

from __future__ import annotations

import os
from collections.abc import Iterable
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


class PlanPart(NamedTuple):
    """One request of an entry: an object or a member, or a range of it. `length` -1: to its end."""

    bucket: str
    name: str
    member: str
    start: int
    length: int

    @classmethod
    def all_of(cls, entry: Entry) -> list[PlanPart]:
        """Return the parts of an entry. A transform reads the whole of what it names."""
        ranges = ((0, None),) if entry.etl is not None else entry.ranges or ((entry.start, entry.length),)
        place = entry.bucket, entry.name, entry.member or ""
        return [cls(*place, start, -1 if length is None else length) for start, length in ranges]

    def entry(self) -> Entry:
        return Entry(self.bucket, self.name, self.member or None, self.start, None if self.length < 0 else self.length)


class PlanContents:
    """
    Attributes:
        remotes: The buckets of which cold objects can be fetched.
        cold: Their objects, stored or not, by bucket and name.
        infos: All objects; None for those that do not exist.
    """

    def __init__(self, client: Client, large_bytes: int, parts: Iterable[PlanPart], *, is_ahead: bool) -> None:
        """`is_ahead`: archives are fetched as a whole, and it does not matter where their members are."""
        self._client, self._large, self._is_ahead = client, large_bytes, is_ahead
        self._members: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}
        self.remotes: dict[str, Remote] = {}
        self.cold: dict[tuple[str, str], ColdObject] = {}
        self.infos: dict[tuple[str, str], ObjectInfo | None] = {part[:2]: None for part in parts}
        for bucket in dict.fromkeys(bucket for bucket, _ in self.infos):
            wanted, of = [name for of, name in self.infos if of == bucket], client.bucket(bucket)
            remote = of.info().remote if "@" not in bucket and client._transport.can_expect(bucket) else None
            if remote is not None and remote.can_list and (remote.inventory or len(wanted) > _LISTED):
                prefix = os.path.commonprefix(wanted)  # noqa: RUF071 - names are no paths
                self.infos |= {at: info for info in of.objects(prefix) if (at := (bucket, info.name)) in self.infos}
            left = [name for name in wanted if self.infos[bucket, name] is None]
            self.infos |= {(bucket, name): info for name, info in zip(left, of.head_many(left), strict=True)}
            if remote is not None:
                self.remotes[bucket] = remote
                for name in wanted:
                    if (info := self.infos[bucket, name]) is not None:
                        validated = remote.validate_after_s == 0
                        self.cold[bucket, name] = ColdObject(info.size_bytes, info.is_stored, validated)

    def read(self, part: PlanPart) -> tuple[int | None, PartRead | None]:
        """Return the bytes of a part, None if they are not known; and the read of a remote object, if it is one."""
        info, cold, at = self.infos[part[:2]], self.cold.get(part[:2]), 0
        size_bytes = 0 if info is None else info.size_bytes
        if part.member and info is not None:
            is_plain = part.name.lower().endswith((".tar", ".zip"))
            if not info.is_stored and not (is_plain and not self._is_ahead and size_bytes > self._large):
                return None, None if cold is None else PartRead(cold, 0, 0 if is_plain else -1)
            at, size_bytes = self._members_of(info).get(part.member, (0, 0))
        length = max(0, size_bytes - part.start)
        length = length if part.length < 0 else min(length, part.length)
        if cold is None or part[2:] == ("", 0, -1):
            return length, None if cold is None else PartRead(cold)
        return length, PartRead(cold, at + part.start, at + part.start + length, bool(part.member))

    def _members_of(self, info: ObjectInfo) -> dict[str, tuple[int, int]]:
        """Return the place and size of each member: of a tar without long names; those of others are about there."""
        key, at = (info.bucket, info.name), _BLOCK_BYTES
        if key not in self._members:
            found = self._members[key] = {}
            for one in self._client.bucket(info.bucket).members(info.name):
                found[one.name] = at, one.size_bytes
                at += _BLOCK_BYTES + one.size_bytes + -one.size_bytes % _BLOCK_BYTES
                if (cold := self.cold.get(key)) is not None:  # the nodes know it by now, or have stored it
                    cold.requested_bytes = 0
                    cold.is_stored |= not one.version.startswith(ETAG_VERSION)
        return self._members[key]
