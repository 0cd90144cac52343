"""Pending guard: refuses changes of a bucket that would lose writes which are not uploaded yet."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from ais_loader.errors import BucketNotEmpty
from ais_loader.wire.generated import ais_remote_pb2 as pb
from ais_loader.wire.generated import ais_remote_pb2_grpc as rpc
from ais_loader.wire.remote import Remote
from storage_node.context.channels import STEP_TIMEOUT_S, Channels
from storage_node.context.errors import ReplicaLost
from storage_node.context.membership import Membership
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.remote.tier import RemoteTier
from storage_node.remote.write_back.refusals import require_none, same_place


class PendingGuard:
    """Asks all nodes of a cluster. A node that does not answer may have pending uploads, which is refused as well."""

    def __init__(self, tier: RemoteTier, membership: Membership, channels: Channels) -> None:
        self._tier = tier
        self._membership = membership
        self._channels = channels

    async def require_settable(self, name: str, remote: Remote | Literal[""] | None) -> None:
        """Check that a bucket may get another remote. Raises BucketNotEmpty."""
        bucket = self._tier.buckets.find(name)
        if bucket is None or remote is None or (remote and same_place(bucket.remote, remote)):
            return
        await self._require_none(bucket, "its remote storage cannot be changed")

    async def require_deletable(self, name: str) -> None:
        """Check that a bucket may be deleted. Raises BucketNotEmpty."""
        bucket = self._tier.buckets.find(name)
        if bucket is not None:
            await self._require_none(bucket, "it cannot be deleted")

    async def _require_none(self, bucket: RemoteBucket, what: str) -> None:
        rows = self._tier.write_back.rows(bucket.uuid)
        silent: list[str] = []
        view = self._membership.view if bucket.remote.is_write_back else None
        own_uuid = self._membership.node_uuid
        request = pb.PendingUploadsRequest(bucket=bucket.name)

        async def ask(endpoint: str) -> None:
            stub: Any = rpc.RemoteBucketsStub(self._channels.to(endpoint))
            try:
                with self._channels.reporting(endpoint):
                    rows.extend((await stub.PendingUploads(request, timeout=STEP_TIMEOUT_S)).bucket)
            except ReplicaLost as lost:
                silent.append(str(lost))

        others = [node.peer_endpoint for node in view.nodes if node.uuid != own_uuid] if view is not None else []
        await asyncio.gather(*map(ask, others))
        require_none(bucket.name, rows, what)
        if silent:
            raise BucketNotEmpty(
                f"bucket {bucket.name!r}: {what} while nodes do not answer that may have writes which are not uploaded "
                f"yet: {'; '.join(silent)}"
            )
