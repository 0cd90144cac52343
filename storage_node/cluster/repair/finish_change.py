"""Completion of a map change: once all nodes have found nothing to move under it, whoever notices finishes it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from ais_loader.wire.backoff import Backoff
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_replica_pb2 as wire
from storage_node.cluster.consensus.change import change_map_async
from storage_node.cluster.consensus.errors import ChangeFailed
from storage_node.cluster.repair.peers import RepairPeers
from storage_node.cluster.repair.plan import finish_changes
from storage_node.context.errors import ReplicaLost
from storage_node.context.membership import Membership

RETRY = Backoff(0.5, 5.0)
"""Pause between the passes of a node that still has something to do."""
CHANGE_TIMEOUT_S = 10.0
log = logging.getLogger(__name__)


async def _progress_of_others(
    view: ClusterView, membership: Membership, peers: RepairPeers
) -> Sequence[wire.ProgressResponse]:
    """Return the progress of all other nodes; a node that does not answer counts as acting under no map."""

    async def ask(endpoint: str) -> wire.ProgressResponse:
        try:
            return await peers.progress(endpoint)
        except ReplicaLost:
            return wire.ProgressResponse()

    others = [node.peer_endpoint for node in view.nodes if node.uuid != membership.node_uuid]
    return await asyncio.gather(*map(ask, others))


async def all_act_by(view: ClusterView, membership: Membership, peers: RepairPeers) -> bool:
    """Return whether no node acts under an older map any more."""
    answers = await _progress_of_others(view, membership, peers)
    mine = membership.lease.version
    return mine == view.version and all(answer.map_version == view.version for answer in answers)


async def finish(view: ClusterView, membership: Membership, peers: RepairPeers) -> None:
    """Finish the change of the map if all nodes are clean under it."""
    answers = await _progress_of_others(view, membership, peers)
    if any(answer.clean_version != view.version or answer.map_version != view.version for answer in answers):
        return
    await asyncio.sleep(RETRY.pause_s())  # all nodes notice at the same time
    if membership.view is not view:
        return
    try:
        change = finish_changes(view.version)
        await change_map_async(view, change, timeout_s=CHANGE_TIMEOUT_S, caller=peers.channels.caller)
    except (ChangeFailed, ValueError) as error:
        log.info("the change of the map cannot be finished for now: %s", error)
