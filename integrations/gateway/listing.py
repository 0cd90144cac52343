"""Listing of a bucket's keys, with folders, page by page. A page follows a key, so that no gateway keeps anything."""

from __future__ import annotations

import base64
import datetime
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ais_loader.objects.bucket import Bucket
from ais_loader.values.entry import ObjectInfo

from . import xml
from .attributes import etag
from .request import MARKER, Request, Response, S3Error, behind, key_of, xml_response

MAX_KEYS = 1000
_READ_IN_FOLDER = 1000
"""How many names of a folder to pass over before the listing starts anew behind it."""


@dataclass(slots=True)
class Page:
    """One page of a listing."""

    objects: list[ObjectInfo] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)
    last: str = ""
    """The last key or prefix. The next page follows it."""
    is_truncated: bool = False

    def texts(self, *others: str) -> Iterator[str]:
        """Yield all keys and folders, and others."""
        return itertools.chain(others, self.prefixes, (key_of(info.name) for info in self.objects))


def page(bucket: Bucket, prefix: str, delimiter: str, after: str, most: int) -> Page:
    """List at most `most` keys and folders that begin with `prefix` and follow `after`.

    A folder follows `after` if its own name does, like a key.
    """
    found = Page()
    if not most or prefix.startswith("/"):  # names that begin so are the store's own
        bucket.info()
        return found
    for one in _walk(bucket, prefix, delimiter, after, most):
        if len(found.objects) + len(found.prefixes) == most:
            found.is_truncated = True
            break
        if isinstance(one, str):
            found.prefixes.append(one)
            found.last = one
        else:
            found.objects.append(one)
            found.last = key_of(one.name)
    return found


def _walk(bucket: Bucket, prefix: str, delimiter: str, after: str, most: int) -> Iterator[ObjectInfo | str]:
    start = after
    if delimiter and after.startswith(prefix) and delimiter in after[len(prefix) :]:
        folder = prefix + after[len(prefix) :].partition(delimiter)[0] + delimiter
        if folder == after:
            start = behind(folder)
    if start.endswith("/"):
        start += MARKER
    while True:
        listed = bucket.objects(prefix, start_after=start, page_size=min(most + 1, MAX_KEYS))
        folder, passed = "", 0
        for info in listed:
            key = key_of(info.name)
            if folder and key.startswith(folder):
                passed += 1
                if passed == _READ_IN_FOLDER:
                    break
                continue
            rest, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if not cut:
                yield info
                continue
            folder, passed = prefix + rest + cut, 0
            if folder > after or not after.startswith(folder):
                yield folder
        else:
            return
        start = behind(folder)


def list_objects(request: Request) -> Response:
    """Answer ListObjects, version 1 or 2. Raises S3Error."""
    query = request.query
    is_v2 = query.get("list-type") == "2"
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    most = max_keys(query.get("max-keys", ""), "max-keys")
    token = query.get("continuation-token")
    after = _after(token) if token else query.get("start-after" if is_v2 else "marker", "")
    bucket = request.client.bucket(request.bucket)
    found = page(bucket, prefix, delimiter, after, most)
    encode = encoding(query.get("encoding-type"), found.texts(prefix, delimiter, after))
    contents = [
        xml.nest("Contents", [xml.tag("Key", encode(key_of(info.name))), _properties(info, request)])
        for info in found.objects
    ]
    # Version 1 does not encode the prefix: clients, such as boto3, decode the rest alone.
    parts = [xml.tags(Name=request.bucket, Prefix=encode(prefix) if is_v2 or xml.is_beyond_xml(prefix) else prefix)]
    if is_v2:
        next_token = _token(found.last) if found.is_truncated else None
        start_after = encode(query["start-after"]) if "start-after" in query else None
        count = len(found.objects) + len(found.prefixes)
        parts.append(
            xml.tags(StartAfter=start_after, ContinuationToken=token, NextContinuationToken=next_token, KeyCount=count)
        )
    else:
        parts.append(xml.tag("Marker", encode(after)))
        if found.is_truncated:
            parts.append(xml.tag("NextMarker", encode(found.last)))
    parts.append(xml.tags(MaxKeys=most, Delimiter=encode(delimiter) if delimiter else None))
    parts.append(xml.tags(EncodingType=encode.kind, IsTruncated=found.is_truncated))
    folders = (xml.nest("CommonPrefixes", [xml.tag("Prefix", encode(one))]) for one in found.prefixes)
    return xml_response(xml.document("ListBucketResult", itertools.chain(parts, contents, folders)))


def list_versions(request: Request) -> Response:
    """Answer ListObjectVersions: each object has one version, whose id is null. Raises S3Error."""
    query = request.query
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    most, after = max_keys(query.get("max-keys", ""), "max-keys"), query.get("key-marker", "")
    found = page(request.client.bucket(request.bucket), prefix, delimiter, after, most)
    encode = encoding(query.get("encoding-type"), found.texts(prefix, delimiter, after))
    parts = [xml.tags(Name=request.bucket, Prefix=encode(prefix), KeyMarker=encode(after), MaxKeys=most)]
    parts.append(xml.tags(Delimiter=encode(delimiter) if delimiter else None, IsTruncated=found.is_truncated))
    parts.append(xml.tags(EncodingType=encode.kind))
    if found.is_truncated:
        parts.append(xml.tags(NextKeyMarker=encode(found.last), NextVersionIdMarker="null"))
    for info in found.objects:
        parts.append(
            xml.nest(
                "Version",
                [
                    xml.tags(Key=encode(key_of(info.name)), VersionId="null", IsLatest=True),
                    _properties(info, request, owner=True),
                ],
            )
        )
    parts += [xml.nest("CommonPrefixes", [xml.tag("Prefix", encode(one))]) for one in found.prefixes]
    return xml_response(xml.document("ListVersionsResult", parts))


def _properties(info: ObjectInfo, request: Request, *, owner: bool = False) -> str:
    text = xml.tags(
        LastModified=stamp(info.modified_ns), ETag=f'"{etag(info)}"', Size=info.size_bytes, StorageClass="STANDARD"
    )
    is_v1 = request.query.get("list-type") != "2"
    if owner or is_v1 or request.query.get("fetch-owner") == "true":
        text += owner_of(request)
    return text


def owner_of(request: Request, name: str = "Owner") -> str:
    """Return the element that names the owner: the access key itself, as the store knows no owners."""
    who = request.owner or "anonymous"
    return xml.nest(name, [xml.tags(ID=who, DisplayName=who)])


def stamp(time_ns: int) -> str:
    """Return a time as XML has it, in milliseconds."""
    moment = datetime.datetime.fromtimestamp(time_ns // 1_000_000_000, datetime.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ns // 1_000_000 % 1000:03d}Z"


def max_keys(text: str, name: str, *, most: int = MAX_KEYS) -> int:
    """Return the number that a parameter gives, at most `most`. Raises S3Error."""
    if not text:
        return most
    if not (text.isascii() and text.isdigit() and len(text) < 10) or int(text) > 2**31 - 1:
        raise S3Error("InvalidArgument", f"{name}={text[:40]!r}: need a whole number")
    return min(int(text), most)


class _Encoding:
    """Encoder of keys in answers."""

    def __init__(self, *, is_url: bool) -> None:
        self.kind = "url" if is_url else None
        """Value of the element `EncodingType`."""

    def __call__(self, key: str) -> str:
        return xml.url_encoded(key) if self.kind else key


def encoding(kind: str | None, keys: Iterable[str]) -> _Encoding:
    """Return the encoder that `encoding-type` asks for, or that one of the keys needs. Raises S3Error."""
    if kind not in (None, "", "url"):
        raise S3Error("InvalidArgument", "encoding-type: need url")
    return _Encoding(is_url=kind == "url" or any(map(xml.is_beyond_xml, keys)))


def _token(last: str) -> str:
    return base64.urlsafe_b64encode(last.encode()).decode()


def _after(token: str) -> str:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except ValueError:
        raise S3Error("InvalidArgument", "the continuation token is not valid") from None
