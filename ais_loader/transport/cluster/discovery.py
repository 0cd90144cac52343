"""Discovery behind `grpc://` endpoints, or `node:///` folders: one storage node, or a cluster.

The first call requests the cluster's map. Without one, the node behind the endpoints is the only member. With one, the
endpoints only served as a starting point. Ray is not involved: nodes serve the map.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace

from ais_loader import errors
from ais_loader.transport.cluster.failover import QUICK_TIMEOUT_S, Members
from ais_loader.transport.grpc.node_calls import NodeCalls
from ais_loader.transport.grpc.watchdog import CALL_TIMEOUT_S
from ais_loader.transport.on_demand import OnDemandNode
from ais_loader.transport.retry import RetryBudget
from ais_loader.values.options import ClusterOptions
from ais_loader.values.urls import NODE_SCHEME, SECURE_SCHEME, endpoints_of, store_folders
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.frame import Frame, FramedStream, FrameStream
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.node_waits import NodeWaits

_ALL: weakref.WeakSet[Discovery] = weakref.WeakSet()


class Discovery:
    """Discovery of the members behind the endpoints of `url`. Thread-safe.

    Args:
        known: further endpoints, of nodes that the cluster was last known to have.
    """

    def __init__(self, url: str, options: ClusterOptions, known: Sequence[str] = ()) -> None:
        options = replace(options, tls=url.startswith(SECURE_SCHEME))
        self._options = options
        if url.startswith(NODE_SCHEME):
            self._start_endpoints: list[str] = []
            self._endpoints = NodeCalls(url, options, OnDemandNode(store_folders(url)).endpoint)
        else:
            self._start_endpoints = list(dict.fromkeys([*endpoints_of(url), *known]))
            self._endpoints = NodeCalls("grpc://" + ",".join(self._start_endpoints), options)
        self._lock = threading.Lock()
        self.found: Members | None = None
        self._closed = False
        _ALL.add(self)

    @property
    def known(self) -> list[str]:
        """All endpoints known now: all nodes behind the URL may have been replaced since."""
        found = self.found
        nodes = [] if found is None or found.only else found.view.nodes
        return [*self._start_endpoints, *(node.endpoint for node in nodes)]

    def members(self, timeout_s: float = CALL_TIMEOUT_S, *, retry: bool = True) -> Members:
        """Return the members, found on first use. Raises NodeUnavailable, SilenceTimeout."""
        if self.found is not None:
            return self.found
        view = self._request_map(min(timeout_s, CALL_TIMEOUT_S), retry=retry)
        with self._lock:
            if self.found is None:
                if view is None:
                    self.found = Members.of_one(self._endpoints, self._options)
                else:
                    self.found = Members(view, self._options)
                    if self._closed:
                        self.found.close()
                    self._endpoints.abandon()
            return self.found

    def _request_map(self, timeout_s: float, *, retry: bool) -> ClusterView | None:
        """Return the newest map that an endpoint has; None if those that answer have none."""
        patience = RetryBudget(self._options.retry_s)
        strangers = 0
        while True:
            try:
                answer = _map_of(self._endpoints, timeout_s)
                break
            except errors.NodeUntrusted:
                strangers += 1
                if not retry or strangers >= max(1, len(self._start_endpoints)):
                    raise
            except (errors.NodeUnavailable, errors.Overloaded) as error:
                if not retry:
                    raise
                patience.pause_plainly(error)
        if answer is None and len(self._start_endpoints) > 1:
            # A node that has just restarted may not have learned yet what the others know.
            for endpoint in self._start_endpoints:
                other = NodeCalls(f"grpc://{endpoint}", replace(self._options, retry_s=0.0))
                try:
                    answer = _map_of(other, min(timeout_s, QUICK_TIMEOUT_S))
                except (errors.NodeUnavailable, errors.SilenceTimeout):
                    continue
                finally:
                    other.close()
                if answer is not None:
                    break
        return None if answer is None else ClusterView(answer)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            found = self.found
        self._endpoints.close()
        if found is not None:
            found.close()

    def forget_inherited(self) -> None:
        """Called in a forked child: the lock may be held by a thread that does not exist here."""
        self._lock = threading.Lock()
        if self.found is not None:
            self.found.forget_inherited()


class LateStream(FramedStream):
    """A batch that begins when its first frame is requested, because no endpoint answered when it was opened."""

    def __init__(self, open_: Callable[[], FrameStream]) -> None:
        self._open = open_
        self._stream: FrameStream | None = None
        self._closed = False

    def node_of(self, index: int) -> str:
        return "the store" if self._stream is None else self._stream.node_of(index)

    @property
    def retries(self) -> int:
        return 0 if self._stream is None else self._stream.retries

    @property
    def paused_s(self) -> float:
        return 0.0 if self._stream is None else self._stream.paused_s

    @property
    def hedged(self) -> int:
        return 0 if self._stream is None else self._stream.hedged

    @property
    def waits(self) -> NodeWaits:
        return NodeWaits() if self._stream is None else self._stream.waits

    def __next__(self) -> Frame:
        if self._stream is None:
            stream = self._open()
            self._stream = stream
            if self._closed:
                stream.close()
        return next(self._stream)

    def close(self) -> None:
        self._closed = True
        if self._stream is not None:
            self._stream.close()


def _map_of(node: NodeCalls, timeout_s: float) -> cluster_pb.ClusterMap | None:
    try:
        map_ = node.cluster_map(None, timeout_s=timeout_s)
    except errors.Unsupported:
        return None
    return map_ if map_.version else None


def _after_fork_in_child() -> None:
    for discovery in _ALL:
        discovery.forget_inherited()


os.register_at_fork(after_in_child=_after_fork_in_child)
