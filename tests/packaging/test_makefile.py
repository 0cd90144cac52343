"""The interpreter that `make` chooses, from those that are installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.packaging.packaging_kit import ROOT

MAKE = shutil.which("make")
pytestmark = pytest.mark.skipif(MAKE is None, reason="make is not installed")

NEW_ENOUGH, TOO_OLD, BROKEN = "exit 0", "exit 1", "echo 'pyenv: command not found' >&2; exit 127"


def made(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(path)}
    return subprocess.run([str(MAKE), *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180)


@pytest.mark.parametrize(
    ("installed", "chosen"),
    [
        ({"python3": NEW_ENOUGH, "python3.11": NEW_ENOUGH}, "python3"),
        ({"python3": TOO_OLD, "python3.12": NEW_ENOUGH, "python3.11": NEW_ENOUGH}, "python3.12"),
        ({"python3": TOO_OLD, "python3.13": BROKEN, "python3.11": NEW_ENOUGH}, "python3.11"),
        ({"python3": TOO_OLD}, ""),
        ({}, ""),
    ],
)
def test_make_takes_the_first_interpreter_that_is_new_enough(
    installed: dict[str, str], chosen: str, tmp_path: Path
) -> None:
    for name, answer in installed.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{answer}\n")
        (tmp_path / name).chmod(0o755)
    told = made(tmp_path, "--eval", "chosen: ; $(info [$(PYTHON)])", "chosen")
    assert told.stdout.startswith(f"[{chosen}]\n"), told
    if not chosen:
        told = made(tmp_path, f"VENV={tmp_path}/venv", "setup")
        assert told.returncode == 2 and "newer: tried python3 python3.13" in told.stdout, told


def test_an_interpreter_that_is_named_is_taken_and_checked(tmp_path: Path) -> None:
    told = made(tmp_path, f"VENV={tmp_path}/venv", "PYTHON=/nowhere/python3", "setup")
    assert told.returncode == 2 and "no Python 3.11 or newer: tried /nowhere/python3" in told.stdout, told
