"""Remote tier of one node: the rooms that read and write the objects of remote buckets.

All reads and writes of remote buckets share the flights, the validations and the order of writes that one object of
this class has. Belongs to one event loop.
"""

from __future__ import annotations

from storage_node.remote.bucket_writes import BucketWrites
from storage_node.remote.copies.eviction_order import NeededAt
from storage_node.remote.descriptions import Descriptions
from storage_node.remote.fetching.fetches import Fetches
from storage_node.remote.fetching.loads import Loads
from storage_node.remote.remote_reads import RemoteReads
from storage_node.remote.remote_writes import RemoteWrites
from storage_node.remote.tier_context import TierContext, TierHost
from storage_node.settings.declarations import RemoteSettings


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
