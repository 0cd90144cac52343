"""Power-cut simulation: what is left of a folder, computed from what was synced.

power_shim.c notes every successful sync of the process under test. From its journal, three trees are made that a file
system may leave behind, each of them allowed by POSIX:

    nothing more    only what was synced: names as of the folder's last sync, bytes up to the file's last sync
    all names       every name as it was at the end, but the bytes only up to the last sync (delayed allocation)
    any mixture     for each folder and file one or the other, or some length in between, drawn from a seed
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from storage_node.store.permissions import FOLDER_MODE
from tests.faults.crash_kit import CrashServer

Extent = Literal["nothing more", "all names", "any mixture"]
EXTENTS: tuple[Extent, ...] = ("nothing more", "all names", "any mixture")

_SOURCE = Path(__file__).with_name("power_shim.c")
_ATTRIBUTE = "user.ais_loader"


def find_compiler() -> str | None:
    configured = (sysconfig.get_config_var("CC") or "").split()[:1]
    return next((path for name in (*configured, "cc", "gcc", "clang") if (path := shutil.which(name))), None)


def compile_shim(folder: Path, compiler: str) -> Path:
    built = folder / "power_shim.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-pthread", "-o", str(built), str(_SOURCE), "-ldl"],
        check=True,
    )
    return built


@contextlib.contextmanager
def noting_server(folder: Path) -> Iterator[CrashServer]:
    """Start a crash server whose children can note what they sync. Skips the test without a C compiler."""
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C compiler: the library that notes what was synced cannot be built")
    with CrashServer({"LD_PRELOAD": str(compile_shim(folder, compiler))}) as running:
        yield running


# -- in the process under test


def begin(shadow: str, top: str) -> None:
    """Start the journal, with everything below `top` as it is now counted as synced."""
    os.makedirs(os.path.join(shadow, "inodes"))
    library = ctypes.CDLL(None)
    number = library.power_shim_begin(os.fsencode(shadow))
    if number:
        raise OSError(number, os.strerror(number), shadow)
    sync_all(top)


def sync_all(top: str) -> None:
    """Sync everything below a folder, as syncfs does; but the library hears of it."""
    for folder, _, files in os.walk(top):
        for name in (".", *files):
            path = os.path.join(folder, name)
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                if not os.path.islink(path):
                    fd = os.open(path, os.O_RDONLY)
                    os.fsync(fd)
                    os.close(fd)


# -- in the test


@dataclass(frozen=True, slots=True)
class _Entry:
    kind: str
    what: str
    """The inode of a file or folder, the target of a link."""
    name: bytes


@dataclass(slots=True)
class _Synced:
    sizes: dict[str, int] = field(default_factory=dict)
    identities: dict[str, bytes] = field(default_factory=dict)
    listings: dict[str, list[_Entry]] = field(default_factory=dict)


def _unhex(text: str) -> bytes:
    return b"" if text == "-" else bytes.fromhex(text)


def _read_journal(path: Path) -> _Synced:
    """A note that the process died in counts as not made, and what an older look saw takes nothing back."""
    synced = _Synced()
    newest: dict[str, int] = {}
    lines = path.read_text().split("\n")[:-1]
    at = 0
    while at < len(lines):
        kind, inode, moment, *rest = lines[at].split()
        at += 1
        is_newer = int(moment) > newest.get(inode, 0)
        if kind == "F":
            if is_newer:
                newest[inode] = int(moment)
                synced.sizes[inode], synced.identities[inode] = int(rest[0]), _unhex(rest[1])
            continue
        entries = [line.split() for line in lines[at : at + int(rest[0])]]
        at += len(entries) + 1
        if at <= len(lines) and is_newer:
            newest[inode] = int(moment)
            synced.listings[inode] = [_Entry(kind, what, _unhex(name)) for kind, what, name in entries]
    return synced


def _listing_of(folder: Path) -> list[_Entry]:
    entries = []
    for entry in os.scandir(os.fsencode(folder)):
        if entry.is_symlink():
            entries.append(_Entry("l", os.fsencode(os.readlink(entry.path)).hex(), entry.name))
        else:
            entries.append(_Entry("d" if entry.is_dir() else "f", str(entry.inode()), entry.name))
    return entries


class PowerCut:
    """Builds at `target` what is left of `top`, given what the shim noted in `shadow`."""

    def __init__(self, top: Path, shadow: Path, extent: Extent, seed: int) -> None:
        self._shadow = shadow
        self._extent = extent
        self._draw = random.Random(seed)
        self._synced = _read_journal(shadow / "journal")
        self._top = str(top.stat().st_ino)
        self._files: dict[str, Path] = {}
        self._listings: dict[str, list[_Entry]] = {self._top: _listing_of(top)}
        for path in top.rglob("*"):
            if not path.is_symlink():
                inode = str(path.stat().st_ino)
                if path.is_dir():
                    self._listings[inode] = _listing_of(path)
                else:
                    self._files[inode] = path

    def leave(self, target: Path) -> None:
        target.mkdir(FOLDER_MODE)
        self._leave_folder(self._top, target)

    def _keeps_more(self) -> bool:
        return self._extent == "any mixture" and self._draw.random() < 0.5

    def _leave_folder(self, inode: str, target: Path) -> None:
        entries = self._synced.listings.get(inode, [])
        if self._extent == "all names" or self._keeps_more():
            entries = self._listings.get(inode, entries)
        # A seed draws the same for each of them on all file systems, which list them in orders of their own.
        for entry in sorted(entries, key=lambda entry: entry.name):
            path = target / os.fsdecode(entry.name)
            if entry.kind == "l":
                path.symlink_to(os.fsdecode(_unhex(entry.what)))
            elif entry.kind == "d":
                path.mkdir(FOLDER_MODE)
                self._leave_folder(entry.what, path)
            else:
                self._leave_file(entry.what, path)

    def _leave_file(self, inode: str, target: Path) -> None:
        size = self._synced.sizes.get(inode, 0)
        identity = self._synced.identities.get(inode, b"")
        pinned = self._shadow / "inodes" / inode
        source = pinned if pinned.exists() else self._files.get(inode)
        target.touch(0o600)
        if source is None:
            return
        if self._keeps_more():
            size = self._draw.randint(min(size, source.stat().st_size), source.stat().st_size)
            identity = b""
            with contextlib.suppress(OSError):
                identity = os.getxattr(source, _ATTRIBUTE)
        with source.open("rb") as file:
            target.write_bytes(file.read(size))
        if identity:
            os.setxattr(target, _ATTRIBUTE, identity)


@contextlib.contextmanager
def one_cut(folder: Path, number: int) -> Iterator[tuple[Path, Path]]:
    """(shadow, target) of one power cut; the shadow's pins go afterwards."""
    shadow, target = folder / f"shadow-{number}", folder / f"left-{number}"
    yield shadow, target
    shutil.rmtree(shadow)
