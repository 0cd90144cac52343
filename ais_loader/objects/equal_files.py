"""Files equal to their objects in size and checksum, which an interrupted put or download does not have to repeat."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from ais_loader.objects.folder_walk import FileToStore
from ais_loader.transport.base import Transport
from ais_loader.values.entry import ObjectInfo
from ais_loader.wire.checksum import crc32c

_PIECE_BYTES = 4 << 20


def without_equal(transport: Transport, bucket: str, files: Sequence[FileToStore]) -> tuple[list[FileToStore], int]:
    """Return the files that are still to be stored, in their order, and the number of those that are not.

    Costs one listing of the names' common prefix, and reading those files whose size is that of their object. A file
    that cannot be read is left to the `put`, which reports the reason. Raises LoaderError.
    """
    stored = _stored(transport, bucket, [file.name for file in files if not file.is_stream])
    left = [file for file in files if not _is_equal(file, stored.get(file.name))]
    return left, len(files) - len(left)


def _stored(transport: Transport, bucket: str, names: Sequence[str]) -> dict[str, ObjectInfo]:
    wanted = set(names)
    infos: Iterator[ObjectInfo] = transport.objects(bucket, prefix=_common_prefix(names)) if names else iter(())
    return {info.name: info for info in infos if info.name in wanted}


def _common_prefix(names: Sequence[str]) -> str:
    """Return the longest common prefix of the names."""
    return os.path.commonprefix([min(names), max(names)])  # noqa: RUF071 - prefixes of names, not of paths


def _is_equal(file: FileToStore, info: ObjectInfo | None) -> bool:
    if info is None or file.is_stream:
        return False
    return file.size_bytes == info.size_bytes and holds(file.path, info.size_bytes, info.checksum)


def holds(path: str, size_bytes: int, checksum: int) -> bool:
    """Whether a file has bytes of this size and CRC-32C; False if it cannot be read."""
    found = read_bytes = 0
    try:
        with open(path, "rb") as opened:
            if os.fstat(opened.fileno()).st_size != size_bytes:
                return False
            while piece := opened.read(_PIECE_BYTES):
                found, read_bytes = crc32c(piece, found), read_bytes + len(piece)
    except OSError:
        return False
    return (read_bytes, found) == (size_bytes, checksum)
