"""What others change in the middle of a request: it is answered as if it had come before the change, or after it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from ais_loader import errors
from ais_loader.objects.bucket import Bucket
from ais_loader.values.entry import ObjectInfo
from tests.gateway.conftest import Served
from tests.gateway.meanwhile_kit import just_before
from tests.gateway.test_boto3 import code
from tests.gateway.test_gateway_multipart import begin, complete, put
from tests.gateway.test_s3_details import tags

OTHER = "0" * 32
TAG = {"TagSet": [{"Key": "t", "Value": "1"}]}


def test_tags_of_an_object_that_is_replaced(served: Served, s3: Any, bucket: str) -> None:
    replace = partial(s3.put_object, Bucket=bucket, Key="a", Body=b"2", Metadata={"k": "v"})
    s3.put_object(Bucket=bucket, Key="a", Body=b"1")
    with just_before(Bucket, "set_metadata", replace, times=2):
        s3.put_object_tagging(Bucket=bucket, Key="a", Tagging=TAG)
    got = s3.get_object(Bucket=bucket, Key="a")
    assert (tags(s3, bucket), got["Metadata"], got["Body"].read()) == ({"t": "1"}, {"k": "v"}, b"2")
    with just_before(Bucket, "set_metadata", replace):
        s3.delete_object_tagging(Bucket=bucket, Key="a")
    assert (tags(s3, bucket), s3.head_object(Bucket=bucket, Key="a")["Metadata"]) == ({}, {"k": "v"})
    with just_before(Bucket, "set_metadata", replace, times=5):
        assert code(s3.put_object_tagging, Bucket=bucket, Key="a", Tagging=TAG) == ("SlowDown", 503)


@pytest.mark.parametrize("to", ["a", "b"])
def test_a_copy_of_an_object_that_is_replaced(served: Served, s3: Any, bucket: str, to: str) -> None:
    replace = partial(s3.put_object, Bucket=bucket, Key="a", Body=b"2")
    etag = s3.put_object(Bucket=bucket, Key="a", Body=b"1")["ETag"]
    copy: dict[str, Any] = {"Bucket": bucket, "Key": to, "CopySource": {"Bucket": bucket, "Key": "a"}}
    copy |= {"MetadataDirective": "REPLACE", "Metadata": {"k": "v"}}
    transport = served.client._transport
    with just_before(transport, "compose", replace):
        assert code(s3.copy_object, **copy, CopySourceIfMatch=etag) == ("PreconditionFailed", 412)
    with just_before(transport, "compose", replace, times=2):
        s3.copy_object(**copy)
    got = s3.get_object(Bucket=bucket, Key=to)
    assert (got["Body"].read(), got["Metadata"]) == (b"2", {"k": "v"})
    with just_before(transport, "compose", partial(s3.delete_object, Bucket=bucket, Key="a")):
        assert code(s3.copy_object, **copy) == ("NoSuchKey", 404)


def test_a_copy_of_an_object_to_itself_that_is_replaced_as_it_is_committed(
    served: Served, s3: Any, bucket: str
) -> None:
    s3.put_object(Bucket=bucket, Key="a", Body=b"1")
    copy: dict[str, Any] = {"Bucket": bucket, "Key": "a", "CopySource": {"Bucket": bucket, "Key": "a"}}
    copy |= {"MetadataDirective": "REPLACE", "Metadata": {"k": "v"}}
    transport, conflicts = served.client._transport, [b"2", b"3"]
    compose = transport.compose

    def replaced(request: Any) -> Any:
        if conflicts:  # as by a put between the read of the source and the commit
            s3.put_object(Bucket=bucket, Key="a", Body=conflicts.pop(0))
            request.part[0].range.version = served.client.bucket(bucket).head("a").version
        return compose(request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transport, "compose", replaced)
        s3.copy_object(**copy)
        got = s3.get_object(Bucket=bucket, Key="a")
        assert (got["Body"].read(), got["Metadata"]) == (b"3", {"k": "v"})
        conflicts.append(b"4")
        assert code(s3.copy_object, **copy, IfMatch=got["ETag"]) == ("PreconditionFailed", 412)


def test_a_part_of_an_object_that_is_replaced(served: Served, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="source", Body=b"1")
    upload, transport = begin(s3, bucket), served.client._transport
    copy: dict[str, Any] = {**upload, "PartNumber": 1, "CopySource": {"Bucket": bucket, "Key": "source"}}
    with just_before(transport, "compose", partial(s3.put_object, Bucket=bucket, Key="source", Body=b"2")):
        part = s3.upload_part_copy(**copy)["CopyPartResult"]
    with just_before(transport, "compose", partial(s3.put_object, Bucket=bucket, Key="a", Body=b"other")):
        complete(s3, upload, [{"PartNumber": 1, "ETag": part["ETag"]}])
    assert s3.get_object(Bucket=bucket, Key="a")["Body"].read() == b"2"
    copy |= begin(s3, bucket)
    upload = {name: copy[name] for name in ("Bucket", "Key", "UploadId")}
    with just_before(transport, "compose", partial(s3.abort_multipart_upload, **upload)):
        assert code(s3.upload_part_copy, **copy) == ("NoSuchUpload", 404)
    assert [one.parts for one in served.client.bucket(bucket).uploads()] == []


def test_a_condition_of_a_deletion_holds_for_an_object_that_is_put_meanwhile(
    served: Served, s3: Any, bucket: str
) -> None:
    store = served.client.bucket(bucket)

    def put_as_it_is_looked_for(self: Bucket, name: str) -> ObjectInfo:
        store.put(name, b"1")
        raise errors.ObjectNotFound(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bucket, "head", put_as_it_is_looked_for)
        s3.delete_object(Bucket=bucket, Key="a", IfMatch=OTHER)
        answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "b", "ETag": OTHER}]})
    assert [row["Key"] for row in answer["Deleted"]] == ["b"]
    assert {name: store.get(name) for name in store} == {"a": b"1", "b": b"1"}


def test_a_part_that_is_put_again_as_its_upload_is_completed(served: Served, s3: Any, bucket: str) -> None:
    upload, transport = begin(s3, bucket), served.client._transport
    part = put(s3, upload, 1, b"1")
    with just_before(transport, "compose", partial(put, s3, upload, 1, b"2")):
        assert code(complete, s3=s3, upload=upload, parts=[part]) == ("InvalidPart", 400)
    part = put(s3, upload, 1, b"2")
    with just_before(transport, "compose", partial(s3.abort_multipart_upload, **upload)):
        assert code(complete, s3=s3, upload=upload, parts=[part]) == ("NoSuchUpload", 404)
    upload = begin(s3, bucket)
    complete(s3, upload, [put(s3, upload, 1, b"2")])
    assert s3.get_object(Bucket=bucket, Key="a")["Body"].read() == b"2"
