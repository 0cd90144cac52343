"""s5cmd: a folder of files, single objects, and copies on the server."""

from __future__ import annotations

import tempfile
from pathlib import Path

from checks import bucket_name, check, end, endpoint, equal, large
from commands import program, read_files, runner, write_files

s5cmd = runner(program("s5cmd"), "--endpoint-url", endpoint())
bucket, folder = bucket_name(), Path(tempfile.mkdtemp())
stored, body = write_files(folder / "in"), large()
(folder / "large").write_bytes(body)

with check("puts"):
    s5cmd("mb", f"s3://{bucket}")
    s5cmd("cp", f"{folder}/in/", f"s3://{bucket}/")
with check("lists"):
    rows = [line.split(maxsplit=3) for line in s5cmd("ls", f"s3://{bucket}/*").splitlines()]
    equal({row[3]: int(row[2]) for row in rows}, {key: len(data) for key, data in stored.items()})
with check("reads"):
    s5cmd("cp", f"s3://{bucket}/*", f"{folder}/out/")
    equal(read_files(folder / "out"), stored)
with check("multipart upload and range reads"):
    s5cmd("cp", "--part-size", "5", f"{folder}/large", f"s3://{bucket}/large")
    s5cmd("cp", "--part-size", "5", f"s3://{bucket}/large", f"{folder}/again")
    equal((folder / "again").read_bytes() == body, True)
with check("copies"):
    s5cmd("cp", f"s3://{bucket}/large", f"s3://{bucket}/copy")
    s5cmd("cp", f"s3://{bucket}/copy", f"{folder}/copy")
    equal((folder / "copy").read_bytes() == body, True)
with check("deletes"):
    s5cmd("rm", f"s3://{bucket}/*")
    s5cmd("rb", f"s3://{bucket}")
end()
