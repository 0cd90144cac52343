"""Failover: the order in which nodes of a cluster are tried for one request.

Reads go to the holders of an object, writes to its owners, and calls about no object to any node that answers. A
conditional write is the exception: only the first owner of a name evaluates the condition. If two nodes evaluated it,
both could find it true, and two clients would believe that their write had won.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from ais_loader import errors
from ais_loader.transport.cluster.discovery import QUICK_TIMEOUT_S, Discovery
from ais_loader.transport.cluster.members import Members
from ais_loader.transport.grpc.download import Call, download
from ais_loader.transport.grpc.node_calls import NodeCalls
from ais_loader.transport.grpc.watchdog import CALL_TIMEOUT_S
from ais_loader.transport.retry import RetryBudget
from ais_loader.values.entry import ObjectInfo
from ais_loader.values.source import Buffer
from ais_loader.wire.generated import ais_objects_pb2 as pb

T = TypeVar("T")
DAMAGED = errors.CorruptObject, errors.ArchiveDamaged, errors.ArchiveIndexError
"""Errors that say a holder's replica is damaged. Another holder may have the object intact."""

_OF_ONE_COPY = (errors.NotFound, errors.DriveFailed, *DAMAGED)
"""Errors of one replica, while another holder may have the object intact."""
_OF_ALL_COPIES = (errors.ObjectDeleted, errors.MemberNotFound)


class Failover:
    """Calls with failover. While no node answers, they are retried for `retry_s`, with the newest map."""

    def __init__(self, url: str, discovery: Discovery, retry_s: float) -> None:
        self.url = url
        self._discovery = discovery
        self._retry_s = retry_s

    @property
    def members(self) -> Members:
        return self._discovery.found or self._discovery.members()

    def _nodes(self, bucket: str, name: str) -> list[bytes]:
        members = self.members
        if not members.knows(bucket):
            return members.anybody()[:1]  # it reports that, or has a newer map
        return members.by_trust(members.holders(bucket, [name])[0])

    def _read(self, bucket: str, name: str, call: Callable[[NodeCalls, float], T]) -> T:
        """Return the answer of the first holder that has one. `call` gets its timeout as its second argument.

        Raises NotFound, NodeUnavailable, SilenceTimeout; and DriveFailed and the errors of a damaged replica if no
        other holder is left.
        """
        members, patience = self.members, RetryBudget(self._retry_s)
        requested_twice = False
        while True:
            missing: errors.NotFound | None = None
            failure: errors.LoaderError | None = None
            outdated: bytes | None = None
            lacking: bytes | None = None
            view, nodes = members.view, self._nodes(bucket, name)
            for node in nodes:
                short = node != nodes[-1]
                try:
                    return call(members.calls(node), QUICK_TIMEOUT_S if short else CALL_TIMEOUT_S)
                except errors.ObjectDeleted:
                    raise
                except errors.BucketNotFound as error:
                    if view.to_read(bucket) is None:
                        missing, lacking = missing or error, node
                    else:
                        outdated, failure = node, errors.NodeUnavailable(f"it has not heard of it yet: {error}")
                except errors.NotFound as error:
                    missing, lacking = error, node
                except (errors.NodeUnavailable, errors.SilenceTimeout) as error:
                    members.suspect(node)
                    failure = errors.NodeUnavailable(str(error)) if short else error
                except (errors.DriveFailed, errors.Overloaded, *DAMAGED) as error:
                    failure = failure or error  # the node is healthy otherwise
            # A node that has handed the object over, by a newer map, has that map.
            members.refresh(first=lacking or outdated, force=missing is not None or outdated is not None)
            if members.view is not view:
                continue  # the nodes asked may not have been the holders any more
            if missing is not None and (failure is None or not members.view.is_moving([bucket])):
                if requested_twice or not members.view.is_moving([bucket]):
                    raise missing
                requested_twice = True  # it may have moved to its owner between the two requests
                continue
            self._pause(patience, failure or errors.NodeUnavailable(f"{self.url}: the map has no node for {name!r}"))

    def _head(self, bucket: str, name: str) -> ObjectInfo:
        return self._read(bucket, name, lambda node, timeout_s: node.head(bucket, name, timeout_s=timeout_s))

    def _download(self, request: pb.GetRequest, timeout_s: float) -> Iterator[Buffer]:
        """Ask the object's holders in turn, each from the last received byte on: what one holder has damaged, or not
        received yet, another may have."""
        node, refused_at = b"", 0
        refusals: dict[bytes, errors.LoaderError] = {}
        translate: Callable[[Exception], errors.LoaderError] = _as_unavailable

        def open_call(request: pb.GetRequest) -> Call:
            nonlocal node, translate
            nodes = self._nodes(request.bucket, request.name)
            node = next((one for one in nodes if one not in refusals), nodes[0])
            call, translate = self.members.calls(node).open_download(request)
            return call

        def failed(error: Exception, received: int) -> errors.LoaderError:
            nonlocal refused_at
            translated = translate(error)
            if isinstance(translated, errors.NodeUnavailable):
                self.members.suspect(node)
                self.members.refresh()
            if not isinstance(translated, _OF_ONE_COPY) or isinstance(translated, _OF_ALL_COPIES):
                return translated
            lacks = isinstance(translated, errors.NotFound) and not request.version
            if lacks:
                self._head(request.bucket, request.name)  # raises NotFound if all holders say so
            if received > refused_at:
                # Chunks are verified before they are sent. A holder whose damage lies in the received part may have the
                # rest intact.
                refusals.clear()
            refused_at = received
            refusals[node] = translated
            if all(one in refusals for one in self._nodes(request.bucket, request.name)):
                worst = min(refusals.values(), key=_certainty)
                if isinstance(worst, errors.ObjectReplaced):
                    # A download that begins again in the newer version must ask the holders that have it.
                    for one in [one for one, refusal in refusals.items() if isinstance(refusal, errors.ObjectReplaced)]:
                        del refusals[one]
                if not lacks or worst is not translated:
                    return worst
                refusals.clear()  # it has moved between the requests
            return errors.NodeUnavailable(str(translated))

        return download(request, open_call, failed, timeout_s=timeout_s, retry_s=self._retry_s)

    def _has(self, bucket: str) -> bool:
        """Whether the current map has the bucket."""
        return bucket in self.members.view.buckets

    def _checked(self, bucket: str, call: Callable[[NodeCalls], T], *others: str) -> Callable[[NodeCalls], T]:
        """Wrap a call to a node. A node counts as not answering while it does not know a bucket that exists: a change
        of the map needs a majority of the nodes, and the others learn of it later. `others`: further buckets that the
        call concerns."""

        def known(node: NodeCalls) -> T:
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
        call: Callable[[NodeCalls], T],
        *,
        retry: bool,
        patience: RetryBudget | None = None,
    ) -> T:
        """Return the answer of the first owner that has one. `retry`: the call can be made twice. `patience`: the retry
        limit that several writes share."""
        return self._first(lambda: self._owners(bucket, name), call, retry=retry, consumes=True, patience=patience)

    def _write_first(
        self,
        bucket: str,
        name: str,
        call: Callable[[NodeCalls], T],
        *,
        retry: bool,
        replay: bool | None = None,
        patience: RetryBudget | None = None,
    ) -> T:
        """Return the first owner's answer. A node that is no longer the first owner makes the client refresh the map.

        Args:
            again: whether the call can be made twice, although the first attempt may have taken effect.
            replay: whether it can be made twice if the first attempt was rejected; defaults to `retry`.
            patience: see `_write`.

        Raises NodeUnavailable, StaleMap after `retry_s`.
        """
        members, patience = self.members, patience or RetryBudget(self._retry_s)
        while True:
            failure: errors.LoaderError
            node = self._ranked_owners(bucket, name)[0]
            try:
                return call(members.calls(node))
            except errors.StaleMap as error:
                failure = error
                if not (retry if replay is None else replay):
                    raise
            except errors.Overloaded as error:
                failure = error
                if not (retry if replay is None else replay):
                    raise
            except errors.NodeUnavailable as error:
                if not error.retryable:
                    raise
                members.suspect(node)
                failure = error
                if not retry:
                    raise
            members.refresh(force=isinstance(failure, errors.StaleMap))
            self._pause(patience, failure)

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

    def _any(self, call: Callable[[NodeCalls], T], *, retry: bool = True) -> T:
        """Return the answer of any node that has one; without `retry`, of the first node that can be reached."""
        return self._first(self.members.anybody, call, retry=retry, consumes=False)

    def _first(
        self,
        nodes: Callable[[], list[bytes]],
        call: Callable[[NodeCalls], T],
        *,
        retry: bool,
        consumes: bool,
        patience: RetryBudget | None = None,
    ) -> T:
        """Return the answer of the first of these nodes that has one. `retry`: see `_write`. `consumes`: the call
        consumes its source, which cannot be read a second time, before it is known whether the node is there."""
        members, patience = self.members, patience or RetryBudget(self._retry_s)
        while True:
            failure: errors.LoaderError = errors.NodeUnavailable(f"{self.url}: the map has no node for this")
            full: errors.DriveFull | None = None
            others = False
            for node in nodes():
                try:
                    return call(members.calls(node))
                except errors.DriveFull as error:
                    full = error  # it has no room even for a tombstone or version; another owner may have
                    if not retry:
                        raise
                    continue
                except errors.Overloaded as error:
                    failure = error
                    if not retry and consumes:
                        raise
                except errors.NodeUnavailable as error:
                    if not error.retryable:
                        raise
                    members.suspect(node)
                    failure = error
                    if not retry and (error.reached or consumes):
                        raise
                others = True
            if full is not None and not others:
                raise full
            members.refresh()
            self._pause(patience, failure)

    def _pause(self, patience: RetryBudget, failure: errors.LoaderError) -> None:
        if isinstance(failure, errors.SilenceTimeout):
            raise failure  # its time is over
        if self.members.only is None:
            patience.pause(failure)
        else:
            patience.pause_plainly(failure)


def _as_unavailable(error: Exception) -> errors.LoaderError:
    """Translate errors from before a call has been opened."""
    return error if isinstance(error, errors.LoaderError) else errors.NodeUnavailable(str(error))


def _certainty(refusal: errors.LoaderError) -> int:
    """Rank how much a refusal of one holder says about all replicas. Where holders disagree, the lowest rank is
    reported."""
    if isinstance(refusal, errors.ObjectReplaced):
        return 0
    return 1 if isinstance(refusal, errors.DriveFailed) else 3 if isinstance(refusal, errors.NotFound) else 2
