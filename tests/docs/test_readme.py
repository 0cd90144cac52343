"""The whole programs of README and tutorial: short, fit for spawned workers, and run more than once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ais_loader import connect
from tests.docs.page_kit import blocks, make_data

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PROGRAMS = [
    block.text
    for page in (README, ROOT / "docs" / "tutorial.md")
    for block in blocks(page.read_text())
    if "__main__" in block.text
]


def test_the_readme_is_at_most_132_lines_and_begins_with_five_of_python() -> None:
    assert len(README.read_text().splitlines()) <= 132
    first, *_ = blocks(README.read_text())
    lines = [line for line in first.text.splitlines() if line]
    assert (first.language, first.not_run, len(lines)) == ("python", "", 5)
    assert first.line + len(first.text.splitlines()) <= 15


@pytest.mark.parametrize("program", PROGRAMS, ids=["pictures", "sounds"])
def test_a_program_is_25_lines_and_defines_what_it_uses(program: str) -> None:
    assert len([line for line in program.splitlines() if line.strip()]) <= 25
    compile(program, "README.md", "exec")
    assert "lambda" not in program  # spawned workers could not have it


@pytest.mark.parametrize("program", PROGRAMS, ids=["pictures", "sounds"])
def test_a_file_beside_the_folders_is_no_label(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_data(tmp_path)
    for folder in ("pictures", "speech"):
        (tmp_path / folder / ".DS_Store").write_bytes(b"\0")
    lines = [line for line in program.splitlines() if line.startswith(("FOLDER =", "LABELS ="))]
    exec("\n".join(lines), found := {"Path": Path})
    assert found["LABELS"] in (["cat", "dog"], ["en", "es"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "name", "start", "times"),
    [(PROGRAMS[0], "pictures", "spawn", 1), (PROGRAMS[1], "speech", "fork", 2)],
    ids=["pictures", "sounds"],
)
def test_a_program_trains_again_and_with_spawned_workers(
    program: str, name: str, start: str, times: int, tmp_path: Path
) -> None:
    make_data(tmp_path)
    if start == "spawn":
        program = program.replace("num_workers=2", 'num_workers=2, multiprocessing_context="spawn"')
    (tmp_path / "train.py").write_text(program)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AIS_LOADER_")}
    environment |= {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    for _ in range(times):  # the second time all is stored already
        done = subprocess.run(
            [sys.executable, "train.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=450
        )
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(r"(loss \d+\.\d{3}\n)+", done.stdout), done.stdout
    files = sorted(str(path.relative_to(tmp_path / name)) for path in (tmp_path / name).rglob("*") if path.is_file())
    with connect(tmp_path / "store", mode="r") as client:
        assert sorted(client.bucket(name)) == files
    assert not (tmp_path / "~").exists()
