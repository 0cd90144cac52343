"""The list of what to read: entries with their sizes and versions at the time of listing, and its shares."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from ais_loader import Client, Entry, ObjectInfo, errors
from ais_loader.objects.client import URL_VARIABLE
from ais_loader.values.entry import EntryLike, to_entry
from ais_loader.values.urls import SCHEME

from ..shared_store import StoreReference, named_url

_LISTED_TOGETHER = 8


class Listed(NamedTuple):
    entry: Entry
    """The entry with a version, unless there was no such object."""
    size_bytes: int
    """The size. 0 if it is not known: there is no such object, or it is a member, of which no length is given."""


def listed(client: Client, source: str | Iterable[EntryLike], *, members: bool) -> list[Listed]:
    """List everything to read, in order.

    Args:
        source: A prefix, `ais://bucket/prefix`, to read all of its objects in the order of their names; or a list of
            entries and URLs.
        members: Whether each object is an archive, of which the members are read, in its order.

    Raises InvalidRequest, TypeError, BucketNotFound; ObjectNotFound and ArchiveError for a shard.
    """
    if isinstance(source, str):
        bucket, prefix = _bucket_and_prefix(source)
        found = [_whole(info) for info in client.bucket(bucket).objects(prefix)]
    else:
        found = _pinned(client, [to_entry(entry) for entry in source])
    return _members(client, [one.entry for one in found]) if members else found


def url_of(entry: Entry) -> str:
    return f"{SCHEME}{entry.bucket}/{entry.name}" + ("" if entry.member is None else f"/{entry.member}")


def shares(found: Sequence[Listed], count: int, most_bytes: int, most_entries: int) -> Iterator[list[Listed]]:
    """Divide into about `count` contiguous shares of equal size, none above the limits unless it is a single entry."""
    total = sum(one.size_bytes for one in found)
    target_bytes = min(most_bytes, max(1, -(-total // max(1, count))))
    target_entries = min(most_entries, max(1, -(-len(found) // max(1, count)))) if not total else most_entries
    share: list[Listed] = []
    share_bytes = 0
    for one in found:
        if share and (share_bytes + one.size_bytes > target_bytes or len(share) >= target_entries):
            yield share
            share, share_bytes = [], 0
        share.append(one)
        share_bytes += one.size_bytes
    if share:
        yield share


def _bucket_and_prefix(url: str) -> tuple[str, str]:
    bucket, _, prefix = url.removeprefix(SCHEME).partition("/")
    if not url.startswith(SCHEME) or not bucket:
        raise errors.InvalidRequest(f"{url!r}: need a prefix like ais://bucket/folder/, or a list of entries")
    return bucket, prefix


def _whole(info: ObjectInfo) -> Listed:
    return Listed(Entry(info.bucket, info.name, version=info.version), info.size_bytes)


def _pinned(client: Client, entries: Sequence[Entry]) -> list[Listed]:
    """Add versions and sizes. An entry that already has a version keeps it."""
    names: dict[str, dict[str, ObjectInfo | None]] = {}
    for entry in entries:
        names.setdefault(entry.bucket, {})[entry.name] = None
    for bucket, wanted in names.items():
        wanted.update(zip(list(wanted), client.bucket(bucket).head_many(list(wanted)), strict=True))
    return [_pin(entry, names[entry.bucket][entry.name]) for entry in entries]


def _pin(entry: Entry, info: ObjectInfo | None) -> Listed:
    if info is None:
        return Listed(entry, 0)
    known_bytes = info.size_bytes - entry.start if entry.member is None else 0
    size_bytes = known_bytes if entry.length is None else entry.length
    return Listed(entry if entry.version else replace(entry, version=info.version), max(0, size_bytes))


def _members(client: Client, shards: Sequence[Entry]) -> list[Listed]:
    def of(shard: Entry) -> list[Listed]:
        if shard.member is not None:
            raise errors.InvalidRequest(
                f"{url_of(shard)} is a member of a shard: members=True needs the shards themselves"
            )
        bucket = client.bucket(shard.bucket)
        version = shard.version or bucket.head(shard.name).version  # raises an error that names what is missing
        return [Listed(member.entry(), member.size_bytes) for member in bucket.members(shard.name, version=version)]

    with ThreadPoolExecutor(_LISTED_TOGETHER, "ais-loader index") as pool:
        return [member for shard in pool.map(of, shards) for member in shard]


_kept: dict[str, StoreReference] = {}
"""Kept, because a process of Ray runs many tasks, and opening an embedded store costs more than many reads."""


def store_here(url: str) -> StoreReference:
    """Return this process's reference to the store."""
    return _kept.setdefault(url, StoreReference(url))


def portable_url(store: str | os.PathLike[str] | None) -> str:
    """Return the store's URL for a task that runs in another folder and environment. Raises InvalidRequest."""
    url = named_url(store)
    if url is None:
        raise errors.InvalidRequest(f"no store named: pass store=..., or set {URL_VARIABLE}")
    if "://" in url and not url.startswith("file://"):
        return url
    return ",".join(os.path.abspath(part.removeprefix("file://")) for part in url.split(","))
