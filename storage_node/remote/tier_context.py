"""Context of a remote tier: what the process gives to it, and what its rooms share.

Belongs to one event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.cluster.replication.put_groups import PutGroup
from storage_node.context.channels import Channels
from storage_node.context.membership import Membership
from storage_node.context.remote_buckets import RemoteBuckets
from storage_node.remote.arriving.arrivals import Arrivals, Read
from storage_node.remote.arriving.object_intake import StoreObject
from storage_node.remote.copies.cache_space import CacheSpace
from storage_node.remote.copies.eviction_order import NeededAt
from storage_node.remote.copies.stored_copies import StoredCopies
from storage_node.remote.fetching.fetch_owner import FetchOwner
from storage_node.remote.inventory.inventories import Inventories
from storage_node.remote.location.backends import Backends
from storage_node.remote.write_back.upload_owners import UploadOwners
from storage_node.remote.write_back.write_back import WriteBack
from storage_node.settings.declarations import RemoteSettings
from storage_node.store.drive.preconditions import Condition
from storage_node.store.store import Store


@dataclass(frozen=True, slots=True)
class TierHost:
    """The process of a tier: a node, or an embedded store."""

    store: Store
    membership: Membership
    """Without a map in an embedded store."""
    channels: Channels
    read: Read
    """Runs a function that may wait for a drive, off the event loop."""
    store_object: StoreObject
    """Stores a fetched object."""
    put_group: PutGroup[pb.ObjectInfo]
    """Stores small fetched objects together."""
    delete_object: Callable[[str, str, Condition | None, bytes], Awaitable[None]]
    """Deletes an object, here and on its owners. The last argument is the metadata of a tombstone to be uploaded."""
    done_earlier: Callable[[pb.PutHeader], Awaitable[pb.ObjectInfo | None]]
    """Returns what an earlier attempt of a write has stored; None if the write must proceed."""
    file_roots: tuple[Path, ...] | None
    """See `Backend`."""


class TierContext:
    def __init__(self, host: TierHost, settings: RemoteSettings, needed_at: NeededAt) -> None:
        """`needed_at`: when loaders need an object, as they have announced; see `EvictionOrder`."""
        store, read = host.store, host.read
        self.host, self.settings = host, settings
        self.buckets = RemoteBuckets(store, host.membership)
        self.owner = FetchOwner(host.membership, host.channels, settings.fetch_timeout_s)
        self.backends = Backends(settings, file_roots=host.file_roots)
        self.copies = StoredCopies(store, read, self.owner.copy_here)
        self.space = CacheSpace(
            store, buckets=self.buckets, read=read, min_free_bytes=settings.min_free_bytes, needed_at=needed_at
        )
        self.inventories = Inventories(store, read=read, store_object=host.store_object, backends=self.backends)
        self.write_back = WriteBack(
            store,
            buckets=self.buckets,
            backends=self.backends,
            read=read,
            settings=settings,
            owners=UploadOwners(host.membership, host.channels),
            note_changes=self.inventories.note_changes,
        )
        self.arrivals = Arrivals(store, read)
