"""Node listing: what the nodes of a cluster have stored, requested page by page and merged."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from ais_loader.transport.base import object_info
from ais_loader.transport.cluster.failover import Members
from ais_loader.transport.cluster.listing import LEVEL, NAMES, OBJECTS, Kind, ListedMap, ListedPage, MergedListing
from ais_loader.transport.grpc.node_calls import NodeCalls
from ais_loader.transport.listings import LevelItem, folder_of, items_of, names_of_page
from ais_loader.values.entry import ObjectInfo
from ais_loader.wire.cluster_map import sure_copies
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.names_block import NamesBlock, after_folder

T = TypeVar("T")


class NodeListing:
    """Listing of one bucket.

    Args:
        request: the first page that is wanted.
        any_: runs a call at any node that answers.
        has_others: returns whether another node can be asked if one does not answer.
    """

    def __init__(
        self,
        members: Members,
        request: pb.ListRequest,
        any_: Callable[[Callable[[NodeCalls], Any]], Any],
        has_others: Callable[[], bool],
        retry_s: float,
    ) -> None:
        self._members = members
        self._request = request
        self._any = any_
        self._has_others = has_others
        self._retry_s = retry_s

    def objects(self) -> Iterator[ObjectInfo]:
        """Yield every object once, in its newest version."""

        def read(page: pb.ListResponse) -> ListedPage[ObjectInfo]:
            return _page_of(page, list(map(object_info, page.object)))

        for found in self._stretches(OBJECTS, read):
            yield from found

    def names(self) -> Iterator[NamesBlock]:
        """Yield every name once, in blocks. The request has `names_only`."""
        for found in self._stretches(NAMES, lambda page: _page_of(page, names_of_page(page).to_list())):
            yield NamesBlock.of(found)

    def level(self) -> Iterator[LevelItem]:
        """Yield every object and folder of one level once. The request has `one_level`."""
        prefix, last = self._request.prefix, ""

        def read(page: pb.ListResponse) -> ListedPage[LevelItem]:
            found = _page_of(page, items_of(map(object_info, page.object), page.folder, prefix))
            doubts = sorted({folder_of(name, prefix) or name for name in found.in_doubt})
            folder = None if found.next is None else folder_of(found.next, prefix)
            # What remains of a folder says nothing new, if the node is sure of an object in it.
            next_ = after_folder(folder) if folder is not None and folder in found.objects else found.next
            return replace(found, next=next_, in_doubt=doubts)

        for found in self._stretches(LEVEL, read):
            for item in found:
                if item != last:
                    yield item
                last = item if isinstance(item, str) else ""

    def _stretches(self, kind: Kind[T], read: Callable[[pb.ListResponse], ListedPage[T]]) -> Iterator[list[T]]:
        bucket, members = self._request.bucket, self._members
        if not members.knows(bucket):
            after: str | None = self._request.start_after
            while after is not None:
                listed = read(self._any(functools.partial(self._page, after=after)))
                yield list(listed.objects)
                after = listed.next
            return

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

        def page(map_: ListedMap, at: int, after: str) -> ListedPage[T]:
            return read(self._page(members.calls(map_.nodes[at]), after))

        merged = MergedListing(
            page, newest, kind=kind, map_=known(), retry_s=self._retry_s, start_after=self._request.start_after
        )
        yield from merged.stretches()

    def _page(self, node: NodeCalls, after: str) -> pb.ListResponse:
        request = pb.ListRequest()
        request.CopyFrom(self._request)
        request.start_after = after
        return node.list_page(request, has_others=self._has_others())


def _page_of(page: pb.ListResponse, found: list[T]) -> ListedPage[T]:
    return ListedPage(
        found,
        page.next if page.more else None,
        page.in_doubt,
        page.map_version,
        page.oldest_map_version,
        page.let_go_ms / 1000 if page.HasField("let_go_ms") else float("inf"),
    )
