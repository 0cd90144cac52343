"""Promote service: imports files below this node's `promote_roots` as objects, group by group, and reports progress.

A promotion has threads of its own, so that it does not delay batches. It ends with its call: when the client has
disconnected, nothing more is promoted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from ais_loader.errors import BucketNotFound, Closed, LoaderError, SourceUnreadable, StaleMap
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_promote_pb2 as wire
from ais_loader.wire.object_info import info_of
from ais_loader.wire.placement import object_hash
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.cluster.replication.write_plan import ReplicaSet
from storage_node.context.membership import Membership
from storage_node.context.node import Node
from storage_node.limits.blocking_calls import BlockingCalls
from storage_node.limits.call_slots import current_tenant, tenant_of
from storage_node.limits.fair_scheduler import JobTurns
from storage_node.limits.tasks import OffLoop
from storage_node.promote.cluster import ClusterPromotion, have
from storage_node.promote.confined_path import FOLDER, root_of
from storage_node.promote.group_promotion import Heads
from storage_node.promote.into_store import promote_group
from storage_node.promote.job import Job, Outcome, PromoteMetrics
from storage_node.promote.store_folders import StoreFolders, of_store
from storage_node.promote.walk import Found, OpenFolder, Walk, Wanted, groups
from storage_node.remote.promotion import RemotePromotion
from storage_node.remote.tier import RemoteTier
from storage_node.services.errors import Context, encodable

THREADS = 4
IN_FLIGHT = 2
"""Number of groups of one promotion that are stored concurrently."""
BEAT_S = 2.0
T = TypeVar("T")
Promote: TypeAlias = Callable[[Sequence[Found]], Awaitable[list[Outcome]]]


class PromoteService:
    def __init__(
        self, node: Node, membership: Membership, writes: WriteCoordinator, tier: RemoteTier, heads: Heads
    ) -> None:
        self._node, self._membership, self._writes = node, membership, writes
        self._tier, self._heads = tier, heads
        self._threads = BlockingCalls(THREADS, "ais-loader-promote")
        self.turns = JobTurns(THREADS, spare=1)
        self._stopping = False
        self.metrics = PromoteMetrics()

    def stop(self) -> None:
        """Make running promotions give up soon."""
        self._stopping = True

    def close(self) -> None:
        """Wait for the threads. Call `stop` before."""
        self._threads.close()

    async def _work(self, function: Callable[..., T], /, *arguments: Any) -> T:
        """Run a function on a thread; see `BlockingCall.settled`.

        Tenants take turns, because files may be on a file system that responds slowly or not at all.
        """
        async with self.turns.turn(current_tenant.get()):
            return await self._on_thread(function, *arguments)

    async def _on_thread(self, function: Callable[..., T], /, *arguments: Any) -> T:
        return await self._threads.submit(lambda: function(*arguments)).settled()

    def _known_map(self) -> int:
        view = self._membership.view
        return 0 if view is None else view.version

    # -- calls

    async def Look(self, request: wire.LookRequest, context: Context) -> wire.LookResponse:
        answer = wire.LookResponse(machine=_machine(), map_version=self._known_map())
        answer.outside = True
        try:
            root_of(request.path, self._node.config.store.promote_roots)
            answer.outside = False
            walk = await self._work(self._walk, request.path, Wanted(recursive=request.recursive), _everything)
        except LoaderError as error:
            answer.error.CopyFrom(pb.Error(kind=error.kind, message=encodable(str(error))))
        else:
            answer.device, answer.inode = walk.device, walk.inode
        return answer

    async def Have(self, request: wire.HaveRequest, context: Context) -> wire.HaveResponse:
        return await self._work(have, self._node.store, request)

    async def Run(self, request: wire.PromoteRequest, context: Any) -> None:
        given_up = threading.Event()

        def go_on() -> None:
            if given_up.is_set() or self._stopping:
                raise Closed("the promotion was given up")

        job = Job(request.bucket, request.move, request.overwrite or "changed", go_on)
        replica_set = self._writes.replica_set(request.bucket)
        self._node.store.bucket_to_change(request.bucket)
        if (remote := self._tier.buckets.find(request.bucket)) is not None:
            remote.require_writable()
        wanted = Wanted(request.prefix, request.recursive, tuple(request.include), tuple(request.exclude))
        mine = _share(replica_set, request) if request.participant else _everything
        with self._node.streams.open(tenant_of(context)) as stream:
            walk = await self._work(self._walk, request.path, wanted, mine)
            promote = partial(self._promote, job, replica_set, remote is not None)
            run = _Promotion(self._work, request.bucket, walk, promote)
            try:
                async for response in run.responses():
                    go_on()
                    await stream.waiting(context.write(response))
                    stream.slot.moved()
            finally:
                given_up.set()
                await asyncio.shield(asyncio.ensure_future(run.close()))

    # -- implementation

    async def _promote(
        self, job: Job, replica_set: ReplicaSet | None, is_remote: bool, group: Sequence[Found]
    ) -> list[Outcome]:
        store = self._node.store
        newest = self._writes.replica_set(job.bucket)  # by the newest map
        if replica_set is not None and (newest is None or newest.bucket.uuid != replica_set.bucket.uuid):
            raise BucketNotFound(f"bucket {job.bucket!r} has been deleted meanwhile")
        if is_remote:
            outcomes = await RemotePromotion(self._tier, job, self._work, self._heads).promote_group(group)
        elif replica_set is not None and newest is not None:
            cluster = ClusterPromotion(store, self._writes, newest, job, self._work, self._heads)
            outcomes = await cluster.promote_group(group)
        else:
            outcomes = await self._work(promote_group, store, job, group)
        self.metrics.add(outcomes)
        return outcomes

    def _walk(self, path: bytes, wanted: Wanted, mine: Callable[[str], bool]) -> Walk:
        """Start a walk. Raises SourceRefused unless the path is below a root of this node, SourceUnreadable."""
        root, way = root_of(path, self._node.config.store.promote_roots)
        try:
            folder = OpenFolder(os.open(root, FOLDER))
        except OSError as error:
            raise SourceUnreadable(f"{os.fsdecode(root)}: cannot be opened: {error.strerror or error}") from error
        try:
            return Walk(folder, way, wanted, StoreFolders(of_store(self._node.store)), mine)
        except LoaderError as error:
            raise type(error)(f"{os.fsdecode(path)}: {error}") from error


def _everything(name: str) -> bool:
    return True


def _share(replica_set: ReplicaSet | None, request: wire.PromoteRequest) -> Callable[[str], bool]:
    """Return a function that tells whether this node promotes a name. Raises StaleMap."""
    if replica_set is None or replica_set.view.version != request.map_version:
        have_version = 0 if replica_set is None else replica_set.view.version
        raise StaleMap(f"this node acts by version {have_version} of the map, not {request.map_version}; promote again")
    view, bucket = replica_set.view, replica_set.bucket.uuid
    taking = sorted(view.position[uuid] for uuid in request.participant if uuid in view.position)
    local = replica_set.position
    if local not in taking:
        raise StaleMap("this node is none of those that take part; promote again")

    def mine(name: str) -> bool:
        hash_ = object_hash(bucket, name)
        owners = view.placement.owners_of_one(hash_, view.placement.hosts)
        # Another node of the owner's host may take part instead of the owner. The hash then picks a node.
        return next((at for at in owners if at in taking), taking[hash_ % len(taking)]) == local

    return mine


class _Promotion:
    """One promotion of the files that a walk finds, with several groups in progress."""

    def __init__(self, work: OffLoop, bucket: str, walk: Walk, promote: Promote) -> None:
        self._work, self._bucket, self._walk, self._promote = work, bucket, walk, promote
        self._found = iter(walk)
        self._groups = groups(self._found)
        self._tasks: set[asyncio.Task[list[Outcome]]] = set()
        self._looking: asyncio.Task[list[Found] | None] | None = None

    def _look(self) -> asyncio.Task[list[Found] | None]:
        return asyncio.ensure_future(self._work(next, self._groups, None))

    async def responses(self) -> AsyncIterator[wire.PromoteResponse]:
        self._looking = self._look()
        while self._looking is not None or self._tasks:
            waiting: set[asyncio.Task[Any]] = set(self._tasks)
            if self._looking is not None and len(self._tasks) < IN_FLIGHT:
                waiting.add(self._looking)
            done, _ = await asyncio.wait(waiting, timeout=BEAT_S, return_when=asyncio.FIRST_COMPLETED)
            if self._looking is not None and self._looking in done:
                group = self._looking.result()
                self._looking = None
                if group is not None:
                    self._tasks.add(asyncio.ensure_future(self._promote(group)))
                    self._looking = self._look()
            outcomes: list[Outcome] = []
            for task in done & self._tasks:
                self._tasks.discard(task)
                outcomes += task.result()
            if outcomes or not done:
                yield self._response(outcomes)
        yield self._response([], done=True)

    async def close(self) -> None:
        left: list[asyncio.Task[Any]] = [*self._tasks, *([self._looking] if self._looking is not None else [])]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._work(self._close)

    def _close(self) -> None:
        self._groups.close()
        self._found.close()

    def _response(self, outcomes: Sequence[Outcome], *, done: bool = False) -> wire.PromoteResponse:
        """`files_seen` counts the files found so far, whichever node promotes them."""
        response = wire.PromoteResponse(files_seen=self._walk.files_seen, done=done)
        for outcome in outcomes:
            result = response.result.add(
                path=encodable(outcome.path), name=encodable(outcome.name), skipped=outcome.skipped
            )
            if outcome.error is not None:
                result.error.CopyFrom(pb.Error(kind=outcome.error.kind, message=encodable(str(outcome.error))))
            elif outcome.stored is not None:
                result.info.CopyFrom(info_of(self._bucket, outcome.name, outcome.stored))
        return response


@cache
def _machine() -> str:
    """Return the id of the running kernel: device numbers are unique within it."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""
