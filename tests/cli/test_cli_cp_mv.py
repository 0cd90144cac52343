"""`ais-loader cp` and `mv`, and `bucket uploads`: which names become which, and that doing it again does the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ais_loader.objects.client import connect
from tests.cli.kit import Run, Stored


def test_one_object_is_copied_and_renamed(run: Run, filled: str, objects: dict[str, bytes], stored: Stored) -> None:
    done = run("cp", f"ais://{filled}/en/a.txt", f"ais://{filled}/copy")
    assert (done.exit_code, done.stdout) == (0, "") and done.stderr.startswith("copied 1 object (4 B in ")
    assert run("cp", f"{filled}/en/a.txt", f"{filled}/z", f"{filled}/below/").exit_code == 0
    assert run("mv", f"{filled}/english", f"{filled}/below/").exit_code == 0
    (line,) = run("mv", "--json", f"{filled}/copy", f"{filled}/moved").stdout.splitlines()
    assert (json.loads(line)["name"], json.loads(line)["size_bytes"]) == ("moved", 4)
    expected = objects | {"below/a.txt": b"one\n", "below/z": b"last", "below/english": b"three", "moved": b"one\n"}
    del expected["english"]
    assert stored.contents() == expected


@pytest.mark.slow
@pytest.mark.every_transport
def test_what_is_below_a_name_is_copied_once_and_then_moved(
    run: Run, filled: str, objects: dict[str, bytes], stored: Stored
) -> None:
    assert run("cp", "-r", f"{filled}/en", f"{filled}/de").stderr.startswith("copied 2 objects")
    again = run("cp", "-r", f"{filled}/en/", f"{filled}/de/")
    assert again.exit_code == 0
    assert again.stderr.splitlines()[1:] == ["already there with the same bytes: 2 objects"]
    assert stored.contents() == objects | {"de/a.txt": b"one\n", "de/b.bin": objects["en/b.bin"]}
    assert run("mv", "-r", f"{filled}/en", f"{filled}/de").stderr.startswith("renamed 2 objects")
    assert stored.names() == ["de/a.txt", "de/b.bin", "english", "es/ñ 1.txt", "z"]
    nothing = run("mv", "-r", f"{filled}/en", f"{filled}/de")
    assert nothing.exit_code == 1 and f"no objects below {filled}/en" in nothing.stderr


def test_what_cannot_be_copied_is_said(run: Run, filled: str, objects: dict[str, bytes], stored: Stored) -> None:
    for arguments in (
        ("cp", filled, f"{filled}/x"),
        ("cp", f"{filled}/en/", f"{filled}/x"),
        ("cp", f"{filled}/z", f"{filled}/english", f"{filled}/x"),
    ):
        assert run(*arguments).exit_code == 2
    some = run("cp", f"{filled}/nobody", f"{filled}/z", f"{filled}/x/")
    assert some.exit_code == 1
    assert "Failed: " in some.stderr and "nobody" in some.stderr and "failed: 1 object" in some.stderr
    assert run("cp", "-r", f"{filled}/en", f"{filled}/en/below").exit_code == 1
    assert run("cp", f"{filled}/z", "no-such-bucket/z").exit_code == 1
    assert stored.contents() == objects | {"x/z": b"last"}


def test_forgotten_uploads_are_shown_and_aborted_when_told(run: Run, url: str, filled: str) -> None:
    with connect(url) as client:
        upload = client.bucket(filled).multipart("big\nname")
        upload.put_part(1, b"12345")
    shown = run("bucket", "uploads", filled)
    assert shown.stdout.startswith(upload.id) and shown.stdout.endswith("  1 part, 5 B  big\\nname\n")
    (line,) = run("bucket", "uploads", filled, "--json").stdout.splitlines()
    assert (json.loads(line)["id"], json.loads(line)["name"]) == (upload.id, "big\nname")
    assert run("bucket", "uploads", filled, "--abort-older-than", "1").stdout == ""
    assert run("bucket", "uploads", filled, "--abort-older-than", "0").stdout.startswith(upload.id)
    assert run("bucket", "uploads", filled).stdout == ""


def test_a_copy_that_cannot_begin_says_that_alone(run: Run, filled: str) -> None:
    for source, reason in (("none", "no objects below"), ("", "overlap")):
        result = run("cp", "-r", f"{filled}/{source}".rstrip("/"), f"{filled}/to")
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1) and reason in result.stderr


def test_files_of_this_machine_are_not_copied_and_the_commands_that_do_are_named(
    run: Run, filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.wav").write_bytes(b"1")
    monkeypatch.chdir(tmp_path)
    for arguments in ([f"{filled}/z", "./z"], ["corpus/a.wav", filled], ["-r", "corpus", filled]):
        refused = run("cp", *arguments)
        assert refused.exit_code == 1
        assert (
            "is a file on this machine, and this command works within a store; for files, use `ais-loader put`"
            in refused.stderr
        )
