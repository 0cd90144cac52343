"""Helpers of the batch reader's tests: folders of known bytes, and columns of arguments."""

from __future__ import annotations

import contextlib
import os
import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from storage_node.store.native import StoredFile, read_frame, read_list
from tests.open_files import open_files

# Disk file systems answer RWF_NOWAIT; tmpfs does not, which sends every read down the cold path.
FILE_SYSTEMS = ["disk", *(["memory"] if os.access("/dev/shm", os.W_OK) else [])]


@contextlib.contextmanager
def folder_on(file_system: str, disk_path: Path) -> Iterator[Folder]:
    if file_system == "disk":
        with Folder(disk_path) as opened:
            yield opened
    else:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as path, Folder(Path(path)) as opened:
            yield opened


class Folder:
    """A folder of test files and the descriptor that entries are relative to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Folder:
        self.fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def add(self, name: str, data: bytes) -> bytes:
        (self.path / name).write_bytes(data)
        return name.encode()

    def add_many(self, count: int, size: int) -> tuple[list[bytes], list[bytes]]:
        contents = [content(i, size) for i in range(count)]
        return [self.add(f"f{i:05}", data) for i, data in enumerate(contents)], contents

    def chill(self) -> None:
        """Ask the kernel to forget the files' pages, as far as this file system can."""
        for path in self.path.iterdir():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def open_descriptors(folder: Folder) -> set[tuple[int, str]]:
    """Of the folder and its files."""
    return set(open_files(folder.path).items())


def content(seed: int, size: int) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def crc(data: bytes) -> int:
    return int(google_crc32c.value(data))


def columns(
    dirfds: int | list[int],
    paths: list[bytes] | list[StoredFile],
    offsets: list[int],
    lengths: list[int],
    expected: list[int] | None = None,
    verify: list[int] | None = None,
) -> tuple[Any, ...]:
    """The six column arguments; without `expected` nothing is verified, with it everything is."""
    count = len(paths)
    return (
        array("i", [dirfds] * count if isinstance(dirfds, int) else dirfds),
        paths,
        array("q", offsets),
        array("q", lengths),
        array("I", expected or [0] * count),
        bytes(verify if verify is not None else [expected is not None] * count),
    )


def whole_files(folder: Folder, paths: list[bytes], contents: list[bytes]) -> tuple[Any, ...]:
    return columns(folder.fd, paths, [0] * len(paths), [len(c) for c in contents], [crc(c) for c in contents])


def both(args: tuple[Any, ...]) -> list[Any]:
    """The answers of both calls; the frame call also computes every checksum."""
    return [read_list(*args), read_frame(bytes(4 * len(args[1])), 0, *args)]
