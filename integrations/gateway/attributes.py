"""Attributes that S3 has and objects of the store do not: they are kept in the object's own metadata.

`x-amz-meta-KEY` is the metadata key KEY. Keys that begin with "s3." are the gateway's. ETag and checksums are kept with
the CRC-32C and size of the bytes that they describe. If the bytes were changed by other means, such as an append, they
no longer count.
"""

from __future__ import annotations

import email.utils
import functools
import hashlib
import itertools
import re
from collections.abc import Mapping

from ais_loader.errors import InvalidRequest
from ais_loader.objects.multipart import MAX_PARTS
from ais_loader.transport.base import require_metadata
from ais_loader.values.entry import ObjectInfo
from ais_loader.wire.reserved import CONTENT_HEADERS, ETAG_VERSION, REMOTE_ETAG, STORE_PREFIX, is_reserved

from . import checksums, tagging
from .bodies import Body
from .request import S3Error

OWN = "s3."
"""Prefix of the gateway's keys."""
ETAG, CHECKSUM, PARTS = f"{OWN}etag", f"{OWN}checksum", f"{OWN}parts"
PART_CHECKSUMS, UPLOAD = f"{OWN}part-checksums", f"{OWN}upload"
"""The checksums of the parts that the object was made of, and the id of their upload."""
TAGGING = f"{OWN}tagging"
META = "x-amz-meta-"
_KEPT_HEADERS = (*CONTENT_HEADERS, "expires")
_RESPONSE = {f"response-{name}": name for name in _KEPT_HEADERS}
_DEFAULT_TYPE = "binary/octet-stream"
_UNSUPPORTED = ("x-amz-server-side-encryption", "x-amz-object-lock-mode", "x-amz-website-redirect")
_PARTS_TEXT_BYTES = 1024
_RUN = re.compile(r"([0-9]{1,19})x([0-9]{1,5})(?:,|\Z)", re.ASCII)
_PART_CHECKSUMS_TEXT_BYTES = 768


def metadata_of(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata of a new object, from the headers of a request. Raises S3Error."""
    found = {}
    for name, value in headers.items():
        if (name in _KEPT_HEADERS or name.startswith(META)) and _CONTROL.search(value):  # from a form
            raise S3Error("InvalidArgument", f"{name[:80]}: a header has no control characters")
        if name.startswith(META):
            key = name[len(META) :]
            if key.startswith(OWN) or is_reserved(key):
                raise S3Error("InvalidArgument", f"{name}: keys that begin with {OWN!r} or 'ais.' are reserved")
            found[key] = value
        elif name in _KEPT_HEADERS:
            if name == "content-encoding":
                value = ", ".join(one.strip() for one in value.split(",") if one.strip().lower() != "aws-chunked")
            if value:
                found[OWN + name] = value
        elif name == tagging.HEADER:
            if text := tagging.text_of_header(value):
                found[TAGGING] = text
        elif name.startswith(_UNSUPPORTED):
            raise S3Error("NotImplemented", f"the header {name} is not supported")
    try:
        require_metadata(found)
    except InvalidRequest as error:
        code = "MetadataTooLarge" if sum(len(k) + len(v) for k, v in found.items()) > 2048 else "InvalidArgument"
        raise S3Error(code, str(error)) from None
    return found


def of_body(body: Body) -> dict[str, str]:
    """Return the metadata that describe the bytes of a request."""
    found = {ETAG: sealed(body.md5, body.crc32c, body.size_bytes)}
    if body.checksum is not None and body.checksum[0] != "crc32c":  # the store has CRC-32C itself
        found[CHECKSUM] = sealed("=".join(body.checksum), body.crc32c, body.size_bytes)
    return found


def of_bytes(info: ObjectInfo) -> dict[str, str]:
    """Return those metadata of an object that hold for a copy of its bytes."""
    kept = (ETAG, CHECKSUM, PARTS, PART_CHECKSUMS)
    return {key: info.metadata[key] for key in kept if unsealed(info, key)}


def sealed(value: str, crc32c: int, size_bytes: int) -> str:
    """Return a value with the CRC-32C and size of the bytes that it describes."""
    return f"{value} {crc32c:08x} {size_bytes}"


def unsealed(info: ObjectInfo, key: str) -> str:
    """Return a value that describes the object's bytes; "" if there is none, or it describes others."""
    value, *seal = info.metadata.get(key, "").split(" ")
    return value if seal == [f"{info.checksum:08x}", str(info.size_bytes)] and not _CONTROL.search(value) else ""


def etag(info: ObjectInfo) -> str:
    """Return the object's ETag, without quotes. It changes with the bytes, and is the MD5 where a client sent them."""
    if found := unsealed(info, ETAG):
        return found
    remote = info.version.removeprefix(ETAG_VERSION) if not info.is_stored else info.metadata.get(REMOTE_ETAG, "")
    if remote:
        return remote.strip('"')
    # No client sent these bytes through a gateway. The end keeps clients from taking it for the MD5.
    return f"{hashlib.md5(info.version.encode(), usedforsecurity=False).hexdigest()}-0"


def checksum(info: ObjectInfo) -> tuple[str, str] | None:
    """Return algorithm and value of a checksum of the object."""
    if found := unsealed(info, CHECKSUM):
        algorithm, _, value = found.partition("=")
        return algorithm, value
    if info.is_stored:
        return "crc32c", checksums.encoded(info.checksum.to_bytes(4, "big"))
    return None


def last_modified(info: ObjectInfo) -> str:
    return http_date(info.modified_ns // 1_000_000_000)


@functools.lru_cache(1024)
def http_date(seconds: int) -> str:
    """Return a time in whole seconds since 1970 as headers have it."""
    return email.utils.formatdate(seconds, usegmt=True)


def headers_of(info: ObjectInfo, query: Mapping[str, str], *, with_checksum: bool) -> dict[str, str]:
    """Return the headers that describe an object. Parameters `response-*` replace some."""
    found = {"etag": f'"{etag(info)}"', "last-modified": last_modified(info), "accept-ranges": "bytes"}
    found["content-type"] = _DEFAULT_TYPE
    for name in _KEPT_HEADERS:
        # Those that a client of a gateway gave precede the remote object's.
        value = info.metadata.get(OWN + name) or info.metadata.get(STORE_PREFIX + name) or ""
        if value and not _CONTROL.search(value):
            found[name] = value
    for key, value in info.metadata.items():
        if key == TAGGING:
            found["x-amz-tagging-count"] = str(len(tagging.pairs(value)))
        elif not key.startswith(OWN) and not is_reserved(key) and _TOKEN.match(key) and not _CONTROL.search(value):
            found[META + key] = value
    for parameter, name in _RESPONSE.items():
        if parameter in query:
            if _CONTROL.search(query[parameter]):
                raise S3Error("InvalidArgument", f"{parameter}: a header has no control characters")
            found[name] = query[parameter]
    if with_checksum and (known := checksum(info)) is not None:
        found[checksums.HEADER + known[0]] = known[1]
        found["x-amz-checksum-type"] = checksums.kind(known[1])
    return found


_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def parts_text(sizes: list[int]) -> str:
    """Return the sizes of an upload's parts as text, runs of equal ones once; "" if it would be too long."""
    text = ",".join(f"{size}x{len(list(run))}" for size, run in itertools.groupby(sizes))
    return text if len(text) <= _PARTS_TEXT_BYTES else ""


def part_sizes(info: ObjectInfo) -> list[int]:
    """Return the sizes of the parts that the object was made of; none if it was not, or they are not known."""
    runs = [(int(size), int(count)) for size, count in _RUN.findall(unsealed(info, PARTS))]
    # Any client of the store can write it, and a short text can name more parts than there is memory.
    if sum(count for _, count in runs) > MAX_PARTS or sum(size * count for size, count in runs) != info.size_bytes:
        return []
    return [size for size, count in runs for _ in range(count)]


def part_checksums_text(algorithm: str, values: list[str]) -> str:
    """Return the checksums of an upload's parts as text; "" if there are none, or it would be too long."""
    text = f"{algorithm}={','.join(values)}"
    return text if algorithm and all(values) and len(text) <= _PART_CHECKSUMS_TEXT_BYTES else ""


def part_checksum(info: ObjectInfo, number: int) -> tuple[str, str] | None:
    """Return algorithm and value of a part's checksum; None if it is not known."""
    algorithm, _, values = unsealed(info, PART_CHECKSUMS).partition("=")
    found = values.split(",") if values else []
    return (algorithm, found[number - 1]) if number <= len(found) else None


def part_checksum_headers(info: ObjectInfo, number: int) -> dict[str, str]:
    """Return the headers with the checksum of a part."""
    known, whole = part_checksum(info, number), checksum(info)
    if known is None or whole is None:
        return {}
    return {checksums.HEADER + known[0]: known[1], "x-amz-checksum-type": checksums.kind(whole[1])}
