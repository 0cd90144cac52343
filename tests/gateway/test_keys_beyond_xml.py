"""Keys with characters for which XML has no form, in every answer that names a key."""

from __future__ import annotations

import http.client
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote

import pytest

from tests.gateway.conftest import Served
from tests.gateway.gateway_thread import GatewayThread
from tests.table import table

KEYS = ["a\x01b", "a\x0b/c", "a\x1f+ %d", "a\x7f", "a\ufffee", "a?b", "ä&<"]


@pytest.fixture(scope="module")
def gateway(served: Served) -> Iterator[GatewayThread]:
    with GatewayThread(served.clients, None) as gateway:
        yield gateway


def asked(gateway: GatewayThread, method: str, path: str, body: bytes = b"", **query: str) -> ET.Element:
    """Return the document of an answer, without its namespace."""
    text = "&".join(f"{name.replace('_', '-')}={quote(value, safe='')}" for name, value in query.items())
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=180)
    try:
        connection.request(method, f"{quote(path)}?{text}", body)
        answer = connection.getresponse()
        data = answer.read()
        assert answer.status == 200, data
        return ET.fromstring(data.replace(b' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"', b""))
    finally:
        connection.close()


def texts(document: ET.Element, path: str) -> list[str]:
    """Return the texts of elements, decoded if the document says that they are encoded."""
    is_url = document.findtext("EncodingType") == "url"
    return [unquote(one.text or "") if is_url else one.text or "" for one in document.iterfind(path)]


@table("query", [{}, {"list_type": "2"}, {"versions": ""}, {"uploads": ""}], ids=str)
def test_listings_name_the_keys_that_are_there(
    gateway: GatewayThread, served: Served, bucket: str, query: dict[str, str]
) -> None:
    place = served.client.bucket(bucket)
    for key in KEYS:
        place.put(key, b"x")
        for upload in [one for one in place.uploads() if one.name == key]:
            place.multipart(key, upload_id=upload.id).abort()
        place.multipart(key)
    row = {"versions": "Version", "uploads": "Upload"}.get("".join(query.keys() - {"list_type"}), "Contents")
    assert texts(asked(gateway, "GET", f"/{bucket}", **query), f"{row}/Key") == sorted(KEYS)
    for most in ("1", "2"):
        found: list[str] = []
        marker = {} if query.get("list_type") else {"max_keys": most, "max_uploads": most}
        while marker:
            page = asked(gateway, "GET", f"/{bucket}", **query, **marker)
            found += texts(page, f"{row}/Key")
            ending = texts(page, "NextKeyMarker") or texts(page, "NextMarker")
            marker = {**marker, "key_marker": ending[0], "marker": ending[0]} if ending else {}
            if ending and (upload := page.findtext("NextUploadIdMarker")):
                marker["upload_id_marker"] = upload
        assert found == ([] if query.get("list_type") else sorted(KEYS))
    folders = asked(gateway, "GET", f"/{bucket}", **query, delimiter="/", prefix="a\x0b")
    assert texts(folders, "CommonPrefixes/Prefix") == ["a\x0b/"] and texts(folders, "Prefix") == ["a\x0b"]
    plain = asked(gateway, "GET", f"/{bucket}", **query, prefix="ä")
    assert plain.find("EncodingType") is None and texts(plain, f"{row}/Key") == ["ä&<"]


def test_boto3_lists_them(s3: Any, served: Served, bucket: str) -> None:
    for key in KEYS:
        s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    for call, field in (
        ("list_objects", "Contents"),
        ("list_objects_v2", "Contents"),
        ("list_object_versions", "Versions"),
    ):
        pages = s3.get_paginator(call).paginate(Bucket=bucket, PaginationConfig={"PageSize": 2})
        assert [row["Key"] for page in pages for row in page[field]] == sorted(KEYS)


def test_uploads_name_their_key(gateway: GatewayThread, bucket: str) -> None:
    for key in KEYS:
        path = f"/{bucket}/{key}"
        begun = asked(gateway, "POST", path, uploads="")
        upload = begun.findtext("UploadId") or ""
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=180)
        connection.request("PUT", f"{quote(path)}?uploadId={upload}&partNumber=1", b"x")
        etag = connection.getresponse().getheader("etag")
        connection.close()
        parts = asked(gateway, "GET", path, uploadId=upload)
        rows = f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>"
        made = asked(gateway, "POST", path, f"{rows}</CompleteMultipartUpload>".encode(), uploadId=upload)
        for document in (begun, parts, made):
            assert texts(document, "Key") == [key]
        assert unquote(made.findtext("Location") or "") == path


def test_tags_that_xml_cannot_carry_are_refused(s3: Any, bucket: str) -> None:
    for tagging in ("a=%01", "%0B=b", "a=%EF%BF%BE"):
        with pytest.raises(s3.exceptions.ClientError, match="InvalidTag"):
            s3.put_object(Bucket=bucket, Key="a", Body=b"", Tagging=tagging)
