"""Remote tier of a storage node: its parts, in a cluster and alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.cluster.replication.put_groups import PutGroup
from storage_node.context.node import Node
from storage_node.remote.ahead.plans import Plans
from storage_node.remote.arriving.object_intake import StoreObject
from storage_node.remote.tier import RemoteTier
from storage_node.remote.tier_context import TierHost
from storage_node.store.drive.preconditions import Condition


def node_tier(
    node: Node,
    writes: WriteCoordinator,
    store_object: StoreObject,
    put_group: PutGroup[pb.ObjectInfo],
    delete_object: Callable[[str, str, Condition | None, bytes], Awaitable[None]],
    done_earlier: Callable[[pb.PutHeader], Awaitable[pb.ObjectInfo | None]],
    plans: Plans,
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
    return RemoteTier(host, settings, plans.needed_at)
