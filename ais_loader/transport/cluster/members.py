"""Membership as a client knows it: the newest map it has seen, connections, and the order of nodes to try.

Thread-safe. A node that recently did not answer is tried after the others for a while, so that one dead node does not
cost every call its timeout.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

from ais_loader import errors
from ais_loader.transport.grpc.node_calls import NodeCalls
from ais_loader.values.options import ClusterOptions
from ais_loader.wire.backoff import Backoff
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.features import TRANSFORMS
from ais_loader.wire.gather.hedging import Hedging
from ais_loader.wire.gather.replica_choice import NodeLoads, choose
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.placement import Candidate, ranked
from ais_loader.wire.suspects import Suspects

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

    A node without a cluster is the only member of a map without buckets. That map never changes: if the node joins a
    cluster later, it reaches the other nodes for this client.

    Args:
        only: the calls to a node without a cluster; None for a cluster.
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
        alone = pb.MapNode(uuid=_ALONE, endpoint=node.url, weight=1.0, feature=[TRANSFORMS])
        return cls(ClusterView(pb.ClusterMap(node=[alone])), options, node)

    @property
    def identity(self) -> bytes:
        """Random id of this client in this process, 16 bytes."""
        if self._identity[0] != os.getpid():
            self._identity = os.getpid(), uuid.uuid4().bytes
        return self._identity[1]

    def calls(self, node: bytes) -> NodeCalls:
        """Return the calls to a node. Raises NodeUnavailable, Closed."""
        if self.only is not None:
            return self.only
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
        return self._has(bucket) or (self.refresh(force=True) and self._has(bucket))

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
        """Note that a node has answered."""
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

    def transforming(self) -> list[bytes]:
        """Like `anybody`, but nodes come last for which the map does not say that they run transforms."""
        transforming = self.view.transforming
        return sorted(self.anybody(), key=lambda node: node not in transforming)

    # -- the map

    def learn(self, map_: pb.ClusterMap) -> bool:
        """Replace the map by a newer one of the same cluster. Returns whether it was newer."""
        with self._lock:
            before = self.view
            if map_.version <= before.version or map_.cluster_uuid != before.map.cluster_uuid:
                return False
            self.view = ClusterView(map_)
            return True

    def refresh(self, *, first: bytes | None = None, force: bool = False) -> bool:
        """Request a newer map; return whether there was one. Limited to a few times a second unless forced.

        `first`: a node that is known to have it.
        """
        now = time.monotonic()
        if self.only is not None or (not force and now - self._refreshed_at < REFRESH_INTERVAL_S):
            return False
        self._refreshed_at = now
        nodes = self.anybody()
        if first in self.view.position:
            assert first is not None
            nodes = [first, *(node for node in nodes if node != first)]
        answers: queue.SimpleQueue[tuple[bytes, pb.GetMapResponse | None]] = queue.SimpleQueue()
        known, waiting, answered, newer = self.view.version, 0, 0, False
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
                return newer
            try:
                _, answer = answers.get(timeout=max(0.0, ends_at - time.monotonic()))
            except queue.Empty:
                return newer
            waiting -= 1
            if answer is not None:
                answered += 1
                ends_at = min(ends_at, time.monotonic() + _OTHERS_S)
                newer = answer.HasField("map") and self.learn(answer.map)

    def _request_map(
        self, node: bytes, known: int, answers: queue.SimpleQueue[tuple[bytes, pb.GetMapResponse | None]]
    ) -> None:
        answer: pb.GetMapResponse | None = None
        try:
            answer = self.calls(node).cluster_map(known, timeout_s=MAP_TIMEOUT_S)
        except (errors.NodeUnavailable, errors.SilenceTimeout):
            self.suspect(node)
        except errors.LoaderError:  # it has no map, or the client has been closed
            pass
        finally:
            answers.put((node, answer))

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
