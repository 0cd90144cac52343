"""Changes of a cluster's map that concern transforms or jobs, proposed by this node."""

from __future__ import annotations

from ais_loader.errors import InvalidRequest, LoaderError
from ais_loader.wire.cluster_map import ClusterView
from storage_node.cluster.consensus.change import change_map_async
from storage_node.cluster.consensus.effects import Edit
from storage_node.context.node import Node

CHANGE_TIMEOUT_S = 20.0


async def change_cluster_map(node: Node, view: ClusterView, edit: Edit) -> None:
    """Change the map. When this returns, this node knows the new map.

    Raises ChangeFailed and what the edit raises; a ValueError of the edit is raised as InvalidRequest.
    """
    endpoints = [other.peer_endpoint for other in view.nodes]
    try:
        made = await change_map_async(endpoints, edit, timeout_s=CHANGE_TIMEOUT_S, caller=node.caller)
    except LoaderError:
        raise  # many of them are ValueErrors as well
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    await node.learn(made)
