"""Uploads in parts: those of the store, so that any gateway and any client can continue or end them.

A part's ETag and checksum are in the part's own metadata. Those of the object are computed from them at the end.
"""

from __future__ import annotations

import hashlib
import re

from ais_loader import errors
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.multipart import MultipartUpload, PartInfo
from storage_node.gateway import attributes, checksums, conditions, xml
from storage_node.gateway.errors import S3Error
from storage_node.gateway.listing import encoding, max_keys, owner_of, stamp
from storage_node.gateway.names import key_of, name_of
from storage_node.gateway.objects import COPY_SOURCE, CopySource, part_number
from storage_node.gateway.request import Request, Response, xml_response
from storage_node.store.checksum import combine

MIN_PART_BYTES = 5 << 20
"""Smallest size of every part but the last, as in S3."""
_ALGORITHM = f"{attributes.OWN}algorithm"
"""Metadata of an upload: the algorithm of the checksums of its parts."""
_MD5, _PART_CHECKSUM = f"{attributes.OWN}md5", f"{attributes.OWN}part-checksum"
_HEX = re.compile(r"[0-9a-f]{32}\Z")


def create_upload(request: Request) -> Response:
    """Answer CreateMultipartUpload. Raises S3Error."""
    metadata = attributes.metadata_of(request.headers)
    algorithm = request.headers.get("x-amz-checksum-algorithm", "").lower()
    if algorithm:
        checksums.hasher(algorithm)
        metadata[_ALGORITHM] = algorithm
    bucket = request.client.bucket(request.bucket)
    upload = bucket.multipart(name_of(request.key), metadata=metadata)
    parts = xml.tags(Bucket=request.bucket, Key=request.key, UploadId=upload.id)
    made = xml_response(xml.document("InitiateMultipartUploadResult", [parts]))
    if algorithm:
        made.headers["x-amz-checksum-algorithm"] = algorithm.upper()
    return made


def _upload(request: Request) -> MultipartUpload:
    return open_upload(request.client.bucket(request.bucket), request.key, request.query.get("uploadId", ""))


def open_upload(bucket: Bucket, key: str, upload_id: str) -> MultipartUpload:
    """Return an upload that has been begun. Raises S3Error with NoSuchUpload."""
    if not _HEX.match(upload_id):
        bucket.info()
        raise S3Error("NoSuchUpload", "there is no upload of this id")
    try:
        return bucket.multipart(name_of(key), upload_id=upload_id)
    except (errors.ObjectNotFound, errors.InvalidRequest):
        raise S3Error("NoSuchUpload", "there is no upload of this id and key") from None


def put_part(request: Request) -> Response:
    """Answer UploadPart. Raises S3Error."""
    number, upload, body = part_number(request.query.get("partNumber", "")), _upload(request), request.body
    assert body is not None
    metadata = {_MD5: body.md5}
    headers = {"etag": f'"{body.md5}"'}
    if body.checksum is not None:
        metadata[_PART_CHECKSUM] = "=".join(body.checksum)
        headers[checksums.HEADER + body.checksum[0]] = body.checksum[1]
    try:
        upload.put_part(number, body.content(), metadata=metadata)
    except errors.ObjectNotFound:
        raise S3Error("NoSuchUpload", "the upload has been completed or aborted") from None
    return Response(headers=headers)


def copy_part(request: Request) -> Response:
    """Answer UploadPartCopy. Raises S3Error.

    The ETag of such a part is no MD5, because the gateway does not see its bytes.
    """
    number, upload, source = part_number(request.query.get("partNumber", "")), _upload(request), CopySource(request)
    start, length = source.range(request.headers.get(f"{COPY_SOURCE}-range"))
    # The text that is hashed has no other copy: the version and the range.
    text = f"{source.bucket}/{source.name} {source.info.version} {start} {length}"
    md5 = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
    part = upload.copy_part(
        number,
        source.name,
        bucket=source.bucket,
        version=source.version,
        start=start,
        length=length,
        metadata={_MD5: md5},
    )
    body = xml.tags(LastModified=stamp(part.modified_ns), ETag=f'"{md5}"')
    return xml_response(xml.document("CopyPartResult", [body]))


def _etag(part: PartInfo) -> str:
    """Return the ETag of a part. One that another client stored has one of its version."""
    return part.metadata.get(_MD5) or hashlib.md5(part.version.encode(), usedforsecurity=False).hexdigest()


def complete_upload(request: Request) -> Response:
    """Answer CompleteMultipartUpload. Raises S3Error."""
    assert request.body is not None
    upload = _upload(request)
    rows = xml.parse(request.body.read(), "CompleteMultipartUpload").all("Part")
    if not 1 <= len(rows) <= 10_000:
        raise S3Error("MalformedXML", "need 1 to 10,000 parts")
    stored = {part.number: part for part in upload.parts()}
    chosen: list[PartInfo] = []
    for row in rows:
        text = row.find("PartNumber") or ""
        if not (text.isascii() and text.isdigit() and len(text) < 6):
            raise S3Error("MalformedXML", "PartNumber: need a whole number")
        number = int(text)
        if chosen and number <= chosen[-1].number:
            raise S3Error("InvalidPartOrder", "the parts are not in the order of their numbers")
        part = stored.get(number)
        if part is None or (row.find("ETag") or "").strip().strip('"') != _etag(part):
            raise S3Error("InvalidPart", f"part {number} is not there, or has another ETag")
        chosen.append(part)
    for part in chosen[:-1]:
        if part.size_bytes < MIN_PART_BYTES:
            raise S3Error(
                "EntityTooSmall", f"part {part.number} has {part.size_bytes:,} bytes; need {MIN_PART_BYTES:,}"
            )
    return _complete(request, upload, chosen)


def _complete(request: Request, upload: MultipartUpload, chosen: list[PartInfo]) -> Response:
    bucket = request.client.bucket(request.bucket)
    condition = conditions.of_write(bucket, upload.name, request.headers)
    size_bytes, crc32c = sum(part.size_bytes for part in chosen), crc32c_of(chosen)
    expected = request.headers.get("x-amz-mp-object-size")
    if expected is not None and expected != str(size_bytes):
        raise S3Error("InvalidRequest", "the parts do not have the size that x-amz-mp-object-size says")
    digests = b"".join(bytes.fromhex(_etag(part)) for part in chosen)
    etag = f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(chosen)}"
    metadata = upload.metadata
    algorithm = metadata.pop(_ALGORITHM, "")
    checksum = _checksum(request, algorithm, chosen, crc32c)
    own = {attributes.ETAG: etag, attributes.PARTS: attributes.parts_text([part.size_bytes for part in chosen])}
    if checksum is not None and (checksum[0] != "crc32c" or "-" in checksum[1]):
        own[attributes.CHECKSUM] = "=".join(checksum)
    metadata |= {key: attributes.sealed(value, crc32c, size_bytes) for key, value in own.items() if value}
    try:
        made = upload.complete(
            size_bytes=size_bytes,
            checksum=crc32c,
            parts=chosen,
            metadata=metadata,
            if_absent=condition.if_absent,
            if_version=condition.if_version,
        )
    except errors.ObjectNotFound:
        raise S3Error("NoSuchUpload", "the upload has been completed or aborted") from None
    parts = xml.tags(
        Location=f"/{request.bucket}/{request.key}",
        Bucket=request.bucket,
        Key=request.key,
        ETag=f'"{attributes.etag(made)}"',
    )
    if checksum is not None:
        parts += xml.tag(f"Checksum{checksum[0].upper()}", checksum[1])
        parts += xml.tag("ChecksumType", "COMPOSITE" if "-" in checksum[1] else "FULL_OBJECT")
    return xml_response(xml.document("CompleteMultipartUploadResult", [parts]))


def crc32c_of(parts: list[PartInfo]) -> int:
    """Return the CRC-32C of the parts, one after another."""
    crc = 0
    for part in parts:
        crc = combine(crc, part.checksum, part.size_bytes)
    return crc


def _checksum(request: Request, algorithm: str, parts: list[PartInfo], crc32c: int) -> tuple[str, str] | None:
    """Return algorithm and value of the object's checksum. Raises S3Error if the client announced another.

    It is that of the parts' checksums. A checksum of the whole object is known for CRC-32C alone, which the store has.
    """
    given = checksums.announced(request.headers)
    made: tuple[str, str] | None = None
    values = [part.metadata.get(_PART_CHECKSUM, "").partition("=") for part in parts]
    is_full = request.headers.get("x-amz-checksum-type", "").upper() == "FULL_OBJECT"
    name = given[0] if given is not None else algorithm
    if name == "crc32c" and (is_full or (given is not None and "-" not in given[1])):
        made = name, checksums.encoded(crc32c.to_bytes(4, "big"))
    elif name not in ("", "crc64nvme") and not is_full and all(one == name for one, _, _ in values):
        made = name, checksums.composite(name, [value for _, _, value in values])
    if given is not None and made is not None and "-" in made[1] and "-" not in given[1]:
        # Some clients leave out the number of parts.
        given = given[0], f"{given[1]}-{len(parts)}"
    if given is not None and (made is None or given != made):
        if made is None:
            raise S3Error("NotImplemented", f"a checksum {given[0]} of the whole object of parts is not supported")
        raise S3Error("BadDigest", f"the parts are not what {checksums.HEADER}{given[0]} says")
    return made


def abort_upload(request: Request) -> Response:
    """Answer AbortMultipartUpload. Raises S3Error."""
    _upload(request).abort()
    return Response(204)


def list_parts(request: Request) -> Response:
    """Answer ListParts. Raises S3Error."""
    upload = _upload(request)
    most = max_keys(request.query.get("max-parts", ""), "max-parts")
    after = max_keys(request.query.get("part-number-marker", "0"), "part-number-marker", most=10_000)
    found = [part for part in upload.parts() if part.number > after]
    shown = found[:most]
    algorithm = upload.metadata.get(_ALGORITHM)
    parts = [xml.tags(Bucket=request.bucket, Key=request.key, UploadId=upload.id)]
    parts += [owner_of(request, "Initiator"), owner_of(request)]
    parts.append(
        xml.tags(
            StorageClass="STANDARD",
            PartNumberMarker=after,
            NextPartNumberMarker=shown[-1].number if shown else None,
            MaxParts=most,
            IsTruncated=len(found) > len(shown),
            ChecksumAlgorithm=algorithm.upper() if algorithm else None,
        )
    )
    for part in shown:
        row = xml.tags(
            PartNumber=part.number,
            LastModified=stamp(part.modified_ns),
            ETag=f'"{_etag(part)}"',
            Size=part.size_bytes,
        )
        name, _, value = part.metadata.get(_PART_CHECKSUM, "").partition("=")
        parts.append(xml.nest("Part", [row, xml.tag(f"Checksum{name.upper()}", value) if name else ""]))
    return xml_response(xml.document("ListPartsResult", parts))


def list_uploads(request: Request) -> Response:
    """Answer ListMultipartUploads, sorted by key. Raises S3Error."""
    query = request.query
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    most, encode = max_keys(query.get("max-uploads", ""), "max-uploads"), encoding(query.get("encoding-type"))
    after = query.get("key-marker", ""), query.get("upload-id-marker", "")
    bucket = request.client.bucket(request.bucket)
    bucket.info()
    found = sorted((key_of(one.name), one.id, one.modified_ns) for one in bucket.uploads() if one.name)
    rows: list[str] = []
    folders: list[str] = []
    last, is_truncated = after, False
    for key, upload_id, modified_ns in found:
        if not key.startswith(prefix) or (key <= after[0] if not after[1] else (key, upload_id) <= after):
            continue
        folder = ""
        if delimiter and delimiter in key[len(prefix) :]:
            folder = prefix + key[len(prefix) :].partition(delimiter)[0] + delimiter
            if folder in folders or after[0].startswith(folder):
                continue
        if len(rows) + len(folders) == most:
            is_truncated = True
            break
        last = (key, upload_id)
        if folder:
            folders.append(folder)
            continue
        row = xml.tags(Key=encode(key), UploadId=upload_id)
        row += owner_of(request, "Initiator") + owner_of(request)
        row += xml.tags(StorageClass="STANDARD", Initiated=stamp(modified_ns))
        rows.append(xml.nest("Upload", [row]))
    parts = [xml.tags(Bucket=request.bucket, KeyMarker=encode(after[0]), UploadIdMarker=after[1])]
    if is_truncated:
        parts.append(xml.tags(NextKeyMarker=encode(last[0]), NextUploadIdMarker=last[1]))
    parts.append(xml.tags(Prefix=encode(prefix), Delimiter=encode(delimiter) if delimiter else None, MaxUploads=most))
    parts.append(xml.tags(EncodingType=query.get("encoding-type") or None, IsTruncated=is_truncated))
    parts += rows + [xml.nest("CommonPrefixes", [xml.tag("Prefix", encode(folder))]) for folder in folders]
    return xml_response(xml.document("ListMultipartUploadsResult", parts))
