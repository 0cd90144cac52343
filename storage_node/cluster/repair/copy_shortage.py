"""Repair of copy shortages: creates missing replicas at once, on stand-ins if necessary.

It covers objects that a write left with too few replicas, and objects for which a repair pass finds an owner that
answers but cannot store its replica. They do not wait for the next pass. What cannot be repaired is retried. Belongs to
the node's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from ais_loader.errors import LoaderError
from ais_loader.wire.backoff import Backoff
from ais_loader.wire.cluster_map import ClusterView, object_hashes
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.repair.peers import PAGE_NAMES, RepairPeers
from storage_node.cluster.repair.plan import Answer, NamePage, State
from storage_node.cluster.repair.shortage import ShortObjects, StandIns, has, may_be_replaced, shortages
from storage_node.cluster.repair.transfers import chunks
from storage_node.context.membership import Membership
from storage_node.store.format import CatalogEntry

AGAIN = Backoff(0.5, 30.0)
Held = Sequence[tuple[str, CatalogEntry]]
log = logging.getLogger(__name__)


class CopyShortage:
    def __init__(
        self,
        membership: Membership,
        peers: RepairPeers,
        *,
        held: Callable[[str, Sequence[str]], Awaitable[Held]],
        compare: Callable[[ClusterView, pb.MapBucket, Held], Awaitable[tuple[NamePage, Mapping[int, Answer]]]],
        push: Callable[[ClusterView, int, pb.MapBucket, Sequence[str], Mapping[str, int]], Awaitable[None]],
    ) -> None:
        """Args:
        held: what this node has of names of a bucket; raises LoaderError.
        compare: the page of these, and what their other owners have.
        push: sends names to a node, with the sizes of all objects; what fails is tried again later.
        """
        self._membership = membership
        self._peers = peers
        self._held, self._compare, self._push = held, compare, push
        self.short = ShortObjects()

    async def run(self) -> None:
        """Run until cancelled."""
        in_vain = 0
        while True:
            left = sum(map(len, self.short.urgent().values()))
            await self.short.noted.wait(AGAIN.whole_s(in_vain) if left else None)
            try:
                await self._mend_all()
            except LoaderError as error:
                log.warning("objects with too few copies cannot be copied for now: %s", error)
            in_vain = 0 if sum(map(len, self.short.urgent().values())) < left else in_vain + 1
            await asyncio.sleep(AGAIN.first_s / 2)  # later writes are repaired together

    async def _mend_all(self) -> None:
        """Repair all objects known to be short. Raises LoaderError."""
        view = self._membership.view
        if view is None or self._membership.position is None:
            return
        for bucket_uuid, names in self.short.urgent().items():
            bucket = view.bucket_with_uuid(bucket_uuid)
            if bucket is None:
                self.short.mended(bucket_uuid, names, self.short.notes)
                continue
            for part in chunks(names, PAGE_NAMES):
                await self._mend(view, bucket, part)

    async def _mend(self, view: ClusterView, bucket: pb.MapBucket, names: Sequence[str]) -> None:
        local = view.position[self._membership.node_uuid]
        page, answers = await self._compare(view, bucket, await self._held(bucket.name, names))
        mine = dict(zip(page.names, page.states, strict=True))
        owners = dict(zip(page.names, page.owners, strict=True))
        lacking: dict[int, list[str]] = {}
        for name in shortages(page, local, answers):
            for node in owners[name]:
                if node != local and node in answers and not has(answers[node].get(name), mine[name]):
                    lacking.setdefault(node, []).append(name)
        await self._send(view, bucket, lacking, mine)
        await self.look_after(view, bucket, names, urgent=True)

    async def look_after(
        self, view: ClusterView, bucket: pb.MapBucket, names: Sequence[str], *, urgent: bool = False
    ) -> None:
        """Check which of these objects still have too few replicas after their owners were sent what they lack; make
        other hosts stand in for owners that cannot store theirs. Raises LoaderError.

        Args:
            urgent: replace silent owners too.
        """
        local, notes = view.position[self._membership.node_uuid], self.short.notes
        page, answers = await self._compare(view, bucket, await self._held(bucket.name, names))
        short = shortages(page, local, answers)
        replaced = set(short) if urgent else may_be_replaced(page, local, answers, short)
        left = await self._stand_in(view, bucket, page, {name: short[name] for name in short if name in replaced})
        self.short.mended(bucket.uuid, set(names) - left, notes)
        self.short.note(bucket.uuid, left)
        if not urgent:
            self.short.count(bucket.uuid, set(short) - replaced)

    async def _stand_in(
        self, view: ClusterView, bucket: pb.MapBucket, page: NamePage, missing: Mapping[str, int]
    ) -> set[str]:
        """Copy objects to stand-ins; return those that still have too few replicas."""
        if not missing:
            return set()
        mine = dict(zip(page.names, page.states, strict=True))
        owners = dict(zip(page.names, page.owners, strict=True))
        ranked = view.placement.owners(object_hashes(bucket.uuid, list(missing)), view.placement.hosts).tolist()
        rankings = {name: ranking[len(owners[name]) :] for name, ranking in zip(missing, ranked, strict=True)}
        stand_ins = StandIns(missing, rankings, view.position[self._membership.node_uuid])
        while requests := stand_ins.next_nodes():
            reported, _ = await self._peers.newest(view, bucket, requests)
            lacking = {
                node: names
                for node in reported
                if (names := [name for name in requests[node] if not has(reported[node].get(name), mine[name])])
            }
            await self._send(view, bucket, lacking, mine)
            again = (await self._peers.newest(view, bucket, lacking))[0] if lacking else {}
            for node, names in requests.items():
                known = {**reported.get(node, {}), **again.get(node, {})}
                stand_ins.have(name for name in names if has(known.get(name), mine[name]))
        return set(stand_ins.missing)

    async def _send(
        self, view: ClusterView, bucket: pb.MapBucket, wanted: Mapping[int, Sequence[str]], mine: Mapping[str, State]
    ) -> None:
        sizes = {name: state.size_bytes for name, state in mine.items()}
        await asyncio.gather(*(self._push(view, node, bucket, names, sizes) for node, names in wanted.items()))
