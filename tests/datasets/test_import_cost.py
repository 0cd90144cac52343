"""Importing ais_loader costs nobody torch; the names that need it load it."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "ray", "lhotse", "webdataset", "storage_node", "rocksdict")
LAZY = ("MapDataset", "BatchIterableDataset", "BatchLoader", "ShufflePlan")


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_ais_loader_and_making_a_plan_imports_neither_torch_nor_a_store() -> None:
    code = (
        "import sys, ais_loader; ais_loader.ShufflePlan([], 1); "
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    assert run(code) == "[]"


def test_the_datasets_are_there_when_they_are_asked_for() -> None:
    found = run(f"import ais_loader; print(*[getattr(ais_loader, name).__name__ for name in {LAZY!r}])")
    assert found.split() == list(LAZY)
