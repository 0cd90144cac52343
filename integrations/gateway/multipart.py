"""Uploads in parts: those of the store, so that any gateway and any client can continue or end them.

A part's ETag and checksum are in the part's own metadata. Those of the object are computed from them at the end.
"""

from __future__ import annotations

import hashlib
import re

from ais_loader import errors
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.multipart import MAX_PARTS, MultipartUpload, PartInfo
from ais_loader.values.entry import ObjectInfo
from storage_node.store.checksum import combine

from . import attributes, checksums, conditions, xml
from .listing import encoding, max_keys, owner_of, stamp
from .objects import COPY_SOURCE, CopySource, part_number
from .reading import with_current
from .request import Request, Response, S3Error, key_of, name_of, xml_response

MIN_PART_BYTES = 5 << 20
"""Smallest size of every part but the last, as in S3."""
_ALGORITHM = f"{attributes.OWN}algorithm"
"""Metadata of an upload: the algorithm of the checksums of its parts."""
_MD5, _PART_CHECKSUM = f"{attributes.OWN}md5", f"{attributes.OWN}part-checksum"
FULL, COMPOSITE = "FULL_OBJECT", "COMPOSITE"
_HEX = re.compile(r"[0-9a-f]{32}\Z")


def create_upload(request: Request) -> Response:
    """Answer CreateMultipartUpload. Raises S3Error."""
    metadata = attributes.metadata_of(request.headers)
    algorithm = request.headers.get("x-amz-checksum-algorithm", "").lower()
    kind = request.headers.get("x-amz-checksum-type", "").upper()
    if algorithm:
        checksums.hasher(algorithm)
        kind = kind or (FULL if algorithm == "crc64nvme" else COMPOSITE)
        allowed = {"crc64nvme": (FULL,), "sha1": (COMPOSITE,), "sha256": (COMPOSITE,)}.get(algorithm, (FULL, COMPOSITE))
        if kind not in allowed:
            raise S3Error("InvalidRequest", f"x-amz-checksum-type of {algorithm}: need {' or '.join(allowed)}")
        metadata[_ALGORITHM] = f"{algorithm} {kind}"
    elif kind:
        raise S3Error("InvalidRequest", "x-amz-checksum-type without x-amz-checksum-algorithm")
    bucket = request.client.bucket(request.bucket)
    upload = bucket.multipart(name_of(request.key), metadata=metadata)
    parts = xml.tag("Bucket", request.bucket) + xml.key_tags(request.key) + xml.tag("UploadId", upload.id)
    made = xml_response(xml.document("InitiateMultipartUploadResult", [parts]))
    if algorithm:
        made.headers |= {"x-amz-checksum-algorithm": algorithm.upper(), "x-amz-checksum-type": kind}
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
    number = part_number(request.query.get("partNumber", ""))

    def copied(source: CopySource) -> Response:
        upload = _upload(request)
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

    return with_current(request.key, lambda: CopySource(request), copied)


def _etag(part: PartInfo) -> str:
    """Return the ETag of a part. One that another client stored has one of its version."""
    return part.metadata.get(_MD5) or hashlib.md5(part.version.encode(), usedforsecurity=False).hexdigest()


def complete_upload(request: Request) -> Response:
    """Answer CompleteMultipartUpload. Repeated, it is answered again while the object is there. Raises S3Error."""
    assert request.body is not None
    body = request.body.read()
    try:
        upload = _upload(request)
    except S3Error as error:
        if error.code == "NoSuchUpload" and (made := _completed(request)) is not None:
            return _made(request, made)
        raise
    if (made := _completed(request)) is not None:
        upload.abort()  # removes what a completion that was interrupted has left
        return _made(request, made)
    rows = xml.parse(body, "CompleteMultipartUpload").all("Part")
    if not 1 <= len(rows) <= MAX_PARTS:
        raise S3Error("MalformedXML", f"need 1 to {MAX_PARTS:,} parts")
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
    algorithm, _, kind = metadata.pop(_ALGORITHM, "").partition(" ")
    checksum = _checksum(request, algorithm, kind, chosen, crc32c)
    values = [part.metadata.get(_PART_CHECKSUM, "").partition("=") for part in chosen]
    used = {name for name, _, _ in values}
    own = {
        attributes.ETAG: etag,
        attributes.UPLOAD: upload.id,
        attributes.PARTS: attributes.parts_text([part.size_bytes for part in chosen]),
        attributes.PART_CHECKSUMS: attributes.part_checksums_text(
            used.pop() if len(used) == 1 else "", [value for _, _, value in values]
        ),
    }
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
        if (found := _completed(request)) is None:
            _upload(request)  # raises NoSuchUpload
            raise S3Error("InvalidPart", "a part was replaced meanwhile") from None
        made = found
    return _made(request, made)


def _completed(request: Request) -> ObjectInfo | None:
    """Return the object that the upload made; None if there is another, or none."""
    try:
        info = request.client.bucket(request.bucket).head(name_of(request.key))
    except errors.ObjectNotFound:
        return None
    upload_id = attributes.unsealed(info, attributes.UPLOAD)
    return info if upload_id and upload_id == request.query.get("uploadId") else None


def _made(request: Request, made: ObjectInfo) -> Response:
    parts = xml.tags(Location=f"/{request.bucket}/{xml.url_encoded(request.key)}", Bucket=request.bucket)
    parts += xml.key_tags(request.key) + xml.tag("ETag", f'"{attributes.etag(made)}"')
    if (checksum := attributes.checksum(made)) is not None:
        parts += xml.tag(f"Checksum{checksum[0].upper()}", checksum[1])
        parts += xml.tag("ChecksumType", checksums.kind(checksum[1]))
    return xml_response(xml.document("CompleteMultipartUploadResult", [parts]))


def crc32c_of(parts: list[PartInfo]) -> int:
    """Return the CRC-32C of the parts, one after another."""
    crc = 0
    for part in parts:
        crc = combine(crc, part.checksum, part.size_bytes)
    return crc


def _checksum(
    request: Request, algorithm: str, kind: str, parts: list[PartInfo], crc32c: int
) -> tuple[str, str] | None:
    """Return algorithm and value of the object's checksum. Raises S3Error if the client announced another.

    Args:
        algorithm, kind: Those that the upload began with; "" for none.
    """
    given = checksums.announced(request.headers)
    wanted = request.headers.get("x-amz-checksum-type", "").upper()
    if given is None:
        return _checksum_of(algorithm, kind, parts, crc32c)
    name, value = given
    kinds = [wanted or (COMPOSITE if "-" in value else "")]
    if not kinds[0]:
        # A client may leave out the type, and of a checksum of checksums also the number of parts.
        kinds = [kind or FULL, COMPOSITE, FULL]
    made = [found for one in kinds if (found := _checksum_of(name, one, parts, crc32c)) is not None]
    if not made:
        raise S3Error("InvalidRequest", f"the parts have no checksums {name} that give one of the object")
    for found in made:
        if value in (found[1], found[1].partition("-")[0]):
            return found
    raise S3Error("BadDigest", f"the parts are not what {checksums.HEADER}{name} says")


def _checksum_of(name: str, kind: str, parts: list[PartInfo], crc32c: int) -> tuple[str, str] | None:
    """Return algorithm and value of a checksum of the object; None if those of the parts do not give it."""
    if name == "crc32c" and kind == FULL:
        return name, checksums.encoded(crc32c.to_bytes(4, "big"))  # which the store has of every part
    values = [part.metadata.get(_PART_CHECKSUM, "").partition("=") for part in parts]
    if not name or any(one != name for one, _, _ in values):
        return None
    known = [value for _, _, value in values]
    if kind == COMPOSITE:
        return name, checksums.composite(name, known)
    if name not in checksums.COMBINED:
        return None
    return name, checksums.combined(name, known, [part.size_bytes for part in parts])


def abort_upload(request: Request) -> Response:
    """Answer AbortMultipartUpload. Raises S3Error."""
    _upload(request).abort()
    return Response(204)


def list_parts(request: Request) -> Response:
    """Answer ListParts. Raises S3Error."""
    upload = _upload(request)
    most = max_keys(request.query.get("max-parts", ""), "max-parts")
    after = max_keys(request.query.get("part-number-marker", "0"), "part-number-marker", most=MAX_PARTS)
    found = [part for part in upload.parts() if part.number > after]
    shown = found[:most]
    algorithm, _, kind = upload.metadata.get(_ALGORITHM, "").partition(" ")
    parts = [xml.tag("Bucket", request.bucket), xml.key_tags(request.key), xml.tag("UploadId", upload.id)]
    parts += [owner_of(request, "Initiator"), owner_of(request)]
    parts.append(
        xml.tags(
            StorageClass="STANDARD",
            PartNumberMarker=after,
            NextPartNumberMarker=shown[-1].number if shown else None,
            MaxParts=most,
            IsTruncated=len(found) > len(shown),
            ChecksumAlgorithm=algorithm.upper() or None,
            ChecksumType=kind or None,
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
    most = max_keys(query.get("max-uploads", ""), "max-uploads")
    after = query.get("key-marker", ""), query.get("upload-id-marker", "")
    bucket = request.client.bucket(request.bucket)
    bucket.info()
    found = sorted((key_of(one.name), one.id, one.modified_ns) for one in bucket.uploads() if one.name)
    keys = [key for key, _, _ in found if key.startswith(prefix)]
    encode = encoding(query.get("encoding-type"), (prefix, delimiter, after[0], *keys))
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
    parts.append(xml.tags(EncodingType=encode.kind, IsTruncated=is_truncated))
    parts += rows + [xml.nest("CommonPrefixes", [xml.tag("Prefix", encode(folder))]) for folder in folders]
    return xml_response(xml.document("ListMultipartUploadsResult", parts))
