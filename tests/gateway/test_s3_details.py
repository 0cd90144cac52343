"""Parts of S3's interface that few clients use: tags, access lists, conditions of deletions, kinds of checksums."""

from __future__ import annotations

import base64
import datetime
import socket
import time
import uuid
import zlib
from typing import Any
from urllib.request import urlopen

import pytest

from ais_loader.integrations.gateway.attributes import part_sizes
from ais_loader.integrations.gateway.server.options import Limits
from ais_loader.testing import seeded_bytes
from ais_loader.wire.bucket_uuid import created_ns, draw_bucket_uuid
from storage_node.store.checksum import CRC32, CRC64NVME, combine
from tests.gateway.conftest import Served
from tests.gateway.gateway_thread import GatewayThread
from tests.gateway.test_boto3 import code
from tests.gateway.test_gateway_multipart import PART, begin, complete, put
from tests.table import table


def tags(s3: Any, bucket: str, key: str = "a") -> dict[str, str]:
    return {row["Key"]: row["Value"] for row in s3.get_object_tagging(Bucket=bucket, Key=key)["TagSet"]}


def test_tags(served: Served, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="a", Body=b"1", Metadata={"k": "v"}, Tagging="one=1&two%20%26=%C3%A9")
    assert tags(s3, bucket) == {"one": "1", "two &": "é"}
    got = s3.get_object(Bucket=bucket, Key="a")
    assert (got["TagCount"], got["Metadata"]) == (2, {"k": "v"})
    source = {"Bucket": bucket, "Key": "a"}
    s3.copy_object(Bucket=bucket, Key="b", CopySource=source)
    s3.copy_object(Bucket=bucket, Key="c", CopySource=source, TaggingDirective="REPLACE", Tagging="n=w")
    s3.copy_object(Bucket=bucket, Key="d", CopySource=source, MetadataDirective="REPLACE", Metadata={"n": "w"})
    found = [(tags(s3, bucket, key), s3.head_object(Bucket=bucket, Key=key)["Metadata"]) for key in "bcd"]
    assert found == [(tags(s3, bucket), {"k": "v"}), ({"n": "w"}, {"k": "v"}), (tags(s3, bucket), {"n": "w"})]
    s3.put_object_tagging(Bucket=bucket, Key="a", Tagging={"TagSet": [{"Key": "new", "Value": ""}]})
    assert tags(s3, bucket) == {"new": ""}
    wrong = [[("k", "v"), ("k", "w")], [(str(number), "") for number in range(11)], [("aws:k", "")], [("k", "v" * 257)]]
    for pairs in wrong:
        rows = [{"Key": key, "Value": value} for key, value in pairs]
        assert code(s3.put_object_tagging, Bucket=bucket, Key="a", Tagging={"TagSet": rows}) == ("InvalidTag", 400)
    assert tags(s3, bucket) == {"new": ""}
    s3.delete_object_tagging(Bucket=bucket, Key="a")
    got = s3.get_object(Bucket=bucket, Key="a")
    assert (tags(s3, bucket), "TagCount" in got, got["Body"].read(), got["Metadata"]) == ({}, False, b"1", {"k": "v"})
    assert code(s3.get_object_tagging, Bucket=bucket, Key="none") == ("NoSuchKey", 404)


@pytest.mark.usefixtures("true_times_of_buckets")
def test_buckets_have_the_time_of_their_creation(s3: Any) -> None:
    bucket = f"created-{uuid.uuid4().hex}"

    def created() -> datetime.datetime:
        return next(row["CreationDate"] for row in s3.list_buckets()["Buckets"] if row["Name"] == bucket)

    def create() -> None:
        before = datetime.datetime.now(datetime.UTC) - datetime.timedelta(milliseconds=1)
        s3.create_bucket(Bucket=bucket)
        assert before <= created() <= datetime.datetime.now(datetime.UTC)

    create()
    first = created()
    s3.create_bucket(Bucket=bucket)  # changes nothing
    assert created() == first
    s3.delete_bucket(Bucket=bucket)
    create()
    assert created() > first
    s3.delete_bucket(Bucket=bucket)


def test_a_uuid_of_a_bucket_tells_when_it_was_drawn_unless_it_is_an_old_one() -> None:
    before_ns = time.time_ns()
    drawn = [draw_bucket_uuid() for _ in range(1000)]
    assert len(set(drawn)) == 1000
    for one in drawn:
        assert uuid.UUID(bytes=one).version == 7 and uuid.UUID(bytes=one).variant == uuid.RFC_4122
        assert before_ns - 1_000_000 <= created_ns(one.hex()) <= time.time_ns()
    assert created_ns("018bcfe5687b7a3b8f4c1d2e3f405162") == 1_700_000_000_123_000_000
    assert created_ns(uuid.uuid4().hex) == 0


def test_access_lists_name_the_owner_alone(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="a", Body=b"1")
    for call, named in ((s3.get_bucket_acl, {}), (s3.get_object_acl, {"Key": "a"})):
        answer = call(Bucket=bucket, **named)
        granted = [(row["Grantee"]["ID"], row["Permission"]) for row in answer["Grants"]]
        assert granted == [(answer["Owner"]["ID"], "FULL_CONTROL")]
    s3.put_bucket_acl(Bucket=bucket, ACL="private")
    s3.put_object_acl(Bucket=bucket, Key="a", ACL="private")
    assert code(s3.put_bucket_acl, Bucket=bucket, ACL="public-read") == ("NotImplemented", 501)
    assert code(s3.put_bucket_acl, Bucket=bucket, ACL="public-ready") == ("InvalidArgument", 400)
    assert code(s3.put_object_acl, Bucket=bucket, Key="a", ACL="public-read") == ("NotImplemented", 501)
    assert code(s3.put_object_acl, Bucket=bucket, Key="none", ACL="private") == ("NoSuchKey", 404)


def test_conditions_of_deletions(s3: Any, bucket: str) -> None:
    etags = {key: s3.put_object(Bucket=bucket, Key=key, Body=key.encode())["ETag"] for key in "abcdef"}
    at = s3.head_object(Bucket=bucket, Key="a")["LastModified"]
    other = at - datetime.timedelta(days=1)
    for wrong in ({"IfMatch": '"x"'}, {"IfMatchSize": 9}, {"IfMatchLastModifiedTime": other}):
        assert code(s3.delete_object, Bucket=bucket, Key="a", **wrong) == ("PreconditionFailed", 412)
    s3.delete_object(Bucket=bucket, Key="a", IfMatch=etags["a"])
    s3.delete_object(Bucket=bucket, Key="a", IfMatch=etags["a"])  # repeated after an answer that was lost
    rows = [
        {"Key": "b", "ETag": etags["b"]},
        {"Key": "c", "ETag": etags["b"]},
        {"Key": "d", "Size": 1, "LastModifiedTime": s3.head_object(Bucket=bucket, Key="d")["LastModified"]},
        {"Key": "e", "Size": 2},
        {"Key": "none", "ETag": etags["b"]},
        {"Key": "f"},
    ]
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": rows})
    assert [row["Key"] for row in answer["Deleted"]] == ["b", "d", "none", "f"]
    assert [(row["Key"], row["Code"]) for row in answer["Errors"]] == [(key, "PreconditionFailed") for key in "ce"]
    assert [row["Key"] for row in s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["c", "e"]


def test_a_condition_on_the_etag_that_an_object_must_not_have(s3: Any, bucket: str) -> None:
    first = s3.put_object(Bucket=bucket, Key="a", Body=b"1", IfNoneMatch='"x"')["ETag"]
    assert code(s3.put_object, Bucket=bucket, Key="a", Body=b"2", IfNoneMatch=first) == ("PreconditionFailed", 412)
    s3.put_object(Bucket=bucket, Key="a", Body=b"3", IfNoneMatch='"x"')
    assert s3.get_object(Bucket=bucket, Key="a")["Body"].read() == b"3"


def test_a_completion_that_is_repeated(s3: Any, bucket: str) -> None:
    upload = begin(s3, bucket)
    part = put(s3, upload, 1, b"1")
    first = complete(s3, upload, [part])
    again = complete(s3, upload, [part])
    assert (first["ETag"], first["ChecksumCRC32C"]) == (again["ETag"], again["ChecksumCRC32C"])
    s3.put_object(Bucket=bucket, Key="a", Body=b"2")
    assert code(complete, s3=s3, upload=upload, parts=[part]) == ("NoSuchUpload", 404)
    assert s3.get_object(Bucket=bucket, Key="a")["Body"].read() == b"2"


def crc64nvme(data: bytes) -> int:
    from awscrt import checksums

    return int(checksums.crc64nvme(data))


@pytest.mark.parametrize(
    ("algorithm", "checksum", "size_bytes"), [("CRC32", zlib.crc32, 4), ("CRC64NVME", crc64nvme, 8)]
)
def test_checksums_of_whole_objects_of_parts(
    s3: Any, bucket: str, algorithm: str, checksum: Any, size_bytes: int
) -> None:
    bodies = [seeded_bytes(PART, 1), seeded_bytes(PART + 1, 2), seeded_bytes(7, 3)]
    whole = b"".join(bodies)

    def text(data: bytes) -> str:
        return base64.b64encode(checksum(data).to_bytes(size_bytes, "big")).decode()

    field = f"Checksum{algorithm}"
    upload = begin(s3, bucket, ChecksumAlgorithm=algorithm, ChecksumType="FULL_OBJECT")
    parts = []
    for number, body in enumerate(bodies, 1):
        answer = s3.upload_part(**upload, PartNumber=number, Body=body, ChecksumAlgorithm=algorithm)
        assert answer[field] == text(body)
        parts.append({"PartNumber": number, "ETag": answer["ETag"], field: answer[field]})
    wrong = {field: text(whole[1:]), "ChecksumType": "FULL_OBJECT"}
    assert code(complete, s3=s3, upload=upload, parts=parts, **wrong) == ("BadDigest", 400)
    assert code(s3.head_object, Bucket=bucket, Key="a") == ("404", 404)
    made = complete(s3, upload, parts, **{field: text(whole), "ChecksumType": "FULL_OBJECT"})
    assert (made[field], made["ChecksumType"]) == (text(whole), "FULL_OBJECT")
    got = s3.get_object(Bucket=bucket, Key="a", ChecksumMode="ENABLED")
    assert (got["Body"].read() == whole, got[field], got["ChecksumType"]) == (True, text(whole), "FULL_OBJECT")
    second = s3.get_object(Bucket=bucket, Key="a", PartNumber=2, ChecksumMode="ENABLED")
    assert (second["Body"].read() == bodies[1], second[field]) == (True, text(bodies[1]))
    wanted = ["ObjectParts"]
    shown = s3.get_object_attributes(Bucket=bucket, Key="a", ObjectAttributes=wanted, MaxParts=2)["ObjectParts"]
    found = [(row["PartNumber"], row["Size"], row[field]) for row in shown["Parts"]]
    assert found == [(1, PART, text(bodies[0])), (2, PART + 1, text(bodies[1]))]
    assert (shown["TotalPartsCount"], shown["IsTruncated"], shown["NextPartNumberMarker"]) == (3, True, 2)


@pytest.mark.parametrize(("algorithm", "kind"), [("CRC64NVME", "COMPOSITE"), ("SHA1", "FULL_OBJECT")])
def test_kinds_of_checksums_that_s3_does_not_have(s3: Any, bucket: str, algorithm: str, kind: str) -> None:
    refused = code(begin, s3=s3, bucket=bucket, ChecksumAlgorithm=algorithm, ChecksumType=kind)
    assert refused == ("InvalidRequest", 400)


@pytest.mark.parametrize(("polynomial", "checksum"), [(CRC32, zlib.crc32), (CRC64NVME, crc64nvme)])
def test_checksums_are_combined(polynomial: Any, checksum: Any) -> None:
    whole = seeded_bytes(1 << 12, 4)
    for cut in (0, 1, 7, 4095, 4096):
        first, second = whole[:cut], whole[cut:]
        assert combine(checksum(first), checksum(second), len(second), polynomial) == checksum(whole)


def test_markers_of_folders_may_have_bytes(served: Served, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="d/", Body=b"1")
    s3.put_object(Bucket=bucket, Key="d/a", Body=b"2")
    assert [s3.get_object(Bucket=bucket, Key=key)["Body"].read() for key in ("d/", "d/a")] == [b"1", b"2"]
    assert [row["Key"] for row in s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["d/", "d/a"]


def test_what_has_not_changed_has_its_etag(s3: Any, bucket: str) -> None:
    etag = s3.put_object(Bucket=bucket, Key="a", Body=b"1")["ETag"]
    with pytest.raises(s3.exceptions.ClientError) as refused:
        s3.get_object(Bucket=bucket, Key="a", IfNoneMatch=etag)
    assert refused.value.response["ResponseMetadata"]["HTTPHeaders"]["etag"] == etag


def test_clients_that_go_in_the_middle_of_an_answer_are_no_errors(
    served: Served, s3: Any, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    s3.put_object(Bucket=bucket, Key="a", Body=seeded_bytes(16 << 20))
    with GatewayThread(served.clients, None, limits=Limits(requests=1)) as gateway:
        with socket.create_connection(("127.0.0.1", gateway.port), timeout=180) as connection:
            connection.sendall(f"GET /{bucket}/a HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        # The only slot is free, and this is answered, when the other answer has ended.
        with urlopen(f"{gateway.url}/{bucket}?list-type=2", timeout=180) as answer:
            assert answer.status == 200
    assert [record.getMessage() for record in caplog.records if record.name.startswith("aiohttp")] == []


@table("text", ["1x40000000", "1x10001", "1x3", "x", "1x", "1x4", "-1x1,5x1"])
def test_parts_that_another_client_made_up_are_not_believed(served: Served, s3: Any, bucket: str, text: str) -> None:
    store = served.client.bucket(bucket)
    checksum = store.put("a", b"1234").checksum
    info = store.put("a", b"1234", metadata={"s3.parts": f"{text} {checksum:08x} 4"})
    is_true = text == "1x4"
    assert part_sizes(info) == ([1, 1, 1, 1] if is_true else [])
    got = s3.get_object(Bucket=bucket, Key="a", PartNumber=1)
    assert got["Body"].read() == (b"1" if is_true else b"1234")
