"""Calls that concern many objects of a bucket at once, over gRPC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ais_loader import errors
from ais_loader.transport.connection import Connection
from ais_loader.transport.put_calls import CALL_TIMEOUT_S
from protos import ais_contents_pb2 as pb

if TYPE_CHECKING:
    from ais_loader.transport.members import Members


def delete_names(here: Connection, bucket: str, names: Sequence[str]) -> list[errors.LoaderError | None]:
    """One request; of each name, in order, None or why it was not deleted. Raises gRPC's errors."""
    request = pb.DeleteManyRequest(bucket=bucket, name=names)
    answer: pb.DeleteManyResponse = here.contents.DeleteMany(request, timeout=CALL_TIMEOUT_S)
    results: list[errors.LoaderError | None] = [None] * len(names)
    for failure in answer.failure:
        results[failure.position] = errors.from_kind(failure.error.kind, failure.error.message)
    return results


def delete_by_any(members: Members, bucket: str, names: Sequence[str]) -> list[errors.LoaderError | None]:
    """As `delete_names`, by whichever node answers: it has the owners of all names leave tombstones.

    Raises BucketNotFound, NodeUnavailable, SilenceTimeout.
    """
    failure: errors.NodeUnavailable | None = None
    for node in members.anybody():
        try:
            results = members.transport(node).delete_names(bucket, names)
        except errors.NodeUnavailable as error:
            members.suspect(node)
            failure = error
            continue
        if failure is None:
            return results
        # The one before may have deleted what is not found now, and its answer have been lost.
        return [failure if isinstance(result, errors.NotFound) else result for result in results]
    members.refresh()
    raise failure or errors.NodeUnavailable("the map has no nodes")
