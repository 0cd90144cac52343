"""Repair of damaged replicas, and the scrub that finds damage in data that nobody reads.

A damaged replica is requested from another holder, which reads it with its checksums verified, and overwrites the
damaged one under the same version. The drives are read completely once per period, at a low rate. A standalone node has
no other holder; it only finds and counts damage. Belongs to the node's event loop.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping

from ais_loader.errors import DriveFailed, LoaderError
from ais_loader.wire.backoff import Backoff
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2 as wire
from storage_node.cluster.repair.peers import RepairPeers
from storage_node.cluster.repair.plan import UNKNOWN
from storage_node.cluster.repair.transfers import Throttle, chunks
from storage_node.context.errors import ReplicaLost
from storage_node.context.membership import Membership
from storage_node.context.node import Node
from storage_node.limits.wakeup import Wakeup, tick
from storage_node.store.drive.drive import Drive
from storage_node.store.format import Version
from storage_node.store.scrub import DriveScrub, is_whole

AGAIN = Backoff(0.5, 60.0)
STEP_BYTES, STEP_S = 8 << 20, 0.25
"""Limits of one scrub step. It reads no more than the scrub rate allows in `STEP_S`."""
IDLE_S = 1.0
_AT_ONCE = 64
log = logging.getLogger(__name__)


class DamageRepair:
    def __init__(self, node: Node, membership: Membership, peers: RepairPeers) -> None:
        self._node = node
        self._store = node.store
        self._damaged = node.store.damaged
        self._membership = membership
        self._peers = peers
        self._found = Wakeup()
        self._damaged.on_found = self._found.set
        self._logged: dict[tuple[bytes, str], Version] = {}
        """Damaged versions that were logged already. It may take a long time until an intact replica is found."""
        self._throttle = Throttle(node.config.store.scrub_bytes_per_s)
        self.scrubs: dict[Drive, DriveScrub] = {}
        self.scrubbed_bytes = 0
        """Bytes read since the node started."""

    # -- mending

    async def run(self) -> None:
        """Run until cancelled."""
        in_vain = 0
        while True:
            await self._found.wait(AGAIN.whole_s(in_vain) if len(self._damaged) else None)
            before = self._damaged.mended
            self._logged = {key: old for key, old in self._logged.items() if self._damaged.version_of(*key) == old}
            for bucket_uuid, names in self._damaged.by_bucket().items():
                for part in chunks(list(names), _AT_ONCE):
                    try:
                        await self._mend(bucket_uuid, {name: names[name] for name in part})
                    except LoaderError as error:
                        log.warning("damaged copies cannot be repaired for now: %s", error)
            in_vain = 0 if self._damaged.mended > before else in_vain + 1

    async def _mend(self, bucket_uuid: bytes, names: Mapping[str, Version]) -> None:
        """Repair these names from other holders. Raises LoaderError."""
        left = await self._node.read(self._still_damaged, bucket_uuid, names)
        view = self._membership.view
        bucket = view.bucket_with_uuid(bucket_uuid) if view is not None else None
        if not left or view is None or bucket is None:
            return
        for name in left:
            if self._logged.get((bucket_uuid, name)) == names[name]:
                continue
            self._logged[bucket_uuid, name] = names[name]
            log.error("the copy of %s/%s here is damaged, version %s", bucket.name, name, names[name])
        others = [at for at, node in enumerate(view.nodes) if node.uuid != self._membership.node_uuid]
        answers, _ = await self._peers.newest(view, bucket, dict.fromkeys(others, left))
        for node in others:
            having, newer = dict[str, int](), dict[str, Version]()
            for name in left:
                state = answers.get(node, {}).get(name)
                if state is None or state is UNKNOWN:
                    continue
                if state.version == names[name] and not state.is_evicted:
                    having[name] = state.size_bytes
                elif state.version > names[name]:
                    newer[name] = state.version
            if newer:  # fetched like a missed write
                self._store.replicas.stale.mark_names(bucket_uuid, newer)
            if having:
                await self._fetch(view, bucket, node, having)
                left = await self._node.read(self._still_damaged, bucket_uuid, {name: names[name] for name in left})

    async def _fetch(self, view: ClusterView, bucket: pb.MapBucket, node: int, sizes: Mapping[str, int]) -> None:
        endpoint = view.nodes[node].peer_endpoint
        try:
            await self._peers.push(endpoint, bucket, sizes, self._membership.node_uuid)
        except ReplicaLost as lost:
            log.info("%d damaged copies cannot be had from %s for now: %s", len(sizes), endpoint, lost)

    def _still_damaged(self, bucket_uuid: bytes, names: Mapping[str, Version]) -> list[str]:
        """Return the names that are still damaged; drop those that were replaced, deleted or repaired, or that read
        intact."""
        left: list[str] = []
        for name, version in names.items():
            if self._damaged.version_of(bucket_uuid, name) != version:
                continue
            with contextlib.suppress(DriveFailed):  # nothing can be written there now
                found = self._store.drive_set.newest(bucket_uuid, name)
                entry = found.record
                if entry is None or entry.version != version or not entry.has_file:  # it may have been coded meanwhile
                    self._damaged.drop(bucket_uuid, name)
                elif is_whole(self._store.drive_set.at(found.slot), entry):
                    self._damaged.drop_whole(bucket_uuid, name, version)
                else:
                    left.append(name)
        return left

    # -- looking for it

    async def scrub(self) -> None:
        """Read all drives at the scrub rate until cancelled."""
        step_bytes = max(1, min(STEP_BYTES, int(STEP_S * self._node.config.store.scrub_bytes_per_s)))
        try:
            while True:
                read_bytes = 0
                for drive in [drive for drive in self._store.drives if drive is not None]:
                    try:
                        read_bytes += await self._step(drive, step_bytes)
                    except LoaderError as error:
                        log.info("%s is not looked through for now: %s", drive.root, error)
                for gone in set(self.scrubs) - set(self._store.drives):
                    del self.scrubs[gone]
                self.scrubbed_bytes += read_bytes
                await (self._throttle.spend(read_bytes) if read_bytes else tick(IDLE_S))
        finally:
            for one in self.scrubs.values():
                one.save()

    async def _step(self, drive: Drive, most_bytes: int) -> int:
        if drive not in self.scrubs:
            self.scrubs[drive] = await self._node.read(DriveScrub, drive, self._damaged)
            await self._node.read(self.scrubs[drive].save)
        scrub = self.scrubs[drive]
        if not scrub.is_due(self._node.config.store.scrub_interval_s):
            return 0
        return await self._node.read(scrub.step, most_bytes)

    def progress(self) -> wire.ScrubProgress:
        """Return the state of scrub and repair. Thread-safe."""
        drives = [one.progress for one in list(self.scrubs.values())]
        return wire.ScrubProgress(
            damaged=len(self._damaged),
            found=self._damaged.found,
            mended=self._damaged.mended,
            scrubbed_bytes=self.scrubbed_bytes,
            pass_objects=sum(one.objects for one in drives),
            pass_bytes=sum(one.bytes for one in drives),
            finished_s=min((one.finished_s for one in drives), default=0.0),
            is_under_way=any(one.is_under_way for one in drives),
        )
