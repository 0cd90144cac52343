"""Builds the files of a release that this machine can build, and lists the others with the reasons.

    python -m scripts.release_files TREE FOLDER [--own]

TREE is a source tree without builds (`make dist` takes the last commit), FOLDER receives the files. The source
distribution and the wheel of this machine's architecture must succeed; they are built with its C compiler. zig's C
compiler, which comes as a package, builds the wheels of other architectures and of musl, and one of this architecture
that older systems load too, which replaces that of the C compiler. The tool that lists components comes as a package,
too. A wheel of a free-threaded CPython needs that interpreter. With --own nothing else than what must succeed is built.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

FREE_THREADED = "3.14t"
ZIG, COMPONENTS = "ziglang==0.17.1", "cyclonedx-bom==7.5.0"
GLIBC = "2.28"
"""The oldest glibc that cross-compiled wheels may ask for; auditwheel names the one that they do."""
CROSS = [("x86_64", "gnu"), ("aarch64", "gnu"), ("x86_64", "musl"), ("aarch64", "musl")]
LINKER = """#!/bin/sh
# auditwheel reads the name of the C library, and zig leaves it out where none is needed.
set -e
{compiler} -shared -s "$@"
while [ "$1" != -o ]; do shift; done
{patchelf} --remove-needed libc.so --remove-needed libc.so.6 --add-needed {library} "$2"
"""


class NotBuilt(Exception):
    """A step that failed; its text says why, in a line, and `output` is all that the command said."""

    output = ""


def run(*command: object, **environment: str) -> None:
    """Run a command without output. Raises NotBuilt with the last line that says what went wrong."""
    done = subprocess.run(
        list(map(str, command)),
        env=os.environ | environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        telling = [line for line in lines if re.search(r"[Ee]rror|cannot", line)] or lines or ["no output"]
        error = NotBuilt(f"{Path(str(command[0])).name} failed: {telling[-1]}")
        error.output = done.stdout
        raise error


def tool(name: str) -> Path:
    """Path of a program of this environment."""
    return Path(sys.executable).with_name(name)


def python_with(package: str, work: Path) -> Path:
    """Interpreter of an environment with one package. Raises NotBuilt if the package cannot be installed."""
    folder = work / package.partition("=")[0]
    if not folder.exists():
        run(tool("uv"), "venv", "--python", sys.executable, folder)
    try:
        run(tool("uv"), "pip", "install", "--python", folder / "bin" / "python", package)
    except NotBuilt as error:
        raise NotBuilt(f"{package} cannot be installed") from error
    return folder / "bin" / "python"


def build_wheel(sdist: Path, folder: Path, work: Path, python: object, **environment: str) -> None:
    """Build a wheel of the source distribution, and give it the tag of the oldest systems that can load it."""
    with tempfile.TemporaryDirectory(dir=work) as built:
        run(tool("uv"), "build", "--wheel", "--python", python, "--out-dir", built, sdist, **environment)
        path = f"{tool('python').parent}{os.pathsep}{os.environ['PATH']}"
        run(tool("auditwheel"), "repair", "--wheel-dir", folder, *Path(built).glob("*.whl"), PATH=path)


def free_threaded_build(sdist: Path, folder: Path, work: Path) -> None:
    """Build the wheel of a CPython without GIL, which has no limited API."""
    try:
        run(tool("uv"), "python", "find", FREE_THREADED)
    except NotBuilt as error:
        raise NotBuilt(f"no CPython {FREE_THREADED} is installed") from error
    build_wheel(sdist, folder, work, FREE_THREADED)


def cross_build(sdist: Path, folder: Path, work: Path, machine: str, libc: str) -> None:
    """Build the wheel of another architecture or C library with zig's compiler."""
    python = python_with(ZIG, work)
    target = f"{machine}-linux-{libc}" + (f".{GLIBC}" if libc == "gnu" else "")
    # Functions with instructions of their own are called where the processor has them.
    flags = " -mcrc32" if machine == "x86_64" else ""
    compiler = f"{python} -m ziglang cc -target {target}{flags}"
    linker = work / f"link-{target}"
    library = "libc.so.6" if libc == "gnu" else f"libc.musl-{machine}.so.1"
    linker.write_text(LINKER.format(compiler=compiler, patchelf=tool("patchelf"), library=library))
    linker.chmod(0o755)
    described = f"linux-{machine}"
    build_wheel(sdist, folder, work, sys.executable, CC=compiler, LDSHARED=str(linker), _PYTHON_HOST_PLATFORM=described)


def list_components(wheel: Path, folder: Path, work: Path, name: str) -> None:
    """Write a CycloneDX list of what an installation with the extra `store` consists of."""
    lister = python_with(COMPONENTS, work)
    _, version = name.split("-")
    (described := work / "pyproject.toml").write_text(
        f'[project]\nname = "ais-loader"\nversion = "{version}"\nlicense = "Apache-2.0"\n'
    )
    installed = python_with(f"ais-loader[store] @ {wheel.as_uri()}", work)
    for path in installed.parents[1].rglob("ais_loader-*.dist-info/direct_url.json"):
        path.unlink()  # which names a folder of this machine
    to = ("--output-reproducible", "--output-format", "JSON", "--output-file", folder / f"{name}.cdx.json")
    what = ("--pyproject", described, "--mc-type", "library")
    run(lister.with_name("cyclonedx-py"), "environment", *what, *to, installed)


def write_checksums(folder: Path) -> None:
    """Write SHA256SUMS, which `sha256sum --check` reads."""
    files = sorted(path for path in folder.iterdir() if path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / "SHA256SUMS").write_text("".join(lines))


def build_own(tree: Path, folder: Path, work: Path) -> tuple[Path, Path]:
    """Build the source distribution and, with this machine's compiler, a wheel. Raises NotBuilt."""
    run(tool("uv"), "build", "--sdist", "--python", sys.executable, "--out-dir", folder, tree)
    (sdist,) = folder.glob("*.tar.gz")
    build_wheel(sdist, folder, work, sys.executable)
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


def build_others(sdist: Path, wheel: Path, folder: Path, work: Path) -> list[str]:
    """Build what else can be built; return a line for each thing that cannot."""
    name, own = sdist.name.removesuffix(".tar.gz"), platform.machine()
    steps: list[tuple[str, Callable[[], None]]] = [
        (f"wheel of CPython {FREE_THREADED}, {own}", partial(free_threaded_build, sdist, folder, work)),
        *(
            (f"wheel of {machine}, {libc}", partial(cross_build, sdist, folder, work, machine, libc))
            for machine, libc in CROSS
        ),
        (f"{name}.cdx.json", partial(list_components, wheel, folder, work, name)),
    ]
    missing = []
    for what, step in steps:
        try:
            step()
        except NotBuilt as error:
            missing.append(f"{what}: {error}")
    if len(list(folder.glob(f"*manylinux*_{own}.whl"))) > 1:
        wheel.unlink()
    return missing


def main() -> None:
    tree, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    missing = []
    with tempfile.TemporaryDirectory() as work:
        try:
            sdist, wheel = build_own(tree, folder, Path(work))
            if "--own" not in sys.argv:
                missing = build_others(sdist, wheel, folder, Path(work))
            run(tool("twine"), "check", "--strict", *folder.glob("*.whl"), *folder.glob("*.tar.gz"))
        except NotBuilt as error:
            sys.exit(f"{error.output}\n{error}")
    (folder / ".gitignore").unlink(missing_ok=True)
    write_checksums(folder)
    for path in sorted(folder.iterdir()):
        print(f"{path.stat().st_size:>10,}  {path.name}")
    for line in missing:
        print(f"not built: {line}")


if __name__ == "__main__":
    main()
