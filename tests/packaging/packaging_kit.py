"""What the tests of the installation share: processes in which packages are not installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

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
        timeout=100,
    )


def run(*command: object, cwd: Path) -> str:
    """Standard output of a command, which must succeed."""
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
