"""Bucket operations of a cluster: any node coordinates them by changing the map, which reaches every node.

When a call returns, all nodes that answer know the change. Deletion has two steps: the bucket is scanned, then removed.
An object put between them is deleted with its bucket. Belongs to the node's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import grpc

from ais_loader.errors import (
    BucketExists,
    BucketNotEmpty,
    BucketNotFound,
    InvalidRequest,
    LoaderError,
    SnapshotNotFound,
    SnapshotReadOnly,
    Unsupported,
)
from ais_loader.wire.bucket_settings import BucketSettings
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2_grpc as rpc
from ais_loader.wire.redundancy import COPIES, Redundancy
from storage_node.cluster.coding.codec import codec_of
from storage_node.cluster.consensus.change import AsyncChannels, change_map_async
from storage_node.cluster.consensus.effects import Edit
from storage_node.cluster.consensus.errors import NodesSilent
from storage_node.cluster.map import mutations
from storage_node.cluster.map.snapshot_mutations import MapChanged
from storage_node.context.channels import Caller
from storage_node.context.membership import Membership
from storage_node.store.names import SNAPSHOT_MARK, bucket_not_found, check_bucket_name

CHANGE_TIMEOUT_S = 20.0
LIST_TIMEOUT_S = 10.0
_PAGE_SIZE = 10_000


class ClusterBuckets:
    """`caller` is the identity under which other nodes are called."""

    def __init__(self, membership: Membership, caller: Caller) -> None:
        self._membership = membership
        self._caller = caller

    @property
    def view(self) -> ClusterView | None:
        """The map; None while the node belongs to no cluster and has its own buckets."""
        return self._membership.view

    def get(self, view: ClusterView, name: str) -> pb.Bucket:
        """Return a bucket or snapshot. Raises BucketNotFound."""
        found = view.to_read(name)
        if found is None:
            raise _not_found(name, view)
        return described(found)

    def all(self, view: ClusterView) -> list[pb.Bucket]:
        """Return the buckets in the order of their names, without those of fragments."""
        return [described(bucket) for _, bucket in sorted(view.buckets.items()) if not bucket.coded_of]

    async def create(self, view: ClusterView, request: pb.CreateBucketRequest) -> pb.Bucket:
        """Create a bucket. Raises InvalidName, InvalidRequest, Unsupported, BucketExists, ChangeFailed."""
        name, exist_ok = request.name, request.exist_ok
        check_bucket_name(name)
        settings = BucketSettings.from_wire(request)
        _require_no_quota(settings)
        if exist_ok and name in view.buckets:
            return described(view.buckets[name])
        redundancy = require_redundancy(settings)
        make = mutations.create_bucket(
            name, settings.copies or 1, settings.min_copies or 1, remote=settings.remote or None, redundancy=redundancy
        )

        def edit(map_: cluster_pb.ClusterMap | None) -> cluster_pb.ClusterMap:
            if mutations.find_bucket(map_, name) is None:
                return make(map_)
            if not exist_ok or map_ is None:
                raise BucketExists(f"bucket {name!r} exists; pass exist_ok=True to use it")
            return map_

        found = mutations.find_bucket(await self._change(view, edit), name)
        if found is None:
            raise BucketNotFound(f"bucket {name!r} was made, and deleted by somebody else at once")
        return described(found)

    async def set(self, view: ClusterView, name: str, settings: BucketSettings) -> pb.Bucket:
        """Change properties of a bucket. Raises BucketNotFound, InvalidRequest, Unsupported, ChangeFailed."""
        _require_no_quota(settings)
        require_redundancy(settings)
        meant = await self._to_change(view, name)
        edit = _while_it_is(meant, mutations.set_bucket(name, settings))
        found = mutations.find_bucket(await self._change(view, edit), name)
        if found is None:
            raise _not_found(name)
        return described(found)

    async def deny(
        self, view: ClusterView, name: str, denied: Sequence[str], allowed: Sequence[str], reason: str
    ) -> None:
        """Deny contents in a bucket, or allow them again. Each node denies the objects that it has of them as soon as
        it has the map. Raises BucketNotFound, SnapshotReadOnly, InvalidRequest, ChangeFailed."""
        meant = await self._to_change(view, name)
        if denied or allowed or not meant.HasField("denied"):
            await self._change(view, mutations.deny(meant.uuid, denied, allowed, reason))

    async def delete(self, view: ClusterView, name: str, *, force: bool) -> int:
        """Delete a bucket; return how many objects were deleted with it.

        Raises BucketNotFound, BucketNotEmpty, NodesSilent, ChangeFailed.
        """
        meant = await self._to_change(view, name)
        async with aclosing(AsyncChannels(self._caller)) as channels:  # connecting costs a node as much as answering
            while True:
                listing = _Listing(view, name, channels)
                if not force:
                    await listing.require_empty()
                deleted = await listing.count() if force else 0
                try:
                    await self._change(view, _while_it_is(meant, mutations.delete_bucket(name), view), channels)
                except MapChanged:
                    view = ClusterView(await self._change(view, mutations.unchanged, channels))
                    continue
                return deleted

    async def _to_change(self, view: ClusterView, name: str) -> cluster_pb.MapBucket:
        """Return a bucket that may be changed; one that the view does not know is looked for in the newest map."""
        meant = view.buckets.get(name) or mutations.find_bucket(await self._change(view, mutations.unchanged), name)
        if meant is not None and not meant.coded_of:
            return meant
        if name in view.pinned:
            raise SnapshotReadOnly(f"{name!r} is a snapshot, which never changes; change the bucket itself")
        raise _not_found(name, view)

    async def _change(
        self, view: ClusterView, edit: Edit, channels: AsyncChannels | None = None
    ) -> cluster_pb.ClusterMap:
        try:
            if channels is not None:
                return await channels.change_map(view, edit, timeout_s=CHANGE_TIMEOUT_S)
            return await change_map_async(view, edit, timeout_s=CHANGE_TIMEOUT_S, caller=self._caller)
        except LoaderError:
            raise  # many of them are ValueErrors as well
        except ValueError as error:
            raise InvalidRequest(str(error)) from error


class _Listing:
    """The listing of one bucket on every node separately."""

    def __init__(self, view: ClusterView, name: str, channels: AsyncChannels) -> None:
        self._name = name
        self._channels = channels
        self._endpoints = [node.peer_endpoint for node in view.nodes]

    async def _page(self, endpoint: str, start_after: str, page_size: int) -> pb.ListResponse | str:
        """Return a page, or the reason for its absence. An empty page is the last one."""
        request = pb.ListRequest(bucket=self._name, start_after=start_after, page_size=page_size)
        stub = rpc.ObjectsStub(self._channels.to(endpoint))
        while True:
            try:
                page: pb.ListResponse = await stub.List(request, timeout=LIST_TIMEOUT_S)
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.NOT_FOUND:
                    return pb.ListResponse()  # it does not know the bucket yet
                return f"{endpoint} ({error.code().name.lower().replace('_', ' ')}: {error.details()})"
            if page.object or page.in_doubt or not page.more:
                return page
            request.start_after = page.next

    async def require_empty(self) -> None:
        """Check that no node has objects of the bucket, nor is in doubt of one. Raises BucketNotEmpty, NodesSilent.

        An object that moves from a node that has not answered to one that has is found when all are asked again.
        """
        for _ in range(2):
            pages = await asyncio.gather(*(self._page(endpoint, "", 1) for endpoint in self._endpoints))
            listed = [page for page in pages if isinstance(page, pb.ListResponse)]
            if any(page.object for page in listed):
                raise BucketNotEmpty(f"bucket {self._name!r} holds objects; pass force=True to delete them with it")
            if not any(page.HasField("let_go_ms") for page in listed):
                break
        silent = [page for page in pages if isinstance(page, str)]
        silent += [f"no node is sure of {page.in_doubt[0]!r} yet" for page in listed if page.in_doubt]
        if silent:
            raise NodesSilent(
                f"bucket {self._name!r} may hold objects on nodes that do not answer: {'; '.join(silent)}; pass "
                "force=True to delete them with it"
            )

    async def count(self) -> int:
        """Count distinct names on all nodes that answer."""
        start_after, total = "", 0
        while True:
            pages = await asyncio.gather(
                *(self._page(endpoint, start_after, _PAGE_SIZE) for endpoint in self._endpoints)
            )
            listed = [page for page in pages if isinstance(page, pb.ListResponse)]
            # All nodes have listed everything up to the lowest end of a page that has a next one.
            ends = [page.next.encode() for page in listed if page.more]
            names = {found.name.encode() for page in listed for found in page.object}
            total += sum(1 for name in names if not ends or name <= min(ends))
            if not ends:
                return total
            start_after = min(ends).decode()


def _not_found(name: str, view: ClusterView | None = None) -> BucketNotFound:
    of, mark, snapshot = name.partition(SNAPSHOT_MARK)
    if mark and view is not None and of in view.buckets:
        return SnapshotNotFound(f"bucket {of!r} has no snapshot {snapshot!r}")
    return bucket_not_found(of, () if view is None else [one.name for one in view.buckets.values() if not one.coded_of])


def _while_it_is(meant: cluster_pb.MapBucket, edit: Edit, listed: ClusterView | None = None) -> Edit:
    """Return an edit that raises BucketNotFound if the bucket was deleted meanwhile, also if its name is used again,
    and MapChanged if nodes have joined since all of this view were `listed`."""

    def checked(map_: cluster_pb.ClusterMap | None) -> cluster_pb.ClusterMap:
        found = mutations.find_bucket(map_, meant.name)
        if map_ is None or found is None or found.uuid != meant.uuid:
            raise _not_found(meant.name)
        if listed is not None and any(node.uuid not in listed.position for node in map_.node):
            raise MapChanged("nodes have joined meanwhile")
        return edit(map_)

    return checked


def described(bucket: cluster_pb.MapBucket) -> pb.Bucket:
    return pb.Bucket(
        name=bucket.name,
        uuid=bucket.uuid,
        copies=bucket.copies,
        min_copies=max(1, bucket.min_copies),
        settling=bool(bucket.former_copies),
        remote=bucket.remote if bucket.HasField("remote") else None,
        redundancy=str(Redundancy(bucket.coding.data, bucket.coding.parity)) if bucket.HasField("coding") else COPIES,
    )


def _require_no_quota(settings: BucketSettings) -> None:
    """Raise Unsupported for a quota: a node counts its own replicas only."""
    if settings.quota_bytes or settings.quota_objects:
        raise Unsupported("a bucket of a cluster has no quota; a single node and an embedded store have them")


def require_redundancy(settings: BucketSettings) -> Redundancy | None:
    """Return the redundancy of the settings if it is coding. Raises InvalidRequest, and Unsupported if this node cannot
    code."""
    redundancy = Redundancy.parse(settings.redundancy) if settings.redundancy is not None else None
    if redundancy is None:
        return None
    if settings.copies not in (None, 0, redundancy.copies):
        raise InvalidRequest(f"redundancy={redundancy} implies copies={redundancy.copies}; leave copies out")
    codec_of(redundancy.data, redundancy.parity)  # raises
    return redundancy
