"""`ais-loader snapshot`, and the commands that read what a bucket was."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.cli.kit import Run


@pytest.fixture
def pinned(run: Run, filled: str) -> Iterator[str]:
    """The objects as they were; all but one of them have been replaced or deleted since."""
    made = run("snapshot", "create", f"{filled}@run-1")
    assert (made.exit_code, made.stdout) == (0, "")
    assert made.stderr == f"made {filled}@run-1: 5 objects, 269 B\n"
    run("rm", f"{filled}/en/a.txt", f"{filled}/es/ñ 1.txt", f"{filled}/english")
    run("put", "-", f"{filled}/en/b.bin", stdin=b"new")
    yield f"{filled}@run-1"
    assert run("snapshot", "rm", f"{filled}@run-1").exit_code == 0
    assert run("snapshot", "ls", filled).stdout == ""


@pytest.mark.slow
def test_what_a_bucket_was_is_listed_and_read_by_its_pinned_name(
    run: Run, pinned: str, objects: dict[str, bytes]
) -> None:
    assert run("ls", "-r", pinned).stdout.splitlines() == [f"{pinned}/{name}" for name in sorted(objects)]
    for line in run("ls", f"ais://{pinned}/en").stdout.splitlines():
        assert run("get", line).stdout_bytes == objects[line.removeprefix(f"{pinned}/")]
    batch = run("batch", "-", "-o", "-", stdin=f"ais://{pinned}/z\nais://{pinned}/en/a.txt\n".encode())
    assert batch.stdout_bytes == objects["z"] + objects["en/a.txt"], batch.stderr
    listed = run("batch", "-", "-o", "-", stdin=run("ls", "-r", "--json", pinned).stdout_bytes)
    assert listed.stdout_bytes == b"".join(objects[name] for name in sorted(objects)), listed.stderr
    assert run("get", f"{pinned.partition('@')[0]}/en/b.bin").stdout_bytes == b"new"


def test_snapshots_are_listed_by_name_in_full_and_as_json(run: Run, pinned: str) -> None:
    bucket = pinned.partition("@")[0]
    assert run("snapshot", "ls", bucket).stdout == f"{pinned}\n"
    line = run("snapshot", "ls", "-l", bucket).stdout
    assert re.fullmatch(rf" +5 +269  \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d  {pinned}\n", line)
    fields = json.loads(run("snapshot", "ls", "--json", bucket).stdout)
    assert fields.pop("created_ns") > 0
    assert fields == {"bucket": bucket, "name": "run-1", "objects": 5, "size_bytes": 269}


@pytest.mark.every_transport
def test_what_cannot_be_done_is_said_in_one_line(run: Run, pinned: str) -> None:
    bucket = pinned.partition("@")[0]
    for arguments, message in (
        (["snapshot", "create", pinned], f"Error: bucket '{bucket}' has a snapshot 'run-1' already\n"),
        (["snapshot", "rm", f"{bucket}@other"], f"Error: bucket '{bucket}' has no snapshot 'other'\n"),
        (["rm", f"{pinned}/z"], f"'{pinned}' is a snapshot, which never changes; write to the bucket itself"),
        (["bucket", "rm", "--force", bucket], "has snapshots, run-1: delete them first\n"),
        (["ls", f"{bucket}@other"], f"Error: bucket '{bucket}' has no snapshot 'other'\n"),
    ):
        result = run(*arguments)
        assert result.exit_code == 1 and message in result.stderr and result.stderr.count("\n") <= 3, result.stderr
    for wrong in (["create", bucket], ["create", f"{pinned}/z"], ["rm", "@run-1"], ["ls", pinned]):
        assert run("snapshot", *wrong).exit_code == 2
