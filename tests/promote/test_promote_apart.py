"""What is promoted never lies in a store: neither roots, nor what is met below them, by whatever name it is reached."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader import connect
from ais_loader.errors import InvalidRequest, LoaderError, PromoteIncomplete, SourceRefused
from ais_loader.objects.client import Client
from storage_node.promote.store_folders import StoreFolders, require_apart
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig

_BIND, _DETACH = 4096, 2


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Client]:
    with connect(tmp_path / "data" / "drive") as client:
        bucket = client.create_bucket("b")
        for number in range(30):
            bucket.put(f"small/{number}", b"%d" % number)
        bucket.put("large", bytes(3 << 20))
        yield client


def whole(client: Client) -> None:
    bucket = client.bucket("b")
    assert bytes(bucket.get("large")) == bytes(3 << 20)
    assert {f"small/{number}": b"%d" % number for number in range(30)} == {
        one.name: bytes(bucket.get(one.name)) for one in bucket.objects("small/")
    }


def names_of(drive: Path) -> list[Path]:
    """The same folder, by several ways."""
    (drive.parent / "link").symlink_to(drive / "objects")
    (drive.parent / "elsewhere").symlink_to(drive)
    ways = ["drive", "drive/objects", "drive/catalog", "link", "elsewhere/objects"]
    return [drive.parent / way for way in ways]


def test_nothing_is_promoted_from_within_a_drive(store: Client, tmp_path: Path) -> None:
    bucket = store.bucket("b")
    for path in names_of(tmp_path / "data" / "drive"):
        for move in (False, True):
            with pytest.raises(SourceRefused, match="drive of a store"):
                bucket.promote(path, prefix="in/", move=move)
    deep = next(path for path in (tmp_path / "data" / "drive" / "objects").rglob("*.*") if path.is_file())
    for path in (deep, deep.parent):
        with pytest.raises(SourceRefused, match="drive of a store"):
            bucket.promote(path, prefix="in/", move=True)
    whole(store)


def test_drives_and_cluster_folders_below_a_path_are_passed_by(store: Client, tmp_path: Path) -> None:
    """Those of other stores on this machine as well."""
    data = tmp_path / "data"
    (data / "files").mkdir()
    (data / "files" / "a").write_bytes(b"a")
    (data / ".cluster").mkdir()
    (data / ".cluster" / "token").write_text("a secret")
    with connect(data / "other" / "drive") as other:
        other.create_bucket("b").put("x", b"x")
    summary = store.bucket("b").promote(data, prefix="in/", move=True, on_error="return")
    assert summary.promoted == 1 and bytes(store.bucket("b").get("in/files/a")) == b"a"
    assert [one.name for one in store.bucket("b").objects("in/")] == ["in/files/a"]
    assert (data / ".cluster" / "token").exists()
    with connect(data / "other" / "drive") as other:
        assert bytes(other.bucket("b").get("x")) == b"x"
    whole(store)


def test_the_file_of_an_object_is_not_moved_wherever_it_lies(store: Client, tmp_path: Path) -> None:
    """As of a drive whose identity has been lost, or one that was mounted without its root."""
    drive, away = tmp_path / "data" / "drive", tmp_path / "away"
    files = [path for path in (drive / "objects").rglob("*") if path.is_file()]
    file = max(files, key=lambda path: path.stat().st_size)
    os.rename(file, away)
    with pytest.raises(PromoteIncomplete, match="file of an object"):
        store.bucket("b").promote(away, move=True)
    assert away.exists()
    os.rename(away, file)
    whole(store)


@pytest.mark.parametrize("way", ["holds it", "lies in it", "is it", "by a link"])
def test_a_node_does_not_start_with_a_root_that_touches_a_drive(tmp_path: Path, way: str) -> None:
    drive = tmp_path / "data" / "drive"
    drive.mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    root = {
        "holds it": tmp_path / "data",
        "lies in it": drive / "objects",
        "is it": drive,
        "by a link": tmp_path / "link",
    }[way]
    with pytest.raises(InvalidRequest, match="lie in each other"):
        NodeServer([drive], ServerConfig(port=0, promote_roots=(str(root),))).start()
    beside = tmp_path / "beside"
    beside.mkdir()
    with NodeServer([drive], ServerConfig(port=0, promote_roots=(str(beside),))):
        pass


def test_a_node_does_not_start_with_a_root_that_holds_the_folder_of_its_cluster(tmp_path: Path) -> None:
    (tmp_path / ".cluster").mkdir()
    for root in (tmp_path, tmp_path / ".cluster"):
        with pytest.raises(InvalidRequest, match="lie in each other"):
            NodeServer([tmp_path / "node" / "drive"], ServerConfig(port=0, promote_roots=(str(root),))).start()


def test_no_drive_is_added_that_touches_a_root(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    with NodeServer([tmp_path / "drive"], ServerConfig(port=0, promote_roots=(str(files),))) as node:
        for folder in (files, files / "drive", tmp_path):
            with pytest.raises(LoaderError, match="lie in each other"):
                node.drives.require_free(folder)
        node.drives.require_free(tmp_path / "another")


@pytest.mark.parametrize("of", ["drive", "drive/objects", "drive/objects/00", "."])
def test_a_bind_mount_is_known_for_what_it_is(store: Client, tmp_path: Path, of: str) -> None:
    mounted = tmp_path / "srv" / "in"
    mounted.mkdir(parents=True)
    (tmp_path / "data" / "drive" / "objects" / "00").mkdir(exist_ok=True)
    (tmp_path / "data" / "drive" / "objects" / "00" / "file").write_bytes(b"whatever it is")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(os.fsencode(tmp_path / "data" / of), os.fsencode(mounted), None, _BIND, None):
        pytest.skip("needs the right to mount")
    try:
        for root in (mounted, tmp_path / "srv"):
            with pytest.raises(InvalidRequest, match="lie in each other"):
                require_apart([str(root)], [tmp_path / "data" / "drive"])
        bucket = store.bucket("b")
        if of != ".":
            with pytest.raises(SourceRefused, match="drive of a store"):
                bucket.promote(mounted, prefix="in/", move=True)
        bucket.promote(tmp_path / "srv", prefix="in/", move=True, on_error="return")
        assert not list(bucket.objects("in/"))
        fd = os.open(tmp_path, os.O_RDONLY)
        try:
            StoreFolders([tmp_path / "data" / "drive"]).require_outside(fd)
        finally:
            os.close(fd)
        whole(store)
    finally:
        assert libc.umount2(os.fsencode(mounted), _DETACH) == 0
