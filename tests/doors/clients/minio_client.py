"""minio-py: objects, parts, copies and conditions."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from urllib.request import urlopen

from checks import ACCESS_KEY, MIB, SECRET_KEY, bucket_name, check, end, endpoint, equal, large, objects
from minio import Minio
from minio.commonconfig import ComposeSource, CopySource
from minio.deleteobjects import DeleteObject
from minio.error import S3Error

client = Minio(endpoint().removeprefix("http://"), access_key=ACCESS_KEY, secret_key=SECRET_KEY, secure=False)
bucket, stored, body = bucket_name(), objects(), large()


def read(key: str, **arguments: int) -> bytes:
    answer = client.get_object(bucket, key, **arguments)
    try:
        return answer.read()
    finally:
        answer.close()
        answer.release_conn()


with check("puts"):
    client.make_bucket(bucket)
    for key, data in stored.items():
        client.put_object(bucket, key, io.BytesIO(data), len(data))
with check("lists"):
    rows = {row.object_name: row.size for row in client.list_objects(bucket, recursive=True)}
    equal(rows, {key: len(data) for key, data in stored.items()})
    folders = [row.object_name for row in client.list_objects(bucket) if row.is_dir]
    equal(sorted(folders), [*(f"d{number}/" for number in range(5)), "odd/"])
with check("reads"):
    equal({key: read(key) for key in stored}, stored)
with check("multipart upload"):
    client.put_object(bucket, "large", io.BytesIO(body), -1, part_size=5 * MIB)
    equal(read("large") == body, True)
with check("range reads"):
    equal(read("large", offset=5, length=MIB) == body[5 : 5 + MIB], True)
with check("copies"):
    client.copy_object(bucket, "copy", CopySource(bucket, "odd/é.bin"))
    equal(read("copy"), stored["odd/é.bin"])
    client.compose_object(bucket, "composed", [ComposeSource(bucket, "large"), ComposeSource(bucket, "large")])
    equal(read("composed") == body * 2, True)
with check("conditions"):
    source = CopySource(bucket, "large", modified_since=datetime.now(UTC) + timedelta(days=1))
    try:
        client.copy_object(bucket, "newer", source)
    except S3Error as error:
        equal(error.code, "PreconditionFailed")
    else:
        raise AssertionError("it was not refused")
with check("presigned addresses"), urlopen(client.presigned_get_object(bucket, "odd/a b.bin")) as got:
    equal(got.read(), stored["odd/a b.bin"])
with check("deletes"):
    keys = [DeleteObject(row.object_name) for row in client.list_objects(bucket, recursive=True)]
    equal(list(client.remove_objects(bucket, keys)), [])
    equal(list(client.list_objects(bucket, recursive=True)), [])
    client.remove_bucket(bucket)
end()
