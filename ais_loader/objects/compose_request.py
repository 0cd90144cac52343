"""Compose requests: an object to be built from parts of others; see `Transport.compose`."""

from __future__ import annotations

from ais_loader import errors
from ais_loader.transport.base import require_bucket, require_metadata, require_object, require_text
from ais_loader.wire.generated import ais_compose_pb2 as pb

INLINE_BYTES = 4 << 20
"""Largest amount of bytes within a request. Larger data is stored first, and referred to."""


def make_range(bucket: str, name: str, version: str = "", start: int = 0, length: int | None = None) -> pb.ComposePart:
    """Refer to bytes of an object. Raises BucketNotFound, ObjectNotFound for names that no store can have."""
    require_object(bucket, name)
    return pb.ComposePart(range=pb.ComposeRange(bucket=bucket, name=name, version=version, start=start, length=length))


def make_request(
    bucket: str, name: str, parts: list[pb.ComposePart], *, metadata: dict[str, str] | None = None
) -> pb.ComposeRequest:
    """Build a request. `metadata` None: inherit that of the first part's object. Raises BucketNotFound, InvalidName,
    InvalidRequest."""
    require_bucket(bucket)
    require_text(name, errors.InvalidName, "object name")
    require_metadata(metadata or {})
    request = pb.ComposeRequest(part=parts, inherit_metadata=metadata is None)
    request.object.bucket, request.object.name = bucket, name
    request.object.metadata.update(metadata or {})
    return request
