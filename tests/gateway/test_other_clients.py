"""Clients other than boto3: obstore and pyarrow, which frame bodies and walk folders in their own ways."""

from __future__ import annotations

import obstore
import pytest
from obstore.store import S3Store

from tests.gateway.conftest import ACCOUNT, Served
from tests.gateway.test_boto3 import data


@pytest.fixture
def store(served: Served, bucket: str) -> S3Store:
    return S3Store(
        bucket,
        endpoint=served.url,
        access_key_id=ACCOUNT.access_key,
        secret_access_key=ACCOUNT.secret_key,
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


def test_obstore(store: S3Store) -> None:
    bodies = {"a": b"1", "d/b c": data(1, 1 << 20), "d/large": data(2, 12 << 20)}
    for key, body in bodies.items():
        obstore.put(store, key, body)
    assert {key: bytes(obstore.get(store, key).bytes()) for key in bodies} == bodies
    assert bytes(obstore.get_range(store, "d/large", start=7, length=9)) == bodies["d/large"][7:16]
    obstore.copy(store, "a", "d/copy")
    obstore.rename(store, "d/copy", "d/renamed")
    listed = sorted(row["path"] for page in obstore.list(store) for row in page)
    assert listed == sorted([*bodies, "d/renamed"])
    found = obstore.list_with_delimiter(store)
    assert ([row["path"] for row in found["objects"]], list(found["common_prefixes"])) == (["a"], ["d"])
    with pytest.raises(obstore.exceptions.AlreadyExistsError):
        obstore.put(store, "a", b"2", mode="create")
    obstore.delete(store, listed)
    assert [row for page in obstore.list(store) for row in page] == []


def test_pyarrow(served: Served, bucket: str) -> None:
    from pyarrow import fs

    files = fs.S3FileSystem(
        access_key=ACCOUNT.access_key,
        secret_key=ACCOUNT.secret_key,
        region="us-east-1",
        endpoint_override=served.url,
        allow_bucket_creation=True,
    )
    bodies = {"d/a": b"1", "d/e/large": data(3, 12 << 20)}
    for key, body in bodies.items():
        with files.open_output_stream(f"{bucket}/{key}") as file:
            file.write(body)
    for key, body in bodies.items():
        with files.open_input_file(f"{bucket}/{key}") as file:
            assert file.read() == body
            file.seek(0)
            assert file.read(1) == body[:1]
    found = files.get_file_info(fs.FileSelector(f"{bucket}/d", recursive=True))
    expected = [(f"{bucket}/d/a", 1), (f"{bucket}/d/e", None), (f"{bucket}/d/e/large", 12 << 20)]
    assert sorted((info.path, info.size) for info in found) == expected
    files.create_dir(f"{bucket}/empty/inside")
    assert files.get_file_info(f"{bucket}/empty/inside").type == fs.FileType.Directory
    files.move(f"{bucket}/d/a", f"{bucket}/d/b")
    files.delete_file(f"{bucket}/d/b")  # puts the marker d/ again
    assert files.get_file_info(f"{bucket}/d").type == fs.FileType.Directory
    files.delete_dir(f"{bucket}/d")
    files.delete_dir(f"{bucket}/empty")
    assert list(served.client.bucket(bucket)) == []
