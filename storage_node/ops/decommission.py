"""Decommissioning: waits until a node has handed over its objects, and reports which nodes are not done."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.context.channels import Caller
from storage_node.ops.ask_nodes import NodeAnswer, ask_nodes, newest_map
from storage_node.ops.ray_head import ClusterError

_POLL_S = 0.5


def wait_until_out(
    map_: pb.ClusterMap,
    uuid: str,
    names: Mapping[str, str],
    caller: Caller,
    timeout_s: float,
    tell: Callable[[str], None],
) -> None:
    """Args:

      map_: a map that contains the node.
      uuid: the node's uuid.
      names: names of nodes for messages, by their uuids.
      caller: identity for the calls to the nodes.

    Raises ClusterError if the node is still in the map after `timeout_s`.
    """
    tell(f"{names.get(uuid, uuid)} hands over its objects")
    deadline = time.monotonic() + timeout_s
    reported = ""
    while True:
        answers = ask_nodes((member.endpoint for member in map_.node), caller)
        known = newest_map(answers.values())
        if known is not None and all(member.uuid.hex() != uuid for member in known.node):
            return
        waiting = "; ".join(not_done(known or map_, names, answers))
        if time.monotonic() > deadline:
            raise ClusterError(
                f"not all objects are handed over within {timeout_s:g} s{f': {waiting}' if waiting else ''}. The node "
                "goes on handing over; run this again to wait on, or with --lost to take it out as it is"
            )
        if waiting and waiting != reported:
            tell(f"waiting: {waiting}")
            reported = waiting
        time.sleep(_POLL_S)


def not_done(map_: pb.ClusterMap, names: Mapping[str, str], answers: Mapping[str, NodeAnswer]) -> Sequence[str]:
    """Return the nodes that delay a change of the map, with the reasons."""
    found = []
    for member in map_.node:
        name, answer = names.get(member.uuid.hex(), member.endpoint), answers.get(member.endpoint)
        if answer is None or answer.described is None:
            found.append(f"{name} does not answer, and may have what others lack")
        elif missing := [drive.path or drive.uuid for drive in answer.described.drive if drive.state != "ok"]:
            found.append(f"{name} lacks {', '.join(missing)}")
        elif answer.progress is not None and answer.progress.clean_version < map_.version:
            found.append(f"{name} compares its objects with the others'")
    return found
