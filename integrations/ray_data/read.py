"""Ray Data source: each read task fetches its share of a list with GetBatch, a few MiB per batch.

The driver makes the list, with the version of each object, so that a task that Ray runs again reads the same data.
Bytes go from the store's nodes to the task's process, and from there into Ray's object store as the dataset's blocks.
The nodes of a cluster take no part in Ray's object store.

Interface: https://docs.ray.io/en/releases-2.60.0/data/api/doc/ray.data.Datasource.html
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ais_loader import Entry, Status, errors
from ais_loader.extras import needs
from ais_loader.values.entry import EntryLike
from ais_loader.values.packed import PackedBatch

from .listing import Listed, listed, portable_url, shares, store_here, url_of

with needs("pyarrow", "Ray Data"):
    import pyarrow as pa

with needs("ray", "Ray Data"):
    import ray.data
    from ray.data import Datasource, ReadTask
    from ray.data.block import BlockMetadata

TASK_BYTES = 128 << 20
"""The maximum size of one task, so that it costs little if Ray runs it again."""
BATCH_BYTES = 16 << 20
BATCH_ENTRIES = 2_000
_IN_FLIGHT = 3
_ROW_BYTES = 100
"""The size of a row besides its bytes, that is, its path. For estimates."""


def read_ais(
    source: str | Iterable[EntryLike],
    *,
    store: str | os.PathLike[str] | None = None,
    members: bool = False,
    status: bool = False,
    include_paths: bool = True,
    timeout_s: float = 30.0,
    **ray_options: Any,
) -> Any:
    """Return a `ray.data.Dataset` of objects, ranges of objects, or members of archives, one row for each, in order.

    Columns: `bytes`; `path`, an `ais://` URL; and, on request, `status`, the name of a `Status`.

    Args:
        source: A prefix, `ais://bucket/prefix`, to read all of its objects; or a list of Entry values and URLs, where
            `ais://bucket/shard.tar/member` is a member. Names are literal.
        store: The store's URL or folder, which every Ray node must reach. None means AIS_LOADER_URL of this process.
        members: Whether `source` names archives, so that the rows are their members.
        status: Whether to include a status. A row that cannot be read then has null bytes and says why, instead of
            ending the dataset with an error.
        include_paths: Whether to include the column `path`.
        timeout_s: The longest time to wait for the store's next data.
        ray_options: Options of `ray.data.read_datasource`: concurrency, override_num_blocks, ray_remote_args, …

    Raises:
        InvalidRequest, TypeError, BucketNotFound, NodeUnavailable: From this call, as are ObjectNotFound and
            ArchiveError for shards. The errors of `Client.get_batch` end the dataset, as Ray's error of that task.
            ObjectNotFound is also raised for an object that was replaced after the listing.
    """
    url = portable_url(store)
    found = listed(store_here(url).reader(), source, members=members)
    if not found:
        what = f"{source!r} has" if isinstance(source, str) else "the list has"
        raise errors.InvalidRequest(f"{what} nothing to read: give the prefix of objects that are there, or entries")
    return ray.data.read_datasource(AISSource(url, found, status, include_paths, timeout_s), **ray_options)


class AISSource(Datasource):  # type: ignore[misc]  # Ray is not type-checked here
    """A data source of entries of one store. `read_ais` creates it."""

    def __init__(self, url: str, found: Sequence[Listed], status: bool, include_paths: bool, timeout_s: float) -> None:
        super().__init__()
        self._url = url
        self._found = found
        self._read = partial(_read, url, status=status, include_paths=include_paths, timeout_s=timeout_s)

    def get_name(self) -> str:
        return "AIS"

    def estimate_inmemory_data_size(self) -> int:
        return sum(one.size_bytes + _ROW_BYTES for one in self._found)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[Any]:
        tasks = []
        for share in shares(self._found, parallelism, TASK_BYTES, len(self._found)):
            metadata = BlockMetadata(
                num_rows=len(share),
                size_bytes=sum(one.size_bytes + _ROW_BYTES for one in share),
                exec_stats=None,
                input_files=None,
            )
            tasks.append(ReadTask(partial(self._read, share), metadata, per_task_row_limit=per_task_row_limit))
        return tasks


def _read(url: str, share: Sequence[Listed], *, status: bool, include_paths: bool, timeout_s: float) -> Iterator[Any]:
    """Yield a block for each batch. This runs in a process of Ray."""
    batches = [[one.entry for one in batch] for batch in shares(share, 1, BATCH_BYTES, BATCH_ENTRIES)]
    on_error = "placeholder" if status else "raise"
    client = store_here(url).reader()
    arrived = client.get_batches(batches, in_flight=_IN_FLIGHT, on_error=on_error, timeout_s=timeout_s)
    for entries, batch in zip(batches, arrived, strict=True):
        with batch:
            yield _block(entries, batch.packed(), status=status, include_paths=include_paths)


def _block(entries: Sequence[Entry], packed: PackedBatch, *, status: bool, include_paths: bool) -> Any:
    failed = packed.status != Status.OK
    valid = None
    if failed.any():
        valid = pa.py_buffer(np.packbits(~failed, bitorder="little"))
    # The received bytes, which a large_binary column can hold without a copy.
    buffers = [valid, pa.py_buffer(packed.offsets), pa.py_buffer(packed.values)]
    columns = {"bytes": pa.Array.from_buffers(pa.large_binary(), len(entries), buffers)}
    if include_paths:
        columns["path"] = pa.array([url_of(entry) for entry in entries], pa.string())
    if status:
        columns["status"] = pa.array([_status_name(number) for number in packed.status.tolist()], pa.string())
    return pa.table(columns)


def _status_name(number: int) -> str:
    return Status(number).name if number in Status._value2member_map_ else Status.FAILED.name
