"""ObjectInfo: an object's properties in a catalog, a message and a caller's value, and the conversions between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.reserved import ETAG_VERSION, REMOTE_ETAG


class Described(Protocol):
    """A catalog entry, a message, or a Stored."""

    @property
    def size_bytes(self) -> int: ...
    @property
    def version(self) -> object: ...
    @property
    def checksum(self) -> int: ...
    @property
    def modified_ns(self) -> int: ...
    @property
    def metadata(self) -> Mapping[str, str]: ...


class Stored(NamedTuple):
    """An object's properties as its owner knows them."""

    size_bytes: int
    version: str
    checksum: int
    modified_ns: int
    metadata: dict[str, str]


def has_version(found: Described, version: str) -> bool:
    """Whether an object has this version, which may be that of the remote object that it is a copy of."""
    if version.startswith(ETAG_VERSION) and found.metadata.get(REMOTE_ETAG) == version.removeprefix(ETAG_VERSION):
        return True
    return str(found.version) == version


def stored_of(found: Described) -> Stored:
    metadata = dict(found.metadata) if found.metadata else {}  # copying an empty map of a message costs most of this
    return Stored(found.size_bytes, str(found.version), found.checksum, found.modified_ns, metadata)


def info_of(bucket: str, name: str, found: Described) -> pb.ObjectInfo:
    info = pb.ObjectInfo(
        bucket=bucket,
        name=name,
        size_bytes=found.size_bytes,
        version=str(found.version),
        checksum=found.checksum,
        modified_ns=found.modified_ns,
    )
    if metadata := found.metadata:  # setting an empty map costs as much as everything else
        info.metadata.update(metadata)
    return info
