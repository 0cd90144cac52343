"""Multipart uploads: any processes send parts, in any order and in parallel, which become one object at the end.

    upload = bucket.multipart("big.bin")
    upload.put_part(2, second)
    upload.put_part(1, first)
    upload.complete()

An upload is a marker next to its parts. Any process that has its id can continue it. To find an abandoned upload, use
`Bucket.uploads`; to end it, use `abort`. After a crash at any point, completion can be repeated.

Parts are objects in the bucket of the future object, below a prefix that no ordinary name can begin with, and are thus
replicated, repaired and deleted with it. Listings show them only for that prefix.
"""

from __future__ import annotations

import itertools
import json
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ais_loader import errors
from ais_loader.objects.bucket_part import BucketPart
from ais_loader.objects.put_spec import PARTS_PREFIX, make_range, make_request, require_ordinary
from ais_loader.transport.base import PutSpec, Transport
from ais_loader.values.entry import Entry, ObjectInfo
from ais_loader.values.source import Content, Source

MAX_PARTS = 10_000
_ID = re.compile(r"[0-9a-f]{32}\Z")
_MARKER = "upload"
_DONE = "completed"


@dataclass(frozen=True, slots=True)
class PartInfo:
    """A part that has been stored."""

    number: int
    """The part's number, which decides its place in the object."""
    size_bytes: int
    """The part's size."""
    checksum: int
    """The part's CRC-32C."""
    version: str
    """The part's version, which is new whenever the part is stored again."""
    metadata: dict[str, str] = field(default_factory=dict)
    """The metadata that `put_part` stored with the part. They do not become the object's."""
    modified_ns: int = 0
    """The wall-clock time at which the part was stored, in nanoseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class UploadInfo:
    """An upload that has been neither completed nor aborted, or the remainder of one."""

    id: str
    """The id by which any client can continue the upload."""
    name: str
    """The name of the future object. Empty if only parts are left."""
    parts: int
    """The number of parts that are stored."""
    size_bytes: int
    """Total size of all parts."""
    modified_ns: int
    """The time of the latest change by the wall clock, in nanoseconds since the epoch."""


class MultipartUpload:
    """The upload of one object in parts. It is thread-safe, and holds nothing open."""

    def __init__(
        self,
        transport: Transport,
        bucket: str,
        name: str,
        upload_id: str,
        part_bytes: int | None,
        metadata: dict[str, str],
    ) -> None:
        """Made by `Bucket.multipart`."""
        self.id = upload_id
        self.bucket = bucket
        self.name = name
        self.part_bytes = part_bytes
        self._transport = transport
        self._metadata = metadata
        self._folder = folder(upload_id)

    def __repr__(self) -> str:
        return f"MultipartUpload({self.bucket!r}, {self.name!r}, upload_id={self.id!r})"

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata with which the upload began."""
        return dict(self._metadata)

    def put_part(self, number: int, data: Content, *, metadata: Mapping[str, str] | None = None) -> PartInfo:
        """Store part `number`, from 1 to 10,000, or replace the part of the same number.

        `data` and `metadata` are what `Bucket.put` accepts. Raises InvalidRequest for any other number, and for more
        than `part_bytes` bytes if that was given; ObjectNotFound if the upload has been completed or aborted; and the
        errors of `Bucket.put`.
        """
        name = self._part_name(number)
        source = Source(data)
        most_bytes = self.part_bytes
        if most_bytes is not None and source.size_bytes is not None and source.size_bytes > most_bytes:
            raise self._too_large(number, source.size_bytes)
        info = put_part(self._transport, self.bucket, name, source, dict(metadata or {}))
        return self._checked(number, info)

    def copy_part(
        self,
        number: int,
        name: str,
        *,
        bucket: str | None = None,
        version: str = "",
        start: int = 0,
        length: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> PartInfo:
        """Store bytes of an object as part `number`. They do not leave the store.

        Args:
            name, bucket: The object; by default in the same bucket.
            version: The version that the object must have.
            start, length: The bytes to copy.
            metadata: As for `put_part`.

        Raises ObjectNotFound, also for the object; RangeError; and the errors of `put_part`.
        """
        part = self._part_name(number)
        ranges = [make_range(bucket or self.bucket, name, version, start, length)]
        made = self._transport.compose(make_request(self.bucket, part, ranges, metadata=dict(metadata or {})))
        return self._checked(number, made)

    def _part_name(self, number: int) -> str:
        if not isinstance(number, int) or not 1 <= number <= MAX_PARTS:
            raise errors.InvalidRequest(f"part {number!r}: parts are numbered from 1 to {MAX_PARTS:,}")
        return part_name(self.id, number)

    def _checked(self, number: int, info: ObjectInfo) -> PartInfo:
        """Check a part that has been stored, and remove it if it may not be there."""
        most_bytes = self.part_bytes
        # Check after the put: a completion or abort removes the parts stored before it, and this check removes later
        # ones.
        try:
            self._require_open()
            if most_bytes is not None and info.size_bytes > most_bytes:
                raise self._too_large(number, info.size_bytes)
        except (errors.ObjectNotFound, errors.InvalidRequest):
            remove(self._transport, self.bucket, info.name)
            raise
        return _part(info)

    def _too_large(self, number: int, size_bytes: int) -> errors.InvalidRequest:
        return errors.InvalidRequest(f"part {number} has {size_bytes:,} bytes; this upload's have {self.part_bytes:,}")

    def parts(self) -> list[PartInfo]:
        """List the stored parts, in the order of their numbers."""
        found = self._transport.objects(self.bucket, prefix=self._folder)
        return [_part(info) for info in found if not info.name.endswith(_MARKER)]

    def complete(
        self,
        *,
        size_bytes: int | None = None,
        checksum: int | None = None,
        parts: Sequence[PartInfo] | None = None,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = False,
        if_version: str | None = None,
    ) -> ObjectInfo:
        """Make the object from its parts, in the order of their numbers, on the store. It replaces one of that name.

        Args:
            size_bytes, checksum: The size and CRC-32C that the object must have. Otherwise no object is made.
            parts: The parts to use, as `parts` lists them, in this order. Others are dropped. By default all parts,
                which must then be numbered from 1 without a gap.
            metadata: Metadata that replace those with which the upload began.
            if_absent, if_version: As for `Bucket.put`. If the condition does not hold, the upload stays as it is.

        The parts are gone afterwards. If the call is interrupted, repeat it.
        Raises InvalidRequest unless the parts are numbered from 1 without a gap, and all but the last have `part_bytes`
        bytes if that was given; ObjectNotFound if the upload has been completed or aborted, or one of `parts` was
        replaced; ContentMismatch, VersionConflict, CorruptObject, and the errors of `Bucket.put`.
        """
        if self.end_again():
            return self._transport.head(self.bucket, self.name)
        found = list(parts) if parts is not None else self.parts()
        if parts is None:
            self._check_whole(found)
        ranges = [
            make_range(self.bucket, part_name(self.id, part.number), part.version, 0, part.size_bytes) for part in found
        ]
        chosen = self._metadata if metadata is None else dict(metadata)
        request = make_request(self.bucket, self.name, ranges, metadata=chosen)
        if if_absent:
            request.object.condition.if_absent = True
        if if_version is not None:
            request.object.condition.if_version = if_version
        if size_bytes is not None:
            request.object.size_bytes = size_bytes
        if checksum is not None:
            request.object.checksum = checksum
        made = self._transport.compose(request)
        # From here on, completion only cleans up, because the parts are not all there any more.
        _put_marker(self._transport, self.bucket, self.id, self.name, self.part_bytes, {}, {_DONE: made.version})
        self._clean_up()
        return made

    def end_again(self) -> bool:
        """Remove what a completion that was interrupted has left; return whether it had made the object."""
        is_done = _DONE in self._marker().metadata
        if is_done:
            self._clean_up()
        return is_done

    def _check_whole(self, found: list[PartInfo]) -> None:
        if not found:
            raise errors.InvalidRequest(f"upload {self.id} of {self.name!r} has no parts")
        for number, part in enumerate(found, 1):
            if part.number != number:
                raise errors.InvalidRequest(f"upload {self.id} of {self.name!r}: part {number} is missing")
        for part in found[:-1]:
            if self.part_bytes is not None and part.size_bytes != self.part_bytes:
                raise errors.InvalidRequest(
                    f"upload {self.id} of {self.name!r}: part {part.number} has {part.size_bytes:,} bytes; all but the "
                    f"last have {self.part_bytes:,}"
                )

    def abort(self) -> None:
        """Abort the upload, and delete its parts. There is no error if it is already gone."""
        remove(self._transport, self.bucket, self._folder + _MARKER)
        self._clean_up()

    def _clean_up(self) -> None:
        """Delete the parts, and the marker last: until then the upload remains listed."""
        for part in self.parts():
            remove(self._transport, self.bucket, part_name(self.id, part.number))
        remove(self._transport, self.bucket, self._folder + _MARKER)

    def _marker(self) -> ObjectInfo:
        try:
            return self._transport.head(self.bucket, self._folder + _MARKER)
        except errors.ObjectNotFound:
            raise _no_upload(self.id, self.name) from None

    def _require_open(self) -> None:
        if _DONE in self._marker().metadata:
            raise _no_upload(self.id, self.name)


class BucketUploads(BucketPart):
    """Uploads in parts."""

    def multipart(
        self,
        name: str,
        *,
        upload_id: str | None = None,
        part_bytes: int | None = None,
        metadata: dict[str, str] | None = None,
    ) -> MultipartUpload:
        """Begin to store an object in parts, or resume an upload.

        Args:
            upload_id: The upload to resume (`MultipartUpload.id`). Any process may have begun it.
            part_bytes: The size that every part but the last must have. None allows any size. Must not be given with
                `upload_id`.
            metadata: The object's metadata. Must not be given with `upload_id` either.

        Raises InvalidName, BucketNotFound, InvalidRequest; ObjectNotFound for an upload that does not exist any more.
        """
        transport, bucket, kept = self._transport, self.name, dict(metadata or {})
        if upload_id is not None:
            if part_bytes is not None or metadata is not None:
                raise errors.InvalidRequest(
                    "part_bytes and metadata can be given only when an upload begins, not together with upload_id"
                )
            marker = _read_marker(transport, bucket, upload_id)
            if marker is None:
                raise _no_upload(upload_id, name)
            if marker["name"] != name:
                raise errors.InvalidRequest(
                    f"upload {upload_id} belongs to the object {marker['name']!r}, not to {name!r}"
                )
            return MultipartUpload(transport, bucket, name, upload_id, marker["part_bytes"], marker["metadata"])
        require_ordinary(name)
        if part_bytes is not None and part_bytes < 1:
            raise errors.InvalidRequest(f"part_bytes={part_bytes}: need at least 1")
        make_request(bucket, name, [], metadata=kept)  # an upload that cannot be completed is not begun
        upload_id = new_id()
        _put_marker(transport, bucket, upload_id, name, part_bytes, kept, {})
        return MultipartUpload(transport, bucket, name, upload_id, part_bytes, kept)

    def uploads(self) -> Iterator[UploadInfo]:
        """List uploads in parts that were neither completed nor aborted, and parts that were left behind, lazily."""
        transport, bucket = self._transport, self.name
        found = transport.objects(bucket, prefix=PARTS_PREFIX)
        for upload_id, group in itertools.groupby(
            found, key=lambda info: info.name[len(PARTS_PREFIX) :].partition("/")[0]
        ):
            group_infos = list(group)
            stored = [info for info in group_infos if not info.name.endswith(_MARKER)]
            marker = _read_marker(transport, bucket, upload_id) if len(stored) < len(group_infos) else None
            yield UploadInfo(
                upload_id,
                marker["name"] if marker is not None else "",
                len(stored),
                sum(info.size_bytes for info in stored),
                max(info.modified_ns for info in group_infos),
            )

    def sweep_uploads(self, older_than_s: float) -> list[UploadInfo]:
        """Abort the uploads for which nothing was stored in the last `older_than_s` seconds, and return them.

        Ages are measured by the wall clocks of the machines.
        """
        before_ns = time.time_ns() - int(older_than_s * 1e9)
        old = [upload for upload in self.uploads() if upload.modified_ns < before_ns]
        for upload in old:
            MultipartUpload(self._transport, self.name, upload.name, upload.id, None, {}).abort()
        return old


def _put_marker(
    transport: Transport,
    bucket: str,
    upload_id: str,
    name: str,
    part_bytes: int | None,
    metadata: dict[str, str],
    state: dict[str, str],
) -> None:
    marker = json.dumps({"name": name, "part_bytes": part_bytes, "metadata": metadata}).encode()
    put_part(transport, bucket, folder(upload_id) + _MARKER, Source(marker), state)


def _read_marker(transport: Transport, bucket: str, upload_id: str) -> dict[str, Any] | None:
    name = folder(upload_id) + _MARKER
    try:
        marker: dict[str, Any] = json.loads(b"".join(transport.get(Entry(bucket, name), verify=True, timeout_s=30.0)))
    except errors.ObjectNotFound:
        return None
    return marker


def _part(info: ObjectInfo) -> PartInfo:
    number = int(info.name.rpartition("/")[2])
    return PartInfo(number, info.size_bytes, info.checksum, info.version, info.metadata, info.modified_ns)


def _no_upload(upload_id: str, name: str) -> errors.ObjectNotFound:
    return errors.ObjectNotFound(f"no upload {upload_id} of {name!r}: it was completed or aborted, or never begun")


# -- stored parts


def new_id() -> str:
    return uuid.uuid4().hex


def folder(upload_id: str) -> str:
    """Return the folder of an upload. Raises InvalidRequest for an invalid id."""
    if not isinstance(upload_id, str) or not _ID.match(upload_id):
        raise errors.InvalidRequest(f"upload_id={upload_id!r}: need one as `MultipartUpload.id` has it")
    return f"{PARTS_PREFIX}{upload_id}/"


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
