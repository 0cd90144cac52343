"""Delta between two maps: what is sent, and kept on drives, in place of a map of which a small part has changed.

A list of the map (nodes, buckets, and so on) becomes the next one by one splice: elements are dropped from its
beginning, which is how the lists that remember the latest of something move on, and one run of the others is replaced.
Any two maps have such a delta, and it is short if they are consecutive versions. The map that it makes must have the
right checksum, so that it is never applied to another map than it was made from. Pure functions.
"""

from __future__ import annotations

from typing import TypeAlias

from ais_loader.wire.checksum import crc32c
from ais_loader.wire.cluster_map import added_buckets
from ais_loader.wire.generated import ais_cluster_pb2 as pb

_LISTS = {field.number: field.name for field in pb.ClusterMap.DESCRIPTOR.fields if field.default_value == []}
Carrier: TypeAlias = pb.GetMapResponse | pb.LearnRequest | pb.AcceptRequest


def checksum_of(map_: pb.ClusterMap) -> int:
    return crc32c(map_.SerializeToString(deterministic=True))


def delta_of(base: pb.ClusterMap, map_: pb.ClusterMap) -> pb.MapDelta:
    """Return the delta from `base` to `map_`."""
    ballot = map_.ballot if map_.HasField("ballot") else None
    inserted = pb.ClusterMap(cluster_uuid=map_.cluster_uuid, version=map_.version, ballot=ballot)
    delta = pb.MapDelta(base_version=base.version, checksum=checksum_of(map_), inserted=inserted)
    for number, name in _LISTS.items():
        if name == "bucket" and (added := added_buckets(base, map_)) is not None:
            delta.inserted.bucket.extend(added)
            delta.splice.add(field=number, kept=len(base.bucket))
            continue
        before, after = list(getattr(base, name)), list(getattr(map_, name))
        if before == after:
            continue
        dropped = before.index(after[0]) if after and after[0] in before else 0
        del before[:dropped]
        most = min(len(before), len(after))
        kept = next((at for at in range(most) if before[at] != after[at]), most)
        end = next((at for at in range(most - kept) if before[-1 - at] != after[-1 - at]), most - kept)
        delta.splice.add(field=number, dropped=dropped, kept=kept, removed=len(before) - kept - end)
        getattr(delta.inserted, name).extend(after[kept : len(after) - end])
    return delta


def applied(delta: pb.MapDelta, base: pb.ClusterMap) -> pb.ClusterMap | None:
    """Return the map that the delta makes of `base`; None if it was made from another map."""
    map_ = pb.ClusterMap()
    map_.CopyFrom(base)
    for splice in delta.splice:
        if splice.field not in _LISTS:
            return None
        elements = getattr(map_, name := _LISTS[splice.field])
        left = elements[splice.dropped + splice.kept + splice.removed :]
        del elements[splice.dropped + splice.kept :]
        del elements[: splice.dropped]
        elements.extend(getattr(delta.inserted, name))
        elements.extend(left)
    map_.version = delta.inserted.version
    map_.ClearField("ballot")
    if delta.inserted.HasField("ballot"):
        map_.ballot.CopyFrom(delta.inserted.ballot)
    return map_ if checksum_of(map_) == delta.checksum else None


def carried(message: Carrier, known: pb.ClusterMap | None) -> pb.ClusterMap | None:
    """Return the map in a message, empty if it has none; None if it has a delta to another map than `known`."""
    if not message.HasField("delta"):
        return message.map
    if known is None or known.version != message.delta.base_version:
        return None
    return applied(message.delta, known)
