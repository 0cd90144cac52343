"""Stored parts: objects that will become parts of others, with their names and their removal.

They are in the bucket of the future object, below a prefix that no ordinary name can begin with, and are thus
replicated, repaired and deleted with it. Listings show them only for that prefix.
"""

from __future__ import annotations

import re
import uuid

from ais_loader import errors
from ais_loader.transport.base import PutSpec, Transport
from ais_loader.values.entry import ObjectInfo
from ais_loader.values.source import Source

PREFIX = "/.parts/"
MAX_PARTS = 10_000
_ID = re.compile(r"[0-9a-f]{32}\Z")


def new_id() -> str:
    return uuid.uuid4().hex


def folder(upload_id: str) -> str:
    """Return the folder of an upload. Raises InvalidRequest for an invalid id."""
    if not isinstance(upload_id, str) or not _ID.match(upload_id):
        raise errors.InvalidRequest(f"upload_id={upload_id!r}: need one as `MultipartUpload.id` has it")
    return f"{PREFIX}{upload_id}/"


def part_name(upload_id: str, number: int) -> str:
    return f"{folder(upload_id)}{number:05d}"


def put_part(transport: Transport, bucket: str, name: str, source: Source, metadata: dict[str, str]) -> ObjectInfo:
    """Store a part under its name."""
    return transport.put(PutSpec(bucket=bucket, name=name, metadata=metadata, size_bytes=source.size_bytes), source)


def remove(transport: Transport, bucket: str, name: str) -> None:
    """Remove a part, which may be gone already."""
    try:
        transport.delete(bucket, name)
    except errors.ObjectNotFound:
        return


def require_ordinary(name: str) -> None:
    """Require an ordinary object name. Raises InvalidName for names reserved for parts."""
    if isinstance(name, str) and name.startswith(PREFIX):
        raise errors.InvalidName(f"object name {name[:80]!r}: names below {PREFIX} are those of parts of uploads")
