"""s3cmd: a folder of files, single objects, and what it shows of them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from checks import ACCESS_KEY, SECRET_KEY, bucket_name, check, end, endpoint, equal, large
from commands import program, read_files, runner, write_files

bucket, folder = bucket_name(), Path(tempfile.mkdtemp())
host = endpoint().removeprefix("http://")
(folder / "config").write_text(
    f"[default]\naccess_key = {ACCESS_KEY}\nsecret_key = {SECRET_KEY}\nhost_base = {host}\nhost_bucket = {host}\n"
    "use_https = False\nbucket_location = US\n"
)
s3cmd = runner(program("s3cmd"), "-c", str(folder / "config"), "--quiet")
shows = runner(program("s3cmd"), "-c", str(folder / "config"))
stored, body = write_files(folder / "in"), large()
(folder / "large").write_bytes(body)

with check("puts"):
    s3cmd("mb", f"s3://{bucket}")
    s3cmd("sync", f"{folder}/in/", f"s3://{bucket}/")
with check("lists"):
    rows = [line.split(maxsplit=3) for line in shows("ls", "--recursive", f"s3://{bucket}/").splitlines()]
    found = {row[3].removeprefix(f"s3://{bucket}/"): int(row[2]) for row in rows}
    equal(found, {key: len(data) for key, data in stored.items()})
with check("reads"):
    (folder / "out").mkdir()
    s3cmd("get", "--recursive", f"s3://{bucket}/", f"{folder}/out/")
    equal(read_files(folder / "out"), stored)
with check("multipart upload"):
    s3cmd("put", "--multipart-chunk-size-mb=5", f"{folder}/large", f"s3://{bucket}/large")
    s3cmd("get", f"s3://{bucket}/large", f"{folder}/again")
    equal((folder / "again").read_bytes() == body, True)
with check("range reads"):
    (folder / "part").write_bytes(body[:1000])
    s3cmd("get", "--continue", f"s3://{bucket}/large", f"{folder}/part")
    equal((folder / "part").read_bytes() == body, True)
with check("copies"):
    s3cmd("cp", f"s3://{bucket}/large", f"s3://{bucket}/copy")
    s3cmd("mv", f"s3://{bucket}/copy", f"s3://{bucket}/moved")
    s3cmd("get", f"s3://{bucket}/moved", f"{folder}/moved")
    equal((folder / "moved").read_bytes() == body, True)
with check("what it shows of an object"):
    equal(str(len(body)) in shows("info", f"s3://{bucket}/large"), True)
with check("deletes"):
    s3cmd("del", "--recursive", "--force", f"s3://{bucket}/")
    equal(shows("ls", "--recursive", f"s3://{bucket}/").strip(), "")
    s3cmd("rb", f"s3://{bucket}")
end()
