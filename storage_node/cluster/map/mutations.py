"""Mutations of the map: one pure function for each change, to be passed to `change_map`.

Each returns an edit, a function of the committed map. An edit raises ValueError, with a remedy, if the change makes no
sense for that map. If the change was already made, it returns the map unchanged.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from ais_loader.errors import BucketHasSnapshots, BucketNotFound
from ais_loader.wire.bucket_settings import BucketSettings
from ais_loader.wire.bucket_uuid import draw_bucket_uuid
from ais_loader.wire.denied import with_contents
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.redundancy import COPIES, Redundancy, companion_name
from ais_loader.wire.remote import Remote
from storage_node.cluster.consensus.effects import Edit, changing, require_cluster
from storage_node.context.errors import TooFewCopies
from storage_node.store.names import check_bucket_name

REMOVED_KEPT = 4096
"""Number of uuids of removed nodes that a map remembers, at most 64 KiB. A node removed earlier still refuses to join
by the map that it has kept; see the proposer."""
_FIRST_NUMBERS = 1 << 16
"""Numbers below it belong to the nodes that formed the cluster, those above it to later ones."""


def create_cluster(nodes: Sequence[pb.MapNode]) -> Edit:
    """Create a cluster of these nodes, which need uuid, host and both endpoints. A weight of 0 becomes 1."""
    copies = [_copy(node) for node in nodes]

    def edit(map_: pb.ClusterMap | None) -> pb.ClusterMap:
        if not copies:
            raise ValueError("a cluster needs at least one node")
        if len(copies) >= _FIRST_NUMBERS:
            raise ValueError(f"{len(copies)} nodes: begin with fewer than {_FIRST_NUMBERS}, and add the others")
        if map_ is not None:
            if {node.uuid for node in map_.node} == {node.uuid for node in copies}:
                return map_
            raise ValueError(
                f"one of the nodes belongs to cluster {map_.cluster_uuid.hex()} already; add nodes to that one, or "
                "begin with empty drives"
            )
        map_ = pb.ClusterMap(cluster_uuid=uuid.uuid4().bytes)
        for number, node in enumerate(copies, 1):
            _add(map_, node, pb.MapNode.ACTIVE, number)
        return map_

    return edit


def add_node(node: pb.MapNode) -> Edit:
    """Add a node with uuid, host and both endpoints. It owns objects at once and has them after `finish_changes`."""
    copy = _copy(node)

    def edit(map_: pb.ClusterMap | None) -> pb.ClusterMap:
        map_ = require_cluster(map_)
        known = _find(map_, copy.uuid)
        if copy.uuid in map_.removed:
            raise ValueError(removed_message(copy.uuid))
        at = copy.endpoint, copy.peer_endpoint
        if known is not None and known.state != pb.MapNode.LEAVING and (known.endpoint, known.peer_endpoint) == at:
            return map_
        if known is not None:
            state = pb.MapNode.State.Name(known.state).lower()
            raise ValueError(
                f"node {copy.uuid.hex()} is {state} in the cluster, at {known.endpoint}; "
                + ("let it finish leaving first" if known.state == pb.MapNode.LEAVING else "set its endpoint instead")
            )
        # Map versions never repeat, so numbers derived from them do not either, even those of removed nodes.
        _add(map_, copy, pb.MapNode.JOINING, _FIRST_NUMBERS + map_.version)
        return map_

    return edit


@changing
def begin_leave(map_: pb.ClusterMap, node_uuid: bytes) -> None:
    """Make a node hand over its objects; from now on it owns none. A node that is still joining can leave too."""
    node = _require_node(map_, node_uuid)
    node.state = pb.MapNode.LEAVING
    _require_hosts(map_, f"node {node_uuid.hex()} cannot leave")


@changing
def remove_node(map_: pb.ClusterMap, node_uuid: bytes) -> None:
    """Remove a lost node together with its replicas."""
    node = _find(map_, node_uuid)
    if node is None:
        return
    take_out(map_, node)
    _require_hosts(map_, f"node {node_uuid.hex()} cannot be removed")


def take_out(map_: pb.ClusterMap, node: pb.MapNode) -> None:
    """Remove a node from a map in place."""
    map_.removed.append(node.uuid)
    del map_.removed[:-REMOVED_KEPT]
    map_.node.remove(node)


def removed_message(node_uuid: bytes) -> str:
    """Explain, for people, why a removed node cannot join."""
    return (
        f"node {node_uuid.hex()} was taken out of this cluster: what was deleted since would come back with it. "
        "Empty its drives, and it joins as a new node (`cluster add --wipe NODE` does both)"
    )


def set_endpoints(node_uuid: bytes, endpoint: str, peer_endpoint: str) -> Edit:
    """Record the new endpoints of a node. Another node that had them keeps them in the map until it reports its own."""
    _require_endpoint(endpoint)
    _require_endpoint(peer_endpoint)

    def edit(map_: pb.ClusterMap | None) -> pb.ClusterMap:
        node = _require_node(map_ := require_cluster(map_), node_uuid)
        node.endpoint, node.peer_endpoint = endpoint, peer_endpoint
        return map_

    return edit


@changing
def deny(map_: pb.ClusterMap, bucket_uuid: bytes, denied: Sequence[str], allowed: Sequence[str], reason: str) -> None:
    """Deny contents in a bucket, or allow them again, and record that something in it was denied. Raises InvalidRequest
    if they are too many, and BucketNotFound."""
    found = bucket_with_uuid(map_, bucket_uuid)
    contents = with_contents(found.denied.content, denied, allowed, reason)
    found.denied.SetInParent()
    found.denied.content.clear()
    found.denied.content.update(contents)


def create_bucket(
    name: str,
    copies: int = 1,
    min_copies: int = 1,
    *,
    remote: Remote | None = None,
    redundancy: Redundancy | None = None,
) -> Edit:
    """Create a bucket. Raises InvalidName at once."""
    check_bucket_name(name)
    copies = redundancy.copies if redundancy is not None else copies

    def edit(map_: pb.ClusterMap | None) -> pb.ClusterMap:
        map_ = require_cluster(map_)
        if find_bucket(map_, name) is not None:
            raise ValueError(f"bucket {name!r} exists; choose another name, or use it")
        require_copies(map_, copies, min_copies)
        map_.bucket.add(
            name=name,
            uuid=draw_bucket_uuid(),
            copies=copies,
            min_copies=min_copies,
            remote=remote.to_wire() if remote is not None else None,
        )
        if redundancy is not None:
            _code(map_, map_.bucket[-1], redundancy)
        return map_

    return edit


@changing
def set_bucket(map_: pb.ClusterMap, name: str, settings: BucketSettings) -> None:
    """Change settings of a bucket.

    A new number of copies is reached when `finish_changes` reports it; see docs/cluster.md.

    The edit raises TooFewCopies, to be retried, while a snapshot of the bucket is being created: its owners are
    scanning what the snapshot sees.
    """
    found = find_bucket(map_, name)
    if found is None:
        raise ValueError(f"bucket {name!r} does not exist; create_bucket makes it")
    before = found.copies, max(1, found.min_copies)
    redundancy = Redundancy.parse(settings.redundancy) if settings.redundancy is not None else None
    copies = settings.copies if redundancy is None else redundancy.copies
    if settings.redundancy == COPIES:
        found.ClearField("coding")
    elif redundancy is not None:
        _code(map_, found, redundancy)
    elif found.HasField("coding") and copies not in (None, before[0]):
        raise ValueError(
            f"bucket {name!r} is erasure coded, which implies its number of copies; set redundancy=copies with "
            "copies=N, or another redundancy=rs:K+M"
        )
    wanted = (
        before[0] if copies is None else copies,
        before[1] if settings.min_copies is None else settings.min_copies,
    )
    if wanted != before:
        require_copies(map_, *wanted)
        if wanted[0] != before[0]:
            if any(one.maker for one in found.snapshot):
                raise TooFewCopies(f"a snapshot of bucket {name!r} is being made; change its copies after that")
            found.former_copies[:] = list(dict.fromkeys([*found.former_copies, before[0]]))
        found.copies, found.min_copies = wanted
    if settings.remote is not None:
        found.ClearField("remote")
        if settings.remote:
            if any(one.coded_of == found.uuid for one in map_.bucket):
                raise ValueError(f"bucket {name!r} is or was erasure coded, and cannot become a remote one")
            found.remote.CopyFrom(settings.remote.to_wire())


@changing
def delete_bucket(map_: pb.ClusterMap, name: str) -> None:
    """Delete a bucket with all its objects."""
    found = find_bucket(map_, name)
    if found is None:
        raise ValueError(f"bucket {name!r} does not exist; it may have been deleted already")
    if found.snapshot:
        named = ", ".join(one.name for one in found.snapshot)
        raise BucketHasSnapshots(f"bucket {name!r} has snapshots, {named}: delete them first")
    for bucket in [one for one in map_.bucket if one.coded_of == found.uuid]:
        map_.bucket.remove(bucket)
    map_.bucket.remove(found)


def _code(map_: pb.ClusterMap, bucket: pb.MapBucket, redundancy: Redundancy) -> None:
    """Have a bucket coded from now on, and create the bucket of its fragments. Raises ValueError."""
    hosts = owning_hosts(map_)
    if hosts < redundancy.fragments:
        raise ValueError(
            f"redundancy={redundancy}: the fragments of a group go to {redundancy.fragments} different hosts, and the "
            f"cluster has {hosts} that take objects; add hosts, or choose fewer fragments"
        )
    if bucket.HasField("remote"):
        raise ValueError(
            f"bucket {bucket.name!r} is a remote one, whose objects are kept elsewhere; it is not erasure coded"
        )
    bucket.coding.data, bucket.coding.parity = redundancy.data, redundancy.parity
    if not any(one.coded_of == bucket.uuid for one in map_.bucket):
        name = companion_name(bucket.uuid)
        map_.bucket.add(name=name, uuid=draw_bucket_uuid(), copies=1, min_copies=1, coded_of=bucket.uuid)


def require_copies(map_: pb.ClusterMap, copies: int, min_copies: int) -> None:
    """Raise ValueError for a number of copies that this cluster cannot store."""
    hosts = owning_hosts(map_)
    if not 1 <= copies <= hosts:
        raise ValueError(
            f"copies={copies}: need 1 to {hosts}, as the cluster has {hosts} hosts that take objects and copies go to "
            "different ones; add hosts for more"
        )
    if not 1 <= min_copies <= copies:
        raise ValueError(f"min_copies={min_copies}: need 1 to copies={copies}")


def owning_hosts(map_: pb.ClusterMap) -> int:
    """Return the number of hosts that accept objects."""
    return len({node.host for node in map_.node if node.state != pb.MapNode.LEAVING})


def _copy(node: pb.MapNode) -> pb.MapNode:
    if len(node.uuid) != 16:
        raise ValueError(f"a node has a uuid of 16 bytes, not {len(node.uuid)}: ask it with GetMap")
    if not node.host:
        raise ValueError(f"node {node.uuid.hex()} needs the name of its host: copies go to different hosts")
    _require_endpoint(node.endpoint)
    _require_endpoint(node.peer_endpoint)
    copy = pb.MapNode()
    copy.CopyFrom(node)
    copy.weight = node.weight or 1.0
    return copy


def _add(map_: pb.ClusterMap, node: pb.MapNode, state: pb.MapNode.State, number: int) -> None:
    for other in map_.node:
        if other.uuid == node.uuid:
            raise ValueError(f"node {node.uuid.hex()} is given twice; two drives that are copies of one look like that")
        if other.endpoint == node.endpoint:
            raise ValueError(f"endpoint {node.endpoint} is that of node {other.uuid.hex()}; remove that one first")
        if other.peer_endpoint == node.peer_endpoint:
            raise ValueError(
                f"node {other.uuid.hex()} listens for peers at {node.peer_endpoint}; remove that one first"
            )
    added = map_.node.add()
    added.CopyFrom(node)
    added.state, added.number = state, number


def unchanged(map_: pb.ClusterMap | None) -> pb.ClusterMap:
    """Edit nothing; used to fetch the newest map and make sure that it is committed."""
    if map_ is None:
        raise ValueError("the making of a cluster did not reach all its nodes; make it again")
    return map_


def bucket_with_uuid(map_: pb.ClusterMap, bucket_uuid: bytes) -> pb.MapBucket:
    """Return a bucket. Raises BucketNotFound."""
    found = next((bucket for bucket in map_.bucket if bucket.uuid == bucket_uuid), None)
    if found is None:
        raise BucketNotFound("the bucket has been deleted meanwhile")
    return found


def find_bucket(map_: pb.ClusterMap | None, name: str) -> pb.MapBucket | None:
    return None if map_ is None else next((bucket for bucket in map_.bucket if bucket.name == name), None)


def _find(map_: pb.ClusterMap, node_uuid: bytes) -> pb.MapNode | None:
    return next((node for node in map_.node if node.uuid == node_uuid), None)


def _require_node(map_: pb.ClusterMap, node_uuid: bytes) -> pb.MapNode:
    node = _find(map_, node_uuid)
    if node is None:
        raise ValueError(f"no node {node_uuid.hex()} in the cluster; add it first")
    return node


def _require_hosts(map_: pb.ClusterMap, problem: str) -> None:
    hosts = owning_hosts(map_)
    if hosts == 0:
        raise ValueError(f"{problem}: no node would be left that takes objects; add another one first")
    for bucket in map_.bucket:
        if bucket.copies > hosts:
            raise ValueError(
                f"{problem}: bucket {bucket.name!r} has {bucket.copies} copies, and {hosts} hosts would be left; add a "
                "host first"
            )


def _require_endpoint(endpoint: str) -> None:
    host, colon, port = endpoint.rpartition(":")
    if not host or not colon or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"endpoint {endpoint!r} is not host:port, as in 10.0.0.5:7480")
