"""Writer of fragments: codes a group window by window, and sends each fragment to the node that owns its name.

A fragment is committed like a copy that repair sends: under a new version, on that node and no other. A group's bytes
are read as they are needed, so that a large object is never in memory. Belongs to the node's event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from ais_loader.wire.checksum import crc32c
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.coding.codec import codec_of
from storage_node.cluster.coding.group import Manifest
from storage_node.cluster.coding.plan import FragmentPlace, is_lost
from storage_node.cluster.repair.peers import RepairPeers
from storage_node.cluster.repair.transfers import OutgoingObject, Throttle, all_of
from storage_node.cluster.replication.replicas import LocalReplicaStream, RemoteReplicaStream
from storage_node.context.membership import Membership
from storage_node.context.node import Node

WINDOW_BYTES = 1 << 20
"""Bytes of each fragment that are in memory."""
ReadFragment: TypeAlias = Callable[[int, int, int], Awaitable[bytes]]
"""Returns a range of a fragment, given its index, the range's offset and its length; less where the objects end."""


class FragmentWriter:
    def __init__(self, node: Node, membership: Membership, peers: RepairPeers) -> None:
        self._node = node
        self._membership = membership
        self._peers = peers
        self._throttle = Throttle(node.config.cluster.coding_bytes_per_s)

    async def write(
        self,
        view: ClusterView,
        companion: pb.MapBucket,
        manifest: Manifest,
        places: Mapping[int, FragmentPlace],
        read: ReadFragment,
        *,
        is_coded: bool = False,
    ) -> None:
        """Write these fragments of a group, by index. Raises ReplicaLost, LoaderError, and what `read` raises; what was
        written before is removed by its holder, as long as no manifest has it.

        `is_coded`: each fragment is read. Otherwise all of them are written, and the parity is computed.
        """
        position = view.position[self._membership.node_uuid]
        outgoing: dict[int, OutgoingObject] = {}
        try:
            for index, (name, node) in places.items():
                endpoint, channels = view.nodes[node].peer_endpoint, self._peers.channels
                stream = LocalReplicaStream(self._node) if node == position else RemoteReplicaStream(endpoint, channels)
                outgoing[index] = OutgoingObject(stream, companion, name)
            await self._send(manifest, outgoing, read, is_coded=is_coded)
            version = await self._node.read(self._node.store.replicas.next_version, view.nodes[position].number, ())
            await all_of(*(one.commit(version, time.time_ns()) for one in outgoing.values()))
        finally:
            for one in outgoing.values():
                await one.stream.close()

    async def _send(
        self, manifest: Manifest, outgoing: Mapping[int, OutgoingObject], read: ReadFragment, *, is_coded: bool
    ) -> None:
        fragment_bytes = manifest.fragment_bytes
        codec = codec_of(manifest.data, manifest.parity)
        indexes = sorted(outgoing) if is_coded else range(manifest.data)
        buffers = [bytearray(min(WINDOW_BYTES, fragment_bytes)) for _ in range(manifest.parity)]
        checksums = dict.fromkeys(outgoing, 0)
        await all_of(*(one.begin() for one in outgoing.values()))
        for at in range(0, fragment_bytes, WINDOW_BYTES):
            size_bytes = min(WINDOW_BYTES, fragment_bytes - at)
            await self._throttle.spend(len(indexes) * size_bytes)
            parts = await asyncio.gather(*(read(index, at, size_bytes) for index in indexes))
            windows = {index: part.ljust(size_bytes, b"\0") for index, part in zip(indexes, parts, strict=True)}
            if not is_coded:
                parity = [memoryview(buffer)[:size_bytes] for buffer in buffers]
                await self._node.read(codec.encode, list(windows.values()), parity)
                windows |= {manifest.data + number: bytes(one) for number, one in enumerate(parity)}
            steps = []
            for index, one in outgoing.items():
                checksums[index] = crc32c(windows[index], checksums[index])
                steps.append(one.send(windows[index]))
            await all_of(*steps)
        await all_of(*(one.end(fragment_bytes, checksums[index]) for index, one in outgoing.items()))

    async def lasting(self, view: ClusterView, bucket: pb.MapBucket, names: Mapping[int, Sequence[str]]) -> set[str]:
        """Return those of these names, by node, that the nodes have on their disks; of a name that is asked of several
        nodes, all of them."""
        answers, _ = await self._peers.newest(view, bucket, names, make_lasting=True)
        missing = {name for node, wanted in names.items() for name in wanted if is_lost(name, answers.get(node, {}))}
        return {name for wanted in names.values() for name in wanted} - missing
