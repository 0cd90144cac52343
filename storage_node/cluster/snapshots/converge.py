"""Convergence of a snapshot: a node goes through what the snapshot sees here and sends owners what they lack.

Belongs to the node's event loop; every call has a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import closing

from ais_loader.errors import BucketNotFound, LoaderError, ObjectDenied, ObjectNotFound, SnapshotNotFound
from ais_loader.wire.cluster_map import ClusterView, by_key
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_snapshot_copies_pb2 as pb
from ais_loader.wire.generated import ais_snapshot_copies_pb2_grpc as rpc
from storage_node.cluster.repair.peers import state_of
from storage_node.cluster.repair.plan import Answer, State, owners_of
from storage_node.cluster.repair.transfers import Transfers, bucket_ref
from storage_node.cluster.replication.replica import to_wire
from storage_node.cluster.snapshots.plan import Unsettled, compare_seen, count_first, end_of
from storage_node.context.channels import STEP_TIMEOUT_S, Channels
from storage_node.context.errors import ReplicaLost
from storage_node.context.membership import Membership
from storage_node.context.node import Node
from storage_node.store.format import DENIAL_BIT, CatalogEntry
from storage_node.store.names import SNAPSHOT_MARK
from storage_node.store.read.object_reader import open_object
from storage_node.store.retained_replicas import NewerFirst, Seen, seen, seen_after

PAGE_NAMES = 5000
KEEP_TIMEOUT_S = 120.0
"""Time limit for one version of any size."""
_KEPT_AT_ONCE = 8
log = logging.getLogger(__name__)


class Convergence:
    def __init__(self, node: Node, membership: Membership, transfers: Transfers, channels: Channels) -> None:
        self._node = node
        self._store = node.store
        self._membership = membership
        self._transfers = transfers
        self._channels = channels
        self._slots = asyncio.Semaphore(_KEPT_AT_ONCE)

    async def page(self, bucket_uuid: bytes, cut: int, start_after: str) -> pb.SettleResponse:
        """Settle the names after this one. Raises BucketNotFound, LoaderError."""
        view, local = self._membership.view, self._membership.position
        bucket = view.bucket_with_uuid(bucket_uuid) if view is not None else None
        if view is None or local is None or bucket is None:
            raise BucketNotFound("the map has no such bucket")
        read = self._node.read
        if not start_after:
            await read(self._sync)
        rows = await read(seen_after, self._store, bucket_uuid, start_after, cut, PAGE_NAMES + 1)
        more, rows = len(rows) > PAGE_NAMES, rows[:PAGE_NAMES]
        names = [name for name, _ in rows]
        states = [_state(entry) for _, entry in rows]
        owners = (await read(owners_of, view, bucket, names)) if names else []
        answers, _ = await self.ask_owners(view, bucket, cut, names, owners)
        unsettled = await self._node.read(compare_seen, names, states, owners, local, answers)
        counted = count_first(states, owners, local)
        problem = await self.mend(view, bucket, cut, unsettled)
        return pb.SettleResponse(
            last=names[-1] if names else "",
            more=more,
            differing=unsettled.names,
            objects=counted.objects,
            size_bytes=counted.size_bytes,
            problem=problem,
        )

    def _sync(self) -> None:
        for drive in self._store.drives:
            if drive is not None:
                drive.sync()

    async def ask_owners(
        self,
        view: ClusterView,
        bucket: cluster_pb.MapBucket,
        cut: int,
        names: Sequence[str],
        owners: Sequence[Sequence[int]],
    ) -> tuple[dict[int, Answer], set[int]]:
        """Return what the cut sees on the other owners of these names, as far as they answer, and which of them
        answered under this map."""
        local = view.position[self._membership.node_uuid]
        owned = zip(names, owners, strict=True)
        requests = by_key((node, name) for name, nodes in owned for node in nodes if node != local)
        found = await asyncio.gather(
            *(self._ask(view.nodes[node].peer_endpoint, bucket, cut, wanted) for node, wanted in requests.items())
        )
        answers = {node: answer for node, (answer, _) in zip(requests, found, strict=True)}
        return answers, {node for node, (_, version) in zip(requests, found, strict=True) if version == view.version}

    async def _ask(
        self, endpoint: str, bucket: cluster_pb.MapBucket, cut: int, names: Sequence[str]
    ) -> tuple[Answer, int]:
        """Return what the cut sees on a node, and the version of that node's map; empty if it does not answer."""
        request = pb.SeenRequest(bucket=bucket_ref(bucket), cut=cut, name=names)
        found: pb.SeenResponse
        try:
            found = await self._channels.ask(endpoint, rpc.SnapshotCopiesStub, "Seen", request, STEP_TIMEOUT_S)
        except ReplicaLost as lost:
            log.info("what a snapshot sees at %s: %s", endpoint, lost)
            return {}, 0
        return {state.name: state_of(state) for state in found.object}, found.map_version

    # -- sending

    async def mend(self, view: ClusterView, bucket: cluster_pb.MapBucket, cut: int, unsettled: Unsettled) -> str:
        """Send owners what they lack; return the last error."""
        problems: list[str] = []

        async def push(node: int, names: Sequence[str]) -> None:
            endpoint = view.nodes[node].peer_endpoint
            try:
                mine = await self._node.read(seen, self._store, bucket.uuid, names, cut)
                found = {name: one for name, one in zip(names, mine, strict=True) if one is not None}
                if current := [name for name, one in found.items() if not one.ended]:
                    await self._transfers.push(endpoint, bucket, current)
                    theirs, _ = await self._ask(endpoint, bucket, cut, current)
                    for name in current:
                        state = theirs.get(name)
                        if state is not None and state.version >= found[name].record.version:
                            del found[name]
                await asyncio.gather(*(self._keep(endpoint, bucket, cut, name, one) for name, one in found.items()))
            except (ReplicaLost, LoaderError) as error:
                problems.append(f"{endpoint}: {error}")

        await asyncio.gather(*(push(node, names) for node, names in unsettled.push.items()))
        return problems[-1] if problems else ""

    async def _keep(self, endpoint: str, bucket: cluster_pb.MapBucket, cut: int, name: str, version: Seen) -> None:
        """Make the node retain one version. Raises ReplicaLost, LoaderError."""
        async with self._slots:
            try:
                messages = self._messages(bucket, cut, name, version)
                async with contextlib.aclosing(messages):
                    await self._channels.ask(endpoint, rpc.SnapshotCopiesStub, "Keep", messages, KEEP_TIMEOUT_S)
            except ObjectNotFound:
                return  # replaced in the meantime: the next round finds it
            except ReplicaLost as lost:
                if isinstance(lost.refusal, ObjectDenied):  # this node does not know of it yet, and is perhaps no owner
                    entry = version.record
                    denied = entry.version._replace(epoch=entry.epoch | DENIAL_BIT)
                    await self._node.read(self._store.delete, bucket.name, name, denied)
                elif isinstance(lost.refusal, NewerFirst):
                    await self._transfers.push(endpoint, bucket, [name])
                else:
                    raise

    async def _messages(
        self, bucket: cluster_pb.MapBucket, cut: int, name: str, version: Seen
    ) -> AsyncGenerator[pb.KeepRequest, None]:
        """Yield the messages that transfer one version. Raises LoaderError."""
        entry = version.record
        cuts = self._store.record.current.cuts.get(bucket.uuid, [])
        header = pb.KeepHeader(
            bucket=bucket_ref(bucket),
            name=name,
            version=to_wire(entry.version),
            is_tombstone=entry.is_tombstone,
            size_bytes=entry.size_bytes,
            checksum=entry.checksum,
            modified_ns=entry.modified_ns,
            metadata=entry.metadata,
            ended=end_of(version.ended, entry.counter, cuts),
            group=entry.group if entry.is_coded else b"",
            offset=entry.offset if entry.is_coded else 0,
        )
        if not entry.has_file:
            yield pb.KeepRequest(header=header)
            return
        read = self._node.read
        pinned = self._pinned(bucket, cut)
        with closing(await read(lambda: open_object(self._store, pinned, name, version=str(entry.version)))) as reader:
            yield pb.KeepRequest(header=header)
            while chunk := await read(next, reader, b""):
                yield pb.KeepRequest(data=chunk)

    def _pinned(self, bucket: cluster_pb.MapBucket, cut: int) -> str:
        for name, one in self._store.record.current.snapshots.get(bucket.uuid.hex(), {}).items():
            if one.cut == cut:
                return f"{bucket.name}{SNAPSHOT_MARK}{name}"
        raise SnapshotNotFound(f"no snapshot of bucket {bucket.name!r} has the cut {cut}")


def _state(entry: CatalogEntry) -> State:
    return State(entry.version, entry.is_tombstone, entry.size_bytes)
