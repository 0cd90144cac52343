"""Command-line clients: what they share. They copy a folder of files to the gateway, and back."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from checks import objects


def program(name: str) -> str:
    """Return the path of the program that is to be run, by default of one of this environment."""
    return os.environ.get("DOORS_PROGRAM") or str(Path(sys.executable).parent / name)


def runner(*prefix: str) -> Callable[..., str]:
    """Return a function that runs a command with this beginning, and returns what it prints. It raises RuntimeError."""

    def run(*arguments: str) -> str:
        ended = subprocess.run([*prefix, *arguments], capture_output=True, text=True, timeout=300)
        if ended.returncode:
            raise RuntimeError(f"{' '.join(arguments)}: status {ended.returncode}: {ended.stderr or ended.stdout}")
        return ended.stdout

    return run


def write_files(folder: Path) -> dict[str, bytes]:
    """Write a file for each object, and return their bytes by key."""
    stored = objects()
    for key, body in stored.items():
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(body)
    return stored


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the bytes of files below a folder, by their paths."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
