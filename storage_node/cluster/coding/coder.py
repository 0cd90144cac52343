"""Coder: takes objects that have settled from copies to fragments, in groups.

The first owner of a name codes its object. Each round takes these steps, for several groups at once:

1. Look which nodes answer. Objects of others have to wait.
2. Write the fragments, each to another host, and have their nodes sync them.
3. Write the manifests, and have all their owners sync them.
4. Swap: the other owners replace their copies by coded entries, unless they have something newer; then this node does,
   for what all others have swapped. An entry is synced before its copy becomes garbage.

Readers see the same object before and after each step, and a copy is given up only when its bytes are in fragments that
are on disks. Any step may fail, and this node may die between two: fragments without a manifest, and groups that no
entry names, are removed later (keeper.py), which also swaps what only some owners have swapped. What none has is coded
again in another group. Owners refuse a swap that comes so late that its group may be gone.

Belongs to the node's event loop.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ais_loader.errors import BucketNotFound, LoaderError
from ais_loader.wire import recycled
from ais_loader.wire.bucket_uuid import draw_bucket_uuid
from ais_loader.wire.checksum import crc32c
from ais_loader.wire.cluster_map import ClusterView, by_key
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2 as objects_pb
from ais_loader.wire.redundancy import Redundancy, companion_name
from storage_node.cluster.coding.codec import codec_of
from storage_node.cluster.coding.fragments import FragmentWriter
from storage_node.cluster.coding.group import Manifest, Slot, lay_out
from storage_node.cluster.coding.plan import (
    GROUP_OBJECTS,
    LEAST_FRAGMENT_BYTES,
    Candidate,
    Collector,
    is_alone,
    manifest_name,
    may_be_coded,
    most_fragment_bytes,
    place_fragments,
)
from storage_node.cluster.map.mutations import owning_hosts
from storage_node.cluster.repair.peers import RepairPeers
from storage_node.cluster.repair.plan import owners_of
from storage_node.cluster.repair.transfers import chunks, recode_request
from storage_node.cluster.replication import replica
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.context.errors import ReplicaLost
from storage_node.context.membership import Membership
from storage_node.context.node import Node
from storage_node.store import format as fmt
from storage_node.store.drive.drive import Drive
from storage_node.store.failpoints import failpoint
from storage_node.store.files.object_files import drive_error
from storage_node.store.format import CatalogEntry
from storage_node.store.read.object_reader import open_object

ROUND_GROUPS = 8
"""Most groups that share their syncs."""
_DRAWS = 1000
"""Most groups that are drawn for one whose manifest has owners that all answer: it takes the event loop's time."""
_SCANNED = 10_000
"""Entries that are looked through at once."""
log = logging.getLogger(__name__)


class LastLook(NamedTuple):
    """Findings of the last whole pass of a keeper."""

    began_s: float
    """Its begin, by this node's monotonic clock."""
    lacking: Mapping[str, int]
    """Number of groups that lack fragments of a node, by the node's uuid in hex."""
    unsafe_groups: int
    """Groups that cannot be read, or may not be: too few of their fragments are known to be there."""


@dataclass(slots=True)
class CodingMetrics:
    """Counters since the node started; plain numbers that any thread may read."""

    objects_coded: int = 0
    bytes_coded: int = 0
    groups_coded: int = 0
    groups_dissolved: int = 0
    fragments_rebuilt: int = 0
    groups: int = 0
    """Groups that this node keeps, as of its last pass."""
    short_groups: int = 0
    """Those of them that lack fragments."""
    waits: dict[str, str] = field(default_factory=dict)
    """Why objects of a bucket are not coded, by bucket."""
    denied: dict[str, str] = field(default_factory=dict)
    """Why groups of a bucket that this node keeps still have bytes of denied objects, by bucket."""
    last_look: LastLook | None = None


class _Built(NamedTuple):
    """A group whose fragments are written."""

    manifest: Manifest
    objects: Sequence[Candidate]
    nodes: Mapping[int, Sequence[str]]
    """Names of its fragments by node."""


class CodingParts(NamedTuple):
    """Parts of a node that its coder and its keeper share."""

    node: Node
    membership: Membership
    writes: WriteCoordinator
    peers: RepairPeers
    fragments: FragmentWriter
    metrics: CodingMetrics


class Coder:
    def __init__(self, parts: CodingParts) -> None:
        self._node, self._membership, self._writes, self._peers, self._fragments, self._metrics = parts
        self.scan_s = 0.0
        """Time that the last pass took to look for objects."""
        self._refused: dict[bytes, float] = {}
        """Until when the objects of nodes wait, by uuid, because these swapped nothing of what was sent. What has been
        written for a swap that fails stays for `coding_grace_s`."""

    async def pass_(self, view: ClusterView) -> None:
        """Code what has settled. Raises LoaderError."""
        self.scan_s = 0.0
        waits: dict[str, str] = {}
        for bucket in view.buckets.values():
            if not bucket.HasField("coding"):
                continue
            if why := _why_not(view, bucket):
                waits[bucket.name] = why
            store = self._node.store
            is_moving = view.is_changing or store.pool.moving
            if why or is_moving or bucket.uuid in store.replicas.stale.bucket_uuids():
                continue
            groups: list[list[Candidate]] = []
            async for group in self._groups(view, bucket):
                if self._membership.view is not view:
                    return
                if is_alone(group[0].entry, bucket.coding.data):
                    await self._code(view, bucket, [group])
                    continue
                groups.append(group)
                if len(groups) == ROUND_GROUPS:
                    await self._code(view, bucket, groups)
                    groups = []
            if groups:
                await self._code(view, bucket, groups)
        self._metrics.waits = waits

    async def _groups(self, view: ClusterView, bucket: pb.MapBucket) -> AsyncIterator[list[Candidate]]:
        collector = Collector(Redundancy(bucket.coding.data, bucket.coding.parity))
        for drive in [drive for drive in self._node.store.drives if drive is not None]:
            after: bytes | None = b""
            while after is not None:
                began_s = time.monotonic()
                found, after = await self._node.read(self._candidates, view, bucket, drive, after)
                self.scan_s += time.monotonic() - began_s
                for group in collector.add(found):
                    yield group
        for group in collector.rest():
            yield group

    def _candidates(
        self, view: ClusterView, bucket: pb.MapBucket, drive: Drive, after: bytes
    ) -> tuple[list[Candidate], bytes | None]:
        """Return objects after a key of which this node is the first owner; and the last key, if there may be more."""
        files: list[tuple[str, bytes]] = []
        last, seen = None, 0
        scan = drive.catalog.scan(fmt.object_key(bucket.uuid, ""), after or None)
        for last, value in itertools.islice(scan, _SCANNED):
            seen += 1
            if fmt.has_file(value):
                files.append((fmt.name_of_key(last), value))
        local, now_ns = view.position[self._membership.node_uuid], time.time_ns()
        delay_s, found = self._node.config.cluster.coding_delay_s, list[Candidate]()
        for (name, value), owners in zip(files, owners_of(view, bucket, [name for name, _ in files]), strict=True):
            if owners[0] == local and may_be_coded(name, entry := fmt.decode_entry(value), now_ns, delay_s):
                found.append(Candidate(name, entry, drive))
        return found, last if seen == _SCANNED else None

    async def _code(self, view: ClusterView, bucket: pb.MapBucket, groups: Sequence[Sequence[Candidate]]) -> None:
        """Take all steps for these groups. What cannot be coded now stays as it is. Raises LoaderError."""
        companion = view.buckets[companion_name(bucket.uuid)]
        versions = {one.name: one.entry.version for group in groups for one in group}
        owners = dict(zip(versions, owners_of(view, bucket, list(versions)), strict=True))
        reached, coded = await self._within_reach(view, bucket, owners, versions)
        now_s = time.monotonic()
        able = {at for at in reached if self._refused.get(view.nodes[at].uuid, now_s) <= now_s}
        built: list[_Built] = []
        began_ms, began_s = self._node.store.clock.wall_ms(), time.monotonic()
        for group in groups:
            objects = [one for one in group if one.name not in coded and able.issuperset(owners[one.name])]
            if sum(one.entry.size_bytes for one in objects) < bucket.coding.data * LEAST_FRAGMENT_BYTES:
                continue
            try:
                built.append(await self._write(view, bucket, companion, objects, reached))
                if is_alone(group[0].entry, bucket.coding.data):  # that may have taken long, and it is alone
                    began_ms, began_s = self._node.store.clock.wall_ms(), time.monotonic()
            except (ReplicaLost, LoaderError) as error:
                log.info("objects of %s are not coded for now: %s", bucket.name, error)
        built = await self._recorded(view, bucket, companion, built, began_s)
        if self._is_current(view, began_s):
            await self._swap(view, bucket, built, owners, began_ms)

    def _is_current(self, view: ClusterView, began_s: float) -> bool:
        """Whether the map is still this one, and fragments of that time are surely there, named or not."""
        grace_s = self._node.config.cluster.coding_grace_s
        return self._membership.view is view and time.monotonic() - began_s < grace_s / 2

    async def _within_reach(
        self,
        view: ClusterView,
        bucket: pb.MapBucket,
        owners: Mapping[str, Sequence[int]],
        versions: Mapping[str, fmt.Version],
    ) -> tuple[set[int], set[str]]:
        """Return the nodes that answer, and the objects that another owner has in a group: its keeper has them swapped
        here. Nothing would come of a group that lacks a fragment, or an owner that swaps."""
        reached, coded = set(range(len(view.nodes))), set[str]()
        asked = {node: list[str]() for node in reached} | by_key(
            (node, name) for name in versions for node in owners[name][1:]
        )
        for first in range(0, max(map(len, asked.values())) or 1, GROUP_OBJECTS):
            requests = {node: names[first : first + GROUP_OBJECTS] for node, names in asked.items()}
            answers, _ = await self._peers.newest(view, bucket, requests, coded_only=True)
            reached &= answers.keys()
            states = [(name, state) for answer in answers.values() for name, state in answer.items() if state]
            coded |= {name for name, state in states if state.group and state.version == versions[name]}
        return reached, coded

    async def _write(
        self,
        view: ClusterView,
        bucket: pb.MapBucket,
        companion: pb.MapBucket,
        objects: Sequence[Candidate],
        reached: set[int],
    ) -> _Built:
        """Write the fragments of a group, to hosts whose nodes have been reached. Raises ReplicaLost, LoaderError."""
        redundancy = Redundancy(bucket.coding.data, bucket.coding.parity)
        # A group whose manifest an owner lacks is not used, and stays until all nodes answer that they have none of it.
        for _ in range(_DRAWS):
            group = draw_bucket_uuid()
            if reached.issuperset(view.owners(bucket, manifest_name(group))):
                break
        else:
            raise ReplicaLost(f"of {_DRAWS:,} groups, each would have a manifest on a node that does not answer")
        away = {node.host for at, node in enumerate(view.nodes) if at not in reached}
        places = place_fragments(view, companion, group, range(redundancy.fragments), used=away)
        is_large = is_alone(objects[0].entry, redundancy.data)
        if is_large:
            held, sizes = memoryview(b""), [objects[0].entry.size_bytes]
            offsets, fragment_bytes = lay_out(sizes, redundancy.data, most_fragment_bytes(redundancy.data))
        else:
            objects, offsets, fragment_bytes, held = await self._node.read(_held, bucket.uuid, objects, redundancy.data)

        async def read(index: int, at: int, size_bytes: int) -> bytes:
            at += index * fragment_bytes
            if not is_large:
                return bytes(held[at : at + size_bytes])
            return await self._node.read(self._read_range, bucket.name, objects[0], at, size_bytes)

        names = tuple(places[index].name for index in range(redundancy.fragments))
        slots = tuple(
            Slot(one.name, one.entry.version, offset, one.entry.size_bytes, one.entry.checksum)
            for one, offset in zip(objects, offsets, strict=True)
        )
        manifest = Manifest(group, redundancy.data, redundancy.parity, fragment_bytes, bucket.uuid, names, slots)
        await self._fragments.write(view, companion, manifest, places, read)
        return _Built(manifest, objects, by_key((place.node, place.name) for place in places.values()))

    def _read_range(self, bucket: str, one: Candidate, at: int, size_bytes: int) -> bytes:
        """Return a range of a large object, verified by its blocks. Raises LoaderError."""
        size_bytes = min(size_bytes, one.entry.size_bytes - at)
        if size_bytes <= 0:
            return b""
        version = str(one.entry.version)
        return b"".join(open_object(self._node.store, bucket, one.name, start=at, length=size_bytes, version=version))

    async def _recorded(
        self, view: ClusterView, bucket: pb.MapBucket, companion: pb.MapBucket, built: Sequence[_Built], began_s: float
    ) -> list[_Built]:
        """Write the manifests of those groups whose fragments are on disks; return those whose manifest is as well."""
        names = by_key((node, name) for one in built for node, mine in one.nodes.items() for name in mine)
        lasting = await self._fragments.lasting(view, companion, names)
        built = [one for one in built if lasting.issuperset(one.manifest.fragments)]
        failpoint("code.fragments")
        if not built or not self._is_current(view, began_s):
            return []
        await record(self._writes, bucket, [one.manifest for one in built])
        recorded = [manifest_name(one.manifest.group) for one in built]
        owned = zip(recorded, owners_of(view, bucket, recorded), strict=True)
        nodes = by_key((node, name) for name, owners in owned for node in owners)
        lasting = await self._fragments.lasting(view, bucket, nodes)
        failpoint("code.manifest")
        return [one for one in built if manifest_name(one.manifest.group) in lasting]

    async def _swap(
        self,
        view: ClusterView,
        bucket: pb.MapBucket,
        built: Sequence[_Built],
        owners: Mapping[str, Sequence[int]],
        began_ms: int,
    ) -> None:
        grace_s, left, sizes = self._node.config.cluster.coding_grace_s, dict[str, bytes](), dict[str, int]()
        for one in built:
            path = fmt.coded_path(one.manifest.group)
            for found, slot in zip(one.objects, one.manifest.slots, strict=True):
                left[found.name] = fmt.encode_entry(found.entry._replace(path=path, offset=slot.offset))
                sizes[found.name] = slot.size_bytes
        others = by_key((node, one) for one in left.items() for node in owners[one[0]][1:])
        for node, coded in others.items():
            for part in chunks(coded, GROUP_OBJECTS):
                try:
                    done = await self._peers.recode(view.nodes[node].peer_endpoint, bucket, part, began_ms)
                    if not done:
                        self._refused[view.nodes[node].uuid] = time.monotonic() + grace_s / 8
                except ReplicaLost as lost:
                    log.info("objects of %s are not coded for now: %s", bucket.name, lost)
                    done = set()
                for name in [name for name, _ in part if name not in done]:
                    left.pop(name, None)
        failpoint("code.swapped")
        for part in chunks(list(left.items()), GROUP_OBJECTS):
            request = recode_request(bucket, part, began_ms)
            answer = await self._node.read(replica.recode, self._node.store, request, grace_s)
            self._metrics.objects_coded += len(answer.done)
            self._metrics.bytes_coded += sum(sizes[request.name[at]] for at in answer.done)
        failpoint("code.done")
        self._metrics.groups_coded += len(built)


def _why_not(view: ClusterView, bucket: pb.MapBucket) -> str:
    """Return why objects of a bucket are not coded until somebody does something; empty if they are."""
    fragments, hosts = bucket.coding.data + bucket.coding.parity, owning_hosts(view.map)
    if hosts < fragments:
        return f"its groups have {fragments} fragments, and {hosts} hosts take objects: add hosts"
    try:
        codec_of(bucket.coding.data, bucket.coding.parity)
    except LoaderError as error:
        return str(error)
    return ""


async def record(writes: WriteCoordinator, bucket: pb.MapBucket, manifests: Sequence[Manifest]) -> None:
    """Store manifests, or new ones of their groups. Raises LoaderError; BucketNotFound if the bucket is gone, also if
    there is another one of its name."""
    of = writes.replica_set(bucket.name)
    if of is None or of.bucket.uuid != bucket.uuid:
        raise BucketNotFound(f"bucket {bucket.name!r} has been deleted meanwhile")
    objects = []
    for manifest in manifests:
        data = manifest.encode()
        name = manifest_name(manifest.group)
        objects.append(objects_pb.SmallObject(bucket=bucket.name, name=name, data=data, checksum=crc32c(data)))
    for result in await writes.put_small(objects):
        if isinstance(result, LoaderError):
            raise result


def _held(
    bucket_uuid: bytes, objects: Sequence[Candidate], data: int
) -> tuple[list[Candidate], list[int], int, memoryview]:
    """Read small objects; return those that are as they were, their offsets, the size of a fragment, and their bytes as
    they lie in the group. Raises DriveFailed."""
    newest: dict[str, CatalogEntry | None] = {}
    for drive in {one.drive for one in objects}:
        names = [one.name for one in objects if one.drive is drive]
        newest.update(zip(names, drive.newest(bucket_uuid, names), strict=True))
    # What was deleted long ago, perhaps, is left out: no tombstone keeps it from coming back.
    objects = [one for one in objects if newest[one.name] == one.entry]
    offsets, fragment_bytes = lay_out([one.entry.size_bytes for one in objects], data, most_fragment_bytes(data))
    held, rooms, end = recycled.take(data * fragment_bytes), dict[str, memoryview](), 0
    for one, offset in zip(objects, offsets, strict=False):
        held[end:offset] = bytes(offset - end)
        end = offset + one.entry.size_bytes
        rooms[one.name] = held[offset:end]
    held[end:] = bytes(len(held) - end)
    whole: set[str] = set()
    for drive in {one.drive for one in objects}:
        mine = [one for one in objects[: len(offsets)] if one.drive is drive]
        try:
            found = drive.files.read_into([(one.entry, rooms[one.name]) for one in mine])
        except OSError as error:
            raise drive_error(error, drive.root, "reading an object") from error
        for one, is_there in zip(mine, found, strict=True):
            # What is damaged is found by who reads it, and mended; a group has it afterwards.
            if is_there and crc32c(rooms[one.name]) == one.entry.checksum:
                whole.add(one.name)
            else:
                rooms[one.name][:] = bytes(one.entry.size_bytes)
    pairs = [(one, offset) for one, offset in zip(objects, offsets, strict=False) if one.name in whole]
    return [one for one, _ in pairs], [offset for _, offset in pairs], fragment_bytes, held
