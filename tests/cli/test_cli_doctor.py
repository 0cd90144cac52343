"""`ais-loader doctor`: what it sees, what it mends, and what it says to programs and to people."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ais_loader.cli import main
from ais_loader.objects.client import connect
from ais_loader.testing import NodeProcess
from tests.node.cluster_kit import LocalCluster

OBJECTS = {f"o{number}": bytes([number]) * 500 for number in range(30)}


@pytest.fixture(autouse=True)
def private() -> Iterator[None]:
    """Files that tests put into a store are closed to others, as its own are."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.fixture
def drives(tmp_path: Path) -> list[Path]:
    """The two drives of a closed store with OBJECTS in bucket `b`, a file for each."""
    found = [tmp_path / "d0", tmp_path / "d1"]
    with connect(",".join(map(str, found))) as client:
        bucket = client.create_bucket("b")
        for name, data in OBJECTS.items():
            bucket.put(name, data)
    return found


def doctor(*arguments: str | Path, env: dict[str, str | None] | None = None) -> Result:
    result = CliRunner(env={"AIS_LOADER_URL": None} | (env or {})).invoke(main, ["doctor", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


def report(*arguments: str | Path) -> dict[str, list[dict[str, object]]]:
    found: dict[str, list[dict[str, object]]] = json.loads(doctor(*arguments, "--json").stdout)
    return found


def left(drives: Iterable[Path]) -> dict[str, bytes]:
    with connect(",".join(map(str, drives)), mode="r") as client:
        bucket = client.bucket("b")
        return {info.name: bucket.get(info.name) for info in bucket.objects()}


def damage(drive: Path) -> str:
    """Change a byte of one object on `drive`; the object's name."""
    file = next(path for path in sorted((drive / "objects").rglob("*")) if path.is_file())
    data = file.read_bytes()
    file.chmod(0o600)
    file.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    return f"o{data[0]}"


@pytest.mark.parametrize("arguments", [[], ["--checksums"], ["--repair"], ["--rebuild", "--all-drives"]])
def test_a_store_so_large_that_progress_is_told_is_healthy_without_a_terminal_too(
    drives: list[Path], arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("scan", "rebuild"):
        monkeypatch.setattr(f"storage_node.store.fsck.{module}.PROGRESS_EVERY", 5)
    result = doctor(*drives, *arguments)
    assert (result.exit_code, result.stderr) == (0, ""), result.output


def test_a_sound_store_is_healthy_however_it_is_named(drives: list[Path]) -> None:
    spelled = ",".join(map(str, drives))
    for arguments in (drives, [spelled], [f"file://{drives[0]}", drives[1]]):
        result = doctor(*arguments)
        assert (result.exit_code, result.stderr) == (0, "")
        assert "\nhealthy; sizes were compared\n" in result.stdout
    assert "every byte was compared" in doctor("--checksums", env={"AIS_LOADER_URL": spelled}).stdout


@pytest.mark.slow
def test_it_says_whether_identities_are_kept(drives: list[Path]) -> None:
    found = report(*drives)
    for drive in found["drives"]:
        kept = "file identities kept" if drive["keeps_identity"] else "file identities not kept"
        assert f"{drive['path']}: {drive['objects']} objects" in doctor(*drives).stdout
        assert kept in doctor(*drives).stdout
    assert sum(int(str(drive["objects"])) for drive in found["drives"]) == len(OBJECTS)


@pytest.mark.slow
def test_damage_is_found_with_checksums_and_deleted_only_when_asked(drives: list[Path]) -> None:
    name = damage(drives[0])
    assert doctor(*drives).exit_code == 0
    found = doctor(*drives, "--checksums")
    assert found.exit_code == 1
    assert f"error: corrupt: {drives[0]}: b/{name}: the bytes do not match the checksum" in found.stdout
    assert "--repair --drop-damaged deletes those" in found.stderr
    assert doctor(*drives, "--checksums", "--repair").exit_code == 1
    dropped = doctor(*drives, "--checksums", "--repair", "--drop-damaged")
    assert dropped.exit_code == 0 and "-> dropped\n" in dropped.stdout
    assert left(drives) == {other: data for other, data in OBJECTS.items() if other != name}
    assert "\nhealthy; every byte was compared with its checksum\n" in doctor(*drives, "--checksums").stdout


def test_a_lost_catalog_is_found_and_made_anew(drives: list[Path]) -> None:
    shutil.rmtree(drives[1] / "catalog")
    found = doctor(*drives)
    assert found.exit_code == 1 and f"error: drive-unusable: {drives[1]}" in found.stdout
    assert "--rebuild makes anew" in found.stderr
    rebuilt = doctor(*drives, "--rebuild")
    assert rebuilt.exit_code == 0, rebuilt.output
    assert left(drives) == OBJECTS
    assert doctor(*drives, "--checksums").exit_code == 0


def test_a_missing_drive_is_an_error_and_a_stray_file_a_warning(drives: list[Path]) -> None:
    assert doctor(drives[0]).exit_code == 1
    (drives[0] / "objects" / "notes.txt").write_text("mine")
    result = doctor(*drives)
    assert result.exit_code == 0
    assert f"warning: foreign-file: {drives[0]}: not a file of the store" in result.stdout
    assert "0 errors, 1 warning; sizes were compared" in result.stdout


def test_many_findings_of_a_kind_are_cut_for_people_and_not_for_programs(drives: list[Path]) -> None:
    for number in range(25):
        (drives[0] / "objects" / f"stray{number:02}").write_text("")
    assert "warning: foreign-file: and 5 more (--json shows all)" in doctor(*drives).stdout
    assert [finding["kind"] for finding in report(*drives)["findings"]] == ["foreign-file"] * 25


def test_json_is_the_whole_report_and_keeps_the_exit_code(drives: list[Path]) -> None:
    damage(drives[0])
    result = doctor(*drives, "--checksums", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["healthy"], found["action"]) == (1, False, "check")
    assert [finding["kind"] for finding in found["findings"]] == ["corrupt"]


@pytest.mark.slow
def test_a_store_in_use_can_be_examined_but_not_repaired(drives: list[Path]) -> None:
    with NodeProcess(drives) as node:
        result = doctor(*drives, "--checksums")
        assert result.exit_code == 0 and f"open for writing by process {node.pid}" in result.stdout
        for remedy in ("--repair", "--rebuild"):
            refused = doctor(*drives, remedy)
            assert refused.exit_code == 1 and refused.stderr.count("\n") == 1, refused.output
            assert f"process {node.pid}" in refused.stderr


def test_a_node_is_asked_how_it_is(node: NodeProcess) -> None:
    shown = doctor(node.url)
    assert shown.exit_code == 0, shown.output
    verdict, drive = shown.stdout.splitlines()
    assert verdict.startswith("healthy: 1 drive of 1 node, version ") and drive.startswith(f"{node.drives[0]}: ok, ")
    shown = doctor("--verbose", node.url)
    assert f"url: {node.url}\n" in shown.stdout and f"pid: {node.pid}\n" in shown.stdout
    assert "\nlimits:\n" in shown.stdout and "\n  durability: process\n" in shown.stdout
    described = json.loads(doctor("--json", env={"AIS_LOADER_URL": node.url}).stdout)
    assert [drive["path"] for drive in described["drives"]] == list(map(str, node.drives))


def test_a_node_of_a_cluster_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 2) as cluster:
        assert doctor(cluster.nodes[0].url).exit_code == 0
        cluster.nodes[1].stop(grace_s=0.1)
        for how in ([], ["--json"]):
            shown = doctor(cluster.nodes[0].url, *how)
            assert shown.exit_code == 1, shown.output
            assert cluster.nodes[1].endpoint in shown.stdout


@pytest.mark.slow
def test_options_that_do_not_go_together_change_nothing(drives: list[Path], node: NodeProcess) -> None:
    cases: list[list[str | Path]] = [
        [],
        [""],
        [*drives, "--drop-damaged"],
        [*drives, "--repair", "--rebuild"],
        [*drives, "--all-drives"],
        [node.url, "--repair"],
        [node.url, drives[0]],
        [drives[0], drives[0]],
    ]
    for arguments in cases:
        result = doctor(*arguments)
        assert result.exit_code == 2 and "Error: " in result.stderr and result.stdout == "", arguments
    assert left(drives) == OBJECTS


def test_what_is_no_store_is_said_to_be_none(tmp_path: Path) -> None:
    result = doctor(tmp_path / "none")
    assert (result.exit_code, result.stderr) == (1, f"Error: no store at {tmp_path}/none\n")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"")
    for remedy in ([], ["--repair"], ["--rebuild"]):
        assert doctor(tmp_path / "photos", *remedy).exit_code == 1
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.jpg"]


def test_a_folder_of_something_else_is_not_to_be_rebuilt(tmp_path: Path, drives: list[Path]) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("")
    told = doctor(tmp_path / "thesis")
    assert told.exit_code == 1 and "is not a store" in told.stdout and "--rebuild" not in told.output
    (drives[0] / "drive.json").unlink()
    assert "--rebuild" in doctor(*drives).stderr
