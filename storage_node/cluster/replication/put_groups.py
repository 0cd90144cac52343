"""Put groups: small objects that are ready at about the same time are stored with one request and one commit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, TypeVar

from ais_loader.errors import LoaderError
from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.limits.groups import Groups

SMALL_BYTES = 1 << 20
"""Larger results of transforms are stored individually."""
R = TypeVar("R")
PutGroup: TypeAlias = Callable[[Sequence[pb.SmallObject]], Awaitable[list[R | LoaderError]]]


class PutGroups(Groups[pb.SmallObject, R]):
    """Groups small objects. What `Groups` calls a piece is an object to be stored."""

    def _size_bytes(self, piece: pb.SmallObject) -> int:
        return len(piece.data)
