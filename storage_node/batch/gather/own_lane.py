"""What a node that gathers a batch has itself: its own lane, read from its drives."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from ais_loader.wire.frame import Frame
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.batch.admission import Credit
from storage_node.batch.resources import BatchResources
from storage_node.store.read.batch import StoreBatch


async def own_frames(
    resources: BatchResources, tenant: str, part: pb.BatchRequest, credit: Credit
) -> AsyncGenerator[Frame, None]:
    """The frames of a part, each when there is credit for it and it is the tenant's turn. Close it."""
    batch = await resources.node.read(StoreBatch, resources.node.store, part)
    try:
        for span in batch.spans():
            await credit.spend(span.payload_bytes)
            slot = await resources.turn(tenant, 0)  # paid for when it is sent
            try:
                frame = await resources.node.read(batch.read, span)
            finally:
                slot.release()
            credit.add(span.payload_bytes - len(frame.payload))
            yield frame
    finally:
        batch.close()
