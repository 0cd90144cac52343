"""Bounds of what an acceptor accepts: ballots close to those it knows, and maps that a cluster can have.

A ballot grows by one with each attempt, and a returning node is sent the newest map, with its ballot, before it is
asked to vote. No honest proposer has a ballot far ahead; a promise of the highest possible one would block every later
change. The bound allows far more attempts than a cluster makes in its lifetime, and the highest number is more such
steps away than anyone makes.
"""

from __future__ import annotations

from ais_loader.wire.cluster_map import added_buckets
from ais_loader.wire.generated import ais_cluster_pb2 as pb

MAX_BALLOT_LEAD = 1 << 40
MAX_FIRST_VERSION = 1 << 40
"""Highest version that a node accepts while it knows no map."""
MAX_NODES = 1 << 16
MAX_BUCKETS = 1 << 17
MAX_SNAPSHOTS = 1 << 12
"""Most snapshots of one bucket."""
MAX_CHANGES = 1 << 10
MAX_REVOKED_TOKENS = 1 << 13
MAX_COPIES = 1 << 16
MAX_TEXT = 1024
"""Most characters of a host name or an endpoint."""
_UUID_BYTES = 16


class MapRefused(ValueError):
    """A request that this node must not answer, whatever its ballot: it is meant for another node or cluster, or
    invalid."""


def require_ballot(known: pb.Ballot | None, ballot: pb.Ballot) -> None:
    """Check that a ballot is not too far ahead. Raises MapRefused."""
    number = known.number if known is not None else 0
    if ballot.number > number + MAX_BALLOT_LEAD:
        raise MapRefused(f"ballot {ballot.number} is too far above {number}, the highest that this node knows")
    if len(ballot.proposer) > _UUID_BYTES:
        raise MapRefused(f"a proposer's id of {len(ballot.proposer)} bytes, at most {_UUID_BYTES}")


def require_map(map_: pb.ClusterMap, known: pb.ClusterMap | None = None) -> None:
    """Check that a cluster can have this map, whatever the map before it. Raises MapRefused.

    `known`: a map that was checked. If the map only adds buckets to those, these are checked.
    """
    new = added_buckets(known, map_) if known is not None else None
    buckets = [(repr(bucket.name[:64]), bucket) for bucket in (map_.bucket if new is None else new)]
    counts = (
        ("nodes", len(map_.node), MAX_NODES),
        ("buckets", len(map_.bucket), MAX_BUCKETS),
        ("changes", len(map_.change), MAX_CHANGES),
        ("nodes taken out", len(map_.removed), MAX_NODES),
        ("revoked tokens", len(map_.revoked_token), MAX_REVOKED_TOKENS),
        *((f"snapshots of bucket {name}", len(bucket.snapshot), MAX_SNAPSHOTS) for name, bucket in buckets),
        *((f"former numbers of copies of {name}", len(bucket.former_copies), MAX_CHANGES) for name, bucket in buckets),
    )
    for what, count, most in counts:
        if count > most:
            raise MapRefused(f"a map with {count:,} {what}, at most {most:,}")
    ids = (
        *((f"node {at}", node.uuid) for at, node in enumerate(map_.node)),
        *((f"bucket {name}", bucket.uuid) for name, bucket in buckets),
        *((f"change {at}", change) for at, change in enumerate(map_.change)),
        *((f"node {at} of those taken out", uuid) for at, uuid in enumerate(map_.removed)),
        ("the cluster", map_.cluster_uuid),
    )
    for what, uuid in ids:
        if len(uuid) != _UUID_BYTES:
            raise MapRefused(f"a map in which the id of {what} has {len(uuid)} bytes, not {_UUID_BYTES}")
    for node in map_.node:
        if max(len(node.host), len(node.endpoint), len(node.peer_endpoint)) > MAX_TEXT:
            raise MapRefused(f"a map with a name or an endpoint of a node of over {MAX_TEXT} characters")
    if any(len(one.id) > MAX_TEXT for one in map_.revoked_token):
        raise MapRefused(f"a map with an id of a revoked token of over {MAX_TEXT} characters")
    names = [bucket.name for bucket in map_.bucket]
    if len(set(names)) != len(names) or len({bucket.uuid for bucket in map_.bucket}) != len(names):
        raise MapRefused("a map with two buckets of one name or one uuid")
    for name, bucket in buckets:
        numbers = (bucket.copies, *bucket.former_copies)
        if not all(1 <= number <= MAX_COPIES for number in numbers) or bucket.min_copies > bucket.copies:
            raise MapRefused(
                f"a map in which bucket {name} has {bucket.copies} copies, and at least {bucket.min_copies}"
            )
