"""Reading: an object, or a member of an archive, opened in one version for the body of an answer.

The bytes are verified in memory, and sent from the same memory: a client gets what was compared with a checksum, and
nothing else. Sendfile would take no less processor time, since the checksum has just brought the bytes into the
processor's cache, and it would send what the file has by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from ais_loader.errors import ObjectNotFound, Overloaded, VersionConflict
from ais_loader.objects.archive import BatchArchive
from ais_loader.objects.object_file import ObjectFile
from ais_loader.objects.pinned import WHOLE_BYTES, opened, opened_member
from ais_loader.transport.base import OpenedObject
from ais_loader.values.entry import Entry
from ais_loader.values.urls import split_member

from .request import INLINE_BYTES, Request, Response, S3Error, name_of, parse_json

if TYPE_CHECKING:
    from ais_loader.objects.bucket import Bucket
    from ais_loader.values.entry import ObjectInfo
    from ais_loader.values.source import Buffer

    from .request import Chunk


READ_AHEAD_BYTES = 4 << 20
"""Bytes that are requested ahead of a client, and held in memory."""
AT_ONCE_BYTES = 1 << 20
"""Bodies of at most this size are read before the answer begins, so that errors have a status."""
_CHUNK_BYTES = 1 << 20
_TIMEOUT_S = 30.0
_TRIES = 5
T = TypeVar("T")
Opened = TypeVar("Opened")


class Reading:
    """An opened object or member."""

    def __init__(self, bucket: Bucket, found: OpenedObject, member: str | None = None) -> None:
        self._bucket, self._found, self._member = bucket, found, member
        self.info = found.info
        """Describes the object; for a member, its archive, but with the member's size."""

    @classmethod
    def of(cls, bucket: Bucket, name: str, member: str | None = None, *, is_part: bool = False) -> Reading:
        """Open an object. `is_part`: only a part of it is wanted. Raises the errors of `Bucket.open`."""
        transport = bucket.client._transport
        if member is not None:
            return cls(bucket, opened_member(transport, bucket.name, name, member, None, _TIMEOUT_S), member)
        most = WHOLE_BYTES if is_part else AT_ONCE_BYTES
        return cls(bucket, opened(transport, bucket.name, name, None, _TIMEOUT_S, most))

    @classmethod
    def cached(cls, bucket: Bucket, name: str) -> Reading | None:
        """Open a small object on the event loop, if nothing has to be waited for."""
        found = bucket.client._transport.open_cached(bucket.name, name, INLINE_BYTES)
        return None if found is None else cls(bucket, found)

    def body(self, start: int, length: int) -> bytes | Iterator[Buffer]:
        """Return bytes of the object, all of them or in chunks. May be called once.

        All of a body up to AT_ONCE_BYTES has been verified then, and the first chunk of a larger one. Raises the errors
        of a GET: ObjectNotFound if this version is gone, and CorruptObject.
        """
        chunks = self._chunks(start, length)
        if length <= INLINE_BYTES:
            return b"".join(chunks)
        if length <= AT_ONCE_BYTES:
            return iter(list(chunks))
        return _with_first(next(chunks), chunks, chunks)

    def _chunks(self, start: int, length: int) -> Iterator[Buffer]:
        content, read = self._found.content, self._found.read
        if content is not None and len(data := memoryview(content())):
            return iter((data[start : start + length],))
        return read(start, length) if read is not None else self._requested(start, length)

    def _requested(self, start: int, length: int) -> Iterator[Buffer]:
        """Yield bytes that are requested as batches."""
        file = ObjectFile(
            self._bucket.client._transport,
            self.info,
            timeout_s=_TIMEOUT_S,
            read_ahead_bytes=READ_AHEAD_BYTES,
            member=self._member,
        )
        with file:
            file.seek(start)
            while length:
                view = file.view1(min(length, _CHUNK_BYTES))
                length -= len(view)
                yield view


def with_current(name: str, open_object: Callable[[], Opened], answer: Callable[[Opened], T]) -> T:
    """Return what `answer` makes of an object, which is opened again if it was replaced before its bytes were read.

    Raises Overloaded if that happens every time.
    """
    for _ in range(_TRIES):
        found = open_object()  # raises ObjectNotFound if it was deleted
        with suppress(ObjectNotFound):
            return answer(found)
    raise Overloaded(f"{name!r} is replaced faster than it can be read; try again")


def change_metadata(bucket: Bucket, name: str, change: Callable[[ObjectInfo], dict[str, str]]) -> None:
    """Replace an object's metadata with what `change` makes of it, which is called again if it was replaced meanwhile.

    Raises Overloaded if that happens every time.
    """
    for _ in range(_TRIES):
        info = bucket.head(name)
        with suppress(VersionConflict):
            bucket.set_metadata(name, change(info), if_version=info.version if info.is_stored else None)
            return
    raise Overloaded(f"{name!r} is replaced faster than its metadata can be changed; try again")


def begun(archive: BatchArchive) -> Iterator[Chunk]:
    """Read an archive's first bytes, and return all of them; what concerns the whole batch is raised here.

    The archive is closed with the iterator.
    """
    chunks = archive._in_parts()
    return _with_first(next(chunks), chunks, archive)


def _with_first(first: T, rest: Iterator[T], closed: Any) -> Iterator[T]:
    """Yield all chunks, and close what they come from."""
    with closing(closed):
        yield first
        yield from rest


MAX_ENTRIES = 10_000
MAX_BODY_BYTES = 16 << 20
_FIELDS = {"key", "member", "start", "length"}


def bundle(request: Request) -> Response:
    """Answer `POST /BUCKET?bundle`. Raises S3Error.

    The body is a JSON list of keys, and of objects with `key` and optionally `member`, `start` and `length`. Members of
    the tar have the names of the entries. An entry that cannot be had is an empty member below `__404__/`.
    """
    assert request.body is not None
    try:
        rows = parse_json(request.body.read())
    except ValueError:
        raise S3Error("InvalidArgument", "the body is not JSON") from None
    if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_ENTRIES:
        raise S3Error("InvalidArgument", f"the body must be a list of 1 to {MAX_ENTRIES:,} entries")
    entries = [_entry(request, at, row) for at, row in enumerate(rows)]
    request.client.bucket(request.bucket).info()
    archive = request.client.get_batch(entries, archive="tar", archive_names="object", on_error="placeholder")
    return Response(headers={"content-type": "application/x-tar"}, body=begun(archive))


def _entry(request: Request, at: int, row: object) -> Entry:
    if isinstance(row, str):
        row = {"key": row}
    if not isinstance(row, dict) or row.keys() - _FIELDS or not isinstance(row.get("key"), str):
        raise S3Error("InvalidArgument", f"entry {at}: need a key, or an object with {', '.join(sorted(_FIELDS))}")
    key, member = row["key"], row.get("member")
    if member is None and request.with_members:
        key, member = split_member(key)
    if member is not None and not (isinstance(member, str) and member):
        raise S3Error("InvalidArgument", f"entry {at}: member: need a name")
    start, length = row.get("start", 0), row.get("length")
    for value in (start, 0 if length is None else length):
        if type(value) is not int or not 0 <= value < 1 << 63:
            raise S3Error("InvalidArgument", f"entry {at}: start and length: need whole numbers")
    return Entry(request.bucket, name_of(key), member, start, length)
