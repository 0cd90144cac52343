"""Emulator: a program that behaves like a cloud's storage, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from ais_loader.testing.waiting import eventually

_START_S = 60.0
FOLDER_VARIABLE = "AIS_LOADER_EMULATORS"


def emulators() -> Path | None:
    """The folder into which `make test-remote` installs emulators; None outside of it."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return Path(folder) if folder else None


class Emulator:
    """A running emulator. Its work folder is removed at the end.

    Raises RuntimeError if the program is missing or does not listen on `port` in time.
    """

    def __init__(self, command: Sequence[str | Path], port: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        output = Path(self._folder.name) / "output"
        try:
            with output.open("wb") as file:
                self._process = subprocess.Popen(
                    [str(one) for one in command], stdout=file, stderr=file, cwd=self._folder.name
                )
        except OSError as error:
            self._folder.cleanup()
            raise RuntimeError(f"{command[0]}: {error.strerror}; `make test-remote` installs it") from None
        try:
            eventually(lambda: self._process.poll() is not None or _listens(port), _START_S)
            if self._process.poll() is not None:
                raise RuntimeError(f"{command[0]} ended: {output.read_text(errors='replace')[-1000:]}")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the program. May be called again."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(5.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False
