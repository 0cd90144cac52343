"""Files of a TLS identity: a certificate with its chain, the key, and the CA that vouches for others; all in PEM."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from storage_node.store.permissions import trusted_bytes


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
        """Read the files, and check that they belong together.

        Raises OSError, and ValueError with the file that is not usable.
        """
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
