"""Calls on buckets."""

from __future__ import annotations

from ais_loader import errors
from storage_node.gateway import xml
from storage_node.gateway.errors import S3Error, of_store
from storage_node.gateway.listing import owner_of
from storage_node.gateway.names import name_of
from storage_node.gateway.request import Request, Response, xml_response

_MAX_DELETED = 1000
_EPOCH = "1970-01-01T00:00:00.000Z"


def list_buckets(request: Request) -> Response:
    """Answer ListBuckets. The store keeps no time of creation."""
    found = request.client.buckets()
    rows = [xml.nest("Bucket", [xml.tags(Name=info.name, CreationDate=_EPOCH)]) for info in found]
    return xml_response(xml.document("ListAllMyBucketsResult", [owner_of(request), xml.nest("Buckets", rows)]))


def create_bucket(request: Request) -> Response:
    """Answer CreateBucket. Raises S3Error."""
    if request.body is not None and request.body.size_bytes:
        xml.parse(request.body.read(), "CreateBucketConfiguration")
    try:
        request.client.create_bucket(request.bucket)
    except errors.InvalidName as error:
        raise S3Error("InvalidBucketName", str(error)) from None
    return Response(headers={"location": f"/{request.bucket}"})


def head_bucket(request: Request) -> Response:
    request.client.bucket(request.bucket).info()
    return Response(headers={"x-amz-bucket-region": "us-east-1"})


def delete_bucket(request: Request) -> Response:
    request.client.delete_bucket(request.bucket)
    return Response(204)


def bucket_location(request: Request) -> Response:
    request.client.bucket(request.bucket).info()
    return xml_response(xml.document("LocationConstraint", []))


def bucket_versioning(request: Request) -> Response:
    """Answer GetBucketVersioning: it was never enabled."""
    request.client.bucket(request.bucket).info()
    return xml_response(xml.document("VersioningConfiguration", []))


def delete_objects(request: Request) -> Response:
    """Answer DeleteObjects, after all objects are deleted. Raises S3Error."""
    assert request.body is not None
    root = xml.parse(request.body.read(), "Delete")
    rows = root.all("Object")
    if not 1 <= len(rows) <= _MAX_DELETED:
        raise S3Error("MalformedXML", f"need 1 to {_MAX_DELETED} objects")
    is_quiet = root.find("Quiet") == "true"
    results: dict[int, S3Error | None] = {}
    names: dict[int, str] = {}
    for at, row in enumerate(rows):
        key = row.find("Key")
        if key is None or not key:
            raise S3Error("MalformedXML", "an object has no key")
        try:
            if row.find("VersionId") not in (None, "", "null"):
                raise S3Error("NoSuchVersion", "the only version is null")
            if row.find("ETag") is not None:
                raise S3Error("NotImplemented", "conditions are not supported here")
            names[at] = name_of(key)
        except S3Error as error:
            results[at] = error
    bucket = request.client.bucket(request.bucket)
    bucket.info()
    for at, done in zip(names, bucket.iter_delete_many(list(names.values()), on_error="yield"), strict=True):
        results[at] = None
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
