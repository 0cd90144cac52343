"""Bucket calls to a cluster: whichever node answers sees to them."""

from __future__ import annotations

from ais_loader.transport.base import BucketChange, BucketInfo
from ais_loader.transport.cluster.failover import Failover


class RoutedBucketCalls(Failover):
    """The part of a transport to a cluster that makes them."""

    def create_bucket(
        self, name: str, *, copies: int, exist_ok: bool, min_copies: int = 1, reframe: bool = False
    ) -> BucketInfo:
        made = self._any(
            lambda node: node.create_bucket(
                name, copies=copies, exist_ok=exist_ok, min_copies=min_copies, reframe=reframe
            )
        )
        self.members.refresh(force=True)
        return made

    def bucket(self, name: str) -> BucketInfo:
        return self._any(lambda node: node.bucket(name))

    def buckets(self) -> list[BucketInfo]:
        return self._any(lambda node: node.buckets())

    def set_bucket(self, name: str, change: BucketChange) -> BucketInfo:
        changed = self._any(lambda node: node.set_bucket(name, change))
        self.members.refresh(force=True)
        return changed

    def delete_bucket(self, name: str, *, force: bool) -> int:
        deleted = self._any(lambda node: node.delete_bucket(name, force=force), again=False)
        self.members.refresh(force=True)
        return deleted
