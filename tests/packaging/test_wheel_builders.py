"""cibuildwheel's configuration asks for the wheels that `make dist` cross-compiles, and for no other."""

from __future__ import annotations

import ast
import fnmatch
import itertools
import re
import tomllib
from pathlib import Path
from typing import Any

from scripts.release_files import CROSS, FREE_THREADED, GLIBC

ROOT = Path(__file__).resolve().parents[2]
LIBCS = {"gnu": "manylinux", "musl": "musllinux"}
PYTHONS = ["cp310", "cp311", "cp312", "cp313", "cp313t", "cp314", "cp314t", "cp315", "cp315t", "pp311"]
"""Interpreters for which cibuildwheel knows builds."""


def configured() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    return found


def identifiers(config: dict[str, Any]) -> set[str]:
    """The builds of cibuildwheel, as `cibuildwheel --print-build-identifiers` names them."""
    possible = itertools.product(PYTHONS, LIBCS.values(), config["linux"]["archs"])
    names = [f"{python}-{libc}_{machine}" for python, libc, machine in possible]
    return {name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in config["build"])}


def test_the_builds_are_those_of_make_dist() -> None:
    abi3 = ast.literal_eval(re.search(r'"py_limited_api": ("cp\d+")', (ROOT / "setup.py").read_text())[1])  # type: ignore[index]
    wanted = {f"{abi3}-{LIBCS[libc]}_{machine}" for machine, libc in CROSS}
    free_threaded = f"cp{FREE_THREADED.replace('.', '')}"
    machines = {machine for machine, _ in CROSS}
    assert identifiers(configured()) == wanted | {f"{free_threaded}-manylinux_{machine}" for machine in machines}


def test_the_containers_have_no_newer_c_library_than_make_dist_allows() -> None:
    images = {key: value for key, value in configured()["linux"].items() if key.endswith("-image")}
    wanted = {"manylinux": f"manylinux_{GLIBC.replace('.', '_')}", "musllinux": "musllinux_1_2"}
    assert images == {f"{LIBCS[libc]}-{machine}-image": wanted[LIBCS[libc]] for machine, libc in CROSS}
    assert "musllinux_1_2" in (ROOT / "docs" / "releasing.md").read_text()


def test_each_wheel_is_imported() -> None:
    modules = re.findall(r'Extension\(\s*"([\w.]+)"', (ROOT / "setup.py").read_text())
    command = configured()["test-command"]
    assert modules and all(f"from {package} import {name}" in command for package, _, name in map(split, modules))


def split(module: str) -> tuple[str, str, str]:
    return module.rpartition(".")
