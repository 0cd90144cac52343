"""Services of snapshots: Snapshots, for clients of a standalone node or of a cluster; SnapshotCopies, between nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from ais_loader.errors import DriveFailed, InvalidRequest, Unsupported
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_snapshot_copies_pb2 as copies_pb
from ais_loader.wire.generated import ais_snapshots_pb2 as pb
from storage_node.cluster.replication.commit import SnapshotBarrier
from storage_node.cluster.replication.replica import from_wire, require_bucket, to_state
from storage_node.cluster.snapshots.converge import PAGE_NAMES, Convergence
from storage_node.cluster.snapshots.coordinator import SnapshotCoordinator
from storage_node.context.node import Node
from storage_node.limits.call_slots import CallStream, Received
from storage_node.services.errors import Context
from storage_node.store.drive.version_clock import check_counter
from storage_node.store.format import CatalogEntry, coded_path, encode_metadata
from storage_node.store.listing import PAGE_BYTES, within
from storage_node.store.names import check_object_name
from storage_node.store.retained_replicas import KeptVersion, seen, seen_after
from storage_node.store.snapshots import CutCheck, Snapshot
from storage_node.store.store import Store
from storage_node.store.write import check_content


class SnapshotsService:
    def __init__(self, node: Node, cluster: SnapshotCoordinator) -> None:
        self._node = node
        self._store = node.store
        self._cluster = cluster

    async def CreateSnapshot(self, request: pb.CreateSnapshotRequest, context: Context) -> pb.Snapshot:
        if self._cluster.view is not None:
            return _message(await self._cluster.create(request.bucket, request.name))
        return _message(await self._node.read(self._store.snapshots.create, request.bucket, request.name))

    async def ListSnapshots(self, request: pb.ListSnapshotsRequest, context: Context) -> pb.ListSnapshotsResponse:
        if self._cluster.view is not None:
            return pb.ListSnapshotsResponse(snapshot=map(_message, await self._cluster.listed(request.bucket)))
        found = await self._node.read(self._store.snapshots.of, request.bucket)
        return pb.ListSnapshotsResponse(snapshot=map(_message, found))

    async def DeleteSnapshot(self, request: pb.DeleteSnapshotRequest, context: Context) -> pb.DeleteSnapshotResponse:
        if self._cluster.view is not None:
            await self._cluster.delete(request.bucket, request.name)
        else:
            await self._node.read(self._store.snapshots.delete, request.bucket, request.name)
        return pb.DeleteSnapshotResponse()


def _message(snapshot: Snapshot | cluster_pb.MapSnapshot) -> pb.Snapshot:
    return pb.Snapshot(
        name=snapshot.name, created_ns=snapshot.created_ns, objects=snapshot.objects, size_bytes=snapshot.size_bytes
    )


class SnapshotCopiesService:
    def __init__(
        self, node: Node, snapshot_barrier: SnapshotBarrier, convergence: Convergence, snapshots: SnapshotCoordinator
    ) -> None:
        self._node = node
        self._store = node.store
        self._commit_barrier = snapshot_barrier
        self._convergence = convergence
        self._snapshots = snapshots
        self._checks: dict[bytes, tuple[int, asyncio.Future[None]]] = {}
        """For each bucket: the last cut, and the check that everything present at it has a counter up to the cut."""

    async def Hold(self, request: copies_pb.HoldRequest, context: Context) -> copies_pb.HoldResponse:
        require_bucket(self._store, request.bucket.name, request.bucket.uuid)
        _require_all_drives(self._store)
        await self._commit_barrier.hold(request.bucket.uuid, request.attempt)
        return copies_pb.HoldResponse(clock=self._store.replicas.clock, wall_ms=self._store.clock.wall_ms())

    async def Armed(self, request: copies_pb.ArmedRequest, context: Context) -> copies_pb.ArmedResponse:
        uuid = request.bucket.uuid
        if request.cut not in self._store.record.current.cuts.get(uuid, []):
            return copies_pb.ArmedResponse(armed=False)
        check = await self._node.read(self._begin_check, uuid, request.cut)
        # Checked afterwards: then nothing has been committed in between.
        armed = self._commit_barrier.holds(uuid, request.attempt)
        if armed:
            running = asyncio.ensure_future(self._node.read(check.run, self._store.clock))
            # No call may retrieve the exception.
            running.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._checks[uuid] = request.cut, running
        else:
            await self._node.read(check.close)
        return copies_pb.ArmedResponse(armed=armed)

    def _begin_check(self, bucket_uuid: bytes, cut: int) -> CutCheck:
        return CutCheck([drive.catalog for drive in self._store.drives if drive is not None], bucket_uuid, cut)

    async def Release(self, request: copies_pb.ReleaseRequest, context: Context) -> copies_pb.ReleaseResponse:
        return copies_pb.ReleaseResponse(held=self._commit_barrier.release(request.bucket.uuid, request.attempt))

    async def Seen(self, request: copies_pb.SeenRequest, context: Context) -> copies_pb.SeenResponse:
        map_version = self._node.membership.lease.version  # recorded before the look-up
        answer = await self._node.read(_seen, self._store, request)
        answer.map_version = map_version
        return answer

    async def Settle(self, request: copies_pb.SettleRequest, context: Context) -> copies_pb.SettleResponse:
        cut, check = self._checks.get(request.bucket.uuid, (0, None))
        if check is not None and cut == request.cut:
            await asyncio.shield(check)
            self._checks.pop(request.bucket.uuid, None)
        return await self._convergence.page(request.bucket.uuid, request.cut, request.start_after)

    async def Keep(
        self, requests: AsyncIterator[Received[copies_pb.KeepRequest]], context: Context
    ) -> copies_pb.KeepResponse:
        """Retain a version. It uses a slot and the deadlines of other nodes' writes."""
        with self._node.replica_streams.open("") as stream:
            await self._keep(requests, stream)
        return copies_pb.KeepResponse()

    async def _keep(self, requests: AsyncIterator[Received[copies_pb.KeepRequest]], stream: CallStream) -> None:
        """Receive and commit a version. Raises LoaderError."""
        read = self._node.read
        kept: KeptVersion | None = None
        left_bytes = 0
        try:
            async with aclosing(stream.messages(requests)) as messages:
                async for request in messages:
                    if kept is None:
                        kept = await read(_begin, self._store, request.header)
                        left_bytes = request.header.size_bytes
                        continue
                    left_bytes -= len(request.data)
                    if left_bytes < 0:
                        raise InvalidRequest(f"a version of {kept.record.size_bytes:,} bytes goes on after them")
                    await read(kept.write, request.data)
            if kept is None:
                raise InvalidRequest("a version to retain without a header")
            await read(_commit, kept)
        finally:
            if kept is not None:
                await asyncio.shield(read(kept.abort))  # if it were cancelled before it runs, it would never run

    async def Making(self, request: copies_pb.MakingRequest, context: Context) -> copies_pb.MakingResponse:
        key = request.bucket_uuid, request.name, request.created_ns
        return copies_pb.MakingResponse(making=key in self._snapshots.making)


def _require_all_drives(store: Store) -> None:
    """Raise DriveFailed or Unsupported if a cut would be incomplete: it could not see what a missing drive has."""
    if any(drive is None for drive in store.drives):
        raise DriveFailed("a drive of the node is missing; a snapshot needs all of them")
    if store.pool.moving:
        raise Unsupported("objects are moving from drive to drive; make the snapshot when that is over")


def _seen(store: Store, request: copies_pb.SeenRequest) -> copies_pb.SeenResponse:
    require_bucket(store, request.bucket.name, request.bucket.uuid)
    if request.name:
        names = list(request.name)
        found = [one and one.record for one in seen(store, request.bucket.uuid, names, request.cut)]
        return copies_pb.SeenResponse(object=map(to_state, names, found))
    limit = min(request.limit or PAGE_NAMES, PAGE_NAMES)
    rows = seen_after(store, request.bucket.uuid, request.start_after, request.cut, limit + 1)
    limit = within(PAGE_BYTES, (name for name, _ in rows[:limit]))
    return copies_pb.SeenResponse(object=[to_state(*row) for row in rows[:limit]], more=len(rows) > limit)


def _begin(store: Store, header: copies_pb.KeepHeader) -> KeptVersion:
    require_bucket(store, header.bucket.name, header.bucket.uuid)
    check_object_name(header.name)
    version = from_wire(header.version)
    check_counter(header.ended, "end of a version")
    content = header.checksum, header.size_bytes
    refused = store.denied.content_error(header.bucket.uuid, header.name, *content)
    if refused is not None and not header.is_tombstone:
        raise refused
    if not version.counter < header.ended:
        raise InvalidRequest(f"{header.name!r}: version {version} cannot have ended with the number {header.ended}")
    entry = CatalogEntry(
        version.epoch,
        version.counter,
        version.node,
        header.size_bytes,
        header.checksum,
        header.modified_ns,
        header.offset,
        coded_path(header.group) if header.group else b"",
        encode_metadata(dict(header.metadata)) if header.group else b"",
    )
    drive = store.drive_set.at(store.drive_set.placement.owner(header.bucket.uuid, header.name))
    file = None if header.is_tombstone or header.group else drive.stage()
    return KeptVersion(drive, header.bucket.uuid, header.name, entry, header.ended, dict(header.metadata), file)


def _commit(kept: KeptVersion) -> None:
    if kept.file is not None:
        check_content(kept, kept.record.size_bytes, kept.record.checksum)
    kept.commit()
