"""The files of a release, built once for all tests of the installation by what `make dist` runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader.testing import throwaway_folder
from tests.packaging.packaging_kit import ROOT, make_dist

NOT_SOURCES = shutil.ignore_patterns(
    ".*", "*.so", "*.egg-info", "__pycache__", "build", "dist", "demo-output", "tests", "benchmarks"
)


@pytest.fixture(scope="session")
def dist() -> Iterator[Path]:
    """The folder with the source distribution, and the wheel of this interpreter.

    Built from a copy of the tree, in which no earlier build has left anything. setuptools comes from this environment.
    """
    with throwaway_folder() as folder:
        shutil.copytree(ROOT, folder / "tree", ignore=NOT_SOURCES)
        make_dist(folder / "tree", folder / "dist", UV_NO_BUILD_ISOLATION="1", UV_OFFLINE="1")
        yield folder / "dist"


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    (built,) = dist.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def sdist(dist: Path) -> Path:
    (built,) = dist.glob("*.tar.gz")
    return built
