"""Credentials of gRPC made of a `TlsFiles`, which follow the files when they change.

Listeners look at the files at every handshake. Channels keep the credentials with which they were made; whoever keeps a
channel opens another one when `ChannelCredentials.generation` has changed.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from storage_node.store.permissions import trusted_bytes

LOOK_INTERVAL_S = 1.0
"""A change of the files is noticed this late at most."""
log = logging.getLogger(__name__)


class _Followed:
    """Contents of the files that were usable last. Thread-safe."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises OSError, ValueError."""
        self._files = files
        self._lock = threading.Lock()
        self._stamp = files.stamp()  # before reading: a change in between is seen as one
        self.contents = files.read()
        self.generation = 0
        self._looked_s = time.monotonic()

    def look(self) -> bool:
        """Read the files again if they have changed. Return whether `contents` has changed.

        Contents that are not usable, such as half of a renewal, are logged, and the former ones stay in use.
        """
        with self._lock:
            if time.monotonic() - self._looked_s < LOOK_INTERVAL_S:
                return False
            self._looked_s = time.monotonic()
            try:
                stamp = self._files.stamp()
                if stamp == self._stamp:
                    return False
                contents = self._files.read()
            except (OSError, ValueError) as error:
                log.warning("the former certificate stays in use: %s", error)
                return False
            self._stamp = stamp
            if contents == self.contents:
                return False
            self.contents = contents
            self.generation += 1
            log.info("%s has changed and is in use now", self._files.cert_file)
            return True


def server_credentials(files: TlsFiles, *, peers: bool) -> grpc.ServerCredentials:
    """Return the credentials of a listener. `peers`: its callers need a certificate of the CA.

    Raises OSError, ValueError.
    """
    followed = _Followed(files)

    def configuration() -> Any:
        contents = followed.contents
        pairs = [(contents.key, contents.cert)]
        return grpc.ssl_server_certificate_configuration(pairs, contents.ca if peers else None)

    def changed() -> Any:
        return configuration() if followed.look() else None

    return grpc.dynamic_ssl_server_credentials(configuration(), changed, require_client_authentication=peers)


class ChannelCredentials:
    """Credentials of the channels of one node or operator. Thread-safe."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises OSError, ValueError."""
        self._followed = _Followed(files)
        self._expiries: tuple[TlsContents, dict[str, float]] | None = None

    @property
    def generation(self) -> int:
        """Number of changes of the files so far."""
        self._followed.look()
        return self._followed.generation

    def expiries_s(self) -> dict[str, float]:
        """Return when the certificate and the CA end, in seconds since 1970; nothing without `cryptography`."""
        self._followed.look()
        contents = self._followed.contents
        if self._expiries is None or self._expiries[0] != contents:
            ends = {"certificate": ends_s(contents.cert), "ca": ends_s(contents.ca)}
            self._expiries = contents, {name: end for name, end in ends.items() if end is not None}
        return self._expiries[1]

    def current(self) -> grpc.ChannelCredentials:
        self._followed.look()
        contents = self._followed.contents
        return grpc.ssl_channel_credentials(contents.ca, contents.key, contents.cert)


def ends_s(pem: bytes) -> float | None:
    """Return when the first certificate ends, in seconds since 1970; None without `cryptography`."""
    try:
        from cryptography import x509
    except ImportError:
        return None
    return x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()


class TlsContents(NamedTuple):
    """Contents of the three files."""

    cert: bytes
    key: bytes
    ca: bytes


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of the three files."""

    cert_file: str
    key_file: str
    ca_file: str

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Return a value that changes when one of the files does. Raises OSError."""
        stats = [os.stat(path) for path in (self.cert_file, self.key_file, self.ca_file)]
        return tuple((stat.st_mtime_ns, stat.st_ino, stat.st_size) for stat in stats)

    def read(self) -> TlsContents:
        """Read the files, and check that they belong together. Files that change meanwhile are read again.

        Raises OSError, and ValueError with the file that is not usable.
        """
        while True:
            stamp, contents = self.stamp(), self._read()
            if self.stamp() == stamp:
                return contents

    def _read(self) -> TlsContents:
        contents = TlsContents(*(trusted_bytes(Path(path)) for path in (self.cert_file, self.key_file, self.ca_file)))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.cert_file, self.key_file, password=_no_password)
        except (ssl.SSLError, _Encrypted) as error:
            raise ValueError(
                f"cert_file={self.cert_file}, key_file={self.key_file}: need a certificate in PEM and its own "
                f"unencrypted key ({error})"
            ) from error
        try:
            context.load_verify_locations(self.ca_file)
        except ssl.SSLError as error:
            raise ValueError(f"ca_file={self.ca_file}: need certificates in PEM ({error})") from error
        return contents


class _Encrypted(Exception):
    pass


def _no_password() -> str:
    raise _Encrypted("the key has a password")
