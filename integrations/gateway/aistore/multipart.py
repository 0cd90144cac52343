"""Uploads in parts: those of the store, which any gateway can continue."""

from __future__ import annotations

from ais_loader.errors import ObjectNotFound
from ais_loader.objects.multipart import MultipartUpload

from .. import attributes as stored
from ..multipart import crc32c_of, open_upload
from ..objects import part_number
from ..request import Response, S3Error
from .request import AISError, AisRequest, text_response


def begin(request: AisRequest) -> Response:
    """Begin an upload, and answer with its id."""
    return text_response(request.open_bucket().multipart(request.name).id)


def upload_of(request: AisRequest, upload_id: str) -> MultipartUpload:
    """Return an upload. Raises AISError if it has been completed or aborted, or never begun."""
    try:
        return open_upload(request.open_bucket(), request.key, upload_id)
    except S3Error as error:
        if error.code != "NoSuchUpload":
            raise
        raise _no_upload(request, upload_id) from None


def _no_upload(request: AisRequest, upload_id: str) -> AISError:
    return AISError(404, f"upload {upload_id[:64]!r} of {request.url} does not exist", "ErrNotFound")


def put_part(request: AisRequest) -> Response:
    """Store a part, or replace it. Raises Refusal."""
    number, upload_id, body = part_number(request.query["partNumber"]), request.query.get("uploadId", ""), request.body
    if body is None or not body.size_bytes:
        raise AISError(400, f"part {number} of {request.url}: invalid size (0)")
    upload = upload_of(request, upload_id)
    try:
        upload.put_part(number, body.content())
    except ObjectNotFound:
        raise _no_upload(request, upload_id) from None
    return Response()


def complete(request: AisRequest) -> Response:
    """Make the object from all of its parts, joined by their numbers. Raises AISError."""
    upload_id = request.query.get("uploadId", "")
    rows = request.json.get("value") if isinstance(request.json, dict) else None
    if not isinstance(rows or [], list):
        raise AISError(400, f"upload of {request.url}: need a list of parts")
    upload = upload_of(request, upload_id)
    try:
        if upload.end_again():
            return Response()
    except ObjectNotFound:
        raise _no_upload(request, upload_id) from None
    numbers = [row.get("part-number") if isinstance(row, dict) else None for row in rows or ()]
    found = upload.parts()
    if not numbers:
        raise AISError(400, f"upload of {request.url}: no chunks to complete it with")
    if sorted(str(number) for number in numbers) != sorted(str(part.number) for part in found):
        raise AISError(400, f"upload of {request.url}: partial completion is not allowed: name each part once")
    size_bytes, crc32c = sum(part.size_bytes for part in found), crc32c_of(found)
    sizes = stored.parts_text([part.size_bytes for part in found])
    metadata = upload.metadata | ({stored.PARTS: stored.sealed(sizes, crc32c, size_bytes)} if sizes else {})
    try:
        upload.complete(size_bytes=size_bytes, checksum=crc32c, parts=found, metadata=metadata)
    except ObjectNotFound:
        upload_of(request, upload_id)
        raise AISError(409, f"upload of {request.url}: a part was replaced meanwhile: complete it again") from None
    return Response()


def abort(request: AisRequest) -> Response:
    """Abort an upload. Raises AISError."""
    upload_of(request, request.query["uploadId"]).abort()
    return Response()
