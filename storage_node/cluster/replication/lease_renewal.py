"""Renewal of a node's read lease: a thread that requests it from the other nodes at intervals.

The thread is separate so that a node with a busy event loop keeps its lease. Such a node learns of writes late, but the
writers wait for it.

It uses the synchronous gRPC API. grpc.aio would need a second event loop in the process, and grpc.aio wakes every loop
for each event: two threads would wake for each message of the node, and half of the messages would be handed over
between them: 1,300 more calls of Python for a cluster PUT of 6,900.

As long as every node answers, only as many as make a majority are asked, in turn, when half of the lease has passed.
That is most of what an idle node does (`benchmarks/cluster/idle.md`). As soon as one does not answer, all are asked at
once, and more often.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import grpc

from ais_loader.wire.channel_options import CHANNEL_OPTIONS, with_changes
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2 as wire
from ais_loader.wire.generated import ais_replica_pb2_grpc
from storage_node.cluster.replication.read_lease import majority
from storage_node.context.channels import Caller
from storage_node.store.replica_state import clock_s

_IN_TURN, _AT_ONCE = 2, 6
"""A lease is renewed when this part of the time that is left has passed."""
_PATIENCE = 6
"""In turn, a node has this part of the lease to answer: enough is left then to ask all."""
_OPTIONS = with_changes(CHANNEL_OPTIONS, {"grpc.http2.bdp_probe": 0})  # it would send a ping with each message
_IMPATIENT_S = 0.05
"""Pause between renewals while the node holds no lease."""
log = logging.getLogger(__name__)


class WantedLease(NamedTuple):
    """A lease for `node_uuid` by this map."""

    view: ClusterView
    node_uuid: bytes
    for_s: float


class LeaseRenewal:
    """Args:
    wanted: what to ask for; None while there are no leases.
    until_s: when the lease ends that is held, by `clock_s`.
    answered: called with the node that was asked, when it was asked, by which version of the map, and its answer; in
        this thread or one of gRPC's, for one answer of each node at a time.
    """

    def __init__(
        self,
        caller: Caller,
        wanted: Callable[[], WantedLease | None],
        until_s: Callable[[], float],
        answered: Callable[[pb.MapNode, float, int, wire.RenewLeaseResponse], None],
    ) -> None:
        self._caller = caller
        self._wanted = wanted
        self._until_s = until_s
        self._answered = answered
        self._calls: dict[bytes, grpc.Future] = {}
        """Outstanding requests by node. An answer removes its own, on another thread."""
        self._silent: set[bytes] = set()
        """Nodes that have not answered the last request, or not yet."""
        self._turn = 0
        self._channels: dict[str, Any] = {}
        self._generation = caller.generation
        self._stopping = False
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ais-loader-lease", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Start renewing at once. Thread-safe."""
        self._woken.set()

    def stop(self, timeout_s: float) -> None:
        self._stopping = True
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._renew()
            except Exception:
                # Without this thread the node holds no lease and serves no replicated objects.
                log.exception("renewing read leases failed and is restarted")
                self._woken.wait(0.5)
        for channel in self._channels.values():
            channel.close()

    def _renew(self) -> None:
        lapsed_s: float | None = None
        while not self._stopping:
            self._woken.clear()
            pause_s: float | None = None  # a map that uses leases wakes the thread
            if (wanted := self._wanted()) is not None:
                others = [node for node in wanted.view.nodes if node.uuid != wanted.node_uuid]
                in_turn = self._until_s() - clock_s() > wanted.for_s / 3 and self._ask_in_turn(others, wanted)
                for node in () if in_turn else others:
                    if node.uuid not in self._calls:
                        self._ask(node, wanted)
                now, until_s = clock_s(), self._until_s()
                # Renew well before the lease ends, and soon after it has ended.
                parts = _IN_TURN if in_turn else _AT_ONCE
                pause_s = max(_IMPATIENT_S, min(wanted.for_s, until_s - now) / parts)
                lapsed_s = _report(lapsed_s, now, until_s)
            self._woken.wait(pause_s)
        for call in list(self._calls.values()):
            call.cancel()

    def _ask_in_turn(self, others: Sequence[pb.MapNode], wanted: WantedLease) -> bool:
        """Ask as many nodes as make a majority, one after the other: a call that is waited for needs no other thread.
        Returns False if one does not answer now, or did not before."""
        if any(node.uuid in self._silent for node in others):
            return False
        for _ in range(majority(len(others) + 1) - 1):
            self._turn += 1
            node, requested_s = others[self._turn % len(others)], clock_s()
            try:
                answer = self._method(node)(_request(wanted), timeout=wanted.for_s / _PATIENCE)
            except grpc.RpcError:
                self._silent.add(node.uuid)
                return False
            self._answered(node, requested_s, wanted.view.version, answer)
        return True

    def _ask(self, node: pb.MapNode, wanted: WantedLease) -> None:
        requested_s = clock_s()
        self._silent.add(node.uuid)
        call = self._calls[node.uuid] = self._method(node).future(_request(wanted), timeout=wanted.for_s / 2)
        call.add_done_callback(partial(self._take, node, requested_s, wanted.view.version))

    def _method(self, node: pb.MapNode) -> Any:
        return ais_replica_pb2_grpc.RepairStub(self._channel(node.peer_endpoint)).RenewLease

    def _channel(self, endpoint: str) -> Any:
        if self._generation != (generation := self._caller.generation):
            self._generation = generation
            for channel in self._channels.values():
                channel.close()  # the calls that this ends are repeated
            self._channels.clear()
        if endpoint not in self._channels:
            self._channels[endpoint] = self._caller.channel(endpoint, _OPTIONS)
        return self._channels[endpoint]

    def _take(self, node: pb.MapNode, requested_s: float, version: int, call: Any) -> None:
        self._calls.pop(node.uuid, None)
        if not call.cancelled() and call.exception() is None and not self._stopping:
            self._silent.discard(node.uuid)
            self._answered(node, requested_s, version, call.result())


def _request(wanted: WantedLease) -> wire.RenewLeaseRequest:
    return wire.RenewLeaseRequest(node_uuid=wanted.node_uuid, map_version=wanted.view.version, lease_s=wanted.for_s)


def _report(lapsed_s: float | None, now: float, until_s: float) -> float | None:
    """Log when a lease lapsed and when it was regained; return since when there is none."""
    if until_s > now:
        if lapsed_s is not None:
            log.warning("this node holds a read lease again, after %.1f s without", now - lapsed_s)
        return None
    if lapsed_s is None and until_s > float("-inf"):
        log.warning("this node has no read lease: it does not serve objects with several copies")
        return now
    return lapsed_s
