"""Folders as objects and back: what is put below a prefix is what was in the folder, and what is downloaded again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from conformance_kit import Heard, fill

from ais_loader import Bucket, Client, connect, errors
from ais_loader.objects import download
from ais_loader.objects.object_file import ObjectReader
from ais_loader.testing import seeded_bytes
from ais_loader.transport.base import Transport

FILES = {
    "a.wav": b"1",
    "b/c.txt": b"22",
    "b/größe #1.wav": b"333",
    "b/d/empty": b"",
    "large.bin": seeded_bytes((9 << 20) + 5, seed=1),
}


def make(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def contents(bucket: Bucket) -> dict[str, bytes]:
    return {name: bucket.get(name) for name in bucket}


@pytest.mark.slow
def test_a_folder_comes_back_as_it_was_put(bucket: Bucket, tmp_path: Path) -> None:
    heard = Heard()
    folder = make(tmp_path / "in", FILES)
    put = bucket.put_folder(folder, "p", metadata={"k": "v"}, progress=heard)
    assert (put.stored, put.skipped, put.complete) == (len(FILES), 0, True)
    assert put.size_bytes == sum(map(len, FILES.values())) == heard.steps[-1].size_bytes
    assert contents(bucket) == {f"p/{name}": data for name, data in FILES.items()}
    assert bucket.head("p/a.wav").metadata == {"k": "v"}
    heard = Heard()
    done = bucket.download("p/", tmp_path / "out", progress=heard)
    assert files_in(tmp_path / "out") == FILES
    assert (done.downloaded, done.skipped, done.size_bytes) == (len(FILES), 0, put.size_bytes)
    assert heard.steps[-1].done == len(FILES)


@pytest.mark.slow
def test_what_was_interrupted_goes_on(bucket: Bucket, tmp_path: Path) -> None:
    folder = make(tmp_path / "in", FILES)
    with pytest.raises(RuntimeError):
        bucket.put_folder(folder, progress=Heard(until=2))
    put = bucket.put_folder(folder)
    assert put.skipped >= 2 and put.stored + put.skipped == len(FILES)
    (folder / "a.wav").write_bytes(b"2")  # the same length
    assert (bucket.put_folder(folder).stored, bucket.get("a.wav")) == (1, b"2")
    assert bucket.put_folder(folder, skip_equal=False).stored == len(FILES)
    with pytest.raises(RuntimeError):
        bucket.download("", tmp_path / "out", progress=Heard(until=2))
    done = bucket.download("", tmp_path / "out")
    assert done.skipped >= 2 and done.skipped + done.downloaded == len(FILES)
    assert files_in(tmp_path / "out") == files_in(folder)


@pytest.mark.slow
def test_only_the_files_that_are_wanted_are_put_and_downloaded(bucket: Bucket, tmp_path: Path) -> None:
    folder = make(tmp_path / "in", FILES | {".hidden": b"h", ".git/config": b"c", "b/.DS_Store": b"d"})
    os.symlink(folder / "a.wav", folder / "link.wav")
    infos = bucket.put_folder(folder).infos
    assert sorted(info.entry().name for info in infos) == list(bucket)
    assert set(bucket) == set(FILES)
    bucket.delete_prefix("", everything=True)
    bucket.put_folder(folder, include=["*.wav", ".*"], exclude=["b/g*"], hidden=True, follow_links=True)
    assert set(bucket) == {"a.wav", "link.wav", ".hidden", "b/.DS_Store"}
    bucket.download("", tmp_path / "out", include=["*.wav"], exclude=["l*"])
    assert files_in(tmp_path / "out") == {"a.wav": b"1"}
    assert bucket.download("", tmp_path / "one", include="*.wav", exclude="l*").downloaded == 1
    assert files_in(tmp_path / "one") == {"a.wav": b"1"}
    with pytest.raises(TypeError, match="include: a pattern is a PosixPath; need shell patterns"):
        bucket.download("", tmp_path / "out", include=[tmp_path])
    with pytest.raises(errors.InvalidRequest, match="exclude: a pattern is empty"):
        bucket.put_folder(folder, exclude="")


def test_files_are_named_by_what_follows_the_last_slash_of_the_prefix(bucket: Bucket, tmp_path: Path) -> None:
    fill(bucket, {"en/a/b": b"1", "en/ab": b"2", "es/c": b"3"})
    for number, (prefix, names) in enumerate(
        {
            "en/": {"a/b", "ab"},
            "en": {"en/a/b", "en/ab"},
            "e": {"en/a/b", "en/ab", "es/c"},
            "en/a": {"a/b", "ab"},
        }.items()
    ):
        bucket.download(prefix, tmp_path / str(number))
        assert set(files_in(tmp_path / str(number))) == names
    assert bucket.download("none", tmp_path / "none").downloaded == 0


def test_a_file_with_other_bytes_is_replaced_only_if_that_is_said(bucket: Bucket, tmp_path: Path) -> None:
    fill(bucket, {"a": b"new", "b": b"2"})
    make(tmp_path, {"a": b"old"})
    with pytest.raises(errors.InvalidRequest, match="is there with other bytes; overwrite=True replaces it"):
        bucket.download("", tmp_path)
    done = bucket.download("", tmp_path, on_error="return")
    assert (done.downloaded + done.skipped, done.failed, done.failures[0].name) == (1, 1, "a")
    assert files_in(tmp_path) == {"a": b"old", "b": b"2"}
    assert bucket.download("", tmp_path, overwrite=True).downloaded == 1
    assert files_in(tmp_path) == {"a": b"new", "b": b"2"}


def test_an_object_and_a_folder_of_one_name_are_told_and_the_rest_comes(bucket: Bucket, tmp_path: Path) -> None:
    fill(bucket, {"a": b"1", "a/b": b"2", "c": b"3"})
    done = bucket.download("", tmp_path / "out", on_error="return")
    assert (done.downloaded, [failure.name for failure in done.failures]) == (2, ["a/b"])
    assert files_in(tmp_path / "out") == {"a": b"1", "c": b"3"}
    (tmp_path / "two" / "a").mkdir(parents=True)
    done = bucket.download("", tmp_path / "two", on_error="return")
    assert (done.downloaded, [failure.name for failure in done.failures]) == (2, ["a"])


def test_a_file_that_no_object_can_be_made_of_stops_all_or_is_named(bucket: Bucket, tmp_path: Path) -> None:
    folder = make(tmp_path / "in", {"a": b"1"})
    with open(os.fsencode(folder) + b"/\xff", "wb"):
        pass
    with pytest.raises(errors.SourceUnreadable, match="not UTF-8"):
        bucket.put_folder(folder)
    assert list(bucket) == []
    put = bucket.put_folder(folder, on_error="return")
    assert (put.stored, put.failed, list(bucket)) == (1, 1, ["a"])
    [failure] = put.failures
    assert (failure.name, failure.path) == ("\\xff", os.fsdecode(os.fsencode(folder) + b"/\xff"))
    assert (
        str(failure.error).encode()
        == os.fsencode(folder) + b"/\\xff: its name is not UTF-8, so it cannot be the name of an object"
    )
    for wrong, told in ((tmp_path / "none", "no such folder"), (folder / "a", "not a folder")):
        with pytest.raises(errors.InvalidRequest, match=told):
            bucket.put_folder(wrong)


def test_a_bucket_that_is_not_there_makes_no_files(client: Client, tmp_path: Path) -> None:
    missing = client.bucket("no-such-bucket")
    with pytest.raises(errors.BucketNotFound):
        missing.download("", tmp_path / "out")
    with pytest.raises(errors.BucketNotFound):
        missing.put_folder(tmp_path)
    assert not (tmp_path / "out").exists()


def test_a_store_is_not_put_into_itself(tmp_path: Path) -> None:
    make(tmp_path, {"a": b"1"})
    with connect(tmp_path / "store") as client:
        bucket = client.create_bucket("b")
        assert (bucket.put_folder(tmp_path).stored, list(bucket)) == (1, ["a"])
        with pytest.raises(errors.InvalidRequest, match="is the store itself"):
            bucket.put_folder(tmp_path / "store")


def test_a_large_object_that_is_denied_after_it_was_listed_fails_alone(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["large", "larger", "largest"]
    bucket.put_many([(name, FILES["large.bin"]) for name in names])
    opened = download.opened_reader

    def opened_when_denied(transport: Transport, of: str, name: str, **options: Any) -> ObjectReader:
        if name == "larger":
            bucket.deny([name], reason="order 7")
        return opened(transport, of, name, **options)

    monkeypatch.setattr(download, "opened_reader", opened_when_denied)
    found = bucket.download("", tmp_path, on_error="return")
    assert [(one.name, type(one.error)) for one in found.failures] == [("larger", errors.ObjectDenied)]
    assert files_in(tmp_path) == dict.fromkeys(["large", "largest"], FILES["large.bin"])
