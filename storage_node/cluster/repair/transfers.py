"""Outgoing transfers of repair: sends objects with bytes, metadata and version, and tombstones, to another node.

The receiver checks length and checksum before it commits, and ignores what is not newer. Belongs to the node's event
loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ais_loader.errors import LoaderError, ObjectNotFound
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2 as wire
from ais_loader.wire.generated.ais_replica_pb2_grpc import ReplicaStub
from storage_node.cluster.repair.plan import batches
from storage_node.cluster.replication.replica import to_wire
from storage_node.cluster.replication.replicas import RemoteReplicaStream, ReplicaStream
from storage_node.context.channels import STEP_TIMEOUT_S, Channels
from storage_node.context.errors import refused
from storage_node.context.node import Node
from storage_node.store.format import CatalogEntry, Version, encode_entry
from storage_node.store.read.object_reader import StoredObjectReader, open_object

SMALL_BYTES = 256 << 10
"""Larger objects are streamed, each as a write of its own."""
GROUP_BYTES, GROUP_NAMES = 4 << 20, 256
_TOMBSTONES_AT_ONCE = 16
SYNC_TIMEOUT_S = 60.0
T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(slots=True)
class RepairMetrics:
    """Counters since the node started; plain numbers that any thread may read."""

    objects_pushed: int = 0
    bytes_pushed: int = 0
    tombstones_pushed: int = 0
    failed_pushes: int = 0
    names_fetched: int = 0
    """Names that this node lacked or had in an older version, and requested from another node."""
    bytes_fetched: int = 0
    copies_dropped: int = 0
    """Replicas removed because they belong to other nodes, which have them."""
    tombstones_forgotten: int = 0
    passes: int = 0
    names_seen: int = 0
    """Names seen by the current pass."""
    names_before: int = 0
    """Names seen by the previous pass."""
    clean_version: int = 0
    """The newest map under which a pass found nothing to do."""
    short_writes: int = 0
    """Objects that writes of this node left with fewer replicas than their bucket requires."""
    silent: tuple[str, ...] = ()
    """Nodes that did not answer when this node compared its replicas before it began to serve."""


class Throttle:
    """Limits the bytes per second of all senders together."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at_s = 0.0

    async def spend(self, size_bytes: int) -> None:
        now = time.monotonic()
        begin_s = max(now, self._free_at_s)
        self._free_at_s = begin_s + size_bytes / self._bytes_per_s
        if begin_s > now:
            await asyncio.sleep(begin_s - now)


class Transfers:
    def __init__(self, node: Node, channels: Channels, counts: RepairMetrics) -> None:
        self._node = node
        self._channels = channels
        self._counts = counts
        self._throttle = Throttle(node.config.cluster.repair_bytes_per_s)
        self._slots = asyncio.Semaphore(node.config.cluster.repair_transfers)
        self._sending: Counter[tuple[bytes, str]] = Counter()
        self._removing: set[tuple[bytes, str]] = set()

    def reserve_removal(self, bucket: cluster_pb.MapBucket, names: Collection[str]) -> set[str]:
        """Return the names that are not being sent to another node. They may be removed here, and are not sent until
        `end_removal`.

        An old replica that arrives after its source has removed it could outlast the tombstone above it: a query of all
        nodes would not see it.
        """
        free = {name for name in names if (bucket.uuid, name) not in self._sending}
        self._removing.update((bucket.uuid, name) for name in free)
        return free

    def end_removal(self, bucket: cluster_pb.MapBucket, names: Collection[str]) -> None:
        """Allow names returned by `reserve_removal` to be sent again."""
        self._removing.difference_update((bucket.uuid, name) for name in names)

    async def push(self, endpoint: str, bucket: cluster_pb.MapBucket, names: Sequence[str]) -> int:
        """Send these names to a node; return how many it has now.

        Raises ReplicaLost, LoaderError.

        Raises if the node or this node's bucket is gone. A single name that fails is counted and left for later.
        """
        async with self._slots:
            names = [name for name in names if (bucket.uuid, name) not in self._removing]
            self._sending.update((bucket.uuid, name) for name in names)
            try:
                return await self._push(endpoint, bucket, names)
            finally:
                self._sending -= Counter((bucket.uuid, name) for name in names)

    async def _push(self, endpoint: str, bucket: cluster_pb.MapBucket, names: Sequence[str]) -> int:
        wall_ms = self._node.store.clock.wall_ms()  # before: entries that come late may be of a group that is gone
        found = await self._node.read(self._records, bucket.name, bucket.uuid, list(names))
        tombstones = [(name, entry) for name, entry in found if entry.is_tombstone]
        coded = [(name, encode_entry(entry)) for name, entry in found if entry.is_coded]
        objects = [(name, entry) for name, entry in found if not entry.is_tombstone and not entry.is_coded]
        small = [name for name, entry in objects if entry.size_bytes <= SMALL_BYTES]
        large = [name for name, entry in objects if entry.size_bytes > SMALL_BYTES]
        sizes = [entry.size_bytes for _, entry in objects if entry.size_bytes <= SMALL_BYTES]
        done = 0
        for at in range(0, len(tombstones), _TOMBSTONES_AT_ONCE):
            part = tombstones[at : at + _TOMBSTONES_AT_ONCE]
            await all_of(*(self._push_tombstone(endpoint, bucket, name, entry) for name, entry in part))
            done += len(part)
            self._counts.tombstones_pushed += len(part)
        for entries in chunks(coded, GROUP_NAMES):
            request = recode_request(bucket, entries, wall_ms)
            answer = await self._channels.ask(endpoint, ReplicaStub, "Recode", request, SYNC_TIMEOUT_S)
            done += len(answer.done)
            self._counts.objects_pushed += len(answer.done)
        for group in batches(small, sizes, most_names=GROUP_NAMES, most_bytes=GROUP_BYTES):
            done += await self._push_group(endpoint, bucket, [small[at] for at in group])
        for name in large:
            done += await self._push_large(endpoint, bucket, name)
        return done

    def _records(self, bucket: str, bucket_uuid: bytes, names: Sequence[str]) -> list[tuple[str, CatalogEntry]]:
        entries = zip(names, self._node.store.replicas.newest(bucket, names), strict=True)
        wanted = self._node.store.replicas.stale.wanted
        return [
            (name, entry)
            for name, entry in entries
            # An outdated version is not sent: it may reach a node that was not told of the newer one.
            if entry is not None and ((newer := wanted(bucket_uuid, name)) is None or newer <= entry.version)
        ]

    async def _push_tombstone(
        self, endpoint: str, bucket: cluster_pb.MapBucket, name: str, entry: CatalogEntry
    ) -> None:
        request = wire.BuryRequest(
            bucket=bucket_ref(bucket),
            name=name,
            version=to_wire(entry.version),
            is_copy=True,
            writes=entry.writes,
            metadata=entry.raw_metadata,
        )
        await self._channels.ask(endpoint, ReplicaStub, "Bury", request, STEP_TIMEOUT_S)

    # -- small objects

    async def _push_group(self, endpoint: str, bucket: cluster_pb.MapBucket, names: Sequence[str]) -> int:
        objects, entries = await self._node.read(self._read_small, bucket.name, names)
        if not objects:
            return 0
        await self._throttle.spend(sum(len(small.data) for small in objects))
        group = wire.WriteGroup(object=objects)
        group.bucket_uuid[bucket.name] = bucket.uuid
        copy = RemoteReplicaStream(endpoint, self._channels)
        try:
            staged = (await copy.begin(wire.WriteRequest(group=group))).staged
            return await self._commit(copy, staged, entries)
        finally:
            await copy.close()

    def _read_small(self, bucket: str, names: Sequence[str]) -> tuple[list[pb.SmallObject], list[CatalogEntry]]:
        objects: list[pb.SmallObject] = []
        entries: list[CatalogEntry] = []
        for name in names:
            try:
                with contextlib.closing(open_object(self._node.store, bucket, name)) as reader:
                    data = b"".join(reader)
                    entry = reader.record
            except LoaderError as error:
                self._failed(name, error)
                continue
            objects.append(
                pb.SmallObject(bucket=bucket, name=name, data=data, metadata=entry.metadata, checksum=entry.checksum)
            )
            entries.append(entry)
        return objects, entries

    async def _commit(self, copy: ReplicaStream, staged: wire.Staged, entries: Sequence[CatalogEntry]) -> int:
        """Commit what was staged, under the versions that it has here; return how many objects the node has now."""
        commit = wire.WriteCommit(
            object=[
                wire.CommitObject(version=to_wire(entry.version), modified_ns=entry.modified_ns, writes=entry.writes)
                for entry in entries
            ],
            is_copy=True,
        )
        for one in staged.object:
            if one.HasField("error"):
                self._failed("an object", refused("the other node", one.error))
        committed = (await copy.ask(wire.WriteRequest(commit=commit), STEP_TIMEOUT_S)).committed
        done = [entry for one, entry in zip(committed.object, entries, strict=True) if not one.HasField("error")]
        self._counts.objects_pushed += len(done)
        self._counts.bytes_pushed += sum(entry.size_bytes for entry in done)
        return len(done)

    # -- large objects

    async def _push_large(self, endpoint: str, bucket: cluster_pb.MapBucket, name: str) -> int:
        read = self._node.read
        try:
            reader: StoredObjectReader = await read(open_object, self._node.store, bucket.name, name)
        except LoaderError as error:
            self._failed(name, error)
            return 0
        entry = reader.record
        copy = OutgoingObject(RemoteReplicaStream(endpoint, self._channels), bucket, name, entry.metadata)
        try:
            await copy.begin()
            while chunk := await read(next, reader, b""):
                await self._throttle.spend(len(chunk))
                await copy.send(chunk)
            return await self._commit(copy.stream, await copy.end(entry.size_bytes, entry.checksum), [entry])
        except LoaderError as error:
            self._failed(name, error)
            return 0
        finally:
            reader.close()
            await copy.stream.close()

    def _failed(self, name: str, error: Exception) -> None:
        if isinstance(error, ObjectNotFound):
            return  # deleted in the meantime
        self._counts.failed_pushes += 1
        log.warning("%s cannot be copied to another node for now: %s", name, error)


def recode_request(
    bucket: cluster_pb.MapBucket, coded: Sequence[tuple[str, bytes]], wall_ms: int, *, only_files: bool = False
) -> wire.RecodeRequest:
    names, entries = zip(*coded, strict=True)
    return wire.RecodeRequest(
        only_files=only_files, bucket=bucket_ref(bucket), name=names, entry=entries, wall_ms=wall_ms
    )


def bucket_ref(bucket: cluster_pb.MapBucket) -> wire.BucketRef:
    return wire.BucketRef(name=bucket.name, uuid=bucket.uuid)


class OutgoingObject:
    """An object that is sent to one node as a replica, in chunks. Every step raises ReplicaLost, LoaderError."""

    def __init__(
        self, stream: ReplicaStream, bucket: cluster_pb.MapBucket, name: str, metadata: dict[str, str] | None = None
    ) -> None:
        self.stream = stream
        self._header = wire.WriteHeader(
            object=pb.PutHeader(bucket=bucket.name, name=name, metadata=metadata), bucket_uuid=bucket.uuid
        )

    async def begin(self) -> None:
        reply = await self.stream.begin(wire.WriteRequest(header=self._header))
        if reply.HasField("staged"):
            raise refused("the other node", reply.staged.object[0].error)

    async def send(self, data: bytes) -> None:
        await self.stream.send(wire.WriteRequest(data=data), STEP_TIMEOUT_S)

    async def end(self, size_bytes: int, checksum: int) -> wire.Staged:
        """Finish the bytes; the caller commits what is staged."""
        end = pb.PutEnd(size_bytes=size_bytes, checksum=checksum)
        return (await self.stream.ask(wire.WriteRequest(end=end), STEP_TIMEOUT_S)).staged

    async def commit(self, version: Version, modified_ns: int) -> None:
        one = wire.CommitObject(version=to_wire(version), modified_ns=modified_ns)
        request = wire.WriteRequest(commit=wire.WriteCommit(object=[one], is_copy=True))
        result = (await self.stream.ask(request, STEP_TIMEOUT_S)).committed.object[0]
        if result.HasField("error"):
            raise refused("the other node", result.error)


async def all_of(*steps: Awaitable[object]) -> None:
    """Wait for all steps, even if one fails; then raise the first error."""
    for result in await asyncio.gather(*steps, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]
