"""The `aistore` SDK: batches in all forms, groups of objects, copies of buckets, jobs, and the datasets for PyTorch."""

from __future__ import annotations

import io
import random
import tarfile
import tempfile
from pathlib import Path

from aistore.pytorch import AISIterDataset, AISMapDataset
from aistore.pytorch.batch_iter_dataset import AISBatchIterDataset
from aistore.sdk import Client
from aistore.sdk.enums import Colocation
from aistore.sdk.errors import AISError, ErrBckNotFound
from checks import bucket_name, check, end, endpoint, equal, objects
from torch.utils.data import DataLoader

client = Client(endpoint())
name, stored = bucket_name(), objects()
bucket, other = client.bucket(name).create(), client.bucket(f"{name}-other").create()
MEMBERS = {"a.txt": b"0123456789", "d/b.txt": b"the other", "d/e/c": b"x" * 5000}


def packed() -> bytes:
    """Return a tar with MEMBERS."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for member, content in MEMBERS.items():
            info = tarfile.TarInfo(member)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return data.getvalue()


def contents(of):  # type: ignore[no-untyped-def]
    """Return the objects of a bucket."""
    return {entry.name: of.object(entry.name).get_reader().read_all() for entry in of.list_all_objects()}


def waited(job_id: str) -> None:
    """Wait for a job, which must succeed."""
    equal(client.job(job_id).wait(timeout=180, verbose=False).success, True)


for key, body in stored.items():
    bucket.object(key).get_writer().put_content(body)
bucket.object("shard.tar").get_writer().put_content(packed())
other.object("elsewhere").get_writer().put_content(b"elsewhere")
order = [*stored, *random.Random(1).choices(list(stored), k=100)]

for mime in (".tar", ".tgz", ".tar.gz", ".zip"):
    with check(f"batches as {mime}"):
        keys = list(stored) if mime == ".zip" else order
        for streaming in (True, False):
            batch = client.batch(keys, bucket, output_format=mime, streaming_get=streaming)
            equal([(out.obj_name, data) for out, data in batch.get()], [(key, stored[key]) for key in keys])
with check("batches without a bucket in the path"):
    batch = client.batch([bucket.object(key) for key in order], colocation=Colocation.TARGET_AWARE)
    equal([data for _, data in batch.get()], [stored[key] for key in order])
with check("batches with names of objects alone"):
    raw = client.batch(order[:5], bucket, only_obj_name=True).get(raw=True)
    equal([member.name for member in tarfile.open(fileobj=raw, mode="r|")], order[:5])  # noqa: SIM115
for streaming in (True, False):
    how = "streamed" if streaming else "buffered"
    with check(f"{how} batches of members, ranges and other buckets"):
        batch = client.batch(bucket=bucket, streaming_get=streaming)
        for member in MEMBERS:
            batch.add("shard.tar", archpath=member)
        batch.add("shard.tar", archpath="a.txt", start=2, length=3)
        batch.add("shard.tar", start=512, length=-1)
        batch.add(other.object("elsewhere"), opaque=b"\xffmine")
        found = list(batch.get())
        equal([data for _, data in found], [*MEMBERS.values(), b"234", packed()[512:], b"elsewhere"])
        equal(found[-1][0].opaque in (b"\xffmine",), True)
    with check(f"{how} batches with missing entries"):
        batch = client.batch(bucket=bucket, streaming_get=streaming)
        for number in range(12):
            batch.add(f"none{number}")
        batch.add("shard.tar", archpath="none").add(order[0]).add("none.tar", archpath="a.txt")
        found = list(batch.get())
        equal([out.err_msg is not None for out, _ in found], [True] * 13 + [False, True])
        equal([data for _, data in found], [b""] * 13 + [stored[order[0]], b""])
    with check(f"strict {how} batches with missing entries"):
        for wrong in ({"obj": "none"}, {"obj": "shard.tar", "archpath": "none"}):
            batch = client.batch([order[0]], bucket, streaming_get=streaming, cont_on_err=False).add(**wrong)
            try:
                list(batch.get())
            except AISError as error:
                equal(error.status_code, 404)
            else:
                raise AssertionError("it was not refused")
    with check(f"{how} batches of a missing bucket"):
        try:
            list(client.batch(["x"], client.bucket(f"{name}-none"), streaming_get=streaming).get())
        except ErrBckNotFound:
            pass
        else:
            raise AssertionError("it was not refused")
with check("archives of groups"):
    keys = sorted(stored)[:20]
    for id in bucket.objects(obj_names=keys).archive("made.tar", to_bck=other):
        waited(id)
    batch = client.batch(bucket=other)
    for key in keys:
        batch.add("made.tar", archpath=key)
    equal([data for _, data in batch.get()], [stored[key] for key in keys])
with check("copies of groups"):
    for id in bucket.objects(obj_template="d1/{001..196..5}.bin").copy(other, prepend="copied/"):
        waited(id)
    expected = {f"copied/{key}": body for key, body in stored.items() if key.startswith("d1/")}
    equal({key: body for key, body in contents(other).items() if key.startswith("copied/")}, expected)
with check("deletions of groups"):
    waited(other.objects(obj_template="copied/").delete())
    waited(other.objects(obj_names=["made.tar", "none"]).delete())
    equal(contents(other), {"elsewhere": b"elsewhere"})
with check("copies of buckets"):
    copy = client.bucket(f"{name}-copy")
    waited(bucket.copy(copy, prefix_filter="d2/", prepend="new/", dry_run=True))
    equal(copy.name in [one.name for one in client.cluster().list_buckets()], False)
    waited(bucket.copy(copy, prefix_filter="d2/", prepend="new/"))
    equal(contents(copy), {f"new/{key}": body for key, body in stored.items() if key.startswith("d2/")})
with check("renames of buckets"):
    waited(copy.rename(f"{name}-renamed"))
    renamed = client.bucket(f"{name}-renamed")
    equal(len(contents(renamed)), len([key for key in stored if key.startswith("d2/")]))
    renamed.delete()
    copy.delete(missing_ok=True)
with check("copies of objects"):
    bucket.object("odd/é.bin").copy(other.object("odd/copied é"))
    equal(other.object("odd/copied é").get_reader().read_all(), stored["odd/é.bin"])
    try:
        bucket.object("odd/é.bin").copy(client.bucket(f"{name}-none").object("x"))
    except ErrBckNotFound:
        pass
    else:
        raise AssertionError("it was not refused")
with check("jobs"):
    job = client.job(job_kind="lru").start()
    waited(job)
    equal(client.job(job).status().end_time > 0, True)
    equal([snap.id for snap in client.job(job).get_details().list_snapshots()], [job])
    try:
        client.job("no-such-job").status()
    except AISError as error:
        equal(error.status_code, 404)
    else:
        raise AssertionError("it was not refused")
with check("what is not supported says so"):
    try:
        client.etl("etl-image").init(image="some/image")
    except AISError as error:
        equal(error.status_code, 501)
    else:
        raise AssertionError("it was not refused")
with check("datasets of single objects"):
    keys = sorted(key for key in stored if key.startswith("d3/"))
    source = {bucket: "d3/"}
    equal(dict(AISMapDataset(ais_source_list=[bucket], prefix_map=source)), {key: stored[key] for key in keys})
    loader = DataLoader(AISIterDataset(ais_source_list=[bucket], prefix_map=source), batch_size=None, num_workers=2)
    equal(dict(loader), {key: stored[key] for key in keys})
with check("datasets of batches"):
    dataset = AISBatchIterDataset([bucket], client, prefix_map={bucket: "d3/"}, max_batch_size=7)
    equal({key: bytes(body) for key, body in dataset}, {key: stored[key] for key in keys})
    found_keys = [key for key, _ in DataLoader(dataset, batch_size=None, num_workers=2)]
    equal(sorted(found_keys), keys)
with check("files into a bucket"), tempfile.TemporaryDirectory() as folder:
    for number in range(5):
        (Path(folder) / f"{number}.txt").write_text(str(number))
    other.put_files(folder, prepend="files/")
    equal(list(client.batch([f"files/{number}.txt" for number in range(5)], other).get())[4][1], b"4")
with check("deletes"):
    for one in (bucket, other):
        one.delete()
    equal([one.name for one in client.cluster().list_buckets() if one.name.startswith(name)], [])
end()
