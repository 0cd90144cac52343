"""Free-threaded CPython: what the native modules declare there, and that importing us leaves the GIL off."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.packaging.packaging_kit import ROOT, run, uv

pytestmark = pytest.mark.slow

SOURCES = ("ais_loader/wire/_crc32c.c", "storage_node/store/_native.c")
IMPORTED = """
import sys, sysconfig, threading
assert sysconfig.get_config_var("Py_GIL_DISABLED") and not sys._is_gil_enabled()
import ais_loader.wire.checksum, storage_node.store.native
assert not sys._is_gil_enabled()
from storage_node.store._native import Locations
table = Locations(3, 1 << 20)
threads = [threading.Thread(target=lambda: [table.clear() or len(table) for _ in range(10_000)]) for _ in range(4)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
print("off")
"""


def headers() -> Path | None:
    """Headers of a CPython from 3.13 on, which declare what free-threaded builds use."""
    of_pyenv = Path.home().glob(".pyenv/versions/3.1*/include/python3.1*")
    for folder in (Path(sysconfig.get_path("include")), *sorted(of_pyenv), *Path("/usr/include").glob("python3.1*")):
        if (folder / "Python.h").exists() and int(re.sub(r".*python3\.(\d+)\D?.*", r"\1", str(folder))) >= 13:
            return folder
    return None


@pytest.mark.parametrize("source", SOURCES)
def test_a_native_module_compiles_without_the_gil_and_declares_that_it_needs_none(source: str) -> None:
    if (folder := headers()) is None:
        pytest.skip("no headers of Python 3.13 or newer")
    cc = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(cc[0]) is None:
        pytest.skip("no C compiler")
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-DPy_GIL_DISABLED=1", f"-I{folder}", "-Iais_loader/wire"]
    run(*cc, *flags, "-fsyntax-only", source, cwd=ROOT)
    text = run(*cc, *flags, "-E", "-P", source, cwd=ROOT)
    (slots,) = re.findall(r"PyModuleDef_Slot slots\[\] = \{(.*?)\};", text, re.DOTALL)
    assert re.sub(r"\s", "", slots).endswith(",{4,((void*)1)},{0,((void*)0)},")


def test_importing_the_store_on_a_free_threaded_python_leaves_the_gil_off(tmp_path: Path) -> None:
    find = [uv(), "python", "find", "3.14t"]
    found = subprocess.run(find, capture_output=True, text=True, timeout=60)
    if found.returncode != 0:
        pytest.skip("no CPython 3.14t is installed")
    python = tmp_path / "venv" / "bin" / "python"
    run(uv(), "venv", "--quiet", "--python", found.stdout.strip(), tmp_path / "venv", cwd=tmp_path)
    run(uv(), "pip", "install", "--quiet", "--python", python, str(ROOT), cwd=tmp_path)
    assert run(python, "-c", IMPORTED, cwd=tmp_path) == "off\n"
