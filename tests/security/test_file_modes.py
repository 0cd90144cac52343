"""Modes of what nodes, operators and commands write, whatever the umask is, and what `doctor` says of open files."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from ais_loader import connect
from ais_loader.cli.main import main
from ais_loader.testing.node import NodeProcess
from storage_node.security.identity.identity_folder import IdentityFolder
from tests.cluster.operator_kit import operating

WITHOUT_UMASK = ("/bin/sh", "-c", 'umask 0; exec "$@"', "sh")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def open_to_others(folder: Path) -> dict[str, str]:
    found = {}
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent), *(Path(parent) / name for name in (*folders, *files))):
            with contextlib.suppress(FileNotFoundError):  # a node removes files meanwhile
                if mode(path) & 0o077 and not path.is_symlink():
                    found[str(path.relative_to(folder.parent))] = oct(mode(path))
    return found


def doubled() -> Callable[[bytes], bytes]:
    return lambda data: bytes(data) * 2


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.slow
def test_a_node_without_a_umask_opens_nothing_to_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with (
        NodeProcess(
            tmp_path / "new" / "drive",
            arguments=["--etl-code"],
            identity=tmp_path / "identity",
            own_secret=True,
            launcher=WITHOUT_UMASK,
        ) as node,
        connect(node.url, ca=node.ca_file) as client,
    ):
        bucket = client.create_bucket("b")
        bucket.put("small", b"bytes")
        bucket.put("large", bytes(3 << 20))
        client.etl.init("doubled", doubled())
        assert bytes(bucket.get("small", etl="doubled")) == b"bytesbytes"
        record = tmp_path / "new" / "drive" / "record.json"
        written = [json.loads(json.loads(line)["record"]) for line in record.read_bytes().splitlines()]
        pickled = base64.b64decode(next(one["etl"] for one in reversed(written) if "etl" in one))
        assert b"doubled" in pickled and mode(record) == 0o600
        assert open_to_others(tmp_path) == {}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_cluster_whose_ray_has_no_umask_opens_nothing_to_others() -> None:
    with operating() as operator:
        operator.umask = 0
        said = operator.json("up", "--nodes", "2", "--no-dashboard", "--secure", "--etl-code")
        with connect(said["url"], ca=said["ca_file"]) as client:
            bucket = client.create_bucket("b", copies=2)
            bucket.put_many((f"{number}", b"bytes" * number) for number in range(100))
            client.etl.init("doubled", doubled())
            assert bytes(bucket.get("1", etl="doubled")) == b"bytesbytes"
        operator.run("up", "--set", "memory_bytes=1GiB")
        operator.json("add")
        assert len(list(operator.root.rglob("cluster.json"))) == 3  # with the pickled function
        assert open_to_others(operator.root) == {}
        done = CliRunner().invoke(main, ["doctor", str(operator.root)])
        assert done.exit_code == 0 and "closed to other users" in done.output, done.output


def test_doctor_names_and_closes_what_is_open_in_an_identity_folder(identity: IdentityFolder) -> None:
    key = identity.path / "ca-key.pem"
    key.chmod(0o644)
    identity.path.chmod(0o755)
    found = json.loads(CliRunner().invoke(main, ["doctor", str(identity.path), "--json"]).output)
    assert {(one["path"], one["kind"]) for one in found["findings"]} == {
        ("", "open-permissions"),
        ("ca-key.pem", "open-permissions"),
    }
    assert not found["healthy"]
    shown = CliRunner().invoke(main, ["doctor", str(identity.path)]).output
    assert "its mode is 0644" in shown and "0600 closes it" in shown and "ca-key.pem" in shown
    assert mode(key) == 0o644
    assert "closed to them" in CliRunner().invoke(main, ["doctor", str(identity.path), "--repair"]).output
    assert (mode(key), mode(identity.path)) == (0o600, 0o700)
    assert json.loads(CliRunner().invoke(main, ["doctor", str(identity.path), "--json"]).output)["healthy"]


def test_doctor_checks_nothing_else_in_an_identity_folder(tmp_path: Path, identity: IdentityFolder) -> None:
    for arguments in ([str(identity.path), "--checksums"], [str(identity.path), str(tmp_path / "drive")]):
        done = CliRunner().invoke(main, ["doctor", *arguments])
        assert done.exit_code == 2 and "is no drive" in done.output


def test_doctor_names_and_closes_files_of_a_store(tmp_path: Path) -> None:
    drive = tmp_path / "drive"
    with connect(str(drive)) as client:
        client.create_bucket("b").put("large", bytes(3 << 20))
    (drive / "record.json").chmod(0o640)
    (drive / "objects").chmod(0o711)
    done = CliRunner().invoke(main, ["doctor", str(drive), "--json"])
    findings = {one["path"]: one["message"] for one in json.loads(done.output)["findings"]}
    assert set(findings) == {"record.json", "objects"}
    assert "0640" in findings["record.json"] and "0600" in findings["record.json"]
    assert "0711" in findings["objects"] and "0700" in findings["objects"]
    assert CliRunner().invoke(main, ["doctor", str(drive), "--repair"]).exit_code == 0
    assert (mode(drive / "record.json"), mode(drive / "objects")) == (0o600, 0o700)


def test_downloads_have_the_umask_of_the_user(tmp_path: Path) -> None:
    with connect(str(tmp_path / "drive")) as client:
        client.create_bucket("b").put("folder/a", b"bytes")
    before = os.umask(0o027)
    try:
        arguments = ["get", "-r", "b", str(tmp_path / "copies"), "--store", str(tmp_path / "drive")]
        assert CliRunner().invoke(main, arguments).exit_code == 0
    finally:
        os.umask(before)
    assert mode(tmp_path / "copies" / "folder" / "a") == 0o640
    assert mode(tmp_path / "copies" / "folder") == 0o750


def test_tokens_and_keys_are_their_owners_alone(tmp_path: Path, no_umask: None) -> None:
    folder = tmp_path / "keys"
    folder.mkdir(0o700)
    key, made = str(folder / "key"), str(folder / "token")
    claims = ["--tenant", "a", "--scope", "b:read", "--expires", "1h", "--audience", "somewhere"]
    for arguments in (["token", "key", key], ["token", "create", "--key", key, *claims, "--output", made]):
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.output
    assert set(open_to_others(folder)) <= {"keys/key.pub"}  # the public key
