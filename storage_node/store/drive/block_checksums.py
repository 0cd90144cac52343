"""Block checksums in the catalog: written with an object's entry, removed with its file."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ais_loader.errors import CorruptObject
from storage_node.store import format as fmt
from storage_node.store.drive.catalog import Catalog, WriteBatch
from storage_node.store.format import CatalogEntry


def put_blocks(batch: WriteBatch, generation: int, checksums: Sequence[int]) -> None:
    """Add the block checksums of one generation to a commit."""
    for chunk, at in enumerate(range(0, len(checksums), fmt.BLOCKS_PER_CHUNK)):
        part = checksums[at : at + fmt.BLOCKS_PER_CHUNK]
        batch.put(fmt.blocks_key(generation, chunk), struct.pack(f"<{len(part)}I", *part))


def read_blocks(catalog: Catalog, entry: CatalogEntry, first: int, stop: int) -> npt.NDArray[np.uint32]:
    """Return the stored checksums of blocks first .. stop-1 of an object larger than one block; shape (stop - first,).

    Raises CorruptObject if they are missing, as they are soon after the object was replaced.
    """
    generation = entry.generation
    chunks = range(first // fmt.BLOCKS_PER_CHUNK, -(-stop // fmt.BLOCKS_PER_CHUNK))
    values = catalog.get_many([fmt.blocks_key(generation, chunk) for chunk in chunks])
    found = np.frombuffer(b"".join(value or b"" for value in values), "<u4")
    skipped = chunks.start * fmt.BLOCKS_PER_CHUNK
    checksums = found[first - skipped : stop - skipped].astype(np.uint32)
    if None in values or len(checksums) != stop - first:
        raise CorruptObject(
            f"block checksums of {entry.path.decode(errors='replace')} are missing from {catalog.path}; "
            "see `ais-loader doctor`"
        )
    return checksums
