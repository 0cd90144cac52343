"""Appends: pieces are parts of an upload, and become visible together at the end.

A handle is the id of the upload and the number of pieces, so that any gateway can continue, and a piece that is sent
again replaces itself.
"""

from __future__ import annotations

import re

from ais_loader.errors import ObjectNotFound
from ais_loader.objects.multipart import MAX_PARTS, MultipartUpload, PartInfo, part_name
from ais_loader.objects.put_spec import make_range, make_request
from ais_loader.values.entry import ObjectInfo
from ais_loader.wire.reserved import of_client

from ..multipart import crc32c_of
from ..reading import with_current
from ..request import Response
from .multipart import upload_of
from .request import AISError, AisRequest

HANDLE = "ais-append-handle"
_HANDLE = re.compile(r"([0-9a-f]{32})\.([0-9]{1,5})\Z")


def append(request: AisRequest) -> Response:
    """Append a piece, or end an append, after which the object is visible. Raises AISError."""
    kind, handle = request.query["append_type"], request.query.get("append_handle", "")
    if kind not in ("append", "flush"):
        raise AISError(400, f"append_type={kind[:40]!r}: need append or flush")
    if kind == "flush" and not handle:
        raise AISError(400, f"{request.url}: need the handle of the append to flush")
    upload, count = _open(request, handle) if handle else _begin(request)
    body = request.body
    if body is not None and body.size_bytes:
        if count >= MAX_PARTS - 1:
            upload, count = _joined(request, upload, count)
        count += 1
        try:
            upload.put_part(count, body.content())
        except ObjectNotFound:
            raise _no_append(request) from None
    if kind == "append":
        return Response(headers={HANDLE: f"{upload.id}.{count}"})
    parts = _pieces(request, upload, count)
    size_bytes = sum(part.size_bytes for part in parts)
    try:
        upload.complete(parts=parts, size_bytes=size_bytes, checksum=crc32c_of(parts))
    except ObjectNotFound:
        upload_of(request, upload.id)
        raise AISError(409, f"append to {request.url}: a piece was replaced meanwhile: flush it again") from None
    return Response()


def _no_append(request: AisRequest) -> AISError:
    return AISError(404, f"the append to {request.url} does not exist: it was ended, or never begun", "ErrNotFound")


def _open(request: AisRequest, handle: str) -> tuple[MultipartUpload, int]:
    match = _HANDLE.match(handle)
    if match is None or int(match[2]) > MAX_PARTS:
        raise AISError(400, f"append_handle={handle[:80]!r} is not valid")
    return upload_of(request, match[1]), int(match[2])


def _begin(request: AisRequest) -> tuple[MultipartUpload, int]:
    """Begin an upload, with the present bytes and metadata of the object if it exists."""
    bucket = request.open_bucket()

    def begun(info: ObjectInfo) -> tuple[MultipartUpload, int]:
        upload = bucket.multipart(request.name, metadata=of_client(info.metadata))
        if not info.size_bytes:
            return upload, 0
        try:
            upload.copy_part(1, request.name, version=info.version if info.is_stored else "")
        except ObjectNotFound:  # it was replaced meanwhile
            upload.abort()
            raise
        return upload, 1

    try:
        return with_current(request.name, lambda: bucket.head(request.name), begun)
    except ObjectNotFound:
        return bucket.multipart(request.name), 0


def _pieces(request: AisRequest, upload: MultipartUpload, count: int) -> list[PartInfo]:
    parts = [part for part in upload.parts() if part.number <= count]
    if len(parts) != count:
        raise _no_append(request)
    return parts


def _joined(request: AisRequest, upload: MultipartUpload, count: int) -> tuple[MultipartUpload, int]:
    """Return a new upload whose first part is all pieces so far, because the number of parts is limited."""
    bucket = request.open_bucket()
    parts = _pieces(request, upload, count)
    longer = bucket.multipart(request.name, metadata=upload.metadata)
    ranges = [make_range(bucket.name, part_name(upload.id, part.number), part.version) for part in parts]
    bucket.client._transport.compose(make_request(bucket.name, part_name(longer.id, 1), ranges, metadata={}))
    upload.abort()
    return longer, 1
