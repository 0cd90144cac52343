"""Stores of many objects, made in a minute: a catalog entry for each, and bytes that they share."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import ais_loader
from ais_loader.testing import seeded_bytes
from storage_node.store import format as fmt
from storage_node.store.drive.catalog import WriteBatch
from storage_node.store.store import Store

BUCKET = "b"
OBJECT_BYTES = 500
STORED = 1 << 15
"""Objects that are really put: those of about a hundred segments."""
_BATCH = 10_000


def name_of(number: int) -> str:
    return f"{number:08}"


def content_of(number: int, objects: int) -> bytes:
    """Return the bytes of an object."""
    return seeded_bytes(OBJECT_BYTES, seed=number % min(objects, STORED))


def make_store(folder: Path, objects: int) -> None:
    """Make a store with a bucket of so many objects, at most 10^8.

    The first ones are put, with `put_many`. The entries of the others are those of one of the first under other names,
    in random order, and are committed to the catalog as puts are, ten thousand at a time: only the bytes, which take
    most of the time and of the drive, are not written again. The store is closed as any other.
    """
    order = np.random.default_rng(objects).permutation(objects)
    stored = min(objects, STORED)
    with ais_loader.connect(folder) as client:
        put = [int(number) for number in order if number < stored]
        client.create_bucket(BUCKET).put_many((name_of(number), content_of(number, objects)) for number in put)
    if objects == stored:
        return
    with Store.open([folder], mode="a", compact_bytes_per_s=0) as store:
        (drive,) = (drive for drive in store.drives if drive is not None)
        bucket_uuid = store.bucket(BUCKET).uuid_bytes
        values = drive.catalog.get_many([fmt.object_key(bucket_uuid, name_of(number)) for number in range(stored)])
        for first in range(0, objects, _BATCH):
            batch = WriteBatch(raw_mode=True)
            for number in order[first : first + _BATCH].tolist():
                if number >= stored:
                    batch.put(fmt.object_key(bucket_uuid, name_of(number)), values[number % stored])
            drive.catalog.write(batch, sync=False)
