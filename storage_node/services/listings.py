"""Listings of a node: pages of a bucket's objects, of one level of them, and of an archive's members."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ais_loader.errors import ObjectNotFound
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.names_block import NamesBlock
from ais_loader.wire.object_info import info_of
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.cluster.replication.listing_filter import Filtered
from storage_node.context.node import Node
from storage_node.remote.archives.cold_parts import WantedPage
from storage_node.remote.tier import RemoteTier
from storage_node.store.listing import PAGE_BYTES, LevelPage, NamesPage
from storage_node.store.read.object_reader import MemberPage, list_members
from storage_node.store.replica_state import CatalogPage

MAX_PAGE_SIZE = 10_000


class Listings:
    """Pages of listings, built on reader threads. Belongs to the node's event loop."""

    def __init__(self, node: Node, writes: WriteCoordinator, tier: RemoteTier) -> None:
        self._node, self._store, self._writes, self._tier = node, node.store, writes, tier

    async def page(self, request: pb.ListRequest) -> pb.ListResponse:
        """Return a page of a listing. Raises LoaderError."""
        if request.names_only and (names := await self._names(request)) is not None:
            return names
        if request.one_level and (level := await self._level(request)) is not None:
            return level
        most = MAX_PAGE_SIZE if request.names_only else min(request.page_size or 1000, MAX_PAGE_SIZE)

        def look() -> CatalogPage:
            return self._store.replicas.page(
                request.bucket,
                request.prefix,
                request.start_after,
                most=most,
                most_bytes=PAGE_BYTES,
                skip_missing=request.skip_missing_drives,
            )

        def answer(page: CatalogPage, shown: Filtered) -> pb.ListResponse:
            """Build the response on a thread: thousands of messages would block the event loop."""
            response = (
                _names_response([name.encode() for name, _ in shown.objects])
                if request.names_only
                else pb.ListResponse(object=[info_of(request.bucket, name, entry) for name, entry in shown.objects])
            )
            response.more, response.next = page.next is not None, page.next or ""
            response.in_doubt.extend(sorted([*page.in_doubt, *shown.in_doubt]))
            return response

        oldest = self._node.membership.lease.version
        page = await self._node.read(look)
        shown = await self._writes.current(request.bucket, page.objects)
        return self._dated(await self._node.read(answer, page, shown), oldest)

    async def _names(self, request: pb.ListRequest) -> pb.ListResponse | None:
        """Return a page of names, or None if some are in doubt, or not this node's own: they are looked at one by
        one."""

        def look() -> NamesPage | None:
            if self._store.replicas.stale.any:
                return None
            return self._store.replicas.names(
                request.bucket,
                request.prefix,
                request.start_after,
                most_bytes=PAGE_BYTES,
                skip_missing=request.skip_missing_drives,
            )

        def answer(page: NamesPage) -> pb.ListResponse:
            response = _names_response(page.names)
            response.more, response.next = page.next is not None, page.next or ""
            return response

        oldest = self._node.membership.lease.version
        page = await self._node.read(look)
        if page is None or not await self._node.read(self._writes.owns, request.bucket, page.names):
            return None
        return self._dated(await self._node.read(answer, page), oldest)

    async def _level(self, request: pb.ListRequest) -> pb.ListResponse | None:
        """Return a page of one level; None as in `_names`. A folder is known by its first name alone."""

        def look() -> LevelPage | None:
            if self._store.replicas.stale.any:
                return None
            return self._store.replicas.level(
                request.bucket,
                request.prefix,
                request.start_after,
                most=min(request.page_size or 1000, MAX_PAGE_SIZE),
                most_bytes=PAGE_BYTES,
                skip_missing=request.skip_missing_drives,
            )

        def answer(page: LevelPage) -> pb.ListResponse:
            return pb.ListResponse(
                object=[info_of(request.bucket, name, entry) for name, entry in page.objects],
                folder=[folder for folder, _ in page.folders],
                more=page.next is not None,
                next=page.next or "",
            )

        oldest = self._node.membership.lease.version
        page = await self._node.read(look)
        if page is None:
            return None
        names = [name.encode() for name, _ in page.objects] + [first.encode() for _, first in page.folders]
        if not await self._node.read(self._writes.owns, request.bucket, names):
            return None
        return self._dated(await self._node.read(answer, page), oldest)

    def _dated(self, response: pb.ListResponse, oldest: int) -> pb.ListResponse:
        """Add what tells whether the listings of several nodes belong together."""
        response.oldest_map_version = oldest
        if (last_removal_s := self._store.replicas.last_removal_s) is not None:
            response.let_go_ms = int((time.monotonic() - last_removal_s) * 1000)
        response.map_version = self._node.map_version
        return response

    async def members(self, request: pb.ListMembersRequest, tenant: str) -> pb.ListMembersResponse:
        """Return a page of an archive's members. Raises LoaderError."""
        page_size = min(request.page_size or 1000, MAX_PAGE_SIZE)
        wanted = WantedPage(request.prefix, request.first, page_size, request.version, PAGE_BYTES)

        async def stored() -> MemberPage:
            return await self._node.open_archives(
                tenant, list_members, self._store, request.bucket, request.name, *wanted
            )

        try:
            return _members_response(await stored())
        except ObjectNotFound:
            if (bucket := self._tier.buckets.find(request.bucket)) is None:
                raise
        cold = await self._tier.reads.member_page(bucket, request.name, wanted)
        return _members_response(await stored() if cold is None else cold)


def _names_response(names: Sequence[bytes]) -> pb.ListResponse:
    block = NamesBlock.of(names)
    return pb.ListResponse(names=block.names, name_lengths=block.lengths.astype("<u2").tobytes(), has_names=True)


def _members_response(page: MemberPage) -> pb.ListMembersResponse:
    return pb.ListMembersResponse(
        name=[member.name for member in page.members],
        size=[member.size_bytes for member in page.members],
        checksum=[member.checksum for member in page.members],
        version=page.version,
        next=page.next,
        hidden=page.hidden,
    )
