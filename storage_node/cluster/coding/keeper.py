"""Keeper of groups: writes lost fragments again, gives up groups that are empty, sparse, or of another redundancy, and
removes fragments that belong to no group.

The first owner of a manifest keeps its group. On each pass, while the cluster is at rest, it asks the nodes with its
fragments what they have, and, less often, the owners of its objects.

- Fragments that are gone or damaged, or share a host, are written again from the others.
- An owner with a file of an object that is coded elsewhere swaps it: a swap has not come to it, or it has made a copy
  that it could not do without.
- A group of which less than half is left, or whose redundancy is no longer that of its bucket, is dissolved: the owners
  of what is left make copies again, in the same versions, which are coded anew where the bucket is still coded. While a
  bucket has snapshots, its groups stay for them.
- A group that no node has an entry of is given up after `coding_grace_s`, by deleting its manifest. Until then, readers
  that looked an entry up before find its bytes. No entry can come back: owners refuse entries that were sent longer ago
  than half that time, and a node that has an entry answers that it has.
- Fragments without a manifest, which a coder left that died, or of a group that was given up, are removed by the node
  that has them, once all nodes have answered that there is none.

Belongs to the node's event loop.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple

from ais_loader.errors import LoaderError
from ais_loader.wire.bucket_uuid import created_ns
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.redundancy import companion_name
from storage_node.cluster.coding.coder import CodingMetrics, record
from storage_node.cluster.coding.fragments import FragmentWriter
from storage_node.cluster.coding.group import Manifest, Slot
from storage_node.cluster.coding.group_reader import GroupReader
from storage_node.cluster.coding.plan import (
    FragmentPlace,
    group_of_fragment,
    group_of_manifest,
    is_lost,
    is_sparse,
    living,
    lost_fragments,
    manifest_name,
    place_fragments,
    plain_owners,
)
from storage_node.cluster.repair.peers import PAGE_NAMES, RepairPeers
from storage_node.cluster.repair.plan import UNKNOWN, Answer, owners_of
from storage_node.cluster.repair.transfers import chunks
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.context.errors import ReplicaLost, TooFewCopies
from storage_node.context.membership import Membership
from storage_node.context.node import Node
from storage_node.store.drive.drive import Drive
from storage_node.store.format import CatalogEntry, Version, coded_path, encode_entry
from storage_node.store.names import CODED_PREFIX

_LOOKS = 8
"""How often in `coding_grace_s` the owners of a group's objects are asked about them, and fragments without a manifest
are looked for. The fragments of groups are looked after in each pass: they are far fewer."""
_RECALLED_NAMES = 64
"""Most objects that an owner makes copies of in one call."""
log = logging.getLogger(__name__)


class _Kept(NamedTuple):
    """A group that this node keeps."""

    version: Version
    """The version of its manifest."""
    layout: Manifest
    """The manifest without its slots, which take most of it."""
    looked_s: float
    """When the owners of its objects were last asked about them. They have just swapped when it is made."""


class Keeper:
    def __init__(
        self,
        node: Node,
        membership: Membership,
        writes: WriteCoordinator,
        peers: RepairPeers,
        fragments: FragmentWriter,
        groups: GroupReader,
        metrics: CodingMetrics,
    ) -> None:
        self._node = node
        self._membership = membership
        self._writes = writes
        self._peers = peers
        self._fragments = fragments
        self._groups = groups
        self._metrics = metrics
        self._empty_since_s: dict[bytes, float] = {}
        """When groups were first found to be empty, or without a manifest. By this node's monotonic clock: a wall clock
        that is wrong must not remove what a coder has just written."""
        self._kept: dict[bytes, _Kept] = {}
        """The groups that this node keeps, as of the last pass."""
        self._swept_s = -math.inf
        self._ownerless: set[bytes] = set()
        """Groups without a manifest, as of the last sweep."""

    async def pass_(self, view: ClusterView) -> bool:
        """Go through the groups that this node keeps, and the fragments that it has. Returns whether nothing was left
        to do. Raises LoaderError."""
        if view.is_changing:
            return False
        count, short, clean, now_s = 0, 0, True, time.monotonic()
        sweeps = now_s - self._swept_s >= self._node.config.cluster.coding_grace_s / _LOOKS
        self._ownerless = set() if sweeps else self._ownerless
        found: set[bytes] = set()
        for bucket in view.buckets.values():
            companion = view.buckets.get(companion_name(bucket.uuid))
            if companion is None:
                continue
            async for group, version in self._manifests(view, bucket):
                if self._membership.view is not view:
                    return False
                found.add(group)
                count += 1
                try:
                    is_whole, is_settled = await self._keep(view, bucket, companion, group, version)
                except (ReplicaLost, LoaderError) as error:
                    log.info("group %s of %s: %s", group.hex(), bucket.name, error)
                    is_whole = is_settled = False
                short += not is_whole
                clean = clean and is_whole and is_settled
            if sweeps:
                self._ownerless |= await self._sweep(view, bucket, companion)
                self._swept_s = now_s
        self._empty_since_s = {
            group: since_s for group, since_s in self._empty_since_s.items() if group in found | self._ownerless
        }
        self._kept = {group: kept for group, kept in self._kept.items() if group in found}
        self._metrics.groups, self._metrics.short_groups = count, short
        return clean

    async def _manifests(self, view: ClusterView, bucket: pb.MapBucket) -> AsyncIterator[tuple[bytes, Version]]:
        """Yield the groups of which this node is the first owner of the manifest, with the manifest's version."""
        local = view.position[self._membership.node_uuid]
        for drive in [drive for drive in self._node.store.drives if drive is not None]:
            after = ""
            while page := await self._node.read(_page, drive, bucket.uuid, CODED_PREFIX, after):
                after = page[-1][0]
                versions = {name: entry.version for name, entry in page if not entry.is_tombstone}
                for name, owners in zip(versions, owners_of(view, bucket, list(versions)), strict=True):
                    if owners[0] == local:
                        yield group_of_manifest(name), versions[name]

    async def _keep(
        self, view: ClusterView, bucket: pb.MapBucket, companion: pb.MapBucket, group: bytes, version: Version
    ) -> tuple[bool, bool]:
        """Return whether all fragments of a group are there, and whether nothing else was left to do.

        Raises ReplicaLost, LoaderError.
        """
        now_s, kept = time.monotonic(), self._kept.get(group)
        if kept is None or kept.version != version:
            manifest = await self._groups.manifest(bucket, group)
            young_s = (time.time_ns() - created_ns(group.hex())) / 1e9
            looked_s = now_s - young_s if kept is None else kept.looked_s
            kept = self._kept[group] = _Kept(version, manifest._replace(slots=()), looked_s)
        is_other = (bucket.coding.data, bucket.coding.parity) != (kept.layout.data, kept.layout.parity)
        if now_s - kept.looked_s < self._node.config.cluster.coding_grace_s / _LOOKS and not is_other:
            return await self._mend(view, bucket, companion, kept.layout), True
        manifest = await self._groups.manifest(bucket, group)
        names = [slot.name for slot in manifest.slots]
        owners = dict(zip(names, owners_of(view, bucket, names), strict=True))
        answers = await self._states(view, bucket, owners)
        alive = living(manifest, owners, answers)
        if alive == []:
            if bucket.snapshot:  # they may see versions that have ended
                return await self._mend(view, bucket, companion, manifest), True
            return True, await self._give_up(view, bucket, manifest)
        self._empty_since_s.pop(manifest.group, None)
        if is_other or (alive is not None and not bucket.snapshot and is_sparse(manifest, alive)):
            is_over = await self._dissolve(view, bucket, manifest, owners, answers) and not bucket.snapshot
            return is_over or await self._mend(view, bucket, companion, manifest), False
        for node, slots in plain_owners(manifest, owners, answers).items():
            await self._swap(view, bucket, manifest, node, slots)
        self._kept[group] = kept._replace(looked_s=now_s)
        return await self._mend(view, bucket, companion, manifest), True

    async def _states(
        self, view: ClusterView, bucket: pb.MapBucket, nodes: Mapping[str, Sequence[int]], *, lasting: bool = False
    ) -> dict[int, Answer]:
        """Return what these nodes, by name, have, with `lasting` on disks. Those that act by another map are silent."""
        requests: dict[int, list[str]] = {}
        for name, mine in nodes.items():
            for node in mine:
                requests.setdefault(node, []).append(name)
        answers, by_this_map = await self._peers.newest(view, bucket, requests, make_lasting=lasting)
        return {node: answer for node, answer in answers.items() if node in by_this_map}

    async def _swap(
        self, view: ClusterView, bucket: pb.MapBucket, manifest: Manifest, node: int, slots: Sequence[Slot]
    ) -> None:
        wall_ms = self._node.store.clock.wall_ms()
        path = coded_path(manifest.group)
        coded = [
            (
                slot.name,
                encode_entry(CatalogEntry(*slot.version, slot.size_bytes, slot.checksum, 0, slot.offset, path, b"")),
            )
            for slot in slots
        ]
        for part in chunks(coded, PAGE_NAMES):
            await self._peers.recode(view.nodes[node].peer_endpoint, bucket, part, wall_ms, only_files=True)

    # -- fragments

    async def _mend(self, view: ClusterView, bucket: pb.MapBucket, companion: pb.MapBucket, manifest: Manifest) -> bool:
        """Write lost fragments again; return whether all are there now. Raises ReplicaLost, LoaderError."""
        owners = [found[0] for found in owners_of(view, companion, manifest.fragments)]
        nodes = {name: [node] for name, node in zip(manifest.fragments, owners, strict=True)}
        answers = await self._states(view, companion, nodes)
        lost = lost_fragments(view, manifest, owners, answers)
        if not lost:
            return len(answers) == len(set(owners))
        used = [view.nodes[node].host for index, node in enumerate(owners) if index not in lost]
        try:
            places = place_fragments(view, companion, manifest.group, lost, used=used, names=manifest.fragments)
        except TooFewCopies:
            # Two fragments on one host are better than one fewer.
            lost = [index for index in lost if is_lost(manifest.fragments[index], answers.get(owners[index]))]
            places = {index: FragmentPlace(manifest.fragments[index], owners[index]) for index in lost}

        async def read(index: int, at: int, size_bytes: int) -> bytes:
            return bytes(await self._groups.fragment(bucket, manifest, index, at, size_bytes))

        if not places:
            return False
        log.info("fragments %s of group %s are written again", sorted(places), manifest.group.hex())
        await self._fragments.write(view, companion, manifest, places, read, is_coded=True)
        by_node: dict[int, list[str]] = {}
        for place in places.values():
            by_node.setdefault(place.node, []).append(place.name)
        if len(await self._fragments.lasting(view, companion, by_node)) < len(places):
            return False
        self._metrics.fragments_rebuilt += len(places)
        names = tuple(places[index].name if index in places else name for index, name in enumerate(manifest.fragments))
        if names != manifest.fragments:
            whole = await self._groups.manifest(bucket, manifest.group)
            await record(self._writes, bucket, [whole._replace(fragments=names)])
            self._groups.forget([manifest.group])
            if not await self._is_safe(view, bucket, manifest.group):
                return False  # the manifest before, which may come back, names what would be deleted
            if (replica_set := self._writes.replica_set(companion.name)) is not None:
                await self._writes.delete_many(replica_set, sorted({*manifest.fragments} - {*names}))
        return True

    async def _is_safe(self, view: ClusterView, bucket: pb.MapBucket, group: bytes) -> bool:
        """Whether all owners of a manifest have a newer one than this node has read, on their disks."""
        name, before = manifest_name(group), self._kept[group].version
        [owners] = owners_of(view, bucket, [name])
        answers = await self._states(view, bucket, {name: owners}, lasting=True)
        states = [answers.get(node, {}).get(name) for node in owners]
        return all(state is not None and not state.is_tombstone and state.version > before for state in states)

    # -- groups that end

    async def _dissolve(
        self,
        view: ClusterView,
        bucket: pb.MapBucket,
        manifest: Manifest,
        owners: Mapping[str, Sequence[int]],
        answers: Mapping[int, Answer],
    ) -> bool:
        """Have all owners make copies again of what they have in the group. Returns whether they have."""
        self._metrics.groups_dissolved += 1
        by_node: dict[int, list[Slot]] = {}
        for slot in manifest.slots:
            for node in owners[slot.name]:
                state = answers.get(node, {}).get(slot.name)
                if state is not None and state.group == manifest.group:
                    by_node.setdefault(node, []).append(slot)
        is_done = answers.keys() >= set(itertools.chain(*owners.values()))
        for node, slots in by_node.items():
            try:
                for part in chunks(slots, _RECALLED_NAMES):
                    await self._peers.recall(
                        view.nodes[node].peer_endpoint, bucket, manifest.group, [slot.name for slot in part]
                    )
            except ReplicaLost as lost:
                log.info("group %s is not dissolved for now: %s", manifest.group.hex(), lost)
                is_done = False
        return is_done

    async def _give_up(self, view: ClusterView, bucket: pb.MapBucket, manifest: Manifest) -> bool:
        """Delete the manifest of an empty group when its time is over. Returns whether nothing is left to do."""
        now_s = time.monotonic()
        if now_s - self._empty_since_s.setdefault(manifest.group, now_s) < self._node.config.cluster.coding_grace_s:
            return False
        nodes = {slot.name: range(len(view.nodes)) for slot in manifest.slots}
        if living(manifest, nodes, await self._states(view, bucket, nodes, lasting=True)) != []:
            return False
        if (replica_set := self._writes.replica_set(bucket.name)) is not None:
            await self._writes.delete(replica_set, manifest_name(manifest.group))
        return True

    async def _sweep(self, view: ClusterView, bucket: pb.MapBucket, companion: pb.MapBucket) -> set[bytes]:
        """Remove fragments on this node of whose group no node has had a manifest for `coding_grace_s`. Returns the
        groups without one."""
        grace_s, ownerless = self._node.config.cluster.coding_grace_s, set[bytes]()
        for drive in [drive for drive in self._node.store.drives if drive is not None]:
            after = ""
            while page := await self._node.read(_page, drive, companion.uuid, "", after):
                after, now_s = page[-1][0], time.monotonic()
                groups: dict[str, list[tuple[str, CatalogEntry]]] = {}
                for name, entry in page:
                    with contextlib.suppress(ValueError):
                        if entry.has_file:
                            groups.setdefault(manifest_name(group_of_fragment(name)), []).append((name, entry))
                for manifest in await self._without_manifest(view, bucket, list(groups)):
                    group = group_of_manifest(manifest)
                    ownerless.add(group)
                    if now_s - self._empty_since_s.setdefault(group, now_s) < grace_s:
                        continue
                    for name, entry in groups[manifest]:
                        if self._membership.view is view:
                            await self._node.read(self._node.store.delete, companion.name, name, entry.version)
        return ownerless

    async def _without_manifest(self, view: ClusterView, bucket: pb.MapBucket, names: Sequence[str]) -> list[str]:
        """Return the manifests that no node has, of which all nodes answer."""
        nodes: dict[str, Sequence[int]] = dict(zip(names, owners_of(view, bucket, names), strict=True))
        for _ in range(2):
            answers = await self._states(view, bucket, nodes)
            nodes = {
                name: range(len(view.nodes))
                for name, mine in nodes.items()
                if all(
                    (state := answers.get(node, {}).get(name, UNKNOWN)) is None or state.is_tombstone for node in mine
                )
            }
            if not nodes:
                break
        return list(nodes)


def _page(drive: Drive, bucket_uuid: bytes, prefix: str, after: str) -> list[tuple[str, CatalogEntry]]:
    return list(itertools.islice(drive.scan_all(bucket_uuid, prefix, after), PAGE_NAMES))
