"""Identity folder of a cluster, or of the nodes of one machine: its CA, and what that has issued.

    ca.pem, ca-key.pem                      the CA; clients need ca.pem alone
    operator.pem, operator-key.pem          for the commands of operators
    node-UUID.pem, node-UUID-key.pem        of each node that has started here

A node's certificate is issued where the node starts, and renewed there, which takes the CA's key. Without that key, as
on a machine to which only a node's own files were copied, the files that are there are used as they are.
"""

from __future__ import annotations

import datetime
import fcntl
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ais_loader.errors import StoreError
from ais_loader.extras import needs
from ais_loader.wire.node_folder import OwnFolder
from storage_node.security.identity.authority import CA_FILE_NAME, CA_KEY_FILE_NAME, CertificateAuthority
from storage_node.security.identity.certified import OPERATOR_URI, node_uri
from storage_node.security.identity.credentials import TlsFiles

RENEW_BEFORE = 1 / 3
"""A certificate is renewed when this share of its time is left."""


class IdentityFolder:
    """Identity folder at a path, which may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def exists(self) -> bool:
        return (self.path / CA_FILE_NAME).exists()

    @property
    def ca_file(self) -> Path:
        return self.path / CA_FILE_NAME

    def make(self) -> None:
        """Make the CA and an operator's certificate, unless they exist. Raises MissingExtra, OSError, StoreError."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked():
            if not self.exists or self._has_ca_key:
                CertificateAuthority.made(self.path)
            self._renew(self.operator_files(), OPERATOR_URI, ())

    def operator_files(self) -> TlsFiles:
        return self._files("operator")

    def node_files(self, uuid: bytes, hosts: Iterable[str]) -> TlsFiles:
        """Return the files of a node; its certificate is issued or renewed if that is necessary and possible.

        Args:
            hosts: names and addresses at which clients and peers reach the node.

        Raises MissingExtra, OSError, StoreError.
        """
        files = self._files(f"node-{uuid.hex()}")
        with self._locked():
            self._renew(files, node_uri(uuid), reachable_as(hosts))
        return files

    def _files(self, name: str) -> TlsFiles:
        return TlsFiles(str(self.path / f"{name}.pem"), str(self.path / f"{name}-key.pem"), str(self.ca_file))

    def _renew(self, files: TlsFiles, uri: str, hosts: Iterable[str]) -> None:
        cert_path, key_path = Path(files.cert_file), Path(files.key_file)
        is_whole = cert_path.exists() and key_path.exists()
        if is_whole and (not self._has_ca_key or not is_due(cert_path, self.ca_file, hosts)):
            return
        if not self._has_ca_key:
            raise StoreError(
                f"{self.path}: there is no {CA_KEY_FILE_NAME} to issue {cert_path.name} and {key_path.name} with: copy "
                "all three from the machine that has it, or these two"
            )
        CertificateAuthority.opened(self.path).issue(cert_path, key_path, uri, hosts)

    @property
    def _has_ca_key(self) -> bool:
        return (self.path / CA_KEY_FILE_NAME).exists()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Context in which no other process issues certificates here."""
        with OwnFolder(self.path) as folder, open(folder.open(".lock", os.O_WRONLY | os.O_CREAT), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def is_due(cert_path: Path, ca_path: Path, hosts: Iterable[str]) -> bool:
    """Whether a certificate ends soon, lacks one of these hosts, or is of another CA. Raises OSError."""
    with needs("cryptography", "--secure"):
        from cryptography import x509
        from cryptography.exceptions import InvalidSignature
    try:
        certificate = x509.load_pem_x509_certificate(cert_path.read_bytes())
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(ca_path.read_bytes()))
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return True
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    left = (ends - datetime.datetime.now(datetime.UTC)) / (ends - begins)
    has = {str(name.value).lower() for name in names}
    return left < RENEW_BEFORE or any(host.strip("[]").lower() not in has for host in hosts)


def reachable_as(hosts: Iterable[str]) -> list[str]:
    """Return these hosts, and the names and addresses of this machine if one of them is every address."""
    names = {"localhost", "127.0.0.1"}
    for host in hosts:
        bare = host.strip("[]")
        if bare in ("0.0.0.0", "::"):
            names |= {socket.gethostname(), *_own_addresses()}
        elif bare:
            names.add(bare)
    return sorted(names)


def _own_addresses() -> set[str]:
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {str(address[0]).partition("%")[0] for *_, address in found}


def default_folder(first_drive: str | os.PathLike[str]) -> Path:
    """Return the identity folder of a node that is given none: beside its first drive."""
    return Path(first_drive).absolute().parent / ".ais-loader-identity"
