"""s3fs: files of fsspec, their ranges, parts and copies."""

from __future__ import annotations

from urllib.request import urlopen

import s3fs
from checks import ACCESS_KEY, MIB, SECRET_KEY, bucket_name, check, end, endpoint, equal, large, objects

files = s3fs.S3FileSystem(
    key=ACCESS_KEY, secret=SECRET_KEY, endpoint_url=endpoint(), use_listings_cache=False, skip_instance_cache=True
)
bucket, stored, body = bucket_name(), objects(), large()

with check("puts"):
    files.mkdir(bucket)
    files.pipe({f"{bucket}/{key}": data for key, data in stored.items()})
with check("lists"):
    found = files.find(bucket, detail=True)
    expected = {f"{bucket}/{key}": len(data) for key, data in stored.items()}
    equal({key: row["size"] for key, row in found.items()}, expected)
    equal(sorted(files.ls(bucket, detail=False)), [*(f"{bucket}/d{number}" for number in range(5)), f"{bucket}/odd"])
    equal(len(files.glob(f"{bucket}/d0/*.bin")), len([key for key in stored if key.startswith("d0/")]))
with check("reads"):
    equal(files.cat(list(expected)), {f"{bucket}/{key}": data for key, data in stored.items()})
with check("multipart upload"):
    with files.open(f"{bucket}/large", "wb", block_size=5 * MIB) as file:
        for start in range(0, len(body), MIB):
            file.write(body[start : start + MIB])
    equal(files.cat_file(f"{bucket}/large") == body, True)
with check("range reads"):
    equal(files.cat_file(f"{bucket}/large", start=5, end=MIB) == body[5:MIB], True)
    with files.open(f"{bucket}/large", "rb", block_size=MIB, cache_type="readahead") as file:
        file.seek(3 * MIB)
        equal(file.read(2 * MIB) == body[3 * MIB : 5 * MIB], True)
with check("copies"):
    files.copy(f"{bucket}/large", f"{bucket}/copy")
    files.mv(f"{bucket}/copy", f"{bucket}/moved")
    equal((files.cat_file(f"{bucket}/moved") == body, files.exists(f"{bucket}/copy")), (True, False))
with check("conditions"):
    try:
        files.pipe_file(f"{bucket}/moved", b"2", mode="create")
    except OSError:
        equal(files.cat_file(f"{bucket}/moved") == body, True)
    else:
        raise AssertionError("an object that exists was created")
with check("presigned addresses"), urlopen(files.sign(f"{bucket}/odd/a b.bin")) as got:
    equal(got.read(), stored["odd/a b.bin"])
with check("deletes"):
    files.rm(bucket, recursive=True)
    equal(files.exists(bucket), False)
end()
