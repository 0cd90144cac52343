"""Reading of an object's bytes for the body of an answer."""

from __future__ import annotations

from collections.abc import Iterator

from ais_loader.objects.archive import BatchArchive
from ais_loader.objects.object_file import ObjectFile

READ_AHEAD_BYTES = 4 << 20
"""Bytes that are requested ahead of a client, and held in memory."""
AT_ONCE_BYTES = 1 << 20
"""Bodies of at most this size are read before the answer begins, so that errors have a status."""
_CHUNK_BYTES = 1 << 20
_INLINE_BYTES = 64 << 10
"""Bodies of at most this size are sent together with the headers, by the event loop."""


def content(file: ObjectFile, start: int, length: int) -> bytes | Iterator[memoryview]:
    """Return bytes of an open file, all of them or in chunks. Closes the file when they have been read."""
    if length > AT_ONCE_BYTES:
        return _chunks(file, start, length)
    with file:
        file.seek(start)
        return file.read(length) if length <= _INLINE_BYTES else iter(list(_views(file, length)))


def begun(archive: BatchArchive) -> Iterator[bytes]:
    """Read an archive's first bytes, and return all of them; what concerns the whole batch is raised here.

    The archive is closed with the iterator.
    """
    chunks = iter(archive)
    return _with_first(next(chunks), chunks, archive)


def _with_first(first: bytes, rest: Iterator[bytes], archive: BatchArchive) -> Iterator[bytes]:
    with archive:
        yield first
        yield from rest


def _chunks(file: ObjectFile, start: int, length: int) -> Iterator[memoryview]:
    with file:
        file.seek(start)
        yield from _views(file, length)


def _views(file: ObjectFile, length: int) -> Iterator[memoryview]:
    while length:
        view = file.view1(min(length, _CHUNK_BYTES))
        length -= len(view)
        yield view
