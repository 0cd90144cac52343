"""What the tests of the installation share: builds, environments, and processes in which packages are not installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

UNREACHABLE = re.compile(r"error sending request|dns error|Connect|was not found in the cache|[Nn]etwork was disabled")

HIDING = '''
import sys

class _Hiding:
    """A finder of modules that does not find some packages: as if they were not installed."""

    def __init__(self, finder):
        self._finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else self._finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self._finder, name)

hidden = set()
sys.meta_path[:] = [_Hiding(finder) for finder in sys.meta_path]
'''
"""Source text. Afterwards, packages in the set `hidden` cannot be imported unless they have been already."""


def run_without(
    packages: Sequence[str], code: str, arguments: Sequence[str] = (), cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `code` in a process in which these packages are not installed."""
    return subprocess.run(
        [sys.executable, "-c", f"{HIDING}\nhidden.update({packages!r})\n{code}", *arguments],
        cwd=cwd or ROOT,
        capture_output=True,
        text=True,
        timeout=180,
    )


def run(*command: object, cwd: Path, timeout_s: float = 450, **environment: str) -> str:
    """Standard output of a command, which must succeed. `environment` is added to that of the tests."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def last_release() -> str:
    """The newest tag of a version, or HEAD before the first one."""
    command = ["git", "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)
    return found.stdout.strip() if found.returncode == 0 else "HEAD"


def uv() -> str:
    found = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert found, "uv is not installed; `make setup` brings it"
    return found


def make_dist(tree: Path, folder: Path, options: str = "--own", **environment: str) -> str:
    """Builds the source distribution and a wheel of a tree, or with no options all files; returns what it printed."""
    variables = [f"TREE={tree}", f"DIST={folder}", f"DIST_OPTIONS={options}", f"VENV={sys.prefix}"]
    return run("make", "--no-print-directory", "dist-of", *variables, cwd=ROOT, timeout_s=1400, **environment)


def install(python: Path, requirement: str) -> None:
    """Installs a requirement with uv. Skips the test if a package is neither in uv's cache nor to be had."""
    command = [uv(), "pip", "install", "--quiet", "--python", python, requirement]
    done = subprocess.run(command, capture_output=True, text=True, timeout=450)
    if UNREACHABLE.search(done.stderr):
        pytest.skip("a package is not in uv's cache, and the index cannot be reached")
    assert done.returncode == 0, done.stderr


def environment_of(wheel: Path, folder: Path) -> Path:
    """The interpreter of a new environment that has the wheel, and what it depends on, but not this tree.

    The dependencies are those of the tests' own environment: a folder that a .pth file names is searched, but its own
    .pth files, which lead to an editable install, are not read.
    """
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", python, "install", "--no-deps", "--no-index"]
    run(*pip, wheel, cwd=folder)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    (site / "dependencies.pth").write_text("\n".join({sysconfig.get_path(kind) for kind in ("purelib", "platlib")}))
    return python
