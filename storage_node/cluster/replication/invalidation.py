"""Invalidation outbox: tells nodes of the writes that they missed, before those writes are acknowledged.

A node that did not answer a moment ago may still be up: a connection may have broken, or the machine may be busy. Such
a node continues to answer reads, so it is told in any case. If this node cannot reach it, other nodes are asked to
relay the message. The wait ends when the node has been told, or when so many nodes have stopped renewing its read lease
that it no longer holds one. Undelivered messages are kept and delivered as soon as the node can be reached. Until then,
this node does not renew its lease.

A map of two nodes has no leases. There, the wait also ends if nothing listens at the endpoint, or if the node has been
silent for so long that it is either cut off or was suspended; a suspended node compares its copies before it serves
again.

Belongs to the node's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import grpc
import grpc.aio

from ais_loader.wire.generated import ais_replica_pb2 as wire
from ais_loader.wire.generated import ais_replica_pb2_grpc
from storage_node.cluster.replication.lease_keeper import ReadLeases
from storage_node.cluster.replication.replica import to_wire
from storage_node.context.channels import REACH_TIMEOUT_S, STEP_TIMEOUT_S, Channels
from storage_node.limits.tasks import keep_going
from storage_node.store.format import Version
from storage_node.store.replica_state import clock_s

CONNECT_S = 0.3
"""A running node accepts a new connection within this time after one has broken."""
MAX_KEPT = 100_000
"""Most names kept per node. One that misses more compares its copies before it gets a lease, or in its next pass."""
RELAY_AGAIN_S = 0.5
GIVEN_UP_S = 30.0
"""A node that was told of a write and cannot find it anywhere after this time assumes that it did not happen. If the
commit takes longer, the node is told again before the write is acknowledged."""
_NAMES_AT_ONCE = 1000
_PAUSE_S = 0.05
log = logging.getLogger(__name__)
Bucket = tuple[str, bytes]
"""A bucket's name and uuid."""


class _NodeQueue:
    """The undelivered messages for one node."""

    def __init__(self) -> None:
        self.kept: dict[Bucket, dict[str, Version]] = {}
        self.since_s = 0.0
        """Time at which delivery of the oldest message began."""
        self.refused = False
        """Nothing listened at the endpoint on the last attempt."""
        self.is_failing = False
        """The last delivery failed."""
        self.is_incomplete = False
        """Messages were dropped because of `MAX_KEPT`; the node has to compare its copies."""
        self.changed = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def patient_until_s(self, began_s: float, leased_until_s: float) -> float:
        """Return the time at which a wait that began at `began_s` may give up.

        A node that has been silent for long may become reachable again at any moment, and then it answers reads. Each
        wait therefore gives it time to be told of this write too. By an earlier map it may hold a lease.
        """
        if self.refused:
            return max(self.since_s + CONNECT_S, leased_until_s)
        return max(self.since_s + REACH_TIMEOUT_S, began_s + CONNECT_S, leased_until_s)

    def keep(self, bucket: Bucket, versions: Mapping[str, Version]) -> None:
        known = self.kept.setdefault(bucket, {})
        for name, version in versions.items():
            if name in known or sum(map(len, self.kept.values())) < MAX_KEPT:
                known[name] = max(version, known.get(name, version))
            else:
                self.is_incomplete = True

    def acknowledge(self, bucket: Bucket, versions: Mapping[str, Version]) -> None:
        known = self.kept.get(bucket, {})
        for name, version in versions.items():
            if name in known and known[name] <= version:
                del known[name]
        if not known:
            self.kept.pop(bucket, None)

    async def wait(self, timeout_s: float) -> None:
        """Wait until a delivery has succeeded or failed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.changed.wait()

    def knows(self, bucket: Bucket, versions: Mapping[str, Version]) -> bool:
        """Return whether the node was told of all these versions, or does not need to be."""
        known = self.kept.get(bucket, {})
        return not self.is_incomplete and not any(
            name in known and known[name] >= version for name, version in versions.items()
        )


class InvalidationOutbox:
    """Undelivered invalidations of all nodes. Call `close` when the node stops."""

    def __init__(
        self,
        channels: Channels,
        is_member: Callable[[str], bool],
        note_map_version: Callable[[str, int], None],
        teach: Callable[[str, Bucket], Awaitable[bool]],
        leases: Callable[[Callable[[str], bool]], ReadLeases],
    ) -> None:
        """
        Args:
            is_member: whether the map has a node at an endpoint.
            note_map_version: called with the endpoint and map version of each node that answers.
            teach: sends a node the map; returns False if that is useless, because the map lacks the bucket too.
            leases: creates the leases of this node, given a test for undelivered invalidations.
        """
        self._channels = channels
        self._note_map_version = note_map_version
        self._is_member = is_member
        self._teach = teach
        self._lines: dict[str, _NodeQueue] = {}
        self.leases = leases(self.undelivered)

    def undelivered(self, endpoint: str) -> bool:
        """Return whether the node at this endpoint still has to be told of a write."""
        return endpoint in self._lines

    async def invalidate(self, endpoint: str, bucket: Bucket, versions: Mapping[str, Version]) -> bool:
        """Tell a node that these versions are about to be committed without it. The module's docstring says when the
        wait ends.

        Returns False if the node can still be read from and was not told.
        """
        line = self._keep(endpoint, bucket, versions)
        began_s = time.monotonic()
        if not self.leases.apply:
            leased_until_s = began_s + self.leases.left_s(endpoint)
            while not line.knows(bucket, versions):
                left_s = line.patient_until_s(began_s, leased_until_s) - time.monotonic()
                if left_s <= 0:
                    break
                await line.wait(left_s)
            return True
        return await self._is_delivered(line, bucket, versions) or await self._without(endpoint, line, bucket, versions)

    async def relay(self, endpoint: str, node_uuid: bytes, bucket: Bucket, versions: Mapping[str, Version]) -> float:
        """Tell a node on behalf of another one that cannot reach it, or stop renewing its lease.

        Returns how many seconds the lease that this node granted may still last; a negative number if the node was
        told.
        """
        line = self._keep(endpoint, bucket, versions)
        if await self._is_delivered(line, bucket, versions):
            return -1.0
        return await self.leases.withhold(node_uuid)

    def returned(self, endpoint: str) -> None:
        """Note that the node has restarted. It compares its copies with those of all others before it serves reads."""
        if (line := self._lines.get(endpoint)) is not None:
            line.is_incomplete = False

    def _keep(self, endpoint: str, bucket: Bucket, versions: Mapping[str, Version]) -> _NodeQueue:
        line = self._lines.get(endpoint)
        if line is None:
            line = self._lines[endpoint] = _NodeQueue()
            line.since_s = time.monotonic()
        line.keep(bucket, versions)
        if line.is_incomplete and (node := self.leases.member(endpoint)) is not None:
            self.leases.require_comparison(node.uuid)
        if line.task is None or line.task.done():
            name = f"telling {endpoint} of writes"
            line.task = asyncio.create_task(keep_going(name, partial(self._deliver, endpoint, line)), name=name)
        return line

    @staticmethod
    async def _is_delivered(line: _NodeQueue, bucket: Bucket, versions: Mapping[str, Version]) -> bool:
        """Wait a moment for the delivery, unless the last one failed; return whether the node was told."""
        until_s = time.monotonic() + CONNECT_S
        while not line.knows(bucket, versions) and not line.is_failing and (left_s := until_s - time.monotonic()) > 0:
            await line.wait(left_s)
        return line.knows(bucket, versions)

    async def _without(self, endpoint: str, line: _NodeQueue, bucket: Bucket, versions: Mapping[str, Version]) -> bool:
        """Have other nodes relay the message; wait until the node was told or holds no lease. Returns False if neither
        is reached."""
        leases, node = self.leases, self.leases.member(endpoint)
        if node is None:
            return True  # removed from the map in the meantime
        mine_s = clock_s() + await leases.withhold(node.uuid)
        over_s: dict[bytes, float] = {}
        relays: dict[asyncio.Task[wire.RelayResponse | None], bytes] = {}
        give_up_s = clock_s() + STEP_TIMEOUT_S
        try:
            while not line.knows(bucket, versions):
                end_s = leases.over_s(mine_s, over_s)
                if end_s is not None and clock_s() >= end_s:
                    return True
                if end_s is None and clock_s() > give_up_s:
                    return False
                for other in leases.others(node.uuid):
                    if other.uuid not in over_s and other.uuid not in relays.values():
                        step = leases.relay(self._channels, other.peer_endpoint, node.uuid, bucket, versions)
                        relays[asyncio.ensure_future(step)] = other.uuid
                changed = asyncio.ensure_future(line.changed.wait())
                left_s = min(give_up_s if end_s is None else end_s, clock_s() + RELAY_AGAIN_S) - clock_s()
                await asyncio.wait({changed, *relays}, timeout=max(0.0, left_s), return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                for done in [task for task in relays if task.done()]:
                    by, answer = relays.pop(done), done.result()
                    if answer is None or not (answer.told or answer.withheld):
                        await asyncio.sleep(_PAUSE_S)
                    elif answer.told:
                        line.acknowledge(bucket, versions)
                    else:
                        over_s[by] = clock_s() + answer.lease_left_s
            return True
        finally:
            for task in relays:
                task.cancel()

    async def _deliver(self, endpoint: str, line: _NodeQueue) -> None:
        """Deliver everything kept for one node, with retries."""
        stub = ais_replica_pb2_grpc.RepairStub(self._channels.to(endpoint))
        failed = is_noted = False
        taught: set[Bucket] = set()
        try:
            while (line.kept or line.is_incomplete or not is_noted) and self._is_member(endpoint):
                line.is_failing = failed
                if is_noted := not line.kept and not line.is_incomplete:
                    if (node := self.leases.member(endpoint)) is not None:
                        await self.leases.note_caught_up(node.uuid)  # what is kept meanwhile is delivered next
                    continue
                if not line.kept:
                    await asyncio.sleep(_PAUSE_S)
                    continue
                bucket, known = next(iter(line.kept.items()))
                part = dict(list(known.items())[:_NAMES_AT_ONCE])
                request = wire.MissedRequest(
                    bucket=wire.BucketRef(name=bucket[0], uuid=bucket[1]),
                    name=list(part),
                    version=map(to_wire, part.values()),
                )
                try:
                    # Once nothing listens there, the call waits until something does.
                    answer: wire.MissedResponse = await stub.Missed(
                        request, timeout=REACH_TIMEOUT_S, wait_for_ready=failed
                    )
                except grpc.aio.AioRpcError as error:
                    code = error.code()
                    self._channels.refused(endpoint, error)
                    is_silent = code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
                    if not is_silent and bucket not in taught and await self._teach(endpoint, bucket):
                        taught.add(bucket)  # it did not know the bucket, or this node
                        continue
                    if code == grpc.StatusCode.NOT_FOUND:
                        line.acknowledge(bucket, part)  # it answers and needs nothing: the bucket was deleted
                    else:
                        # A node that refuses the call, as that of a node whose clock is far from its own, was not told.
                        if not failed:
                            line.refused = code == grpc.StatusCode.UNAVAILABLE
                            self._channels.failed(endpoint, silent=not line.refused)
                        failed = True
                        await asyncio.sleep(_PAUSE_S)
                except asyncio.CancelledError:
                    # gRPC also raises this if the other node cancelled the call, which does not end this task.
                    task = asyncio.current_task()
                    if task is None or task.cancelling():
                        raise
                    failed = line.refused = True
                    await asyncio.sleep(_PAUSE_S)
                else:
                    self._note_map_version(endpoint, answer.map_version)
                    line.acknowledge(bucket, part)
                    line.since_s, line.refused = time.monotonic(), False
                    if failed:
                        failed = False
                        self._channels.answered(endpoint)
                line.is_failing = failed
                line.changed.set()
                line.changed = asyncio.Event()
            line.kept.clear()  # of a node that the map has no longer
            del self._lines[endpoint]
        finally:
            line.changed.set()
            line.changed = asyncio.Event()

    async def close(self) -> None:
        tasks = [line.task for line in self._lines.values() if line.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
