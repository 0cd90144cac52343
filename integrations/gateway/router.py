"""Router: which call a request is, by its method, path and parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from . import buckets, listing, multipart, objects, tagging
from .bodies import MAX_BYTES
from .reading import MAX_BODY_BYTES, bundle
from .request import Request, Response, S3Error, decoded

_DOCUMENT_BYTES = 2 << 20
_BUCKET = re.compile(r"(?!\.)[A-Za-z0-9_.-]{1,63}(@[A-Za-z0-9_.-]{1,63})?\Z")


@dataclass(frozen=True, slots=True)
class S3Call:
    """A call of the interface."""

    name: str
    """The name in S3's documentation."""
    answer: Callable[[Request], Response]
    most_bytes: int = 0
    """Largest body; 0 if it takes none."""
    is_batch: bool = False
    """Whether the answer has many objects."""
    at_once: Callable[[Request], Response | None] = lambda _: None
    """Answers on the event loop, where nothing has to be waited for."""


Level = Literal["service", "bucket", "object"]
_ROUTES: dict[tuple[Level, str], list[tuple[str, S3Call]]] = {
    # By level and method: the parameter that selects a call, "" for none. The first that the query has decides.
    ("service", "GET"): [("", S3Call("ListBuckets", buckets.list_buckets))],
    ("bucket", "GET"): [
        ("acl", S3Call("GetBucketAcl", buckets.get_acl)),
        ("location", S3Call("GetBucketLocation", partial(buckets.never_set, "LocationConstraint"))),
        ("versioning", S3Call("GetBucketVersioning", partial(buckets.never_set, "VersioningConfiguration"))),
        ("uploads", S3Call("ListMultipartUploads", multipart.list_uploads)),
        ("versions", S3Call("ListObjectVersions", listing.list_versions)),
        ("", S3Call("ListObjects", listing.list_objects)),
    ],
    ("bucket", "PUT"): [
        ("acl", S3Call("PutBucketAcl", buckets.put_acl, _DOCUMENT_BYTES)),
        ("", S3Call("CreateBucket", buckets.create_bucket, _DOCUMENT_BYTES)),
    ],
    ("bucket", "HEAD"): [("", S3Call("HeadBucket", buckets.head_bucket))],
    ("bucket", "DELETE"): [("", S3Call("DeleteBucket", buckets.delete_bucket))],
    ("bucket", "POST"): [
        ("delete", S3Call("DeleteObjects", buckets.delete_objects, _DOCUMENT_BYTES)),
        ("bundle", S3Call("Bundle", bundle, MAX_BODY_BYTES, is_batch=True)),
        ("", S3Call("PostObject", objects.post_object, MAX_BYTES)),
    ],
    ("object", "GET"): [
        ("acl", S3Call("GetObjectAcl", buckets.get_acl)),
        ("tagging", S3Call("GetObjectTagging", tagging.get_tags)),
        ("uploadId", S3Call("ListParts", multipart.list_parts)),
        ("attributes", S3Call("GetObjectAttributes", objects.object_attributes)),
        ("", S3Call("GetObject", objects.get_object, at_once=objects.get_cached)),
    ],
    ("object", "HEAD"): [("", S3Call("HeadObject", objects.get_object))],
    ("object", "PUT"): [
        ("acl", S3Call("PutObjectAcl", buckets.put_acl, _DOCUMENT_BYTES)),
        ("tagging", S3Call("PutObjectTagging", tagging.put_tags, _DOCUMENT_BYTES)),
        ("uploadId", S3Call("UploadPart", multipart.put_part, MAX_BYTES)),
        ("", S3Call("PutObject", objects.put_object, MAX_BYTES)),
    ],
    ("object", "DELETE"): [
        ("tagging", S3Call("DeleteObjectTagging", tagging.delete_tags)),
        ("uploadId", S3Call("AbortMultipartUpload", multipart.abort_upload)),
        ("", S3Call("DeleteObject", objects.delete_object)),
    ],
    ("object", "POST"): [
        ("uploads", S3Call("CreateMultipartUpload", multipart.create_upload)),
        ("uploadId", S3Call("CompleteMultipartUpload", multipart.complete_upload, _DOCUMENT_BYTES)),
    ],
}
_COPIES = {
    "PutObject": S3Call("CopyObject", objects.copy_object),
    "UploadPart": S3Call("UploadPartCopy", multipart.copy_part),
}
_NOT_IMPLEMENTED = frozenset(
    (
        *("accelerate", "analytics", "cors", "encryption", "intelligent-tiering", "inventory", "legal-hold"),
        *("lifecycle", "logging", "metadataTable", "metrics", "notification", "object-lock", "ownershipControls"),
        *("policy", "policyStatus", "publicAccessBlock", "replication", "requestPayment", "restore", "retention"),
        *("select", "session", "torrent", "website"),
    )
)
"""Parameters that select calls which are not implemented."""


def route(method: str, bucket: str, key: str, query: Mapping[str, str], headers: Mapping[str, str]) -> S3Call:
    """Return the call that a request is. Raises S3Error."""
    if bucket and not _BUCKET.match(bucket):
        raise S3Error("InvalidBucketName", f"bucket {bucket[:80]!r}: need 1 to 63 letters, digits, '-', '_' and '.'")
    level: Level = "object" if key else "bucket" if bucket else "service"
    if unknown := _NOT_IMPLEMENTED.intersection(query):
        raise S3Error("NotImplemented", f"?{min(unknown)} is not implemented")
    if level == "bucket" and "tagging" in query:
        raise S3Error("NotImplemented", "buckets have no tags")
    if level == "bucket" and method == "PUT" and "versioning" in query:
        raise S3Error("NotImplemented", "objects have one version")
    if query.get("versionId", "null") not in ("", "null"):
        raise S3Error("NoSuchVersion", "the only version is null")
    for parameter, call in _ROUTES.get((level, method), ()):
        if not parameter or parameter in query:
            if objects.COPY_SOURCE in headers:
                return _COPIES.get(call.name, call)
            return call
    if method in ("GET", "HEAD", "PUT", "DELETE", "POST"):
        raise S3Error("NotImplemented", f"{method} of a {level} with these parameters is not implemented")
    raise S3Error("MethodNotAllowed", f"the method {method[:20]!r} is not allowed")


def split_path(path: str, host: str, domains: tuple[str, ...]) -> tuple[str, str]:
    """Return bucket and key, from the path or, in virtual-host style, from the host. Raises S3Error.

    Args:
        path: As it was sent, percent-encoded.
        domains: Names of the gateway. BUCKET.DOMAIN is a bucket.
    """
    if not path.startswith("/"):
        raise S3Error("InvalidURI", "the path must begin with '/'")
    if bucket := virtual_bucket(host, domains):
        return bucket, decoded(path[1:])
    bucket, _, key = path[1:].partition("/")
    return decoded(bucket), decoded(key)


def virtual_bucket(host: str, domains: tuple[str, ...]) -> str:
    """Return the bucket that a host is, in virtual-host style; "" if it is none."""
    name = host_name(host) if domains else ""
    for domain in domains:
        if name.lower().endswith(f".{domain.lower()}"):
            return name[: -len(domain) - 1]
    return ""


def host_name(host: str) -> str:
    """Return the header `Host` without its port."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host
