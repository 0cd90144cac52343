"""obstore: Rust's object_store, which Polars and others use."""

from __future__ import annotations

import boto3
import obstore
from checks import ACCESS_KEY, MIB, SECRET_KEY, bucket_name, check, end, endpoint, equal, large, objects
from obstore.store import S3Store

bucket, stored, body = bucket_name(), objects(), large()
boto3.client("s3", "us-east-1", endpoint_url=endpoint()).create_bucket(Bucket=bucket)  # it creates none itself
store = S3Store(
    bucket,
    endpoint=endpoint(),
    access_key_id=ACCESS_KEY,
    secret_access_key=SECRET_KEY,
    region="us-east-1",
    virtual_hosted_style_request=False,
    client_options={"allow_http": True},
)

with check("puts"):
    for key, data in stored.items():
        obstore.put(store, key, data)
with check("lists"):
    rows = {row["path"]: row["size"] for page in obstore.list(store, chunk_size=33) for row in page}
    equal(rows, {key: len(data) for key, data in stored.items()})
    found = obstore.list_with_delimiter(store)
    equal(sorted(found["common_prefixes"]), [*(f"d{number}" for number in range(5)), "odd"])
with check("reads"):
    equal({key: bytes(obstore.get(store, key).bytes()) for key in stored}, stored)
with check("multipart upload"):
    obstore.put(store, "large", body, use_multipart=True, chunk_size=5 * MIB)
    equal(bytes(obstore.get(store, "large").bytes()) == body, True)
with check("range reads"):
    found = obstore.get_ranges(store, "large", starts=[0, 9 * MIB], lengths=[5, MIB])
    equal(
        [bytes(one) == body[at : at + size] for one, at, size in zip(found, (0, 9 * MIB), (5, MIB), strict=False)],
        [True, True],
    )
with check("copies"):
    obstore.copy(store, "large", "copy")
    obstore.rename(store, "copy", "moved")
    equal(bytes(obstore.get(store, "moved").bytes()) == body, True)
with check("conditions"):
    info = obstore.head(store, "large")
    for refused, call in (
        (obstore.exceptions.AlreadyExistsError, lambda: obstore.put(store, "large", b"2", mode="create")),
        (obstore.exceptions.PreconditionError, lambda: obstore.put(store, "large", b"2", mode={"e_tag": '"x"'})),
        (
            obstore.exceptions.NotModifiedError,
            lambda: obstore.get(store, "large", options={"if_none_match": info["e_tag"]}),
        ),
    ):
        try:
            call()
        except refused:
            continue
        raise AssertionError(f"{refused.__name__} was not raised")
    obstore.put(store, "large", b"2", mode={"e_tag": info["e_tag"]})
    equal(bytes(obstore.get(store, "large").bytes()), b"2")
with check("deletes"):
    obstore.delete(store, [row["path"] for page in obstore.list(store) for row in page])
    equal([row for page in obstore.list(store) for row in page], [])
end()
