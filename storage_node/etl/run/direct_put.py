"""Storage of results that transforms' servers put to this node directly, as a job writes other results.

A result is received completely, counted and checked against its size limit before anything is written, so a server that
breaks off leaves nothing behind. The token contains the metadata: the stamp of the source version and of the
transforms.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import closing

from ais_loader.errors import InvalidRequest, LoaderError
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.object_info import Stored
from storage_node.cluster.replication.put_groups import SMALL_BYTES, PutGroups
from storage_node.etl.jobs.job_store import JobStore
from storage_node.etl.servers.channel import OutputReceiver
from storage_node.etl.transform_http import METADATA, PutClaims, PutResultCallable
from storage_node.etl.values import PutResult, Spool


def direct_put_writer(store: JobStore, groups: PutGroups[Stored], spool: Spool) -> PutResultCallable:
    """Return a function for `TransformHttp.put_result`. `groups` groups small results that arrive together."""

    async def take(claims: PutClaims, chunks: AsyncIterator[bytes]) -> PutResult:
        metadata = claims.extra.get(METADATA, {})
        if not isinstance(metadata, dict):
            raise InvalidRequest(f"the token's {METADATA}: need texts by name, got {type(metadata).__name__}")
        receiver = OutputReceiver(claims.max_bytes, "the size in its token", spool.new_file)
        try:
            async for chunk in chunks:
                await receiver.take(chunk)
        except BaseException:
            receiver.discard()
            raise
        with closing(receiver.content()) as content:
            if content.size_bytes <= SMALL_BYTES:
                data = bytes(content.read(0, content.size_bytes))
                small = pb.SmallObject(
                    bucket=claims.bucket, name=claims.name, metadata=metadata, data=data, checksum=content.checksum
                )
                stored = await groups.put(small)
            else:
                stored = await store.put_large(claims.bucket, claims.name, metadata, content)
        if (stored.size_bytes, stored.checksum) != (content.size_bytes, content.checksum):
            raise LoaderError(f"{claims.bucket}/{claims.name}: another result was stored meanwhile")
        return PutResult(stored.version, stored.size_bytes, stored.checksum)

    return take
