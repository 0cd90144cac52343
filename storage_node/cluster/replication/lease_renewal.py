"""Renewal of a node's read lease: a thread that requests it from the other nodes at intervals.

The thread is separate so that a node with a busy event loop keeps its lease. Such a node learns of writes late, but the
writers wait for it.

It uses the synchronous gRPC API. grpc.aio would need a second event loop in the process, and grpc.aio wakes every loop
for each event: two threads would wake for each message of the node, and half of the messages would be handed over
between them (`benchmarks/report/two_trees.md` has the cost).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import grpc

from ais_loader.wire.channel_options import CHANNEL_OPTIONS
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2 as wire
from ais_loader.wire.generated import ais_replica_pb2_grpc
from storage_node.context.channels import Caller
from storage_node.store.replica_state import clock_s

_RENEWALS = 6
"""Renewals per lease duration."""
_IMPATIENT_S = 0.05
"""Pause between renewals while the node holds no lease."""
_NO_LEASES_S = 5.0
"""Pause while the map uses no leases; a map that does wakes the thread."""
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
        a thread of gRPC's, for one answer of each node at a time.
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
        try:
            self._renew()
        except Exception:
            # Without this thread the node holds no lease and serves no replicated objects.
            log.exception("read leases are not renewed any more")
        finally:
            for channel in self._channels.values():
                channel.close()

    def _renew(self) -> None:
        lapsed_s: float | None = None
        while not self._stopping:
            self._woken.clear()
            pause_s = _NO_LEASES_S
            if (wanted := self._wanted()) is not None:
                for node in wanted.view.nodes:
                    if node.uuid != wanted.node_uuid and node.uuid not in self._calls:
                        self._ask(node, wanted)
                now, until_s = clock_s(), self._until_s()
                # Renew well before the lease ends, and soon after it has ended.
                pause_s = max(_IMPATIENT_S, min(wanted.for_s, until_s - now) / _RENEWALS)
                lapsed_s = _report(lapsed_s, now, until_s)
            self._woken.wait(pause_s)
        for call in list(self._calls.values()):
            call.cancel()

    def _ask(self, node: pb.MapNode, wanted: WantedLease) -> None:
        request = wire.RenewLeaseRequest(
            node_uuid=wanted.node_uuid, map_version=wanted.view.version, lease_s=wanted.for_s
        )
        requested_s = clock_s()
        stub = ais_replica_pb2_grpc.RepairStub(self._channel(node.peer_endpoint))
        call = self._calls[node.uuid] = stub.RenewLease.future(request, timeout=wanted.for_s / 2)
        call.add_done_callback(partial(self._take, node, requested_s, wanted.view.version))

    def _channel(self, endpoint: str) -> Any:
        if self._generation != (generation := self._caller.generation):
            self._generation = generation
            for channel in self._channels.values():
                channel.close()  # the calls that this ends are repeated
            self._channels.clear()
        if endpoint not in self._channels:
            self._channels[endpoint] = self._caller.channel(endpoint, CHANNEL_OPTIONS)
        return self._channels[endpoint]

    def _take(self, node: pb.MapNode, requested_s: float, version: int, call: Any) -> None:
        self._calls.pop(node.uuid, None)
        if not call.cancelled() and call.exception() is None and not self._stopping:
            self._answered(node, requested_s, version, call.result())


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
