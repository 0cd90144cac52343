"""Calls on single objects: put, get, head, delete, copy, attributes."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from urllib.parse import quote, urlencode

from ais_loader import errors
from ais_loader.objects.multipart import MAX_PARTS
from ais_loader.objects.put_spec import make_range, make_request
from ais_loader.values.entry import ObjectInfo
from ais_loader.values.urls import split_member

from . import attributes, checksums, conditions, tagging, xml
from .listing import max_keys, stamp
from .reading import Reading, with_current
from .request import Request, Response, S3Error, decoded, name_of, xml_response

_RANGE = re.compile(r"bytes=([0-9]*)-([0-9]*)\Z", re.ASCII)
_REDIRECT = re.compile(r"https?://[!-~]+\Z")
_MAX_DIGITS = 19
COPY_SOURCE = "x-amz-copy-source"


def put_object(request: Request) -> Response:
    """Answer PutObject. Raises S3Error."""
    name = name_of(request.key)
    body = request.body
    assert body is not None
    bucket = request.client.bucket(request.bucket)
    metadata = attributes.metadata_of(request.headers) | attributes.of_body(body)
    condition = conditions.of_write(bucket, name, request.headers)
    info = bucket.put(
        name,
        body.content(),
        metadata=metadata,
        checksum=body.crc32c,
        if_absent=condition.if_absent,
        if_version=condition.if_version,
    )
    headers = {"etag": f'"{attributes.etag(info)}"'}
    if body.checksum is not None:
        headers[f"x-amz-checksum-{body.checksum[0]}"] = body.checksum[1]
        headers["x-amz-checksum-type"] = "FULL_OBJECT"
    return Response(headers=headers)


def post_object(request: Request) -> Response:
    """Answer PostObject. Raises S3Error."""
    assert request.body is not None and request.body.form is not None
    fields = request.body.form.fields
    key = fields["key"]
    headers = dict(fields)
    if "tagging" in fields:
        headers[tagging.HEADER] = tagging.text_of_document(fields["tagging"].encode())
    stored = put_object(replace(request, key=key, headers=headers))
    etag, place = stored.headers["etag"], f"/{request.bucket}/{quote(key)}"
    url = fields.get("success_action_redirect") or fields.get("redirect", "")
    if _REDIRECT.match(url):
        query = urlencode({"bucket": request.bucket, "key": key, "etag": etag}, quote_via=quote)
        return Response(303, {**stored.headers, "location": f"{url}{'&' if '?' in url else '?'}{query}"})
    made = Response(200 if fields.get("success_action_status") == "200" else 204)
    if fields.get("success_action_status") == "201":
        parts = xml.tags(Location=place, Bucket=request.bucket) + xml.key_tags(key) + xml.tag("ETag", etag)
        made = xml_response(xml.document("PostResponse", [parts]), 201)
    made.headers |= {**stored.headers, "location": place}
    return made


def get_object(request: Request) -> Response:
    """Answer GetObject and HeadObject. Raises S3Error."""
    bucket = request.client.bucket(request.bucket)
    name, member = _named(request)
    if request.method == "HEAD" and member is None:
        return _answer(request, bucket.head(name), None, is_object=True)
    is_part = "range" in request.headers or "partNumber" in request.query

    def answer(reading: Reading) -> Response:
        info = reading.info if member is None else replace(reading.info, metadata={})
        return _answer(request, info, reading, is_object=member is None)

    return with_current(name, lambda: Reading.of(bucket, name, member, is_part=is_part), answer)


def get_cached(request: Request) -> Response | None:
    """Answer GetObject on the event loop, if nothing has to be waited for. Raises S3Error."""
    name, member = _named(request)
    reading = None if member else Reading.cached(request.client.bucket(request.bucket), name)
    return None if reading is None else _answer(request, reading.info, reading, is_object=True)


def _named(request: Request) -> tuple[str, str | None]:
    """Return the names of the object and of its member, if the key names one."""
    if request.with_members:
        shard, member = split_member(request.key)
        if member:
            return name_of(shard), member
    return name_of(request.key), None


def _answer(request: Request, info: ObjectInfo, reading: Reading | None, *, is_object: bool) -> Response:
    """`reading`: None for HEAD. `is_object`: it is no member of an archive."""
    with_checksum = is_object and request.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED"
    conditions.check_read(info, request.headers)
    chosen = _part(request, info)
    part_headers = {}
    if chosen is not None:
        part_headers["x-amz-mp-parts-count"] = str(len(attributes.part_sizes(info)) or 1)
        if with_checksum:
            part_headers |= attributes.part_checksum_headers(info, int(request.query["partNumber"]))
    else:
        is_part = _holds(request.headers.get("if-range"), info)
        chosen = _range(request.headers.get("range"), info.size_bytes) if is_part else None
    headers = attributes.headers_of(info, request.query, with_checksum=with_checksum and chosen is None)
    headers |= part_headers
    start, length = chosen if chosen is not None else (0, info.size_bytes)
    status = 200
    if chosen is not None and info.size_bytes:
        status = 206
        headers["content-range"] = f"bytes {start}-{start + length - 1}/{info.size_bytes}"
    if request.method == "HEAD" or reading is None or not length:
        return Response(status, headers, size_bytes=length)
    return Response(status, headers, reading.body(start, length), length)


def _part(request: Request, info: ObjectInfo) -> tuple[int, int] | None:
    """Return the place of the part that the query names."""
    text = request.query.get("partNumber")
    if text is None:
        return None
    number = part_number(text)
    if "range" in request.headers:
        raise S3Error("InvalidRequest", "partNumber and Range exclude each other")
    sizes = attributes.part_sizes(info) or [info.size_bytes]
    if number > len(sizes):
        code = "InvalidPartNumber" if request.method == "HEAD" else "InvalidPart"
        raise S3Error(code, f"the object has no part {number}")
    return sum(sizes[: number - 1]), sizes[number - 1]


def part_number(text: str) -> int:
    """Return the number of a part. Raises S3Error."""
    if not (text.isascii() and text.isdigit() and len(text) < 6) or not 1 <= int(text) <= MAX_PARTS:
        raise S3Error("InvalidArgument", f"partNumber={text[:40]!r}: need 1 to {MAX_PARTS}")
    return int(text)


def _range(header: str | None, size_bytes: int) -> tuple[int, int] | None:
    """Return start and length; None for the whole object, also for headers that are to be ignored. Raises S3Error."""
    match = _RANGE.match(header.replace(" ", "")) if header else None
    if match is None or match[1] == match[2] == "":
        return None
    if max(len(match[1]), len(match[2])) > _MAX_DIGITS:
        raise _out_of_range(header, size_bytes)
    if not match[1]:
        length = min(int(match[2]), size_bytes)
        start = size_bytes - length
    else:
        start = int(match[1])
        last = min(int(match[2]) if match[2] else size_bytes - 1, size_bytes - 1)
        if match[2] and int(match[2]) < start:
            return None
        length = last - start + 1
    if length <= 0 or start >= size_bytes:
        raise _out_of_range(header, size_bytes)
    return start, length


def _out_of_range(header: str | None, size_bytes: int) -> S3Error:
    """Return the refusal of a range. AWS's own clients read the object's size in it, to tell that it is empty."""
    return S3Error(
        "InvalidRange",
        "the range is not satisfiable",
        headers={"content-range": f"bytes */{size_bytes}"},
        details={"RangeRequested": header, "ActualObjectSize": size_bytes},
    )


def _holds(header: str | None, info: ObjectInfo) -> bool:
    """Whether `If-Range` allows a part of the object."""
    return header is None or header.strip().strip('"') in (attributes.etag(info), attributes.last_modified(info))


def delete_object(request: Request) -> Response:
    """Answer DeleteObject. An object that does not exist is deleted successfully, as in S3. Raises S3Error."""
    bucket = request.client.bucket(request.bucket)
    name = name_of(request.key)
    condition = conditions.of_delete(request.headers)
    with suppress(errors.ObjectNotFound):
        version = condition.version(bucket, name) if condition.is_given() else None
        bucket.delete(name, if_version=version)
    return Response(204)


class CopySource:
    """The object that a copy is made of, in the version that it had when the conditions were checked."""

    def __init__(self, request: Request) -> None:
        """Raises S3Error."""
        text = request.headers[COPY_SOURCE]
        path, _, version = text.partition("?versionId=")
        if version not in ("", "null"):
            raise S3Error("NoSuchVersion", "the only version is null")
        self.bucket, _, key = decoded(path).removeprefix("/").partition("/")
        if not self.bucket or not key:
            raise S3Error("InvalidArgument", f"{COPY_SOURCE}: need BUCKET/KEY")
        self.name = name_of(key)
        self.info = request.client.bucket(self.bucket).head(self.name)
        conditions.check_read(self.info, request.headers, f"{COPY_SOURCE}-")

    @property
    def version(self) -> str:
        return self.info.version if self.info.is_stored else ""

    def range(self, header: str | None) -> tuple[int, int]:
        """Return start and length of the bytes to copy. Raises S3Error."""
        if header is None:
            return 0, self.info.size_bytes
        match = _RANGE.match(header)
        if match is None or not match[1] or not match[2] or max(map(len, match.groups())) > _MAX_DIGITS:
            raise S3Error("InvalidArgument", f"{COPY_SOURCE}-range: need bytes=FIRST-LAST")
        first, last = int(match[1]), int(match[2])
        if last < first or last >= self.info.size_bytes:
            size = f"{self.info.size_bytes:,} bytes"
            raise S3Error("InvalidArgument", f"{COPY_SOURCE}-range: the range is not one of the source, of {size}")
        return first, last - first + 1


def copy_object(request: Request) -> Response:
    """Answer CopyObject. The bytes do not leave the store. Raises S3Error."""
    name = name_of(request.key)
    return with_current(name, lambda: CopySource(request), lambda source: _copied(request, source, name))


def _copied(request: Request, source: CopySource, name: str) -> Response:
    directive = request.headers.get("x-amz-metadata-directive", "COPY").upper()
    if directive not in ("COPY", "REPLACE"):
        raise S3Error("InvalidArgument", "x-amz-metadata-directive: need COPY or REPLACE")
    same = (source.bucket, source.name) == (request.bucket, name)
    if same and directive == "COPY":
        raise S3Error("InvalidRequest", "a copy of an object to itself needs x-amz-metadata-directive: REPLACE")
    metadata: dict[str, str] | None = None
    given = attributes.metadata_of(request.headers)
    if directive == "REPLACE":
        metadata = given | attributes.of_bytes(source.info)
    metadata = tagging.of_copy(request, source.info, metadata, given)
    bucket = request.client.bucket(request.bucket)
    condition = conditions.of_write(bucket, name, request.headers)
    is_implied = same and condition == conditions.WriteCondition()
    if is_implied:
        condition = conditions.WriteCondition(if_version=source.version)
    parts = [make_range(source.bucket, source.name, source.version)]
    composed = make_request(bucket.name, name, parts, metadata=metadata)
    if condition.if_absent:
        composed.object.condition.if_absent = True
    elif condition.if_version:
        composed.object.condition.if_version = condition.if_version
    try:
        made = bucket.client._transport.compose(composed)
    except errors.VersionConflict as error:
        if is_implied:  # the source was replaced after its bytes were read: see `with_current`
            raise errors.ObjectReplaced(str(error)) from error
        raise
    body = xml.tags(LastModified=stamp(made.modified_ns), ETag=f'"{attributes.etag(made)}"')
    return xml_response(xml.document("CopyObjectResult", [body]))


def object_attributes(request: Request) -> Response:
    """Answer GetObjectAttributes. Raises S3Error."""
    info = request.client.bucket(request.bucket).head(name_of(request.key))
    conditions.check_read(info, request.headers)
    wanted = {one.strip() for one in request.headers.get("x-amz-object-attributes", "").split(",")}
    if not wanted & {"ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"}:
        raise S3Error("InvalidArgument", "x-amz-object-attributes: need ETag, Checksum, ObjectParts, StorageClass, ...")
    parts = []
    if "ETag" in wanted:
        parts.append(xml.tag("ETag", attributes.etag(info)))
    if "Checksum" in wanted and (known := attributes.checksum(info)) is not None:
        named = xml.tag(f"Checksum{known[0].upper()}", known[1])
        parts.append(xml.nest("Checksum", [named, xml.tag("ChecksumType", checksums.kind(known[1]))]))
    if "ObjectParts" in wanted and (sizes := attributes.part_sizes(info)):
        parts.append(xml.nest("ObjectParts", _parts(request, info, sizes)))
    if "StorageClass" in wanted:
        parts.append(xml.tag("StorageClass", "STANDARD"))
    if "ObjectSize" in wanted:
        parts.append(xml.tag("ObjectSize", info.size_bytes))
    made = xml_response(xml.document("GetObjectAttributesResponse", parts))
    made.headers["last-modified"] = attributes.last_modified(info)
    return made


def _parts(request: Request, info: ObjectInfo, sizes: list[int]) -> list[str]:
    """Return the elements of a page of the object's parts. Raises S3Error."""
    most = max_keys(request.headers.get("x-amz-max-parts", ""), "x-amz-max-parts")
    marker = request.headers.get("x-amz-part-number-marker", "0")
    after = max_keys(marker, "x-amz-part-number-marker", most=MAX_PARTS)
    last = min(after + most, len(sizes))
    found = [xml.tag("PartsCount", len(sizes)), xml.tag("PartNumberMarker", after)]
    found.append(xml.tags(NextPartNumberMarker=last, MaxParts=most, IsTruncated=last < len(sizes)))
    for number in range(after + 1, last + 1):
        known = attributes.part_checksum(info, number)
        row = xml.tag(f"Checksum{known[0].upper()}", known[1]) if known is not None else ""
        found.append(xml.nest("Part", [row, xml.tags(PartNumber=number, Size=sizes[number - 1])]))
    return found
