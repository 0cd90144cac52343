"""`ais-loader promote`: what it stores, what it says, and what it leaves when it is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from ais_loader.cli import main
from ais_loader.objects.client import connect
from ais_loader.testing import seeded_bytes
from storage_node.store.fsck.fsck import check
from tests.cli.kit import TIMEOUT_S, Run, Stored, command, environment

LARGE = seeded_bytes(300_000)


@pytest.fixture
def folder(promote_root: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=promote_root) as made:
        (Path(made) / "x").mkdir()
        for name, data in (("a.wav", b"a"), ("x/b.wav", b"bb"), ("x/c.txt", LARGE)):
            (Path(made) / name).write_bytes(data)
        yield Path(made)


def test_a_folder_is_promoted_below_a_prefix_and_skipped_the_second_time(
    run: Run, bucket_name: str, stored: Stored, folder: Path
) -> None:
    done = run("promote", "-r", folder, f"ais://{bucket_name}/p", "--create-bucket")
    assert (done.exit_code, done.stdout) == (0, "")
    assert f"promoted 3 files into bucket {bucket_name} (293.0 KiB" in done.stderr
    assert stored.contents() == {"p/a.wav": b"a", "p/x/b.wav": b"bb", "p/x/c.txt": LARGE}
    again = run("promote", "-r", folder, f"{bucket_name}/p/")
    assert again.exit_code == 0 and "already there: 3 files" in again.stderr


@pytest.mark.every_transport
def test_json_has_a_line_for_each_file_and_a_summary(run: Run, bucket_name: str, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    done = run("promote", "-r", folder, bucket_name, "--create-bucket", "--json", "--exclude", "*.txt")
    *files, summary = map(json.loads, done.stdout.splitlines())
    assert done.exit_code == 1
    assert summary == {"summary": {"promoted": 2, "promoted_bytes": 3, "skipped": 0, "failed": 1}}
    told = {one["source"]: (one["status"], one.get("size_bytes"), one.get("kind")) for one in files}
    assert told == {
        "a.wav": ("promoted", 1, None),
        "x/b.wav": ("promoted", 2, None),
        "pipe": ("failed", None, "source-refused"),
    }


def test_what_is_wrong_is_one_line(run: Run, bucket_name: str, folder: Path) -> None:
    missing = run("promote", folder, bucket_name)
    assert (missing.exit_code, missing.stderr.count("\n")) == (1, 1)
    assert f"bucket '{bucket_name}' does not exist" in missing.stderr
    unasked = run("promote", folder, bucket_name, "--create-bucket")
    assert unasked.exit_code == 1 and "-r promotes what is in it" in unasked.stderr
    assert f"bucket '{bucket_name}' does not exist" in run("ls", bucket_name).stderr, "it is not left behind empty"
    assert run("bucket", "create", bucket_name).exit_code == 0
    assert run("promote", folder, bucket_name, "--create-bucket").exit_code == 1
    assert run("ls", bucket_name).exit_code == 0, "one that was there stays"


@pytest.mark.slow
def test_a_killed_move_loses_nothing_and_ends_when_it_is_run_again(
    tmp_path: Path, local_url: str, folder: Path
) -> None:
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with connect(local_url) as client:
        client.create_bucket("b")
    arguments = command("promote", "-r", "--move", folder, "b")
    for point in ("promote.staged", "put.committed", "promote.lasting"):
        killed = subprocess.run(
            arguments,
            env=environment(local_url) | {"AIS_LOADER_FAILPOINT": point},
            timeout=TIMEOUT_S,
            capture_output=True,
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == set(files)
    done = subprocess.run(arguments, env=environment(local_url), timeout=TIMEOUT_S, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    with connect(local_url) as client:
        assert {info.name: client.bucket("b").get(info.name) for info in client.bucket("b").objects()} == files
    assert not check([Path(local_url)], checksums=True).findings


def test_a_store_of_this_machine_has_no_nodes_to_choose_from(local_url: str, tmp_path: Path) -> None:
    arguments = ["promote", "-r", str(tmp_path), "b", "--store", local_url, "--create-bucket", "--node", "a:1"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2 and "--node" in result.stderr
    assert not Path(local_url).exists()
