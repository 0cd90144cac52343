"""Node context: the store, the settings and the place in the cluster that every part of a node works with.

Parts that serve batches, single calls and other nodes are given this and nothing of each other's: whoever needs to wait
for a drive does so by `read`, off the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import TypeVar

from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.context.caller import Caller, read_secret
from storage_node.context.membership import Membership
from storage_node.context.peer_clocks import PeerClocks
from storage_node.limits.counters import NodeMetrics, clock_s
from storage_node.limits.places import Places
from storage_node.limits.pressure import Pressure, give_memory_back
from storage_node.limits.streams import Streams
from storage_node.limits.tasks import settled
from storage_node.limits.turns import ASKING, Turns
from storage_node.settings.config import ServerConfig
from storage_node.store.store import Store

T = TypeVar("T")


_READS_PER_THREAD = 2
"""Pieces of work that reader threads have or find when they are done; others wait for their tenants' turns."""
_UNREAD_CALLS = 4096
_UNREAD_STILL_S = 1.0
"""How long a request may take to arrive while memory is short."""
_WRITES_PER_STREAM = 16
"""As many nodes may each have a copy written here for every stream that this node may have."""


class Node:
    """Belongs to the node's event loop.

    Args:
        readers: threads that wait for drives.
        archive_openers: threads for what may take as long as reading an archive.
        membership: None for a node of no cluster.
    """

    def __init__(
        self,
        store: Store,
        config: ServerConfig,
        readers: Executor,
        archive_openers: Executor,
        membership: Membership | None = None,
    ) -> None:
        self.store = store
        self.config = config
        self.membership = membership
        self.caller = Caller(read_secret(config.peer_secret_file), bytes.fromhex(store.store_uuid), self._map_version)
        """As whom this node calls others."""
        self.confirm_map: Callable[[pb.ClusterMap], Awaitable[None]] | None = None
        """Raises when a map is not to be believed."""
        self.peer_clocks = PeerClocks(lambda: store.clock.wall_ms())
        store.clock.max_offset_ms = round(config.max_clock_offset_s * 1000)
        self.metrics = NodeMetrics()
        self.pressure = Pressure(config, lambda: readers.submit(give_memory_back))
        self.streams = Streams(
            config.max_streams,
            config.still_s,
            config.stall_timeout_s,
            config.tenant_weights,
            message_bytes=config.max_message_bytes,
        )
        """Of clients, which put and get objects."""
        self.replica_streams = Streams(
            config.max_streams * _WRITES_PER_STREAM,
            config.still_s,
            config.stall_timeout_s,
            message_bytes=config.max_message_bytes,
        )
        """Of nodes that coordinate writes, apart from those of clients: a node that has no place for a copy of what
        another one takes on must not make that wait for a client's."""
        self.unread = Places(_UNREAD_CALLS, _UNREAD_STILL_S, config.tenant_weights)
        """Places of gRPC calls that have a single request, until it has arrived."""
        self._readers = readers
        self._archive_openers = archive_openers
        self.opening = Turns(config.archive_threads, spare=1)
        """At the threads that open archives."""
        self.reading = Turns(_READS_PER_THREAD * config.read_threads)
        self._learning = asyncio.Lock()

    @property
    def map_version(self) -> int:
        """Of the newest map known here; 0 without one."""
        view = self.membership.view if self.membership is not None else None
        return view.version if view is not None else 0

    def limits(self) -> dict[str, str]:
        """The configuration's, with those that were found at the start."""
        return self.config.limits() | {"critical_memory_bytes": str(self.pressure.critical_bytes)}

    def _map_version(self) -> int:
        view = self.membership.view if self.membership is not None else None
        return view.version if view is not None else 0

    async def learn(self, map_: pb.ClusterMap) -> int:
        """See Membership.learn. One at a time, and so on one reader thread: deleting a bucket takes its time."""
        if self.membership is None:
            raise ValueError("this node keeps no map")
        async with self._learning:
            if self.confirm_map is not None:
                await self.confirm_map(map_)
            return await self.read(self.membership.learn, map_)

    async def open_archives(self, tenant: str, function: Callable[..., T], *arguments: object) -> T:
        """As `read`, of what may take as long as reading an archive whole, or as deleting a bucket: such jobs have
        threads of their own, which tenants take turns at."""
        async with self.opening.turn(tenant):
            return await self._run(self._archive_openers, function, arguments)

    async def read(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a function that may wait for a drive, off the event loop.

        Cancelled, it still returns only when the function has, or never will be run: what it works on may be closed.
        """
        tenant = ASKING.get()
        submitted_s = clock_s()
        self.metrics.pending_reads += 1
        try:
            await self.reading.begin(tenant)
            try:
                return await self._run(self._readers, function, arguments, submitted_s)
            finally:
                self.reading.end(tenant)
        finally:
            self.metrics.pending_reads -= 1

    async def _run(
        self,
        threads: Executor,
        function: Callable[..., T],
        arguments: tuple[object, ...],
        submitted_s: float | None = None,
    ) -> T:
        """`submitted_s`: since when it waits for a thread, where that says how busy the drives are."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            """On a reader thread. Hands the outcome over itself: `wrap_future` costs half as much as all the rest."""
            if submitted_s is not None:
                self.pressure.reader_waited(clock_s() - submitted_s)
            try:
                result = function(*arguments)
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                loop.call_soon_threadsafe(_fail, answer, error)
            else:
                loop.call_soon_threadsafe(_answer, answer, result)

        submitted = threads.submit(work)
        try:
            return await answer
        except asyncio.CancelledError:
            if not submitted.cancel():
                await settled(asyncio.wrap_future(submitted))
            raise


def _answer(future: asyncio.Future[T], result: T) -> None:
    if not future.done():  # else nobody waits for it any more
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
