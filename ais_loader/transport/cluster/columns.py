"""Request columns, split into parts for several nodes. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ais_loader.wire.batch_columns import ANSWERING, SHARED, add_entries, carry_over, entry_values
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.placement import object_hash

Holders = Callable[[str, Sequence[str]], list[list[bytes]]]
"""Maps a bucket and names to the nodes that may have each of them, best first."""


class Columns:
    """The entries of a request, from which requests for any selection are made."""

    def __init__(self, request: pb.BatchRequest) -> None:
        self.count = len(request.name)
        self.transformed = bool(request.transform)
        self.buckets: list[str] = list(request.bucket)
        self._values = {name: list(values) for name, values in entry_values(request).items()}
        self._names: list[str] = self._values.get("name", [])
        self._rest = pb.BatchRequest()
        carry_over(request, self._rest, (*SHARED, *ANSWERING))

    def select(self, positions: Sequence[int]) -> pb.BatchRequest:
        """Return a request for these entries alone, as its entries 0, 1, ..."""
        part = pb.BatchRequest()
        part.CopyFrom(self._rest)
        add_entries(part, self._values, positions)
        return part

    def key(self, position: int) -> int:
        """Return the hash of an entry's object, which is the same for every client."""
        return object_hash(b"", self._names[position])

    def holders(self, positions: Sequence[int], holders: Holders) -> list[list[bytes]]:
        """Return the nodes that may have each of these entries, best first."""
        names, bucket_index = self._names, self._values.get("bucket_index")
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
