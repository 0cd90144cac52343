"""Files from which nodes take trust: one that others can change, or replace, is not used."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from ais_loader.errors import RemoteDenied
from ais_loader.integrations.gateway.clients import read_keys
from ais_loader.integrations.gateway.server.certificate import Certificate
from ais_loader.wire.remote import Remote
from storage_node.context.channels import make_secret, read_secret
from storage_node.ops import settings_store
from storage_node.remote.drivers.credentials import credentials_of
from storage_node.security.identity.identity_folder import IdentityFolder
from storage_node.security.rights.keys import make_key, read_public_keys
from storage_node.settings.sources import read_file
from storage_node.store.permissions import require_trusted

OTHER = 65534
Use = Callable[[], object]


def _public_keys(folder: Path) -> tuple[Path, Use]:
    path = make_key(folder / "token.key")
    return path, lambda: read_public_keys(path)


def _certificate(folder: Path, name: str) -> tuple[Path, Use]:
    identity = IdentityFolder(folder)
    identity.make()
    files = identity.operator_files()
    return folder / name, files.read


def _of_gateway(folder: Path) -> tuple[Path, Use]:
    path, _ = _certificate(folder, "operator.pem")
    return path, lambda: Certificate(str(path), str(folder / "operator-key.pem"))


def _settings(folder: Path) -> tuple[Path, Use]:
    path = folder / "settings.toml"
    path.write_text("token_key_file = '/a'\n")
    return path, lambda: read_file(path)


def _settings_of_cluster(folder: Path) -> tuple[Path, Use]:
    settings_store.write(folder, settings_store.KeptSettings(1, {}))
    return settings_store.path_of(folder), lambda: settings_store.read(folder)


def _peer_secret(folder: Path) -> tuple[Path, Use]:
    make_secret(folder / "peer-secret")
    return folder / "peer-secret", lambda: read_secret(folder / "peer-secret")


def _profiles(folder: Path) -> tuple[Path, Use]:
    path = folder / "profiles.toml"
    path.touch(0o600)
    path.write_text("[p]\nanonymous = true\n")
    return path, lambda: credentials_of(Remote("s3://b", profile="p"), path)


def _access_keys(folder: Path) -> tuple[Path, Use]:
    path = folder / "keys.json"
    path.touch(0o600)
    path.write_text(json.dumps([{"access_key": "a", "secret_key": "b"}]))
    return path, lambda: read_keys(path)


def _interpreter(folder: Path) -> tuple[Path, Use]:
    path = folder / "python"
    path.touch(0o755)
    return path, lambda: require_trusted(path)


KINDS: dict[str, Callable[[Path], tuple[Path, Use]]] = {
    "public keys": _public_keys,
    "certificate": lambda folder: _certificate(folder, "operator.pem"),
    "key": lambda folder: _certificate(folder, "operator-key.pem"),
    "ca": lambda folder: _certificate(folder, "ca.pem"),
    "certificate of a gateway": _of_gateway,
    "settings": _settings,
    "settings of a cluster": _settings_of_cluster,
    "peer secret": _peer_secret,
    "profiles": _profiles,
    "access keys": _access_keys,
    "interpreter": _interpreter,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_others_can_change_is_not_used(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(0o700)
    path, use = KINDS[kind](folder)
    use()
    refused = (PermissionError, RemoteDenied, ValueError)
    for changed, mode in ((path, 0o020), (path, 0o002), (path.parent, 0o020), (path.parent, 0o002)):
        before = changed.stat().st_mode & 0o7777
        changed.chmod(before | mode)
        with pytest.raises(refused, match=r"which (lets|gives) other users"):
            use()
        changed.chmod(before)
    path.parent.chmod(0o1777)  # as /tmp: only owners replace their files
    use()
    path.parent.chmod(0o700)
    if os.geteuid() == 0:
        for changed in (path, path.parent):
            os.chown(changed, OTHER, OTHER)
            with pytest.raises((PermissionError, RemoteDenied), match=f"belongs to user {OTHER}"):
                use()
            os.chown(changed, 0, 0)
        real = path.rename(tmp_path / "real")  # a link of another user, who can let it lead elsewhere
        path.symlink_to(real)
        use()
        os.chown(path, OTHER, OTHER, follow_symlinks=False)
        with pytest.raises((PermissionError, RemoteDenied), match=f"belongs to user {OTHER}"):
            use()


def test_a_pipe_of_a_shell_has_no_folder() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"memory_bytes = 1000000\n")
    os.close(writing)
    assert read_file(Path(f"/dev/fd/{reading}")) == {"memory_bytes": 1_000_000}
    os.close(reading)


def test_a_public_key_is_made_without_writers(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        public = make_key(tmp_path / "token.key")
    finally:
        os.umask(before)
    assert public.stat().st_mode & 0o777 == 0o644


def test_a_renewed_certificate_that_others_can_change_is_not_taken(tmp_path: Path) -> None:
    path, _ = _of_gateway(tmp_path)
    certificate = Certificate(str(path), str(tmp_path / "operator-key.pem"))
    context: ssl.SSLContext = certificate.context
    path.chmod(0o666)
    certificate.look()  # which logs it
    assert certificate.context is context
