"""Calls on single objects: put, get, head, delete, custom metadata. Unlike S3, AIStore refuses an invalid range."""

from __future__ import annotations

import re

from ..reading import Reading, change_metadata, with_current
from ..request import Response
from . import attributes
from .archive_reads import get_matching, get_member
from .request import AisRequest, keeps_copies, props_named, range_error

_OCTETS = "application/octet-stream"
_WAITING = ("archmode", "archpath", "archregx", "latest-ver")
"""Parameters of reads that may wait."""

_RANGE = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})\Z", re.ASCII)


def read_range(header: str, size_bytes: int) -> tuple[int, int]:
    """Return start and length of a range, cut at the end of the object. Raises AISError with 416."""
    match = _RANGE.match(header.strip())
    if match is None or match[1] == match[2] == "":
        raise range_error(f"invalid range {header[:80]!r}: need one, bytes=FIRST-LAST", size_bytes)
    if not match[1]:
        length = min(int(match[2]), size_bytes)
        start = size_bytes - length
    else:
        start = int(match[1])
        length = min(int(match[2]) if match[2] else size_bytes - 1, size_bytes - 1) - start + 1
    if length <= 0:
        raise range_error(f"range {header[:80]!r} of {size_bytes} bytes is not satisfiable", size_bytes)
    return start, length


def put(request: AisRequest) -> Response:
    """Store an object. Raises AISError."""
    name, body = request.name, request.body
    bucket = request.open_bucket()
    if body is None:
        return Response(headers=attributes.headers_of(bucket.put(name, b"")))
    info = bucket.put(name, body.content(), checksum=body.crc32c)
    return Response(headers=attributes.headers_of(info))


def get(request: AisRequest) -> Response:
    """Read an object, a range of it, or members of an archive. Raises AISError."""
    query = request.query
    if query.get("archregx") or query.get("archmode"):
        return get_matching(request)
    if query.get("archpath"):
        return get_member(request)
    bucket = request.open_bucket()
    if query.get("latest-ver") == "true" and keeps_copies(bucket):
        bucket.evict([request.name])
    is_part = "range" in request.headers
    return with_current(
        request.name, lambda: Reading.of(bucket, request.name, is_part=is_part), lambda read: _answer(request, read)
    )


def get_cached(request: AisRequest) -> Response | None:
    """Answer `get` on the event loop, if nothing has to be waited for. Raises AISError."""
    if request.provider != "ais" or not request.query.keys().isdisjoint(_WAITING):
        return None
    reading = Reading.cached(request.client.bucket(request.bucket), request.name)
    return None if reading is None else _answer(request, reading)


def _answer(request: AisRequest, reading: Reading) -> Response:
    info = reading.info
    headers = {"content-type": _OCTETS, **attributes.headers_of(info)}
    start, length, status = 0, info.size_bytes, 200
    if "range" in request.headers:
        start, length = read_range(request.headers["range"], info.size_bytes)
        status = 206
        headers["accept-ranges"] = "bytes"
        headers["content-range"] = f"bytes {start}-{start + length - 1}/{info.size_bytes}"
    return Response(status, headers, reading.body(start, length), length)


def head(request: AisRequest) -> Response:
    """Answer with properties of an object. Raises AISError."""
    text = request.query.get("props", "")
    props = props_named(text or "checksum,atime,version,custom,location,copies,chunked", attributes.PROPS)
    bucket = request.open_bucket()
    info = bucket.head(request.name)
    headers = {"content-type": _OCTETS, **attributes.headers_of_props(info, props, bucket)}
    if not text:
        headers |= {"ais-bucket-name": request.bucket, "ais-bucket-provider": request.provider}
        if request.key.isprintable():
            headers["ais-name"] = request.key
    repeated = attributes.custom_headers(info) if "custom" in props else ()
    return Response(200, headers, size_bytes=info.size_bytes, repeated=repeated)


def delete(request: AisRequest) -> Response:
    """Delete an object. Raises AISError, also if there is none."""
    request.open_bucket().delete(request.name)
    return Response()


def set_custom(request: AisRequest) -> Response:
    """Add to an object's custom metadata, or replace them. Raises AISError."""
    bucket, custom = request.open_bucket(), request.value
    replaces = request.query.get("set-new-custom") == "true"
    change_metadata(bucket, request.name, lambda info: attributes.changed(info, custom, replaces=replaces))
    return Response()
