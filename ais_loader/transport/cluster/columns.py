"""Request columns, cut into parts for several nodes. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.placement import object_hash

COLUMNS = ("bucket_index", "name", "member", "start", "length", "version")
Holders = Callable[[str, Sequence[str]], list[list[bytes]]]
"""From a bucket and names to the nodes that may have each, best first."""


class Columns:
    """A request's entries, ready to be asked for in any selection."""

    def __init__(self, request: pb.BatchRequest) -> None:
        self.count = len(request.name)
        self.buckets: list[str] = list(request.bucket)
        self._values: dict[str, list[Any]] = {name: list(getattr(request, name)) for name in COLUMNS}
        self._rest = pb.BatchRequest()
        for field, value in request.ListFields():
            if field.name in COLUMNS:
                continue
            if field.name == "metadata":
                self._rest.metadata.update(value)
            elif field.name == "bucket":
                self._rest.bucket.extend(value)
            else:
                setattr(self._rest, field.name, value)
        self._rest.first_index = 0

    def select(self, positions: Sequence[int]) -> pb.BatchRequest:
        """A request for these entries alone, which are its entries 0, 1, ..."""
        part = pb.BatchRequest()
        part.CopyFrom(self._rest)
        for name, values in self._values.items():
            if values:
                getattr(part, name).extend([values[at] for at in positions])
        return part

    def key(self, position: int) -> int:
        """Of an entry's object: the same for whoever reads it."""
        return object_hash(b"", self._values["name"][position])

    def holders(self, positions: Sequence[int], holders: Holders) -> list[list[bytes]]:
        """The nodes that may have each of these entries, best first."""
        names = self._values["name"]
        bucket_index = self._values["bucket_index"]
        if not self.buckets:
            return [[] for _ in positions]
        if not bucket_index:
            return holders(self.buckets[0], [names[at] for at in positions])
        found: list[list[bytes]] = [[]] * len(positions)
        by_bucket: dict[int, list[int]] = {}
        for k, at in enumerate(positions):
            by_bucket.setdefault(bucket_index[at], []).append(k)
        for bucket, wanted in by_bucket.items():
            of_bucket = holders(self.buckets[bucket], [names[positions[k]] for k in wanted])
            for k, nodes in zip(wanted, of_bucket, strict=True):
                found[k] = nodes
        return found


def grouped(
    positions: Sequence[int], candidates: Sequence[Sequence[bytes]], avoid: frozenset[bytes]
) -> tuple[dict[bytes, list[int]], list[int]]:
    """Each position under its first candidate that is not to be avoided; and those that have none."""
    groups: dict[bytes, list[int]] = {}
    nobody: list[int] = []
    for at, nodes in zip(positions, candidates, strict=True):
        for node in nodes:
            if node not in avoid:
                groups.setdefault(node, []).append(at)
                break
        else:
            nobody.append(at)
    return groups, nobody
