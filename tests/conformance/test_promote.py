"""promote: files that the store's machine sees become objects, each once, and what cannot be one fails by itself."""

from __future__ import annotations

import os
import socket
import tarfile
import tempfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from conformance_kit import Heard, MiB, contents, fill, names_in

from ais_loader import Bucket, Client, Entry, Progress, PromoteSummary, errors
from ais_loader.testing import seeded_bytes

SIZES = {"empty": 0, "a/small": 1000, "a/b/c/deep": 3, "a/block": 256 << 10, "large": 3 * MiB + 17, "ü.bin": 5000}


@pytest.fixture
def folder(promote_root: Path) -> Iterator[Path]:
    """Of this test alone, where every store may promote from."""
    with tempfile.TemporaryDirectory(dir=promote_root) as made:
        yield Path(made)


def write(folder: Path, files: dict[str, bytes]) -> dict[str, bytes]:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return files


def tree(folder: Path) -> dict[str, bytes]:
    return write(folder, {name: seeded_bytes(size, seed=at) for at, (name, size) in enumerate(SIZES.items())})


def stored(bucket: Bucket) -> dict[str, bytes]:
    return {info.name: bucket.get(info.name) for info in bucket.objects()}


def left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_folder_becomes_objects_byte_for_byte_and_a_second_time_nothing_is_stored(
    bucket: Bucket, folder: Path
) -> None:
    files = tree(folder)
    results = list(bucket.iter_promote(folder, prefix="p/"))
    assert stored(bucket) == {f"p/{name}": data for name, data in files.items()}
    assert sorted((one.path, one.name, one.status) for one in results) == sorted(
        (name, f"p/{name}", "promoted") for name in files
    )
    assert all(one.info == bucket.head(one.name) for one in results)
    assert left(folder) == sorted(files)
    versions = {info.name: info.version for info in bucket.objects()}
    assert bucket.promote(folder, prefix="p/") == PromoteSummary(skipped=len(files))
    assert {one.status for one in bucket.iter_promote(folder, prefix="p/")} == {"skipped"}
    assert {info.name: info.version for info in bucket.objects()} == versions


@pytest.mark.slow
def test_many_small_files_are_stored_each_once(bucket: Bucket, folder: Path) -> None:
    files = write(folder, {f"{at % 40:02d}/{at}": b"%d" % at for at in range(700)})
    heard = Heard()
    size_bytes = sum(map(len, files.values()))
    assert bucket.promote(folder, progress=heard) == PromoteSummary(promoted=len(files), size_bytes=size_bytes)
    assert [step.done for step in heard.steps] == list(range(1, len(files) + 1))
    assert heard.steps[-1] == Progress(done=len(files), size_bytes=size_bytes)
    assert names_in(bucket.client, bucket.name) == sorted(files)
    assert bucket.get_batch(list(files)).tobytes() == list(files.values())


def test_what_has_changed_is_stored_again_and_only_that(bucket: Bucket, folder: Path) -> None:
    files = tree(folder)
    bucket.promote(folder)
    changed = {"a/small": seeded_bytes(1000, seed=91), "large": seeded_bytes(3 * MiB + 17, seed=92), "new": b"new"}
    files |= write(folder, changed)
    results = list(bucket.iter_promote(folder))
    assert len(results) == len(files)
    assert {one.name for one in results if one.status == "promoted"} == set(changed)
    assert stored(bucket) == files


def test_equal_objects_that_were_put_are_left_and_others_as_they_shall_be(bucket: Bucket, folder: Path) -> None:
    files = write(folder, {"equal": b"same", "other": b"file"})
    fill(bucket, {"equal": b"same", "other": b"else"})
    before = bucket.head("equal")
    never = bucket.promote(folder, overwrite="never")
    assert (never.skipped, stored(bucket)) == (2, {"equal": b"same", "other": b"else"})
    changed = bucket.promote(folder)
    assert (changed.promoted, changed.skipped) == (1, 1)
    assert (stored(bucket), bucket.head("equal")) == (files, before)
    assert bucket.promote(folder, overwrite="always").promoted == 2
    assert bucket.head("equal").version != before.version


def test_files_that_are_moved_are_gone_when_their_objects_are_there(bucket: Bucket, folder: Path) -> None:
    files = tree(folder)
    assert bucket.promote(folder, move=True).promoted == len(files)
    assert (stored(bucket), left(folder)) == (files, [])
    # Interrupted before the files were gone: what is there is compared, and then given up; what differs is stored.
    tree(folder)
    files |= write(folder, {"a/small": b"different"})
    again = bucket.promote(folder, move=True)
    assert (again.promoted, again.skipped) == (1, len(files) - 1)
    assert (stored(bucket), left(folder)) == (files, [])


def test_a_moved_file_that_is_no_objects_bytes_stays_with_overwrite_never(bucket: Bucket, folder: Path) -> None:
    write(folder, {"a": b"mine"})
    fill(bucket, {"a": b"other"})
    assert bucket.promote(folder, move=True, overwrite="never").skipped == 1
    assert (stored(bucket), left(folder)) == ({"a": b"other"}, ["a"])


def test_links_within_the_folder_are_followed_and_others_are_refused(bucket: Bucket, folder: Path) -> None:
    secret = write(folder, {"secret": b"outside"}) and folder / "secret"
    top = folder / "top"
    files = write(top, {"in/file": b"inside"})
    (top / "good").symlink_to("in/file")
    (top / "absolute").symlink_to(secret)
    (top / "up").symlink_to("../../../../../../../../etc/passwd")
    (top / "nowhere").symlink_to("nothing")
    (top / "folder").symlink_to("in")
    summary = bucket.promote(top, on_error="return")
    refused = {one.path: type(one.error) for one in summary.failures}
    assert refused == {
        "absolute": errors.SourceRefused,
        "up": errors.SourceRefused,
        "nowhere": errors.SourceUnreadable,
        "folder": errors.SourceRefused,
    }
    assert stored(bucket) == files | {"good": b"inside"}
    moved = bucket.promote(top, move=True, overwrite="always", on_error="return")
    assert {one.path for one in moved.failures} == {"good", *refused}
    assert not (top / "in" / "file").exists()
    assert (top / "good").is_symlink() and secret.read_bytes() == b"outside"


def test_what_is_no_file_or_has_no_name_for_an_object_fails_by_itself(bucket: Bucket, folder: Path) -> None:
    files = write(folder, {"fine": b"1", "z": b"2"})
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        here = os.open(folder, os.O_RDONLY)
        bound.bind(f"/proc/self/fd/{here}/socket")  # a socket's path is short
        os.close(here)
    Path(os.fsdecode(os.path.join(os.fsencode(folder), b"not-\xff-utf8"))).write_bytes(b"3")
    long = folder / "/".join("x" * 200 for _ in range(6))
    long.mkdir(parents=True)
    (long / "f").write_bytes(b"4")
    summary = bucket.promote(folder, on_error="return")
    assert (summary.promoted, summary.failed, summary.complete) == (2, 4, False)
    assert stored(bucket) == files
    kinds = {one.path.rpartition("/")[2]: type(one.error) for one in summary.failures}
    assert kinds == {
        "pipe": errors.SourceRefused,
        "socket": errors.SourceRefused,
        "not-\\xff-utf8": errors.SourceRefused,
        "f": errors.InvalidName,
    }
    (folder / "late").write_bytes(b"5")
    heard = Heard()
    with pytest.raises(errors.PromoteIncomplete, match="4 of 7"):
        bucket.promote(folder, progress=heard)
    assert bucket.get("late") == b"5"  # what failed stopped nothing
    assert heard.steps[-1] == Progress(done=1, skipped=2, failed=4, size_bytes=1)
    failed = [one for one in bucket.iter_promote(folder) if one.error is not None]
    assert {one.path: one.status for one in failed} == {one.path: "failed" for one in summary.failures}


@pytest.mark.slow
def test_an_error_of_progress_ends_the_promotion_and_step_by_step_it_may_be_left(bucket: Bucket, folder: Path) -> None:
    files = write(folder, {f"f{at:04d}": b"%d" % at for at in range(2500)})
    heard = Heard(until=3)
    with pytest.raises(RuntimeError, match="enough: 3") as caught:
        bucket.promote(folder, progress=heard)
    assert caught.value.__notes__ == ["before this error: 3 done, 0 skipped, 0 failed"]
    promoting = bucket.iter_promote(folder, prefix="again/")
    assert list(bucket.objects("again/")) == []  # lazy
    first = next(promoting)
    promoting.close()
    assert bucket.get(first.name) == files[first.path]
    assert len(list(bucket.objects("f"))) >= 3
    assert bucket.promote(folder).complete  # goes on where it was left
    assert [info.name for info in bucket.objects("f")] == list(files)


def test_one_file_takes_its_own_name_and_patterns_choose_among_many(bucket: Bucket, folder: Path) -> None:
    write(folder, {"a.wav": b"a", "b.txt": b"b", "x/c.wav": b"c", "x/y/d.wav": b"d"})
    bucket.promote(folder / "x" / "c.wav", prefix="one-")
    assert stored(bucket) == {"one-c.wav": b"c"}
    bucket.promote(folder, include="*.wav", exclude=["x/y/*"])
    assert stored(bucket) == {"one-c.wav": b"c", "a.wav": b"a", "x/c.wav": b"c"}


def test_what_is_wrong_with_the_whole_is_raised_and_nothing_is_stored(
    client: Client, bucket: Bucket, folder: Path
) -> None:
    write(folder, {"a": b"a"})
    with pytest.raises(errors.SourceUnreadable, match="missing"):
        bucket.promote(folder / "missing")
    with pytest.raises(errors.SourceRefused, match="recursive"):
        bucket.promote(folder, recursive=False)
    os.mkfifo(folder / "pipe")
    with pytest.raises(errors.SourceRefused, match="pipe"):
        bucket.promote(folder / "pipe")
    with pytest.raises(errors.BucketNotFound):
        client.bucket("no-such-bucket").promote(folder)
    with pytest.raises(errors.InvalidRequest):
        bucket.promote(folder, overwrite="sometimes")  # type: ignore[arg-type]
    assert stored(bucket) == {}


def test_members_of_an_archive_that_was_promoted_are_found(bucket: Bucket, folder: Path) -> None:
    members = {f"m/{at}.bin": seeded_bytes(40_000 + at, seed=at) for at in range(12)}
    with tarfile.open(folder / "shard.tar", "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, BytesIO(data))
    for move in (False, True):
        bucket.promote(folder, move=move, prefix=f"{move}/")
        entries = [Entry(bucket.name, f"{move}/shard.tar", member=name) for name in members]
        assert contents(bucket.client.get_batch(entries)) == list(members.values())
