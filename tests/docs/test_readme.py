"""The programs at the top of the README, as a reader copies them: into a file, beside a folder of data."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import PIL.Image
import pytest

from ais_loader import connect

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
SECTION = README.split("## From a folder to training\n")[1].split("\n## ")[0]
PROGRAMS = re.findall(r"^```python\n(.*?)^```", SECTION, re.M | re.S)


def make_pictures(folder: Path) -> None:
    for label, colour in (("cat", "red"), ("dog", "blue")):
        (folder / label).mkdir(parents=True)
        for number in range(20):
            PIL.Image.new("RGB", (40 + number, 30), colour).save(folder / label / f"{number}.jpg")


def make_sounds(folder: Path) -> None:
    for language in ("en", "es"):
        shutil.copytree(ROOT / "tests" / "data" / "speech" / language, folder / language)


@pytest.mark.parametrize("program", PROGRAMS, ids=["pictures", "sounds"])
def test_a_program_is_25_lines_and_defines_what_it_uses(program: str) -> None:
    assert len([line for line in program.splitlines() if line.strip()]) <= 25
    compile(program, "README.md", "exec")
    assert "lambda" not in program  # spawned workers could not have it


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "name", "make", "start", "times"),
    [(PROGRAMS[0], "pictures", make_pictures, "spawn", 1), (PROGRAMS[1], "speech", make_sounds, "fork", 2)],
    ids=["pictures", "sounds"],
)
def test_a_program_of_the_readme_trains(
    program: str, name: str, make: Callable[[Path], None], start: str, times: int, tmp_path: Path
) -> None:
    make(tmp_path / name)
    if start == "spawn":
        program = program.replace("num_workers=2", 'num_workers=2, multiprocessing_context="spawn"')
    (tmp_path / "train.py").write_text(program)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AIS_LOADER_")}
    environment |= {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    for _ in range(times):  # the second time all is stored already
        done = subprocess.run(
            [sys.executable, "train.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(r"(loss \d+\.\d{3}\n)+", done.stdout), done.stdout
    files = sorted(str(path.relative_to(tmp_path / name)) for path in (tmp_path / name).rglob("*") if path.is_file())
    with connect(tmp_path / "store", mode="r") as client:
        assert sorted(client.bucket(name)) == files
    assert not (tmp_path / "~").exists()
