"""Calls about remote buckets: listings of the remote storage, warming, eviction, plans, and usage."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from ais_loader import errors
from ais_loader.transport.base import PendingUploads, RemoteUsage, pending_row, require_bucket, usage_row
from ais_loader.transport.cluster.failover import QUICK_TIMEOUT_S, Failover, Members
from ais_loader.transport.grpc.node_calls import NodeCalls
from ais_loader.transport.retry import RetryBudget
from ais_loader.wire.generated import ais_remote_pb2 as remote_pb
from ais_loader.wire.remote import Remote


class RemoteBucketCalls(Failover):
    """The part of `RemoteTransport` that concerns remote buckets."""

    def _remote_of(self, bucket: str) -> Remote | None:
        members = self.members
        if not members.knows(bucket):
            return self._any(self._checked(bucket, lambda node: node.bucket(bucket, has_others=False))).remote
        found = members.view.buckets.get(bucket)
        return Remote.from_wire(found.remote) if found is not None and found.HasField("remote") else None

    def _remote_pages(self, bucket: str, prefix: str, start_after: str) -> Iterator[remote_pb.ListRemoteResponse]:
        request = remote_pb.ListRemoteRequest(bucket=bucket, prefix=prefix, start_after=start_after)
        while True:
            page = self._any(lambda node: node.remote_page(request))
            yield page
            if not page.more:
                return
            request.start_after = page.next

    def warm(self, bucket: str, names: Sequence[str]) -> list[errors.LoaderError | None]:
        require_bucket(bucket)
        return self._any(self._checked(bucket, lambda node: node.warm(bucket, names)))

    def evict(self, bucket: str, names: Sequence[str] | None, prefix: str, patterns: Sequence[str]) -> tuple[int, int]:
        require_bucket(bucket)
        freed = [done for _, done in self._of_all(lambda node: node.evict(bucket, names, prefix, patterns))]
        return sum(copies for copies, _ in freed), sum(size_bytes for _, size_bytes in freed)

    def refresh_inventory(
        self, request: remote_pb.RefreshInventoryRequest
    ) -> Iterator[remote_pb.RefreshInventoryResponse]:
        self._require_known(request.bucket, request.id)
        members = self.members
        yield from members.calls(members.anybody()[0]).refresh_inventory(request)

    def _require_known(self, bucket: str, id_: str) -> None:
        """Wait until all nodes that answer know the id of the bucket's inventory: from then on, each marks what it
        changes. Raises NodeUnavailable."""
        members = self.members
        if not members.knows(bucket):
            return
        patience = RetryBudget(self._retry_s)
        for node in members.view.nodes:
            calls = members.calls(node.uuid)
            while True:
                try:
                    remote = calls.bucket(bucket, has_others=True).remote
                    if remote is not None and remote.inventory == id_:
                        break
                except (errors.NodeUnavailable, errors.SilenceTimeout):
                    members.suspect(node.uuid)  # it learns the map before it serves again
                    break
                patience.pause(errors.NodeUnavailable(f"{calls.url} does not know the id of the inventory yet"))
        members.refresh(force=True)

    def can_expect(self, bucket: str) -> bool:
        return self._remote_of(bucket) is not None

    def expect(self, request: remote_pb.ExpectRequest) -> bool:
        """A node that does not answer is left out the next time; its objects go to the next holder.

        Raises the first refusal of a node, after all nodes were asked.
        """
        members = self.members
        is_complete, refusal = True, None
        for node, part in _parts(members, request).items():
            try:
                if members.calls(node).expect(part, timeout_s=QUICK_TIMEOUT_S).incomplete:
                    is_complete = False
            except (errors.NodeUnavailable, errors.SilenceTimeout):
                if members.only is not None:
                    raise
                members.suspect(node)
                members.refresh()
                is_complete = False
            except errors.LoaderError as error:
                refusal = refusal or error
        if refusal is not None:
            raise refusal
        return is_complete

    def pending_uploads(self, bucket: str, prefix: str, wait_s: float) -> list[PendingUploads]:
        end_s = time.monotonic() + wait_s

        def pending(node: NodeCalls) -> remote_pb.PendingUploadsResponse:
            return node.pending_uploads(bucket, prefix, max(0.0, end_s - time.monotonic()))

        return [pending_row(url, row) for url, answer in self._of_all(pending) for row in answer.bucket]

    def remote_usage(self) -> list[RemoteUsage]:
        return [usage_row(url, row) for url, answer in self._of_all(NodeCalls.remote_usage) for row in answer.row]


def _parts(members: Members, request: remote_pb.ExpectRequest) -> dict[bytes, remote_pb.ExpectRequest]:
    """Divide a request among the nodes. All get the same steps, some of which are empty."""
    nodes = members.anybody()
    if len(nodes) == 1:
        return {nodes[0]: request}
    parts: dict[bytes, remote_pb.ExpectRequest] = {}
    for node in nodes:
        if not members.is_suspect(node):
            part = parts[node] = remote_pb.ExpectRequest()
            part.CopyFrom(request)
            del part.step[:]
            part.step.extend(remote_pb.ExpectedStep() for _ in request.step)
    for index, bucket in enumerate(request.bucket):
        places = [
            (at, name)
            for at, step in enumerate(request.step)
            for position, name in enumerate(step.name)
            if index == (step.bucket_index[position] if step.bucket_index else 0)
        ]
        holders = members.holders(bucket, [name for _, name in places])
        for (at, name), found in zip(places, holders, strict=True):
            node = members.by_trust(found)[0] if found else b""
            if node in parts:
                parts[node].step[at].name.append(name)
                parts[node].step[at].bucket_index.append(index)
    return parts
