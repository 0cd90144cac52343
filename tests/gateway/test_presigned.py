"""Presigned addresses of boto3: each call, in both versions of the signature, in path and virtual-host style."""

from __future__ import annotations

import hashlib
import http.client
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.gateway.conftest import ACCOUNT, Served
from tests.gateway.gateway_thread import GatewayThread
from tests.table import table

DOMAIN = "gateway.test"
CALLS: dict[str, dict[str, Any]] = {
    # The key "o" is there, with an upload that has a part. Of a call, those that remove something come last.
    "list_buckets": {},
    "head_bucket": {"Bucket": ...},
    "list_objects": {"Bucket": ..., "Prefix": "a b/ä+"},
    "list_objects_v2": {"Bucket": ..., "Delimiter": "/", "EncodingType": "url"},
    "list_object_versions": {"Bucket": ...},
    "list_multipart_uploads": {"Bucket": ...},
    "get_bucket_acl": {"Bucket": ...},
    "get_bucket_location": {"Bucket": ...},
    "get_bucket_versioning": {"Bucket": ...},
    "put_bucket_acl": {"Bucket": ..., "ACL": "private"},
    "create_bucket": {"Bucket": "made"},
    "put_object": {"Bucket": ..., "Key": "a b/ä+%"},
    "get_object": {"Bucket": ..., "Key": "o", "ResponseContentType": "text/plain"},
    "head_object": {"Bucket": ..., "Key": "o"},
    "get_object_acl": {"Bucket": ..., "Key": "o"},
    "get_object_attributes": {"Bucket": ..., "Key": "o", "ObjectAttributes": ["ETag"]},
    "get_object_tagging": {"Bucket": ..., "Key": "o"},
    "put_object_acl": {"Bucket": ..., "Key": "o", "ACL": "private"},
    "put_object_tagging": {"Bucket": ..., "Key": "o", "Tagging": {"TagSet": [{"Key": "a", "Value": "b"}]}},
    "delete_object_tagging": {"Bucket": ..., "Key": "o"},
    "copy_object": {"Bucket": ..., "Key": "copy", "CopySource": ...},
    "create_multipart_upload": {"Bucket": ..., "Key": "more"},
    "list_parts": {"Bucket": ..., "Key": "u", "UploadId": ...},
    "upload_part_copy": {"Bucket": ..., "Key": "u", "UploadId": ..., "PartNumber": 2, "CopySource": ...},
    "upload_part": {"Bucket": ..., "Key": "u", "UploadId": ..., "PartNumber": 1},
    "complete_multipart_upload": {"Bucket": ..., "Key": "u", "UploadId": ...},
    "abort_multipart_upload": {"Bucket": ..., "Key": "v", "UploadId": ...},
    "delete_objects": {"Bucket": ..., "Delete": {"Objects": [{"Key": "o"}]}},
    "delete_object": {"Bucket": ..., "Key": "o"},
    "delete_bucket": {"Bucket": "made"},
}
BODIES = {
    "put_object": b"bytes",
    "upload_part": b"bytes",
    "put_object_tagging": b"<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>",
    "delete_objects": b"<Delete><Object><Key>o</Key></Object></Delete>",
}


@pytest.fixture(scope="module")
def gateway(served: Served) -> Iterator[GatewayThread]:
    with GatewayThread(served.clients, {ACCOUNT.access_key: ACCOUNT}, domains=(DOMAIN,)) as gateway:
        yield gateway


def client(gateway: GatewayThread, version: str | None, style: str) -> Any:
    import boto3
    from botocore.config import Config

    host = DOMAIN if style == "virtual" else "127.0.0.1"
    return boto3.client(
        "s3",
        endpoint_url=f"http://{host}:{gateway.port}",
        aws_access_key_id=ACCOUNT.access_key,
        aws_secret_access_key=ACCOUNT.secret_key,
        region_name="us-east-1",
        config=Config(signature_version=version, s3={"addressing_style": style}),
    )


def asked(gateway: GatewayThread, s3: Any, call: str, given: dict[str, Any]) -> tuple[int, bytes]:
    """Return status and body of the answer to what boto3 presigns."""
    url = urlsplit(s3.generate_presigned_url(call, Params=given))
    names = s3.meta.service_model.operation_model(s3.meta.method_to_api_mapping[call]).http
    body = BODIES.get(call, b"")
    headers = {"Host": url.netloc}
    if "CopySource" in given:  # the headers of a call are signed, and are up to whoever uses the address
        headers["x-amz-copy-source"] = given["CopySource"]
    if "ACL" in given:
        headers["x-amz-acl"] = given["ACL"]
    if "ObjectAttributes" in given:
        headers["x-amz-object-attributes"] = "ETag"
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=180)
    try:
        connection.request(names["method"], f"{url.path or '/'}?{url.query}", body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_bucket_can_be_listed_with_an_address_of_boto3(gateway: GatewayThread, bucket: str) -> None:
    status, body = asked(gateway, client(gateway, None, "path"), "list_objects_v2", {"Bucket": bucket})
    assert status == 200 and b"<ListBucketResult" in body


@pytest.mark.slow
@table("version", ["s3", "s3v4", None])
@table("style", ["path", "virtual"])
def test_every_call_can_be_presigned(
    gateway: GatewayThread, served: Served, bucket: str, version: str | None, style: str
) -> None:
    s3, place = client(gateway, version, style), served.client.bucket(bucket)
    for call, form in CALLS.items():
        if version == "s3v4" and call in ("put_object_tagging", "delete_objects"):
            continue  # boto3 cannot presign what has a document
        place.put("o", b"bytes")
        given = {name: bucket if name == "Bucket" and value is ... else value for name, value in form.items()}
        if "CopySource" in given:
            given["CopySource"] = f"/{bucket}/o"
        if "UploadId" in given:
            upload = place.multipart(given["Key"])
            upload.put_part(1, b"bytes", metadata={"s3.md5": hashlib.md5(b"bytes").hexdigest()})
            given["UploadId"] = upload.id
            etag = hashlib.md5(b"bytes").hexdigest()
            part = f"<Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>".encode()
            BODIES["complete_multipart_upload"] = b"<CompleteMultipartUpload>%s</CompleteMultipartUpload>" % part
        status, body = asked(gateway, s3, call, given)
        assert 200 <= status < 300, (call, status, body)
        assert ("o" in place) != call.startswith("delete_object") or call == "delete_object_tagging", call
    assert place.get("a b/ä+%") == b"bytes"


@table("version", ["s3", "s3v4"])
@table("style", ["path", "virtual"])
def test_an_address_of_one_bucket_is_of_no_other(
    gateway: GatewayThread, served: Served, bucket: str, version: str, style: str
) -> None:
    served.client.create_bucket(f"{bucket}x", exist_ok=True)
    url = client(gateway, version, style).generate_presigned_url("list_objects", Params={"Bucket": bucket})
    for wrong in (f"{bucket}x", f"{bucket}/x", ""):
        parts = urlsplit(url.replace(bucket, wrong))
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=180)
        try:
            connection.request("GET", f"{parts.path or '/'}?{parts.query}", headers={"Host": parts.netloc})
            answer = connection.getresponse()
            assert answer.status == 403 and b"SignatureDoesNotMatch" in answer.read()
        finally:
            connection.close()
