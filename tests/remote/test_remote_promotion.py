"""Promotion into remote buckets: the files are in the cloud, or pending, and nothing is uploaded twice."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import pytest

from ais_loader import Bucket, Client, PromoteSummary, Remote, connect, errors
from ais_loader.testing import seeded_bytes
from ais_loader.wire.object_info import Stored
from storage_node.promote import group_promotion
from storage_node.promote.job import Job, open_unless_stored
from storage_node.promote.source import SourceFile
from storage_node.promote.walk import FoundFile
from tests.remote.conftest import RANGE_BYTES, RemoteBucket
from tests.remote.fault_proxy import Fault, FaultProxy

FILES = {"empty": 0, "a/small": 1000, "a/b/deep": 3, "large": 3 * RANGE_BYTES + 17, "ü.bin": 5000}


@pytest.fixture
def folder(promote_root: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=promote_root) as made:
        yield Path(made)


@pytest.fixture
def files(folder: Path) -> dict[str, bytes]:
    made = {name: seeded_bytes(size, seed=at) for at, (name, size) in enumerate(FILES.items())}
    for name, data in made.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return made


def made_bucket(client: Client, name: str, over: RemoteBucket, write: Literal["through", "back"]) -> Bucket:
    remote = Remote(over.url, endpoint=over.endpoint, write=write)
    return client.create_bucket(name, remote=remote, copies=2 if "," in client.url else 1)


def counts(summary: PromoteSummary) -> tuple[int, int]:
    assert not summary.failures
    return summary.promoted, summary.skipped


def kept(over: RemoteBucket) -> dict[str, bytes]:
    keys = over.keys()
    return {key: over.get(key) for key in keys}


@pytest.mark.parametrize("write", ["through", "back"])
def test_files_are_uploaded_once_also_if_their_copies_are_evicted(
    client: Client,
    bucket_name: str,
    remote_bucket: RemoteBucket,
    proxy: FaultProxy,
    folder: Path,
    files: dict[str, bytes],
    write: Literal["through", "back"],
) -> None:
    bucket = made_bucket(client, bucket_name, remote_bucket, write)
    assert counts(bucket.promote(folder, prefix="p/")) == (len(files), 0)
    bucket.flush(timeout_s=180)
    assert kept(remote_bucket) == {f"p/{name}": data for name, data in files.items()}
    assert {info.name: bucket.get(info.name) for info in bucket.objects()} == kept(remote_bucket)
    assert counts(bucket.promote(folder, prefix="p/")) == (0, len(files))
    assert bucket.evict().copies >= len(files)
    puts = proxy.count("PUT")
    assert counts(bucket.promote(folder, prefix="p/")) == (0, len(files))
    (folder / "a/small").write_bytes(b"changed")
    assert counts(bucket.promote(folder, prefix="p/")) == (1, len(files) - 1)
    bucket.flush(timeout_s=180)
    assert remote_bucket.get("p/a/small") == b"changed"
    assert proxy.count("PUT") == puts + 1


def test_files_that_are_written_back_are_pending_and_a_later_put_wins(
    client: Client,
    bucket_name: str,
    remote_bucket: RemoteBucket,
    proxy: FaultProxy,
    folder: Path,
    files: dict[str, bytes],
) -> None:
    bucket = made_bucket(client, bucket_name, remote_bucket, "back")
    with proxy.held("PUT", "*"), proxy.held("POST", "*"):
        assert counts(bucket.promote(folder)) == (len(files), 0)
        assert remote_bucket.keys() == []
        pending = [row for row in client.pending_uploads() if row.bucket == bucket.name]
        assert sum(row.count for row in pending) >= len(files)  # each owner has one
        assert {info.name: bucket.get(info.name) for info in bucket.objects()} == files
        bucket.put("a/small", b"later")
    bucket.flush(timeout_s=180)
    assert kept(remote_bucket) == files | {"a/small": b"later"}
    sent_bytes = sum(row.bytes_out for row in client.remote_usage() if row.bucket == bucket.name)
    assert sent_bytes >= sum(map(len, files.values())) - len(files["a/small"])


@pytest.mark.parametrize("write", ["through", "back"])
def test_nothing_of_the_cloud_is_overwritten_if_that_is_asked(
    client: Client,
    bucket_name: str,
    remote_bucket: RemoteBucket,
    folder: Path,
    files: dict[str, bytes],
    write: Literal["through", "back"],
) -> None:
    remote_bucket.put("a/small", b"of others")
    bucket = made_bucket(client, bucket_name, remote_bucket, write)
    summary = bucket.promote(folder, overwrite="never")
    assert counts(summary) == (len(files) - 1, 1)
    bucket.flush(timeout_s=180)
    assert kept(remote_bucket) == files | {"a/small": b"of others"}
    assert counts(bucket.promote(folder, overwrite="always")) == (len(files), 0)
    bucket.flush(timeout_s=180)
    assert kept(remote_bucket) == files


def test_a_file_that_the_cloud_refuses_fails_by_itself_and_is_not_moved(
    client: Client,
    bucket_name: str,
    remote_bucket: RemoteBucket,
    proxy: FaultProxy,
    folder: Path,
    files: dict[str, bytes],
) -> None:
    bucket = made_bucket(client, bucket_name, remote_bucket, "through")
    with proxy.on("PUT", remote_bucket.path("a/small"), Fault(status=403)):
        results = {one.name: one for one in bucket.iter_promote(folder, move=True)}
    assert {name for name, one in results.items() if one.status == "failed"} == {"a/small"}
    assert isinstance(results["a/small"].error, errors.RemoteDenied)
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["small"]
    assert counts(bucket.promote(folder, move=True)) == (1, 0)
    assert kept(remote_bucket) == files
    assert not [path for path in folder.rglob("*") if path.is_file()]


def test_a_file_that_changes_meanwhile_is_stored_nowhere(
    embedded_path: Path, bucket_name: str, remote_bucket: RemoteBucket, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in {"small": 1000, "large": 3 * RANGE_BYTES, "parts": 5 * RANGE_BYTES, "ok": 10}.items():
        (folder / name).write_bytes(seeded_bytes(size, seed=size))

    def change(path: str) -> None:
        with (folder / path).open("r+b") as file:
            file.write(b"changed")

    def changing(source: SourceFile, go_on: Callable[[], None]) -> int:
        checksum = SourceFile.checksum(source, go_on)
        if source.found.path in ("large", "parts"):
            change(source.found.path)
        return checksum

    def opening(job: Job, found: FoundFile, existing: Stored | None) -> SourceFile | None:
        source = open_unless_stored(job, found, existing)
        if source is not None and found.path == "small":
            change("small")
        elif source is not None:
            monkeypatch.setattr(source, "checksum", partial(changing, source))
        return source

    monkeypatch.setattr(group_promotion, "open_unless_stored", opening)
    with connect(embedded_path) as client:
        bucket = made_bucket(client, bucket_name, remote_bucket, "through")
        results = {one.name: type(one.error) for one in bucket.iter_promote(folder)}
        changed = errors.SourceChanged
        assert results == {"small": changed, "large": changed, "parts": changed, "ok": type(None)}
        assert remote_bucket.keys() == [info.name for info in bucket.objects()] == ["ok"]
        client.delete_bucket(bucket_name, force=True)


def test_files_are_not_promoted_into_a_web_server(client: Client, bucket_name: str, folder: Path) -> None:
    (folder / "a").write_bytes(b"a")
    bucket = client.create_bucket(bucket_name, remote=Remote("https://example.org/a"))
    with pytest.raises(errors.Unsupported, match="read-only"):
        bucket.promote(folder)
    client.delete_bucket(bucket_name, force=True)
