"""The wheel, built once for all tests of the installation."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader.testing import throwaway_folder
from tests.packaging.packaging_kit import ROOT, run

NOT_SOURCES = shutil.ignore_patterns(
    ".*", "*.so", "*.egg-info", "__pycache__", "build", "dist", "demo-output", "tests", "benchmarks"
)


@pytest.fixture(scope="session")
def wheel() -> Iterator[Path]:
    """Built from a copy of the tree, in which no earlier build has left anything."""
    with throwaway_folder() as folder:
        shutil.copytree(ROOT, folder / "tree", ignore=NOT_SOURCES)
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
        run(*build, "--wheel-dir", folder / "wheels", folder / "tree", cwd=folder)
        (built,) = (folder / "wheels").iterdir()
        yield built
