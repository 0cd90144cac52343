"""Start of a node's membership: the map kept on its drives, and that map's buckets and snapshots in its store."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ais_loader.errors import LoaderError
from ais_loader.wire.cluster_map import ClusterView, added_buckets
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.consensus.acceptor_store import AcceptorStore
from storage_node.context.membership import Membership
from storage_node.store.names import unfinished_name
from storage_node.store.store import Store
from storage_node.store.store_record import BucketRecord, SnapshotRecord

log = logging.getLogger(__name__)


def open_membership(store: Store) -> tuple[Membership, AcceptorStore]:
    """Load the last map under which the node served, and its vote on the next one. Raises StoreFormatError."""
    acceptor_store = AcceptorStore.of_store(store)
    kept = acceptor_store.state.committed
    membership = Membership(bytes.fromhex(store.store_uuid), ClusterView(kept) if kept is not None else None)
    store.replicas.join(membership)
    if not acceptor_store.may_vote:
        effect = "only the objects on its other drives can be used" if kept is None else "it does not vote on the map"
        log.warning("half of this node's drives or more are missing: %s", effect)
    if membership.view is not None:
        try:
            restore_buckets(store, membership.view)
        except LoaderError as error:
            log.warning("the buckets of the cluster's map cannot all be made for now: %s", error)
    # The map is stored last: until then, a crash makes the steps above run again.
    membership.on_change(lambda view: sync_buckets(store, view, membership.view))
    membership.on_change(lambda view: acceptor_store.learn(view.map))
    return membership, acceptor_store


def sync_buckets(store: Store, view: ClusterView, before: ClusterView | None) -> None:
    """Create the map's buckets under its uuids; delete those that an earlier map had and this one does not.

    May be repeated: `before` is the last map for which this succeeded, also before a restart. A bucket that no map ever
    had is left alone, since it may have been created before the node joined. If it contains objects and has the name of
    one of the map's buckets, the map is refused with BucketNotEmpty. Raises LoaderError.
    """
    stored = store.buckets()
    known = before.buckets if before is not None else {}
    added = added_buckets(before.map, view.map) if before is not None else None
    for name in (known.keys() - view.buckets.keys()) & stored.keys() if added is None else ():
        store.delete_bucket(name, force=True, of_cluster=True)
    for bucket in view.map.bucket if added is None else added:
        if bucket.name in stored and stored[bucket.name].uuid_bytes != bucket.uuid:
            # The bucket was deleted and created again while this node was down; or it is empty, left by a map that was
            # never used.
            store.delete_bucket(bucket.name, force=bucket.name in known, of_cluster=True)
    # Also those that could not be made at the start.
    _create(store, [view.buckets[name] for name in view.buckets.keys() - store.buckets().keys()])
    sync_snapshots(store, view)
    sync_denied(store, view)


def sync_denied(store: Store, view: ClusterView) -> None:
    """Deny the contents that the map denies, and the objects here that have them. Raises LoaderError."""
    found = {bucket.uuid.hex(): dict(bucket.denied.content) for bucket in view.special if bucket.HasField("denied")}
    store.denied.follow(found, of_cluster=True)


def sync_snapshots(store: Store, view: ClusterView) -> None:
    """Retain exactly what the map's snapshots see. Raises LoaderError.

    Snapshots being created are kept under names that no snapshot can have. A returning node may not know yet that one
    was completed; it reports that to readers, who ask other nodes or retry.
    """
    of_map = {uuid for uuid in store.record.current.snapshots if view.bucket_with_uuid(bytes.fromhex(uuid)) is not None}
    wanted: dict[str, dict[str, SnapshotRecord]] = {uuid: {} for uuid in of_map}
    for bucket in view.special:
        wanted[bucket.uuid.hex()] = {
            unfinished_name(one.name) if one.maker else one.name: SnapshotRecord(
                one.cut, one.created_ns, one.objects, one.size_bytes, of_cluster=True
            )
            for one in bucket.snapshot
        }
    store.snapshots.follow(wanted)


def restore_buckets(store: Store, view: ClusterView) -> None:
    """Create the buckets and snapshots that the store lacks although its last map has them.

    Raises LoaderError.
    """
    _create(store, view.map.bucket)
    sync_snapshots(store, view)
    sync_denied(store, view)


def _create(store: Store, buckets: Iterable[pb.MapBucket]) -> None:
    store.follow_buckets({bucket.name: BucketRecord(bucket.uuid.hex(), bucket.copies) for bucket in buckets})
