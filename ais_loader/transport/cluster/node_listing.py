"""Node listing: what the nodes of a cluster have stored, requested page by page and merged."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ais_loader.errors import NodeUnavailable
from ais_loader.transport.base import object_info
from ais_loader.transport.cluster.failover import Members
from ais_loader.transport.cluster.listing import ListedMap, ListedPage, MergedListing
from ais_loader.transport.grpc.node_calls import NodeCalls
from ais_loader.transport.listings import Item, folder_of, items_of, names_of_page
from ais_loader.transport.retry import RetryBudget
from ais_loader.wire.cluster_map import sure_copies
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.names_block import after_folder

_AT_ONCE = 32
"""Most nodes that a listing asks at once."""


def node_pages(
    members: Members,
    request: pb.ListRequest,
    any_: Callable[[Callable[[NodeCalls], Any]], Any],
    has_others: Callable[[], bool],
    retry_s: float,
) -> Iterator[Sequence[Item]]:
    """Yield lists that are the listing of one bucket, one after another.

    Args:
        request: the first page that is wanted.
        any_: runs a call at any node that answers.
        has_others: returns whether another node can be asked if one does not answer.
    """
    bucket = request.bucket

    def page_of(node: NodeCalls, after: str) -> ListedPage:
        wanted = pb.ListRequest()
        wanted.CopyFrom(request)
        wanted.start_after = after
        return _listed(request, node.list_page(wanted, has_others=has_others()))

    start_after, patience = request.start_after, RetryBudget(retry_s)
    is_known = members.knows(bucket)
    while not is_known:
        listed = any_(functools.partial(page_of, after=start_after))
        if listed.map_version > members.view.version:  # the node may have a part of the objects
            if not members.refresh(force=True):
                patience.pause(NodeUnavailable(f"no node tells the map by which it has bucket {bucket!r}"))
            is_known = members.view.to_read(bucket) is not None
            continue
        patience.progress()
        yield listed.items
        if listed.next is None:
            return
        start_after = listed.next

    def known() -> ListedMap:
        view = members.view
        to_list = view.to_read(bucket)
        return ListedMap(
            version=view.version,
            nodes=[node.uuid for node in view.nodes],
            hosts=[node.host for node in view.nodes],
            copies=0 if to_list is None else sure_copies(to_list),
            moving=view.is_moving([bucket]),
        )

    def newest(first: bytes | None) -> ListedMap:
        members.refresh(first=first, force=True)
        return known()

    # Its threads are those of one listing: a forked process has none of them.
    pool = ThreadPoolExecutor(min(_AT_ONCE, len(members.view.nodes)), "ais-loader listing")
    merged = MergedListing(
        lambda map_, at, after: page_of(members.calls(map_.nodes[at]), after),
        newest,
        map_=known(),
        retry_s=retry_s,
        start_after=start_after,
        begin=lambda call: pool.submit(call).result,
    )
    try:
        yield from merged.stretches()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _listed(request: pb.ListRequest, page: pb.ListResponse) -> ListedPage:
    """Return the items in a node's response. Raises NodeUnavailable if it is damaged."""
    items: Sequence[Item]
    in_doubt: Sequence[str] = page.in_doubt
    next_ = page.next if page.more else None
    if request.names_only:
        items = names_of_page(page).to_list()
    elif not request.one_level:
        items = list(map(object_info, page.object))
    else:
        items = items_of(map(object_info, page.object), page.folder, request.prefix)
        in_doubt = sorted({folder_of(name, request.prefix) or name for name in in_doubt})
        folder = None if next_ is None else folder_of(next_, request.prefix)
        if folder is not None and folder in items:
            # What remains of a folder says nothing new, if the node is sure of an object in it.
            next_ = after_folder(folder)
    let_go_s = page.let_go_ms / 1000 if page.HasField("let_go_ms") else float("inf")
    return ListedPage(items, next_, in_doubt, page.map_version, page.oldest_map_version, let_go_s)
