"""Access log: one line of JSON per request, without secrets and signatures."""

from __future__ import annotations

import json
import logging
import os
import time
from datetime import UTC, datetime
from pathlib import Path

from ..request import S3Error, decoded
from .exchange import Exchange

log = logging.getLogger(__name__)
_SECRETS = frozenset(("x-amz-signature", "signature", "x-amz-security-token"))
_MAX_PATH = 4096
_LOOK_INTERVAL_S = 1.0


class AccessLog:
    """A file to which lines are appended, each at once, so that several processes can share it.

    A file that was renamed or removed, as by logrotate, is created again within a second.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._path = path
        self._file = self._open()
        self._look_at_s = 0.0
        self._failed = False

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, exchange: Exchange) -> None:
        """Append a line. A line that cannot be written is dropped, and the first such error logged."""
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "id": exchange.request_id,
            "client": exchange.client,
            "method": exchange.method,
            "path": shown_path(exchange.path),
            "call": exchange.call,
            "status": exchange.status,
            "received_bytes": exchange.received_bytes,
            "sent_bytes": exchange.sent_bytes,
            "duration_s": round(exchange.took_s, 6),
            "access_key": exchange.access_key,
        }
        try:
            if (now_s := time.monotonic()) >= self._look_at_s:
                self._look_at_s = now_s + _LOOK_INTERVAL_S
                self._follow()
            os.write(self._file, json.dumps(line).encode() + b"\n")
        except OSError as error:
            if not self._failed:
                log.warning("%s: requests are not logged: %s", self._path, error.strerror)
            self._failed = True
        else:
            self._failed = False

    def _follow(self) -> None:
        try:
            there, ours = os.stat(self._path), os.fstat(self._file)
            if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
                return
        except FileNotFoundError:
            pass
        opened = self._open()
        os.close(self._file)
        self._file = opened

    def close(self) -> None:
        os.close(self._file)


def shown_path(path: str) -> str:
    """Return a path and its query without the parameters that are signatures or tokens."""
    path, mark, query = path.partition("?")
    kept = [part for part in query.split("&") if not _is_secret(part.partition("=")[0])]
    shown = path + mark + "&".join(kept) if kept != [""] else path + mark
    return shown[:_MAX_PATH].encode("utf-8", "backslashreplace").decode()


def _is_secret(name: str) -> bool:
    try:
        return decoded(name, plus=True).strip().lower() in _SECRETS
    except S3Error:
        return False
