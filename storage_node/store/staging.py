"""Staging of one object: receives its bytes, and rejects them if they do not match the announced size or checksum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ais_loader.errors import ContentMismatch
from storage_node.store.drive.preconditions import Condition
from storage_node.store.store import Store
from storage_node.store.upload import Upload


class Counted(Protocol):
    """Received bytes with their size and checksum."""

    @property
    def label(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def checksum(self) -> int: ...


def stage_object(
    store: Store,
    bucket: str,
    name: str,
    chunks: Iterable[bytes | bytearray | memoryview],
    metadata: dict[str, str],
    size_bytes: int | None = None,
    checksum: int | None = None,
    condition: Condition | None = None,
    *,
    grouped: bool = False,
) -> Upload:
    """Stage an object from its chunks; the caller commits it.

    `condition`: see `Upload.require`. `grouped`: see `Store.begin_put`.

    Raises ContentMismatch if the bytes do not have the given size or CRC-32C, VersionConflict, and what `begin_put` and
    `Upload.write` raise; nothing is left behind then.
    """
    upload = store.begin_put(bucket, name, metadata, grouped=grouped)
    try:
        if condition is not None:
            upload.require(condition)
            upload.settled()  # fail before receiving the bytes, if possible
        for chunk in chunks:
            upload.write(chunk)
        if size_bytes is not None or checksum is not None:
            check_content(upload, size_bytes, checksum)
    except BaseException:
        upload.abort()
        raise
    return upload


def check_content(upload: Counted, size_bytes: int | None, checksum: int | None) -> None:
    """Raise ContentMismatch unless the bytes match the announced size and checksum (None: not announced)."""
    if size_bytes is not None and upload.size_bytes != size_bytes:
        raise ContentMismatch(f"{upload.label}: announced {size_bytes:,} bytes, got {upload.size_bytes:,}")
    if checksum is not None and upload.checksum != checksum:
        raise ContentMismatch(f"{upload.label}: announced CRC-32C {checksum:08x}, got {upload.checksum:08x}")
