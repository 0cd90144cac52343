"""Whole batches on a store: what each entry came back as."""

from __future__ import annotations

from collections.abc import Sequence

from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store.read.batch import StoreBatch
from storage_node.store.store import Store
from tests.store.store_kit import BUCKET


def batch(store: Store, wanted: Sequence[str], bucket: str = BUCKET) -> list[tuple[int, bytes]]:
    """(status, bytes) of each name, in order."""
    found: list[tuple[int, bytes]] = [(-1, b"")] * len(wanted)
    reading = StoreBatch(store, pb.BatchRequest(bucket=[bucket], name=wanted))
    for span in reading.spans():
        frame = reading.read(span)
        payload, at = bytes(frame.payload), 0
        for index, size, status in zip(frame.index, frame.size, frame.status, strict=True):
            found[index] = int(status), found[index][1] + payload[at : at + int(size)]
            at += int(size)
    reading.close()
    return found
