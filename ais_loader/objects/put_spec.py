"""Put specification: a caller's description of an object to be stored, as one value for all attempts of the PUT; and
requests to compose an object of parts of others."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from ais_loader import errors
from ais_loader.errors import InvalidName, InvalidRequest
from ais_loader.transport.base import PutSpec, require_bucket, require_metadata, require_object, require_text
from ais_loader.values.source import Content, Source
from ais_loader.wire.generated import ais_compose_pb2 as pb
from ais_loader.wire.inventory import PREFIX as INVENTORY_PREFIX
from ais_loader.wire.line_index import PREFIX as LINES_PREFIX
from ais_loader.wire.reserved import ETAG_VERSION

ToPut: TypeAlias = tuple[str, Content] | tuple[str, Content, Mapping[str, str] | None]
"""A name, its bytes, and optionally metadata."""
PARTS_PREFIX = "/.parts/"
"""Prefix of the names of stored parts, see `multipart`."""


def put_spec(
    bucket: str,
    name: str,
    source: Source,
    *,
    metadata: Mapping[str, str] | None = None,
    checksum: int | None = None,
    if_absent: bool = False,
    if_version: str | None = None,
) -> PutSpec:
    """Build a specification. Raises TypeError, InvalidName, InvalidRequest."""
    if not isinstance(name, str):
        raise TypeError(f"an object's name is a str, got {type(name).__name__}")
    require_ordinary(name)
    if if_version is not None:
        check_version(if_version, or_etag=True)
        if if_absent:
            raise InvalidRequest(
                "if_absent and if_version exclude each other: an object that does not exist has no version"
            )
    if checksum is not None:
        try:
            checksum = operator.index(checksum)
        except TypeError:
            raise TypeError(f"checksum is a {type(checksum).__name__}; need the CRC-32C as an int") from None
        if not 0 <= checksum < 1 << 32:
            raise InvalidRequest(f"checksum={checksum}: a CRC-32C is a number from 0 to {2**32 - 1}")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InvalidRequest(f"metadata maps str to str, got {type(metadata).__name__}")
    return PutSpec(
        bucket=bucket,
        name=name,
        metadata=dict(metadata or {}),
        size_bytes=source.size_bytes,
        checksum=checksum,
        if_absent=bool(if_absent),
        if_version=if_version,
    )


def put_specs(bucket: str, objects: Iterable[ToPut], *, if_absent: bool) -> Iterator[tuple[PutSpec, Source]]:
    """Build specifications. Raises like `put_spec`."""
    if isinstance(objects, Mapping):
        raise TypeError(f"objects is a {type(objects).__name__}: pass its items()")
    for one in objects:
        if not isinstance(one, (tuple, list)) or not 2 <= len(one) <= 3:
            raise TypeError(f"need (name, data) or (name, data, metadata) of each object, got {reprlib.repr(one)}")
        name, data, *metadata = one
        source = Source(data)
        yield put_spec(bucket, name, source, metadata=metadata[0] if metadata else None, if_absent=if_absent), source


def check_version(version: str, *, or_etag: bool = False) -> None:
    """Check the form of a version. Raises InvalidRequest for a value that `ObjectInfo.version` can never have.

    Args:
        or_etag: whether the version of a cold object, which is its ETag, can be a condition.
    """
    if isinstance(version, str) and version.startswith(ETAG_VERSION):
        if or_etag:
            return
        raise InvalidRequest(
            f"if_version={version!r}: this is a cold object's; `warm` the object, and take the version that it has then"
        )
    parts = version.split(".") if isinstance(version, str) else []
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
        raise InvalidRequest(f"if_version={version!r}: need a version as ObjectInfo shows it, such as '1.42.0'")


def require_ordinary(name: str) -> None:
    """Require an ordinary object name. Raises InvalidName for names that the store keeps to itself."""
    if isinstance(name, str) and name.startswith(LINES_PREFIX):
        raise InvalidName(f"object name {name[:80]!r}: names below {LINES_PREFIX} are those of indexes of lines")
    if isinstance(name, str) and name.startswith(INVENTORY_PREFIX):
        raise InvalidName(f"object name {name[:80]!r}: names below {INVENTORY_PREFIX} are those of inventories")
    if isinstance(name, str) and name.startswith(PARTS_PREFIX):
        raise InvalidName(f"object name {name[:80]!r}: names below {PARTS_PREFIX} are those of parts of uploads")


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
