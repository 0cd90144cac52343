"""`ais-loader ls`, `rm` and `bucket`: what is shown, and what it takes to delete."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ais_loader.objects.client import connect
from ais_loader.values.entry_table import EntryTable
from tests.cli.kit import Run, Stored
from tests.tar_kit import packed_tar


def test_objects_are_listed_in_name_order_as_names_that_other_commands_take(
    run: Run, filled: str, objects: dict[str, bytes]
) -> None:
    result = run("ls", "-r", filled)
    assert result.stdout.splitlines() == [f"{filled}/{name}" for name in sorted(objects)]
    for line in result.stdout.splitlines():
        assert run("get", line).stdout_bytes == objects[line.removeprefix(f"{filled}/")]


def test_one_level_is_listed_and_a_folder_is_one_line(run: Run, filled: str) -> None:
    def names(*arguments: str) -> list[str]:
        return [line.removeprefix(f"{filled}/") for line in run("ls", *arguments).stdout.splitlines()]

    assert names(filled) == ["en/", "english", "es/", "z"]
    assert names(f"{filled}/en") == names(f"ais://{filled}/en/") == ["en/a.txt", "en/b.bin"]
    assert names(f"{filled}/english") == ["english"]
    assert names(filled, "--limit", "2") == ["en/", "english"]
    lines = run("ls", "-l", filled).stdout.splitlines()
    assert lines[0].split() == ["260", "2", "objects", f"{filled}/en/"]
    assert run("ls", "-H", filled).stdout.splitlines()[0].split()[:2] == ["260", "B"]
    folder = json.loads(run("ls", "--json", "-l", filled).stdout.splitlines()[0])
    assert folder == {"bucket": filled, "folder": "en/", "objects": 2, "size_bytes": 260}
    assert json.loads(run("ls", "--json", filled).stdout.splitlines()[0]) == {"bucket": filled, "folder": "en/"}
    told = run("batch", "-", stdin=run("ls", "--json", filled).stdout_bytes)
    assert told.exit_code == 1 and "line 1: 'en/' is a folder: `ls --recursive` lists" in told.stderr
    assert "is a folder" in run("rm", "--list", "-", stdin=run("ls", filled).stdout_bytes).stderr


def test_folders_alone_are_listed_without_the_names_in_them(run: Run, url: str, bucket_name: str) -> None:
    with connect(url) as client:
        client.create_bucket(bucket_name).put_many([("p/x/1", b"1"), ("p/y/z/2", b"22"), ("p/x/3", b"3")])
    assert run("ls", "-l", f"{bucket_name}/p").stdout.split() == [
        *("2", "2", "objects", f"{bucket_name}/p/x/"),
        *("2", "1", "object", f"{bucket_name}/p/y/"),
    ]
    assert run("ls", bucket_name).stdout == f"{bucket_name}/p/\n"
    with connect(url) as client:
        client.bucket(bucket_name).put("p/x", b"both an object and a folder")
    assert run("ls", f"{bucket_name}/p/x").stdout.split() == [f"{bucket_name}/p/{n}" for n in ("x", "x/1", "x/3")]


@pytest.mark.slow
def test_a_folder_is_the_same_in_every_command_and_the_beginning_of_names_is_asked_for(
    run: Run, filled: str, stored: Stored, tmp_path: Path
) -> None:
    for command in (["ls", "-r"], ["du"], ["get", "-r"], ["rm", "-r", "-y"], ["cp", "-r"]):
        more = {"get": [tmp_path / "out"], "cp": [f"{filled}/copy"]}.get(command[0], [])
        nothing = run(*command, f"{filled}/e", *more)
        assert (nothing.exit_code == 1) != (command == ["du"]), nothing.output
    assert json.loads(run("du", "--json", f"{filled}/e").stdout)["objects"] == 0
    assert len(run("ls", "--prefix", f"{filled}/en").stdout.split()) == 3
    assert json.loads(run("du", "--json", "--prefix", f"{filled}/e").stdout)["objects"] == 4
    assert run("get", "-r", "--prefix", f"{filled}/en", tmp_path / "some").exit_code == 0
    assert sorted(path.name for path in (tmp_path / "some").rglob("*.*")) == ["a.txt", "b.bin"]
    assert (tmp_path / "some" / "english").read_bytes() == b"three"
    assert run("rm", "-r", "-y", "--prefix", f"{filled}/en").stderr == "deleted 3 objects\n"
    assert stored.names() == ["es/ñ 1.txt", "z"]
    for wrong in (["rm", "--prefix", f"{filled}/e"], ["get", "--prefix", f"{filled}/z"], ["du", "--prefix"]):
        assert run(*wrong).exit_code == 2
    nothing = run("ls", f"{filled}/none")
    assert (nothing.exit_code, nothing.stdout) == (1, "")
    assert nothing.stderr == f"Error: no object and no folder {filled}/none; --prefix takes the beginning of a name\n"


def test_names_are_saved_as_a_table(run: Run, filled: str, objects: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "entries"
    for arguments, wanted in (
        ([filled], sorted(objects)),
        ([f"{filled}/en"], ["en/a.txt", "en/b.bin"]),
        ([f"{filled}/en", "--prefix"], ["en/a.txt", "en/b.bin", "english"]),
    ):
        result = run("ls", *arguments, "--save", path)
        assert (result.stdout, result.stderr) == ("", f"{len(wanted)} names saved in {path}\n")
        table = EntryTable.open(path)
        assert (table.bucket, table.names(range(len(table)))) == (filled, wanted)
    before = path.read_bytes()
    assert run("ls", f"{filled}/none", "--save", path).exit_code == 1
    assert run("ls", filled, "--save", tmp_path / "no-folder" / "entries").exit_code == 1
    assert run("ls", "--save", path).exit_code == run("ls", filled, "--limit", "1", "--save", path).exit_code == 2
    assert path.read_bytes() == before


def test_existence_is_an_exit_code(run: Run, filled: str) -> None:
    assert run("exists", filled, f"{filled}/z", f"ais://{filled}/en/a.txt").output == ""
    missing = run("exists", f"{filled}/z", f"{filled}/none", "none-" + filled)
    assert (missing.exit_code, missing.stdout) == (3, "")
    assert missing.stderr.splitlines() == [f"none-{filled} does not exist", f"{filled}/none does not exist"]
    assert (run("exists", "-q", f"{filled}/none").exit_code, run("exists", "-q", f"{filled}/none").output) == (3, "")


def test_metadata_are_changed_key_by_key_or_all(run: Run, filled: str, stored: Stored) -> None:
    def metadata() -> dict[str, str]:
        found: dict[str, str] = json.loads(run("get", "--head", f"{filled}/z").stdout)["metadata"]
        return found

    assert run("set-metadata", f"{filled}/z", "source=studio", "rate=16000").output == ""
    shown = json.loads(run("set-metadata", "--json", f"{filled}/z", "rate=8000").stdout)
    assert shown["metadata"] == metadata() == {"source": "studio", "rate": "8000"}
    assert run("set-metadata", f"{filled}/z", "--clear").exit_code == 0 and metadata() == {}
    assert stored.contents()["z"] == b"last"
    assert run("set-metadata", f"{filled}/none", "a=b").exit_code == 1
    for wrong in (
        ["set-metadata", filled, "a=b"],
        ["set-metadata", f"{filled}/z"],
        ["set-metadata", f"{filled}/z", "a"],
    ):
        assert run(*wrong).exit_code == 2


def test_buckets_are_listed_by_both_commands(run: Run, filled: str) -> None:
    assert filled in run("ls").stdout.splitlines()
    assert run("ls").stdout == run("bucket", "ls").stdout
    described = [json.loads(line) for line in run("bucket", "ls", "--json").stdout.splitlines()]
    assert [bucket["copies"] for bucket in described if bucket["bucket"] == filled] == [1]
    assert run("ls", "--limit", "3").exit_code == 2


def test_the_long_form_has_size_time_checksum_and_version(run: Run, filled: str) -> None:
    (line,) = run("ls", "-l", "--prefix", f"{filled}/en/b").stdout.splitlines()
    assert re.fullmatch(rf" +256  \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d  9c44184b  [\d.]+  {filled}/en/b\.bin", line)
    assert run("ls", "--human", "--prefix", f"{filled}/en/b").stdout.split()[:2] == ["256", "B"]


def test_json_has_every_field_of_an_object(run: Run, filled: str) -> None:
    (line,) = run("ls", "--json", f"{filled}/es").stdout.splitlines()
    fields = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", fields.pop("modified"))
    assert re.fullmatch(r"\d+\.\d+\.\d+", fields.pop("version"))
    assert fields == {"bucket": filled, "name": "es/ñ 1.txt", "size_bytes": 0, "crc32c": "00000000", "metadata": {}}


def test_an_empty_bucket_is_an_empty_list(run: Run, bucket_name: str) -> None:
    run("bucket", "create", bucket_name)
    assert (run("ls", bucket_name).exit_code, run("ls", bucket_name).output) == (0, "")
    assert run("ls", "none-" + bucket_name).exit_code == 1


def test_a_name_cannot_command_the_terminal(run: Run, bucket_name: str, url: str) -> None:
    name = "clear\x1b[2J\nnext\u202egpj.exe"
    with connect(url) as client:
        client.create_bucket(bucket_name).put(name, b"x")
    assert run("ls", bucket_name).stdout == f"{bucket_name}/clear\\x1b[2J\\nnext\\u202egpj.exe\n"
    assert json.loads(run("ls", "--json", bucket_name).stdout)["name"] == name


def test_sums_are_shown_by_folder_and_add_up(run: Run, filled: str, objects: dict[str, bytes]) -> None:
    lines = run("du", filled).stdout.splitlines()
    assert [line.split("  ")[-1] for line in lines] == [f"{filled}/{name}" for name in ("", "en/", "es/", " in all")]
    assert lines[1].split() == ["260", "B", "2", "objects", f"{filled}/en/"]
    found = json.loads(run("du", f"ais://{filled}/en", "--prefix", "--depth", "2", "--json").stdout)
    size_bytes = sum(len(data) for name, data in objects.items() if name.startswith("en"))
    assert (found["objects"], found["size_bytes"], found["complete"]) == (3, size_bytes, True)
    assert found["by_prefix"]["en/"] == {"objects": 2, "size_bytes": 260}
    assert len(run("du", filled, "--depth", "0").stdout.splitlines()) == 1
    assert run("du", filled + "x").exit_code == 1
    every = run("du").stdout.splitlines()
    assert [line.split("  ")[-1] for line in every if filled in line] == [filled]
    assert every[-1].endswith("  in all") and json.loads(run("du", "--json").stdout.splitlines()[0])["complete"]


def test_a_named_object_goes_and_one_that_is_missing_is_reported(run: Run, filled: str, stored: Stored) -> None:
    result = run("rm", f"{filled}/z", f"{filled}/none", f"ais://{filled}/english")
    assert result.exit_code == 1
    assert result.stderr == (
        f"Failed: {filled}/none: no object 'none' in bucket {filled!r}\ndeleted 2 objects\nfailed: 1 object\n"
    )
    assert stored.names() == ["en/a.txt", "en/b.bin", "es/ñ 1.txt"]


def test_the_objects_of_a_list_go_and_those_that_are_missing_are_reported(
    run: Run, filled: str, stored: Stored, tmp_path: Path
) -> None:
    (tmp_path / "list").write_text(f"# two of them\n{filled}/none\nais://{filled}/english\n\n{filled}/en/a.txt\n")
    result = run("rm", "--list", tmp_path / "list")
    assert result.exit_code == 1
    assert result.stderr == (
        f"Failed: {filled}/none: no object 'none' in bucket {filled!r}\ndeleted 2 objects\nfailed: 1 object\n"
    )
    listed = run("ls", "--json", "--prefix", f"{filled}/e").stdout.encode()
    assert run("rm", "--list", "-", stdin=listed).stderr == "deleted 2 objects\n"
    assert stored.names() == ["z"]
    part = run("rm", "--list", "-", stdin=json.dumps({"bucket": filled, "name": "z", "start": 1}).encode())
    assert part.exit_code == 1 and "need whole objects" in part.stderr
    assert stored.names() == ["z"]
    for wrong in (["rm"], ["rm", "-r", filled, "--list", tmp_path / "list"]):
        assert run(*wrong).exit_code == 2


def test_a_folder_goes_only_after_yes(run: Run, filled: str, objects: dict[str, bytes], stored: Stored) -> None:
    for answer in (b"n\n", b"\n", b"maybe\n"):
        result = run("rm", "-r", f"{filled}/en", stdin=answer)
        assert result.exit_code == 1 and result.stderr.endswith("nothing deleted\n")
    silent = run("rm", "-r", f"{filled}/en")
    assert silent.exit_code == 1 and "use --yes to skip the question" in silent.stderr
    assert stored.contents() == objects
    agreed = run("rm", "-r", f"{filled}/en", stdin=b"y\n")
    assert (agreed.exit_code, agreed.stdout) == (0, "")
    assert f"  {filled}/en/a.txt\n  {filled}/en/b.bin\nDelete 2 objects (260 B)? [y/N] " in agreed.stderr
    assert stored.names() == ["english", "es/ñ 1.txt", "z"]  # not english: -r means a folder


def test_all_of_a_bucket_goes_without_the_bucket(run: Run, filled: str, stored: Stored) -> None:
    assert run("rm", filled).exit_code == 2
    assert run("rm", "-r", "--yes", filled).stderr == "deleted 5 objects\n"
    assert stored.names() == []
    again = run("rm", "-r", "--yes", filled)
    assert (again.exit_code, again.stderr) == (1, f"Error: no objects below {filled}\n")


def test_folders_that_overlap_are_deleted_once(run: Run, filled: str) -> None:
    assert run("rm", "-r", "-y", f"{filled}/en/", f"{filled}/en", f"{filled}/es").stderr == "deleted 3 objects\n"


def test_a_bucket_is_made_once_and_deleted_when_empty_or_forced(run: Run, bucket_name: str) -> None:
    made = run("bucket", "create", bucket_name)
    assert (made.exit_code, made.stdout) == (0, "")
    again = run("bucket", "create", f"ais://{bucket_name}")
    assert (again.exit_code, again.stderr) == (
        1,
        f"Error: bucket {bucket_name!r} already exists; with --exist-ok that is no error\n",
    )
    assert run("bucket", "create", bucket_name, "--exist-ok").exit_code == 0
    run("put", "-", f"{bucket_name}/x", stdin=b"x")
    full = run("bucket", "rm", bucket_name)
    assert (full.exit_code, full.stderr) == (
        1,
        f"Error: bucket {bucket_name!r} is not empty; use --force to delete its objects, too\n",
    )
    forced = run("bucket", "rm", bucket_name, "--force")
    assert (forced.exit_code, forced.stderr) == (0, f"deleted bucket {bucket_name} and 1 object in it\n")
    assert bucket_name not in run("ls").stdout.split()
    assert run("bucket", "rm", bucket_name).exit_code == 1


@pytest.mark.every_transport
def test_properties_of_a_bucket_are_shown_and_changed(run: Run, bucket_name: str) -> None:
    assert run("bucket", "create", bucket_name).exit_code == 0
    shown = json.loads(run("bucket", "show", bucket_name, "--json").stdout)
    assert {**shown, "uuid": ""} == {
        "bucket": bucket_name,
        "uuid": "",
        "copies": 1,
        "min_copies": 1,
        "redundancy": "copies",
        "settling": False,
        "quota_bytes": 0,
        "quota_objects": 0,
        "remote": None,
    }
    assert shown in [json.loads(line) for line in run("bucket", "ls", "--json").stdout.splitlines()]
    changed = run("bucket", "set", bucket_name, "min_copies=1")
    assert changed.exit_code == 0 and ["min_copies", "1"] in map(str.split, changed.stdout.splitlines())
    assert run("bucket", "show", bucket_name).stdout == changed.stdout
    refused = run("bucket", "set", bucket_name, "copies=4")
    assert refused.exit_code == 1 and "copies=4" in refused.stderr
    assert "rs:K+M with K from 2" in run("bucket", "set", bucket_name, "redundancy=rs:1+1").stderr
    assert run("bucket", "set", bucket_name, "redundancy=copies").exit_code == 0
    for wrong in (
        "min_copies=maybe",
        "reframe=yes",
        "copies",
        "copies=-1",
        "size=3",
        "endpoint=http://x",
        "validate=always",
    ):
        assert run("bucket", "set", bucket_name, wrong).exit_code == 2


def test_bucket_names_that_cannot_be_are_refused(run: Run) -> None:
    assert run("bucket", "create", "a/b").exit_code == 2
    bad = run("bucket", "create", "Not good!")
    assert bad.exit_code == 1 and "need 1 to 63 of the characters" in bad.stderr


def test_deleting_makes_no_store(run: Run, tmp_path: Path) -> None:
    for arguments in (["rm", "b/x"], ["rm", "-ry", "b"], ["bucket", "rm", "b"], ["ls"], ["get", "b/x"]):
        result = run(*arguments, "--store", tmp_path / "none")
        assert result.exit_code == 1 and "no store at" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_members_of_an_archive_are_listed_as_names_that_other_commands_take(
    run: Run, filled: str, url: str, tmp_path: Path
) -> None:
    members = {"en/a.wav": b"one", "en/b.wav": b"two", "fr.wav": b""}
    with connect(url) as client:
        client.bucket(filled).put("x/s.tar", packed_tar(members))
    listed = run("ls", "--members", f"{filled}/x/s.tar").stdout.splitlines()
    assert listed == [f"ais://{filled}/x/s.tar/{name}" for name in members]
    for line, data in zip(listed, members.values(), strict=True):
        assert run("get", line).stdout_bytes == data
    (line,) = run("ls", "-l", "--members", f"{filled}/x/s.tar", "--limit", "1").stdout.splitlines()
    assert re.fullmatch(rf" +3  [0-9a-f]{{8}}  ais://{filled}/x/s\.tar/en/a\.wav", line)
    as_json = tmp_path / "list"
    as_json.write_text(run("ls", "--members", "--json", f"{filled}/x/s.tar").stdout)
    assert run("batch", as_json, "-o", "-").stdout_bytes == b"onetwo"
    wrong = run("ls", "--members", f"{filled}/z")
    assert wrong.exit_code == 1 and wrong.stderr.startswith("Error: 'z' has no members: its name ends in none of .tar")
    assert run("ls", "--members", filled).exit_code == 2
