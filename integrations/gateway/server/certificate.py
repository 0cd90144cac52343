"""Certificate of the gateway, which is read again when its files change."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from pathlib import Path

from storage_node.store.permissions import require_trusted

log = logging.getLogger(__name__)
_LOOK_INTERVAL_S = 1.0


class Certificate:
    """A certificate and its key, in PEM. `context` always has the newest pair of files that fit together."""

    def __init__(self, cert_file: str, key_file: str) -> None:
        """Raises OSError, ssl.SSLError."""
        self._files = (cert_file, key_file)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._stamp = self._stamped()
        self._load_into(self.context)

    def _load_into(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(
            *self._files, password=""
        )  # without one, a key that has one is asked for on the terminal

    def _stamped(self) -> tuple[tuple[int, int, int], ...]:
        for path in self._files:
            require_trusted(Path(path))
        stats = [os.stat(path) for path in self._files]
        return tuple((stat.st_mtime_ns, stat.st_ino, stat.st_size) for stat in stats)

    async def follow(self) -> None:
        """Look at the files every second, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_INTERVAL_S)
            self.look()

    def look(self) -> None:
        """Read the files if they have changed. The former certificate stays in use if they do not fit together."""
        try:
            stamp = self._stamped()
            if stamp == self._stamp:
                return
            self._load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # a pair is loaded whole or not
            self._load_into(self.context)
            self._stamp = stamp
        except OSError as error:  # also ssl.SSLError
            log.warning("%s: the former certificate stays in use: %s", self._files[0], error)
