"""Node log, where an operator finds it whatever has become of Ray: ROOT/.cluster/log/UUID.log."""

from __future__ import annotations

import faulthandler
import logging
import os
from collections import deque
from logging.handlers import RotatingFileHandler
from pathlib import Path

from storage_node.ops.ray_head import FOLDER_NAME

_MAX_BYTES = 4 << 20
_FORMAT = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"


def path_of(root: Path, uuid: str) -> Path:
    return root / FOLDER_NAME / "log" / f"{uuid}.log"


def begin(root: Path, uuid: str) -> None:
    """Everything that this process logs goes there, and its stacks when it crashes. Raises OSError."""
    path = path_of(root, uuid)
    path.parent.parent.mkdir(mode=0o700, exist_ok=True)  # never the root itself: it may be a disk that is not mounted
    path.parent.mkdir(mode=0o700, exist_ok=True)
    handler = RotatingFileHandler(path, maxBytes=_MAX_BYTES, backupCount=1, delay=False)
    handler.setFormatter(logging.Formatter(_FORMAT))
    ours = logging.getLogger("storage_node")
    ours.setLevel(logging.INFO)
    ours.addHandler(handler)
    # A descriptor of its own, which stays when the file is put aside.
    faulthandler.enable(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))


def tail(root: Path, uuid: str, lines: int) -> list[str]:
    """The last ones, also of the file that was put aside before. Raises FileNotFoundError, OSError."""
    path = path_of(root, uuid)
    found: deque[str] = deque(maxlen=lines)
    for one in (path.with_name(f"{path.name}.1"), path):
        if one is path or one.exists():
            with one.open(errors="replace") as file:
                found.extend(line.rstrip("\n") for line in file)
    return list(found)
