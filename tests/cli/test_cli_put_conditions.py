"""`ais-loader put --if-absent` and `--metadata`, and what shows metadata afterwards."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.kit import Run, Stored
from tests.table import table


def test_what_is_there_is_left_as_it_is_and_counted(run: Run, bucket_name: str, stored: Stored, tmp_path: Path) -> None:
    sizes = {"a": 3, "b": 5 << 20, "c": 4}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(b"1" * size)
    files = [tmp_path / name for name in sizes]
    first = run("put", *files[:2], bucket_name, "--create-bucket", "--if-absent")
    assert (first.exit_code, "already there" in first.stderr) == (0, False)
    for file in files:
        file.write_bytes(b"2" * 10)
    again = run("put", *files, bucket_name, "--if-absent", "--json")
    assert again.exit_code == 0
    assert "stored 1 object in" in again.stderr
    assert "already there, not replaced: 2 objects" in again.stderr
    assert "failed" not in again.stderr and "not attempted" not in again.stderr
    told = [json.loads(line) for line in again.stdout.splitlines()]
    assert [line.get("skipped", line.get("name")) for line in told] == ["there already", "there already", "c"]
    assert stored.contents() == {"a": b"111", "b": b"1" * (5 << 20), "c": b"2" * 10}
    typed = run("put", "-", f"{bucket_name}/a", "--if-absent", stdin=b"typed")
    assert (typed.exit_code, "already there" in typed.stderr) == (0, True)


def test_metadata_go_with_every_file_and_are_shown(run: Run, bucket_name: str, tmp_path: Path) -> None:
    for name, size in {"a": 3, "b": 5 << 20}.items():
        (tmp_path / name).write_bytes(b"1" * size)
    metadata = {"speaker": "7", "text": "a=b ü", "none": ""}
    pairs = [part for key, value in metadata.items() for part in ("--metadata", f"{key}={value}")]
    assert run("put", tmp_path / "a", tmp_path / "b", bucket_name, "--create-bucket", *pairs).exit_code == 0
    listed = [json.loads(line) for line in run("ls", bucket_name, "--json").stdout.splitlines()]
    assert [line["metadata"] for line in listed] == [metadata, metadata]
    head = json.loads(run("get", f"{bucket_name}/a", "--head").stdout)
    assert head == listed[0]
    assert (head["size_bytes"], head["metadata"]) == (3, metadata)


@table("pairs", [["k"], ["=v"], ["k=1", "k=2"], ["k=\x1b"], ["k=" + "x" * 5000]], ids=repr)
def test_metadata_that_cannot_be_meant_store_nothing(
    run: Run, bucket_name: str, tmp_path: Path, pairs: list[str]
) -> None:
    (tmp_path / "a").write_bytes(b"1")
    options = [part for pair in pairs for part in ("--metadata", pair)]
    result = run("put", tmp_path / "a", bucket_name, "--create-bucket", *options)
    assert result.exit_code == 2
    assert "--metadata" in result.stderr
    assert bucket_name not in run("ls").stdout.split()


def test_a_head_is_that_of_an_object(run: Run, filled: str) -> None:
    for arguments in ((f"{filled}/z", "--start", "1"), (f"{filled}/z", "out"), (f"ais://{filled}/a.tar/member",)):
        assert run("get", *arguments, "--head").exit_code == 2
    assert run("get", f"{filled}/missing", "--head").exit_code == 1
