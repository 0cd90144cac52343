"""`ais-loader get -r`: a folder of objects as files, gone on with when it was interrupted."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader import errors
from ais_loader.objects.client import connect
from ais_loader.values.entry import ObjectInfo
from tests.cli.kit import Run


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_below_a_folder_becomes_files_and_what_is_there_is_left_alone(
    run: Run, filled: str, objects: dict[str, bytes], tmp_path: Path
) -> None:
    done = run("get", "-r", f"{filled}/en", tmp_path / "en")
    assert (done.exit_code, done.stdout) == (0, ""), done.stderr
    assert done.stderr.startswith(f"wrote 2 files below {tmp_path / 'en'} (260 B in ")
    assert files_in(tmp_path / "en") == {"a.txt": objects["en/a.txt"], "b.bin": objects["en/b.bin"]}
    assert run("get", "-r", f"ais://{filled}", tmp_path / "all").exit_code == 0
    assert files_in(tmp_path / "all") == objects
    (tmp_path / "all" / "z").unlink()
    again = run("get", filled, tmp_path / "all", "-r").stderr.splitlines()
    assert again[0].startswith("wrote 1 file below") and again[1] == "already there with the same bytes: 4 files"
    wanted = run("get", "-r", filled, tmp_path / "some", "--include", "*.bin", "--include", "z", "--exclude", "z")
    assert wanted.exit_code == 0 and set(files_in(tmp_path / "some")) == {"en/b.bin"}


def test_a_file_with_other_bytes_stays_unless_forced_and_the_others_come(
    run: Run, filled: str, objects: dict[str, bytes], tmp_path: Path
) -> None:
    (tmp_path / "z").write_bytes(b"mine")
    done = run("get", "-r", filled, tmp_path)
    assert done.exit_code == 1 and done.stderr.endswith("failed: 1 object\n")
    assert f"Failed: {tmp_path / 'z'} is there with other bytes; --force replaces it\n" in done.stderr
    assert files_in(tmp_path) == objects | {"z": b"mine"}
    assert run("get", "-r", filled, tmp_path, "--force").exit_code == 0
    assert files_in(tmp_path) == objects


def test_what_cannot_be_meant_is_refused(run: Run, filled: str, tmp_path: Path) -> None:
    for wrong in (
        ["-r", filled],
        ["-r", filled, "-"],
        ["-r", filled, tmp_path, "--start", "1"],
        ["-r", filled, tmp_path, "--head"],
        [f"{filled}/z", tmp_path, "--include", "z"],
        [filled, tmp_path],
    ):
        assert run("get", *wrong).exit_code == 2
    for nothing in (f"{filled}/none", f"{filled}/z"):
        empty = run("get", "-r", nothing, tmp_path / "out")
        assert (empty.exit_code, empty.stderr) == (1, f"Error: no objects below {nothing}\n")
    assert "does not exist" in run("get", "-r", f"{filled}x", tmp_path / "out").stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../up", "en//a", "/etc/x", "en/../../up", "en/./a", "en/", "nul\0"])
def test_a_name_that_leads_elsewhere_is_never_a_file(
    local_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with connect(local_url) as client:
        bucket = client.create_bucket("b")
        info = bucket.put("en/a", b"1")
        lie = ObjectInfo(**{field: getattr(info, field) for field in info.__slots__} | {"name": name})
        monkeypatch.setattr(type(bucket._transport), "objects", lambda *_, **__: iter([lie, info]))
        top = tmp_path / "out" / "deep"
        done = bucket.download("", top, on_error="return")
        assert [failure.name for failure in done.failures] == [name]
        assert isinstance(done.failures[0].error, errors.InvalidName)
        assert files_in(tmp_path / "out") == {"deep/en/a": b"1"}


@pytest.mark.slow
def test_large_objects_come_beside_small_ones_and_an_interruption_leaves_no_part(
    local_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = {"big": os.urandom(9 << 20), "other": os.urandom(10 << 20)} | {f"s/{i}": bytes([i]) for i in range(9)}
    with connect(local_url) as client:
        bucket = client.create_bucket("b")
        bucket.put_many(objects.items())
        assert bucket.download("", tmp_path / "whole").size_bytes == sum(map(len, objects.values()))
        assert files_in(tmp_path / "whole") == objects

        def broken(self: object) -> Iterator[memoryview]:
            yield memoryview(objects["big"])[: 1 << 20]
            raise errors.NodeUnavailable("the connection was lost")

        with monkeypatch.context() as patched, contextlib.suppress(errors.NodeUnavailable):
            patched.setattr("ais_loader.objects.object_file.ObjectReader.chunks", broken)
            bucket.download("", tmp_path / "part")
            pytest.fail("it went on")
        assert files_in(tmp_path / "part").keys() <= {name for name in objects if name.startswith("s/")}
        assert bucket.download("", tmp_path / "part").failed == 0
        assert files_in(tmp_path / "part") == objects
