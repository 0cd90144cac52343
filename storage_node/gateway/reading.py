"""Reading of an object's bytes for the body of an answer."""

from __future__ import annotations

from collections.abc import Iterator

from ais_loader.objects.object_file import ObjectFile

READ_AHEAD_BYTES = 4 << 20
"""Bytes that are requested ahead of a client, and held in memory."""
_AT_ONCE_BYTES = 1 << 20
"""Bodies of at most this size are read before the answer begins, so that errors have a status."""
_CHUNK_BYTES = 1 << 20


def content(file: ObjectFile, start: int, length: int) -> bytes | Iterator[bytes]:
    """Return bytes of an open file, all of them or in chunks. Closes the file when they have been read."""
    if length > _AT_ONCE_BYTES:
        return _chunks(file, start, length)
    with file:
        file.seek(start)
        return file.read(length)


def _chunks(file: ObjectFile, start: int, length: int) -> Iterator[bytes]:
    with file:
        file.seek(start)
        while length:
            chunk = file.read1(min(length, _CHUNK_BYTES))
            length -= len(chunk)
            yield chunk
