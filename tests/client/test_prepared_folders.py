"""Folders that another user has prepared, where a node on demand, an identity or a cluster is to be: this user writes,
reads and sends nothing there."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest

from ais_loader import connect, errors
from ais_loader.version import __version__
from ais_loader.wire.node_folder import NodeAddress, NodeFolder, OwnFolder, host_id, unix_endpoint
from storage_node.ops import ray_head
from storage_node.security.identity.identity_folder import IdentityFolder

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make folders of another user")
OTHER = 65534


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A file of this user that nobody may change."""
    path = tmp_path / "kept"
    path.write_bytes(b"precious")
    return path


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    """A drive of this user in which others may have made things."""
    folder = tmp_path / "cache"
    (folder / "node").mkdir(parents=True)
    return folder


def of_other(path: Path) -> Path:
    os.chown(path, OTHER, OTHER, follow_symlinks=False)
    return path


@pytest.mark.parametrize("name", ["pid", "log", "address", "address.new"])
@pytest.mark.parametrize("make", [os.symlink, os.link])
def test_a_link_in_the_node_folder_is_not_followed(
    drive: Path, kept: Path, name: str, make: Callable[[Path, Path], None]
) -> None:
    make(kept, drive / "node" / name)
    folder = NodeFolder([drive])
    with suppress(OSError):
        lock = folder.lock()
        assert lock is not None
        try:
            os.close(folder.open_log(0))
            folder.address()
            folder.publish(lock, NodeAddress("127.0.0.1:1", os.getpid(), __version__, host_id()))
            assert name == "address.new"  # a name that is made anew each time
        finally:
            os.close(lock)
    assert kept.read_bytes() == b"precious" and (drive / "node").stat().st_mode & 0o022 == 0


@pytest.mark.parametrize("where", ["", "node", "node/pid", "node/log"])
def test_a_drive_or_node_folder_of_another_user_is_refused(drive: Path, where: str) -> None:
    if not (drive / where).exists():
        (drive / where).touch()
    of_other(drive / where)
    with pytest.raises(errors.DriveFailed, match=f"{drive / where}: it belongs to user {OTHER}, and this process"):
        connect(f"node://{drive}")
    assert not list(drive.glob("*.json"))


def test_the_node_folder_may_not_be_a_link(tmp_path: Path, drive: Path) -> None:
    (drive / "node").rename(tmp_path / "elsewhere")
    (drive / "node").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(errors.DriveFailed, match=r"cache/node: Not a directory"):
        connect(f"node://{drive}")
    assert os.listdir(tmp_path / "elsewhere") == []


def test_no_token_is_sent_to_a_process_of_another_user(drive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIS_LOADER_TOKEN", "the-token")
    lock = NodeFolder([drive]).lock()  # a node seems to run
    assert lock is not None
    path = drive / "node" / "socket.1"
    written = drive / "node" / "address"
    address = NodeAddress(unix_endpoint(path), os.getpid(), __version__, host_id())
    written.write_text(json.dumps(asdict(address)))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        script = "import os, socket, sys; os.setuid(int(sys.argv[2])); socket.socket(fileno=int(sys.argv[1])).listen()"
        for user in (0, OTHER):  # whoever calls listen() is the peer
            command = [sys.executable, "-c", script, str(listener.fileno()), str(user)]
            subprocess.run(command, pass_fds=[listener.fileno()], check=True)
            if user == 0:
                assert NodeFolder([drive]).address() == address
                listener.accept()[0].close()
        with pytest.raises(errors.DriveFailed, match=f"user {OTHER} listens there"):
            connect(f"node://{drive}")
        with listener.accept()[0] as probe:
            assert probe.recv(1 << 16) == b""
        of_other(written)
        with pytest.raises(errors.DriveFailed, match=r"address: it belongs to user"):
            connect(f"node://{drive}")
    os.close(lock)


def test_others_can_no_longer_write_to_an_own_folder(drive: Path) -> None:
    drive.chmod(0o777)
    with OwnFolder(drive):
        assert drive.stat().st_mode & 0o777 == 0o755


def test_an_identity_folder_is_this_users(tmp_path: Path, kept: Path) -> None:
    pytest.importorskip("cryptography")
    prepared = tmp_path / ".ais-loader-identity"
    prepared.mkdir()
    (prepared / ".lock").symlink_to(kept)
    with pytest.raises(OSError, match=r"\.lock"):
        IdentityFolder(prepared).make()
    (prepared / ".lock").unlink()
    of_other(prepared)
    with pytest.raises(PermissionError, match=f"it belongs to user {OTHER}"):
        IdentityFolder(prepared).make()
    assert kept.read_bytes() == b"precious" and os.listdir(prepared) == []


def test_the_folder_of_a_cluster_is_this_users(tmp_path: Path) -> None:
    folder = tmp_path / ray_head.FOLDER_NAME
    folder.mkdir()
    (folder / "ray.json").write_text(json.dumps({"address": "127.0.0.1:1"}))
    of_other(folder)
    with pytest.raises(PermissionError, match=f"it belongs to user {OTHER}"), ray_head.only_command(tmp_path):
        pass
    assert ray_head.remembered(tmp_path) is None
