"""Renewals of the gateway's certificate that do not succeed at once."""

from __future__ import annotations

import errno
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from ais_loader.integrations.gateway.server.certificate import Certificate
from storage_node.security.identity.credentials import TlsFiles
from storage_node.security.identity.identity_folder import IdentityFolder
from tests.gateway.conftest import Served
from tests.gateway.gateway_thread import GatewayThread

UUID = bytes(16)
LOOK = """
import sys
from ais_loader.integrations.gateway.server.certificate import Certificate
try:
    Certificate(*sys.argv[1:])
except OSError as error:
    print(type(error).__name__)
"""


@pytest.fixture
def identity(tmp_path: Path) -> IdentityFolder:
    identity = IdentityFolder(tmp_path / "identity")
    identity.make()
    return identity


def shown(gateway: GatewayThread) -> str:
    return ssl.get_server_certificate(("127.0.0.1", gateway.port), timeout=180)


def test_files_that_could_not_be_read_for_a_while_are_taken(
    served: Served, identity: IdentityFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = identity.node_files(UUID, ["127.0.0.1"])
    certificate = Certificate(files.cert_file, files.key_file)
    with GatewayThread(served.clients, None, certificate=certificate) as gateway:
        before = shown(gateway)
        with monkeypatch.context() as patch:

            def out_of_descriptors(*_: object, **__: object) -> None:
                raise OSError(errno.EMFILE, "Too many open files")

            patch.setattr(ssl.SSLContext, "load_cert_chain", out_of_descriptors)
            renewed = identity.node_files(UUID, ["127.0.0.1", "10.0.0.5"])
            certificate.look()
        certificate.look()
        assert shown(gateway) == Path(renewed.cert_file).read_text() != before


def test_nobody_is_asked_for_the_password_of_a_key(identity: IdentityFolder) -> None:
    files: TlsFiles = identity.node_files(UUID, [])
    path = Path(files.key_file)
    key = load_pem_private_key(path.read_bytes(), None)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    command = [sys.executable, "-c", LOOK, files.cert_file, files.key_file]
    # The standard input stays open, and nothing comes: in a session of its own, OpenSSL would read there.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.wait(180) == 0
            assert process.stdout.read() == "SSLError\n"
        finally:
            process.kill()
