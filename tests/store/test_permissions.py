"""Files and folders of a store, as other users of the machine find them."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from click.testing import CliRunner

from ais_loader import connect
from ais_loader.cli.main import main
from ais_loader.testing.node import NodeProcess
from storage_node.store.fsck.fsck import check, repair
from storage_node.store.store import Store

ATTACK = """
import os, sys
os.setgroups([]), os.setgid(65534), os.setuid(65534)
found = []
for folder, folders, files in os.walk(sys.argv[1], onerror=lambda error: None):
    for name in files:
        try:
            with open(os.path.join(folder, name), "rb") as file:
                file.read(1)
            found.append(os.path.join(folder, name))
        except OSError:
            pass
for path in sys.argv[2:]:
    try:
        os.close(os.open(path, os.O_RDONLY))
        found.append(path)
    except OSError:
        pass
print("\\n".join(found))
"""


@pytest.fixture
def public(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that every user may open, and a process with the usual umask."""
    folder = Path("/tmp") / f"ais-loader-permissions-{os.getpid()}-{os.urandom(4).hex()}"
    before = os.umask(0o022)
    folder.mkdir()
    try:
        yield folder
    finally:
        os.umask(before)
        shutil.rmtree(folder)


def read_by_nobody(folder: Path) -> list[str]:
    """Files below a folder that a process of the user nobody can open; it knows all their names."""
    names = [str(path) for path in folder.rglob("*") if path.is_file()]
    ran = subprocess.run(
        ["/usr/bin/python3", "-c", ATTACK, str(folder), *names], capture_output=True, text=True, check=True
    )
    return ran.stdout.split()


def filled(url: str) -> None:
    tar = BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        member = tarfile.TarInfo("a")
        member.size = 5
        archive.addfile(member, BytesIO(b"bytes"))
    with connect(url) as client:
        bucket = client.create_bucket("secret")
        bucket.put("large", bytes(3 << 20))
        bucket.put_many([(f"{number:03d}", b"bytes" * number) for number in range(100)])
        bucket.put("a.tar", tar.getvalue())
        assert bucket.get("a.tar", member="a") == b"bytes"


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")


@needs_root
@pytest.mark.slow
def test_another_user_reads_nothing_of_a_store(public: Path) -> None:
    (public / "mounted").mkdir()  # as an operator makes the folder of a disk
    filled(f"{public}/mounted,{public}/new")
    assert read_by_nobody(public) == []
    with NodeProcess([public / "node"], own_secret=True) as node:
        filled(node.url)
        assert read_by_nobody(public) == []


@pytest.mark.slow
def test_an_embedded_store_leaves_the_umask_of_its_process_alone(public: Path) -> None:
    code = (
        "import os, pathlib, sys, ais_loader\n"
        "os.umask(0o027)\n"
        "with ais_loader.connect(sys.argv[1] + '/store') as client:\n"
        "    bucket = client.create_bucket('b')\n"
        "    bucket.put('a', b'bytes')\n"
        "    pathlib.Path(sys.argv[1], 'of-the-user').write_bytes(b'')\n"
        "    bucket.download('', sys.argv[1] + '/downloads')\n"
        "before = os.umask(0)\n"
        "assert before == 0o027, oct(before)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(public)], check=True)
    assert mode(public / "of-the-user") == 0o640
    downloaded = [path for path in public.glob("downloads/**/*") if path.is_file()]
    assert downloaded and {mode(path) for path in downloaded} == {0o640}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_files_that_a_user_asks_for_have_the_users_umask(public: Path) -> None:
    filled(f"{public}/store")
    result = CliRunner().invoke(main, ["get", "secret/large", str(public / "large"), "--store", f"{public}/store"])
    assert result.exit_code == 0, result.output
    assert mode(public / "large") == 0o644


def test_everything_that_a_store_makes_is_its_owners_alone(public: Path) -> None:
    filled(f"{public}/store")
    others = {
        str(path.relative_to(public)): oct(mode(path))
        for path in (public / "store", *(public / "store").rglob("*"))
        if mode(path) & 0o077 and not path.is_symlink() and path.parent.name != "catalog"  # RocksDB's own
    }
    assert others == {}


@pytest.mark.slow
def test_a_store_that_is_open_to_others_is_reported_and_closed_by_the_next_writer(public: Path) -> None:
    store = public / "store"
    filled(str(store))
    store.chmod(0o755)
    with connect(str(store), mode="r"):
        assert mode(store) == 0o755  # a reader changes nothing
    found = check([store]).of("open-permissions")
    assert [finding.severity for finding in found] == ["warning"] and "0755" in found[0].message
    result = CliRunner().invoke(main, ["doctor", str(store)])
    assert result.exit_code == 0 and "open-permissions" in result.output and "chmod go=" in result.output
    assert [finding.repaired for finding in repair([store]).of("open-permissions")] == ["closed to them"]
    assert mode(store) == 0o700 and not check([store]).of("open-permissions")
    store.chmod(0o2775)
    Store.open([store], mode="a").close()
    assert mode(store) == 0o2700
    with Store.open([store], mode="a") as opened:
        (public / "added").mkdir(0o755)
        opened.pool.add_drive(public / "added")
    assert mode(public / "added") == 0o700


def test_a_folder_that_is_no_store_keeps_its_permissions(public: Path) -> None:
    (public / "home").mkdir(0o755)
    (public / "home" / "letter").write_bytes(b"")
    with pytest.raises(Exception, match="is not a store"):
        Store.open([public / "home"], mode="a")
    assert mode(public / "home") == 0o755
