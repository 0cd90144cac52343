"""The files of a release: what they contain, and that they work on each Python."""

from __future__ import annotations

import email
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

import pytest

import ais_loader
from ais_loader.testing import throwaway_folder
from tests.packaging.packaging_kit import ROOT, install, make_dist, run, uv

# All files of a release are built for the first test that needs them.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

NATIVE = {"ais_loader/wire/_crc32c", "storage_node/store/_native"}
THIS_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
NO_COMPILER = "/nowhere/cc"
CLASSIFIED = re.findall(r"^    .* :: (3\.\d+)$", (ROOT / "setup.cfg").read_text(), re.MULTILINE)
PYTHONS = sorted({*CLASSIFIED, "3.14"})

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
    assert (version, python, abi) == (ais_loader.__version__, "cp311", "abi3")
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
    assert versions == CLASSIFIED
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
        make_dist(tree, tmp_path / "dist", UV_NO_BUILD_ISOLATION="1", UV_OFFLINE="1", CC=NO_COMPILER)
    assert not list((tmp_path / "dist").glob("*.whl"))


def interpreter(version: str) -> str | None:
    """An installed interpreter, on the PATH or of pyenv."""
    if version == THIS_PYTHON:
        return sys.executable
    of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for python in (shutil.which(f"python{version}"), *map(str, of_pyenv)):
        # A shim of pyenv may lead nowhere.
        if python and subprocess.run([python, "-c", ""], capture_output=True, timeout=180).returncode == 0:
            return python
    return None


@pytest.mark.parametrize(
    "version",
    [pytest.param(version, marks=pytest.mark.exhaustive if version != THIS_PYTHON else ()) for version in PYTHONS],
)
def test_the_wheel_stores_and_reads_on_each_python_in_an_empty_environment(
    version: str, wheel: Path, tmp_path: Path
) -> None:
    if (python := interpreter(version)) is None:
        pytest.skip(f"Python {version} is not installed")
    run(uv(), "venv", "--quiet", "--python", python, tmp_path / "venv", cwd=tmp_path)
    installed = tmp_path / "venv" / "bin" / "python"
    install(installed, f"ais-loader[store] @ {wheel.as_uri()}")
    assert_round_trip(installed, tmp_path)


@pytest.fixture(scope="module")
def release(sdist: Path) -> Iterator[tuple[Path, str]]:
    """The folder of all files that this machine can build, and what the command said."""
    with throwaway_folder() as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder / "tree", filter="data")
        (tree,) = (folder / "tree").iterdir()
        said = make_dist(tree, folder / "dist", "")
        yield folder / "dist", said


def foreign_wheel(release: tuple[Path, str], machine: str, libc: str) -> Path:
    folder, said = release
    wheels = list(folder.glob(f"*-{'manylinux' if libc == 'gnu' else 'musllinux'}_*_{machine}.whl"))
    if not wheels:
        assert f"not built: wheel of {machine}, {libc}: " in said
        pytest.skip(said)
    return wheels[0]


def test_a_release_lists_each_file_that_it_has_and_each_that_it_lacks(release: tuple[Path, str]) -> None:
    folder, said = release
    names = {path.name for path in folder.iterdir()}
    assert {line.split()[-1] for line in said.splitlines() if re.match(r" *[\d,]+  ", line)} == names
    lacking = said.count("not built: ")
    # Five wheels, the source distribution, the list of components, and the checksums.
    assert len(names) + lacking - ("not built: wheel of " + platform.machine() in said) == 8
    for line in (folder / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
        names.remove(name)
    assert names == {"SHA256SUMS"}


def test_the_list_of_components_has_what_an_installation_brings_and_no_path(release: tuple[Path, str]) -> None:
    listed = list(release[0].glob("*.cdx.json"))
    if not listed:
        pytest.skip(release[1])
    text = listed[0].read_text()
    found = json.loads(text)
    assert found["bomFormat"] == "CycloneDX"
    assert found["metadata"]["component"]["name"] == "ais-loader"
    assert found["metadata"]["component"]["version"] == ais_loader.__version__
    assert {"click", "grpcio", "numpy", "protobuf", "rocksdict", "xxhash"} <= {
        one["name"] for one in found["components"]
    }
    assert "file://" not in text


def test_the_wheels_use_nothing_beyond_the_limited_api_of_3_11(release: tuple[Path, str], tmp_path: Path) -> None:
    run(uv(), "venv", "--quiet", "--python", sys.executable, tmp_path / "venv", cwd=tmp_path)
    install(tmp_path / "venv" / "bin" / "python", "abi3audit==0.0.26")
    wheels = sorted(release[0].glob("*-abi3-*.whl"))
    assert wheels
    run(tmp_path / "venv" / "bin" / "abi3audit", "--strict", *wheels, cwd=tmp_path)


LOADED = """
import sys, time
sys.path.insert(0, sys.argv[1])
from importlib.util import module_from_spec, spec_from_file_location

def load(name, path):
    spec = spec_from_file_location(name, f"{sys.argv[1]}/{path}.abi3.so")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

def seconds(function):  # the least of several turns: a machine may stand still in some
    took_s = []
    for _ in range(20):
        start = time.perf_counter()
        function(bytes(1 << 18))
        took_s.append(time.perf_counter() - start)
    return min(took_s)

crc = load("_crc32c", "ais_loader/wire/_crc32c")
for function in (crc.crc32c, crc.crc32c_lanes, crc.crc32c_table):
    assert function(b"123456789") == 0xE3069283
native = load("_native", "storage_node/store/_native")
columns = [memoryview(bytearray(8)).cast("B").cast(kind)[:1] for kind in ("i", "q", "q", "I")]
assert native.find((native.Locations(3, 1 << 20),), b"", ["a"], *columns) == [None]
print(seconds(crc.crc32c_table) / seconds(crc.crc32c))
"""


def test_the_wheel_for_older_systems_takes_the_instructions_of_this_processor(
    release: tuple[Path, str], tmp_path: Path
) -> None:
    """A compiler's runtime may not know them, and would leave the table: a tenth of the speed."""
    wheel = foreign_wheel(release, platform.machine(), "gnu")
    zipfile.ZipFile(wheel).extractall(tmp_path)
    ratio = float(run(sys.executable, "-S", "-c", LOADED, tmp_path, cwd=tmp_path))
    if re.search(r"\b(pclmulqdq|crc32)\b", Path("/proc/cpuinfo").read_text()):
        assert ratio > 2


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_wheel_for_glibc_is_loaded_on_its_architecture(
    machine: str, release: tuple[Path, str], tmp_path: Path
) -> None:
    """`AIS_LOADER_ROOT_aarch64` names a folder with a Python of that architecture, which qemu runs."""
    command: list[object] = [sys.executable]
    if machine != platform.machine():
        emulator = shutil.which(f"qemu-{machine}-static") or shutil.which(f"qemu-{machine}")
        root = os.environ.get(f"AIS_LOADER_ROOT_{machine}")
        if not emulator or not root:
            pytest.skip(f"no emulator, or no root, for {machine}")
        command = [emulator, "-L", root, *sorted(Path(root).glob("usr/bin/python3.*"))[:1]]
    zipfile.ZipFile(foreign_wheel(release, machine, "gnu")).extractall(tmp_path)
    assert run(*command, "-S", "-c", LOADED, tmp_path, cwd=tmp_path)


def test_a_wheel_for_musl_needs_nothing_that_musl_lacks(release: tuple[Path, str], tmp_path: Path) -> None:
    """musl's own loader resolves each name: those of Python by a program without it, all others by its libc."""
    loader = Path(f"/lib/ld-musl-{platform.machine()}.so.1")
    if not loader.exists():
        pytest.skip("musl is not installed")
    zipfile.ZipFile(foreign_wheel(release, platform.machine(), "musl")).extractall(tmp_path)
    for module in NATIVE:
        path = tmp_path / f"{module}.abi3.so"
        done = subprocess.run([loader, "--list", path], capture_output=True, text=True, timeout=180)
        missing = set(re.findall(r"relocating [^:]*: (\w+): symbol not found", done.stderr))
        assert missing and {name for name in missing if not name.startswith(("Py", "_Py"))} == set()
