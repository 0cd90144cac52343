"""Own replica of a write: staged before the write began, by a coordinator that already has the bytes.

The coordinator treats it as received, and sends the bytes to the other owners only. Before the commit, its length and
checksum are compared with what the others were sent.
"""

from __future__ import annotations

from typing import Any

from ais_loader.errors import LoaderError
from storage_node.cluster.replication.replica import HeldWrite
from storage_node.cluster.replication.replica_set import ReplicaSet
from storage_node.store.store import Store
from storage_node.store.upload import Upload


class OwnCopy(HeldWrite):
    """The replica on this node; call `drop` when the write has ended, whatever the result."""

    def __init__(self, store: Store, upload: Upload | LoaderError) -> None:
        """`upload` is the staged object, or the error that prevented it; repair then creates this replica."""
        super().__init__(store)
        self.upload = upload

    def _begin(self, header: Any) -> Upload | LoaderError:
        return self.upload

    def _write(self, data: bytes) -> None:
        """Ignore the bytes, since they are already staged."""

    @property
    def has_ended(self) -> bool:
        return not isinstance(self.upload, Upload) or self.upload.has_ended

    def drop(self) -> None:
        """Remove what was staged; does nothing after a commit."""
        if isinstance(self.upload, Upload):
            self.upload.abort()


def is_owner(replica_set: ReplicaSet, name: str) -> bool:
    """Return whether this node should have a replica, unless another node has to stand in."""
    return replica_set.position in replica_set.rankings([name])[0][: replica_set.bucket.copies]
