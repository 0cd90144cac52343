"""s3torchconnector: data sets and checkpoints of PyTorch."""

from __future__ import annotations

import io

import boto3
import torch
from checks import bucket_name, check, end, endpoint, equal, large, objects
from s3torchconnector import S3Checkpoint, S3ClientConfig, S3IterableDataset, S3MapDataset
from s3torchconnector._s3client import S3Client

bucket, stored, body = bucket_name(), objects(), large()
s3 = boto3.client("s3", "us-east-1", endpoint_url=endpoint())
s3.create_bucket(Bucket=bucket)
config = S3ClientConfig(force_path_style=True)
options = {"region": "us-east-1", "endpoint": endpoint(), "s3client_config": config}
client = S3Client("us-east-1", endpoint=endpoint(), s3client_config=config)

with check("puts"):
    for key, data in stored.items():
        with client.put_object(bucket, key) as writer:
            writer.write(data)
with check("lists and reads"):
    data_set = S3IterableDataset.from_prefix(f"s3://{bucket}/", **options, transform=lambda one: (one.key, one.read()))
    equal(dict(data_set), stored)
    mapped = S3MapDataset.from_prefix(f"s3://{bucket}/d0/", **options, transform=lambda one: (one.key, one.read()))
    equal(
        dict(mapped[at] for at in range(len(mapped))), {key: data for key, data in stored.items() if key[:3] == "d0/"}
    )
with check("multipart upload"):
    with client.put_object(bucket, "large") as writer:
        for start in range(0, len(body), 1 << 20):
            writer.write(body[start : start + (1 << 20)])
    equal(client.get_object(bucket, "large").read() == body, True)
with check("range reads"):
    reader = client.get_object(bucket, "large")
    reader.seek(5 << 20)
    equal(reader.read(1 << 20) == body[5 << 20 : 6 << 20], True)
with check("checkpoints"):
    checkpoint, weights = S3Checkpoint(**options), {"w": torch.arange(1 << 20)}
    with checkpoint.writer(f"s3://{bucket}/c.pt") as writer:
        torch.save(weights, writer)
    with checkpoint.reader(f"s3://{bucket}/c.pt") as reader:
        equal(torch.equal(torch.load(io.BytesIO(reader.read()))["w"], weights["w"]), True)
with check("copies"):
    client.copy_object(bucket, "large", bucket, "copy")
    equal(client.get_object(bucket, "copy").read() == body, True)
with check("deletes"):
    for page in client.list_objects(bucket):
        for row in page.object_info:
            client.delete_object(bucket, row.key)
    equal(s3.list_objects_v2(Bucket=bucket)["KeyCount"], 0)
    s3.delete_bucket(Bucket=bucket)
end()
