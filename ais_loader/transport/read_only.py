"""Read-only transport: forwards reads to the nodes and rejects calls that would change the store.

An embedded store that was opened for reading rejects changes itself. Storage nodes accept them from any client, so that
`mode="r"` would have no effect without this class.
"""

from __future__ import annotations

from typing import Any, NoReturn

from ais_loader.errors import StoreReadOnly
from ais_loader.transport.base import EtlMethod, Transport
from ais_loader.values.summary import SnapshotAction, SnapshotInfo

READS = frozenset(
    [
        "options",
        "url",
        "bucket",
        "buckets",
        "get",
        "get_transformed",
        "head",
        "head_names",
        "open_cached",
        "open_member",
        "open_object",
        "denied",
        "summary",
        "objects",
        "names",
        "level",
        "can_expect",
        "expect",
        "remote_usage",
        "pending_uploads",
        "list_members",
        "open_batch",
        "open_long_batch",
        "watch_job",
        "refresh",
        "describe",
        "close",
    ]
)
"""Attributes forwarded to the nodes. All others are rejected, so that a new call cannot be forgotten."""

ETL_READS = ("ListTransforms", "GetTransform", "ListJobs", "ListJobFailures")


class ReadOnlyTransport:
    """A Transport around another one; they are pickled together."""

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
