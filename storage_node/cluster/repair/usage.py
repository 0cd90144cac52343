"""Usage scan: the size of a bucket in a cluster; counts every name once, by its newest version, wherever its replicas
are.

All nodes are scanned side by side, in name order, up to the point that all of them have reported. The newest version of
each name counts, including tombstones. Replicas, objects in transit, and replicas that missed a deletion are therefore
counted as they are read: once, or not at all. Only a few pages per node and the sums are held in memory.

The nodes are not read at a single moment. An object that moves from a node that was not read yet to one that was would
be missed. Every part of the names is therefore read twice, on all nodes before any is read again; an object that
existed throughout is in one of the two.

Belongs to the node's event loop; pages are read and merged on reader threads.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

from ais_loader.errors import BucketNotFound, LoaderError, SnapshotNotFound
from ais_loader.wire.cluster_map import sure_copies
from ais_loader.wire.generated import ais_contents_pb2 as pb
from ais_loader.wire.generated import ais_contents_pb2_grpc
from ais_loader.wire.generated import ais_replica_pb2 as wire
from storage_node.cluster.repair.peers import while_it_answers
from storage_node.cluster.replication.replica import require_bucket
from storage_node.cluster.replication.replicas import outcome
from storage_node.cluster.replication.write_plan import ReplicaSet
from storage_node.context.channels import Channels
from storage_node.context.errors import ReplicaLost
from storage_node.context.node import Node
from storage_node.limits.counters import clock_s
from storage_node.store.listing import PAGE_BYTES, within
from storage_node.store.names import HIDDEN
from storage_node.store.store import Store
from storage_node.store.summary import NameSummary

PAGE_NAMES = 5000
PAGE_TIMEOUT_S = 30.0
"""Time limit for one page, while its node answers other calls."""
LEARN_TIMEOUT_S = 10.0
"""Time for this node to get a map that others know."""
_LEARNING_S = 0.05


class PageRows(NamedTuple):
    """Some rows of a page."""

    page: pb.ListNamesResponse
    rows: slice


class _NodeNames:
    """The names of one node, in order."""

    def __init__(self, node: int) -> None:
        self.node = node
        self.page = pb.ListNamesResponse()
        self.names: list[str] = []
        self.at = 0
        """The first row that was not merged yet."""
        self.next: str | None = ""
        """Start of the next page; None if there is none."""
        self.lost: ReplicaLost | None = None

    @property
    def empty(self) -> bool:
        return self.at == len(self.names)

    def take(self, page: pb.ListNamesResponse) -> None:
        self.page, self.names, self.at = page, list(page.name), 0
        self.next = page.next or None

    def up_to(self, end: str) -> PageRows:
        """Take the remaining rows up to this name; all rows for ""."""
        # Comparison by code points equals the order of the UTF-8 bytes.
        stop = bisect_right(self.names, end, self.at) if end else len(self.names)
        part, self.at = PageRows(self.page, slice(self.at, stop)), stop
        return part


class UsageScan:
    """The computation of one summary."""

    def __init__(
        self,
        node: Node,
        channels: Channels,
        replica_set: ReplicaSet,
        newest: Callable[[], ReplicaSet | None],
        prefix: str,
        tally: NameSummary,
    ) -> None:
        """`newest` returns the bucket by the newest map; None if that has no such bucket."""
        self._node = node
        self._channels = channels
        self._newest = newest
        self._prefix = prefix
        self._tally = tally
        self._after = ""
        """The last name that was counted."""
        self._behind = False
        """Whether others knew a newer map that this node could not get."""
        self._begin(replica_set)

    def _begin(self, replica_set: ReplicaSet) -> None:
        self._replica_set = replica_set
        self._feeds = [_NodeNames(node) for node in range(len(replica_set.view.nodes))]
        self._reported_version = 0
        """The newest map that any of the nodes knew."""
        for feed in self._feeds:
            feed.next = self._after

    async def run(self) -> AsyncIterator[int]:
        """Count; yields the number of names counted so far, repeatedly. Raises InvalidRequest."""
        while True:
            while hungry := [feed for feed in self._feeds if feed.empty and feed.next is not None]:
                await asyncio.gather(*(self._feed(feed) for feed in hungry))
            full = [feed for feed in self._feeds if not feed.empty]
            # All nodes have reported everything up to the lowest end of a page that has a next one.
            end = min((feed.names[-1] for feed in full if feed.next is not None), default="")
            parts = [feed.up_to(end) for feed in full]
            # A node that had nothing in this range may have something by now.
            again = await asyncio.gather(*(self._again(feed, self._after, end) for feed in self._feeds))
            parts += [PageRows(page, slice(None)) for pages in again for page in pages]
            if await self._begins_again():
                continue
            await self._node.read(merge, parts, self._tally)
            self._after = end
            yield self._tally.objects
            if not end:
                return

    async def _begins_again(self) -> bool:
        """Switch to a newer map and its nodes, if there is one: objects may have moved to nodes that are not being
        read. Raises LoaderError."""
        give_up_at = clock_s() + LEARN_TIMEOUT_S
        while True:
            newest, known = self._newest(), self._replica_set.view.version
            if newest is None:
                raise BucketNotFound(f"bucket {self._replica_set.bucket.name!r} has been deleted")
            if newest.view.version != known:
                self._begin(newest)
                return True
            if self._reported_version <= known or clock_s() > give_up_at:
                self._behind |= self._reported_version > known
                return False
            await asyncio.sleep(_LEARNING_S)

    def summary(self) -> pb.Summary:
        """Return the summary after `run`."""
        nodes = self._replica_set.view.nodes
        lost = [feed for feed in self._feeds if feed.lost is not None]
        summary = summary_of(self._tally)
        summary.silent.extend(f"{nodes[feed.node].endpoint} ({feed.lost})" for feed in lost)
        summary.incomplete = self._behind or len({nodes[feed.node].host for feed in lost}) >= sure_copies(
            self._replica_set.bucket
        )
        return summary

    async def _feed(self, feed: _NodeNames) -> None:
        page = await self._page(feed, feed.next or "", "")
        if page is not None:
            feed.take(page)

    async def _again(self, feed: _NodeNames, after: str, end: str) -> list[pb.ListNamesResponse]:
        """Return everything that the node now has between these names."""
        pages: list[pb.ListNamesResponse] = []
        at: str | None = after
        while at is not None and feed.lost is None and (page := await self._page(feed, at, end)) is not None:
            pages.append(page)
            at = page.next or None
        return pages

    async def _page(self, feed: _NodeNames, after: str, until: str) -> pb.ListNamesResponse | None:
        """Return a page; None, which ends `feed`, if the node does not answer."""
        bucket = wire.BucketRef(name=self._replica_set.bucket.name, uuid=self._replica_set.bucket.uuid)
        request = pb.ListNamesRequest(
            bucket=bucket, prefix=self._prefix, start_after=after, limit=PAGE_NAMES, until=until
        )
        again = self._channels.avoided(self._replica_set.endpoint(feed.node))
        page = await outcome(self._ask, feed, request, again=again)
        if isinstance(page, ReplicaLost) and page.refusal is None and not again:
            page = await outcome(self._ask, feed, request, again=True)
        if not isinstance(page, ReplicaLost):
            self._reported_version = max(self._reported_version, page.map_version)
            return page
        feed.next = None
        # A node that does not know a bucket yet has nothing of it; of a snapshot it may have objects.
        if not isinstance(page.refusal, BucketNotFound) or isinstance(page.refusal, SnapshotNotFound):
            feed.lost = page
        return None

    async def _ask(self, feed: _NodeNames, request: pb.ListNamesRequest, *, again: bool) -> pb.ListNamesResponse:
        """Request a page. With `again`, the node did not answer before, and gets a moment to be reached. Raises
        ReplicaLost."""
        if feed.node == self._replica_set.position:
            try:
                return await self._node.read(names_page, self._node.store, request)
            except LoaderError as error:
                raise ReplicaLost(str(error), error) from error
        endpoint = self._replica_set.endpoint(feed.node)
        stub = ais_contents_pb2_grpc.ContentsReplicaStub(self._channels.to(endpoint))
        with self._channels.reporting(endpoint):
            call = stub.ListNames(request, timeout=PAGE_TIMEOUT_S, wait_for_ready=again)
            page: pb.ListNamesResponse = await while_it_answers(call, self._channels, endpoint)
        self._channels.answered(endpoint)
        return page


def merge(parts: Sequence[PageRows], tally: NameSummary) -> None:
    """Count the names of these parts, which may overlap."""
    newest: dict[str, tuple[tuple[int, int, int], int]] = {}
    for page, rows in parts:
        versions = zip(page.epoch[rows], page.counter[rows], page.node[rows], strict=True)
        sizes = (
            -1 if dead else size for size, dead in zip(page.size_bytes[rows], page.is_tombstone[rows], strict=True)
        )
        for name, version, size in zip(page.name[rows], versions, sizes, strict=True):
            known = newest.get(name)
            if known is None or known[0] < version:
                newest[name] = version, size
    tally.add((name, size) for name, (_, size) in newest.items() if size >= 0)


def summary_of(tally: NameSummary) -> pb.Summary:
    folders = [
        pb.PrefixSummary(prefix=name, objects=objects, size_bytes=size_bytes)
        for name, (objects, size_bytes) in sorted(tally.folders.items())
    ]
    return pb.Summary(objects=tally.objects, size_bytes=tally.size_bytes, prefix=folders)


def names_page(store: Store, request: pb.ListNamesRequest) -> pb.ListNamesResponse:
    """Return a page of this node's names. Parts of uploads are left out, as in listings. Raises LoaderError."""
    require_bucket(store, request.bucket.name, request.bucket.uuid)
    limit = min(request.limit or PAGE_NAMES, PAGE_NAMES)
    page = pb.ListNamesResponse()
    hidden = not request.prefix.startswith("/")
    found = list(store.replicas.versions(request.bucket.name, request.start_after, limit, request.prefix))
    fits = within(PAGE_BYTES, (one.name for one in found))
    more, found = fits < len(found) or len(found) == limit, found[:fits]
    wanted = [one for one in found if not request.until or one.name <= request.until]
    shown = [one for one in wanted if not (hidden and one.name.startswith(HIDDEN))]
    page.name.extend(one.name for one in shown)
    page.size_bytes.extend(0 if one.is_tombstone else one.size_bytes for one in shown)
    page.is_tombstone.extend(one.is_tombstone for one in shown)
    page.epoch.extend(one.version.epoch for one in shown)
    page.counter.extend(one.version.counter for one in shown)
    page.node.extend(one.version.node for one in shown)
    if more and len(wanted) == len(found):
        page.next = found[-1].name
    return page
