"""pyarrow: files, folders, and a data set of Parquet."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.dataset as ds
from checks import ACCESS_KEY, MIB, SECRET_KEY, bucket_name, check, end, endpoint, equal, large, objects
from pyarrow import fs

files = fs.S3FileSystem(
    access_key=ACCESS_KEY,
    secret_key=SECRET_KEY,
    region="us-east-1",
    endpoint_override=endpoint(),
    allow_bucket_creation=True,
    allow_bucket_deletion=True,
)
bucket, stored, body = bucket_name(), objects(), large()


def read(key: str) -> bytes:
    with files.open_input_stream(f"{bucket}/{key}") as file:
        return bytes(file.read())


def write(key: str, data: bytes) -> None:
    with files.open_output_stream(f"{bucket}/{key}") as file:
        file.write(data)


with check("puts"):
    files.create_dir(bucket)
    for key, data in stored.items():
        write(key, data)
with check("lists"):
    found = files.get_file_info(fs.FileSelector(bucket, recursive=True))
    rows = {row.path.removeprefix(f"{bucket}/"): row.size for row in found if row.type == fs.FileType.File}
    equal(rows, {key: len(data) for key, data in stored.items()})
with check("reads"):
    equal({key: read(key) for key in stored}, stored)
with check("multipart upload"):
    write("large", body)
    equal(read("large") == body, True)
with check("range reads"), files.open_input_file(f"{bucket}/large") as file:
    equal(file.read_at(MIB, 5) == body[5 : 5 + MIB], True)
with check("copies"):
    files.copy_file(f"{bucket}/large", f"{bucket}/copy")
    files.move(f"{bucket}/copy", f"{bucket}/moved")
    equal(read("moved") == body, True)
with check("a data set of Parquet"):
    table = pa.table({"number": list(range(10_000)), "text": [f"row {number}" for number in range(10_000)]})
    ds.write_dataset(
        table, f"{bucket}/table", filesystem=files, format="parquet", max_rows_per_file=3000, max_rows_per_group=3000
    )
    got = ds.dataset(f"{bucket}/table", filesystem=files).to_table().sort_by("number")
    equal(got.equals(table), True)
with check("deletes"):
    files.delete_file(f"{bucket}/d0/000.bin")
    equal(files.get_file_info(f"{bucket}/d0").type, fs.FileType.Directory)
    files.delete_dir_contents(bucket)
    equal(files.get_file_info(fs.FileSelector(bucket, recursive=True)), [])
    files.delete_dir(bucket)
end()
