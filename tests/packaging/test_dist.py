"""The files of a release: what they contain, and that they work on each Python."""

from __future__ import annotations

import email
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest

import ais_loader
from tests.packaging.packaging_kit import ROOT, install, make_dist, run, uv

pytestmark = pytest.mark.slow

NATIVE = {"ais_loader/wire/_crc32c", "storage_node/store/_native"}
THIS_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
NO_COMPILER = "/nowhere/cc"
(PYTHONS,) = re.findall(r"^DIST_PYTHONS \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)

ROUND_TRIP = """
import subprocess, sys
from pathlib import Path

import ais_loader, storage_node
from ais_loader.testing import NodeProcess

for package in (ais_loader, storage_node):
    assert Path(package.__file__).is_relative_to(sys.prefix), package.__file__


def round_trip(client):
    bucket = client.create_bucket("b")
    bucket.put("a", b"one" * 5_000_000)
    bucket.put("c", b"two")
    assert bucket.get("a") == b"one" * 5_000_000
    batch = client.get_batch(["ais://b/c", "ais://b/a", "ais://b/c"])
    assert [item.tobytes() for item in batch] == [b"two", b"one" * 5_000_000, b"two"]


if __name__ == "__main__":
    with ais_loader.connect("embedded") as client:
        round_trip(client)
    with NodeProcess("drive") as node, ais_loader.connect(node.url) as client:
        round_trip(client)
        print(client.describe()["version"])
    command = [Path(sys.executable).with_name("ais-loader"), "--version"]
    print(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])
"""


def native_modules(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name.partition(".")[0] for name in archive.namelist() if name.endswith(".so")}


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def assert_round_trip(python: Path, folder: Path) -> None:
    (folder / "round_trip.py").write_text(ROUND_TRIP)
    said = run(python, "-I", "round_trip.py", cwd=folder).split()
    assert said == [ais_loader.__version__, ais_loader.__version__]


def test_the_source_distribution_has_what_it_is_built_from_and_nothing_else(sdist: Path) -> None:
    assert sdist.name == f"ais_loader-{ais_loader.__version__}.tar.gz"
    with tarfile.open(sdist) as archive:
        files = {member.name.partition("/")[2] for member in archive if member.isfile()}
    loose = {name for name in files if "/" not in name}
    assert loose == {
        *("CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md"),
        *("PKG-INFO", "pyproject.toml", "setup.cfg", "setup.py"),
    }
    folders = {name.partition("/")[0] for name in files - loose}
    assert folders == {"ais_loader", "ais_loader.egg-info", "integrations", "storage_node"}
    assert {f"{module}.c" for module in NATIVE} < files


def test_a_wheel_has_the_native_modules_the_licence_and_a_tag_that_an_index_accepts(wheel: Path) -> None:
    _, version, python, abi, tag = wheel.stem.split("-")
    assert (version, python, abi) == (ais_loader.__version__, *[f"cp{THIS_PYTHON.replace('.', '')}"] * 2)
    assert re.fullmatch(rf"manylinux_2_\d+_{platform.machine()}", tag)
    assert native_modules(wheel) == NATIVE
    with zipfile.ZipFile(wheel) as archive:
        licence = f"ais_loader-{version}.dist-info/licenses/LICENSE"
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()


def test_the_metadata_names_the_licence_and_the_versions_of_python_that_have_wheels(wheel: Path) -> None:
    said = metadata(wheel)
    assert (said["Name"], said["Version"]) == ("ais-loader", ais_loader.__version__)
    assert (said["License-Expression"], said["License-File"]) == ("Apache-2.0", "LICENSE")
    assert said["Description-Content-Type"] == "text/markdown"
    versions = re.findall(r":: (3\.\d+)$", "\n".join(said.get_all("Classifier", [])), re.MULTILINE)
    assert versions == PYTHONS.split()
    assert said["Requires-Python"] == f">={versions[0]}"


def test_an_installation_without_a_compiler_says_what_is_missing(sdist: Path, tmp_path: Path) -> None:
    """With one, `make dist` has built the wheel of the other tests from the same file."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    with pytest.raises(AssertionError, match=r"cannot be compiled .*: install a C compiler and Python's headers"):
        run(*pip, "--wheel-dir", tmp_path / "wheels", sdist, cwd=tmp_path, CC=NO_COMPILER)


def test_a_release_is_not_built_without_a_compiler(sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    with pytest.raises(AssertionError, match=NO_COMPILER):
        make_dist(tree, tmp_path / "dist", sys.executable, UV_NO_BUILD_ISOLATION="1", UV_OFFLINE="1", CC=NO_COMPILER)
    assert not list((tmp_path / "dist").glob("*.whl"))


def interpreter(version: str) -> str | None:
    """An installed interpreter, on the PATH or of pyenv."""
    if version == THIS_PYTHON:
        return sys.executable
    of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for python in (shutil.which(f"python{version}"), *map(str, of_pyenv)):
        # A shim of pyenv may lead nowhere.
        if python and subprocess.run([python, "-c", ""], capture_output=True, timeout=60).returncode == 0:
            return python
    return None


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "version",
    [
        pytest.param(version, marks=pytest.mark.exhaustive if version != THIS_PYTHON else ())
        for version in PYTHONS.split()
    ],
)
def test_the_wheel_of_each_python_stores_and_reads_in_an_empty_environment(
    version: str, sdist: Path, wheel: Path, tmp_path: Path
) -> None:
    if (python := interpreter(version)) is None:
        pytest.skip(f"Python {version} is not installed")
    if version != THIS_PYTHON:
        with tarfile.open(sdist) as archive:
            archive.extractall(tmp_path / "tree", filter="data")
        make_dist(*(tmp_path / "tree").iterdir(), tmp_path / "dist", python)
        (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.stem.split("-")[2] == f"cp{version.replace('.', '')}"
    run(uv(), "venv", "--quiet", "--python", python, tmp_path / "venv", cwd=tmp_path)
    installed = tmp_path / "venv" / "bin" / "python"
    install(installed, f"ais-loader[store] @ {wheel.as_uri()}")
    assert_round_trip(installed, tmp_path)
