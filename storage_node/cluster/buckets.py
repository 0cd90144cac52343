"""The buckets of the cluster's map, made to exist on one node's store."""

from __future__ import annotations

from protos.cluster_map import ClusterView
from storage_node.store.store import Store


def sync_buckets(store: Store, view: ClusterView, before: ClusterView | None) -> None:
    """Make the map's buckets, under the map's uuids; delete those that an earlier map had and this one has not.

    A bucket that no map ever had is left alone: it may have been made before the node joined. Raises StoreError.
    """
    here = store.buckets()
    gone = set(before.buckets) - set(view.buckets) if before is not None else set()
    for name in gone & set(here):
        store.delete_bucket(name, force=True)
    for name, bucket in view.buckets.items():
        if name in here and here[name].uuid_bytes != bucket.uuid:
            store.delete_bucket(name, force=True)  # deleted and made again while this node was away
        store.create_bucket(name, copies=bucket.copies, exist_ok=True, bucket_uuid=bucket.uuid.hex())
