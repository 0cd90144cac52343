"""boto3 against the gateway: what it puts is what it, and clients of the store, get."""

from __future__ import annotations

import datetime
import hashlib
import io
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import urlopen

import pytest
from botocore.exceptions import ClientError

from tests.gateway.conftest import Served
from tests.table import table

MIB = 1 << 20
KEYS = (
    "a b+c%20é#?.bin",
    "d/x",
    "d/y z",
    "日本/語.tar",
    "tab\there",
    "quote'\"<&>",
    "~-_.!*()",
    "plus+plus",
    "a=b&c;d",
)


def data(seed: int, size_bytes: int) -> bytes:
    return hashlib.shake_128(seed.to_bytes(8, "big")).digest(size_bytes)


def code(call: Any, **arguments: Any) -> tuple[str, int]:
    """Return the code and the status of a refusal."""
    with pytest.raises(ClientError) as refused:
        call(**arguments)
    answer = refused.value.response
    return answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]


@pytest.mark.parametrize("checksums", ["when_supported", "when_required"])
def test_two_hundred_objects(served: Served, bucket: str, checksums: str) -> None:
    s3 = served.s3(request_checksum_calculation=checksums, response_checksum_validation=checksums)
    objects = {f"d{number % 7}/{number:03d}": data(number, number * 97) for number in range(200)}

    def put(key: str) -> None:
        answer = s3.put_object(Bucket=bucket, Key=key, Body=objects[key])
        assert answer["ETag"] == f'"{hashlib.md5(objects[key]).hexdigest()}"'

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(put, objects))
        got = dict(
            zip(
                objects, threads.map(lambda k: s3.get_object(Bucket=bucket, Key=k)["Body"].read(), objects), strict=True
            )
        )
    assert got == objects
    assert {
        item.entry.name: item.tobytes() for item in served.client.bucket(bucket).get_batch(list(objects))
    } == objects

    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, PaginationConfig={"PageSize": 33})
    rows = [row for page in pages for row in page["Contents"]]
    assert [row["Key"] for row in rows] == sorted(objects)
    assert all(row["Size"] == len(objects[row["Key"]]) for row in rows)
    assert all(row["ETag"] == f'"{hashlib.md5(objects[row["Key"]]).hexdigest()}"' for row in rows)

    gone = sorted(objects)[::2]
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in gone]})
    assert sorted(row["Key"] for row in answer["Deleted"]) == gone
    assert list(served.client.bucket(bucket)) == sorted(objects.keys() - set(gone))


@table("key", KEYS)
def test_keys_are_taken_literally(served: Served, s3: Any, bucket: str, key: str) -> None:
    s3.put_object(Bucket=bucket, Key=key, Body=b"1")
    assert list(served.client.bucket(bucket)) == [key]
    assert [row["Key"] for row in s3.list_objects_v2(Bucket=bucket)["Contents"]] == [key]
    assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == b"1"
    for version in ("s3", "s3v4"):
        presigned = served.s3(signature_version=version).generate_presigned_url(
            "get_object", Params={"Bucket": bucket, "Key": key, "ResponseContentType": "text/x"}
        )
        with urlopen(presigned) as answer:
            assert (answer.read(), answer.headers["content-type"]) == (b"1", "text/x")
    s3.delete_object(Bucket=bucket, Key=key)
    assert list(served.client.bucket(bucket)) == []


@table("key", ["a//b", "/a", "a/../b", "..", "a/./b", "x//"])
def test_keys_that_the_store_refuses(s3: Any, bucket: str, key: str) -> None:
    assert code(s3.put_object, Bucket=bucket, Key=key, Body=b"") == ("InvalidArgument", 400)


def test_the_store_s_own_names_are_out_of_reach(served: Served, s3: Any, bucket: str) -> None:
    upload = served.client.bucket(bucket).multipart("a")
    assert code(s3.get_object, Bucket=bucket, Key=f"/.parts/{upload.id}/upload")[0] == "InvalidArgument"
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket, Prefix="/.parts/")
    assert code(s3.put_object, Bucket=bucket, Key="d/\x01", Body=b"")[0] == "InvalidArgument"


def test_attributes(served: Served, s3: Any, bucket: str) -> None:
    expires = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
    given = {
        "ContentType": "text/plain",
        "ContentEncoding": "gzip",
        "ContentLanguage": "de",
        "ContentDisposition": "inline",
        "CacheControl": "no-cache",
    }
    s3.put_object(
        Bucket=bucket,
        Key="a",
        Body=b"bytes",
        Metadata={"one": "1", "two": "é".encode().hex()},
        Expires=expires,
        **given,
    )
    for call in (s3.head_object, s3.get_object):
        answer = call(Bucket=bucket, Key="a")
        assert {name: answer[name] for name in given} == given
        assert answer["Metadata"] == {"one": "1", "two": "c3a9"}
    info = served.client.bucket(bucket).head("a")
    assert info.metadata["one"] == "1"

    served.client.bucket(bucket).append("a", b"!")
    answer = s3.get_object(Bucket=bucket, Key="a", ChecksumMode="ENABLED")
    assert answer["Body"].read() == b"bytes!"
    assert answer["ETag"].endswith('-0"'), "the MD5 of other bytes must not be shown"


def test_an_object_of_a_client_of_the_store(served: Served, s3: Any, bucket: str) -> None:
    served.client.bucket(bucket).put("a", b"bytes", metadata={"k": "v"})
    answer = s3.get_object(Bucket=bucket, Key="a")
    assert (answer["Body"].read(), answer["Metadata"]) == (b"bytes", {"k": "v"})
    first = answer["ETag"]
    served.client.bucket(bucket).put("a", b"other")
    assert s3.head_object(Bucket=bucket, Key="a")["ETag"] != first
    shown = s3.get_object_attributes(Bucket=bucket, Key="a", ObjectAttributes=["ETag", "ObjectSize", "Checksum"])
    assert shown["ObjectSize"] == 5 and shown["Checksum"]["ChecksumCRC32C"]


def test_ranges(s3: Any, bucket: str) -> None:
    whole = data(1, 3 * MIB)
    s3.put_object(Bucket=bucket, Key="a", Body=whole)
    for text, expected in (
        ("bytes=0-0", whole[:1]),
        ("bytes=5-", whole[5:]),
        ("bytes=-7", whole[-7:]),
        (f"bytes=-{9 * MIB}", whole),
        (f"bytes=100-{9 * MIB}", whole[100:]),
        (f"bytes={MIB - 1}-{2 * MIB}", whole[MIB - 1 : 2 * MIB + 1]),
        ("bytes=1-2,4-5", whole),
        ("bytes=9-3", whole),
        ("lines=1-2", whole),
    ):
        assert s3.get_object(Bucket=bucket, Key="a", Range=text)["Body"].read() == expected, text
    for text in (f"bytes={3 * MIB}-", "bytes=-0", "bytes=99999999999999999999999-"):
        assert code(s3.get_object, Bucket=bucket, Key="a", Range=text) == ("InvalidRange", 416), text
    s3.put_object(Bucket=bucket, Key="empty", Body=b"")
    with pytest.raises(ClientError) as refused:
        s3.get_object(Bucket=bucket, Key="empty", Range="bytes=0-7")
    assert refused.value.response["Error"]["ActualObjectSize"] == "0"  # by which s3torchconnector tells that it is
    head = s3.head_object(Bucket=bucket, Key="a", Range="bytes=0-9")
    assert head["ContentLength"] == 10


def test_conditional_reads(s3: Any, bucket: str) -> None:
    etag = s3.put_object(Bucket=bucket, Key="a", Body=b"1")["ETag"]
    at = s3.head_object(Bucket=bucket, Key="a")["LastModified"]
    before, after = at - datetime.timedelta(days=1), at + datetime.timedelta(days=1)
    ok = ({"IfMatch": etag}, {"IfNoneMatch": '"x"'}, {"IfModifiedSince": before}, {"IfUnmodifiedSince": after})
    for conditions in (*ok, {"IfMatch": etag, "IfUnmodifiedSince": before}):
        assert s3.get_object(Bucket=bucket, Key="a", **conditions)["Body"].read() == b"1"
    for conditions in ({"IfMatch": '"x"'}, {"IfUnmodifiedSince": before}):
        assert code(s3.get_object, Bucket=bucket, Key="a", **conditions)[1] == 412
    for conditions in ({"IfNoneMatch": etag}, {"IfModifiedSince": after}):
        assert code(s3.get_object, Bucket=bucket, Key="a", **conditions)[1] == 304


@pytest.mark.every_transport  # the kinds of errors cross the wire
def test_conditional_writes(served: Served, s3: Any, bucket: str) -> None:
    first = s3.put_object(Bucket=bucket, Key="a", Body=b"1", IfNoneMatch="*")["ETag"]
    assert code(s3.put_object, Bucket=bucket, Key="a", Body=b"2", IfNoneMatch="*") == ("PreconditionFailed", 412)
    s3.put_object(Bucket=bucket, Key="a", Body=b"2", IfMatch=first)
    assert code(s3.put_object, Bucket=bucket, Key="a", Body=b"3", IfMatch=first) == ("PreconditionFailed", 412)
    assert code(s3.put_object, Bucket=bucket, Key="none", Body=b"3", IfMatch=first) == ("NoSuchKey", 404)
    assert s3.get_object(Bucket=bucket, Key="a")["Body"].read() == b"2"

    barrier, won = threading.Barrier(6), []

    def race(number: int) -> None:
        barrier.wait(180)
        try:
            s3.put_object(Bucket=bucket, Key="race", Body=str(number).encode(), IfNoneMatch="*")
            won.append(number)
        except ClientError as error:
            assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 412

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(race, range(6)))
    assert len(won) == 1
    assert s3.get_object(Bucket=bucket, Key="race")["Body"].read() == str(won[0]).encode()


def test_copies(s3: Any, bucket: str) -> None:
    etag = s3.put_object(Bucket=bucket, Key="a b", Body=b"1", Metadata={"k": "v"}, ContentType="text/x")["ETag"]
    source = {"Bucket": bucket, "Key": "a b"}
    assert s3.copy_object(Bucket=bucket, Key="b", CopySource=source)["CopyObjectResult"]["ETag"] == etag
    got = s3.get_object(Bucket=bucket, Key="b")
    assert (got["Body"].read(), got["Metadata"], got["ContentType"], got["ETag"]) == (b"1", {"k": "v"}, "text/x", etag)
    s3.copy_object(Bucket=bucket, Key="b", CopySource=source, MetadataDirective="REPLACE", Metadata={"n": "w"})
    got = s3.get_object(Bucket=bucket, Key="b")
    assert (got["Body"].read(), got["Metadata"], got["ETag"]) == (b"1", {"n": "w"}, etag)
    assert code(s3.copy_object, Bucket=bucket, Key="a b", CopySource=source)[0] == "InvalidRequest"
    s3.copy_object(Bucket=bucket, Key="a b", CopySource=source, MetadataDirective="REPLACE", Metadata={"n": "w"})
    assert s3.head_object(Bucket=bucket, Key="a b")["Metadata"] == {"n": "w"}
    assert code(s3.copy_object, Bucket=bucket, Key="c", CopySource=f"{bucket}/none") == ("NoSuchKey", 404)
    refused = code(s3.copy_object, Bucket=bucket, Key="c", CopySource=source, CopySourceIfMatch='"x"')
    assert refused == ("PreconditionFailed", 412)


@pytest.mark.every_transport
def test_buckets(served: Served, s3: Any, bucket: str) -> None:
    assert bucket in [row["Name"] for row in s3.list_buckets()["Buckets"]]
    for name in ("b", "Up", "a_b", "a..b", "a-.b", "-ab", "1.2.3.4", "a" * 64):
        assert code(s3.create_bucket, Bucket=name)[0] in ("InvalidBucketName", "ParamValidation"), name
    named = bucket.replace("g", "gateway")
    for _ in range(2):
        s3.create_bucket(Bucket=named)  # as in S3's first region, the second time without an error
        s3.put_object(Bucket=named, Key="a", Body=b"1")
    assert s3.get_object(Bucket=named, Key="a")["Body"].read() == b"1"
    first = s3.list_buckets(MaxBuckets=1)
    second = s3.list_buckets(MaxBuckets=1, ContinuationToken=first["ContinuationToken"])
    assert first["Buckets"][0]["Name"] < second["Buckets"][0]["Name"]
    assert [row["Name"] for row in s3.list_buckets(Prefix="gateway")["Buckets"]] == [named]
    assert s3.get_bucket_location(Bucket=bucket)["LocationConstraint"] is None
    s3.head_bucket(Bucket=bucket)
    s3.put_object(Bucket=bucket, Key="a", Body=b"")
    assert code(s3.delete_bucket, Bucket=bucket) == ("BucketNotEmpty", 409)
    s3.delete_object(Bucket=bucket, Key="a")
    s3.delete_object(Bucket=bucket, Key="a")
    s3.delete_bucket(Bucket=bucket)
    assert code(s3.head_bucket, Bucket=bucket) == ("404", 404)
    assert code(s3.list_objects_v2, Bucket=bucket) == ("NoSuchBucket", 404)
    assert code(s3.put_object, Bucket=bucket, Key="a", Body=b"") == ("NoSuchBucket", 404)
    for call in (s3.get_bucket_policy, s3.get_bucket_cors, s3.get_bucket_tagging):
        assert code(call, Bucket=bucket) == ("NotImplemented", 501)


def test_members_of_archives(served: Served, s3: Any, bucket: str) -> None:
    from tests.tar_kit import packed_tar

    s3.put_object(Bucket=bucket, Key="s.tar", Body=packed_tar({"m/1": b"one", "m/2": b"two" * 99}))
    assert s3.get_object(Bucket=bucket, Key="s.tar/m/2")["Body"].read() == b"two" * 99
    assert s3.get_object(Bucket=bucket, Key="s.tar/m/2", Range="bytes=3-5")["Body"].read() == b"two"
    assert s3.head_object(Bucket=bucket, Key="s.tar/m/1")["ContentLength"] == 3
    assert code(s3.get_object, Bucket=bucket, Key="s.tar/none") == ("NoSuchKey", 404)


def test_bodies_of_unknown_length_and_of_files(s3: Any, bucket: str) -> None:
    whole = data(3, 20 * MIB + 5)
    s3.upload_fileobj(io.BytesIO(whole), bucket, "a")
    found = io.BytesIO()
    s3.download_fileobj(bucket, "a", found)
    assert found.getvalue() == whole
