"""Private certificate authority of a cluster, and the certificates that it issues.

Keys are on the curve P-256, which every TLS library accepts. They are made on the machine that uses them, in files that
only their owner may read.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ais_loader.errors import StoreError
from ais_loader.extras import needs
from storage_node.store.files.growing_file import write_atomically
from storage_node.store.permissions import FOLDER_MODE

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

CA_FILE_NAME, CA_KEY_FILE_NAME = "ca.pem", "ca-key.pem"
CA_DAYS = 3650
CERTIFICATE_DAYS = 365
_SKEW = datetime.timedelta(minutes=5)
"""A certificate is valid this long before it is issued, for machines whose clocks are behind."""


class CertificateAuthority:
    """The CA in a folder, which needs `cryptography`. Raises MissingExtra without it."""

    def __init__(self, folder: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.folder = folder
        self._certificate, self._key = certificate, key

    @classmethod
    def made(cls, folder: Path) -> CertificateAuthority:
        """Open the CA in a folder, or make it if there is none. Raises OSError, StoreError."""
        with needs("cryptography", "--secure"):
            from cryptography import x509
        if (folder / CA_FILE_NAME).exists():
            return cls.opened(folder)
        issued = sorted(path.name for path in folder.glob("*.pem") if path.name != CA_KEY_FILE_NAME)
        if issued and (folder / CA_KEY_FILE_NAME).exists():
            raise StoreError(
                f"{folder}: {CA_FILE_NAME} is missing, and there are certificates ({issued[0]}): copy it from another "
                f"machine or a client. To begin with another CA, which all clients need then, remove {CA_KEY_FILE_NAME}"
            )
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        os.chmod(folder, FOLDER_MODE)
        key = _new_key()
        now = datetime.datetime.now(datetime.UTC)
        name = _named(f"ais-loader CA {os.urandom(4).hex()}")
        certificate = (
            _builder(name, name, key.public_key(), now - _SKEW, now + datetime.timedelta(days=CA_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, _sha256())
        )
        write_atomically(folder / CA_KEY_FILE_NAME, _key_pem(key))
        write_atomically(folder / CA_FILE_NAME, _pem(certificate))
        return cls(folder, certificate, key)

    @classmethod
    def opened(cls, folder: Path) -> CertificateAuthority:
        """Open the CA in a folder, the first in its file. Raises OSError, and StoreError if its files are damaged."""
        with needs("cryptography", "--secure"):
            from cryptography import x509
            from cryptography.hazmat.primitives.serialization import load_pem_private_key
        key_path = folder / CA_KEY_FILE_NAME
        try:
            certificate = x509.load_pem_x509_certificate((folder / CA_FILE_NAME).read_bytes())
            key: Any = load_pem_private_key(key_path.read_bytes(), None)
        except (ValueError, TypeError) as error:  # TypeError: the key has a password
            raise StoreError(f"{folder}: the files of its CA cannot be read: {error}") from error
        if key.public_key() != certificate.public_key():
            raise StoreError(f"{folder}: {CA_KEY_FILE_NAME} is not the key of the first certificate in {CA_FILE_NAME}")
        return cls(folder, certificate, key)

    def issue(self, cert_path: Path, key_path: Path, uri: str, hosts: Iterable[str] = ()) -> None:
        """Make a key and a certificate for it. Raises OSError.

        Args:
            uri: the name of the node or operator, see `names`.
            hosts: names and addresses at which clients and peers reach the node.
        """
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = _new_key()
        now = datetime.datetime.now(datetime.UTC)
        ends = min(now + datetime.timedelta(days=CERTIFICATE_DAYS), self._certificate.not_valid_after_utc)
        names = [x509.UniformResourceIdentifier(uri), *map(_host_name, sorted(set(hosts)))]
        certificate = (
            _builder(_named(uri), self._certificate.subject, key.public_key(), now - _SKEW, ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]),
                critical=False,
            )
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, _sha256())
        )
        # The key comes first: whoever reads in between finds a pair that does not fit, and keeps its former one.
        write_atomically(key_path, _key_pem(key))
        write_atomically(cert_path, _pem(certificate))


def _new_key() -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _sha256() -> Any:
    from cryptography.hazmat.primitives import hashes

    return hashes.SHA256()


def _named(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Any, begins: datetime.datetime, ends: datetime.datetime
) -> x509.CertificateBuilder:
    from cryptography import x509

    return x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number(), begins, ends)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _host_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return x509.DNSName(host.encode("idna").decode())


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
