"""Ray Data sink: rows as objects, put many with one request, and none of them twice.

Ray runs a task again whose process died, and may do so while the first run is still at it. Every object therefore has
the same name in each run, and carries the ids of the write and the task in its metadata; what is there with them is
done.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ais_loader import Bucket, errors
from ais_loader.extras import needs
from ais_loader.urls import SCHEME

from ..shared_store import StoreReference
from .stores import portable_url, store_here

with needs("ray", "Ray Data"):
    from ray.data import Datasink
    from ray.data.block import BlockAccessor

Row: TypeAlias = tuple[str, memoryview]
"""Name and bytes."""
WRITE_ID = "ray-data-write"
"""Of the metadata of what was written: the write, and its task."""
_GROUP = 1_000
_GROUP_BYTES = 32 << 20
_LOCK_WAIT_S = 120.0
"""For an embedded store, which one process at a time can write to. A wait of more than a second is logged."""


@dataclass(frozen=True, slots=True)
class Written:
    """What `write_ais` has stored; each object counts once, however often its task was run."""

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
    """Store the rows of a dataset as objects; returns when all are stored.

    Args:
        url: `ais://bucket/prefix`, which goes before every name.
        store: its URL or folder, which every Ray node must reach; None: AIS_LOADER_URL of this process.
        bytes_column: what is stored; of binary.
        name_column: the names, of strings, no two alike. Without it an object is named after its task and its place in
            that, `000003-00000017` and `suffix`.
        mode: "create": an object of a name that is there already, by another write, is an error. "overwrite": it is
            replaced.
        ray_options: of `Dataset.write_datasink`: concurrency, ray_remote_args.

    Raises InvalidRequest, BucketNotFound here. Errors of tasks come as Ray's: VersionConflict in mode "create",
    InvalidRequest for rows without name or bytes, InvalidName, DriveFull, NodeUnavailable, OutcomeUnknown, StoreLocked.
    Then some objects may be stored, and `write_ais` of the same rows stores the others in mode "overwrite".
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
    where = portable_url(store)
    store_here(where).reader().bucket(bucket).info()  # a wrong name is told before anything is computed
    sink = AISSink(where, bucket, prefix, bytes_column, name_column, suffix, mode)
    dataset.write_datasink(sink, **ray_options)
    return sink.written


class AISSink(Datasink):  # type: ignore[misc]  # Ray is not type-checked here
    """A prefix of one bucket, for one write. `write_ais` makes it."""

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
        """In a process of Ray, again where that process died."""
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
        store.store().release()  # an embedded store is another task's now
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
                "what is stored are bytes"
            )
        buffer = value.as_buffer()
        return memoryview(buffer) if buffer is not None else memoryview(b"")

    def _put(self, store: StoreReference, group: list[Row], task_id: str) -> None:
        with store.writer(_LOCK_WAIT_S) as client:
            self._put_new(client.bucket(self._bucket), group, task_id)

    def _put_new(self, bucket: Bucket, group: list[Row], task_id: str) -> None:
        """What an earlier run of this task has not stored."""
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
        """Those of the names that this task has stored."""
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
