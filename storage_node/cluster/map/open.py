"""Start of a node's membership: the map kept on its drives, and the map's buckets and snapshots made on its store."""

from __future__ import annotations

import logging

from ais_loader.errors import LoaderError
from ais_loader.wire.cluster_map import ClusterView
from storage_node.cluster.consensus.acceptor_store import AcceptorStore
from storage_node.cluster.map.membership import Membership
from storage_node.store.names import unfinished_name
from storage_node.store.store import Store
from storage_node.store.store_record import SnapshotRecord

log = logging.getLogger(__name__)


def open_membership(store: Store) -> tuple[Membership, AcceptorStore]:
    """The map under which the node served last, and its vote on the next one. Raises StoreFormatError."""
    acceptor_store = AcceptorStore.of_store(store)
    kept = acceptor_store.state.committed
    membership = Membership(bytes.fromhex(store.store_uuid), ClusterView(kept) if kept is not None else None)
    if not acceptor_store.may_vote:
        log.warning("too many drives are missing to vote on the cluster's map")
    if membership.view is not None:
        try:
            restore_buckets(store, membership.view)
        except LoaderError as error:
            log.warning("the buckets of the cluster's map cannot all be made for now: %s", error)
    # The map is kept last: until then, what has to be done for it is done again after a crash.
    membership.on_change(lambda view: sync_buckets(store, view, membership.view))
    membership.on_change(lambda view: acceptor_store.learn(view.map))
    return membership, acceptor_store


def sync_buckets(store: Store, view: ClusterView, before: ClusterView | None) -> None:
    """Make the map's buckets, under the map's uuids; delete those that an earlier map had and this one has not.

    Safe to repeat: `before` is the last map for which this has succeeded, also over a restart. A bucket that no map
    ever had is left alone: it may have been made before the node joined. If it has objects, and the name of one of the
    map's, the map is refused with BucketNotEmpty. Raises LoaderError.
    """
    here = store.buckets()
    known = set(before.buckets) if before is not None else set()
    for name in (known - set(view.buckets)) & set(here):
        store.delete_bucket(name, force=True, of_cluster=True)
    for name, bucket in view.buckets.items():
        if name in here and here[name].uuid_bytes != bucket.uuid:
            # Deleted and made again while this node was away; or, half-way through a map that was never used, empty.
            store.delete_bucket(name, force=name in known, of_cluster=True)
        store.create_bucket(name, copies=bucket.copies, exist_ok=True, bucket_uuid=bucket.uuid.hex())
    sync_snapshots(store, view)


def sync_snapshots(store: Store, view: ClusterView) -> None:
    """Retain what the map's snapshots see, and no more than that. Raises LoaderError.

    Those that are being made are kept under names that no snapshot can have. A node that comes back may not know yet
    that one has been made since: it says so to readers, who ask others or again.
    """
    store.snapshots.follow(
        {
            bucket.uuid.hex(): {
                unfinished_name(one.name) if one.maker else one.name: SnapshotRecord(
                    one.cut, one.created_ns, one.objects, one.size_bytes, of_cluster=True
                )
                for one in bucket.snapshot
            }
            for bucket in view.buckets.values()
        }
    )


def restore_buckets(store: Store, view: ClusterView) -> None:
    """Make the buckets and snapshots that a store lacks although the map that it served under has them.

    Raises LoaderError.
    """
    for name in set(view.buckets) - set(store.buckets()):
        bucket = view.buckets[name]
        store.create_bucket(name, copies=bucket.copies, exist_ok=True, bucket_uuid=bucket.uuid.hex())
    sync_snapshots(store, view)
