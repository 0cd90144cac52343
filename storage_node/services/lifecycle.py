"""Lifecycle of a node: its components, the calls that they serve, and the order in which they start and stop.

`NodeLifecycle.parts` is one list in the order of the start; a node stops it from its end. A part may lack a start or a
stop: most components work as soon as they exist, and only have to be closed. No call is served before the listeners
start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ais_loader.wire.generated import ais_replica_pb2 as replica_pb
from storage_node.batch.session import BatchService
from storage_node.cluster.coding.coding import Coding
from storage_node.cluster.drives.manager import DriveManager
from storage_node.cluster.map.confirmation import MapConfirmation
from storage_node.cluster.map.revoked_tokens import RevokedTokens
from storage_node.cluster.map.sync import MapSync
from storage_node.cluster.repair.repair import Repair
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.cluster.snapshots.repair import NodeSnapshots
from storage_node.context.channels import read_secret
from storage_node.etl.jobs.cluster_store import NodeStore
from storage_node.etl.jobs.remote_store import RemoteStore
from storage_node.etl.local_etl import LocalEtl
from storage_node.etl.registry.calls import TransformCalls, etl_calls
from storage_node.etl.registry.registry import Registry
from storage_node.etl.transform_http import TransformHttp
from storage_node.etl.worker.stage import sandbox_warnings
from storage_node.limits.tasks import cancel_others, keep_going
from storage_node.limits.wakeup import Wakeup
from storage_node.promote.store_folders import of_store, require_apart
from storage_node.remote.ahead.plans import Plans
from storage_node.remote.ahead.prefetcher import Prefetcher
from storage_node.remote.tier import node_tier
from storage_node.services.buckets import BucketsService
from storage_node.services.call_lines import CallLines
from storage_node.services.call_path import CallPath, Methods
from storage_node.services.compose import ComposeService
from storage_node.services.contents import ContentsReplicaService, ContentsService
from storage_node.services.etl import EtlPeers, EtlService, jobs_of_node
from storage_node.services.node import ClusterService, NodeService, drive_calls, token_calls
from storage_node.services.object_reads import ObjectsService
from storage_node.services.peer_check import PeerCheck
from storage_node.services.pending_guard import PendingGuard
from storage_node.services.promote import PromoteService
from storage_node.services.put_writer import PutWriter
from storage_node.services.remote import RemoteBucketsService, RemotePeerService
from storage_node.services.replicas import ReplicaService
from storage_node.services.snapshots import SnapshotCopiesService, SnapshotsService
from storage_node.services.token_gate import TokenGate

if TYPE_CHECKING:
    from storage_node.cluster.consensus.acceptor_store import AcceptorStore
    from storage_node.context.membership import Membership
    from storage_node.context.node import Node
    from storage_node.etl.run.node_transforms import NodeTransforms
    from storage_node.etl.worker.environments import Environments
    from storage_node.settings.config import ServerConfig
    from storage_node.store.store import Store

STOP_TIMEOUT_S = 10.0
_FOLLOW_S = 1.0
log = logging.getLogger(__name__)


def check_folders(store: Store, config: ServerConfig) -> None:
    """Check that promotions and commands cannot reach the store's folders, nor clients the audit log, and log what a
    sandbox cannot prevent.

    Raises InvalidRequest.
    """
    audit = [Path(config.audit.folder)] if config.audit.folder else []
    require_apart(config.store.promote_roots, [*of_store(store), *audit], config.etl.command_paths)
    require_apart((), audit, file_roots=config.remote.file_roots)
    for warning in sandbox_warnings(config.etl, [*of_store(store), *audit]):
        log.warning("%s", warning)


class Addresses(NamedTuple):
    """Where a node listens, known once it does: functions, because components are made before."""

    port: Callable[[], int]
    peer_port: Callable[[], int]
    endpoint: Callable[[], str]
    """host:port by which clients reach the node; empty where that is unknown."""
    peer_endpoint: Callable[[], str]
    reported_peer_endpoint: Callable[[], str]
    """The endpoint, or the port alone; see GetMapResponse."""


class NodePart(NamedTuple):
    """A component of a node with its start and its stop; both may be missing, and may be coroutines."""

    start: Callable[[], Awaitable[object] | object] | None = None
    stop: Callable[[], Awaitable[object] | object] | None = None


async def start(parts: Iterable[NodePart]) -> None:
    for part in parts:
        await _run(part.start)


async def stop(parts: Sequence[NodePart]) -> None:
    """Stop parts in the reverse order of their start."""
    for part in reversed(parts):
        await _run(part.stop)


async def _run(step: Callable[[], Awaitable[object] | object] | None) -> None:
    done = step() if step is not None else None
    if isinstance(done, Awaitable):
        await done


class NodeLifecycle:
    """The components of one node. Belongs to the node's event loop; made on it."""

    def __init__(
        self,
        node: Node,
        membership: Membership,
        acceptor_store: AcceptorStore,
        confirmation: MapConfirmation,
        at: Addresses,
        version: str,
        *,
        find: Callable[[], Iterable[Path]],
        transforms: Callable[[Node], NodeTransforms] | None = None,
        environments: Environments | None = None,
    ) -> None:
        """
        Args:
            find: returns the folders at which drives of this node may be; called on a reader thread.
            transforms: what jobs pass objects through in place of the node's own transforms.
            environments: where packages that transforms require can be installed.
        """
        config = node.config
        self.etl = etl = _etl_of(node, membership, environments)
        self.confirmation = confirmation
        self.methods = Methods()
        self.check = PeerCheck(node, membership, at.peer_port, at.port)
        self.writes = writes = WriteCoordinator(
            node,
            membership,
            on_short=lambda *short: self.repair.left_short(*short),  # repair is made of this
            compare=lambda: self.repair.compare_all(),
        )
        put_writer = PutWriter(node, writes)
        plans = Plans()
        self.remote = node_tier(
            node,
            writes,
            put_writer.store_chunks,
            put_writer.store_group,
            put_writer.delete,
            put_writer.done_earlier,
            plans.needed_at,
        )
        self.prefetcher = Prefetcher(self.remote, config.remote.prefetch_requests, plans)
        self.batches = BatchService(node, etl, self.remote)
        self._objects = ObjectsService(node, writes, put_writer, self.remote, self.batches.resources.coded)
        job_store = RemoteStore(
            NodeStore(node, writes, etl.spool), self.remote.buckets, lambda: self.remote, lambda work: work
        )
        self.promote = PromoteService(node, membership, writes, self.remote, job_store.heads)
        self.repair = repair = Repair(node, membership, writes, at.peer_endpoint)
        self.coding = Coding(node, membership, writes, repair, self.batches.resources.coded)
        self.snapshots = NodeSnapshots(node, membership, writes, repair)
        self.drives = DriveManager(
            node,
            membership,
            acceptor_store,
            repair,
            find,
            lambda folder: require_apart(config.store.promote_roots, [folder], config.etl.command_paths),
        )
        self.revoked = RevokedTokens(node)
        self.jobs = jobs_of_node(
            node,
            membership,
            writes,
            job_store,
            etl.transforms if transforms is None else transforms(node),
            etl,
            self.revoked,
        )
        self.calls = TransformCalls(etl, membership.node_uuid, EtlPeers(node, writes.channels).states)
        self.cluster = ClusterService(node, membership, acceptor_store, at.reported_peer_endpoint, self.check.is_inside)
        self.gate = (
            TokenGate(node, self.revoked, self.jobs.buckets_of, self.check.is_inside)
            if config.listen.token_key_file
            else None
        )
        """Check of clients' tokens; None if they need none."""
        lines = CallLines(node.audit, config) if node.audit is not None else None
        self.of_clients = CallPath(node, lines, self.gate, node.rates)
        self.of_lanes = CallPath(node, lines, self.gate, node.rates, over_lane=True)
        self.of_peers = CallPath(node, lines)
        self._map_sync: Callable[[], MapSync] = lambda: MapSync(
            node.learn,
            membership,
            acceptor_store,
            at.endpoint(),
            at.peer_endpoint(),
            node.caller,
            lambda: writes.leases.is_in_touch,
        )
        self._etl_due = Wakeup()
        node.on_change(self._etl_due.set)
        self._node = node
        self._add_services(node, version)
        repair.prepare()

    def _add_services(self, node: Node, version: str) -> None:
        """Register the calls of every component. The call table decides which listener serves them."""
        add, writes, snapshots, repair = self.methods.add, self.writes, self.snapshots, self.repair
        add("Buckets", BucketsService(node, PendingGuard(self.remote, node.membership, writes.channels)))
        add("Objects", self._objects)
        add("Node", NodeService(self.batches, version, self.remote))
        add("Compose", ComposeService(node, writes, self._objects, self.remote))
        add("Promote", self.promote)
        add("Contents", ContentsService(node, writes, self.remote, self.coding))
        add("ContentsReplica", ContentsReplicaService(node))
        add("Cluster", self.cluster)
        add("Drives", **drive_calls(self.drives))
        add("Tokens", **token_calls(self.revoked))
        add("Replica", ReplicaService(node, repair.unsure))
        add(
            "Repair",
            Missed=repair.missed,
            Relay=repair.relay,
            RenewLease=repair.leases.renew,
            Returned=repair.returned,
            Push=repair.push,
            TooFew=repair.too_few,
            Recall=self.coding.recall,
            Compare=repair.ranges.answer,
            Progress=self._progress,
        )
        add("Snapshots", SnapshotsService(node, snapshots.snapshots))
        copies = SnapshotCopiesService(node, writes.snapshot_barrier, snapshots.convergence, snapshots.snapshots)
        add("SnapshotCopies", copies)
        add("RemoteBuckets", RemoteBucketsService(node, self.remote, self.prefetcher))
        add("RemotePeer", RemotePeerService(self.remote))
        add("Etl", EtlService(self.jobs, self.calls), **etl_calls(self.calls, self.jobs))
        add("EtlPeer", State=self.calls.state, Part=self.jobs.answer)

    def _progress(self, _: replica_pb.ProgressRequest) -> replica_pb.ProgressResponse:
        progress = self.repair.progress()
        progress.coding.CopyFrom(self.coding.progress())
        return progress

    def parts(self, listeners: NodePart) -> list[NodePart]:
        """Return all parts in the order of their start. `listeners`: the open ports, as one of the parts."""
        background = _Background()
        audit = self._node.audit
        return [
            *([NodePart(audit.open, lambda: asyncio.to_thread(audit.close))] if audit is not None else ()),
            NodePart(stop=self.promote.close),
            NodePart(stop=lambda: cancel_others(STOP_TIMEOUT_S)),  # calls that outlived the grace period
            NodePart(stop=self.writes.close),
            NodePart(stop=self.snapshots.close),
            NodePart(stop=self.remote.close),
            NodePart(stop=self.prefetcher.close),
            NodePart(stop=self.batches.resources.peers.close),
            NodePart(stop=self.confirmation.close),
            NodePart(stop=self.check.close),
            NodePart(stop=self.etl.close),
            listeners,
            NodePart(stop=self.promote.stop),
            NodePart(stop=self.batches.stop),
            NodePart(lambda: self.repair.start(self.snapshots.repair.pass_), self.repair.stop),
            NodePart(self.drives.start, self.drives.stop),
            NodePart(lambda: background.start(self._endless()), background.stop),
        ]

    def _endless(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Return what runs until the node stops, by a description for the log."""
        audit = self._node.audit
        return {
            "ending what stands in others' way": self.batches.watch,
            "following the cluster's map": self._map_sync().run,
            "taking care of snapshots": self.snapshots.sweep.run,
            "coding objects": self.coding.code,
            "keeping groups of coded objects": self.coding.keep,
            "passing buckets through transforms": self.jobs.run,
            "following the list of transforms": partial(_follow, self.etl, self._etl_due),
            **({} if audit is None else {"keeping the end of the audit log": audit.keep_end}),
            **({} if self.gate is None else {"ending what has no valid token": self.gate.watch}),
        }


class _Background:
    """Tasks that run until the node stops."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, endless: dict[str, Callable[[], Coroutine[Any, Any, None]]]) -> None:
        self._tasks = [asyncio.create_task(keep_going(name, run)) for name, run in endless.items()]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=STOP_TIMEOUT_S)


def _etl_of(node: Node, membership: Membership, environments: Environments | None) -> LocalEtl:
    config = node.config
    transform_http = TransformHttp(
        host=config.etl.http_host,
        port=config.etl.http_port,
        advertise=config.etl.http_advertise,
        peer_secret=read_secret(config.listen.peer_secret_file),
    )
    drive = next(drive.root for drive in node.store.drives if drive is not None)
    registry = Registry(node.store, node.read, node)
    return LocalEtl(node.store, registry, config, drive, node.read, transform_http, environments)


async def _follow(etl: LocalEtl, changed: Wakeup) -> None:
    """Close stages of transforms that another node has stopped, deleted or replaced; prepare new ones."""
    while True:
        etl.transforms.follow()
        etl.transforms.prepare(known := etl.registry.all())
        await (changed.wait_for_tick(_FOLLOW_S) if known else changed.wait())  # what fails is prepared again
