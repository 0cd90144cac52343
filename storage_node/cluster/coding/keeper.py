"""Keeper of groups: writes lost fragments again, gives up groups that are empty, sparse, or of another redundancy, and
removes fragments that belong to no group.

The first owner of a manifest keeps its group. On each pass, while the cluster is at rest, it asks the nodes with its
fragments what they have, and, less often, the owners of its objects.

- Fragments that are gone or damaged, or share a host, are written again from the others.
- An owner with a file of an object that is coded elsewhere swaps it, unless the group may be unreadable: a swap has not
  come to it, or it has made a copy that it could not do without.
- A group of which less than half is left, or whose redundancy is no longer that of its bucket, is dissolved: the owners
  of what is left make copies again, in the same versions, which are coded anew where the bucket is still coded. While a
  bucket has snapshots, its groups stay for them.
- Of a group with denied objects, the fragments with their bytes and the parity are written again without these bytes.
- A group that no node has an entry of is given up after `coding_grace_s`, by deleting its manifest. Until then, readers
  that looked an entry up before find its bytes. No entry can come back: owners refuse entries that were sent longer ago
  than half that time, and a node that has an entry answers that it has.
- Fragments that no manifest names are removed by the node that has them after `coding_grace_s`: a coder that died left
  them, or a keeper that did not finish, or their group was given up, or they were written again under another name. All
  nodes have answered that there is no manifest, or all its owners that they have one without them on their disks.
- The next owner of a manifest that the first one cannot read counts what its group lacks. So a drive is not given up
  while it may have fragments that a group needs.

Belongs to the node's event loop.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ais_loader.errors import LoaderError, NodeUnavailable
from ais_loader.wire.bucket_uuid import created_ns
from ais_loader.wire.checksum import crc32c
from ais_loader.wire.cluster_map import ClusterView, by_key
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.redundancy import companion_name
from ais_loader.wire.reserved import DENIED
from storage_node.cluster.coding.coder import CodingParts, LastLook, record
from storage_node.cluster.coding.group import Manifest, Slot
from storage_node.cluster.coding.group_reader import GroupReader
from storage_node.cluster.coding.plan import (
    FragmentPlace,
    denied_slots,
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
from storage_node.cluster.repair.peers import PAGE_NAMES
from storage_node.cluster.repair.plan import UNKNOWN, Answer, owners_of
from storage_node.cluster.repair.transfers import chunks
from storage_node.context.errors import ReplicaLost, TooFewCopies
from storage_node.store.drive.drive import Drive
from storage_node.store.format import CatalogEntry, Version, coded_path, encode_entry, encode_metadata
from storage_node.store.names import CODED_PREFIX

_LOOKS = 8
"""How often in `coding_grace_s` the owners of a group's objects are asked about them, and fragments without a manifest
are looked for. The fragments of groups are looked after in each pass: they are far fewer."""
_MOST_MANIFESTS = 4096
"""Most manifests that are read in one search for fragments that they do not name."""
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
    denied: Mapping[str, str] = {}
    """Why it still has bytes of denied objects, by its bucket; empty if it has none."""


class Keeper:
    def __init__(self, parts: CodingParts, groups: GroupReader) -> None:
        self._node, self._membership, self._writes, self._peers, self._fragments, self._metrics = parts
        self._groups = groups
        self._empty_since_s: dict[bytes, float] = {}
        """When groups were first found to be empty, by this node's monotonic clock: the wall clock may be wrong."""
        self._kept: dict[bytes, _Kept] = {}
        """The groups that this node keeps, as of the last pass."""
        self._swept_s = -math.inf
        self._unnamed_since_s: dict[tuple[str, Version], float] = {}
        """When fragments on this node were first found to be named by no manifest."""
        self._manifests_left = 0
        """How many more manifests this sweep may read."""
        self._named: dict[str, Version] = {}
        """Versions of the manifests that were read and name fragments on this node, as of the last sweep."""
        self._lacking: dict[bytes, dict[int, int]] = {}
        """The fragments that cannot be read, by index, with their nodes, of the groups that this pass has looked at."""

    async def pass_(self, view: ClusterView) -> bool:
        """Go through the groups that this node keeps, and the fragments that it has. Returns whether nothing was left
        to do. Raises LoaderError."""
        if view.is_changing:
            return False
        count, short, unsafe, clean, now_s = 0, 0, 0, True, time.monotonic()
        sweeps = now_s - self._swept_s >= self._node.config.cluster.coding_grace_s / _LOOKS
        refills = bool(self._node.store.replicas.stale.buckets_with_gaps())  # manifests may be missing here
        found, named = set[bytes](), dict[str, Version]()
        self._lacking, self._manifests_left = {}, _MOST_MANIFESTS
        unnamed: set[tuple[str, Version]] = set()
        for bucket in view.buckets.values():
            companion = view.buckets.get(companion_name(bucket.uuid))
            if companion is None:
                continue
            async for group, version, is_mine in self._manifests(view, bucket):
                if self._membership.view is not view:
                    return False
                found.add(group)
                count += is_mine
                try:
                    is_whole, is_settled = await self._keep(view, bucket, companion, group, version, is_mine=is_mine)
                except (ReplicaLost, LoaderError) as error:
                    log.info("group %s of %s: %s", group.hex(), bucket.name, error)
                    is_whole = is_settled = False
                    unsafe += group not in self._lacking
                short += is_mine and not is_whole
                clean = clean and is_whole and is_settled
            if sweeps:
                unnamed |= await self._sweep(view, bucket, companion, named)
        if sweeps:
            self._swept_s, self._named = now_s, named
            self._unnamed_since_s = {one: s for one, s in self._unnamed_since_s.items() if one in unnamed}
        self._empty_since_s = {group: since_s for group, since_s in self._empty_since_s.items() if group in found}
        self._kept = {group: kept for group, kept in self._kept.items() if group in found}
        self._metrics.denied = dict(item for kept in self._kept.values() for item in kept.denied.items())
        lacking = Counter(view.nodes[node].uuid.hex() for lost in self._lacking.values() for node in {*lost.values()})
        unsafe += sum(len(lost) > self._kept[group].layout.parity for group, lost in self._lacking.items())
        self._metrics.groups, self._metrics.short_groups = count, short
        if not refills:
            self._metrics.last_look = LastLook(now_s, dict(lacking), unsafe)
        return clean

    async def _manifests(self, view: ClusterView, bucket: pb.MapBucket) -> AsyncIterator[tuple[bytes, Version, bool]]:
        """Yield groups, with the version of their manifest, and whether this node is its first owner. If it is not, no
        owner before it has answered that it can read the manifest."""
        local = view.position[self._membership.node_uuid]
        for drive in [drive for drive in self._node.store.drives if drive is not None]:
            after = ""
            while page := await self._node.read(_page, drive, bucket.uuid, CODED_PREFIX, after):
                after = page[-1][0]
                versions = {name: entry.version for name, entry in page if not entry.is_tombstone}
                owners = zip(versions, owners_of(view, bucket, list(versions)), strict=True)
                before = {name: nodes[: nodes.index(local)] for name, nodes in owners if local in nodes}
                answers = await self._states(view, bucket, before)
                for name, nodes in before.items():
                    states = [answers.get(node, {}).get(name) for node in nodes]
                    if all(state is None or state is UNKNOWN or state.is_tombstone for state in states):
                        yield group_of_manifest(name), versions[name], not nodes

    async def _keep(
        self,
        view: ClusterView,
        bucket: pb.MapBucket,
        companion: pb.MapBucket,
        group: bytes,
        version: Version,
        *,
        is_mine: bool,
    ) -> tuple[bool, bool]:
        """Return whether all fragments of a group are there, and whether nothing else was left to do. Of a group that
        another node keeps, only count what it lacks.

        Raises ReplicaLost, LoaderError.
        """
        now_s, kept = time.monotonic(), self._kept.get(group)
        if kept is None or kept.version != version:
            manifest = await self._groups.manifest(bucket, group)
            young_s = (time.time_ns() - created_ns(group.hex())) / 1e9
            looked_s = now_s - max(0.0, young_s) if kept is None else kept.looked_s
            kept = self._kept[group] = _Kept(version, manifest._replace(slots=()), looked_s)
        if not is_mine:
            self._kept[group] = kept._replace(denied={})  # its keeper tells
            await self._look(view, companion, kept.layout)
            return True, True
        is_other = (bucket.coding.data, bucket.coding.parity) != (kept.layout.data, kept.layout.parity)
        if now_s - kept.looked_s < self._node.config.cluster.coding_grace_s / _LOOKS and not is_other:
            return await self._mend(view, bucket, companion, kept.layout), True
        manifest = await self._groups.manifest(bucket, group)
        names = [slot.name for slot in manifest.slots]
        owners = dict(zip(names, owners_of(view, bucket, names), strict=True))
        answers = await self._states(view, bucket, owners)
        if denied := denied_slots(manifest, answers):
            is_whole = await self._mend(view, bucket, companion, manifest)  # whatever becomes of the rest
            if (await self._groups.manifest(bucket, group)).fragments != manifest.fragments:
                return is_whole, False  # in the next pass
            try:
                await self._wipe(view, bucket, companion, manifest, denied)
            except (ReplicaLost, LoaderError) as error:
                if not kept.denied:
                    log.warning("group %s of %s keeps denied bytes for now: %s", group.hex(), bucket.name, error)
                # Not in each pass: all owners were asked.
                self._kept[group] = kept._replace(looked_s=now_s, denied={bucket.name: str(error)})
                return is_whole, True
            return is_whole, False
        self._kept[group] = kept = kept._replace(denied={})
        alive = living(manifest, owners, answers)
        if alive == []:
            if bucket.snapshot:  # they may see versions that have ended
                return await self._mend(view, bucket, companion, manifest), True
            return True, await self._give_up(view, bucket, manifest)
        self._empty_since_s.pop(manifest.group, None)
        if is_other or (alive is not None and not bucket.snapshot and is_sparse(manifest, alive)):
            is_over = await self._dissolve(view, bucket, manifest, owners, answers) and not bucket.snapshot
            return is_over or await self._mend(view, bucket, companion, manifest), False
        if files := plain_owners(manifest, owners, answers):
            await self._look(view, companion, manifest)
            if len(self._lacking[group]) <= manifest.parity:  # otherwise they may be the last bytes of their objects
                for node, slots in files.items():
                    await self._swap(view, bucket, manifest, node, slots)
        self._kept[group] = kept._replace(looked_s=now_s)
        return await self._mend(view, bucket, companion, manifest), True

    async def _states(
        self, view: ClusterView, bucket: pb.MapBucket, nodes: Mapping[str, Sequence[int]], *, lasting: bool = False
    ) -> dict[int, Answer]:
        """Return what these nodes, by name, have, with `lasting` on disks. Those that act by another map are silent."""
        requests = by_key((node, name) for name, mine in nodes.items() for node in mine)
        answers, by_this_map = await self._peers.newest(view, bucket, requests, make_lasting=lasting)
        return {node: answer for node, answer in answers.items() if node in by_this_map}

    async def _swap(
        self, view: ClusterView, bucket: pb.MapBucket, manifest: Manifest, node: int, slots: Sequence[Slot]
    ) -> None:
        wall_ms = self._node.store.clock.wall_ms()
        where = coded_path(manifest.group), b""
        entries = (CatalogEntry(*one.version, one.size_bytes, one.checksum, 0, one.offset, *where) for one in slots)
        coded = [(slot.name, encode_entry(entry)) for slot, entry in zip(slots, entries, strict=True)]
        for part in chunks(coded, PAGE_NAMES):
            await self._peers.recode(view.nodes[node].peer_endpoint, bucket, part, wall_ms, only_files=True)

    # -- fragments

    async def _mend(self, view: ClusterView, bucket: pb.MapBucket, companion: pb.MapBucket, manifest: Manifest) -> bool:
        """Write lost fragments again; return whether all are there now. Raises ReplicaLost, LoaderError."""
        owners, answers = await self._look(view, companion, manifest)
        lost = lost_fragments(view, manifest, owners, answers)
        if not lost:
            return len(answers) == len(set(owners))
        used = [view.nodes[node].host for index, node in enumerate(owners) if index not in lost]
        names, salt = manifest.fragments, self._salt(manifest)
        try:
            places = place_fragments(view, companion, manifest.group, lost, used=used, names=names, salt=salt)
        except TooFewCopies:
            # Two fragments on one host are better than one fewer.
            lost = [index for index in lost if is_lost(manifest.fragments[index], answers.get(owners[index]))]
            places = {index: FragmentPlace(manifest.fragments[index], owners[index]) for index in lost}

        async def read(index: int, at: int, size_bytes: int) -> bytes:
            return bytes(await self._groups.fragment(bucket, manifest, index, at, size_bytes))

        if not places:
            return False
        log.info("fragments %s of group %s are written again", sorted(places), manifest.group.hex())
        made = 0
        for index, place in places.items():  # one by one: a node that cannot take its own, or is slow, hinders no other
            try:
                await self._fragments.write(view, companion, manifest, {index: place}, read, is_coded=True)
                if (changed := await self._replace(view, bucket, companion, manifest, {index: place})) is not None:
                    manifest, made = changed, made + 1
                    self._lacking[manifest.group].pop(index, None)
            except (ReplicaLost, LoaderError) as error:
                log.info("fragment %d of group %s: %s", index, manifest.group.hex(), error)
        self._metrics.fragments_rebuilt += made
        return made == len(places)

    async def _wipe(
        self,
        view: ClusterView,
        bucket: pb.MapBucket,
        companion: pb.MapBucket,
        manifest: Manifest,
        denied: Sequence[Slot],
    ) -> None:
        """Write the fragments with bytes of denied objects again, with zeros in their place, and the parity, and have
        them take the place of the others. Raises ReplicaLost, LoaderError."""
        pieces = (piece for slot in denied for piece in manifest.pieces(slot.offset, slot.size_bytes))
        holes = by_key((piece.fragment, piece) for piece in pieces)
        changed = [*holes, *range(manifest.data, manifest.data + manifest.parity)]
        owners = owners_of(view, companion, manifest.fragments)
        used = [view.nodes[found[0]].host for index, found in enumerate(owners) if index not in changed]
        salt, hosts = self._salt(manifest, denied), {node.host for node in view.nodes}
        try:
            places = place_fragments(view, companion, manifest.group, changed, used=used, salt=salt)
        except TooFewCopies:  # each stays on its host: two fragments on one are better than denied bytes
            places = {}
            for index in changed:
                others = hosts - {view.nodes[owners[index][0]].host}
                places |= place_fragments(view, companion, manifest.group, [index], used=others, salt=salt)

        async def read(index: int, at: int, size_bytes: int) -> bytes:
            data = bytearray(await self._groups.fragment(bucket, manifest, index, at, size_bytes))
            for piece in holes.get(index, ()):
                first = max(piece.start - at, 0)
                stop = max(first, min(piece.start + piece.size_bytes - at, len(data)))
                data[first:stop] = bytes(stop - first)
            return bytes(data)

        log.info("%s objects of group %s are denied, and leave it", len(denied), manifest.group.hex())
        await self._fragments.write(view, companion, manifest, places, read)
        if await self._replace(view, bucket, companion, manifest, places, {slot.name for slot in denied}) is None:
            raise NodeUnavailable("not all fragments without its denied objects are on disks")
        name, before = manifest_name(manifest.group), self._kept[manifest.group].version
        newer = (await self._recorded(view, bucket, [name], lasting=True)).get(name)
        if newer is None or newer <= before:
            raise NodeUnavailable("the manifest before may come back, and names what would be deleted")
        if (replica_set := self._writes.replica_set(companion.name)) is not None:  # what is denied is removed at once
            reason = encode_metadata({DENIED: "it has bytes of denied objects"})
            await self._writes.deny(replica_set, [manifest.fragments[index] for index in changed], reason)

    def _salt(self, manifest: Manifest, denied: Sequence[Slot] = ()) -> int:
        """Return a salt from which no name of a fragment with other bytes was drawn: some reader may still know it."""
        return self._kept[manifest.group].version.counter << 32 | crc32c(repr(denied).encode()) & 0xFFFF0000

    async def _replace(
        self,
        view: ClusterView,
        bucket: pb.MapBucket,
        companion: pb.MapBucket,
        manifest: Manifest,
        places: Mapping[int, FragmentPlace],
        gone: Collection[str] = (),
    ) -> Manifest | None:
        """Name fragments that have just been written in the manifest, and no longer objects that are `gone`. Return it;
        None, with nothing changed, if not all are on disks. Raises ReplicaLost, LoaderError."""
        written_s, names = time.monotonic(), {index: place.name for index, place in places.items()}
        nodes = by_key((place.node, place.name) for place in places.values())
        if not (await self._fragments.lasting(view, companion, nodes)).issuperset(names.values()):
            return None
        fragments = tuple(names.get(index, name) for index, name in enumerate(manifest.fragments))
        changed = manifest._replace(fragments=fragments)
        if fragments != manifest.fragments:
            whole = await self._groups.manifest(bucket, manifest.group)
            is_late = time.monotonic() - written_s > self._node.config.cluster.coding_grace_s / 2
            if is_late or whole.fragments != manifest.fragments:  # their nodes may be about to remove what is late
                return None
            slots = tuple(slot for slot in whole.slots if slot.name not in gone)
            await record(self._writes, bucket, [whole._replace(fragments=fragments, slots=slots)])
            self._groups.forget([manifest.group])
        return changed

    async def _look(
        self, view: ClusterView, companion: pb.MapBucket, manifest: Manifest
    ) -> tuple[list[int], dict[int, Answer]]:
        """Return the owners of a group's fragments, and what they have; note of which it cannot be read."""
        owners = [found[0] for found in owners_of(view, companion, manifest.fragments)]
        nodes = {name: [node] for name, node in zip(manifest.fragments, owners, strict=True)}
        answers = await self._states(view, companion, nodes)
        self._lacking[manifest.group] = {
            index: node
            for index, (name, [node]) in enumerate(nodes.items())
            if node not in answers or is_lost(name, answers[node])
        }
        return owners, answers

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
        coded = by_key(
            (node, slot)
            for slot in manifest.slots
            for node in owners[slot.name]
            if (state := answers.get(node, {}).get(slot.name)) is not None and state.group == manifest.group
        )
        is_done = answers.keys() >= set(itertools.chain(*owners.values()))
        for node, slots in coded.items():
            try:
                for part in chunks([slot.name for slot in slots], _RECALLED_NAMES):
                    await self._peers.recall(view.nodes[node].peer_endpoint, bucket, manifest.group, part)
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

    async def _sweep(
        self, view: ClusterView, bucket: pb.MapBucket, companion: pb.MapBucket, named: dict[str, Version]
    ) -> set[tuple[str, Version]]:
        """Remove fragments on this node that no manifest has named for `coding_grace_s`. Returns those that none names,
        and adds the others to `named`."""
        grace_s, found = self._node.config.cluster.coding_grace_s, set[tuple[str, Version]]()
        for drive in [drive for drive in self._node.store.drives if drive is not None]:
            after = ""
            while page := await self._node.read(_page, drive, companion.uuid, "", after):
                after, now_s = page[-1][0], time.monotonic()
                versions = {name: entry.version for name, entry in page if entry.has_file}
                unnamed = [(name, versions[name]) for name in await self._unnamed(view, bucket, versions, named)]
                found.update(unnamed)
                due = [one for one in unnamed if now_s - self._unnamed_since_s.setdefault(one, now_s) >= grace_s]
                # A manifest that names them might come back after a power failure.
                surely = await self._unnamed(view, bucket, [name for name, _ in due], {}, lasting=True)
                for name, version in due:
                    if name in surely and self._membership.view is view:
                        await self._node.read(self._node.store.delete, companion.name, name, version)
        return found

    async def _unnamed(
        self,
        view: ClusterView,
        bucket: pb.MapBucket,
        names: Iterable[str],
        named: dict[str, Version],
        *,
        lasting: bool = False,
    ) -> set[str]:
        """Return the fragments that surely no manifest names, with `lasting` by what is on disks. Those that one names
        are added to `named`, with its version."""
        groups: dict[str, set[str]] = {}
        for name in names:
            with contextlib.suppress(ValueError):
                groups.setdefault(manifest_name(group_of_fragment(name)), set()).add(name)
        unnamed: set[str] = set()
        for manifest, version in (await self._recorded(view, bucket, list(groups), lasting=lasting)).items():
            mine, found = groups[manifest], set[str]()
            if version is not None and all(self._named.get(name) == version for name in mine):
                found = mine
            elif version is not None:
                if self._manifests_left <= 0:
                    continue
                self._manifests_left -= 1
                try:
                    found = mine & {*(await self._groups.manifest(bucket, group_of_manifest(manifest))).fragments}
                except LoaderError:
                    continue
            unnamed |= mine - found
            named |= dict.fromkeys(found, version or UNKNOWN.version)
        return unnamed

    async def _recorded(
        self, view: ClusterView, bucket: pb.MapBucket, names: Sequence[str], *, lasting: bool
    ) -> dict[str, Version | None]:
        """Return the version of each manifest that all its owners have, and None for those that no node has; without
        those of which neither is sure."""
        nodes: dict[str, Sequence[int]] = dict(zip(names, owners_of(view, bucket, names), strict=True))
        found: dict[str, Version | None] = {}
        while nodes:
            answers = await self._states(view, bucket, nodes, lasting=lasting)
            left: dict[str, Sequence[int]] = {}
            for name, mine in nodes.items():
                states = [answers.get(node, {}).get(name, UNKNOWN) for node in mine]
                versions = {None if state is None or state.is_tombstone else state.version for state in states}
                if any(state is UNKNOWN for state in states) or len(versions) > 1:
                    continue
                if versions == {None} and len(mine) < len(view.nodes):
                    left[name] = range(len(view.nodes))
                else:
                    [found[name]] = versions
            nodes = left
        return found


def _page(drive: Drive, bucket_uuid: bytes, prefix: str, after: str) -> list[tuple[str, CatalogEntry]]:
    return list(itertools.islice(drive.scan_all(bucket_uuid, prefix, after), PAGE_NAMES))
