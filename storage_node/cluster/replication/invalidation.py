"""Invalidation outbox: nodes are told of the writes that they missed, before the acknowledgement, until they know.

That a node did not answer a moment ago does not say that it is away: a connection may have broken, or a busy machine
taken its time. It answers reads all the while, so it is told whether it seems to be there or not. Waiting ends when the
node has heard of the write; when nothing listens there; or when it has been silent for so long that it has either stood
still, and compares its copies before it serves again, or is cut off from this node. What it has not heard of by then is
kept, and said as soon as it can be reached.

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
from storage_node.cluster.replication.replica import to_wire
from storage_node.cluster.replication.replica_stream import REACH_TIMEOUT_S
from storage_node.store.format import Version

CONNECT_S = 0.3
"""A node that is there takes a new connection within this time, when one has broken."""
MAX_KEPT = 100_000
"""Names, for each node. One that misses more compares them at its next pass of repair, or when it starts."""
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
        self.changed = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def patient_until_s(self, began_s: float) -> float:
        """For one who began to wait then. A node that has been silent for long may be heard again at this moment, and
        then it answers reads: nobody goes on without having given it time to hear of this write too."""
        if self.refused:
            return self.since_s + CONNECT_S
        return max(self.since_s + REACH_TIMEOUT_S, began_s + CONNECT_S)

    def keep(self, bucket: Bucket, versions: Mapping[str, Version]) -> None:
        known = self.kept.setdefault(bucket, {})
        for name, version in versions.items():
            if name in known or sum(map(len, self.kept.values())) < MAX_KEPT:
                known[name] = max(version, known.get(name, version))

    def heard(self, bucket: Bucket, versions: Mapping[str, Version]) -> None:
        known = self.kept.get(bucket, {})
        for name, version in versions.items():
            if name in known and known[name] <= version:
                del known[name]
        if not known:
            self.kept.pop(bucket, None)

    def knows(self, bucket: Bucket, versions: Mapping[str, Version]) -> bool:
        """Whether the node has heard of all of these, or need not."""
        known = self.kept.get(bucket, {})
        return not any(name in known and known[name] >= version for name, version in versions.items())


class InvalidationOutbox:
    """`close` when the node stops."""

    def __init__(
        self,
        channels: Channels,
        is_member: Callable[[str], bool],
        heard_of_map: Callable[[str, int], None],
        teach: Callable[[str, Bucket], Awaitable[bool]],
    ) -> None:
        """Args:
        is_member: whether the map has a node at an endpoint.
        heard_of_map: called with the endpoint and the version of the map of each node that answers.
        teach: gives a node the map; False when there is no use in it, since that does not have the bucket either.
        """
        self._channels = channels
        self._heard_of_map = heard_of_map
        self._is_member = is_member
        self._teach = teach
        self._lines: dict[str, _Line] = {}

    async def invalidate(self, endpoint: str, bucket: Bucket, versions: Mapping[str, Version]) -> None:
        """That these versions are about to be committed without the node; returns as said above."""
        line = self._lines.get(endpoint)
        if line is None:
            line = self._lines[endpoint] = _Line()
            line.since_s = time.monotonic()
        line.keep(bucket, versions)
        if line.task is None:
            line.task = asyncio.create_task(self._deliver(endpoint, line), name=f"invalidations for {endpoint}")
        began_s = time.monotonic()
        while not line.knows(bucket, versions) and (left_s := line.patient_until_s(began_s) - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await line.changed.wait()

    async def _deliver(self, endpoint: str, line: _Line) -> None:
        """Say all that is kept for one node, again and again."""
        stub = ais_replica_pb2_grpc.RepairStub(self._channels.to(endpoint))
        failed = False
        taught: set[Bucket] = set()
        try:
            while line.kept and self._is_member(endpoint):
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
                line.changed.set()
                line.changed = asyncio.Event()
        finally:
            line.kept.clear()
            line.changed.set()
            del self._lines[endpoint]

    async def close(self) -> None:
        tasks = [line.task for line in self._lines.values() if line.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
