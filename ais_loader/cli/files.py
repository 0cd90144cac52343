"""Output of object bytes: a file that appears complete or not at all, or standard output."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator
from typing import Protocol

import click

from ais_loader.values.whole_file import whole_file

STDOUT = "-"


def chosen_output(argument: str | None, option: str | None, name: str) -> str | None:
    """Return the output path, given as the argument `name` or as --output. Raises UsageError."""
    if argument is not None and option is not None:
        raise click.UsageError(f"{name} and --output both say where to write: give one of them")
    return argument if option is None else option


_CONTROLS = bytes(byte for byte in (*range(32), 127) if byte not in b"\t\n\r\f")


class ByteSink(Protocol):
    """A destination for bytes."""

    def write(self, data: bytes | memoryview, /) -> object: ...


@contextlib.contextmanager
def written_whole(path: str, *, force: bool) -> Iterator[ByteSink]:
    """Create a file that gets its name when the block succeeds; otherwise nothing of it remains.

    An existing file is replaced only with `force`. A pipe or a device is written to directly. Raises
    click.ClickException if the file exists, and OSError.
    """
    path = os.path.realpath(path)  # a link is kept, and its target is written
    if _is_special(path):
        with open(path, "wb") as special:
            yield special
        return
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.lstat(path)  # reports a name that no file can have before anything is fetched
        if not force:
            raise _exists(path)
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        fault = "not a folder" if os.path.lexists(folder) else "no such folder"
        raise click.ClickException(f"{click.format_filename(folder)}: {fault}")
    try:
        with whole_file(path, replace=force) as file:
            yield file
    except FileExistsError:
        raise _exists(path) from None


def _is_special(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _exists(path: str) -> click.ClickException:
    return click.ClickException(f"{click.format_filename(path)} exists; --force replaces it")


@contextlib.contextmanager
def written_to_stdout() -> Iterator[ByteSink]:
    """Provide standard output for bytes; a terminal gets only text."""
    sys.stdout.flush()
    yield _TextOnly(sys.stdout.buffer) if sys.stdout.isatty() else sys.stdout.buffer
    sys.stdout.buffer.flush()


class _TextOnly:
    """A terminal that rejects control characters, which could make it beep, change colours, or worse."""

    def __init__(self, terminal: ByteSink) -> None:
        self._terminal = terminal
        self._has_written = False

    def write(self, data: bytes | memoryview, /) -> object:
        # Only the first piece is certain to begin at a character boundary.
        if has_controls(bytes(data)) if self._has_written else looks_binary(bytes(data)):
            raise click.ClickException(
                "this is not text, and standard output is a terminal: give a FILE, or use a pipe"
            )
        self._has_written = True
        return self._terminal.write(data)


def has_controls(data: bytes) -> bool:
    """Whether `data` contains bytes that control a terminal."""
    return len(data.translate(None, delete=_CONTROLS)) != len(data)


def looks_binary(beginning: bytes) -> bool:
    """Whether `beginning`, which may end inside a character, is not UTF-8 text without control characters."""
    if has_controls(beginning):
        return True
    try:
        beginning.decode()
    except UnicodeDecodeError as error:
        return error.reason != "unexpected end of data"
    return False
