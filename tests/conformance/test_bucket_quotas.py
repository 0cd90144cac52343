"""Quotas of buckets: whatever stores an object is held to them, and says so. A cluster has none."""

from __future__ import annotations

import os
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from conformance_kit import MiB, names_in

from ais_loader import Bucket, Client, ObjectInfo, errors
from ais_loader.cli.main import main
from ais_loader.objects.put_spec import PARTS_PREFIX
from ais_loader.testing import seeded_bytes

QUOTA = 3 * MiB
LARGE = seeded_bytes(2 * MiB)


@pytest.fixture
def limited(url: str, client: Client, bucket: Bucket) -> Bucket:
    """A bucket that has room for 1 MiB more."""
    if "," in url:
        pytest.skip("a bucket of a cluster has no quota")
    bucket.set(quota_bytes=QUOTA)
    bucket.put("large", LARGE)
    return bucket


def used(bucket: Bucket) -> int:
    return sum(info.size_bytes for info in bucket.objects())


def test_quotas_are_set_shown_and_removed(url: str, client: Client, bucket_name: str) -> None:
    if "," in url:
        for quota in ({"quota_bytes": 5}, {"quota_objects": 5}):
            with pytest.raises(errors.Unsupported, match="a bucket of a cluster has no quota"):
                client.create_bucket(bucket_name, **quota)
        assert bucket_name not in [one.name for one in client.buckets()]
        bucket = client.create_bucket(bucket_name)
        with pytest.raises(errors.Unsupported, match="a bucket of a cluster has no quota"):
            bucket.set(quota_objects=1)
        assert bucket.set(quota_bytes=0, quota_objects=0) == bucket.info()
        return
    bucket = client.create_bucket(bucket_name, quota_bytes=1000, quota_objects=7)
    assert (bucket.info().quota_bytes, bucket.info().quota_objects) == (1000, 7)
    assert (bucket.set(quota_bytes=2**40).quota_bytes, bucket.set().quota_objects) == (2**40, 7)
    assert bucket.set(quota_objects=0) == bucket.info()
    assert next(one for one in client.buckets() if one.name == bucket_name) == bucket.info()
    assert (bucket.info().quota_bytes, bucket.info().quota_objects) == (2**40, 0)
    for wrong in ({"quota_bytes": -1}, {"quota_objects": -5}, {"quota_bytes": 2**63}):
        with pytest.raises(errors.InvalidRequest, match="quota_"):
            bucket.set(**wrong)
        with pytest.raises(errors.InvalidRequest, match="quota_"):
            client.create_bucket(bucket_name + "-2", **wrong)


def test_every_way_to_store_an_object_is_refused_and_changes_nothing(limited: Bucket, promote_root: Path) -> None:
    tar = BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as made:
        made.addfile(tarfile.TarInfo("empty"))
    limited.put("a.tar", tar.getvalue())
    before = {info.name: info.version for info in limited.objects()}
    upload = limited.multipart("parts", part_bytes=MiB)
    for number in (1, 2):
        upload.put_part(number, LARGE[:MiB])
    with tempfile.TemporaryDirectory(dir=promote_root) as folder:
        Path(folder, "file").write_bytes(LARGE)
        for store in (
            lambda: limited.put("new", LARGE),
            lambda: limited.put("large", LARGE + LARGE),
            lambda: limited.put_many([("new", LARGE)]),
            lambda: limited.put_many([("new", LARGE[:MiB]), ("newer", LARGE[:MiB])]),
            lambda: limited.copy("large", "new"),
            lambda: upload.complete(),
        ):
            with pytest.raises(errors.QuotaExceeded, match=f"{limited.name}.*quota of 3,145,728 bytes") as caught:
                store()
            assert "uses " in str(caught.value)
            limited.delete_many([name for name in names_in(limited.client, limited.name) if name not in before])
            assert {info.name: info.version for info in limited.objects()} == before
        [done] = limited.iter_promote(folder)
        assert (done.status, type(done.error)) == ("failed", errors.QuotaExceeded)
        assert os.listdir(folder) == ["file"]
    assert {info.name: info.version for info in limited.objects()} == before
    upload.abort()
    assert not list(limited.objects(PARTS_PREFIX))


def test_refused_objects_of_many_are_told_in_their_places(limited: Bucket) -> None:
    limited.put("a", LARGE[: MiB - 10])
    objects = [("b", bytes(20)), ("c", bytes(10)), ("large", LARGE[:10]), ("d", b"x")]
    results = list(limited.iter_put_many(objects, on_error="yield"))
    kinds = [ObjectInfo if isinstance(result, ObjectInfo) else type(result) for result in results]
    assert kinds[:3] == [errors.QuotaExceeded, ObjectInfo, ObjectInfo]
    # The space of what is overwritten is free when the commit is done, and these may be in one commit.
    assert kinds[3] in (ObjectInfo, errors.QuotaExceeded)
    assert isinstance(limited.put("d", b"x"), ObjectInfo)
    assert sorted(names_in(limited.client, limited.name)) == ["a", "c", "d", "large"]


def test_space_is_free_at_once(limited: Bucket) -> None:
    for _ in range(3):
        limited.put("one", LARGE[:MiB])
        with pytest.raises(errors.QuotaExceeded):
            limited.put("two", b"x")
        limited.delete("one")
        limited.put("two", b"x")
        limited.delete_many(["two"])
    limited.put("large", LARGE[1:])
    limited.put("one", LARGE[: MiB + 1])
    assert used(limited) == QUOTA
    limited.set(quota_bytes=QUOTA + 1)
    limited.put("two", b"x")


def test_the_command_sets_and_shows_quotas(url: str, client: Client, bucket: Bucket) -> None:
    if "," in url or not url.startswith("grpc"):
        pytest.skip("the client holds the store open, or it is a cluster")
    run = CliRunner()
    done = run.invoke(main, ["bucket", "set", bucket.name, "quota_bytes=1KB", "quota_objects=2", "--store", url])
    assert done.exit_code == 0, done.output
    shown = dict(line.split(None, 1) for line in done.stdout.splitlines())
    assert (shown["quota_bytes"].split()[0], shown["quota_objects"]) == ("1000", "2")
    refused = run.invoke(main, ["bucket", "set", bucket.name, "quota_objects=-1", "--store", url])
    assert refused.exit_code == 2
    made = ["bucket", "create", bucket.name + "-2", "quota_bytes=1KB", "quota_objects=3", "--store", url]
    assert run.invoke(main, made).exit_code == 0
    info = client.bucket(bucket.name + "-2").info()
    assert (info.quota_bytes, info.quota_objects) == (1000, 3)
    client.delete_bucket(bucket.name + "-2")
