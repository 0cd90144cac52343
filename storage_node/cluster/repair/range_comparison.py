"""Comparison of ranges between nodes: reads the ranges of this node that have changed, and asks other nodes which of
theirs differ. `range_table` says what ranges are, and decides.

Tables are in memory: a node that starts reads its entries once, in order. Each commit notes its ranges before it is
written, and its names while ranges are read. So an entry that changes while its range is read leaves that outdated.

Belongs to the node's event loop, but for what commits note.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from array import array
from bisect import bisect_left
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import xxhash

from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2 as wire
from storage_node.cluster.repair.peers import RepairPeers
from storage_node.cluster.repair.range_table import (
    EVERYTHING,
    HEAD_BYTES,
    RANGE_NAMES,
    Chosen,
    Entries,
    RangeTable,
    Span,
    placement_of,
    ranges_of,
    spans,
)
from storage_node.context.errors import ReplicaLost
from storage_node.context.membership import Membership
from storage_node.context.node import Node
from storage_node.store import format as fmt
from storage_node.store.drive.drive import Drive

READ_AT_ONCE = 1 << 15
"""About how many entries are read before other reads may go first."""
_PART = 1 << 10  # entries that are read before other threads may go first
MOST_BYTES = 8 << 20
"""Approximate limit of a request, below that of messages between nodes."""
_DIGEST_BYTES = 12
"""Size of one range in a request, beside its name."""
OLD_AT_ONCE = 64
"""Most ranges that a pass compares in full because they were read long ago."""
_Left: TypeAlias = list[tuple[pb.MapBucket, list[Span] | None]]
"""Buckets, and their ranges that are still to be read; None before they were looked at."""


class RangeComparison:
    def __init__(self, node: Node, membership: Membership, peers: RepairPeers) -> None:
        self._node = node
        self._store = node.store
        self._membership = membership
        self._peers = peers
        self._reading = asyncio.Lock()
        self._lock = threading.Lock()
        self._tables: dict[bytes, RangeTable] = {}  # guarded by _lock, as is what is outdated, and the next one
        self._changed: list[bytes] | None = None
        """Keys that have changed since ranges began to be read; None while none is."""
        self._drives: list[weakref.ref[Drive]] = []
        """The drives whose entries are in the tables. A drive that is given up is closed with its last user."""

    # -- this node's ranges

    def _note(self, keys: Collection[bytes]) -> None:
        """Note a change of these keys. Thread-safe."""
        with self._lock:
            if self._changed is not None:
                self._changed.extend(keys)
            for key in keys:
                if (table := self._tables.get(key[1 : fmt.NAME_AT])) is not None:
                    table.outdated.add(table.start_of(key[fmt.NAME_AT :]))

    async def tables(self, view: ClusterView, buckets: Collection[pb.MapBucket]) -> dict[bytes, RangeTable]:
        """Return the ranges of buckets, by uuid; what has changed before this call is in them. Raises LoaderError."""
        async with self._reading:
            left: _Left | None = None
            while left != []:
                left = await self._node.read(self._read_some, view, buckets, left)
            return {bucket.uuid: self._tables[bucket.uuid] for bucket in buckets}

    def _read_some(self, view: ClusterView, buckets: Iterable[pb.MapBucket], left: _Left | None) -> _Left:
        """Read outdated ranges, as many as may be read at once; return those that are left. None: look at all."""
        drives = self._store.drive_set.live()
        with self._lock:
            if drives != [drive() for drive in self._drives]:
                self._tables, self._drives, left = {}, list(map(weakref.ref, drives)), None
            self._changed = []
        left = [(bucket, None) for bucket in buckets] if left is None else left
        try:
            for drive in drives:
                drive.watch_changes(self._note)  # also notes what is being written
            entries = 0
            while left and entries < READ_AT_ONCE:
                bucket, found = left.pop()
                found = self._outdated(view, bucket) if found is None else found
                while found and entries < READ_AT_ONCE:
                    entries += RANGE_NAMES + self._read_span(view, bucket, drives, found)
                if found:
                    left.append((bucket, found))
        finally:
            with self._lock:
                changed, self._changed = self._changed, None
            self._note(changed)
        return left

    def _outdated(self, view: ClusterView, bucket: pb.MapBucket) -> list[Span]:
        """Return the ranges of a bucket that have changed since they were read; all of them under a new placement."""
        with self._lock:
            table = self._tables.get(bucket.uuid)
            if table is None or table.placement != placement_of(view, bucket):
                table = self._tables[bucket.uuid] = RangeTable.empty(view, bucket, [b""])
                table.outdated.add(b"")
            return spans(table.starts, sorted(bisect_left(table.starts, start) for start in table.outdated))

    def _read_span(self, view: ClusterView, bucket: pb.MapBucket, drives: Sequence[Drive], left: list[Span]) -> int:
        """Read the last of these spans, or its beginning, and remove that; return how many entries it had."""
        start, stop = left.pop()
        read_to, parts = stop, list[Entries]()
        for drive in drives:
            parts.append(_entries(drive, bucket.uuid, (start, read_to), None if parts else READ_AT_ONCE))
            read_to = parts[-1].read_to
        local = view.position[self._membership.node_uuid]
        read = ranges_of(view, bucket, local, (start, stop), parts, int(time.time()))
        with self._lock:
            table = self._tables[bucket.uuid]
            table.outdated.difference_update(table.starts[table.rows((start, stop))])
            self._tables[bucket.uuid] = table.with_ranges((start, stop), read)
            if read_to != stop:  # it ends a range, and the next one has not been read
                table.outdated.add(read_to)
                left.append((read_to, stop))
        return sum(len(part.keys) for part in parts)

    # -- other nodes' ranges

    async def answer(self, request: wire.CompareRequest) -> wire.CompareResponse:
        """Compare what another node has with what is here. Raises InvalidRequest, LoaderError."""
        view, response = self._membership.view, wire.CompareResponse(map_version=self._membership.lease.version)
        at = view.position.get(request.node_uuid) if view is not None else None
        if view is None or at is None or self._membership.position is None:
            return response
        damaged = self._store.damaged.by_bucket()
        for asked in request.bucket:
            bucket = view.bucket_with_uuid(asked.bucket_uuid)
            if bucket is None or placement_of(view, bucket) != asked.placement:
                continue
            table = (await self.tables(view, [bucket]))[bucket.uuid]
            found = table.differing(at, list(asked.start), list(asked.digest), with_strays=request.with_strays)
            if bucket.uuid in damaged:  # such a copy is as good as none, which its entry does not tell
                found = [EVERYTHING]
            response.bucket.add(uuid=bucket.uuid, start=[one for one, _ in found], stop=[one for _, one in found])
        return response

    async def differing(
        self, view: ClusterView, node: int, tables: Mapping[bytes, RangeTable], *, with_strays: bool = False
    ) -> dict[bytes, list[Span]]:
        """Return the ranges, by bucket uuid, in which a node's entries differ from these, and with `with_strays` those
        in which it has names that this node owns and it does not. A bucket is missing if the node does not have it, or
        acts under another map. Raises ReplicaLost."""
        request = wire.CompareRequest(node_uuid=self._membership.node_uuid, with_strays=with_strays)
        size_bytes = sum(table.starts_bytes + _DIGEST_BYTES * len(table.starts) for table in tables.values())
        step = 1 + size_bytes // MOST_BYTES  # of so many ranges, several are one
        for uuid, table in tables.items():
            if with_strays or table.digests(node).any():
                starts = table.starts[::step]
                digests = np.add.reduceat(table.digests(node), np.arange(0, len(table.starts), step)).tolist()
                request.bucket.add(bucket_uuid=uuid, placement=table.placement, start=starts, digest=digests)
        if not request.bucket:
            return {}
        response = await self._peers.compare(view.nodes[node].peer_endpoint, request)
        return {
            one.uuid: list(zip(one.start, one.stop, strict=True))
            for one in response.bucket
            if response.map_version == view.version
            and {b"", *tables[one.uuid].starts}.issuperset((*one.start, *one.stop))
        }

    async def to_compare(
        self, view: ClusterView
    ) -> AsyncGenerator[tuple[pb.MapBucket, RangeTable, list[Chosen]], None]:
        """Iterate over the buckets, with what a repair pass has to compare name by name. After that, ranges that were
        compared because of their age are read anew. Raises LoaderError."""
        local, config = view.position[self._membership.node_uuid], self._node.config
        tables = await self.tables(view, view.buckets.values())
        async with self._reading:
            with self._lock:
                self._tables = {uuid: table for uuid, table in self._tables.items() if uuid in tables}
        others = [node for node in range(len(view.nodes)) if node != local]
        answers = await asyncio.gather(*(self.differing(view, node, tables) for node in others), return_exceptions=True)
        now_s = time.time()
        read_s = int(now_s - config.store.scrub_interval_s) if config.store.scrub_interval_s else 0
        for bucket in view.buckets.values():
            table, differing = tables[bucket.uuid], dict[int, Sequence[Span] | None]()
            for node, answer in zip(others, answers, strict=True):
                if not isinstance(answer, dict | ReplicaLost):
                    raise answer
                differing[node] = answer.get(bucket.uuid) if isinstance(answer, dict) else None
            if bucket.HasField("remote"):  # its copies may differ, and be evicted
                differing = {node: [EVERYTHING] for node in range(len(view.nodes))}
            found = table.to_compare(
                differing,
                ripe_ns=int((now_s - config.cluster.tombstone_grace_s) * 1e9),
                read_s=read_s,
                most_old=OLD_AT_ONCE,
            )
            yield bucket, table, found
            first = fmt.object_key(bucket.uuid, "")
            self._note([first + one.span[0] + b"\0" for one in found if table.is_old(one.span, read_s)])


def _entries(drive: Drive, bucket_uuid: bytes, span: Span, most: int | None) -> Entries:
    """Read the entries of a span; once there are as many as `most`, only up to the end of a range."""
    keys, hashes, heads, part = list[bytes](), array("Q"), list[bytes](), None
    while part is None or len(part) == _PART:
        after = keys[-1].removeprefix(bucket_uuid) if keys else span[0]
        part = drive.entries_between(bucket_uuid, after, span[1], _PART)
        keys += [key[1:] for key, _ in part]
        hashes.extend(map(xxhash.xxh3_64_intdigest, keys[len(hashes) :]))
        heads += [value[:HEAD_BYTES] for _, value in part]
        if most is not None and len(keys) >= most:
            ends = (at for at in range(len(keys), len(keys) - len(part), -1) if not hashes[at - 1] % RANGE_NAMES)
            if stop := next(ends, 0):
                del keys[stop:], hashes[stop:], heads[stop:]
                return Entries(keys, np.array(hashes), heads, keys[-1].removeprefix(bucket_uuid))
    return Entries(keys, np.array(hashes), heads, span[1])
