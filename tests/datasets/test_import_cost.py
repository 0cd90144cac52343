"""Importing ais_loader costs nobody torch, or a store."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

HEAVY = ("torch", "ray", "lhotse", "webdataset", "storage_node", "rocksdict", "grpc")


def test_importing_ais_loader_and_making_a_plan_imports_neither_torch_nor_a_store() -> None:
    code = (
        "import sys, ais_loader; ais_loader.ShufflePlan(9, 1).batch(0, 0); "
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
