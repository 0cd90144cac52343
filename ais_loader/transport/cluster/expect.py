"""Expect in a cluster: each node is told what a loader will read of the objects that the node fetches."""

from __future__ import annotations

from ais_loader import errors
from ais_loader.transport.cluster.failover import QUICK_TIMEOUT_S, Members
from ais_loader.wire.generated import ais_remote_pb2 as pb


def expect(members: Members, request: pb.ExpectRequest) -> bool:
    """See `Transport.expect`. A node that does not answer is left out the next time; its objects go to the next holder.

    Raises the first refusal of a node, after all nodes were asked.
    """
    is_complete, refusal = True, None
    for node, part in _parts(members, request).items():
        try:
            if members.calls(node).expect(part, timeout_s=QUICK_TIMEOUT_S).incomplete:
                is_complete = False
        except (errors.NodeUnavailable, errors.SilenceTimeout):
            if members.only is not None:
                raise
            members.suspect(node)
            members.refresh()
            is_complete = False
        except errors.LoaderError as error:
            refusal = refusal or error
    if refusal is not None:
        raise refusal
    return is_complete


def _parts(members: Members, request: pb.ExpectRequest) -> dict[bytes, pb.ExpectRequest]:
    """Divide a request among the nodes. All get the same steps, some of which are empty."""
    nodes = members.anybody()
    if len(nodes) == 1:
        return {nodes[0]: request}
    parts: dict[bytes, pb.ExpectRequest] = {}
    for node in nodes:
        if not members.is_suspect(node):
            part = parts[node] = pb.ExpectRequest()
            part.CopyFrom(request)
            del part.step[:]
            part.step.extend(pb.ExpectedStep() for _ in request.step)
    for index, bucket in enumerate(request.bucket):
        places = [
            (at, name)
            for at, step in enumerate(request.step)
            for position, name in enumerate(step.name)
            if index == (step.bucket_index[position] if step.bucket_index else 0)
        ]
        holders = members.holders(bucket, [name for _, name in places])
        for (at, name), found in zip(places, holders, strict=True):
            node = members.by_trust(found)[0] if found else b""
            if node in parts:
                parts[node].step[at].name.append(name)
                parts[node].step[at].bucket_index.append(index)
    return parts
