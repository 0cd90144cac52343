"""Node context: the store, the settings and the cluster membership that all parts of a node work with.

The parts that serve batches, single calls and other nodes get this object, and nothing of each other. Code that waits
for a drive runs through `read`, off the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from threading import Thread
from typing import NamedTuple, TypeVar

from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.context.channels import Caller
from storage_node.context.membership import Membership
from storage_node.limits.blocking_calls import BlockingCalls
from storage_node.limits.call_slots import CallSlots, Streams, current_tenant
from storage_node.limits.counters import NodeCounters, clock_s
from storage_node.limits.fair_scheduler import JobTurns
from storage_node.limits.load_monitor import LoadMonitor, give_memory_back
from storage_node.limits.tenant_rates import TenantRates
from storage_node.security.audit.log import audit_log
from storage_node.settings.config import ServerConfig
from storage_node.store.buckets import ObjectCoded
from storage_node.store.drive.version_clock import LAST_MS, advice, shown
from storage_node.store.format import CatalogEntry
from storage_node.store.store import Store

FORGOTTEN_S = 600.0
"""Reports older than this are ignored."""


class Verdict(NamedTuple):
    here: bool
    """Most nodes contradict this node's clock."""
    others: frozenset[bytes]
    """Uuids of the nodes whose clocks differ too much: from the majority's, or from this node's if there is no
    majority."""
    is_sure: bool


def judge(offsets_ms: Mapping[bytes, int], most_ms: int) -> Verdict:
    """Decide whose clock is wrong; pure.

    Args:
        offsets_ms: how far other nodes are ahead of this one, by uuid.
        most_ms: the largest tolerated difference.
    """
    if all(abs(offset) <= most_ms for offset in offsets_ms.values()):
        return Verdict(False, frozenset(), True)
    every = [0, *offsets_ms.values()]
    # Several clocks may have the same number of agreeing ones. Taking the lowest gives the same answer on every node.
    # Otherwise, two nodes at both ends of an overlap would both go on.
    agreeing, lowest = max((sum(abs(one - other) <= most_ms for one in every), -other) for other in every)
    middle = -lowest
    is_sure = 2 * agreeing > len(every)
    middle = middle if is_sure else 0
    others = frozenset(uuid for uuid, offset in offsets_ms.items() if abs(offset - middle) > most_ms)
    return Verdict(abs(middle) > most_ms, others, is_sure)


class PeerClocks:
    """The last reported wall clocks of other nodes. Written by the node's event loop, read from any thread."""

    def __init__(self, wall_ms: Callable[[], int], since_s: Callable[[], float] | None = None) -> None:
        """`since_s` is a monotonic clock that continues while the machine is suspended."""
        self._wall_ms = wall_ms
        self._since_s = since_s or (lambda: time.clock_gettime(time.CLOCK_BOOTTIME))
        self._reports: dict[bytes, tuple[int, float]] = {}

    def note(self, uuid: bytes, wall_ms: int) -> None:
        """Record a report. `wall_ms` is 0 if the node reports no clock."""
        if wall_ms:
            self._reports[uuid] = min(wall_ms, LAST_MS), self._since_s()

    def offsets_ms(self, members: Container[bytes]) -> dict[bytes, int]:
        """Return the offsets of these nodes, if they reported lately."""
        now_s, local_ms = self._since_s(), self._wall_ms()
        return {
            uuid: reported_ms + round((now_s - at_s) * 1000) - local_ms
            for uuid, (reported_ms, at_s) in list(self._reports.items())
            if uuid in members and now_s - at_s <= FORGOTTEN_S
        }

    @property
    def widest_ms(self) -> int:
        """The largest offset by magnitude of any recent report; 0 if there is none."""
        return max(self.offsets_ms(self._reports).values(), key=abs, default=0)

    def describe(self, endpoint: str, offset_ms: int, most_ms: int) -> str:
        """Describe a clock that is too far ahead, and what to do about it."""
        local_ms = self._wall_ms()
        remote = shown(local_ms + offset_ms)
        return f"the clock of {endpoint} shows {remote}, this node's {shown(local_ms)}; {advice(most_ms)}"


T = TypeVar("T")


_READS_PER_THREAD = 2
"""Jobs that each reader thread has or finds when it is done; further jobs wait for their tenants' turns."""
_RECALLS = 3
"""How often a function may find that objects are coded, or were coded again."""
_UNREAD_CALLS = 4096
_UNREAD_STILL_S = 1.0
"""Time limit for a request to arrive while memory is short."""
_WRITES_PER_STREAM = 16
"""For every stream that this node may have, this many other nodes may each write a replica here."""


class Node:
    """Context of one node. Belongs to the node's event loop.

    Args:
        readers: threads that wait for drives.
        archive_openers: threads for jobs that may take as long as reading an archive.
        caller: the identity with which this node calls others.
        confirm_map: raises if a map is not to be trusted.
    """

    def __init__(
        self,
        store: Store,
        config: ServerConfig,
        readers: BlockingCalls,
        archive_openers: BlockingCalls,
        membership: Membership,
        caller: Caller,
        confirm_map: Callable[[pb.ClusterMap], Awaitable[None]],
    ) -> None:
        self.store = store
        self.config = config
        self.membership = membership
        self.caller = caller
        self._confirm_map = confirm_map
        self.peer_clocks = PeerClocks(lambda: store.clock.wall_ms())
        store.clock.max_offset_ms = round(config.cluster.max_clock_offset_s * 1000)
        self.metrics = NodeCounters()
        self.audit = audit_log(config.audit, store, membership.node_uuid)
        """The audit log; None if nothing is logged."""
        self.load = LoadMonitor(config.limits, lambda: Thread(target=give_memory_back).start())
        self.streams = Streams(
            config.limits.max_streams,
            config.limits.still_s,
            config.limits.stall_timeout_s,
            config.limits.tenant_weights,
            message_bytes=config.limits.max_message_bytes,
            tenant_share=config.limits.tenant_share,
        )
        """Streams of clients, which put and get objects."""
        self.replica_streams = Streams(
            config.limits.max_streams * _WRITES_PER_STREAM,
            config.limits.still_s,
            config.limits.stall_timeout_s,
            message_bytes=config.limits.max_message_bytes,
        )
        """Streams of nodes that coordinate writes, separate from those of clients: a node without a free slot for a
        replica must not make another node's write wait for one of its own clients."""
        rates = config.limits.tenant_requests_per_s, config.limits.tenant_bytes_per_s
        self.rates = TenantRates(*rates) if any(rates) else None
        """Rates of tenants; None if they are not limited."""
        self.unread = CallSlots(
            _UNREAD_CALLS, _UNREAD_STILL_S, config.limits.tenant_weights, tenant_share=config.limits.tenant_share
        )
        """Slots of gRPC calls with a single request, until it has arrived."""
        self.recall: Callable[[bytes, Iterable[tuple[str, CatalogEntry]]], Awaitable[None]] | None = None
        """Stores coded objects of a bucket here as files again, given by uuid, and names with entries; None before the
        node can."""
        self._readers = readers
        self._archive_openers = archive_openers
        self.opening = JobTurns(config.reads.archive_threads, spare=1)
        """Turns at the threads that open archives."""
        self.reading = JobTurns(_READS_PER_THREAD * config.reads.read_threads)
        self._learning = asyncio.Lock()

    @property
    def map_version(self) -> int:
        """See `Membership.map_version`."""
        return self.membership.map_version

    def limits(self) -> dict[str, str]:
        """Return the configuration's limits, with those that were determined at the start."""
        return self.config.as_text() | {"critical_memory_bytes": str(self.load.critical_bytes)}

    def on_change(self, listener: Callable[[], object]) -> None:
        """Call `listener`, on any thread, after each change of the map or of the store's record."""
        self.membership.on_use(listener)
        self.store.record.watches |= {listener}

    async def learn(self, map_: pb.ClusterMap) -> int:
        """See Membership.learn. One map at a time, and so on one reader thread: deleting a bucket takes time."""
        async with self._learning:
            await self._confirm_map(map_)
            return await self.read(self.membership.learn, map_)

    async def open_archives(self, tenant: str, function: Callable[..., T], *arguments: object) -> T:
        """Like `read`, for jobs that may take as long as reading an entire archive, or deleting a bucket. They have
        threads of their own, shared by tenants in turns."""

        async def run() -> T:
            async with self.opening.turn(tenant):
                return await self._archive_openers.submit(lambda: function(*arguments)).settled()

        return await self._with_files(run)

    async def read(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a function that may wait for a drive, off the event loop. See `BlockingCall.settled`. If it raises
        ObjectCoded, the objects are stored again, and it is called again."""
        return await self._with_files(lambda: self._read(function, arguments))

    async def _with_files(self, run: Callable[[], Awaitable[T]]) -> T:
        for _ in range(_RECALLS):
            try:
                return await run()
            except ObjectCoded as coded:
                if self.recall is None or not coded.entries:
                    raise
                await self.recall(coded.bucket_uuid, coded.entries.items())
        return await run()

    async def _read(self, function: Callable[..., T], arguments: tuple[object, ...]) -> T:
        tenant, submitted_s = current_tenant.get(), clock_s()

        def work() -> T:
            self.load.reader_waited(clock_s() - submitted_s)
            return function(*arguments)

        self.metrics.pending_reads += 1
        try:
            await self.reading.begin(tenant)
            try:
                return await self._readers.submit(work).settled()
            finally:
                self.reading.end(tenant)
        finally:
            self.metrics.pending_reads -= 1
