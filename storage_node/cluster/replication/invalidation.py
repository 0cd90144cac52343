"""Invalidation outbox: nodes are told of the writes that they missed, before the acknowledgement, until they know.

That a node did not answer a moment ago does not say that it is away: a connection may have broken, or a busy machine
taken its time. It answers reads all the while, so it is told whether it seems to be there or not. Where this node
cannot reach it, others are asked to pass it on. Waiting ends when the node has heard of the write, or when so many
nodes renew its read lease no more that it holds none. What it has not heard of by then is kept, and said as soon as it
can be reached; as long as anything is kept for it, this node does not renew its lease.

Where there are no leases, as in a map of two nodes, waiting also ends when nothing listens there, or when it has been
silent for so long that it has either stood still, and compares its copies before it serves again, or is cut off.

Belongs to the node's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

import grpc
import grpc.aio

from ais_loader.wire.generated import ais_replica_pb2 as wire
from ais_loader.wire.generated import ais_replica_pb2_grpc
from storage_node.cluster.channels import Channels
from storage_node.cluster.replication.lease_keeper import ReadLeases
from storage_node.cluster.replication.read_lease import clock_s
from storage_node.cluster.replication.replica import to_wire
from storage_node.cluster.replication.replica_stream import REACH_TIMEOUT_S, STEP_TIMEOUT_S
from storage_node.store.format import Version

CONNECT_S = 0.3
"""A node that is there takes a new connection within this time, when one has broken."""
MAX_KEPT = 100_000
"""Names, for each node. One that misses more compares them at its next pass of repair, or when it starts."""
RELAY_AGAIN_S = 0.5
_NAMES_AT_ONCE = 1000
_PAUSE_S = 0.05
log = logging.getLogger(__name__)
Bucket = tuple[str, bytes]
"""Its name and its uuid."""


class _Line:
    """What is to be said to one node."""

    def __init__(self) -> None:
        self.kept: dict[Bucket, dict[str, Version]] = {}
        self.since_s = 0.0
        """When saying the first of it began."""
        self.refused = False
        """Nothing listens there, as far as is known."""
        self.is_failing = False
        """The last that was said to it did not get there."""
        self.is_incomplete = False
        """More was to be said than is kept: it has to compare its copies."""
        self.changed = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def patient_until_s(self, began_s: float, leased_until_s: float) -> float:
        """For one who began to wait then. A node that has been silent for long may be heard again at this moment, and
        then it answers reads: nobody goes on without having given it time to hear of this write too. By a map before
        this one it may hold a lease."""
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

    def heard(self, bucket: Bucket, versions: Mapping[str, Version]) -> None:
        known = self.kept.get(bucket, {})
        for name, version in versions.items():
            if name in known and known[name] <= version:
                del known[name]
        if not known:
            self.kept.pop(bucket, None)

    async def wait(self, timeout_s: float) -> None:
        """Until something has been said, or could not be."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.changed.wait()

    def knows(self, bucket: Bucket, versions: Mapping[str, Version]) -> bool:
        """Whether the node has heard of all of these, or need not."""
        known = self.kept.get(bucket, {})
        return not self.is_incomplete and not any(
            name in known and known[name] >= version for name, version in versions.items()
        )


class InvalidationOutbox:
    """`close` when the node stops."""

    def __init__(
        self,
        channels: Channels,
        is_member: Callable[[str], bool],
        heard_of_map: Callable[[str, int], None],
        teach: Callable[[str, Bucket], Awaitable[bool]],
        leases: Callable[[Callable[[str], bool]], ReadLeases],
    ) -> None:
        """Args:
        is_member: whether the map has a node at an endpoint.
        heard_of_map: called with the endpoint and the version of the map of each node that answers.
        teach: gives a node the map; False when there is no use in it, since that does not have the bucket either.
        leases: makes those of this node, given who has still to hear of writes.
        """
        self._channels = channels
        self._heard_of_map = heard_of_map
        self._is_member = is_member
        self._teach = teach
        self._lines: dict[str, _Line] = {}
        self.leases = leases(self.undelivered)

    def undelivered(self, endpoint: str) -> bool:
        """Whether the node there has still to hear of a write."""
        return endpoint in self._lines

    async def invalidate(self, endpoint: str, bucket: Bucket, versions: Mapping[str, Version]) -> bool:
        """That these versions are about to be committed without the node; returns as said above.

        False: it may be read from, and does not know.
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
        return await self._said(line, bucket, versions) or await self._without(endpoint, line, bucket, versions)

    async def relay(self, endpoint: str, node_uuid: bytes, bucket: Bucket, versions: Mapping[str, Version]) -> float:
        """Another node cannot tell this one: do so, or renew its lease no more before. How long one may still last that
        this node granted before; below 0: it has heard."""
        line = self._keep(endpoint, bucket, versions)
        if await self._said(line, bucket, versions):
            return -1.0
        return await self.leases.withhold(node_uuid)

    def returned(self, endpoint: str) -> None:
        """The node compares its copies with those of all others before it reads any out."""
        if (line := self._lines.get(endpoint)) is not None:
            line.is_incomplete = False

    def _keep(self, endpoint: str, bucket: Bucket, versions: Mapping[str, Version]) -> _Line:
        line = self._lines.get(endpoint)
        if line is None:
            line = self._lines[endpoint] = _Line()
            line.since_s = time.monotonic()
        line.keep(bucket, versions)
        if line.task is None:
            line.task = asyncio.create_task(self._deliver(endpoint, line), name=f"invalidations for {endpoint}")
        return line

    @staticmethod
    async def _said(line: _Line, bucket: Bucket, versions: Mapping[str, Version]) -> bool:
        """Give the node a moment, unless it could not be reached before; whether it has heard."""
        until_s = time.monotonic() + CONNECT_S
        while not line.knows(bucket, versions) and not line.is_failing and (left_s := until_s - time.monotonic()) > 0:
            await line.wait(left_s)
        return line.knows(bucket, versions)

    async def _without(self, endpoint: str, line: _Line, bucket: Bucket, versions: Mapping[str, Version]) -> bool:
        """Have others tell the node, and wait until it has heard or holds no lease; False when neither can be had."""
        leases, node = self.leases, self.leases.member(endpoint)
        if node is None:
            return True  # out of the map meanwhile
        mine_s = clock_s() + await leases.withhold(node.uuid)
        over_s: dict[bytes, float] = {}
        asked: dict[asyncio.Task[wire.RelayResponse | None], bytes] = {}
        give_up_s = clock_s() + STEP_TIMEOUT_S
        try:
            while not line.knows(bucket, versions):
                end_s = leases.over_s(mine_s, over_s)
                if end_s is not None and clock_s() >= end_s:
                    return True
                if end_s is None and clock_s() > give_up_s:
                    return False
                for other in leases.others(node.uuid):
                    if other.uuid not in over_s and other.uuid not in asked.values():
                        step = leases.relay(self._channels, other.peer_endpoint, node.uuid, bucket, versions)
                        asked[asyncio.ensure_future(step)] = other.uuid
                changed = asyncio.ensure_future(line.changed.wait())
                left_s = min(give_up_s if end_s is None else end_s, clock_s() + RELAY_AGAIN_S) - clock_s()
                await asyncio.wait({changed, *asked}, timeout=max(0.0, left_s), return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                for done in [task for task in asked if task.done()]:
                    by, answer = asked.pop(done), done.result()
                    if answer is None or not (answer.told or answer.withheld):
                        await asyncio.sleep(_PAUSE_S)
                    elif answer.told:
                        line.heard(bucket, versions)
                    else:
                        over_s[by] = clock_s() + answer.lease_left_s
            return True
        finally:
            for task in asked:
                task.cancel()

    async def _deliver(self, endpoint: str, line: _Line) -> None:
        """Say all that is kept for one node, again and again."""
        stub = ais_replica_pb2_grpc.RepairStub(self._channels.to(endpoint))
        failed = False
        taught: set[Bucket] = set()
        try:
            while (line.kept or line.is_incomplete) and self._is_member(endpoint):
                line.is_failing = failed
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
                    # Once it is known that nothing listens there, a call waits for somebody who does.
                    answer: wire.MissedResponse = await stub.Missed(
                        request, timeout=REACH_TIMEOUT_S, wait_for_ready=failed
                    )
                except grpc.aio.AioRpcError as error:
                    code = error.code()
                    self._channels.refused(endpoint, error)
                    if code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                        if bucket not in taught and await self._teach(endpoint, bucket):
                            taught.add(bucket)  # it had not heard of the bucket yet
                            continue
                        line.heard(bucket, part)  # it answers, and has no use for this: the bucket is gone
                    elif not failed:
                        line.refused = code == grpc.StatusCode.UNAVAILABLE
                        self._channels.failed(endpoint, silent=not line.refused)
                    failed = failed or code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
                    if failed:
                        await asyncio.sleep(_PAUSE_S)
                except asyncio.CancelledError:
                    # gRPC raises it also when the other node ended the call so, which is not this task's end.
                    task = asyncio.current_task()
                    if task is None or task.cancelling():
                        raise
                    failed = line.refused = True
                    await asyncio.sleep(_PAUSE_S)
                else:
                    self._heard_of_map(endpoint, answer.map_version)
                    line.heard(bucket, part)
                    line.since_s, line.refused = time.monotonic(), False
                    if failed:
                        failed = False
                        self._channels.answered(endpoint)
                line.is_failing = failed
                line.changed.set()
                line.changed = asyncio.Event()
            node = self.leases.member(endpoint)
            if node is not None and not line.kept:
                await self.leases.heard_all(node.uuid)
        finally:
            line.kept.clear()
            line.changed.set()
            del self._lines[endpoint]

    async def close(self) -> None:
        tasks = [line.task for line in self._lines.values() if line.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
