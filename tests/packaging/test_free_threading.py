"""Free-threaded CPython: what the native modules declare there, and that importing us leaves the GIL off."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.packaging.packaging_kit import ROOT, run, uv

pytestmark = pytest.mark.slow

SOURCES = ("ais_loader/wire/_crc32c.c", "storage_node/store/_native.c")
IMPORTED = """
import sys, sysconfig
assert sysconfig.get_config_var("Py_GIL_DISABLED") and not sys._is_gil_enabled()
import ais_loader.wire.checksum, storage_node.store.native
assert not sys._is_gil_enabled()
"""
THREADS = """
import random, struct, threading
from array import array
from storage_node.store._native import Locations, find

NAMES = [f"{number:03}" for number in range(100)]
FILES = [b"segments/%d" % number for number in range(4)]


def stored(number):  # a catalog value, as FORMAT.md has it
    path = FILES[number % 4] + b"/0"
    return struct.pack("<BBHIQIQIQQH", 2, 1, 0, 0, 1, 0, 10, number, 0, 1000 + number, len(path)) + path


tables = [Locations(7, 1 << 20), Locations(8, 1 << 13)]  # the second one is full now and then
faults, seen = [], [0] * 6


def use(seed):
    draw = random.Random(seed)
    try:
        for _ in range(300):
            table, names = draw.choice(tables), draw.sample(NAMES, 20)
            keys = [name.encode() for name in names]
            table.add(keys, [stored(int(name)) for name in names], draw.random() < 0.5, True)
            columns = [array(kind, bytes(20 * size)) for kind, size in (("i", 4), ("q", 8), ("q", 8), ("I", 4))]
            found_files = find(tuple(tables), b"", names, *columns)
            for name, file, dirfd, offset, size, checksum in zip(names, found_files, *columns):
                if file is not None:
                    number = int(name)
                    found = (file.path, dirfd in (7, 8), offset, size, checksum)
                    assert found == (FILES[number % 4], True, 1000 + number, 10, number), (name, found)
                    seen[seed] += 1
            if draw.random() < 0.2:
                table.remove(iter(keys[:5]))
            if draw.random() < 0.1:
                table.drop(draw.choice(FILES))
            if draw.random() < 0.02:
                table.clear()
            assert 0 <= len(table) <= 1_000_000
    except BaseException as error:
        faults.append(repr(error))


threads = [threading.Thread(target=use, args=(seed,)) for seed in range(6)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert faults == [] and all(seen), (faults, seen)
print("done")
"""
"""Look-ups beside additions, removals, drops and clears of the same tables: each answer is whole."""


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
    found = subprocess.run(find, capture_output=True, text=True, timeout=180)
    if found.returncode != 0:
        pytest.skip("no CPython 3.14t is installed")
    python = tmp_path / "venv" / "bin" / "python"
    run(uv(), "venv", "--quiet", "--python", found.stdout.strip(), tmp_path / "venv", cwd=tmp_path)
    run(uv(), "pip", "install", "--quiet", "--python", python, str(ROOT), cwd=tmp_path)
    assert run(python, "-c", IMPORTED + THREADS + IMPORTED, cwd=tmp_path) == "done\n"


def test_threads_that_share_tables_of_locations_get_whole_answers(tmp_path: Path) -> None:
    assert run(sys.executable, "-c", THREADS, cwd=tmp_path) == "done\n"
