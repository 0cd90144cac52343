"""Own copy of a write, staged before the write began, by a node that has the bytes and coordinates the write itself.

Its coordinator is told that it has come, and sends its bytes to the other owners alone. What was staged here is held
against what the others were sent before anything is committed.
"""

from __future__ import annotations

from typing import Any

from ais_loader.errors import LoaderError
from storage_node.cluster.replication.replica import HeldWrite
from storage_node.cluster.replication.replica_set import ReplicaSet
from storage_node.store.store import Store
from storage_node.store.upload import Upload


class OwnCopy(HeldWrite):
    """To be dropped when the write is over, whatever has come of it."""

    def __init__(self, store: Store, upload: Upload | LoaderError) -> None:
        """`upload`: or why there is none; then another node makes the copy good."""
        super().__init__(store)
        self.upload = upload

    def _begin(self, header: Any) -> Upload | LoaderError:
        return self.upload

    def _write(self, data: bytes) -> None:
        """The bytes are here."""

    @property
    def has_ended(self) -> bool:
        return not isinstance(self.upload, Upload) or self.upload.has_ended

    def drop(self) -> None:
        """Harmless once it has been committed."""
        if isinstance(self.upload, Upload):
            self.upload.abort()


def is_owner(replica_set: ReplicaSet, name: str) -> bool:
    """Whether this node is to have a copy, unless others have to stand in."""
    return replica_set.position in replica_set.rankings([name])[0][: replica_set.bucket.copies]
