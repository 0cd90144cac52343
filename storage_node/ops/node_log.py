"""Node log, at a path that does not depend on Ray: ROOT/.cluster/log/UUID.log."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import time
from collections import deque
from collections.abc import Generator
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TextIO

from storage_node.ops.ray_head import FOLDER_NAME

_MAX_BYTES = 4 << 20
_PIECE = 1 << 16
_LOOK_EVERY_S = 0.2
_FORMAT = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"


def path_of(root: Path, uuid: str) -> Path:
    return root / FOLDER_NAME / "log" / f"{uuid}.log"


def begin(root: Path, uuid: str) -> None:
    """Direct the log of this process, and its stacks if it crashes, to the file. Raises OSError."""
    path = path_of(root, uuid)
    path.parent.parent.mkdir(mode=0o700, exist_ok=True)  # never the root itself: a disk may not be mounted
    path.parent.mkdir(mode=0o700, exist_ok=True)
    log_to(path)


class _WithStderr(RotatingFileHandler):
    """Handler for the file that is also this process's standard error, which moves to the new file at a rotation."""

    def doRollover(self) -> None:
        super().doRollover()
        assert self.stream is not None
        os.dup2(self.stream.fileno(), 2)


def log_to(path: Path, *, with_stderr: bool = False) -> None:
    """Direct the log of this process, and its stacks if it crashes, to a file, which is limited in size and rotated.

    `with_stderr`: the file is also the standard error of this process, and limited together with it. Raises OSError.
    """
    handler = (_WithStderr if with_stderr else RotatingFileHandler)(path, maxBytes=_MAX_BYTES, backupCount=1)
    handler.setFormatter(logging.Formatter(_FORMAT))
    ours = logging.getLogger("storage_node")
    ours.setLevel(logging.INFO)
    # Other loggers write to standard error unless they have a handler.
    (logging.getLogger() if with_stderr else ours).addHandler(handler)
    # A descriptor of its own, which survives the rotation of the file.
    faulthandler.enable(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))


def follow(root: Path, uuid: str, lines: int) -> Generator[str, None, None]:
    """Yield the last lines, then new lines forever, also from the file that replaces this one after a rotation.

    Waits for a node that has not logged anything yet.
    """
    path = path_of(root, uuid)
    recent: deque[str] = deque(maxlen=lines)
    with contextlib.suppress(FileNotFoundError), path.with_name(f"{path.name}.1").open(errors="replace") as before:
        recent.extend(line.rstrip("\n") for line in before)
    file, rest = _opened(path), ""
    try:
        if file is not None:
            *whole, rest = file.read().split("\n")  # 4 MiB at most; later reads continue here
            recent.extend(whole)
        yield from recent
        while True:
            while file is not None and (read := file.read(_PIECE)):
                *whole, rest = (rest + read).split("\n")
                yield from whole
            # Rotated, or not created yet; the last lines of the old file have been read.
            if (file is None or _other(file, path)) and (newer := _opened(path)) is not None:
                if file is not None:
                    *whole, rest = (rest + file.read()).split("\n")  # written before the rotation
                    yield from whole
                    file.close()
                file = newer
            else:
                time.sleep(_LOOK_EVERY_S)
    finally:
        if file is not None:
            file.close()


def _opened(path: Path) -> TextIO | None:
    try:
        return path.open(errors="replace")
    except FileNotFoundError:
        return None


def _other(file: TextIO, path: Path) -> bool:
    """Whether the path now refers to another file."""
    try:
        current, opened = os.stat(path), os.fstat(file.fileno())
    except FileNotFoundError:
        return False
    return (current.st_dev, current.st_ino) != (opened.st_dev, opened.st_ino)


def tail(root: Path, uuid: str, lines: int) -> list[str]:
    """Return the last lines, including those of the previous, rotated file. Raises FileNotFoundError, OSError."""
    path = path_of(root, uuid)
    found: deque[str] = deque(maxlen=lines)
    for one in (path.with_name(f"{path.name}.1"), path):
        if one is path or one.exists():
            with one.open(errors="replace") as file:
                found.extend(line.rstrip("\n") for line in file)
    return list(found)
