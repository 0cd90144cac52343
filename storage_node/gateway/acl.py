"""Access control lists: every access key owns everything, and nobody else has access. No other list can be set."""

from __future__ import annotations

from storage_node.gateway import xml
from storage_node.gateway.errors import S3Error
from storage_node.gateway.listing import owner_of
from storage_node.gateway.names import name_of
from storage_node.gateway.request import Request, Response, xml_response

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
