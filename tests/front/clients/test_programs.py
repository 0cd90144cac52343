"""Programs of other libraries, each over a store as over files: the rows of docs/works-with.md."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ais_loader
from ais_loader.testing import NodeProcess, throwaway_folder
from scripts.works_with import PROGRAMS, environment
from tests.data import SPEECH_DIR

DEADLINE_S = 280


@pytest.fixture(params=["embedded", "node"])
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    """With the buckets `speech`, `tables` and `checkpoints`."""
    with throwaway_folder() as folder:
        if request.param == "node":
            with NodeProcess(folder / "store") as node:
                fill(node.url)
                yield node.url
        else:
            fill(str(folder / "store"))
            yield str(folder / "store")


def fill(store: str) -> None:
    with ais_loader.connect(store) as client:
        client.create_bucket("tables")
        client.create_bucket("checkpoints")
        client.create_bucket("speech").put_folder(SPEECH_DIR, include="*.flac")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_has_over_the_store_what_it_has_over_files(program: Path, store: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path)],
        env={**os.environ, **environment(), "AIS_LOADER_URL": store, "SPEECH": str(SPEECH_DIR)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout[-6000:]
