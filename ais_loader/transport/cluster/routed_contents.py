"""Calls to a cluster that concern many objects of a bucket at once."""

from __future__ import annotations

from collections.abc import Sequence

from ais_loader import errors
from ais_loader.summary import BucketSummary
from ais_loader.transport.cluster.failover import Failover
from ais_loader.transport.cluster.membership import Members


class RoutedContentsCalls(Failover):
    """The part of a transport to a cluster that makes them: any node sees to all of them."""

    def delete_names(self, bucket: str, names: Sequence[str]) -> list[errors.LoaderError | None]:
        return delete_by_any(self.members, bucket, names)

    def summary(self, bucket: str, *, prefix: str, depth: int) -> BucketSummary:
        return self._any(lambda node: node.summary(bucket, prefix=prefix, depth=depth))


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
