"""A node's start: what its drives say of the cluster that it belongs to."""

from __future__ import annotations

import logging

from ais_loader.wire.cluster_map import ClusterView
from storage_node.cluster.consensus.acceptor_store import Keeper
from storage_node.cluster.map.buckets import restore_buckets, sync_buckets
from storage_node.cluster.map.membership import Membership
from storage_node.store.errors import StoreError
from storage_node.store.store import Store

log = logging.getLogger(__name__)


def open_membership(store: Store) -> tuple[Membership, Keeper]:
    """The map under which the node served last, and its vote on the next one. Raises FormatError."""
    keeper = Keeper.of_store(store)
    kept = keeper.state.committed
    membership = Membership(bytes.fromhex(store.store_uuid), ClusterView(kept) if kept is not None else None)
    if not keeper.may_vote:
        log.warning("too many drives are missing to vote on the cluster's map")
    if membership.view is not None:
        try:
            restore_buckets(store, membership.view)
        except StoreError as error:
            log.warning("the buckets of the cluster's map cannot all be made for now: %s", error)
    # The map is kept last: until then, what has to be done for it is done again after a crash.
    membership.on_change(lambda view: sync_buckets(store, view, membership.view))
    membership.on_change(lambda view: keeper.learn(view.map))
    return membership, keeper
