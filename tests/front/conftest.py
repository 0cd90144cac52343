"""Tests of integrations in environments of their own: `make test-front`.

A folder is named after what it tests, and runs in every environment that has it: `lhotse` with Lhotse 1 and 2, `nemo`
with NeMo, `frameworks` with the trainers, `clients` with what reads and writes a store as it is, and all others
with Lhotse 2. Nothing is skipped: a library that is missing,
or one in another version than requirements-*.txt pins, ends the run, and a test that skips itself fails it.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from pathlib import Path

import pytest

ENVIRONMENT = os.environ.get("AIS_LOADER_FRONT", "")


def pytest_configure(config: pytest.Config) -> None:
    # These libraries warn a lot, of each other's oldness mostly; our own warnings stay errors.
    for line in ("default", "error:::ais_loader", "ignore::ResourceWarning", "ignore::DeprecationWarning"):
        config.addinivalue_line("filterwarnings", line)
    folder = Path(__file__).parent
    known = sorted(path.stem.partition("-")[2] for path in folder.glob("requirements-*.txt"))
    if ENVIRONMENT not in known:
        raise pytest.UsageError(
            f"AIS_LOADER_FRONT={ENVIRONMENT!r}: one of {', '.join(known)} says which environment this is; "
            "`make test-front` sets it"
        )
    for name, version in re.findall(
        r"^([\w-]+)(?:\[.*\])?==(\S+)$", (folder / f"requirements-{ENVIRONMENT}.txt").read_text(), re.MULTILINE
    ):
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found = "nothing"
        if found != version:
            raise pytest.UsageError(
                f"{name} {version} is pinned for {ENVIRONMENT!r}, and {found} is here: make it anew"
            )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} skipped itself, which no test here may do: {report.longrepr}"
