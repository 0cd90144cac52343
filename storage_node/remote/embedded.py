"""Remote tier of an embedded store: the code of a node, on an event loop in a thread of its own.

It starts when a remote bucket is used for the first time, in the process that holds the store for writing. A process
that reads beside it cannot store what it fetches, and reads only what is stored.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial

from ais_loader.errors import LoaderError
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_remote_pb2 as remote_pb
from ais_loader.wire.object_info import Described
from ais_loader.wire.remote import Remote
from storage_node.context.channels import Caller, Channels
from storage_node.context.membership import Membership
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.limits.loop_thread import LoopThread
from storage_node.promote.job import Job, Outcome
from storage_node.promote.walk import Found
from storage_node.remote.ahead.plans import Plans
from storage_node.remote.ahead.prefetcher import Prefetcher
from storage_node.remote.arriving.arriving_part import ArrivingPart
from storage_node.remote.promotion import RemotePromotion
from storage_node.remote.tier import RemoteTier
from storage_node.remote.tier_context import TierHost
from storage_node.remote.write_back.refusals import require_none, same_place
from storage_node.settings.config import ServerConfig
from storage_node.settings.host_patterns import ANY
from storage_node.store.chunked_put import Spooled, put_chunks, put_small, spool_for
from storage_node.store.drive.preconditions import Condition
from storage_node.store.store import Store
from storage_node.store.write import check_announced

_READERS = 4
CLOSE_S = 10.0
"""Longest time that closing the store waits for uploads."""


def config() -> ServerConfig:
    """Return the settings of an embedded store."""
    return ServerConfig().replace(remote_hosts=(ANY,))


class EmbeddedRemote:
    """Remote tier of one store in one process. Used from any thread. Must not be used in a forked child."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = LoopThread("ais-loader-remote", self._set_up, self._end, readers=_READERS)
        # What the tier does runs on its event loop.
        self.run, self.begin, self.each = self._thread.run, self._thread.begin, self._thread.each

    async def _set_up(self, thread: LoopThread) -> None:
        settings = config().remote
        plans, channels = Plans(), Channels(Caller())
        host = TierHost(
            self._store,
            Membership(b""),
            channels,
            thread.read,
            partial(put_chunks, self._store, thread.read),
            partial(thread.read, put_small, self._store),
            self._delete,
            _never_earlier,
            file_roots=None,
        )
        self.tier = RemoteTier(host, settings, plans.needed_at)
        self.write_back = self.tier.write_back
        self.prefetcher = Prefetcher(self.tier, settings.prefetch_requests, plans)

    async def _end(self) -> None:
        await self.write_back.flush(None, "", CLOSE_S)  # what is left is uploaded when the store is opened again
        await self.prefetcher.close()
        await self.tier.close()

    def close(self) -> None:
        self._thread.close()

    # -- reading

    def chunks(self, bucket: RemoteBucket, name: str) -> Iterator[bytes] | None:
        """Return the bytes of an object that is being fetched; None when it is stored. See `RemoteReads.arriving`."""
        part = self.run(self.tier.reads.arriving(bucket, name))
        return None if part is None else self._chunks_of(part)

    def _chunks_of(self, part: ArrivingPart) -> Iterator[bytes]:
        try:
            yield from self.each(part.chunks())
        finally:
            part.close()

    def pages(self, bucket: RemoteBucket, prefix: str, start_after: str) -> Iterator[remote_pb.ListRemoteResponse]:
        """Iterate over the pages of remote objects. See `Descriptions.page`."""
        while True:
            page = self.run(self.tier.descriptions.page(bucket, prefix, start_after))
            yield page
            if not page.more:
                return
            start_after = page.next

    def expect(self, request: remote_pb.ExpectRequest) -> remote_pb.ExpectResponse:
        """See `Prefetcher.expect`."""

        async def expect() -> remote_pb.ExpectResponse:
            return self.prefetcher.expect(request)

        return self.run(expect())

    def usage(self) -> remote_pb.RemoteUsageResponse:
        """Return the requests to remote storage since the store was opened."""
        return self.tier.backends.usage({bucket.uuid: name for name, bucket in self._store.buckets().items()})

    # -- writing

    def put(
        self, bucket: RemoteBucket, header: pb.PutHeader, chunks: Iterable[bytes | bytearray | memoryview]
    ) -> pb.ObjectInfo:
        """Put an object to the remote storage, and store a copy; only store it if it is written back. Raises
        LoaderError."""
        with closing(spool_for(self._store, f"{header.bucket}/{header.name}")) as spool:
            for chunk in chunks:
                spool.write(chunk)
            check_announced(spool, header)
            header.size_bytes, header.checksum = spool.size_bytes, spool.checksum
            return self.run(self.tier.bucket_writes.put(bucket, header, lambda: self._chunks(spool)))

    def promote(
        self, job: Job, heads: Callable[..., Sequence[Described | LoaderError]], group: Sequence[Found]
    ) -> list[Outcome]:
        """Store files of this machine. See `GroupPromotion.promote_group`."""
        read = self._thread.read
        return self.run(RemotePromotion(self.tier, job, read, partial(read, heads)).promote_group(group))

    async def _chunks(self, spool: Spooled) -> AsyncGenerator[bytes, None]:
        chunks = spool.chunks()
        while chunk := await self._thread.read(next, chunks, b""):
            yield chunk

    def require_settable(self, bucket: RemoteBucket, remote: Remote | str | None) -> None:
        """Check that a bucket may get another remote, or be deleted (None). Raises BucketNotEmpty."""
        if not remote or not isinstance(remote, Remote) or not same_place(bucket.remote, remote):
            what = "it cannot be deleted" if remote is None else "its remote storage cannot be changed"
            require_none(bucket.name, self.write_back.rows(bucket.uuid), what)

    def pending(self, bucket_uuid: bytes | None, prefix: str, wait_s: float) -> list[remote_pb.PendingBucket]:
        """Return what is to be uploaded, after waiting for it for this time."""
        if wait_s:
            self.run(self.write_back.flush(bucket_uuid, prefix, wait_s))
        return self.write_back.rows(bucket_uuid, prefix)

    async def _delete(self, bucket: str, name: str, condition: Condition | None, mark: bytes) -> None:
        delete = partial(self._store.delete, condition=condition, keep_tombstone=bool(mark), raw_metadata=mark)
        await self._thread.read(delete, bucket, name)


async def _never_earlier(header: pb.PutHeader) -> None:
    """A write of this process is attempted once."""
