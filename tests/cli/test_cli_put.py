"""`ais-loader put`: names, folders, links, streams, and what happens to the others when one fails."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ais_loader.objects.client import connect
from tests.cli.kit import Run, Stored
from tests.data import SPEECH_DIR

DEVICE_THAT_FAILS = "/proc/self/mem"
"""A regular file whose first byte cannot be read."""


@pytest.fixture
def tree(tmp_path: Path) -> dict[str, bytes]:
    """Files below tmp_path/tree, by relative path."""
    files = {"b.txt": b"b", "a/x.bin": b"\0\1", "a/deep/y": b"", "ü.txt": "ü".encode(), "a.txt": b"a"}
    for name, data in files.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return files


@pytest.mark.every_transport
def test_a_folder_comes_back_byte_for_byte(run: Run, bucket_name: str, tmp_path: Path) -> None:
    stored = run("put", "-r", SPEECH_DIR, f"{bucket_name}/corpus", "--create-bucket")
    files = {str(path.relative_to(SPEECH_DIR)): path for path in SPEECH_DIR.rglob("*") if path.is_file()}
    assert (stored.exit_code, stored.stdout) == (0, "")
    assert f"stored {len(files)} objects in bucket {bucket_name} (3.0 MiB" in stored.stderr
    listed = run("ls", "-r", bucket_name)
    fetched = run("batch", "-", "-o", tmp_path / "out", stdin=listed.stdout_bytes)
    assert fetched.exit_code == 0, fetched.stderr
    in_order = [line.removeprefix(f"{bucket_name}/corpus/") for line in listed.stdout.splitlines()]
    assert in_order == sorted(files)
    for name, path in zip(in_order, sorted((tmp_path / "out").iterdir()), strict=True):
        assert path.read_bytes() == files[name].read_bytes()


def test_names_are_relative_to_the_folder_and_follow_the_prefix(
    run: Run, bucket_name: str, stored: Stored, tree: dict[str, bytes], tmp_path: Path
) -> None:
    for prefix in ("", "p", "p/q/"):
        assert run("put", "-r", tmp_path / "tree", f"{bucket_name}/{prefix}", "--create-bucket").exit_code == 0
    below = [prefix + name for prefix in ("", "p/", "p/q/") for name in tree]
    assert stored.contents() == {name: tree[name.removeprefix("p/").removeprefix("q/")] for name in below}


def test_one_file_takes_the_name_given_or_its_own(
    run: Run, bucket_name: str, stored: Stored, tree: dict[str, bytes], tmp_path: Path
) -> None:
    file = tmp_path / "tree" / "a.txt"
    for dest in (bucket_name, f"ais://{bucket_name}/p/", f"{bucket_name}/other/name", f"ais://{bucket_name}/s.tar/n"):
        assert run("put", file, dest, "--create-bucket").exit_code == 0
    assert stored.contents() == {"a.txt": b"a", "p/a.txt": b"a", "other/name": b"a", "s.tar/n": b"a"}


def test_standard_input_and_pipes_become_objects(run: Run, bucket_name: str, stored: Stored, tmp_path: Path) -> None:
    read, write = os.pipe()
    os.write(write, b"through a pipe")
    os.close(write)
    try:
        assert run("put", "-", f"{bucket_name}/in", "--create-bucket", stdin=b"typed\0").exit_code == 0
        assert run("put", f"/dev/fd/{read}", f"{bucket_name}/pipe").exit_code == 0
    finally:
        os.close(read)
    assert stored.contents() == {"in": b"typed\0", "pipe": b"through a pipe"}


def test_large_and_small_files_mix_in_order(run: Run, bucket_name: str, stored: Stored, tmp_path: Path) -> None:
    sizes = {"a": 10, "b": 5 << 20, "c": 0, "d": 4 << 20, "e": 20}
    data = {name: os.urandom(size) for name, size in sizes.items()}
    for name, content in data.items():
        (tmp_path / name).write_bytes(content)
    result = run("put", *(tmp_path / name for name in sizes), bucket_name, "--create-bucket", "--json")
    assert [json.loads(line)["size_bytes"] for line in result.stdout.splitlines()] == list(sizes.values())
    assert stored.contents() == data


def test_a_file_that_fails_does_not_stop_the_others(
    run: Run, bucket_name: str, stored: Stored, tree: dict[str, bytes], tmp_path: Path
) -> None:
    a, b = tmp_path / "tree" / "a.txt", tmp_path / "tree" / "b.txt"
    result = run("put", a, DEVICE_THAT_FAILS, tmp_path / "none", b, bucket_name, "--create-bucket")
    assert result.exit_code == 1
    assert f"Failed: {tmp_path}/none: No such file or directory\n" in result.stderr
    assert f"Failed: {DEVICE_THAT_FAILS}: Input/output error\n" in result.stderr
    assert result.stderr.endswith("failed: 2 files\n")
    assert stored.contents() == {"a.txt": b"a", "b.txt": b"b"}


def test_of_a_reason_that_many_files_have_in_common_some_are_told(
    run: Run, bucket_name: str, stored: Stored, tree: dict[str, bytes], tmp_path: Path
) -> None:
    gone = [tmp_path / f"gone-{number}" for number in range(25)]
    result = run("put", *gone, tmp_path / "tree" / "a.txt", bucket_name, "--create-bucket")
    assert (result.exit_code, result.stderr.count("Failed: ")) == (1, 21)
    assert "Failed: and 5 files more (--json lists them all): No such file or directory\n" in result.stderr
    assert result.stderr.endswith("failed: 25 files\n") and stored.contents() == {"a.txt": b"a"}
    assert run("put", *gone, bucket_name, "--json").stdout.count('"error"') == 25


def test_json_says_of_each_file_what_became_of_it(
    run: Run, bucket_name: str, tree: dict[str, bytes], tmp_path: Path
) -> None:
    a, b = tmp_path / "tree" / "a.txt", tmp_path / "tree" / "b.txt"
    result = run("put", a, DEVICE_THAT_FAILS, b, bucket_name, "--create-bucket", "--json")
    first, failed, last = map(json.loads, result.stdout.splitlines())
    assert (first["source"], first["bucket"], first["name"]) == (str(a), bucket_name, "a.txt")
    assert (first["size_bytes"], first["crc32c"]) == (1, "c1d04330")
    assert failed == {"source": DEVICE_THAT_FAILS, "error": "Input/output error"}
    assert last["source"] == str(b)


def test_names_that_no_object_can_have_are_reported_one_by_one(
    run: Run, bucket_name: str, stored: Stored, tmp_path: Path
) -> None:
    folder = tmp_path / "names"
    folder.mkdir()
    (folder / "good").write_bytes(b"good")
    Path(os.fsdecode(os.fsencode(folder) + b"/bad\xff")).write_bytes(b"bad")
    result = run("put", "-r", folder, bucket_name, "--create-bucket")
    assert result.exit_code == 1
    assert f"Failed: {folder}/bad\\udcff: its name is not UTF-8" in result.stderr
    assert stored.names() == ["good"]


def test_symbolic_links_are_left_out_unless_asked_for(
    run: Run, bucket_name: str, stored: Stored, tree: dict[str, bytes], tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(b"outside")
    (tmp_path / "tree" / "out").symlink_to(tmp_path / "secret")
    (tmp_path / "tree" / "folder").symlink_to(tmp_path / "tree" / "a")
    result = run("put", "-r", tmp_path / "tree", bucket_name, "--create-bucket")
    assert (result.exit_code, sorted(stored.names())) == (0, sorted(tree))
    assert "skipped: 2 symbolic links; --follow-links follows them\n" in result.stderr
    assert run("put", "-r", tmp_path / "tree", bucket_name, "--follow-links").exit_code == 0
    links = {"out": b"outside", "folder/x.bin": b"\0\1", "folder/deep/y": b""}
    assert stored.contents() == tree | links


def test_links_in_a_circle_or_to_nowhere_are_failures_not_hangs(
    run: Run, bucket_name: str, stored: Stored, tree: dict[str, bytes], tmp_path: Path
) -> None:
    (tmp_path / "tree" / "a" / "up").symlink_to(tmp_path / "tree")
    (tmp_path / "tree" / "dangling").symlink_to(tmp_path / "none")
    result = run("put", "-r", "--follow-links", tmp_path / "tree", bucket_name, "--create-bucket")
    assert result.exit_code == 1
    assert f"{tmp_path}/tree/a/up: this symbolic link leads back to a folder that it is in\n" in result.stderr
    assert f"{tmp_path}/tree/dangling: this symbolic link leads nowhere\n" in result.stderr
    assert stored.contents() == tree


def test_a_store_does_not_swallow_itself(run: Run, tree: dict[str, bytes], tmp_path: Path) -> None:
    store = tmp_path / "tree" / "store"
    assert run("bucket", "create", "b", "--store", store).exit_code == 0
    result = run("put", "-r", tmp_path / "tree", "b", "--store", store)
    assert "skipped: 1 store folder\n" in result.stderr
    with connect(store, mode="r") as client:
        assert {info.name for info in client.bucket("b").objects()} == set(tree)
    assert "is the store itself" in run("put", "-r", store, "b", "--store", store).stderr


def test_a_command_line_that_cannot_be_meant_stores_nothing(
    run: Run, filled: str, stored: Stored, tree: dict[str, bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "tree"
    (folder / "a" / "a.txt").write_bytes(b"another")
    before = stored.contents()
    cases: list[tuple[list[str | Path], str]] = [
        (["put", folder, filled], "is a folder; -r stores the files in it"),
        (["put", folder / "a.txt", folder / "b.txt", f"{filled}/p"], f"{filled}/p/ instead of {filled}/p"),
        (["put", folder / "a.txt", folder / "a" / "a.txt", filled], "would both become 'a.txt'"),
        (["put", "-r", folder, folder / "a", filled], "would both become 'a.txt'"),
        (["put", "-", filled], "standard input has no name"),
        (["put", "/dev/null", filled], "is not a regular file"),
        (["put", filled], "only one name was given"),
        (["put", folder / "a.txt", "/x"], "names no bucket"),
    ]
    for arguments, reason in cases:
        result = run(*arguments)
        assert result.exit_code == 2, result.stderr
        assert reason in " ".join(result.stderr.split())
    assert stored.contents() == before


def test_a_missing_bucket_or_store_is_not_made_by_accident(run: Run, bucket_name: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"f")
    missing = run("put", tmp_path / "f", bucket_name)
    assert (missing.exit_code, missing.stderr) == (
        1,
        f"Error: bucket {bucket_name!r} does not exist; use --create-bucket to create it\n",
    )
    typo = tmp_path / "typo"
    assert f"no store at {typo}; " in run("put", tmp_path / "f", "b", "--store", typo).stderr
    assert not typo.exists()


def test_what_is_there_and_equal_is_not_stored_again(
    run: Run, bucket_name: str, stored: Stored, tree: dict[str, bytes], url: str, tmp_path: Path
) -> None:
    put = ("put", "-r", "--skip-equal", tmp_path / "tree", f"{bucket_name}/p", "--create-bucket")
    first = run(*put)
    assert (first.exit_code, "equal" in first.stderr) == (0, False)
    with connect(url) as client:
        before = {info.name: info.version for info in client.bucket(bucket_name).objects()}
        client.bucket(bucket_name).delete("p/b.txt")
    (tmp_path / "tree" / "a.txt").write_bytes(b"A")  # of the same size
    (tmp_path / "tree" / "new").write_bytes(b"new")
    again = run(*put)
    assert again.exit_code == 0
    assert "stored 3 objects" in again.stderr and "already there with the same bytes: 3 files" in again.stderr
    assert stored.contents() == {f"p/{name}": data for name, data in {**tree, "a.txt": b"A", "new": b"new"}.items()}
    with connect(url) as client:
        after = {info.name: info.version for info in client.bucket(bucket_name).objects()}
    assert {name for name in before if before[name] == after[name]} == {"p/a/x.bin", "p/a/deep/y", "p/ü.txt"}
