"""Native modules: without them, the error says what to do."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("module", ["ais_loader.wire._crc32c", "storage_node.store._native"])
def test_an_installation_without_a_native_module_says_how_to_get_it(module: str) -> None:
    code = (
        f"import sys; sys.modules[{module!r}] = None; import ais_loader; ais_loader.connect('/nowhere/to/be', mode='r')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 1
    assert f"{module}, which is compiled at installation, cannot be imported" in done.stderr
    assert "install a wheel of ais-loader, or install it again with a C compiler" in done.stderr
