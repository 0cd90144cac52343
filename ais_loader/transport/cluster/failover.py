"""Failover: the nodes of a cluster as a client knows them, and the order in which they are tried for one request.

`Members` contains the newest map that the client has seen, and the connections. A node that recently did not answer is
tried after the others for a while, so that one dead node does not cost every call its timeout. Thread-safe.

`Failover` tries the members. Reads go to the holders of an object, writes to its owners, and calls about no object to
any node that answers. A conditional write is the exception: only the first owner of a name evaluates the condition. If
two nodes evaluated it, both could find it true, and two clients would believe that their write had won.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeVar

from ais_loader import errors
from ais_loader.transport.grpc.download import Call, download
from ais_loader.transport.grpc.node_calls import NodeCalls
from ais_loader.transport.grpc.watchdog import CALL_TIMEOUT_S
from ais_loader.transport.retry import RetryBudget
from ais_loader.values.entry import ObjectInfo
from ais_loader.values.options import ClusterOptions
from ais_loader.values.source import Buffer
from ais_loader.wire.backoff import Backoff, Suspects
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.gather.hedging import Hedging
from ais_loader.wire.gather.replica_choice import NodeLoads, choose
from ais_loader.wire.generated import ais_batch_pb2 as batch_pb
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_objects_pb2 as objects_pb
from ais_loader.wire.placement import Candidate, object_hash, ranked

T = TypeVar("T")
DAMAGED = errors.CorruptObject, errors.ArchiveDamaged, errors.ArchiveIndexError
"""Errors that say a holder's replica is damaged. Another holder may have the object intact."""

_OF_ONE_COPY = (errors.NotFound, errors.DriveFailed, *DAMAGED)
"""Errors of one replica, while another holder may have the object intact."""
_OF_ALL_COPIES = (errors.ObjectDeleted, errors.MemberNotFound)
QUICK_TIMEOUT_S = 2.0
"""Timeout of a short answer, if another node can be tried, or the call again later."""
MAP_TIMEOUT_S = 2.0
"""Longest wait for a node's map; slower nodes are ignored."""
_OTHERS_S = 0.2
"""After one node has answered with its map, the others have this much time to answer."""
SUSPECT = Backoff(2.0, 16.0, jitter=0)
"""Time for which a node that did not answer is tried last; longer each time, until it has answered."""
REFRESH_INTERVAL_S = 0.25
_MAP_REQUESTS_AT_ONCE = 3
_ALONE = bytes(16)


class Members:
    """The nodes of one cluster, by their uuids.

    A node without a cluster is the only member of a map without buckets. If it joins a cluster later, it reaches the
    other nodes for calls that do not ask it alone. The others find that out by `refresh`: the nodes of the cluster are
    the members from then on.

    Args:
        only: the calls to a node without a cluster; None for a cluster, also one that it has joined.
    """

    def __init__(self, view: ClusterView, options: ClusterOptions, only: NodeCalls | None = None) -> None:
        self.view = view
        """Replaced, never modified: read it once and work with that value."""
        self.options = options
        self._lock = threading.Lock()
        self.only = only
        self._calls: dict[tuple[bytes, str], NodeCalls] = {}  # guarded by _lock
        self.loads: NodeLoads[bytes] = NodeLoads()
        self.hedging = Hedging(options.hedge_budget)
        self._suspects: Suspects[bytes] = Suspects()
        self._refreshed_at = -REFRESH_INTERVAL_S
        self._closed = False
        self._identity = os.getpid(), uuid.uuid4().bytes
        self._order: tuple[tuple[int, bytes], list[bytes]] = (-1, b""), []

    @classmethod
    def of_one(cls, node: NodeCalls, options: ClusterOptions) -> Members:
        """Return the members for a node without a cluster."""
        alone = cluster_pb.MapNode(uuid=_ALONE, endpoint=node.url, weight=1.0)
        return cls(ClusterView(cluster_pb.ClusterMap(node=[alone])), options, node)

    @property
    def identity(self) -> bytes:
        """Random id of this client in this process, 16 bytes."""
        if self._identity[0] != os.getpid():
            self._identity = os.getpid(), uuid.uuid4().bytes
        return self._identity[1]

    def calls(self, node: bytes) -> NodeCalls:
        """Return the calls to a node. Raises NodeUnavailable, Closed."""
        if (only := self.only) is not None:
            return only
        view = self.view
        at = view.position.get(node)
        if at is None:
            raise errors.NodeUnavailable(f"node {node.hex()} has left the cluster")
        key = node, view.nodes[at].endpoint
        with self._lock:
            if self._closed:
                raise errors.Closed("the connection to the cluster has been closed")
            if key not in self._calls:
                self._calls[key] = NodeCalls(f"grpc://{key[1]}", self.options)
            return self._calls[key]

    # -- which node to ask

    def holders(self, bucket: str, names: Sequence[str]) -> list[list[bytes]]:
        """Return, for each name, the nodes that may have it, best first; for a bucket that no map has, all nodes."""
        view = self.view
        uuids = [node.uuid for node in view.nodes]
        known = view.to_read(bucket)
        if known is None:
            return [uuids] * len(names)
        return [[uuids[at] for at in found] for found in view.holders(known, names)]

    def knows(self, bucket: str) -> bool:
        """Whether the map has the bucket or snapshot. Requests a newer map if it has not."""
        if self.only is not None:
            return False
        return self._has(bucket) or (bool(self.refresh(force=True)) and self._has(bucket))

    def _has(self, bucket: str) -> bool:
        return self.view.to_read(bucket) is not None

    def by_trust(self, nodes: Sequence[bytes]) -> list[bytes]:
        """Sort the nodes: those that recently did not answer come last."""
        if not self._suspects:
            return list(nodes)
        suspects = self._suspects.among(set(nodes))
        return sorted(nodes, key=suspects.__contains__)

    def preferred(
        self, found: Sequence[Sequence[bytes]], key: Callable[[int], int], buckets: Sequence[str]
    ) -> Sequence[Sequence[bytes]]:
        """Reorder the holders of entries in these buckets, which are sorted by trust, by load; see
        `replica_choice.choose`."""
        if self.view.is_moving(buckets) or all(len(nodes) < 2 for nodes in found):
            return found  # while objects move, only this order tells where they are
        loads = self.loads.of(set(chain.from_iterable(found)))
        for node in self._suspects.among(set(loads)):
            loads[node] = replace(loads[node], suspected=True)
        return choose(found, loads, key)

    def suspect(self, node: bytes) -> None:
        """Note that a node did not answer."""
        if self.only is None and node not in self._suspects:  # else it is known already
            self._suspects.failed(node, SUSPECT)

    def is_suspect(self, node: bytes) -> bool:
        return node in self._suspects

    def note_answered(self, node: bytes) -> None:
        self._suspects.answered(node)

    def anybody(self) -> list[bytes]:
        """Return all nodes, in an order that depends on this client: clients spread over nodes."""
        if self.only is not None:
            return [_ALONE]
        view, key = self.view, (self.view.version, self.identity)
        if self._order[0] != key:
            order = ranked(self.identity, "", [Candidate(node.uuid, node.weight) for node in view.nodes])
            self._order = key, [view.nodes[at].uuid for at in order]
        return self.by_trust(self._order[1])

    # -- the map

    def learn(self, map_: cluster_pb.ClusterMap) -> bool:
        """Replace the map by a newer one of the same cluster. Returns whether it was newer."""
        with self._lock:
            before = self.view
            is_other = map_.cluster_uuid != before.map.cluster_uuid and self.only is None
            if map_.version <= before.version or is_other:
                return False
            self.view, self.only = ClusterView(map_, before), None
            # Connections to nodes that have left close once nobody uses them.
            nodes = {(node.uuid, node.endpoint) for node in self.view.nodes}
            self._calls = {key: calls for key, calls in self._calls.items() if key in nodes}
            return True

    def refresh(self, *, first: bytes | None = None, force: bool = False) -> bool | None:
        """Request a newer map; return whether there was one, or None if no node has answered. Limited to a few times a
        second unless forced; a node without a cluster is asked only if it is forced, and no more often.

        `first`: a node that is known to have it.
        """
        now, only = time.monotonic(), self.only
        if (only is not None or not force) and now - self._refreshed_at < REFRESH_INTERVAL_S:
            return False
        if only is not None:
            return self._has_joined(only) if force else False
        self._refreshed_at = now
        nodes = self.anybody()
        if first in self.view.position:
            assert first is not None
            nodes = [first, *(node for node in nodes if node != first)]
        answers: queue.SimpleQueue[cluster_pb.ClusterMap | None] = queue.SimpleQueue()
        known, waiting, answered, newer = self.view.map, 0, 0, False
        ends_at = now + MAP_TIMEOUT_S
        while True:
            while nodes and waiting + answered < _MAP_REQUESTS_AT_ONCE and not newer:
                # A hanging node must not delay the others. Threads end with their call's deadline.
                thread = threading.Thread(
                    target=self._request_map, args=(nodes.pop(0), known, answers), name="ais-loader map", daemon=True
                )
                thread.start()
                waiting += 1
            if not waiting or newer:
                return newer if answered else None
            try:
                answer = answers.get(timeout=max(0.0, ends_at - time.monotonic()))
            except queue.Empty:
                return False if answered else None
            waiting -= 1
            if answer is not None:
                answered += 1
                ends_at = min(ends_at, time.monotonic() + _OTHERS_S)
                newer = self.learn(answer)

    def _has_joined(self, only: NodeCalls) -> bool | None:
        """Whether a node that had no cluster has one now; None if it does not answer."""
        try:
            map_ = only.cluster_map(None, timeout_s=MAP_TIMEOUT_S)
        except errors.Unsupported:
            return False
        except errors.LoaderError:
            return None
        self._refreshed_at = time.monotonic()
        return self.learn(map_)

    def _request_map(
        self, node: bytes, known: cluster_pb.ClusterMap, answers: queue.SimpleQueue[cluster_pb.ClusterMap | None]
    ) -> None:
        answer: cluster_pb.ClusterMap | None = None
        try:
            answer = self.calls(node).cluster_map(known, timeout_s=MAP_TIMEOUT_S)
        except (errors.NodeUnavailable, errors.SilenceTimeout):
            self.suspect(node)
        except errors.LoaderError:  # it has no map, or the client has been closed
            pass
        finally:
            answers.put(answer)

    # -- life

    def close(self) -> None:
        with self._lock:
            self._closed = True
            calls = list(self._calls.values())
            self._calls.clear()
        for node in calls:
            node.close()

    def forget_inherited(self) -> None:
        """Called in a forked child: the lock may be held by a thread that does not exist here."""
        self._lock = threading.Lock()
        self.loads.forget_inherited()
        self.hedging.budget.forget_inherited()


class Failover:
    """Calls with failover. While no node answers, they are retried for `retry_s`, with the newest map."""

    def __init__(self, url: str, retry_s: float) -> None:
        self.url = url
        self._retry_s = retry_s

    @property
    def members(self) -> Members:
        """The members behind `url`. Raises NodeUnavailable, SilenceTimeout."""
        raise NotImplementedError

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
            found = members.refresh(first=lacking or outdated, force=missing is not None or outdated is not None)
            if members.view is not view:
                continue  # the nodes asked may not have been the holders any more
            if missing is not None and found is None:
                missing, failure = None, errors.NodeUnavailable(f"no node says whether its map is newer: {missing}")
            if missing is not None and (failure is None or not members.view.is_moving([bucket])):
                if requested_twice or not members.view.is_moving([bucket]):
                    raise missing
                requested_twice = True  # it may have moved to its owner between the two requests
                continue
            self._pause(patience, failure or errors.NodeUnavailable(f"{self.url}: the map has no node for {name!r}"))

    def _ask_best(
        self,
        members: Members,
        request: batch_pb.BatchRequest,
        ask: Callable[[NodeCalls, batch_pb.BatchRequest, float], T],
        timeout_s: float,
    ) -> T | None:
        """Return the answer of the best holder of a request's only entry, a whole object; None if it has none.

        A holder that is silent for unusually long is given up, if there is another one and the hedging budget allows
        it. Raises SilenceTimeout.
        """
        # A node without a map may join a cluster: the object is then wherever that node finds it.
        request.local = members.only is None
        if members.only is not None:
            return ask(members.only, request, timeout_s)
        bucket, name = request.bucket[0], request.name[0]
        nodes = self._nodes(bucket, name)
        if len(nodes) == 1:
            try:
                return ask(members.calls(nodes[0]), request, timeout_s)
            except errors.NodeUnavailable:
                members.suspect(nodes[0])
                return None
        node = members.preferred([nodes], lambda _: object_hash(b"", name), [bucket])[0][0]
        singles, budget = members.hedging.singles, members.hedging.budget
        budget.requested(1)
        limit_s = min(timeout_s, singles.limit_s(last=True) if budget.available else timeout_s)
        members.loads.requested(node, 1)
        began_s = time.monotonic()
        try:
            found = ask(members.calls(node), request, limit_s)
        except (errors.SilenceTimeout, errors.NodeUnavailable) as error:
            members.suspect(node)
            if isinstance(error, errors.SilenceTimeout) and limit_s < timeout_s:
                budget.take(1)
            return None
        finally:
            waited_s = time.monotonic() - began_s
            members.loads.over(node, 1, 1, waited_s)
        if found is not None:
            singles.note(waited_s)
            members.note_answered(node)
        return found

    def _head(self, bucket: str, name: str) -> ObjectInfo:
        return self._read(bucket, name, lambda node, timeout_s: node.head(bucket, name, timeout_s=timeout_s))

    def _download(self, request: objects_pb.GetRequest, timeout_s: float) -> Iterator[Buffer]:
        """Ask the object's holders in turn, each from the last received byte on: what one holder has damaged, or not
        received yet, another may have."""
        node, refused_at = b"", 0
        refusals: dict[bytes, errors.LoaderError] = {}
        translate: Callable[[Exception], errors.LoaderError] = _as_unavailable

        def open_call(request: objects_pb.GetRequest) -> Call:
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

    def _checked(self, bucket: str, call: Callable[[NodeCalls], T], *others: str) -> Callable[[NodeCalls], T]:
        """Wrap a call to a node. A node counts as not answering while it does not know a bucket that exists: a change
        of the map needs a majority of the nodes, and the others learn of it later. `others`: further buckets that the
        call concerns."""

        def known(node: NodeCalls) -> T:
            try:
                return call(node)
            except errors.BucketNotFound as error:
                found = self.members.refresh(force=True)
                if found is not None and any(self.members.view.to_read(one) is None for one in (bucket, *others)):
                    raise
                raise errors.NodeUnavailable(f"{node.url} does not know bucket {bucket!r} yet") from error

        return known

    def _write(
        self,
        bucket: str,
        name: str,
        call: Callable[[NodeCalls], T],
        *,
        only_first: bool = False,
        retry: bool,
        replay: bool | None = None,
        patience: RetryBudget | None = None,
    ) -> T:
        """Return the answer of the first owner that has one.

        Args:
            only_first: ask the first owner alone. A node that is no longer the first owner makes the client refresh the
                map.
            retry: whether the call can be made twice, although the first attempt may have taken effect.
            replay: with `only_first`, whether it can be made twice if the first attempt was rejected; defaults to
                `retry`.
            patience: the retry limit that several writes share.

        Raises NodeUnavailable, StaleMap after `retry_s`.
        """

        def owners() -> list[bytes]:
            return self._ranked_owners(bucket, name)[:1] if only_first else self._owners(bucket, name)

        replay = (retry if replay is None else replay) if only_first else None
        return self._first(owners, call, retry=retry, consumes=True, replay=replay, patience=patience)

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

    def _of_all(
        self, call: Callable[[NodeCalls], T], silent: dict[str, errors.LoaderError] | None = None
    ) -> Iterator[tuple[str, T]]:
        """Make a call to each node of the newest map, one after another; yield where it is, and its answer. The errors
        of those that do not answer are put into `silent`, if there is one."""
        members = self.members
        members.refresh(force=True)
        if members.only is not None:
            yield self.url, self._any(call)
            return
        for node in members.view.nodes:
            try:
                yield node.endpoint, call(members.calls(node.uuid))
            except (errors.NodeUnavailable, errors.SilenceTimeout) as error:
                if silent is None:
                    raise
                silent[node.endpoint] = error

    def _first(
        self,
        nodes: Callable[[], list[bytes]],
        call: Callable[[NodeCalls], T],
        *,
        retry: bool,
        consumes: bool,
        replay: bool | None = None,
        patience: RetryBudget | None = None,
    ) -> T:
        """Return the answer of the first of these nodes that has one. `retry`: see `_write`. `consumes`: the call
        consumes its source, which cannot be read a second time, before it is known whether the node is there. `replay`:
        see `_write`; None for calls that any node answers, whatever its map."""
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
                except errors.WriteTooLate as error:
                    failure = error
                    if not retry:
                        raise
                except (errors.Overloaded, errors.StaleMap) as error:
                    failure = error
                    if isinstance(error, errors.StaleMap) and replay is None:
                        raise
                    if not (retry if replay is None else replay) and consumes:
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
            members.refresh(force=isinstance(failure, errors.StaleMap))
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
