"""boto3: everything that the gateway offers to the client that most programs use."""

from __future__ import annotations

import hashlib
import io
from concurrent.futures import ThreadPoolExecutor
from urllib.request import urlopen

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from checks import MIB, bucket_name, check, end, endpoint, equal, large, objects

s3 = boto3.client("s3", "us-east-1", endpoint_url=endpoint())
bucket, stored = bucket_name(), objects()


def refused(call, **arguments):  # type: ignore[no-untyped-def]
    """Return the status of a call that is refused."""
    try:
        call(Bucket=bucket, **arguments)
    except ClientError as error:
        return error.response["ResponseMetadata"]["HTTPStatusCode"]
    raise AssertionError("it was not refused")


def read(key: str, **arguments) -> bytes:  # type: ignore[no-untyped-def]
    return s3.get_object(Bucket=bucket, Key=key, **arguments)["Body"].read()


with check("puts"):
    s3.create_bucket(Bucket=bucket)
    with ThreadPoolExecutor(4) as threads:
        made = threads.map(lambda row: s3.put_object(Bucket=bucket, Key=row[0], Body=row[1])["ETag"], stored.items())
        equal(list(made), [f'"{hashlib.md5(body).hexdigest()}"' for body in stored.values()])
with check("lists"):
    for version in ("list_objects", "list_objects_v2"):
        pages = s3.get_paginator(version).paginate(Bucket=bucket, PaginationConfig={"PageSize": 33})
        rows = [(row["Key"], row["Size"]) for page in pages for row in page.get("Contents", [])]
        equal(rows, sorted((key, len(body)) for key, body in stored.items()))
    folders = s3.list_objects_v2(Bucket=bucket, Delimiter="/")["CommonPrefixes"]
    equal([row["Prefix"] for row in folders], [*(f"d{number}/" for number in range(5)), "odd/"])
with check("reads"):
    equal({key: read(key) for key in stored}, stored)
with check("range reads"):
    body = large()
    s3.put_object(Bucket=bucket, Key="large", Body=body)
    for text, expected in (("bytes=0-0", body[:1]), ("bytes=-7", body[-7:]), (f"bytes={MIB}-", body[MIB:])):
        equal(read("large", Range=text) == expected, True)
    equal(refused(s3.get_object, Key="large", Range=f"bytes={len(body)}-"), 416)
with check("multipart upload"):
    s3.upload_fileobj(io.BytesIO(body), bucket, "parts")
    found = io.BytesIO()
    s3.download_fileobj(bucket, "parts", found)
    equal(found.getvalue() == body, True)
    upload = {"Bucket": bucket, "Key": "gone", "UploadId": ""}
    upload["UploadId"] = s3.create_multipart_upload(Bucket=bucket, Key="gone")["UploadId"]
    s3.upload_part(**upload, PartNumber=1, Body=b"1")
    equal([row["PartNumber"] for row in s3.list_parts(**upload)["Parts"]], [1])
    s3.abort_multipart_upload(**upload)
    equal(refused(s3.get_object, Key="gone"), 404)
with check("copies"):
    s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "odd/é.bin"})
    equal(read("copy"), stored["odd/é.bin"])
    s3.copy({"Bucket": bucket, "Key": "parts"}, bucket, "parts copy")
    equal(read("parts copy") == body, True)
with check("conditions"):
    etag = s3.put_object(Bucket=bucket, Key="once", Body=b"1", Metadata={"k": "v"})["ETag"]
    equal(refused(s3.get_object, Key="once", IfNoneMatch=etag), 304)
    equal(refused(s3.get_object, Key="once", IfMatch='"x"'), 412)
    equal(read("once", IfMatch=etag), b"1")
    equal(s3.head_object(Bucket=bucket, Key="once")["Metadata"], {"k": "v"})
    if "IfNoneMatch" in s3.meta.service_model.operation_model("PutObject").input_shape.members:
        equal(refused(s3.put_object, Key="once", Body=b"2", IfNoneMatch="*"), 412)
with check("presigned addresses"):
    for version in ("s3", "s3v4"):
        signer = boto3.client("s3", "us-east-1", endpoint_url=endpoint(), config=Config(signature_version=version))
        with urlopen(
            signer.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "odd/a b.bin"})
        ) as got:
            equal(got.read(), stored["odd/a b.bin"])
with check("deletes"):
    keys = [row["Key"] for row in s3.list_objects_v2(Bucket=bucket)["Contents"]]
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in keys]})
    equal(sorted(row["Key"] for row in answer["Deleted"]), keys)
    equal(s3.list_objects_v2(Bucket=bucket)["KeyCount"], 0)
    s3.delete_bucket(Bucket=bucket)
end()
