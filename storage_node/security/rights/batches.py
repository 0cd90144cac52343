"""Rights on the entries of a batch: entries that the client may not read fail in their places, the others go on.

The rights are looked up once for each bucket of a batch, so that their check does not depend on the number of entries.
"""

from __future__ import annotations

from collections.abc import Iterable

from ais_loader.errors import LoaderError
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2 as objects_pb
from storage_node.security.rights.granted import Granted
from storage_node.security.rights.scopes import Right
from storage_node.store.refused_buckets import stand_in


def restrict(granted: Granted, request: pb.BatchRequest) -> int:
    """Replace the buckets of entries that the client may not read with stand-ins, and the tenant with the token's.
    Return how many buckets were replaced."""
    if request.tenant != granted.tenant:
        request.tenant = granted.tenant
    replaced, readable = 0, []
    for at, bucket in enumerate(list(request.bucket)):
        if (error := granted.refusal(Right.READ, bucket)) is not None:
            request.bucket[at] = stand_in(error)
            replaced += 1
        else:
            readable.append(at)
    return replaced + (_restrict_transforms(granted, request, readable) if request.transform else 0)


def refused_objects(granted: Granted, request: objects_pb.PutManyRequest) -> dict[int, LoaderError]:
    """Return the objects that the client may not put, by position, with the errors that they get in their places."""
    buckets = {small.bucket for small in request.object}
    refused = {bucket: error for bucket in buckets if (error := granted.refusal(Right.WRITE, bucket)) is not None}
    if not refused:
        return {}
    return {at: refused[small.bucket] for at, small in enumerate(request.object) if small.bucket in refused}


def _restrict_transforms(granted: Granted, request: pb.BatchRequest, readable: Iterable[int]) -> int:
    """Give transformed entries stand-ins where the client may read a bucket, but not through transforms."""
    refused = {}
    for at in readable:
        if (error := granted.refusal(Right.ETL_USE, request.bucket[at])) is not None:
            refused[at] = stand_in(error)
    n = len(request.name)
    if not refused or len(request.transform_index) != n:
        return 0
    indexes = list(request.bucket_index) or [0] * n
    if len(indexes) != n:
        return 0
    stands: dict[int, int] = {}
    for position, which in enumerate(request.transform_index):
        at = indexes[position]
        if which and at in refused:
            if at not in stands:
                stands[at] = len(request.bucket)
                request.bucket.append(refused[at])
            indexes[position] = stands[at]
    if stands:
        del request.bucket_index[:]
        request.bucket_index.extend(indexes)
    return len(stands)
