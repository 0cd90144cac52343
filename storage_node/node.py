"""Node context: the store, the settings and the place in the cluster that every part of a node works with.

Parts that serve batches, single calls and other nodes are given this and nothing of each other's: whoever needs to wait
for a drive does so by `read`, off the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.map.membership import Membership
from storage_node.config import ServerConfig
from storage_node.metric_counters import NodeMetrics, clock_s
from storage_node.pressure import Pressure, give_memory_back
from storage_node.store.store import Store
from storage_node.tasks import settled

T = TypeVar("T")


class Node:
    """Belongs to the node's event loop.

    Args:
        readers: threads that wait for drives.
        membership: None for a node of no cluster.
    """

    def __init__(
        self, store: Store, config: ServerConfig, readers: Executor, membership: Membership | None = None
    ) -> None:
        self.store = store
        self.config = config
        self.membership = membership
        self.metrics = NodeMetrics()
        self.pressure = Pressure(config, lambda: readers.submit(give_memory_back))
        self._readers = readers
        self._learning = asyncio.Lock()

    def limits(self) -> dict[str, str]:
        """The configuration's, with those that were found at the start."""
        return self.config.limits() | {"critical_memory_bytes": str(self.pressure.critical_bytes)}

    async def learn(self, map_: pb.ClusterMap) -> int:
        """See Membership.learn. One at a time, and so on one reader thread: deleting a bucket takes its time."""
        if self.membership is None:
            raise ValueError("this node keeps no map")
        async with self._learning:
            return await self.read(self.membership.learn, map_)

    async def read(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a function that may wait for a drive, off the event loop.

        Cancelled, it still returns only when the function has, or never will be run: what it works on may be closed.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            """On a reader thread. Hands the outcome over itself: `wrap_future` costs half as much as all the rest."""
            self.pressure.reader_waited(clock_s() - submitted_s)
            try:
                result = function(*arguments)
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                loop.call_soon_threadsafe(_fail, answer, error)
            else:
                loop.call_soon_threadsafe(_answer, answer, result)

        submitted_s = clock_s()
        submitted = self._readers.submit(work)
        self.metrics.pending_reads += 1
        try:
            return await answer
        except asyncio.CancelledError:
            if not submitted.cancel():
                await settled(asyncio.wrap_future(submitted))
            raise
        finally:
            self.metrics.pending_reads -= 1


def _answer(future: asyncio.Future[T], result: T) -> None:
    if not future.done():  # else nobody waits for it any more
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
