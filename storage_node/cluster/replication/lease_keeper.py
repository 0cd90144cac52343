"""Read leases of one node: the lease it holds, the leases it grants to others, and those it withholds.

Peers that are denied a read lease are recorded on every drive. A restarted node no longer knows which writes such a
peer missed, so it grants the lease only after the peer has compared its replicas with all others. `read_lease`
describes the protocol.

Belongs to the node's event loop, except for what the thread of `LeaseRenewal` reads and reports.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path

import grpc.aio

from ais_loader.errors import StoreFormatError
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2 as wire
from ais_loader.wire.generated import ais_replica_pb2_grpc
from storage_node.cluster.replication.lease_renewal import LeaseRenewal, WantedLease
from storage_node.cluster.replication.read_lease import LEAST_NODES, LeaseHeld, LeasesGranted, lease_s, over_s
from storage_node.cluster.replication.replica import to_wire
from storage_node.context.channels import REACH_TIMEOUT_S, Channels
from storage_node.context.node import Node
from storage_node.limits.wakeup import Wakeup
from storage_node.store.checksum import decode_checked, encode_checked
from storage_node.store.files.growing_file import write_atomically
from storage_node.store.format import Version
from storage_node.store.replica_state import clock_s

FILE_NAME = "withheld.json"
_FORMAT = 1
_STOP_TIMEOUT_S = 10.0
_AWAKE_S = REACH_TIMEOUT_S - 0.5
"""Other nodes write without a node that is silent for `REACH_TIMEOUT_S`."""
_AWAKE_POLL_S = 0.25
_MAX_MAP_VERSION = 1 << 32
"""Upper bound of epochs; a node that claims a higher map version knows no map."""
log = logging.getLogger(__name__)


class ReadLeases:
    def __init__(
        self,
        node: Node,
        undelivered: Callable[[str], bool],
        note_map_version: Callable[[str, int], None],
        keep_up: Callable[[], Awaitable[bool]],
        compare: Callable[[], None],
    ) -> None:
        """Args:
        undelivered: whether the node at an endpoint has still to hear of a write.
        note_map_version: called with the endpoint and the version of the map of each node that says one.
        keep_up: fetches a map that a peer has mentioned.
        compare: makes this node compare its replicas with those of all others before it serves them.
        """
        self._node = node
        self._undelivered = undelivered
        self._note_map_version = note_map_version
        self._keep_up = keep_up
        self._compare = compare
        self._base_s = node.config.cluster.read_lease_s
        # A node that knows no map at its start has granted no leases before.
        view = self._view
        self._granted = LeasesGranted(
            clock_s(), lease_s(self._base_s, max(LEAST_NODES, len(view.nodes))) if view is not None else 0.0
        )
        self._must_compare = _read([drive.root for drive in node.store.drives if drive is not None])
        self._kept = set(self._must_compare)
        self._keeping = asyncio.Lock()
        self._recorded: Sequence[bytes] | None = sorted(self._kept)
        """The nodes on the drives; None if that is not known, because a record was not finished."""
        self._held = LeaseHeld()
        self._new_map = Wakeup()
        self._lock = threading.Lock()
        self._by = view
        """The map by which this node is read from: the newest one, set before it comes into use. Guarded by `_lock`, as
        are the leases passed to the store."""
        if node.membership is not None:
            node.membership.on_change(self._follow)
            node.membership.on_use(self._new_map.set)
        self._renewal = LeaseRenewal(node.caller, self._wanted, self._note, self._renewed)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def _view(self) -> ClusterView | None:
        return self._node.membership.view if self._node.membership is not None else None

    @property
    def apply(self) -> bool:
        """Whether the nodes of this map need leases to serve replicas."""
        return self._lease_s(self._view) > 0

    # -- granting

    def renew(self, request: wire.RenewLeaseRequest) -> wire.RenewLeaseResponse:
        view = self._view
        at = view.position.get(request.node_uuid) if view is not None else None
        if view is None or at is None:
            return wire.RenewLeaseResponse(map_version=0 if view is None else view.version)
        answer = wire.RenewLeaseResponse(map_version=view.version, compare=request.node_uuid in self._must_compare)
        if view.version < request.map_version < _MAX_MAP_VERSION:
            self._learn(view.nodes[at].peer_endpoint, request.map_version)
        may_have = request.map_version >= view.version and not answer.compare and 0 < request.lease_s < float("inf")
        if may_have and not self._undelivered(view.nodes[at].peer_endpoint):
            answer.granted_s = min(request.lease_s, lease_s(self._base_s, len(view.nodes)))
            self._granted.grant(request.node_uuid, clock_s(), answer.granted_s)
        return answer

    async def withhold(self, node_uuid: bytes) -> float:
        """Stop renewing the lease of a node that still has to be told of a write; this survives restarts of this node.

        Returns how many seconds a lease granted earlier may still last.
        """
        self._kept.add(node_uuid)
        await self._keep()  # also waits for another call's record
        return self._granted.left_s(node_uuid, clock_s())

    async def note_caught_up(self, node_uuid: bytes) -> None:
        """Note that a node was told of everything kept for it since this node started."""
        if node_uuid in self._kept and node_uuid not in self._must_compare:
            self._kept.discard(node_uuid)
            await self._keep()

    def require_comparison(self, node_uuid: bytes) -> None:
        """Make a node that cannot be told of all it missed compare its replicas before it gets a lease again."""
        self._must_compare.add(node_uuid)

    async def returned(self, node_uuid: bytes) -> None:
        """Note that a node has restarted: it serves nothing before it has compared its replicas with all others."""
        if node_uuid in self._must_compare:
            self._must_compare.discard(node_uuid)
            await self.note_caught_up(node_uuid)

    async def _keep(self) -> None:
        async with self._keeping:
            if (kept := sorted(self._kept)) != self._recorded:
                self._recorded = None
                roots = [drive.root for drive in self._node.store.drives if drive is not None]
                await self._node.read(_write, roots, kept)
                self._recorded = kept

    # -- writing without a node

    def member(self, endpoint: str) -> pb.MapNode | None:
        view = self._view
        return None if view is None else next((node for node in view.nodes if node.peer_endpoint == endpoint), None)

    def others(self, than: bytes) -> list[pb.MapNode]:
        """Return the nodes that can relay messages to the node `than`."""
        view, local = self._view, self._node_uuid
        return [] if view is None else [node for node in view.nodes if node.uuid not in (than, local)]

    @property
    def _node_uuid(self) -> bytes:
        return self._node.membership.node_uuid if self._node.membership is not None else b""

    def over_s(self, mine_s: float, theirs_s: Mapping[bytes, float]) -> float | None:
        """Return the time at which a node surely holds no lease, given which nodes withhold it; None if too few do."""
        view = self._view
        return None if view is None else over_s(len(view.nodes), {self._node_uuid: mine_s, **theirs_s})

    async def relay(
        self, channels: Channels, through: str, to: bytes, bucket: tuple[str, bytes], versions: Mapping[str, Version]
    ) -> wire.RelayResponse | None:
        """Make another node tell the node `to` of these versions; None if it does not answer."""
        view = self._view
        missed = wire.MissedRequest(
            bucket=wire.BucketRef(name=bucket[0], uuid=bucket[1]),
            name=versions,
            version=map(to_wire, versions.values()),
        )
        request = wire.RelayRequest(node_uuid=to, missed=missed, map_version=view.version if view is not None else 0)
        try:
            answer: wire.RelayResponse = await ais_replica_pb2_grpc.RepairStub(channels.to(through)).Relay(
                request, timeout=REACH_TIMEOUT_S
            )
        except grpc.aio.AioRpcError:
            return None
        self._note_map_version(through, answer.map_version)
        return answer

    def left_s(self, endpoint: str) -> float:
        """Return how many seconds the node at this endpoint may still hold a lease, including one granted under an
        earlier map."""
        node = self.member(endpoint)
        return 0.0 if node is None else self._granted.left_s(node.uuid, clock_s())

    # -- holding

    def guard(self) -> None:
        """Called before anything is served: replicated objects are not served without a lease."""
        self._note()

    def _follow(self, view: ClusterView) -> None:
        """Prepare for a new map before it is used, so that readers by it find the right lease rules. Thread-safe."""
        with self._lock:
            before, self._by = self._by, view
            before_s, for_s = self._lease_s(before), self._lease_s(view)
            # Nodes that do not know the new map yet may still be read from by the earlier one.
            if before_s and not for_s:
                self._granted.assume(clock_s(), before_s)
            elif for_s and not before_s and before is not None and len(before.nodes) > 1:
                self._granted.assume(clock_s(), REACH_TIMEOUT_S)
            if not for_s:
                self._node.store.replicas.stale.guard(_copied(view), _awake_s(view))
        self._note()
        if before is None or not before_s or self._node_uuid not in before.position:
            self._renewal.wake()

    async def stay_awake(self) -> None:
        """Without leases, detect until cancelled that this process stood still for so long that others may have written
        without it."""
        while True:
            with self._lock:
                has_leases, copied, for_s = self._lease_s(self._by) > 0, _copied(self._by), _awake_s(self._by)
                was_awake = has_leases or self._node.store.replicas.stale.awake(for_s, copied)
            if not was_awake:
                log.warning("this node stood still for more than %g s: its copies are compared with others", _AWAKE_S)
                self._compare()  # a comparison in progress did not see what was missed
            await (self._new_map.wait_for_tick(_AWAKE_POLL_S) if copied and not has_leases else self._new_map.wait())

    @property
    def is_in_touch(self) -> bool:
        """Whether this node holds a lease. Those who renew it say which map they know."""
        return self._note() > clock_s()

    def _lease_s(self, view: ClusterView | None) -> float:
        return lease_s(self._base_s, len(view.nodes)) if view is not None else 0.0

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._renewal.start()

    async def stop(self) -> None:
        await asyncio.to_thread(self._renewal.stop, _STOP_TIMEOUT_S)

    def _wanted(self) -> WantedLease | None:
        view = self._by
        if view is None or self._node_uuid not in view.position or not (for_s := self._lease_s(view)):
            return None
        return WantedLease(view, self._node_uuid, for_s)

    def _note(self) -> float:
        """Report to the store until when this node holds its lease, and return that time. Thread-safe."""
        with self._lock:
            view = self._by
            if view is None or not self._lease_s(view):
                return float("-inf")
            until_s = self._held.until_s([node.uuid for node in view.nodes if node.uuid != self._node_uuid])
            self._node.store.replicas.stale.hold_until(until_s, _copied(view))
            return until_s

    def _renewed(self, node: pb.MapNode, requested_s: float, version: int, answer: wire.RenewLeaseResponse) -> None:
        """Process a renewal. Called on a gRPC thread."""
        if answer.granted_s:
            self._held.granted(node.uuid, requested_s, answer.granted_s)
            self._note()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the node's event loop has ended
                if answer.map_version > version:
                    self._loop.call_soon_threadsafe(self._learn, node.peer_endpoint, answer.map_version)
                if answer.compare:
                    self._loop.call_soon_threadsafe(self._compare)

    def _learn(self, endpoint: str, version: int) -> None:
        self._note_map_version(endpoint, version)
        task = asyncio.ensure_future(self._keep_up())
        task.add_done_callback(lambda done: done.cancelled() or done.exception())


def _awake_s(view: ClusterView | None) -> float:
    return _AWAKE_S if _copied(view) else float("inf")


def _copied(view: ClusterView | None) -> Collection[bytes]:
    """Return the buckets with replicas on other nodes."""
    return () if view is None or len(view.nodes) < 2 else view.copied.keys()


def _read(roots: Sequence[Path]) -> set[bytes]:
    """Return the nodes recorded on any drive. A record that is out of date only causes an extra comparison."""
    found: set[bytes] = set()
    for root in roots:
        path = root / FILE_NAME
        try:
            fields = decode_checked("withheld", _FORMAT, path.read_bytes(), path)
            found |= {bytes.fromhex(uuid) for uuid in fields["nodes"]}
        except FileNotFoundError:
            continue
        except (OSError, StoreFormatError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s cannot be read: %s", path, error)
    return found


def _write(roots: Sequence[Path], nodes: Sequence[bytes]) -> None:
    """Record the nodes on every writable drive; durable on return."""
    data = encode_checked("withheld", _FORMAT, {"nodes": [uuid.hex() for uuid in nodes]})
    for root in roots:
        try:
            write_atomically(root / FILE_NAME, data)
        except OSError as error:
            log.warning("%s cannot be written: %s", root / FILE_NAME, error)
