"""The AWS command line, of version 1 or 2: a folder of files, single objects, and calls of the interface."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from urllib.request import urlopen

from checks import bucket_name, check, end, endpoint, equal, large
from commands import program, read_files, runner, write_files

aws = runner(program("aws"), "--endpoint-url", endpoint(), "--region", "us-east-1")
bucket, folder = bucket_name(), Path(tempfile.mkdtemp())
stored, body = write_files(folder / "in"), large()
(folder / "large").write_bytes(body)

with check("puts"):
    aws("s3", "mb", f"s3://{bucket}")
    aws("s3", "cp", "--recursive", "--quiet", str(folder / "in"), f"s3://{bucket}/")
with check("lists"):
    rows = [line.split(maxsplit=3) for line in aws("s3", "ls", "--recursive", f"s3://{bucket}/").splitlines()]
    equal({row[3]: int(row[2]) for row in rows}, {key: len(data) for key, data in stored.items()})
    rows = json.loads(aws("s3api", "list-objects-v2", "--bucket", bucket, "--page-size", "33"))["Contents"]
    equal([row["Key"] for row in rows], sorted(stored))
with check("reads"):
    aws("s3", "sync", "--quiet", f"s3://{bucket}/", str(folder / "out"))
    equal(read_files(folder / "out"), stored)
with check("multipart upload"):
    aws("s3", "cp", "--quiet", str(folder / "large"), f"s3://{bucket}/large")
    aws("s3", "cp", "--quiet", f"s3://{bucket}/large", str(folder / "again"))
    equal((folder / "again").read_bytes() == body, True)
with check("range reads"):
    named = ("--bucket", bucket, "--key", "large")
    aws("s3api", "get-object", *named, "--range", "bytes=5-1048580", str(folder / "range"))
    equal((folder / "range").read_bytes() == body[5:1048581], True)
with check("copies"):
    aws("s3", "cp", "--quiet", f"s3://{bucket}/large", f"s3://{bucket}/copy")
    aws("s3", "mv", "--quiet", f"s3://{bucket}/odd/a b.bin", f"s3://{bucket}/odd/moved")
    aws("s3", "cp", "--quiet", f"s3://{bucket}/copy", str(folder / "copy"))
    aws("s3", "cp", "--quiet", f"s3://{bucket}/odd/moved", str(folder / "moved"))
    equal((folder / "copy").read_bytes() == body, True)
    equal((folder / "moved").read_bytes(), stored["odd/a b.bin"])
with check("conditions"):
    etag = json.loads(aws("s3api", "head-object", *named))["ETag"]
    aws("s3api", "get-object", *named, "--if-match", etag, str(folder / "same"))
    for arguments, status in ((("--if-match", '"x"'), "412"), (("--if-none-match", etag), "304")):
        try:
            aws("s3api", "get-object", *named, *arguments, str(folder / "other"))
        except RuntimeError as error:
            equal(status in str(error) or "Precondition" in str(error), True)
        else:
            raise AssertionError("it was not refused")
with check("presigned addresses"), urlopen(aws("s3", "presign", f"s3://{bucket}/odd/é.bin").strip()) as got:
    equal(got.read(), stored["odd/é.bin"])
with check("deletes"):
    aws("s3", "rm", "--recursive", "--quiet", f"s3://{bucket}/")
    equal(aws("s3", "ls", "--recursive", f"s3://{bucket}/").strip(), "")
    aws("s3", "rb", f"s3://{bucket}")
end()
