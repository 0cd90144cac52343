"""Remote tier of one node: the rooms that read and write the objects of remote buckets.

All reads and writes of remote buckets share the flights, the validations and the order of writes that one object of
this class has. Belongs to one event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.cluster.replication.put_groups import PutGroup
from storage_node.context.node import Node
from storage_node.remote.arriving.object_intake import StoreObject
from storage_node.remote.bucket_writes import BucketWrites
from storage_node.remote.copies.eviction_order import NeededAt
from storage_node.remote.descriptions import Descriptions
from storage_node.remote.fetching.fetches import Fetches
from storage_node.remote.fetching.loads import Loads
from storage_node.remote.remote_reads import RemoteReads
from storage_node.remote.remote_writes import RemoteWrites
from storage_node.remote.tier_context import TierContext, TierHost
from storage_node.settings.declarations import RemoteSettings
from storage_node.store.drive.preconditions import Condition


class RemoteTier(TierContext):
    def __init__(self, host: TierHost, settings: RemoteSettings, needed_at: NeededAt) -> None:
        super().__init__(host, settings, needed_at)
        self.loads = Loads(self)
        self.fetches = Fetches(self, self.loads)
        self.reads = RemoteReads(self, self.fetches)
        self.descriptions = Descriptions(self)
        self.writes = RemoteWrites(self, self.loads)
        self.bucket_writes = BucketWrites(self, self.writes)

    async def close(self) -> None:
        """Cancel what is in progress, and close the remote locations."""
        for room in (self.write_back, self.space, self.reads, self.fetches, self.loads, self.backends):
            await room.close()


def node_tier(
    node: Node,
    writes: WriteCoordinator,
    store_object: StoreObject,
    put_group: PutGroup[pb.ObjectInfo],
    delete_object: Callable[[str, str, Condition | None, bytes], Awaitable[None]],
    done_earlier: Callable[[pb.PutHeader], Awaitable[pb.ObjectInfo | None]],
    needed_at: NeededAt,
) -> RemoteTier:
    """Make the tier of a node. `store_object`, `put_group`: store fetched objects here, or on their owners."""
    settings = node.config.remote
    host = TierHost(
        node.store,
        node.membership,
        writes.channels,
        node.read,
        store_object,
        put_group,
        delete_object,
        done_earlier,
        file_roots=tuple(map(Path, settings.file_roots)),
    )
    return RemoteTier(host, settings, needed_at)
