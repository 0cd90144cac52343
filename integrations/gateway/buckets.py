"""Calls on buckets, and access control lists: every access key owns everything, and no other list can be set."""

from __future__ import annotations

import re
from contextlib import suppress

from ais_loader import errors
from ais_loader.wire.bucket_uuid import created_ns

from . import xml
from .conditions import DeleteCondition
from .listing import max_keys, owner_of, stamp
from .request import Request, Response, S3Error, name_of, of_store, xml_response

_MAX_DELETED = 1000
_MAX_BUCKETS = 10_000
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z", re.ASCII)
_ADDRESS = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+\Z", re.ASCII)


def list_buckets(request: Request) -> Response:
    """Answer ListBuckets. Raises S3Error."""
    query = request.query
    prefix, after = query.get("prefix", ""), query.get("continuation-token", "")
    most = max_keys(query.get("max-buckets", ""), "max-buckets", most=_MAX_BUCKETS)
    created = {info.name: stamp(created_ns(info.uuid)) for info in request.client.buckets()}
    names = [name for name in sorted(created) if name.startswith(prefix) and name > after]
    rows = [xml.nest("Bucket", [xml.tags(Name=name, CreationDate=created[name])]) for name in names[:most]]
    parts = [owner_of(request), xml.nest("Buckets", rows)]
    if most and len(names) > most:
        parts.append(xml.tag("ContinuationToken", names[most - 1]))
    if prefix:
        parts.append(xml.tag("Prefix", prefix))
    return xml_response(xml.document("ListAllMyBucketsResult", parts))


def create_bucket(request: Request) -> Response:
    """Answer CreateBucket. One that exists is left as it is, as S3 does in its first region. Raises S3Error."""
    name = request.bucket
    if not _NAME.match(name) or _ADDRESS.match(name) or any(two in name for two in ("..", ".-", "-.")):
        raise S3Error("InvalidBucketName", f"bucket {name!r}: need 3 to 63 lower-case letters, digits, '.' and '-'")
    if request.body is not None and request.body.size_bytes:
        xml.parse(request.body.read(), "CreateBucketConfiguration")
    try:
        request.client.create_bucket(name, exist_ok=True)
    except errors.InvalidName as error:
        raise S3Error("InvalidBucketName", str(error)) from None
    return Response(headers={"location": f"/{name}"})


def head_bucket(request: Request) -> Response:
    request.client.bucket(request.bucket).info()
    return Response(headers={"x-amz-bucket-region": "us-east-1"})


def delete_bucket(request: Request) -> Response:
    request.client.delete_bucket(request.bucket)
    return Response(204)


def never_set(root: str, request: Request) -> Response:
    """Answer GetBucketLocation and GetBucketVersioning: the bucket is in the first region, and has no versions."""
    request.client.bucket(request.bucket).info()
    return xml_response(xml.document(root, []))


def delete_objects(request: Request) -> Response:
    """Answer DeleteObjects, after all objects are deleted. Raises S3Error."""
    assert request.body is not None
    root = xml.parse(request.body.read(), "Delete")
    rows = root.all("Object")
    if not 1 <= len(rows) <= _MAX_DELETED:
        raise S3Error("MalformedXML", f"need 1 to {_MAX_DELETED} objects")
    is_quiet = root.find("Quiet") == "true"
    results: dict[int, S3Error | None] = dict.fromkeys(range(len(rows)))
    names: dict[int, str] = {}
    checked: dict[int, DeleteCondition] = {}
    for at, row in enumerate(rows):
        key = row.find("Key")
        if key is None or not key:
            raise S3Error("MalformedXML", "an object has no key")
        try:
            if row.find("VersionId") not in (None, "", "null"):
                raise S3Error("NoSuchVersion", "the only version is null")
            names[at] = name_of(key)
            condition = DeleteCondition(row.find("ETag"), row.find("LastModifiedTime"), row.find("Size"))
            if condition.is_given():
                checked[at] = condition
        except S3Error as error:
            results[at] = error
    bucket = request.client.bucket(request.bucket)
    bucket.info()
    for at, condition in checked.items():
        name = names.pop(at)
        try:
            with suppress(errors.ObjectNotFound):
                bucket.delete(name, if_version=condition.version(bucket, name))
        except S3Error as error:
            results[at] = error
        except errors.LoaderError as error:
            results[at] = of_store(error)
    for at, done in zip(names, bucket.iter_delete_many(list(names.values()), on_error="yield"), strict=True):
        if isinstance(done, errors.LoaderError) and not isinstance(done, errors.ObjectNotFound):
            results[at] = of_store(done)
    parts = []
    for at, row in enumerate(rows):
        key = row.find("Key")
        refused = results[at]
        if refused is not None:
            parts.append(xml.nest("Error", [xml.tags(Key=key, Code=refused.code, Message=refused.message)]))
        elif not is_quiet:
            parts.append(xml.nest("Deleted", [xml.tag("Key", key)]))
    return xml_response(xml.document("DeleteResult", parts))


_SCHEMA = "http://www.w3.org/2001/XMLSchema-instance"
_OWNERS_ALONE = ("private", "bucket-owner-read", "bucket-owner-full-control")
_CANNED = {
    *_OWNERS_ALONE,
    "public-read",
    "public-read-write",
    "authenticated-read",
    "aws-exec-read",
    "log-delivery-write",
}


def _require(request: Request) -> None:
    bucket = request.client.bucket(request.bucket)
    if request.key:
        bucket.head(name_of(request.key))
    else:
        bucket.info()


def get_acl(request: Request) -> Response:
    """Answer GetBucketAcl and GetObjectAcl. Raises S3Error."""
    _require(request)
    owner = owner_of(request)
    grantee = owner.removeprefix("<Owner>").removesuffix("</Owner>")
    grantee = f'<Grantee xmlns:xsi="{_SCHEMA}" xsi:type="CanonicalUser">{grantee}</Grantee>'
    grant = xml.nest("Grant", [grantee, xml.tag("Permission", "FULL_CONTROL")])
    return xml_response(xml.document("AccessControlPolicy", [owner, xml.nest("AccessControlList", [grant])]))


def put_acl(request: Request) -> Response:
    """Answer PutBucketAcl and PutObjectAcl with the list that there is already. Raises S3Error for any other."""
    _require(request)
    has_document = request.body is not None and request.body.size_bytes
    asked = request.headers.get("x-amz-acl")
    if asked is not None and asked not in _CANNED:
        raise S3Error("InvalidArgument", f"x-amz-acl: {asked!r} is no canned access control list")
    if has_document or asked not in _OWNERS_ALONE:
        raise S3Error("NotImplemented", f"access control lists: need the header x-amz-acl: {_OWNERS_ALONE[0]}")
    return Response()
