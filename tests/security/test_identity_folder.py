"""A cluster's CA and what it issues: who may read the files, what certificates contain, and when they are renewed."""

from __future__ import annotations

import asyncio
import datetime
import re
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from ais_loader.errors import StoreError
from ais_loader.extras import MissingExtra
from ais_loader.testing import eventually
from storage_node.security.identity import identity_folder, node_tls
from storage_node.security.identity.certified import OPERATOR_URI, node_uri
from storage_node.security.identity.credentials import TlsFiles
from storage_node.security.identity.identity_folder import IdentityFolder, is_due, reachable_as
from storage_node.settings.config import ServerConfig
from tests.security.tls_kit import HOUR, forged

UUID = bytes(range(16))


def names_in(path: str) -> set[str]:
    certificate = x509.load_pem_x509_certificate(Path(path).read_bytes())
    return {
        str(name.value) for name in certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    }


def test_only_their_owner_may_read_the_files(identity: IdentityFolder) -> None:
    identity.node_files(UUID, ["10.0.0.5"])
    assert stat.S_IMODE(identity.path.stat().st_mode) == 0o700
    of_node = f"node-{UUID.hex()}"
    names = {".lock", *(f"{one}{end}" for one in ("ca", "operator", of_node) for end in (".pem", "-key.pem"))}
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in identity.path.iterdir()}
    assert modes == dict.fromkeys(names, 0o600)


def test_a_certificate_names_its_node_and_the_hosts_of_its_listeners(identity: IdentityFolder) -> None:
    files = identity.node_files(UUID, ["10.0.0.5", "[::1]", "node-1.example.org"])
    expected = {node_uri(UUID), "10.0.0.5", "::1", "node-1.example.org", "localhost", "127.0.0.1"}
    assert names_in(files.cert_file) == expected
    assert names_in(identity.operator_files().cert_file) == {OPERATOR_URI}
    files.read()  # the pair fits


def test_every_address_stands_for_those_of_this_machine() -> None:
    assert {"localhost", "127.0.0.1"} < set(reachable_as(["0.0.0.0"]))
    assert "0.0.0.0" not in reachable_as(["0.0.0.0"])


def test_what_holds_is_kept_and_what_lacks_a_host_is_renewed(identity: IdentityFolder) -> None:
    first = Path(identity.node_files(UUID, ["10.0.0.5"]).cert_file).read_bytes()
    identity.make()
    assert Path(identity.node_files(UUID, ["10.0.0.5"]).cert_file).read_bytes() == first
    assert Path(identity.node_files(UUID, ["10.0.0.6"]).cert_file).read_bytes() != first


def test_a_certificate_is_renewed_when_a_third_of_its_time_is_left(tmp_path: Path, identity: IdentityFolder) -> None:
    def due(begins: int, ends: int) -> bool:
        files = forged(tmp_path / "forged", identity, "x:y", begins_in=begins * HOUR, ends_in=ends * HOUR)
        return is_due(Path(files.cert_file), identity.ca_file, ["127.0.0.1"])

    assert not due(-60, 40)
    assert due(-70, 30)
    assert due(-70, -1)


def test_a_certificate_of_a_former_ca_is_renewed(tmp_path: Path, identity: IdentityFolder) -> None:
    other = IdentityFolder(tmp_path / "other")
    other.make()
    files = identity.node_files(UUID, [])
    assert is_due(Path(files.cert_file), other.ca_file, [])


def test_without_the_key_of_the_ca_the_files_stay_as_they_are(tmp_path: Path, identity: IdentityFolder) -> None:
    files = identity.node_files(UUID, ["10.0.0.5"])
    before = Path(files.cert_file).read_bytes()
    (identity.path / "ca-key.pem").unlink()
    assert identity.node_files(UUID, ["10.0.0.6"]) == files
    assert Path(files.cert_file).read_bytes() == before
    with pytest.raises(StoreError, match=r"ca-key\.pem"):
        identity.node_files(bytes(16), [])


def test_a_damaged_ca_is_an_error_that_names_its_folder(identity: IdentityFolder) -> None:
    (identity.path / "ca-key.pem").write_text("nonsense")
    with pytest.raises(StoreError, match=re.escape(str(identity.path))):
        identity.node_files(UUID, [])


def test_files_that_do_not_fit_are_errors_that_name_them(tmp_path: Path, identity: IdentityFolder) -> None:
    node, operator = identity.node_files(UUID, []), identity.operator_files()
    with pytest.raises(ValueError, match="its own"):
        TlsFiles(node.cert_file, operator.key_file, node.ca_file).read()
    shutil.copy(node.key_file, tmp_path / "no-certificates.pem")
    with pytest.raises(ValueError, match=r"ca_file=.*no-certificates\.pem"):
        TlsFiles(node.cert_file, node.key_file, str(tmp_path / "no-certificates.pem")).read()
    with pytest.raises(FileNotFoundError):
        TlsFiles(node.cert_file, str(tmp_path / "missing"), node.ca_file).read()


def test_without_the_library_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cryptography", None)
    with pytest.raises(MissingExtra, match=r"secure"):
        IdentityFolder(tmp_path / "identity").make()


def test_the_time_of_a_certificate_is_that_of_its_ca_at_most(identity: IdentityFolder) -> None:
    files = identity.node_files(UUID, [])
    certificate = x509.load_pem_x509_certificate(Path(files.cert_file).read_bytes())
    now = datetime.datetime.now(datetime.UTC)
    assert certificate.not_valid_before_utc < now
    assert certificate.not_valid_after_utc - now > datetime.timedelta(days=364)
    assert identity_folder.RENEW_BEFORE < 1


def test_a_folder_without_some_of_its_files_says_which(identity: IdentityFolder) -> None:
    (identity.path / "operator-key.pem").unlink()
    identity.make()  # issued again
    assert identity.operator_files().read()
    key = (identity.path / "ca-key.pem").rename(identity.path / "kept")
    identity.make()
    (identity.path / "operator.pem").unlink()
    with pytest.raises(StoreError, match=r"no ca-key\.pem to issue operator\.pem"):
        identity.make()
    key.rename(identity.path / "ca-key.pem")
    identity.make()
    identity.ca_file.unlink()
    with pytest.raises(StoreError, match=r"ca\.pem is missing"):
        identity.make()


def test_a_key_of_the_ca_with_a_password_ends_no_renewals(
    identity: IdentityFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_path = identity.path / "ca-key.pem"
    plain, before = key_path.read_bytes(), Path(identity.node_files(UUID, ["10.0.0.5"]).cert_file)
    first, failures = before.read_bytes(), list[Any]()
    key_path.write_bytes(
        load_pem_private_key(plain, None).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
        )
    )
    with pytest.raises(StoreError, match=re.escape(str(identity.path))):
        identity.node_files(UUID, ["10.0.0.6"])
    monkeypatch.setattr(node_tls, "LOOK_INTERVAL_S", 0.01)
    monkeypatch.setattr(node_tls.log, "warning", lambda *arguments: failures.append(arguments))

    async def renew() -> None:
        renewal = node_tls.Renewal(ServerConfig(host="10.0.0.6"), identity.path, UUID)
        renewal.start()
        await asyncio.to_thread(eventually, lambda: len(failures) > 1)
        key_path.write_bytes(plain)
        await asyncio.to_thread(eventually, lambda: before.read_bytes() != first)
        await renewal.stop()

    asyncio.run(renew())
    assert "10.0.0.6" in names_in(str(before))
