"""`ais-loader get`: whole files or none, ranges, and what is never overwritten by accident."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from ais_loader import errors
from ais_loader.cli.files import looks_binary
from ais_loader.cli.get import read_pieces
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import connect
from ais_loader.values.batch import Batch
from ais_loader.values.entry import Entry
from ais_loader.values.whole_file import whole_file
from tests.cli.kit import Run

PIECES_BYTES = (33 << 20) + 5
"""More than two of the pieces in which large objects are fetched."""


def test_bytes_go_to_standard_output_and_nothing_else_does(run: Run, filled: str, objects: dict[str, bytes]) -> None:
    for name, data in objects.items():
        for spelled in (f"{filled}/{name}", f"ais://{filled}/{name}"):
            result = run("get", spelled)
            assert (result.exit_code, result.stdout_bytes, result.stderr) == (0, data, "")
    assert run("get", f"{filled}/z", "-").stdout_bytes == b"last"


def test_a_file_is_named_or_put_into_a_folder(run: Run, filled: str, tmp_path: Path) -> None:
    assert "wrote" in run("get", f"{filled}/en/a.txt", tmp_path / "named").stderr
    assert run("get", f"{filled}/en/a.txt", tmp_path).exit_code == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"named": b"one\n", "a.txt": b"one\n"}
    assert (tmp_path / "named").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    found = os.umask(0o022)
    os.umask(found)
    return found


def test_the_file_is_an_argument_or_an_option_but_not_both(
    run: Run, filled: str, objects: dict[str, bytes], tmp_path: Path
) -> None:
    for option in ("-o", "--output"):
        assert run("get", f"{filled}/z", option, tmp_path / option).exit_code == 0
        assert (tmp_path / option).read_bytes() == objects["z"]
    assert run("get", "-r", f"{filled}/en", "-o", tmp_path / "en").exit_code == 0
    assert (tmp_path / "en" / "b.bin").read_bytes() == objects["en/b.bin"]
    both = run("get", f"{filled}/z", tmp_path / "a", "-o", tmp_path / "b")
    assert both.exit_code == 2 and "FILE and --output both say where to write: give one of them" in both.stderr


def test_an_existing_file_is_replaced_only_when_forced(run: Run, filled: str, tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_bytes(b"precious")
    link.symlink_to(file)
    for target in (file, link):
        refused = run("get", f"{filled}/z", target)
        assert (refused.exit_code, refused.stderr) == (1, f"Error: {file} exists; --force replaces it\n")
    assert file.read_bytes() == b"precious"
    assert run("get", f"{filled}/z", link, "--force").exit_code == 0
    assert link.is_symlink() and file.read_bytes() == b"last"


def test_a_pipe_or_device_is_written_to_and_stays_what_it_is(run: Run, filled: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert run("get", f"{filled}/z", tmp_path / "pipe", "--force").exit_code == 0
        assert os.read(reader, 100) == b"last"
    finally:
        os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.every_transport
def test_a_failure_leaves_no_file(run: Run, filled: str, tmp_path: Path) -> None:
    cases: list[tuple[list[str | Path], str]] = [
        ([f"{filled}/none", tmp_path / "f"], "no object 'none'"),
        ([f"{filled}/z", tmp_path / "f", "--start", "5"], "start=5"),
        ([f"{filled}/z", tmp_path / "f", "--start", "2", "--length", "3"], "past the end"),
        ([f"{filled}/z", tmp_path / "f", "--start", "1", "--length", str(1 << 62)], "past the end"),
        ([f"{filled}/z", tmp_path / "none" / "f"], "no such folder"),
    ]
    for arguments, reason in cases:
        result = run("get", *arguments)
        assert result.exit_code == 1 and reason in result.stderr, result.stderr
        assert result.stderr.count("\n") == 1 and list(tmp_path.iterdir()) == []


def test_a_write_that_fails_says_of_which_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "x")
    with pytest.raises(OSError) as full, whole_file(path, replace=False):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert (full.value.filename, os.listdir(tmp_path)) == (path, [])

    def read_only(part: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system", part)

    monkeypatch.setattr(os, "unlink", read_only)  # which says so also of what is not there
    nowhere = str(tmp_path / "no" / "x")
    with pytest.raises(FileNotFoundError) as missing, whole_file(nowhere, replace=False):
        pass
    assert missing.value.filename == nowhere


def test_ranges_are_exact(run: Run, filled: str, objects: dict[str, bytes]) -> None:
    data = objects["en/b.bin"]
    for start, length in [(0, 0), (0, 1), (10, 100), (255, 1), (256, 0)]:
        for verify in ([], ["--verify"]):
            result = run("get", f"{filled}/en/b.bin", "--start", str(start), "--length", str(length), *verify)
            assert result.stdout_bytes == data[start : start + length]
    assert run("get", f"{filled}/en/b.bin", "--start", "250").stdout_bytes == data[250:]


@pytest.mark.slow
def test_a_large_object_and_its_ranges_come_in_pieces_that_fit(run: Run, bucket_name: str, tmp_path: Path) -> None:
    data = os.urandom(PIECES_BYTES)
    (tmp_path / "big").write_bytes(data)
    assert run("put", tmp_path / "big", f"{bucket_name}/big", "--create-bucket").exit_code == 0
    assert run("get", f"{bucket_name}/big", tmp_path / "whole").exit_code == 0
    assert (tmp_path / "whole").read_bytes() == data
    part = run("get", f"{bucket_name}/big", "--start", "7", "--length", str(PIECES_BYTES - 9), "--verify")
    assert part.stdout_bytes == data[7:-2]


@pytest.mark.slow
def test_an_object_replaced_while_it_is_read_is_never_a_mix(bucket: Bucket) -> None:
    old, new = b"o" * PIECES_BYTES, b"n" * PIECES_BYTES
    bucket.put("big", old)
    pieces = read_pieces(bucket.client, Entry(bucket.name, "big"), 0, None, verify=False)
    received = bytes(next(pieces))
    bucket.put("big", new)
    try:
        received += b"".join(pieces)
    except errors.ObjectNotFound as error:
        assert "was replaced or deleted while it was read" in str(error)
        assert old.startswith(received)
    else:
        assert received == old


def test_an_object_replaced_between_looking_and_reading_is_not_taken_for_the_other(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put("big", b"o" * PIECES_BYTES)
    get_batch = bucket.client.get_batch

    def after_a_put(*arguments: Any, **options: Any) -> Batch:
        bucket.put("big", b"n" * (PIECES_BYTES + 1))
        return get_batch(*arguments, **options)

    monkeypatch.setattr(bucket.client, "get_batch", after_a_put)
    with pytest.raises(errors.ObjectNotFound, match="was replaced or deleted while it was read"):
        b"".join(read_pieces(bucket.client, Entry(bucket.name, "big"), 0, None, verify=False))


@pytest.mark.slow
def test_pieces_are_checked_where_they_arrive(local_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(local_url) as client:
        client.create_bucket("b").put("x", bytes(PIECES_BYTES))
        _damage(local_url)
        get_batch = client.get_batch

        def unverified(entries: Any, **_: Any) -> Batch:
            return get_batch(entries, verify_ranges=False)

        monkeypatch.setattr(client, "get_batch", unverified)
        with pytest.raises(errors.CorruptObject, match="what arrived has CRC-32C"):
            b"".join(read_pieces(client, Entry("b", "x"), 0, None, verify=False))


def _damage(store: str) -> None:
    """Change the last byte of the store's one object."""
    largest = max((path for path in Path(store, "objects").rglob("*") if path.is_file()), key=_size)
    largest.chmod(0o644)
    with largest.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        (last,) = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))


@pytest.mark.parametrize("size_bytes", [1000, PIECES_BYTES])
def test_a_damaged_object_is_reported_and_leaves_no_file(
    run: Run, local_url: str, tmp_path: Path, size_bytes: int
) -> None:
    with connect(local_url) as client:
        client.create_bucket("b").put("x", os.urandom(size_bytes))
    _damage(local_url)
    result = run("get", "b/x", tmp_path / "f", "--store", local_url)
    assert result.exit_code == 1 and "checksum" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def _size(path: Path) -> int:
    return path.stat().st_size


def test_arguments_that_name_no_object_are_usage_errors(run: Run, bucket_name: str) -> None:
    for name in (bucket_name, f"{bucket_name}/", "/x", "", "s3://b/x", "ais://"):
        result = run("get", name)
        assert result.exit_code == 2 and "BUCKET/NAME" in result.stderr, result.stderr
    assert run("get", f"{bucket_name}/x", "--start", "-1").exit_code == 2


def test_text_is_told_from_what_would_upset_a_terminal() -> None:
    assert not any(map(looks_binary, [b"", b"plain\ttext\r\n", "grüße 中".encode(), "中".encode()[:2]]))
    assert all(map(looks_binary, [b"\0", b"esc \x1b[2J", b"\xff\xfe", b"\x7f", b"fLaC\x00", b"\xe4\xb8 "]))
