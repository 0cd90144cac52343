"""rclone: a folder of files, compared by its own check, ranges, and copies on the server."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from checks import ACCESS_KEY, SECRET_KEY, bucket_name, check, end, endpoint, equal, large
from commands import program, read_files, runner, write_files

settings = {
    "TYPE": "s3",
    "PROVIDER": "Other",
    "ACCESS_KEY_ID": ACCESS_KEY,
    "SECRET_ACCESS_KEY": SECRET_KEY,
    "ENDPOINT": endpoint(),
    "REGION": "us-east-1",
    "FORCE_PATH_STYLE": "true",
}
os.environ.update({f"RCLONE_CONFIG_DOOR_{name}": value for name, value in settings.items()})
folder = Path(tempfile.mkdtemp())
rclone = runner(program("rclone"), "--config", str(folder / "none"), "--s3-upload-cutoff", "8M", "--retries", "1")
bucket, stored, body = bucket_name(), write_files(folder / "in"), large()
(folder / "large").write_bytes(body)
at = f"door:{bucket}"

with check("puts"):
    rclone("mkdir", at)
    rclone("copy", str(folder / "in"), at)
    rclone("check", "--download", str(folder / "in"), at)
with check("lists"):
    rows = json.loads(rclone("lsjson", "--recursive", "--files-only", at))
    equal({row["Path"]: row["Size"] for row in rows}, {key: len(data) for key, data in stored.items()})
with check("reads"):
    rclone("sync", at, str(folder / "out"))
    equal(read_files(folder / "out"), stored)
with check("multipart upload"):
    rclone("copyto", str(folder / "large"), f"{at}/large")
    rclone("copyto", f"{at}/large", str(folder / "again"))
    equal((folder / "again").read_bytes() == body, True)
with check("range reads"):
    rclone("copyto", "--multi-thread-cutoff", "1M", "--multi-thread-streams", "3", f"{at}/large", str(folder / "parts"))
    equal((folder / "parts").read_bytes() == body, True)
    equal(rclone("cat", "--offset", "1", "--count", "2", f"{at}/odd/a b.bin"), "") if not stored[
        "odd/a b.bin"
    ] else None
with check("copies"):
    rclone("copyto", f"{at}/large", f"{at}/copy")
    rclone("moveto", f"{at}/copy", f"{at}/moved")
    rclone("copyto", f"{at}/moved", str(folder / "moved"))
    equal((folder / "moved").read_bytes() == body, True)
with check("deletes"):
    rclone("purge", at)
    equal(bucket in rclone("lsd", "door:"), False)
end()
