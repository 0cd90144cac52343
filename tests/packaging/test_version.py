"""The version: stated in one file, which everything else reads."""

from __future__ import annotations

import importlib.metadata
import re
from itertools import chain

from click.testing import CliRunner

import ais_loader
from ais_loader.cli import main
from tests.packaging.packaging_kit import ROOT

STATED = re.compile(r"^\s*\w*version\w*\b[^=\n]*=\s*[\"']?(\d+\.\d+\.\d+)", re.IGNORECASE | re.MULTILINE)
GENERATED = ROOT / "ais_loader" / "wire" / "generated"
"""States the version of the generator."""


def test_one_file_states_the_version() -> None:
    sources = chain.from_iterable(
        (ROOT / name).rglob("*.py") for name in ("ais_loader", "storage_node", "integrations")
    )
    settings = (ROOT / name for name in ("setup.cfg", "setup.py", "pyproject.toml", "Makefile"))
    stating = {
        path.relative_to(ROOT).as_posix(): found
        for path in (*sources, *settings)
        if not path.is_relative_to(GENERATED) and (found := STATED.findall(path.read_text()))
    }
    assert stating == {"ais_loader/version.py": [ais_loader.__version__]}


def test_the_installation_and_the_command_line_have_the_version_of_the_package() -> None:
    installed = importlib.metadata.version("ais-loader")
    assert installed == ais_loader.__version__, "the installation is older than ais_loader/version.py: run make setup"
    assert CliRunner().invoke(main, ["--version"]).output.split()[-1] == ais_loader.__version__
