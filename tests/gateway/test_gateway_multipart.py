"""Uploads in parts over the gateway: the parts that the client names make the object, or nothing does."""

from __future__ import annotations

import hashlib
from typing import Any

from tests.gateway.conftest import Served
from tests.gateway.multipart_kit import only_one_part_is_removed
from tests.gateway.test_boto3 import MIB, code, data
from tests.table import table

PART = 5 * MIB


def begin(s3: Any, bucket: str, **arguments: Any) -> dict[str, str]:
    return {
        "Bucket": bucket,
        "Key": "a",
        "UploadId": s3.create_multipart_upload(Bucket=bucket, Key="a", **arguments)["UploadId"],
    }


def put(s3: Any, upload: dict[str, str], number: int, body: bytes) -> dict[str, Any]:
    answer = s3.upload_part(**upload, PartNumber=number, Body=body)
    kept = {name: value for name, value in answer.items() if name == "ETag" or name.startswith("Checksum")}
    kept.pop("ChecksumType", None)
    return {"PartNumber": number, **kept}


def complete(s3: Any, upload: dict[str, str], parts: list[dict[str, Any]], **arguments: Any) -> Any:
    return s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts}, **arguments)


@table("algorithm", ["", "CRC32", "CRC32C", "SHA1", "SHA256"])
def test_parts_in_any_order(s3: Any, bucket: str, algorithm: str) -> None:
    chosen = {"ChecksumAlgorithm": algorithm} if algorithm else {}
    upload = begin(s3, bucket, Metadata={"k": "v"}, ContentType="text/x", **chosen)
    bodies = {2: data(2, 7), 1: data(1, PART)}
    extra = {"ChecksumAlgorithm": algorithm} if algorithm else {}
    parts = []
    for number, body in bodies.items():
        answer = s3.upload_part(**upload, PartNumber=number, Body=body, **extra)
        assert answer["ETag"] == f'"{hashlib.md5(body).hexdigest()}"'
        part = {"PartNumber": number, "ETag": answer["ETag"]}
        if algorithm:
            part[f"Checksum{algorithm}"] = answer[f"Checksum{algorithm}"]
        parts.append(part)
    listed = s3.list_parts(**upload)["Parts"]
    assert [(row["PartNumber"], row["Size"], row["ETag"]) for row in listed] == [
        (number, len(bodies[number]), f'"{hashlib.md5(bodies[number]).hexdigest()}"') for number in (1, 2)
    ]
    assert [row["UploadId"] for row in s3.list_multipart_uploads(Bucket=bucket)["Uploads"]] == [upload["UploadId"]]
    answer = complete(s3, upload, parts[::-1])
    digests = b"".join(hashlib.md5(bodies[number]).digest() for number in (1, 2))
    assert answer["ETag"] == f'"{hashlib.md5(digests).hexdigest()}-2"'
    got = s3.get_object(Bucket=bucket, Key="a")
    assert (got["Body"].read(), got["ETag"]) == (bodies[1] + bodies[2], answer["ETag"])
    assert (got["Metadata"], got["ContentType"]) == ({"k": "v"}, "text/x")
    second = s3.get_object(Bucket=bucket, Key="a", PartNumber=2)
    assert (second["Body"].read(), second["PartsCount"]) == (bodies[2], 2)
    assert code(s3.get_object, Bucket=bucket, Key="a", PartNumber=3) == ("InvalidPart", 400)
    assert code(s3.head_object, Bucket=bucket, Key="a", PartNumber=3) == ("416", 416)
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)
    assert code(s3.list_parts, **upload) == ("NoSuchUpload", 404)


def test_wrong_completions_make_nothing(s3: Any, bucket: str) -> None:
    upload = begin(s3, bucket)
    one, two, three = (put(s3, upload, number, data(number, size)) for number, size in ((1, PART), (2, 9), (3, PART)))
    assert code(complete, s3=s3, upload=upload, parts=[three, one])[0] == "InvalidPartOrder"
    assert code(complete, s3=s3, upload=upload, parts=[one, one])[0] == "InvalidPartOrder"
    assert code(complete, s3=s3, upload=upload, parts=[one, two, three])[0] == "EntityTooSmall"
    assert code(complete, s3=s3, upload=upload, parts=[one, {**two, "PartNumber": 4}])[0] == "InvalidPart"
    assert code(complete, s3=s3, upload=upload, parts=[{**one, "ETag": '"0"'}])[0] == "InvalidPart"
    assert code(s3.head_object, Bucket=bucket, Key="a") == ("404", 404)
    complete(s3, upload, [one, three])  # a part that is not named is dropped, and numbers may have gaps
    assert s3.get_object(Bucket=bucket, Key="a")["Body"].read() == data(1, PART) + data(3, PART)


def test_a_part_that_is_put_again(s3: Any, bucket: str) -> None:
    upload = begin(s3, bucket)
    first = put(s3, upload, 1, b"first")
    second = put(s3, upload, 1, b"second")
    assert code(complete, s3=s3, upload=upload, parts=[first])[0] == "InvalidPart"
    complete(s3, upload, [second])
    assert s3.get_object(Bucket=bucket, Key="a")["Body"].read() == b"second"


def test_conditions_at_the_end(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="a", Body=b"old")
    upload = begin(s3, bucket)
    part = put(s3, upload, 1, b"new")
    assert code(complete, s3=s3, upload=upload, parts=[part], IfNoneMatch="*") == ("PreconditionFailed", 412)
    assert s3.get_object(Bucket=bucket, Key="a")["Body"].read() == b"old"
    complete(s3, upload, [part], IfMatch=s3.head_object(Bucket=bucket, Key="a")["ETag"])
    assert s3.get_object(Bucket=bucket, Key="a")["Body"].read() == b"new"


def test_aborted(served: Served, s3: Any, bucket: str) -> None:
    upload = begin(s3, bucket)
    part = put(s3, upload, 1, b"1")
    s3.abort_multipart_upload(**upload)
    assert code(s3.upload_part, **upload, PartNumber=2, Body=b"2") == ("NoSuchUpload", 404)
    assert code(complete, s3=s3, upload=upload, parts=[part]) == ("NoSuchUpload", 404)
    assert code(s3.abort_multipart_upload, **upload) == ("NoSuchUpload", 404)
    assert list(served.client.bucket(bucket).uploads()) == []
    for upload_id in ("x", "0" * 32, "../" * 10):
        assert code(s3.list_parts, Bucket=bucket, Key="a", UploadId=upload_id) == ("NoSuchUpload", 404)


def test_parts_of_other_objects(s3: Any, bucket: str) -> None:
    whole = data(7, 2 * PART)
    s3.put_object(Bucket=bucket, Key="source", Body=whole)
    upload, source = begin(s3, bucket), {"Bucket": bucket, "Key": "source"}
    parts = []
    for number, text in ((1, f"bytes=1-{PART}"), (2, "bytes=0-9")):
        answer = s3.upload_part_copy(**upload, PartNumber=number, CopySource=source, CopySourceRange=text)
        parts.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
    wrong = {**upload, "PartNumber": 3, "CopySource": source}
    assert code(s3.upload_part_copy, **wrong, CopySourceRange=f"bytes=0-{2 * PART}") == ("InvalidArgument", 400)
    assert code(s3.upload_part_copy, **wrong, CopySourceRange="bytes=5-") == ("InvalidArgument", 400)
    complete(s3, upload, parts)
    assert s3.get_object(Bucket=bucket, Key="a")["Body"].read() == whole[1 : PART + 1] + whole[:10]


def test_an_upload_that_another_client_began(served: Served, s3: Any, bucket: str) -> None:
    upload = served.client.bucket(bucket).multipart("a", metadata={"k": "v"})
    upload.put_part(1, b"from the store")
    named = {"Bucket": bucket, "Key": "a", "UploadId": upload.id}
    parts = [{"PartNumber": row["PartNumber"], "ETag": row["ETag"]} for row in s3.list_parts(**named)["Parts"]]
    complete(s3, named, parts)
    got = s3.get_object(Bucket=bucket, Key="a")
    assert (got["Body"].read(), got["Metadata"]) == (b"from the store", {"k": "v"})


def test_a_completion_that_was_cut_as_it_removed_the_parts_is_answered_again(
    served: Served, s3: Any, bucket: str
) -> None:
    upload = begin(s3, bucket)
    parts = [put(s3, upload, number, bytes([number]) * size) for number, size in ((1, PART), (2, 1))]
    with only_one_part_is_removed() as removed:
        assert code(complete, s3=s3, upload=upload, parts=parts)[0] == "AccessDenied"
    assert len(removed) == 1
    made = s3.head_object(Bucket=bucket, Key="a")
    assert complete(s3, upload, parts)["ETag"] == made["ETag"]
    assert s3.head_object(Bucket=bucket, Key="a")["LastModified"] == made["LastModified"]
    assert list(served.client.bucket(bucket).uploads()) == []
    assert s3.get_object(Bucket=bucket, Key="a")["Body"].read() == b"\1" * PART + b"\2"
