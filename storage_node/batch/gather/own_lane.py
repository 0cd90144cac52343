"""What a node that gathers a batch has itself: its own lane, read from its drives."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from ais_loader.wire.frame import Frame
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.batch.admission import Credit
from storage_node.store.read.batch import StoreBatch

if TYPE_CHECKING:
    from storage_node.batch.session import BatchService


async def own_frames(
    service: BatchService, tenant: str, part: pb.BatchRequest, credit: Credit
) -> AsyncGenerator[Frame, None]:
    """The frames of a part, each when there is credit for it and it is the tenant's turn. Close it."""
    batch = await service.read(StoreBatch, service.store, part)
    try:
        for span in batch.spans():
            await credit.spend(span.payload_bytes)
            slot = await service.turn(tenant, 0)  # paid for when it is sent
            try:
                frame = await service.read(batch.read, span)
            finally:
                slot.release()
            credit.add(span.payload_bytes - len(frame.payload))
            yield frame
    finally:
        batch.close()
