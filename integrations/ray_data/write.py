"""Ray Data sink: stores rows as objects, many per request, and none of them twice.

Ray runs a task again if its process died, and may do so while the first run is still active. Therefore, every object
has the same name in each run, and its metadata contains the ids of the write and the task. An object that exists with
these ids is already done.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ais_loader import Bucket, errors
from ais_loader.extras import needs
from ais_loader.values.urls import SCHEME

from ..shared_store import StoreReference
from .listing import portable_url, store_here

with needs("ray", "Ray Data"):
    from ray.data import Datasink
    from ray.data.block import BlockAccessor

Row: TypeAlias = tuple[str, memoryview]
"""A name and its bytes."""
WRITE_ID = "ray-data-write"
"""The metadata key that identifies the write and its task."""
_GROUP = 1_000
_GROUP_BYTES = 32 << 20
_LOCK_WAIT_S = 120.0
"""How long to wait for an embedded store, which has one writer at a time. Waits of over a second are logged."""


@dataclass(frozen=True, slots=True)
class Written:
    """Result of `write_ais`. Each object counts once, regardless of how often its task ran."""

    objects: int
    size_bytes: int


def write_ais(
    dataset: Any,
    url: str,
    *,
    store: str | os.PathLike[str] | None = None,
    bytes_column: str = "bytes",
    name_column: str | None = None,
    suffix: str = "",
    mode: Literal["create", "overwrite"] = "create",
    **ray_options: Any,
) -> Written:
    """Store the rows of a dataset as objects. Returns when all are stored.

    Args:
        url: `ais://bucket/prefix`. The prefix is put before every name.
        store: The store's URL or folder, which every Ray node must reach. None means AIS_LOADER_URL of this process.
        bytes_column: The column of binary values to store.
        name_column: The column of names, which are distinct strings. Without it, an object is named after its task and
            its position in it: `000003-00000017`, followed by `suffix`.
        mode: With "create", it is an error if an object of the name already exists from another write. With
            "overwrite", that object is replaced.
        ray_options: Options of `Dataset.write_datasink`: concurrency, ray_remote_args.

    Raises InvalidRequest, BucketNotFound from this call. Errors of tasks are raised as Ray's: VersionConflict in mode
    "create", InvalidRequest for rows without a name or bytes, InvalidName, DriveFull, NodeUnavailable, OutcomeUnknown,
    StoreLocked. Some objects may be stored in this case. To store the others, call `write_ais` with the same rows in
    mode "overwrite".
    """
    bucket, slash, prefix = url.removeprefix(SCHEME).partition("/")
    if not url.startswith(SCHEME) or not bucket or not slash:
        raise errors.InvalidRequest(f"{url!r}: need a bucket and what names begin with, as in ais://bucket/folder/")
    if mode not in ("create", "overwrite"):
        raise errors.InvalidRequest(f'mode={mode!r}: need "create" or "overwrite"')
    if name_column is not None and suffix:
        raise errors.InvalidRequest(
            f"suffix={suffix!r} is for names that are made; name_column={name_column!r} has them"
        )
    portable = portable_url(store)
    store_here(portable).reader().bucket(bucket).info()  # reports a wrong name before anything is computed
    sink = AISSink(portable, bucket, prefix, bytes_column, name_column, suffix, mode)
    dataset.write_datasink(sink, **ray_options)
    return sink.written


class AISSink(Datasink):  # type: ignore[misc]  # Ray is not type-checked here
    """A data sink for a prefix of one bucket, for one write. `write_ais` creates it."""

    def __init__(
        self, url: str, bucket: str, prefix: str, bytes_column: str, name_column: str | None, suffix: str, mode: str
    ) -> None:
        self._url, self._bucket, self._prefix = url, bucket, prefix
        self._bytes_column, self._name_column, self._suffix = bytes_column, name_column, suffix
        self._creating = mode == "create"
        self._write_id = uuid.uuid4().hex
        self.written = Written(0, 0)

    def get_name(self) -> str:
        return "AIS"

    def write(self, blocks: Iterable[Any], ctx: Any) -> Written:
        """Write blocks, in a process of Ray. If that process dies, Ray calls this again."""
        store = store_here(self._url)
        names: set[str] = set()
        size_bytes = 0
        for group in _groups(self._rows(blocks, ctx.task_idx)):
            for name, data in group:
                if name in names:
                    raise self._twice(name)
                names.add(name)
                size_bytes += len(data)
            self._put(store, group, f"{self._write_id}-{ctx.task_idx}")
        store.store().release()  # releases an embedded store for other tasks
        return Written(len(names), size_bytes)

    def on_write_complete(self, write_result: Any) -> None:
        parts: list[Written] = write_result.write_returns
        self.written = Written(sum(part.objects for part in parts), sum(part.size_bytes for part in parts))

    def _rows(self, blocks: Iterable[Any], task: int) -> Iterator[Row]:
        row = 0
        for block in blocks:
            table = BlockAccessor.for_block(block).to_arrow()
            if not table.num_rows:
                continue
            contents = self._column(table, self._bytes_column)
            names = None if self._name_column is None else self._column(table, self._name_column)
            for at in range(table.num_rows):
                name = f"{task:06d}-{row:08d}{self._suffix}" if names is None else names[at].as_py()
                if not isinstance(name, str):
                    raise errors.InvalidRequest(f"row {at}: column {self._name_column!r} has {name!r} and no name")
                yield f"{self._prefix}{name}", self._content(contents[at], name)
                row += 1

    def _column(self, table: Any, name: str) -> Any:
        if name not in table.column_names:
            raise errors.InvalidRequest(f"no column {name!r} among {', '.join(table.column_names)}")
        return table[name]

    def _content(self, value: Any, name: str) -> memoryview:
        if not value.is_valid or not hasattr(value, "as_buffer"):
            raise errors.InvalidRequest(
                f"column {self._bytes_column!r} of {name!r} is {'null' if not value.is_valid else value.type}: "
                "need a column of bytes"
            )
        buffer = value.as_buffer()
        return memoryview(buffer) if buffer is not None else memoryview(b"")

    def _put(self, store: StoreReference, group: list[Row], task_id: str) -> None:
        with store.writer(_LOCK_WAIT_S) as client:
            self._put_new(client.bucket(self._bucket), group, task_id)

    def _put_new(self, bucket: Bucket, group: list[Row], task_id: str) -> None:
        """Put the rows that an earlier run of this task has not stored."""
        if not self._creating:
            done = self._done(bucket, [name for name, _ in group], task_id)
            group = [row for row in group if row[0] not in done]
        metadata = {WRITE_ID: task_id}
        summary = bucket.put_many(
            [(name, data, metadata) for name, data in group], if_absent=self._creating, on_error="return"
        )
        conflicts = [failure for failure in summary.failures if isinstance(failure.error, errors.VersionConflict)]
        others = [failure for failure in summary.failures if failure not in conflicts]
        if others:
            raise others[0].error
        done = self._done(bucket, [failure.name for failure in conflicts], task_id)
        for failure in conflicts:
            if failure.name not in done:
                raise errors.VersionConflict(
                    f"{SCHEME}{bucket.name}/{failure.name} is there already, by another write: give another prefix, or "
                    'mode="overwrite"'
                )

    def _done(self, bucket: Bucket, names: list[str], task_id: str) -> set[str]:
        """Return those of the names that this task has stored."""
        ids = {info.name: info.metadata.get(WRITE_ID, "") for info in bucket.head_many(names) if info is not None}
        for name, found in ids.items():
            if found != task_id and found.startswith(self._write_id):
                raise self._twice(name)
        return {name for name, found in ids.items() if found == task_id}

    def _twice(self, name: str) -> errors.InvalidRequest:
        return errors.InvalidRequest(f"two rows have the name {name!r}, and one would replace the other")


def _groups(rows: Iterator[Row]) -> Iterator[list[Row]]:
    group: list[Row] = []
    group_bytes = 0
    for name, data in rows:
        group.append((name, data))
        group_bytes += len(data)
        if len(group) >= _GROUP or group_bytes >= _GROUP_BYTES:
            yield group
            group, group_bytes = [], 0
    if group:
        yield group
