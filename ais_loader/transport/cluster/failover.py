"""Failover: the order in which nodes of a cluster are tried for one request.

Reads go to the holders of an object, writes to its owners, and calls about no object to any node that answers. A
conditional write is the exception: only the first owner of a name evaluates the condition. If two nodes evaluated it,
both could find it true, and two clients would believe that their write had won.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ais_loader import errors
from ais_loader.transport.cluster.membership import Members
from ais_loader.transport.grpc.put_calls import CALL_TIMEOUT_S
from ais_loader.transport.grpc.transport import GrpcTransport
from ais_loader.transport.retry import Patience

T = TypeVar("T")
QUICK_TIMEOUT_S = 2.0
"""Timeout of a short answer, if another node can be tried."""
DAMAGED = errors.CorruptObject, errors.ArchiveDamaged, errors.ArchiveIndexError
"""Errors that say a holder's replica is damaged. Another holder may have the object intact."""


class Failover:
    """Calls with failover. While no node answers, they are retried for `retry_s`, with the newest map."""

    def __init__(self, url: str, members: Members, retry_s: float) -> None:
        self.url = url
        self.members = members
        self._retry_s = retry_s

    def _nodes(self, bucket: str, name: str) -> list[bytes]:
        members = self.members
        if not members.knows(bucket):
            return members.anybody()[:1]  # it reports that, or has a newer map
        return members.by_trust(members.holders(bucket, [name])[0])

    def _read(self, bucket: str, name: str, call: Callable[[GrpcTransport, float], T]) -> T:
        """Return the answer of the first holder that has one. `call` gets its timeout as its second argument.

        Raises NotFound, NodeUnavailable, SilenceTimeout; and DriveFailed and the errors of a damaged replica if no
        other holder is left.
        """
        members, patience = self.members, Patience(self._retry_s)
        asked_twice = False
        while True:
            missing: errors.NotFound | None = None
            failure: errors.LoaderError | None = None
            unheard: bytes | None = None
            lacking: bytes | None = None
            view, nodes = members.view, self._nodes(bucket, name)
            for node in nodes:
                short = node != nodes[-1]
                try:
                    return call(members.transport(node), QUICK_TIMEOUT_S if short else CALL_TIMEOUT_S)
                except errors.ObjectDeleted:
                    raise
                except errors.BucketNotFound as error:
                    if view.to_read(bucket) is None:
                        missing, lacking = missing or error, node
                    else:
                        unheard, failure = node, errors.NodeUnavailable(f"it has not heard of it yet: {error}")
                except errors.NotFound as error:
                    missing, lacking = error, node
                except (errors.NodeUnavailable, errors.SilenceTimeout) as error:
                    members.suspect(node)
                    failure = errors.NodeUnavailable(str(error)) if short else error
                except (errors.DriveFailed, errors.Overloaded, *DAMAGED) as error:
                    failure = failure or error  # the node is healthy otherwise
            # A node that has handed the object over, by a newer map, has that map.
            members.refresh(first=lacking or unheard, force=missing is not None or unheard is not None)
            if members.view is not view:
                continue  # the nodes asked may not have been the holders any more
            if missing is not None and (failure is None or not members.view.objects_go([bucket])):
                if asked_twice or not members.view.objects_go([bucket]):
                    raise missing
                asked_twice = True  # it may have moved to its owner between the two requests
                continue
            self._pause(patience, failure or errors.NodeUnavailable(f"{self.url}: the map has no node for {name!r}"))

    def _has(self, bucket: str) -> bool:
        """Whether the current map has the bucket."""
        return bucket in self.members.view.buckets

    def _heard_of(self, bucket: str, call: Callable[[GrpcTransport], T], *others: str) -> Callable[[GrpcTransport], T]:
        """Wrap a call to a node. A node counts as not answering while it does not know a bucket that exists: a change
        of the map needs a majority of the nodes, and the others learn of it later. `others`: further buckets that the
        call concerns."""

        def known(node: GrpcTransport) -> T:
            try:
                return call(node)
            except errors.BucketNotFound as error:
                self.members.refresh(force=True)
                if any(self.members.view.to_read(one) is None for one in (bucket, *others)):
                    raise
                raise errors.NodeUnavailable(f"{node.url} does not know bucket {bucket!r} yet") from error

        return known

    def _write(
        self,
        bucket: str,
        name: str,
        call: Callable[[GrpcTransport], T],
        *,
        again: bool,
        patience: Patience | None = None,
    ) -> T:
        """Return the answer of the first owner that has one. `again`: the call can be made twice. `patience`: the retry
        limit that several writes share."""
        return self._first(lambda: self._owners(bucket, name), call, again=again, consumes=True, patience=patience)

    def _write_first(
        self,
        bucket: str,
        name: str,
        call: Callable[[GrpcTransport], T],
        *,
        again: bool,
        replay: bool | None = None,
        patience: Patience | None = None,
    ) -> T:
        """Return the first owner's answer. A node that is no longer the first owner makes the client refresh the map.

        Args:
            again: whether the call can be made twice, although the first attempt may have taken effect.
            replay: whether it can be made twice if the first attempt was rejected; defaults to `again`.
            patience: see `_write`.

        Raises NodeUnavailable, StaleMap after `retry_s`.
        """
        members, patience = self.members, patience or Patience(self._retry_s)
        while True:
            failure: errors.LoaderError
            node = self._ranked_owners(bucket, name)[0]
            try:
                return call(members.transport(node))
            except errors.StaleMap as error:
                failure = error
                if not (again if replay is None else replay):
                    raise
            except errors.Overloaded as error:
                failure = error
                if not (again if replay is None else replay):
                    raise
            except errors.NodeUnavailable as error:
                if not error.retryable:
                    raise
                members.suspect(node)
                failure = error
                if not again:
                    raise
            members.refresh(force=isinstance(failure, errors.StaleMap))
            patience.pause(failure)

    def _owners(self, bucket: str, name: str) -> list[bytes]:
        members = self.members
        return members.by_trust(self._ranked_owners(bucket, name)) if members.knows(bucket) else members.anybody()[:1]

    def _ranked_owners(self, bucket: str, name: str) -> list[bytes]:
        """Return the owners, best first, whether they answer or not."""
        members = self.members
        if not members.knows(bucket):
            return members.anybody()[:1]
        view = members.view
        known = view.to_read(bucket)
        return [] if known is None else [view.nodes[at].uuid for at in view.owners(known, name)]

    def _any(self, call: Callable[[GrpcTransport], T], *, again: bool = True) -> T:
        """Return the answer of any node that has one; without `again`, of the first node that can be reached."""
        return self._first(self.members.anybody, call, again=again, consumes=False)

    def _first(
        self,
        nodes: Callable[[], list[bytes]],
        call: Callable[[GrpcTransport], T],
        *,
        again: bool,
        consumes: bool,
        patience: Patience | None = None,
    ) -> T:
        """Return the answer of the first of these nodes that has one. `again`: see `_write`. `consumes`: the call
        consumes its source, which cannot be read a second time, before it is known whether the node is there."""
        members, patience = self.members, patience or Patience(self._retry_s)
        while True:
            failure: errors.LoaderError = errors.NodeUnavailable(f"{self.url}: the map has no node for this")
            full: errors.DriveFull | None = None
            others = False
            for node in nodes():
                try:
                    return call(members.transport(node))
                except errors.DriveFull as error:
                    full = error  # it has no room even for a tombstone or version; another owner may have
                    if not again:
                        raise
                    continue
                except errors.Overloaded as error:
                    failure = error
                    if not again and consumes:
                        raise
                except errors.NodeUnavailable as error:
                    if not error.retryable:
                        raise
                    members.suspect(node)
                    failure = error
                    if not again and (error.reached or consumes):
                        raise
                others = True
            if full is not None and not others:
                raise full
            members.refresh()
            self._pause(patience, failure)

    @staticmethod
    def _pause(patience: Patience, failure: errors.LoaderError) -> None:
        if isinstance(failure, errors.SilenceTimeout):
            raise failure  # its time is over
        patience.pause(failure)
