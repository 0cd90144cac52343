"""`ais-loader batch`: lists in, objects out, in their order, with failures in their place."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import click
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ais_loader.cli.batch import safe_name
from ais_loader.cli.batch_list import parse_list
from ais_loader.objects.client import connect
from ais_loader.values.entry import Entry
from tests.cli.kit import Run
from tests.table import table


@pytest.fixture
def listing(filled: str, tmp_path: Path) -> Path:
    """Five entries: both spellings, one twice, one that does not exist."""
    path = tmp_path / "list.txt"
    path.write_text(
        f"{filled}/z\nais://{filled}/en/b.bin\n{filled}/none\n# a comment\n\n{filled}/z\n{filled}/es/ñ 1.txt\n"
    )
    return path


@pytest.mark.every_transport
def test_files_come_in_the_order_of_the_list_with_failures_in_place(
    run: Run, objects: dict[str, bytes], listing: Path, filled: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    result = run("batch", listing, "-o", out, "--on-error", "placeholder")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"Failed: {filled}/none: no object 'none'" in result.stderr and "failed: 1 object\n" in result.stderr
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {
        "000000-z": b"last",
        "000001-en_b.bin": objects["en/b.bin"],
        "000002-none.failed": f"no object 'none' in bucket {filled!r}\n".encode(),
        "000003-z": b"last",
        "000004-es_ñ_1.txt": b"",
    }


def test_the_folder_is_an_option_or_an_argument_but_not_both(run: Run, listing: Path, tmp_path: Path) -> None:
    for number, words in enumerate((["--output"], [])):
        out = tmp_path / str(number)
        assert run("batch", "--on-error", "placeholder", listing, *words, out).exit_code == 1  # one does not exist
        assert len(list(out.iterdir())) == 5
    both = run("batch", listing, tmp_path / "a", "-o", tmp_path / "b")
    assert both.exit_code == 2 and "DIR and --output both say where to write: give one of them" in both.stderr


def test_the_first_failure_ends_it_unless_placeholders_are_wanted(run: Run, listing: Path, tmp_path: Path) -> None:
    result = run("batch", listing, "-o", tmp_path / "out")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: entry 2: no object 'none'") and result.stderr.count("\n") == 1
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["000000-z", "000001-en_b.bin"]


def test_json_reports_every_entry_in_its_place(run: Run, listing: Path, filled: str, tmp_path: Path) -> None:
    result = run("batch", listing, "--json", "--on-error", "placeholder")
    reported = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["index"], line["name"], line["status"], line["size_bytes"]) for line in reported] == [
        (0, "z", "OK", 4),
        (1, "en/b.bin", "OK", 256),
        (2, "none", "NOT_FOUND", 0),
        (3, "z", "OK", 4),
        (4, "es/ñ 1.txt", "OK", 0),
    ]
    assert reported[2]["kind"] == "object-not-found" and reported[2]["bucket"] == filled
    written = run("batch", listing, "--json", "--on-error", "placeholder", "-o", tmp_path / "out")
    files = [json.loads(line)["file"] for line in written.stdout.splitlines()]
    assert files == [str(path) for path in sorted((tmp_path / "out").iterdir())]


def test_without_output_a_line_is_shown_for_each(run: Run, listing: Path, filled: str) -> None:
    result = run("batch", listing, "--on-error", "placeholder")
    assert result.exit_code == 1
    assert [line.split()[:3] for line in result.stdout.splitlines()] == [
        ["0", "OK", "4"],
        ["1", "OK", "256"],
        ["2", "NOT_FOUND", "0"],
        ["3", "OK", "4"],
        ["4", "OK", "0"],
    ]
    assert f"{filled}/none  (no object 'none' in bucket {filled!r})" in result.stdout


def test_listings_of_ls_are_lists(run: Run, filled: str, objects: dict[str, bytes], url: str) -> None:
    whole = b"".join(objects[name] for name in sorted(objects))
    for form in ([], ["--json"]):
        listed = run("ls", "-r", filled, *form).stdout_bytes
        assert run("batch", "-", "-o", "-", stdin=listed).stdout_bytes == whole
    # The JSON form names the versions, too: what has been replaced since is not what was listed.
    with connect(url) as client:
        client.bucket(filled).put("z", b"newer")
    assert run("batch", "-", stdin=listed).exit_code == 1


def test_ranges_and_versions_come_from_json_lines(run: Run, filled: str, objects: dict[str, bytes]) -> None:
    lines = [
        {"bucket": filled, "name": "en/b.bin", "start": 10, "length": 5},
        {"bucket": filled, "name": "en/b.bin", "start": 250, "length": None, "version": None},
        {"bucket": filled, "name": "z", "start": 4},
    ]
    stdin = "\n".join(map(json.dumps, lines)).encode()
    data = objects["en/b.bin"]
    assert run("batch", "-", "-o", "-", stdin=stdin).stdout_bytes == data[10:15] + data[250:]
    past = json.dumps({"bucket": filled, "name": "z", "length": 5}).encode()
    result = run("batch", "-", "--json", "--on-error", "placeholder", stdin=past)
    assert (result.exit_code, json.loads(result.stdout)["status"]) == (1, "RANGE")


def test_an_empty_list_is_an_empty_batch(run: Run, filled: str, tmp_path: Path) -> None:
    result = run("batch", "-", "-o", tmp_path / "out", stdin=b"\n# nothing\n")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("fetched 0 objects") and list((tmp_path / "out").iterdir()) == []


def test_a_folder_with_files_in_it_is_left_alone_unless_forced(run: Run, filled: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "000000-z").write_bytes(b"mine")
    arguments = ("batch", "-", "-o", out)
    assert "is not empty" in run(*arguments, stdin=f"{filled}/z".encode()).stderr
    assert (out / "000000-z").read_bytes() == b"mine"
    assert run(*arguments, "--force", stdin=f"{filled}/z".encode()).exit_code == 0
    assert (out / "000000-z").read_bytes() == b"last"


def test_json_and_bytes_cannot_share_standard_output(run: Run, listing: Path) -> None:
    assert run("batch", listing, "-o", "-", "--json").exit_code == 2


def test_lines_are_read_as_a_person_may_have_written_them() -> None:
    lines = [b"\xef\xbb\xbfb/first\r\n", b"\n", b"  b/second \n", b"# b/not\n", b'{"bucket":"b","name":"third"}']
    assert parse_list(lines, "list") == [Entry("b", "first"), Entry("b", "second "), Entry("b", "third")]


def test_only_a_url_means_a_member_of_an_archive() -> None:
    assert parse_list([b"b/s.tar/m", b"ais://b/s.tar/m"], "list") == [Entry("b", "s.tar/m"), Entry("b", "s.tar", "m")]


@table(
    ("line", "reason"),
    [
        (b"justabucket", "names a bucket"),
        (b"/b/x", "names no bucket"),
        (b"b/\xff", "not UTF-8"),
        (b"[1]", "one JSON object per line"),
        (b'{"bucket": "b"', "not JSON"),
        (b'{"bucket": "b"}', "no name"),
        (b'{"bucket": "b", "name": "x", "lenght": 1}', "unknown field 'lenght'"),
        (b'{"bucket": "b", "name": 3}', "name must be a string, got 3"),
        (b'{"bucket": "b", "name": "x", "length": -1}', "0 or more, got -1"),
        (b'{"bucket": "b", "name": "x", "start": true}', "0 or more, got true"),
        (b'{"bucket": "b", "name": "x", "start": null}', "got null"),
    ],
)
def test_a_line_at_fault_is_named(line: bytes, reason: str) -> None:
    with pytest.raises(click.ClickException, match=r"^list, line 2: ") as caught:
        parse_list([b"b/x\n", line], "list")
    assert reason in caught.value.message


@pytest.mark.slow
@given(name=st.text(min_size=1, max_size=1024), member=st.none() | st.text(min_size=1))
def test_any_name_makes_a_file_name_that_stays_in_its_folder(name: str, member: str | None) -> None:
    file = f"000000-{safe_name(Entry('b', name, member))}.failed"
    assert "/" not in file and "\0" not in file and file.isprintable()
    assert len(file.encode()) <= 255


def test_a_list_becomes_one_archive_with_placeholders(
    run: Run, objects: dict[str, bytes], listing: Path, filled: str, tmp_path: Path
) -> None:
    out = tmp_path / "out.tar.zst"
    result = run("batch", listing, "--archive", "tar.zst", "-o", out, "--on-error", "placeholder")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "archived 4 objects" in result.stderr
    assert "failed: 1 object, below __404__/ in the archive" in result.stderr
    plain = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(out.read_bytes())).read()
    with tarfile.open(fileobj=io.BytesIO(plain)) as opened:
        found = [(member.name, opened.extractfile(member).read()) for member in opened]  # type: ignore[union-attr]
    assert found == [
        (f"{filled}/z", b"last"),
        (f"{filled}/en/b.bin", objects["en/b.bin"]),
        (f"__404__/{filled}/none", b""),
        (f"{filled}/z", b"last"),
        (f"{filled}/es/ñ 1.txt", b""),
    ]


def test_an_archive_that_fails_is_not_left_behind_nor_replaces_another(run: Run, listing: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.zip"
    assert run("batch", listing, "--archive", "zip", "-o", out).exit_code == 1
    assert not out.exists()
    out.write_bytes(b"from before")
    result = run("batch", listing, "--archive", "zip", "-o", out, "--on-error", "placeholder")
    assert result.exit_code == 1 and "exists" in result.stderr
    assert out.read_bytes() == b"from before"
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith((".", "out"))) == ["out.zip"]


def test_an_archive_wants_to_know_where_it_goes(run: Run, listing: Path) -> None:
    result = run("batch", listing, "--archive", "tar")
    assert result.exit_code == 2 and "--archive needs --output" in result.stderr
