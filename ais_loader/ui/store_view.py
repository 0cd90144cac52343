"""Content of the page: properties of a store as JSON values. Read-only; calls block until the store answers."""

from __future__ import annotations

import itertools
import time
from dataclasses import asdict, dataclass
from typing import Any

from ais_loader.errors import ArchiveError, MemberNotFound
from ais_loader.objects.bucket import one_level
from ais_loader.objects.client import Client
from ais_loader.ui.preview import TEXT_BYTES, kind_of, table_of, text_of
from ais_loader.values.entry import ObjectInfo

MAX_OBJECTS = 500
"""Limit for the objects of a folder, and for the members of an archive. A longer prefix finds the others."""


SUM_REUSE = 100
"""Counting a bucket therefore takes at most 1 % of the time, and the sums of a small one are fresh."""


@dataclass(frozen=True, slots=True)
class StoredItem:
    """A readable item: an object, or a member of one, in one version."""

    bucket: str
    name: str
    member: str | None
    version: str
    size_bytes: int
    info: ObjectInfo | None = None
    """The object, unless a member of it was found."""

    @property
    def shown_name(self) -> str:
        return self.name if self.member is None else self.member


def buckets(client: Client) -> dict[str, Any]:
    return {"buckets": [{"name": one.name, "copies": one.copies} for one in client.buckets()]}


class BucketSums:
    """Sums of buckets, each valid for SUM_REUSE times as long as counting took: views cost almost no scans."""

    def __init__(self) -> None:
        self._counted: dict[str, tuple[float, dict[str, Any]]] = {}

    def of(self, client: Client, bucket: str) -> dict[str, Any]:
        """Return the number of objects in a bucket and their size, for the list of buckets."""
        began_s = time.monotonic()
        valid_until_s, sums = self._counted.get(bucket, (began_s, {}))
        if began_s >= valid_until_s:
            summary = client.bucket(bucket).summary("", depth=0)
            sums = {"objects": summary.objects, "size_bytes": summary.size_bytes, "complete": summary.complete}
            took_s = time.monotonic() - began_s
            self._counted[bucket] = began_s + (1 + SUM_REUSE) * took_s, sums
        return sums


def folder(client: Client, bucket: str, prefix: str) -> dict[str, Any]:
    """Return one level: the folders below `prefix` with their sums, and the first objects outside of them."""
    summary = client.bucket(bucket).summary(prefix, depth=1)
    above = prefix[: prefix.rfind("/") + 1]
    folders = {name: one for name, one in summary.by_prefix.items() if name not in ("", above)}
    own = summary.objects - sum(one.objects for one in folders.values())
    found: list[ObjectInfo] = []
    if own > 0:
        infos = (one for one in one_level(client.bucket(bucket), prefix) if isinstance(one, ObjectInfo))
        found = list(itertools.islice(infos, MAX_OBJECTS))
    return {
        "bucket": bucket,
        "prefix": prefix,
        "objects": summary.objects,
        "size_bytes": summary.size_bytes,
        "complete": summary.complete,
        "folders": [
            {"name": name, "objects": one.objects, "size_bytes": one.size_bytes} for name, one in folders.items()
        ],
        "own": own,
        "listed": [_object(info) for info in found],
    }


def _object(info: ObjectInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "size_bytes": info.size_bytes,
        "modified_s": info.modified_ns / 1e9,
        "kind": kind_of(info.name),
    }


def content(client: Client, bucket: str, name: str, member: str | None) -> StoredItem:
    """Find an object or a member. Raises ObjectNotFound, MemberNotFound, BucketNotFound."""
    if member is None:
        info = client.bucket(bucket).head(name)
        return StoredItem(bucket, name, None, info.version, info.size_bytes, info)
    for one in client.bucket(bucket).members(name, member):
        if one.name == member:
            return StoredItem(bucket, name, member, one.version, one.size_bytes)
    raise MemberNotFound(f"{bucket}/{name} has no member {member!r}")


def read(client: Client, item: StoredItem, start: int, length: int) -> bytes:
    """Read bytes of the version that was found. Raises ObjectNotFound if it was replaced meanwhile."""
    if length == 0:
        return b""
    return client.bucket(item.bucket).get(
        item.name, member=item.member, version=item.version, start=start, length=length
    )


def described(client: Client, bucket: str, name: str, member: str | None) -> dict[str, Any]:
    """Describe an object or a member, with a preview if its kind can be shown as text."""
    item = content(client, bucket, name, member)
    kind = kind_of(item.shown_name)
    answer: dict[str, Any] = {
        "bucket": bucket,
        "name": name,
        "member": member,
        "version": item.version,
        "size_bytes": item.size_bytes,
        "kind": kind,
    }
    if (info := item.info) is not None:
        answer |= {
            "modified_s": info.modified_ns / 1e9,
            "checksum": f"{info.checksum:08x}" if info.is_stored else "",
            "metadata": dict(info.metadata),
        }
        if kind == "archive":
            answer |= members(client, bucket, name)
    if kind in ("text", "table"):
        head = read(client, item, 0, min(item.size_bytes, TEXT_BYTES))
        whole = item.size_bytes <= TEXT_BYTES
        table = table_of(item.shown_name, head, whole=whole) if kind == "table" else None
        answer |= {"text": text_of(head), "more": not whole} if table is None else {"table": asdict(table)}
    return answer


def members(client: Client, bucket: str, name: str) -> dict[str, Any]:
    """Return the first members of an archive. If it is not one, return the problem: the object is still shown."""
    try:
        found = list(itertools.islice(client.bucket(bucket).members(name), MAX_OBJECTS + 1))
    except ArchiveError as error:
        return {"problem": str(error)}
    listed = [
        {"name": one.name, "size_bytes": one.size_bytes, "kind": kind_of(one.name)} for one in found[:MAX_OBJECTS]
    ]
    return {"members": listed, "more_members": len(found) > MAX_OBJECTS}


def activity(client: Client) -> dict[str, Any]:
    """Return nodes and drives, and each node's counters since its start."""
    found = client.describe()
    nodes = found.get("nodes")
    listed: list[Any] = nodes if isinstance(nodes, list) else [found]
    return {
        "url": client.url,
        "at_s": time.monotonic(),
        "embedded": "mode" in found,
        "map_version": found.get("map_version"),
        "nodes": [_node(one) for one in listed],
    }


def _node(found: dict[str, Any]) -> dict[str, Any]:
    names = ("host", "version", "error", "batches", "entries", "entry_bytes", "active_batches", "open_sessions")
    return {
        "name": found.get("endpoint") or found.get("url"),
        **{name: found[name] for name in names if name in found},
        "drives": found.get("drives", []),
    }
