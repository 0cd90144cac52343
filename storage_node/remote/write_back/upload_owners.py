"""Upload owners: which node of a cluster uploads an object, and what the others know of it.

That is the object's first owner, or the next one while the first does not answer. Two owners that both take themselves
for the first do no harm: the plan of an upload orders them by the versions in the stamps.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence

from ais_loader.wire.generated import ais_remote_pb2 as pb
from ais_loader.wire.generated import ais_remote_pb2_grpc as rpc
from storage_node.context.channels import STEP_TIMEOUT_S, Channels
from storage_node.context.errors import ReplicaLost
from storage_node.context.membership import Membership
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.remote.write_back.upload_plan import PendingUpload

NAMES_AT_ONCE = 1000
SILENT_S = 5.0
"""Time for which the next owner uploads in the place of one that did not answer, before it is asked again."""
_KNOWN_S = 1.0
"""Time for which the pending bytes of another node are known."""


class UploadOwners:
    """A store without a cluster uploads everything."""

    def __init__(self, membership: Membership, channels: Channels) -> None:
        self._membership = membership
        self._channels = channels
        self._silent: dict[str, float] = {}
        """Time until which nodes that did not answer are taken for dead, by endpoint."""
        self._bytes: dict[str, tuple[float, int]] = {}
        """Time of the last answer, and the pending bytes, by endpoint."""

    def uploader_of(self, bucket: RemoteBucket, name: str) -> str:
        """Return the endpoint of the node that uploads an object; "" for this node."""
        if (found := self._membership.placed(bucket.name)) is None:
            return ""
        view, placed = found
        owners = [view.nodes[node] for node in view.owners(placed, name)]
        for owner in sorted(owners, key=lambda node: self._is_silent(node.peer_endpoint)):
            return "" if owner.uuid == self._membership.node_uuid else owner.peer_endpoint
        return ""

    def _is_silent(self, endpoint: str) -> bool:
        return self._channels.avoided(endpoint) or time.monotonic() < self._silent.get(endpoint, 0.0)

    def is_owner(self, bucket: RemoteBucket, name: str) -> bool:
        if (found := self._membership.placed(bucket.name)) is None:
            return True
        view, placed = found
        return any(view.nodes[node].uuid == self._membership.node_uuid for node in view.owners(placed, name))

    def are_several(self, bucket: RemoteBucket) -> bool:
        """Whether other nodes may have copies of this bucket's objects."""
        return self._membership.placed(bucket.name) is not None

    async def states(
        self, endpoint: str, bucket: RemoteBucket, uploads: Sequence[PendingUpload]
    ) -> Sequence[pb.UploadState] | None:
        """Ask another owner. Returns the state of each upload; None if it does not answer."""
        found: list[pb.UploadState] = []
        try:
            for at in range(0, len(uploads), NAMES_AT_ONCE):
                found.extend(await self._states(endpoint, bucket, uploads[at : at + NAMES_AT_ONCE]))
        except ReplicaLost:
            self._silent[endpoint] = time.monotonic() + SILENT_S
            return None
        return found

    async def _states(
        self, endpoint: str, bucket: RemoteBucket, uploads: Sequence[PendingUpload]
    ) -> Sequence[pb.UploadState]:
        request = pb.UploadStatesRequest(
            bucket=bucket.name,
            bucket_uuid=bucket.uuid,
            name=[one.name for one in uploads],
            version=[str(one.version) for one in uploads],
        )
        answer: pb.UploadStatesResponse
        answer = await self._channels.ask(endpoint, rpc.RemotePeerStub, "UploadStates", request, STEP_TIMEOUT_S)
        self._bytes[endpoint] = time.monotonic(), answer.pending_bytes
        return answer.state

    async def pending_bytes(self, bucket: RemoteBucket, name: str) -> int:
        """Return the bytes that the node which uploads this object has to upload; 0 if it does not answer."""
        endpoint = self.uploader_of(bucket, name)
        if not endpoint:
            return 0
        at_s, known = self._bytes.get(endpoint, (float("-inf"), 0))
        if time.monotonic() - at_s <= _KNOWN_S:
            return known
        with contextlib.suppress(ReplicaLost):
            await self._states(endpoint, bucket, [])
        return self._bytes.get(endpoint, (0.0, 0))[1]

    async def deletions(self, request: pb.PendingDeletionsRequest) -> set[str]:
        """Return pending deletions of all other nodes that answer."""
        view = self._membership.view
        own_uuid = self._membership.node_uuid
        endpoints = [node.peer_endpoint for node in view.nodes if node.uuid != own_uuid] if view is not None else []
        found: set[str] = set()

        async def ask(endpoint: str) -> None:
            call = endpoint, rpc.RemotePeerStub, "PendingDeletions", request, STEP_TIMEOUT_S
            with contextlib.suppress(ReplicaLost):
                found.update((await self._channels.ask(*call)).name)

        await asyncio.gather(*(ask(endpoint) for endpoint in endpoints if not self._channels.avoided(endpoint)))
        return found
