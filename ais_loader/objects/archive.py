"""Batch archive: a batch's entries as members, in order, written as they arrive, readable by standard tools.

Members are named `bucket/object`, those of shards `bucket/shard.tar/member`; with names="object" without the bucket. An
entry that could not be fetched is an empty member below `__404__/`, in its place, with the reason as its comment. The
same answer makes the same archive, byte for byte: no times, no owners. (Names as in NVIDIA AIStore's GetBatch.)
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import time
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, Literal, Protocol, TypeAlias, cast

from ais_loader.errors import InvalidName, InvalidRequest
from ais_loader.extras import needs
from ais_loader.transport.base import member_name_fault
from ais_loader.values.batch import Batch
from ais_loader.values.entry import Entry, Item
from ais_loader.values.whole_file import whole_file
from ais_loader.wire.closing import Closing

ArchiveFormat: TypeAlias = Literal["tar", "tar.gz", "tar.lz4", "tar.zst", "zip"]
ArchiveNames: TypeAlias = Literal["bucket", "object"]
FORMATS: tuple[ArchiveFormat, ...] = ("tar", "tar.gz", "tar.lz4", "tar.zst", "zip")
MISSING = "__404__"
_BLOCK = tarfile.BLOCKSIZE
_ZEROS = bytes(_BLOCK)
_CHUNK_BYTES = 1 << 20
_APART_BYTES = 32 << 10
"""Smaller parts of a chunk are joined, which costs less than to pass each of them on."""
_CHUNK_S = 0.5
"""The longest time for which entries that have arrived are kept back to make a chunk."""
_ZIP_COMMENT_BYTES = 65_535
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest time of the format


class Writable(Protocol):
    def write(self, data: bytes | memoryview, /) -> object: ...


def check_options(archive: str, names: str) -> None:
    """Raises InvalidRequest."""
    if archive not in FORMATS:
        raise InvalidRequest(f"archive={archive!r}: one of {', '.join(map(repr, FORMATS))}")
    if names not in ("bucket", "object"):
        raise InvalidRequest(f"archive_names={names!r}: 'bucket' or 'object'")


def member_name(entry: Entry, names: ArchiveNames, *, failed: bool = False) -> str:
    parts = [MISSING] if failed else []
    if names == "bucket":
        parts.append(entry.bucket)
    parts.append(entry.name)
    if entry.member is not None:
        parts.append(entry.member)
    return "/".join(parts)


def check_names(entries: Iterable[Entry], names: ArchiveNames) -> None:
    """Check the names of members. Raises InvalidName for the first entry that cannot be a member under its name."""
    for at, entry in enumerate(entries):
        name = member_name(entry, names)
        if fault := member_name_fault(name):
            shown = name if len(name) <= 80 else name[:77] + "..."
            raise InvalidName(f"entry {at} would be the member {shown!r} of the archive: {fault}; fetch it as an item")


class BatchArchive(Closing):
    """A batch that becomes an archive. Write it to a file, or iterate over its bytes, once."""

    def __init__(self, batch: Batch, archive: ArchiveFormat, names: ArchiveNames = "bucket") -> None:
        check_options(archive, names)
        self._batch = batch
        self.archive = archive
        self.names = names
        self._has_delivered = False
        self.entries = len(batch)
        self.delivered = 0
        """Entries that are in the archive so far, including placeholders."""
        self.failed = 0
        """Entries that became placeholders so far."""

    def write_to(self, target: str | os.PathLike[str] | Writable) -> BatchArchive:
        """Write the archive. A path gets the whole archive or, if an error is raised, none; a file object keeps what
        was written.

        Raises the errors of the batch, OSError, InvalidRequest; the latter also if the archive has been written or
        iterated over before.
        """
        if isinstance(target, str | os.PathLike):
            with whole_file(os.fspath(target), replace=True) as file:
                self._write(file)
        else:
            self._write(target)
        return self

    def __iter__(self) -> Iterator[bytes]:
        """Yield the archive in chunks of about 1 MiB, and smaller ones if entries arrive slowly."""
        for parts in self._in_parts():
            yield b"".join(parts)

    def _in_parts(self) -> Iterator[list[bytes | memoryview]]:
        """Yield the same chunks, each in parts, of which large ones are views of what was received."""
        pending = _Pending()
        since_s = time.monotonic()
        for _ in self._written_to(pending):
            if pending.size_bytes >= _CHUNK_BYTES or (pending.size_bytes and time.monotonic() - since_s > _CHUNK_S):
                yield pending.take()
                since_s = time.monotonic()
        if pending.size_bytes:
            yield pending.take()

    def name_of(self, item: Item, size_bytes: int) -> str:
        """Return the name of a member. It is called once for each entry, in order.

        Args:
            item: The entry, or the first piece of a large one.
            size_bytes: The entry's size.
        """
        return member_name(item.entry, self.names, failed=not item.ok)

    def close(self) -> None:
        """Abandon what has not been written. The written part is not a complete archive."""
        self._batch.close()

    def _write(self, target: Writable) -> None:
        for _ in self._written_to(target):
            pass

    def _written_to(self, target: Writable) -> Iterator[None]:
        """Write a member, or a piece of one, at each step. After the last step the archive is complete."""
        if self._has_delivered:  # the rest of the batch would be an archive too
            raise InvalidRequest(
                "this archive has been written already: a batch is delivered once; fetch the entries again"
            )
        self._has_delivered = True
        writer = _ZipWriter(target) if self.archive == "zip" else _TarWriter(target, self.archive)
        with self._batch:
            try:
                for item, offset, size_bytes in self._batch._in_pieces():
                    if not offset:
                        writer.begin(self.name_of(item, size_bytes), size_bytes, item.error)
                    writer.write(item.data)
                    if offset + len(item.data) == size_bytes:
                        writer.end()
                        self.delivered += 1
                        self.failed += not item.ok
                    yield
            except BaseException:
                writer.abandon()
                raise
        writer.close()
        yield


class _Pending:
    """Collects a writer's output until it is taken."""

    def __init__(self) -> None:
        self._parts: deque[bytes | memoryview] = deque()
        self.size_bytes = 0

    def write(self, data: bytes | memoryview, /) -> int:
        is_kept = isinstance(data, memoryview) and data.readonly
        self._parts.append(data if is_kept else bytes(data))  # a writer may reuse its buffer
        self.size_bytes += len(data)
        return len(data)

    def flush(self) -> None: ...

    def take(self) -> list[bytes | memoryview]:
        """Return what was collected. Small parts that are next to each other are joined."""
        taken: list[bytes | memoryview] = []
        small: list[bytes | memoryview] = []
        for part in self._parts:
            if len(part) < _APART_BYTES:
                small.append(part)
                continue
            if small:
                taken.append(b"".join(small))
                small = []
            taken.append(part)
        if small:
            taken.append(b"".join(small))
        self._parts.clear()
        self.size_bytes = 0
        return taken


class _TarWriter:
    """Writes PAX, which is ustar where that suffices."""

    def __init__(self, target: Writable, archive: ArchiveFormat) -> None:
        self._out, self._end = _compressed(target, archive)
        self._written = 0
        self._padding = 0

    def begin(self, name: str, size_bytes: int, error: Exception | None) -> None:
        header = _plain_header(name, size_bytes) if error is None else None
        if header is None:
            header = _full_header(name, size_bytes, error)
        self._out.write(header)
        self._padding = -size_bytes % _BLOCK
        self._written += len(header) + size_bytes + self._padding

    def write(self, data: bytes | memoryview) -> None:
        self._out.write(data)

    def end(self) -> None:
        if self._padding:
            self._out.write(_ZEROS[: self._padding])

    def close(self) -> None:
        end = 2 * _BLOCK
        self._out.write(bytes(end + -(self._written + end) % tarfile.RECORDSIZE))
        self._end()

    def abandon(self) -> None:
        """Leave what was written, which is not a complete archive."""


def _full_header(name: str, size_bytes: int, error: Exception | None = None) -> bytes:
    member = tarfile.TarInfo(name)
    member.size = size_bytes
    member.mode = 0o644
    if error is not None:
        member.pax_headers = {"comment": str(error)}
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


_EMPTY_HEADER = _full_header("", 0)
_NAME_BYTES, _SIZE_AT, _SIZE_END, _SUM_AT, _SUM_END = 100, 124, 135, 148, 155
_BEFORE_SIZE, _AFTER_SIZE = _EMPTY_HEADER[_NAME_BYTES:_SIZE_AT], _EMPTY_HEADER[_SIZE_END:_SUM_AT]
_AFTER_SUM = _EMPTY_HEADER[_SUM_END:]
# Fields other than name, size and sum. The sum itself counts as spaces.
_REST_SUM = sum(_BEFORE_SIZE) + sum(_AFTER_SIZE) + sum(_AFTER_SUM) + (_SUM_END - _SUM_AT) * ord(" ")


def _plain_header(name: str, size_bytes: int) -> bytes | None:
    """Return the same bytes as `_full_header` in a tenth of the time; None for members that need more than ustar."""
    if not name.isascii() or len(name) > _NAME_BYTES or size_bytes >= 1 << 33:
        return None
    field, size = name.encode(), b"%011o" % size_bytes
    total = _REST_SUM + sum(field) + sum(size)
    return b"".join((field.ljust(_NAME_BYTES, b"\0"), _BEFORE_SIZE, size, _AFTER_SIZE, b"%06o\0" % total, _AFTER_SUM))


def _compressed(target: Writable, archive: ArchiveFormat) -> tuple[Writable, Callable[[], object]]:
    """Return the file to write to, and a function to call at the end; `target` stays open. Raises InvalidRequest."""
    out = cast(IO[bytes], target)
    if archive == "tar.gz":
        zipped = gzip.GzipFile("", fileobj=out, mode="wb", compresslevel=6, mtime=0)
        return zipped, zipped.close
    if archive == "tar.zst":
        writer: Any = _library("zstandard").ZstdCompressor().stream_writer(out, closefd=False)
        return writer, writer.close
    if archive == "tar.lz4":
        writer = _library("lz4.frame").open(out, "wb")
        return writer, writer.close
    return target, lambda: None


def _library(name: str) -> Any:
    import importlib

    with needs(name.partition(".")[0], "this archive format", InvalidRequest):
        return importlib.import_module(name)


class _ZipWriter:
    def __init__(self, target: Writable) -> None:
        self._target = _Unseekable(target)
        self._zip = zipfile.ZipFile(self._target, "w", zipfile.ZIP_DEFLATED)
        self._member: IO[bytes] | None = None

    def begin(self, name: str, size_bytes: int, error: Exception | None) -> None:
        member = zipfile.ZipInfo(name, _ZIP_TIME)
        member.compress_type = zipfile.ZIP_DEFLATED
        member.external_attr = 0o644 << 16
        member.file_size = size_bytes
        if error is not None:
            member.comment = str(error).encode()[:_ZIP_COMMENT_BYTES]
        # An entry that is requested twice occurs twice, for which zipfile would print a warning.
        self._zip.NameToInfo.pop(name, None)
        self._member = self._zip.open(member, "w")

    def write(self, data: bytes | memoryview) -> None:
        assert self._member is not None
        self._member.write(data)

    def end(self) -> None:
        assert self._member is not None
        self._member.close()
        self._member = None

    def close(self) -> None:
        self._zip.close()

    def abandon(self) -> None:
        # Without a directory it is not a valid archive, as it should be. A member that is open writes no more.
        self._target.is_closed = True
        if self._member is not None:
            self._member.close()
        self._zip.fp = None


class _Unseekable(io.RawIOBase):
    """Prevents zipfile from seeking back, so that a file and a pipe get the same bytes."""

    def __init__(self, target: Writable) -> None:
        self._target = target
        self.is_closed = False
        """Whether what is written is dropped."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        if not self.is_closed:
            self._target.write(data)
        return len(data)
