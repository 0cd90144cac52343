"""Read-only transport: reads go on to the nodes, and what would change the store is refused here.

An embedded store that was opened for reading refuses changes itself. Storage nodes take them from whoever comes, so
that `mode="r"` would mean nothing there.
"""

from __future__ import annotations

from typing import Any, NoReturn

from ais_loader.errors import StoreReadOnly
from ais_loader.transport.base import EtlMethod, Transport
from ais_loader.values.snapshots import SnapshotAction, SnapshotInfo

READS = frozenset(
    [
        "url",
        "bucket",
        "buckets",
        "tar_end",
        "get",
        "get_transformed",
        "head",
        "head_names",
        "summary",
        "objects",
        "list_members",
        "open_batch",
        "open_long_batch",
        "watch_job",
        "refresh",
        "describe",
        "close",
    ]
)
"""What goes on to the nodes. Whatever is not here is refused, so that a new call cannot be forgotten."""

ETL_READS = ("ListTransforms", "GetTransform", "ListJobs", "ListJobFailures")


class ReadOnlyTransport:
    """A Transport around another one; pickles with it."""

    def __init__(self, nodes: Transport) -> None:
        self._nodes = nodes

    def __reduce__(self) -> tuple[Any, ...]:
        return ReadOnlyTransport, (self._nodes,)

    def __getattr__(self, name: str) -> Any:
        if name in READS:
            return getattr(self._nodes, name)
        if hasattr(self._nodes, name):
            return self._refuse
        raise AttributeError(name)

    def snapshots(self, action: SnapshotAction, bucket: str, name: str = "") -> list[SnapshotInfo]:
        return self._nodes.snapshots(action, bucket, name) if action == "list" else self._refuse()

    def etl(self, method: EtlMethod, request: Any) -> Any:
        return self._nodes.etl(method, request) if method in ETL_READS else self._refuse()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise StoreReadOnly(f'{self._nodes.url} was connected to for reading only; connect with mode="a" to write')
