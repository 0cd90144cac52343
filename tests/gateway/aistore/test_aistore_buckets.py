"""Buckets: create, destroy, list, properties, summaries; and those of remote storage."""

from __future__ import annotations

import json

from ais_loader.integrations.gateway.aistore.buckets import props_of
from ais_loader.transport.base import BucketInfo
from tests.gateway.aistore.conftest import Ais
from tests.gateway.conftest import Served
from tests.table import table


def test_life(ais: Ais, bucket: str) -> None:
    name = f"{bucket}-a.B_1"
    path = f"buckets/{name}"
    assert (ais("POST", path, {"action": "create-bck"}).status, ais("HEAD", path).status) == (200, 200)
    again = ais("POST", path, {"action": "create-bck"}, provider="ais")
    assert (again.status, again.message()) == (409, f'bucket "ais://{name}" already exists')
    ais.put(name, "x", b"1")
    for body in ({"action": "list", "name": name}, {"action": "list", "name": ""}, None):
        listed = ais("GET", "buckets", body, provider="ais").json()
        assert {"name": name, "provider": "ais", "namespace": {"uuid": "", "name": ""}} in listed
        assert (len(listed) == 1) == bool(body and body["name"])
    assert ais("GET", "buckets", {"action": "list", "name": "none"}, provider="").json() == []
    assert ais("DELETE", path).status == 400
    assert ais("DELETE", path, {"action": "destroy-bck"}).status == 200
    gone = ais("DELETE", path, {"action": "destroy-bck"})
    assert (gone.status, gone.message()) == (404, f'bucket "ais://{name}" does not exist')
    head = ais("HEAD", path)
    assert (head.status, head.body) == (404, b"")
    assert json.loads(head.headers["hdr-error"])["message"] == f'bucket "ais://{name}" does not exist'


@table("name", ["*", "%20", "%24x", "~x", ".x", "a%2Fb", "x" * 64, "%00"])
def test_names_that_no_bucket_has(ais: Ais, name: str) -> None:
    answer = ais("POST", f"buckets/{name}", {"action": "create-bck"})
    assert answer.status == 400 and answer.message()


def test_properties(ais: Ais, bucket: str) -> None:
    path = f"buckets/{bucket}"
    props = json.loads(ais("HEAD", path).headers["ais-bucket-props"])
    assert props["provider"] == "ais" and props["checksum"]["type"] == "crc32c"
    assert props["mirror"] == {"enabled": False, "copies": 1, "burst_buffer": 0}
    assert int(props["access"]) and int(props["bid"])
    for same in (
        {"checksum": {"type": "crc32c"}},
        {"mirror": {"copies": 1}},
        {"extra": {}},
        {"lru": {"enabled": False}},
    ):
        assert ais("PATCH", path, {"action": "set-bprops", "value": same}).status == 200, same
    for wrong in ({"mirror": {"copies": "2"}}, {"mirror": {"enabled": True}}, {"mirror": {"copies": 2}}):
        assert ais("PATCH", path, {"action": "set-bprops", "value": wrong}).status == 400, wrong
        assert ais("POST", f"{path}-x", {"action": "create-bck", "value": wrong}).status == 400
    for other in ({"checksum": {"type": "md5"}}, {"ec": {"enabled": True}}, {"x": 1}, {"mirror": {"x": 1}}):
        answer = ais("PATCH", path, {"action": "set-bprops", "value": other})
        assert answer.status == 501 and "not supported" in answer.message(), other
        assert ais("POST", f"{path}-x", {"action": "create-bck", "value": other}).status == 501


def test_summaries(ais: Ais, bucket: str) -> None:
    for name, data in {"a/1": b"123", "a/2": b"4567", "b": b"8"}.items():
        ais.put(bucket, name, data)
    asked = {"uuid": "", "prefix": "a/", "cached": True, "present": True}
    first = ais("GET", f"buckets/{bucket}", {"action": "summary-bck", "value": asked})
    assert first.status == 202 and first.body
    value = {**asked, "uuid": first.body.decode()}
    (found,) = ais("GET", f"buckets/{bucket}", {"action": "summary-bck", "value": value}).json()
    assert (found["name"], found["provider"]) == (bucket, "ais")
    assert found["ObjCount"] == {"obj_count_present": "2", "obj_count_remote": "0"}
    assert found["TotalSize"]["size_all_present_objs"] == "7"
    assert ais("GET", "buckets", {"action": "summary-bck"}).status == 202
    for provider in ({}, {"provider": "ais"}):
        every = ais("GET", "buckets", {"action": "summary-bck", "value": value}, **provider).json()
        assert found in every
    assert ais("GET", "buckets", {"action": "summary-bck", "value": value}, provider="azure").json() == []
    missing = ais("GET", "buckets/none", {"action": "summary-bck", "value": asked})
    assert missing.message() == 'bucket "ais://none" does not exist'
    for prefix, count in (("", "3"), ("/a/", "2"), ("/%C3%A9", "0")):
        begun = ais("HEAD", f"buckets/{bucket}{prefix}", bsumm_remote="True")
        assert begun.status == 202 and json.loads(begun.headers["ais-bucket-props"])
        done = ais("HEAD", f"buckets/{bucket}", bsumm_remote="True", uuid=begun.headers["ais-xaction-id"])
        assert done.status == 200
        assert json.loads(done.headers["ais-bucket-summ"])["ObjCount"]["obj_count_present"] == count
    assert ais("HEAD", f"buckets/{bucket}", bsumm_remote="True", uuid="summary-~").status == 404


def test_remote_buckets(ais: Ais, served: Served, bucket: str) -> None:
    name = f"{bucket}-remote"
    served.client.create_bucket(name, remote="s3://of-a-test/prefix")
    row = {"name": name, "provider": "aws", "namespace": {"uuid": "", "name": ""}}
    assert row in ais("GET", "buckets", provider="s3").json()
    assert row in ais("GET", "buckets").json()
    assert name not in [one["name"] for one in ais("GET", "buckets", provider="ais").json()]
    for provider in ("aws", "s3", "ais"):
        assert json.loads(ais("HEAD", f"buckets/{name}", provider=provider).headers["ais-bucket-props"])[
            "provider"
        ] == ("aws")
    other = ais("GET", f"objects/{name}/x", provider="gs")
    assert (other.status, other.message()) == (404, f'bucket "gcp://{name}" does not exist')
    refused = ais("DELETE", f"buckets/{name}", {"action": "destroy-bck"}, provider="aws")
    assert refused.status == 400 and "evict" in refused.message()
    assert ais("POST", f"buckets/{name}2", {"action": "create-bck"}, provider="aws").status == 501
    served.client.delete_bucket(name)


def test_a_snapshot(ais: Ais, served: Served, bucket: str) -> None:
    ais.put(bucket, "x", b"old")
    served.client.bucket(bucket).snapshot("s")
    ais.put(bucket, "x", b"new")
    assert ais.get(f"{bucket}@s", "x").body == b"old"
    refused = ais("PUT", f"objects/{bucket}@s/x", b"")
    assert refused.status == 403 and refused.message()
    assert ais("DELETE", f"buckets/{bucket}", {"action": "destroy-bck"}).status == 400
    served.client.bucket(bucket).delete_snapshot("s")


def test_properties_say_how_an_erasure_coded_bucket_is_kept() -> None:
    props = props_of(BucketInfo("b", "0" * 32, 3, redundancy="rs:4+2"))
    assert props["ec"] == {"enabled": True, "data_slices": 4, "parity_slices": 2, "objsize_limit": 0}
    assert props["mirror"] == {"enabled": False, "copies": 1, "burst_buffer": 0}
    assert props_of(BucketInfo("b", "0" * 32, 3))["mirror"]["copies"] == 3
